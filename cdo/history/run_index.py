"""Indexes past runs: reads the key data of every session in a folder and caches them in SQLite.

The session files are authoritative. The cache lies in the user's cache folder, so that only changed sessions are read
again. If it cannot be used (locked, damaged, not writable), the index is built in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Struct

from cdo.core.errors import CdoError, SessionError
from cdo.core.mission_names import CHAIR, ENVOY, MODE, WATCHDOG, round_of
from cdo.core.people import person_of
from cdo.core.usage import TotalUsage
from cdo.files.atomic_files import closing as released
from cdo.files.atomic_files import encodable, open_directory
from cdo.session.records import PREFIX, locked, session_folders

if TYPE_CHECKING:
    from cdo.session.reader import SessionReader

VERSION = 4
_PATIENCE = 1.0  # seconds to wait for another process's lock
_SETTLED = 2 * 10**9  # ns; a file changed more recently may change again in one tick of the file system's clock
_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TAIL = 2**15  # bytes at the end of a journal that hold its last event
_AFTERWARDS = ("content", "note")  # events that say nothing about the state of a run
_PLAN = "/session.yaml"  # what makes a folder a session
_WATCHED = ("", _PLAN, "/00-input.md", "/FINAL.md", "/FINAL.yaml", "/calls")
_OF_ROUND = re.compile(r"r([0-9]{1,6})-([a-z]+)(?:-(operative-[0-9]+))?(?:-.*)?")
_AGENTS = {"bootstrap": CHAIR, "plan": CHAIR, "inspect": WATCHDOG, "present": ENVOY}
_TABLE = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, signature TEXT, row TEXT, paid TEXT, searchable INTEGER
)"""
_SAVE = """
INSERT INTO sessions (name, signature, row, paid, searchable) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (name) DO UPDATE SET
    signature = excluded.signature, row = excluded.row, paid = excluded.paid, searchable = 0"""

Found = TypeVar("Found")


class Paid(NamedTuple):
    """One recorded exchange as costs are summed. `cost` is in dollars; `unpriced` is 1 if its price is unknown.

    `turn` is None outside of turns. The turns of a mission are its rounds, and its roles are its agents. `shared`: a
    fork took the exchange over from the session that paid for it.
    """

    call: str
    kind: str
    role: str
    turn: int | None
    model: str
    started: str
    shared: bool
    tokens: int
    cost: float
    unpriced: int


class IndexEntry(Struct, frozen=True):
    """The data of one session: its row as `rows` returns it, and its recorded exchanges."""

    row: dict[str, Any]
    paid: tuple[Paid, ...] = ()


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
        return _placed(json.loads(self.kept) if isinstance(self.kept, str) else self.kept, self.place)

    @property
    def damaged(self) -> bool:
        """True if it cannot be read. The index has no row of such a session that counts."""
        return not isinstance(self.kept, str) and self.kept["status"] == "damaged"


# -- sessions --------------------------------------------------------------------------------------


def rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows of all sessions in a folder, newest first; a damaged one has its error under `problem`."""
    return indexed(out, lambda db: _rows(refreshed(db, out).values()))


def _rows(found: Collection[FoundSession]) -> list[dict[str, Any]]:
    """Return the rows of sessions. Those of the index are parsed at once, which is faster than one by one."""
    parsed = iter(json.loads(f"[{','.join(item.kept for item in found if isinstance(item.kept, str))}]"))
    return [_placed(next(parsed) if isinstance(item.kept, str) else item.kept, item.place) for item in found]


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


def entry(path: Path) -> IndexEntry:
    """Read the entry of one session from its files; a damaged session gets a row as in `rows`."""
    return _entry(_safely(path), path)


def look(archive: SessionReader) -> IndexEntry:
    """Read the entry of a session wherever it is kept; raise `SessionError` if it is damaged."""
    from cdo.session.reader import SessionFolder

    found = _checked(archive)
    if isinstance(archive, SessionFolder):
        return _entry(found, archive.path)
    return IndexEntry({"session": archive.name, "path": archive.place, **found.row}, found.paid)


def read(archive: SessionReader) -> IndexEntry:
    """Read what the index holds of a session wherever it is kept; raise `SessionError` if it is damaged."""
    return _checked(archive)


def _safely(path: Path) -> IndexEntry:
    from cdo.session.reader import SessionFolder

    try:
        return _checked(SessionFolder(path))
    except CdoError as error:
        return IndexEntry({"status": "damaged", "problem": error.message})


def _checked(archive: SessionReader) -> IndexEntry:
    try:
        return _read(archive)
    except (KeyError, TypeError, ValueError, AttributeError):
        why = f"{archive.place} holds records that this version of cdo cannot read."
        raise SessionError(why, "Update cdo.") from None


def _read(archive: SessionReader) -> IndexEntry:
    from cdo.history.history import spent_by
    from cdo.runner.endpoint_batches.submissions import open_submissions

    frozen = archive.frozen()
    records = archive.records()
    used = sum(spent_by(records)[0].values(), TotalUsage())
    plan = frozen.plan
    row: dict[str, Any] = {"created": frozen.created, "preset": plan.preset, "mode": plan.mode}
    row |= {"modifiers": list(plan.modifiers), "domain": plan.domain, "models": list(plan.named)}
    row |= {"calls": used.calls, "tokens": used.tokens, "cost": used.known_cost, "status": "unfinished"}
    final = archive.artifact("FINAL")
    if final is not None:
        row["status"] = str(final.own.get("status") or "finished")
        row["confidence"] = final.meta.get("confidence")
    elif waiting := open_submissions(records):
        row["status"], row["waits"] = "waiting", "; ".join(submission.told() for submission in waiting)
    if frozen.forked:
        row["forked"] = f"from {frozen.forked.session} after turn {frozen.forked.turn}"
    if plan.mode == MODE:
        row["rounds"] = max((number for file in archive.files() if (number := round_of(file)) is not None), default=0)
        row["deliberations"] = [_nested(record) for record in records if record["kind"] == "nested"]
    row["problem"] = _flat(archive.text("00-input.md"))
    if final is not None:
        row["decision"] = _flat(decided(final.body))
        tensions = final.own.get("open_tensions")
        row["open_tensions"] = list(map(str, tensions)) if isinstance(tensions, list) else []
    asked = [record for record in records if record["kind"] == "exchange" and not person_of(str(record["model"]))]
    return IndexEntry(row, tuple(_paid(record, plan.known_roles) for record in asked))


def decided(body: str) -> str:
    """Return the decision in the body of a FINAL.md; for a mission, its result and the outcomes it accepted."""
    from cdo.formats.final_answer import final_section
    from cdo.formats.markdown import sections

    if decision := final_section(body, "Decision"):
        return decision.strip()
    found = sections(body)
    return "\n\n".join(filter(None, (found.get(key, "").strip() for key in ("result", "decisions"))))


def _nested(record: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a mission's deliberation: its session, which paid for it, its calls and its cost."""
    used = record["used"]
    return {
        "session": str(record["result"]["session"]),
        "calls": int(used["calls"]),
        "cost": None if used["unpriced"] else float(used["cost"]),
    }


def _paid(record: dict[str, Any], roles: Sequence[str]) -> Paid:
    call, spent = str(record["call"]), TotalUsage.of(record)
    head, _, voice = call.partition("-")
    turn = int(head[1:]) if head[:1] == "t" and head[1:].isdecimal() else None
    role = call if turn is None else voice
    if match := _OF_ROUND.fullmatch(call):
        turn, role = int(match[1]), match[3] or _AGENTS.get(match[2], match[2])
    base, _, seat = role.rpartition("-")
    if seat.isdecimal() and base in roles and role not in roles:  # "critic-2" is a critic as well
        role = base
    model, kind, started = (str(record.get(key) or "") for key in ("model", "call_kind", "started"))
    shared = bool(record.get("from"))
    return Paid(call, kind, role, turn, model, started, shared, spent.tokens, spent.cost, spent.unpriced)


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())


def _entry(found: IndexEntry, path: Path) -> IndexEntry:
    return IndexEntry(_placed(found.row, str(path)), found.paid)


def _placed(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Add the session's name and its path `place` to a row, and whether it runs now or waits for a person."""
    placed = {"session": place.rpartition("/")[2].removeprefix(PREFIX), "path": place, **row}
    if placed["status"] == "waiting" and locked(Path(place)):
        placed["status"] = "running"
    if placed["status"] == "unfinished":
        path = Path(place)
        placed["status"] = "running" if locked(path) else _stopped(path)
    return placed


def _stopped(path: Path) -> str:
    """Return the status of a session that nobody runs: "paused" waits for a person, "answered" for a resume alone.

    It waits for a person if the last event on the state of the run in its journal says so.
    """
    from cdo.history.pending import answered
    from cdo.session.reader import SessionFolder

    event = _last_event(path)
    if event.get("event") != "stopped" or event.get("status") != "NeedsHuman":
        return "unfinished"
    try:
        return "answered" if answered(SessionFolder(path)) else "paused"
    except (CdoError, KeyError, TypeError, ValueError, AttributeError):  # `cdo resume` says what is damaged
        return "paused"


def asks(path: Path) -> bool:
    """Return True if the last event of a session, which runs now, is that it asks a person."""
    return _last_event(path).get("event") in ("pause", "review")


def _last_event(path: Path) -> dict[str, Any]:
    """Return the last event on the state of a run in its journal, {} if there is none that can be read."""
    try:
        with (
            released(open_directory(path)) as folder,
            released(os.open("journal.jsonl", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)) as fd,
        ):
            tail = os.pread(fd, _TAIL, max(0, os.fstat(fd).st_size - _TAIL))
        for line in reversed(tail.split(b"\n")[:-1]):
            event: dict[str, Any] = json.loads(line)
            if event["event"] not in _AFTERWARDS:
                return event
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # the journal is only informative, and may hold anything
    return {}


# -- the index -------------------------------------------------------------------------------------


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
        read = _safely(out / folder)
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
