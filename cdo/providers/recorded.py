"""Answers requests from a recording, as `cdo demo` plays one: without network and without cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Struct

from cdo.core.exchange import BackendError, Fault, OnText, Request, Response

PREFIX = "recorded:"  # of the name that a recorded model has in a session: no model answers under it
TICK = 0.1  # seconds between two pieces of a reply


class RecordedReply(Struct, frozen=True):
    """One recorded answer, and the seconds that it takes to arrive."""

    response: Response
    seconds: float


class RecordedBackend:
    """Gives each attempt of a call the reply on record, found by the name of the call and not by its prompt.

    Raises `BackendError` for a call or an attempt that is not on record.
    """

    streams = True

    def __init__(self, replies: Mapping[str, Sequence[RecordedReply]]) -> None:
        self._replies = replies

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Return the reply on record, in pieces that arrive evenly over its time."""
        call, attempt = request.headers["X-Cdo-Call"], int(request.headers["X-Cdo-Attempt"])
        replies = self._replies.get(call, ())
        if attempt > len(replies):
            raise BackendError(Fault.REJECTED, f"attempt {attempt} of {call} is not in the recording")
        reply = replies[attempt - 1]
        text, ticks = reply.response.text, max(1, round(reply.seconds / TICK))
        for tick in range(ticks):
            await asyncio.sleep(reply.seconds / ticks)
            on_text(text[len(text) * tick // ticks : len(text) * (tick + 1) // ticks])
        return reply.response

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""
