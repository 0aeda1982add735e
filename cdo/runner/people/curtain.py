"""Keeps from observers what the voices of a turn say until the people of the turn have answered, or did not."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from cdo.core.events import (
    Event,
    Observe,
    ReplyAccepted,
    ReplyCorrected,
    ReplyMissing,
    ReplyRefused,
    TextReceived,
    ToolUsed,
)

_SAYS = (ReplyAccepted, ReplyCorrected, ReplyRefused, ToolUsed)


class Curtain:
    """Passes events on to `observe`. Whoever observes a run, at a terminal or in a browser, may have a seat in it."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._waiting: set[str] = set()
        self._held: list[Event] = []

    def draw(self, calls: Iterable[str]) -> None:
        """Hold back what is said until each of these calls is answered or missing. What was held is dropped."""
        self._waiting, self._held = set(calls), []

    def __call__(self, event: Event) -> None:
        """Pass an event on, now or with the answer of the last person."""
        if not self._waiting:
            return self._observe(event)
        if isinstance(event, ReplyAccepted | ReplyMissing):
            self._waiting.discard(event.name)
        if self._waiting and isinstance(event, _SAYS):
            self._held.append(event)
            return None
        held, self._held = ([], self._held) if self._waiting else (self._held, [])
        for one in (*held, event):
            self._observe(replace(one, tail="") if isinstance(one, TextReceived) else one)
        return None
