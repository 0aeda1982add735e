"""Sends the trace of a run, or of all items of a batch, to a collector while the run goes on, without any content.

An observer beside the run: spans wait in a bounded queue, and one thread sends them. A collector that is slow, gone
or broken costs spans and never the run. `cdo trace` sends the same spans later.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from cdo.core.events import (
    Event,
    ExchangeRecorded,
    ReplyAccepted,
    ReplyMissing,
    RunEnded,
    RunStopped,
    ToolUsed,
)
from cdo.core.formatting import one_line
from cdo.session.session_file import load
from cdo.session.store import Session
from cdo.tracing.collector import Collector, CollectorError
from cdo.tracing.identity import TraceIdentity
from cdo.tracing.otlp import MOST_SPANS, batches
from cdo.tracing.spans import CallRecords, SpanMaker, TraceSpan, extent

MOST_WAITING = 5000  # spans; what comes on top while a collector does not answer is not sent
PATIENCE = 5.0  # seconds for which spans are sent again before that is told
AT_END = 3.0  # seconds for the spans that wait when the run has ended
AT_END_FAILING = 0.5  # the same for a collector that did not take the last ones


class SpanSender:
    """A thread that sends spans to a collector, for a run and the deliberations within it, or for a batch.

    It has one request under way at a time; spans that wait meanwhile leave together with the next one.
    `redact` removes secrets from what is sent. `notes` hold what a person should know, at most one sentence of each
    kind.
    """

    def __init__(self, collector: Collector, redact: Callable[[str], str]) -> None:
        self.notes: deque[str] = deque()
        self._collector = collector
        self._redact = redact
        self._jobs: queue.SimpleQueue[Sequence[TraceSpan] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._failing = self._complained = False
        self._thread = threading.Thread(target=self._work, name="cdo-trace", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[TraceSpan]) -> None:
        """Queue spans; return at once and raise nothing."""
        with self._lock:
            full = self._waiting + len(spans) > MOST_WAITING
            self._waiting += 0 if full else len(spans)
        if full:
            self.complain("The collector is too slow.")
        else:
            self._jobs.put(spans)

    def close(self, until: float = float("inf")) -> None:
        """Send what waits, for a few seconds at most, and no longer than until `until` (monotonic)."""
        patience = AT_END_FAILING if self._failing else AT_END
        self._jobs.put(None)
        self._ending.set()
        self._thread.join(max(0.0, min(until - time.monotonic(), patience)))
        if self._thread.is_alive():
            self.complain("The collector did not answer in time.")

    def told(self) -> Iterator[str]:
        """Yield the notes that were not yielded before."""
        while self.notes:
            yield self.notes.popleft()

    def complain(self, why: str) -> None:
        """Note the first failure, and what to do about it."""
        with self._lock:
            first, self._complained = not self._complained, True
        if first:
            advice = "Spans are missing there: `cdo trace SESSION --otlp URL` sends them."
            self.notes.append(f"trace: {one_line(why)} {advice}")

    # -- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        while spans := self._next():
            try:
                self._send(spans)
            except CollectorError as error:
                self._failing = True
                self.complain(error.message)
            except Exception as error:  # an unexpected error costs spans, never the run
                self._failing = True
                self.complain(f"Unexpected: {error!r}.")
            finally:
                with self._lock:
                    self._waiting -= len(spans)

    def _next(self) -> list[TraceSpan]:
        """Wait for spans and return those of about one request; none at the end."""
        spans: list[TraceSpan] = []
        while not spans or (len(spans) < MOST_SPANS and not self._jobs.empty()):
            if (more := self._jobs.get()) is None:
                self._jobs.put(None)  # for the next time
                break
            spans += more
        return spans

    def _send(self, spans: Sequence[TraceSpan]) -> None:
        for _, body in batches(spans, self._redact):
            # One that failed is tried once with each further call, so that nothing waits long.
            patience = 0.0 if self._failing else PATIENCE
            note = self._collector.send(body, patience, pause=self._ending.wait)
            self._failing = False
            if note:
                self.complain(f"The collector left something out: {note}.")


class LiveTrace:
    """Hands the spans of one run to a sender as calls end; `close` hands over the rest and the span of the run.

    `within` is the mission that holds this run as a deliberation: its trace has the spans. `labels` are further
    attributes of the span of the run. A `shared` sender is closed, and its notes are told, by who shares it.
    """

    def __init__(
        self,
        session: Session,
        sender: SpanSender,
        say: Callable[[str], None],
        within: TraceIdentity | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        shared: bool = False,
    ) -> None:
        frozen = load(session)
        alone = TraceIdentity.of(session.name, frozen.created)
        place = within.nested(session.name, frozen.created) if within else alone
        self._maker = SpanMaker(place, frozen, labels=labels or {})
        self._session, self._sender, self._say, self._shared = session, sender, say, shared
        self._closes = not shared and within is None
        self._calls = CallRecords()
        self._taken = 0
        self._tool_ends: dict[str, list[int]] = {}
        self._open: dict[str, None] = {}
        self._times = self._maker.began, self._maker.began
        self._status, self._error, self._broken = "unfinished", "", False
        self._catch_up()

    @property
    def identity(self) -> TraceIdentity:
        """The place of the run's spans."""
        return self._maker.identity

    def __call__(self, event: Event) -> None:
        """Queue the spans of a call that has ended; return at once and raise nothing."""
        self._tell()
        if self._broken:
            return
        try:
            self._take(event)
        except Exception as error:
            self._broken = True
            self._sender.complain(f"Unexpected: {error!r}.")

    def close(self, until: float = float("inf")) -> None:
        """Hand over what is left, and wait for the sender for a few seconds at most, or until `until` (monotonic)."""
        if not self._broken:
            try:
                for call in list(self._open):
                    self._send(call)
                start, end = self._times
                end = max(end, _now()) if self._status != "unfinished" or self._error else end
                self._sender.put([self._maker.of_run(start, end, self._status, self._error)])
            except Exception as error:
                self._sender.complain(f"Unexpected: {error!r}.")
        if self._closes:
            self._sender.close(until)
        self._tell()

    def _take(self, event: Event) -> None:
        if isinstance(event, ToolUsed):
            self._tool_ends.setdefault(event.name, []).append(_now())
        elif isinstance(event, ExchangeRecorded):
            self._open[event.name] = None
        elif isinstance(event, ReplyAccepted | ReplyMissing) and event.name in self._open:
            self._send(event.name)
        elif isinstance(event, RunEnded):
            self._status = event.result.status
        elif isinstance(event, RunStopped):
            paused = event.status == "NeedsHuman"
            self._status, self._error = ("paused", "") if paused else ("unfinished", event.status or "stopped")

    def _send(self, call: str) -> None:
        self._catch_up()
        self._open.pop(call, None)
        spans = list(self._maker.of_calls(self._calls, self._tool_ends, call))
        start, end = extent(spans, self._times[0])
        self._times = min(start, self._times[0]), max(end, self._times[1])
        self._sender.put(spans)

    def _catch_up(self) -> None:
        """Take in the records that have come since the last time."""
        fresh = self._session.records[self._taken :]
        self._taken += len(fresh)
        for record in fresh:
            self._calls.add(record)

    def _tell(self) -> None:
        for note in () if self._shared else self._sender.told():
            self._say(note)


def _now() -> int:
    """The time in nanoseconds, as exact as the journal has it."""
    return time.time_ns() // 10**6 * 10**6
