"""Writes a session's files in a thread: records first, batched into groups.

Records that arrive together are committed as one group, with a single fsync. Files that depend on records (artifacts,
then the journal) are written after them, in the order in which they were handed over. The first failure ends all
writing, because after a failed fsync no later write can be trusted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdo.core.errors import SessionError
from cdo.core.signals import deferred
from cdo.files.atomic_files import closing, explain, open_or_make, write_file
from cdo.session.records import group_files

JOURNAL_BYTES = 64 * 2**20  # size limit of the journal; a later process drops its oldest half


@dataclass
class _Pending:
    """The pending writes: records to commit as a group, then files, then journal lines."""

    records: list[tuple[dict[str, Any], Future[None]]] = field(default_factory=list)
    due: bool = False  # whether the records are to be written now
    jobs: deque[Callable[[], None]] = field(default_factory=deque)
    journal: list[str] = field(default_factory=list)


class Writer:
    """A thread that writes into the open `directory` of the session at `path`, from `start` to `close`.

    Records must be JSON data without secrets. After a failure, `record`, `later` and `flush` raise it as a
    `SessionError`. After `close` they raise that the session is closed.
    """

    def __init__(self, path: Path, directory: int) -> None:
        self._path = path
        self._directory = directory
        self._group = 0
        self._pending = _Pending()
        self._wake = threading.Condition()
        self._failure: SessionError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._write_loop, name="cdo-store", daemon=True)

    def start(self, group: int) -> None:
        """Start the thread; `group` is the number of the last existing group, 0 for none."""
        self._group = group
        with deferred():
            self._thread.start()

    def record(self, record: dict[str, Any], *, soon: bool = True) -> Future[None]:
        """Queue a record to be committed; the future completes when it is durable.

        Without `soon`, it is written together with the next record that is, or at a `flush` or `close`.
        """
        future: Future[None] = Future()
        with self._wake:
            self._check()
            self._pending.records.append((record, future))
            if soon:
                self._pending.due = True
                self._wake.notify()
        return future

    def later(self, job: Callable[[], None]) -> None:
        """Queue `job`, which writes a file, to run in the thread after all queued records, in order."""
        with self._wake:
            self._check()
            self._pending.jobs.append(job)
            self._wake.notify()

    def journal(self, text: str) -> None:
        """Queue a line for the journal, appended in order when nothing else is pending; raise nothing."""
        with self._wake:
            self._pending.journal.append(text)
            self._wake.notify()

    def flush(self) -> None:
        """Wait until every queued record and file is on disk; raise `SessionError` if a write failed."""
        done: Future[None] = Future()
        with self._wake:
            self._pending.due = bool(self._pending.records)
        self.later(lambda: done.set_result(None))
        while not done.done() and self._failure is None:
            with contextlib.suppress(TimeoutError):
                done.result(timeout=0.05)
        self._check()

    def close(self) -> None:
        """Write everything pending, and end the thread; raise nothing."""
        with deferred():
            with self._wake:
                self._closing = True
                self._pending.due = bool(self._pending.records)
                self._wake.notify()
            if self._thread.is_alive():
                self._thread.join()

    # -- the thread ---------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure:
            raise self._failure
        if self._closing:
            raise SessionError(f"{self._path} is closed.", "`cdo resume` goes on with it.")

    def _write_loop(self) -> None:
        """Commit pending records as groups first, then write one file at a time, checking for records in between."""
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closing or self._pending.due or self._pending.jobs or self._pending.journal
                )
                pending, records = self._pending, []
                if pending.due:
                    records, pending.records, pending.due = pending.records, [], False
                job = None if records or not pending.jobs else pending.jobs.popleft()
                lines: list[str] = []
                if not records and job is None:
                    lines, pending.journal = pending.journal, []
                if not (records or job or lines):
                    return
            if self._failure is None:
                self._attempt(records, job, lines)
            if self._failure is not None:
                for _, future in records:
                    _settle(future, self._failure)

    def _attempt(
        self, records: list[tuple[dict[str, Any], Future[None]]], job: Callable[[], None] | None, lines: list[str]
    ) -> None:
        try:
            if records:
                self._commit_group([record for record, _ in records])
                for _, future in records:
                    _settle(future)
            elif job:
                job()
            else:
                self._append_journal("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        except SessionError as error:
            self._failure = error
        except OSError as error:
            # After a failed fsync no later write can be trusted: the session ends here.
            self._failure = explain(error, self._path)
        except Exception as error:
            # Callers waiting for this thread must be told of any error.
            self._failure = SessionError(f"{self._path} cannot be written: {error!r}.", "Please report this.")

    def _commit_group(self, records: list[dict[str, Any]]) -> None:
        with closing(open_or_make("calls", self._directory)) as calls:
            for name, data in group_files(self._group + 1, records):
                write_file(calls, name, data)
                self._group += 1

    def _append_journal(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with closing(os.open("journal.jsonl", flags, 0o644, dir_fd=self._directory)) as fd:
            if os.fstat(fd).st_size + len(data) > JOURNAL_BYTES:
                return  # the journal is informational only
            while data:
                data = data[os.write(fd, data) :]


def _settle(future: Future[None], failure: SessionError | None = None) -> None:
    """Complete a record's future, unless an interrupted run has cancelled it. The record is kept all the same."""
    with contextlib.suppress(InvalidStateError):
        if failure:
            future.set_exception(failure)
        else:
            future.set_result(None)
