"""Bounds what a client can make the server hold: long messages, many values, answers that it never reads."""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

LONGEST = 2 * 2**20  # bytes of a message: a question of 200,000 characters that are all escaped fits in
REFUSED = "cdo/refused"  # the method of the request that stands for one which is refused
TOO_MUCH = f"A message has at most {LONGEST:,} bytes, 10,000 values, and values within values to a depth of 100."
NO_JSON = "The message is not valid JSON."
_VALUES, _DEPTH = 10_000, 100  # in one message; a value takes far more memory than its bytes
_SHORT = 1024  # bytes of a message that is not worth counting
_ENDS = 300  # bytes at the beginning and at the end of a message in which its id is looked for
_STUCK = 0.5  # seconds that a client may leave an answer unread before nothing more is read from it
_GONE = 10.0  # seconds after which a client that closed stdin and reads nothing is not waited for
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ID = re.compile(rb'"id"[ \t]*:[ \t]*("[^"\\]{0,100}"|-?[0-9]{1,18})[ \t]*[,}]')
_SIGNS = bytes(set(range(256)) - set(b"[]{},"))  # everything that does not divide values


class AnswerPipe(io.RawIOBase):
    """An open file for the answers, which knows how long the client has not read one."""

    def __init__(self, fd: int) -> None:
        self._file = io.FileIO(fd, "w")
        self._since: float | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Write a part of an answer, as soon as the client reads."""
        self._since = time.monotonic()
        try:
            return self._file.write(data)
        finally:
            self._since = None

    def stuck(self) -> float:
        """Return for how many seconds an answer has waited for the client."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since


class BoundedLines(io.RawIOBase):
    """Bytes of an open file, line by line. A line that holds too much, or is no JSON, becomes a request to refuse it.

    Nothing is read while `stuck` says that the client has left an answer unread for a while.
    """

    def __init__(self, fd: int, stuck: Callable[[], float] = lambda: 0.0, longest: int = LONGEST) -> None:
        self._fd, self._stuck, self._longest = fd, stuck, longest
        self._line, self._end, self._length = b"", b"", 0  # of the line that is being read; `_end` of a too long one
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Return what there is of whole lines, at least a byte; 0 at the end."""
        while not self._ready:
            self._wait()
            data = os.read(self._fd, 65_536)
            if not data:
                break
            *parts, rest = data.split(b"\n")
            for part in parts:
                self._add(part)
                self._ready += self._taken() + b"\n"
            self._add(rest)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _wait(self) -> None:
        """Wait while answers are not read; end the process if stdin is closed and they never are."""
        while (since := self._stuck()) > _STUCK:
            if since > _GONE and _hung_up(self._fd):
                os._exit(0)  # nothing is lost: runs are processes of their own
            time.sleep(0.05)

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= self._longest:
            self._line += part
        else:
            self._line, self._end = self._line[:_ENDS], (self._end + part)[-_ENDS:]

    def _taken(self) -> bytes:
        """Return the line that was read, or the request to refuse it."""
        line, end, length = self._line, self._end or self._line[-_ENDS:], self._length
        self._line, self._end, self._length = b"", b"", 0
        if length > self._longest or (length > _SHORT and _holds_much(line)):
            return _refusal(line[:_ENDS], end, TOO_MUCH) or b""
        try:
            msgspec.json.decode(line, type=msgspec.Raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _refusal(line[:_ENDS], end, NO_JSON) or line
        return line


def _holds_much(line: bytes) -> bool:
    """True if a message holds many values, or values deep within others. What stands in texts is left out."""
    signs = _TEXT.sub(b"", line).translate(None, _SIGNS)
    if len(signs) > _VALUES:
        return True
    depth = 0
    for sign in signs:
        depth += (sign in b"[{") - (sign in b"]}")
        if depth > _DEPTH:
            return True
    return False


def _refusal(start: bytes, end: bytes, why: str) -> bytes | None:
    """Return a request with the id of a message, to be answered with an error; None if no id is found."""
    ends = _ID.findall(end)
    found = _ID.search(start.partition(b'"params"')[0])
    id = found[1] if found else ends[-1] if ends else None
    if id is None:
        return None
    return b'{"jsonrpc":"2.0","id":%s,"method":"%s","params":{"why":%s}}' % (
        id.decode("utf-8", "replace").encode(), REFUSED.encode(), msgspec.json.encode(why),
    )  # fmt: skip


def _hung_up(fd: int) -> bool:
    """True if nobody can write into a pipe any more."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def bounded_streams() -> tuple[TextIO, TextIO]:
    """Return stdin with bounded lines, and stdout. Others get nothing from stdin; what they print is on stderr."""
    private = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1)]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    answers = AnswerPipe(private[1])
    lines = io.BufferedReader(BoundedLines(private[0], answers.stuck))
    written = io.BufferedWriter(answers)  # type: ignore[type-var]
    return io.TextIOWrapper(lines, encoding="utf-8", errors="replace"), io.TextIOWrapper(written, encoding="utf-8")
