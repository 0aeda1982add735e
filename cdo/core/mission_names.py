"""Names the agents, the root and the calls of a mission; words the result of a round. Pure and light."""

from __future__ import annotations

import re

from cdo.core.events import RoundEnded
from cdo.core.formatting import pluralise

MODE = "cabal"  # the `mode` of a mission's plan
CHAIR, WATCHDOG, ENVOY, USER = "chair-1", "watchdog-1", "envoy-1", "u:user-1"
OWN = "the chair's"  # the status of a product that only the chair writes and that needs no acceptance
ROOT = "p1"  # the product that holds all others; code creates it

_ROUND = re.compile(r"r([0-9]{1,6})-")


def operatives(count: int) -> tuple[str, ...]:
    """Return the ids of a team's operatives."""
    return tuple(f"operative-{number}" for number in range(1, count + 1))


def round_of(name: str) -> int | None:
    """Return the round of a call, by its name or its file's name; None if it belongs to no round."""
    return int(match[1]) if (match := _ROUND.match(name)) else None


def came(ended: RoundEnded) -> str:
    """Return the result of a round in a few words."""
    made, stands = len(ended.versions), f"{ended.accepted} of {ended.live} accepted"
    parts = (
        pluralise(made, "version") if ended.round else f"{pluralise(ended.live, 'product')} planned",
        stands if ended.round else "",
        pluralise(ended.blockers, "blocker") if ended.blockers else "",
    )
    return ", ".join(filter(None, parts))
