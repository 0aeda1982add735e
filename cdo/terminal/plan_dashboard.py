"""Draws the planning dashboard: the next turn, the range of later turns, and the estimated usage. Pure.

Only the next turn is concrete; nothing beyond it is ever planned. A `Sketch` is drawn for a terminal (`lines`), as
Markdown for the session (`markdown`), and as data (`json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, TypeAlias

from msgspec import Struct, to_builtins

from cdo.content.schemas import Criteria
from cdo.core.formatting import duration, money, one_line, pluralise, rounded, shorten_middle
from cdo.formats.markdown import inert_line

NARROW = 40  # a narrower terminal is treated as having this many columns
Row: TypeAlias = tuple[str, ...]


class PlannedVoice(Struct, frozen=True):
    """One seat of the next turn: the name of its file, its method, its charge, its skills and its model.

    `method` is the title of the role's method ("" if the role has none); `charge` is its task beyond the method.
    """

    name: str
    method: str = ""
    charge: str = ""
    skills: tuple[str, ...] = ()
    model: str = ""


class Model(Struct, frozen=True):
    """A model that will be asked, its vendor, and whether its price is known."""

    name: str
    vendor: str
    priced: bool


class PastTurn(Struct, frozen=True):
    """A completed turn: its number of voices, its synthesis' confidence, and the tensions that it left open."""

    turn: int
    voices: int
    confidence: float
    open: int


class Span(Struct, frozen=True):
    """The minimum and maximum usage of the rest of the run. Cost in dollars, time in seconds; None if unknown."""

    calls: tuple[int, int]
    tokens: tuple[int, int]
    cost: tuple[float, float] | None = None
    seconds: tuple[float, float] | None = None


class Sketch(Struct, frozen=True):
    """The data of the dashboard before turn `turn`.

    `why` is the reason for this preset. `matches` are, by chosen voice, the words of the question that match it.
    `width` is the range of voices in later turns, which matters if `adaptive`. `turns` is (the turn after which each
    further turn must be earned, the cap). `past` and `tensions` (titles of open tensions) describe earlier turns.
    `notes` are sentences about the surroundings of the run, such as "bd: on". `files` has a row for each file that is
    sent, or for the first ones. In all text fields, "" means none.

    A mode with its own program has `phases` and `ends`, which are shown instead of the usual directives and criteria.
    `phases` has the name of each turn from the first on, with its number of voices (0: as many as in this turn); the
    last phase also applies to all later turns. `ends` says when the run is over.
    """

    preset: str
    why: str
    problem: str
    voices: tuple[PlannedVoice, ...]
    width: tuple[int, int]
    turns: tuple[int, int]
    adaptive: bool
    criteria: Criteria
    models: tuple[Model, ...]
    span: Span
    session: str = ""
    mode: str = ""
    domain: str = ""
    matches: tuple[tuple[str, tuple[str, ...]], ...] = ()
    turn: int = 1
    focus: str = ""
    past: tuple[PastTurn, ...] = ()
    tensions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()
    ends: str = ""
    files: tuple[str, ...] = ()


# -- words -----------------------------------------------------------------------------------------


def _by_preset(sketch: Sketch) -> bool:
    """True if any voice was not chosen by the question."""
    return len(sketch.matches) < len(sketch.voices)


def _later(sketch: Sketch) -> list[tuple[str, str]]:
    """Return the later turns, with what they are or what they may vary between; [] if this turn is the last."""
    turns = range(sketch.turn + 1, sketch.turns[1] + 1)
    told = [(turn, _what(sketch, turn)) for turn in turns]
    rows = [([turn for turn, _ in same], what) for what, same in groupby(told, key=lambda pair: pair[1])]
    return [(f"{row[0]}" if len(row) == 1 else f"{row[0]}–{row[-1]}", what) for row, what in rows]


def _what(sketch: Sketch, turn: int) -> str:
    """Return what a later turn is by its phase, else what it may be."""
    if sketch.phases:
        name, voices = _phase(sketch, turn)
        return f"{one_line(name)}: {pluralise(voices, 'voice')}"
    low, high = sketch.width if sketch.adaptive else (len(sketch.voices),) * 2
    width = pluralise(low, "voice") if low == high else f"{low} to {high} voices"
    return f"{width}; roles, skills and focus as each synthesis directs"


