"""The command that branches a run: `fork`, a session that shares another's past and goes on in its own way."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo.console import OUT, SESSION, ask_whose, dumps, print_text, session_archive
from cdo.errors import CdoError, UsageError
from cdo.run_options import CONSENT, LIMITS, NO_GIT, OUTPUT, STRICT, flags, preview, trusted
from cdo.wording import flat, visible

if TYPE_CHECKING:
    from cdo.archive import Archive
    from cdo.content import Library
    from cdo.forking import Shared
    from cdo.frozen import Frozen
    from cdo.models import ModelSpec
    from cdo.plan import Change, Plan
    from cdo.settings import Resolved, Settings
    from cdo.store import Session

EPILOG = """\b
Examples:
  cdo fork a                     # one more turn, with nothing changed
  cdo fork a --turn 1 --focus "What does it cost to go back?"
  cdo fork a --turn 2 --role economist --without critic --note "The budget was halved."
  cdo fork a --turn 2 -m openai/gpt-4.1 --session a-gpt"""


@click.command(epilog=EPILOG)
@SESSION
@click.option("--turn", type=click.IntRange(0), metavar="N", help="Last turn to share (default: the last complete).")
@click.option("--focus", metavar="TEXT", help="What the next turn is to settle.")
@click.option("--role", multiple=True, metavar="NAME[=CHARGE]", help="Seat this role in the next turn.")
@click.option("--without", multiple=True, metavar="NAME", help="Leave this voice or role out of the next turn.")
@click.option("--note", metavar="TEXT", help="Tell every voice of the next turn this.")
@click.option("-m", "--model", multiple=True, metavar="NAME", help="A model to ask from then on; several in turn.")
@click.option("--turns", metavar="N", help="Most turns, the shared ones included.")
@click.option("--session", "name", metavar="NAME", help="Name the new session (default: SESSION-2, SESSION-3 …).")
@click.option("--no-run", is_flag=True, help="Make the session and stop; `cdo resume` goes on with it.")
@click.option("--trust", is_flag=True, help="Trust what this project brings as it is now: command agents, providers.")
@LIMITS
@STRICT
@NO_GIT
@OUT
@CONSENT
@OUTPUT
def fork(session: str | None, **options: Any) -> None:
    """Branch a run: share its turns up to N, and go on otherwise.

    The new session repeats no call of the turns that it shares, and pays for none. What is changed holds from the
    next turn on (models, --turns) or for that turn (the rest); without a change it is a second try. The source stays
    as it is.
    """
    from cdo import forking, frozen, settings
    from cdo.archive import Folder
    from cdo.content import Library

    library = Library.at(Path.cwd())
    resolved = settings.resolve(flags(options), library, trusted=trusted(options)).sure("out", "adr_dir")
    archive = session_archive(session, options["out"])
    kept = frozen.read_frozen(archive.text("session.yaml"), Path(archive.place))
    program = _program(kept.plan, library)
    turn = forking.base(archive, options["turn"])
    adjusted = _settings(archive, kept, resolved)
    plan, notes = forking.changed(kept.plan, _change(turn + 1, resolved, options), program, forking.sat(archive))
    specs = _specs(plan, adjusted, library, options)
    if options["model"]:
        plan = forking.of_vendors(plan, {spec.name: spec.vendor for spec in specs})
    if isinstance(archive, Folder) and not (options["trust"] or options["yes"]):
        ask_whose(archive.path, plan.root, adjusted.adr_dir)
    plan = plan.model_copy(update={"root": _root(archive, plan, resolved)})
    shared = forking.shared(archive, turn)
    if not options["yes"]:
        shared.weigh()
    forked = frozen.Forked(session=archive.name, turn=turn, created=kept.created)
    sources = {**kept.sources, **{key: resolved.sources[key] for key in frozen.given(resolved)}}
    fresh = frozen.begun(plan, adjusted, sources, forked)
    caps = forking.caps(kept.settings, frozen.given(resolved), archive.name)
    told = (shared.words, forking.told(plan.changes[-1]), *notes, *caps)
    made = frozen.born(fresh, shared.files, Path(resolved.values.out), options["name"], _names(archive.name))
    if options["no_run"]:
        return _leave_it(made, shared, told, options)
    return _go_on(made, plan, specs, fresh, library, told, options)


def _settings(archive: Archive, kept: Frozen, resolved: Resolved) -> Settings:
    """The source's settings with those that this command gives; where files go is never taken from a branch."""
    from cdo import frozen
    from cdo.archive import Folder

    own: dict[str, str | None] = {"out": resolved.values.out}
    if not isinstance(archive, Folder):
        own["adr_dir"] = resolved.values.adr_dir
    return frozen.adjusted(kept, resolved).model_copy(update=own)


