"""The session directory: the only place that writes into one (SPEC 4).

Two kinds of files matter. `calls/NNNN.jsonl` hold the recorded exchanges, one file for each group that was
committed together: they are what a resume replays. Artifacts (`t1-critic.md`, …) are readable projections of them,
unless a person edited them: then they win. `journal.jsonl` tells what happened and decides nothing.

Every file is born whole: temporary file, fsync, rename, fsync of the directory. One thread writes, records
before artifacts, so that answers that arrive together become durable together at the price of one. The lock
is `flock` on the directory itself: it cannot be planted, left behind or shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cdo import artifacts
from cdo.artifacts import Artifact
from cdo.errors import SessionError, UsageError

PREFIX = "cdo-"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Voices and syntheses, FINAL.md, and the documents that a domain asks for (ADR.md, C4.md).
_ARTIFACT = re.compile(r"(t[0-9]+-[a-z0-9-]+|[A-Z][A-Z0-9]{1,15})\.md")
_FOLDERS = re.compile(r"[a-z][a-z0-9-]*(/[a-z][a-z0-9-]*)?")  # of cdo's own files in a session
_GROUP = re.compile(r"([0-9]{4,})\.jsonl")
_TEMPORARY = re.compile(r"\..+\.[0-9]+\.tmp")
_BIRTH = re.compile(r"\.cdo-.+\.[0-9a-f]{8}\.tmp")
_STALE = 60.0  # seconds after which an unlocked half-made session is nobody's
_LETTER = 65_536  # bytes; a longer file in a folder for people's messages is not one
_PATIENCE = 0.3  # seconds a lock is waited for: `cdo list` and `show` hold it for a moment to look


class Taken(SessionError):
    """There is a session of this name already."""


def session_path(out: Path, name: str) -> Path:
    """The directory of the session called `name`; raise `UsageError` when it cannot be a name."""
    name = name.removeprefix(PREFIX)
    if not NAME.fullmatch(name) or ".." in name or name.endswith(".") or name.startswith(PREFIX):
        raise UsageError(
            f"`{name[:60]}` cannot be the name of a session.",
            "Use letters, digits, dots, - and _; a letter or digit first; at most 64.",
        )
    return out / f"{PREFIX}{name}"


def sessions(out: Path) -> list[Path]:
    """All session directories in `out`, newest first."""
    try:
        found = [
            entry
            for entry in os.scandir(out)
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return []
    plans = [(_mtime(Path(entry.path) / "session.yaml"), Path(entry.path)) for entry in found]
    return [path for mtime, path in sorted(plans, reverse=True) if mtime]


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def explain(error: OSError, path: Path | str) -> SessionError:
    """A file system's refusal as a sentence."""
    reasons = {
        errno.ENOSPC: ("the disk is full", "Make room, then `cdo resume`: nothing recorded is lost."),
        errno.EDQUOT: ("your disk quota is used up", "Make room, then `cdo resume`: nothing recorded is lost."),
        errno.EROFS: ("the file system is read-only", "Choose another place with --out."),
        errno.EACCES: ("permission is denied", "Choose another place with --out, or mend the permissions."),
        errno.EIO: ("the disk reports an input/output error", "Check the disk before you resume."),
        errno.ELOOP: ("it is a symbolic link", "cdo does not follow links; remove it, or give the real path."),
        errno.ENOTDIR: ("a part of the path is not a folder", "Choose another place with --out."),
    }
    why, hint = reasons.get(error.errno or 0, (error.strerror or str(error), "Mend that, then `cdo resume`."))
    return SessionError(f"{path} cannot be used: {why}.", hint)


# -- durable primitives ----------------------------------------------------------------------------


def write_file(directory: int, name: str, data: bytes) -> os.stat_result:
    """Make the file `name` in an open directory hold `data`: whole or not at all, also after a power loss."""
    temporary = f".{name}.{os.getpid()}.tmp"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        result = os.fstat(fd)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(fd)
    os.fsync(directory)
    return result


