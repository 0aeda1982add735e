"""A model with what reaches it, and the interface of what lets its calls wait at a batch endpoint."""

from __future__ import annotations

from typing import NoReturn, Protocol

from msgspec import Struct, field

from cdo.core.exchange import Backend, Request
from cdo.providers.models import ModelSpec
from cdo.runner.pacing import Pacing
from cdo.runner.requests import PendingCall
from cdo.runner.retry import CircuitBreaker


class ModelSeat(Struct, frozen=True):
    """A model with the backend that reaches it, the circuit breaker (`gate`) of its provider, and its rate limits."""

    spec: ModelSpec
    backend: Backend
    gate: CircuitBreaker
    pace: Pacing = field(default_factory=Pacing)


class CallLane(Protocol):
    """Lets calls wait at batch endpoints. See `runner.endpoint_batches.lane`."""

    async def begin(self) -> None:
        """Record the answers that are there, before the program runs."""
        ...

    async def hand_over(self, work: PendingCall, seat: ModelSeat, request: Request, identity: str) -> NoReturn:
        """Queue a request and raise `WaitsForBatch`."""
        ...

    def waits(self, work: PendingCall, seat: ModelSeat) -> bool:
        """True if a request of this call to this model waits at the provider."""
        ...

    async def submitted(self) -> None:
        """Submit what is queued; raise `WaitsForBatch`, or return when answers are there."""
        ...

    def drop(self) -> None:
        """Forget what is queued: the step fails."""
        ...
