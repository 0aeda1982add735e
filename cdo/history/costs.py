"""What runs cost, summed by session, model, role, kind, turn, day or preset.

Every recorded exchange counts once: answers that were superseded and attempts that failed were paid as well; what a
fork took over counts where it was paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cdo.core.usage import TotalUsage
from cdo.history.run_index import IndexEntry, Paid


@dataclass(frozen=True)
class Sum:
    """What was spent under a `key`; `shared` counts the exchanges that a fork took over from where they are paid."""

    key: str = ""
    spent: TotalUsage = field(default_factory=TotalUsage)
    shared: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.key, self.spent + other.spent, self.shared + other.shared)

    @property
    def price(self) -> str:
        """The cost in words; a price that is not known is never shown as zero."""
        return self.spent.price

    def data(self) -> dict[str, Any]:
        """The same for JSON: `cost` is None while a price is unknown, `priced` what is known of it."""
        spent = self.spent
        sums = {"calls": spent.calls, "tokens": spent.tokens, "cost": spent.known_cost}
        return {**sums, "priced": round(spent.cost, 9), "unpriced": spent.unpriced, "shared": self.shared}


def summed(entries: Sequence[IndexEntry], by: str) -> list[Sum]:
    """The sums by session, preset, model, role, kind, turn or day.

    Sessions are in their order, turns and days in theirs, the others the dearest first.
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
    """The day as the calendar of this machine has it; "" where the time cannot be read."""
    try:
        return datetime.fromisoformat(started).astimezone().date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""
