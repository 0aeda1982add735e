"""The commands that deliberate, `run` (the default) and `resume`: their words and options, and what a run needs.

Both end in `driving.drive`, which shows and asks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo.console import OUT, ask_whose, columns, complete_session, dumps, print_text
from cdo.errors import CdoError, UsageError
from cdo.run_options import CONSENT, LIMITS, NO_GIT, OUTPUT, STRICT, flags, preview, trusted

if TYPE_CHECKING:
    from cdo.content import Library
    from cdo.models import ModelSpec, Trusted
    from cdo.plan import Surroundings
    from cdo.preview import Preview
    from cdo.settings import Resolved

# Of past runs that --recall puts into the context: how many at most, and their estimated tokens in all.
RECALLED, RECALL_TOKENS = 3, 2000
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


@click.command("run", cls=Words, epilog=EPILOG)
@click.argument("words", nargs=-1, metavar="[ARGS] PROBLEM…")
@click.option("-m", "--model", multiple=True, metavar="NAME", help="A model; several are seated in turn.")
@click.option("-c", "--context", multiple=True, metavar="PATH", help="A file or folder to show to the voices.")
@click.option("--no-context", is_flag=True, help="Show them no context at all.")
@click.option("--recall", is_flag=True, help="Show them what earlier runs decided on similar questions, as such.")
@click.option("--width", metavar="N|A-B", help="Voices a turn.")
@click.option("--turns", metavar="N", help="Most turns.")
@LIMITS
@STRICT
@OUT
@click.option("--session", metavar="NAME", help="Name the session: tmp/cdo-NAME/.")
@click.option("--skills", multiple=True, metavar="DIR", help="A folder of Agent Skills to choose from.")
@click.option(
    "--trust",
    is_flag=True,
    help="Trust what this project brings as it is now: skills, command agents, providers.",
)
@click.option("--adr-dir", metavar="DIR", help="Copy the decision record of `exec arch` there, numbered.")
@click.option("--dry-run", is_flag=True, help="Print the plan and its range of calls and cost; send nothing.")
@NO_GIT
@CONSENT
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
    from cdo import frozen, plan, seating, secrets, sessions, settings
    from cdo.wording import visible

    # Before anything is made of it: a part of a secret would pass for a word of its own.
    problem = secrets.redactor(os.environ)(_problem(*grammar.problem_source(invocation.problem)))

    if options["session"] is not None:
        sessions.session_path(Path(), options["session"])
    holds = trusted(options)
    resolved = settings.resolve(flags(options), library, trusted=holds).sure()
    names = _models(resolved, library, holds, every="lev-exec" in invocation.modifiers)
    specs = seating.specs(names, library, resolved.values, os.environ, holds)
    around, notes = _around(options, resolved, specs, library)
    plan_ = plan.make(invocation, problem, resolved, library, names, around)
    context = _context(options, resolved, specs, problem)
    if options["recall"]:
        context, note = _recalled(resolved, library, problem, context)
        notes = (*notes, note)
        if options["dry_run"]:
            click.echo(visible(note), err=True)
    shown = preview(plan_, specs, problem, context, library, options["session"] or "")
    if options["dry_run"]:
        return _dry_run(shown, options["as_json"])
    if resolved.values.adr_dir:
        _writable(Path(resolved.values.adr_dir))
    from cdo.driving import drive

    session = frozen.create(plan_, problem, context, resolved, options["session"])
    told = (*notes, *plan_.remarks)
    return drive(session, plan_, shown, resolved.values, options, resumed=False, notes=told)


@click.command("resume")
@click.argument("session", required=False, shell_complete=complete_session)
@click.option("-m", "--model", multiple=True, metavar="NAME", help="Other models for what is still to be asked.")
@click.option("--rounds", type=click.IntRange(1, 100), metavar="N", help="Another cap of rounds, for a mission.")
@click.option("--trust", is_flag=True, help="Trust what this project brings as it is now: command agents, providers.")
@LIMITS
@STRICT
@OUT
@NO_GIT
@CONSENT
@OUTPUT
def resume_command(session: str | None, **options: Any) -> None:
    """Go on with a session; nothing is paid twice.

    Without a name it is the newest unfinished one.
    """
    from cdo import frozen, seating, secrets, settings
    from cdo.content import Library
    from cdo.store import Session

    library = Library.at(Path.cwd())
    resolved = settings.resolve(flags(options), library, trusted=trusted(options))
    if not session:
        resolved.sure("out")
    path = _path(session, resolved) if session else frozen.newest_unfinished(Path(resolved.values.out))
    opened = Session.open(path, secrets.redactor(os.environ))
    try:
        kept = frozen.load(opened)
        if options["rounds"]:
            kept = frozen.prolonged(opened, kept, options["rounds"])
        names = kept.plan.asked
        if options["model"]:  # the plan stays as it is: only who is asked from now on changes
            names = tuple(islice(cycle(options["model"]), len(names)))
        adjusted = frozen.adjusted(kept, resolved)
        if not (options["trust"] or options["yes"]):
            ask_whose(opened.path, kept.plan.root, adjusted.adr_dir)
        specs = seating.specs(names, library, adjusted, os.environ, trusted(options))
        plan = kept.plan.with_models(names, {spec.name: spec.vendor for spec in specs})
        problem = opened.read("00-input.md") or ""
        shown = preview(plan, specs, problem, opened.read("00-context.md") or "", library, opened.name)
    except CdoError:
        opened.close()
        raise
    from cdo.driving import drive

    return drive(opened, kept.plan, shown, adjusted, options, resumed=True)


# -- what a run needs ------------------------------------------------------------------------------


def _not_a_command(words: Sequence[str], after: Sequence[str] | None, vocabulary: Sequence[str]) -> None:
    """Raise `UsageError` where the problem would be a command's name, or most likely a misspelled word."""
    import difflib

    commands = _commands()
    first = words[0] if words else ""
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


