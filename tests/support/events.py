"""Events of a run, made from a kind and data as the journal has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdo.core import events
from cdo.core.events import Event
from cdo.core.result import Result

KINDS = {each.kind: each for each in vars(events).values() if isinstance(each, type) and hasattr(each, "kind")}
ENDED: dict[str, Any] = {
    "session": "a", "path": "tmp/cdo-a", "status": "converged", "why": "", "decision": "Yes.", "confidence": None,
    "turns": 1, "calls": 1, "tokens": 1, "cost": None,
}  # fmt: skip


def happened(kind: str, name: str = "", data: Mapping[str, Any] | None = None, **more: Any) -> Event:
    """Return the event of a kind. A `done` needs only what differs from `ENDED`."""
    told = {**(data or {}), **more}
    if kind == "done":
        return events.RunEnded(name=name, result=Result(**{**ENDED, **told}))
    made: Event = KINDS[kind](name=name, **told)
    return made
