"""Makes one call's attempts with one model: send, record, validate, run tools, retry. No other module sends requests.

Every response is recorded before it is processed. A resumed call continues from its recorded attempts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.core.events import (
    CallSent,
    ExchangeRecorded,
    NoteTold,
    Observe,
    ReplyRefused,
    RetryPlanned,
    TextReceived,
    ToolUsed,
)
from cdo.core.exchange import (
    LOST,
    BackendError,
    Effort,
    Fault,
    Request,
    Response,
    Thread,
    ToolCall,
)
from cdo.core.formatting import one_line
from cdo.core.steps import DivisibleFormat, InvalidReply, Missing, Reply
from cdo.core.usage import estimate_tokens
from cdo.formats.lenient.layout import AS_JSON
from cdo.formats.lenient.reading import read
from cdo.providers.price_table import LEAST_REPLY_TOKENS
from cdo.runner import retry
from cdo.runner.budget import Budget
from cdo.runner.cache_warming import CacheWarming
from cdo.runner.exchange_records import fault_of, record_of, usage_of
from cdo.runner.model_seat import CallLane, ModelSeat
from cdo.runner.requests import PendingCall, RequestBuilder, Toolbox
from cdo.runner.retry import AttemptCounter, RetryBudget
from cdo.session import artifact as artifacts
from cdo.session.store import Session

TAIL = 300  # characters of an answer under way that observers are shown
MOVED = 50  # times that a deadline is moved on at most in the time it gives, for the same reason
SHOWN_EVERY = 0.1  # seconds between two such events of one call: a model may send a thousand pieces in a second
# The reason of a missing reply, for people. What was wrong with each reply is told to the model, and kept on record.
NO_ROOM = "the provider's rate limit leaves no room in the time that is left"
UNREADABLE = "the model's replies did not have the form that cdo asks for"


class Deadlines(Struct, frozen=True):
    """Timeouts in seconds: until the first word, between two pieces of an answer, and for one whole request.

    Before the first word, each sign that the model is thinking begins the time `first_byte` anew.
    """

    first_byte: float = 600.0
    idle: float = 60.0
    total: float = 1800.0


@dataclass
class Attempts:
    """Sends requests to models for a runner, within the run's caps; `batch_deadline` is a monotonic time.

    At most `concurrency` requests are in flight, or as many as there are `slots`, which several runs can share. With
    a `lane`, calls of models that are asked through a batch endpoint wait there, without tools.
    """

    session: Session
    library: Library
    budget: Budget
    observe: Observe
    deadlines: Deadlines
    concurrency: int
    reply_tokens: int | None
    allowance: RetryBudget
    toolbox: Toolbox | None = None
    effort: Effort | None = None
    slots: asyncio.Semaphore | None = None
    lane: CallLane | None = None
    batch_deadline: float = float("inf")
    _sending: asyncio.Semaphore = field(init=False)
    _warming: CacheWarming = field(default_factory=CacheWarming)
    _refused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._sending = self.slots or asyncio.Semaphore(self.concurrency)

    @property
    def _seconds_left(self) -> float:
        return min(self.batch_deadline - time.monotonic(), self.budget.remaining_seconds())

    @cached_property
    def _session_identity(self) -> str:
        """A digest of the frozen plan and the time at which the session was created."""
        return artifacts.digest(self.session.read("session.yaml"))

    async def ask(self, work: PendingCall, seat: ModelSeat) -> Reply:
        """Attempt a call with one model until a reply is valid, taking its recorded attempts into account first.

        The text and model of the last reply are left in `work.last`. A missing reply carries the reason.
        """
        tries = AttemptCounter()
        toolbox = self.toolbox if work.call.tools and seat.spec.tools and not seat.spec.batch else None
        talk = RequestBuilder(
            self.library, self.session.name, work, seat.spec, self.reply_tokens, toolbox,
            effort=self.effort,
        )  # fmt: skip
        for record in [record for record in work.records[work.failed :] if record["model"] == seat.spec.name]:
            if "response" in record:
                await self._judge(work, record, tries, talk)
            elif (fault := Fault(record["fault"]["kind"])) in retry.CHANGED:
                tries.note(fault)
                if not talk.change(fault):
                    return _cut(work, record) or _given_up(work, fault, record["fault"]["message"])
            elif "batch" in record and not record["fault"].get("left_out"):
                tries.note(fault)
                if not tries.retry(fault):
                    return _given_up(work, fault, record["fault"]["message"])
            elif fault is Fault.REJECTED and not record["fault"].get("left_out"):
                talk.refuse_tools()
        anew = False
        while True:
            if used_up := next((fault for fault in tries.faults if not tries.retry(fault)), None):
                return _given_up(work, used_up, UNREADABLE if used_up is Fault.INVALID else "")
            try:
                record = await self._attempt(work, seat, self._threaded(work, seat, talk.request(), anew=anew), tries)
            except BackendError as error:
                if error.message.startswith(LOST) and not anew:
                    anew = True  # the thread is lost: start a new one, the request is complete
                    continue
                if work.records and work.records[-1].get("fault", {}).get("left_out"):
                    continue  # the backend asks without the parameters that the model refused
                if error.fault is Fault.REJECTED and talk.refuse_tools():
                    self._tell_refused(work, seat, error)
                    continue  # the model does not support tools: ask without them
                tries.note(error.fault)
                if not talk.change(error.fault) or not await self._again(work, tries, error):
                    return _cut(work, work.records[-1]) or _given_up(work, error.fault, error.message)
            else:
                if reply := await self._judge(work, record, tries, talk):
                    return reply

    async def _again(self, work: PendingCall, tries: AttemptCounter, error: BackendError) -> bool:
        """Return whether to retry after `error`; if so, first wait as long as the policy and the provider require."""
        delay = max(tries.delay() if error.fault in retry.PASSING else 0.0, error.retry_after or 0.0)
        left = self._seconds_left
        if delay > min(tries.patience(), left) or not tries.retry(error.fault):
            return False
        if not await self.allowance.granted():
            return False
        told = {"fault": error.fault.value, "message": error.message}
        self.observe(RetryPlanned(name=work.call.name, **told, wait=round(delay, 2)))
        tries.waited += delay
        await asyncio.sleep(delay)
        return True

    async def _judge(
        self, work: PendingCall, record: Mapping[str, Any], tries: AttemptCounter, talk: RequestBuilder
    ) -> Reply | None:
        """Return the reply in a recorded response if it is valid; otherwise prepare the next request."""
        text = work.said(record)
        if "tools" in record["request"] and (wishes := record["response"].get("tool_calls")):
            carried = record["response"].get("carried", ())
            talk.looked(text, [ToolCall(**wish) for wish in wishes], await self._look(work, record), carried)
            return None
        model = str(record["model"])
        work.last = (text, model)
        try:
            found = read(work.call.format, text)
        except InvalidReply as invalid:
            tries.note(Fault.INVALID)
            talk.reject(text, invalid, kept="thread" in record["response"])
            self.observe(ReplyRefused(name=work.call.name, problems=invalid.problems))
            return None
        work.last = (found.text, model)
        asked = (AS_JSON,) if "schema" in record["request"] else ()  # no deviation: the answer was held to it
        return Reply(work.call.name, found.data, notes=tuple(note for note in found.notes if note not in asked))

    async def _look(self, work: PendingCall, record: Mapping[str, Any]) -> list[str]:
        """Return the tool results for a recorded response: the recorded ones, else run the tools and record."""
        identity = (work.call.name, work.key, record["attempt"])
        for old in self.session.records:
            if old["kind"] == "tools" and (old["call"], old["inputs"], old["attempt"]) == identity:
                return [str(result) for result in old["results"]]
        results: list[str] = []
        used = sum(
            len(old["results"])
            for old in self.session.records
            if old["kind"] == "tools" and (old["call"], old["inputs"]) == identity[:2]
        )
        for number, wish in enumerate(record["response"]["tool_calls"], used + 1):
            if self.toolbox is None:
                results.append("There is no repository here.")
            elif number > self.toolbox.max_requests:
                results.append(f"Refused: {self.toolbox.max_requests} requests are all there are.")
            else:
                results.append(await asyncio.to_thread(self.toolbox.run, wish["name"], wish["arguments"]))
            self.observe(ToolUsed(name=work.call.name, tool=wish["name"], arguments=wish["arguments"][:200]))
        kept = await self.session.commit(
            {"kind": "tools", "call": work.call.name, "inputs": work.key, "attempt": record["attempt"],
             "results": results}
        )  # fmt: skip
        return [str(result) for result in kept["results"]]

    def _threaded(self, work: PendingCall, seat: ModelSeat, request: Request, *, anew: bool) -> Request:
        """Attach a request to its thread: the newest recorded conversation with the same name and model.

        With `anew`, start a new thread, because the recorded one is lost.
        """
        name = work.call.thread
        if not name:
            return request
        if anew:
            return replace(request, keep=True)
        for record in reversed(self.session.records):
            if record.get("thread") != name or record["model"] != seat.spec.name:
                continue
            if found := record.get("response", {}).get("thread"):
                return replace(request, keep=True, thread=Thread(**found))
        return replace(request, keep=True)

    async def _attempt(
        self, work: PendingCall, seat: ModelSeat, request: Request, tries: AttemptCounter
    ) -> dict[str, Any]:
        """Send one request and record the response before it is processed; raise `BackendError`.

        In a batch lane, raise `WaitsForBatch`: a later process finds the response on record.
        """
        if self.lane and (seat.spec.batch or self.lane.waits(work, seat)):
            await self.lane.hand_over(work, seat, request, self._identity(work, request)[4:20])
        estimate = sum(estimate_tokens(message.text) for message in request.messages)
        begun = await self._warming.enter(seat.spec, request, self._seconds_left)
        try:
            return await self._sent(work, seat, request, tries, estimate, begun)
        finally:
            begun()

    async def _sent(
        self,
        work: PendingCall,
        seat: ModelSeat,
        request: Request,
        tries: AttemptCounter,
        estimate: int,
        begun: Callable[[], None],
    ) -> dict[str, Any]:
        """Send one request as `_attempt` does, of `estimate` tokens; call `begun` when the answer begins."""
        if header := seat.spec.idempotency:
            request = replace(request, headers={**request.headers, header: self._identity(work, request)})
        await self._paced(seat, estimate)
        least = min(request.max_tokens, LEAST_REPLY_TOKENS)
        held = await self.budget.reserve(
            seat.spec, estimate, request.max_tokens, least=least, closes=work.call.closes
        )
        request = replace(request, max_tokens=held.reply_tokens)
        try:
            probe = await self._enter(seat, tries)
        except BaseException:
            await self.budget.release(held)
            raise
        started, clock, before = datetime.now(UTC), time.monotonic(), _left_out(seat, request.model)
        response, error, usage, cost = None, None, None, None
        try:
            response, error = await self._exchange(work, seat, request, begun)
            if told := error or response:
                seat.pace.learn(told.limits)
            seat.gate.leave(probe, clock, error.fault if error else None, error.retry_after if error else None)
            usage = usage_of(response, error, estimate)
            cost = seat.spec.cost(usage) if usage else None
        except BaseException:
            seat.gate.abandon(probe)
            raise
        finally:
            self._sending.release()
            await self.budget.settle(held, usage, cost)
        result = error or response
        assert result is not None
        record = record_of(work, seat.spec.name, request, result, usage, cost, self.session.shared_text)
        if error and (names := [name for name in _left_out(seat, request.model) if name not in before]):
            record["fault"]["left_out"] = names
        record |= {
            "started": started.isoformat(timespec="milliseconds"),
            "seconds": round(time.monotonic() - clock, 3),
        }
        record = await self.session.commit(record)
        work.records.append(record)
        self._report(work, record)
        if error:
            error.message = str(record["fault"]["message"])  # as recorded, with secrets redacted
            if error.fault in retry.PROVIDER_WIDE:
                seat.gate.cause = error
            raise error
        return record

    def _identity(self, work: PendingCall, request: Request) -> str:
        """Return the idempotency key of a request: the same one when a crash has left it without a record.

        A second attempt, another prompt and another session have other keys.
        """
        told = [[message.role, message.text] for message in request.messages]
        about = [self._session_identity, work.call.name, work.key, len(work.records) + 1, request.model, told]
        return f"cdo-{artifacts.digest(about)}"

    async def _paced(self, seat: ModelSeat, tokens: int) -> None:
        """Wait until the provider's rate limits have room; raise `BackendError` if the time runs out before."""
        left = self._seconds_left
        try:
            async with asyncio.timeout(None if left == float("inf") or not seat.pace.known else max(0.0, left)):
                await seat.pace.enter(tokens)
        except TimeoutError:
            raise BackendError(Fault.RATE_LIMITED, NO_ROOM, retry_after=float("inf")) from None

    async def _enter(self, seat: ModelSeat, tries: AttemptCounter) -> bool:
        """Wait for the provider's gate, then for a concurrency slot; return whether this attempt is the probe.

        No slot is held while waiting at the gate, so that a provider that is down does not block others. The wait is
        limited by the time the call may still wait, the batch deadline and the time cap.
        """
        while True:
            began = time.monotonic()
            left = min(self.batch_deadline - began, self.budget.remaining_seconds(), tries.patience())
            try:
                async with asyncio.timeout(max(0.0, left)):
                    probe = await seat.gate.enter()
            except TimeoutError:
                raise seat.gate.given_up() from None
            finally:
                tries.waited += time.monotonic() - began
            try:
                await self._sending.acquire()
            except BaseException:
                seat.gate.abandon(probe)
                raise
            if probe or seat.gate.open:
                return probe
            self._sending.release()

    async def _exchange(
        self, work: PendingCall, seat: ModelSeat, request: Request, begun: Callable[[], None]
    ) -> tuple[Response | None, BackendError | None]:
        """Send one request under our own timeouts; return the response and the error found in it, if any."""
        name, loop = work.call.name, asyncio.get_running_loop()
        self.observe(CallSent(name=name, model=seat.spec.name, attempt=len(work.records) + 1))
        left = min(self.deadlines.total, self.batch_deadline - time.monotonic())
        end = loop.time() + max(0.05, left)
        received, tail, next_shown, next_moved = 0, "", 0.0, 0.0

        def on_text(piece: str) -> None:
            nonlocal received, tail, next_shown, next_moved
            begins, now = bool(piece) and not received, loop.time()
            received, tail = received + len(piece), (tail + piece)[-TAIL:]
            begun()
            if seat.backend.streams and (begins or now >= next_moved):
                # A model may think for long before its first word.
                live = received or hasattr(seat.backend, "tells_progress")
                pause = self.deadlines.idle if live else max(self.deadlines.first_byte, self.deadlines.idle)
                next_moved = now + pause / MOVED
                deadline.reschedule(min(end, now + pause))
            if now >= next_shown:
                next_shown = now + SHOWN_EVERY
                self.observe(TextReceived(name=name, characters=received, tail=tail))

        first = loop.time() + self.deadlines.first_byte if seat.backend.streams else end
        try:
            async with asyncio.timeout_at(min(end, first)) as deadline:
                response = await seat.backend.complete(request, on_text)
            return response, fault_of(response, request)
        except BackendError as error:
            return None, error
        except TimeoutError:
            late, limits = loop.time() >= end, self.deadlines
            if late and left < limits.total:
                message = "no complete answer in the time that was left"
            elif late:
                message = f"no complete answer within {limits.total:g} s (setting `call_timeout`)"
            elif received:
                message = f"the answer stalled for {limits.idle:g} s (setting `idle_timeout`)"
            else:
                message = f"no answer began within {limits.first_byte:g} s (setting `first_byte_timeout`)"
            return None, BackendError(Fault.TIMEOUT, message)

    def _tell_refused(self, work: PendingCall, seat: ModelSeat, error: BackendError) -> None:
        """Tell once for each model that it refuses tools, so that its voices see only what they are shown."""
        if seat.spec.name not in self._refused:
            self._refused.add(seat.spec.name)
            why = f"{seat.spec.name} refuses tools: its voices cannot look into the repository ({error.message})"
            self.observe(NoteTold(name=work.call.name, text=one_line(why, 300)))

    def _report(self, work: PendingCall, record: Mapping[str, Any]) -> None:
        told = {key: record[key] for key in ("model", "attempt", "seconds", "usage", "cost") if key in record}
        fault = record["fault"]["kind"] if "fault" in record else None
        self.observe(ExchangeRecorded(name=work.call.name, **told, fault=fault))


def _left_out(seat: ModelSeat, model: str) -> tuple[str, ...]:
    """Return the parameters that the seat's backend leaves out, since the model has refused them."""
    names: Callable[[str], tuple[str, ...]] | None = getattr(seat.backend, "left_out", None)
    return names(model) if names else ()


def _cut(work: PendingCall, record: Mapping[str, Any]) -> Reply | None:
    """Return what is complete of a reply that was cut off, None if that is not what was wrong or nothing is."""
    form, fault = work.call.format, record.get("fault", {})
    if fault.get("kind") != Fault.LENGTH.value or not isinstance(form, DivisibleFormat):
        return None
    if (part := form.complete_part(str(fault.get("text", "")))) is None:
        return None
    work.last = (part, str(record["model"]))
    return Reply(work.call.name, form.parse(part), notes=("cut off: what was complete counts",))


def _given_up(work: PendingCall, fault: Fault, message: str) -> Reply:
    return Reply(work.call.name, reason=Missing(fault.value, message))
