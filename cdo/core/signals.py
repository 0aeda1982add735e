"""Being told to stop: Ctrl-C, TERM and HUP all end a run the same way, wherever it stands."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

from cdo.core.errors import Interrupted

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 0.05  # seconds after which a stop that was swallowed is told again
_heard: ContextVar[bool] = ContextVar("heard", default=False)  # whether somebody listens in this task
_told = False  # whether one was heard where nobody listens


def listen() -> None:
    """Let each of them raise KeyboardInterrupt from now on; one that is ignored (`nohup`) stays so.

    Where Python cannot raise it (in a callback of the collector, say) it is raised again a little later.
    """
    sys.unraisablehook = _swallowed
    signal.signal(signal.SIGALRM, _stop)
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def stopped() -> bool:
    """Whether one was heard outside of a run: an error that comes up then may be what a library made of it."""
    return _told


def _stop(_number: int, _frame: FrameType | None) -> None:
    global _told
    _told = True
    raise KeyboardInterrupt


def _swallowed(ignored: Any) -> None:
    """What Python does with an exception that it cannot raise."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
    else:
        sys.__unraisablehook__(ignored)


@contextlib.contextmanager
def interruptible(session: str) -> Iterator[None]:
    """Turn the first of them into `Interrupted` for the current task; a second one ends the process at once.

    Inside of another one it leaves everything to that. One that was heard before, and swallowed, counts.
    """
    import asyncio

    if _heard.get():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    hit: list[int] = []
    told = Interrupted(
        "Stopped. Everything that was answered is recorded.", f"`cdo resume {session}` goes on from there."
    )
    if stopped():
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise told

    def stop(number: int) -> None:
        if hit:
            os._exit(130)
        hit.append(number)
        task.cancel()

    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, stop, number)
    before = _heard.set(True)
    try:
        yield
    except asyncio.CancelledError:
        if not hit:
            raise
        raise told from None
    finally:
        _heard.reset(before)
        for number in heard:
            loop.remove_signal_handler(number)
        listen()
