"""Lays out help: commands and options in groups, and what a word of the command line (`think`, `team`) does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo.core.errors import CdoError, UsageError

if TYPE_CHECKING:
    from cdo.content.library import Library

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Ask": ("run", "batch", "demo", "resume", "audit"),
    "Look": ("list", "show", "final", "report", "trace", "watch", "search", "diff", "cost"),
    "Change course": ("fork", "replay", "restore"),
    "Missions": ("cabal", "answer", "context", "verify"),
    "Set up": ("doctor", "models", "config", "content", "skills", "mcp", "serve", "completion"),
}
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "Models and size": (
        "model",
        "width",
        "turns",
        "review",
        "effort",
        "flex",
        "batch_api",
        "wait",
        "seat",
        "seat_wait",
    ),
    "What is sent": ("context", "no_context", "recall", "skills", "check", "dry_run"),
    "Caps": ("budget", "ask_above", "max_calls", "max_tokens", "timeout", "concurrency"),
    "Session and files": ("session", "out", "adr_dir", "deliver", "no_git", "branch", "otlp"),
    "Questions and trust": ("yes", "no_input", "trust", "exec"),
    "Output": ("as_json", "quiet", "verbose", "strict"),
}
MODIFIERS: Mapping[str, str] = {
    "hitl": "Before each turn you see its plan, and can change it.",
    "bd": "Adds an epic in beads (`bd`) for the run, and a task for each turn.",
    "team": "Voices live on between turns, with a memory of their own and messages from you.",
    "adaptive": "The number of voices follows each synthesis, within the preset's band.",
    "lev-exec": "Seats the models and command-line agents that this machine offers.",
    "exec": "`exec TAG` seats a team for a field of work, such as `exec arch` or `exec security`.",
}
EPILOG = """\b
Examples:
  cdo think "Should we reduce node types?"
  cdo adaptive,full -c docs/ -m openai/gpt-4.1 "Evaluate architecture"
  git diff | cdo deep -          # the problem from a pipe; @FILE reads a file
  cdo debug --check "pytest -q" "test_total fails since Tuesday"
  cdo resume                     # go on with the newest unfinished session

\b
Exit codes: 0 FINAL.md written, 1 internal error, 2 usage, 3 --strict and not converged or
degraded, 4 no usable model or bad configuration, 5 budget reached, 6 paused for you or for a
batch, 7 the models failed, 8 session damaged or locked, 9 items of a batch failed, 10 the
cluster of a batch is lost, 130 interrupted."""
QUESTION = "Should we replace the queue?"


def write_groups(formatter: click.HelpFormatter, rows: Mapping[str, tuple[str, str]], groups: Any, rest: str) -> None:
    """Write rows (name → what is shown) under the headings of `groups`; those in no group come last under `rest`."""
    grouped = [(title, [name for name in names if name in rows]) for title, names in groups.items()]
    named = {name for _, names in grouped for name in names}
    for title, names in [*grouped, (rest, [name for name in rows if name not in named])]:
        if names:
            with formatter.section(title):
                formatter.write_dl([rows[name] for name in names])


class RequestWords(click.Command):
    """A command whose argument also holds the words after `--`, which are in `ctx.meta["cdo.after"]` too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            ctx.meta["cdo.after"] = args[args.index("--") + 1 :]
        return super().parse_args(ctx, args)


