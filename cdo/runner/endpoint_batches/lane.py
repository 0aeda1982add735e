"""Lets the calls of one session wait at providers' batch endpoints, over any number of processes.

A call that is to be made is queued. When the step has no other call under way, the queue is submitted and the run
ends with `WaitsForBatch`. A later process records the answers that are there by then, before the program runs again:
it finds them on record like any others. What is submitted is on record before it is sent, so it is never sent twice.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core.errors import SessionError, WaitsForBatch
from cdo.core.events import CallSent, ExchangeRecorded, NoteTold, Observe
from cdo.core.exchange import BackendError, Fault, Request, Response, Usage
from cdo.core.formatting import one_line
from cdo.core.usage import estimate_tokens
from cdo.providers.http.backend import HttpBackend
from cdo.providers.price_table import LEAST_REPLY_TOKENS
from cdo.runner.budget import Budget, Reservation
from cdo.runner.endpoint_batches.depot import LATEST, SOONEST, BatchDepot, Parcel, SubmissionStanding
from cdo.runner.endpoint_batches.results import BatchResults
from cdo.runner.endpoint_batches.submissions import (
    ENDED,
    SENT,
    VOID,
    Submission,
    SubmittedCall,
    exchange_record,
    now,
    open_submissions,
)
from cdo.runner.exchange_records import asked_of
from cdo.runner.model_seat import ModelSeat
from cdo.runner.requests import PendingCall
from cdo.session.store import Session

_NAME, _LONGEST_ID = 24, 64  # characters of a call's name in the id of its request, and of such an id
_TEXTS = ("messages", "input", "system", "tools")  # parts of a body that are on record elsewhere


class _QueuedCall(Struct, frozen=True):
    """A request that is to be submitted, with its reservation and its identity."""

    work: PendingCall
    seat: ModelSeat
    request: Request
    estimate: int
    held: Reservation
    identity: str


class BatchLane(Struct):
    """The calls of a session that wait at batch endpoints. `seats` are by the names of the models that are asked.

    With `wait`, a step stays until its batches have ended. `again` is the command that collects.
    """

    session: Session
    budget: Budget
    observe: Observe
    depot: BatchDepot
    seats: Mapping[str, ModelSeat]
    again: str
    wait: bool = False
    _queue: list[_QueuedCall] = field(default_factory=list)
    _open: list[Submission] = field(default_factory=list)
    _states: dict[str, SubmissionStanding] = field(default_factory=dict)
    _begun: bool = False

    async def begin(self) -> None:
        """Record the answers that are there, and keep the caps for the calls that still wait; raises `CdoError`."""
        for record in self.session.records:
            seat = self.seats.get(str(record.get("model")))
            if seat and isinstance(seat.backend, HttpBackend) and (names := record.get("fault", {}).get("left_out")):
                seat.backend.leave_out(seat.spec.model, names)
        if not self._begun and self.depot.log is None:  # a `cdo batch` counts those of all items beforehand
            for submission in open_submissions(self.session.records):
                for call in submission.calls:
                    self.budget.count_away(call.held(self._seat(call).spec.in_batch()))
        self._begun = True
        await self._collect()

    async def hand_over(self, work: PendingCall, seat: ModelSeat, request: Request, identity: str) -> NoReturn:
        """Queue a request, unless it waits already, and raise `WaitsForBatch`; raises `BudgetReached` before."""
        if self.waits(work, seat):
            raise WaitsForBatch(self._told(), self._hint)
        estimate = sum(estimate_tokens(message.text) for message in request.messages)
        least = min(request.max_tokens, LEAST_REPLY_TOKENS)
        held = await self.budget.reserve(
            seat.spec, estimate, request.max_tokens, least=least, closes=work.call.closes
        )
        self.budget.send_away(held)
        request = replace(request, max_tokens=held.reply_tokens)
        self._queue.append(_QueuedCall(work, seat, request, estimate, held, identity))
        self.observe(CallSent(name=work.call.name, model=seat.spec.name, attempt=len(work.records) + 1))
        raise WaitsForBatch("The call is queued for a batch.")

    def waits(self, work: PendingCall, seat: ModelSeat) -> bool:
        """True if a request of this call to this model waits at the provider."""
        key = (work.call.name, work.key, seat.spec.name)
        return any(call.key == key for submission in self._open for call in submission.calls)

    def drop(self) -> None:
        """Forget what is queued: the step fails."""
        for queued in self._queue:
            self.budget.come_back(queued.held, None)
        self._queue = []

    async def submitted(self) -> None:
        """Submit what is queued, then raise `WaitsForBatch`, or return when `wait` has brought answers."""
        parcels = await self._packed()
        for parcel in parcels if self.depot.log is None else ():
            state = await self._sent(parcel)
            await self.session.commit({"kind": SENT, "marker": parcel.marker, "id": state.id, "at": now()})
        self._open = open_submissions(self.session.records)
        if not self.wait or self.depot.log:
            raise WaitsForBatch(self._told(), self._hint)
        await self._until_some_end()

    # -- submitting ---------------------------------------------------------------------------

    async def _packed(self) -> list[Parcel]:
        """Put what is queued into parcels; what each of them holds of this session is on record before."""
        queue, self._queue = self._queue, []
        packed: dict[Parcel, list[tuple[SubmittedCall, bytes]]] = {}
        for queued in queue:
            body = self.depot.client(queued.seat).body(queued.request)
            client = self.depot.client(queued.seat)
            size = len(client.line("x" * _LONGEST_ID, body)) + 1
            parcel = self.depot.parcel(queued.seat, size)
            name = re.sub(r"[^A-Za-z0-9_-]", "-", queued.work.call.name)[:_NAME]
            call = self._call(queued, f"{parcel.marker}-{name}-{queued.identity}", body)
            packed.setdefault(parcel, []).append((call, client.line(call.id, body)))
        intents = [
            Submission(
                parcel.marker, parcel.provider, parcel.url, parcel.factor, now(), tuple(call for call, _ in lines),
                of=self.depot.of,
            ).intent()
            for parcel, lines in packed.items()
        ]  # fmt: skip
        await asyncio.gather(*map(self.session.commit, intents))
        for parcel, lines in packed.items():
            parcel.add([line for _, line in lines])
        return list(packed)

    def _call(self, queued: _QueuedCall, ident: str, body: Mapping[str, Any]) -> SubmittedCall:
        asked = asked_of(queued.work, queued.seat.spec.name, queued.request, self.session.shared_text)
        kept = {key: value for key, value in body.items() if key not in _TEXTS}
        return SubmittedCall(ident, asked, kept, queued.estimate)

    async def _sent(self, parcel: Parcel) -> Any:
        """Submit a parcel; a refusal is recorded, so that the next process need not look for it."""
        try:
            return await self.depot.send(parcel)
        except WaitsForBatch:
            raise
        except Exception as error:
            await self.session.commit({"kind": VOID, "marker": parcel.marker, "why": one_line(str(error), 300)})
            raise

    # -- collecting ---------------------------------------------------------------------------

    async def _collect(self) -> None:
        """Record what is known of the open submissions: their ids, the answers of those that have ended."""
        self._open = open_submissions(self.session.records)
        known = [str(record["id"]) for record in self.session.records if record["kind"] == SENT]
        for submission in self._open:
            if submission.of != self.depot.of:
                raise SessionError(
                    f"{self.session.name} is an item of the batch {submission.of}, which waits for its answers.",
                    f"`cdo batch resume {submission.of}` collects them.",
                )
            if not submission.calls:
                await self._end(submission, "completed", [])
                continue
            self._require_place(submission)
            standing = await self.depot.standing(submission, self._seat(submission.calls[0]), known)
            self._states[submission.marker] = standing
            await self._take(submission, standing)
            self._tell()
        self._open = open_submissions(self.session.records)

    async def _take(self, submission: Submission, standing: SubmissionStanding) -> None:
        if standing.unclear:
            return
        if standing.state is None:
            for call in submission.calls:
                self.budget.come_back(call.held(self._seat(call).spec.in_batch()), None)
            why = f"{submission.provider} has no such batch"
            await self.session.commit({"kind": VOID, "marker": submission.marker, "why": why})
            return
        if standing.found and self.depot.log is None:
            sent = {"kind": SENT, "marker": submission.marker, "id": standing.state.id, "at": now(), "found": True}
            await self.session.commit(sent)
        if standing.results:
            await self._record(submission, standing, standing.results)

    async def _record(self, submission: Submission, standing: SubmissionStanding, results: BatchResults) -> None:
        """Record the answers to the calls of a batch that has ended."""
        assert standing.state is not None
        records, failed = [], 0
        results.claim(submission.answered)
        for call in submission.calls:
            seat = self._seat(call)
            result = self._result(call, seat, standing, results)
            spec = seat.spec.in_batch()
            record = exchange_record(call, submission, result, spec)
            if isinstance(result, BackendError):
                failed += 1
                if names := self._learned(call, seat, result):
                    record["fault"]["left_out"] = names
            records.append((call, spec, record))
        for record in await asyncio.gather(*(self.session.commit(record) for _, _, record in records)):
            told = {key: record[key] for key in ("model", "attempt", "seconds", "usage", "cost") if key in record}
            fault = record["fault"]["kind"] if "fault" in record else None
            self.observe(ExchangeRecorded(name=str(record["call"]), **told, fault=fault))
        for call, spec, record in records:
            self.budget.come_back(call.held(spec), _used(record))
        problems = results.problems() if self.depot.log is None else []
        self.depot.count(submission.marker, len(submission.calls), failed)
        await self._end(submission, standing.state.status, problems)

    def _learned(self, call: SubmittedCall, seat: ModelSeat, error: BackendError) -> list[str]:
        """Return the parts of the request that the model refused by name, and leave them out from now on."""
        assert isinstance(seat.backend, HttpBackend)
        before = set(seat.backend.left_out(seat.spec.model))
        seat.backend.learn(seat.spec.model, error, call.body, schema="schema" in call.asked["request"])
        return [name for name in seat.backend.left_out(seat.spec.model) if name not in before]

    async def _end(self, submission: Submission, status: str, problems: Sequence[str]) -> None:
        ended = {"kind": ENDED, "marker": submission.marker, "status": status, "at": now()}
        await self.session.commit(ended | ({"problems": list(problems)} if problems else {}))

    def _result(
        self, call: SubmittedCall, seat: ModelSeat, standing: SubmissionStanding, results: BatchResults
    ) -> Response | BackendError:
        assert standing.state is not None
        try:
            found = results.take(call.id)
            if found is not None:
                return self.depot.client(seat).read(found)
        except BackendError as error:
            return error
        state = standing.state
        if state.why:  # the batch failed as a whole
            return BackendError(Fault.REJECTED, f"the batch failed: {one_line(state.why, 300)}")
        return BackendError(Fault.OVERLOADED, f"the batch ended ({state.status}) without an answer to this request")

    # -- waiting ------------------------------------------------------------------------------

    async def _until_some_end(self) -> None:
        """Wait until one of the open batches has ended and its answers are on record."""
        delay, before = SOONEST, len(self._open)
        while self._open and len(self._open) == before:
            self._note(f"{self._told()[:-1]}; asked again in {delay:.0f} s")
            if self.budget.remaining_seconds() < delay:
                raise WaitsForBatch(self._told(), self._hint)
            await asyncio.sleep(delay * random.uniform(0.9, 1.0))
            delay = min(LATEST, delay * 2)
            if await self.depot.some_ended():
                self.depot.look_again()
                await self._collect()

    def _told(self) -> str:
        told = []
        for submission in self._open:
            standing = self._states.get(submission.marker)
            more = f", {standing.unclear}" if standing and standing.unclear else ""
            if standing and standing.state and not standing.results:
                more = f", {standing.state.status}: {standing.state.done} of {standing.state.count} done"
            told.append(submission.told().removesuffix(")") + f"{more})")
        return f"{'; '.join(told)}." if told else "Calls wait for a batch."

    @property
    def _hint(self) -> str:
        return f"`{self.again}` collects the answers that are there, and --wait stays until they are."

    def _seat(self, call: SubmittedCall) -> ModelSeat:
        name = str(call.asked["model"])
        seat = self.seats.get(name)
        if seat is None or not seat.spec.batch_api:
            raise SessionError(
                f"Calls of {self.session.name} wait at the batch endpoint of {name}, which is not set up here.",
                "Set its provider up as it was when they were submitted, then resume.",
            )
        return seat

    def _require_place(self, submission: Submission) -> None:
        """Raise `SessionError` if the provider is at another address now: its key must not go to a recorded one."""
        url = self._seat(submission.calls[0]).spec.url
        if url != submission.url:
            raise SessionError(
                f"Calls of {self.session.name} wait at {submission.url}, and {submission.provider} is at {url} now.",
                "Set its address as it was when they were submitted, then resume.",
            )

    def _tell(self) -> None:
        """Tell what is new of the batches; of those that serve several sessions their `cdo batch` tells it."""
        for told in (*self.depot.found_again(), *self.depot.shortcomings()) if self.depot.log is None else ():
            self._note(told)

    def _note(self, text: str) -> None:
        self.observe(NoteTold(text=text))


def _used(record: Mapping[str, Any]) -> tuple[Usage | None, float | None]:
    """Return the usage and the cost of a recorded exchange."""
    usage = record.get("usage")
    if not usage:
        return None, None
    return Usage(usage["input_tokens"], usage["output_tokens"]), record["cost"]
