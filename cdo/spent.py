"""What requests took, added up: calls, tokens, dollars, seconds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdo.wording import money


@dataclass(frozen=True)
class Spent:
    """How many requests, tokens in and out, dollars, requests of unknown price, and seconds waited."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Spent:
        """What one recorded exchange took; without usage it was not charged for."""
        usage, cost = record.get("usage"), record.get("cost")
        tokens = usage["input_tokens"] + usage["output_tokens"] if usage else 0
        return cls(1, tokens, cost or 0.0, int(bool(usage) and cost is None), float(record.get("seconds", 0.0)))

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: Spent) -> Spent:
        return self + Spent(-other.calls, -other.tokens, -other.cost, -other.unpriced, -other.seconds)

    @property
    def known_cost(self) -> float | None:
        """Dollars, or None while a price is unknown: unknown is never zero."""
        return None if self.unpriced else round(self.cost, 9)

    @property
    def price(self) -> str:
        """The cost in words, "" where nothing was charged for; what is not known of it is a question mark."""
        if self.unpriced:
            return f"{money(self.cost)} + ?" if self.cost else money(None)
        return money(self.cost) if self.tokens or self.cost else ""


NOTHING = Spent()
