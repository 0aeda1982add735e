"""Indexes past runs: the key data of every session in a folder (`index_entries`), cached in SQLite.

The session files are authoritative. The cache lies in the user's cache folder, so that only changed sessions are read
again. If it cannot be used (locked, damaged, not writable), the index is built in memory.

Whether a session changed is seen by inode, size and time of what `_OF_ALL` names. A session with an answer is only
looked at where `_OF_ENDED` says: cdo itself replaces files, which changes the folder, and adds records, which changes
`calls`; a person who edits an answer in place changes FINAL.md or FINAL.yaml. So status, decision, confidence and
cost are always those of the files. An edit in place of the question or the plan of a session with an answer, which is
the answer to what was there before, shows in lists when the session goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from cdo.files.atomic_files import closing as released
from cdo.files.atomic_files import encodable, open_directory
from cdo.files.cache_folder import cache_folder
from cdo.history.index_entries import IndexEntry, Paid, entry, placed, unplaced
from cdo.session.records import PREFIX, session_folders

VERSION = 5
_PATIENCE = 1.0  # seconds to wait for another process's lock
_SETTLED = 2 * 10**9  # ns; a file changed more recently may change again in one tick of the file system's clock
_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PLAN = "/session.yaml"  # what makes a folder a session
_OF_ENDED = ("/FINAL.md", "/FINAL.yaml", "", "/calls")
_OF_ALL = (*_OF_ENDED, _PLAN, "/00-input.md")
_FEW = 500  # rows that are asked for by name
# The short columns come first: SQLite reads the long ones only where they are asked for.
_TABLE = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, signature TEXT, begun INTEGER, searchable INTEGER,
    row BLOB, paid BLOB
)"""
_SAVE = """
INSERT INTO sessions (name, signature, begun, row, paid, searchable) VALUES (?, ?, ?, ?, ?, 0)
ON CONFLICT (name) DO UPDATE SET
    signature = excluded.signature, begun = excluded.begun, searchable = 0,
    row = excluded.row, paid = excluded.paid"""

Found = TypeVar("Found")


class FoundSession(Struct, frozen=True):
    """A session of a folder as it is now: its place, and what was just read of it; None if the index holds that."""

    place: str
    read: IndexEntry | None = None

    @property
    def damaged(self) -> bool:
        """True if it cannot be read. The index has no row of such a session that counts."""
        return self.read is not None and self.read.row["status"] == "damaged"


class SeenFiles(Struct, frozen=True):
    """When a session began (the time of its plan, ns), and a signature that changes with its files.

    The signature is "" if they changed too recently to rely on it.
    """

    begun: int
    signature: str

    @property
    def single(self) -> str:
        """The part of the signature that is about single files: not the folder, and not that of the records."""
        final, fields, _, _, *others = self.signature.split(";")
        return ";".join([final, fields, *others])


class IndexLine(Struct, frozen=True):
    """A session as it is written into the index, by its name there."""

    name: str
    signature: str
    begun: int
    entry: IndexEntry


def line(name: str, files: SeenFiles, entry: IndexEntry) -> IndexLine:
    """Return the line of a session. One that is damaged has no signature: a repair may leave its files' times."""
    return IndexLine(name, "" if entry.row["status"] == "damaged" else files.signature, files.begun, entry)


