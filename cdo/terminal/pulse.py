"""Tells that a view of plain lines still waits: after two seconds without a line, then ever more rarely."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from cdo.core.formatting import duration, one_line, pluralise
from cdo.terminal.run_state import CallProgress, CallState

QUIET = 2.0  # seconds without a line, after which one is printed
RAREST = 15  # times as long it is at most until the next line, where nothing else is printed


def slow(models: Iterable[str]) -> bool:
    """Return True if a model of a run computes on this machine, where answers take long."""
    return any(name.partition(":")[0] == "local" for name in models)


def beat(calls: Iterable[CallProgress], now: float) -> str:
    """Return a line about the calls under way; "" if there is none."""
    told = []
    for call in calls:
        if call.state in (CallState.THINKING, CallState.WRITING) and call.started is not None:
            written = f"~{pluralise(-(-call.written // 4), 'token')} so far" if call.written else "no word yet"
            told.append(f"{one_line(call.name)}: {written}, {duration(max(0.0, now - call.started))}")
    return f"  … {'; '.join(told)}" if told else ""


class Pulse:
    """Calls `act` in a thread whenever nothing was heard for a while, from `start` to `stop`.

    The while doubles with each call, up to RAREST times QUIET, until something is heard.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._last = time.monotonic()
        self._pause = QUIET
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        if self._thread is None:
            self._last = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="cdo-pulse", daemon=True)
            self._thread.start()

    def heard(self) -> None:
        """Note that something was printed."""
        self._last = time.monotonic()
        self._pause = QUIET

    def stop(self) -> None:
        """End; nothing is printed after this."""
        self._over.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(max(0.01, min(QUIET, self._last + self._pause - time.monotonic()))):
            if time.monotonic() - self._last >= self._pause:
                self._last = time.monotonic()
                self._pause = min(2 * self._pause, RAREST * QUIET)
                self._act()
