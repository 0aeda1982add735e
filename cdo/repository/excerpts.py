"""What is kept of a file that is too long to be shown whole: its structure first. Pure.

Of Markdown the headings and the tables or lists of a project's parts are kept, and prose between them is left out. Of
code the signatures and the first lines of docstrings are kept, then whole definitions while there is room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = "[…]"  # stands for lines that are left out: the numbers of the others tell which
_MARK = len(f"{GAP}\n".encode())
_FEWEST = 60  # bytes of a table's row that still say something
_INTRODUCTION = 12  # lines of the first block of prose that are kept early
_HEAD = 6  # lines at the top of a file of code that say what it is
_SIGNATURE = 8  # lines that a signature may take
_LONG = 1_000  # characters; a longer line is neither a definition nor a row that names parts

_NUMBER = re.compile(r"\d+\| ")
_MARKDOWN = re.compile(r"\.(?:md|markdown|mdx)$", re.IGNORECASE)
_HEADING = re.compile(r"(#{1,6}) \S")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ROW = re.compile(r" {0,3}\|.*\|")
_ITEM = re.compile(r" {0,6}(?:[-*+]|\d{1,3}[.)]) ")
_BRANCH = re.compile(r"[│├└|`+] ?(?:──|--)")  # as the program `tree` draws it
# A cell or the beginning of an item that names parts: modules in code spans, folders, files.
_NAME = r"(?:`[\w@.*/-]{1,200}`|[\w@.-]{1,200}/[\w@./-]*+|[\w-]{1,200}\.[a-z]{1,5})"
_BETWEEN = r"(?:[\s,;*_\]]|\([^)\n]{0,300}\))*+"
_PARTS = re.compile(rf"[\s*_\[]*+{_NAME}{_BETWEEN}(?:{_NAME}{_BETWEEN})*+(?=$|[:—–-])")
_LICENSE = re.compile(r"copyright|licen[sc]e|spdx", re.IGNORECASE)

_DEFINITION = re.compile(
    r"\s*(?:(?:export|default|pub(?:\([a-z]+\))?|public|private|protected|internal|static|async|abstract|final|unsafe"
    r"|data|sealed|override|inline|virtual)\s+)*"
    r"(?:(?:def|class|func|fn|function|interface|struct|enum|trait|type|impl|module|object|record)(?:\s+[\w(]|<)"
    r"|(?:const|let)\s+\w+\s*=\s*(?:async\s*)?(?:\(|function\b))"
    r"|\s*(?:public|private|protected)\s[^=;]*\("
)
_C = re.compile(r"\.(?:c|h|cc|cpp|cxx|hh|hpp)$", re.IGNORECASE)
_C_FUNCTION = re.compile(r"(?!else|return|typedef|#)[A-Za-z_][\w:<>,&*~ ]*[ *&][\w:~]+\s*\([^;]*$")
_COMMENT = re.compile(r"\s*(?:#(?!\[|include|define)|//|/\*|\*|--)")
_DECORATOR = re.compile(r"\s*(?:@\w|#\[)")
_QUOTES = re.compile(r"\"\"\"|'''")


def thinned(text: str, name: str, room: int) -> str | None:
    """The numbered lines of `text` that matter most within `room` bytes, with `GAP` where some are left out.

    None where the file has no structure that is understood, or there is no room for any of it.
    """
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    code = [_NUMBER.sub("", line, count=1).rstrip() for line in lines]
    kept = _KeptLines(lines, room)
    for step in _markdown(code) if _MARKDOWN.search(name) else _definitions(code, name):
        kept.take(step)
    return kept.text() if kept.any else None


def essential(text: str, name: str) -> int:
    """The bytes that the headings of a Markdown file take with what lists the parts of the project; 0 for others."""
    if not _MARKDOWN.search(name):
        return 0
    lines = text.removesuffix("\n").split("\n")
    code = [_NUMBER.sub("", line, count=1).rstrip() for line in lines]
    chosen = {number for step in _markdown(code) if step.essential for number in step.lines}
    gaps = sum(number - 1 not in chosen for number in chosen)
    return sum(len(lines[number].encode()) + 1 for number in chosen) + _MARK * (gaps + 1)


@dataclass(frozen=True)
class _LineGroup:
    """Lines that are kept together or not at all; `by_row`: rather shortened than left out."""

    lines: Sequence[int]
    essential: bool = False
    by_row: bool = False


class _KeptLines:
    """The lines that are kept so far, and the room that is left, which never falls below zero."""

    def __init__(self, lines: Sequence[str], room: int) -> None:
        self._lines = list(lines)
        self._sizes = [len(line.encode()) for line in lines]
        self._in = [False] * len(lines)
        self._room = room - _MARK
        self.any = False

    def take(self, step: _LineGroup) -> None:
        """Keep the lines of a step, if there is room for all of them."""
        fresh = [number for number in step.lines if not self._in[number]]
        if not self._add(fresh) and step.by_row and fresh:
            most = (self._room - _MARK) // len(fresh)
            if most >= _FEWEST:
                self._shorten(fresh, most)
                self._add(fresh)

    def _add(self, numbers: Sequence[int]) -> bool:
        left = self._room
        for number in numbers:
            before = number == 0 or self._in[number - 1]
            after = number + 1 == len(self._in) or self._in[number + 1]
            self._in[number] = True
            left -= self._sizes[number] + _MARK * (1 - before - after)
        if left < 0:
            for number in numbers:
                self._in[number] = False
            return False
        self._room, self.any = left, self.any or bool(numbers)
        return True

    def _shorten(self, numbers: Sequence[int], most: int) -> None:
        for number in numbers:
            data = self._lines[number].encode()
            if len(data) > most:
                self._lines[number] = data[: most - 4].decode("utf-8", "ignore") + "…\n"
                self._sizes[number] = len(self._lines[number].encode())

    def text(self) -> str:
        """What is kept; a gap that is shorter than the line about it is kept as well."""
        parts, at = list[str](), 0
        while at < len(self._in):
            end = at + 1
            while end < len(self._in) and self._in[end] == self._in[at]:
                end += 1
            shown = self._in[at] or sum(self._sizes[at:end]) <= _MARK
            parts += self._lines[at:end] if shown else [f"{GAP}\n"]
            at = end
        return "".join(parts)


# -- Markdown --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Excerpt:
    kind: str  # heading, table, fence, list or prose
    lines: range
    level: int = 0


def _markdown(code: Sequence[str]) -> Iterator[_LineGroup]:
    blocks = list(_blocks(code))
    heads = [block for block in blocks if block.kind == "heading"]
    parts = {number: count for number, block in enumerate(blocks) if (count := _parts(block, code))}
    listing = sorted(parts, key=lambda number: (-parts[number], number))
    if not heads and not listing:
        return
    yield from (_LineGroup(head.lines, essential=True) for head in heads[:1])
    for number in listing:
        above = next((block for block in reversed(blocks[:number]) if block.kind == "heading"), None)
        yield _LineGroup(above.lines if above else (), essential=True)
        yield _LineGroup(blocks[number].lines, essential=True, by_row=True)
    for level in range(1, 7):
        yield from (_LineGroup(head.lines, essential=True) for head in heads if head.level == level)
    rest = [block for number, block in enumerate(blocks) if block.kind != "heading" and number not in listing]
    yield from (_LineGroup(block.lines[:_INTRODUCTION]) for block in rest[:1])
    firsts = (after for before, after in pairwise(blocks) if before.kind == "heading")
    yield from (_LineGroup(block.lines[:2]) for block in firsts if block.kind == "prose")
    yield from (_LineGroup(block.lines) for block in rest if block.kind == "table")
    yield from (_LineGroup(block.lines) for block in rest)


def _blocks(code: Sequence[str]) -> Iterator[_Excerpt]:
    """The blocks of a Markdown text, without the blank lines between them."""
    at = 0
    while at < len(code):
        kind, level = _kind_of(code[at]), 0
        end = at + 1
        if kind == "heading":
            level = len(code[at]) - len(code[at].lstrip("#"))
        elif kind == "fence":
            mark = code[at].strip()[:3]
            while end < len(code) and not code[end].strip().startswith(mark):
                end += 1
            end = min(end + 1, len(code))
        elif kind:
            same = ("list", "prose") if kind == "list" else (kind,)
            while end < len(code) and _kind_of(code[end]) in same:
                end += 1
        if kind:
            yield _Excerpt(kind, range(at, end), level)
        at = end


def _kind_of(line: str) -> str:
    if not line.strip():
        return ""
    if _HEADING.match(line):
        return "heading"
    if _FENCE.match(line):
        return "fence"
    return "table" if _ROW.match(line) else "list" if _ITEM.match(line) else "prose"


def _parts(block: _Excerpt, code: Sequence[str]) -> int:
    """How many names of parts a table, list or drawing holds; 0 where less than half of its rows name any."""
    rows = [code[number][:_LONG] for number in block.lines]
    match block.kind:
        case "table":
            named = [sum(len(re.findall(_NAME, cell)) for cell in row.split("|")[1:3] if _PARTS.match(cell))
                     for row in rows[2:]]  # fmt: skip
        case "list":
            named = [bool(_PARTS.match(row[item.end() :])) for row in rows if (item := _ITEM.match(row))]
        case "fence":
            named = [bool(_BRANCH.search(row)) for row in rows[1:-1]]
        case _:
            return 0
    return sum(named) if len(named) >= 3 and 2 * sum(map(bool, named)) >= len(named) else 0


# -- code ------------------------------------------------------------------------------------------


def _definitions(code: Sequence[str], name: str) -> Iterator[_LineGroup]:
    starts = _begins(code, name)
    if len(starts) < 2:
        return
    yield _LineGroup(_head(code, starts[0]))
    depth = [len(code[at]) - len(code[at].lstrip()) for at in starts]
    for outer in (True, False):
        chosen = [at for at, indent in zip(starts, depth, strict=True) if (indent == min(depth)) == outer]
        yield from (_LineGroup(_signature(code, at)) for at in chosen)
        yield from (_LineGroup(_said_of(code, at)) for at in chosen)
    firsts = [_with_head(code, at) for at in starts]
    for begin, end in pairwise([0, *firsts, len(code)]):
        yield _LineGroup(range(begin, end))


def _head(code: Sequence[str], before: int) -> range:
    """The lines in which a file says what it is: its first comment or docstring that is no license."""
    at = 0
    while at < before:
        end = at
        while end < before and code[end]:
            end += 1
        said = code[at:end]
        if said and (_COMMENT.match(said[0]) or _QUOTES.search(said[0])) and not _LICENSE.search(" ".join(said)):
            return range(at, min(end, at + _HEAD))
        at = end + 1
    return range(0)


def _begins(code: Sequence[str], name: str) -> list[int]:
    """The lines in which definitions begin."""
    found, quoted = list[int](), False
    for number, line in enumerate(code):
        if not quoted and len(line) <= _LONG and not _COMMENT.match(line):
            defines = _DEFINITION.match(line) or (_C.search(name) and _C_FUNCTION.match(line))
            found += [number] * bool(defines)
        quoted ^= len(_QUOTES.findall(line)) % 2 == 1
    return found


def _with_head(code: Sequence[str], at: int) -> int:
    """The first of the decorators and comments that belong to the definition at a line."""
    while at and (_DECORATOR.match(code[at - 1]) or _COMMENT.match(code[at - 1])):
        at -= 1
    return at


def _signature(code: Sequence[str], at: int) -> range:
    """The lines of the signature that begins at a line."""
    end, open_ = at, 0
    while end < min(len(code), at + _SIGNATURE):
        open_ += sum(code[end].count(sign) for sign in "([") - sum(code[end].count(sign) for sign in ")]")
        end += 1
        if open_ <= 0:
            break
    return range(at, end)


def _said_of(code: Sequence[str], at: int) -> list[int]:
    """The first line of what is said of a definition, below its signature or above it, and a decorator above it."""
    end, first = _signature(code, at).stop, _with_head(code, at)
    decorator = [at - 1] if at and _DECORATOR.match(code[at - 1]) else []
    if end < len(code) and _QUOTES.match(code[end].lstrip().lstrip("rR")):
        return [*decorator, end]
    while first < at and not re.search(r"\w", code[first]):  # the line that only opens a comment
        first += 1
    return [*([first] if first < at else []), *decorator]
