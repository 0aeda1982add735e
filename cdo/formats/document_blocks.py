"""Reads and writes documents as delimited blocks, so that no document has to be a string in JSON. Pure, linear time.

    =====BEGIN p5=====
    any text
    =====END p5=====

Each delimiter is a line of its own. A block ends at the first later line that names its label with as many signs in
front. So a text that holds such a line itself stands between delimiters with more signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from cdo.formats.markdown import line_breaks

SIGNS = 5  # signs of a delimiter, as prompts show it
_LONGEST = 400  # characters of a line that may be a delimiter
_MARK = re.compile(r"[ \t]{0,3}(={3,})[ \t]*(BEGIN|END)[ \t]+([^\s=](?:.*[^\s=])?)[ \t]*={3,}[ \t]*")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})[^`]*")


class DocumentBlock(Struct, frozen=True):
    """One block: its label ("p5", "p5 app/index.html") and its text. Without its end it is not `closed`."""

    label: str
    text: str
    closed: bool = True


class _Mark(Struct, frozen=True):
    signs: int
    begins: bool
    label: str


def mark(text: str, label: str, signs: int = SIGNS) -> str:
    """Return the delimiter with which a block of this label begins ("BEGIN") or ends ("END")."""
    return f"{'=' * signs}{text} {label}{'=' * signs}"


def split(text: str) -> tuple[str, list[DocumentBlock]]:
    """Return the text outside of all blocks, and the blocks in order. Line breaks become LF.

    A block without its end goes on to the next line that begins another one.
    """
    lines = line_breaks(text).split("\n")
    marks = {number: found for number, line in enumerate(lines) if (found := _mark(line))}
    ends: dict[tuple[int, str], list[int]] = {}
    for number in reversed(marks):
        if not marks[number].begins:
            ends.setdefault((marks[number].signs, marks[number].label), []).append(number)
    begins = [number for number in reversed(marks) if marks[number].begins]
    outside: list[str] = []
    blocks: list[DocumentBlock] = []
    at = 0
    while at < len(lines):
        found = marks.get(at)
        if found is None:
            outside.append(lines[at])
        if found is None or not found.begins:  # an end without a beginning is left out
            at += 1
            continue
        while begins and begins[-1] <= at:
            begins.pop()
        end, after, closed = _end(lines, marks, ends.get((found.signs, found.label), []), at, begins)
        blocks.append(DocumentBlock(found.label, "\n".join(lines[at + 1 : end]), closed))
        at = after
    return "\n".join(outside), blocks


def _end(
    lines: Sequence[str], marks: dict[int, _Mark], own: list[int], at: int, begins: Sequence[int]
) -> tuple[int, int, bool]:
    """Return the line at which a block ends, the line behind it, and whether its end is there.

    `own` are the lines that end its label, `begins` those that begin a block after line `at`; the last one
    comes first in both.
    """
    while own and own[-1] <= at:
        own.pop()
    if own:
        return own[-1], own[-1] + 1, True
    end = after = begins[-1] if begins else len(lines)
    while end > at + 1 and not lines[end - 1].strip():
        end -= 1
    last = marks.get(end - 1)
    # An end of the same owner, with another number of signs or without the path, can mean no other block.
    if end - 1 > at and last and not last.begins and last.label.split()[0] == marks[at].label.split()[0]:
        return end - 1, after, True
    return end, after, False


def _mark(line: str) -> _Mark | None:
    if len(line) > _LONGEST or "===" not in line:
        return None
    match = _MARK.fullmatch(line)
    return _Mark(len(match[1]), match[2] == "BEGIN", " ".join(match[3].split())) if match else None


def with_documents(text: str, draft: str) -> str:
    """Return a corrected reply with the blocks of its draft, except those that it has blocks of its own for."""
    outside, own = split(text)
    labels = {block.label for block in own}
    kept = [block for block in split(draft)[1] if block.label not in labels]
    return f"{outside.strip()}\n\n{as_text([*kept, *own])}\n" if kept else text


def as_text(blocks: Iterable[DocumentBlock]) -> str:
    """Return blocks as text; one that is not closed stays so."""
    return "\n".join(_written(block.label, block.text, closed=block.closed) for block in blocks)


def joined(items: Iterable[tuple[str, str]]) -> str:
    """Return (label, text) pairs as blocks, each with as many signs as its text needs."""
    return "\n".join(_written(label, text) for label, text in items)


def _written(label: str, text: str, *, closed: bool = True) -> str:
    name, text = " ".join(label.split()), line_breaks(text)
    taken = {found.signs for line in text.split("\n") if (found := _mark(line)) and found.label == name}
    signs = next(number for number in range(SIGNS, SIGNS + len(taken) + 1) if number not in taken)
    end = f"\n{mark('END', name, signs)}" if closed else ""
    return f"{mark('BEGIN', name, signs)}\n{text}{end}"


def unfenced(text: str) -> str | None:
    """Return a text without the code fence around all of it, None if there is none."""
    lines = text.strip("\n").split("\n")
    opened = _FENCE.fullmatch(lines[0])
    if not opened or len(lines) < 2 or lines[-1].strip() != opened[1]:
        return None
    return "\n".join(lines[1:-1])
