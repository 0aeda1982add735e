"""Reads a session as a trace, wherever it is kept: its own spans, and those of the deliberations that it held.

Times come from the records. The journal adds when tool uses ended and when the run did, as far as it can be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from cdo.core.errors import CdoError, SessionError
from cdo.core.events import BatchBegan, Event, RunEnded, RunStopped, ToolUsed
from cdo.history.index_entries import look
from cdo.history.journal_events import parsed, told
from cdo.history.journal_follower import JOURNAL, LONGEST
from cdo.session.reader import SessionReader
from cdo.session.session_file import Frozen, read_frozen
from cdo.tracing.identity import TraceIdentity
from cdo.tracing.spans import CallRecords, SpanMaker, TraceSpan, extent

MISSION = "mission "  # begins the source of each setting of a deliberation that a mission held

_KINDS = (b'"tool"', b'"done"', b'"stopped"', b'"batch"')  # what lines hold of the events that are read

Neighbour = Callable[[str], SessionReader | None]  # the session of a name that is kept in the same place


class JournalTimes(Struct):
    """What the journal of a session adds to its records, as nanoseconds since 1970.

    `error` is the class of the error that stopped the run: "" while it goes on, if it ended or waits for a person.
    """

    tool_ends: dict[str, list[int]] = field(default_factory=dict)
    end: int = 0
    error: str = ""

    def add(self, at: int, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, ToolUsed):
            self.tool_ends.setdefault(event.name, []).append(at)
        elif isinstance(event, RunEnded | RunStopped):
            self.end = max(self.end, at)
            stopped = isinstance(event, RunStopped) and event.status != "NeedsHuman"
            self.error = event.status or "stopped" if stopped and isinstance(event, RunStopped) else ""
        elif isinstance(event, BatchBegan):
            self.error = ""


def trace(
    archive: SessionReader, neighbour: Neighbour, *, content: bool = False, labels: Mapping[str, str] | None = None
) -> Iterator[TraceSpan]:
    """Yield the spans of a session, that of the run first; raise `SessionError` if it is damaged.

    `labels` are further attributes of the span of the run. A deliberation that a mission held is a part of the
    mission's trace, also when it is looked at by itself.
    """
    frozen = _frozen(archive)
    identity = TraceIdentity.of(archive.name, frozen.created)
    if mission := _mission(frozen, neighbour):
        identity = TraceIdentity.of(mission.name, _frozen(mission).created).nested(archive.name, frozen.created)
    records = archive.records()
    yield from _session(archive, records, SpanMaker(identity, frozen, content, labels or {}))
    for record in records:
        if record["kind"] == "nested" and (held := _neighbour(neighbour, str(record["result"]["session"]))):
            inner = _frozen(held)
            if f"{MISSION}{archive.name}" in inner.sources.values():
                maker = SpanMaker(identity.nested(held.name, inner.created), inner, content)
                yield from _session(held, held.records(), maker)


def _session(archive: SessionReader, records: Iterable[dict[str, object]], maker: SpanMaker) -> Iterator[TraceSpan]:
    calls = CallRecords()
    for record in records:
        calls.add(record)
    times = _journal(archive)
    spans = list(maker.of_calls(calls, times.tool_ends))
    start, end = extent(spans, maker.began)
    yield maker.of_run(start, max(end, times.end), str(look(archive).row["status"]), times.error)
    yield from spans


def _frozen(archive: SessionReader) -> Frozen:
    return read_frozen(archive.text("session.yaml"), Path(archive.place))


def _mission(frozen: Frozen, neighbour: Neighbour) -> SessionReader | None:
    """Return the mission that held this session; None if none did, or if it is not there."""
    names = {source for source in frozen.sources.values() if source.startswith(MISSION)}
    return _neighbour(neighbour, names.pop().removeprefix(MISSION)) if len(names) == 1 else None


def _neighbour(neighbour: Neighbour, name: str) -> SessionReader | None:
    """Return a session that another one names, if it is one: a session can name what it likes."""
    try:
        found = neighbour(name)
        return found if found and _frozen(found) else None
    except CdoError:
        return None


def _journal(archive: SessionReader) -> JournalTimes:
    """Return what the journal tells. It only informs: what cannot be read of it is left out."""
    found = JournalTimes()
    with contextlib.suppress(SessionError):
        for line in (archive.data(JOURNAL) or b"").split(b"\n"):
            if len(line) <= LONGEST and any(kind in line for kind in _KINDS):
                with contextlib.suppress(ValueError):
                    if event := told(parsed(line)):
                        at, what = event
                        if at < 2**32:
                            found.add(round(at * 1000) * 10**6, what)
    return found
