"""Submits requests to the batch endpoints of providers, and finds out how submitted ones stand.

A depot serves one session, or all sessions of a `cdo batch`, whose requests then leave together. Where a process may
have died between the decision to submit and the provider's answer, the provider is asked by the marker of the batch
before anything is submitted again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import BinaryIO, Protocol, cast

from msgspec import Struct, field

from cdo.core.errors import CdoError, ModelsFailed, WaitsForBatch
from cdo.core.exchange import BackendError, Fault
from cdo.core.formatting import one_line, pluralise
from cdo.providers.http.backend import HttpBackend
from cdo.providers.http.batch_client import BatchClient, ProviderBatch, StillUnclear
from cdo.providers.http.gemini_batches import GeminiBatches
from cdo.providers.http.message_batches import MessageBatches
from cdo.providers.http.openai_batches import OpenAIBatches
from cdo.providers.http.openrouter_batches import OpenRouterBatches
from cdo.runner.endpoint_batches.results import BatchResults
from cdo.runner.endpoint_batches.submissions import Submission, since
from cdo.runner.model_seat import ModelSeat

CLIENTS: dict[str, type[BatchClient]] = {
    "openai": OpenAIBatches, "messages": MessageBatches, "openrouter": OpenRouterBatches, "gemini": GeminiBatches,
}  # fmt: skip
SETTLING = 10.0  # seconds after which a provider lists a batch for certain
# Faults that pass: the same question may be answered later.
_PASSING = {Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.NETWORK, Fault.TIMEOUT, Fault.TRUNCATED}
# Faults which show that the provider has not taken a batch. After any other it may have.
_REFUSED = {Fault.REJECTED, Fault.DENIED, Fault.USED_UP, Fault.RATE_LIMITED, Fault.OVERFLOW, Fault.REFUSED}
SOONEST, LATEST = 5.0, 300.0  # seconds between two looks at a batch


class SubmissionLog(Protocol):
    """Where it is written down which batches were submitted for several sessions."""

    def begun(self, marker: str) -> bool:
        """True if the batch may have been submitted."""
        ...

    def known(self, marker: str) -> str:
        """Return the provider's id of a batch; "" if it is not known."""
        ...

    def count(self, marker: str) -> int:
        """Return the number of requests of a batch."""
        ...

    def begin(self, parcel: Parcel) -> None:
        """Write down, durably, that the batch is submitted now."""
        ...

    def refused(self, marker: str) -> None:
        """Write down, durably, that the provider did not take the batch."""
        ...

    def sent(self, marker: str, ident: str) -> None:
        """Write down, durably, what the provider calls the batch."""
        ...


class Parcel(Struct, eq=False):
    """Requests that are to be submitted as one batch, in a temporary file.

    `count` and `size` are those of the requests that room is kept for, `written` is how many are in the file.
    """

    marker: str
    client: BatchClient
    provider: str
    url: str
    factor: float
    model: str
    file: BinaryIO
    count: int = 0
    size: int = 0
    written: int = 0

    def has_room(self, size: int) -> bool:
        """True if another request of this size goes into the batch."""
        return self.count < self.client.most_requests and self.size + size <= self.client.most_bytes

    def add(self, lines: Sequence[bytes]) -> None:
        """Put requests into the file for which room is kept."""
        self.file.write(b"".join(line + b"\n" for line in lines))
        self.written += len(lines)

    def promise(self, size: int) -> None:
        """Keep room for a request, which is added later."""
        self.count, self.size = self.count + 1, self.size + size


class SubmissionStanding(Struct, frozen=True):
    """How a submission stands. Without a `state` it is void: the provider never got it. `results`: it has ended.

    `found`: its id was not on record, and the provider named it. `unclear` says why nothing is known yet.
    """

    state: ProviderBatch | None = None
    results: BatchResults | None = None
    found: bool = False
    unclear: str = ""


