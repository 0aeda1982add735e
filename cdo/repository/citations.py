"""Checks the citations of models' replies against the files of the repository."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from cdo.core.steps import CitationCheck
from cdo.repository.citation_syntax import Citation, each, phrase
from cdo.repository.quotes import standing
from cdo.repository.visible_files import MAX_BYTES, NotShowable, Tree, VisibleFile, lines_of, load, walk
from cdo.security.safe_open import DirectoryCache

DRIFT = 2  # how many lines away from the cited line a quote may be found
AROUND = 3  # lines shown to the synthesiser before and after a cited line
WIDEST = 160  # characters shown of each of these lines
MIN_LINE = 6  # characters without white space that a line needs to count as more than punctuation
MAX_FILES = 1_000  # files read in one check
MAX_NAMES = 50_000  # files searched when a cited file is looked up by name
MAX_CITATIONS = 2_000  # citations checked at a time
MAX_SEARCHED_FILES = 20_000  # files searched for quoted words
MAX_SEARCHED = 100_000_000  # total bytes of these files
TOO_MANY = "not checked: there are too many citations"
ABSENT = "no such file"

_CODE = re.compile(
    r"[\w.@]+ ?(?:\(|\[|\{|[-+*/|&]?=|:=|->|::|<\w|:$)"
    r"|(?:async|await|def|class|fn|func|function|import|from|return|raise|throw|const|let|var|pub|public|private|"
    r"protected|static|struct|type|interface|impl|enum|use|if|for|while|#include|@\w+|<\w+|\})(?!\w)"
    r".{0,150}[(){}=;:<>\[\]]"
)
_ESCAPED = re.compile(r"\\([\"'`\\])")
_PAIRS = ('""', "''", "``", "“”", "«»", "‘’", "„“")
_DOTTED = re.compile(r"(?:\w+(?:\.|::|#))*(\w+)(\(\))?")


def check(citation: Citation, root: Path) -> CitationCheck:
    """Check that the cited lines exist in the repository and contain the quote."""
    return _CitationChecker(root).check(citation)


def check_all(texts: Iterable[str], root: Path | None) -> tuple[CitationCheck, ...]:
    """Check each distinct citation of several texts once, in order; return () if `root` is None (no repository).

    Each file is read once.
    """
    if root is None:
        return ()
    checker, findings = _CitationChecker(root), dict[str, CitationCheck]()
    for text in texts:
        for citation in each(text):
            if len(findings) >= MAX_CITATIONS:
                findings.setdefault(str(citation), CitationCheck(str(citation), False, TOO_MANY))
            elif citation.others or str(citation) not in findings:
                check = checker.check(citation)
                findings.setdefault(check.citation, check)
    return tuple(findings.values())


def standing_in(words: Iterable[str], root: Path) -> frozenset[str]:
    """Return the quotes that occur in a file of the repository that may be shown to a model."""
    return standing(words, _texts(root))


def _texts(root: Path) -> Iterator[str]:
    """Yield the texts of the repository's visible files, up to the search limits."""
    tree, left = Tree(root), MAX_SEARCHED
    try:
        files = [item for item in walk(tree.folder("")) if isinstance(item, VisibleFile)][:MAX_SEARCHED_FILES]
    except (OSError, NotShowable):
        return
    with DirectoryCache() as descent:
        for file in files:
            if (left := left - file.size) < 0:
                return
            with contextlib.suppress(NotShowable):
                yield load(file, MAX_BYTES, descent)


