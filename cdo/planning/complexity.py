"""Picks a preset by the complexity of the problem when none is given.

The seed's method: token count, question marks, domain keywords, scope markers. No model is asked: gauge is
pure, deterministic and free, and says why. The points and words are in `engine/complexity.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from cdo.core.formatting import pluralise, unspaced

if TYPE_CHECKING:
    from cdo.content.schemas import Complexity

TABLES = "engine/complexity"  # the content file
FOREIGN_WORDS = 5  # a text with fewer words may be English even if none of them is known

# At most this much is read: the start, and the end, where the question follows a long paste.
READ_START, READ_END = 6_000, 2_000
WHY_LIMIT = 120
SETTLED_LIMIT = 100  # characters; a longer problem is never taken for one that needs no deliberation

_WORD = re.compile(r"[^\W_]+")
_QUESTION_MARK = re.compile(r"\?(?![\w?&=/%])|[？؟]+")  # the last of `???`; not the one inside a URL
_CODE_START = re.compile(
    r"(?:async def|def|class|import|from \S+ import|return|func|fn|const|let|var|public|private|static)\s"
    r"|(?:if|elif|for|while|with|except|else|try)\b.*:$"
    r"|#include|Traceback \(|File \"|at \S+\(|diff --git|@@ |>>> |[})\]]|\"[^\"]*\":|\d{4}-\d\d-\d\d[T ]\d\d:"
)
_CODE_ENDS = ("{", "}", "};", ");", "];", '";', "';", "},", "],")
_CODE_SIGNS = (" = ", " == ", " != ", " += ")
_INDENT = (" ", "\t")
_CODE_LINES = 3  # fewer lines that look like code are prose


# -- the method -----------------------------------------------------------------------------------


class Gauge(Struct, frozen=True):
    """A recommended preset. `signals` are the parts of `why`, which is one line of ≤ 120 characters."""

    preset: str
    score: float
    signals: tuple[str, ...]
    why: str


class _Signal(NamedTuple):
    """A sign of complexity: its points, its text in `why`, and a short text for when the line gets too long."""

    points: float
    text: str
    short: str


class _ProblemReading(NamedTuple):
    """A problem as gauge reads it: counts, and the markers found in the prose."""

    words: int  # as a person counts them
    different: int  # different words, without those that only say "this is small"
    questions: int
    open: tuple[str, ...]
    fields: tuple[str, ...]
    wide: tuple[str, ...]
    narrow: tuple[str, ...]
    code: bool
    cut: bool
    foreign: bool


def gauge(problem: str, tables: Complexity) -> Gauge:
    """Return the preset for a problem, and why.

    Pure and total: any text has an answer. Of a long text only the first 6,000 and the last 2,000 characters are
    read; `why` then says so. The keywords are English; other languages are judged by length and question marks alone.
    Pasted code is ignored: its words are not the problem's.
    """
    reading = _read(problem, tables)
    signals = [signal for signal in _signals(reading, tables) if signal is not None]
    score = max(0.0, sum(signal.points for signal in signals))
    if not reading.wide or len(reading.fields) < tables.full_needs_fields:
        score = min(score, tables.below_full)
    preset = [name for name, least in tables.thresholds.items() if score >= least][-1]
    texts = _fitting(preset, signals)
    return Gauge(preset, score, texts, f"{preset}: {', '.join(texts)}")


def subject(problem: str, tables: Complexity) -> tuple[str, tuple[str, ...]]:
    """Return the prose that gauge reads of a problem, and the fields (keys of `fields`) that it is about."""
    prose = _without_code(_window(problem)[0])[0]
    return prose, _find(tables.fields, _ProseWords(_WORD.findall(prose.casefold())))[0]


def settled(problem: str, tables: Complexity) -> str:
    """Return what makes a problem one that needs no deliberation, such as "arithmetic"; "" if nothing does."""
    text = " ".join(problem.split()).strip(" ?!.=").casefold()
    if len(text) > SETTLED_LIMIT:
        return ""
    return next((label for label, pattern in tables.settled.items() if re.fullmatch(pattern, text)), "")


def _signals(reading: _ProblemReading, tables: Complexity) -> list[_Signal | None]:
    """Return every signal in the order `why` names them; None for one that is absent."""
    points = tables.points
    length = max((value for least, value in points.length.items() if reading.different >= least), default=0.0)
    fields, wide = reading.fields[: len(points.fields) - 1], reading.wide[: len(points.wide) - 1]
    asked = points.questions[min(reading.questions, len(points.questions) - 1)]
    open_points = points.open_question if reading.questions else points.open_task
    narrow = sum(points.narrow.get(label, 0.0) for label in reading.narrow)
    limit = f"only {READ_START + READ_END:,} characters read"
    return [
        _signal(True, length, pluralise(reading.words, "word")),
        _signal(reading.cut, 0.0, limit, "only partly read"),
        _signal(reading.questions, asked, pluralise(reading.questions, "question")),
        _signal(fields, points.fields[len(fields)], " + ".join(fields), pluralise(len(fields), "field")),
        _signal(reading.open, open_points, "".join(reading.open[:1]), "open task"),
        _signal(wide, points.wide[len(wide)], " + ".join(wide), "wide scope"),
        _signal(reading.narrow, narrow, " + ".join(reading.narrow), "narrow scope"),
        _signal(reading.foreign, points.no_known_word, "no known word"),
        _signal(reading.code, 0.0, "code left out"),
    ]


def _signal(there: object, points: float, text: str, short: str = "") -> _Signal | None:
    return _Signal(points, text, short or text) if there else None


def _fitting(preset: str, signals: list[_Signal]) -> tuple[str, ...]:
    """Return the signals' texts, from the last one on shortened until `why` fits its limit."""
    texts = [signal.text for signal in signals]
    for position in reversed(range(len(texts))):
        if len(f"{preset}: {', '.join(texts)}") <= WHY_LIMIT:
            break
        texts[position] = signals[position].short
    return tuple(texts)


