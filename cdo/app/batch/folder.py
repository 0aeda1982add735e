"""The folder of a batch, `batch-NAME`: created, locked, read, and added to. The sessions in it are not its concern.

`batch.yaml` holds what was settled when the batch was begun. `items.jsonl` holds the items, of which the first `size`
bytes count. `results.jsonl` gets a line for each item that has ended; of two lines for one item the later one counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import asdict, replace

from cdo.app.batch.items import BatchItem
from cdo.app.batch.shards import BatchOwner, Shard
from cdo.content.library import checked
from cdo.core.errors import ContentError, DiskFailed, SessionError, UsageError
from cdo.core.formatting import json_line, one_line
from cdo.core.schema import Schema
from cdo.files import locks
from cdo.files.atomic_files import (
    closing,
    encodable,
    explain,
    kind_of,
    open_directory,
    open_or_make,
    open_path,
    read_file,
    sync,
    unwritable,
    write_file,
)
from cdo.formats import strict_yaml
from cdo.planning.settings import Settings
from cdo.session.creation import hide
from cdo.session.records import PREFIX as SESSION_PREFIX
from cdo.session.records import session_path

PREFIX = "batch-"
HEAD, ITEMS, RESULTS = "batch.yaml", "items.jsonl", "results.jsonl"
SUBMISSIONS = "submissions.jsonl"  # see `app.batch.submitted`
FAILED = "failed"  # the status of an item that ended without an answer
_PATIENCE = 0.3  # seconds to wait for a lock that somebody who only looks holds


class BatchFile(Schema, frozen=True, kw_only=True):
    """The content of `batch.yaml`.

    `file` is the path of the items' file as it was given, `sha256` its digest. `models` are those of items that name
    none: by the name of a preset's kind, "one" or "mixed". `owner` is the process that ran it last.
    `size` is how many bytes of items.jsonl count, `count` how many items these are.
    """

    cdo: str
    created: str
    file: str
    sha256: str
    columns: dict[str, str] = field(default_factory=dict)
    preset: str = ""
    models: dict[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Settings
    sources: dict[str, str]
    shard: Shard | None = None
    owner: BatchOwner = BatchOwner()
    count: Annotated[int, Meta(ge=0)]
    size: Annotated[int, Meta(ge=0)]


class ItemResult(Struct, frozen=True):
    """How an item ended. `status` is that of its run, or `failed`; `error` says why, for people.

    `path` is the session's folder as seen from the batch's. `cost` is in dollars, None where a price is unknown.
    """

    id: str
    session: str
    status: str
    decision: str = ""
    confidence: float | None = None
    cost: float | None = None
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    path: str = ""
    error: str = ""
    ended: str = ""

    @property
    def failed(self) -> bool:
        """True if the item ended without an answer."""
        return self.status == FAILED


def batch_path(out: Path, name: str) -> Path:
    """Return the folder of the batch called `name`; raise `UsageError` if that cannot be a name."""
    name = name.removeprefix(PREFIX)
    try:
        session_path(out, name)
    except UsageError as error:
        raise UsageError(error.message.replace("a session", "a batch"), error.hint) from None
    return out / f"{PREFIX}{name}"


# -- looking ---------------------------------------------------------------------------------------


def _no_batch(path: Path) -> SessionError:
    """Return the error for a batch that is not there, which names those that are."""
    names = sorted(place.parent.name.removeprefix(PREFIX) for place in path.parent.glob(f"{PREFIX}*/{HEAD}"))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    there = f"There are {', '.join(one_line(name, 64) for name in names[:8])}{more}."
    return SessionError(f"There is no batch {path}.", there if names else "Begin one: cdo batch FILE.")


def read_head(path: Path) -> BatchFile:
    """Return what was settled of a batch; raise `SessionError`."""
    try:
        with closing(open_path(path)) as fd:
            text = read_file(fd, HEAD, 262_144)[0].decode()
        data = strict_yaml.load(text, max_bytes=262_144, max_depth=6)
        return checked(BatchFile, data if isinstance(data, dict) else {}, path / HEAD)
    except FileNotFoundError:
        raise _no_batch(path) from None
    except OSError as error:
        raise explain(error, path) from None
    except (UnicodeDecodeError, strict_yaml.YamlProblem) as problem:
        raise SessionError(f"{path / HEAD} is damaged: {problem}.", "Fix the file, then run again.") from None
    except ContentError as error:
        raise SessionError(error.message, error.hint) from None


def read_items(path: Path, head: BatchFile) -> Iterator[BatchItem]:
    """Yield the items of a batch in their order; raise `SessionError`."""
    read = 0
    for line in read_lines(path, ITEMS):
        read += len(line)
        if read > head.size:
            return
        try:
            item = BatchItem.of(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise SessionError(f"{path / ITEMS} is damaged.", "Restore it from a copy.") from None
        yield item
    if read < head.size:
        raise SessionError(f"{path / ITEMS} lacks items.", "Restore it from a copy.")


def read_results(path: Path) -> dict[str, ItemResult]:
    """Return how items ended so far, by id; raise `SessionError`. A torn last line is left out."""
    found: dict[str, ItemResult] = {}
    for line in read_lines(path, RESULTS):
        if not line.endswith(b"\n"):
            break
        try:
            result = ItemResult(**json.loads(line))
        except (ValueError, TypeError, RecursionError):
            raise SessionError(
                f"{path / RESULTS} is damaged.", "Remove the damaged line; its item is then taken from its session."
            ) from None
        found[result.id] = result
    return found


def trace_labels(session: Path) -> dict[str, str]:
    """Return what the span of a session's run says of its batch and its item; {} if it is not in a batch's folder.

    The session's own records do not hold it, so a batch whose files cannot be read names nothing.
    """
    folder, name = session.absolute().parent, session.name.removeprefix(SESSION_PREFIX)
    if not folder.name.startswith(PREFIX):
        return {}
    with contextlib.suppress(SessionError):
        for item in read_items(folder, read_head(folder)):
            if item.session == name:
                return labels_of(folder, item.id)
    return {}


def labels_of(folder: Path, item: str) -> dict[str, str]:
    """Return what the span of a run says of its batch and its item."""
    return {"cdo.batch": folder.name.removeprefix(PREFIX), "cdo.item": item}


def in_use(path: Path) -> bool:
    """True if a process runs the batch now."""
    try:
        with closing(open_directory(path)) as fd:
            return not locks.take(fd, shared=True)
    except OSError:
        return False


def read_lines(path: Path, name: str) -> Iterator[bytes]:
    """Yield the lines of a file of a batch's folder, none if there is no such file; raise `SessionError`."""
    try:
        with closing(open_path(path)) as fd:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
        with os.fdopen(file, "rb") as stream:
            yield from stream
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain(error, path / name) from None


