"""Shows how a download goes on: a bar at a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from cdo.core.formatting import duration, visible
from cdo.terminal.capability import can_draw

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET = 2.0  # seconds between two plain lines; later a tenth of the time so far, so that a log stays short
_BROKEN = (OSError, ValueError)  # a broken stream must not end a download


class Transfer:
    """A receiver of progress. Call it with what is being done, the bytes done and their total."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._bar: Progress | None = _bar(stream) if can_draw(stream) else None
        self._tasks: dict[str, Any] = {}
        self._begun = self._told = clock()

    def __enter__(self) -> Transfer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            with suppress(*_BROKEN):
                self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        with suppress(*_BROKEN):
            if self._bar and self._bar.live.is_started:
                self._bar.console.print(visible(text), markup=False, highlight=False)
            else:
                self._stream.write(visible(text) + "\n")
                self._stream.flush()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bar:
            with suppress(*_BROKEN):
                self._draw(self._bar, step, done, total)
            return
        now = self._clock()
        if now - self._told >= max(QUIET, (now - self._begun) / 10):
            self._told = now
            self.say(f"  {step}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {duration(now - self._begun)}")

    def _draw(self, bar: Progress, step: str, done: int, total: int) -> None:
        bar.start()
        if step not in self._tasks:
            self._tasks[step] = bar.add_task(step, total=total)
        bar.update(self._tasks[step], completed=done, total=total)


def _bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    plain = bool(os.environ.get("NO_COLOR"))
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(file=stream, force_terminal=True, no_color=plain),
    )
