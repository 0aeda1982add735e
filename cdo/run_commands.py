"""The commands that deliberate: `run` (the default) and `resume`. They parse, show, ask and print; `app` wires."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cdo.commands import complete_session
from cdo.console import dumps
from cdo.errors import BudgetReached, CdoError, Interrupted, NeedsHuman, UsageError

if TYPE_CHECKING:
    from cdo.app import Result, Shell
    from cdo.content import Library
    from cdo.models import ModelSpec, Trusted
    from cdo.people import Editing
    from cdo.plan import Surroundings
    from cdo.preview import Preview
    from cdo.settings import Resolved
    from cdo.store import Session
    from cdo.types import Event, Pause
    from cdo.view import View

EXIT_STRICT = 3
# First words that a later version will take for commands: refused today, so that they never become a problem.
LATER = ("watch", "report", "fork", "replay", "diff", "cost", "answer", "cabal")
EPILOG = """\b
Examples:
  cdo think "Should we reduce node types?"
  cdo adaptive,full -c docs/ -m openai/gpt-4.1 "Evaluate architecture"
  git diff | cdo deep -          # the problem from a pipe; @FILE reads a file
  cdo resume                     # go on with the newest unfinished session

\b
Exit codes: 0 FINAL.md written, 1 internal error, 2 usage, 3 --strict and not converged or
degraded, 4 no usable model or bad configuration, 5 budget reached, 6 paused for you, 7 the models
failed, 8 session damaged or locked, 130 interrupted."""


# -- the commands ------------------------------------------------------------------------------------


class Words(click.Command):
    """A command whose words after `--` all belong to the problem."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            ctx.meta["cdo.after"] = args[split + 1 :]
            args = args[:split]
        return super().parse_args(ctx, args)


Options = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(*options: Options) -> Options:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