def read_file(directory: int, name: str, limit: int = 64 * 2**20) -> tuple[bytes, os.stat_result]:
    """Read a regular file of an open directory, never through a link; raise `OSError`.

    A file that is being saved in place meanwhile is read again, so that no half of it counts.
    """
    for _ in range(20):
        data, before, after = _read_once(directory, name, limit)
        if _signature(before) == _signature(after) and len(data) == after.st_size:
            break
        time.sleep(0.005)
    return data, after


def _read_once(directory: int, name: str, limit: int) -> tuple[bytes, os.stat_result, os.stat_result]:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", name)
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts), status, os.fstat(fd)
    finally:
        os.close(fd)


def _directory(path: str | Path, parent: int | None = None) -> int:
    """Open a directory, never through a link at its end."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(path, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
        raise


def _folder(path: Path, *, make: bool = False) -> int:
    """Open the folder that holds sessions; `make` what is missing of it, durably.

    No part of a relative path may be a link: the repository one stands in could have planted it. An absolute path
    is a person's own word, links and all.
    """
    base, parts = Path(), list(path.parts)
    if path.is_absolute():
        base, parts = path, []
        while make and not base.exists():
            parts.insert(0, base.name)
            base = base.parent
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        try:
            inner = _subfolder(part, fd) if make else _directory(part, fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _subfolder(name: str, parent: int) -> int:
    """Open a folder of an open directory; make it, durably, where it is missing."""
    try:
        return _directory(name, parent)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        os.fsync(parent)
        return _directory(name, parent)


def _lock(directory: int) -> bool:
    """Take the lock of an open directory; False when another process keeps it. Raises `OSError`."""
    limit = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
        else:
            return True


def names_in(folder: Path) -> list[str]:
    """The names of what is in a folder that a person named; [] where there is none."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, folder) from None


def file_new(folder: Path, name: str, text: str) -> Path:
    """Write a new file into a folder that a person named; the folder is made. Raises `SessionError`."""
    try:
        with _opened(_folder(folder, make=True)) as place:
            if _kind(name, place) is not None:
                raise OSError(errno.EEXIST, "it exists", name)
            write_file(place, name, _encodable(text).encode())
    except OSError as error:
        raise explain(error, folder / name) from None
    return folder / name


# -- the writer ------------------------------------------------------------------------------------


@dataclass
class _Pending:
    """Work for the writer thread: records to commit as a group, files and journal lines to write after."""

    records: list[tuple[dict[str, Any], Future[None]]] = field(default_factory=list)
    jobs: deque[Callable[[], None]] = field(default_factory=deque)
    journal: list[str] = field(default_factory=list)


