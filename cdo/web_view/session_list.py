"""Reads the rows of the list of sessions in a thread of its own, so that a page never waits for thousands of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from cdo.history import run_index
from cdo.session.records import session_folders

NEWEST = 50  # sessions that are shown while the others are read for the first time
MANY = 500  # sessions from which on the newest are read first
WAIT = 1.0  # seconds that a page waits for a reading, before it shows what is known
LISTED = 1.0  # seconds that rows are shown for, at least, before they are read again

Rows = list[dict[str, Any]]


class ListedSessions(Struct, frozen=True):
    """The rows of sessions, newest first, and how many more there are that were not read yet."""

    rows: Rows
    unread: int = 0


class SessionList:
    """The sessions in the folders `places`. Threads may share it."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = tuple(places)
        self._lock = threading.Lock()
        self._reading: threading.Thread | None = None
        self._until = 0.0  # the rows are good until then
        self._known: ListedSessions | None = None
        self._error: Exception | None = None

    def listed(self) -> ListedSessions:
        """Return what is known within about WAIT seconds: all sessions as they are or as they were last read.

        Before they were read once, these are the newest ones. Raises `CdoError` if they cannot be read.
        """
        with self._lock:
            if self._known is None and sum(len(session_folders(place)) for place in self._places) >= MANY:
                self._known = self._newest()  # before the reading, which would slow this down
            begins = self._reading is None and time.monotonic() >= self._until
            if begins:
                self._reading = threading.Thread(target=self._read, name="list-sessions", daemon=True)
                self._reading.start()
            reading = self._reading
            # Nobody waits for a reading that others have waited for in vain.
            wait = WAIT if self._known is None or (begins and not self._known.unread) else 0.0
        if reading:
            reading.join(wait)
        with self._lock:
            if self._error:
                raise self._error
            if self._known is None:
                self._known = self._newest()
            return self._known

    def _read(self) -> None:
        """Read all sessions, in the thread."""
        began = time.monotonic()
        rows, error = Rows(), None
        try:
            rows = _sorted([run_index.rows(place) for place in self._places])
        except Exception as problem:  # it is raised where somebody waits for the rows
            error = problem
        now = time.monotonic()
        with self._lock:
            self._known, self._error = ListedSessions(rows), error
            self._until = now + max(LISTED, 10 * (now - began))
            self._reading = None

    def _newest(self) -> ListedSessions:
        found = [run_index.newest(place, NEWEST) for place in self._places]
        rows = _sorted([rows for rows, _ in found])[:NEWEST]
        return ListedSessions(rows, sum(count for _, count in found) - len(rows))


def _sorted(found: Sequence[Rows]) -> Rows:
    """Return the rows of all folders, newest first."""
    if len(found) == 1:
        return found[0]
    rows = [row for part in found for row in part]
    return sorted(rows, key=lambda row: str(row.get("created", "")), reverse=True)
