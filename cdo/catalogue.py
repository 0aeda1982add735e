"""The library of past runs: what there is to know of every session in a folder, and a search through their texts.

The files are the truth. An SQLite file in the user's cache remembers what was read of them, so that only sessions
that changed are read again; where it cannot be used (locked, damaged, not writable) the same is done in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from cdo.durable import closing as released
from cdo.durable import encodable, open_directory, signature
from cdo.errors import CdoError, ConfigError, SessionError
from cdo.queries import quoted
from cdo.sessions import PREFIX, locked, sessions
from cdo.spent import Spent

if TYPE_CHECKING:
    from cdo.archive import Archive

VERSION = 2
COLUMNS = ("decision", "sections", "tensions", "positions", "problem")
MARKS = "\x01", "\x02"  # around the words of a passage that match
_WEIGHTS = (8.0, 2.0, 2.0, 1.0, 6.0)
_PATIENCE = 1.0  # seconds that another process is waited for
_SETTLED = 2.0  # seconds; what changed more recently may change again within one tick of the file system's clock
_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BREAK = "\x1e"  # between the sections of a session
_SIGNS = str.maketrans(dict.fromkeys((*MARKS, _BREAK)))
# What cdo itself writes into a section: it would match in every session alike.
_FORM = re.compile(
    r"(?m)^(?:\*\*[01]\.\d\d \(.*, uncalibrated\)\*\*|On record: .*"
    r"|Citations: \d+ of \d+ were found in the repository as cited\..*)$"
)
_TAIL = 2**15  # bytes of a journal in which its last event stands
_AFTERWARDS = ("content", "note")  # events that tell nothing of how a run stands
_WATCHED = ("", "session.yaml", "00-input.md", "FINAL.md", "calls")
_TABLE = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, signature TEXT, row TEXT, paid TEXT, searchable INTEGER
)"""
_TEXTS = f"""
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5(
    {", ".join(COLUMNS)}, headings UNINDEXED, tokenize = "porter unicode61 remove_diacritics 2"
)"""
_MATCHING = "SELECT rowid FROM texts WHERE texts MATCH ?"
_SAVE = """
INSERT INTO sessions (name, signature, row, paid, searchable) VALUES (?, ?, ?, ?, 0)
ON CONFLICT (name) DO UPDATE SET
    signature = excluded.signature, row = excluded.row, paid = excluded.paid, searchable = 0"""

Found = TypeVar("Found")