def rows(out: Path, most: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of the sessions in a folder, newest first, at most `most`.

    A damaged one has its error under `problem`.
    """

    def read(db: sqlite3.Connection) -> list[dict[str, Any]]:
        return rows_of(db, dict(islice(refreshed(db, out).items(), most)))

    return indexed(out, read)


def rows_of(db: sqlite3.Connection, found: Mapping[str, FoundSession]) -> list[dict[str, Any]]:
    """Return the rows of sessions of `refreshed`."""
    kept = _column(db, "row", found)
    return [
        placed(item.read.row if item.read else _parsed(kept[name]) if name in kept else _now(item).row, item.place)
        for name, item in found.items()
    ]


def _column(db: sqlite3.Connection, column: str, found: Mapping[str, FoundSession]) -> dict[str, bytes]:
    """Return the JSON in a column for those of the sessions that the index holds."""
    names = list(found) if len(found) < _FEW else []
    chosen = f" WHERE name IN ({', '.join('?' * len(names))})" if len(found) < _FEW else ""
    return dict(db.execute(f"SELECT name, {column} FROM sessions{chosen}", names))


def _parsed(data: bytes) -> Any:
    """Parse JSON of the index, also with the lone surrogates that msgspec refuses; raise `ValueError`."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)


def _now(found: FoundSession) -> IndexEntry:
    """Read a session that another process has just taken out of the index."""
    return unplaced(Path(found.place))


def newest(out: Path, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the newest sessions in a folder, read from their files, and how many sessions it has."""
    found: list[tuple[int, str]] = []
    if folders := session_folders(out):
        with released(os.open(out, os.O_RDONLY | os.O_DIRECTORY)) as fd:
            for folder in folders:
                with contextlib.suppress(OSError):
                    status = os.stat(f"{folder}{_PLAN}", dir_fd=fd, follow_symlinks=False)
                    found.append((status.st_mtime_ns, folder))
    return [entry(out / folder).row for _, folder in sorted(found, reverse=True)[:most]], len(found)


def entries(out: Path) -> list[IndexEntry]:
    """Return the entries of all sessions in a folder: their rows with their recorded exchanges."""

    def read(db: sqlite3.Connection) -> list[IndexEntry]:
        found = refreshed(db, out)
        kept = _column(db, "paid", found)
        paid = (
            item.read.paid if item.read
            else tuple(Paid(*part) for part in _parsed(kept[name])) if name in kept
            else _now(item).paid
            for name, item in found.items()
        )  # fmt: skip
        return [IndexEntry(row, exchanges) for row, exchanges in zip(rows_of(db, found), paid, strict=True)]

    return indexed(out, read)


# -- the file --------------------------------------------------------------------------------------


def index_file(out: Path) -> Path:
    """Return the path of the index of a folder of sessions."""
    place = os.fsencode(os.path.realpath(out))
    return cache_folder() / f"library-{sha256(place).hexdigest()[:16]}.sqlite"


def indexed(out: Path, work: Callable[[sqlite3.Connection], Found]) -> Found:
    """Return the result of `work` on the index, or on one in memory if the file cannot be used."""
    if not out.is_dir():
        with closing(_prepared(sqlite3.connect(":memory:", isolation_level=None))) as db:
            return work(db)
    if done := attempt(out, work):
        return done[0]
    with closing(_prepared(sqlite3.connect(":memory:", isolation_level=None))) as db:
        return work(db)


def attempt(out: Path, work: Callable[[sqlite3.Connection], Found]) -> tuple[Found] | None:
    """Return the result of `work` on the index file, None if that cannot be used; remove one that is damaged."""
    file = index_file(out)
    try:
        with closing(_connected(file)) as db:
            return (work(db),)
    except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) in _DAMAGED and not isinstance(error, OSError):
            for name in (file, file.with_name(f"{file.name}-journal")):  # the next call makes a new one
                with contextlib.suppress(OSError):
                    name.unlink()
    return None


def _connected(file: Path) -> sqlite3.Connection:
    """Open the index in a file that only its owner may read; raise `OSError` or `sqlite3.Error`."""
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    return _prepared(sqlite3.connect(file, timeout=_PATIENCE, isolation_level=None))


def _prepared(db: sqlite3.Connection) -> sqlite3.Connection:
    """Create the table if it is missing; raise `sqlite3.Error`, also for an index of another version."""
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with writing(db):
                if not db.execute("PRAGMA user_version").fetchone()[0]:  # another process may have been quicker
                    db.execute(_TABLE)
                    db.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            raise sqlite3.DatabaseError("an index of another version")
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction: commit at its end, roll back on any error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def refreshed(db: sqlite3.Connection, out: Path, *, save: bool = False) -> dict[str, FoundSession]:
    """Return every session as its files are now, newest first, by its name in the index; update the index.

    With `save`, an index that cannot be written raises an error; without it, that is ignored.
    """
    known = {name: (sign, begun) for name, sign, begun in db.execute("SELECT name, signature, begun FROM sessions")}
    there, fresh = list[tuple[int, str, str]](), dict[str, IndexLine]()
    folders, now = session_folders(out), time.time_ns()
    with released(os.open(out if folders else os.curdir, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        for folder in folders:
            name = encodable(folder.removeprefix(PREFIX))
            sign, begun = known.get(name, ("", 0))
            if not _stands(folder, fd, sign):
                files = _seen(folder, fd, now)
                if files is None:
                    continue
                begun = files.begun
                if not files.signature or files.signature != sign:
                    fresh[name] = line(name, files, unplaced(out / folder))
            there.append((begun, folder, name))
    place = str(out / "x")[:-1]
    found = {
        name: FoundSession(f"{place}{folder}", fresh[name].entry if name in fresh else None)
        for _, folder, name in sorted(there, reverse=True)
    }
    gone = known.keys() - found.keys()
    if fresh or gone:
        try:
            with writing(db):
                db.executemany("DELETE FROM sessions WHERE name = ?", [(name,) for name in gone])
                _save(db, fresh.values())
        except sqlite3.OperationalError:
            if save:
                raise
    return found


def save(db: sqlite3.Connection, lines: Sequence[IndexLine]) -> list[int]:
    """Write sessions into the index within a transaction; return their keys."""
    _save(db, lines)
    return [db.execute("SELECT id FROM sessions WHERE name = ?", [line.name]).fetchone()[0] for line in lines]


def _save(db: sqlite3.Connection, lines: Iterable[IndexLine]) -> None:
    db.executemany(
        _SAVE,
        [(line.name, line.signature, line.begun, _json(line.entry.row), _json(line.entry.paid)) for line in lines],
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


# -- the files of sessions -------------------------------------------------------------------------


def seen(path: Path) -> SeenFiles | None:
    """Look at a session's files, however recent; None if that is no session."""
    try:
        with released(open_directory(path.parent)) as out:
            return _seen(path.name, out, 0)
    except OSError:
        return None


def _seen(folder: str, out: int, now: int) -> SeenFiles | None:
    """Look at the files of the session in a folder of the open directory `out`; None if it is none."""
    begun, settled, found = 0, True, ""
    for name in _OF_ALL:
        try:
            status = os.stat(folder + name, dir_fd=out, follow_symlinks=False)
        except OSError:
            if name == _PLAN:
                return None
            found += ";"
            continue
        changed = status.st_mtime_ns
        if name == _PLAN:
            begun = changed
        if -_SETTLED < now - changed < _SETTLED:
            settled = False
        found += _mark(status)
    return SeenFiles(begun, found if settled else "")


def _stands(folder: str, out: int, signature: str) -> bool:
    """True if a session has an answer and is as its signature says, by the files `_OF_ENDED`."""
    if signature[:1] in ("", ";"):  # no signature, or no FINAL.md
        return False
    found, stat = "", os.stat
    for name in _OF_ENDED:
        try:
            status = stat(folder + name, dir_fd=out, follow_symlinks=False)
        except OSError:
            found += ";"
            continue
        found += _mark(status)
    return signature.startswith(found)


def _mark(status: os.stat_result) -> str:
    """Return the part of a signature that one file has. A missing one has ";"."""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns};"
