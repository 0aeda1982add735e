"""Implements `run` (the default command) and `resume`.

Both end in `run_session.run_and_report`, which shows the run and asks the person.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from cdo.cli.common import (
    OUT,
    all_sessions,
    columns,
    complete_session,
    dumps,
    in_batches,
    library_here,
    out_folder,
    print_text,
    require_allowed_weights,
    session_place,
)  # fmt: skip
from cdo.cli.given.checks import allow, allow_team, announce, confirm, given_check
from cdo.cli.given.question import asked, given_text
from cdo.cli.help import EPILOG, Words
from cdo.cli.options import (
    BATCH_API,
    BRANCH,
    CONSENT,
    LIMITS,
    NO_GIT,
    OTLP,
    OUTPUT,
    REVIEW,
    SEAT_WAIT,
    STRICT,
    TRUST,
    from_session,
    model_option,
    preview,
    resolve,
)
from cdo.core.errors import CdoError, SessionError
from cdo.core.people import person_of

if TYPE_CHECKING:
    from cdo.planning.arguments import Invocation
    from cdo.terminal.plan_preview import Preview

# -- the commands ------------------------------------------------------------------------------------


@click.command("run", cls=Words, epilog=EPILOG)
@click.argument("words", nargs=-1, metavar="[ARGS] PROBLEM…")
@model_option("Model to use. Repeat to spread the voices over several models.")
@click.option("-c", "--context", multiple=True, metavar="PATH", help="File or folder to show to the voices.")
@click.option("--no-context", is_flag=True, help="Show the voices no files.")
@click.option(
    "--recall", is_flag=True, help="Add decisions of similar past runs to the context, labelled as past decisions."
)
@click.option(
    "--check",
    metavar="COMMAND",
    help="Only for debug: a command that fails while the fault is there. cdo runs it in a copy of the work tree "
    "before the first phase, and again with each patch that is proposed; in a sandbox where this machine has one.",
)
@click.option("--width", metavar="N|A-B", help="Number of voices in a turn.")
@click.option("--turns", metavar="N", help="Maximum number of turns.")
@click.option(
    "--seat",
    multiple=True,
    metavar="human:NAME",
    help="Give a person a voice in every turn; human:NAME=ROLE names their role.",
)
@SEAT_WAIT
@LIMITS
@BATCH_API
@STRICT
@OUT
@click.option("--session", metavar="NAME", help="Name of the session; its folder is tmp/cdo-NAME/.")
@click.option("--skills", multiple=True, metavar="DIR", help="Folder of Agent Skills to choose from.")
@TRUST
@click.option(
    "--adr-dir", metavar="DIR", help="Copy the decision record of `exec arch` into this folder, with the next number."
)
@click.option("--dry-run", is_flag=True, help="Print the plan and the range of calls and cost. Send nothing.")
@REVIEW
@NO_GIT
@BRANCH
@OTLP
@CONSENT
@OUTPUT
@click.pass_context
def run_command(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Deliberate a problem (the default command)."""
    library = library_here(trust_now=options["trust"])
    invocation = asked(ctx, words, options, library)
    from cdo.app import new_run, seats
    from cdo.core.formatting import visible
    from cdo.security import secrets
    from cdo.session import records, session_file

    # Redact first: a part of a secret would no longer be recognised later.
    problem = secrets.redactor(os.environ)(given_text(invocation.problem))

    if options["session"] is not None:
        records.session_path(Path(), options["session"])
    resolved = resolve(options, library).sure(library)
    check = given_check(options["check"])
    wishes = new_run.Wishes(
        context=options["context"],
        look=not options["no_context"],
        trust=options["trust"],
        recall=options["recall"],
        check=check and from_session(check, Path(resolved.values.out)),
        seats=options["seat"],
        remarks=_unasked(invocation, options),
    )
    made = new_run.planned(invocation, problem, resolved, library, wishes)
    name, whole = options["session"] or "", options["verbose"]
    shown = preview(made.plan, made.specs, problem, made.context, library, name, whole=whole)
    shown = replace(shown, needless=_needless(invocation, shown))
    if options["dry_run"]:
        if options["recall"]:
            click.echo(visible(made.notes[-1]), err=True)
        if check:
            announce(check, resolved.values.check_timeout)
        return _dry_run(shown, options["as_json"])
    if resolved.values.adr_dir:
        new_run.require_writable(Path(resolved.values.adr_dir))
    from cdo.cli.consent import agree
    from cdo.cli.models import require_demo_model
    from cdo.cli.run_session import run_and_report

    seen = agree(shown, resolved.values, resolved.sources, options, option="--no-context")
    if check:
        allow(check)
    seats.allow_weights(made.specs)
    require_demo_model(made.specs, quiet=options["quiet"])
    plan_, told = made.plan, (*made.notes, *made.plan.remarks)
    session = session_file.create(plan_, problem, made.context, resolved, options["session"])
    return run_and_report(session, plan_, shown, resolved.values, options, resumed=False, notes=told, plan_shown=seen)


