"""The queue of what one session writes: records first, batched into groups.

Records that arrive together are committed as one group. Files that depend on records (artifacts, then the journal)
are written after them, in the order in which they were handed over. The first failure ends all writing, because
after a failed sync no later write can be trusted.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from cdo.core.errors import SessionError
from cdo.core.signals import deferred
from cdo.files.atomic_files import closing, open_or_make, unwritable, write_file
from cdo.session.records import group_files
from cdo.session.write_thread import Portion, QueuedFile, WriteThread, complete

JOURNAL_BYTES = 64 * 2**20  # size limit of the journal; a later process drops its oldest half
MOST_FILES = 32  # of one session in one pass
_THREAD = WriteThread()
Job = Callable[[], None]


class _Pending(Struct):
    """The pending writes: records to commit as a group, then files and jobs, then journal lines.

    A future among the jobs completes when what stands before it is written.
    """

    records: list[tuple[dict[str, Any], Future[None]]] = field(default_factory=list)
    due: bool = False  # whether the records are to be written now
    jobs: deque[QueuedFile | Job | Future[None]] = field(default_factory=deque)
    journal: list[str] = field(default_factory=list)


class Writer:
    """What is written into the open `directory` of the session at `path`, from `start` to `close`.

    Records must be JSON data without secrets. After a failure, `record`, `write`, `later` and `flush` raise it as a
    `SessionError`. After `close` they raise that the session is closed.
    """

    def __init__(self, path: Path, directory: int) -> None:
        self._path = path
        self._directory = directory
        self._group = 0
        self._journal_bytes: int | None = None  # unknown before it is opened
        self._pending = _Pending()
        self._failure: SessionError | None = None
        self._started = False
        self._closing = False
        self._busy = False
        self._ended: Future[None] = Future()

    def start(self, group: int) -> None:
        """Begin to write; `group` is the number of the last existing group of records, 0 for none."""
        self._group, self._started = group, True
        _THREAD.use()

    def record(self, record: dict[str, Any], *, soon: bool = True) -> Future[None]:
        """Queue a record to be committed; the future completes when it is durable.

        Without `soon`, it is written together with the next record that is, or at a `flush` or `close`.
        """
        future: Future[None] = Future()
        with _THREAD.lock:
            self._check()
            self._pending.records.append((record, future))
            if soon:
                self._pending.due = True
                _THREAD.call(self)
        return future

    def write(self, file: QueuedFile) -> None:
        """Queue a file, to be written after all queued records. Its folder is made if it is missing."""
        self._queue(file)

    def later(self, job: Job) -> None:
        """Queue `job`, which writes files itself, to run in the thread after all queued records, in order."""
        self._queue(job)

    def _queue(self, job: QueuedFile | Job | Future[None]) -> None:
        with _THREAD.lock:
            self._check()
            self._pending.jobs.append(job)
            _THREAD.call(self)

    def journal(self, text: str) -> None:
        """Queue a line for the journal, appended in order when nothing else is pending; raise nothing."""
        with _THREAD.lock:
            if not self._closing:
                self._pending.journal.append(text)
                _THREAD.call(self)

    def flushed(self) -> Future[None]:
        """Return a future that completes when every queued record and file is on disk, or gets the failure.

        Raises `SessionError` if a write has failed already.
        """
        done: Future[None] = Future()
        with _THREAD.lock:
            self._check()
            pending = self._pending
            if pending.records or pending.jobs or self._busy:
                pending.due = bool(pending.records)
                self._queue(done)
            else:
                done.set_result(None)
        return done

    def flush(self) -> None:
        """Wait until every queued record and file is on disk; raise `SessionError` if a write failed."""
        done = self.flushed()
        while not done.done():  # in steps, so that a signal is heard meanwhile
            with contextlib.suppress(TimeoutError):
                done.result(timeout=0.05)
        done.result()

    def ending(self) -> Future[None]:
        """Have everything pending written, and end; the future completes at the end, also after a failure."""
        with deferred(), _THREAD.lock:
            if not self._closing:
                self._closing = True
                self._pending.due = bool(self._pending.records)
                if self._started:
                    _THREAD.call(self)
                else:
                    self._ended.set_result(None)
        return self._ended

    def close(self) -> None:
        """Write everything pending, and end; raise nothing."""
        with deferred():
            self.ending().result()

    def _check(self) -> None:
        if self._failure:
            raise self._failure
        if self._closing:
            raise SessionError(f"{self._path} is closed.", "`cdo resume` goes on with it.")

    # -- for the thread -----------------------------------------------------------------------

    def take(self) -> Portion | None:
        """Return what is to be written next: records, or files up to the next job, or a job, or journal lines."""
        pending, portion = self._pending, Portion(self, self._directory)
        if self._failure:
            pending.journal.clear()
        if pending.due:
            records, pending.records, pending.due = pending.records, [], False
            portion.waiting = [future for _, future in records]
            portion.prepare = lambda: self._grouped([record for record, _ in records])
        elif pending.jobs:
            _take_jobs(pending.jobs, portion)
        elif pending.journal:
            lines, pending.journal = pending.journal, []
            portion.job = lambda: self._append_journal([f"{line}\n".encode(errors="replace") for line in lines])
        else:
            if self._closing and not self._ended.done():
                _THREAD.released()
                self._ended.set_result(None)
            return None
        self._busy = True
        return portion

    def idle(self) -> None:
        """Note that what was taken is written."""
        self._busy = False

    def fail(self, error: Exception, waiting: Iterable[Future[None]]) -> None:
        """Note the first failure, and give it to everything that waits to be written."""
        if isinstance(error, SessionError):
            failure = error
        elif isinstance(error, OSError):
            failure = unwritable(error, self._path)
        else:
            failure = SessionError(f"{self._path} cannot be written: {error!r}.", "Please report this.")
        with _THREAD.lock:
            self._failure = self._failure or failure
            queued = [future for _, future in self._pending.records]
            queued += [job for job in self._pending.jobs if isinstance(job, Future)]
            self._pending = _Pending()
        complete([*waiting, *queued], self._failure)

    def _grouped(self, records: list[dict[str, Any]]) -> list[QueuedFile]:
        """Return the file of a group of records. Of records for several files, write all but the last at once."""
        files = group_files(self._group + 1, records)
        self._group += len(files)
        if len(files) > 1:
            with closing(open_or_make("calls", self._directory)) as calls:
                for name, data in files[:-1]:
                    write_file(calls, name, data)
        return [QueuedFile("calls", *files[-1])]

    def _append_journal(self, lines: list[bytes]) -> None:
        """Append lines as far as there is room; the journal is informational only."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with closing(os.open("journal.jsonl", flags, 0o644, dir_fd=self._directory)) as fd:
            if self._journal_bytes is None:
                self._journal_bytes = os.fstat(fd).st_size
            room = JOURNAL_BYTES - self._journal_bytes
            data = b"".join(line for line, end in zip(lines, accumulate(map(len, lines)), strict=True) if end <= room)
            self._journal_bytes += len(data)
            while data:
                data = data[os.write(fd, data) :]


def _take_jobs(jobs: deque[QueuedFile | Job | Future[None]], portion: Portion) -> None:
    """Move jobs into a portion: files of different names, with the futures between them, or else one other job."""
    names = set[tuple[str, str]]()
    while jobs and len(names) < MOST_FILES:
        job = jobs[0]
        if isinstance(job, QueuedFile):
            if portion.files and (job.later or (job.folder, job.name) in names):
                break
            names.add((job.folder, job.name))
            portion.files.append(job)
        elif isinstance(job, Future):
            portion.waiting.append(job)
        elif portion.files:
            break
        else:
            portion.job = job
            jobs.popleft()
            break
        jobs.popleft()