def _phase(sketch: Sketch, turn: int) -> tuple[str, int]:
    """Return the name of a turn's phase, and its number of voices."""
    name, voices = sketch.phases[min(turn, len(sketch.phases)) - 1]
    return name, voices or len(sketch.voices)


def _ends(sketch: Sketch) -> str:
    if sketch.ends:
        return f"{one_line(sketch.ends)} · at most {pluralise(sketch.turns[1], 'turn')}"
    rules = sketch.criteria
    return (
        f"ready to exit at confidence {rules.exit_confidence:.2f} · "
        f"{pluralise(rules.quiet_turns, 'turn')} without an open tension or a new gap · "
        f"{pluralise(sketch.turns[1], 'turn')}"
    )


def _earned(sketch: Sketch) -> str:
    """Return the condition for turns that must be earned; "" if it does not matter."""
    earned, last = sketch.turns
    if sketch.ends or earned >= last or sketch.turn >= last:
        return ""
    return f"after turn {earned} only for an open tension, a new gap or a conflict"


def _conflict(sketch: Sketch) -> str:
    rules = sketch.criteria
    return f"confidence falls by {rules.confidence_drop:.2f} · an objection of severity {rules.severe}"


def _ranges(span: Span) -> Iterator[tuple[str, str]]:
    def ranged(low: str, high: str) -> str:
        return low if low == high else f"{low} to {high}"

    yield "calls", ranged(*(f"{number:,}" for number in span.calls))
    yield "tokens", f"about {ranged(*map(rounded, span.tokens))}"
    yield "cost", money(None) if span.cost is None else ranged(*(money(value) for value in span.cost))
    if span.seconds is not None:
        yield "time", f"about {ranged(*(duration(value) for value in span.seconds))}"


def _facts(sketch: Sketch) -> Iterator[tuple[str, str]]:
    """Yield the rows above the table, as (label, text)."""
    words = (f"mode {sketch.mode}" if sketch.mode else "", f"domain {sketch.domain}" if sketch.domain else "")
    yield "preset", " · ".join(filter(None, (sketch.preset, sketch.why, *words)))
    yield "problem", one_line(sketch.problem, 300)
    for past in sketch.past:
        tensions = f"{pluralise(past.open, 'tension')} open" if past.open else "no tension open"
        yield f"turn {past.turn}", f"{pluralise(past.voices, 'voice')}, confidence {past.confidence:.2f}, {tensions}"
    for title in sketch.tensions:
        yield "open", title
    if sketch.focus:
        yield "focus", sketch.focus


def _terms(sketch: Sketch) -> Iterator[tuple[str, str]]:
    """Yield the rows below the table, as (label, text)."""
    if sketch.matches:
        told = "; ".join(f"{name} (matches: {', '.join(tags)})" for name, tags in sketch.matches)
        yield "roles", f"{told}; the others are those of the preset" if _by_preset(sketch) else told
    if earned := _earned(sketch):
        yield "goes on", earned
    yield "ends" if sketch.ends else "ends at", _ends(sketch)
    yield "conflict", _conflict(sketch)
    for model in sketch.models:
        priced = "price known" if model.priced else "price unknown"
        yield "model", " · ".join(filter(None, (model.name, model.vendor, priced)))
    yield from _ranges(sketch.span)
    for file in sketch.files:
        yield "sends", file
    for note in sketch.notes:
        yield "note", note


# -- a terminal ------------------------------------------------------------------------------------

HEADS = ("turn", "voice", "method", "skills", "model")
_LEAST = (4, 10, 10, 8, 12)  # minimum widths of the columns
_MOST = (7, 34, 64, 40, 44)
_DROPPED = (2, 3)  # columns that a narrow terminal omits, in this order


def lines(sketch: Sketch, width: int) -> list[str]:
    """Return the dashboard for a terminal of `width` columns: facts, table, terms. No colour."""
    room = max(NARROW, width) - 1  # a sign in the last column makes some terminals wrap
    title = " · ".join(filter(None, (f"Plan of turn {sketch.turn}", one_line(sketch.session))))
    rows = [*_wrapped("", title, room, 0)]
    rows += chain.from_iterable(_wrapped(label, text, room) for label, text in _facts(sketch))
    rows += ["", *_table(sketch, room), ""]
    rows += chain.from_iterable(_wrapped(label, text, room) for label, text in _terms(sketch))
    return rows


