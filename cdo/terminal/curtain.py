"""Keeps what the voices of a turn say from the terminal until the people of the turn have answered, or did not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cdo.core.events import BatchBegan, Event, Observe, ReplyAccepted, ReplyMissing, TextReceived


class Curtain:
    """Passes events on to a view. `people` are the names of the voices that are people's, without their turn.

    Replies that are there before the last of these are passed on with it.
    """

    def __init__(self, view: Observe, people: Collection[str]) -> None:
        self._view = view
        self._people = frozenset(people)
        self._waiting: set[str] = set()
        self._held: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Pass an event on, now or later."""
        if isinstance(event, BatchBegan):
            self._held = []
            self._waiting = {name for name, _ in event.calls if name.partition("-")[2] in self._people}
        if self._waiting and isinstance(event, TextReceived):
            event = replace(event, tail="")
        ready = [event]
        if isinstance(event, ReplyAccepted | ReplyMissing):
            self._waiting.discard(event.name)
            self._held.append(event)
            ready, self._held = ([], self._held) if self._waiting else (self._held, [])
        for one in ready:
            self._view(one)