def _writable(folder: Path) -> None:
    """Raise `UsageError` where no file can be put into a folder: before a run is paid for, not after."""
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"Nothing can be written into {folder}.", "Give another folder with --adr-dir.")


def _models(resolved: Resolved, library: Library, trusted: Trusted, *, every: bool) -> tuple[str, ...]:
    """The models of a run: those given with -m, all that there are (`every`), those set, or the best one."""
    from cdo import models, seating

    if resolved.values.model and not (every and resolved.sources["model"] != "--model"):
        return resolved.values.model
    if every and (found := models.available(library, os.environ, seating.first_of_ollama, trusted)):
        return tuple(dict.fromkeys([*resolved.values.model, *(name for name, _ in found)]))
    return (models.choose(library, os.environ, seating.first_of_ollama, trusted)[0],)


def _around(
    options: Mapping[str, Any], resolved: Resolved, specs: Sequence[ModelSpec], library: Library
) -> tuple[Surroundings, tuple[str, ...]]:
    """What there is around a run, and what a person should know of it."""
    from cdo import repository, settings, skill_files
    from cdo.plan import Surroundings
    from cdo.tools import ToolBox
    from cdo.trust import Trust

    folders = [Path(folder).expanduser() for folder in resolved.values.skills]
    found = skill_files.discover(Path.cwd(), Path.home(), *settings.skill_folders(resolved, library))
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
    seen = os.path.relpath(root, Path(resolved.values.out).absolute() / "session") if root else ""
    return Surroundings(usable.skills, bool(folders), vendors, looks, seen), usable.notes


def given_request(words: Sequence[str], library: Library) -> str:
    """The request of `cdo cabal`: its words, or what `-` or `@FILE` reads; raises `UsageError`."""
    from cdo import words as grammar

    vocabulary = grammar.vocabulary(library.names("presets"), library.names("modes"))
    return _problem(*grammar.problem_source(grammar.request(words, vocabulary)))


def given_context(paths: Sequence[str], resolved: Resolved, specs: Sequence[ModelSpec]) -> str:
    """The text of 00-context.md from what was given with `-c`, within what the smallest model can read beside it."""
    from cdo import repository
    from cdo.context import Context, gather

    room = resolved.values.context_tokens or min(24_000, min(spec.window for spec in specs) // 4)
    root = repository.root_of(Path.cwd()) or Path.cwd()
    return (gather([Path.cwd() / path for path in paths], root, room) if paths else Context((), (), 0)).markdown()


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


def _recalled(resolved: Resolved, library: Library, problem: str, context: str) -> tuple[str, str]:
    """The context with what earlier runs of the same folder decided on similar questions, and a note of which."""
    from cdo.recall import recalled
    from cdo.wording import flat

    found = recalled(problem, Path(resolved.values.out), library, RECALLED, RECALL_TOKENS)
    if not found.text:
        return context, "no earlier run decided on a similar question"
    return f"{context.rstrip()}\n\n{found.text}", flat(f"recalled: {', '.join(found.names)}")


def _dry_run(preview: Preview, as_json: bool) -> None:
    """Print what a run would be; nothing is sent."""
    from cdo.dashboard import lines
    from cdo.estimate import summary

    if as_json:
        first = [voice.name for voice in preview.first().voices]
        click.echo(dumps(summary(preview.plan, preview.problem, preview.span, first)))
        return
    for row in lines(preview.first(), columns(sys.stdout)):
        print_text(row)
    click.echo("Nothing was sent.")


def _path(name: str, resolved: Resolved) -> Path:
    """A session's directory, from its name or from a path to it."""
    from cdo.sessions import session_path

    return Path(name) if os.sep in name else session_path(Path(resolved.values.out), name)
