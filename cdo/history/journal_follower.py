"""Following a session that another process runs: its journal as it grows, as events that a view can be told.

The journal informs and decides nothing, anybody may have written into it, and it may be torn, repaired, replaced or
gone. What of it does not have the shape that a run gives it is left out here, so that a view can rely on the rest.
Nothing is changed, and the session's lock is asked for rarely and only for a moment.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from cdo.core.events import BatchBegan, Event, RunEnded, RunStopped
from cdo.files.atomic_files import closing, explain, open_directory
from cdo.history.journal_events import parsed, told
from cdo.session.records import locked

JOURNAL = "journal.jsonl"
PACE = 0.125  # seconds from one look to the next, at least
PATIENCE = 2.0  # seconds of silence after which it is asked whether anybody runs the session
LONGEST = 2**20  # bytes of a line; a longer one is none of ours
_IDLE = 0.5  # seconds from one look to the next, at most
_MARK = 64  # bytes before the place read up to, by which a journal is known again

# -- reading ---------------------------------------------------------------------------------------


class Fresh(Struct, frozen=True):
    """What was appended since the last look: the objects, and those of them that are events, each at its time.

    `anew` says that the journal is another one now and was read from its beginning; `damaged` counts lines left out.
    """

    lines: tuple[Mapping[str, Any], ...] = ()
    events: tuple[tuple[float, Event], ...] = ()
    anew: bool = False
    damaged: int = 0


class Journal:
    """The journal of the session in `folder`, read on from where it was left; links are never followed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offset = 0
        self._mark = b""
        self._skipping = self._anew = False

    def news(self) -> Iterator[Fresh]:
        """Yield what was appended, a piece at a time; a last line without its end waits for it.

        Raises `FileNotFoundError` where there is no such folder, and `SessionError` where it cannot be read.
        """
        while True:
            data = self._piece()
            anew, self._anew = self._anew, False
            lines, damaged = self._split(data)
            if anew or lines or damaged:
                yield _understood(lines, anew, damaged)
            if len(data) < LONGEST:
                return

    def _piece(self) -> bytes:
        """At most LONGEST bytes from where it was left; from the beginning, where what stood before them is gone."""
        try:
            with closing(open_directory(self._folder)) as folder, self._opened(folder) as fd:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file", JOURNAL)
                data = os.pread(fd, len(self._mark) + LONGEST, self._offset - len(self._mark))
                if data.startswith(self._mark):
                    return data[len(self._mark) :]
                self._begin()
                return os.pread(fd, LONGEST, 0)
        except FileNotFoundError as error:
            if self._offset:
                self._begin()
            if error.filename != JOURNAL:
                raise
            return b""
        except OSError as error:
            raise explain(error, self._folder / JOURNAL) from None

    @staticmethod
    def _opened(folder: int) -> contextlib.AbstractContextManager[int]:
        return closing(os.open(JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder))

    def _begin(self) -> None:
        self._offset, self._mark, self._skipping, self._anew = 0, b"", False, True

    def _split(self, data: bytes) -> tuple[list[bytes], int]:
        """The whole lines of a piece, which counts as read; and how many were too long."""
        start = 0
        if self._skipping:
            start = data.find(b"\n") + 1
            self._skipping = not start
        end = data.rfind(b"\n") + 1
        too_long = not end and len(data) >= LONGEST and not self._skipping
        if too_long or self._skipping:
            self._skipping, end = True, len(data)
        self._offset += end
        self._mark = (self._mark + data[:end])[-_MARK:]
        if self._skipping:
            return [], int(too_long)
        return data[start:end].split(b"\n")[:-1], 0


def _understood(raw: list[bytes], anew: bool, damaged: int) -> Fresh:
    lines, events = [], []
    for line in raw:
        try:
            lines.append(data := parsed(line))
            if event := told(data):
                events.append(event)
        except ValueError:
            damaged += 1
    return Fresh(tuple(lines), tuple(events), anew, damaged)


