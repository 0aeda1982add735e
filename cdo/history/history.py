"""Reconstructs a session as data: replies, tensions, changes of position and their evidence. Pure.

The source is the session's records and files, not the journal. A file that a person edited counts as it is now.
Nothing here judges a text: a position changed if its words did, and evidence is new if code verified a citation that
no earlier answer contained.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from cdo.core.errors import SessionError
from cdo.core.steps import CitationCheck, InvalidReply
from cdo.core.usage import NOTHING, TotalUsage
from cdo.formats.fields import load
from cdo.formats.final_answer import final_section
from cdo.formats.markdown import fenced
from cdo.formats.sections import folded
from cdo.formats.voice import MAX_DIRECTIVE, AgentData, Camp, Claim, Directive, Objection, agreement, grouped, leading
from cdo.programs.deliberation.convergence import Position, Record, Tension
from cdo.programs.deliberation.objections import dissents
from cdo.session.reader import SessionReader, checked_in
from cdo.session.session_file import Frozen, read_frozen

_VOICE = re.compile(r"t([1-9][0-9]{0,5})-([a-z0-9-]+)")
SYNTHESIS = "synthesis"


@dataclass(frozen=True)
class VoiceReply:
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


@dataclass(frozen=True)
class TurnRecord:
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


@dataclass(frozen=True)
class TensionHistory:
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


@dataclass(frozen=True)
class PositionChange:
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


@dataclass(frozen=True)
class Final:
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


@dataclass(frozen=True)
class History:
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


def read(archive: SessionReader) -> History:
    """Read the history of a session.

    Raises `SessionError` if its plan, its records or the front matter of FINAL.md are damaged.
    """
    frozen = read_frozen(archive.text("session.yaml"), Path(archive.place))
    records = archive.records()
    own, shared = spent_by(records)
    everything = {name: own.get(name, TotalUsage()) + shared.get(name, TotalUsage()) for name in {**own, **shared}}
    checked = checked_in(records)
    return History(
        session=archive.name,
        problem=(archive.text("00-input.md") or "").strip(),
        frozen=frozen,
        turns=_turns(archive, records, everything, checked),
        final=_final(archive),
        calls=everything,
        spent=sum(own.values(), TotalUsage()),
        shared=sum(shared.values(), TotalUsage()),
        by_model=_by_model(records),
    )


def spent_by(records: Iterable[Mapping[str, Any]]) -> tuple[dict[str, TotalUsage], dict[str, TotalUsage]]:
    """Return the usage of each call: paid by this session, and paid by the session it was forked from (`from`)."""
    own: dict[str, TotalUsage] = {}
    shared: dict[str, TotalUsage] = {}
    for record in records:
        if record["kind"] == "exchange":
            place = shared if record.get("from") else own
            place[record["call"]] = place.get(record["call"], TotalUsage()) + TotalUsage.of(record)
    return own, shared


def _by_model(records: Iterable[Mapping[str, Any]]) -> dict[str, TotalUsage]:
    found: dict[str, TotalUsage] = {}
    for record in records:
        if record["kind"] == "exchange":
            model = str(record["model"])
            found[model] = found.get(model, TotalUsage()) + TotalUsage.of(record)
    return found


# -- parts -----------------------------------------------------------------------------------------


def _turns(
    archive: SessionReader,
    records: Sequence[Mapping[str, Any]],
    spent: Mapping[str, TotalUsage],
    checked: Mapping[str, tuple[CitationCheck, ...]],
) -> tuple[TurnRecord, ...]:
    voices: dict[int, list[VoiceReply]] = {}
    for file in archive.files():
        match = _VOICE.fullmatch(file.removesuffix(".md"))
        if match and file.endswith(".md") and match[2] != SYNTHESIS:
            voices.setdefault(int(match[1]), []).append(_said(archive, match[0], checked, spent))
    missing: dict[int, dict[str, str]] = {}
    for record in records:
        match = _VOICE.fullmatch(str(record.get("call", ""))) if record["kind"] == "missing" else None
        if match and match[2] not in {said.voice for said in voices.get(int(match[1]), [])}:
            missing.setdefault(int(match[1]), {})[match[2]] = str(record["reason"])
    found, ledger = [], Record()
    for number in sorted({*voices, *missing}):
        heard = tuple(said for said in voices.get(number, []) if said.role)
        directive, edited = _directive(archive, f"t{number}-{SYNTHESIS}")
        if directive:
            if "camps" in directive.model_fields_set:  # older sessions keep the agreement that the synthesiser stated
                shared = agreement(directive.camps, [said.voice for said in heard if said.position])
                directive = directive.model_copy(update={"agreement": shared})
            ledger = _after(ledger, number, directive, heard)
        paid = spent.get(f"t{number}-{SYNTHESIS}", TotalUsage())
        names = [*(said.artifact for said in heard), *(f"t{number}-{name}" for name in missing.get(number, {}))]
        found.append(
            TurnRecord(
                number,
                heard,
                tuple(missing.get(number, {}).items()),
                directive,
                f"t{number}-{SYNTHESIS}" if directive else "",
                edited,
                ledger.ledger,
                ledger.turns[-1].new_gaps if directive else (),
                sum((spent.get(name, TotalUsage()) for name in names), paid),
                paid,
            )
        )
    return tuple(held for held in found if held.voices or held.missing)


def _after(record: Record, number: int, directive: Directive, heard: Sequence[VoiceReply]) -> Record:
    """Return `record` with turn `number` added. New tensions get this number, also if a turn left no directive."""
    known = {tension.id for tension in record.ledger}
    raised = [item for said in heard for item in dissents(said.voice, number, said.objections)]
    positions = [
        Position(said.voice, number, said.position, said.confidence or 0.0) for said in heard if said.position
    ]
    withdrawn = [(said.voice, name) for said in heard for name in said.withdraws]
    refereed = any(said.role == "referee" for said in heard)
    record = record.after(directive, raised, positions, withdrawn=withdrawn, refereed=refereed)
    born = (item if item.id in known else replace(item, since=number) for item in record.ledger)
    return replace(record, ledger=tuple(born))


def _said(
    archive: SessionReader,
    stem: str,
    checked: Mapping[str, tuple[CitationCheck, ...]],
    spent: Mapping[str, TotalUsage],
) -> VoiceReply:
    """Read the file of a voice. A file of another kind gives a reply without a role."""
    match = cast("re.Match[str]", _VOICE.fullmatch(stem))
    turn, voice = int(match[1]), match[2]
    try:
        artifact = archive.artifact(stem)
    except SessionError as error:
        return VoiceReply(
            voice, voice, turn, stem, broken=error.message, edited=True, spent=spent.get(stem, TotalUsage())
        )
    if artifact is None or artifact.own.get("kind", "agent") != "agent":
        return VoiceReply(voice, "", turn, stem)
    own, role = artifact.own, str(artifact.own.get("role") or voice)
    model, paid = str(own.get("model") or ""), spent.get(stem, TotalUsage())
    try:
        data = AgentData.model_validate(dict(artifact.meta))
    except ValidationError as error:
        why = f"{stem}.md: {error.errors()[0]['msg']}"
        return VoiceReply(voice, role, turn, stem, model=model, edited=artifact.edited, spent=paid, broken=why)
    findings = checked.get(artifact.sha) or ()
    return VoiceReply(
        voice,
        role,
        turn,
        stem,
        data.position,
        data.confidence,
        data.claims,
        data.objections,
        data.changed_because or "",
        model,
        findings,
        artifact.edited,
        paid,
        withdraws=data.withdraws,
    )


def _directive(archive: SessionReader, stem: str) -> tuple[Directive | None, bool]:
    """Read the directive of a synthesis, without the keys that special programs add.

    Return (directive, whether a person edited it). The directive is None if there is none that can be read.
    """
    try:
        artifact = archive.artifact(stem)
    except SessionError:
        return None, True
    if artifact is None:
        return None, False
    blocks = fenced(artifact.body, ("yaml", "yml"))
    if len(blocks) != 1:
        return None, artifact.edited
    try:
        found = load(*blocks[0], "The directive", MAX_DIRECTIVE)
        known = {key: value for key, value in cast("dict[str, Any]", found).items() if key in Directive.model_fields}
        return Directive.model_validate(known), artifact.edited
    except (InvalidReply, ValidationError, AttributeError):
        return None, artifact.edited


def _final(archive: SessionReader) -> Final | None:
    artifact = archive.artifact("FINAL")
    if artifact is None:
        return None
    own, confidence = artifact.own, artifact.meta.get("confidence")
    citations = found if isinstance(found := own.get("citations"), dict) else {}
    return Final(
        status=str(own.get("status") or ""),
        why=str(own.get("why") or ""),
        confidence=_number(confidence),
        stated=_number(own.get("stated_confidence", confidence)),
        decision=final_section(artifact.body, "Decision") or "",
        sections=_sections(artifact.body),
        missing=_strings(own.get("missing_voices")),
        flags=_strings(own.get("flags")),
        added=_strings(own.get("added")),
        votes=_strings(own.get("votes")),
        open_tensions=_strings(own.get("open_tensions")),
        verified=int(max(0, _number(citations.get("verified")) or 0)),
        exists=int(max(0, _number(citations.get("exists")) or 0)),
        unverified=_strings(citations.get("unverified")),
        edited=artifact.edited,
    )


def _sections(body: str) -> dict[str, str]:
    """Return the second-level sections of FINAL.md by their titles, in order."""
    from cdo.formats.markdown import headings

    lines = body.split("\n")
    return {
        lines[start].strip().lstrip("#").strip(): "\n".join(lines[start + 1 : end]).strip()
        for start, end, _ in headings(lines)
        if lines[start].split()[0] == "##"
    }


def _number(value: Any) -> float | None:
    """Return a front matter value as a float; None if it is no finite number, as a person may write anything."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if known else None


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
