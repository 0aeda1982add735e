"""Replays the recorded exchanges of a session through today's code: no model, no network, no waiting.

The session is read once and never locked, because it may be running. The replay runs in a temporary folder that gets
only the session's records and the files that people edited. Today's code makes all other files again.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from cdo.app.finish import finish
from cdo.cabal.files import given_files
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
from cdo.repository.citation_marks import marked
from cdo.runner.budget import Budget, Limits
from cdo.runner.model_seat import ModelSeat
from cdo.runner.people.human_steps import Human, PendingReview
from cdo.runner.requests import PendingCall
from cdo.runner.retry import CircuitBreaker
from cdo.runner.runner import Runner
from cdo.runner.substitutes import Substitutes
from cdo.session.artifact import SIDECARS, Artifact
from cdo.session.given_files import recorded_files
from cdo.session.reader import InMemorySession, SessionFolder, SessionReader
from cdo.session.records import PREFIX, group_number
from cdo.session.session_file import read_frozen
from cdo.session.store import Session

_PLAN = re.compile(r"t[0-9]+-plan\.yaml")
MADE = re.compile(r"([tr][0-9]+-[a-z0-9-]+|(?!(?:TREE|CHAT)\.)[A-Z][A-Z0-9]{1,15})\.md")
KEPT = re.compile(r"(products|deliverables)/.*|(TREE|CHAT|mission)\.md|CERTIFICATE\.yaml")  # of a mission, besides
_GIVEN = re.compile(r"00-[^/]+|skills/[^/]+")
WORDING = "its template or its data"
ROOM = 100_000_000  # window in tokens: prompts are not sent, so they need no shortening


class RecordEnded(CdoError):
    """Raised at the end of the record of an unfinished session."""


class ReplayRun(Struct, frozen=True):
    """The result of a replay: the session as it was read (`then`), and the session that today's code `made`.

    `calls` are all calls of the program, `kept` the replies to them by name, `texts` these replies as calls read
    them. `elsewise` are the calls whose inputs differ from the recorded ones but which got their recorded reply, with
    the differences; `unknown` are the calls without a record; `notes` describe questions, plans, nested deliberations
    and checks that differ. `outcome` and `result` are None if it ended early; `stopped` says why.
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
    """Replay a session through today's programs; raise `SessionError` if it is damaged.

    Raises `ContentError` if today's content files cannot render the session's plan.
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
    """Return the current files of a session. Records are read last, so that no file lacks its record."""
    found: dict[str, bytes] = {}
    for calls in (False, True):
        for file in archive.files():
            if file.startswith("calls/") is calls and (data := archive.data(file)) is not None:
                found[file] = data
    return InMemorySession(archive.name, archive.place, found)


def inputs(then: InMemorySession) -> Iterator[tuple[str, bytes]]:
    """Yield the files that a replay begins with: the plan, the question, the records, and files edited by people."""
    reviewed = {str(record["file"]) for record in then.records() if record["kind"] == "reviewed"}
    for file in then.files():
        given = file == "session.yaml" or _GIVEN.fullmatch(file) or group_number(file)
        if given or (file in reviewed and _PLAN.fullmatch(file)) or file in edited(then):
            yield file, then.data(file) or b""
            sidecar = SIDECARS.get(file.removesuffix(".md"))
            if sidecar and (data := then.data(sidecar)) is not None:
                yield sidecar, data
    for file, text in recorded_files(then.records()).items():
        if not (then.data(file) or b"").strip():
            yield file, text.encode()


def edited(archive: SessionReader) -> tuple[str, ...]:
    """Return the files that a person edited, and artifacts that cannot be parsed. A replay takes them as they are.

    For a mission, these include the product versions that a person edited or added, and the files in its inbox.
    """
    found = [file for file in archive.files() if given_files.given(file, archive.data(file) or b"")]
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
    """A backend that never answers. A call that reaches it has no record, and is noted in `unknown`.

    If `ends` is set, the first unknown call ends the replay; else its reply is missing. `written` are the calls whose
    artifact exists. Their later attempts are not unknown: an invalid reply of theirs was repaired.
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
    """Substitutes that give a call its recorded reply even if its inputs differ today.

    `calls` are all calls made, by name; `elsewise` are today's inputs of the calls whose inputs differ. `held`
    returns the recorded result of a deliberation whose inputs differ, `ran` that of a check.
    """

    session: Session
    held: Callable[[Nest], Nested | None]
    ran: Callable[[str], CheckRun | None]
    calls: dict[str, Call] = field(default_factory=dict)
    elsewise: dict[str, Mapping[str, str]] = field(default_factory=dict)
    closed = True
    lifts_caps = False  # a replay has no caps: a call ended by a cap stays ended

    def prepare(self, work: PendingCall) -> None:
        """Take over the records of the last call of this name, and ask the models that answered it then."""
        if not (work.records or work.given_up or work.artifact):
            self._adopt(work)
        # A resume may have asked other models than the plan names.
        asked = [str(record["model"]) for record in work.records[work.failed :]]
        work.call = replace(work.call, models=tuple(dict.fromkeys(asked)) or work.call.models)
        self.calls[work.call.name] = work.call  # a call is prepared again if a file changes meanwhile

    def nested(self, nest: Nest) -> Nested | None:
        """Return the recorded result of a deliberation of this name."""
        return self.held(nest)

    def check_run(self, name: str) -> CheckRun | None:
        """Return the recorded result of the check of this name."""
        return self.ran(name)

    def _adopt(self, work: PendingCall) -> None:
        of_call = (record for record in self.session.records if record.get("call") == work.call.name)
        known = [record for record in of_call if record["kind"] != "seated"]  # a form alone is no reply
        for record in known:
            if record.get("inputs") == known[-1]["inputs"]:
                work.take(record)
        if known:
            self.elsewise[work.call.name] = work.inputs