def _not_begun(error: OSError, path: Path) -> SessionError:
    """Return the error for a batch whose folder cannot be written before its items are run."""
    found = unwritable(error, path)
    if isinstance(found, DiskFailed):
        return DiskFailed(found.message, f"{found.remedy}, then run the same command again.", found.remedy)
    return found


# -- owning ----------------------------------------------------------------------------------------


class BatchFolder:
    """The folder of a batch, owned by this process until `close`.

    After a line could not be written, none is: after a failed sync no later write can be trusted.
    """

    def __init__(self, path: Path, directory: int, redact: Callable[[str], str]) -> None:
        self.path = path
        self.name = path.name.removeprefix(PREFIX)
        self._fd = directory
        self._redact = redact
        self._waiting: list[str] = []
        self._turn = asyncio.Lock()
        self._failure: SessionError | None = None

    @classmethod
    def take(cls, path: Path, redact: Callable[[str], str], *, make: bool) -> BatchFolder:
        """Own the folder, which is made if it is missing and to be made; raise `SessionError`."""
        try:
            with closing(open_path(path.parent, make=make)) as out:
                if make and kind_of(path.name, out) is None:
                    hide(path.parent, out)
                fd = open_or_make(path.name, out) if make else open_directory(path.name, out)
        except FileNotFoundError:
            raise _no_batch(path) from None
        except OSError as error:
            raise _not_begun(error, path) from None
        try:
            if not locks.take(fd, _PATIENCE):
                raise SessionError(
                    f"The batch {path} is in use by another cdo process.", "Wait for it to end, or stop it."
                )
            folder = cls(path, fd, redact)
            for name in (RESULTS, SUBMISSIONS):
                folder._drop_torn_line(name)
        except OSError as error:
            os.close(fd)
            raise explain(error, path) from None
        except BaseException:
            os.close(fd)
            raise
        return folder

    @property
    def begun(self) -> bool:
        """True if the batch has been settled."""
        return kind_of(HEAD, self._fd) is not None

    def settle(self, head: BatchFile, new: Iterable[BatchItem]) -> BatchFile:
        """Add `new` items behind those that the batch has, then write `head`; return it with what it holds now."""
        size, count = head.size, head.count
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(ITEMS, flags, 0o644, dir_fd=self._fd), "wb") as stream:
                stream.truncate(size)  # what a killed process added without settling it
                stream.seek(size)
                for item in new:
                    line = f"{json_line(self._clean(item.json()))}\n".encode()
                    stream.write(line)
                    size, count = size + len(line), count + 1
                stream.flush()
                sync(stream.fileno())
            head = replace(head, size=size, count=count)
            text = strict_yaml.dump(to_builtins(head))
            write_file(self._fd, HEAD, encodable(self._redact(text)).encode())
        except OSError as error:
            raise _not_begun(error, self.path) from None
        return head

    def write(self, name: str, data: bytes) -> None:
        """Write another file of the folder; raise `SessionError`."""
        try:
            write_file(self._fd, name, data)
        except OSError as error:
            raise unwritable(error, self.path / name) from None

    def remove(self, name: str) -> None:
        """Remove a file of the folder, if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    async def add(self, result: ItemResult) -> None:
        """Record how an item ended; return when that is durable. Results that arrive together share one fsync."""
        self._waiting.append(self._line(result))
        async with self._turn:
            if self._waiting:
                lines, self._waiting = self._waiting, []
                await asyncio.to_thread(self._append, "".join(lines).encode())

    def add_all(self, results: Iterable[ItemResult]) -> None:
        """Record how items ended, all at once."""
        self._append("".join(map(self._line, results)).encode())

    def close(self) -> None:
        """Give up the folder."""
        if self._fd >= 0:
            locks.release(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _line(self, result: ItemResult) -> str:
        return f"{json_line(self._clean(asdict(result)))}\n"

    def note(self, line: Mapping[str, Any]) -> None:
        """Record something about provider batches; return when that is durable."""
        self._append(f"{json_line(line)}\n".encode(), SUBMISSIONS)

    def _append(self, data: bytes, name: str = RESULTS) -> None:
        if self._failure:
            raise self._failure
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            new = kind_of(name, self._fd) is None
            with closing(os.open(name, flags, 0o644, dir_fd=self._fd)) as fd:
                while data:
                    data = data[os.write(fd, data) :]
                sync(fd)
            if new:
                sync(self._fd)
        except OSError as error:
            self._failure = unwritable(error, self.path / name)
            raise self._failure from None

    def _drop_torn_line(self, name: str) -> None:
        """Cut off what a killed process left of a last line."""
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
            with closing(fd):
                end = os.fstat(fd).st_size
                place = end
                while place:
                    start = max(0, place - 65_536)
                    if (cut := os.pread(fd, place - start, start).rfind(b"\n")) >= 0:
                        place = start + cut + 1
                        break
                    place = start
                if place < end:
                    os.ftruncate(fd, place)

    def _clean(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same data without secrets in its texts, the ids and names apart."""
        plain = ("id", "session", "digest", "status", "path", "ended")
        return {
            key: encodable(self._redact(value)) if isinstance(value, str) and key not in plain else value
            for key, value in data.items()
        }
