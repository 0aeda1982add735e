"""Citations of files in what models write: found in texts, checked against the repository, marked for readers.

A citation is `path:12`, `path:12-14`, `path:L12` or `path#L12-L14`, and may be followed by the words that stand
there: `src/a.py:12 "def f("`, `a.py:12: def f(`. `find` is pure and takes time that grows with the text alone.
Addresses, times, versions and `host:port` are no citations.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from cdo.core.steps import CitationCheck
from cdo.repository.quotes import standing
from cdo.repository.visible_files import MAX_BYTES, NotShowable, Tree, VisibleFile, lines_of, load, walk
from cdo.security.safe_open import DirectoryCache

DRIFT = 2  # lines by which quoted words may stand beside the line that is cited
AROUND = 3  # lines before and after a cited one that a synthesiser is shown
WIDEST = 160  # characters of such a line
MIN_LINE = 6  # signs of a line, blanks aside, that are more than punctuation
MAX_FILES = 1_000  # files that are read for one check
MAX_NAMES = 50_000  # files among which one is looked for by its name
MAX_CITATIONS = 2_000  # that are looked at in one check
MAX_SEARCHED_FILES = 20_000  # in which quoted words are looked for
MAX_SEARCHED = 100_000_000  # bytes of these files together
TOO_MANY = "not checked: there are too many citations"
ABSENT = "no such file"

# YAML may break a line inside of a quote; a line that begins as an item, a heading or a table does not go on with it.
_FOLD = r"\n[ ]{2,12}(?=[^\s#|>*-])"
_WORDS = (
    # A quote ends where no word goes on: `"a "quoted" word"` is more than `"a "`. Quotes in it may be escaped.
    rf'"(?!")(?:\\[^\n]|{_FOLD}|[^\n\\]){{1,300}}?"(?!\w)|"(?!")(?:{_FOLD}|[^\n]){{1,300}}?"(?!\w)'
    rf"|“(?:{_FOLD}|[^”\n]){{1,300}}”|«(?:{_FOLD}|[^»\n]){{1,300}}»|`(?:{_FOLD}|[^`\n]){{1,300}}`"
    rf"|'(?:{_FOLD}|[^'\n]){{1,300}}'(?!\w)"
    r'|\\"(?:\\\\\\"|[^\n]){1,300}?\\"(?!\w)'
)
_MARK = r"[ ](?:[✓○](?:[ ]\(found[ ]as[ ][^()\n]{1,200}\))?|✗[ ]\([^()\n]{0,200}\))"
# Each part is bounded or possessive, and a path is only tried where one can begin: no text takes more than a few
# steps a character.
_CITATION = re.compile(
    rf"""
    [a-zA-Z][a-zA-Z0-9+.-]{{1,15}}+://\S*+                 # an address: passed over as a whole
    | (?<![\w./@+~#%:\\-])
      (?P<path>[\w./@+~%-]{{1,250}}+)
      (?:
        :L?(?P<first>\d{{1,7}}+)(?:[-–]L?(?P<last>\d{{1,7}}+))?+(?P<column>:\d{{1,5}}+)?+
        | \#L(?P<first_l>\d{{1,7}}+)(?:[-–]L?(?P<last_l>\d{{1,7}}+))?+
      )
      (?![\w/@~%]|[.-]\w|:\d)
      (?:`?(?:[ \t]{{0,3}}+[:—–-][ \t]{{1,3}}+|[ \t]{{1,3}}+\(?|\(|\n[ ]{{2,12}}+)(?P<quote>{_WORDS}))?+
    """,
    re.VERBOSE,
)
_AFTER = re.compile(rf"(?:{_MARK})?:[ \t]{{1,3}}(?P<words>[^\n`]{{1,200}})(?P<tick>`)?")
_MARKED = re.compile(_MARK)
# The line of FINAL.md that counts citations, as `cited_in_words` writes it and as earlier versions wrote it.
SUMMARY = r"Citations: [\d,]+ of [\d,]+ (?:were found in the repository as cited|verified)\b.*"
_CODE = re.compile(
    r"[\w.@]+ ?(?:\(|\[|\{|[-+*/|&]?=|:=|->|::|<\w|:$)"
    r"|(?:async|await|def|class|fn|func|function|import|from|return|raise|throw|const|let|var|pub|public|private|"
    r"protected|static|struct|type|interface|impl|enum|use|if|for|while|#include|@\w+|<\w+|\})(?!\w)"
    r".{0,150}[(){}=;:<>\[\]]"
)
_ESCAPED = re.compile(r"\\([\"'`\\])")
_DOTTED = re.compile(r"(?:\w+(?:\.|::|#))*(\w+)(\(\))?")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names without a folder before them are only taken where their ending is that of a file with lines.
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
    """Lines of a file that a text points to, and the words it says stand there ("" for none).

    Words that are not `quoted` are all that follows a colon: the line itself, its beginning with more behind it, or
    a remark. `end` is where a mark belongs in the text.
    """

    path: str
    first: int
    last: int
    quote: str = ""
    quoted: bool = True
    end: int = field(default=0, compare=False)

    def __str__(self) -> str:
        lines = str(self.first) if self.last == self.first else f"{self.first}-{self.last}"
        words = f' "{self.quote}"' if self.quoted else f": {self.quote}"
        return f"{self.path}:{lines}" + (words if self.quote else "")


