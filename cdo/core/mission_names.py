"""Names of a mission: its agents, its root, its calls by round; what a round came to, in words. Pure and light."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cdo.core.formatting import pluralise

MODE = "cabal"  # how a plan says that it is a mission's
CHAIR, WATCHDOG, ENVOY, USER = "chair-1", "watchdog-1", "envoy-1", "u:user-1"
OWN = "the chair's"  # how the status is called of what only the chair writes, and nobody accepts
ROOT = "p1"  # the product that holds all others; code makes it

_ROUND = re.compile(r"r([0-9]{1,6})-")


def operatives(count: int) -> tuple[str, ...]:
    """The ids of a team's operatives."""
    return tuple(f"operative-{number}" for number in range(1, count + 1))


def round_of(name: str) -> int | None:
    """The round in which a call was made, by its name or that of its file; None for what is of no round."""
    return int(match[1]) if (match := _ROUND.match(name)) else None


def came(data: Mapping[str, Any]) -> str:
    """What a round came to in a few words, by its event."""
    made, stands = len(data["versions"]), f"{data['accepted']} of {data['live']} accepted"
    parts = (
        pluralise(made, "version") if data["round"] else f"{pluralise(data['live'], 'product')} planned",
        stands if data["round"] else "",
        pluralise(data["blockers"], "blocker") if data["blockers"] else "",
    )
    return ", ".join(filter(None, parts))
