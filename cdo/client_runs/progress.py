"""Tells how a run stands, from its session and the record of its process. Changes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from cdo.client_runs.records import RunRecord
from cdo.core.errors import CdoError
from cdo.core.events import RunStopped
from cdo.core.formatting import one_line, pluralise
from cdo.formats.markdown import split_front_matter
from cdo.history.journal_follower import JOURNAL, Journal
from cdo.history.pending import PendingInput, pending
from cdo.session.reader import SessionFolder
from cdo.session.records import locked
from cdo.terminal.run_state import LiveRun

Standing = Literal["working", "input_required", "completed", "failed", "cancelled"]
_WATCHED = 64  # journals that are remembered, so that each poll reads only what is new


class RunStatus(Struct, frozen=True):
    """How a run stands. `message` says it in words; `asks` is what it waits for; `changed` is when it last moved."""

    standing: Standing
    message: str
    changed: datetime
    asks: PendingInput | None = None

    @property
    def over(self) -> bool:
        """True if nothing more comes of it by itself or by an answer."""
        return self.standing in ("completed", "failed", "cancelled")


class _Watched(Struct):
    """A journal as far as it was read: the state that it tells of, and why the run stopped last."""

    journal: Journal
    state: LiveRun = field(default_factory=LiveRun)
    why: str = ""

    def read(self) -> None:
        for fresh in self.journal.news():
            if fresh.anew:
                self.state, self.why = LiveRun(), ""
            for at, event in fresh.events:
                self.state = self.state.apply(event, at)
                self.why = event.why if isinstance(event, RunStopped) else self.why


class RunWatcher:
    """Reads how runs stand. It remembers journals, so that a poll costs what happened since the last one."""

    def __init__(self) -> None:
        self._journals: dict[Path, _Watched] = {}
        self._lock = threading.Lock()  # requests are served in threads

    def look(self, path: Path, record: RunRecord | None) -> RunStatus:
        """Return how the session in `path` stands; raise `CdoError` if it is not there or damaged."""
        changed = _changed(path, record)
        if record and record.cancelled:
            return RunStatus("cancelled", record.cancelled, changed)
        if (record and record.alive) or locked(path):
            return RunStatus("working", self._message(path), changed)
        if (path / "FINAL.md").is_file():
            return RunStatus("completed", "FINAL.md is written.", changed)
        if asks := pending(SessionFolder(path)):
            return RunStatus("input_required", one_line(asks.question, 300), changed, asks)
        why = self._read(path).why or "The run ended without a result."
        return RunStatus("failed", f"{one_line(why, 1000)} What was answered is kept in {path}.", changed)

    def _read(self, path: Path) -> _Watched:
        with self._lock:
            found = self._journals.pop(path, None) or _Watched(Journal(path))
            self._journals[path] = found  # the one that was read last is forgotten last
            while len(self._journals) > _WATCHED:
                del self._journals[next(iter(self._journals))]
            with contextlib.suppress(FileNotFoundError, CdoError):  # it only informs
                found.read()
            return found

    def _message(self, path: Path) -> str:
        state = self._read(path).state
        calls = list(state.voices.values())
        done = sum(call.ended is not None for call in calls)
        parts = [
            f"{state.title}: {done} of {pluralise(len(calls), 'call')} answered" if state.title else "begins",
            f"{state.spent.price} so far" if state.spent.price else "",
        ]
        return one_line(", ".join(filter(None, parts)), 300)


def _changed(path: Path, record: RunRecord | None) -> datetime:
    for place in (path / JOURNAL, path / "session.yaml"):
        with contextlib.suppress(OSError):
            return datetime.fromtimestamp(place.stat().st_mtime, UTC)
    return record.began if record else datetime.now(UTC)


def spent(path: Path) -> float | None:
    """Return what a session has cost in dollars, its deliberations too; None if a price is not known."""
    from cdo.history.index_entries import look

    try:
        row: dict[str, Any] = look(SessionFolder(path)).row
    except CdoError:
        return None
    costs = [row.get("cost"), *(item["cost"] for item in row.get("deliberations", ()))]
    return None if None in costs else float(sum(cost for cost in costs if cost is not None))


def final_text(path: Path) -> str:
    """Return FINAL.md of a session without its front matter; raise `CdoError` if it cannot be read."""
    return split_front_matter(SessionFolder(path).text("FINAL.md") or "")[1].strip()


def as_json(value: Any) -> str:
    """Return data as JSON for a model to read."""
    return json.dumps(value, ensure_ascii=False, indent=1, default=os.fspath)
