"""Spreads requests over time as a provider's rate limits allow, which the headers of its responses state.

Without such headers nothing waits. With them a request waits until the provider has room for it, instead of being
refused and tried again. Those that wait go in the order in which they came.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from msgspec import Struct

from cdo.core.exchange import Quota, RateLimits

REPLY = 1000  # tokens that a reply is taken to have; the next headers state what it had
LONGEST = 5.0  # seconds after which one that waits looks again, since other responses may have said more


class Turn(Struct, frozen=True, eq=False):
    """A request that had its turn: until when it may be on its way to the provider (monotonic), and its tokens."""

    until: float
    tokens: int


class Pacing:
    """The room that a provider has for one model, shared by all that ask it.

    `lag` is how many seconds a request may need from its turn here to the provider.
    """

    def __init__(self, lag: float = 0.0) -> None:
        self._limits = RateLimits(float("-inf"))
        self._lag = lag
        self._sent: deque[Turn] = deque()  # what the limits do not know of
        self._turn = asyncio.Lock()

    @property
    def known(self) -> bool:
        """True once a response has stated limits."""
        return self._limits.at > float("-inf")

    def learn(self, limits: RateLimits | None) -> None:
        """Take in what a response says, unless a later one has said more."""
        if limits is None or limits.at < self._limits.at:
            return
        self._limits = limits
        while self._sent and self._sent[0].until <= limits.at:
            self._sent.popleft()

    async def enter(self, tokens: int) -> Turn:
        """Wait until there is room for a request with a prompt of so many tokens, and take it."""
        async with self._turn:
            while True:
                wait = self._wait(tokens + REPLY)
                if wait <= 0:
                    break
                await asyncio.sleep(min(wait, LONGEST))
            turn = Turn(time.monotonic() + self._lag, tokens + REPLY)
            if self.known:
                self._sent.append(turn)
            return turn

    def over(self, turn: Turn) -> None:
        """Take in that a request has ended, so that what is learnt from now on knows of it."""
        if turn in self._sent:
            self._sent.remove(turn)

    def _wait(self, tokens: int) -> float:
        """Return the seconds until there is room for one more request; 0 if there is now."""
        now, limits = time.monotonic(), self._limits
        waits = [0.0]
        if limits.requests:
            waits.append(_until(limits.requests, 1, len(self._sent), now - limits.at))
        if limits.tokens:
            sent = sum(turn.tokens for turn in self._sent)
            waits.append(_until(limits.tokens, tokens, sent, now - limits.at))
        return max(waits)


def _until(quota: Quota, wanted: float, sent: float, passed: float) -> float:
    """Return the seconds until a quota has room for what is `wanted`.

    The quota was stated `passed` seconds ago, and so much was `sent` since. What is wanted is at most all of it: a
    larger request is for the provider to judge.
    """
    left = min(quota.limit, quota.left + quota.refill * passed) - sent
    lacking = min(wanted, quota.limit) - left
    return 0.0 if lacking <= 1e-6 else lacking / quota.refill
