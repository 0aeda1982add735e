"""The session directory: the only place that writes into one.

Two kinds of files matter. `calls/NNNN.jsonl` hold the recorded exchanges, one file for each group that was
committed together: they are what a resume replays. Artifacts (`t1-critic.md`, …) are readable projections of them,
unless a person edited them: then they win. `journal.jsonl` tells what happened and decides nothing.

`atomic_files` makes a file safe, `creation` makes a session, `human_edits` detects what a person does to its files,
`writer` the thread that writes, `records` what can be read without owning one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from cdo.core.errors import SessionError
from cdo.core.formatting import json_line, one_line
from cdo.files import locks
from cdo.files.atomic_files import (
    TEMPORARY,
    closing,
    encodable,
    explain,
    is_session_folder,
    kind_of,
    open_directory,
    open_or_make,
    open_path,
    read_end,
    read_file,
    signature,
    status_of,
    sync,
    unwritable,
    write_file,
)
from cdo.session import artifact as artifacts
from cdo.session import loop_wakeups
from cdo.session.artifact import Artifact
from cdo.session.creation import MadeFolder, NewFolder, create_session_dir
from cdo.session.human_edits import ARTIFACT, HumanEdits
from cdo.session.records import PREFIX, group_number, read_groups, subject
from cdo.session.session_files import SessionFiles
from cdo.session.text_cleaning import changed, cleaners
from cdo.session.write_thread import QueuedFile
from cdo.session.writer import JOURNAL_BYTES, Writer

_PROJECTIONS = ("TREE.md", "CHAT.md")  # written again and again: no reply stands behind them
_SHARED = 2  # texts whose hashes are remembered
_PATIENCE = 0.3  # seconds to wait for a lock: `cdo list` and `show` hold it for a moment


class Session:
    """An open session directory, owned by this process until `close`.

    `files` reads what lies in it, and `edits` tells what a person does in it. Neither refers back to the session, so
    that one which has ended leaves the memory at once.
    """

    def __init__(self, path: Path, directory: int, redact: Callable[[str], str]) -> None:
        self.path = path
        self.name = path.name.removeprefix(PREFIX)
        self.notes: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._fd = directory
        self._redact, self._written = cleaners(redact)
        self._texts: set[str] = set()
        self._shared: dict[str, str] = {}  # hashes of texts shared last: the voices of a turn share theirs
        self.files = SessionFiles(path, directory, self._redact)
        self.edits = HumanEdits(self.files)
        self._writer = Writer(path, directory)

    # -- opening ------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, files: Mapping[str, str | bytes], redact: Callable[[str], str] = str) -> Session:
        """Make a new session at `path` with its first `files`, as `creation.create_session_dir` does, and own it."""
        new = NewFolder(path, files, redact)
        return cls.born(new, create_session_dir(new))

    @classmethod
    def born(cls, new: NewFolder, made: MadeFolder) -> Session:
        """Return the session in a folder that was just made; raise `SessionError` if its records are damaged."""
        session = cls(new.path, made.fd, new.redact)
        for name, written in made.written.items():
            content = new.files[name]
            session.files.made(name, written, session._redact(content) if isinstance(content, str) else None)
        try:
            group = session._load_records() if any(map(group_number, new.files)) else 0
        except SessionError:
            _left(made.fd)
            raise
        session._writer.start(group)
        return session

    @classmethod
    def open(cls, path: Path, redact: Callable[[str], str] = str) -> Session:
        """Take over an existing session; raise `SessionError` when it is missing, locked or damaged."""
        try:
            out = open_path(path.parent)
            try:
                fd = open_directory(path.name or ".", out)
            finally:
                os.close(out)
        except FileNotFoundError:
            hint = "`cdo list --git` shows what there is; `cdo restore` writes a folder again that is gone."
            raise SessionError(f"There is no session {path}.", hint) from None
        except OSError as error:
            raise explain(error, path if error.filename == path.name else path.parent) from None
        session = cls(path, fd, redact)
        try:
            if kind_of("session.yaml", fd) is None:
                raise SessionError(
                    f"{path} is not a session: it has no session.yaml.", "`cdo list` shows all sessions."
                )
            if not locks.take(fd, _PATIENCE):
                raise SessionError(
                    f"{path} is in use by another cdo process.", "Wait for it to end, or stop it, then resume."
                )
            if whose := locks.broken(fd):
                session.notes.append(f"the lock of a process that has ended was removed: {one_line(whose, 200)}")
            session._sweep()
            session.edits.opened()
            group = session._load_records()
            session._mend_journal()
        except OSError as error:
            _left(fd)
            raise explain(error, subject(path, error)) from None
        except BaseException:
            _left(fd)
            raise
        session._writer.start(group)
        return session

    def _sweep(self) -> None:
        """Remove temporary files that a killed owner left behind, in every folder that it can have written into.

        What it gave names to is made durable: this process goes by it from here on.
        """
        folders = [""]
        for folder in folders:
            with contextlib.suppress(FileNotFoundError), self.files.place(folder) as place:
                for name in os.listdir(place):
                    kind = kind_of(name, place)
                    if TEMPORARY.fullmatch(name) and kind != stat.S_IFDIR:
                        os.unlink(name, dir_fd=place)
                    elif kind == stat.S_IFDIR and is_session_folder(inner := f"{folder}/{name}".lstrip("/")):
                        folders.append(inner)
                sync(place)

    def _load_records(self) -> int:
        """Read what is recorded, and name what is missing of it; returns the number of the last group."""
        self.records, groups = read_groups(self._fd, self.path.name)
        self._texts = {record["sha256"] for record in self.records if record["kind"] == "text"}
        last = max(groups, default=0)
        if gone := last - len(groups):
            first = next(number for number in range(1, last) if number not in groups)
            others = f" and {gone - 1:,} more" if gone > 1 else ""
            self.notes.append(
                f"calls/{first:04d}.jsonl{others}: not there; answers that it held may be asked for again"
            )
        return last

    def _mend_journal(self) -> None:
        """Drop a torn last line, and say so; damaged lines in the middle are named and left.

        Of one that has grown so long that it could hardly be read only the newest lines are kept.
        """
        status = status_of("journal.jsonl", self._fd)
        if status is None:
            return
        if stat.S_ISREG(status.st_mode) and status.st_size > JOURNAL_BYTES // 2:
            data = read_end(self._fd, "journal.jsonl", JOURNAL_BYTES // 4).partition(b"\n")[2]
            write_file(self._fd, "journal.jsonl", data)
            self.notes.append(f"journal.jsonl: it had {status.st_size:,} bytes; the last {len(data):,} are kept")
        data, _ = read_file(self._fd, "journal.jsonl")
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
        """The text of a file of the session without secrets, or None when there is none; raise `SessionError`."""
        return self.files.read(name)

    def artifact(self, name: str) -> Artifact | None:
        """The artifact `name` (without .md) as it is now: a person's edit on disk is seen at once."""
        return self.edits.artifact(name)

    def write_again(self, name: str, text: str) -> None:
        """Write a file of the session's own folder that is gone or empty, soon; leave one that says something."""

        def job() -> None:
            with contextlib.suppress(FileExistsError, SessionError):
                text_now = self.read(name)
                new = text_now is None or bool(text_now.strip())
                self.files.written[name] = signature(write_file(self._fd, name, text.encode(), new=new))

        self._writer.later(job)

    def top_files(self) -> list[str]:
        """The names of all files and folders directly in the session's folder."""
        return os.listdir(self._fd)

    def artifact_names(self) -> list[str]:
        """The names of all artifacts (not 00-*): those of turns or rounds in order, then FINAL."""
        names = (name for name in self.top_files() if ARTIFACT.fullmatch(name) and name not in _PROJECTIONS)
        return sorted((name[:-3] for name in names), key=_turn_order)

    # -- writing ------------------------------------------------------------------------------

    async def commit(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Record something that must not be lost; returns it (redacted) when it is durable."""
        clean: dict[str, Any] = self._clean(dict(record))
        await loop_wakeups.done(self._writer.record(clean))
        self.records.append(clean)
        return clean

    def note(self, record: Mapping[str, Any], *, soon: bool = True) -> None:
        """Record something for a later process, without waiting for the disk.

        Without `soon`, it is written with the next record that is, or when the session is closed.
        """
        clean: dict[str, Any] = self._clean(dict(record))
        self._writer.record(clean, soon=soon)
        self.records.append(clean)

    def shared_text(self, text: str) -> str:
        """Record a text that many exchanges share, once; returns its SHA-256 to refer to it."""
        if (known := self._shared.get(text)) is not None:
            return known
        clean = self._redact(text)
        identity = sha256(clean.encode()).hexdigest()
        if identity not in self._texts:
            self._writer.record({"kind": "text", "sha256": identity, "text": clean}, soon=False)
            self._texts.add(identity)
        if len(self._shared) >= _SHARED:
            self._shared.clear()
        self._shared[text] = identity
        return identity

    def put(self, name: str, artifact: Artifact) -> Artifact:
        """Write an artifact soon (records go first); it can be read back at once."""
        clean = artifact.changed(lambda part: self._clean(part, self._written))
        texts = artifacts.files(name, clean)
        known = clean.as_written(name)
        done, sha = self.edits.put(name, known), known.sha
        if name in artifacts.SIDECARS:
            self._writer.later(lambda: self._remove_outdated(name, sha))
        for file, text in texts.items():  # a sidecar is first, and durable before its Markdown appears
            page = file == f"{name}.md"
            self._writer.write(QueuedFile("", file, text.encode(), done if page else None, later=page))
        return known

    def _remove_outdated(self, name: str, sha: str) -> None:
        """Remove an artifact's Markdown that the sidecar to be written does not fit.

        It would look edited by a person after a crash between the two writes. A session without it is unfinished, and
        resuming writes both from the record.
        """
        page, sidecar = f"{name}.md", artifacts.SIDECARS[name]
        if status_of(page, self._fd) and f"\nsha256: {sha}" not in (self.read(sidecar) or ""):
            os.unlink(page, dir_fd=self._fd)
            sync(self._fd)

    def put_text(self, name: str, text: str) -> None:
        """Write any other file of the session soon; `name` may lie in a folder, which is made."""
        data = self._written(text).encode()
        folder, _, file = name.rpartition("/")

        def done(status: os.stat_result) -> None:
            self.files.written[name] = signature(status)

        self._writer.write(QueuedFile(folder, file, data, done))

    def put_changed(self, name: str, text: str) -> None:
        """Write a file of the session soon, unless it holds this text already."""
        if self.read(name) != self._written(text):
            self.put_text(name, text)

    def put_now(self, name: str, text: str) -> None:
        """Write a file of the session, and wait until it is on disk; raises `SessionError`."""
        self.put_text(name, text)
        self.flush()

    def move(self, name: str, folder: str, note: str = "") -> None:
        """Move a file of the session into another of its folders, durably; `note` is put beside it."""
        self.flush()
        source, _, file = name.rpartition("/")
        try:
            with self.files.place(source) as here, self.files.place(folder, make=True) as there:
                target, number = file, 1
                stem, dot, ending = file.rpartition(".")
                while kind_of(target, there) is not None:
                    number += 1
                    target = f"{stem}-{number}{dot}{ending}"
                os.rename(file, target, src_dir_fd=here, dst_dir_fd=there)
                if note:
                    write_file(there, f"{target}.why", encodable(note).encode())
                sync(there)
                sync(here)
        except FileNotFoundError:
            return
        except OSError as error:
            raise unwritable(error, self.path / name) from None

    def make_folder(self, folder: str) -> None:
        """Make a folder of the session, unless it is there; raise `SessionError`."""
        try:
            with self.files.place(folder, make=True):
                pass
        except OSError as error:
            raise unwritable(error, self.path / folder) from None

    def supersede(self, names: Iterable[str]) -> Path:
        """Move artifacts to the next `superseded/N/`, where they are kept; returns that folder."""
        self.flush()
        try:
            with closing(open_or_make("superseded", self._fd)) as place:
                number = max([0, *(int(name) for name in os.listdir(place) if re.fullmatch("[0-9]{1,9}", name))]) + 1
                os.mkdir(str(number), dir_fd=place)
                sync(place)
                with closing(open_directory(str(number), place)) as target:
                    for name in names:
                        with contextlib.suppress(FileNotFoundError):
                            os.rename(f"{name}.md", f"{name}.md", src_dir_fd=self._fd, dst_dir_fd=target)
                            if sidecar := artifacts.SIDECARS.get(name):
                                sync(target)
                                sync(self._fd)  # an artifact without its sidecar would look edited
                                os.rename(sidecar, sidecar, src_dir_fd=self._fd, dst_dir_fd=target)
                        self.edits.forget(name)
                    sync(target)
            sync(self._fd)
        except OSError as error:
            raise unwritable(error, self.path / "superseded") from None
        return self.path / "superseded" / str(number)

    def journal(self, line: Mapping[str, Any]) -> None:
        """Tell what happened; written soon, in order."""
        self._writer.journal(json_line(self._clean(dict(line))))

    def flush(self) -> None:
        """Wait until everything handed over is on disk; raise what went wrong."""
        self._writer.flush()

    async def flushed(self) -> None:
        """As `flush`, for a loop that has other sessions to run meanwhile."""
        await loop_wakeups.done(self._writer.flushed())

    async def ended(self) -> None:
        """As `close`, for a loop that has other sessions to run meanwhile."""
        try:
            await loop_wakeups.done(self._writer.ending())
        finally:
            self.close()

    def close(self) -> None:
        """Write what is left and give up the lock. Safe to call twice; raises nothing."""
        if self._fd < 0:
            return
        self._writer.close()
        _left(self._fd)
        self._fd = -1

    def _clean(self, value: Any, change: Callable[[str], str] | None = None) -> Any:
        """Return the same JSON with every text changed by `change`: without secrets, unless another is given."""
        return changed(value, change or self._redact)


def _turn_order(name: str) -> tuple[int, bool, str]:
    """Turns in order, in each its voices before its synthesis, FINAL last."""
    number = re.match(r"[tr]([0-9]+)-", name)
    return int(number[1]) if number else 1 << 30, name.endswith("-synthesis"), name


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _left(fd: int) -> None:
    """Give up the lock of a session's folder, and close it."""
    locks.release(fd)
    os.close(fd)
