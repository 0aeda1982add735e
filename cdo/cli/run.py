"""Implements `run` (the default command) and `resume`: their arguments and options, and the inputs of a run.

Both end in `run_session.run_and_report`, which shows the run and asks the person.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
from collections.abc import Mapping, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from msgspec.structs import replace

from cdo.cli.common import (
    OUT,
    all_sessions,
    columns,
    complete_session,
    dumps,
    in_batches,
    is_session,
    library_here,
    out_folder,
    print_text,
    require_allowed_weights,
    session_place,
)  # fmt: skip
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
from cdo.core.errors import CdoError, SessionError, UsageError
from cdo.core.formatting import one_line
from cdo.core.people import person_of

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.planning.arguments import Invocation, Vocabulary
    from cdo.planning.plan import CheckCommand
    from cdo.session.session_file import Frozen
    from cdo.terminal.plan_preview import Preview

MAX_PROBLEM = 2**20  # bytes


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
    help="Give a person a voice in every turn, blind like the others; human:NAME=ROLE names their role.",
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
    invocation = _asked(ctx, words, options, library)
    from cdo.app import new_run, seats
    from cdo.core.formatting import visible
    from cdo.security import secrets
    from cdo.session import records, session_file

    # Redact first: a part of a secret would no longer be recognised later.
    problem = secrets.redactor(os.environ)(given_text(invocation.problem))

    if options["session"] is not None:
        records.session_path(Path(), options["session"])
    resolved = resolve(options, library).sure(library)
    check = _check(options["check"])
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
            _announce(check, resolved.values.check_timeout)
        return _dry_run(shown, options["as_json"])
    if resolved.values.adr_dir:
        new_run.require_writable(Path(resolved.values.adr_dir))
    from cdo.cli.consent import agree
    from cdo.cli.models import require_demo_model
    from cdo.cli.run_session import run_and_report

    seen = agree(shown, resolved.values, resolved.sources, options, option="--no-context")
    if check:
        _allow(check)
    seats.allow_weights(made.specs)
    require_demo_model(made.specs, quiet=options["quiet"])
    plan_, told = made.plan, (*made.notes, *made.plan.remarks)
    session = session_file.create(plan_, problem, made.context, resolved, options["session"])
    return run_and_report(session, plan_, shown, resolved.values, options, resumed=False, notes=told, plan_shown=seen)


def _asked(ctx: click.Context, words: tuple[str, ...], options: Mapping[str, Any], library: Library) -> Invocation:
    """Read `[ARGS] PROBLEM`; a problem that is not there comes from a pipe. Raises `UsageError`."""
    from cdo.planning import arguments as grammar

    vocabulary = grammar.vocabulary(library.names("presets"), library.names("modes"))
    after = ctx.meta.get("cdo.after")
    _not_waiting(words, vocabulary.words(), library)
    require_question(words, after, vocabulary, options["out"])
    try:
        asked = grammar.parse(words, vocabulary, after_dashes=after)
    except grammar.NoProblem:
        if sys.stdin.isatty():
            raise
        return grammar.parse([*words, "-"], vocabulary)
    if asked.problem != "-" and not options["quiet"] and _unread_pipe():
        click.echo(
            "What comes by stdin is not read: save it in a file and give that with -c FILE, "
            "or write - for the question.",
            err=True,
        )
    return asked


def _unread_pipe() -> bool:
    """True if stdin is a pipe with something in it by now, as in `git diff | cdo think "Is this safe?"`."""
    try:
        count = bytearray(4)
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            fcntl.ioctl(0, termios.FIONREAD, count)
        return any(count)
    except OSError:
        return False


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
            _confirm(options["check"], kept.plan.check, opened.path)
        if options["exec"]:
            _allow_team(kept, opened.path)
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


# -- what a run needs ------------------------------------------------------------------------------


def require_question(
    words: Sequence[str], after: Sequence[str] | None, vocabulary: Vocabulary, out: str | None, program: str = "cdo"
) -> None:
    """Raise `UsageError` if the first word of the question is more likely a mistyped command."""
    from cdo.content.schemas import CommandWords
    from cdo.planning import mistyped

    table = library_here().read(mistyped.TABLE, CommandWords)[0]
    known = mistyped.KnownWords(_commands(), vocabulary, table, lambda name: is_session(name, out), program)
    known.require_question(words, after)


def _not_waiting(words: Sequence[str], vocabulary: Sequence[str], library: Library) -> None:
    """Raise `ContentError` if the words name a preset, mode or domain of a project that is not trusted."""
    after_exec = False
    for word in chain.from_iterable(word.split(",") for word in words):
        for folder in ("domains",) if after_exec else ("presets", "modes"):
            if f"{folder}/{word}" in library.waiting() and not library.has(f"{folder}/{word}"):
                library.find(f"{folder}/{word}")
        if word not in vocabulary and not after_exec:
            return
        after_exec = word == "exec"


def _commands() -> list[str]:
    """Return the names of all commands."""
    parent = click.get_current_context().find_root().command
    return list(parent.commands) if isinstance(parent, click.Group) else []


def given_text(words: str) -> str:
    """Return a text that is given as words, as `@FILE` or by stdin (`-`); raise `UsageError`."""
    from cdo.planning.arguments import problem_source

    source, value = problem_source(words)
    try:
        if source == "stdin":
            text = _bounded(sys.stdin.buffer)
        elif source == "file":
            with Path(value).open("rb") as file:
                text = _bounded(file)
        else:
            text = value
            text.encode()  # fails if an argument contains bytes that are not UTF-8
    except UnicodeError:
        raise UsageError("The problem is not UTF-8 text.", "Convert it first.") from None
    except OSError as error:
        raise UsageError(f"The file {value} cannot be read: {error.strerror}.", "Check the path.") from None
    if not text.strip():
        why = {"stdin": ": nothing came by stdin", "file": f": the file {value} is empty", "text": ""}[source]
        raise UsageError(f"There is no problem to deliberate{why}.", 'Give one: cdo think "Should we …?"')
    return text.strip()


def _bounded(file: BinaryIO) -> str:
    """Return the text of a file or pipe, which may never end; raise `UsageError` if it is too long for a problem."""
    data = file.read(MAX_PROBLEM + 1)
    if len(data) > MAX_PROBLEM:
        raise UsageError(
            f"The problem is longer than {MAX_PROBLEM:,} bytes.",
            "State the question in a few pages, and give long material with -c FILE.",
        )
    return data.decode("utf-8-sig")


def _check(command: str | None) -> CheckCommand | None:
    """Return the check of a run from this folder, with an absolute root; None without --check."""
    if command is None:
        return None
    from cdo.repository.work_tree import root_of
    from cdo.runner import check_command
    from cdo.security import secrets

    if secrets.redactor(os.environ)(command) != command:
        raise UsageError(
            "The command of --check holds the value of a secret variable, which is never written to a file.",
            "Put the command into a script that reads the variable from a file of its own.",
        )
    return check_command.given(command, root_of(Path.cwd()), Path.cwd())


def _allow(check: CheckCommand) -> None:
    from cdo.runner import check_command

    check_command.allow(check, Path(check.root))


def _allow_team(kept: Frozen, session: Path) -> None:
    """Record that the person lets the commands of a mission's team run; raise `UsageError` if it has none."""
    from cdo.runner import check_command

    if not (kept.plan.crew and kept.plan.crew.exec):
        raise UsageError(
            "This session runs no commands of a team.", 'Begin a mission with them: cdo cabal --exec "What to make"'
        )
    check_command.require_sandbox()
    check_command.allow_team(session, kept.created)


