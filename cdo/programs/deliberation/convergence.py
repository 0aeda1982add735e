"""Keeps the record of a run with its ledgers of tensions and objections, and decides when it ends. Pure.

`engine/convergence.md` states the same rules in words, so that a reader can check a run by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.content.library import line
from cdo.content.schemas import ConfidenceCaps, Criteria
from cdo.core.formatting import pluralise
from cdo.formats.fields import TensionStatus
from cdo.formats.sections import folded
from cdo.formats.voice import grouped, leading
from cdo.programs.deliberation.objections import Dissent, Objections

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import Camp, Directive

NAMED = 5  # most objections that the text of a conflict names


class Tension(Struct, frozen=True):
    """A disagreement and its status; `since` is the turn in which it was first named.

    `settled_by` says what settled it, or who outside the run can settle it.
    """

    id: str
    title: str
    status: TensionStatus
    since: int
    settled_by: str = ""


class Position(Struct, frozen=True):
    """The answer of a voice in the last turn in which it was heard; a person need not state a `confidence`."""

    voice: str
    turn: int
    text: str
    confidence: float | None


class TurnOutcome(Struct, frozen=True):
    """One turn on the record: its directive, the voices heard, their objections, its new gaps."""

    directive: Directive
    objections: tuple[Dissent, ...]
    new_gaps: tuple[str, ...]
    voices: tuple[str, ...] = ()

    @property
    def camps(self) -> tuple[Camp, ...]:
        """The camps of the voices heard, the largest first."""
        return grouped(self.directive.camps, {name: f"the answer of {name} alone" for name in self.voices})

    @property
    def leading(self) -> str:
        """The answer of the largest camp; "" if no camp is larger than every other."""
        return leading(self.camps)


class Record(Struct, frozen=True):
    """Everything the loop knows: the turns so far, both ledgers, and every gap ever named."""

    turns: tuple[TurnOutcome, ...] = ()
    ledger: tuple[Tension, ...] = ()
    gaps: frozenset[str] = frozenset()
    objections: Objections = field(default_factory=Objections)
    positions: tuple[Position, ...] = ()

    def after(
        self,
        directive: Directive,
        dissents: Sequence[Dissent],
        positions: Sequence[Position] = (),
        *,
        withdrawn: Sequence[tuple[str, str]] = (),
        refereed: bool = False,
    ) -> Record:
        """Return the record with one more turn, in which `positions` were heard.

        A tension that a synthesis leaves out keeps its last status. A gap is new only when no earlier turn named it.
        `withdrawn` are (voice, id of an objection). `refereed` is true if a referee sat in the turn.
        """
        number = len(self.turns) + 1
        ledger = {tension.id: tension for tension in self.ledger}
        for wish in directive.tensions:
            old = ledger.get(wish.id)
            settled = wish.settled_by or (old.settled_by if old and old.status == wish.status else "")
            fresh = Tension(wish.id, wish.title, wish.status, number, settled)
            ledger[wish.id] = replace(fresh, since=old.since) if old else fresh
        new = tuple(gap for gap in directive.gaps if folded(gap) not in self.gaps)
        turn = TurnOutcome(directive, tuple(dissents), new, tuple(item.voice for item in positions))
        heard = {item.voice: item for item in self.positions} | {item.voice: item for item in positions}
        objections = self.objections.raised(number, dissents)
        return Record(
            (*self.turns, turn),
            tuple(ledger.values()),
            self.gaps | {folded(gap) for gap in new},
            objections.after(number, directive.objections, withdrawn, refereed=refereed),
            tuple(heard.values()),
        )

    @property
    def open(self) -> tuple[Tension, ...]:
        """Tensions that are open and that something at hand could settle."""
        return tuple(tension for tension in self.ledger if tension.status == "open")

    @property
    def outside(self) -> tuple[Tension, ...]:
        """Tensions that only a fact from outside the run can settle."""
        return tuple(tension for tension in self.ledger if tension.status == "outside")

    @property
    def dropped(self) -> tuple[Position, ...]:
        """The last positions of voices that were not heard in the last turn."""
        return tuple(item for item in self.positions if item.turn < len(self.turns))

    @property
    def settled(self) -> bool:
        """True if nothing is left that another turn could settle: no open tension, no new gap."""
        return not self.open and not self.turns[-1].new_gaps

    @property
    def one_camp(self) -> bool:
        """True if all voices of the last turn gave one answer."""
        return len(self.turns[-1].camps) == 1


class StopReason(Struct, frozen=True):
    """Why the loop ends: `status` is converged, max_turns, or stopped by the human; `why` says it in words.

    `needed` says what another turn would have needed to be worth holding.
    """

    status: Literal["converged", "max_turns", "stopped"]
    why: str
    needed: str = ""


UNSETTLED = "something open that the material, the code, arithmetic or a tool could settle"


def verdict(
    record: Record, turns: tuple[int, int], criteria: Criteria, *, confidence: float, argued: bool, withheld: bool
) -> StopReason | None:
    """Return why the loop ends after the last turn of `record`, or None if it goes on.

    `turns` is [fewest turns before a normal end, the cap]. `confidence` is the bounded one, which FINAL.md prints.
    Before the lower number, the loop ends only if all voices gave one answer, the other side was `argued` and nothing
    that can be settled is open. With `withheld`, a conflict or a flag defers the end, and only the cap ends the loop.
    """
    number, last = len(record.turns), record.turns[-1]
    early = number < turns[0]
    if not withheld and not (early and not (argued and record.one_camp and not record.open)):
        if last.directive.exit_ready and confidence >= criteria.exit_confidence:
            return StopReason("converged", f"ready to exit at confidence {confidence:.2f}", UNSETTLED)
        quiet = record.turns[-criteria.quiet_turns :]
        if len(quiet) == criteria.quiet_turns and not record.open and not any(turn.new_gaps for turn in quiet):
            why = f"no open tension and no new gap in {pluralise(criteria.quiet_turns, 'turn')}"
            return StopReason("converged", why, UNSETTLED)
        if not early and record.settled:
            return StopReason(
                "converged", f"nothing that could be settled here was open after turn {number}", UNSETTLED
            )
    if number >= turns[1]:
        left = ", ".join(item.id for item in record.open)
        what = f"{left} {'is' if len(record.open) == 1 else 'are'} still open" if left else "nothing is open"
        return StopReason(
            "max_turns", f"the cap of {pluralise(turns[1], 'turn')} was reached", f"a higher --turns; {what}"
        )
    return None


def conflict(record: Record, criteria: Criteria) -> str:
    """Return what makes the last turn a conflict, in a few words; "" if it is none.

    A conflict is a fall in the stated confidence, or an open objection of at least `criteria.severe` against the
    leading answer that no referee has weighed.
    """
    drop = [f"confidence fell from {before:.2f} to {after:.2f}" for before, after in _drop(record, criteria)]
    return "; ".join([*drop, *_severe(record, criteria)])


def dispute(record: Record, criteria: Criteria) -> str:
    """Return the text of a conflict for voices: without the synthesiser's confidence, which no voice sees."""
    weaker = "the leading answer stands on weaker evidence than it did in the turn before"
    return "; ".join([*(weaker for _ in _drop(record, criteria)), *_severe(record, criteria)])


