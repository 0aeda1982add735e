"""Sums what runs cost by session, model, role, kind, turn, day or preset.

Every recorded exchange counts once. Superseded answers and failed attempts count too, because they were paid for. An
exchange that a fork took over counts in the session that paid for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from cdo.core.usage import TotalUsage
from cdo.history.index_entries import IndexEntry, Paid


class Sum(Struct, frozen=True):
    """The usage under one `key`. `shared` counts exchanges that a fork took over and another session paid for."""

    key: str = ""
    spent: TotalUsage = field(default_factory=TotalUsage)
    shared: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.key, self.spent + other.spent, self.shared + other.shared)

    @property
    def price(self) -> str:
        """The cost as text; an unknown price is never shown as zero."""
        return self.spent.price

    def data(self) -> dict[str, Any]:
        """Return the sum for JSON. `cost` is None while a price is unknown; `priced` is the known part."""
        spent = self.spent
        sums = {"calls": spent.calls, "tokens": spent.tokens, "cost": spent.known_cost}
        return {**sums, "priced": round(spent.cost, 9), "unpriced": spent.unpriced, "shared": self.shared}


def summed(entries: Sequence[IndexEntry], by: str) -> list[Sum]:
    """Return the sums by session, preset, model, role, kind, turn or day.

    Sessions keep their order. Turns and days are sorted in ascending order, the others by cost, highest first.
    """
    found = (
        {str(entry.row["session"]): Sum(str(entry.row["session"])) for entry in entries} if by == "session" else {}
    )
    for entry in entries:
        for paid in entry.paid:
            key = _key(entry, paid, by)
            found[key] = found.get(key, Sum(key)) + _one(paid)
    if by == "session":
        return list(found.values())
    if by in ("turn", "day"):
        return sorted(found.values(), key=lambda item: (not item.key, len(item.key), item.key))
    return sorted(found.values(), key=lambda item: (-item.spent.cost, -item.spent.tokens, item.key))


def _one(paid: Paid) -> Sum:
    return (
        Sum(shared=1)
        if paid.shared
        else Sum(spent=TotalUsage(1, paid.tokens, cost=paid.cost, unpriced=paid.unpriced))
    )


def _key(entry: IndexEntry, paid: Paid, by: str) -> str:
    match by:
        case "session" | "preset":
            return str(entry.row[by])
        case "turn":
            return "" if paid.turn is None else str(paid.turn)
        case "day":
            return _day(paid.started)
    return str(getattr(paid, by))


def _day(started: str) -> str:
    """Return the local date of a time stamp in ISO format; "" if the time cannot be parsed."""
    try:
        return datetime.fromisoformat(started).astimezone().date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""
