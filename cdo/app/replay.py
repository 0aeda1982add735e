"""Runs the recorded exchanges of a session through today's code: no model, no network, no waiting.

It happens in a folder of its own, which is gone afterwards. The session is only read, once, and never locked: it may
be running. There the records and what people edited are put, and nothing that code made: today's code makes it again.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cdo.app.finish import finish
from cdo.cabal.files import status as standing
from cdo.cabal.files.final_report import Delivery
from cdo.content.library import Library
from cdo.core.errors import CdoError, ContentError, NeedsHuman, SessionError
from cdo.core.events import Event
from cdo.core.exchange import BackendError, Fault, OnText, Request, Response
from cdo.core.formatting import one_line
from cdo.core.result import Result
from cdo.core.steps import Ask, Call, CheckRun, Nest, Nested, Pause
from cdo.core.usage import totals
from cdo.planning.plan import Plan
from cdo.programs import registry
from cdo.programs.deliberation.conclusion import Outcome
from cdo.providers.models import ModelSpec
from cdo.repository.citations import marked
from cdo.runner.attempts import ModelSeat
from cdo.runner.budget import Budget, Limits
from cdo.runner.human_steps import Human, PendingReview
from cdo.runner.requests import PendingCall
from cdo.runner.retry import CircuitBreaker
from cdo.runner.runner import Runner, check_run
from cdo.runner.substitutes import Substitutes
from cdo.session.artifact import Artifact
from cdo.session.reader import InMemorySession, SessionFolder, SessionReader
from cdo.session.records import PREFIX, group_number
from cdo.session.session_file import read_frozen
from cdo.session.store import Session

_PLAN = re.compile(r"t[0-9]+-plan\.yaml")
MADE = re.compile(r"([tr][0-9]+-[a-z0-9-]+|(?!(?:TREE|CHAT)\.)[A-Z][A-Z0-9]{1,15})\.md")
KEPT = re.compile(r"(products|deliverables)/.*|(TREE|CHAT|mission)\.md|CERTIFICATE\.yaml")  # of a mission, besides
_GIVEN = re.compile(r"00-[^/]+|skills/[^/]+")
WORDING = "its template or its data"
ROOM = 100_000_000  # tokens: a prompt that nobody reads is not shortened


class RecordEnded(CdoError):
    """The record of an unfinished session ends here."""


@dataclass(frozen=True)
class ReplayRun:
    """What came of it: the session as it was read (`then`), and what was `made` in its place.

    `calls` are all that the program made, `kept` the replies to them by name, `texts` these as readers see them.
    `elsewise` are the calls that the record answers although they were asked with other inputs, with what differs;
    `unknown` those that nobody recorded; `notes` what a person was asked otherwise. `outcome` and
    `result` are None where it ended early; `stopped` says why.
    """

    then: InMemorySession
    made: InMemorySession
    plan: Plan
    calls: tuple[Call, ...]
    kept: Mapping[str, Artifact]
    texts: Mapping[str, str]
    elsewise: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]
    outcome: Outcome | Delivery | None
    result: Result | None
    stopped: str = ""


async def rehearse(archive: SessionReader, library: Library) -> ReplayRun:
    """Run what a session recorded through today's programs; raises `SessionError` where it is damaged.

    `ContentError` tells that today's content cannot word the session's plan.
    """
    then = snapshot(archive)
    plan = read_frozen(then.text("session.yaml"), Path(then.place)).plan
    with tempfile.TemporaryDirectory(prefix="cdo-replay-") as folder:
        session = Session.create(Path(folder) / f"{PREFIX}{then.name}", dict(inputs(then)))
        try:
            return await _Replay(then, plan, session, library).run()
        finally:
            session.close()


def snapshot(archive: SessionReader) -> InMemorySession:
    """The files of a session as they are now; records come last, so that nothing is there without its record."""
    found: dict[str, bytes] = {}
    for calls in (False, True):
        for file in archive.files():
            if file.startswith("calls/") is calls and (data := archive.data(file)) is not None:
                found[file] = data
    return InMemorySession(archive.name, archive.place, found)


def inputs(then: InMemorySession) -> Iterator[tuple[str, bytes]]:
    """What the rehearsal begins with: the question, the records, and what people changed."""
    reviewed = {str(record["file"]) for record in then.records() if record["kind"] == "reviewed"}
    for file in then.files():
        given = file == "session.yaml" or _GIVEN.fullmatch(file) or group_number(file)
        if given or (file in reviewed and _PLAN.fullmatch(file)) or file in edited(then):
            yield file, then.data(file) or b""


def edited(archive: SessionReader) -> tuple[str, ...]:
    """What a person changed, or that cannot be read any more: it is taken as it is.

    Of a mission that are also the versions that they edited or added, and what they left in its inbox.
    """
    found = [file for file in archive.files() if standing.given(file, archive.data(file) or b"")]
    for file in filter(MADE.fullmatch, archive.files()):
        try:
            artifact = archive.artifact(file.removesuffix(".md"))
        except SessionError:
            artifact = None
        if artifact is None or artifact.edited:
            found.append(file)
    return tuple(found)


@dataclass
class _NoBackend:
    """A backend that answers nothing: what it is asked for, nobody has recorded. `unknown` are these calls.

    Where `ends` is set, the first of them ends the rehearsal; else it is a voice that is missing. `written` are the
    calls that came to an end, if with an invalid reply that was repaired.
    """

    ends: bool
    written: frozenset[str]
    unknown: list[str] = field(default_factory=list)
    streams: bool = False

    async def complete(self, request: Request, on_text: OnText) -> Response:
        call = request.headers["X-Cdo-Call"]
        if request.headers["X-Cdo-Attempt"] == "1" or call not in self.written:
            if call not in self.unknown:
                self.unknown.append(call)
            if self.ends:
                raise RecordEnded(f"{call} is not on record.")
        raise BackendError(Fault.REJECTED, "not on record")

    async def close(self) -> None: ...


@dataclass
class _RecordOfThen(Substitutes):
    """Takes what is recorded of a call also where it is made with other inputs today.

    `calls` are all that were made; `elsewise` the inputs of those that the record answers all the same, by call;
    `held` is what a deliberation came to that is asked otherwise today, `ran` what a check came to.
    """

    session: Session
    held: Callable[[Nest], Nested | None]
    ran: Callable[[str], CheckRun | None]
    calls: list[Call] = field(default_factory=list)
    elsewise: dict[str, Mapping[str, str]] = field(default_factory=dict)
    closed = True
    lifts_caps = False  # there are no caps here: what one ended stays ended

    def prepare(self, work: PendingCall) -> None:
        """Take over what is on record of the last call of this name, by the models that answered it then."""
        if not (work.records or work.given_up or work.artifact):
            self._adopt(work)
        # A resume may have asked other models than the plan names.
        asked = [str(record["model"]) for record in work.records[work.failed :]]
        work.call = replace(work.call, models=tuple(dict.fromkeys(asked)) or work.call.models)
        self.calls.append(work.call)

    def nested(self, nest: Nest) -> Nested | None:
        """Return what a deliberation of this name came to."""
        return self.held(nest)

    def check_run(self, name: str) -> CheckRun | None:
        """Return what came of the check of this name."""
        return self.ran(name)

    def _adopt(self, work: PendingCall) -> None:
        known = [record for record in self.session.records if record.get("call") == work.call.name]
        for record in known:
            if record.get("inputs") == known[-1]["inputs"]:
                work.take(record)
        if known:
            self.elsewise[work.call.name] = work.inputs


class _Replay:
    """One rehearsal while it runs."""

    def __init__(self, then: InMemorySession, plan: Plan, session: Session, library: Library) -> None:
        self._then, self._plan, self._session, self._library = then, plan, session, library
        names = frozenset(file.removesuffix(".md") for file in then.files() if MADE.fullmatch(file))
        calls = {call for name in names for call in (name, name.lower(), f"document-{name.lower()}")}
        self._backend = _NoBackend(ends="FINAL" not in names, written=frozenset(calls))
        self._pauses = {
            str(record["name"]): str(record["answer"]) for record in session.records if record["kind"] == "answer"
        }
        self._plans = {
            str(record["file"]): str(record["text"]) for record in session.records if record["kind"] == "reviewed"
        }
        self._notes: list[str] = []
        self._record = _RecordOfThen(session, self._held, self._ran)

    async def run(self) -> ReplayRun:
        """Drive the program to its end, or as far as the record goes."""
        runner, outcome, result, stopped = self._runner(), None, None, ""
        try:
            outcome = await runner.drive(registry.program(self._plan, self._library))
            result = finish(self._session, self._plan, outcome, runner)
        except (ContentError, SessionError) as error:  # of the session that is looked at, not of the folder here
            raise type(error)(self._named(error.message), self._named(error.hint)) from None
        except CdoError as error:
            stopped = self._named(error.message)
        self._session.flush()
        return ReplayRun(
            then=self._then,
            made=snapshot(SessionFolder(self._session.path)),
            plan=self._plan,
            calls=tuple(self._record.calls),
            kept=dict(runner.kept),
            texts={name: marked(kept.reply, runner.findings(name)) for name, kept in runner.kept.items()},
            elsewise={name: self._differing(name, inputs) for name, inputs in self._record.elsewise.items()},
            unknown=tuple(self._backend.unknown),
            notes=tuple(self._notes),
            outcome=outcome,
            result=result,
            stopped=stopped,
        )

    def _named(self, text: str) -> str:
        return text.replace(str(self._session.path), self._then.place)

    def _runner(self) -> Runner:
        asked = {str(record["model"]) for record in self._session.records if record["kind"] == "exchange"}
        return Runner(
            session=self._session,
            library=self._library,
            seats={name: self._seat(name) for name in (*self._plan.models, *asked)},
            budget=Budget(Limits(), totals(self._session.records)),
            observe=_unseen,
            human=Human(self._answer, _consent, self._review, self._tell),
            substitutes=self._record,
        )

    def _seat(self, name: str) -> ModelSeat:
        return ModelSeat(ModelSpec(name, "scripted", name, window=ROOM), self._backend, CircuitBreaker())

    def _differing(self, name: str, inputs: Mapping[str, str]) -> tuple[str, ...]:
        """What differs in the inputs of a call: the files it reads, by their names; else its template or its data."""
        file = next(call.artifact for call in self._record.calls if call.name == name)
        with contextlib.suppress(SessionError):
            then = self._then.artifact(file)
            before = (then.own.get("inputs") or {}) if then else {}
            reads = sorted(read for read in {*before, *inputs} - {"call"} if before.get(read) != inputs.get(read))
            if before and reads:
                return tuple(reads)
        return (WORDING,)

    # -- the person's side --------------------------------------------------------------------

    async def _answer(self, pause: Pause) -> str:
        """A question that is not on record as it is asked now: as its namesake was answered, else the default."""
        answer = self._pauses.get(pause.name, "")
        known = answer in pause.options
        how = f"answered “{answer}” as then" if known else f"answered “{pause.default}”, the default"
        self._notes.append(f"{pause.name} is asked in other words ({pause.question}): {how}")
        return answer if known else pause.default

    async def _tell(self, ask: Ask) -> str:
        """What the person said to a question that is not on record as it is asked now; else it waits for them."""
        answer = self._pauses.get(ask.name)
        if answer is None:
            raise NeedsHuman(f"The team asks you: {one_line(ask.question)}")
        self._notes.append(
            f"{ask.name} is asked in other words ({one_line(ask.question)}): answered “{answer}” as then"
        )
        return answer

    def _ran(self, name: str) -> CheckRun | None:
        """What came of the check of this name, though it is run otherwise; else it is not on record."""
        for record in reversed(self._session.records):
            if record["kind"] == "check-run" and record["name"] == name:
                self._notes.append(f"{name} is run otherwise; what came of it then was used")
                return check_run(record)
        self._backend.unknown.append(name)
        if self._backend.ends:
            raise RecordEnded(f"{name} is not on record.")
        return CheckRun("")

    def _held(self, nest: Nest) -> Nested | None:
        """What a deliberation of this name came to, though it is asked otherwise; else it is not on record."""
        for record in reversed(self._session.records):
            if record["kind"] == "nested" and record["name"] == nest.name:
                self._notes.append(f"{nest.name} is deliberated otherwise; what it came to then was used")
                return Nested(**record["result"])
        self._backend.unknown.append(nest.name)
        if self._backend.ends:
            raise RecordEnded(f"{nest.name} is not on record.")
        return None

    async def _review(self, editing: PendingReview) -> str:
        """A plan that is proposed in other words than then: as the person left it; else it waits for them."""
        text = self._plans.get(editing.review.file)
        if text is None:
            raise NeedsHuman(f"{editing.review.file} waits for you.")
        self._notes.append(f"{editing.review.file} is proposed in other words; it was taken as you left it")
        return text


def _unseen(_: Event) -> None:
    """Ignore events: a replay is judged by the files it writes."""


async def _consent(_: Sequence[str], __: Sequence[str]) -> bool:
    return True


# -- what differs ----------------------------------------------------------------------------------
