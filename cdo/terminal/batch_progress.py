"""Shows how a batch goes on: one line that is drawn anew at a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TextIO

from cdo.core.formatting import duration, money, one_line, pluralise, visible
from cdo.terminal.capability import can_draw

QUIET = 10.0  # seconds between two plain lines; later a tenth of the time so far, so that a log stays short
REDRAWN = 0.2  # seconds between two drawings of the line at a terminal
SHOWN = 20  # failed items that are told one by one
_LATELY = 50  # items that have ended last, of which the rate is taken
_BROKEN = (OSError, ValueError)  # a broken stream must not end a batch


class BatchState(Protocol):
    """How far a batch is; `cost` is in dollars, None where a price is unknown."""

    count: int
    done: int
    failed: int
    live: int

    @property
    def calls(self) -> int: ...
    @property
    def cost(self) -> float | None: ...


def told(state: BatchState, rate: float | None) -> str:
    """Return the state of a batch on one line; `rate` is in items a minute, None if it is not known."""
    ended = state.done + state.failed
    parts = [f"{ended:,} of {state.count:,} items"]
    if state.failed:
        parts.append(f"{state.failed:,} failed")
    if state.live:
        parts.append(f"{state.live:,} live")
        parts.append(f"{pluralise(state.calls, 'call')} answered")
    if rate:
        parts.append(f"{rate:,.0f} a minute" if rate >= 10 else f"{rate:.1f} a minute")
    parts.append("price unknown" if state.cost is None else money(state.cost))
    if rate and ended < state.count:
        parts.append(f"{duration((state.count - ended) / rate * 60)} left")
    return " · ".join(parts)


class BatchProgress:
    """Tells on `stream` how a batch goes on. With `quiet` only what failed, with `each` every item."""

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, each: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._quiet, self._each, self._clock = stream, quiet, each, clock
        self._drawn = can_draw(stream) and not quiet
        self._line = ""
        self._begun = self._last = clock()
        self._ends: deque[float] = deque(maxlen=_LATELY)
        self._failures = 0

    def rate(self) -> float | None:
        """Return how many items a minute have ended lately; None before the second one."""
        if len(self._ends) < 2:
            return None
        since = self._begun if len(self._ends) < _LATELY else self._ends[0]
        took = self._clock() - since
        return 60 * len(self._ends) / took if took > 0 else None

    def say(self, text: str) -> None:
        """Print a line."""
        self._put(f"{self._cleared()}{visible(text)}\n{self._line}")

    def ended(self, name: str, status: str, error: str) -> None:
        """Take in that an item has ended, with an `error` if it failed."""
        self._ends.append(self._clock())
        if error:
            self._failures += 1
            if self._failures <= SHOWN or self._each:
                self.say(f"  {one_line(name, 64)}  failed: {one_line(error, 300)}")
            if self._failures == SHOWN and not self._each:
                self.say("  further items that fail are in the table (-v tells each)")
        elif self._each:
            self.say(f"  {one_line(name, 64)}  {one_line(status, 40)}")

    def show(self, state: BatchState) -> None:
        """Show the state, unless that was done just now."""
        now = self._clock()
        if self._quiet or now - self._last < (REDRAWN if self._drawn else max(QUIET, (now - self._begun) / 10)):
            return
        self._last = now
        text = f"  {told(state, self.rate())}"
        if self._drawn:
            cleared, self._line = self._cleared(), text
            self._put(cleared + text)
        else:
            self.say(text)

    def close(self) -> None:
        """Remove the line that is drawn anew."""
        cleared, self._line = self._cleared(), ""
        self._put(cleared)

    def _cleared(self) -> str:
        return "\r\x1b[K" if self._line else ""

    def _put(self, text: str) -> None:
        with suppress(*_BROKEN):
            self._stream.write(text)
            self._stream.flush()
