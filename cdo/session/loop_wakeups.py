"""Waits in event loops for what the write thread does; a loop is woken once for all that is done by then."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import Future
from weakref import WeakKeyDictionary

from msgspec import Struct, field


class _Wakeup(Struct):
    """Who can go on in a loop, and whether that has been told. No lock: a signal may interrupt either side."""

    waiters: deque[asyncio.Future[None]] = field(default_factory=deque)
    told: bool = False

    def tell(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        """Have a waiter go on; called in any thread."""
        self.waiters.append(waiter)
        if not self.told:
            self.told = True
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        self.told = False  # first: who comes from now on tells it again
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)


_wakeups: WeakKeyDictionary[asyncio.AbstractEventLoop, _Wakeup] = WeakKeyDictionary()


async def done(future: Future[None]) -> None:
    """Wait until a future of the thread has completed; raise its error. Whoever stops waiting cancels nothing."""
    if not future.done():
        loop = asyncio.get_running_loop()
        wakeup, waiter = _wakeups.setdefault(loop, _Wakeup()), loop.create_future()
        future.add_done_callback(lambda _: wakeup.tell(loop, waiter))
        await waiter
    future.result()