class Session:
    """An open session directory, owned by this process until `close`."""

    def __init__(self, path: Path, directory: int, redact: Callable[[str], str]) -> None:
        self.path = path
        self.name = path.name.removeprefix(PREFIX)
        self.notes: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._fd = directory
        self._redact: Callable[[str], str] = lambda text: _encodable(redact(text))
        self._texts: set[str] = set()
        self._group = 0
        self._known: dict[str, tuple[Artifact, tuple[int, ...] | None]] = {}
        self._pending = _Pending()
        self._wake = threading.Condition()
        self._failure: SessionError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._write_loop, name="cdo-store", daemon=True)

    # -- opening ------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, files: Mapping[str, str], redact: Callable[[str], str] = str) -> Session:
        """Make a new session at `path` with its first `files`; it appears at once and whole.

        Raises `Taken` when it exists already, `SessionError` when it cannot be made.
        """
        birth = f".{path.name}.{os.urandom(4).hex()}.tmp"
        out = fd = -1
        try:
            out = _folder(path.parent, make=True)
            _sweep_births(out)
            if (there := _kind(path.name, out)) is not None:
                raise OSError(errno.ELOOP if there == stat.S_IFLNK else errno.EEXIST, "it exists", path.name)
            os.mkdir(birth, dir_fd=out)
            try:
                fd = _directory(birth, out)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.mkdir("calls", dir_fd=fd)
                for name, text in files.items():
                    write_file(fd, name, _encodable(redact(text)).encode())
                # A directory is never renamed over one that holds something: of two that race one wins.
                os.rename(birth, path.name, src_dir_fd=out, dst_dir_fd=out)
            except BaseException:
                _remove_birth(birth, out)
                raise
            os.fsync(out)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise Taken(
                    f"There is a session {path} already.", f"`cdo resume {path.name}` goes on with it."
                ) from None
            raise explain(error, path if error.filename == path.name else path.parent) from None
        finally:
            if out >= 0:
                os.close(out)
        session = cls(path, fd, redact)
        session._thread.start()
        return session

    @classmethod
    def open(cls, path: Path, redact: Callable[[str], str] = str) -> Session:
        """Take over an existing session; raise `SessionError` when it is missing, locked or damaged."""
        try:
            out = _folder(path.parent)
            try:
                fd = _directory(path.name or ".", out)
            finally:
                os.close(out)
        except FileNotFoundError:
            raise SessionError(f"There is no session {path}.", "`cdo list` shows what there is.") from None
        except OSError as error:
            raise explain(error, path if error.filename == path.name else path.parent) from None
        session = cls(path, fd, redact)
        try:
            if _kind("session.yaml", fd) is None:
                raise SessionError(
                    f"{path} is not a session: it has no session.yaml.", "`cdo list` shows what is one."
                )
            if not _lock(fd):
                raise SessionError(
                    f"{path} is in use by another cdo process.", "Wait for it to end, or stop it, then resume."
                )
            session._sweep()
            session._load_records()
            session._mend_journal()
        except OSError as error:
            os.close(fd)
            raise explain(error, _named(path, error)) from None
        except SessionError:
            os.close(fd)
            raise
        session._thread.start()
        return session

    def _sweep(self) -> None:
        """Remove temporary files that a killed owner left behind."""
        for folder in (".", "calls"):
            with contextlib.suppress(FileNotFoundError), _opened(_directory(folder, self._fd)) as place:
                for name in os.listdir(place):
                    if _TEMPORARY.fullmatch(name) and _kind(name, place) != stat.S_IFDIR:
                        os.unlink(name, dir_fd=place)

    def _load_records(self) -> None:
        self.records, self._group = _read_groups(self._fd, self.path.name)
        self._texts = {record["sha256"] for record in self.records if record["kind"] == "text"}

    def _mend_journal(self) -> None:
        """Drop a torn last line, and say so; damaged lines in the middle are named and left."""
        try:
            data, _ = read_file(self._fd, "journal.jsonl")
        except FileNotFoundError:
            return
        whole, newline, tail = data.rpartition(b"\n")
        if tail:
            write_file(self._fd, "journal.jsonl", whole + newline)
            self.notes.append(f"journal.jsonl: a torn last line of {len(tail)} bytes was dropped")
        damaged = [number for number, line in enumerate(whole.split(b"\n"), 1) if newline and not _is_json(line)]
        if damaged:
            lines = f"lines {', '.join(map(str, damaged[:9]))} are" if len(damaged) > 1 else f"line {damaged[0]} is"
            self.notes.append(f"journal.jsonl: {lines} damaged; the journal only informs, nothing is lost")

    # -- reading ------------------------------------------------------------------------------

    def read(self, name: str) -> str | None:
        """The text of a file of the session, or None when there is none; raise `SessionError`."""
        folder, _, file = name.rpartition("/")
        try:
            with self._place(folder) as place:
                return read_file(place, file)[0].decode("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise SessionError(f"{self.path / name} is not UTF-8 text.", "Mend or remove it, then resume.") from None
        except OSError as error:
            raise explain(error, self.path / name) from None

    def artifact(self, name: str) -> Artifact | None:
        """The artifact `name` (without .md) as it is now: a person's edit on disk is seen at once."""
        known = self._known.get(name)
        try:
            status = os.stat(f"{name}.md", dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return known[0] if known and known[1] is None else None  # not written yet
        if known and known[1] is None:
            return known[0]
        if known and known[1] == _signature(status):
            return known[0]
        text = self.read(f"{name}.md")
        for _ in range(100):
            if text:
                break
            time.sleep(0.005)  # empty or gone for a moment: somebody may be saving it in place
            text = self.read(f"{name}.md")
        if text is None:
            return None
        artifact = artifacts.from_file(text, f"{self.path.name}/{name}.md")
        self._known[name] = (artifact, _signature(status))
        return artifact

    def artifact_names(self) -> list[str]:
        """The names of all artifacts (not 00-*): those of turns in order, then FINAL."""
        return sorted((name[:-3] for name in os.listdir(self._fd) if _ARTIFACT.fullmatch(name)), key=_turn_order)

    # -- writing ------------------------------------------------------------------------------

    async def commit(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Record something that must not be lost; returns it (redacted) when it is durable."""
        clean: dict[str, Any] = self._clean(dict(record))
        future: Future[None] = Future()
        with self._wake:
            self._check()
            self._pending.records.append((clean, future))
            self._wake.notify()
        await asyncio.wrap_future(future)
        self.records.append(clean)
        return clean

    def note(self, record: Mapping[str, Any]) -> None:
        """Record something for a later process, without waiting for the disk."""
        clean: dict[str, Any] = self._clean(dict(record))
        with self._wake:
            self._check()
            self._pending.records.append((clean, Future()))
            self._wake.notify()
        self.records.append(clean)

    def shared_text(self, text: str) -> str:
        """Record a text that many exchanges share, once; returns its SHA-256 to refer to it."""
        text = self._redact(text)
        identity = sha256(text.encode()).hexdigest()
        if identity not in self._texts:
            with self._wake:
                self._check()
                self._pending.records.append(({"kind": "text", "sha256": identity, "text": text}, Future()))
            self._texts.add(identity)
        return identity

    def put(self, name: str, artifact: Artifact) -> Artifact:
        """Write an artifact soon (records go first); it can be read back at once."""
        clean = Artifact(
            self._clean(dict(artifact.meta)), self._redact(artifact.body), self._clean(dict(artifact.own))
        )
        text = clean.text()
        known = (artifacts.from_file(text, name), None)

        def job() -> None:
            status = write_file(self._fd, f"{name}.md", text.encode())
            if self._known.get(name) is known:  # and not one that was put after it
                self._known[name] = (known[0], _signature(status))

        self._later(job)
        self._known[name] = known
        return known[0]

    def put_text(self, name: str, text: str) -> None:
        """Write any other file of the session soon; `name` may lie in a folder, which is made."""
        data = self._redact(text).encode()
        folder, _, file = name.rpartition("/")

        def job() -> None:
            with self._place(folder, make=True) as place:
                write_file(place, file, data)

        self._later(job)

    def put_changed(self, name: str, text: str) -> None:
        """Write a file of the session soon, unless it holds this text already."""
        if self.read(name) != self._redact(text):
            self.put_text(name, text)

    def put_now(self, name: str, text: str) -> None:
        """Write a file of the session, and wait until it is on disk; raises `SessionError`."""
        self.put_text(name, text)
        self.flush()

    def taken(self, folder: str) -> list[tuple[str, str]]:
        """The Markdown files of a folder of the session as (name, text), by name; [] where there is none.

        What cannot be read as text comes back as "": the caller judges it. Links are never followed.
        """
        found = []
        try:
            with self._place(folder) as place:
                for name in sorted(os.listdir(place)):
                    if name.endswith(".md") and not name.startswith(".") and _kind(name, place) == stat.S_IFREG:
                        data = read_file(place, name)[0]
                        found.append((name, data.decode("utf-8", "replace") if len(data) <= _LETTER else ""))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise explain(error, self.path / folder) from None
        return found

    def move(self, name: str, folder: str, note: str = "") -> None:
        """Move a file of the session into another of its folders, durably; `note` is put beside it."""
        self.flush()
        source, _, file = name.rpartition("/")
        try:
            with self._place(source) as here, self._place(folder, make=True) as there:
                target, number = file, 1
                while _kind(target, there) is not None:
                    number += 1
                    target = f"{file.removesuffix('.md')}-{number}.md"
                os.rename(file, target, src_dir_fd=here, dst_dir_fd=there)
                if note:
                    write_file(there, f"{target}.why", _encodable(note).encode())
                os.fsync(there)
                os.fsync(here)
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain(error, self.path / name) from None

    @contextlib.contextmanager
    def _place(self, folder: str, *, make: bool = False) -> Iterator[int]:
        """A folder of the session (two levels at most), open; raises `FileNotFoundError` where it is missing."""
        if folder and not _FOLDERS.fullmatch(folder):
            raise ValueError(f"{folder!r} is not a folder of a session")
        fd = os.dup(self._fd)
        try:
            for part in filter(None, folder.split("/")):
                inner = _subfolder(part, fd) if make else _directory(part, fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    def supersede(self, names: Iterable[str]) -> Path:
        """Move artifacts to the next `superseded/N/`, where they are kept; returns that folder."""
        self.flush()
        try:
            with _opened(_subfolder("superseded", self._fd)) as place:
                number = max([0, *(int(name) for name in os.listdir(place) if re.fullmatch("[0-9]{1,9}", name))]) + 1
                os.mkdir(str(number), dir_fd=place)
                os.fsync(place)
                with _opened(_directory(str(number), place)) as target:
                    for name in names:
                        with contextlib.suppress(FileNotFoundError):
                            os.rename(f"{name}.md", f"{name}.md", src_dir_fd=self._fd, dst_dir_fd=target)
                        self._known.pop(name, None)
                    os.fsync(target)
            os.fsync(self._fd)
        except OSError as error:
            raise explain(error, self.path / "superseded") from None
        return self.path / "superseded" / str(number)

    def journal(self, line: Mapping[str, Any]) -> None:
        """Tell what happened; written soon, in order."""
        text = json.dumps(self._clean(dict(line)), ensure_ascii=False, default=str)
        with self._wake:
            self._pending.journal.append(text)
            self._wake.notify()

    def flush(self) -> None:
        """Wait until everything handed over is on disk; raise what went wrong."""
        done: Future[None] = Future()
        self._later(lambda: done.set_result(None))
        while not done.done() and self._failure is None:
            with contextlib.suppress(TimeoutError):
                done.result(timeout=0.05)
        self._check()

    def close(self) -> None:
        """Write what is left and give up the lock. Safe to call twice; raises nothing."""
        if self._fd < 0:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._fd)
        self._fd = -1

    # -- the thread ---------------------------------------------------------------------------

    def _clean(self, value: Any) -> Any:
        """The same JSON without secrets."""
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, dict):
            return {key: self._clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._clean(item) for item in value]
        return value

    def _check(self) -> None:
        if self._failure:
            raise self._failure
        if self._closing:
            raise SessionError(f"{self.path} is closed.", "`cdo resume` goes on with it.")

    def _later(self, job: Callable[[], None]) -> None:
        with self._wake:
            self._check()
            self._pending.jobs.append(job)
            self._wake.notify()

    def _write_loop(self) -> None:
        """Commit records as groups first; then one file at a time, looking for records between them."""
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closing or self._pending.records or self._pending.jobs or self._pending.journal
                )
                pending = self._pending
                records, pending.records = pending.records, []
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
        except OSError as error:
            # A failed fsync leaves nothing that could be trusted to succeed later: the session ends here.
            self._failure = explain(error, self.path)
        except Exception as error:
            # Whoever waits for this thread must hear of it, whatever it is.
            self._failure = SessionError(f"{self.path} cannot be written: {error!r}.", "Please report this.")

    def _commit_group(self, records: list[dict[str, Any]]) -> None:
        body = "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records).encode(
            "utf-8", "replace"
        )
        head = json.dumps({"kind": "group", "records": len(records), "sha256": sha256(body).hexdigest()})
        with _opened(_subfolder("calls", self._fd)) as calls:
            write_file(calls, f"{self._group + 1:04d}.jsonl", head.encode() + b"\n" + body)
        self._group += 1

    def _append_journal(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with _opened(os.open("journal.jsonl", flags, 0o644, dir_fd=self._fd)) as fd:
            while data:
                data = data[os.write(fd, data) :]


def _settle(future: Future[None], failure: SessionError | None = None) -> None:
    """Tell who waits for a record, if anybody still does: an interrupted run keeps what it paid for all the same."""
    with contextlib.suppress(InvalidStateError):
        if failure:
            future.set_exception(failure)
        else:
            future.set_result(None)


def _turn_order(name: str) -> tuple[int, bool, str]:
    """Turns in order, in each its voices before its synthesis, FINAL last."""
    number = re.match(r"t([0-9]+)-", name)
    return int(number[1]) if number else 1 << 30, name.endswith("-synthesis"), name


def void(_: object) -> None:
    """Drop a value."""


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_ino, status.st_size, status.st_mtime_ns)


@contextlib.contextmanager
def _opened(fd: int) -> Iterator[int]:
    """Close `fd` at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def _kind(name: str, directory: int) -> int | None:
    """The type bits (`stat.S_IFMT`) of an entry of an open directory, a link's own; None when it is not there."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _named(path: Path, error: OSError) -> Path:
    """What an error of the session `path` is about: the entry it names, else the session."""
    return path / error.filename if error.filename in ("calls", "journal.jsonl") else path


def _encodable(text: str) -> str:
    """`text` with what UTF-8 cannot hold (lone surrogates) replaced, so that memory and disk agree."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _sweep_births(out: int) -> None:
    """Remove half-made sessions whose maker was killed: old, and locked by nobody."""
    for name in os.listdir(out):
        if not _BIRTH.fullmatch(name):
            continue
        with contextlib.suppress(OSError), _opened(_directory(name, out)) as birth:
            if time.time() - os.fstat(birth).st_mtime > _STALE:
                fcntl.flock(birth, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_birth(name, out)


def _remove_birth(name: str, out: int) -> None:
    """Remove the half-made directory of a session that was never born."""
    import shutil

    shutil.rmtree(name, ignore_errors=True, dir_fd=out)


def _read_groups(session: int, name: str) -> tuple[list[dict[str, Any]], int]:
    """All records of an open session directory in order, and the number of its last group."""
    records: list[dict[str, Any]] = []
    try:
        calls = _directory("calls", session)
    except FileNotFoundError:
        return records, 0
    with _opened(calls):
        groups = sorted((int(match[1]), match[0]) for match in map(_GROUP.fullmatch, os.listdir(calls)) if match)
        for _, entry in groups:
            try:
                data, _ = read_file(calls, entry)
            except OSError as error:
                raise explain(error, f"{name}/calls/{entry}") from None
            records += group_records(data, f"{name}/calls/{entry}")
    return records, groups[-1][0] if groups else 0


def group_records(data: bytes, name: str) -> list[dict[str, Any]]:
    """The records of one group file; raise `SessionError` when it is not what was written."""
    head, _, body = data.partition(b"\n")
    try:
        group = json.loads(head)
        if group["sha256"] != sha256(body).hexdigest():
            raise ValueError("its checksum does not match")
        return [json.loads(line) for line in body.splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error) if "checksum" in str(error) else "it is not a group of records"
        raise SessionError(
            f"{name} is damaged: {why}.",
            "Restore it from a copy; or remove it, and what it recorded is asked and paid again.",
        ) from None


def read_session(path: Path) -> list[dict[str, Any]]:
    """All records of a session without owning it (for list, show and reports)."""
    try:
        with _opened(_directory(path)) as fd:
            return _read_groups(fd, path.name)[0]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, _named(path, error)) from None


def locked(path: Path) -> bool:
    """Whether another process owns the session now."""
    try:
        fd = _directory(path)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
