"""Compares two sessions, or two turns: what each came to and where they differ. Pure.

A `SessionSnapshot` is a session at its end or after a turn. `compare` makes a `Comparison` of two of them. `json`
turns it into data, `comparison_text.lines` draws it. Nothing is judged: texts differ if their words do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from cdo.core.formatting import money
from cdo.core.mission_names import OWN
from cdo.formats.sections import folded
from cdo.history.snapshot import FinalPosition, SessionSnapshot
from cdo.programs.deliberation.convergence import Tension
from cdo.programs.deliberation.objections import Dissent

_T = TypeVar("_T")


class ComparisonRow(Struct, frozen=True):
    """One property of both sides, as text. `name` is "" if the row stands for the `part` as a whole.

    `same` is None if it cannot be determined, such as for two unknown prices. "" stands for a missing value.
    """

    part: str
    name: str
    a: str
    b: str
    same: bool | None


class Comparison(Struct, frozen=True):
    """Two snapshots, the rows that compare them, and a sentence on their common past ("" if there is none)."""

    a: SessionSnapshot
    b: SessionSnapshot
    past: str
    rows: tuple[ComparisonRow, ...]

    @property
    def same(self) -> bool:
        """True if no row is known to differ."""
        return all(row.same is not False for row in self.rows)


# -- one side --------------------------------------------------------------------------------------


def outcomes(a: SessionSnapshot, b: SessionSnapshot) -> Comparison:
    """Compare two missions: how they ended, what became of their products, and what was decided."""
    rows = list(_frame(a, b))
    rows.append(_row("products", *(f"{_accepted(side)} accepted" for side in (a, b))))
    for left, right in _paired(a.products, b.products, lambda item: folded(item[0])):
        name = next(item[0] for item in (left, right) if item)
        rows.append(_row("products", left[1] if left else "", right[1] if right else "", name=name))
    rows.append(_row("decisions", a.decision, b.decision))
    rows.append(_row("rounds", str(a.held), str(b.held)))
    return Comparison(a, b, "", (*rows, *list(_taken(a, b))[1:]))  # a mission cites nothing


def _accepted(side: SessionSnapshot) -> str:
    """Return how many products are accepted, out of those that need acceptance."""
    live = [stands for _, stands in side.products if not stands.startswith(OWN)]
    return f"{sum(stands.startswith('accepted') for stands in live)} of {len(live)}"


# -- both ------------------------------------------------------------------------------------------


def compare(a: SessionSnapshot, b: SessionSnapshot, *, one: bool = False) -> Comparison:
    """Compare two snapshots. With `one`, both are of one session, whose question and plan cannot differ."""
    rows = [] if one else list(_frame(a, b))
    for part in (_answer, _sureness, _seats, _tensions, _gaps, _dissent, _taken):
        rows += part(a, b)
    return Comparison(a, b, "" if one else _past(a, b), tuple(rows))


def _past(a: SessionSnapshot, b: SessionSnapshot) -> str:
    """Return a sentence on the common past of two sessions; "" if they have none."""
    for child, parent, words in ((b, a, "B is a fork of A"), (a, b, "A is a fork of B")):
        if child.forked and (child.forked.session, child.forked.created) == (parent.session, parent.created):
            return f"{words} {_after(child.forked.turn)}."
    if a.forked and b.forked and (a.forked.session, a.forked.created) == (b.forked.session, b.forked.created):
        return f"Both are forks of {a.forked.session}: A {_after(a.forked.turn)}, B {_after(b.forked.turn)}."
    return ""


def _after(turn: int) -> str:
    return f"after turn {turn}" if turn else "from its start"


def _row(part: str, a: str, b: str, *, name: str = "") -> ComparisonRow:
    return ComparisonRow(part, name, a, b, folded(a) == folded(b))


def _frame(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    """Yield the rows on question, preset, models and status."""
    if folded(a.problem) != folded(b.problem):
        yield _row("question", a.problem, b.problem)
    yield _row("preset", a.preset, b.preset)
    yield _row("models", ", ".join(a.models), ", ".join(b.models))
    yield _row("status", *(": ".join(filter(None, (side.status, side.why))) for side in (a, b)))


def _answer(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    """Yield the rows on the answers: the decisions if both sides have one.

    If only one side has a decision, the common ground stands in for the other. If neither has, compare common ground
    and focus.
    """
    if a.decision and b.decision:
        yield _row("decision", a.decision, b.decision)
    elif a.decision or b.decision:
        texts = (side.decision or (f"Common ground: {side.ground}" if side.ground else "") for side in (a, b))
        yield _row("decision", *texts)
    else:
        yield _row("common ground", a.ground, b.ground)
        yield _row("focus", a.focus, b.focus)


def _sureness(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    lowered = ("" if side.stated == side.confidence else f", stated {side.stated:.2f}" for side in (a, b))
    yield _measured("confidence", a.confidence, b.confidence, *lowered)
    yield _measured("agreement", a.agreement, b.agreement)
    turns = (str(side.held) if side.turn is None else f"after turn {side.turn} of {side.held}" for side in (a, b))
    yield _row("turns", *turns)


def _measured(part: str, a: float | None, b: float | None, more_a: str = "", more_b: str = "") -> ComparisonRow:
    """Return the row of two shares, with the difference on the second side."""
    words = ["" if value is None else f"{value:.2f}" for value in (a, b)]
    same = (words[0], more_a) == (words[1], more_b)
    return ComparisonRow(part, "", words[0] + more_a, words[1] + _change(a, b) + more_b, same)


def _change(a: float | None, b: float | None) -> str:
    """Return the signed difference of two shares; "" if they are equal or one is missing."""
    change = 0.0 if a is None or b is None else round(round(b, 2) - round(a, 2), 2)
    return f" ({change:+.2f})" if change else ""


def _seats(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    yield _row("voices", str(len(a.voices)), str(len(b.voices)))
    last = [side.held if side.turn is None else side.turn for side in (a, b)]
    for left, right in _paired(a.voices, b.voices, lambda voice: voice.name):
        if left and right:
            yield _both(left, right, last)
        else:
            words = [_spoken(voice, turn) for voice, turn in zip((left, right), last, strict=True)]
            yield _row("voices", *words, name=_name(left, right))


def _both(a: FinalPosition, b: FinalPosition, last: Sequence[int]) -> ComparisonRow:
    """Return the row of a voice that is on both sides."""
    models = a.model != b.model
    words = [_spoken(voice, turn, model=models) for voice, turn in zip((a, b), last, strict=True)]
    alike = folded(a.position) == folded(b.position) and (a.role, a.missing) == (b.role, b.missing)
    change = _change(a.confidence, b.confidence)
    if alike and not models and change:
        words[1] = f"{b.confidence:.2f}{change}, same position"
    same = alike and not models and a.confidence == b.confidence
    return ComparisonRow("voices", a.name, words[0], words[1], same)


def _name(left: FinalPosition | None, right: FinalPosition | None) -> str:
    return next(voice.name for voice in (left, right) if voice)


def _spoken(voice: FinalPosition | None, last: int, *, model: bool = False) -> str:
    """Return a voice's reply as text, with its turn if that is not `last`, and with its model if `model` is true."""
    if voice is None:
        return ""
    sure = "" if voice.confidence is None else f"{voice.confidence:.2f}"
    role = f"as {voice.role}" if voice.role != voice.name else ""
    when = f"turn {voice.turn}" if voice.turn != last else ""
    about = ", ".join(
        filter(
            None,
            (sure, role, when, voice.model if model else "", "edited" if voice.edited and not voice.missing else ""),
        )
    )
    return ": ".join(filter(None, (about, voice.missing or voice.position)))


