"""Does what the tools offer: begins runs within what the person allows, tells how they stand, answers and stops them.

A client may read the sessions of this project. It may answer and stop the runs that programs began.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdo.app.waiting import answer_plan, answer_question, answer_seat
from cdo.client_runs.processes import RunProcesses, planned
from cdo.client_runs.progress import RunStatus, RunWatcher, final_text, spent
from cdo.client_runs.records import WINDOW, RunRecord, RunRecords
from cdo.client_runs.requests import RunRequest, command_words
from cdo.content.library import Library
from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import about_money
from cdo.history.pending import require_heard
from cdo.planning import settings
from cdo.planning.settings import Resolved
from cdo.session.reader import SessionFolder
from cdo.session.records import session_path

MOST_RUNS = 4  # of this project at the same time
RESOURCE = "cdo://sessions"
_ROWS = ("session", "created", "status", "preset", "mode", "confidence", "cost", "problem", "decision")
_CUT = 600  # characters of a text in a list
_SPARE = 2.0  # times its highest estimate that a run may cost: retries are not in it
_MAX_FILE = 1_000_000  # bytes of a resource
_NOT_SHOWN = ("calls/", "superseded/", "quarantine/")


class NoRoom(UsageError):
    """As many runs as may be are under way, or are being begun."""


class RunService:
    """The runs of one project, for one server. `max_budget` is what they may cost in dollars, None for the usual.

    `command` is the one with which a person starts the server.
    """

    def __init__(self, out: Path, root: Path, max_budget: float | None = None, command: str = "cdo mcp") -> None:
        self.out, self.root, self._command = out, root, command
        self.records = RunRecords(out)
        self._max_budget = max_budget
        self._processes = RunProcesses(self.records)
        self._watcher = RunWatcher()
        self._planning = threading.Lock()  # one plan at a time: a client may ask for many
        self._beginning = threading.BoundedSemaphore(MOST_RUNS)
        self.records.prune()

    # -- beginning ----------------------------------------------------------------------------

    def begin(self, asked: RunRequest, tool: str) -> RunRecord:
        """Begin a run and return its record, once its session is there; raise `CdoError` if it cannot begin."""
        self._require_room()
        if not self._beginning.acquire(timeout=0.1):
            raise NoRoom(f"{MOST_RUNS} runs are being begun.", "Wait for the answers to these requests.")
        try:
            return self._begin(asked, tool)
        finally:
            self._beginning.release()

    def _begin(self, asked: RunRequest, tool: str) -> RunRecord:
        library = Library.at(Path.cwd())
        resolved = settings.resolve({}, library).sure(library)
        words, waits = command_words(asked, library, resolved, self.root)
        with self._planning:
            cost = planned(words, asked.question)["cost"]
        with self.records.alone():
            self._require_room()
            limits, reserved = self._limits(asked.budget, waits, cost[1] if cost else None, resolved)
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            record = self.records.new(name, tool, reserved)
            more = ["--session", name, "--out", str(self.out), "--no-input", "-q", *limits]
            record = self._processes.start(record, [*words[:-1], *more, words[-1]], asked.question)
        self._processes.await_session(record, self.path(record))
        return record

    def _require_room(self) -> None:
        """Raise `UsageError` where as many runs as may be are under way."""
        if sum(record.alive for record in self.records.all()) >= MOST_RUNS:
            raise NoRoom(
                f"{MOST_RUNS} runs of this project are under way.", "Wait until one has ended, or cancel one."
            )

    def _limits(
        self, wanted: float | None, waits: bool, highest: float | None, resolved: Resolved
    ) -> tuple[list[str], float]:
        """Return the options that keep a run within what the person allows, and what it may cost at most.

        A cap on the command line is an agreement to spend that much. So one is only given up to what the person
        agreed to; otherwise the run begins if its estimate needs no agreement. A run whose plans wait for answers
        is not asked about its estimate, so it always gets a cap.
        """
        left = self._left(resolved)
        most = left if resolved.values.budget is None else min(left, resolved.values.budget)
        if wanted is not None and not (math.isfinite(wanted) and wanted > 0):
            raise UsageError(
                "The budget has to be more than 0 dollars.", "Leave it out to take the limit that the person allows."
            )
        if wanted is not None and wanted > most:
            raise UsageError(
                f"A budget of {about_money(wanted)} is more than the {about_money(most)} that are left to spend.",
                f"Ask for less. Only the person can allow more: `{self._command} --max-budget USD`.",
            )
        if wanted is None and self._max_budget is None and not waits:
            return ["--ask-above", f"{min(left, resolved.values.ask_above):.6f}"], min(highest or 0.0, left)
        cap = wanted or (most if highest is None else min(most, max(highest * _SPARE, 0.01)))
        if cap < 1e-6:
            raise UsageError(
                "Nothing is left of what runs may cost.",
                f"Only the person can allow more: `{self._command} --max-budget USD`.",
            )
        return ["--budget", f"{cap:.6f}"], cap

    def _left(self, resolved: Resolved) -> float:
        """Return how many dollars runs may still cost today: what the person allows, without what others may take."""
        usual = resolved.values.ask_above
        if resolved.values.budget is not None and resolved.sources["budget"].startswith("CDO_"):
            usual = resolved.values.budget
        since = datetime.now(UTC) - WINDOW
        taken = sum(self._taken(record) for record in self.records.all() if record.began > since)
        return max(0.0, (usual if self._max_budget is None else self._max_budget) - taken)

    def _taken(self, record: RunRecord) -> float:
        """Return how many dollars a run counts for: what it may cost until it is over, then what it did cost."""
        path = self.path(record)
        cost = spent(path) if path.is_dir() else None
        try:
            over = self._watcher.look(path, record).over and not record.alive
        except SessionError:
            over = False
        return cost if over and cost is not None else max(record.reserved, cost or 0.0)

    # -- what there is ------------------------------------------------------------------------

    def path(self, record: RunRecord) -> Path:
        """Return the folder of a run's session."""
        return session_path(self.out, record.session)

    def find(self, session: str) -> Path:
        """Return the folder of a session of this project by its name; raise `UsageError` or `SessionError`."""
        path = session_path(self.out, session)
        if path.is_symlink() or not (path / "session.yaml").is_file():
            raise SessionError(
                f"There is no session {path.name.removeprefix('cdo-')}.", "The tool `list` names them."
            )
        return path

    def status_of(self, record: RunRecord) -> RunStatus:
        """Return how a run stands that a program began; raise `CdoError` if its session is gone or damaged."""
        return self._not_waiting(record, self._stands(record))

    def _stands(self, record: RunRecord) -> RunStatus:
        """Return how a run stands as `status_of` does, without letting it go on."""
        self._processes.reap()
        path = self.path(record)
        if not path.is_dir() and not record.alive and not record.cancelled:
            raise SessionError(f"The session {record.session} is not there any more.", "Begin another run.")
        return self._watcher.look(path, record)

    def look(self, session: str) -> RunStatus:
        """Return how a session stands."""
        self._processes.reap()
        record = self.records.of_session(session)
        stands = self._watcher.look(self.find(session), record)
        return self._not_waiting(record, stands) if record else stands

    def status(self, session: str) -> dict[str, Any]:
        """Return how a session stands, as a client is told."""
        stands, path = self.look(session), self.find(session)
        told: dict[str, Any] = {"session": session, "status": stands.standing, "message": stands.message}
        if asks := stands.asks:
            told["question"] = asks.question
            told["options"] = list(asks.options) or (["go"] if asks.first_turn else ["go", "done"]) * bool(asks.plan)
            told |= {"plan": asks.plan} if asks.plan else {}
        if stands.standing == "completed":
            told["final"] = f"{RESOURCE}/{session}/FINAL.md"
        return {**told, "cost": spent(path)}

    def result(self, session: str, *, plain: bool = False) -> str:
        """Return FINAL.md of a session, or with `plain` its decision alone; raise `SessionError` without one."""
        from cdo.history.index_entries import decided

        path = self.find(session)
        if not (path / "FINAL.md").is_file():
            stands = self.look(session)
            raise SessionError(f"{session} has no result: {stands.standing}. {stands.message}")
        text = final_text(path)
        return (decided(text) or text) if plain else text

    def rows(self, limit: int) -> list[dict[str, Any]]:
        """Return the sessions of this project, newest first."""
        from cdo.history import run_index

        return [_row(row) for row in run_index.rows(self.out, limit)]

    def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """Return the past decisions that a query finds, best first."""
        from cdo.history.search import MARKS, search
        from cdo.history.search_query import match

        plain = str.maketrans(dict.fromkeys(MARKS))
        hits = search(self.out, match(query.split()), limit)
        return [{**_row(hit.row), "where": hit.where, "passage": hit.passage.translate(plain)} for hit in hits]

    def file(self, session: str, name: str) -> str:
        """Return a text of a session: FINAL.md, an artifact, a plan or a deliverable; raise `CdoError` for others."""
        archive = SessionFolder(self.find(session))
        shown = name.endswith(".md") or name.endswith("-plan.yaml") or name.startswith("deliverables/")
        if not shown or name.startswith(_NOT_SHOWN) or name not in archive.files():
            raise SessionError(f"{archive.name} has no file {name[:100]}.", "FINAL.md is the result.")
        require_heard(archive, name, file=name)
        text = archive.text(name) or ""
        if len(text) > _MAX_FILE:
            raise SessionError(f"{name} is longer than {_MAX_FILE:,} characters.", "Read it in its folder.")
        return text

    # -- changing -----------------------------------------------------------------------------

    def mine(self, session: str) -> RunRecord:
        """Return the record of a run that a program began; raise `UsageError` for one that a person began."""
        self.find(session)
        if record := self.records.of_session(session):
            return record
        raise UsageError(
            f"A person began {session}, so only a person answers or stops it.", f"`cdo show {session}` tells of it."
        )

    def answer(self, record: RunRecord, text: str, note: str = "", focus: str = "") -> RunRecord:
        """Answer what a run waits for, and let it go on; raise `CdoError` where it waits for nothing."""
        path = self.path(record)
        if not (text := _plain(text)):
            raise UsageError("The answer is empty.", "Give one of the options, or say it in words.")
        with self.records.alone():
            record = self.records.of_task(record.id) or record
            stands = self._stands(record)
            if stands.asks is None:
                raise UsageError(f"{record.session} waits for no answer: {stands.standing}.", stands.message)
            self._require_room()
            if stands.asks.person:
                answer_seat(path, text, stands.asks.person)
            elif stands.asks.file:
                answer_plan(path, text, _plain(note), _plain(focus))
            else:
                answer_question(path, text)
            return self._resumed(self.records.answered(record))

    def _resumed(self, record: RunRecord) -> RunRecord:
        """Let a run go on in a process of its own."""
        return self._processes.start(record, ["resume", record.session, "--out", str(self.out), "--no-input", "-q"])

    def _not_waiting(self, record: RunRecord, stands: RunStatus) -> RunStatus:
        """Return how a run stands; one that has waited long enough for a person goes on."""
        if not (stands.asks and stands.asks.until and stands.asks.until <= datetime.now(UTC)):
            return stands
        with self.records.alone():
            record = self.records.of_task(record.id) or record
            if not record.alive and not record.cancelled:
                record = self._resumed(record)
        return self._watcher.look(self.path(record), record)

    def cancel(self, record: RunRecord, why: str) -> None:
        """Stop a run for good, as far as clients are concerned; a person can still resume its session."""
        with self.records.alone():
            record = self.records.of_task(record.id) or record
            if not self._stands(record).over:
                self.records.cancel(record, why)


def _plain(text: str) -> str:
    """Return a text without characters that no file of a session holds."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text).strip()


def _row(row: dict[str, Any]) -> dict[str, Any]:
    found = {key: row[key] for key in _ROWS if row.get(key) is not None}
    return {key: value[:_CUT] if isinstance(value, str) else value for key, value in found.items()}
