"""Writes sessions into the index of their folder as they end, so that no list or search has to read them."""

from __future__ import annotations

import threading
from pathlib import Path

from cdo.core.errors import CdoError
from cdo.history import index_entries, run_index, search
from cdo.history.index_entries import IndexEntry
from cdo.history.past_session import History
from cdo.history.run_index import IndexLine
from cdo.session.reader import SessionReader
from cdo.session.records import PREFIX

FULL = 500  # sessions from which on they are to be written


class IndexWriter:
    """Collects what the index of the folder `out` holds of sessions that this process runs to their end.

    Call `take` with a session's reader before it is closed, `closed` after that, and `write` at times. A session
    whose files changed between the first two is left to whoever lists it.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._open: dict[str, tuple[str, IndexEntry, tuple[str, ...]]] = {}
        self._ended: list[tuple[IndexLine, tuple[str, ...]]] = []
        self._writing = threading.Lock()

    @property
    def full(self) -> bool:
        """True if it is time to write."""
        return len(self._ended) >= FULL

    def take(self, archive: SessionReader, past: History | None = None) -> None:
        """Read a session that has come to its end and is still open; `past` is its history without FINAL.md."""
        files = run_index.seen(Path(archive.place))
        try:
            entry = index_entries.read(archive)
        except CdoError:
            return
        if files:
            self._open[archive.name] = files.single, entry, search.texts_of(entry.row, archive, past)

    def closed(self, path: Path) -> None:
        """Note that a session has been closed: its files stay as they are."""
        name = path.name.removeprefix(PREFIX)
        if found := self._open.pop(name, None):
            before, entry, texts = found
            files = run_index.seen(path)
            if files and files.single == before:
                self._ended.append((run_index.line(name, files, entry), texts))

    def write(self) -> None:
        """Write what was collected."""
        with self._writing:
            ended, self._ended = self._ended, []
            if ended:
                search.keep(self._out, ended)
