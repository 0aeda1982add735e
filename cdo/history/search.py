"""Searches the full text of past runs: what they asked, decided and argued, best match first.

The texts are stored beside the rows of the `run_index` (SQLite FTS5) and are rebuilt with them.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdo.core.errors import CdoError, ConfigError
from cdo.core.mission_names import MODE
from cdo.files.atomic_files import encodable
from cdo.history.run_index import FoundSession, IndexLine, attempt, indexed, refreshed, rows_of, save, writing
from cdo.history.search_query import quoted

if TYPE_CHECKING:
    from cdo.history.past_session import History
    from cdo.session.reader import SessionReader

COLUMNS = ("decision", "sections", "tensions", "positions", "problem")
MARKS = "\x01", "\x02"  # around the matching words of a passage
_WEIGHTS = (8.0, 2.0, 2.0, 1.0, 6.0)
_BREAK = "\x1e"  # between the sections of a session
_SIGNS = str.maketrans(dict.fromkeys((*MARKS, _BREAK)))
# Lines that cdo itself writes into a section: they would match in every session. The last is a count of citations.
_FORM = r"(?m)^(?:\*\*[01]\.\d\d(?: \(.*[,;] uncalibrated\)|[:,] .*)\*\*|On record: .*|{})$"
# Sections of a mission's FINAL.md that repeat its decision, its deliverables and its rounds.
_SAID_AGAIN = ("result", "decisions", "deliverables", "course")
_TEXTS = f"""
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5(
    {", ".join(COLUMNS)}, headings UNINDEXED, tokenize = "porter unicode61 remove_diacritics 2"
)"""
_MATCHING = "SELECT rowid FROM texts WHERE texts MATCH ?"


class Hit(Struct, frozen=True):
    """A session that a search found: a `passage` of the part `where`, with `MARKS` around the matching words.

    `where` is one of `COLUMNS`; in place of `sections` it is the heading of the section in lower case.
    """

    row: dict[str, Any]
    where: str
    passage: str


def search(out: Path, match: str, most: int | None = None) -> list[Hit]:
    """Return the sessions that match an expression of `search_query.match`, best first, at most `most`."""
    if not match:
        return []
    passages = ", ".join(f"snippet(texts, {at}, ?, ?, '…', 24)" for at in range(len(COLUMNS)))
    passages = f"SELECT {passages}, sections, headings FROM texts WHERE texts MATCH ? AND rowid = ?"

    def find(db: sqlite3.Connection) -> list[Hit]:
        there = _searchable(db, out)
        values = [*MARKS * len(COLUMNS), match]
        best = _ranked(db, match, there)[:most]
        rows = _rows(db, there, best)
        return [
            _hit(row, db.execute(passages, [*values, key]).fetchone()) for key, row in zip(best, rows, strict=True)
        ]

    return indexed(out, find)


def _ranked(db: sqlite3.Connection, match: str, there: Mapping[int, Any]) -> list[int]:
    """Return the keys of the matching sessions, best first; sessions of equal rank are sorted newest first."""
    weights = ", ".join(map(str, _WEIGHTS))
    found = db.execute(f"SELECT bm25(texts, {weights}), rowid FROM texts WHERE texts MATCH ?", [match])
    places = {key: place for place, key in enumerate(there)}
    return [key for *_, key in sorted((round(rank, 6), places[key], key) for rank, key in found if key in there)]


def _hit(row: dict[str, Any], passages: Sequence[str]) -> Hit:
    """Return the hit with the passage that has most matches; for equal counts, the first of `COLUMNS`."""
    *passages, sections, headings = passages
    where, passage = max(zip(COLUMNS, passages, strict=True), key=lambda item: item[1].count(MARKS[0]))
    if where == "sections":
        where, passage = _placed_in(sections, headings.split(_BREAK), passage)
    return Hit(row, where, " ".join(passage.split()))


def _placed_in(sections: str, headings: Sequence[str], passage: str) -> tuple[str, str]:
    """Return the heading of the section in which `passage` has most matches, and the passage's part in it."""
    parts = passage.split(_BREAK)
    best = max(range(len(parts)), key=lambda at: parts[at].count(MARKS[0]))
    bare = passage.translate({ord(mark): None for mark in MARKS}).removeprefix("…").removesuffix("…")
    first = sections.count(_BREAK, 0, max(0, sections.find(bare)))
    return headings[first + best], parts[best]


def related(out: Path, words: Sequence[str], common: int) -> list[dict[str, Any]]:
    """Return the sessions whose problem or decision contains at least `common` of the words, best first."""
    if not words:
        return []
    inside = "{problem decision} :"

    def find(db: sqlite3.Connection) -> list[dict[str, Any]]:
        there, seen = _searchable(db, out), Counter[int]()
        for word in words:
            seen.update(key for (key,) in db.execute(_MATCHING, [f"{inside} {quoted(word)}"]))
        best = _ranked(db, f"{inside} ({' OR '.join(map(quoted, words))})", there)
        return _rows(db, there, [key for key in best if seen[key] >= common])

    return indexed(out, find)


def _rows(
    db: sqlite3.Connection, there: Mapping[int, tuple[str, FoundSession]], keys: Sequence[int]
) -> list[dict[str, Any]]:
    return rows_of(db, dict(there[key] for key in keys))