def _read(problem: str, tables: Complexity) -> _ProblemReading:
    """Count words and question marks and find the markers, in the prose of what is read."""
    text, cut = _window(problem)
    prose, code = _without_code(text)
    tokens = _WORD.findall(prose.casefold())
    line = _ProseWords(tokens)
    narrow, narrow_words = _find(tables.narrow, line)
    open_tasks, fields, wide = (_find(table, line)[0] for table in (tables.open, tables.fields, tables.wide))
    vocabulary = set(tokens)
    # Scripts without blanks have about one word per different sign.
    different = len(vocabulary - narrow_words) + len(unspaced(prose))
    english = bool(open_tasks or fields or wide or narrow) or not vocabulary.isdisjoint(tables.english.split())
    return _ProblemReading(
        words=len(prose.split()),
        different=different,
        questions=len(_QUESTION_MARK.findall(prose)),
        open=open_tasks,
        fields=fields,
        wide=wide,
        narrow=narrow,
        code=code,
        cut=cut,
        foreign=different >= FOREIGN_WORDS and not english,
    )


def _window(problem: str) -> tuple[str, bool]:
    """Return the part of a problem that is read, and whether that is less than all of it."""
    if len(problem) <= READ_START + READ_END:
        return problem, False
    # A fence that opens or closes in what is left out must not turn the prose after it into code.
    fence = "\n```\n" if problem.count("```", READ_START, len(problem) - READ_END) % 2 else "\n"
    return problem[:READ_START] + fence + problem[-READ_END:], True


def _without_code(text: str) -> tuple[str, bool]:
    """Return the prose of a text, and whether there was code: fenced, or lines that look like code."""
    pieces = text.split("```")
    lines = "\n".join(pieces[::2]).splitlines()
    code: set[int] = set()
    for number, line in enumerate(lines):
        if _is_code(line) or (number - 1 in code and line.startswith(_INDENT)):
            code.add(number)
    if len(code) < _CODE_LINES:
        code = set()
    prose = "\n".join(line for number, line in enumerate(lines) if number not in code)
    return prose, bool(code) or any(piece.strip() for piece in pieces[1::2])


def _is_code(line: str) -> bool:
    bare = line.strip()
    if _CODE_START.match(bare) or bare.endswith(_CODE_ENDS):
        return True
    return any(sign in bare for sign in _CODE_SIGNS) and (bare.endswith(";") or line.startswith(_INDENT))


def _line(words: Iterable[str]) -> str:
    """Join words for `_find`: with two blanks between, so that neighbouring matches share none."""
    return f" {'  '.join(words)} "


class _ProseWords:
    """The words of a text as `_find` looks through them."""

    def __init__(self, words: list[str]) -> None:
        self.different = dict.fromkeys(words)
        self._line, self._each_once = _line(words), _line(self.different)

    def has(self, first: str, needle: str) -> bool:
        """True if a pattern matches; `first` is its first word if it has several, which stand side by side."""
        return needle in self._line if first in self.different else not first and needle in self._each_once


def _find(table: Mapping[str, str], words: _ProseWords) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the labels of a table that match the words of a text, and the words of the matching patterns."""
    labels: dict[str, None] = {}
    found: set[str] = set()
    for label, first, needle in _needles(tuple(table.items())):
        if words.has(first, needle):
            labels[label] = None
            found.update(needle.split())
    return tuple(labels), frozenset(found)


@lru_cache(64)
def _needles(table: tuple[tuple[str, str], ...]) -> list[tuple[str, str, str]]:
    """Return the labels of a table with their patterns, as `_ProseWords.has` takes them."""
    needles = [(label, _needle(pattern)) for label, row in table for pattern in row.split(",")]
    return [(label, needle.split()[0] if len(needle.split()) > 1 else "", needle) for label, needle in needles]


def _needle(pattern: str) -> str:
    """Return ` word word ` for whole words, ` word` for a pattern that ends in `*`."""
    spaced = " " + "  ".join(pattern.split())
    return spaced[:-1] if spaced.endswith("*") else spaced + " "
