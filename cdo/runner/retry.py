"""Decides whether and when to retry after each fault. Mostly pure.

Only this module decides on retries; backends never retry. Transient faults are retried with jittered back-off; faults
of the request get one changed attempt; all others are final. Three limits apply: attempts per call, a run-wide retry
budget, and a circuit breaker per provider that lets one probe through at a time while the provider is down.
"""

from __future__ import annotations

import asyncio
import random
import time

from msgspec import Struct, field

from cdo.core.exchange import BackendError, Fault

MAX_ATTEMPTS = 4  # attempts of one call that end in transient faults
MAX_REPLIES = 3  # invalid replies to one call, the first one included
MAX_WAIT = 600.0  # seconds that one call waits in total: back-off, circuit breaker, and waits the provider requests
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0

PASSING = frozenset(
    {Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.NETWORK, Fault.TIMEOUT, Fault.TRUNCATED, Fault.CRASHED}
)
CHANGED = frozenset({Fault.LENGTH, Fault.EMPTY, Fault.OVERFLOW, Fault.MALFORMED})
# Faults of the provider as a whole, not of this one request.
PROVIDER_WIDE = frozenset({Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.NETWORK})
# Faults which show that the provider is up.
ANSWERED = (CHANGED - {Fault.MALFORMED}) | {
    Fault.REFUSED, Fault.REJECTED, Fault.DENIED, Fault.USED_UP, Fault.INVALID,
}  # fmt: skip


class AttemptCounter(Struct):
    """The faults of one call in this process, with their counts, and the seconds it has waited."""

    faults: dict[Fault, int] = field(default_factory=dict)
    waited: float = 0.0

    def patience(self) -> float:
        """Return the seconds that the call may still wait."""
        return max(0.0, MAX_WAIT - self.waited)

    def count(self, faults: frozenset[Fault]) -> int:
        return sum(number for fault, number in self.faults.items() if fault in faults)

    def note(self, fault: Fault) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def retry(self, fault: Fault) -> bool:
        """True if the call may be retried after `fault`, which must already be noted."""
        if fault is Fault.INVALID:
            return self.faults[fault] < MAX_REPLIES
        if fault in PASSING:
            return self.count(PASSING) < MAX_ATTEMPTS
        return fault in CHANGED and self.faults[fault] < 2

    def delay(self) -> float:
        """Return the seconds to wait before the next attempt: growing fourfold, with jitter.

        So the first retry is quick, and a single call still survives an outage of some seconds with few attempts.
        """
        exponent = min(max(0, self.count(PASSING) - 1), 10)
        return min(LONGEST_DELAY, FIRST_DELAY * 4.0**exponent) * random.uniform(0.6, 1.0)


class RetryBudget:
    """A run-wide limit on retries: one per call, plus `few`. Prevents retry storms."""

    def __init__(self, few: int = 12) -> None:
        self._few, self._calls, self._used = few, 0, 0

    def call(self) -> None:
        """Count a started call, once however often it is retried."""
        self._calls += 1

    def take(self) -> bool:
        """Use one retry; False when none is left."""
        if self._used >= self._calls + self._few:
            return False
        self._used += 1
        return True

    async def granted(self) -> bool:
        """Use one retry as `take` does. Another process may have to be asked for it, so this can wait."""
        return self.take()


class CircuitBreaker:
    """A gate for one provider: open while it answers; while it does not, one probe at a time passes.

    The call that has waited longest probes next, so that no single call uses up its attempts for all others.
    `cause` is the last error, with secrets redacted.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._closed_at = self._not_before = float("-inf")
        self.cause: BackendError | None = None
        self._probing = False
        self._queue: dict[object, None] = {}  # the waiting attempts, in order of arrival
        self._news = asyncio.Event()  # set when the state changes, and then replaced

    @property
    def open(self) -> bool:
        """True if an attempt may start right now."""
        return not self._failures and self._not_before <= time.monotonic()

    def given_up(self) -> BackendError:
        """Return the error of an attempt that waited here in vain: the one that closed the gate. It is final."""
        fault, message = (self.cause.fault, self.cause.message) if self.cause else (Fault.TIMEOUT, "no time was left")
        return BackendError(fault, message, retry_after=float("inf"))

    async def enter(self) -> bool:
        """Wait until an attempt may start; return whether it is the probe, to be passed to `leave` or `abandon`.

        Raise `BackendError` if the provider requires a wait longer than `MAX_WAIT`.
        """
        ticket = object()
        self._queue[ticket] = None
        try:
            while True:
                if (left := self._not_before - time.monotonic()) > MAX_WAIT:
                    message = f"the provider asks to wait for {left:.0f} s"
                    raise BackendError(Fault.RATE_LIMITED, message, retry_after=left)
                if left > 0:
                    await asyncio.sleep(left)
                elif not self._failures:
                    return False
                elif self._probing or next(iter(self._queue)) is not ticket:
                    await self._news.wait()
                else:
                    self._probing = True
                    return True
        finally:
            del self._queue[ticket]
            if self._failures:  # the next one in the queue may be waiting for its turn
                self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def abandon(self, probe: bool) -> None:
        """Report that an attempt was cancelled by us: this gives no information about the provider."""
        self._probing = self._probing and not probe
        self._tell()

    def leave(self, probe: bool, started: float, fault: Fault | None, retry_after: float | None) -> None:
        """Report how an attempt that began at `started` (monotonic) ended; None is success."""
        now = time.monotonic()
        if fault is None or fault in ANSWERED or (probe and fault not in PROVIDER_WIDE):
            self._failures = 0
        elif fault in PROVIDER_WIDE:
            if started > self._closed_at:  # not an attempt that was in flight when the gate closed
                self._failures += 1
                self._closed_at = now
                delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 1, 10))
                self._not_before = max(self._not_before, now + delay * random.uniform(0.6, 1.0))
            self._not_before = max(self._not_before, now + (retry_after or 0.0))
        self.abandon(probe)
