"""What a worker has in place of a process's own caps: each asks the coordinator, who has the one that counts."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import Literal

from msgspec.structs import astuple

from cdo.app.cluster.line import CoordinatorLine
from cdo.core.exchange import Fault, Quota, RateLimits, Usage
from cdo.core.usage import TotalUsage
from cdo.providers.models import ModelSpec
from cdo.runner.budget import Budget, Limits, Reservation
from cdo.runner.pacing import Pacing, Turn
from cdo.runner.retry import CircuitBreaker, RetryBudget

ITEM: ContextVar[str] = ContextVar("item")  # the id of the item that the current task runs
# The model and the prompt's tokens of the request that the current task sends next. Its turn under the rate limits
# comes with its slot, the last thing before it is sent: what the coordinator knows of the limits is then fresh.
_NEXT: ContextVar[tuple[str, int]] = ContextVar("next")


class LeasedReservation(Reservation, frozen=True):
    """A reservation at the coordinator, known there by its number."""

    number: int = 0


class LeasedBudget(Budget):
    """The caps of a batch, from which the coordinator leases what each request may use."""

    def __init__(self, limits: Limits, line: CoordinatorLine) -> None:
        super().__init__(limits, TotalUsage())
        self._line = line

    def remaining_seconds(self) -> float:
        """Return the seconds left of the batch's time cap."""
        return self._line.seconds_left()

    async def reserve(
        self,
        spec: ModelSpec,
        input_tokens: int,
        reply_tokens: int,
        *,
        least: int | None = None,
        closes: bool = False,
    ) -> LeasedReservation:
        """Reserve at the coordinator, as `Budget.reserve` does."""
        found = await self._line.ask(
            "reserve", model=spec.name, input=input_tokens, reply=reply_tokens, least=least, closes=closes,
            item=ITEM.get(),
        )  # fmt: skip
        return LeasedReservation(found["tokens"], found["cost"], found["reply"], found["n"])

    async def release(self, held: Reservation) -> None:
        """Give a lease back: the request was never sent."""
        assert isinstance(held, LeasedReservation)
        self._line.tell("release", lease=held.number)

    async def settle(self, held: Reservation, usage: Usage | None, cost: float | None) -> None:
        """Give a lease back and tell the actual usage."""
        assert isinstance(held, LeasedReservation)
        used = [usage.input_tokens, usage.output_tokens] if usage else None
        self._line.tell("settle", lease=held.number, usage=used, cost=cost)


class LeasedPacing(Pacing):
    """The room that a provider has for one model, of which the coordinator keeps account."""

    def __init__(self, model: str, line: CoordinatorLine) -> None:
        super().__init__()
        self._model, self._line = model, line

    @property
    def known(self) -> bool:
        """True once a response to any worker has stated limits."""
        return self._model in self._line.paced

    def learn(self, limits: RateLimits | None) -> None:
        """Tell the coordinator what a response says."""
        if limits:
            age = time.monotonic() - limits.at
            quotas = [None if quota is None else list(astuple(quota)) for quota in (limits.requests, limits.tokens)]
            self._line.tell("learn", model=self._model, age=age, quotas=quotas)

    async def enter(self, tokens: int) -> Turn:
        """Note that a request with a prompt of so many tokens comes next."""
        _NEXT.set((self._model, tokens))
        return Turn(0.0, tokens)


def limits_told(age: float, quotas: list[list[float] | None]) -> RateLimits:
    """Return the limits that a worker told, which it had learnt `age` seconds before."""
    requests, tokens = (None if quota is None else Quota(*quota) for quota in quotas)
    return RateLimits(time.monotonic() - age, requests, tokens)


class LeasedGate(CircuitBreaker):
    """The gate of one model's provider, which the coordinator opens and closes for all workers."""

    def __init__(self, model: str, line: CoordinatorLine) -> None:
        super().__init__()
        self._model, self._line = model, line

    @property
    def open(self) -> bool:
        """True if an attempt may start right now."""
        return self._model not in self._line.closed

    async def enter(self) -> bool:
        """Wait until an attempt may start; return whether it is the probe."""
        return not self.open and bool((await self._line.ask("gate", model=self._model))["probe"])

    def abandon(self, probe: bool) -> None:
        """Report that an attempt was cancelled by us."""
        if probe:
            self._line.tell("abandon", model=self._model)

    def leave(self, probe: bool, started: float, fault: Fault | None, retry_after: float | None) -> None:
        """Report how an attempt ended that began at `started`, where that can change anything."""
        if probe or fault or not self.open:
            told = {"fault": fault.value if fault else None, "age": time.monotonic() - started}
            self._line.tell("left", model=self._model, probe=probe, wait=retry_after, **told)


class LeasedSlots(asyncio.Semaphore):
    """How many requests may be in flight, over all workers."""

    def __init__(self, line: CoordinatorLine) -> None:
        super().__init__()
        self._line = line
        self._held: list[int] = []

    async def acquire(self) -> Literal[True]:
        """Lease a slot, with the request's turn under the rate limits of its model."""
        model, tokens = _NEXT.get()
        self._held.append((await self._line.ask("slot", model=model, tokens=tokens))["n"])
        return True

    def release(self) -> None:
        """Give a slot back."""
        self._line.tell("free", slot=self._held.pop())


class LeasedRetries(RetryBudget):
    """The retries that a batch has left, over all workers."""

    def __init__(self, line: CoordinatorLine) -> None:
        super().__init__()
        self._line = line

    def call(self) -> None:
        """Count a started call."""
        self._line.tell("call")

    async def granted(self) -> bool:
        """Lease one retry; False when none is left."""
        return bool((await self._line.ask("retry"))["granted"])