LIMITS = _options(
    click.option("--budget", metavar="USD", help="Cap on money; a model of unknown price is refused then."),
    click.option("--max-calls", metavar="N", help="Cap on requests, retries included."),
    click.option("--max-tokens", metavar="N", help="Cap on tokens, read and written."),
    click.option("--timeout", metavar="S", help="Cap on the run's time, in seconds."),
    click.option("--concurrency", metavar="N", help="Most requests in flight at once."),
    click.option("--strict", is_flag=True, help="Exit 3 when not converged or degraded."),
)
OUTPUT = _options(
    click.option("--yes", "-y", is_flag=True, help="Answer every question of consent with yes."),
    click.option("--no-input", is_flag=True, help="Never ask anything."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("-q", "--quiet", is_flag=True, help="Show problems only."),
    click.option("-v", "--verbose", is_flag=True, help="Show more, and tracebacks."),
)
OUT = click.option("--out", metavar="DIR", help="Where sessions live (default: tmp).")


@click.command("run", cls=Words, epilog=EPILOG)
@click.argument("words", nargs=-1, metavar="[ARGS] PROBLEM…")
@click.option("-m", "--model", multiple=True, metavar="NAME", help="A model; several are seated in turn.")
@click.option("-c", "--context", multiple=True, metavar="PATH", help="A file or folder to show to the voices.")
@click.option("--no-context", is_flag=True, help="Show them no context at all.")
@click.option("--width", metavar="N|A-B", help="Voices a turn.")
@click.option("--turns", metavar="N", help="Most turns.")
@LIMITS
@OUT
@click.option("--session", metavar="NAME", help="Name the session: tmp/cdo-NAME/.")
@click.option("--skills", multiple=True, metavar="DIR", help="A folder of Agent Skills to choose from.")
@click.option("--trust", is_flag=True, help="Trust this project's skills and command agents as they are now.")
@click.option("--adr-dir", metavar="DIR", help="Copy the decision record of `exec arch` there, numbered.")
@click.option("--dry-run", is_flag=True, help="Print the plan and its range of calls and cost; send nothing.")
@OUTPUT
@click.pass_context
def run_command(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    """Deliberate a problem (the default command)."""
    from cdo import words as grammar
    from cdo.content import Library

    library = Library.at(Path.cwd())
    vocabulary = grammar.vocabulary(library.names("presets"), library.names("modes"))
    after = ctx.meta.get("cdo.after")
    _not_a_command(words, after, vocabulary.words())
    try:
        invocation = grammar.parse(words, vocabulary, after_dashes=after)
    except grammar.NoProblem:
        if sys.stdin.isatty():
            raise
        invocation = grammar.parse([*words, "-"], vocabulary)
    problem = _problem(*grammar.problem_source(invocation.problem))
    from cdo import frozen, plan, seating, settings, store

    if options["session"] is not None:
        store.session_path(Path(), options["session"])
    resolved = settings.resolve(_flags(options), library)
    trusted = _trusted(options)
    names = _models(resolved, library, trusted, every="lev-exec" in invocation.modifiers)
    specs = seating.specs(names, library, resolved.values, os.environ, trusted)
    around, notes = _around(options, resolved, specs, library)
    plan_ = plan.make(invocation, problem, resolved, library, names, around)
    context = _context(options, resolved, specs, problem)
    preview = _preview(plan_, specs, problem, context, library, options["session"] or "")
    if options["dry_run"]:
        return _dry_run(preview, options["as_json"])
    session = frozen.create(plan_, problem, context, resolved, options["session"])
    return _drive(session, preview, resolved.values, options, resumed=False, notes=notes)


@click.command("resume")
@click.argument("session", required=False, shell_complete=complete_session)
@click.option("-m", "--model", multiple=True, metavar="NAME", help="Other models for what is still to be asked.")
@click.option("--trust", is_flag=True, help="Trust this project's command agents as they are now.")
@LIMITS
@OUT
@OUTPUT
def resume_command(session: str | None, **options: Any) -> None:
    """Go on with a session; nothing is paid twice.

    Without a name it is the newest unfinished one.
    """
    from cdo import frozen, seating, settings
    from cdo.content import Library
    from cdo.store import Session

    library = Library.at(Path.cwd())
    resolved = settings.resolve(_flags(options), library)
    path = _path(session, resolved) if session else frozen.newest_unfinished(Path(resolved.values.out))
    opened = Session.open(path, frozen.redactor(os.environ))
    try:
        kept = frozen.load(opened)
        plan = kept.plan
        if options["model"]:
            plan = plan.model_copy(update={"models": tuple(options["model"])})
        adjusted = frozen.adjusted(kept, resolved)
        specs = seating.specs(plan.models, library, adjusted, os.environ, _trusted(options))
        if options["model"]:
            plan = plan.model_copy(update={"vendors": {spec.name: spec.vendor for spec in specs}})
        problem = opened.read("00-input.md") or ""
        preview = _preview(plan, specs, problem, opened.read("00-context.md") or "", library, opened.name)
    except CdoError:
        opened.close()
        raise
    return _drive(opened, preview, adjusted, options, resumed=True)


# -- what a run needs ------------------------------------------------------------------------------


def _not_a_command(words: Sequence[str], after: Sequence[str] | None, vocabulary: Sequence[str]) -> None:
    """Raise `UsageError` where the problem would be a command's name, or most likely a misspelled word."""
    import difflib

    commands = _commands()
    first = words[0] if words else ""
    if first in LATER:
        raise UsageError(
            f"`{first}` is not available in this version of cdo.",
            "Put `--` before it if the problem begins with it, or quote the problem.",
        )
    if len(words) != 1 or after is not None or first in vocabulary:
        return
    if first in commands:
        raise UsageError(f"`{first}` is a command.", f"Put it first: cdo {first} …; or quote a longer problem.")
    if near := difflib.get_close_matches(first, [*commands, *vocabulary], n=1, cutoff=0.75):
        raise UsageError(
            f"`{first[:40]}` is not a command, and as a problem it is short.",
            f"Did you mean `cdo {near[0]}`? Put `--` before it if it is the problem.",
        )


def _commands() -> list[str]:
    """The names of all commands."""
    parent = click.get_current_context().find_root().command
    return list(parent.commands) if isinstance(parent, click.Group) else []


def _flags(options: Mapping[str, Any]) -> dict[str, Any]:
    keys = (
        "model", "width", "turns", "budget", "max_calls", "max_tokens", "timeout", "concurrency", "out", "strict",
        "skills", "adr_dir",
    )  # fmt: skip
    return {key: options[key] for key in keys if options.get(key) not in (None, (), False)}


def _problem(source: str, value: str) -> str:
    """The problem's text, wherever it comes from; raises `UsageError`."""
    try:
        if source == "stdin":
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        elif source == "file":
            text = Path(value).read_text(encoding="utf-8-sig")
        else:
            text = value
            text.encode()  # a word of the command line may hold bytes that are no text
    except UnicodeError:
        raise UsageError("The problem is not UTF-8 text.", "Convert it first.") from None
    except OSError as error:
        raise UsageError(f"The problem file {value} cannot be read: {error.strerror}.", "Check the path.") from None
    if not text.strip():
        raise UsageError("There is no problem to deliberate.", 'Give one: cdo think "Should we …?"')
    return text.strip()


def _trusted(options: Mapping[str, Any]) -> Trusted:
    """What tells whether the person trusts a file of the project; with --trust they do so now."""
    from cdo.trust import Trust

    trust = Trust.load()

    def holds(kind: str, path: Path, sha256: str) -> bool:
        if options.get("trust"):
            trust.pin(kind, [(path, sha256)])
        return trust.holds(kind, path, sha256)

    return holds


def _models(resolved: Resolved, library: Library, trusted: Trusted, *, every: bool) -> tuple[str, ...]:
    """The models of a run: those that are set, else all that this machine offers (`every`), else the best one."""
    if resolved.values.model:
        return resolved.values.model
    from cdo import models, seating

    if every and (found := models.available(library, os.environ, seating.first_of_ollama, trusted)):
        return tuple(name for name, _ in found)
    return (models.choose(library, os.environ, seating.first_of_ollama, trusted)[0],)


def _around(
    options: Mapping[str, Any], resolved: Resolved, specs: Sequence[ModelSpec], library: Library
) -> tuple[Surroundings, tuple[str, ...]]:
    """What there is around a run, and what a person should know of it."""
    from cdo import repository, skill_files
    from cdo.plan import Surroundings
    from cdo.tools import ToolBox
    from cdo.trust import Trust

    folders = [Path(folder).expanduser() for folder in resolved.values.skills]
    found = skill_files.discover(Path.cwd(), Path.home(), folders)
    trust = Trust.load()
    if options["trust"]:
        trust.pin(skill_files.KIND, [(card.path, card.sha256) for card in found.untrusted(trust)])
    usable = found.usable(trust)
    root = None if options["no_context"] else repository.root_of(Path.cwd())
    vendors = {spec.name: spec.vendor for spec in specs}
    looks = None
    if root and any(spec.tools for spec in specs):
        box = library.read("dispatch/tools", ToolBox)[0]
        looks = box.max_requests, box.max_rounds
    return Surroundings(usable.skills, bool(folders), vendors, looks), usable.notes


def _context(options: Mapping[str, Any], resolved: Resolved, specs: Sequence[ModelSpec], problem: str) -> str:
    """The text of 00-context.md, within what the smallest model can read beside the rest.

    What was given with `-c`, and in a repository what a look around it found.
    """
    from cdo import repository
    from cdo.context import Context, gather

    if options["no_context"] and options["context"]:
        raise UsageError("--context and --no-context exclude each other.", "Leave one out.")
    room = min(spec.window for spec in specs)
    budget = resolved.values.context_tokens or min(24_000, room // 4)
    paths = [Path(path) for path in options["context"]]
    root = None if options["no_context"] else repository.root_of(Path.cwd())
    # Named as citations name them: from the top of the repository.
    given = gather([Path.cwd() / path for path in paths], root or Path.cwd(), budget) if paths else None
    if root is None:
        return (given or Context((), (), 0)).markdown()
    return repository.survey(root, problem, budget, given)


def _preview(
    plan: Any, specs: Sequence[ModelSpec], problem: str, context: str, library: Library, session: str
) -> Preview:
    from cdo.context import estimate_tokens
    from cdo.plan import estimate
    from cdo.preview import Preview

    return Preview(plan, specs, estimate(plan, specs, estimate_tokens(problem + context)), problem, library, session)


def _dry_run(preview: Preview, as_json: bool) -> None:
    """Print what a run would be; nothing is sent."""
    from cdo.dashboard import lines
    from cdo.plan import summary

    if as_json:
        first = [voice.name for voice in preview.first().voices]
        click.echo(dumps(summary(preview.plan, preview.problem, preview.span, first)))
        return
    for row in lines(preview.first(), _columns(sys.stdout)):
        click.echo(row)
    click.echo("Nothing was sent.")


def _columns(stream: Any) -> int:
    """How many columns there are to write in."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if stream.isatty() else 100


# -- driving ---------------------------------------------------------------------------------------


def _drive(
    session: Session,
    preview: Preview,
    settings: Any,
    options: Mapping[str, Any],
    *,
    resumed: bool,
    notes: Sequence[str] = (),
) -> None:
    """Run a session under a view, print its result, and exit with its code."""
    import asyncio

    from cdo import app
    from cdo.types import Event
    from cdo.view import make_view, summary

    plan = preview.plan
    view = make_view(sys.stderr, quiet=options["quiet"], verbose=options["verbose"], json=options["as_json"])
    try:
        view(Event("run", session.name, {
            "preset": plan.preset, "why": plan.why, "models": list(plan.models), "path": str(session.path),
            "resumed": resumed,
        }))  # fmt: skip
        for note in notes:
            view(Event("note", "", {"text": note}))
        if plan.dashboard:
            _show_plan(session, preview, view, begun=any(record["kind"] == "exchange" for record in session.records))
        shell = _shell(view, preview, options)
        result = asyncio.run(app.run(session, plan, settings, preview.library, shell))
    except CdoError as error:
        if options["as_json"]:
            view.close()
            click.echo(dumps(_broken_off(session, error).json()))
        raise
    finally:
        view.close()
        session.close()
    with contextlib.suppress(BrokenPipeError):  # whoever reads no further still wants the exit code
        click.echo(dumps(result.json()) if options["as_json"] else summary(result))
    if settings.strict and (result.status != "converged" or result.degraded):
        leave(EXIT_STRICT)


def _show_plan(session: Session, preview: Preview, view: View, *, begun: bool) -> None:
    """Show the dashboard before the first turn, and keep it as a file. With a human it is shown with the plan."""
    from cdo.dashboard import lines, markdown
    from cdo.types import Event

    if begun:
        return
    sketch = preview.first()
    session.put_text("00-plan.md", markdown(sketch))
    if not preview.plan.hitl:
        view(Event("dashboard", "", {"lines": lines(sketch, _columns(sys.stderr))}))


def _broken_off(session: Session, error: CdoError) -> Result:
    """What `--json` prints of a run without a result: how far it came, and why it ended."""
    from cdo.app import Result
    from cdo.runner import totals

    kinds = {BudgetReached: "budget", NeedsHuman: "paused", Interrupted: "interrupted"}
    used = totals(session.records)
    turns = {record["call"] for record in session.records if record.get("call_kind") == "synthesis"}
    return Result(
        session=session.name,
        path=str(session.path),
        status=kinds.get(type(error), "failed"),
        why=error.message,
        decision="",
        confidence=None,
        turns=len(turns),
        calls=used.calls,
        tokens=used.tokens,
        cost=used.known_cost,
    )


def _shell(view: View, preview: Preview, options: Mapping[str, Any]) -> Shell:
    """How this invocation can ask: at a terminal the person, with --yes for consent, else nobody."""
    from cdo.app import Shell
    from cdo.people import Human

    terminal = sys.stdin.isatty() and sys.stderr.isatty() and not options["no_input"]
    past = Progress(preview)

    def observe(event: Event) -> None:
        past.note(event)
        view(event)

    async def answer(pause: Pause) -> str:
        return await _ask(view, pause.question, pause.options)

    async def consent(stale: Sequence[str], kept: Sequence[str]) -> bool:
        if options["yes"]:
            return True
        question = f"Edited files make these stale: {', '.join(stale)}."
        if kept:
            question += f" Kept, since you edited them: {', '.join(kept)}."
        return (
            await _ask(view, f"{question} Ask for them again (the old ones move to superseded/)?", ("yes", "no"))
            == "yes"
        )

    async def review(editing: Editing) -> str:
        return await past.review(view, editing)

    may_ask = terminal and not options["yes"]
    return Shell(
        preview.specs,
        observe,
        Human(
            answer=answer if may_ask else None,
            consent=consent if terminal or options["yes"] else None,
            review=review if may_ask else None,
            accept=options["yes"],
        ),
    )


class Progress:
    """What a person at the terminal is shown before each turn: the plan, and what the turns before it came to."""

    def __init__(self, preview: Preview) -> None:
        from cdo.dashboard import Past

        self._preview = preview
        self._past: dict[int, Past] = {}
        self._voices: dict[int, int] = {}
        self._open: dict[str, str] = {}

    def note(self, event: Event) -> None:
        """Take in what happened: how many voices a turn has, and what its synthesis says."""
        from cdo.dashboard import Past

        if event.kind == "batch":
            for name, kind in event.data["calls"]:
                if kind == "agent" and (found := re.match(r"t(\d+)-", name)):
                    self._voices[int(found[1])] = len(event.data["calls"])
        directive = event.data.get("directive")
        if event.kind == "reply" and directive and (found := re.match(r"t(\d+)-", event.name)):
            turn = int(found[1])
            for tension in directive["tensions"]:
                self._open.pop(tension["id"], None)
                if tension["status"] == "open":
                    self._open[tension["id"]] = tension["title"]
            voices, confidence = self._voices.get(turn, 0), directive["confidence"]
            self._past[turn] = Past(turn, voices, confidence, len(self._open))

    async def review(self, view: View, editing: Editing) -> str:
        """Let the person change a turn's plan at the terminal or in an editor; returns its text."""
        from cdo import hitl, proposal
        from cdo.dashboard import lines

        form: Any = editing.review.format

        def show(data: Any, columns: int) -> list[str]:
            past = [item for turn, item in sorted(self._past.items()) if turn < data.turn]
            titles = [f"{name}: {title}" for name, title in self._open.items()]
            return [*lines(self._preview.of(data, past, titles), columns), *form.remarks(data)]

        def change(command: str, text: str) -> str:
            return proposal.dump(proposal.applied(command, form.parse(text), form), form, editing.render)

        commands = [(f"{verb} {takes}".strip(), what) for verb, (takes, what) in proposal.COMMANDS.items()]
        return await hitl.review(
            view,
            editing.path,
            editing.text,
            form.parse,
            show,
            write=editing.write,
            change=change,
            commands=commands,
        )


async def _ask(view: Any, question: str, choices: Sequence[str]) -> str:
    """Ask at the terminal, with the live view out of the way; runs beside the event loop."""
    from cdo.wording import visible

    def prompt() -> str:
        with view.suspend():
            click.echo(visible(question), err=True)
            for number, choice in enumerate(choices, 1):
                click.echo(f"  {number}) {choice}", err=True)
            picked = click.prompt("Your choice", type=click.IntRange(1, len(choices)), default=1, err=True)
            return choices[picked - 1]

    try:
        return await _in_thread(prompt)
    except click.Abort:
        raise NeedsHuman("The question was not answered.", "`cdo resume` asks it again.") from None


async def _in_thread(function: Callable[[], str]) -> str:
    """Run a blocking function in a daemon thread: Ctrl-C must not wait until somebody presses Enter."""
    import asyncio
    import threading
    from concurrent.futures import Future

    done: Future[str] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="cdo-ask", daemon=True).start()
    return await asyncio.wrap_future(done)


def _path(name: str, resolved: Resolved) -> Path:
    """A session's directory, from its name or from a path to it."""
    from cdo.store import session_path

    return Path(name) if os.sep in name else session_path(Path(resolved.values.out), name)


def leave(code: int) -> NoReturn:
    """End the process with `code`, at once.

    What is left to do has been done: litellm's exit handlers would cost a second, and a question that waits for an
    answer in its thread would abort the interpreter.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that went away
            stream.flush()
    os._exit(code)
