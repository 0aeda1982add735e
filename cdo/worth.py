"""What a run was worth: what one voice or a vote of the blind first turn says, and what later turns changed. Pure.

Turn 1 is blind, so its answers are what a single call and a vote would have given, at no further cost. Code counts
and sets side by side; it never judges whether two answers mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdo.history import Held, History, Life, Move, Said
from cdo.protocol import Camp
from cdo.spent import Spent
from cdo.wording import counted, flat, money

TITLE = "Worth of the run"
SHOWN = 12  # moves and tensions that FINAL.md lists; the report has all
_LINE = 240


@dataclass(frozen=True)
class Worth:
    """What turn 1 gives alone, and what the turns after it changed.

    `single` is the first seat of turn 1; `camps` who answers what there, the largest first, `grouped` by its
    synthesis or else by equal words; `led` the camps of the last turn. `first` is what the single voice took,
    `blind` all voices of turn 1, `later` everything after them, `total` the whole. `confidence` and `agreement` are
    those of the syntheses of the first and the last turn; `settled` and `opened` the tensions that later turns
    settled and brought up; `evidence` the citations that code verified in later turns only. `turns` were held.
    """

    turns: int
    single: Said
    camps: tuple[Camp, ...]
    grouped: bool
    led: tuple[Camp, ...]
    first: Spent
    blind: Spent
    later: Spent
    total: Spent
    confidence: tuple[float | None, float | None]
    agreement: tuple[float | None, float | None]
    settled: tuple[Life, ...]
    opened: tuple[Life, ...]
    moves: tuple[Move, ...]
    evidence: tuple[str, ...]

    def markdown(self) -> str:
        """The section of FINAL.md, without its heading."""
        lead = self.camps[0]
        share = f"{len(lead.voices)} of {sum(len(camp.voices) for camp in self.camps)} voices"
        vote = f"{_cell(lead.position)} ({share})"
        if not self.grouped and len(self.camps) > 1 and len(lead.voices) == 1:
            vote = "no two voices gave the same answer in the same words"
        elif len(self.camps) > 1 and len(self.camps[1].voices) == len(lead.voices):
            vote = f"a tie: {'; or '.join(_cell(camp.position) for camp in _tied(self.camps))} ({share} each)"
        sure = f" ({self.single.confidence:.2f})" if self.single.confidence is not None else ""
        rows = [
            "What one voice, or a plain vote of the blind first turn, answers, beside this run. Code sets them side "
            "by side; whether two answers mean the same is for the reader to say.",
            "",
            "| answer | what it says | cost |",
            "|---|---|---|",
            f"| one voice (`t1-{self.single.voice}`) | {_cell(self.single.position)}{sure} | {price(self.first)} |",
            f"| plain vote of turn 1 | {vote} | {price(self.blind)} |",
            f"| this run, {counted(self.turns, 'turn')} | the decision above | {price(self.total)} |",
            "",
        ]
        if self.turns == 1:
            return "\n".join(
                [*rows, f"There was no later turn; the rest of the cost ({price(self.later)}) weighed it."]
            )
        changes = self._changes() or [
            "- Nothing on record: no tension settled or opened, no reason, no new evidence."
        ]
        span = "Turn 2" if self.turns == 2 else f"Turns 2–{self.turns}"
        head = (
            f"{span}, the syntheses and this answer took {price(self.later)} ({counted(self.later.calls, 'call')}):"
        )
        return "\n".join([*rows, head, "", *changes])

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
        found += _some([f"- {_titled(life)}: {life.status} in turn {life.ended}." for life in settled])
        found += _some([f"- {_titled(life)}: came up in turn {life.since}, {_end(life)}." for life in self.opened])
        said = [move for move in self.moves if move.because or move.evidence or move.joined]
        found += _some([_moved(move) for move in sorted(said, key=lambda move: not move.evidence)])
        if silent := len(self.moves) - len(said):
            found.append(f"- {counted(silent, 'position')} read differently later without a stated reason.")
        if self.evidence:
            shown = ", ".join(f"`{flat(item, 80)}`" for item in self.evidence[:SHOWN])
            more = f" and {len(self.evidence) - SHOWN} more" if len(self.evidence) > SHOWN else ""
            found.append(f"- Citations that code verified after turn 1 only: {shown}{more}.")
        return found


def of(history: History) -> Worth | None:
    """What a session was worth so far; None where nothing of turn 1 can be read."""
    heard = [held for held in history.turns if any(said.position for said in held.voices)]
    if not heard or heard[0].number != 1:
        return None
    first, last = heard[0], heard[-1]
    order = history.frozen.plan.roles
    voices = [said for said in first.voices if said.position]
    single = min(voices, key=lambda said: (order.index(said.role) if said.role in order else len(order), said.voice))
    total = history.spent + history.shared
    blind = sum((said.spent for said in first.voices), Spent())
    known = {finding.citation for said in first.voices for finding in said.findings}
    later = [name for held in heard[1:] for said in held.voices for name in said.verified if name not in known]
    return Worth(
        turns=last.number,
        single=single,
        camps=first.camps or _equal(voices),
        grouped=bool(first.camps),
        led=last.camps,
        first=single.spent,
        blind=blind,
        later=total - blind,
        total=total,
        confidence=(_confidence(first), _confidence(last)),
        agreement=(_agreement(first), _agreement(last)),
        settled=tuple(life for life in history.tensions if life.ended and life.ended > 1),
        opened=tuple(life for life in history.tensions if life.since > 1),
        moves=history.moves,
        evidence=tuple(dict.fromkeys(later)),
    )


def price(spent: Spent) -> str:
    """What was spent in words; nothing is $0."""
    return spent.price or money(0.0)


def _equal(voices: Sequence[Said]) -> tuple[Camp, ...]:
    """Voices that answer in the same words."""
    found: dict[str, list[Said]] = {}
    for said in voices:
        found.setdefault(" ".join(said.position.casefold().split()).rstrip("."), []).append(said)
    camps = [Camp(position=same[0].position, voices=tuple(said.voice for said in same)) for same in found.values()]
    return tuple(sorted(camps, key=lambda camp: -len(camp.voices)))


def _tied(camps: Sequence[Camp]) -> list[Camp]:
    return [camp for camp in camps if len(camp.voices) == len(camps[0].voices)]


def _confidence(held: Held) -> float | None:
    return held.directive.confidence if held.directive else None


def _agreement(held: Held) -> float | None:
    return held.directive.agreement if held.directive else None


def _camp(camps: Sequence[Camp]) -> str:
    return f"“{flat(camps[0].position, _LINE)}” ({len(camps[0].voices)} of {sum(len(c.voices) for c in camps)})"


def _titled(life: Life) -> str:
    return f"{life.id} {flat(life.title, _LINE)}"


def _end(life: Life) -> str:
    return f"{life.status} in turn {life.ended}" if life.ended else "still open"


def _moved(move: Move) -> str:
    why = f" Because: {flat(move.because, _LINE)}" if move.because else " No reason was stated."
    backed = f"new verified evidence: {', '.join(f'`{flat(item, 80)}`' for item in move.evidence[:3])}"
    where = ", joining the largest camp" if move.joined else ""
    proof = backed if move.evidence else "no new verified evidence"
    said = f"“{flat(move.before.position, _LINE)}” → “{flat(move.after.position, _LINE)}”"
    return f"- {move.voice} moved in turn {move.turn}{where} ({proof}): {said}.{why}"


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"- … and {more} more like these: `cdo report` shows all."]


def _cell(text: str) -> str:
    """One line of a Markdown table."""
    return flat(text, _LINE).replace("\\", "\\\\").replace("|", "\\|")
