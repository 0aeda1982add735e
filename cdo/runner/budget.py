"""Enforces the caps on calls, tokens, money and time, before each call is made.

A call first reserves the most it can use; its actual usage is settled afterwards. Under a cap on money, a model whose
price is unknown is refused: an unknown price never counts as zero.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from msgspec import Struct

from cdo.core.errors import BudgetReached, ConfigError, WaitsForBatch
from cdo.core.exchange import Usage
from cdo.core.formatting import money, pluralise
from cdo.core.usage import NOTHING, TotalUsage
from cdo.providers.models import ModelSpec


def price_unknown(spec: ModelSpec) -> ConfigError:
    """Return the error for a model without a known price under a cap on money."""
    return ConfigError(
        f"The price of {spec.name} is not known, so a budget in dollars cannot be kept.",
        "Give it under `prices` in the configuration, or cap with --max-calls or --max-tokens instead.",
    )


class Limits(Struct, frozen=True):
    """The caps of a run: requests, tokens, dollars, and seconds of this process; None is no cap."""

    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None


class Reservation(Struct, frozen=True):
    """The most tokens and dollars that one request in flight can use, and the tokens that its reply may have."""

    tokens: int
    cost: float
    reply_tokens: int = 0


def _most(held: Reservation) -> TotalUsage:
    return TotalUsage(1, held.tokens, 0, held.cost)


FAIR_SHARE = 4  # one reply may use up a quarter of what a cap leaves, if it may be shorter
HELD_BACK = 0.1  # share of each cap that is reserved for the calls that close a run
CLOSING_CALLS = 8  # calls reserved for closing: each product is inspected in a call of its own


def held_back(limits: Limits) -> Limits:
    """Return the part of the caps that is reserved for the calls that close a run, such as the final answer."""
    return Limits(
        calls=None if limits.calls is None else min(CLOSING_CALLS, limits.calls // 3),
        tokens=None if limits.tokens is None else int(limits.tokens * HELD_BACK),
        cost=None if limits.cost is None else limits.cost * HELD_BACK,
        seconds=None if limits.seconds is None else limits.seconds * HELD_BACK,
    )


class Budget:
    """The usage of a run against its caps: reserves before a request, settles after it.

    `totals` start with the usage that earlier processes recorded. `back` is the part of the caps that only a call
    that closes the run may use.
    """

    def __init__(self, limits: Limits, totals: TotalUsage, back: Limits = Limits()) -> None:
        self.limits, self.totals, self._back = limits, totals, back
        self._held: list[Reservation] = []
        self._away = TotalUsage()  # the most that calls can use which wait at a provider's batch endpoint
        self._settled = asyncio.Event()
        self._started = time.monotonic()

    def remaining_seconds(self) -> float:
        """Return the seconds left of the time cap (infinite without one)."""
        if self.limits.seconds is None:
            return float("inf")
        return self.limits.seconds - (time.monotonic() - self._started)

    @property
    def time_limit(self) -> str:
        """The message for a reached time cap."""
        return f"The time limit of {self.limits.seconds or 0:g} s is reached."

    def left(self) -> Limits:
        """Return what is left of the caps for calls that do not close the run; never below zero."""
        limits, totals, back = self.limits, self.totals, self._back
        seconds = self.remaining_seconds() - (back.seconds or 0)
        return Limits(
            calls=None if limits.calls is None else max(0, limits.calls - totals.calls - (back.calls or 0)),
            tokens=None if limits.tokens is None else max(0, limits.tokens - totals.tokens - (back.tokens or 0)),
            cost=None if limits.cost is None else max(0.0, limits.cost - totals.cost - (back.cost or 0)),
            seconds=None if limits.seconds is None else max(0.0, seconds),
        )

    async def reserve(
        self,
        spec: ModelSpec,
        input_tokens: int,
        reply_tokens: int,
        *,
        least: int | None = None,
        closes: bool = False,
    ) -> Reservation:
        """Reserve the most a request may use; wait if requests in flight may still free enough.

        With `least`, the reply gets fewer tokens, but not fewer than these, where `reply_tokens` of them could use up
        more than a quarter of what the caps leave. A request that `closes` the run may also use the part held back
        for that. Raises `BudgetReached`, `ConfigError` for an unknown price under a cap on money, or `WaitsForBatch`
        if calls that are away may still free enough.
        """
        back = Limits() if closes else self._back
        if least is not None:
            reply_tokens = max(least, self._affordable(spec, input_tokens, reply_tokens, back))
        cost = spec.most(input_tokens, reply_tokens)
        if cost is None and self.limits.cost is not None:
            raise price_unknown(spec)
        wish = Reservation(input_tokens + reply_tokens, cost or 0.0, reply_tokens)
        while problem := self._over(wish, self._held, back):
            if self._over(wish, (), back):  # not enough even if the requests in flight use nothing
                if self._away.calls and not self._over(wish, (), back, away=NOTHING):
                    raise WaitsForBatch("The caps leave no room for another call beside those that wait for a batch.")
                raise BudgetReached(problem, "`cdo resume` goes on under a higher cap; nothing is paid twice.")
            self._settled.clear()
            await self._settled.wait()
        self._held.append(wish)
        return wish

    def _affordable(self, spec: ModelSpec, input_tokens: int, reply_tokens: int, back: Limits) -> int:
        """Return the most tokens of a reply, up to `reply_tokens`, for a quarter of what the caps leave."""
        limits, totals = self.limits, self.totals
        if limits.tokens is not None:
            held = sum(item.tokens for item in self._held)
            left = limits.tokens - (back.tokens or 0) - totals.tokens - held - self._away.tokens
            reply_tokens = min(reply_tokens, left // FAIR_SHARE - input_tokens)
        sent = spec.most(input_tokens, 0)
        output = spec.price.of(input_tokens).output if spec.price else 0.0
        if limits.cost is not None and output and sent is not None:
            spent = totals.cost + sum(item.cost for item in self._held) + self._away.cost
            share = (limits.cost - (back.cost or 0.0) - spent) / FAIR_SHARE - sent
            reply_tokens = min(reply_tokens, int(share / output * 1e6))
        return reply_tokens

    async def release(self, held: Reservation) -> None:
        """Cancel a reservation: the request was never sent."""
        self.end(held, None)

    async def settle(self, held: Reservation, usage: Usage | None, cost: float | None) -> None:
        """Replace a reservation by the actual usage."""
        self.end(held, TotalUsage.one(usage, cost))

    def end(self, held: Reservation, used: TotalUsage | None) -> None:
        """End a reservation, whose request has `used` so much; None if it was never sent."""
        self._held.remove(held)
        self.count(used or TotalUsage())

    def count(self, used: TotalUsage) -> None:
        """Add usage, such as what is found on record and was not reserved here."""
        self.totals += used
        self._settled.set()

    def send_away(self, held: Reservation) -> None:
        """Keep a reservation for a call that waits at a provider, until `come_back`."""
        self._held.remove(held)
        self.count_away(held)

    def count_away(self, held: Reservation) -> None:
        """Count a reservation of an earlier process, whose call still waits at a provider."""
        self.count_all_away(_most(held))

    def count_all_away(self, most: TotalUsage) -> None:
        """Count the most that several calls of earlier processes can use."""
        self._away += most

    def come_back(self, held: Reservation, told: tuple[Usage | None, float | None] | None) -> None:
        """Replace the reservation of a call that was away by its usage and cost; None: it was never sent."""
        self._away -= _most(held)
        if told:
            self.totals += TotalUsage.one(*told)
        self._settled.set()

    def _over(
        self, wish: Reservation, held: Sequence[Reservation], back: Limits, away: TotalUsage | None = None
    ) -> str:
        """Say which cap, less its part kept `back`, `wish` would exceed in addition to `held`; "" if none.

        `away` replaces what calls that wait at a provider can use.
        """
        limits, totals = self.limits, self.totals + (self._away if away is None else away)
        if limits.calls is not None and totals.calls + len(held) + 1 > limits.calls - (back.calls or 0):
            return f"The cap of {pluralise(limits.calls, 'call')} is reached."
        if limits.tokens is not None:
            held_tokens = sum(item.tokens for item in held)
            if totals.tokens + held_tokens + wish.tokens > limits.tokens - (back.tokens or 0):
                return (
                    f"The cap of {limits.tokens} tokens is reached: {totals.tokens} are used and the next call may "
                    f"take {wish.tokens}."
                )
        if limits.cost is not None:
            held_cost = sum(item.cost for item in held)
            if totals.cost + held_cost + wish.cost > limits.cost - (back.cost or 0) + 1e-12:
                return (
                    f"The budget of ${limits.cost:g} is reached: {money(totals.cost)} has been spent and the next "
                    f"call may cost {money(wish.cost)}."
                )
        if self.remaining_seconds() <= (back.seconds or 0):
            return self.time_limit
        return ""


class BudgetShare(Budget):
    """The budget of one run among several that share their caps: `whole` reserves, and counts the usage of all.

    `totals` are those of this run alone.
    """

    def __init__(self, whole: Budget, totals: TotalUsage) -> None:
        super().__init__(whole.limits, totals)
        self._whole = whole

    def remaining_seconds(self) -> float:
        """Return the seconds left of the common time cap."""
        return self._whole.remaining_seconds()

    def left(self) -> Limits:
        """Return what is left of the common caps."""
        return self._whole.left()

    async def reserve(
        self,
        spec: ModelSpec,
        input_tokens: int,
        reply_tokens: int,
        *,
        least: int | None = None,
        closes: bool = False,
    ) -> Reservation:
        """Reserve from the common caps, as `Budget.reserve` does."""
        return await self._whole.reserve(spec, input_tokens, reply_tokens, least=least, closes=closes)

    async def release(self, held: Reservation) -> None:
        """Cancel a reservation: the request was never sent."""
        await self._whole.release(held)

    def send_away(self, held: Reservation) -> None:
        """Keep a reservation of the common caps for a call that waits at a provider."""
        self._whole.send_away(held)

    def count_away(self, held: Reservation) -> None:
        """Count a reservation of an earlier process against the common caps."""
        self._whole.count_away(held)

    def come_back(self, held: Reservation, told: tuple[Usage | None, float | None] | None) -> None:
        """Replace the reservation of a call that was away, for this run and for all."""
        self._whole.come_back(held, told)
        if told:
            self.totals += TotalUsage.one(*told)

    async def settle(self, held: Reservation, usage: Usage | None, cost: float | None) -> None:
        """Replace a reservation by the actual usage, which counts for this run and for all."""
        await self._whole.settle(held, usage, cost)
        self.totals += TotalUsage.one(usage, cost)
