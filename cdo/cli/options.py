"""Defines the options shared by the commands that deliberate, and builds their plan preview."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from cdo.cli.common import completions, library_here
from cdo.core.exchange import Effort

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cdo.content.library import Library
    from cdo.planning.plan import CheckCommand, Plan
    from cdo.planning.settings import Resolved
    from cdo.providers.models import ModelSpec
    from cdo.terminal.plan_preview import Preview
    from cdo.tracing.collector import Collector

Options = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(*options: Options) -> Options:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def _complete_model(_ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from cdo.providers.model_names import candidates

    return completions(lambda: candidates(incomplete, library_here()), incomplete)


def model_option(help: str) -> Options:
    """Return the option -m, which names models and can be repeated."""
    return click.option("-m", "--model", multiple=True, metavar="NAME", shell_complete=_complete_model, help=help)


def _collector(ctx: click.Context, _: click.Parameter, url: str | None) -> Collector | None:
    if url is None or ctx.resilient_parsing:
        return None
    from cdo.tracing.collector import Collector

    return Collector.at(url, os.environ)


def otlp_option(help: str) -> Options:
    """Return the option --otlp, whose value is the collector at the address that is given."""
    return click.option("--otlp", metavar="URL", callback=_collector, help=help)


LIMITS = _options(
    click.option(
        "--effort",
        type=click.Choice([effort.value for effort in Effort]),
        help="How long models think before they answer (default: as preset and role say).",
    ),
    click.option("--flex", is_flag=True, help="Ask at half price and wait longer, where the provider offers it."),
    click.option("--budget", metavar="USD", help="Maximum cost. Models of unknown price are refused."),
    click.option(
        "--ask-above",
        metavar="USD",
        help="Ask before a run that may cost more (default: 5; 0: before each run that is not free).",
    ),
    click.option("--max-calls", metavar="N", help="Maximum number of requests, retries included."),
    click.option("--max-tokens", metavar="N", help="Maximum number of tokens, in and out."),
    click.option("--timeout", metavar="S", help="Maximum duration of the run, in seconds."),
    click.option("--concurrency", metavar="N", help="Maximum number of requests at the same time."),
)
BATCH_API = _options(
    click.option(
        "--batch-api/--no-batch-api",
        default=None,
        help="Ask through the providers' batch endpoints at half price: each step is a batch of its own, without "
        "tools; the run ends with code 6 until `cdo resume` collects the answers.",
    ),
    click.option("--wait", is_flag=True, help="Stay until the answers of --batch-api and of people are there."),
)
SEAT_WAIT = click.option(
    "--seat-wait",
    metavar="TIME",
    help="How long a turn waits for the answer of a person: 90s, 30m, 2h (default: 1d).",
)
STRICT = click.option(
    "--strict", is_flag=True, help="Exit with code 3 if the run did not converge, or a reply is missing."
)
NO_INPUT = click.option("--no-input", is_flag=True, help="Never ask a question.")
CONSENT = _options(click.option("--yes", "-y", is_flag=True, help="Answer confirmations with yes."), NO_INPUT)
OUTPUT = _options(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("-q", "--quiet", is_flag=True, help="Show only problems."),
    click.option("-v", "--verbose", is_flag=True, help="Show more details, and tracebacks of errors."),
)
REVIEW = click.option(
    "--review/--no-review",
    "review",
    default=None,
    help="Draft, review and revise FINAL.md (3 more calls; off in quick).",
)
TRUST = click.option(
    "--trust", is_flag=True, help="Trust this project's .cdo folder and its skills, as they are now."
)
NO_GIT = click.option("--no-git", is_flag=True, help="Do not commit the run to git.")
OTLP = otlp_option("Send the trace of the run to this OpenTelemetry collector, without prompts and replies.")
BRANCH = click.option("--branch", is_flag=True, help="Commit to the branch cdo/SESSION instead of refs/cdo/SESSION.")


def flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given among a command's options."""
    keys = (
        "model", "width", "turns", "budget", "ask_above", "max_calls", "max_tokens", "timeout", "concurrency", "out",
        "strict", "skills", "adr_dir", "no_git", "branch", "effort", "flex", "seat_wait",
    )  # fmt: skip
    found = {key: options[key] for key in keys if options.get(key) not in (None, (), False)}
    if options.get("review") is not None:
        found["review"] = "true" if options["review"] else "false"  # False would mean that it was not given
    if options.get("batch_api") is not None:
        found["batch_api"] = "true" if options["batch_api"] else "false"
    if "adr_dir" in found:  # absolute, because a resume may run in another folder
        found["adr_dir"] = str(Path(found["adr_dir"]).absolute())
    return found


def resolve(options: Mapping[str, Any], library: Library) -> Resolved:
    """The settings of a command, which tells on stderr what of the project waits for trust.

    `local` among the models becomes the name of the model that it means here, so that a plan stays with that one.
    """
    from cdo.app.session_places import placed
    from cdo.content.library import Library
    from cdo.content.project import unused
    from cdo.core.formatting import visible
    from cdo.planning import settings
    from cdo.providers.model_names import meant

    resolved = placed(settings.resolve(flags(options), library))
    full = meant(resolved.values.model, library)
    resolved = replace(resolved, values=replace(resolved.values, model=full))
    own = library.project
    if own and not own.trusted:
        without = Library(library.roots)
        if told := unused(own, resolved.untrusted, without.has):
            click.echo(visible(told), err=True)
    return resolved


def from_session(check: CheckCommand, out: Path) -> CheckCommand:
    """Convert a check's absolute root to a path relative to the folder of a session in `out`."""
    return replace(check, root=os.path.relpath(check.root, out.absolute() / "session"))


def preview(
    plan: Plan,
    specs: Sequence[ModelSpec],
    problem: str,
    context: str,
    library: Library,
    session: str,
    *,
    whole: bool = False,
) -> Preview:
    """Return the preview of a plan, with its estimated range of calls, tokens, cost and time.

    With `whole` it lists all files of the context.
    """
    from cdo.core.usage import estimate_tokens
    from cdo.planning.estimate import estimate
    from cdo.repository.shown_files import shown_files
    from cdo.terminal.plan_preview import Preview

    given = estimate_tokens(problem + context)
    there = shutil.which("bd") is not None
    return Preview(
        plan,
        specs,
        estimate(plan, specs, given),
        given,
        problem,
        library,
        session,
        tracked=there,
        files=shown_files(context),
        context_tokens=estimate_tokens(context),
        whole=whole,
    )
