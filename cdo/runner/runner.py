"""Executes programs durably: calls models, retries, charges, validates and records.

Each call is looked up before it is sent: an artifact or record that matches its inputs is reused. So resuming a run
is the same as running it again. The runner knows no particular program.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from cdo.content.library import Library
from cdo.core.errors import BudgetReached, CdoError, SessionError, WaitsForBatch
from cdo.core.events import BatchBegan, NoteTold, Observe, ReplyAccepted, ReplyCorrected, ReplyMissing
from cdo.core.exchange import Effort, Fault
from cdo.core.people import ABSENT
from cdo.core.steps import (
    CAPPED,
    Ask,
    Batch,
    Call,
    CheckRun,
    CitationCheck,
    Collect,
    Gather,
    InvalidReply,
    Missing,
    Nest,
    Nested,
    Pause,
    Program,
    Project,
    Publish,
    Reply,
    Review,
    RunCheck,
    Step,
    Survey,
)
from cdo.core.usage import TotalUsage
from cdo.formats.lenient.reading import ReadReply, read, repaired
from cdo.runner.attempts import Attempts, Deadlines
from cdo.runner.budget import Budget, Limits
from cdo.runner.curtain import Curtain
from cdo.runner.evidence_checks import EvidenceChecks
from cdo.runner.exchange_records import tools_refused
from cdo.runner.failures import EXCUSED, MissingReply, enough, failure
from cdo.runner.human_steps import Human, HumanSteps
from cdo.runner.inputs import Inputs, unusable
from cdo.runner.model_seat import CallLane, ModelSeat
from cdo.runner.person_voice import PersonVoices
from cdo.runner.recorded_steps import RecordedSteps
from cdo.runner.requests import PendingCall, Toolbox
from cdo.runner.retry import RetryBudget
from cdo.runner.staleness import settle
from cdo.runner.substitutes import Substitutes
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.reader import checked_in
from cdo.session.store import Session

T = TypeVar("T")


@dataclass
class Runner:
    """Executor of a program on one session in this process. `seats` maps model names to their backends.

    `allowance` limits retries, and `slots` requests in flight in place of `concurrency`; several runs can share both.
    In a `lane`, calls wait at batch endpoints over several processes.

    These are None if not available: `toolbox` gives models read access to the repository; `check` checks the
    citations of a text; `search` returns the quotes that occur in the repository; `skill` reads the body of a skill
    by its name; `nest` runs a deliberation in its own session within given caps, and returns its result and usage;
    `run_check` runs the person's command; `survey` returns the text of further files for a focus, "" if there are
    none. `reopened` means that a cap which ended the work has been lifted: files
    made because of that end may be replaced without consent. A turn waits `seat_wait` seconds for people; with `stay`
    this process does, also without a terminal. `substitutes` stand in for missing records in a replay.
    """

    session: Session
    library: Library
    seats: Mapping[str, ModelSeat]
    budget: Budget
    observe: Observe
    human: Human = field(default_factory=Human)
    deadlines: Deadlines = field(default_factory=Deadlines)
    concurrency: int = 256
    reply_tokens: int | None = None
    effort: Effort | None = None
    allowance: RetryBudget = field(default_factory=RetryBudget)
    slots: asyncio.Semaphore | None = None
    lane: CallLane | None = None
    toolbox: Toolbox | None = None
    check: Callable[[str], tuple[CitationCheck, ...]] | None = None
    search: Callable[[Sequence[str]], frozenset[str]] | None = None
    skill: Callable[[str], str] | None = None
    nest: Callable[[Nest, Limits], Awaitable[tuple[Nested | None, TotalUsage]]] | None = None
    run_check: Callable[[RunCheck], Awaitable[CheckRun]] | None = None
    survey: Callable[[Survey], str] | None = None
    reopened: bool = False
    seat_wait: float = 0.0
    stay: bool = False
    substitutes: Substitutes = field(default_factory=Substitutes)
    kept: dict[str, Artifact] = field(default_factory=dict)
    _visited: set[str] = field(default_factory=set)
    _attempts: Attempts = field(init=False)
    _people: HumanSteps = field(init=False)
    _evidence: EvidenceChecks = field(init=False)
    _inputs: Inputs = field(init=False)
    _steps: RecordedSteps = field(init=False)
    _seated: PersonVoices = field(init=False)
    _curtain: Curtain = field(init=False)

    def __post_init__(self) -> None:
        closed = self.substitutes.closed
        self.observe = self._curtain = Curtain(self.observe)
        self._people = HumanSteps(self.session, self.library, self.human, self.observe, closed=closed)
        self._seated = PersonVoices(
            self.session, self.library, self.human, self.observe, self.budget.remaining_seconds,
            self.seat_wait, self.stay, closed,
        )  # fmt: skip
        checked = checked_in(self.session.records)
        self._inputs = Inputs(self.session, self.observe, checked, self.skill)
        self._evidence = EvidenceChecks(self.session, self._inputs.given, checked, self.check, self.search)
        self._attempts = Attempts(
            self.session,
            self.library,
            self.budget,
            self.observe,
            self.deadlines,
            self.concurrency,
            self.reply_tokens,
            self.allowance,
            self.toolbox,
            self.effort,
            self.slots,
            self.lane,
        )
        self._steps = RecordedSteps(
            self.session, self.budget, self.observe, self.substitutes, self._people.go_on, self.nest,
            self.run_check, self.survey,
        )  # fmt: skip

    # -- the loop -----------------------------------------------------------------------------

    async def drive(self, program: Program[T]) -> T:
        """Run `program` to its end and return its outcome; raise `CdoError` if it cannot continue."""
        answer: Any = None
        if self.lane:
            await self.lane.begin()
        try:
            while True:
                try:
                    step = program.send(answer)
                except StopIteration as stop:
                    return cast(T, stop.value)
                answer = await self._step(step)
        finally:
            with contextlib.suppress(SessionError):
                self._people.show()

    async def _step(self, step: Step) -> Any:
        match step:
            case Batch():
                return await self._batch(step)
            case Pause():
                return await self._people.pause(step)
            case Review():
                return await self._people.review(step)
            case Collect():
                return await self._people.collect(step)
            case Publish():
                return self._people.publish(step)
            case Project():
                return self._people.project(step)
            case Ask():
                return await self._people.ask(step)
            case Gather():
                return await self._people.gather(step)
            case Nest():
                return await self._steps.nested(step)
            case RunCheck():
                self._evidence.check_runs.append(run := await self._steps.checked_by_command(step))
                return run
            case Survey():
                if name := await self._steps.surveyed(step):
                    self._evidence.further.append(name)
                return name

    async def _batch(self, batch: Batch) -> tuple[Reply, ...]:
        """Reuse recorded replies, request the others, and enforce the quorum."""
        while True:
            works, replies = await self._asked(batch)
            if replies is not None:
                return await self._counted(batch, works, replies)

    async def _asked(self, batch: Batch) -> tuple[Sequence[PendingCall], Sequence[Reply] | None]:
        """Return the calls of a batch with their replies; None instead of these if the step is to be done again.

        Raises `WaitsForBatch` if calls wait at a batch endpoint.
        """
        works = await self._inputs.prepared(batch.calls, self._prepare)
        visited, human = self._visited, self.human
        await settle(self.session, works, visited, self._open, human, self.observe, reopened=self.reopened)
        self._visited.update(call.artifact for call in batch.calls)
        self.observe(BatchBegan(calls=[(call.name, call.kind) for call in batch.calls]))
        self._attempts.batch_deadline = time.monotonic() + self.budget.remaining_seconds() / 2
        try:
            return works, await self._replies(batch, works)
        except WaitsForBatch:
            if self.lane is None:
                raise
            await self.lane.submitted()
            return works, None
        except BaseException:
            if self.lane:
                self.lane.drop()
            raise

    async def _replies(self, batch: Batch, works: Sequence[PendingCall]) -> list[Reply]:
        """Return the reply to each call; models and people are asked at the same time.

        If too few models answer, nobody waits for people any more. Raises the first error.
        """
        people = [] if self.substitutes.closed else [work for work in works if work.person]
        for work in filter(self._open, people):
            self._people.go_on()
            await self._seated.open(work)
        self._curtain.draw(work.call.name for work in people)
        tasks = [asyncio.create_task(self._reply(work)) for work in people]
        try:
            models = [work for work in works if work not in people]
            found = await _all([self._reply(work, lenient=batch.lenient) for work in models])
            if enough(batch, found):
                found += [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._curtain.draw(())
        replies = {reply.call: reply for reply in found}
        return [replies.get(work.call.name, Reply(work.call.name, reason=Missing(ABSENT))) for work in works]

    async def _counted(
        self, batch: Batch, works: Sequence[PendingCall], replies: Sequence[Reply]
    ) -> tuple[Reply, ...]:
        """Return the replies if those of models are enough for the quorum; record the calls that stay without one.

        People never make up for models that are missing.
        """
        models = [(work, reply) for work, reply in zip(works, replies, strict=True) if not work.person]
        if not enough(batch, [reply for _, reply in models]):
            missing = [(work, reply) for work, reply in models if reply.missing]
            for work, _ in missing:
                await self.session.commit({"kind": "failed", "call": work.call.name, "inputs": work.key})
            raise self._failed(batch, [reply for _, reply in missing], len(models))
        for work, reply in zip(works, replies, strict=True):
            if reply.missing and not work.given_up:
                capped: dict[str, Any] = {"caps": self._caps} if reply.reason.kind == CAPPED else {}
                if capped and reply.reason.text == self.budget.time_limit:  # time limits are per process
                    capped["caps"] = ["time"]
                await self.session.commit(
                    {
                        "kind": "missing",
                        "call": work.call.name,
                        "inputs": work.key,
                        "reason": str(reply.reason),
                        **capped,
                    }
                )
                work.given_up = reply.reason
        for work in works:
            if work.person:
                self._seated.tidy(work)
        return tuple(replies)

    @property
    def _caps(self) -> list[float | None]:
        limits = self.budget.limits
        return [limits.calls, limits.tokens, limits.cost]

    def _lifted(self, record: Mapping[str, Any]) -> bool:
        """True if the caps stored in this record have changed since. Time limits are per process and never match."""
        return self.substitutes.lifts_caps and "caps" in record and record["caps"] != self._caps

    @property
    def _late(self) -> bool:
        """True if the batch's share of the time limit is used up."""
        return self.budget.limits.seconds is not None and time.monotonic() >= self._attempts.batch_deadline - 0.05

    async def _reply(self, work: PendingCall, *, lenient: bool = False) -> Reply:
        try:
            reply = self._replay(work) or await self._ask(work)
        except BudgetReached as error:
            if not lenient:
                raise
            reply = Reply(work.call.name, reason=Missing(CAPPED, error.message))
            self.observe(ReplyMissing(name=work.call.name, reason=str(reply.reason)))
        if reply.missing and lenient and self._late and reply.reason.kind not in (*EXCUSED, Fault.NETWORK):
            reply = replace(reply, reason=Missing(CAPPED, self.budget.time_limit))
        if reply.missing:
            return reply
        artifact = self.kept[work.call.name]
        found = await self._evidence.citations(artifact, reply.data)
        return replace(reply, findings=found, places=await self._evidence.places(artifact, reply.data))

    def _failed(self, batch: Batch, missing: Sequence[Reply], asked: int) -> CdoError:
        # A batch gets half of the remaining time. If that is used up, the time cap is the cause of the failure.
        models = {call.name: call.models for call in batch.calls}
        found = [MissingReply(reply, self.seats[models[reply.call][-1]].spec) for reply in missing]
        return failure(found, asked, batch.quorum, self.budget.time_limit if self._late else "")

    # -- what is recorded ---------------------------------------------------------------------

    def _prepare(self, call: Call) -> PendingCall:
        texts, inputs = {}, {}
        for name in call.reads:
            texts[name], inputs[name] = self._inputs.read(name)
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

    def _recorded(self, work: PendingCall) -> tuple[ReadReply, str] | None:
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

    def _open(self, work: PendingCall) -> bool:
        """True if a model must be asked: neither the disk nor the records answer the call."""
        return not (work.artifact or work.given_up or self._recorded(work))

    def _replay(self, work: PendingCall) -> Reply | None:
        """Return the reply from the artifact on disk, or the recorded decision to continue without one, or None."""
        call, artifact = work.call, work.artifact
        # A deferred file contains more than the reply. Use the record instead, unless a person edited the file.
        if artifact and (artifact.edited or not (call.deferred and (work.records or work.given_up))):
            added = tuple(artifact.own.get("added") or ())
            text, data = artifact.reply, _parsed(call, artifact.reply)
            if data is None and (whole := call.format.repair(text)):
                data = _parsed(call, whole[0])
            if data is not None:
                self.kept[call.name] = artifact
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
        return self._evidence.checked.get(self.kept[call].sha, ()) if call in self.kept else ()

    # -- asking -------------------------------------------------------------------------------

    async def _ask(self, work: PendingCall) -> Reply:
        """Ask the call's models, in order, until a reply is valid; a missing reply carries the reason."""
        if found := self._recorded(work):
            known, model = found
            return await self._keep(work, known.text, model, Reply(work.call.name, known.data, notes=known.notes))
        if work.person and not self.substitutes.closed:
            reply = await self._seated.ask(work)
            if work.last and not reply.missing:
                return await self._keep(work, *work.last, reply)
            self.observe(ReplyMissing(name=work.call.name, reason=str(reply.reason)))
            return reply
        self.allowance.call()
        reply = Reply(work.call.name, reason=Missing("no model"))
        self._people.go_on()
        before = ""
        for name in dict.fromkeys(work.call.models):
            if reply.missing and name != work.call.models[0]:
                told = f"{work.call.name}: {before} gave no answer ({reply.reason}); now {name} is asked"
                self.observe(NoteTold(name=work.call.name, text=told))
            reply, before = await self._attempts.ask(work, self.seats[name]), name
            if work.last and not reply.missing:
                return await self._keep(work, *work.last, reply)
        if work.last and (whole := repaired(work.call.format, work.last[0])):
            data = _parsed(work.call, whole[0])
            if data is not None:
                return await self._keep(work, whole[0], work.last[1], Reply(work.call.name, data, added=whole[1]))
        self.observe(ReplyMissing(name=work.call.name, reason=str(reply.reason)))
        return reply

    def _without_tools(self, work: PendingCall) -> bool:
        """True if a call had no tools though the run has some: the model refused them, or it waited for a batch."""
        through_batch = self.toolbox is not None and any("batch" in record for record in work.records)
        return through_batch or tools_refused(work.records)

    async def _keep(self, work: PendingCall, text: str, model: str, reply: Reply) -> Reply:
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
        if findings := await self._evidence.citations(artifact, reply.data):
            artifact = replace(artifact, own={**own, "citations": [finding.data() for finding in findings]})
        if call.deferred:
            self._inputs.unwritten[call.artifact] = artifact
        self.kept[call.name] = artifact if call.deferred else self.session.put(call.artifact, artifact)
        self._evidence.checked.setdefault(self.kept[call.name].sha, findings)
        if reply.notes:
            self.observe(ReplyCorrected(name=call.name, notes=reply.notes))
        self.observe(_accepted(call, reply.data))
        return replace(reply, model=model)


def _parsed(call: Call, text: str) -> Any:
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


async def _all(coroutines: Sequence[Coroutine[Any, Any, Reply]]) -> list[Reply]:
    """Await all coroutines, then raise the first error, if any.

    An error does not stop the other calls, which are already paid for. Exception: after a `SessionError` nothing can
    be recorded any more, so the others are cancelled at once.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            if any(isinstance(task.exception(), SessionError) for task in done):
                break
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, asyncio.CancelledError | WaitsForBatch)):
        raise error
    return [result for result in results if isinstance(result, Reply)]
