"""Parses filters, dates and search words for the list of past runs. Pure.

A search consists of words. What SQLite's search would take for syntax is taken literally. `"two words"` is a phrase,
`-word` excludes a word, `word*` is any word that begins so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from cdo.core.errors import UsageError
from cdo.core.words import FUNCTION_WORDS

LIVE = ("running", "paused", "answered", "unfinished", "damaged")  # statuses of sessions without a readable FINAL.md
_AGO = re.compile(r"([0-9]{1,4})([hdw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_PART = re.compile(r'(?P<out>-?)"(?P<phrase>[^"]*)"?(?P<more>\*?)|(?P<word>[^\s"]+)')
_STOP = FUNCTION_WORDS | {"like", "make", "need"}


class RunFilter(Struct, frozen=True):
    """Which sessions to list: `kind` is a preset, mode or domain, `status` a status of rows.

    "finished" matches any session with a FINAL.md; "unfinished" also matches one that is paused or answered.

    All `words` must occur in problem, decision or name. `since` is the first moment, `until` the one after the last.
    """

    words: tuple[str, ...] = ()
    kind: str = ""
    status: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def takes(self, row: Mapping[str, Any]) -> bool:
        """True if a row of `run_index.rows` matches. A row without a date never matches a filter with dates."""
        if self.kind and self.kind not in (row.get("preset"), row.get("mode"), row.get("domain")):
            return False
        if self.status and not self._stands(row):
            return False
        if self.since or self.until:
            begun = created(row)
            if begun is None or (self.since and begun < self.since) or (self.until and begun >= self.until):
                return False
        if not self.words:
            return True
        text = " ".join(str(row.get(key) or "") for key in ("session", "problem", "decision")).casefold()
        return all(word.casefold() in text for word in self.words)

    def _stands(self, row: Mapping[str, Any]) -> bool:
        match self.status:
            case "finished":
                return finished(row)
            case "unfinished":
                return row["status"] in ("unfinished", "paused", "answered")
        return bool(row["status"] == self.status)


def filtered(rows: Iterable[dict[str, Any]], wanted: RunFilter) -> list[dict[str, Any]]:
    """Return the matching rows, in their order."""
    return [row for row in rows if wanted.takes(row)]


def finished(row: Mapping[str, Any]) -> bool:
    """True if a session has a FINAL.md that can be read."""
    return row["status"] not in LIVE


def created(row: Mapping[str, Any]) -> datetime | None:
    """Return when a session was created; None if its row does not say."""
    try:
        found = datetime.fromisoformat(str(row.get("created")))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def moment(text: str, now: datetime, *, end: bool = False) -> datetime:
    """Parse a time that a person wrote (2026-11-22, today, yesterday, 7d, 24h, 2w), relative to `now`.

    The time is local, without a zone. A day is its first moment, or with `end` the first moment after it. Raises
    `UsageError`.
    """
    text = text.strip().casefold()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if match := _AGO.fullmatch(text):
        return now - int(match[1]) * _UNITS[match[2]]
    try:
        days = {"today": today, "yesterday": today - timedelta(days=1)}
        day = days.get(text) or datetime.strptime(text, "%Y-%m-%d")
        return day + timedelta(days=1) if end else day
    except (ValueError, OverflowError):
        hint = "Write a day as 2026-11-22, today or yesterday, or how long ago: 24h, 7d, 2w."
        raise UsageError(f"`{text[:40]}` is not a date.", hint) from None


def family(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Map each session to the one that it was originally forked from, as far as `rows` say, else to itself."""
    parents = {row["session"]: str(row["forked"]).split()[1] for row in rows if row.get("forked")}
    found = {}
    for row in rows:
        name, seen = row["session"], set[str]()
        while name in parents and name not in seen:
            seen.add(name)
            name = parents[name]
        found[row["session"]] = name
    return found


# -- searches --------------------------------------------------------------------------------------


def match(words: Sequence[str]) -> str:
    """Return the SQLite FTS5 expression for the typed words; "" if it would search for no word.

    An argument with blanks and without quotes is a phrase: the shell removed its quotes.
    """
    wanted: list[str] = []
    without: list[str] = []
    for argument in words:
        for out, text, prefix in _parts(argument):
            if any(map(str.isalnum, text)):
                (without if out else wanted).append(quoted(text) + "*" * prefix)
    if not wanted:
        return ""
    every = " AND ".join(wanted)
    return f"({every}) NOT ({' OR '.join(without)})" if without else every


def quoted(text: str) -> str:
    """Quote `text`, so that FTS5 takes it literally."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", " ")
    return '"' + clean.replace('"', '""') + '"'


def _parts(argument: str) -> list[tuple[bool, str, bool]]:
    """Return (exclude, text, prefix only) for each word and phrase of an argument."""
    if '"' not in argument and len(argument.split()) > 1:
        argument = re.sub(r"^\s*(-?)(.*?)(\*?)\s*$", r'\1"\2"\3', argument, flags=re.DOTALL)
    found = []
    for part in _PART.finditer(argument):
        if (word := part["word"]) is None:
            found.append((part["out"] == "-", part["phrase"], part["more"] == "*"))
        else:
            out = word.startswith("-")
            found.append((out, word[out:].rstrip("*"), word.endswith("*")))
    return found


def content_words(text: str, most: int = 48) -> list[str]:
    """Return the words that say what a text is about, each once, at most `most`."""
    found: dict[str, str] = {}
    for word in re.findall(r"\w[\w'’]*", text.casefold()):
        plain = re.sub(r"['’]\w*$", "", word)
        if len(plain) > 2 and plain not in _STOP:
            found.setdefault(plain.rstrip("s"), plain)
    return list(found.values())[:most]
