"""Finds where a quote in a text ends. Pure.

A quote ends at its closing mark. Inside, marks of the same kind may stand escaped (`\\"`), doubled (`''`, in YAML),
in pairs (`"a "b" c"`), or alone (`"5" long"`). A mark between two letters is an apostrophe. Where several marks may
be the closing one, all readings are returned. Only the cited file can tell which one is meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

LONGEST = 500  # characters of a quote
MOST = 12  # readings of one quote

_OPEN = re.compile(r"(\\{0,3})(\"|'{1,2}|`{1,3}|[“«‘„])")
_CLOSING = {"“": "”", "«": "»", "‘": "’", "„": "“"}
# YAML may wrap a line inside a quote. A line that starts like a list item, heading or table does not continue it.
_LINE_END = re.compile(r"\n(?![ ]{2,12}[^\s#|>*-])")
_BEFORE_OPENING = " \t\n([{<=,:;+-*/|!&%^~?"
_MARKS = "\\\"'`“”«»‘’„"
_AFTER_CLOSING = ")]},.;:!?"
_PLACE = re.compile(r"[\w/]\.\w{1,12}(?::L?|#L)\d")


class Reading(Struct, frozen=True):
    """One way to read a quote: its words without the marks, the offset after its closing mark, and that mark.

    `open` is true if a mark follows that may still be the closing one: then the quote may be longer. `follows` is the
    character after the closing mark, if it is punctuation, else "".
    """

    words: str
    end: int
    mark: str
    open: bool = False
    follows: str = ""


class _Token(Struct, frozen=True):
    """A mark inside or after a quote: where it begins and ends, and by how much it changes the depth."""

    start: int
    end: int
    step: int


def readings(text: str, at: int, line: int) -> tuple[Reading, ...]:
    """Return the readings of the quote that begins at `at`: the likeliest first, then the others, longest first.

    Return () if no quote begins there. `line` is the offset at which the line of the citation begins.
    """
    opened = _OPEN.match(text, at)
    if not opened:
        return ()
    last = _LINE_END.search(text, opened.end(), opened.end() + LONGEST)
    end = last.start() if last else min(len(text), opened.end() + LONGEST)
    if escape := opened[1]:  # the quote stands in a string, which ends at the first mark with fewer backslashes
        marks = re.compile(rf"(\\*){re.escape(opened[2])}").finditer(text, opened.end(), end)
        end = next((mark.start() for mark in marks if len(mark[1]) < len(escape)), end)
    for mark in _marks(opened[2], text[line:at]):
        begin = at + len(opened[1]) + len(mark)
        enclosed = sum(token.step != 0 for token in _tokens(text, line, at, opened[1], mark)) % 2 == 1
        if found := _read(text, begin, _tokens(text, begin, end, opened[1], mark), mark, enclosed):
            return found
    return ()


def _marks(opening: str, before: str) -> Sequence[str]:
    """Return the marks that may have been meant, likeliest first: several marks in a row can be one mark, or a mark
    and the first of the words."""
    if opening[0] == "`":
        return list(dict.fromkeys((opening, "`")))
    if opening == "''":
        return ("''",) if before.replace("''", "").count("'") % 2 else ("'",)
    return (opening,)


def _tokens(text: str, begin: int, end: int, escape: str, mark: str) -> list[_Token]:
    """Return the marks between `begin` and `end` that can open or close a quote of this kind."""
    closing, several = _CLOSING.get(mark, mark), len(mark) > 1
    alone = rf"(?<!{mark[0]}){mark}(?!{mark[0]})" if several and mark[0] == "`" else f"{re.escape(mark)}|{closing}"
    found: list[_Token] = []
    inside: list[_Token] = []
    for match in re.compile(rf"(\\*)(?:{alone})").finditer(text, begin, end):
        start = match.end() - len(mark)
        before = text[begin : match.start()].rstrip(_MARKS)[-1:]
        after = text[match.end() : end].lstrip(_MARKS)[:1]
        token = _Token(
            start - len(match[1]) if escape else start, match.end(), _step(text[start], mark, before, after)
        )
        same = len(match[1]) == len(escape) or (not escape and len(match[1]) % 2 == 0)
        (found if same else inside).append(token)
    # Words may end in a backslash: an escaped mark closes the quote if nothing else does.
    if not any(token.step < 0 for token in found):
        return sorted([*found, *inside[-1:]], key=lambda token: token.start)
    return found


def _step(char: str, mark: str, before: str, after: str) -> int:
    """Return 1 for a mark that opens an inner quote, -1 for one that closes, 0 for one inside a word.

    `before` and `after` are the characters around it, or around all the marks that stand together with it.
    """
    wordlike = after.isalnum() or after == "_"
    if (closing := _CLOSING.get(mark)) is not None:
        return 1 if char == mark else 0 if closing == "’" and wordlike else -1
    if (not before or before in _BEFORE_OPENING) and after.strip() and after not in _AFTER_CLOSING:
        return 1
    return 0 if wordlike else -1


def _read(text: str, begin: int, tokens: list[_Token], mark: str, enclosed: bool) -> tuple[Reading, ...]:
    """Return the readings of a quote whose words begin at `begin`, from the marks that follow."""
    closers = [at for at, token in enumerate(tokens) if token.step < 0 and text[begin : token.start].strip()]
    if not closers:
        return ()
    likeliest, depth = -1, 1
    for at, token in enumerate(tokens):
        depth += token.step
        if depth <= 0 and at in closers:
            likeliest = at
            break
    after = tokens[likeliest if likeliest >= 0 else closers[0]].end
    place = _PLACE.search(text, after, tokens[-1].end)
    stop = place.start() if place else tokens[-1].end
    near = [token for token in tokens if token.end <= stop]  # a citation that follows has a quote of its own
    if likeliest < 0 or _goes_on(near[likeliest + 1 :], enclosed):
        likeliest = max(at for at in closers if at < len(near))
    order = [likeliest, *(at for at in reversed(closers) if at != likeliest)][:MOST]
    closing = _CLOSING.get(mark, mark)
    return tuple(
        Reading(
            text[begin : tokens[at].start],
            tokens[at].end,
            closing,
            _goes_on(near[at + 1 :], enclosed),
            _punctuation(text[tokens[at].end : tokens[at].end + 1]),
        )
        for at in order
    )


def _punctuation(char: str) -> str:
    return char if char in _AFTER_CLOSING else ""


def _goes_on(rest: Sequence[_Token], enclosed: bool) -> bool:
    """True if one of the marks after a quote closes something that was not opened there.

    One such mark at the very end may close the quotation that encloses the whole citation.
    """
    depth = 0
    for at, token in enumerate(rest):
        depth += token.step
        if depth < 0:
            return not (enclosed and at == len(rest) - 1)
    return False
