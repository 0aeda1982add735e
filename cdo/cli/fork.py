"""Implements the command `fork`, which starts a new session from the first turns of another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from cdo.cli.common import (
    OUT,
    SESSION,
    dumps,
    library_here,
    print_text,
    require_allowed_weights,
    session_archive,
)  # fmt: skip
from cdo.cli.options import (
    BRANCH,
    CONSENT,
    LIMITS,
    NO_GIT,
    OUTPUT,
    STRICT,
    TRUST,
    from_session,
    model_option,
    preview,
    resolve,
)
from cdo.core.errors import CdoError, UsageError
from cdo.core.formatting import one_line, visible

if TYPE_CHECKING:
    from cdo.app.fork import Shared
    from cdo.content.library import Library
    from cdo.planning.plan import Change, CheckCommand, Plan
    from cdo.planning.settings import Resolved, Settings
    from cdo.providers.models import ModelSpec
    from cdo.session.reader import SessionReader
    from cdo.session.session_file import Frozen
    from cdo.session.store import Session
    from cdo.terminal.plan_preview import Preview

EPILOG = """\b
Examples:
  cdo fork a                     # one more turn, with nothing changed
  cdo fork a --turn 1 --focus "What does it cost to go back?"
  cdo fork a --turn 2 --role economist --without critic --note "The budget was halved."
  cdo fork a --turn 2 -m openai/gpt-4.1 --session a-gpt"""


@click.command(epilog=EPILOG)
@SESSION
@click.option(
    "--turn", type=click.IntRange(0), metavar="N", help="Last turn to share (default: the last complete turn)."
)
@click.option("--focus", metavar="TEXT", help="Question that the next turn has to settle.")
@click.option("--role", multiple=True, metavar="NAME[=CHARGE]", help="Add this role to the next turn.")
@click.option("--without", multiple=True, metavar="NAME", help="Leave this voice or role out of the next turn.")
@click.option("--note", metavar="TEXT", help="Message to every voice of the next turn.")
@model_option("Model for the new turns. Repeat to spread the voices over several models.")
@click.option("--turns", metavar="N", help="Maximum number of turns, shared turns included.")
@click.option("--session", "name", metavar="NAME", help="Name of the new session (default: SESSION-2, SESSION-3 …).")
@click.option("--no-run", is_flag=True, help="Create the session and stop. `cdo resume` starts it.")
@TRUST
@LIMITS
@STRICT
@NO_GIT
@BRANCH
@OUT
@CONSENT
@OUTPUT
def fork(session: str | None, **options: Any) -> None:
    """Take the first N turns of a run and go on differently.

    The new session repeats no call of the turns that it takes, and pays for none. Models and --turns change from the
    next turn on, other options change the next turn alone. Without a change, the fork is a second try. The first
    session stays as it is.
    """
    from cdo.app import fork as forking
    from cdo.app.session_places import require_trusted_session
    from cdo.cli.consent import agree
    from cdo.session import session_file
    from cdo.session.reader import SessionFolder

    library = library_here(trust_now=options["trust"])
    resolved = resolve(options, library)
    archive = session_archive(session, options["out"])
    kept = session_file.read_frozen(archive.text("session.yaml"), Path(archive.place))
    program = _program(kept.plan, library)
    turn = forking.base(archive, options["turn"])
    adjusted = _settings(archive, kept, resolved)
    plan, notes = forking.changed(kept.plan, _change(turn + 1, resolved, options), program, forking.sat(archive))
    specs = _specs(plan, adjusted, library, options)
    if options["model"]:
        plan = forking.of_vendors(plan, {spec.name: spec.vendor for spec in specs})
    if isinstance(archive, SessionFolder) and not (options["trust"] or options["yes"]):
        require_trusted_session(archive.path, plan.root, adjusted.adr_dir)
    require_allowed_weights(specs, str(archive.place), resolved, options)
    plan = replace(plan, root=_root(archive, plan, resolved), check=_check(archive, plan, resolved))
    shared = forking.shared(archive, turn)
    if not options["yes"]:
        shared.weigh()
    forked = session_file.Forked(session=archive.name, turn=turn, created=kept.created)
    changed = [*session_file.given(resolved), *session_file.lowered(kept, resolved)]
    sources = {**kept.sources, **{key: resolved.sources[key] for key in (*changed, "prices")}}
    fresh = session_file.new_session_file(plan, adjusted, sources, forked)
    caps = forking.caps(kept.settings, changed, archive.name)
    told = (shared.words, forking.told(plan.changes[-1]), *notes, *caps)
    seen = False
    if not options["no_run"]:
        seen = agree(_preview(plan, specs, archive, library, options, turn), adjusted, resolved.sources, options)
    made = session_file.create_session(
        fresh,
        {**shared.files, **forking.material(archive, plan)},
        Path(resolved.values.out),
        options["name"],
        _names(archive.name),
    )
    if options["no_run"]:
        return _leave_it(made, plan, shared, told, options)
    return _go_on(made, plan, specs, fresh, library, told, options, seen)


def _preview(
    plan: Plan,
    specs: list[ModelSpec],
    archive: SessionReader,
    library: Library,
    options: Mapping[str, Any],
    turn: int,
) -> Preview:
    """Return the preview of a fork, whose estimate begins after the last shared turn."""
    from cdo.cli.consent import after_turn

    shown = plan.with_models(plan.asked, {spec.name: spec.vendor for spec in specs})
    problem, context = archive.text("00-input.md") or "", archive.text("00-context.md") or ""
    name = options["name"] or ""
    given = preview(shown, specs, problem, context, library, name, whole=options["verbose"])
    return after_turn(given, turn)


def _settings(archive: SessionReader, kept: Frozen, resolved: Resolved) -> Settings:
    """Return the source's settings with those this command gives. Output folders are never taken from a branch."""
    from cdo.session import session_file
    from cdo.session.reader import SessionFolder

    own: dict[str, str | None] = {"out": resolved.values.out}
    if not isinstance(archive, SessionFolder):
        own["adr_dir"] = resolved.values.adr_dir
    return replace(session_file.with_overrides(kept.settings, resolved), **own)


