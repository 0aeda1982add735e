"""Shortens a file that is too long to show whole, keeping its structure first. Pure.

Markdown keeps its headings and the tables or lists of the project's parts; the prose between them goes first. Code
keeps its signatures and the first lines of docstrings, then whole definitions while there is room.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

GAP = "[…]"  # stands for omitted lines; the line numbers around it show which
_MARK = len(f"{GAP}\n".encode())
_FEWEST = 60  # bytes; a table row is not shortened below this
_INTRODUCTION = 12  # lines kept early of the first block of prose
_HEAD = 6  # lines kept of the comment or docstring at the top of a code file
_SIGNATURE = 8  # most lines that a signature may have
_LONG = 1_000  # characters; a longer line is neither a definition nor a row that names parts

_NUMBER = re.compile(r"\d+\| ")
_MARKDOWN = re.compile(r"\.(?:md|markdown|mdx)$", re.IGNORECASE)
_HEADING = re.compile(r"(#{1,6}) \S")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ROW = re.compile(r" {0,3}\|.*\|")
_ITEM = re.compile(r" {0,6}(?:[-*+]|\d{1,3}[.)]) ")
_BRANCH = re.compile(r"[│├└|`+] ?(?:──|--)")  # as drawn by the program `tree`
# A table cell, or the start of a list item, that names parts: modules in code spans, folders, files.
_NAME = r"(?:`[\w@.*/-]{1,200}`|[\w@.-]{1,200}/[\w@./-]*+|[\w.-]{1,200}\.[a-z]{1,5})"
_BETWEEN = r"(?:[\s,;*_\]]|\([^)\n]{0,300}\))*"
# What a look ahead has found is not tried again, as in a possessive group. Such groups themselves are not used: where
# one fails, Python 3.11.2 goes on from where it failed.
_PARTS = re.compile(rf"[\s*_\[]*+(?=(?P<names>(?:{_NAME}{_BETWEEN})+))(?P=names)(?=$|[:—–-])")
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


def thinned(text: str, name: str, room: int, about: Sequence[str] = ()) -> str | None:
    """Return the most important numbered lines of `text` within `room` bytes, with `GAP` for omitted lines.

    `about` are stems of words: definitions and sections that hold most of them come first, whole. None if no
    structure is recognised, or if none of it fits.
    """
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    code = [_NUMBER.sub("", line, count=1).rstrip() for line in lines]
    kept = _KeptLines(lines, room)
    markdown = _MARKDOWN.search(name) is not None
    steps = list(_markdown(code) if markdown else _definitions(code, name))
    if about and steps:
        parts = _sections(code) if markdown else _bodies(code, _begins(code, name))
        for part in _matching(code, parts, about):
            kept.take(_LineGroup(part))
    for step in steps:
        kept.take(step)
    return kept.text() if kept.any else None


def essential(text: str, name: str) -> int:
    """Return the bytes taken by a Markdown file's headings and lists of project parts; 0 for other files."""
    if not _MARKDOWN.search(name):
        return 0
    lines = text.removesuffix("\n").split("\n")
    code = [_NUMBER.sub("", line, count=1).rstrip() for line in lines]
    chosen = {number for step in _markdown(code) if step.essential for number in step.lines}
    gaps = sum(number - 1 not in chosen for number in chosen)
    return sum(len(lines[number].encode()) + 1 for number in chosen) + _MARK * (gaps + 1)


def _matching(code: Sequence[str], parts: Iterable[range], about: Sequence[str]) -> list[range]:
    """Return the parts that hold any of the stems, those that hold most of them first."""
    ranked = []
    for lines in parts:
        words = "\n".join(code[number] for number in lines).lower()
        if count := sum(stem in words for stem in about):
            ranked.append((-count, lines.start, lines))
    return [lines for *_, lines in sorted(ranked, key=lambda item: item[:2])]


class _LineGroup(Struct, frozen=True):
    """Lines that are kept or left out together. With `by_row`, they are shortened if they do not fit."""

    lines: Sequence[int]
    essential: bool = False
    by_row: bool = False


class _KeptLines:
    """The lines kept so far, and the room left in bytes, which never falls below zero."""

    def __init__(self, lines: Sequence[str], room: int) -> None:
        self._lines = list(lines)
        self._sizes = [len(line.encode()) for line in lines]
        self._in = [False] * len(lines)
        self._room = room - _MARK
        self.any = False

    def take(self, step: _LineGroup) -> None:
        """Keep the lines of a step if all of them fit."""
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
        """Return the kept lines. Omitted lines that are no longer than the `GAP` line are kept as well."""
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


class _Excerpt(Struct, frozen=True):
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
    """Yield the blocks of a Markdown text, without the blank lines between them."""
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


def _sections(code: Sequence[str]) -> Iterator[range]:
    """Yield the lines of each heading with the text below it."""
    heads = [block.lines.start for block in _blocks(code) if block.kind == "heading"]
    for begin, end in pairwise([*heads, len(code)]):
        yield range(begin, end)


def _kind_of(line: str) -> str:
    if not line.strip():
        return ""
    if _HEADING.match(line):
        return "heading"
    if _FENCE.match(line):
        return "fence"
    return "table" if _ROW.match(line) else "list" if _ITEM.match(line) else "prose"


def _parts(block: _Excerpt, code: Sequence[str]) -> int:
    """Count the project parts named in a table, list or tree drawing; 0 if fewer than half of its rows name any."""
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
    for lines in _bodies(code, starts):
        yield _LineGroup(lines)


def _bodies(code: Sequence[str], starts: Sequence[int]) -> Iterator[range]:
    """Yield the lines before the first definition, then those of each definition with its comments."""
    firsts = [_with_head(code, at) for at in starts]
    for begin, end in pairwise([0, *firsts, len(code)]):
        yield range(begin, end)


def _head(code: Sequence[str], before: int) -> range:
    """Return the lines of the first comment or docstring that is not a license, at most `_HEAD`."""
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
    """Return the lines on which definitions begin."""
    found, quoted = list[int](), False
    for number, line in enumerate(code):
        if not quoted and len(line) <= _LONG and not _COMMENT.match(line):
            defines = _DEFINITION.match(line) or (_C.search(name) and _C_FUNCTION.match(line))
            found += [number] * bool(defines)
        quoted ^= len(_QUOTES.findall(line)) % 2 == 1
    return found


def _with_head(code: Sequence[str], at: int) -> int:
    """Return the first line of the decorators and comments directly above a definition."""
    while at and (_DECORATOR.match(code[at - 1]) or _COMMENT.match(code[at - 1])):
        at -= 1
    return at


def _signature(code: Sequence[str], at: int) -> range:
    """Return the lines of the signature that begins at a line."""
    end, open_ = at, 0
    while end < min(len(code), at + _SIGNATURE):
        open_ += sum(code[end].count(sign) for sign in "([") - sum(code[end].count(sign) for sign in ")]")
        end += 1
        if open_ <= 0:
            break
    return range(at, end)


def _said_of(code: Sequence[str], at: int) -> list[int]:
    """Return the first line of a definition's docstring or comment, and the decorator directly above it."""
    end, first = _signature(code, at).stop, _with_head(code, at)
    decorator = [at - 1] if at and _DECORATOR.match(code[at - 1]) else []
    if end < len(code) and _QUOTES.match(code[end].lstrip().lstrip("rR")):
        return [*decorator, end]
    while first < at and not re.search(r"\w", code[first]):  # skip a line that only opens a comment
        first += 1
    return [*([first] if first < at else []), *decorator]
