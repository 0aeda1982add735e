"""Compares a run with what its blind first turn gives alone: one voice's answer, or a vote. Pure.

Turn 1 is blind, so its answers are what a single call and a vote would have given, at no further cost. Code counts
the answers and sets them side by side. It never judges whether two answers mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from cdo.core.formatting import money, one_line, paid, pluralise
from cdo.core.usage import TotalUsage
from cdo.formats.sections import folded
from cdo.history.past_session import History, PositionChange, TensionHistory, TurnRecord, VoiceReply

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import Camp

TITLE = "Worth of the run"
SHOWN = 12  # moves and tensions that FINAL.md lists; the report has all
_LINE = 240


class Baseline(Struct, frozen=True):
    """What turn 1 gives alone, and what the turns after it changed.

    `turns` counts the turns held. `single` is the reply of turn 1 whose role comes first in the plan. `camps` are the
    answers of turn 1, largest camp first: grouped by its synthesis if `grouped`, else by equal words. `led` are the
    camps of the last turn.

    Usage: `first` is that of the single voice, `blind` of all calls to voices in turn 1, `grouping` of the synthesis
    of turn 1, `later` of everything after the voices of turn 1, `total` of the whole run, and `shared` of the part
    that a fork took over.

    `confidence` and `agreement` come from the syntheses of the first and the last turn. `settled` and `opened` are
    the tensions that later turns settled and raised, `moves` the changes of position, `evidence` the citations that
    code verified in later turns only, and `votes` the results of recorded votes.
    """

    turns: int
    single: VoiceReply
    camps: tuple[Camp, ...]
    grouped: bool
    led: tuple[Camp, ...]
    first: TotalUsage
    blind: TotalUsage
    grouping: TotalUsage
    later: TotalUsage
    total: TotalUsage
    shared: TotalUsage
    confidence: tuple[float | None, float | None]
    agreement: tuple[float | None, float | None]
    settled: tuple[TensionHistory, ...]
    opened: tuple[TensionHistory, ...]
    moves: tuple[PositionChange, ...]
    evidence: tuple[str, ...]
    votes: tuple[str, ...] = ()

    @property
    def vote(self) -> str:
        """The result of the plain vote of turn 1, as text."""
        lead, every = len(self.camps[0].voices), sum(len(camp.voices) for camp in self.camps)
        tied = [camp for camp in self.camps if len(camp.voices) == lead]
        share = f"{lead} of {pluralise(every, 'voice')}"
        if len(tied) == 1:
            return f"{_said(tied[0].position)} ({share})"
        if lead == 1 and not self.grouped:
            return "no two voices gave the same answer in the same words"
        return f"a tie ({share} each): {' / '.join(_said(camp.position) for camp in tied)}"

    @property
    def counting(self) -> str:
        """A sentence on how equal answers were found."""
        if self.grouped:
            return "The synthesis of turn 1 grouped the voices by their answers; code counted them."
        return "Only answers in the same words were counted as one. Others may mean the same."

    def markdown(self) -> str:
        """Return the section of FINAL.md, without its heading."""
        sure = f" ({self.single.confidence:.2f})" if self.single.confidence is not None else ""
        one = _said(self.single.position)
        vote = price(self.blind + self.grouping if self.grouped else self.blind)
        shared = f" (of it {price(self.shared)} taken over with the fork)" if self.shared.calls else ""
        rows = [
            f"What one voice, or a plain vote of the blind first turn, answers, beside this run. {self.counting}",
            "",
            "| answer | what it says | cost |",
            "|---|---|---|",
            f"| one voice (`t1-{self.single.voice}`) | {_cell(one)}{sure} | {price(self.first)} |",
            f"| plain vote of turn 1 | {_cell(self.vote)} | {vote} |",
            f"| this run, {pluralise(self.turns, 'turn')} | the decision above | {price(self.total)}{shared} |",
            "",
        ]
        later = taken(self.later)
        if self.turns == 1:
            return "\n".join(
                [*rows, f"There was no later turn; the synthesis and this answer took {later}.", *self._votes()]
            )
        changes = self._changes() or ["- Nothing on record: no tension settled or opened, no answer that moved."]
        span = "Turn 2" if self.turns == 2 else f"Turns 2–{self.turns}"
        return "\n".join([*rows, f"{span}, the syntheses and this answer took {later}:", "", *changes])

    def _votes(self) -> list[str]:
        return [f"- Voted on: {one_line(vote, _LINE)}" for vote in self.votes]

    def _changes(self) -> list[str]:
        found = []
        if None not in self.confidence and self.confidence[0] != self.confidence[1]:
            found.append(f"- Confidence of the synthesis: {self.confidence[0]:.2f} → {self.confidence[1]:.2f}.")
        if None not in self.agreement and self.agreement[0] != self.agreement[1]:
            found.append(f"- Agreement: {self.agreement[0]:.0%} → {self.agreement[1]:.0%}.")
        if self.grouped and self.led and self.camps[0].position != self.led[0].position:
            found.append(f"- Leading answer: {_camp(self.camps)} → {_camp(self.led)}.")
        opened = {life.id for life in self.opened}
        settled = [life for life in self.settled if life.id not in opened]
        found += _some([f"- {_titled(life)}: {_end(life)}." for life in settled])
        found += _some([f"- {_titled(life)}: came up in turn {life.since}, {_end(life)}." for life in self.opened])
        moved = [move for move in self.moves if not move.reworded]
        told = [move for move in moved if move.because or move.evidence or move.joined]
        silent = [f"{move.voice} (turn {move.turn})" for move in moved if move not in told]
        if silent:
            more = f" and {len(silent) - SHOWN} more" * (len(silent) > SHOWN)
            found.append(f"- Changed the answer without giving a reason: {', '.join(silent[:SHOWN])}{more}.")
        found += _some([_moved(move) for move in sorted(told, key=lambda move: bool(move.evidence))])
        found += self._votes()
        if self.evidence:
            found.append(f"- {pluralise(len(self.evidence), 'citation')} that code verified after turn 1 only.")
        return found


def measure(history: History, votes: Sequence[str] = ()) -> Baseline | None:
    """Measure what a session was worth so far; return None if no answer of turn 1 can be read.

    Not for plans whose first turn is a phase (`modes.phased`): that turn does not answer the question. `votes` are
    the results of recorded votes; they are used while there is no FINAL.md.
    """
    heard = [held for held in history.turns if any(said.position for said in held.voices)]
    if not heard or heard[0].number != 1:
        return None
    first, last = heard[0], heard[-1]
    order = history.frozen.plan.roles
    voices = [said for said in first.voices if said.position]
    single = min(voices, key=lambda said: (order.index(said.role) if said.role in order else len(order), said.voice))
    total = history.spent + history.shared
    asked = [spent for name, spent in history.calls.items() if name.startswith("t1-") and name != first.synthesis]
    blind = sum(asked, TotalUsage())
    known = {finding.citation for said in first.voices for finding in said.findings}
    later = [name for held in heard[1:] for said in held.voices for name in said.verified if name not in known]
    return Baseline(
        turns=last.number,
        single=single,
        camps=first.camps or _equal(voices),
        grouped=bool(first.camps),
        led=last.camps,
        first=single.spent,
        blind=blind,
        grouping=first.synthesis_spent,
        later=total - blind,
        total=total,
        shared=history.shared,
        confidence=(_confidence(first), _confidence(last)),
        agreement=(_agreement(first), _agreement(last)),
        settled=tuple(
            life for life in history.tensions if life.ended and life.ended > 1 and life.status != "outside"
        ),
        opened=tuple(life for life in history.tensions if life.since > 1),
        moves=history.moves,
        evidence=tuple(dict.fromkeys(later)),
        votes=history.final.votes if history.final else tuple(votes),
    )


def price(spent: TotalUsage) -> str:
    """Return the cost as text. No cost is $0."""
    if spent.unpriced and not spent.cost:
        return "price unknown"
    return spent.price or money(0.0)


def taken(spent: TotalUsage) -> str:
    """Return the usage for use in a sentence, such as "$0.05 (13 calls)" or "13 calls, price unknown"."""
    calls = pluralise(spent.calls, "call")
    if spent.unpriced and spent.cost:
        return f"{calls}, {money(spent.cost)} for those whose price is known"
    return paid(None if spent.unpriced else spent.cost, calls)


def _equal(voices: Sequence[VoiceReply]) -> tuple[Camp, ...]:
    """Group the voices that answer in the same words, largest group first."""
    from cdo.formats.voice_blocks import Camp  # it imports pydantic, which most runs have by then

    found: dict[str, list[VoiceReply]] = {}
    for said in voices:
        found.setdefault(folded(said.position), []).append(said)
    camps = [Camp(position=same[0].position, voices=tuple(said.voice for said in same)) for same in found.values()]
    return tuple(sorted(camps, key=lambda camp: -len(camp.voices)))


def _confidence(held: TurnRecord) -> float | None:
    return held.directive.confidence if held.directive else None


def _agreement(held: TurnRecord) -> float | None:
    return held.directive.agreement if held.directive else None


def _camp(camps: Sequence[Camp]) -> str:
    return f"“{_said(camps[0].position)}” ({len(camps[0].voices)} of {sum(len(c.voices) for c in camps)})"


def _said(text: str) -> str:
    """Return a statement for use in a sentence: on one line, shortened, without its final full stop."""
    return one_line(text, _LINE).rstrip(".")


def _titled(life: TensionHistory) -> str:
    return f"{life.id} {one_line(life.title, _LINE)}"


def _end(life: TensionHistory) -> str:
    if life.status == "outside":
        return "only a fact from outside can settle it"
    return f"{life.status} in turn {life.ended}" if life.ended else "still open"


def _moved(move: PositionChange) -> str:
    where = ", to the camp that led" if move.joined else ""
    proof = f"new verified evidence: {', '.join(f'`{one_line(item, 80)}`' for item in move.evidence[:3])}"
    why = f"; because: {_said(move.because)}" if move.because else "; no reason was stated"
    backed = proof if move.evidence else "no new verified evidence"
    said = f"“{_said(move.before.position)}” → “{_said(move.after.position)}”"
    return f"- {move.voice} moved in turn {move.turn}{where} ({backed}): {said}{why}."


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"- … and {more} more like these: `cdo report` shows all."]


def _cell(text: str) -> str:
    """Escape `text` for a cell of a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|")