class Paid(NamedTuple):
    """One recorded exchange, as costs are summed. `cost` is in dollars; `unpriced` is 1 where its price is unknown.

    `turn` is None outside of turns; `shared` tells that a fork took it over from the session that paid for it.
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


@dataclass(frozen=True)
class Entry:
    """What is known of one session: its row as `rows` gives it, and what it paid for."""

    row: dict[str, Any]
    paid: tuple[Paid, ...] = ()


# A row, and what was paid where it was just read; None where the index has it.
_Fresh = tuple[dict[str, Any], tuple[Paid, ...] | None]


@dataclass(frozen=True)
class Hit:
    """A session that a search found: `passage` of what is called `where`, with `MARKS` around what matches.

    `where` is one of `COLUMNS`, or in place of `sections` the heading of the section in small letters.
    """

    row: dict[str, Any]
    where: str
    passage: str


# -- what there is ---------------------------------------------------------------------------------


def rows(out: Path) -> list[dict[str, Any]]:
    """All sessions of a folder, newest first; a damaged one says so under `status`, and why under `problem`."""
    return _indexed(out, lambda db: [row for row, _ in _refreshed(db, out).values()])


def entries(out: Path) -> list[Entry]:
    """The same with what each session paid for."""

    def read(db: sqlite3.Connection) -> list[Entry]:
        found = _refreshed(db, out)
        kept = dict(db.execute("SELECT name, paid FROM sessions"))
        return [
            Entry(row, tuple(Paid(*item) for item in json.loads(kept[key])) if paid is None else paid)
            for key, (row, paid) in found.items()
        ]

    return _indexed(out, read)


def entry(path: Path) -> Entry:
    """What there is to know of one session, read from its files; a damaged one as `rows` has it."""
    return _placed(_safely(path), path)


def look(archive: Archive) -> Entry:
    """The same of a session wherever it is kept; raise `SessionError` when it is damaged."""
    from cdo.archive import Folder

    found = _checked(archive)
    if isinstance(archive, Folder):
        return _placed(found, archive.path)
    return Entry({"session": archive.name, "path": archive.place, **found.row}, found.paid)


def _safely(path: Path) -> Entry:
    from cdo.archive import Folder

    try:
        return _checked(Folder(path))
    except CdoError as error:
        return Entry({"status": "damaged", "problem": error.message})


def _checked(archive: Archive) -> Entry:
    try:
        return _read(archive)
    except (KeyError, TypeError, ValueError, AttributeError):
        why = f"{archive.place} holds records that this version of cdo cannot read."
        raise SessionError(why, "Update cdo.") from None


def _read(archive: Archive) -> Entry:
    from cdo.final import final_section
    from cdo.frozen import read_frozen
    from cdo.history import spent_by

    frozen = read_frozen(archive.text("session.yaml"), Path(archive.place))
    records = archive.records()
    used = sum(spent_by(records)[0].values(), Spent())
    plan = frozen.plan
    row: dict[str, Any] = {"created": frozen.created, "preset": plan.preset, "mode": plan.mode}
    row |= {"modifiers": list(plan.modifiers), "domain": plan.domain, "models": list(plan.named)}
    row |= {"calls": used.calls, "tokens": used.tokens, "cost": used.known_cost, "status": "unfinished"}
    final = archive.artifact("FINAL")
    if final is not None:
        row["status"] = str(final.own.get("status") or "finished")
        row["confidence"] = final.meta.get("confidence")
    if frozen.forked:
        row["forked"] = f"from {frozen.forked.session} after turn {frozen.forked.turn}"
    row["problem"] = _flat(archive.text("00-input.md"))
    if final is not None:
        row["decision"] = _flat(final_section(final.body, "Decision"))
        tensions = final.own.get("open_tensions")
        row["open_tensions"] = list(map(str, tensions)) if isinstance(tensions, list) else []
    return Entry(row, tuple(_paid(record, plan.known_roles) for record in records if record["kind"] == "exchange"))


def _paid(record: dict[str, Any], roles: Sequence[str]) -> Paid:
    call, spent = str(record["call"]), Spent.of(record)
    head, _, voice = call.partition("-")
    turn = int(head[1:]) if head[:1] == "t" and head[1:].isdecimal() else None
    role = call if turn is None else voice
    base, _, seat = role.rpartition("-")
    if seat.isdecimal() and base in roles and role not in roles:  # "critic-2" is a critic as well
        role = base
    model, kind, started = (str(record.get(key) or "") for key in ("model", "call_kind", "started"))
    shared = bool(record.get("from"))
    return Paid(call, kind, role, turn, model, started, shared, spent.tokens, spent.cost, spent.unpriced)


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())


def _placed(found: Entry, path: Path) -> Entry:
    """An entry with the session's name and path, and whether it runs now or waits for a person."""
    row = {"session": path.name.removeprefix(PREFIX), "path": str(path), **found.row}
    if row["status"] == "unfinished":
        row["status"] = "running" if locked(path) else "paused" if _paused(path) else "unfinished"
    return Entry(row, found.paid)


def _paused(path: Path) -> bool:
    """Whether the last thing that a session's journal tells is that it waits for a person."""
    try:
        with (
            released(open_directory(path)) as folder,
            released(os.open("journal.jsonl", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)) as fd,
        ):
            tail = os.pread(fd, _TAIL, max(0, os.fstat(fd).st_size - _TAIL))
        for line in reversed(tail.split(b"\n")[:-1]):
            event = json.loads(line)
            if event["event"] not in _AFTERWARDS:
                return bool(event["event"] == "stopped" and event.get("status") == "NeedsHuman")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False  # it only informs, and may hold anything
    return False


# -- search ----------------------------------------------------------------------------------------


def search(out: Path, match: str, most: int | None = None) -> list[Hit]:
    """The sessions that an expression of `queries.match` finds, best first, at most `most`."""
    if not match:
        return []
    passages = ", ".join(f"snippet(texts, {at}, ?, ?, '…', 24)" for at in range(len(COLUMNS)))
    passages = f"SELECT {passages}, sections, headings FROM texts WHERE texts MATCH ? AND rowid = ?"

    def find(db: sqlite3.Connection) -> list[Hit]:
        there = _searchable(db, out)
        values = [*MARKS * len(COLUMNS), match]
        best = _ranked(db, match, there)[:most]
        return [_hit(there[key], db.execute(passages, [*values, key]).fetchone()) for key in best]

    return _indexed(out, find)


