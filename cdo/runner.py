"""Executes programs durably: the only place that calls a model, retries, charges, validates and records.

A program's batches are looked up before they are sent: an artifact or record that matches the call's inputs is
used as it is, so that resuming *is* running again. The runner knows no program by name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from cdo import artifacts, policy
from cdo.artifacts import Artifact
from cdo.budget import Budget, Totals
from cdo.content import Library
from cdo.context import estimate_tokens
from cdo.conversation import Conversation, Work, fault_of, usage_of
from cdo.errors import BudgetReached, CdoError, ConfigError, ModelsFailed, NeedsHuman, SessionError
from cdo.models import ModelSpec
from cdo.policy import Allowance, Gate, Tries
from cdo.store import Session
from cdo.types import (
    Backend,
    BackendError,
    Batch,
    Call,
    Event,
    Fault,
    InvalidReply,
    Message,
    Observe,
    Pause,
    Program,
    Reply,
    Request,
    Response,
    Usage,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Deadlines:
    """Seconds until the first sign of an answer, between two signs, and for a whole call."""

    first_byte: float = 120.0
    idle: float = 60.0
    total: float = 600.0


@dataclass(frozen=True)
class Seat:
    """A model with the backend that reaches it and the gate of its provider."""

    spec: ModelSpec
    backend: Backend
    gate: Gate


@dataclass(frozen=True)
class Human:
    """How the person is asked; each is None where nobody can be asked.

    `answer` takes a pause and returns an option; `consent` takes stale and kept names and says yes or no.
    """

    answer: Callable[[Pause], Awaitable[str]] | None = None
    consent: Callable[[Sequence[str], Sequence[str]], Awaitable[bool]] | None = None


@dataclass
class Runner:
    """One process's hold on one session. `seats` maps model names to how they are reached."""

    session: Session
    library: Library
    seats: Mapping[str, Seat]
    budget: Budget
    observe: Observe
    human: Human = Human()
    deadlines: Deadlines = Deadlines()
    concurrency: int = 256
    reply_tokens: int | None = None
    allowance: Allowance = field(default_factory=Allowance)
    kept: dict[str, Artifact] = field(default_factory=dict)
    _visited: set[str] = field(default_factory=set)
    _sending: asyncio.Semaphore = field(init=False)
    _batch_deadline: float = float("inf")

    def __post_init__(self) -> None:
        self._sending = asyncio.Semaphore(self.concurrency)

    # -- the loop -----------------------------------------------------------------------------

    async def drive(self, program: Program[T]) -> T:
        """Run `program` to its end and return its outcome; raises `CdoError` when it cannot go on."""
        answer: Any = None
        while True:
            try:
                step = program.send(answer)
            except StopIteration as stop:
                return cast(T, stop.value)
            answer = await (self._batch(step) if isinstance(step, Batch) else self._pause(step))

    async def _pause(self, pause: Pause) -> str:
        """The recorded answer to a pause, or the person's, or the default where nobody can be asked."""
        for record in self.session.records:
            if record["kind"] == "answer" and record["name"] == pause.name and record["question"] == pause.question:
                return str(record["answer"])
        self.observe(Event("pause", pause.name, {"question": pause.question, "options": list(pause.options)}))
        asked = self.human.answer
        answer = await asked(pause) if asked else pause.default
        await self.session.commit(
            {
                "kind": "answer",
                "name": pause.name,
                "question": pause.question,
                "answer": answer,
                "by": "human" if asked else "default",
            }
        )
        return answer

    async def _batch(self, batch: Batch) -> tuple[Reply, ...]:
        """Replay what is recorded, ask for what is not, and hold the quorum."""
        works = [self._prepare(call) for call in batch.calls]
        await self._settle_stale(works)
        self._visited.update(call.artifact for call in batch.calls)
        self.observe(Event("batch", "", {"calls": [[call.name, call.kind] for call in batch.calls]}))
        self._batch_deadline = time.monotonic() + self.budget.remaining_seconds() / 2
        replies = await _all([self._reply(work) for work in works])
        missing = [reply for reply in replies if reply.missing]
        if len(replies) - len(missing) < batch.quorum:
            for work in [work for work, reply in zip(works, replies, strict=True) if reply.missing]:
                await self.session.commit({"kind": "failed", "call": work.call.name, "inputs": work.key})
            raise self._failed(batch, missing)
        for work, reply in zip(works, replies, strict=True):
            if reply.missing and not work.given_up:
                await self.session.commit(
                    {"kind": "missing", "call": work.call.name, "inputs": work.key, "reason": reply.reason}
                )
        return tuple(replies)

    async def _reply(self, work: Work) -> Reply:
        return self._replay(work) or await self._ask(work)

    def _failed(self, batch: Batch, missing: Sequence[Reply]) -> CdoError:
        # Half of the time that is left belongs to one batch: with that used up, the cap is what ended it.
        if self.budget.limits.seconds is not None and time.monotonic() >= self._batch_deadline - 0.05:
            limit = self.budget.limits.seconds
            return BudgetReached(
                f"The time limit of {limit:g} s is reached.", "`cdo resume` goes on; nothing is paid twice."
            )
        reasons = "; ".join(f"{reply.call}: {reply.reason}" for reply in missing[:3])
        if missing and all(reply.reason.startswith(Fault.DENIED.value) for reply in missing):
            return ConfigError(
                f"The provider refuses access ({reasons}).", "Check the key and the model's name, then `cdo resume`."
            )
        wanted = f"{len(batch.calls) - len(missing)} of {len(batch.calls)} answered, {batch.quorum} are needed"
        return ModelsFailed(
            f"The models failed: {wanted} ({reasons}).", "`cdo resume` asks only for what is missing."
        )

    # -- what is recorded ---------------------------------------------------------------------

    def _prepare(self, call: Call) -> Work:
        texts, inputs = {}, {}
        for name in call.reads:
            texts[name], inputs[name] = self._read(name)
        key = artifacts.digest({"template": call.template, "data": dict(call.data), "reads": inputs})[:16]
        work = Work(call, key, inputs, texts, self.session.artifact(call.artifact))
        for record in self.session.records:
            if record.get("call") == call.name and record.get("inputs") == key:
                if record["kind"] == "exchange":
                    work.records.append(record)
                elif record["kind"] == "failed":
                    work.failed = len(work.records)
                else:
                    work.given_up = str(record["reason"])
        return work

    def _recorded(self, work: Work) -> tuple[Any, str, str] | None:
        """A valid reply among the recorded ones, by whichever model: (data, text, model)."""
        for record in work.records:
            if (
                "response" in record
                and (data := _parsed(work.call, text := str(record["response"]["text"]))) is not None
            ):
                return data, text, str(record["model"])
        return None

    def _open(self, work: Work) -> bool:
        """Whether a model must be asked: nothing on disk or on record answers the call."""
        return not (work.artifact or work.given_up or self._recorded(work))

    def _replay(self, work: Work) -> Reply | None:
        """The reply as the artifact on disk has it, or the recorded decision to go on without one."""
        call, artifact = work.call, work.artifact
        # A deferred file is more than the reply: the record knows better, unless a person edited it.
        if artifact and (artifact.edited or not (call.deferred and work.records)):
            added = tuple(artifact.own.get("added") or ())
            text, data = artifact.reply, _parsed(call, artifact.reply)
            if data is None and (mended := call.format.repair(text)):
                data = _parsed(call, mended[0])
            if data is not None:
                self.kept[call.name] = artifact
                how = "edited" if artifact.edited else "recorded"
                self.observe(Event("reply", call.name, {**_headline(data), "how": how}))
                return Reply(call.name, data, added=added)
            if artifact.edited:
                raise _broken_edit(self.session, call)
        if work.given_up:
            self.observe(Event("missing", call.name, {"reason": work.given_up, "how": "recorded"}))
            return Reply(call.name, reason=work.given_up)
        return None

    def _read(self, name: str) -> tuple[str, str]:
        """What an artifact says, without cdo's own keys, and its identity; files called 00-* are read as they are."""
        if name.startswith("00-"):
            text = self.session.read(f"{name}.md") or ""
            return text, artifacts.digest(text)[:16]
        artifact = self.session.artifact(name)
        return (artifact.reply, artifact.sha[:16]) if artifact else ("", "")

    async def _settle_stale(self, works: Sequence[Work]) -> None:
        """Move what no longer follows from its inputs to superseded/, after asking."""
        here = {work.call.artifact for work in works}
        peers = {(work.call.kind, work.call.data.get("turn")) for work in works}
        stale = [work.call.artifact for work in works if work.stale]
        edited: list[str] = []
        outdated, replaced = bool(stale), False
        for name in self.session.artifact_names():
            if name not in self._visited | here and (artifact := self.session.artifact(name)):
                (edited if artifact.edited else stale).append(name)
                # An answer to a call like these that is no longer made: the new ones take its place.
                replaced |= (artifact.own.get("kind"), artifact.own.get("turn")) in peers
        if not outdated and not (replaced and any(self._open(work) for work in works)):
            return
        if self.human.consent is None:
            raise NeedsHuman(
                f"Edited files make these stale: {', '.join(f'{name}.md' for name in stale)}.",
                f"`cdo resume {self.session.name} --yes` asks for them again and keeps the old ones in superseded/.",
            )
        if not await self.human.consent(stale, edited):
            raise NeedsHuman(
                "Nothing was changed; the stale files were left as they are.", "`cdo resume` asks again."
            )
        place = self.session.supersede(stale)
        self.observe(Event("stale", "", {"superseded": stale, "kept": edited, "place": place.name}))
        for work in works:
            if work.call.artifact in stale:
                work.artifact = None

    # -- asking -------------------------------------------------------------------------------

    async def _ask(self, work: Work) -> Reply:
        """Ask the call's models, in order, until one reply is valid; a missing reply says why."""
        if found := self._recorded(work):
            return self._keep(work, found[1], found[2], Reply(work.call.name, found[0]))
        self.allowance.call()
        reply = Reply(work.call.name, reason="no model")
        for name in dict.fromkeys(work.call.models):
            reply = await self._ask_seat(work, self.seats[name])
            if not reply.missing:
                return reply
        if work.last and (mended := work.call.format.repair(work.last[0])):
            data = _parsed(work.call, mended[0])
            if data is not None:
                return self._keep(work, mended[0], work.last[1], Reply(work.call.name, data, added=mended[1]))
        self.observe(Event("missing", work.call.name, {"reason": reply.reason}))
        return reply

    async def _ask_seat(self, work: Work, seat: Seat) -> Reply:
        """One model's attempts, after what is on record of it: an invalid reply, a request that did not fit."""
        tries = Tries()
        talk = Conversation(self.library, self.session.name, work, seat.spec, self.reply_tokens)
        for record in [record for record in work.records[work.failed :] if record["model"] == seat.spec.name]:
            if "response" in record:
                self._judge(work, record, tries, talk)
            elif (fault := Fault(record["fault"]["kind"])) in policy.CHANGED:
                tries.note(fault)
                talk.change(fault)
        while True:
            if used_up := next((fault for fault in tries.faults if not tries.retry(fault)), None):
                return Reply(work.call.name, reason=": ".join((used_up.value, *talk.problems[:1])))
            try:
                record = await self._attempt(work, seat, talk.request())
            except BackendError as error:
                tries.note(error.fault)
                if not await self._again(work, tries, error):
                    return Reply(work.call.name, reason=f"{error.fault}: {error.message}")
                talk.change(error.fault)
            else:
                if reply := self._judge(work, record, tries, talk):
                    return reply

    async def _again(self, work: Work, tries: Tries, error: BackendError) -> bool:
        """Whether to try once more after `error`; waits as long as policy and provider ask."""
        delay = max(tries.delay() if error.fault in policy.PASSING else 0.0, error.retry_after or 0.0)
        left = min(self._batch_deadline - time.monotonic(), self.budget.remaining_seconds())
        if delay > min(policy.MAX_WAIT, left) or not tries.retry(error.fault) or not self.allowance.take():
            return False
        self.observe(
            Event(
                "retry",
                work.call.name,
                {"fault": error.fault.value, "message": error.message, "wait": round(delay, 2)},
            )
        )
        await asyncio.sleep(delay)
        return True

    def _judge(self, work: Work, record: Mapping[str, Any], tries: Tries, talk: Conversation) -> Reply | None:
        """The reply of a recorded response when it is valid; otherwise note what the model must be told."""
        text = str(record["response"]["text"])
        work.last = (text, str(record["model"]))
        try:
            data = work.call.format.parse(text)
        except InvalidReply as invalid:
            tries.note(Fault.INVALID)
            talk.reject(text, invalid.problems)
            self.observe(Event("invalid", work.call.name, {"problems": list(invalid.problems)}))
            return None
        return self._keep(work, text, str(record["model"]), Reply(work.call.name, data))

    def _keep(self, work: Work, text: str, model: str, reply: Reply) -> Reply:
        """Write the artifact of a valid reply."""
        call, used = work.call, [record for record in work.records if record.get("usage")]
        costs = [record["cost"] for record in used]
        own = {
            "kind": call.kind,
            **{key: call.data[key] for key in ("role", "turn") if key in call.data},
            "model": model,
            "usage": {key: sum(record["usage"][key] for record in used) for key in ("input_tokens", "output_tokens")},
            "cost": None if None in costs else round(sum(costs), 9),
            "attempts": len(work.records),
            **({"added": list(reply.added)} if reply.added else {}),
            "inputs": {**work.inputs, "call": work.key},
        }
        artifact = artifacts.from_reply(text, own)
        self.kept[call.name] = artifact if call.deferred else self.session.put(call.artifact, artifact)
        self.observe(Event("reply", call.name, _headline(reply.data)))
        return reply

    async def _attempt(self, work: Work, seat: Seat, request: Request) -> dict[str, Any]:
        """Send one request and record what came back before anybody looks at it; raise `BackendError`."""
        estimate = sum(estimate_tokens(message.text) for message in request.messages)
        held = await self.budget.reserve(seat.spec, estimate, request.max_tokens)
        try:
            probe = await self._enter(seat)
        except BaseException:
            await self.budget.release(held)
            raise
        started, clock = datetime.now(UTC), time.monotonic()
        response, error, usage, cost = None, None, None, None
        try:
            response, error = await self._exchange(work, seat, request)
            seat.gate.leave(probe, clock, error.fault if error else None, error.retry_after if error else None)
            usage = usage_of(response, error, estimate)
            cost = seat.spec.cost(usage) if usage else None
        except BaseException:
            seat.gate.abandon(probe)
            raise
        finally:
            self._sending.release()
            await self.budget.settle(held, usage, cost)
        record = self._record(work, seat, request, response, error, usage, cost)
        record |= {
            "started": started.isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - clock, 3),
        }
        record = await self.session.commit(record)
        work.records.append(record)
        self._report(work, record)
        if error:
            error.message = str(record["fault"]["message"])  # as recorded: without secrets
            raise error
        return record

    async def _enter(self, seat: Seat) -> bool:
        """Pass the provider's gate and take a place among the requests in flight; says whether it probes.

        Waits at the gate without a place, so that a provider that is down does not hold up others, and no longer
        than anybody would be waited for.
        """
        left = min(self._batch_deadline - time.monotonic(), self.budget.remaining_seconds(), policy.MAX_WAIT)
        while True:
            try:
                async with asyncio.timeout(max(0.0, left)):
                    probe = await seat.gate.enter()
            except TimeoutError:
                message = "the provider asks to wait longer than this run can"
                raise BackendError(Fault.RATE_LIMITED, message) from None
            try:
                await self._sending.acquire()
            except BaseException:
                seat.gate.abandon(probe)
                raise
            if probe or seat.gate.open:
                return probe
            self._sending.release()

    async def _exchange(
        self, work: Work, seat: Seat, request: Request
    ) -> tuple[Response | None, BackendError | None]:
        """One request under our own deadlines: what came back, and what is wrong with it."""
        name, loop = work.call.name, asyncio.get_running_loop()
        self.observe(Event("call", name, {"model": seat.spec.name, "attempt": len(work.records) + 1}))
        left = min(self.deadlines.total, self._batch_deadline - time.monotonic())
        end = loop.time() + max(0.05, left)
        received = 0

        def on_text(piece: str) -> None:
            nonlocal received
            received += len(piece)
            deadline.reschedule(min(end, loop.time() + self.deadlines.idle))
            self.observe(Event("progress", name, {"characters": received}))

        first = loop.time() + self.deadlines.first_byte if seat.backend.streams else end
        try:
            async with asyncio.timeout_at(min(end, first)) as deadline:
                response = await seat.backend.complete(request, on_text)
            return response, fault_of(response)
        except BackendError as error:
            return None, error
        except TimeoutError:
            passed = "whole call" if loop.time() >= end else "next byte" if received else "first byte"
            return None, BackendError(Fault.TIMEOUT, f"our deadline for the {passed} passed")

    def _record(
        self, work: Work, seat: Seat, request: Request, response: Response | None, error: BackendError | None,
        usage: Usage | None, cost: float | None,
    ) -> dict[str, Any]:  # fmt: skip
        """The record of one exchange. What a batch shares is recorded once and referred to."""
        record: dict[str, Any] = {
            "kind": "exchange",
            "call": work.call.name,
            "call_kind": work.call.kind,
            "inputs": work.key,
            "attempt": len(work.records) + 1,
            "model": seat.spec.name,
            "request": {
                "max_tokens": request.max_tokens,
                "messages": [self._message(message) for message in request.messages],
            },
        }
        if response and not error:
            record["response"] = {"text": response.text, "finish": response.finish.value}
            if response.reasoning:
                record["response"]["reasoning"] = response.reasoning
        if error:
            record["fault"] = {"kind": error.fault.value, "message": error.message, "text": error.text}
        if usage:
            record["usage"] = {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cached_tokens": usage.cached_tokens,
                "measured": usage.measured,
            }
            record["cost"] = cost
        return record

    def _message(self, message: Message) -> dict[str, Any]:
        shared = message.text[: message.shared]
        head = {"shared": self.session.shared_text(shared)} if len(shared) > 200 else {}
        return {"role": message.role, **head, "text": message.text[message.shared :] if head else message.text}

    def _report(self, work: Work, record: Mapping[str, Any]) -> None:
        data = {key: record[key] for key in ("model", "attempt", "seconds", "usage", "cost") if key in record}
        if "fault" in record:
            data["fault"] = record["fault"]["kind"]
        self.observe(Event("exchange", work.call.name, data))


