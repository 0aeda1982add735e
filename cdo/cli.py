"""The command line: parses, prints, asks and exits. Nothing else of cdo does any of these.

stdout carries the result (or `--json`), stderr everything else. Heavy modules are imported inside functions:
`cdo --help` needs click alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cdo import __version__
from cdo.commands import complete_session, dumps
from cdo.errors import BudgetReached, CdoError, Interrupted, NeedsHuman, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cdo.app import Result, Shell
    from cdo.content import Library
    from cdo.plan import Plan
    from cdo.settings import Resolved
    from cdo.store import Session
    from cdo.types import Pause

EXIT_STRICT = 3
# First words that a later version will take for commands: refused today, so that they never become a problem.
LATER = ("watch", "report", "fork", "replay", "diff", "cost", "answer", "cabal", "skills")
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


# -- the shape of the command line -----------------------------------------------------------------


class Cli(click.Group):
    """A group whose default command is `run`: anything that is not a command is a run's words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "-h", "--version"}
        first = args[0] if args else ""
        if first == "help" and set(args[1:]) <= set(self.commands) and len(args) < 3:
            args = [*args[1:], "--help"]
        elif args == ["version"]:
            args = ["--version"]
        elif first not in self.commands and not (first in own and len(args) == 1):
            if not args and (sys.stdin.isatty() or ctx.resilient_parsing):
                args = [] if ctx.resilient_parsing else ["--help"]
            elif any(word in own for word in args[:1]):
                args = args[:1]
            else:
                args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options, and the words that begin a run."""
        from click.shell_completion import CompletionItem

        from cdo.content import Library
        from cdo.words import MODIFIERS, UNAVAILABLE

        words = [word for word in (*Library.at(Path.cwd()).names("presets"), *MODIFIERS) if word not in UNAVAILABLE]
        begun = [CompletionItem(word) for word in words if word.startswith(incomplete)]
        return [*super().shell_complete(ctx, incomplete), *begun]


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


@click.group(
    cls=Cli,
    epilog=EPILOG,
    options_metavar="",
    subcommand_metavar="[ARGS] PROBLEM… | COMMAND …",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cdo")
def cli() -> None:
    """Turn one question into a decision worth reading.

    `cdo [ARGS] PROBLEM…` sends the problem to several independent voices, lets a synthesis decide each next turn,
    and ends with FINAL.md. ARGS are comma-separated: a preset (quick, think, deep, full; none: the problem decides)
    and `adaptive`. Every step is a file in tmp/cdo-SESSION/. `cdo run --help` lists the options.
    """


@cli.command(cls=Words, epilog=EPILOG)
@click.argument("words", nargs=-1, metavar="[ARGS] PROBLEM…")
@click.option("-m", "--model", multiple=True, metavar="NAME", help="A model; several are seated in turn.")
@click.option("-c", "--context", multiple=True, metavar="PATH", help="A file or folder to show to the voices.")
@click.option("--no-context", is_flag=True, help="Show them no context at all.")
@click.option("--width", metavar="N|A-B", help="Voices a turn.")
@click.option("--turns", metavar="N", help="Most turns.")
@LIMITS
@OUT
@click.option("--session", metavar="NAME", help="Name the session: tmp/cdo-NAME/.")
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
    grammar.unavailable(invocation)
    problem = _problem(*grammar.problem_source(invocation.problem))
    from cdo import app, plan, settings, store

    if options["session"] is not None:
        store.session_path(Path(), options["session"])
    resolved = settings.resolve(_flags(options), library)
    names = _models(resolved, library)
    plan_ = plan.make(invocation, problem, resolved, library, names)
    specs = app.specs(names, library, resolved.values, os.environ)
    context = _context(options, resolved, specs, problem)
    if options["dry_run"]:
        return _dry_run(plan_, problem, context, specs, options["as_json"])
    session = app.create(plan_, problem, context, resolved, options["session"])
    return _drive(session, plan_, resolved.values, library, options, resumed=False)


cli.add_command(run_command, "run")


@cli.command("resume")
@click.argument("session", required=False, shell_complete=complete_session)
@click.option("-m", "--model", multiple=True, metavar="NAME", help="Other models for what is still to be asked.")
@LIMITS
@OUT
@OUTPUT
def resume_command(session: str | None, **options: Any) -> None:
    """Go on with a session; nothing is paid twice.

    Without a name it is the newest unfinished one.
    """
    from cdo import app, settings
    from cdo.content import Library
    from cdo.store import Session

    library = Library.at(Path.cwd())
    resolved = settings.resolve(_flags(options), library)
    path = _path(session, resolved) if session else app.newest_unfinished(Path(resolved.values.out))
    opened = Session.open(path, app.redactor(os.environ))
    try:
        frozen = app.load(opened)
    except CdoError:
        opened.close()
        raise
    plan = frozen.plan.model_copy(update={"models": tuple(options["model"])}) if options["model"] else frozen.plan
    return _drive(opened, plan, app.adjusted(frozen, resolved), library, options, resumed=True)


# -- what a run needs ------------------------------------------------------------------------------


def _not_a_command(words: Sequence[str], after: Sequence[str] | None, vocabulary: Sequence[str]) -> None:
    """Raise `UsageError` where the problem would be a command's name, or most likely a misspelled word."""
    import difflib

    first = words[0] if words else ""
    if first in LATER:
        raise UsageError(
            f"`{first}` is not available in this version of cdo.",
            "Put `--` before it if the problem begins with it, or quote the problem.",
        )
    if len(words) != 1 or after is not None or first in vocabulary:
        return
    if first in cli.commands:
        raise UsageError(f"`{first}` is a command.", f"Put it first: cdo {first} …; or quote a longer problem.")
    if near := difflib.get_close_matches(first, [*cli.commands, *vocabulary], n=1, cutoff=0.75):
        raise UsageError(
            f"`{first[:40]}` is not a command, and as a problem it is short.",
            f"Did you mean `cdo {near[0]}`? Put `--` before it if it is the problem.",
        )