def _searchable(db: sqlite3.Connection, out: Path) -> dict[int, tuple[str, FoundSession]]:
    """Index the texts that are missing; return the readable sessions, with their names, by their keys in `texts`.

    They are sorted, newest first.

    Raises `sqlite3.Error` if the index cannot be written, and `ConfigError` if SQLite has no full-text search.
    """
    found = refreshed(db, out, save=True)
    try:
        db.execute(_TEXTS)
    except sqlite3.OperationalError as error:
        if "no such module" in str(error):
            why = "The SQLite of this Python has no full-text search (FTS5)."
            raise ConfigError(
                why, "Use another Python; `cdo list WORDS` looks through problems and decisions."
            ) from None
        raise
    keys = dict[str, int](db.execute("SELECT name, id FROM sessions"))
    there = {keys[name]: (name, item) for name, item in found.items() if name in keys and not item.damaged}
    new = db.execute("SELECT id, signature FROM sessions WHERE searchable = 0").fetchall()
    if new := [(key, sign) for key, sign in new if key in there]:
        rows = _rows(db, there, [key for key, _ in new])
        texts = [(key, *_texts(row)) for (key, _), row in zip(new, rows, strict=True)]
        with writing(db):
            _insert(db, texts, new)
    return there


def _insert(db: sqlite3.Connection, texts: Sequence[tuple[Any, ...]], done: Sequence[tuple[int, str]]) -> None:
    """Put the texts of sessions, which begin with their keys, in place of older ones; `done` are (key, signature)."""
    db.execute("DELETE FROM texts WHERE rowid IN (SELECT rowid FROM texts EXCEPT SELECT id FROM sessions)")
    db.executemany("DELETE FROM texts WHERE rowid = ?", [(key,) for key, *_ in texts])
    db.executemany(f"INSERT INTO texts (rowid, {', '.join(COLUMNS)}, headings) VALUES (?, ?, ?, ?, ?, ?, ?)", texts)
    db.executemany("UPDATE sessions SET searchable = 1 WHERE id = ? AND signature = ?", done)


def keep(out: Path, ended: Sequence[tuple[IndexLine, tuple[str, ...]]]) -> None:
    """Write sessions of a folder into its index, each with its searchable texts.

    An index that cannot be written is left as it is: the sessions are then read when they are listed.
    """

    def write(db: sqlite3.Connection) -> None:
        with writing(db):
            keys = save(db, [line for line, _ in ended])
            db.execute(_TEXTS)
            texts = [(key, *said) for key, (_, said) in zip(keys, ended, strict=True)]
            _insert(db, texts, [(key, line.signature) for key, (line, _) in zip(keys, ended, strict=True)])

    attempt(out, write)


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    from cdo.session.reader import SessionFolder

    return texts_of(row, SessionFolder(Path(row["path"])))


def texts_of(row: Mapping[str, Any], archive: SessionReader, past: History | None = None) -> tuple[str, ...]:
    """Return the searchable texts of a session in the order of `COLUMNS`, then the headings of its sections.

    `past` is its history if that was read already, be it without FINAL.md.
    """
    from cdo.history import history
    from cdo.history.pending import unheard

    sections, tensions, positions = dict[str, str](), "", ""
    try:
        past, hidden = past or history.read(archive), unheard(archive)
        if final := past.final or history.final(archive):
            sections = _argued(final.sections)
        if row["mode"] == MODE:
            kept = {name: text for name, text in sections.items() if name not in _SAID_AGAIN}
            sections = {**_delivered(archive), **kept}
        tensions = "\n".join(life.title for life in past.tensions)
        turns = [turn for turn in past.turns if not 0 < hidden <= turn.number]
        heard = [said for turn in turns for said in turn.voices]
        if against := dict.fromkeys(item.text.translate(_SIGNS) for said in heard for item in said.objections):
            sections["objections"] = "\n".join(against)
        positions = "\n".join(dict.fromkeys(said.position for said in heard))
    except (CdoError, KeyError, TypeError, ValueError, AttributeError):
        positions = ""  # a file is damaged that the list of sessions does not need
    told = [str(row.get("decision") or ""), _BREAK.join(sections.values()), tensions, positions, row["problem"]]
    return tuple(map(encodable, [*told, _BREAK.join(sections)]))


def _delivered(archive: SessionReader) -> dict[str, str]:
    """Return the deliverables of a mission by file."""
    files = (file for file in archive.files() if file.startswith("deliverables/") and file.endswith(".md"))
    return {file: (archive.text(file) or "").translate(_SIGNS).strip() for file in files}


def _argued(sections: Mapping[str, str]) -> dict[str, str]:
    """Return the sections of FINAL.md by heading, without the decision and without those that cdo writes itself."""
    from cdo.history import baseline
    from cdo.programs.deliberation import final_record
    from cdo.repository.citation_marks import SUMMARY

    form = re.compile(_FORM.format(SUMMARY))
    return {
        " ".join(title.translate(_SIGNS).casefold().split()): form.sub("", text).translate(_SIGNS).strip()
        for title, text in sections.items()
        if title not in ("Decision", baseline.TITLE, final_record.TITLE)
    }