def _parsed(call: Call, text: str) -> Any:
    """The data of a reply, or None when it is not valid."""
    try:
        return call.format.parse(text)
    except InvalidReply:
        return None


def _broken_edit(session: Session, call: Call) -> SessionError:
    """What is wrong with a file that a person edited; lines count from the top of the file."""
    try:
        call.format.parse(session.read(f"{call.artifact}.md") or "")
        why = "it cannot be read."
    except InvalidReply as invalid:
        why = " ".join(invalid.problems)
    return SessionError(
        f"{session.path / call.artifact}.md was edited and is no longer valid: {why}",
        "Mend it and resume, or remove it: cdo then restores what was recorded.",
    )


def _headline(data: Any) -> dict[str, Any]:
    """What a live view shows of a reply."""
    shown = ("position", "confidence", "focus", "exit_ready", "agreement")
    return {key: getattr(data, key) for key in shown if getattr(data, key, None) is not None}


async def _all(coroutines: Sequence[Coroutine[Any, Any, Reply]]) -> list[Reply]:
    """Await all and let each finish what is paid for, then raise the first error if any.

    Where the disk fails nothing can be recorded any more: then the others are stopped at once.
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
    for error in sorted(errors, key=lambda error: isinstance(error, asyncio.CancelledError)):
        raise error
    return [result for result in results if isinstance(result, Reply)]


def totals(records: Sequence[Mapping[str, Any]]) -> Totals:
    """What the recorded exchanges used."""
    found = Totals()
    for record in records:
        if record["kind"] == "exchange":
            usage = record.get("usage")
            found.add(Usage(usage["input_tokens"], usage["output_tokens"]) if usage else None, record.get("cost"))
    return found
