"""Ends every deliberation: FINAL.md, then the documents that its domain requires, and the outcome. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core.people import SEATS
from cdo.core.steps import CONTEXT, DRAFT, INPUT, Batch, Call, Collect, Missing, Program, Publish, Reply, ReplyFormat
from cdo.formats.final_answer import FinalFormat
from cdo.formats.person_reply import LateAnswer
from cdo.programs.deliberation.calls import ledger, objection, rotated, why_missing
from cdo.programs.deliberation.convergence import Position, Record, StopReason, Tension
from cdo.programs.deliberation.draft_review import DraftReview, ReviewFormat
from cdo.programs.deliberation.findings import FindingsFormat

if TYPE_CHECKING:
    from cdo.programs.deliberation.finding_blocks import FindingsData
from cdo.programs.deliberation.objections import Logged
from cdo.programs.deliberation.team import INBOX, NoteFormat
from cdo.programs.deliberation.turn import RunState, TurnResult

FINDINGS, REVIEW = "engine/findings-protocol", "engine/review-protocol"
BLIND, REVISION, FROM_RECORD = "engine/draft-protocol", "engine/revision-protocol", "engine/final-protocol"


class Outcome(Struct, frozen=True):
    """How a run ended: everything that the front matter of FINAL.md needs and the models did not write.

    `missing` are (turn, voice, reason). `added` is what cdo had to complete, `flags` what a reader should know.
    `verified` are the confirmed citations, `existing` the citations of existing lines from which nothing was quoted,
    `unverified` the others with the reason. `documents` are the data of the documents beside FINAL.md, by file.
    `votes` are the results of recorded votes. `ledger` and `objections` are both ledgers; `dropped` are the last
    positions of voices that did not sit in the last turn. `needed` says what another turn would have needed.
    `confidence` is the `stated` one, bounded by the facts that `lowered` names. `record` is a section that code
    writes at the end of FINAL.md. `enough` is true if one call would have given the same decision. `findings` are
    listed after the text of FINAL.md: findings of the second rank, and findings that the review refuted. `late` are
    answers of people that came after their turn had gone on.
    """

    status: str
    why: str
    confidence: float
    turns: int
    missing: tuple[tuple[int, str, Missing], ...] = ()
    open_tensions: tuple[str, ...] = ()
    dissents: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()
    unverified: tuple[tuple[str, str], ...] = ()
    documents: Mapping[str, Any] = field(default_factory=dict)
    votes: tuple[str, ...] = ()
    ledger: tuple[Tension, ...] = ()
    objections: tuple[Logged, ...] = ()
    dropped: tuple[Position, ...] = ()
    needed: str = ""
    stated: float = 0.0
    lowered: str = ""
    record: str = ""
    enough: bool = False
    findings: tuple[str, ...] = ()
    late: tuple[str, ...] = ()

    @property
    def degraded(self) -> bool:
        """True if a voice is missing or cdo had to complete what a model left out."""
        return bool(self.missing or self.added)

    @property
    def cited(self) -> bool:
        """True if any citation was looked up."""
        return bool(self.verified or self.existing or self.unverified)


class FinalTemplate(Struct, frozen=True):
    """The prompt and the format of a program's FINAL.md; the defaults are those of a deliberation.

    `data` is added to the data of the call. `include` names documents that become part of the prompt. `form` replaces
    the format that requires the findings of the first rank; there is no review then either. `record` is added at the
    end of FINAL.md unchanged.
    """

    template: str = FROM_RECORD
    form: ReplyFormat | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    include: Mapping[str, str] = field(default_factory=dict)
    votes: tuple[str, ...] = ()
    record: str = ""


def conclude(
    course: RunState, ending: StopReason, heard: TurnResult, shape: FinalTemplate | None = None
) -> Program[Outcome]:
    """Have FINAL.md and the documents of the domain written; return the outcome."""
    shape = shape or FinalTemplate()
    written = yield from _written(course, ending, shape)
    documents: dict[str, Any] = {}
    if course.plan.documents:
        documents = yield from _documents(course)
    if course.plan.team:
        late = yield Collect(f"t{course.turn}-inbox", INBOX, NoteFormat())
        course.flags += [f"a letter to {note.to} came too late: {note.text[:80]}" for note in late]
        course.team = course.team.stopped(course.turn - 1)
        yield Publish(course.team.files())
    tardy: tuple[str, ...] = ()
    if course.plan.people:
        tardy = tuple((yield Collect(f"t{course.turn}-seats", SEATS, LateAnswer())))
        course.flags += tardy
    record = course.record
    confidence, lowered = course.confidence
    return Outcome(
        status=ending.status,
        why=ending.why,
        needed=ending.needed,
        confidence=confidence,
        stated=heard.directive.confidence,
        lowered=lowered,
        turns=len(record.turns),
        missing=tuple(course.missing),
        open_tensions=tuple(f"{item.id}: {item.title}" for item in record.open),
        dissents=tuple(f"{item.role}/{item.id}: {item.text}" for item in record.objections.open),
        added=(*course.added, *written.added),
        flags=tuple(course.flags),
        verified=tuple(sorted(course.verified)),
        existing=tuple(sorted(course.existing)),
        unverified=tuple(sorted(course.unverified.items())),
        documents=documents,
        votes=shape.votes,
        record=shape.record,
        ledger=record.ledger,
        objections=record.objections.items,
        dropped=record.dropped,
        enough=_enough(record),
        findings=written.findings,
        late=tardy,
    )


class _Written(Struct, frozen=True):
    """What comes with the text of FINAL.md: what code had to add, and the findings to list after the text."""

    added: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()


def _enough(record: Record) -> bool:
    """True if one call would have given the same decision: turn 1 had one answer, and no later turn changed it."""
    first, *later = record.turns
    if len(first.voices) < 2 or len(first.camps) != 1:
        return False
    return bool(later) and all(turn.directive.answer_changed is False for turn in later)


def final_form(record: Record, findings: FindingsData | None = None, refuted: Collection[str] = ()) -> FinalFormat:
    """Return the format of FINAL.md: it requires findings of the first rank and tensions left to outside facts.

    The findings whose ids are in `refuted` may be left out.
    """
    outside = tuple((item.id, item.title) for item in record.outside)
    first = findings.first if findings else ()
    return FinalFormat(tuple(item for item in first if item[0] not in refuted), outside)


def from_record(call: Call) -> Call:
    """Return the final call without draft and review: the same data, and the record to read."""
    reads = tuple(name for name in call.reads if name not in (DRAFT, "REVIEW"))
    return replace(call, template=FROM_RECORD, reads=reads)


def _written(course: RunState, ending: StopReason, shape: FinalTemplate) -> Program[_Written]:
    """Have the final answer written: from the record, or from a blind draft corrected by findings and a review."""
    models = course.plan.models
    if not course.plan.review or shape.form is not None:
        data, reads = _material(course, ending, None)
        data |= {**shape.data, **({"include": dict(shape.include)} if shape.include else {})}
        form = shape.form or final_form(course.record)
        final = yield from _one(_final(shape.template, form, models, data, reads))
        return _Written(final.added)
    findings, drafted = yield from _findings_and_draft(course)
    data, reads = _material(course, ending, findings)
    template, review = FROM_RECORD, None
    if drafted:
        template, reads = REVISION, (*reads, DRAFT)
        review = yield from _review(course, data)
        reads = (*reads, *(("REVIEW",) if review else ()))
    refuted = review.reasons if review else {}
    form = final_form(course.record, findings, refuted)
    data |= {"refuted": list(refuted), "findings": [item for item in data["findings"] if item["id"] not in refuted]}
    final = yield from _one(_final(template, form, models, data, reads))
    return _Written(final.added, _behind(findings, refuted))


def _final(
    template: str, form: ReplyFormat, models: tuple[str, ...], data: Mapping[str, Any], reads: tuple[str, ...]
) -> Call:
    """Return the call whose reply becomes FINAL.md; the shell writes the file when the outcome is known."""
    return Call("final", "final", template, form, models, data, reads, file="FINAL", deferred=True)


def _behind(findings: FindingsData | None, refuted: Mapping[str, str]) -> tuple[str, ...]:
    """Return what FINAL.md lists after its text: findings of the second rank, and refuted ones of the first."""
    first = findings.first if findings else ()
    out = [f"{said} (The review refuted it: {refuted[ident]})" for ident, said in first if ident in refuted]
    return (*out, *(findings.others if findings else ()))


def _one(call: Call) -> Program[Reply]:
    """Make one call without which the run cannot end."""
    (reply,) = cast("tuple[Reply, ...]", (yield Batch((call,))))
    return reply


def _lenient(*calls: Call) -> Program[tuple[Reply, ...]]:
    """Make calls at the same time; the run goes on even if an answer is missing."""
    return cast("tuple[Reply, ...]", (yield Batch(calls, quorum=0, lenient=True)))


def _findings_and_draft(course: RunState) -> Program[tuple[FindingsData | None, bool]]:
    """Have all claims and objections ranked by what they would change, and a draft written from the material alone.

    Return the findings (None if that call failed), and True if there is a draft. The calls do not see each other.
    """
    models, (record, reads) = course.plan.models, _record(course)
    record |= {"sources": [{"id": source.id, "text": source.text} for source in course.sources]}
    blind = {"today": course.plan.today, "words": course.plan.words[1]}
    form = FindingsFormat(tuple(course.sources))
    ranked, drafted = yield from _lenient(
        Call("findings", "findings", FINDINGS, form, models, record, reads, file="FINDINGS"),
        Call("draft", "draft", BLIND, FinalFormat(), models, blind, (INPUT, CONTEXT), file=DRAFT),
    )
    if ranked.missing:
        course.flags.append(f"the findings were not ranked: {ranked.reason}")
    if drafted.missing:
        course.flags.append(f"FINAL.md was written without a draft and a review: {drafted.reason}")
    return cast("FindingsData | None", ranked.data), not drafted.missing


def _review(course: RunState, data: Mapping[str, Any]) -> Program[DraftReview | None]:
    """Have the draft reviewed by another model of the plan, if there is one; None if that fails."""
    camps = course.record.turns[-1].camps
    told = {
        **{key: data[key] for key in ("today", "words", "findings")},
        "decision": camps[0].position if camps else "",
    }
    models = (*course.plan.models[1:], *course.plan.models[:1])
    first = tuple(item["id"] for item in data["findings"] if item["rank"] == 1)
    form = ReviewFormat(first)
    (review,) = yield from _lenient(
        Call("review", "review", REVIEW, form, models, told, (INPUT, CONTEXT, DRAFT), file="REVIEW")
    )
    if review.missing:
        course.flags.append(f"the draft of FINAL.md was not reviewed: {review.reason}")
        return None
    found = cast(DraftReview, review.data)
    if found.refuted:
        course.flags.append(f"the review refuted findings of the first rank: {', '.join(found.reasons)}")
    return found


def _record(course: RunState) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the data and the artifacts that show a run: the material, every synthesis, and artifacts of each voice.

    These are its artifact of turn 1, because later ones do not repeat what it found, and its last artifact.
    """
    turns = len(course.record.turns)
    voices = sorted(course.spoke.items())
    first = [(name, call) for name, spoke in voices for call in spoke if call.startswith("t1-")]
    last = [(name, spoke[-1]) for name, spoke in voices if not spoke[-1].startswith("t1-")]
    shown = [*rotated(first, turns + 1), *rotated(last, turns + 1)]
    syntheses = [f"t{turn}-synthesis" for turn in range(1, turns + 1)]
    data = {
        "turn": turns,
        "today": course.plan.today,
        "voices": [{"name": name, "artifact": call, "turn": int(call[1:].partition("-")[0])} for name, call in shown],
        "syntheses": syntheses,
    }
    return data, (INPUT, CONTEXT, *syntheses, *(call for _, call in shown))


