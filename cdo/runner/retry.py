"""What to do about each fault, and when: the one retry owner (SPEC 3, research on retry storms). Mostly pure.

Backends never retry. Passing faults are retried with jittered back-off; faults of the request get one changed
attempt; the rest is final. Three brakes hold the whole run: attempts per call, a run-wide allowance, and a gate
per provider that lets one probe through at a time while the provider is down.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from cdo.core.exchange import BackendError, Fault

MAX_ATTEMPTS = 4  # of one call, for passing faults
MAX_REPLIES = 3  # replies that may be sent back as invalid, the first one included
MAX_WAIT = 600.0  # seconds that one call waits in all: to try again, at the gate, and because a provider asks for it
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0

PASSING = frozenset(
    {Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.NETWORK, Fault.TIMEOUT, Fault.TRUNCATED, Fault.CRASHED}
)
CHANGED = frozenset({Fault.LENGTH, Fault.EMPTY, Fault.OVERFLOW, Fault.MALFORMED})
# Faults that speak of the provider, not of this one request.
PROVIDER_WIDE = frozenset({Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.NETWORK})
# Faults by which a provider shows that it answers, though not as we wish.
ANSWERED = CHANGED - {Fault.MALFORMED} | {Fault.REFUSED, Fault.REJECTED, Fault.DENIED, Fault.INVALID}


@dataclass
class AttemptCounter:
    """What one call has met so far in this process: how often each fault came, and the seconds it has waited."""

    faults: dict[Fault, int] = field(default_factory=dict)
    waited: float = 0.0

    def patience(self) -> float:
        """Seconds that the call may still wait."""
        return max(0.0, MAX_WAIT - self.waited)

    def count(self, faults: frozenset[Fault]) -> int:
        return sum(number for fault, number in self.faults.items() if fault in faults)

    def note(self, fault: Fault) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def retry(self, fault: Fault) -> bool:
        """Whether a call that just met `fault` (already noted) may be tried again."""
        if fault is Fault.INVALID:
            return self.faults[fault] < MAX_REPLIES
        if fault in PASSING:
            return self.count(PASSING) < MAX_ATTEMPTS
        return fault in CHANGED and self.faults[fault] < 2

    def delay(self) -> float:
        """Seconds to wait before the next attempt: growing fourfold, with jitter.

        The first retry is quick, and yet a call alone outlives some seconds of outage with few attempts.
        """
        exponent = min(max(0, self.count(PASSING) - 1), 10)
        return min(LONGEST_DELAY, FIRST_DELAY * 4.0**exponent) * random.uniform(0.6, 1.0)


class RetryBudget:
    """Run-wide number of retries: as many as there were calls, and a few. Ends retry storms."""

    def __init__(self, few: int = 12) -> None:
        self._few, self._calls, self._used = few, 0, 0

    def call(self) -> None:
        """One more call was started (a call, however often it is tried)."""
        self._calls += 1

    def take(self) -> bool:
        """Use one retry; False when none is left."""
        if self._used >= self._calls + self._few:
            return False
        self._used += 1
        return True


class CircuitBreaker:
    """One provider's door: open while it answers, one probe at a time while it does not.

    Probing goes round: who waited longest probes next, so that no call wears out its tries for all the others.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._closed_at = self._not_before = float("-inf")
        self._probing = False
        self._queue: dict[object, None] = {}  # who waits, in order of arrival
        self._news = asyncio.Event()  # set when something changed, and then replaced

    @property
    def open(self) -> bool:
        """Whether an attempt may start right now."""
        return not self._failures and self._not_before <= time.monotonic()

    async def enter(self) -> bool:
        """Wait until an attempt may start; returns whether it is the probe (then `leave` must say so).

        Raises `BackendError` when the provider asks for more patience than `MAX_WAIT`.
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
        """Report that an attempt was given up from our side: it says nothing about the provider."""
        self._probing = self._probing and not probe
        self._tell()

    def leave(self, probe: bool, started: float, fault: Fault | None, retry_after: float | None) -> None:
        """Report how an attempt that began at `started` (monotonic) ended; None is success."""
        now = time.monotonic()
        if fault is None or fault in ANSWERED or (probe and fault not in PROVIDER_WIDE):
            self._failures = 0
        elif fault in PROVIDER_WIDE:
            if started > self._closed_at:  # not one of the wave that already closed the door
                self._failures += 1
                self._closed_at = now
                delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 1, 10))
                self._not_before = max(self._not_before, now + delay * random.uniform(0.6, 1.0))
            self._not_before = max(self._not_before, now + (retry_after or 0.0))
        self.abandon(probe)
