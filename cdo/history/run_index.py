"""Indexes past runs: the key data of every session in a folder (`index_entries`), cached in SQLite.

The session files are authoritative. The cache lies in the user's cache folder, so that only changed sessions are read
again. If it cannot be used (locked, damaged, not writable), the index is built in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from cdo.files.atomic_files import closing as released
from cdo.files.atomic_files import encodable, open_directory
from cdo.history.index_entries import IndexEntry, Paid, entry, placed, unplaced
from cdo.session.records import PREFIX, session_folders

VERSION = 4
_PATIENCE = 1.0  # seconds to wait for another process's lock
_SETTLED = 2 * 10**9  # ns; a file changed more recently may change again in one tick of the file system's clock
_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PLAN = "/session.yaml"  # what makes a folder a session
_WATCHED = ("", _PLAN, "/00-input.md", "/FINAL.md", "/FINAL.yaml", "/calls")
_TABLE = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, signature TEXT, row TEXT, paid TEXT, searchable INTEGER
)"""
_SAVE = """
INSERT INTO sessions (name, signature, row, paid, searchable) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (name) DO UPDATE SET
    signature = excluded.signature, row = excluded.row, paid = excluded.paid, searchable = 0"""

Found = TypeVar("Found")


class FoundSession(Struct, frozen=True):
    """A session of a folder as it is now: its place and its row, as JSON where the index had it.

    `paid` are its exchanges if it was just read; None if the index holds them.
    """

    place: str
    kept: str | dict[str, Any]
    paid: tuple[Paid, ...] | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The row as `rows` returns it."""
        return placed(json.loads(self.kept) if isinstance(self.kept, str) else self.kept, self.place)

    @property
    def damaged(self) -> bool:
        """True if it cannot be read. The index has no row of such a session that counts."""
        return not isinstance(self.kept, str) and self.kept["status"] == "damaged"


def rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows of all sessions in a folder, newest first; a damaged one has its error under `problem`."""
    return indexed(out, lambda db: _rows(refreshed(db, out).values()))


def _rows(found: Collection[FoundSession]) -> list[dict[str, Any]]:
    """Return the rows of sessions. Those of the index are parsed at once, which is faster than one by one."""
    parsed = iter(json.loads(f"[{','.join(item.kept for item in found if isinstance(item.kept, str))}]"))
    return [placed(next(parsed) if isinstance(item.kept, str) else item.kept, item.place) for item in found]


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
        kept = dict(db.execute("SELECT name, paid FROM sessions"))
        return [
            IndexEntry(row, tuple(Paid(*part) for part in json.loads(kept[key])) if item.paid is None else item.paid)
            for (key, item), row in zip(found.items(), _rows(found.values()), strict=True)
        ]

    return indexed(out, read)


# -- the file --------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the folder for data that cdo can generate again (`CDO_CACHE_DIR` overrides it)."""
    if custom := os.environ.get("CDO_CACHE_DIR"):
        return Path(custom).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cdo"))


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
    known = {name: (sign, row) for name, sign, row in db.execute("SELECT name, signature, row FROM sessions")}
    found: dict[str, FoundSession] = {}
    fresh: list[tuple[str, str, str, str]] = []
    place = str(out / "x")[:-1]
    for folder, sign in _signed(out):
        name = encodable(folder.removeprefix(PREFIX))
        if sign and name in known and known[name][0] == sign:
            found[name] = FoundSession(f"{place}{folder}", known[name][1])
            continue
        read = unplaced(out / folder)
        kept = "" if read.row["status"] == "damaged" else sign  # a repair may leave the folder's time unchanged
        fresh.append((name, kept, json.dumps(read.row), json.dumps(read.paid)))
        found[name] = FoundSession(f"{place}{folder}", read.row, read.paid)
    gone = known.keys() - found.keys()
    if fresh or gone:
        try:
            _save(db, fresh, gone)
        except sqlite3.OperationalError:
            if save:
                raise
    return found


def _save(db: sqlite3.Connection, fresh: Sequence[tuple[str, str, str, str]], gone: Iterable[str]) -> None:
    with writing(db):
        db.executemany("DELETE FROM sessions WHERE name = ?", [(name,) for name in gone])
        db.executemany(_SAVE, fresh)


def save(db: sqlite3.Connection, ended: Sequence[tuple[str, str, IndexEntry]]) -> list[int]:
    """Write the entries of sessions (name, signature, entry) within a transaction; return their keys."""
    db.executemany(
        _SAVE, [(name, sign, json.dumps(entry.row), json.dumps(entry.paid)) for name, sign, entry in ended]
    )
    return [db.execute("SELECT id FROM sessions WHERE name = ?", [name]).fetchone()[0] for name, *_ in ended]


def seen(path: Path) -> tuple[str, str]:
    """Return the signature of a session's files, however recent, and the part of it that is about single files.

    Both are "" if that is no session.
    """
    try:
        with released(open_directory(path.parent)) as out:
            whole = _signature(path.name, out, 0)[1]
    except OSError:
        return "", ""
    return whole, "".join(f"{part};" for part in whole.split(";")[1:-2])


def _signed(out: Path) -> list[tuple[str, str]]:
    """Return the folders of the sessions in `out` with their signatures, newest first."""
    folders, now = session_folders(out), time.time_ns()
    if not folders:
        return []
    found: list[tuple[int, str, str]] = []
    with released(os.open(out, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        for folder in folders:
            begun, sign = _signature(folder, fd, now)
            if begun:
                found.append((begun, folder, sign))
    return [(folder, sign) for _, folder, sign in sorted(found, reverse=True)]


def _signature(folder: str, out: int, now: int) -> tuple[int, str]:
    """Return when the session in a folder of the open directory `out` began (ns; 0 if it is none), and a signature.

    The signature changes with the session's files; it is "" if they changed too recently to rely on it.
    """
    begun, settled, found, stat = 0, True, "", os.stat
    for name in _WATCHED:
        try:
            status = stat(folder + name, dir_fd=out, follow_symlinks=False)
        except OSError:
            if name == _PLAN:
                return 0, ""
            found += ";"
            continue
        changed = status.st_mtime_ns
        if name == _PLAN:
            begun = changed
        if -_SETTLED < now - changed < _SETTLED:
            settled = False
        found += f"{status.st_ino} {status.st_size} {changed};"
    return begun, found if settled else ""