class BatchDepot(Struct):
    """The batches of one process. `log` knows the batches that serve several sessions, of the `cdo batch` `of`.

    `again` is the command that collects.
    """

    of: str = ""
    log: SubmissionLog | None = None
    again: str = "cdo resume"
    parcels: list[Parcel] = field(default_factory=list)
    _clients: dict[int, BatchClient] = field(default_factory=dict)
    _standings: dict[str, SubmissionStanding] = field(default_factory=dict)
    _running: dict[str, tuple[BatchClient, str, ProviderBatch]] = field(default_factory=dict)
    _turns: dict[str, asyncio.Lock] = field(default_factory=dict)
    _unsettled: dict[str, str] = field(default_factory=dict)  # by marker, what cannot be told yet
    _found_again: list[str] = field(default_factory=list)
    _calls: Counter[str] = field(default_factory=Counter)  # by marker, those that had a look at the results
    _unanswered_calls: Counter[str] = field(default_factory=Counter)
    _told: set[str] = field(default_factory=set)

    def client(self, seat: ModelSeat) -> BatchClient:
        """Return the batch endpoint of a seat's provider."""
        backend = seat.backend
        assert isinstance(backend, HttpBackend)
        return self._clients.setdefault(id(backend), CLIENTS[seat.spec.batch_api](backend))

    def parcel(self, seat: ModelSeat, size: int) -> Parcel:
        """Return the parcel that has room for a request of `size` bytes to a seat, and keep the room for it."""
        client, spec = self.client(seat), seat.spec
        model = spec.model if client.one_model else ""
        fitting = (item for item in self.parcels if (item.client, item.model) == (client, model))
        found = next((item for item in fitting if item.has_room(size)), None)
        if found is None:
            marker = f"cdo-{secrets.token_hex(8)}"
            file = cast(BinaryIO, tempfile.TemporaryFile(prefix="cdo-batch-"))  # noqa: SIM115 - closed by `send`
            found = Parcel(marker, client, spec.provider, spec.url, spec.batch_factor, model, file)
            self.parcels.append(found)
        found.promise(size)
        return found

    async def send(self, parcel: Parcel) -> ProviderBatch:
        """Submit a parcel; raise `ModelsFailed` if the provider does not take it, `WaitsForBatch` if it may have."""
        self.parcels.remove(parcel)
        size = parcel.file.seek(0, os.SEEK_END)
        parcel.file.seek(0)
        try:
            state = await parcel.client.submit(parcel.marker, parcel.file, size, parcel.model)
            self._running[parcel.marker] = parcel.client, parcel.provider, state
            return state
        except BackendError as error:
            if error.fault in _REFUSED:
                told = f"{parcel.provider} does not take the batch of {pluralise(parcel.count, 'call')}"
                raise ModelsFailed(
                    f"{told}: {error.message}",
                    f"Nothing of it was paid. `{self.again}` submits it again.",
                ) from None
            raise WaitsForBatch(
                f"It is not known whether {parcel.provider} has taken the batch of "
                f"{pluralise(parcel.count, 'call')} ({error.message}).",
                f"`{self.again}` asks for it by its name, and submits it again only if it is not there.",
            ) from None
        finally:
            parcel.file.close()

    async def send_on_record(self, parcel: Parcel) -> None:
        """Submit a parcel that serves several sessions: it is in the log before; raises as `send` does."""
        assert self.log is not None
        if not parcel.written:
            self.parcels.remove(parcel)
            parcel.file.close()
            return
        self.log.begin(parcel)
        try:
            state = await self.send(parcel)
        except ModelsFailed:
            self.log.refused(parcel.marker)
            raise
        self.log.sent(parcel.marker, state.id)

    def under_way(self) -> list[str]:
        """Return, for people, the batches that have not ended as far as is known."""
        running = [
            f"the batch {state.id} at {provider} ({state.status}: {state.done} of {state.count} done)"
            for _, provider, state in self._running.values()
        ]
        return [*running, *self._unsettled.values()]

    def found_again(self) -> list[str]:
        """Return, for people, the lost batches that were found since this was asked."""
        told, self._found_again = self._found_again, []
        return told

    def count(self, marker: str, calls: int, unanswered: int) -> None:
        """Count the calls of a session that a batch which has ended answered, and those that it did not."""
        self._calls[marker] += calls
        self._unanswered_calls[marker] += unanswered

    def shortcomings(self) -> list[str]:
        """Return, for people and once for each batch that has ended, what it did not answer and what was of no use.

        By then every session has taken its own results.
        """
        told = []
        for marker, found in self._standings.items():
            if not found.state or not found.results or marker in self._told:
                continue
            self._told.add(marker)
            name = f"the batch {found.state.id}"
            if unanswered := self._unanswered_calls[marker]:
                told.append(
                    f"{unanswered} of {pluralise(self._calls[marker], 'call')} of {name} ({found.state.status}) were "
                    "not answered; those that may be asked again go into the next batch"
                )
            problems = found.results.problems(unclaimed=self.log is None)
            told += [f"{name} brought {problem}; they were not used" for problem in problems]
        return told

    async def some_ended(self) -> bool:
        """Ask how the batches stand that are under way; return whether sessions have to look again.

        They have to when one has ended, and while it cannot be told how one stands. A provider that cannot be asked
        now is asked again later.
        """
        ended = bool(self._unsettled) or not self._running
        for marker, (client, provider, before) in list(self._running.items()):
            with contextlib.suppress(BackendError):
                state = await client.look(before.id)
                self._running[marker] = client, provider, state
                ended = ended or state.ended
        return ended

    async def standing(self, submission: Submission, seat: ModelSeat, known: Sequence[str]) -> SubmissionStanding:
        """Return how a submission stands, asked once in this process until `look_again`; raises `CdoError`.

        `known` are the ids of the session's other batches.
        """
        async with self._turns.setdefault(submission.marker, asyncio.Lock()):
            if (standing := self._standings.get(submission.marker)) is None:
                standing = await self._asked(submission, seat, known)
                self._standings[submission.marker] = standing
            return standing

    def look_again(self) -> None:
        """Forget how the batches stand that have not ended."""
        kept = {
            marker: found
            for marker, found in self._standings.items()
            if found.results or not (found.state or found.unclear)
        }
        self._standings = kept

    def close(self) -> None:
        """Give up the temporary files."""
        for parcel in self.parcels:
            parcel.file.close()
        for found in self._standings.values():
            if found.results:
                found.results.close()

    async def _asked(self, submission: Submission, seat: ModelSeat, known: Sequence[str]) -> SubmissionStanding:
        client, ident = self.client(seat), submission.id
        self._unsettled.pop(submission.marker, None)
        if self.log:
            if not self.log.begun(submission.marker):
                return SubmissionStanding()
            ident = self.log.known(submission.marker)
        try:
            state = await client.look(ident) if ident else await self._found(client, submission, known)
            if state is None:
                return SubmissionStanding()
            if not ident:
                told = f"the batch {state.id} was found again at {submission.provider}"
                self._found_again.append(f"{told}; it is not submitted twice")
                if self.log:
                    self.log.sent(submission.marker, state.id)
            if not state.ended:
                self._running[submission.marker] = client, submission.provider, state
                return SubmissionStanding(state, found=not ident)
            self._running.pop(submission.marker, None)
            results = BatchResults(submission.marker)
            await results.fill(client.results(state))
        except StillUnclear as unclear:
            return self._open_question(submission, ident, str(unclear))
        except BackendError as error:
            if error.fault not in _PASSING:
                raise self._unanswered(submission, ident, error) from None
            why = f"how it stands cannot be asked now: {_reason(error)}"
            return self._open_question(submission, ident, why)
        return SubmissionStanding(state, results, not ident)

    async def _found(self, client: BatchClient, submission: Submission, known: Sequence[str]) -> ProviderBatch | None:
        """Return the batch that a process which died may have submitted; None if it did not."""
        count = self.log.count(submission.marker) if self.log else len(submission.calls)
        await asyncio.sleep(min(SETTLING, max(0.0, submission.since + SETTLING - time.time())))
        return await client.found(submission.marker, submission.since, count, set(known))

    def _open_question(self, submission: Submission, ident: str, why: str) -> SubmissionStanding:
        name = f"the batch {ident}" if ident else "a batch"
        self._running.pop(submission.marker, None)
        self._unsettled[submission.marker] = f"{name} at {submission.provider} (since {since(submission.at)}, {why})"
        return SubmissionStanding(unclear=why)

    def _unanswered(self, submission: Submission, ident: str, error: BackendError) -> CdoError:
        what = f"the batch {ident}" if ident else "its batches"
        told = f"{submission.provider} does not say how {what} stand: {_reason(error)}"
        if ident:
            told = f"{submission.provider} does not say how {what} of {since(submission.at)} stands: "
            told += _reason(error)
        return ModelsFailed(
            f"{told}.",
            f"`{self.again}` asks again, with the key that the batch was submitted under. "
            "Nothing is submitted twice.",
        )


def _reason(error: BackendError) -> str:
    return one_line(error.message, 300).rstrip(".")
