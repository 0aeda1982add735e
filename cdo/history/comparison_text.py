"""Draws a comparison for a terminal: in two columns, or one side below the other if it is narrow. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from cdo.core.formatting import one_line, shorten_middle
from cdo.history.comparison import Comparison, ComparisonRow
from cdo.history.snapshot import SessionSnapshot

NARROW, WIDE = 40, 160  # limits of the width that is drawn for, in columns
STACKED = 70  # with fewer columns, one side is drawn below the other
WORDS = 4000  # characters shown of one text
LABEL = 16  # fewest columns of a row's label
Tone: TypeAlias = Literal["head", "changed", "same"]


class Line(Struct, frozen=True):
    """A line for a terminal: its label with `≠` where the sides differ, its content (`said`), and its tone."""

    what: str
    said: str
    tone: Tone

    @property
    def text(self) -> str:
        """The whole line."""
        return (self.what + self.said).rstrip()


def lines(found: Comparison, width: int, *, changed: bool = False) -> list[Line]:
    """Return the comparison for a terminal of `width` columns; with `changed`, only the rows that differ."""
    room = min(max(NARROW, width), WIDE) - 1  # a sign in the last column makes some terminals wrap
    # The first row of a part is shown above its rows that differ, even if it is the same on both sides.
    apart = {row.part for row in found.rows if row.same is False}
    shown = (row for row in found.rows if row.same is False or (not row.name and row.part in apart))
    rows = list(shown if changed else found.rows)
    heads = _heads(found.a, found.b)
    drawn = _stacked(rows, heads, room) if width < STACKED else _beside(rows, heads, room)
    past = [Line("", text, "head") for text in wrapped(found.past, room)] if found.past else []
    none = [Line("", "Nothing differs.", "same")] if not rows else []
    return [*past, *drawn, *none]


def _heads(a: SessionSnapshot, b: SessionSnapshot) -> tuple[str, str]:
    """Return the names of the two sides. Two sessions of the same name are shown by their paths."""
    apart = a.session == b.session and a.place != b.place
    names = [
        f"{side.place}{'' if side.turn is None else f':{side.turn}'}" if apart else side.label for side in (a, b)
    ]
    ends = [" (end)" if side.turn is None else "" for side in (a, b)]
    return f"A {names[0]}{ends[0]}", f"B {names[1]}{ends[1]}"


def _label(row: ComparisonRow, width: int) -> str:
    sign = "≠ " if row.same is False else "  "
    return sign + (shorten_middle(f"  {one_line(row.name)}", width) if row.name else row.part)


def _cells(row: ComparisonRow) -> tuple[str, str]:
    """Return the text of each side: "=" on the right if both are the same, and "—" for a side without a value."""
    if row.same and row.a:
        return row.a, "="
    blank = "— only in {}" if row.name else "—"
    return row.a or blank.format("B"), row.b or blank.format("A")


def _beside(rows: Sequence[ComparisonRow], heads: tuple[str, str], room: int) -> list[Line]:
    """Draw the two sides in columns."""
    asked = max((len(one_line(row.name)) + 2 if row.name else len(row.part) for row in rows), default=0)
    what = min(max(LABEL, asked), max(LABEL + 2, room // 5))
    side = (room - what - 6) // 2
    drawn = []
    for label, cells, tone in _drawn(rows, heads, what):
        columns = [wrapped(cell, side) for cell in cells]
        for at in range(max(map(len, columns))):
            left, right = (column[at] if at < len(column) else "" for column in columns)
            drawn.append(Line(_padded(label if at == 0 else "", what + 4), f"{_padded(left, side + 2)}{right}", tone))
    return drawn


def _stacked(rows: Sequence[ComparisonRow], heads: tuple[str, str], room: int) -> list[Line]:
    """Draw one side below the other."""
    drawn = [Line("", line, "head") for head in heads for line in wrapped(head, room)]
    for label, cells, tone in _drawn(rows, ("", ""), room - 4):
        if not label:
            continue
        if cells[1] == "=":
            first, *more = wrapped(f"{label.strip()} = {cells[0]}", room - 7)
            blank = " " * (len(label) - len(label.lstrip()))
            drawn += [Line(blank, first, tone), *(Line("", f"       {line}", tone) for line in more)]
            continue
        drawn.append(Line(label, "", tone))
        for sign, cell in zip("AB", cells, strict=True):
            for at, line in enumerate(wrapped(cell, room - 7)):
                drawn.append(Line("", f"     {sign if at == 0 else ' '} {line}", tone))
    return drawn


def _drawn(
    rows: Sequence[ComparisonRow], heads: tuple[str, str], width: int
) -> Iterator[tuple[str, tuple[str, str], Tone]]:
    """Yield the label, the text of both sides and the tone of each row to draw."""
    yield "", heads, "head"
    for row in rows:
        yield _label(row, width), _cells(row), "changed" if row.same is False else "same"


def wrapped(text: str, width: int) -> list[str]:
    """Wrap `text` to lines of `width` columns. Wide characters count as two; control characters are made visible."""
    from rich.cells import cell_len, chop_cells

    found, row = [], ""
    for word in one_line(text, WORDS).split(" "):
        for piece in chop_cells(word, width):
            if row and cell_len(row) + 1 + cell_len(piece) > width:
                found.append(row)
                row = ""
            row = f"{row} {piece}" if row else piece
    return [*found, row]


def _padded(text: str, width: int) -> str:
    from rich.cells import cell_len

    return text + " " * max(0, width - cell_len(text))
