"""Prints to a terminal, and draws over what it printed before instead of repeating it below."""

from __future__ import annotations

import contextlib
import os
import sys

from cdo.core.formatting import visible
from cdo.terminal.capability import can_draw

_UP, _HOME, _CLEAR = "\x1b[{}A\r", "\x1b[H", "\x1b[J"


class Redrawn:
    """What stands on the terminal of stderr since the last `clear`, which removes it.

    A closed terminal must not end a run, so errors of writing are ignored.
    """

    def __init__(self) -> None:
        self._shown = ""
        self._size = _size()

    @property
    def columns(self) -> int:
        """The width of the terminal; 80 if it has none."""
        return _size()[0] or 80

    def say(self, text: str, end: str = "\n") -> None:
        """Print text with its control characters made visible."""
        text = visible(text) + end
        self._shown += text
        _write(text)

    def echoed(self, line: str) -> None:
        """Note a line that the person typed, which the terminal has shown."""
        self._shown += visible(line) + "\n"

    def forget(self) -> None:
        """Leave on the terminal what stands there: another program has used it."""
        self._shown = ""

    def clear(self) -> None:
        """Remove what stands there, unless the terminal cannot or its size has changed."""
        size, rows = _size(), self._rows()
        if rows and size == self._size and can_draw(sys.stderr):
            _write((_UP.format(rows) if rows < size[1] else _HOME) + _CLEAR)
        self._shown, self._size = "", size

    def _rows(self) -> int:
        """Return by how many rows the cursor is below the first one."""
        from rich.cells import cell_len

        *lines, _ = self._shown.split("\n")
        return sum(max(1, -(-cell_len(line) // self.columns)) for line in lines)


def _size() -> tuple[int, int]:
    """Return the columns and rows of the terminal; zeros if stderr is none."""
    try:
        found = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError):
        return 0, 0
    return found.columns, found.lines


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