def _cells(sketch: Sketch) -> list[Row]:
    """Return the table's rows for the next turn."""
    return [
        (
            str(sketch.turn) if index == 0 else "",
            one_line(voice.name),
            one_line(": ".join(filter(None, (voice.method, voice.charge)))),
            ", ".join(one_line(skill, 60) for skill in voice.skills),
            one_line(voice.model),
        )
        for index, voice in enumerate(sketch.voices)
    ]


def _table(sketch: Sketch, room: int) -> list[str]:
    """Return the table: one row for each voice of the next turn, then what later turns may be."""
    cells = _cells(sketch)
    shown = [index for index in range(len(HEADS)) if index < 2 or any(row[index] for row in cells)]
    for column in _DROPPED:
        if sum(_LEAST[index] + 2 for index in shown) - 2 > room or (column == 2 and room < 70):
            shown = [index for index in shown if index != column]
    widths = _widths([HEADS, *cells], shown, room)
    table = [_joined(HEADS, shown, widths), *(_joined(row, shown, widths) for row in cells)]
    table += chain.from_iterable(_wrapped(turns, what, room, widths[0]) for turns, what in _later(sketch))
    return table


def _widths(rows: Sequence[Row], shown: Sequence[int], room: int) -> list[int]:
    """Return column widths: as wide as the cells need, then narrowed, the widest column first, until all fit."""
    widths = [min(most, max(_wide(row[index]) for row in rows)) for index, most in enumerate(_MOST)]
    widths[0] = max(widths[0], _LEAST[0])
    while sum(widths[index] + 2 for index in shown) - 2 > room:
        above = [index for index in shown if widths[index] > _LEAST[index]]
        widest = max(above, key=lambda index: widths[index])
        widths[widest] -= 1
    return widths


def _joined(row: Row, shown: Sequence[int], widths: Sequence[int]) -> str:
    return "  ".join(_fitted(row[index], widths[index], index) for index in shown).rstrip()


def _fitted(text: str, width: int, column: int) -> str:
    """Return `text` in exactly `width` columns; names are shortened in their middle."""
    from rich.cells import cell_len, set_cell_size

    if column in (1, 4) and text.isascii():
        text = shorten_middle(text, width)
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)


def _wide(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _wrapped(label: str, text: str, room: int, indent: int = 8) -> Iterator[str]:
    """Yield `text` beside its label, on as many lines as it needs."""
    from rich.cells import chop_cells

    left = indent + 2 if label else 0
    row, rest = "", room - left
    rows: list[str] = []
    for word in one_line(text).split(" "):
        for piece in chop_cells(word, rest):
            if row and _wide(row) + 1 + _wide(piece) > rest:
                rows.append(row)
                row = ""
            row = f"{row} {piece}" if row else piece
    for index, found in enumerate([*rows, row]):
        yield (f"{label if index == 0 else '':<{left}}{found}" if left else found).rstrip()


# -- files -----------------------------------------------------------------------------------------


def markdown(sketch: Sketch) -> str:
    """Return the dashboard as Markdown."""
    rows = [f"# Plan of turn {sketch.turn}", ""]
    rows += [f"- {label.capitalize()}: {inert_line(text)}" for label, text in _facts(sketch)]
    rows += ["", _bar(head.capitalize() for head in HEADS), _bar("---" for _ in HEADS)]
    rows += [_bar((str(sketch.turn), *map(inert_line, row[1:]))) for row in _cells(sketch)]
    rows += [_bar((turns, inert_line(what), "", "", "")) for turns, what in _later(sketch)]
    rows += ["", *(f"- {label.capitalize()}: {inert_line(text)}" for label, text in _terms(sketch))]
    return "\n".join(rows) + "\n"


def _bar(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def json(sketch: Sketch) -> dict[str, Any]:
    """Return the dashboard as data: the fields of the sketch, and the turns that may follow this one."""
    first, last = sketch.turn + 1, sketch.turns[1]
    later: dict[str, Any] = {"turns": [first, last], "width": list(sketch.width), "adaptive": sketch.adaptive}
    if sketch.phases and first <= last:
        phases = [(turn, *_phase(sketch, turn)) for turn in range(first, last + 1)]
        widths = [voices for _, _, voices in phases]
        later |= {"width": [min(widths), max(widths)], "adaptive": False}
        later["phases"] = [{"turn": turn, "name": name, "voices": voices} for turn, name, voices in phases]
    elif not sketch.adaptive:
        later["width"] = [len(sketch.voices)] * 2
    data: dict[str, Any] = to_builtins(sketch)
    return {**data, "later": later if first <= last else None}