class _Squeezed:
    """A file's lines without white space, joined into one text, with the offset of each line."""

    def __init__(self, lines: Sequence[str]) -> None:
        bare = ["".join(line.split()) for line in lines]
        self.count = len(lines)
        self._shown = lines
        self._lines = bare
        self._text = "".join(bare)
        self._starts = [0]
        for line in bare:
            self._starts.append(self._starts[-1] + len(line))

    def around(self, line: int) -> str:
        """Return the numbered lines around a line, each cut to `WIDEST` characters."""
        first, last = max(1, line - AROUND), min(self.count, line + AROUND)
        return "\n".join(f"{number}| {self._shown[number - 1][:WIDEST]}" for number in range(first, last + 1))

    def line_of(self, words: str, first: int = 1, last: int | None = None) -> int:
        """Return the line at which `words` start within lines `first` to `last`; 0 if they do not occur there."""
        begin, end = self._bounds(first, last or self.count)
        for parts in _readings("".join(words.split())):
            if span := self._span(parts, begin, end):
                return bisect_right(self._starts, span[0])
        return 0

    def cut(self, words: str, mark: str, follows: str, first: int, last: int) -> bool:
        """True if `words` may be only the beginning of what was quoted: in the file, `mark` follows them.

        A string with its marks at both ends is whole. So is a quote that punctuation follows, unless the mark
        in the file has the same after it (`follows`).
        """
        begin, end = self._bounds(first, last)
        for parts in _readings("".join(words.split())):
            at = begin
            while span := self._span(parts, at, end):
                before = self._text[max(0, span[0] - 1) : span[0]]
                if self._text.startswith(mark, span[1]) and before != mark:
                    after = span[1] + len(mark)
                    if not follows or self._text[after : after + 1] == follows:
                        return True
                at = span[0] + 1
        return False

    def names(self, words: str, first: int, last: int) -> bool:
        """True if `words` are a name such as `A.run()`, and its last part stands within these lines."""
        name = _DOTTED.fullmatch("".join(words.split()))
        return name is not None and self.line_of(name[1] + "(" * bool(name[2]), first, last) > 0

    def _bounds(self, first: int, last: int) -> tuple[int, int]:
        return self._starts[max(first, 1) - 1], self._starts[min(last, self.count)]

    def _span(self, parts: Sequence[str], begin: int, end: int) -> tuple[int, int] | None:
        """Return where the parts begin and end, in order; None if one does not occur."""
        places, at = list[int](), begin
        for part in parts:
            at = self._text.find(part, at, end)
            if at < 0:
                return None
            places.append(at)
            at += len(part)
        return places[0], at

    def begins(self, words: str, first: int, last: int) -> bool:
        """True if `words` starts with one of these lines. Lines shorter than `MIN_LINE` characters do not count."""
        words = "".join(words.split())
        return any(len(line) >= MIN_LINE and words.startswith(line) for line in self._lines[first - 1 : last])


def _readings(words: str) -> Iterator[list[str]]:
    """Yield the ways to read a quote, each as parts that must occur in order.

    First the quote itself, then the quote with escapes undone (YAML doubles an apostrophe or adds a backslash), then
    without a second pair of marks around it. An ellipsis stands for omitted text.
    """
    yield [words]
    if "''" in words:
        yield [words.replace("''", "'")]
    for _ in range(2):
        if (bare := _ESCAPED.sub(r"\1", words)) != words:
            words = bare
            yield [words]
    if "''" in words:
        words = words.replace("''", "'")
        yield [words]
    if len(words) > 2 and words[0] + words[-1] in _PAIRS:
        yield [words[1:-1]]
    if len(parts := [part for part in re.split(r"…|\.\.\.", words) if part]) > 1 or parts not in ([], [words]):
        yield parts