def _specs(plan: Plan, settings: Settings, library: Library, options: Mapping[str, Any]) -> list[ModelSpec]:
    """The models that are asked from now on; none where nothing is asked and nobody new is named."""
    from cdo import seating

    if options["no_run"] and not options["model"]:
        return []
    return seating.specs(plan.asked, library, settings, os.environ, trusted(options))


def _change(turn: int, resolved: Resolved, options: Mapping[str, Any]) -> Change:
    """What the options change, beginning with `turn`; raises `UsageError`."""
    from pydantic import ValidationError

    from cdo import forking
    from cdo.blocks import worded
    from cdo.plan import Change

    cap = resolved.values.turns if options["turns"] is not None else None
    try:
        return Change(
            turn=turn,
            focus=" ".join((options["focus"] or "").split()),
            note=" ".join((options["note"] or "").split()),
            roles=tuple(map(forking.role, options["role"])),
            without=tuple(name.strip().lower() for name in options["without"]),
            models=resolved.values.model if options["model"] else (),
            turns=(cap, cap) if cap else None,
        )
    except ValidationError as error:
        found = error.errors()[0]
        raise UsageError(f"--{found['loc'][0]}: {worded(found)}.", "`cdo fork --help` shows what it takes.") from None


def _program(plan: Plan, library: Library) -> str:
    """How the mode of a plan goes on; "" for plain deliberation. Raises `UsageError` for what has no turns."""
    if plan.crew:
        raise UsageError(
            "This session is a mission of a cabal, which cannot be forked: it has rounds, and no turns to share.",
            "A note in its inbox/ or an edited version steers it as it goes on; `cdo cabal` begins another one.",
        )
    if plan.mode is None:
        return ""
    if plan.mode not in library.names("modes"):
        raise UsageError(
            f"This session is no deliberation but `{flat(plan.mode, 40)}`: it has no turns to share.",
            "Fork the run that it is about.",
        )
    return str(library.load(f"modes/{plan.mode}").meta.get("program") or "")


def _root(archive: Archive, plan: Plan, resolved: Resolved) -> str:
    """Where the repository is as seen from the new session; that of a session on a branch is the one around us."""
    from cdo import repository
    from cdo.archive import Folder

    if not plan.root:
        return ""
    here = (archive.path / plan.root).resolve() if isinstance(archive, Folder) else repository.root_of(Path.cwd())
    return os.path.relpath(here, Path(resolved.values.out).absolute() / "session") if here else ""


def _names(source: str) -> list[str]:
    """Names for a fork, the best first."""
    return [f"{source[:60]}-{number}" for number in range(2, 1000)]


def _leave_it(made: Session, shared: Shared, told: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Say where the new session is; nothing was asked."""
    made.close()
    if options["as_json"]:
        spent = {"calls": shared.spent.calls, "tokens": shared.spent.tokens, "cost": shared.spent.known_cost}
        row = {"session": made.name, "path": str(made.path), "source": shared.source, "turn": shared.turn}
        click.echo(dumps({**row, "shared": spent}))
        return
    print_text(str(made.path))
    if not options["quiet"]:
        for text in (*told, f"`cdo resume {made.name}` goes on with it"):
            click.echo(visible(text), err=True)


def _go_on(
    made: Session,
    plan: Plan,
    specs: list[ModelSpec],
    fresh: Frozen,
    library: Library,
    told: tuple[str, ...],
    options: Mapping[str, Any],
) -> None:
    """Run the new session, under the view of a run."""
    from cdo.driving import drive

    try:
        vendors = {spec.name: spec.vendor for spec in specs}
        problem, context = made.read("00-input.md") or "", made.read("00-context.md") or ""
        shown = preview(plan.with_models(plan.asked, vendors), specs, problem, context, library, made.name)
    except CdoError:
        made.close()
        raise
    drive(made, plan, shown, fresh.settings, options, resumed=False, notes=told)
