"""Reads the history of a session from its records and files, not from the journal. Pure.

A file that a person edited counts as it is now.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace
from pydantic import ValidationError

from cdo.core.errors import SessionError
from cdo.core.people import person_of
from cdo.core.steps import CitationCheck, InvalidReply
from cdo.core.usage import TotalUsage
from cdo.formats.fields import load
from cdo.formats.final_answer import final_section
from cdo.formats.markdown import fenced
from cdo.formats.voice import MAX_DIRECTIVE, agreement
from cdo.formats.voice_blocks import AgentData, Directive, VoiceData
from cdo.history.past_session import Final, History, TurnRecord, VoiceReply
from cdo.programs.deliberation.convergence import Position, Record
from cdo.programs.deliberation.objections import dissents
from cdo.session.reader import SessionReader, checked_in

_VOICE = re.compile(r"t([1-9][0-9]{0,5})-([a-z0-9-]+)")
SYNTHESIS = "synthesis"


def read(archive: SessionReader) -> History:
    """Read the history of a session.

    Raises `SessionError` if its plan, its records or the front matter of FINAL.md are damaged.
    """
    frozen = archive.frozen()
    records = archive.records()
    own, shared = spent_by(records)
    everything = {name: own.get(name, TotalUsage()) + shared.get(name, TotalUsage()) for name in {**own, **shared}}
    checked = checked_in(records)
    return History(
        session=archive.name,
        problem=(archive.text("00-input.md") or "").strip(),
        frozen=frozen,
        turns=_turns(archive, records, everything, checked),
        final=final(archive),
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
        data = (VoiceData if person_of(model) else AgentData).model_validate(dict(artifact.meta))
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


def final(archive: SessionReader) -> Final | None:
    """Read FINAL.md; return None if there is none. Raises `SessionError` if its front matter is damaged."""
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