class _CitationChecker:
    def __init__(self, root: Path) -> None:
        self._tree = Tree(root)
        self._files: dict[str, _Squeezed | str] = {}
        self._meant: dict[str, list[str]] = {}

    def check(self, citation: Citation) -> CitationCheck:
        """Check one citation."""
        path, file = citation.path, self._file(citation.path)
        if file == ABSENT:
            names = self._named(path)
            if len(names) > 1:
                return CitationCheck(str(citation), False, f"several files are called so: {_listed(names)}")
            path = names[0] if names else path
            file = self._file(path)
        other = path if path != citation.path else ""
        if isinstance(file, str):
            return CitationCheck(str(citation), False, file, path=other)
        citation = _meant(citation, file)
        state, why = _judged(citation, file)
        if state not in ("verified", "exists"):
            return CitationCheck(str(citation), False, why, path=other)
        line = file.line_of(citation.quote, citation.first - DRIFT, citation.last + DRIFT) if citation.quote else 0
        line = line or citation.first
        verified, exists = state == "verified", state == "exists"
        return CitationCheck(str(citation), verified, why, exists, other, line, file.around(line))

    def _named(self, path: str) -> list[str]:
        """Return the files that a path without an exact match may mean.

        These are the files whose path differs only in upper and lower case, else the files whose path ends with it.
        """
        if path.startswith(("/", "~")) or ".." in path.split("/"):
            return []
        if not self._meant:
            items = islice(walk(self._tree.folder("")), MAX_NAMES)
            for file in (item.path for item in items if isinstance(item, VisibleFile)):
                self._meant.setdefault(file.rpartition("/")[2].casefold(), []).append(file)
        wanted = path.casefold()
        found = self._meant.get(wanted.rpartition("/")[2], [])
        same = [name for name in found if name.casefold() == wanted]
        ends = [name for name in found if name.casefold().endswith(f"/{wanted}")]
        return sorted(same or [name for name in ends if name.endswith(f"/{path}")] or ends)

    def _file(self, path: str) -> _Squeezed | str:
        """Return a file prepared for comparison, or the reason it cannot be read."""
        if path not in self._files:
            if len(self._files) >= MAX_FILES:
                return TOO_MANY
            try:
                self._files[path] = _Squeezed(lines_of(self._tree.text(path)))
            except NotShowable as unfit:
                self._files[path] = ABSENT if unfit.why == "not there" else phrase(unfit.why)
            except (OSError, ValueError):
                self._files[path] = "cannot be read"
        return self._files[path]


def _meant(citation: Citation, file: _Squeezed) -> Citation:
    """Return the reading of a citation that the file confirms.

    This is the longest one that stands there, unless text after it may still belong to the quote. A part of a quote
    is never taken for the whole: if a mark follows the words in the file as well, the longest reading counts.
    """
    if not citation.others or not 1 <= citation.first <= citation.last <= file.count:
        return citation
    first, last = citation.first - DRIFT, citation.last + DRIFT
    for reading in citation.readings:
        if not reading.open and file.line_of(reading.quote, first, last):
            longest = citation.readings[0]
            cut = reading is not longest and file.cut(reading.quote, reading.closing, reading.follows, first, last)
            return longest if cut else reading
    return citation


def _judged(found: Citation, file: _Squeezed) -> tuple[Literal["verified", "exists", "refuted"], str]:
    """Return the verdict on a citation of this file, and the reason for it."""
    if found.first > found.last:
        return "refuted", "the lines run backwards"
    if not 1 <= found.first <= found.last <= file.count:
        return "refuted", f"the file has {file.count} line{'s' * (file.count != 1)}"
    if not found.quote.split():
        return "exists", "line exists; nothing was quoted"
    if file.line_of(found.quote, found.first, found.last):
        return "verified", "the words stand there"
    if at := file.line_of(found.quote, found.first - DRIFT, found.last + DRIFT):
        return "verified", f"found at line {at}"
    if not found.quoted and file.begins(found.quote, found.first, found.last):
        return "verified", "the words stand there"
    if not found.quoted and not _CODE.match(found.quote):
        return "exists", "line exists; what follows does not stand there and may be a remark"
    if file.names(found.quote, found.first - DRIFT, found.last + DRIFT):
        return "exists", "line exists; only the last part of the quoted name stands there"
    at = file.line_of(found.quote)
    return "refuted", f"the words stand at line {at}" if at else "the words are not in the file"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(phrase(name) for name in names[:3]) + (f" and {more} more" if more > 0 else "")
