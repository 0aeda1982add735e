"""The ledger of tensions, and when a deliberation ends or needs a referee. Pure (SPEC 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cdo.final import Dissent
from cdo.protocol import Directive
from cdo.schemas import Bounds, Criteria

NAMED = 5  # severe objections that the words of a conflict name
Status = Literal["open", "resolved", "accepted"]


@dataclass(frozen=True)
class Tension:
    """A disagreement from birth to end; `since` is the turn it was first named in."""

    id: str
    title: str
    status: Status
    since: int


@dataclass(frozen=True)
class Turn:
    """What one turn left behind: its directive, the objections its voices raised, its new gaps."""

    directive: Directive
    objections: tuple[Dissent, ...]
    new_gaps: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """Everything the loop knows: the turns so far, the ledger, and every gap ever named."""

    turns: tuple[Turn, ...] = ()
    ledger: tuple[Tension, ...] = ()
    gaps: frozenset[str] = frozenset()

    def after(self, directive: Directive, objections: Sequence[Dissent]) -> Record:
        """The record with one more turn.

        A tension that a synthesis no longer mentions keeps its last status: leaving it out does not
        resolve it. A gap counts as new only when no earlier turn named it.
        """
        number = len(self.turns) + 1
        ledger = {tension.id: tension for tension in self.ledger}
        for wish in directive.tensions:
            old = ledger.get(wish.id)
            fresh = Tension(wish.id, wish.title, wish.status, number)
            ledger[wish.id] = replace(fresh, since=old.since) if old else fresh
        new = tuple(gap for gap in directive.gaps if _folded(gap) not in self.gaps)
        turn = Turn(directive, tuple(objections), new)
        return Record((*self.turns, turn), tuple(ledger.values()), self.gaps | {_folded(gap) for gap in new})

    @property
    def open(self) -> tuple[Tension, ...]:
        """Tensions that are neither resolved nor accepted."""
        return tuple(tension for tension in self.ledger if tension.status == "open")


def _folded(text: str) -> str:
    return " ".join(text.lower().split())


def _short(text: str, limit: int = 240) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@dataclass(frozen=True)
class Verdict:
    """Why the loop ends: `status` is converged, max_turns, or stopped by the human; `why` says it in words."""

    status: Literal["converged", "max_turns", "stopped"]
    why: str


def verdict(record: Record, turns: tuple[int, int], criteria: Criteria, *, unheard: bool) -> Verdict | None:
    """Return why the loop ends after the last turn of `record`, or None when it goes on.

    `turns` is [after which a turn must be earned, the cap]. `unheard` tells that this turn raised a conflict
    whose referee has not sat yet: nothing but the cap then ends the loop.
    """
    number, last = len(record.turns), record.turns[-1]
    directive = last.directive
    if not unheard:
        if directive.exit_ready and directive.confidence >= criteria.exit_confidence:
            return Verdict("converged", f"exit-ready at confidence {directive.confidence:.2f}")
        quiet = record.turns[-criteria.quiet_turns :]
        if len(quiet) == criteria.quiet_turns and not record.open and not any(turn.new_gaps for turn in quiet):
            return Verdict("converged", f"no open tension and no new gap in {criteria.quiet_turns} turns")
    if number >= turns[1]:
        return Verdict("max_turns", f"the cap of {_turns(turns[1])} was reached")
    if number >= turns[0] and not record.open and not last.new_gaps and not unheard:
        return Verdict("max_turns", f"after turn {number} nothing open would have earned another")
    return None


def _turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"


def conflict(record: Record, criteria: Criteria) -> str:
    """What makes the last turn a conflict, in a few words; "" when nothing does."""
    last = record.turns[-1]
    reasons = []
    if len(record.turns) > 1:
        before = record.turns[-2].directive.confidence
        if before - last.directive.confidence >= criteria.confidence_drop - 1e-9:
            reasons.append(f"confidence fell from {before:.2f} to {last.directive.confidence:.2f}")
    severe = [item for item in last.objections if item.severity >= criteria.severe]
    for item in sorted(severe, key=lambda item: -item.severity)[:NAMED]:
        reasons.append(f"{item.role} objects with severity {item.severity} ({item.id}): {_short(item.text)}")
    if len(severe) > NAMED:
        reasons.append(f"and {len(severe) - NAMED} more")
    return "; ".join(reasons)


def suspicious(record: Record, criteria: Criteria) -> bool:
    """Whether the last turn's agreement is so high that a refuter must test it."""
    agreement = record.turns[-1].directive.agreement
    return agreement is not None and agreement > criteria.agreement_flag


def bounded(
    stated: float, bounds: Bounds, *, open_tensions: int, missing: int, verified: int, unverified: int
) -> tuple[float, str]:
    """The confidence that a stated one leaves when facts are heard, and which facts lowered it ("" when none did).

    An open tension and a voice missing in the last turn each cap it. Where a share s of all citations does not
    hold, at most 1 - weight x s is left.
    """
    limits = []
    if open_tensions:
        limits.append((bounds.open_tension, f"{open_tensions} open tension{'s' * (open_tensions > 1)}"))
    if missing:
        limits.append((bounds.missing_voice, f"{missing} missing voice{'s' * (missing > 1)}"))
    if unverified:
        total = verified + unverified
        left = 1 - bounds.unverified * unverified / total
        limits.append((round(left, 2), f"{unverified} of {total} citations not verified"))
    found = min([stated, *(limit for limit, _ in limits)])
    return found, ", ".join(reason for limit, reason in limits if limit < stated)