@click.command("resume")
@click.argument("session", required=False, shell_complete=complete_session)
@model_option("Use these models for all calls that remain.")
@click.option(
    "--rounds", type=click.IntRange(1, 100), metavar="N", help="New maximum number of rounds, for a mission."
)
@click.option(
    "--check", metavar="COMMAND", help="Confirm the check command that the session has, if you did not begin it here."
)
@click.option("--exec", is_flag=True, help="Allow the commands of a mission's team, if you did not begin it here.")
@SEAT_WAIT
@TRUST
@LIMITS
@BATCH_API
@STRICT
@OUT
@NO_GIT
@BRANCH
@OTLP
@CONSENT
@OUTPUT
def resume_command(session: str | None, **options: Any) -> None:
    """Resume a session. No recorded call is repeated or billed again.

    Without a name, resume the newest unfinished session.
    """
    from cdo.app import seats
    from cdo.app.session_places import require_trusted_session
    from cdo.cli.consent import after_turn, agree
    from cdo.security import secrets
    from cdo.session import session_file
    from cdo.session.given_files import keep_or_restore
    from cdo.session.store import Session

    library = library_here(trust_now=options["trust"])
    resolved = resolve(options, library)
    out = options["out"]
    path = (
        session_place(session, out) if session else session_file.newest_unfinished(all_sessions(out), out_folder(out))
    )
    if not path.is_dir() and (hint := in_batches(out, path.name)):
        raise SessionError(f"There is no session {path}.", hint)
    opened = Session.open(path, secrets.redactor(os.environ))
    try:
        kept = session_file.load(opened)
        if options["rounds"]:
            kept = session_file.with_more_rounds(opened, kept, options["rounds"])
        names = kept.plan.asked
        if options["model"]:  # the stored plan stays; only the models asked from now on change
            names = tuple(islice(cycle(resolved.values.model), len(names)))
        adjusted = session_file.with_overrides(kept.settings, resolved)
        if not (options["trust"] or options["yes"]):
            require_trusted_session(opened.path, kept.plan.root, adjusted.adr_dir)
        if options["check"] is not None:
            confirm(options["check"], kept.plan.check, opened.path)
        if options["exec"]:
            allow_team(kept, opened.path)
        specs = seats.specs(names, library, adjusted, os.environ)
        require_allowed_weights(specs, str(opened.path), resolved, options)
        plan = kept.plan.with_models(names, {spec.name: spec.vendor for spec in specs})
        restored = keep_or_restore(opened)
        problem = opened.read("00-input.md") or ""
        context = opened.read("00-context.md") or ""
        shown = preview(plan, specs, problem, context, library, opened.name, whole=options["verbose"])
        sent = [record for record in opened.records if record["kind"] in ("exchange", "batch-intent")]
        begun = any(not (record.get("from") or person_of(str(record.get("model", "")))) for record in sent)
        # What was agreed to when the run began goes on; a session for which nothing was paid is like a new one.
        seen = (
            False
            if begun
            else agree(after_turn(shown, kept.forked.turn if kept.forked else 0), adjusted, resolved.sources, options)
        )
    except CdoError:
        opened.close()
        raise
    from cdo.cli.run_session import run_and_report

    lowered = session_file.lowered(kept, resolved)
    told = [*restored, *(f"{key} is lowered by {resolved.sources[key]}" for key in lowered)]
    return run_and_report(opened, kept.plan, shown, adjusted, options, resumed=True, notes=told, plan_shown=seen)


# -- what a run tells -------------------------------------------------------------------------------


def _unasked(invocation: Invocation, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note on the effect of `hitl` together with --no-input; () otherwise."""
    if "hitl" not in invocation.modifiers or not options["no_input"]:
        return ()
    return (
        "`hitl` with --no-input: nobody is asked, so the run stops before each turn with exit code 6. Edit "
        "tN-plan.yaml or leave it; `cdo resume` then goes on.",
    )


def _needless(invocation: Invocation, shown: Preview) -> str:
    """Return a sentence that says that the question needs no deliberation; "" if it may need one.

    A preset that was named for a deliberation is taken at its word.
    """
    from cdo.content.schemas import Complexity
    from cdo.planning.complexity import TABLES, settled
    from cdo.terminal.sending import calls, cost

    if invocation.preset not in (None, "quick") or invocation.mode or invocation.domain:
        return ""
    what = settled(shown.problem, shown.library.read(TABLES, Complexity)[0])
    if not what:
        return ""
    made = f"{calls(shown.span)}, {cost(shown.specs, shown.span)}"
    return f"This needs no deliberation ({what}): one call to a model would answer it. As asked, cdo makes {made}."


def _dry_run(preview: Preview, as_json: bool) -> None:
    """Print the plan of a run; send nothing."""
    from cdo.cli.consent import would_send
    from cdo.planning.estimate import summary
    from cdo.terminal.plan_dashboard import lines

    if as_json:
        first = [voice.name for voice in preview.first().voices]
        files = [{"path": file.path, "tokens": file.tokens} for file in preview.files]
        more = {"files": files, "context_tokens": preview.context_tokens, "needless": preview.needless}
        click.echo(dumps({**summary(preview.plan, preview.problem, preview.span, first), **more}))
        return
    for row in lines(preview.first(), columns(sys.stdout)):
        print_text(row)
    for row in would_send(preview, option="--no-context"):
        print_text(row)
    click.echo("Nothing was sent.")