def _drop(record: Record, criteria: Criteria) -> list[tuple[float, float]]:
    """Return [(before, after)], the confidence stated in the last two turns, if it fell enough for a conflict."""
    stated = [turn.directive.confidence for turn in record.turns[-2:]]
    fell = len(stated) == 2 and stated[0] - stated[1] >= criteria.confidence_drop - 1e-9
    return [(stated[0], stated[1])] if fell else []


def _severe(record: Record, criteria: Criteria) -> list[str]:
    """Return the objections that make a conflict, the most severe first, at most `NAMED` and the number of others."""
    severe = record.objections.severe(criteria.severe)
    told = [
        f"{item.role} objects with severity {item.severity} ({item.id}): {line(item.text, 240)}" for item in severe
    ]
    return told if len(told) <= NAMED else [*told[:NAMED], f"and {len(told) - NAMED} more"]


def suspicious(record: Record, criteria: Criteria) -> bool:
    """True if so many voices of the last turn gave one answer that the other side must be argued."""
    agreement = record.turns[-1].directive.agreement
    return agreement is not None and agreement > criteria.agreement_flag


def unopposed(record: Record, criteria: Criteria) -> bool:
    """True if agreement was suspiciously high in the last turn in which several voices were heard."""
    stated = [turn.directive.agreement for turn in record.turns if turn.directive.agreement is not None]
    return bool(stated) and stated[-1] > criteria.agreement_flag


def bounded(
    stated: float,
    bounds: ConfidenceCaps,
    *,
    open_tensions: int,
    missing: int,
    verified: int,
    unverified: int,
    objections: int = 0,
) -> tuple[float, str]:
    """Return a stated confidence lowered by facts on record, and these facts in words ("" if it was not lowered).

    If a share s of all citations was not found, weight x s is subtracted. After that, an open tension, an open severe
    objection against the leading answer and a voice missing in the last turn each cap it.
    """
    left, total = stated, verified + unverified
    reasons = []
    if unverified:
        left = min(stated, max(0.0, round(stated - bounds.unverified * unverified / total, 2)))
    if left < stated:
        reasons.append(f"{unverified} of {pluralise(total, 'citation')} {_were(unverified)} not found")
    caps = [
        (bounds.open_tension, open_tensions, "question", "still open"),
        (bounds.severe_objection, objections, "severe objection", "still open"),
        (bounds.missing_voice, missing, "voice", "missing"),
    ]
    binding = [cap for cap in caps if cap[1] and cap[0] < left]
    reasons += [f"{pluralise(count, noun)} {_are(count)} {state}" for _, count, noun, state in binding]
    return min([left, *(cap[0] for cap in binding)]), ", ".join(reasons)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
