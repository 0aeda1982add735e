"""Handles stop signals: Ctrl-C, TERM and HUP end a run in the same way at any point."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

from cdo.core.errors import Interrupted

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 0.05  # seconds after which a swallowed stop signal is repeated
_heard: ContextVar[bool] = ContextVar("heard", default=False)  # whether `interruptible` handles signals in this task
_told = False  # whether a signal came outside of `interruptible`


def listen() -> None:
    """Make each stop signal raise KeyboardInterrupt from now on; an ignored signal (`nohup`) stays ignored.

    If Python cannot raise it (such as in a callback of the garbage collector), it is raised again a little later.
    After the first one Python says nothing more of objects that the stop left half made or never awaited.
    """
    sys.unraisablehook = _swallowed
    signal.signal(signal.SIGALRM, _stop)
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def stopped() -> bool:
    """True if a stop signal came outside of a run: an error after that may be how a library reported the stop."""
    return _told


def _stop(_number: int, _frame: FrameType | None) -> None:
    global _told
    _told = True
    warnings.simplefilter("ignore")
    if "logging" in sys.modules:
        sys.modules["logging"].disable()
    raise KeyboardInterrupt


def _swallowed(ignored: Any) -> None:
    """Handle an exception that Python cannot raise: repeat a stop signal later, report others unless one came."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
    elif not _told:
        sys.__unraisablehook__(ignored)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Make a stop signal wait until the block ends or `interruptible` begins; a second one ends the process at once.

    Use it where other threads share locks: KeyboardInterrupt at any instruction could leave a lock taken forever.
    Does nothing where `listen` was not called before, and in other threads: handlers run in the main one alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hit: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        global _told
        if hit and number != signal.SIGALRM:
            os._exit(130)
        hit.append(number)
        _told = True

    waiting = [number for number in (*STOPS, signal.SIGALRM) if signal.getsignal(number) is _stop]
    for number in waiting:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in waiting:
            signal.signal(number, _stop)
    if hit:
        _stop(hit[0], None)


@contextlib.contextmanager
def left_to_caller() -> Iterator[None]:
    """Make `interruptible` do nothing within the block: the program that imports cdo handles signals itself."""
    before = _heard.set(True)
    try:
        yield
    finally:
        _heard.reset(before)


@contextlib.contextmanager
def interruptible(session: str, again: str = "") -> Iterator[None]:
    """Turn the first stop signal into `Interrupted` for the current task; a second one ends the process at once.

    `again` is the command that goes on (default: the one that resumes `session`).

    Inside another `interruptible`, do nothing, nor in other threads, where signals are not handled. A stop signal
    that came before and was swallowed counts too.
    """
    import asyncio

    if _heard.get() or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    hit: list[int] = []
    again = again or f"cdo resume {session}"
    told = Interrupted("Stopped. Everything that was answered is recorded.", f"`{again}` goes on from there.")
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
