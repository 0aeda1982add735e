"""Decides whether a run needs the person's agreement before it spends money. Pure.

Free: a known price of zero, the embedded model, and a server on this machine whose price is not known. A command-line
agent runs with a login of its own, so it has no price to compare. Any other unknown price cannot be estimated, so it
needs agreement, as an estimate above `ask_above` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from cdo.core.formatting import about_money
from cdo.planning.estimate import Range
from cdo.planning.settings import Settings
from cdo.providers.models import ModelSpec


def free(spec: ModelSpec) -> bool:
    """True if asking this model costs nothing."""
    if spec.price is not None:
        return spec.price.input == 0 and spec.price.output == 0
    return spec.here


class Doubt(Struct, frozen=True):
    """Why a run needs agreement, as a sentence without its full stop, and what gives it without a terminal."""

    reason: str
    hint: str


def doubt(
    specs: Sequence[ModelSpec], span: Range, settings: Settings, sources: Mapping[str, str], what: str = "run"
) -> Doubt | None:
    """Return why the person has to agree to a run; None if it may go on. `what` is what it is called.

    `--budget` or `CDO_BUDGET` is an agreement in itself; for unknown prices, a cap on tokens is. A cap from any other
    source only bounds the estimate.
    """

    def said(key: str) -> bool:
        return sources[key].startswith(("--", "CDO_"))

    paid = [spec for spec in specs if not free(spec)]
    if not paid or said("budget"):
        return None
    limit = settings.ask_above
    unknown = [spec.name for spec in paid if spec.price is None and (spec.route != "command" or not limit)]
    if unknown and not said("max_tokens"):
        return Doubt(
            f"The price of {', '.join(dict.fromkeys(unknown))} is not known, so neither is the cost of this {what}",
            f"Pass --yes to agree, cap the {what} with --max-tokens N, or state the price under `prices` in your "
            "configuration.",
        )
    top = _bounded(paid, span, settings)
    if top > limit or (not limit and not unknown):
        return Doubt(
            f"This {what} may cost up to {about_money(top)}; cdo asks above {about_money(limit)} (`ask_above`)",
            f"Pass --yes to agree, cap the {what} with --budget USD, or raise --ask-above USD.",
        )
    return None


def _bounded(paid: Sequence[ModelSpec], span: Range, settings: Settings) -> float:
    """Return the most that a run may cost: the upper end of its estimate, within its caps on money and tokens."""
    bounds = [span.known[1] if span.cost is None else span.cost[1]]
    if settings.budget is not None:
        bounds.append(settings.budget)
    if settings.max_tokens is not None:
        dearest = max((max(spec.price.input, spec.price.output) for spec in paid if spec.price), default=0.0)
        bounds.append(settings.max_tokens * dearest / 1e6)
    return min(bounds)