def _ranked(db: sqlite3.Connection, match: str, there: Mapping[int, Any]) -> list[int]:
    """The keys of what matches, best first; of those as good the newest."""
    weights = ", ".join(map(str, _WEIGHTS))
    found = db.execute(f"SELECT bm25(texts, {weights}), rowid FROM texts WHERE texts MATCH ?", [match])
    places = {key: place for place, key in enumerate(there)}
    return [key for *_, key in sorted((round(rank, 6), places[key], key) for rank, key in found if key in there)]


def _hit(row: dict[str, Any], passages: Sequence[str]) -> Hit:
    """The hit with the passage in which most matches; the first text of `COLUMNS` where several have as many."""
    *passages, sections, headings = passages
    where, passage = max(zip(COLUMNS, passages, strict=True), key=lambda item: item[1].count(MARKS[0]))
    if where == "sections":
        where, passage = _placed_in(sections, headings.split(_BREAK), passage)
    return Hit(row, where, _flat(passage))


def _placed_in(sections: str, headings: Sequence[str], passage: str) -> tuple[str, str]:
    """The heading under which most of a passage of `sections` matches, and what of it stands there."""
    parts = passage.split(_BREAK)
    best = max(range(len(parts)), key=lambda at: parts[at].count(MARKS[0]))
    bare = passage.translate({ord(mark): None for mark in MARKS}).removeprefix("…").removesuffix("…")
    first = sections.count(_BREAK, 0, max(0, sections.find(bare)))
    return headings[first + best], parts[best]


def related(out: Path, words: Sequence[str], common: int) -> list[dict[str, Any]]:
    """The sessions in whose problem or decision at least `common` of the words stand, best first."""
    if not words:
        return []
    inside = "{problem decision} :"

    def find(db: sqlite3.Connection) -> list[dict[str, Any]]:
        there, seen = _searchable(db, out), Counter[int]()
        for word in words:
            seen.update(key for (key,) in db.execute(_MATCHING, [f"{inside} {quoted(word)}"]))
        best = _ranked(db, f"{inside} ({' OR '.join(map(quoted, words))})", there)
        return [there[key] for key in best if seen[key] >= common]

    return _indexed(out, find)


def _searchable(db: sqlite3.Connection, out: Path) -> dict[int, dict[str, Any]]:
    """The rows that can be read by their keys in `texts`, newest first, after what was missing there was added.

    Raises `sqlite3.Error` where the index cannot be written to.
    """
    found = {key: row for key, (row, _) in _refreshed(db, out, save=True).items()}
    try:
        db.execute(_TEXTS)
    except sqlite3.OperationalError as error:
        if "no such module" in str(error):
            why = "The SQLite of this Python has no full-text search (FTS5)."
            raise ConfigError(
                why, "Use another Python; `cdo list WORDS` looks through problems and decisions."
            ) from None
        raise
    known = {name: rest for name, *rest in db.execute("SELECT name, id, signature, searchable FROM sessions")}
    there = {known[name][0]: row for name, row in found.items() if name in known and row["status"] != "damaged"}
    new = [known[name] for name, row in found.items() if name in known and not known[name][2]]
    texts = [(key, *_texts(there[key])) for key, *_ in new if key in there]
    if texts:
        with _writing(db):
            db.execute("DELETE FROM texts WHERE rowid IN (SELECT rowid FROM texts EXCEPT SELECT id FROM sessions)")
            db.executemany("DELETE FROM texts WHERE rowid = ?", [(key,) for key, *_ in texts])
            db.executemany(
                f"INSERT INTO texts (rowid, {', '.join(COLUMNS)}, headings) VALUES (?, ?, ?, ?, ?, ?, ?)", texts
            )
            done = [(key, sign) for key, sign, _ in new if key in there]
            db.executemany("UPDATE sessions SET searchable = 1 WHERE id = ? AND signature = ?", done)
    return there


def _texts(row: dict[str, Any]) -> tuple[str, ...]:
    """What can be searched of a session, by `COLUMNS`, and the headings of its sections."""
    from cdo import history
    from cdo.archive import Folder

    sections, tensions, positions = dict[str, str](), "", ""
    try:
        past = history.read(Folder(Path(row["path"])))
        if past.final:
            sections = _argued(past.final.sections)
        tensions = "\n".join(life.title for life in past.tensions)
        positions = "\n".join(dict.fromkeys(said.position for turn in past.turns for said in turn.voices))
    except (CdoError, KeyError, TypeError, ValueError, AttributeError):
        positions = ""  # a file that no reader of lists needs is damaged
    told = [str(row.get("decision") or ""), _BREAK.join(sections.values()), tensions, positions, row["problem"]]
    return tuple(map(encodable, [*told, _BREAK.join(sections)]))