# -- finding --------------------------------------------------------------------------------------


def find(text: str) -> tuple[Citation, ...]:
    """All citations in a text, in order."""
    return tuple(_each(text))


def _each(text: str) -> Iterator[Citation]:
    done = 0
    for match in _CITATION.finditer(text):
        path = match["path"]
        # What stands in the words of one citation is quoted with them, and no citation of its own.
        if not path or match.start() < done or not _is_path(path, by_anchor=match["first_l"] is not None):
            continue
        first = int(match["first"] or match["first_l"])
        last = int(match["last"] or match["last_l"] or first)
        path = path.removeprefix("./")
        if words := match["quote"]:
            yield Citation(path, first, last, _bare(words), end=match.end("quote"))
            done = match.end("quote")
            continue
        at = match.end("column") if match["column"] else match.end("last" if match["last"] else "first")
        at = match.end() if match["first_l"] else at
        found = _with_words(text, Citation(path, first, last, end=at))
        done = found.end
        yield found


def _with_words(text: str, found: Citation) -> Citation:
    """A citation with what follows it after a colon, which may be the line or a remark about it."""
    after = _AFTER.match(text, found.end)
    end = found.end + (text[found.end : found.end + 1] == "`")  # a mark stands outside the code
    if not after:
        return Citation(found.path, found.first, found.last, end=end)
    words = _MARKED.sub("", after["words"]).strip().rstrip("\"'")
    least = max(0, found.end - 400)
    begin = max(least, text.rfind("\n", least, found.end) + 1)
    inside = after["tick"] is not None and text.count("`", begin, found.end) % 2 == 1
    return Citation(found.path, found.first, found.last, words, inside, after.end() if inside else end)


def _bare(words: str) -> str:
    return re.sub(r"\s*\n\s*", " ", words.strip("\"'“”«»`\\").strip())


def _is_path(path: str, *, by_anchor: bool) -> bool:
    """Whether a word is the path of a file rather than a host, a version, a tag or a part of prose."""
    *folders, name = path.split("/")
    if "//" in path or _HOST.match(path) or ("@" in path and not re.search(r"(?:^|/)@", path)):
        return False
    stem, dot, ending = name.rpartition(".")
    if name.lower() in _NAMES:
        return True
    if not dot or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,11}", ending):
        return by_anchor and bool(folders) and bool(name.strip("."))
    return ending.lower() in _ENDINGS if not folders else bool(stem or ending)


# -- checking -------------------------------------------------------------------------------------


def check(citation: Citation, root: Path) -> CitationCheck:
    """Look whether the lines a citation points to exist in the repository, and whether its words stand there."""
    return _CitationChecker(root).check(citation)


def check_all(texts: Iterable[str], root: Path | None) -> tuple[CitationCheck, ...]:
    """The findings for all citations of several texts, each once, in order; () where there is no repository.

    Each file is read once.
    """
    if root is None:
        return ()
    checker, findings = _CitationChecker(root), dict[str, CitationCheck]()
    for text in texts:
        for citation in _each(text):
            if (label := str(citation)) not in findings:
                many = len(findings) >= MAX_CITATIONS
                findings[label] = CitationCheck(label, False, TOO_MANY) if many else checker.check(citation)
    return tuple(findings.values())


def standing_in(words: Iterable[str], root: Path) -> frozenset[str]:
    """Which words stand in the repository, in a file that may be shown to a model."""
    return standing(words, _texts(root))


def _texts(root: Path) -> Iterator[str]:
    """The texts of the files of a repository that may be shown, as many as may be searched."""
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
    """A file's lines without their blanks, as one text, with where each line begins in it."""

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
        """The numbered lines around a line, each cut to a bounded length."""
        first, last = max(1, line - AROUND), min(self.count, line + AROUND)
        return "\n".join(f"{number}| {self._shown[number - 1][:WIDEST]}" for number in range(first, last + 1))

    def line_of(self, words: str, first: int = 1, last: int | None = None) -> int:
        """The line in which `words` begin so that they stand between two lines; 0 where they do not."""
        begin, end = self._starts[max(first, 1) - 1], self._starts[min(last or self.count, self.count)]
        for parts in _readings("".join(words.split())):
            places, at = list[int](), begin
            for part in parts:
                at = self._text.find(part, at, end)
                if at < 0:
                    break
                places.append(at)
                at += len(part)
            else:
                return bisect_right(self._starts, places[0])
        return 0

    def begins(self, words: str, first: int, last: int) -> bool:
        """Whether one of these lines, if it says anything, stands at the beginning of `words`."""
        words = "".join(words.split())
        return any(len(line) >= MIN_LINE and words.startswith(line) for line in self._lines[first - 1 : last])


