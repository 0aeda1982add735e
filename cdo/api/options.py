"""The options of a run that a Python program begins: those of `cdo`, as arguments with types."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from cdo.core.errors import CdoError, UsageError

Path: TypeAlias = str | PathLike[str]
Modifier: TypeAlias = Literal["hitl", "bd", "team", "adaptive", "lev-exec"]


class ResumeOptions(TypedDict, total=False):
    """What may be said of a session that goes on. All are optional; the settings of the machine count too.

    Money is in US dollars, `timeout` in seconds. `out` is the folder of sessions. `agreed=True` agrees to a run that
    may cost more than `ask_above` or whose price is not known, and to asking again what an edited file made stale.
    `trust=True` trusts the project's `.cdo` folder and skills as they are now.

    `otlp` is the address of an OpenTelemetry collector that gets the trace of the run, without prompts and replies.
    With `batch_api=True` calls wait at the providers' batch endpoints at half the price: the run raises
    `WaitsForBatch`, and a later run of the session collects the answers.

    A turn waits `seat_wait` seconds for the people who have a seat in it. With `wait=True` the run stays until they
    have answered, and until batches have ended, in place of raising `NeedsHuman` or `WaitsForBatch`.
    """

    effort: Literal["low", "medium", "high", "max"]
    flex: bool
    budget: float
    ask_above: float
    max_calls: int
    max_tokens: int
    timeout: float
    concurrency: int
    out: Path
    no_git: bool
    otlp: str
    batch_api: bool
    seat_wait: float
    wait: bool
    agreed: bool
    trust: bool


class RunOptions(ResumeOptions, total=False):
    """What may be said of a run beside its question.

    `preset`, `mode`, `domain` and `modifiers` are the words of the command line: `cdo deep,hitl exec arch` is
    `preset="deep", modifiers=["hitl"], domain="arch"`. `models` are names as after `-m`. `context` are files and
    folders to show; with `look=False` the voices see no file of the repository. `session` is the name of the session.
    `seats` gives people a voice in every turn, each as "human:NAME" or "human:NAME=ROLE".
    """

    preset: str
    mode: str
    domain: str
    modifiers: Sequence[Modifier]
    models: Sequence[str]
    context: Sequence[Path]
    look: bool
    width: int | tuple[int, int]
    turns: int
    review: bool
    seats: Sequence[str]
    session: str


_LISTS = ("modifiers", "models", "context", "seats")
# The options that are settings, by the name of the setting: what `--NAME` sets.
_SETTINGS = (
    "width", "turns", "effort", "budget", "ask_above", "max_calls", "max_tokens", "timeout", "concurrency",
    "seat_wait",
)  # fmt: skip


# What a message calls an option of the command line, by what the option is called here, if that differs.
_CALLED = {
    "-m": "models", "--model": "models", "-c": "context", "--seat": "seats", "--yes": "agreed=True",
    "--trust": "trust=True", "--wait": "wait=True", "--no-git": "no_git=True", "--no-context": "look=False",
}  # fmt: skip
_OPTION = re.compile(r"`cdo [^`]*`|(?<![\w-])(?:--[a-z][a-z-]*|-[mc]\b)")  # commands stay as they are


@contextmanager
def named_as_here() -> Iterator[None]:
    """Let the errors from within name the options of the command line as they are called in Python."""

    def called(match: re.Match[str]) -> str:
        name = _CALLED.get(match[0]) or match[0].removeprefix("--").replace("-", "_")
        return f"`{name}`" if name.partition("=")[0] in RunOptions.__annotations__ else match[0]

    try:
        yield
    except CdoError as error:
        error.message = _OPTION.sub(called, error.message)
        error.hint = _OPTION.sub(called, error.hint.replace("`cdo run --help`", "`help(cdo.api.RunOptions)`"))
        error.args = (error.message,)
        raise


def require_known(options: ResumeOptions, kind: type[ResumeOptions]) -> None:
    """Raise `UsageError` for an option that there is not, and for a text where a list of them belongs.

    A mistyped `budget` must not begin a run without one, also where no type checker reads the program.
    """
    known = set(kind.__annotations__)
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            every = ", ".join(sorted(known))
            raise UsageError(
                f"There is no option `{name}` here.", f"Did you mean `{near[0]}`?" if near else f"There are {every}."
            )
        if name in _LISTS and isinstance(value, str):
            raise UsageError(f"`{name}` is a list of texts, not one text.", f"Write {name}=[{value[:60]!r}].")
    given, allowed = options.get("modifiers"), get_args(Modifier)
    for word in given if isinstance(given, Sequence) else ():
        if word not in allowed:
            raise UsageError(f"`{word}` is not one of the modifiers.", f"There are {', '.join(allowed)}.")


def settings_of(options: ResumeOptions) -> dict[str, Any]:
    """Return the settings among the options, as the command line would give them."""
    given: dict[str, Any] = dict(options)
    found: dict[str, Any] = {key: str(given[key]) for key in _SETTINGS if given.get(key) is not None}
    found |= {key: True for key in ("flex", "no_git") if given.get(key)}
    if isinstance(width := given.get("width"), tuple):
        found["width"] = f"{width[0]}-{width[1]}"
    if given.get("models"):
        found["model"] = tuple(given["models"])
    if given.get("out") is not None:
        found["out"] = str(given["out"])
    for key in ("review", "batch_api"):
        if given.get(key) is not None:
            found[key] = str(given[key]).lower()
    return found
