"""Being told to stop: Ctrl-C, TERM and HUP all end a run the same way, wherever it stands."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextvars import ContextVar

from cdo.errors import Interrupted

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_heard: ContextVar[bool] = ContextVar("heard", default=False)  # whether somebody listens in this task


def listen() -> None:
    """Let each of them raise KeyboardInterrupt from now on; one that is ignored (`nohup`) stays so."""
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def interruptible(session: str) -> Iterator[None]:
    """Turn the first of them into `Interrupted` for the current task; a second one ends the process at once.

    Inside of another one it leaves everything to that.
    """
    import asyncio

    if _heard.get():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    hit: list[int] = []

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
        raise Interrupted(
            "Stopped. Everything that was answered is recorded.", f"`cdo resume {session}` goes on from there."
        ) from None
    finally:
        _heard.reset(before)
        for number in heard:
            loop.remove_signal_handler(number)
        listen()
