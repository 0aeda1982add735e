"""Executes programs durably: calls models, retries, charges, validates and records.

Each call is looked up before it is sent: an artifact or record that matches its inputs is reused. So resuming a run
is the same as running it again. The runner knows no particular program.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from cdo.content.library import Library
from cdo.core.errors import BudgetReached, CdoError, NeedsHuman, SessionError, WaitsForBatch
from cdo.core.events import BatchBegan, NoteTold, Observe, ReplyMissing
from cdo.core.exchange import Effort, Fault
from cdo.core.people import ABSENT
from cdo.core.steps import (
    CAPPED,
    Ask,
    Batch,
    CheckRun,
    CitationCheck,
    Collect,
    Gather,
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
from cdo.formats.lenient.reading import repaired
from cdo.runner.attempts import Attempts, Deadlines
from cdo.runner.budget import Budget, Limits
from cdo.runner.evidence_checks import EvidenceChecks
from cdo.runner.failures import EXCUSED, MissingReply, enough, failure
from cdo.runner.import_ahead import import_ahead
from cdo.runner.inputs import Inputs
from cdo.runner.kept_replies import KeptReplies, parsed
from cdo.runner.model_seat import CallLane, ModelSeat
from cdo.runner.people.curtain import Curtain
from cdo.runner.people.human_steps import Human, HumanSteps
from cdo.runner.people.person_voice import PersonVoices
from cdo.runner.recorded_steps import RecordedSteps
from cdo.runner.requests import PendingCall, Toolbox
from cdo.runner.retry import RetryBudget
from cdo.runner.staleness import settle
from cdo.runner.substitutes import Substitutes
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
    `ahead` names modules that the run needs later, to be imported while the first replies are awaited.
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
    ahead: Sequence[str] = ()
    kept: KeptReplies = field(init=False)
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
        self.kept = KeptReplies(
            self.session, self.observe, self._inputs, self._evidence, self.substitutes, self.budget,
            self.toolbox is not None, self.reopened,
        )  # fmt: skip
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
        works = await self._inputs.prepared(batch.calls, self.kept.prepare)
        visited, kept = self._visited, self.kept
        try:
            await settle(self.session, works, visited, kept.is_open, self.human, self.observe, reopened=kept.reopened)
        except NeedsHuman:
            self._people.drop()
            raise
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
        for work in filter(self.kept.is_open, people):
            self._people.go_on()
            await self._seated.open(work)
        self._curtain.draw(work.call.name for work in people)
        tasks = [asyncio.create_task(self._reply(work)) for work in people]
        for call in batch.calls[:1]:
            import_ahead(call.format, self.ahead)
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
                capped: dict[str, Any] = {"caps": self.kept.caps} if reply.reason.kind == CAPPED else {}
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
    def _late(self) -> bool:
        """True if the batch's share of the time limit is used up."""
        return self.budget.limits.seconds is not None and time.monotonic() >= self._attempts.batch_deadline - 0.05

    async def _reply(self, work: PendingCall, *, lenient: bool = False) -> Reply:
        try:
            reply = self.kept.replay(work) or await self._ask(work)
        except BudgetReached as error:
            if not lenient:
                raise
            reply = Reply(work.call.name, reason=Missing(CAPPED, error.message))
            self.observe(ReplyMissing(name=work.call.name, reason=str(reply.reason)))
        if reply.missing and lenient and self._late and reply.reason.kind not in (*EXCUSED, Fault.NETWORK):
            reply = replace(reply, reason=Missing(CAPPED, self.budget.time_limit))
        if reply.missing:
            return reply
        artifact = self.kept.artifacts[work.call.name]
        found = await self._evidence.citations(artifact, reply.data)
        return replace(reply, findings=found, places=await self._evidence.places(artifact, reply.data))

    def _failed(self, batch: Batch, missing: Sequence[Reply], asked: int) -> CdoError:
        # A batch gets half of the remaining time. If that is used up, the time cap is the cause of the failure.
        models = {call.name: call.models for call in batch.calls}
        found = [MissingReply(reply, self.seats[models[reply.call][-1]].spec) for reply in missing]
        return failure(found, asked, batch.quorum, self.budget.time_limit if self._late else "")

    # -- asking -------------------------------------------------------------------------------

    async def _ask(self, work: PendingCall) -> Reply:
        """Ask the call's models, in order, until a reply is valid; a missing reply carries the reason."""
        if found := self.kept.recorded(work):
            known, model = found
            return await self.kept.keep(work, known.text, model, Reply(work.call.name, known.data, notes=known.notes))
        if work.person and not self.substitutes.closed:
            reply = await self._seated.ask(work)
            if work.last and not reply.missing:
                return await self.kept.keep(work, *work.last, reply)
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
                return await self.kept.keep(work, *work.last, reply)
        if work.last and (whole := repaired(work.call.format, work.last[0])):
            data = parsed(work.call, whole[0])
            if data is not None:
                return await self.kept.keep(work, whole[0], work.last[1], Reply(work.call.name, data, added=whole[1]))
        self.observe(ReplyMissing(name=work.call.name, reason=str(reply.reason)))
        return reply


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
