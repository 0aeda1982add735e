"""Finds file citations in texts, and says how their marks are written. Pure.

A citation is `path:12`, `path:12-14`, `path:L12` or `path#L12-L14`. The cited line's text may follow it: `src/a.py:12
"def f("`, `a.py:12: def f(`. URLs, times, versions and `host:port` are not citations. The running time is linear in
the length of the text. A mark follows a citation that was checked: ` ✓`, ` ○` or ` ✗ (why)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cdo.repository.quote_ends import Reading, readings

_MARK = r"[ ](?:[✓○](?:[ ]\(found[ ]as[ ][^()\n]{1,200}\))?|✗[ ]\([^()\n]{0,200}\))"
# Each part is bounded or possessive, and a path is tried only where one can begin. So matching takes at most a few
# steps per character. No group is possessive: where such a group fails, Python 3.11.2 goes on from where it failed.
_CITATION = re.compile(
    r"""
    [a-zA-Z][a-zA-Z0-9+.-]{1,15}+://\S*+                 # an address: passed over as a whole
    | (?<![\w./@+~#%:\\-])
      (?P<path>[\w./@+~%-]{1,250}+)
      (?:
        :L?(?P<first>\d{1,7}+)(?:[-–]L?(?P<last>\d{1,7}+)|(?![-–]L?\d))(?:(?P<column>:\d{1,5}+)|(?!:\d))
        | \#L(?P<first_l>\d{1,7}+)(?:[-–]L?(?P<last_l>\d{1,7}+)|(?![-–]L?\d))
      )
      (?![\w/@~%]|[.-]\w|:\d)
      (?:`?(?:[ \t]{0,3}+[:—–-][ \t]{1,3}+|[ \t]{1,3}+\(?|\(|\n[ ]{2,12}+)(?P<quote>(?=[\\"'`“«‘„])))?
    """,
    re.VERBOSE,
)
_AFTER = re.compile(rf"(?:{_MARK})?:[ \t]{{1,3}}(?P<words>[^\n]{{1,500}})")
MARKED = re.compile(_MARK)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A file name without a folder counts as a path only if it has one of these text file extensions.
_ENDINGS = _words(
    "py pyi pyx js mjs cjs jsx ts mts cts tsx go rs rb java kt kts scala groovy c h cc cpp cxx hh hpp cs fs swift m "
    "mm php ex exs erl hs ml mli lua jl pl pm sh bash zsh fish ps1 bat sql proto graphql vue svelte clj cljs dart "
    "zig nim r sol tf hcl md mdx rst adoc txt tex toml yaml yml json jsonl json5 ini cfg conf xml html htm css scss "
    "sass less csv tsv gradle cmake mk nix lock diff patch ipynb j2 jinja tmpl env service properties"
)
_NAMES = _words(
    "makefile dockerfile containerfile jenkinsfile vagrantfile procfile gemfile rakefile license readme changelog "
    "codeowners justfile brewfile"
)
_HOST = re.compile(
    r"www\.|(?:[\w-]{1,63}+\.){1,8}(?:com|org|net|io|dev|app|ai|co|edu|gov|info|cloud|local|internal)(?:/|$)"
    r"|\d{1,3}(?:\.\d{1,3}){3}(?:/|$)|localhost(?:/|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Citation:
    """A citation: the path, the first and last line, and the quote that follows ("" for none).

    If `quoted` is false, `quote` is everything after a colon: the cited line, the start of it followed by more text,
    or a remark. `end` is the offset in the text at which the mark is inserted. `others` are the other ways to read a
    quote whose end is not certain. `closing` is the mark that ends the quote, and `open` is true if the text after it
    may belong to the quote. `follows` is the punctuation after the mark, "" if there is none.
    """

    path: str
    first: int
    last: int
    quote: str = ""
    quoted: bool = True
    end: int = field(default=0, compare=False)
    others: tuple[Citation, ...] = field(default=(), compare=False)
    closing: str = field(default="", compare=False)
    open: bool = field(default=False, compare=False)
    follows: str = field(default="", compare=False)

    @property
    def readings(self) -> tuple[Citation, ...]:
        """All ways to read the citation, longest first."""
        return tuple(sorted((self, *self.others), key=lambda reading: -reading.end))

    def __str__(self) -> str:
        lines = str(self.first) if self.last == self.first else f"{self.first}-{self.last}"
        words = f' "{self.quote}"' if self.quoted else f": {self.quote}"
        return f"{self.path}:{lines}" + (words if self.quote else "")


def find(text: str) -> tuple[Citation, ...]:
    """Return all citations in a text, in order."""
    return tuple(each(text))


def each(text: str) -> Iterator[Citation]:
    """Yield the citations of a text one by one, in order."""
    done = 0
    for match in _CITATION.finditer(text):
        path = match["path"]
        # A match inside the quote of the previous citation is part of that quote, not a new citation.
        if not path or match.start() < done or not _is_path(path, by_anchor=match["first_l"] is not None):
            continue
        first = int(match["first"] or match["first_l"])
        last = int(match["last"] or match["last_l"] or first)
        path = path.removeprefix("./")
        if match["quote"] is not None and (read := _quoting(text, match, path, first, last)):
            yield read
            done = read.end
            continue
        at = match.end("column") if match["column"] else match.end("last" if match["last"] else "first")
        at = match.end() if match["first_l"] else at
        found = _with_words(text, Citation(path, first, last, end=at))
        done = found.end
        yield found


def _quoting(text: str, match: re.Match[str], path: str, first: int, last: int) -> Citation | None:
    """Return the citation with the quote that follows it; None if no quote is closed there."""
    line = _line_start(text, match.start())
    found = [_read_as(path, first, last, item) for item in readings(text, match.end("quote"), line)]
    return replace(found[0], others=tuple(found[1:])) if found else None


def _read_as(path: str, first: int, last: int, item: Reading) -> Citation:
    words = re.sub(r"\\?\s*\n\s*", " ", item.words).strip()
    return Citation(path, first, last, words, end=item.end, closing=item.mark, open=item.open, follows=item.follows)


def _line_start(text: str, at: int) -> int:
    least = max(0, at - 400)
    return max(least, text.rfind("\n", least, at) + 1)


def _with_words(text: str, found: Citation) -> Citation:
    """Return the citation with the text after its colon as the quote: the cited line or a remark about it."""
    after = _AFTER.match(text, found.end)
    end = found.end + (text[found.end : found.end + 1] == "`")  # the mark goes after the closing backtick
    if not after:
        return Citation(found.path, found.first, found.last, end=end)
    begin = _line_start(text, found.end)
    tick = text.find("`", after.start("words"), after.end())
    if tick > after.start("words") and text.count("`", begin, found.end) % 2 == 1:
        words = MARKED.sub("", text[after.start("words") : tick]).strip()
        return Citation(found.path, found.first, found.last, words, True, tick + 1)
    words = MARKED.sub("", after["words"]).strip()
    if words[-1:] in ('"', "'") and text.count(words[-1], begin, found.end) % 2 == 1:
        words = words[:-1]  # the mark closes the string in which the citation stands
    return Citation(found.path, found.first, found.last, words, False, end)


def _is_path(path: str, *, by_anchor: bool) -> bool:
    """True if a word is a file path, not a host, a version, a tag or prose."""
    *folders, name = path.split("/")
    if "//" in path or _HOST.match(path) or ("@" in path and not re.search(r"(?:^|/)@", path)):
        return False
    stem, dot, ending = name.rpartition(".")
    if name.lower() in _NAMES:
        return True
    if not dot or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,11}", ending):
        return by_anchor and bool(folders) and bool(name.strip("."))
    return ending.lower() in _ENDINGS if not folders else bool(stem or ending)


def phrase(text: str) -> str:
    """Return `text` without parentheses, which would end a mark, and cut to 200 characters."""
    return " ".join(text.replace("(", "- ").replace(")", "").split())[:200]
