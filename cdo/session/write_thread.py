"""The thread that writes for all open sessions of a process.

In each pass it takes from every session what that session has to write next. Files of several sessions become
durable together, so that many runs at once wait for the disk hardly more often than one. A failure ends the writing
of the sessions that it concerns, because after a failed sync no later write can be trusted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Protocol

from msgspec import Struct, field

from cdo.core.signals import deferred
from cdo.files.grouped_writes import MOST, GroupedWrites

MANY = 8  # open sessions from which on a pass waits for others to join it
LINGER = 0.01  # seconds that it waits


class QueuedFile(Struct, frozen=True):
    """A file to write, in a folder of a session ("" is its own); `done` gets its status once it is durable.

    With `later`, what was queued before it is durable before this file appears.
    """

    folder: str
    name: str
    data: bytes
    done: Callable[[os.stat_result], None] | None = None
    later: bool = False


class Portion(Struct):
    """What one session writes in one pass: `files` whose order does not matter, or else one `job` by itself.

    `prepare` returns files that are made only now. `waiting` are the futures to complete afterwards.
    """

    source: WriteQueue
    directory: int
    files: list[QueuedFile] = field(default_factory=list)
    prepare: Callable[[], list[QueuedFile]] | None = None
    job: Callable[[], None] | None = None
    waiting: list[Future[None]] = field(default_factory=list)

    def fill(self, group: GroupedWrites) -> None:
        """Add the files to a group; raise `OSError`, or `SessionError` for what cannot be written."""
        if self.prepare:
            self.files = self.prepare()
        for file in self.files:
            group.add(self.directory, file.name, file.data, file.folder)


class WriteQueue(Protocol):
    """A session's queue of things to write. The thread calls `take` and `idle` with its lock held."""

    def take(self) -> Portion | None:
        """Return what is to be written next, None if there is nothing."""

    def idle(self) -> None:
        """Note that all that was taken is written, or has failed."""

    def fail(self, error: Exception, waiting: Iterable[Future[None]]) -> None:
        """Note a failure, and give it to all futures that wait: nothing of this session is written from now on."""


class WriteThread:
    """One thread for the sources in use; it ends when the last of them is `released`. `lock` guards all queues."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self._used = 0
        self._ready: dict[WriteQueue, None] = {}
        self._thread: threading.Thread | None = None

    def use(self) -> None:
        """Begin to write for one source more."""
        with deferred(), self.lock:
            self._used += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cdo-store", daemon=True)
                self._thread.start()

    def call(self, source: WriteQueue) -> None:
        """Have the thread look at a source's queue. Call this with the lock held."""
        if source not in self._ready:  # otherwise it will look anyway
            self._ready[source] = None
            self.lock.notify_all()

    def released(self) -> None:
        """Note that a source has ended. Call this with the lock held."""
        self._used -= 1
        self.lock.notify_all()

    def _run(self) -> None:
        while True:
            with self.lock:
                self.lock.wait_for(lambda: self._ready or not self._used)
                if not self._ready:
                    self._thread = None
                    return
                many = self._used >= MANY
            if many:
                time.sleep(LINGER)
            with self.lock:
                portions = self._taken()
            self._write(portions)
            with self.lock:
                for portion in portions:
                    portion.source.idle()

    def _taken(self) -> list[Portion]:
        """Take a portion from each source that has one; forget the others until they call again."""
        portions = []
        for source in list(self._ready):
            portion = source.take()
            if portion is None:
                del self._ready[source]
            else:
                portions.append(portion)
        return portions

    def _write(self, portions: Sequence[Portion]) -> None:
        """Write files in groups, then do the jobs one by one."""
        group: list[Portion] = []
        size = 0
        for portion in portions:
            if portion.job is None:
                if group and size + max(1, len(portion.files)) > MOST:
                    _commit(group)
                    group, size = [], 0
                group.append(portion)
                size += max(1, len(portion.files))
        _commit(group)
        for portion in portions:
            if portion.job and _succeeds(portion, portion.job):
                complete(portion.waiting)


def _commit(portions: Iterable[Portion]) -> None:
    """Write the files of these portions together, and complete what waits for them."""
    group = GroupedWrites()
    try:
        filled: list[tuple[Portion, int]] = []
        for portion in portions:
            begin = len(group)
            if _succeeds(portion, partial(portion.fill, group)):
                filled.append((portion, begin))
        try:
            found = group.commit()
        except Exception as error:  # whose file it was cannot be told
            for portion, _ in filled:
                portion.source.fail(error, portion.waiting)
            return
    finally:
        group.close()
    for portion, begin in filled:
        for file, status in zip(portion.files, found[begin:], strict=False):
            if file.done:
                file.done(status)
        complete(portion.waiting)


def _succeeds(portion: Portion, action: Callable[[], None]) -> bool:
    """Do something for one session; on an error only that session fails. Return True if it went well."""
    try:
        action()
    except Exception as error:  # callers that wait for this thread must be told of any error
        portion.source.fail(error, portion.waiting)
        return False
    return True


def complete(futures: Iterable[Future[None]], failure: Exception | None = None) -> None:
    """Complete futures, unless an interrupted run has cancelled them. What they stand for is kept all the same."""
    for future in futures:
        with contextlib.suppress(InvalidStateError):
            if failure:
                future.set_exception(failure)
            else:
                future.set_result(None)