def _tensions(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    """Yield the rows on tensions, paired by id and title, else by title, else by id."""
    keys: tuple[Callable[[Tension], Any], ...] = (
        lambda item: (item.id, folded(item.title)),
        lambda item: folded(item.title),
        lambda item: item.id,
    )
    yield _row("tensions", *(_standing(side.tensions) for side in (a, b)))
    for left, right in _paired(a.tensions, b.tensions, *keys):
        words = [f"{item.status}: {item.title}" if item else "" for item in (left, right)]
        name = ", ".join(dict.fromkeys(item.id for item in (left, right) if item))
        row = _row("tensions", *words, name=name)
        alike = left and right and folded(left.title) == folded(right.title)
        yield replace(row, b=right.status) if alike and right else row


def _standing(tensions: Sequence[Tension]) -> str:
    counts = (
        (status, sum(item.status == status for item in tensions))
        for status in ("open", "resolved", "accepted", "outside")
    )
    return ", ".join(f"{number} {status}" for status, number in counts if number) or "none"


def _gaps(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    yield from _listed("gaps", a.gaps, b.gaps)


def _listed(part: str, a: Sequence[str], b: Sequence[str]) -> Iterator[ComparisonRow]:
    yield _row(part, str(len(a) or "none"), str(len(b) or "none"))
    pairs: list[tuple[str | None, str | None]] = _paired(a, b, folded)
    for number, (left, right) in enumerate(pairs, 1):
        yield _row(part, left or "", right or "", name=str(number))


def _dissent(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    """Yield the minority reports if both sides have them, else the objections of the last turn; then the votes."""
    if a.minority is not None and b.minority is not None:
        yield from _listed("minority reports", a.minority, b.minority)
    else:
        yield _row("objections", *(str(len(side.objections) or "none") for side in (a, b)))
        keys: tuple[Callable[[Dissent], Any], ...] = (
            lambda item: (item.role, folded(item.text)),
            lambda item: folded(item.text),
            lambda item: (item.role, item.id),
        )
        for left, right in _paired(a.objections, b.objections, *keys):
            words = [f"severity {item.severity}: {item.text}" if item else "" for item in (left, right)]
            roles = dict.fromkeys(item.role for item in (left, right) if item)
            yield _row("objections", *words, name=", ".join(roles))
    if a.votes or b.votes:
        yield from _listed("votes", a.votes, b.votes)


def _taken(a: SessionSnapshot, b: SessionSnapshot) -> Iterator[ComparisonRow]:
    """Yield the rows on citations, requests, tokens and cost."""
    yield _row("citations", *(_cited(side) for side in (a, b)))
    yield _amount("requests", a.spent.calls, b.spent.calls, a.shared.calls, b.shared.calls)
    yield _amount("tokens", a.spent.tokens, b.spent.tokens, a.shared.tokens, b.shared.tokens)
    left, right = a.spent.known_cost, b.spent.known_cost
    known = left is not None and right is not None
    change = (right or 0.0) - (left or 0.0) if known else 0.0
    words = f"{_paid(b)} ({'-' if change < 0 else '+'}{money(abs(change))})" if change else _paid(b)
    yield ComparisonRow("cost", "", _paid(a), words, left == right if known else None)


def _cited(side: SessionSnapshot) -> str:
    total = side.verified + side.exists + side.unverified
    there = f", {side.exists} without a quote" if side.exists else ""
    return f"{side.verified} of {total} verified{there}" if total else "none"


def _amount(part: str, a: int, b: int, shared_a: int, shared_b: int) -> ComparisonRow:
    words = [f"{value:,}" + (f", and {shared:,} before the fork" if shared else "") for value, shared in (
        (a, shared_a), (b, shared_b)
    )]  # fmt: skip
    return ComparisonRow(part, "", words[0], words[1] + (f" ({b - a:+,})" if a != b else ""), a == b)


def _paid(side: SessionSnapshot) -> str:
    """Return the cost in dollars; if part of it is unknown, the known part as a minimum."""
    known = side.spent.known_cost
    words = money(known) if known is not None or not side.spent.cost else f"at least {money(side.spent.cost)}"
    before = side.shared.known_cost if side.shared.calls else 0
    return words + (f", and {money(before)} before the fork" if before != 0 else "")


def _paired(a: Iterable[_T], b: Iterable[_T], *keys: Callable[[_T], Any]) -> list[tuple[_T | None, _T | None]]:
    """Pair each item with an equal one of the other side, by the first key that finds one, else with None.

    Items of the left side come first, in their order, then the items that are only on the right side.
    """
    left, right = list(a), list(b)
    found: dict[int, int] = {}
    rest = dict(enumerate(right))
    for key in keys:
        free: dict[Any, list[int]] = {}
        for at, item in reversed(rest.items()):
            free.setdefault(key(item), []).append(at)
        for at, item in enumerate(left):
            if at not in found and free.get(key(item)):
                found[at] = free[key(item)].pop()
                del rest[found[at]]
    pairs: list[tuple[_T | None, _T | None]] = [
        (item, right[found[at]] if at in found else None) for at, item in enumerate(left)
    ]
    return pairs + [(None, item) for item in rest.values()]


def json(found: Comparison, *, changed: bool = False) -> dict[str, Any]:
    """Return the comparison as data: both snapshots, and the rows; with `changed`, only the rows that differ."""
    sides = {name: _data(side) for name, side in (("a", found.a), ("b", found.b))}
    rows = [to_builtins(row) for row in found.rows if not changed or row.same is False]
    return {"same": found.same, "past": found.past, **sides, "rows": rows}


def _data(side: SessionSnapshot) -> dict[str, Any]:
    known = {"cost": side.spent.known_cost, "tokens": side.spent.tokens, "calls": side.spent.calls}
    shared = {"cost": side.shared.known_cost, "tokens": side.shared.tokens, "calls": side.shared.calls}
    data: dict[str, Any] = to_builtins(side)
    return {**data, "spent": known, "shared": shared}
