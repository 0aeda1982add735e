"""The coordinator's end of the leases: one budget, one set of provider limits, one retry allowance for all workers.

A lease lasts as long as its request. What a worker holds is given back when that worker is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.app.cluster.leased import limits_told
from cdo.app.cluster.line import Message, error_told
from cdo.app.run import SharedByRuns
from cdo.core.errors import BudgetReached, CdoError
from cdo.core.exchange import BackendError, Fault, Usage
from cdo.core.usage import TotalUsage
from cdo.runner.attempts import NO_ROOM
from cdo.runner.budget import Reservation
from cdo.runner.pacing import Pacing, Turn

LAG = 1.0  # seconds from a lease of a slot to the arrival of its request at the provider, at most


class LeaseHolder(Struct):
    """What one worker holds: reservations with the item they are for, slots with their turns, probes by
    model, by their numbers.

    `send` sends an answer. `asks` are the questions that are not answered yet.
    """

    send: Callable[[Message], None]
    asks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    reserved: dict[int, tuple[Reservation, str]] = field(default_factory=dict)
    slots: dict[int, tuple[Pacing, Turn]] = field(default_factory=dict)
    probes: dict[int, str] = field(default_factory=dict)


class LeaseDesk:
    """Serves leases from what the items of a batch share. `accounts` say what is counted of each item that
    has not ended.

    `answered` is set once a request has ended.
    """

    def __init__(self, shared: SharedByRuns) -> None:
        seats = {name: replace(seat, pace=Pacing(LAG)) for name, seat in shared.seats.items()}
        self._shared = replace(shared, seats=seats)
        self.accounts: dict[str, TotalUsage] = {}
        self.answered = asyncio.Event()

    def state(self, *, stop: bool) -> Message:
        """Return what workers are told with every call."""
        left, seats = self._shared.budget.remaining_seconds(), self._shared.seats
        return {
            "closed": [name for name, seat in seats.items() if not seat.gate.open],
            "paced": [name for name, seat in seats.items() if seat.pace.known],
            "left": None if left == float("inf") else left,
            "stop": stop,
        }

    def serve(self, holder: LeaseHolder, message: Message) -> None:
        """Take a message about leases: answer it when that can be answered."""
        what = message["what"]
        if what in ("reserve", "slot", "gate", "retry"):
            task = asyncio.create_task(self._answer(holder, message))
            holder.asks[message["n"]] = task
        elif what == "call":
            self._shared.allowance.call()
        elif what == "drop":
            self._drop(holder, message["drop"])
        elif what in ("release", "settle"):
            self._end(holder, message)
        elif what == "free":
            self._free(holder, message["slot"])
        elif what == "learn":
            self._seat(message).pace.learn(limits_told(message["age"], message["quotas"]))
        elif what == "abandon":
            self._probed(holder, message["model"])
            self._seat(message).gate.abandon(True)
        elif what == "left":
            self._left(holder, message)

    def take_back(self, holder: LeaseHolder, *, spent: bool) -> None:
        """Take back what a lost worker holds. With `spent`, all that it had reserved counts as spent."""
        for task in holder.asks.values():
            task.cancel()
        for held, _ in holder.reserved.values():
            self._close(held, Usage(input_tokens=held.tokens) if spent else None, held.cost, sent=spent)
        for slot in list(holder.slots):
            self._free(holder, slot)
        for model in holder.probes.values():
            self._shared.seats[model].gate.abandon(True)
        holder.reserved.clear()
        holder.probes.clear()

    def reconcile(self, item: str, recorded: TotalUsage) -> None:
        """Count what is on record of an item and was not told: a lost worker could not, nor one of an earlier run."""
        known = self.accounts.get(item, TotalUsage())
        more = recorded - known
        if more.calls > 0:
            self._shared.budget.count(more)
            self.accounts[item] = recorded

    async def _answer(self, holder: LeaseHolder, message: Message) -> None:
        number = message["n"]
        try:
            answer = await self._granted(holder, message)
        except (CdoError, BackendError) as error:
            answer = {"error": error_told(error)}
        except Exception as error:
            wrong = CdoError(f"Internal error: {type(error).__name__}: {error}", "Please report it.")
            answer = {"error": error_told(wrong)}
        finally:
            holder.asks.pop(number, None)
        holder.send({"n": number, **answer})

    async def _granted(self, holder: LeaseHolder, message: Message) -> Message:
        number, what = message["n"], message["what"]
        if what == "retry":
            return {"granted": self._shared.allowance.take()}
        seat = self._seat(message)
        if what == "slot":
            async with self._in_time(BackendError(Fault.RATE_LIMITED, NO_ROOM, retry_after=float("inf"))):
                turn = await seat.pace.enter(message["tokens"])
            await self._shared.slots.acquire()
            holder.slots[number] = seat.pace, turn
            return {}
        if what == "gate":
            probe = await seat.gate.enter()
            if probe:
                holder.probes[number] = message["model"]
            return {"probe": probe}
        held = await self._reserved(message)
        holder.reserved[number] = held, message["item"]
        return {"tokens": held.tokens, "cost": held.cost, "reply": held.reply_tokens}

    async def _reserved(self, message: Message) -> Reservation:
        budget = self._shared.budget
        async with self._in_time(BudgetReached(budget.time_limit)):
            return await budget.reserve(
                self._seat(message).spec, message["input"], message["reply"], least=message["least"],
                closes=message["closes"],
            )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _in_time(self, late: Exception) -> AsyncIterator[None]:
        """Raise `late` where the block lasts longer than the time cap of the batch."""
        left = self._shared.budget.remaining_seconds()
        try:
            async with asyncio.timeout(None if left == float("inf") else max(0.0, left)):
                yield
        except TimeoutError:
            raise late from None

    def _seat(self, message: Mapping[str, Any]) -> Any:
        return self._shared.seats[message["model"]]

    def _drop(self, holder: LeaseHolder, number: int) -> None:
        """Undo what was asked for under a number: nobody waits for it any more."""
        if task := holder.asks.pop(number, None):
            task.cancel()
        elif number in holder.reserved:
            self._end(holder, {"what": "release", "lease": number})
        elif number in holder.slots:
            self._free(holder, number)
        elif model := holder.probes.pop(number, None):
            self._shared.seats[model].gate.abandon(True)

    def _end(self, holder: LeaseHolder, message: Message) -> None:
        held, item = holder.reserved.pop(message["lease"])
        if message["what"] == "release":
            return self._close(held, None, None, sent=False)
        usage = Usage(*message["usage"]) if message["usage"] else None
        self.accounts[item] = self.accounts.get(item, TotalUsage()) + TotalUsage.one(usage, message["cost"])
        self.answered.set()
        return self._close(held, usage, message["cost"], sent=True)

    def _close(self, held: Reservation, usage: Usage | None, cost: float | None, *, sent: bool) -> None:
        self._shared.budget.end(held, TotalUsage.one(usage, cost) if sent else None)

    def _free(self, holder: LeaseHolder, slot: int) -> None:
        pace, turn = holder.slots.pop(slot)
        pace.over(turn)
        self._shared.slots.release()

    def _probed(self, holder: LeaseHolder, model: str) -> None:
        number = next((number for number, probed in holder.probes.items() if probed == model), None)
        if number is not None:
            del holder.probes[number]

    def _left(self, holder: LeaseHolder, message: Message) -> None:
        if message["probe"]:
            self._probed(holder, message["model"])
        fault = Fault(message["fault"]) if message["fault"] else None
        started = time.monotonic() - message["age"]
        self._seat(message).gate.leave(message["probe"], started, fault, message["wait"])
