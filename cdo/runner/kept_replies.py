"""The replies that a session has already: looked up before a call is sent, and kept when they are valid.

A reply is the artifact on disk or a recorded exchange whose key matches the call. What a person edited wins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core.errors import SessionError
from cdo.core.events import Observe, ReplyAccepted, ReplyCorrected, ReplyMissing
from cdo.core.steps import Call, CitationCheck, InvalidReply, Reply
from cdo.formats.lenient.reading import ReadReply, read
from cdo.runner.budget import Budget
from cdo.runner.evidence_checks import EvidenceChecks
from cdo.runner.exchange_records import tools_refused
from cdo.runner.inputs import Inputs, unusable
from cdo.runner.requests import PendingCall
from cdo.runner.substitutes import Substitutes
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.store import Session


class KeptReplies(Struct):
    """The replies of one session: those on record, and the files of those that this run accepts.

    `with_tools` tells whether models can look into the repository. `reopened` becomes true when a cap that ended a
    call has changed since. `artifacts` are those of the accepted replies, by call.
    """

    session: Session
    observe: Observe
    inputs: Inputs
    evidence: EvidenceChecks
    substitutes: Substitutes
    budget: Budget
    with_tools: bool
    reopened: bool
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    @property
    def caps(self) -> list[float | None]:
        """The caps that a record of a call which a cap ended stores."""
        limits = self.budget.limits
        return [limits.calls, limits.tokens, limits.cost]

    def _lifted(self, record: Mapping[str, Any]) -> bool:
        """True if the caps stored in this record have changed since. Time limits are per process and never match."""
        return self.substitutes.lifts_caps and "caps" in record and record["caps"] != self.caps

    def prepare(self, call: Call) -> PendingCall:
        """Read the inputs of a call and return it with its key, its records and its artifact."""
        texts, inputs = {}, {}
        for name in call.reads:
            texts[name], inputs[name] = self.inputs.read(name)
        key = artifacts.digest({"template": call.template, "data": dict(call.data), "reads": inputs})[:16]
        work = PendingCall(call, key, inputs, texts, self.session.artifact(call.artifact))
        for record in self.session.records:
            if record.get("call") != call.name or record.get("inputs") != key:
                continue
            if self._lifted(record):
                self.reopened = True
            else:
                work.take(record)
        self.substitutes.prepare(work)
        return work

    def recorded(self, work: PendingCall) -> tuple[ReadReply, str] | None:
        """Return the first valid reply among the recorded ones, and its model; one without deviations comes first.

        Earlier versions sent back replies that are read leniently now; what the model answered then counts.
        """
        first: tuple[ReadReply, str] | None = None
        for record in work.records:
            if "response" not in record:
                continue
            with contextlib.suppress(InvalidReply):
                found = read(work.call.format, work.said(record)), str(record["model"])
                if not found[0].notes:
                    return found
                first = first or found
        return first

    def is_open(self, work: PendingCall) -> bool:
        """True if a model must be asked: neither the disk nor the records answer the call."""
        return not (work.artifact or work.given_up or self.recorded(work))

    def replay(self, work: PendingCall) -> Reply | None:
        """Return the reply from the artifact on disk, or the recorded decision to continue without one, or None."""
        call, artifact = work.call, work.artifact
        # A deferred file contains more than the reply. Use the record instead, unless a person edited the file.
        if artifact and (artifact.edited or not (call.deferred and (work.records or work.given_up))):
            added = tuple(artifact.own.get("added") or ())
            text, data = artifact.reply, parsed(call, artifact.reply)
            if data is None and (whole := call.format.repair(text)):
                data = parsed(call, whole[0])
            if data is not None:
                self.artifacts[call.name] = artifact
                how = "edited" if artifact.edited else "recorded"
                self.observe(_accepted(call, data, how))
                model = str(artifact.own.get("model") or "")
                return Reply(call.name, data, added=added, model=model, edited=artifact.edited)
            if artifact.edited:
                raise _broken_edit(self.session, call)
        if work.given_up:
            self.observe(ReplyMissing(name=call.name, reason=str(work.given_up), how="recorded"))
            return Reply(call.name, reason=work.given_up)
        return None

    def findings(self, call: str) -> tuple[CitationCheck, ...]:
        """Return the citation checks of the reply to a call."""
        return self.evidence.checked.get(self.artifacts[call].sha, ()) if call in self.artifacts else ()

    def _without_tools(self, work: PendingCall) -> bool:
        """True if a call had no tools though the run has some: the model refused them, or it waited for a batch."""
        through_batch = self.with_tools and any("batch" in record for record in work.records)
        return through_batch or tools_refused(work.records)

    async def keep(self, work: PendingCall, text: str, model: str, reply: Reply) -> Reply:
        """Write the artifact of a valid reply, with its citation checks."""
        call, used = work.call, [record for record in work.records if record.get("usage")]
        costs = [record["cost"] for record in used]
        own = {
            "kind": call.kind,
            **{key: call.data[key] for key in ("role", "turn") if key in call.data},
            "model": model,
            "usage": {key: sum(record["usage"][key] for record in used) for key in ("input_tokens", "output_tokens")},
            "cost": None if None in costs else round(sum(costs), 9),
            "attempts": len(work.records),
            **({"tools_refused": True} if call.tools and self._without_tools(work) else {}),
            **({"added": list(reply.added)} if reply.added else {}),
            **({"read_leniently": list(reply.notes)} if reply.notes else {}),
            "inputs": {**work.inputs, "call": work.key},
        }
        artifact = artifacts.from_reply(text, own)
        if findings := await self.evidence.citations(artifact, reply.data):
            artifact = replace(artifact, own={**own, "citations": [finding.data() for finding in findings]})
        if call.deferred:
            self.inputs.unwritten[call.artifact] = artifact
        self.artifacts[call.name] = artifact if call.deferred else self.session.put(call.artifact, artifact)
        self.evidence.checked.setdefault(self.artifacts[call.name].sha, findings)
        if reply.notes:
            self.observe(ReplyCorrected(name=call.name, notes=reply.notes))
        self.observe(_accepted(call, reply.data))
        return replace(reply, model=model)


def parsed(call: Call, text: str) -> Any:
    """Return the data of a reply, or None if it is not valid."""
    try:
        return call.format.parse(text)
    except InvalidReply:
        return None


def _broken_edit(session: Session, call: Call) -> SessionError:
    """Return the error for a file that a person edited and broke; lines count from the top of the file."""
    text = session.read(f"{call.artifact}.md") or ""
    if not text.strip():
        return unusable(session, call.artifact, "is empty.")
    try:
        call.format.parse(text)
        why = "it cannot be read."
    except InvalidReply as invalid:
        why = " ".join(invalid.problems)
    return unusable(session, call.artifact, f"was edited and is no longer valid: {why}")


def _accepted(call: Call, data: Any, how: str | None = None) -> ReplyAccepted:
    """Return the event of a valid reply: the parts of it that observers read."""
    shown = ("position", "confidence", "focus", "exit_ready", "agreement")
    told = {key: getattr(data, key, None) for key in shown}
    directive = None if told["exit_ready"] is None else data.model_dump(mode="json")
    return ReplyAccepted(name=call.name, **told, directive=directive, how=how)