def _material(
    course: RunState, ending: StopReason, findings: FindingsData | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the data and the artifacts for the author of the final answer."""
    record = course.record
    confidence, lowered = course.confidence
    data, reads = _record(course)
    data |= {
        "why": ending.why,
        "last": f"t{data['turn']}-synthesis",
        "words": course.plan.words[1],
        "confidence": f"{confidence:.2f}",
        "bounded_by": lowered,
        "tensions": ledger(record.ledger),
        "outside": ledger(record.outside),
        "dissents": [objection(item) for item in record.objections.open],
        "dropped": [
            {"name": item.voice, "turn": item.turn, "text": item.text, "confidence": item.confidence}
            for item in record.dropped
        ],
        "findings": [
            {"id": item.id, "rank": item.rank, "text": item.text} for item in (findings.findings if findings else ())
        ],
        "missing": [{"turn": at, "role": role, "reason": why_missing(reason)} for at, role, reason in course.missing],
        "unverified": [{"citation": citation, "why": why} for citation, why in sorted(course.unverified.items())],
        "verified": len(course.verified) + len(course.existing),
        "enough": _enough(record),
    }
    return data, reads


def _documents(course: RunState) -> Program[dict[str, Any]]:
    """Have the domain's documents written from the final answer; a failure is flagged, not fatal."""
    from cdo.formats.documents.document import DocumentFormat

    plan, turn = course.plan, len(course.record.turns)
    data = {
        "answer": "FINAL",
        "last": f"t{turn}-synthesis",
        "tensions": ledger(course.record.ledger),
        "dissents": [objection(item) for item in course.record.objections.open],
        "roles": list(dict.fromkeys(course.last)),
        "domain": plan.domain or "",
        "integration": list(plan.integration),
    }
    dissenters = tuple(dict.fromkeys(item.role for item in course.record.objections.open))
    calls = [
        Call(
            f"document-{name}",
            "document",
            f"templates/documents/{name}",
            DocumentFormat(prompt, dissenters),
            plan.models,
            data,
            (INPUT, "FINAL", f"t{turn}-synthesis"),
            file=prompt.file,
        )
        for name, prompt in plan.documents.items()
    ]
    replies: Sequence[Reply] = yield Batch(tuple(calls), quorum=0)
    for call, reply in zip(calls, replies, strict=True):
        course.added += [f"{call.file}: {item}" for item in reply.added]
        if reply.missing:
            course.flags.append(f"{call.file}.md could not be written: {reply.reason}")
    written = {call.file: reply.data for call, reply in zip(calls, replies, strict=True) if not reply.missing}
    yield Publish({name: text for data in written.values() for name, text in data.drawn.items()})
    return written