def _announce(check: CheckCommand, limit: float) -> None:
    """Print how a run would run the check, and in which sandbox, without running it."""
    from cdo.core.formatting import visible
    from cdo.runner import check_command

    text = check_command.announced(check.command, check_command.sandbox_here(), limit)
    click.echo(visible(text.replace("` runs in a copy", "` would run in a copy", 1)), err=True)


def _confirm(command: str, check: CheckCommand | None, session: Path) -> None:
    """Record that the person gave a session's check; raise `UsageError` if `command` differs from it."""
    if check is None:
        raise UsageError("This session has no check.", 'Begin a run with one: cdo debug --check "…" "What fails"')
    if command.strip() != check.command:
        raise UsageError(
            f"The check of this session is another command: `{one_line(check.command, 200)}`.",
            "A session keeps the check that it began with; begin a new run for another one.",
        )
    _allow(replace(check, root=os.path.realpath(session / check.root)))


def _unasked(invocation: Invocation, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note on the effect of `hitl` together with --no-input; () otherwise."""
    if "hitl" not in invocation.modifiers or not options["no_input"]:
        return ()
    return (
        "`hitl` with --no-input: nobody is asked, so the run stops before each turn with exit code 6. Edit "
        "tN-plan.yaml or leave it; `cdo resume` then goes on.",
    )


def given_request(words: Sequence[str], after: Sequence[str] | None, library: Library, out: str | None) -> str:
    """Return the request of `cdo cabal` from its arguments, stdin (`-`) or a file (`@FILE`); raise `UsageError`.

    `after` are the words after a `--`, None if there is none.
    """
    from cdo.planning import arguments as grammar

    vocabulary = grammar.vocabulary(library.names("presets"), library.names("modes"))
    text = grammar.request(words, vocabulary, after_dashes=after)
    require_question(words, after, vocabulary, out, "cdo cabal")
    return given_text(text)


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