# -- following -------------------------------------------------------------------------------------


class SessionPhase(enum.Enum):
    """How the session stands: somebody runs it, it has ended, it was stopped, left alone, or is not there."""

    RUNNING = enum.auto()
    DONE = enum.auto()
    STOPPED = enum.auto()
    LEFT = enum.auto()
    GONE = enum.auto()


class JournalUpdate(Struct, frozen=True):
    """One look at a session: what is fresh, and how it stands. `last` is the event that ended it, if one did."""

    fresh: Fresh = Fresh()
    phase: SessionPhase = SessionPhase.RUNNING
    last: Event | None = None


class Follower:
    """Follows the session in `folder`, which need not exist yet, from its first event on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = Journal(folder)
        self._phase = SessionPhase.RUNNING
        self._last: Event | None = None
        self._heard = -PATIENCE  # when it was last known that somebody runs it

    def news(self) -> Iterator[JournalUpdate]:
        """Yield what there is, at least twice and at most about eight times a second, until the caller has enough.

        Raises `SessionError` where the session cannot be read.
        """
        for number, _ in enumerate(_ticks(self._folder)):
            try:
                yield from self._read(live=number > 0)
                if self._phase is SessionPhase.RUNNING and time.monotonic() - self._heard >= PATIENCE:
                    yield from self._look()
            except FileNotFoundError:
                self._phase = SessionPhase.GONE
            yield JournalUpdate(Fresh(), self._phase, self._last)

    def _read(self, *, live: bool) -> Iterator[JournalUpdate]:
        """Yield what was appended. What ended a run before the first look says nothing: another may have begun."""
        if self._phase is SessionPhase.GONE:
            self._phase, self._heard = SessionPhase.RUNNING, -PATIENCE
        for fresh in self._journal.news():
            for _, event in fresh.events:
                if isinstance(event, RunEnded | RunStopped):
                    self._last = event
                elif isinstance(event, BatchBegan):
                    self._last = None
            if fresh.events or fresh.anew:
                self._phase = SessionPhase.RUNNING
                if self._last and live:
                    self._phase = _ended(self._last)
                self._heard = time.monotonic() if live else self._heard
            yield JournalUpdate(fresh, self._phase, self._last)

    def _look(self) -> Iterator[JournalUpdate]:
        """Check whether a process still owns the session. Events written just before it exited still count."""
        if locked(self._folder):
            self._heard = time.monotonic()
            return
        yield from self._read(live=False)
        self._phase = _ended(self._last) if self._last else SessionPhase.LEFT


def _ended(event: Event) -> SessionPhase:
    return SessionPhase.DONE if isinstance(event, RunEnded) else SessionPhase.STOPPED


def _ticks(folder: Path) -> Iterator[None]:
    """Yield when something may have happened: at once where the system tells, else every half second."""
    yield
    while True:
        if not folder.is_dir():
            time.sleep(_IDLE)
            yield
            continue
        try:
            yield from _told_by_system(folder)
        except FileNotFoundError:
            continue
        except (OSError, RuntimeError):  # it has no more watches to give, or none at all
            while True:
                time.sleep(_IDLE / 2)
                yield


def _told_by_system(folder: Path) -> Iterator[None]:
    """Yield at every change of the journal, and at times without one; ends when the folder is another one."""
    from watchfiles import watch

    place = _identity(folder)
    changes = watch(
        folder,
        watch_filter=lambda _, name: name.endswith(f"/{JOURNAL}"),
        recursive=False,
        debounce=100,
        step=50,
        rust_timeout=int(_IDLE * 1000),
        yield_on_timeout=True,
    )
    looked = time.monotonic()
    for _ in changes:
        time.sleep(max(0.0, looked + PACE - time.monotonic()))
        looked = time.monotonic()
        yield
        if _identity(folder) != place:
            return


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