def _specs(plan: Plan, settings: Settings, library: Library, options: Mapping[str, Any]) -> list[ModelSpec]:
    """Return the models for the new turns; none with --no-run if no model is given."""
    from cdo.app import seats

    if options["no_run"] and not options["model"]:
        return []
    return seats.specs(plan.asked, library, settings, os.environ)


def _change(turn: int, resolved: Resolved, options: Mapping[str, Any]) -> Change:
    """Return the change that the options make, beginning with `turn`; raise `UsageError`."""
    from cdo.app import fork as forking
    from cdo.core.schema import SchemaError, fitted
    from cdo.planning.plan import Change

    cap = resolved.values.turns if options["turns"] is not None else None
    try:
        return fitted(
            Change,
            {
                "turn": turn,
                "focus": " ".join((options["focus"] or "").split()),
                "note": " ".join((options["note"] or "").split()),
                "roles": [forking.role(text) for text in options["role"]],
                "without": [name.strip().lower() for name in options["without"]],
                "models": resolved.values.model if options["model"] else (),
                "turns": (cap, cap) if cap else None,
            },
        )
    except SchemaError as error:
        raise UsageError(f"--{error.place[0]}: {error.why}.", "`cdo fork --help` lists the options.") from None


def _program(plan: Plan, library: Library) -> str:
    """Return the program of a plan's mode, "" for plain deliberation; raise `UsageError` if it has no turns."""
    if plan.crew:
        raise UsageError(
            "This session is a mission of a cabal, which cannot be forked: it has rounds, and no turns to share.",
            "A note in its inbox/ or an edited version steers it as it goes on; `cdo cabal` begins another one.",
        )
    if plan.mode is None:
        return ""
    if plan.mode not in library.names("modes"):
        raise UsageError(
            f"This session is not a deliberation but `{one_line(plan.mode, 40)}`: it has no turns to share.",
            "Fork the run that it is about.",
        )
    return str(library.load(f"modes/{plan.mode}").meta.get("program") or "")


def _root(archive: SessionReader, plan: Plan, resolved: Resolved) -> str:
    """Return the path of the repository relative to the new session. Material that a session brings goes along."""
    from cdo.planning.plan import MATERIAL

    if plan.root == MATERIAL:
        return MATERIAL
    here = _there(archive, plan.root) if plan.root else None
    return os.path.relpath(here, Path(resolved.values.out).absolute() / "session") if here else ""


def _check(archive: SessionReader, plan: Plan, resolved: Resolved) -> CheckCommand | None:
    """Return the check of the source, as stored in the new session."""
    here = _there(archive, plan.check.root) if plan.check else None
    if plan.check is None or here is None:
        return None
    return from_session(replace(plan.check, root=str(here)), Path(resolved.values.out))


def _there(archive: SessionReader, root: str) -> Path | None:
    """Resolve `root` relative to a session's folder; for a session on a branch, return the current repository."""
    from cdo.repository.work_tree import root_of
    from cdo.session.reader import SessionFolder

    return (archive.path / root).resolve() if isinstance(archive, SessionFolder) else root_of(Path.cwd())


def _names(source: str) -> list[str]:
    """Return names for a fork, in order of preference."""
    return [f"{source[:60]}-{number}" for number in range(2, 1000)]


def _leave_it(made: Session, plan: Plan, shared: Shared, told: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Print where the new session is, without running it."""
    from cdo.providers.recorded import PREFIX

    made.close()
    if options["as_json"]:
        spent = {"calls": shared.spent.calls, "tokens": shared.spent.tokens, "cost": shared.spent.known_cost}
        row = {"session": made.name, "path": str(made.path), "source": shared.source, "turn": shared.turn}
        click.echo(dumps({**row, "shared": spent}))
        return
    print_text(str(made.path))
    if not options["quiet"]:
        named = " -m MODEL" if plan.asked[0].startswith(PREFIX) else ""
        for text in (*told, f"`cdo resume {made.name}{named}` goes on with it"):
            click.echo(visible(text), err=True)


def _go_on(
    made: Session,
    plan: Plan,
    specs: list[ModelSpec],
    fresh: Frozen,
    library: Library,
    told: tuple[str, ...],
    options: Mapping[str, Any],
    seen: bool,
) -> None:
    """Run the new session with the usual view of a run."""
    from cdo.cli.run_session import run_and_report

    try:
        vendors = {spec.name: spec.vendor for spec in specs}
        problem, context = made.read("00-input.md") or "", made.read("00-context.md") or ""
        shown = preview(plan.with_models(plan.asked, vendors), specs, problem, context, library, made.name)
    except CdoError:
        made.close()
        raise
    run_and_report(made, plan, shown, fresh.settings, options, resumed=False, notes=told, plan_shown=seen)
