"""Who hears the events of a run: its journal, the person, and what runs beside it (bd, git commits, a live trace)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from cdo.content.library import Library
from cdo.core.events import ContentOpened, Event, NoteTold, Observe, TextReceived, TreeChanged
from cdo.observers.git_commits import GitCommitObserver
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.repository import git
from cdo.security.secrets import redactor
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.observers.beads_tracker import Beads
    from cdo.observers.live_trace import LiveTrace, SpanSender
    from cdo.tracing.identity import TraceIdentity

TRACKER_PATIENCE = 30.0  # seconds that bd gets at the end to take in what is left


class TraceTarget(Struct, frozen=True):
    """Where the spans of a run go while it runs.

    `within` is the place of the mission of whose trace they are a part; `labels` are further attributes of the span
    of the run. A `shared` sender stays open when the run ends.
    """

    sender: SpanSender
    within: TraceIdentity | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    shared: bool = False


class RunObservers:
    """Passes the events of one run on, each to the journal first. `show` shows them to the person."""

    def __init__(self, session: Session, show: Observe) -> None:
        self._session = session
        self._observers = [show]
        self._trail: GitCommitObserver | None = None
        self._live: LiveTrace | None = None
        self.tracker: Beads | None = None

    def tell(self, event: Event) -> None:
        """Pass an event to the journal, unless it is of the moment, and to all observers."""
        if not isinstance(event, (TextReceived, TreeChanged)):
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            name = {"name": event.name} if event.name else {}
            self._session.journal({"at": now, "event": event.kind, **name, **event.json()})
        for observe in self._observers:
            observe(event)

    def say(self, text: str) -> None:
        """Tell a sentence to the person."""
        self.tell(NoteTold(text=text))

    def begin(self, plan: Plan, settings: Settings, library: Library, root: Path, trace: TraceTarget | None) -> None:
        """Begin what runs beside the run from here on. `root` is the folder whose bd database is used."""
        if _tracked(plan, root):
            self.tracker = _tracker(self._session, root, library, self.say)
            self._observers.append(self.tracker)
        if not settings.no_git:
            redact = redactor(os.environ)
            self._trail = GitCommitObserver(self._session, self.say, Path.cwd(), library, redact, settings.branch)
            self._observers.append(self._trail)
        if trace:
            from cdo.observers.live_trace import LiveTrace

            self._live = LiveTrace(
                self._session, trace.sender, self.say, trace.within, trace.labels, shared=trace.shared
            )
            self._observers.append(self._live)

    async def close(self, library: Library, until: float) -> None:
        """End what runs beside the run, not much later than `until` (monotonic), and tell which content was read."""
        if self.tracker:
            with contextlib.suppress(Exception):
                await self.tracker.close(min(TRACKER_PATIENCE, round((until - time.monotonic()) / 2, 1)))
        self.tell(ContentOpened(opened=library.opened))
        if self._live:
            await asyncio.to_thread(self._live.close, until)  # a collector may hang; other runs of the loop go on
        if self._trail:
            self._trail.close(until)


def _tracked(plan: Plan, folder: Path) -> bool:
    """True if the run goes into bd. Without bd that is so only if the person asked for it, who is then told."""
    return plan.bd and ("bd" in plan.modifiers or git.program("bd", os.path.realpath(folder)) is not None)


def _tracker(session: Session, folder: Path, library: Library, say: Callable[[str], None]) -> Beads:
    from cdo.observers.beads_tracker import Beads

    problem = session.read("00-input.md") or ""
    redact = redactor(os.environ)
    return Beads(session.name, problem, folder, session.records, session.commit, say, library, redact)