class _Replay:
    """One running replay."""

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
        """Run the program to its end, or as far as the record goes."""
        runner, outcome, result, stopped = self._runner(), None, None, ""
        try:
            outcome = await runner.drive(registry.program(self._plan, self._library))
            self._session.flush()
            result = finish(self._session, self._plan, outcome, runner).result
        except (ContentError, SessionError) as error:  # report it for the original session, not the temporary folder
            raise type(error)(self._named(error.message), self._named(error.hint)) from None
        except CdoError as error:
            stopped = self._named(error.message)
        self._session.flush()
        kept = runner.kept
        return ReplayRun(
            then=self._then,
            made=snapshot(SessionFolder(self._session.path)),
            plan=self._plan,
            calls=tuple(self._record.calls.values()),
            kept=dict(kept.artifacts),
            texts={name: marked(made.reply, kept.findings(name)) for name, made in kept.artifacts.items()},
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
        people = [seat.model for seat in self._plan.people]
        return Runner(
            session=self._session,
            library=self._library,
            seats={name: self._seat(name) for name in (*self._plan.models, *people, *asked)},
            budget=Budget(Limits(), totals(self._session.records)),
            observe=_unseen,
            human=Human(self._answer, _consent, self._review, self._tell),
            substitutes=self._record,
        )

    def _seat(self, name: str) -> ModelSeat:
        return ModelSeat(ModelSpec(name, "scripted", name, window=ROOM), self._backend, CircuitBreaker())

    def _differing(self, name: str, inputs: Mapping[str, str]) -> tuple[str, ...]:
        """Return the inputs of a call that differ: the names of the files it reads, else its template or data."""
        file = self._record.calls[name].artifact
        with contextlib.suppress(SessionError):
            then = self._then.artifact(file)
            before = (then.own.get("inputs") or {}) if then else {}
            reads = sorted(read for read in {*before, *inputs} - {"call"} if before.get(read) != inputs.get(read))
            if before and reads:
                return tuple(reads)
        return (WORDING,)

    # -- the person's side --------------------------------------------------------------------

    async def _answer(self, pause: Pause) -> str:
        """Answer a pause whose wording differs from the record: as recorded under its name, else the default."""
        answer = self._pauses.get(pause.name, "")
        known = answer in pause.options
        how = f"answered “{answer}” as then" if known else f"answered “{pause.default}”, the default"
        self._notes.append(f"{pause.name} is asked in other words ({pause.question}): {how}")
        return answer if known else pause.default

    async def _tell(self, ask: Ask) -> str:
        """Answer a question whose wording differs from the record, as recorded; raise `NeedsHuman` if unanswered."""
        answer = self._pauses.get(ask.name)
        if answer is None:
            raise NeedsHuman(f"The team asks you: {one_line(ask.question)}")
        self._notes.append(
            f"{ask.name} is asked in other words ({one_line(ask.question)}): answered “{answer}” as then"
        )
        return answer

    def _ran(self, name: str) -> CheckRun | None:
        """Return the recorded result of the check of this name, or note that it has no record."""
        for record in reversed(self._session.records):
            if record["kind"] == "check-run" and record["name"] == name:
                self._notes.append(f"{name} is run otherwise; what came of it then was used")
                return CheckRun.of(record["run"])
        self._backend.unknown.append(name)
        if self._backend.ends:
            raise RecordEnded(f"{name} is not on record.")
        return CheckRun("")

    def _held(self, nest: Nest) -> Nested | None:
        """Return the recorded result of a deliberation of this name, or note that it has no record."""
        for record in reversed(self._session.records):
            if record["kind"] == "nested" and record["name"] == nest.name:
                self._notes.append(f"{nest.name} is deliberated otherwise; what it came to then was used")
                return Nested.of(record["result"])
        self._backend.unknown.append(nest.name)
        if self._backend.ends:
            raise RecordEnded(f"{nest.name} is not on record.")
        return None

    async def _review(self, editing: PendingReview) -> str:
        """Return a plan whose proposal differs, as the person left it; raise `NeedsHuman` if it has no record."""
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
