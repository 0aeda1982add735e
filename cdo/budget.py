"""The caps on calls, tokens, money and time, held before a call is made.

A call first reserves the most it can take; what it really took is settled afterwards. With a cap on money, a
model whose price is unknown is refused: unknown is never zero.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cdo.errors import BudgetReached, ConfigError
from cdo.models import ModelSpec
from cdo.types import Usage


def price_unknown(spec: ModelSpec) -> ConfigError:
    """Why a model cannot be used under a cap on money."""
    return ConfigError(
        f"The price of {spec.name} is not known, so a budget in dollars cannot be kept.",
        "Give it under `prices` in the configuration, or cap with --max-calls or --max-tokens instead.",
    )


@dataclass(frozen=True)
class Limits:
    """Caps of a run: requests, tokens, dollars, and seconds of this process; None is no cap."""

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


@dataclass
class Totals:
    """What was used: requests sent, tokens, dollars with a known price, and calls whose price is not known."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def known_cost(self) -> float | None:
        """Dollars, or None when any call's price is unknown."""
        return None if self.unpriced else round(self.cost, 9)

    def add(self, usage: Usage | None, cost: float | None) -> None:
        """Count one request and what it took; `usage` is None where nothing can have been charged."""
        self.calls += 1
        if usage is None:
            return
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if cost is None:
            self.unpriced += 1
        else:
            self.cost += cost


@dataclass(frozen=True)
class Reservation:
    """The most that one request in flight can take."""

    tokens: int
    cost: float


class Budget:
    """Reserves before a request, settles after it. `totals` start with what earlier processes recorded."""

    def __init__(self, limits: Limits, totals: Totals) -> None:
        self.limits, self.totals = limits, totals
        self._held: list[Reservation] = []
        self._settled = asyncio.Event()
        self._started = time.monotonic()

    def remaining_seconds(self) -> float:
        """Seconds left of the time cap (infinite without one)."""
        if self.limits.seconds is None:
            return float("inf")
        return self.limits.seconds - (time.monotonic() - self._started)

    async def reserve(self, spec: ModelSpec, input_tokens: int, reply_tokens: int) -> Reservation:
        """Hold what a request may take; waits while requests in flight might still give something back.

        Raises `BudgetReached`, or `ConfigError` for an unknown price under a cap on money.
        """
        cost = spec.cost(Usage(input_tokens, reply_tokens))
        if cost is None and self.limits.cost is not None:
            raise price_unknown(spec)
        wish = Reservation(input_tokens + reply_tokens, cost or 0.0)
        while problem := self._over(wish, self._held):
            if self._over(wish, ()):  # whatever those in flight give back, it is not enough
                raise BudgetReached(problem, "`cdo resume` goes on under a higher cap; nothing is paid twice.")
            self._settled.clear()
            await self._settled.wait()
        self._held.append(wish)
        return wish

    async def release(self, held: Reservation) -> None:
        """Give a reservation back: the request was never sent."""
        self._held.remove(held)
        self._settled.set()

    async def settle(self, held: Reservation, usage: Usage | None, cost: float | None) -> None:
        """Replace a reservation by what was really taken."""
        self._held.remove(held)
        self.totals.add(usage, cost)
        self._settled.set()

    def _over(self, wish: Reservation, held: Sequence[Reservation]) -> str:
        """Which cap `wish` would break beside those `held`, in words; "" when none."""
        limits, totals = self.limits, self.totals
        if limits.calls is not None and totals.calls + len(held) + 1 > limits.calls:
            return f"The cap of {limits.calls} calls is reached."
        if limits.tokens is not None:
            held_tokens = sum(item.tokens for item in held)
            if totals.tokens + held_tokens + wish.tokens > limits.tokens:
                return (
                    f"The cap of {limits.tokens} tokens is reached: {totals.tokens} are used and the next call may "
                    f"take {wish.tokens}."
                )
        if limits.cost is not None:
            held_cost = sum(item.cost for item in held)
            if totals.cost + held_cost + wish.cost > limits.cost + 1e-12:
                return (
                    f"The budget of ${limits.cost:g} is reached: ${totals.cost:.4f} are spent and the next call may "
                    f"cost ${wish.cost:.4f}."
                )
        if self.remaining_seconds() <= 0:
            return f"The time limit of {limits.seconds:g} s is reached."
        return ""