def _argued(sections: Mapping[str, str]) -> dict[str, str]:
    """What was written under the headings of FINAL.md, by them: neither the decision nor what cdo writes itself."""
    from cdo import worth

    return {
        " ".join(title.translate(_SIGNS).casefold().split()): _FORM.sub("", text).translate(_SIGNS).strip()
        for title, text in sections.items()
        if title not in ("Decision", worth.TITLE)
    }


# -- the index -------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where cdo keeps what it can make again (`CDO_CACHE_DIR` moves it)."""
    if custom := os.environ.get("CDO_CACHE_DIR"):
        return Path(custom).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cdo"))


def index_file(out: Path) -> Path:
    """The index of a folder of sessions."""
    place = os.fsencode(os.path.realpath(out))
    return cache_folder() / f"library-{sha256(place).hexdigest()[:16]}.sqlite"


def _indexed(out: Path, work: Callable[[sqlite3.Connection], Found]) -> Found:
    """What `work` finds with the index; with one in memory where the file cannot be used."""
    if not out.is_dir():
        with closing(_prepared(sqlite3.connect(":memory:", isolation_level=None))) as db:
            return work(db)
    file = index_file(out)
    try:
        with closing(_connected(file)) as db:
            return work(db)
    except (sqlite3.Error, OSError, ValueError, TypeError, KeyError) as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) in _DAMAGED and not isinstance(error, OSError):
            for name in (file, file.with_name(f"{file.name}-journal")):  # the next call makes a new one
                with contextlib.suppress(OSError):
                    name.unlink()
    with closing(_prepared(sqlite3.connect(":memory:", isolation_level=None))) as db:
        return work(db)


def _connected(file: Path) -> sqlite3.Connection:
    """The index in a file that only its owner may read; raises `OSError` and `sqlite3.Error`."""
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    return _prepared(sqlite3.connect(file, timeout=_PATIENCE, isolation_level=None))


def _prepared(db: sqlite3.Connection) -> sqlite3.Connection:
    """A connection whose table is there; raises `sqlite3.Error`, also for an index of another version."""
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with _writing(db):
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
def _writing(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _refreshed(db: sqlite3.Connection, out: Path, *, save: bool = False) -> dict[str, _Fresh]:
    """Every session as its files have it now, newest first, by its name in the index.

    With `save` an index that cannot be written to is an error, else it does not matter.
    """
    known = {name: (sign, row) for name, sign, row in db.execute("SELECT name, signature, row FROM sessions")}
    found: dict[str, _Fresh] = {}
    fresh: list[tuple[str, str, str, str]] = []
    now = time.time()
    for path in sessions(out):
        name = encodable(path.name.removeprefix(PREFIX))
        sign = _signature(path, now)
        if sign and name in known and known[name][0] == sign:
            found[name] = _placed(Entry(json.loads(known[name][1])), path).row, None
            continue
        read = _safely(path)
        kept = "" if read.row["status"] == "damaged" else sign  # a mended file may have kept its folder's time
        fresh.append((name, kept, json.dumps(read.row), json.dumps(read.paid)))
        found[name] = _placed(read, path).row, read.paid
    gone = known.keys() - found.keys()
    if fresh or gone:
        try:
            _save(db, fresh, gone)
        except sqlite3.OperationalError:
            if save:
                raise
    return found


def _save(db: sqlite3.Connection, fresh: Sequence[tuple[str, str, str, str]], gone: Iterable[str]) -> None:
    with _writing(db):
        db.executemany("DELETE FROM sessions WHERE name = ?", [(name,) for name in gone])
        db.executemany(_SAVE, fresh)


def _signature(path: Path, now: float) -> str:
    """What of a session's files differs once they changed; "" where they changed so recently that it may not."""
    found: list[tuple[int, ...]] = []
    for name in _WATCHED:
        try:
            status = os.lstat(f"{path}/{name}")
        except OSError:
            found.append(())
            continue
        if abs(now - status.st_mtime) < _SETTLED:
            return ""
        found.append(signature(status))
    return json.dumps(found)
