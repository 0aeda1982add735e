"""Adds up what requests took: calls, tokens, dollars, seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from cdo.core.exchange import Usage
from cdo.core.formatting import money
from cdo.core.people import person_of


class TotalUsage(Struct, frozen=True):
    """The total of several requests: calls, tokens in and out, dollars, calls of unknown price, seconds waited."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> TotalUsage:
        """Return the usage of one recorded exchange. An exchange without usage was not charged for.

        The answer of a person is no call to a model.
        """
        if person_of(str(record.get("model", ""))):
            return cls()
        usage, cost, seconds = record.get("usage"), record.get("cost"), float(record.get("seconds", 0.0))
        if not usage:
            return cls(1, seconds=seconds)
        return cls(1, usage["input_tokens"], usage["output_tokens"], cost or 0.0, int(cost is None), seconds)

    @classmethod
    def one(cls, usage: Usage | None, cost: float | None) -> TotalUsage:
        """Return the usage of one request. No `usage`: nothing was charged. No `cost`: the price is unknown."""
        if usage is None:
            return cls(1)
        return cls(1, usage.input_tokens, usage.output_tokens, cost or 0.0, int(cost is None))

    def __add__(self, other: TotalUsage) -> TotalUsage:
        return TotalUsage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: TotalUsage) -> TotalUsage:
        return self + TotalUsage(
            -other.calls,
            -other.input_tokens,
            -other.output_tokens,
            -other.cost,
            -other.unpriced,
            -other.seconds,
        )

    def record(self) -> dict[str, Any]:
        """Return the data that a session records: without the seconds, which differ each time."""
        return {key: value for key, value in asdict(self).items() if key != "seconds"}

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens

    @property
    def known_cost(self) -> float | None:
        """Dollars, or None while a price is unknown: unknown is never zero."""
        return None if self.unpriced else round(self.cost, 9)

    @property
    def price(self) -> str:
        """The cost as text; "" if nothing was charged. An unknown part is shown as a question mark."""
        if self.unpriced:
            return f"{money(self.cost)} + ?" if self.cost else money(None)
        return money(self.cost) if self.tokens or self.cost else ""


NOTHING = TotalUsage()


def totals(records: Iterable[Mapping[str, Any]]) -> TotalUsage:
    """Return the usage of the recorded exchanges and nested sessions.

    Exchanges that a fork took over (`from`) do not count: another session paid for them.
    """
    found = NOTHING
    for record in records:
        if record["kind"] == "exchange" and not record.get("from"):
            found += TotalUsage.of(record)
        elif record["kind"] == "nested":
            found += TotalUsage(**record["used"])
    return found


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of `text` as a quarter of its UTF-8 bytes, rounded up.

    This needs no tokenizer. It is close for English and code, and too high for most other scripts.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // 4)
