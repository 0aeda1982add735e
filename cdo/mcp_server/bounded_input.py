"""Bounds the lines of stdin: a message of a client that never ends must not fill the memory."""

from __future__ import annotations

import fcntl
import io
import os
from typing import TextIO

LONGEST = 8 * 2**20  # bytes of a message


class BoundedLines(io.RawIOBase):
    """Bytes of an open file whose lines are cut off after `longest` bytes; JSON that was cut off is not valid."""

    def __init__(self, fd: int, longest: int = LONGEST) -> None:
        self._fd = fd
        self._longest = longest
        self._length = 0  # of the line that is being read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read what is there, at least a byte; 0 at the end."""
        while data := os.read(self._fd, len(buffer)):
            if kept := self._cut(data):
                buffer[: len(kept)] = kept
                return len(kept)
        return 0

    def _cut(self, data: bytes) -> bytes:
        kept = []
        for number, part in enumerate(data.split(b"\n")):
            self._length = 0 if number else self._length
            kept.append(part[: max(0, self._longest - self._length)])
            self._length += len(part)
        return b"\n".join(kept)


def bounded_stdin() -> TextIO:
    """Return stdin with bounded lines. Whatever else reads from stdin, such as a child, gets nothing."""
    private = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return io.TextIOWrapper(io.BufferedReader(BoundedLines(private)), encoding="utf-8", errors="replace")
