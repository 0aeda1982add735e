"""Defines what a session was, as data: its turns, replies, tensions, changes of position and their evidence. Pure.

Nothing here judges a text: a position changed if its words did, and evidence is new if code verified a citation that
no earlier answer contained.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field

from cdo.core.steps import CitationCheck
from cdo.core.usage import NOTHING, TotalUsage
from cdo.formats.sections import folded
from cdo.formats.voice import grouped, leading
from cdo.programs.deliberation.convergence import Tension
from cdo.session.session_file import Frozen

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import Camp, Claim, Directive, Objection


class VoiceReply(Struct, frozen=True):
    """The reply of one voice in one turn.

    `artifact` is the stem of its file; `findings` are the checks of its citations. `broken` says why the file cannot
    be read; the fields that would be read from it are then empty. `edited`: a person changed the file.
    """

    voice: str
    role: str
    turn: int
    artifact: str
    position: str = ""
    confidence: float | None = None
    claims: tuple[Claim, ...] = ()
    objections: tuple[Objection, ...] = ()
    changed_because: str = ""
    model: str = ""
    findings: tuple[CitationCheck, ...] = ()
    edited: bool = False
    spent: TotalUsage = NOTHING
    broken: str = ""
    withdraws: tuple[str, ...] = ()

    @property
    def verified(self) -> tuple[str, ...]:
        """The citations whose quoted words were found."""
        return tuple(finding.citation for finding in self.findings if finding.verified)


class TurnRecord(Struct, frozen=True):
    """One turn: its voices in order of name, the missing ones as (voice, reason), and its synthesis, if any.

    `ledger` holds every tension as it stood after the turn; `gaps` are the new gaps. `spent` covers voices and
    synthesis. `edited`: a person changed the synthesis.
    """

    number: int
    voices: tuple[VoiceReply, ...]
    missing: tuple[tuple[str, str], ...] = ()
    directive: Directive | None = None
    synthesis: str = ""
    edited: bool = False
    ledger: tuple[Tension, ...] = ()
    gaps: tuple[str, ...] = ()
    spent: TotalUsage = NOTHING
    synthesis_spent: TotalUsage = NOTHING

    @property
    def camps(self) -> tuple[Camp, ...]:
        """The voices grouped by answer, as the synthesis grouped them, largest camp first; () if it did not.

        Each voice counts once, and only if its answer is known. A voice that the synthesis left out is a camp of its
        own.
        """
        answers = {said.voice: said.position for said in self.voices if said.position}
        camps = self.directive.camps if self.directive else ()
        told = any(name in answers for camp in camps for name in camp.voices)
        return grouped(camps, answers) if told else ()

    def camp_of(self, voice: str) -> str:
        """Return the answer of the camp that a voice is in, folded for comparison; "" if voices were not grouped."""
        return next((folded(camp.position) for camp in self.camps if voice in camp.voices), "")

    @property
    def leading(self) -> str:
        """The answer of the camp that is larger than every other, folded for comparison; "" if there is none."""
        return folded(leading(self.camps))


class TensionHistory(Struct, frozen=True):
    """A tension over the whole run: its status after each turn from `since` on, as (turn, status)."""

    id: str
    title: str
    since: int
    steps: tuple[tuple[int, str], ...]

    @property
    def status(self) -> str:
        """Its last status."""
        return self.steps[-1][1]

    @property
    def ended(self) -> int | None:
        """The turn in which it was last settled, or None while it is open."""
        if self.status == "open":
            return None
        ended = self.steps[-1][0]
        for turn, status in reversed(self.steps):
            if status == "open":
                break
            ended = turn
        return ended


class PositionChange(Struct, frozen=True):
    """A change of a voice's position between two turns in which it replied.

    `because` is the reason that the voice states. `evidence` are the citations that code verified in its new answer
    and that no answer of an earlier turn contained. Without evidence, only the voice's own words support the change.
    `reworded`: the syntheses put the voice into a camp of the same words before and after. `joined`: the voice came
    from another camp into the one that led in the turn of its previous answer. Both need camps whose words did not
    change.
    """

    voice: str
    turn: int
    before: VoiceReply
    after: VoiceReply
    because: str
    evidence: tuple[str, ...]
    joined: bool = False
    reworded: bool = False


class Final(Struct, frozen=True):
    """FINAL.md: its `sections` by title in order, and the data of its front matter. `edited`: a person changed it."""

    status: str
    why: str
    confidence: float | None
    stated: float | None
    decision: str
    sections: Mapping[str, str]
    missing: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    votes: tuple[str, ...] = ()
    open_tensions: tuple[str, ...] = ()
    verified: int = 0
    exists: int = 0
    unverified: tuple[str, ...] = ()
    edited: bool = False


class History(Struct, frozen=True, dict=True):
    """A session from its question to its current state.

    `spent` is the usage of the session itself, `shared` the usage that a fork took over. `calls` is the usage of each
    call over all its attempts, by call name; `by_model` is the same by model. `final` is None while there is no
    FINAL.md.
    """

    session: str
    problem: str
    frozen: Frozen
    turns: tuple[TurnRecord, ...]
    final: Final | None
    calls: Mapping[str, TotalUsage]
    spent: TotalUsage
    shared: TotalUsage = NOTHING
    by_model: Mapping[str, TotalUsage] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """The status in FINAL.md, or "unfinished" if there is no FINAL.md."""
        return (self.final.status or "finished") if self.final else "unfinished"

    @cached_property
    def tensions(self) -> tuple[TensionHistory, ...]:
        """Every tension over the whole run, in order of first appearance."""
        steps: dict[str, list[tuple[int, str]]] = {}
        last: dict[str, Tension] = {}
        for turn in self.turns:
            for tension in turn.ledger:
                steps.setdefault(tension.id, []).append((turn.number, tension.status))
                last[tension.id] = tension
        return tuple(
            TensionHistory(name, last[name].title, last[name].since, tuple(found)) for name, found in steps.items()
        )

    @cached_property
    def moves(self) -> tuple[PositionChange, ...]:
        """Every change of a position, in order of turns."""
        found, latest, cited = [], dict[str, VoiceReply](), set[str]()
        held = {turn.number: turn for turn in self.turns}
        for turn in self.turns:
            for said in turn.voices:
                before = latest.get(said.voice)
                if before and said.position and folded(before.position) != folded(said.position):
                    new = tuple(name for name in dict.fromkeys(said.verified) if name not in cited)
                    was, now = held[before.turn].camp_of(said.voice), turn.camp_of(said.voice)
                    reworded = bool(now) and now == was
                    joined = bool(now) and now != was and now == held[before.turn].leading
                    found.append(
                        PositionChange(
                            said.voice, turn.number, before, said, said.changed_because, new, joined, reworded
                        )
                    )
            for said in turn.voices:
                cited.update(finding.citation for finding in said.findings)
                if said.position:
                    latest[said.voice] = said
        return tuple(found)

    @property
    def confidences(self) -> tuple[tuple[int, float], ...]:
        """The confidence that each synthesis stated, as (turn, confidence)."""
        return tuple((turn.number, turn.directive.confidence) for turn in self.turns if turn.directive)

    @property
    def agreements(self) -> tuple[tuple[int, float], ...]:
        """The agreement of each synthesis that has one, as (turn, share)."""
        pairs = [(turn.number, turn.directive.agreement) for turn in self.turns if turn.directive]
        return tuple((turn, share) for turn, share in pairs if share is not None)
