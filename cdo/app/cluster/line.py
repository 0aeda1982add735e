"""The line between a worker and the coordinator, which is the process that holds the batch.

Only the coordinator calls (`exchange`), so that nothing but Dask's scheduler has to be reachable. Each call brings
what it has to say and waits a while for what the worker has to say. Either side repeats a message until the other one
has confirmed it, so a call that was lost loses nothing. A line on which no call came for `LEASE` seconds is lost:
then no request is begun any more, and those in flight come to their end.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cdo.core.errors import BudgetReached, CdoError, ConfigError, Interrupted
from cdo.core.exchange import BackendError, Fault

LEASE = 20.0  # seconds without a call after which a worker begins no request any more
LOST = 30.0  # seconds without an answer after which the coordinator gives a worker's items to another one
WAIT = 2.0  # seconds that a call waits for something to be said

Message = dict[str, Any]


class Outbox:
    """Messages that the other side has not confirmed yet, in order; `first` is the number of the oldest."""

    def __init__(self) -> None:
        self.first = 0
        self._messages: list[Message] = []

    def add(self, message: Message) -> None:
        """Append a message."""
        self._messages.append(message)

    def confirmed(self, heard: int) -> None:
        """Forget the messages before number `heard`, which the other side has."""
        if heard > self.first:
            del self._messages[: heard - self.first]
            self.first = heard

    def told(self) -> Message:
        """Return what is to be sent."""
        return {"first": self.first, "messages": list(self._messages)}

    def __len__(self) -> int:
        return len(self._messages)


class Inbox:
    """Counts the messages of the other side, so that each of them is taken once."""

    def __init__(self) -> None:
        self.heard = 0

    def new(self, told: Message) -> list[Message]:
        """Return the messages in `told` that were not taken before."""
        first, messages = told["first"], told["messages"]
        found: list[Message] = messages[max(0, self.heard - first) :]
        self.heard = max(self.heard, first + len(messages))
        return found


class CoordinatorLine:
    """A worker's end of the line. Its methods belong to the loop of the items, `exchange` to that of Dask.

    `closed` names the models whose provider is down, `paced` those whose rate limits are known.
    """

    def __init__(self, stopped: Callable[[], None]) -> None:
        self.closed: frozenset[str] = frozenset()
        self.paced: frozenset[str] = frozenset()
        self.lost = False
        self._loop = asyncio.get_running_loop()
        self._stopped = stopped
        self._lock = threading.Lock()
        self._out, self._in = Outbox(), Inbox()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._until = float("inf")
        self._heard_at = time.monotonic()
        self._turn = 0
        self._wake: Callable[[], None] = lambda: None
        self._empty, self._ended = asyncio.Event(), asyncio.Event()

    # -- the loop of the items --

    async def ask(self, what: str, **told: Any) -> Message:
        """Ask the coordinator for something; raise the error that it answers, or `Interrupted` on a lost line."""
        if self.lost:
            raise _gone()
        number = next(self._numbers)
        future = self._waiting[number] = self._loop.create_future()
        self.tell(what, n=number, **told)
        try:
            answer: Message = await future
        except asyncio.CancelledError:
            self._waiting.pop(number, None)
            self.tell("drop", drop=number)  # also where the answer has just come: what it grants is undone
            raise
        if "error" in answer:
            raise error_of(answer["error"])
        return answer

    def tell(self, what: str, **told: Any) -> None:
        """Tell the coordinator something that needs no answer."""
        with self._lock:
            self._out.add({"what": what, **told})
            self._empty.clear()
        self._wake()

    async def flushed(self) -> None:
        """Wait until the coordinator has everything that was told, or the line is lost."""
        while len(self._out) and not self.lost:
            await self._empty.wait()

    def seconds_left(self) -> float:
        """Return the seconds left of the batch's time cap (infinite without one)."""
        return self._until - time.monotonic()

    def lose(self) -> None:
        """Take the line for lost: what waits for an answer ends."""
        self.lost = True
        self._ended.set()
        self._empty.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(_gone())

    async def watch(self) -> None:
        """Lose the line when no call has come for too long."""
        while not self.lost:
            left = self._heard_at + LEASE - time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), max(0.0, left))
            if self._heard_at + LEASE <= time.monotonic():
                self.lose()

    def _take(self, told: Message) -> None:
        with self._lock:
            self._out.confirmed(told["heard"])
            if not len(self._out):
                self._empty.set()
        state = told["state"]
        self.closed, self.paced = frozenset(state["closed"]), frozenset(state["paced"])
        self._until = float("inf") if state["left"] is None else time.monotonic() + state["left"]
        for message in self._in.new(told):
            future = self._waiting.pop(message["n"], None)
            if future and not future.done():
                future.set_result(message)
        if state["stop"]:
            self.lose()
            self._stopped()

    # -- Dask's loop --

    async def exchange(self, told: Message) -> Message:
        """Take what the coordinator says, wait for something to say, and return it."""
        self._heard_at = time.monotonic()
        self._turn = turn = self._turn + 1
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._wake()  # the call before ends, if it still waits
        self._wake = lambda: None if loop.is_closed() else _set(loop, news)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._taken(told), self._loop))
        if not len(self._out) and turn == self._turn and not told["state"]["stop"]:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), WAIT)
        with self._lock:
            return {**self._out.told(), "heard": self._in.heard}

    async def _taken(self, told: Message) -> None:
        self._take(told)


def _set(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    loop.call_soon_threadsafe(news.set)


def _gone() -> Interrupted:
    return Interrupted("The process that holds the batch has not been heard of.", "Run the batch again.")


def error_told(error: CdoError | BackendError) -> Message:
    """Return an error as data."""
    if isinstance(error, BackendError):
        after = error.retry_after
        wait = -1.0 if after == float("inf") else after
        return {"kind": "BackendError", "message": error.message, "fault": error.fault.value, "wait": wait}
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}


def error_of(told: Mapping[str, Any]) -> CdoError | BackendError:
    """Return the error of data that `error_told` made."""
    if told["kind"] == "BackendError":
        after = float("inf") if told["wait"] == -1.0 else told["wait"]
        return BackendError(Fault(told["fault"]), told["message"], retry_after=after)
    kinds = {kind.__name__: kind for kind in (BudgetReached, ConfigError)}
    return kinds.get(told["kind"], CdoError)(told["message"], told["hint"])
