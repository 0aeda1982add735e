"""Tracks a run in beads (`bd`): an epic for the run, a task for each turn, claimed, noted and closed as it goes.

An observer beside the run: it queues events, and one worker runs bd's commands one after another. A failure there
costs the tracking and never the run. What bd did is recorded in the session. If a crash prevented that record, the
issue is found in bd by the metadata that it was created with.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from cdo.content.library import Library
from cdo.core.errors import CdoError, ContentError
from cdo.core.events import BatchBegan, Event, QuestionAsked, ReplyAccepted, RunEnded, RunStopped
from cdo.core.formatting import one_line, visible
from cdo.core.result import Result
from cdo.core.schema import Schema
from cdo.observers.beads_client import SECONDS, Bd, BeadsError, Issue
from cdo.security.secrets import masked

TEXT = 8000  # characters of one title, note or reason
WORDING = "dispatch/beads"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ITEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TURN = re.compile(r"t(\d+)-")
_TOLD = (BatchBegan, ReplyAccepted, QuestionAsked, RunStopped, RunEnded)
# The fields of a record that identify what it is about.
_ABOUT = ("op", "turn", "item", "on", "mark")


class Wording(Schema, frozen=True, kw_only=True):
    """`dispatch/beads.md`: its blocks are the templates of the texts that are written into bd."""

    purpose: str
    load_when: str


class BeadsTask(Struct, frozen=True):
    """One task of a work breakdown; `depends_on` are ids of other tasks in it, `estimate` is in minutes."""

    id: str
    title: str
    description: str = ""
    depends_on: tuple[str, ...] = ()
    estimate: int | None = None


def in_order(items: Sequence[BeadsTask]) -> list[BeadsTask]:
    """Return the tasks, each after those it depends on; raise `ContentError` if that is impossible."""
    tasks = {item.id: item for item in items}
    problem = ""
    if len(tasks) < len(items):
        problem = "an id is used twice"
    for item in items:
        unknown = [other for other in item.depends_on if other not in tasks]
        if not _ITEM.fullmatch(item.id):
            problem = f"`{one_line(item.id, 40)}` cannot be an id"
        elif not one_line(item.title):
            problem = f"`{item.id}` has no title"
        elif unknown:
            problem = f"`{item.id}` depends on `{one_line(unknown[0], 40)}`, which is not in it"
        elif item.estimate is not None and not 0 < item.estimate < 10**6:
            problem = f"`{item.id}` has an estimate of {item.estimate} minutes"
    if not problem:
        try:
            return [tasks[name] for name in TopologicalSorter({t.id: t.depends_on for t in items}).static_order()]
        except CycleError as cycle:
            problem = f"{' → '.join(reversed(cycle.args[1]))} is a circle"
    raise ContentError(f"The work breakdown cannot go into bd: {problem}.", "Fix it and take it in again.")


# -- following a run -------------------------------------------------------------------------------


def about(record: Mapping[str, Any]) -> str:
    """Return a stable key for what a record is about, or for the part of a run that an issue stands for."""
    return " ".join(str(record[key]) for key in _ABOUT if key in record)


@dataclass
class Beads:
    """Follows one run: `recorded` is the session's record, `commit` adds to it, `say` reports to the person.

    An instance is the observer of one process. `redact` removes secrets from the texts for bd.
    """

    session: str
    problem: str
    cwd: Path
    recorded: Sequence[Mapping[str, Any]]
    commit: Callable[[dict[str, Any]], Awaitable[Any]]
    say: Callable[[str], None]
    library: Library
    redact: Callable[[str], str] = str
    seconds: float = SECONDS
    _done: dict[str, Mapping[str, Any]] = field(init=False)
    _found: dict[str, Issue] | None = None
    _run: str = ""
    _kinds: dict[str, str] = field(default_factory=dict)
    _jobs: deque[Callable[[], Awaitable[None]]] = field(default_factory=deque)
    _worker: asyncio.Task[None] | None = None
    _off: bool = False

    def __post_init__(self) -> None:
        self._done = {about(record): record for record in self.recorded if record.get("kind") == "bd"}
        self._bd = Bd(self.cwd, self.seconds)

    def __call__(self, event: Event) -> None:
        """Queue what an event requires in bd; return at once and raise nothing."""
        if isinstance(event, _TOLD):
            self._put(partial(self._told, event))

    async def close(self, timeout: float) -> None:
        """Let bd finish the queue, `timeout` seconds at most; later events are ignored."""
        self._start()
        if self._worker:
            _, late = await asyncio.wait({self._worker}, timeout=timeout)
            if late:
                self._worker.cancel()
                await asyncio.wait({self._worker})
                self._give_up(f"bd did not finish within {timeout:g} s", "See what `bd doctor` says.")
        self._off = True

    async def breakdown(self, items: Sequence[BeadsTask]) -> dict[str, str]:
        """Take a work breakdown into bd, under the epic; return bd's ids by those of the tasks.

        Raises `ContentError`, before anything is created, for a cycle, an unknown id or a bad id. Issues that exist
        already are not created again. If bd fails, the ids of the issues created so far are returned.
        """
        self._put(partial(self._take_in, in_order(items)))
        if self._worker:
            await asyncio.wait({self._worker})
        made = {item.id: self._done.get(f"item {item.id}") for item in items}
        return {name: str(record["id"]) for name, record in made.items() if record}

    # -- the queue ----------------------------------------------------------------------------

    def _put(self, job: Callable[[], Awaitable[None]]) -> None:
        if not self._off:
            self._jobs.append(job)
            self._start()

    def _start(self) -> None:
        """Start a worker for the queue if none runs; before the event loop runs, the queue waits."""
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            if self._jobs and (self._worker is None or self._worker.done()):
                self._worker = loop.create_task(self._work())

    async def _work(self) -> None:
        while self._jobs and not self._off:
            try:
                await self._jobs.popleft()()
            except CdoError as error:
                self._give_up(error.message.rstrip("."), error.hint)
            except Exception as error:  # an unexpected error must not end the run
                self._give_up(f"{type(error).__name__}: {one_line(error, 200)}", "")

    def _give_up(self, what: str, hint: str) -> None:
        """Report once that nothing more is tracked, and why."""
        if not self._off:
            later = f"`cdo resume {self.session}` then catches up."
            self.say(" ".join(filter(None, (f"Not tracked in bd from here on: {what}.", hint, hint and later))))
        self._off = True
        self._jobs.clear()

    # -- what events mean ---------------------------------------------------------------------

    async def _told(self, event: Event) -> None:
        match event:
            case BatchBegan():
                self._kinds |= dict(event.calls)
                for turn in sorted({int(m[1]) for name, _ in event.calls if (m := _TURN.match(name))}):
                    await self._begin_turn(turn)
            case ReplyAccepted() if self._kinds.get(event.name) == "synthesis" and (match := _TURN.match(event.name)):
                await self._end_turn(int(match[1]), event)
            case QuestionAsked() if "epic" in self._done:
                await self._note(0, self._text("asked", question=event.question))
            case RunStopped() if "epic" in self._done:
                await self._note(0, self._text("stopped", status=event.status, why=event.why))
            case RunEnded():
                await self._finish(event.result)

    async def _epic(self) -> str:
        title = self._text("epic_title", problem=self.problem)
        text = self._text("epic", problem=self.problem, session=self.session)
        return await self._issue({"op": "epic"}, "epic", title, text)

    async def _begin_turn(self, turn: int) -> None:
        epic = await self._epic()
        title = self._text("task_title", turn=turn, session=self.session)
        text = self._text("task", turn=turn)
        task = await self._issue({"op": "task", "turn": turn}, "task", title, text, f"--parent={epic}")
        if turn > 1 and (before := self._id(turn - 1)):
            await self._once({"op": "order", "turn": turn}, "dep", "add", task, before)
        await self._once({"op": "claim", "turn": turn}, "update", task, "--claim")

    async def _end_turn(self, turn: int, reply: ReplyAccepted) -> None:
        directive = reply.directive or {}
        known: dict[str, Any] = {
            "confidence": directive.get("confidence", reply.confidence),
            "agreement": directive.get("agreement", reply.agreement),
            "exit_ready": directive.get("exit_ready", reply.exit_ready),
            "focus": directive.get("focus", reply.focus) or "",
        }
        wishes = [wish["name"] if isinstance(wish, Mapping) else wish for wish in directive.get("roles") or ()]
        await self._note(turn, self._text("note", **known, width=directive.get("width"), roles=wishes))
        await self._close(turn, self._text("turn_over", **known))

    async def _finish(self, result: Result) -> None:
        """Close the open turns, then the epic. The epic stays open if other work below it is open."""
        if "epic" not in self._done or "finish" in self._done:
            return
        for turn in [record["turn"] for record in self._done.values() if record["op"] == "task"]:
            await self._close(turn, self._text("not_needed"))
        epic = str(self._done["epic"]["id"])
        shown = {"status": result.status, "why": result.why, "decision": result.decision}
        text = self._text("final", **shown, confidence=result.confidence)
        below = await self._bd("list", f"--parent={epic}", "--all", "-n", "0")
        if any(issue.get("status") != "closed" for issue in below):
            await self._note(0, text)
            await self._record({"op": "finish"})
        else:
            await self._once({"op": "finish"}, "close", epic, f"--reason={one_line(text, TEXT)}")

    async def _take_in(self, tasks: Sequence[BeadsTask]) -> None:
        epic = await self._epic()
        for task in tasks:
            more = [f"--parent={epic}", *([f"--estimate={task.estimate}"] if task.estimate else [])]
            title = self._text("item_title", title=task.title)
            text = self._text("item", description=task.description, session=self.session)
            made = await self._issue({"op": "item", "item": task.id}, "task", title, text, *more)
            for other in dict.fromkeys(task.depends_on):
                before = str(self._done[f"item {other}"]["id"])
                await self._once({"op": "edge", "item": task.id, "on": other}, "dep", "add", made, before)

    # -- what is done once --------------------------------------------------------------------

    def _id(self, turn: int) -> str:
        """Return bd's id of a turn's task (0: the epic); "" if there is none."""
        record = self._done.get(f"task {turn}" if turn else "epic")
        return str(record["id"]) if record else ""

    async def _issue(self, what: dict[str, Any], kind: str, title: str, text: str, *more: str) -> str:
        """Return the id of the issue that stands for `what`: recorded, found in bd, or created with its metadata."""
        part = about(what)
        if part not in self._done:
            known = (await self._known()).get(part)
            if known is None:
                mark = {"cdo_session": self.session, "cdo_run": self._run, "cdo_part": part}
                made = await self._bd(
                    "create", f"--title={one_line(title)}", "-t", kind, f"--description={text}",
                    f"--metadata={json.dumps(mark)}", *more,
                )  # fmt: skip
                known = made[0] if made else {}
            if not _ID.fullmatch(str(known.get("id") or "")):
                raise BeadsError("`bd create` named no issue", "See what `bd doctor` says.")
            await self._record(what | {"id": known["id"]})
        return str(self._done[part]["id"])

    async def _known(self) -> dict[str, Issue]:
        """Return this run's issues in bd by what they stand for. Ask bd once, and only if it can have any."""
        if self._found is None:
            if begun := self._done.get("begin"):
                self._run = str(begun["run"])
                listed = await self._bd("list", "--all", "-n", "0", f"--metadata-field=cdo_run={self._run}")
            else:
                self._run, listed = uuid.uuid4().hex, []
                await self._record({"op": "begin", "run": self._run})
            marks = [(issue.get("metadata"), issue) for issue in listed]
            self._found = {str(m.get("cdo_part")): issue for m, issue in marks if isinstance(m, Mapping)}
        return self._found

    async def _note(self, turn: int, text: str) -> None:
        """Add a note to a turn's task (0: to the epic), unless it is there already."""
        what = {"op": "note", "turn": turn, "mark": sha256(text.encode()).hexdigest()[:16]}
        if about(what) not in self._done:
            known = (await self._known()).get(f"task {turn}" if turn else "epic", {})
            if text not in str(known.get("notes")):
                await self._bd("update", self._id(turn), f"--append-notes={text}")
            await self._record(what)

    async def _close(self, turn: int, reason: str) -> None:
        await self._once({"op": "close", "turn": turn}, "close", self._id(turn), f"--reason={one_line(reason, TEXT)}")

    async def _once(self, what: dict[str, Any], *argv: str) -> None:
        """Run a command of bd that may be repeated without harm, unless it is recorded as done."""
        if about(what) not in self._done:
            await self._bd(*argv)
            await self._record(what)

    async def _record(self, what: dict[str, Any]) -> None:
        record = {"kind": "bd", **what}
        await self.commit(record)
        self._done[about(record)] = record

    def _text(self, block: str, **values: Any) -> str:
        """Return one block of the wording, without secrets and without characters that a terminal acts on."""
        self.library.read(WORDING, Wording)
        # Redact before the wording shortens a text: half a secret would not be recognised.
        values = {
            key: masked(self.redact(value)) if isinstance(value, str) else value for key, value in values.items()
        }
        return visible(self.library.render(WORDING, values, block))[:TEXT]
