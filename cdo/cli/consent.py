"""Says before the first call what is sent where and what it may cost, and asks where that is more than agreed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from cdo.cli.common import columns
from cdo.core.errors import NeedsHuman
from cdo.core.formatting import money_range, one_line, pluralise, rounded, visible
from cdo.planning.estimate import Range, estimate
from cdo.planning.mission_plan import estimate as mission_estimate
from cdo.planning.plan import Plan
from cdo.planning.spending import doubt
from cdo.terminal.plan_dashboard import lines
from cdo.terminal.sending import listed, sending

if TYPE_CHECKING:
    from cdo.planning.settings import Settings
    from cdo.terminal.plan_preview import Preview


def agree(
    shown: Preview,
    settings: Settings,
    sources: Mapping[str, str],
    options: Mapping[str, Any],
    *,
    to: str = "",
    option: str = "",
    plan: Sequence[str] = (),
) -> bool:
    """Say what will be sent, and have the person agree to the money if needed; return if the plan was shown.

    `to` counts the recipients, as "3 voices"; `option` sends no files. `plan` are the lines of the plan, unless they
    are those of the dashboard. With `hitl`, the person agrees to the plan of each turn instead. Raises `NeedsHuman`,
    before anything is sent or written.
    """
    crew = shown.plan.crew
    if crew:
        shown = replace(shown, span=mission_estimate(crew, shown.specs, shown.given, shown.plan.tools))
        plan = mission_lines(shown.plan, shown.problem, shown.span, ())
    found = None if shown.plan.hitl or options.get("yes") else doubt(shown.specs, shown.span, settings, sources)
    terminal = sys.stdin.isatty() and sys.stderr.isatty() and not options.get("no_input")
    if found and not terminal:
        raise NeedsHuman(f"{found.reason}. Nothing was sent.", found.hint)
    if found:
        for row in plan or lines(shown.first(), columns(sys.stderr)):
            click.echo(visible(row), err=True)
    if found or not options["quiet"]:
        for row in told(shown, to=to, option=option, whole=options["verbose"] and not found):
            click.echo(visible(row), err=True)
    if found and not click.confirm(visible(f"{found.reason}. Go on?"), default=False, err=True):
        raise NeedsHuman("You did not agree. Nothing was sent.", "--budget USD caps the cost of a run.")
    return found is not None


def after_turn(shown: Preview, turn: int) -> Preview:
    """Return the preview of a run whose turns up to `turn` are there already, with the estimate of the others."""
    if not turn:
        return shown
    plan = shown.plan
    cap = plan.turns[1] if not plan.changes or plan.changes[-1].turns is None else plan.changes[-1].turns[1]
    left = max(1, cap - turn)
    rest = replace(plan, turns=(1, left), least=min(plan.least, left))
    return replace(shown, span=estimate(rest, shown.specs, shown.given))


def mission_lines(plan: Plan, request: str, span: Range, notes: Sequence[str]) -> list[str]:
    """Return the plan of a mission."""
    crew = plan.crew
    assert crew
    low, high = span.tokens
    return [
        f"Mission: {one_line(request, 200)}",
        *(f"  {agent:<13}{model}" for agent, model in crew.seats.items()),
        f"{pluralise(crew.rounds, 'round')} at most; {span.calls[0]} to {span.calls[1]} calls without retries,",
        f"about {rounded(low)} to {rounded(high)} tokens, cost {money_range(span.cost)}",
        f"Deliberations of at most {pluralise(crew.deliberations, 'Decision')} come on top of that.",
        *notes,
    ]


def told(shown: Preview, *, to: str = "", option: str = "", whole: bool = False) -> list[str]:
    """Return the line that says what is sent where; with `whole` also the files, one a line."""
    plan = shown.plan
    line = sending(
        shown.files, shown.context_tokens, shown.specs, to or voices(shown), shown.span,
        looks=("agents" if plan.crew else "voices") if plan.tools else "", option=option,
    )  # fmt: skip
    settled = [shown.needless] if shown.needless else []
    return [*settled, line, *(f"  {row}" for row in (listed(shown.files, whole=True) if whole else ()))]


def would_send(shown: Preview, *, option: str = "", whole: bool = False) -> list[str]:
    """Return what `told` returns, worded for a dry run."""
    return [row.replace("Sending", "Would send", 1) for row in told(shown, option=option, whole=whole)]


def voices(shown: Preview) -> str:
    """Return how many voices a run has, as a range if it may vary, or how many agents a mission."""
    plan = shown.plan
    if plan.crew:
        return pluralise(len(plan.crew.seats), "agent")
    high = plan.width[1] if plan.adaptive else plan.start
    return pluralise(plan.start, "voice") if high <= plan.start else f"{plan.start}–{high} voices"