def _flags(options: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("model", "width", "turns", "budget", "max_calls", "max_tokens", "timeout", "concurrency", "out", "strict")
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


def _models(resolved: Resolved, library: Library) -> tuple[str, ...]:
    if resolved.values.model:
        return resolved.values.model
    from cdo import models

    name, _ = models.choose(library, os.environ, _ollama)
    return (name,)


def _ollama(url: str) -> str | None:
    """The first model that an Ollama at `url` offers, or None: asked on this machine, for a moment only."""
    import http.client
    from urllib.parse import urlsplit

    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port or 80, timeout=0.3)
    try:
        connection.request("GET", "/api/tags")
        found = json.loads(connection.getresponse().read(1 << 20))
        return str(found["models"][0]["name"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _context(options: Mapping[str, Any], resolved: Resolved, specs: Sequence[Any], problem: str) -> str:
    """The text of 00-context.md, within what the smallest model can read beside the rest."""
    from cdo.context import Context, gather

    if options["no_context"] and options["context"]:
        raise UsageError("--context and --no-context exclude each other.", "Leave one out.")
    room = min(spec.window for spec in specs)
    budget = resolved.values.context_tokens or min(24_000, room // 4)
    paths = [Path(path) for path in options["context"]]
    return (gather(paths, Path.cwd(), budget) if paths else Context((), (), 0)).markdown()


def _dry_run(plan: Plan, problem: str, context: str, specs: Sequence[Any], as_json: bool) -> None:
    from cdo.context import estimate_tokens
    from cdo.plan import estimate, summary

    span = estimate(plan, specs, estimate_tokens(problem + context))
    shown = summary(plan, problem, span)
    if as_json:
        click.echo(dumps(shown))
        return
    from cdo.wording import money

    cost = "unknown" if span.cost is None else f"{money(span.cost[0])} to {money(span.cost[1])}"
    rows = {
        "preset": f"{plan.preset} ({plan.why})",
        "turn 1": f"{len(shown['roles'])} voices: {', '.join(shown['roles'])}",
        "later turns": f"up to turn {plan.turns[1]}, "
        + (f"{plan.width[0]} to {plan.width[1]} voices" if plan.adaptive else f"{plan.start} voices")
        + ", roles as each synthesis directs"
        if plan.turns[1] > 1
        else "none",
        "models": ", ".join(plan.models),
        "calls": f"{span.calls[0]} to {span.calls[1]}",
        "tokens": f"about {span.tokens[0]} to {span.tokens[1]}",
        "cost": cost,
    }
    for key, value in rows.items():
        click.echo(f"{key + ':':13}{value}")
    if later := shown["not_available"]:
        click.echo(f"{'later:':13}{', '.join(later)} of this preset are not available in this version")
    click.echo("Nothing was sent.")


def _drive(
    session: Session, plan: Plan, settings: Any, library: Library, options: Mapping[str, Any], *, resumed: bool
) -> None:
    """Run a session under a view, print its result, and exit with its code."""
    import asyncio

    from cdo import app
    from cdo.types import Event
    from cdo.view import make_view, summary

    view = make_view(sys.stderr, quiet=options["quiet"], verbose=options["verbose"], json=options["as_json"])
    try:
        view(Event("run", session.name, {
            "preset": plan.preset, "why": plan.why, "models": list(plan.models), "path": str(session.path),
            "resumed": resumed,
        }))  # fmt: skip
        result = asyncio.run(app.run(session, plan, settings, library, _shell(view, options)))
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
        _leave(EXIT_STRICT)


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


def _shell(view: Any, options: Mapping[str, Any]) -> Shell:
    """How this invocation can ask: at a terminal the person, with --yes for consent, else nobody."""
    from cdo.app import Shell
    from cdo.runner import Human

    terminal = sys.stdin.isatty() and sys.stderr.isatty() and not options["no_input"]

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

    may_consent = terminal or options["yes"]
    may_answer = terminal and not options["yes"]
    return Shell(view, Human(answer if may_answer else None, consent if may_consent else None))


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


def _leave(code: int) -> NoReturn:
    """End the process with `code`, at once.

    What is left to do has been done: litellm's exit handlers would cost a second, and a question that waits for an
    answer in its thread would abort the interpreter.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that went away
            stream.flush()
    os._exit(code)


def _mend_streams() -> None:
    """Give every standard stream a place: no other file may get the number of one that was closed (`cdo … >&-`).

    What a stream's encoding lacks is escaped: a result that was paid for must not end in an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; the one place where errors become text and an exit code."""
    from cdo.signals import listen

    listen()
    from cdo import commands

    _mend_streams()
    commands.register(cli)
    words = list(sys.argv[1:] if args is None else args)
    code = 1
    try:
        if instruction := os.environ.get("_CDO_COMPLETE"):
            from click.shell_completion import shell_complete

            _leave(shell_complete(cli, {}, "cdo", "_CDO_COMPLETE", instruction))
        # Not `cli.main`: it takes a closed pipe and early exits into its own hands.
        with cli.make_context("cdo", words.copy()) as context:
            cli.invoke(context)
        code = 0
    except CdoError as error:
        code = _explain(error, words)
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.ctx.get_help() if error.ctx else "")
        code = 2
    except click.ClickException as error:
        code = _explain(_misused(error, words), words)
    except (click.Abort, EOFError, KeyboardInterrupt):
        _say("cdo: Stopped.")
        code = 130
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except BrokenPipeError:
        code = 0
    except OSError as error:
        from cdo.store import explain

        if isinstance(error, FileNotFoundError) and error.filename is None:
            gone = UsageError("The folder you are in does not exist any more.", "Change to one that does: cd …")
            code = _explain(gone, words)
        else:
            code = _explain(explain(error, str(error.filename or "The output")), words)
    except Exception as error:
        _explain(
            CdoError(
                f"Internal error: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
                "Nothing recorded is lost. Run again with -v for the traceback, and please report it.",
            ),
            words,
        )
    _leave(code)


def _misused(error: click.ClickException, words: Sequence[str]) -> UsageError:
    """What click found wrong with the words of a command, and what to do."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "cdo run"
    hint = f"`{path} --help` shows how it is called."
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        hint = f"Did you mean {' or '.join(error.possibilities)}? {hint}"
    if isinstance(error, click.NoSuchOption) and path == "cdo run":
        hint = f"{hint} If it belongs to the problem, put `--` before the problem."
    elif path == f"cdo {words[0] if words else ''}" and len(words) > 2:
        hint = f"{hint} To deliberate a problem that begins with this word, quote the problem."
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    return UsageError(" ".join(message.split()), hint)


def _explain(error: CdoError, words: Sequence[str]) -> int:
    """Print what happened and what to do; returns the exit code."""
    from cdo.wording import visible

    if {"-v", "--verbose"} & set(words):
        import traceback

        _say(visible(traceback.format_exc().rstrip("\n")))

    def sentence(text: str) -> str:
        return visible(text if text.endswith((".", "?", "!", "…")) else f"{text}.")

    _say(f"cdo: {sentence(error.message)}")
    if error.hint:
        _say(f"     {sentence(error.hint)}")
    return error.exit_code


def _say(text: str) -> None:
    """Print to stderr, which may be full or gone: the exit code says the rest."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)
