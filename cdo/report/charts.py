"""Draws small plots of a run as SVG text for the report; the page's style sheet colours their classes. Pure.

The vertical axis runs from 0 to 1, or from 0 to the highest count. Both plots of a page have the same horizontal
positions for turns or rounds, so they can be compared. Sizes are in units of about a pixel: a plot is drawn for a
narrow screen and may be shown larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape

from msgspec import Struct

Points = Sequence[tuple[int, float]]  # (turn, value from 0 to 1)
Counts = Sequence[tuple[int, int]]  # (round, how many)

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 340, 36, 14, 18, 36
_MOST_LABELS = 9  # most values that are all labelled; of more, only the most informative ones


class _Frame(Struct, frozen=True):
    """The coordinates of a plot of `height`. `last` labels a position after the last turn ("": there is none).

    `unit` is the label of the horizontal axis; `most` is the value at the top.
    """

    turns: tuple[int, ...]
    height: int
    last: str = ""
    unit: str = "turn"
    most: float = 1.0

    def x(self, turn: int) -> float:
        """Return the position of a turn; for a turn not in `turns`, the position after the last one."""
        places = len(self.turns) + bool(self.last)
        at = self.turns.index(turn) if turn in self.turns else len(self.turns)
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (at + 0.5) / max(places, 1), 1)

    def y(self, value: float) -> float:
        """Return the position of a value."""
        share = min(1.0, max(0.0, value / self.most))
        return round(self.height - _BOTTOM - (self.height - _TOP - _BOTTOM) * share, 1)

    @property
    def step(self) -> float:
        """The distance between two turns."""
        return (_WIDTH - _LEFT - _RIGHT) / max(len(self.turns) + bool(self.last), 1)


def confidence(
    turns: Sequence[int], stated: Points, voices: Points, final: float | None = None, name: str = "confidence"
) -> str:
    """Plot confidence by turn: syntheses as a line, voices as faint dots behind it, FINAL.md as a diamond.

    `name` is the prefix of the ids of title and description.
    """
    frame = _Frame(tuple(turns), 220, "final" if final is not None else "")
    body = [*_axes(frame, ("0", "0.5", "1")), *_cloud(frame, voices), *_line(frame, stated, "stated", _number)]
    told = _told("Stated by the synthesis", stated, _number)
    if final is not None:
        x, y = frame.x(-1), frame.y(final)
        body.append(f'<path class="final" d="M{x} {y - 6}l6 6l-6 6l-6 -6z"/>')
        beside = bool(stated) and frame.step < 44 and abs(frame.y(stated[-1][1]) - y) < 16
        body.append(_text(x, y + 20 if beside else y - 11, _number(final), "value"))
        told += f" FINAL.md: {_number(final)}."
    if voices:
        shares = [value for _, value in voices]
        told += f" {len(voices)} statements of voices, from {_number(min(shares))} to {_number(max(shares))}."
    return _svg(frame, body, "Confidence by turn", told, name)


def agreement(turns: Sequence[int], shares: Points, flag: float, final: bool = False, name: str = "agreement") -> str:
    """Plot agreement by turn, with a line at `flag`, above which it is flagged.

    `final`: leave room at the right, so that turns are at the same positions as in the plot of confidence.
    """
    frame = _Frame(tuple(turns), 160, " " if final else "")
    y = frame.y(flag)
    body = [
        *_axes(frame, ("0%", "" if abs(flag - 0.5) < 0.12 else "50%", "" if flag > 0.88 else "100%")),
        f'<line class="flag" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>',
        _text(_LEFT - 6, y + 4, _percent(flag), "note end"),
        *_line(frame, shares, "agreed", _percent, flag),
    ]
    told = f"{_told('Agreement', shares, _percent)} It is flagged above {_percent(flag)}."
    return _svg(frame, body, "Agreement by turn", told, name)


def progress(rounds: Sequence[int], accepted: Counts, live: Counts, name: str = "progress") -> str:
    """Plot the number of accepted products after each round, and the number of products to accept."""
    frame = _counting(rounds, 220, accepted, live)
    body = _axes(frame, _scale(frame))
    places = [(frame.x(turn), frame.y(value)) for turn, value in live]
    if len(places) > 1:
        body.append(f'<polyline class="live" points="{" ".join(f"{x},{y}" for x, y in places)}"/>')
    if live and live[-1] not in accepted:
        body.append(_text(places[-1][0], places[-1][1] - 9, _count(live[-1][1]), "over"))
    body += _line(frame, accepted, "accepted", _count)
    told = f"{_told('Accepted', accepted, _count, 'round')} {_told('To be accepted', live, _count, 'round')}"
    return _svg(frame, body, "Products accepted by round", told, name)


def work(rounds: Sequence[int], versions: Counts, blockers: Counts, name: str = "work") -> str:
    """Plot new versions by round as bars, and the blockers open after each round as a line in front of them."""
    frame = _counting(rounds, 160, versions, blockers)
    body, width = _axes(frame, _scale(frame)), round(min(18.0, frame.step * 0.6), 1)
    for turn, value in versions:
        left, top = round(frame.x(turn) - width / 2, 1), frame.y(value)
        height = round(frame.y(0) - top, 1)
        body.append(f'<rect class="bars" x="{left}" y="{top}" width="{width}" height="{height}"/>')
    body += _line(frame, blockers, "blocking", _count)
    told = f"{_told('New versions', versions, _count, 'round')} {_told('Open blockers', blockers, _count, 'round')}"
    return _svg(frame, body, "New versions and open blockers by round", told, name)


# -- parts -----------------------------------------------------------------------------------------


def _svg(frame: _Frame, body: Iterable[str], title: str, told: str, name: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {frame.height}" role="img" '
        f'aria-labelledby="{name}-title {name}-told">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-told">{escape(told)}</desc>'
        f"{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{round(y, 1)}">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _counting(rounds: Sequence[int], height: int, *counts: Counts) -> _Frame:
    """Return a frame for counts. Its top value is even, so that the middle of the scale is an integer."""
    most = max((value for found in counts for _, value in found), default=0)
    return _Frame(tuple(rounds), height, unit="round", most=max(2, most + most % 2))


def _scale(frame: _Frame) -> tuple[str, str, str]:
    return "0", _count(frame.most / 2), _count(frame.most)


def _axes(frame: _Frame, scale: tuple[str, str, str]) -> list[str]:
    """Draw the scale at the left, faint grid lines, and the turns below."""
    body = []
    for share, label in zip((0.0, 0.5, 1.0), scale, strict=True):
        y = frame.y(share * frame.most)
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        body.append(_text(_LEFT - 6, y + 4, label, "scale end"))
    below = frame.height - _BOTTOM + 15
    every = -(-len(frame.turns) // 15)
    body += [_text(frame.x(turn), below, str(turn), "scale") for turn in frame.turns[::every]]
    if frame.last.strip():
        body.append(_text(frame.x(-1), below, frame.last, "scale"))
    body.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, frame.height - 4, frame.unit, "axis"))
    return body


def _cloud(frame: _Frame, points: Points) -> list[str]:
    """Draw a dot for each value; dots of a turn that would overlap are moved sideways."""
    drawn, body = Counter[tuple[int, float]](), []
    for turn, value in sorted(points):
        place = turn, round(value / 0.02) * 0.02
        count, drawn[place] = drawn[place], drawn[place] + 1
        beside = (count + 1) // 2 * (1 if count % 2 else -1)
        shift = max(-frame.step / 2, min(frame.step / 2, beside * min(4.0, frame.step / 12)))
        body.append(f'<circle class="voice" cx="{round(frame.x(turn) + shift, 1)}" cy="{frame.y(value)}" r="2.2"/>')
    return body


def _line(
    frame: _Frame, points: Points, kind: str, word: Callable[[float], str], avoid: float | None = None
) -> list[str]:
    """Draw a line through the values, a dot at each, and labels where there is room.

    A label is above its dot, or below it if it would leave the plot or overlap a line at `avoid`.
    """
    places = [(frame.x(turn), frame.y(value)) for turn, value in points]
    body = []
    if len(places) > 1:
        body.append(f'<polyline class="{kind}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>')
    body += [f'<circle class="{kind} dot" cx="{x}" cy="{y}" r="3.5"/>' for x, y in places]
    shown = _worth_writing([value for _, value in points])
    for at, ((x, y), (_, value)) in enumerate(zip(places, points, strict=True)):
        if at in shown:
            crossed = avoid is not None and 0 <= y - frame.y(avoid) < 22
            body.append(_text(x, y + 17 if crossed or y < _TOP - 2 else y - 9, word(value), "value"))
    return body


def _worth_writing(values: Sequence[float]) -> set[int]:
    """Return the indexes of the values to label: all of a few, else both ends, the extremes and the largest steps."""
    if len(values) <= _MOST_LABELS:
        return set(range(len(values)))
    found = {0, len(values) - 1, values.index(min(values)), values.index(max(values))}
    changed = [at for at in range(1, len(values)) if values[at] != values[at - 1]]
    steps = sorted(changed, key=lambda at: -abs(values[at] - values[at - 1]))
    for at in steps:
        if len(found) >= _MOST_LABELS // 2 + 1:
            break
        if not {at - 1, at + 1} & found:
            found.add(at)
    return found


def _told(what: str, points: Points, word: Callable[[float], str], unit: str = "turn") -> str:
    """Return the values in words, for screen readers."""
    if not points:
        return f"{what}: nothing was stated."
    return f"{what}, {', '.join(f'{unit} {turn}: {word(value)}' for turn, value in points)}."