def _readings(words: str) -> Iterator[list[str]]:
    """What quoted words may mean: themselves; `A.name()` any call of it; dots in the middle what was left out.

    Where the words were quoted once more, as in YAML, an apostrophe stands twice, or a quote has a backslash.
    """
    yield [words]
    for _ in range(2):
        if (bare := _ESCAPED.sub(r"\1", words)) != words:
            words = bare
            yield [words]
    if "''" in words:
        words = words.replace("''", "'")
        yield [words]
    if name := _DOTTED.fullmatch(words):
        yield [name[1] + "(" * bool(name[2])]
    if len(parts := [part for part in re.split(r"…|\.\.\.", words) if part]) > 1 or parts not in ([], [words]):
        yield parts


class _CitationChecker:
    def __init__(self, root: Path) -> None:
        self._tree = Tree(root)
        self._files: dict[str, _Squeezed | str] = {}
        self._meant: dict[str, list[str]] = {}

    def check(self, citation: Citation) -> CitationCheck:
        """What the citation is worth."""
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
        state, why = _judged(citation, file)
        if state not in ("verified", "exists"):
            return CitationCheck(str(citation), False, why, path=other)
        line = file.line_of(citation.quote, citation.first - DRIFT, citation.last + DRIFT) if citation.quote else 0
        line = line or citation.first
        verified, exists = state == "verified", state == "exists"
        return CitationCheck(str(citation), verified, why, exists, other, line, file.around(line))

    def _named(self, path: str) -> list[str]:
        """The files that a path may mean where nothing is called exactly so.

        That is the file whose path is written in other cases of letters, or all whose path ends so.
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
        """A file ready for comparing, or why it cannot be."""
        if path not in self._files:
            if len(self._files) >= MAX_FILES:
                return TOO_MANY
            try:
                self._files[path] = _Squeezed(lines_of(self._tree.text(path)))
            except NotShowable as unfit:
                self._files[path] = ABSENT if unfit.why == "not there" else _phrase(unfit.why)
            except (OSError, ValueError):
                self._files[path] = "cannot be read"
        return self._files[path]


def _judged(found: Citation, file: _Squeezed) -> tuple[Literal["verified", "exists", "refuted"], str]:
    """What the lines of a file say of a citation of it."""
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
    at = file.line_of(found.quote)
    return "refuted", f"the words stand at line {at}" if at else "the words are not in the file"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(_phrase(name) for name in names[:3]) + (f" and {more} more" if more > 0 else "")


def _phrase(text: str) -> str:
    """`text` without brackets, which would end a mark, and short."""
    return " ".join(text.replace("(", "- ").replace(")", "").split())[:200]


# -- marking --------------------------------------------------------------------------------------


def marked(text: str, findings: Sequence[CitationCheck], *, paths: bool = True) -> str:
    """`text` with a mark after each citation that `findings` tell of; nothing else is changed.

    ` ✓`: the quoted words stand there; ` ○`: the line exists, and no words were quoted; ` ✗ (why)`: neither. With
    `paths`, where a file was found under a longer path, that path stands behind its first citation.

    A mark that already stands there, whoever wrote it, is replaced: marking twice is marking once.
    """
    checks = {item.citation: item for item in findings}
    pieces, at, named = list[str](), 0, set[str]()
    for citation in _each(text):
        check = checks.get(str(citation))
        if check is None:
            continue
        pieces += [text[at : citation.end], _mark(check, named if paths else (check.path,))]
        named.add(check.path)
        at = citation.end
        while old := _MARKED.match(text, at):
            at = old.end()
    return "".join([*pieces, text[at:]])


def cited_in_words(verified: int, existing: int, failing: int) -> str:
    """How many citations there were, and what code found of them, as a sentence that explains the marks."""
    parts = [f"{verified:,} of {verified + existing + failing:,} verified (✓, the quoted words stand there)"]
    parts += [f"{existing:,} where the line exists (○, no words were quoted)"] * bool(existing)
    parts += [f"{failing:,} not found (✗)"] * bool(failing)
    return f"Citations: {', '.join(parts)}."


def _mark(check: CitationCheck, named: Collection[str]) -> str:
    """The mark of a citation; `named` are the paths that were named already."""
    if not check.holds:
        return f" ✗ ({_phrase(check.why)})"
    found = f" (found as {_phrase(check.path)})" if check.path and check.path not in named else ""
    return f" {'✓' if check.verified else '○'}{found}"
