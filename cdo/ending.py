"""How every deliberation ends: FINAL.md, then the documents its domain asks for, and the outcome. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cdo.calls import INPUT, ledger, rotated, why_missing
from cdo.convergence import Record, Verdict, bounded
from cdo.documents import DocumentFormat
from cdo.final import FinalFormat
from cdo.team import INBOX, NoteFormat
from cdo.turn import Course, Heard
from cdo.types import Batch, Call, Collect, Program, Publish, Reply, ReplyFormat


@dataclass(frozen=True)
class Outcome:
    """How a run ended; everything FINAL.md's head needs and the models did not write.

    `missing` are (turn, role, reason); `added` what cdo had to complete; `flags` what a reader should know;
    `verified` and `unverified` the citations that hold, and those that do not with the reason; `documents` the data
    of what was written beside FINAL.md, by file; `votes` how recorded votes ended, where there were any; `ledger`
    the (id, status) of every tension. `confidence` is what is left of the `stated` one after the facts that
    `lowered` names. `record` is a section that code writes at the end of FINAL.md.
    """

    status: str
    why: str
    confidence: float
    turns: int
    missing: tuple[tuple[int, str, str], ...] = ()
    open_tensions: tuple[str, ...] = ()
    dissents: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()
    unverified: tuple[tuple[str, str], ...] = ()
    documents: Mapping[str, Any] = field(default_factory=dict)
    votes: tuple[str, ...] = ()
    ledger: tuple[tuple[str, str], ...] = ()
    stated: float = 0.0
    lowered: str = ""
    record: str = ""

    @property
    def degraded(self) -> bool:
        """Whether a voice is missing or cdo had to complete what a model left out."""
        return bool(self.missing or self.added)


@dataclass(frozen=True)
class FinalShape:
    """How a program's FINAL.md is worded and checked; the defaults are those of a deliberation.

    `data` adds to the call's, `include` names documents to be worded into it. `form` replaces the format that
    holds FINAL.md to the ledger and to the objections of the last turn. `record` is put at its end as it is.
    """

    template: str = "engine/final-protocol"
    form: ReplyFormat | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    include: Mapping[str, str] = field(default_factory=dict)
    votes: tuple[str, ...] = ()
    record: str = ""


def conclude(course: Course, ending: Verdict, heard: Heard, shape: FinalShape | None = None) -> Program[Outcome]:
    """Have FINAL.md written, and what the domain wants beside it; return the outcome."""
    shape = shape or FinalShape()
    (final,) = cast("tuple[Reply, ...]", (yield _final(course, ending, heard, shape)))
    documents: dict[str, Any] = {}
    if course.plan.documents:
        documents = yield from _documents(course)
    if course.plan.team:
        late = yield Collect("end-inbox", INBOX, NoteFormat())
        course.flags += [f"a letter to {note.to} came too late: {note.text[:80]}" for note in late]
        course.team = course.team.stopped(course.turn - 1)
        yield Publish(course.team.files())
    record = course.record
    stated = heard.directive.confidence
    confidence, lowered = bounded(
        stated,
        course.plan.bounds,
        open_tensions=len(record.open),
        missing=sum(turn == len(record.turns) for turn, *_ in course.missing),
        verified=len(course.verified),
        unverified=len(course.unverified),
    )
    return Outcome(
        status=ending.status,
        why=ending.why,
        confidence=confidence,
        stated=stated,
        lowered=lowered,
        turns=len(record.turns),
        missing=tuple(course.missing),
        open_tensions=tuple(f"{item.id}: {item.title}" for item in record.open),
        dissents=tuple(f"{item.role}/{item.id}: {item.text}" for item in record.turns[-1].objections),
        added=(*course.added, *final.added),
        flags=tuple(course.flags),
        verified=tuple(sorted(course.verified)),
        unverified=tuple(sorted(course.unverified.items())),
        documents=documents,
        votes=shape.votes,
        record=shape.record,
        ledger=tuple((item.id, item.status) for item in record.ledger),
    )


def final_form(record: Record) -> FinalFormat:
    """How FINAL.md is checked: held to the whole ledger and to every objection of the last turn."""
    return FinalFormat(
        tuple((item.id, item.title, item.status) for item in record.ledger), record.turns[-1].objections
    )


def _final(course: Course, ending: Verdict, heard: Heard, shape: FinalShape) -> Batch:
    """FINAL.md, held to the whole ledger and to every objection of the last turn."""
    record, turn = course.record, len(course.record.turns)
    dissents = record.turns[-1].objections
    shown = rotated(sorted(heard.present, key=lambda pair: pair[0].name), turn + 1)
    data: dict[str, Any] = {
        "turn": turn,
        "why": ending.why,
        "last": f"t{turn}-synthesis",
        "confidence": heard.directive.confidence,
        "voices": [{"name": voice.name, "artifact": reply.call} for voice, reply in shown],
        "tensions": ledger(record.ledger),
        "dissents": [{"id": d.id, "role": d.role, "text": d.text, "severity": d.severity} for d in dissents],
        "missing": [{"turn": at, "role": role, "reason": why_missing(reason)} for at, role, reason in course.missing],
        "unverified": [{"citation": citation, "why": why} for citation, why in sorted(course.unverified.items())],
        "verified": len(course.verified),
        **shape.data,
        **({"include": dict(shape.include)} if shape.include else {}),
    }
    reads = (INPUT, f"t{turn}-synthesis", *(reply.call for _, reply in shown))
    form = shape.form or final_form(record)
    call = Call("final", "final", shape.template, form, course.plan.models, data, reads, file="FINAL", deferred=True)
    return Batch((call,))


def _documents(course: Course) -> Program[dict[str, Any]]:
    """Have the domain's documents written from the final answer; one that fails is flagged, not fatal."""
    plan, turn = course.plan, len(course.record.turns)
    data = {
        "last": f"t{turn}-synthesis",
        "tensions": ledger(course.record.ledger),
        "dissents": [
            {"id": d.id, "role": d.role, "text": d.text, "severity": d.severity}
            for d in course.record.turns[-1].objections
        ],
        "roles": list(dict.fromkeys(course.last)),
        "domain": plan.domain or "",
    }
    dissenters = tuple(dict.fromkeys(item.role for item in course.record.turns[-1].objections))
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
    return {call.file: reply.data for call, reply in zip(calls, replies, strict=True) if not reply.missing}
