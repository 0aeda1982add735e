"""What the commands that deliberate share: their options, and what is known before a run is driven."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cdo.content import Library
    from cdo.models import ModelSpec, Trusted
    from cdo.plan import Plan
    from cdo.preview import Preview

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
)
STRICT = click.option("--strict", is_flag=True, help="Exit 3 when not converged or degraded.")
NO_INPUT = click.option("--no-input", is_flag=True, help="Never ask anything.")
CONSENT = _options(
    click.option("--yes", "-y", is_flag=True, help="Answer every question of consent with yes."), NO_INPUT
)
OUTPUT = _options(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("-q", "--quiet", is_flag=True, help="Show problems only."),
    click.option("-v", "--verbose", is_flag=True, help="Show more, and tracebacks."),
)
NO_GIT = click.option("--no-git", is_flag=True, help="Keep no branch of git.")


def flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among a command's options, as far as they were given."""
    keys = (
        "model", "width", "turns", "budget", "max_calls", "max_tokens", "timeout", "concurrency", "out", "strict",
        "skills", "adr_dir", "no_git",
    )  # fmt: skip
    found = {key: options[key] for key in keys if options.get(key) not in (None, (), False)}
    if "adr_dir" in found:  # a resume may come from another folder
        found["adr_dir"] = str(Path(found["adr_dir"]).absolute())
    return found


def trusted(options: Mapping[str, Any]) -> Trusted:
    """What tells whether the person trusts a file of the project; with --trust they do so now."""
    from cdo.trust import Trust

    trust = Trust.load()

    def holds(kind: str, path: Path, sha256: str) -> bool:
        if options.get("trust"):
            trust.pin(kind, [(path, sha256)])
        return trust.holds(kind, path, sha256)

    return holds


def preview(
    plan: Plan, specs: Sequence[ModelSpec], problem: str, context: str, library: Library, session: str
) -> Preview:
    """What is known of a plan before a turn, with the range of what it may take."""
    from cdo.context import estimate_tokens
    from cdo.estimate import estimate
    from cdo.preview import Preview

    given = estimate_tokens(problem + context)
    there = shutil.which("bd") is not None
    return Preview(plan, specs, estimate(plan, specs, given), given, problem, library, session, tracked=there)