class Words(click.Command):
    """The command `run`. Words after `--` all belong to the problem; its help explains the words in front of it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            split = args.index("--")
            ctx.meta["cdo.after"] = args[split + 1 :]
            args = args[:split]
        ctx.meta["cdo.about"] = [word for word in args if not word.startswith("-")]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the words in front of `--help` do, then the options; without words the usual help."""
        told = list(_told(ctx.meta.get("cdo.about", [])))
        if not told:
            return super().format_help(ctx, formatter)
        words = ctx.meta["cdo.about"]
        example = _shown(words, "arch")
        formatter.write_usage("cdo", f"{_shown(words, 'TAG')} [OPTIONS] PROBLEM…")
        for text in told:
            formatter.write_paragraph()
            formatter.write(f"{click.wrap_text(text, formatter.width, '  ', '  ')}\n")
        with formatter.section("Example"):
            formatter.write(f'  cdo {example} "{QUESTION}"\n')
        self.format_options(ctx, formatter)
        return None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups."""
        rows = {
            str(param.name): row
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx))
        }
        write_groups(formatter, rows, OPTIONS, "Help")


def _shown(words: Sequence[str], tag: str) -> str:
    """Return the words in front of the options; `tag` stands for that of `exec` where there is none."""
    return " ".join([*words, tag][:2]) if "exec" in words[0].split(",") else words[0]


def _told(words: Sequence[str]) -> Iterator[str]:
    """Yield a text for each word of the command line that a preset, mode, domain or modifier is called by."""
    from cdo.content.library import Library
    from cdo.planning.arguments import EXEC, vocabulary

    if not words:
        return
    library = Library.at(Path.cwd())
    known = vocabulary(library.names("presets"), library.names("modes"))
    tokens = words[0].split(",")
    if not all(known.kind(token) for token in tokens):
        return
    for token in tokens:
        kind = known.kind(token)
        if kind == "preset":
            yield _preset(token, library)
        elif kind == "mode":
            yield f"{token} (mode): {_about(library, f'modes/{token}')}"
        elif token == EXEC and words[1:] and library.has(f"domains/{words[1]}"):
            yield f"exec {words[1]} (domain): {_about(library, f'domains/{words[1]}')}"
        else:
            yield f"{token} (modifier): {MODIFIERS[token]}"


def _about(library: Library, name: str) -> str:
    return str(library.load(name).meta.get("about") or "")


def _preset(name: str, library: Library) -> str:
    """Return what a preset is for, and how many voices, turns and calls a run with it has."""
    from cdo.content.schemas import Preset

    preset, _ = library.read(f"presets/{name}", Preset)
    voices, turns = (_band(*band) for band in (preset.width, preset.max_turns))
    text = f"{name} (preset): {preset.about} Voices in a turn: {voices}. Turns: {turns}."
    calls = _calls(name, library)
    text += f" Calls of a model: about {_band(*calls)}." if calls else ""
    more = (
        ("FINAL.md is written from a draft and a review", preset.review),
        ("voices keep a memory between turns", preset.team_mode == "team"),
        ("the plan is shown first", preset.dashboard),
        ("models of different makers are mixed where several are set up", preset.mixed),
    )
    held = "; ".join(words for words, holds in more if holds)
    return f"{text} {held[0].upper()}{held[1:]}." if held else text


def _band(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _calls(name: str, library: Library) -> tuple[int, int] | None:
    """Return the fewest and most calls of a run with this preset; None if the settings here do not allow a plan."""
    from cdo.planning import arguments, plan_builder, settings
    from cdo.planning.estimate import estimate
    from cdo.providers.models import ModelSpec

    known = arguments.vocabulary(library.names("presets"), library.names("modes"))
    try:
        invocation = arguments.parse([name, QUESTION], known)
        plan = plan_builder.make(invocation, QUESTION, settings.resolve({}, library), library, ["a model"])
    except CdoError:
        return None
    return estimate(plan, [ModelSpec("a model", "direct", "a model")], 1000).calls


def asks_for_help(args: Sequence[str], commands: Sequence[str]) -> list[str] | None:
    """Return the arguments that `cdo help …` stands for: a command or a word such as `think`; None for a question.

    Raises `UsageError` for one word that is neither: no question is that short, and a run would cost money.
    """
    import difflib  # lazily: needed only to explain an error

    if not args or (args[0] in commands and len(args) < 3 and " " not in args[-1]):
        return [*args, "--help"]
    if list(_told(args)) and re.fullmatch(r"\S+", args[-1]):
        return ["run", *args, "--help"]
    if len(args) > 1 or not re.fullmatch(r"[\w,-]+", args[0]):
        return None
    near = difflib.get_close_matches(args[0], [*commands, *_words()], n=2)
    meant = f"Did you mean {' or '.join(f'`cdo help {name}`' for name in near)}? " if near else ""
    raise UsageError(
        f"`{args[0][:40]}` is not a command, preset, modifier or mode.", f"{meant}`cdo help` lists the commands."
    )


def _words() -> tuple[str, ...]:
    from cdo.content.library import Library
    from cdo.planning.arguments import vocabulary

    library = Library.at(Path.cwd())
    return vocabulary(library.names("presets"), library.names("modes")).words()
