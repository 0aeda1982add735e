"""Runs the recorded exchanges of a session through today's code: no model, no network, no waiting.

It happens in a folder of its own, which is gone afterwards. The session is only read, once, and never locked: it may
be running. There the records and what people edited are put, and nothing that code made: today's code makes it again.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cdo import app, history, modes, standing
from cdo.archive import Archive, Folder, Kept
from cdo.artifacts import Artifact
from cdo.attempts import Seat
from cdo.budget import Budget, Limits
from cdo.cabal.delivery import Delivery
from cdo.cabal.names import MODE
from cdo.catalogue import decided
from cdo.citations import marked
from cdo.content import Library
from cdo.conversation import Work
from cdo.ending import Outcome
from cdo.errors import CdoError, ContentError, NeedsHuman, SessionError
from cdo.frozen import read_frozen
from cdo.models import ModelSpec
from cdo.people import Editing, Human
from cdo.plan import Plan
from cdo.policy import Gate
from cdo.results import Result
from cdo.runner import Runner, totals
from cdo.sessions import PREFIX, group_number
from cdo.store import Session
from cdo.types import Ask, BackendError, Call, Event, Fault, Nest, Nested, OnText, Pause, Request, Response
from cdo.wording import flat

_PLAN = re.compile(r"t[0-9]+-plan\.yaml")
_MADE = re.compile(r"([tr][0-9]+-[a-z0-9-]+|(?!(?:TREE|CHAT)\.)[A-Z][A-Z0-9]{1,15})\.md")
_KEPT = re.compile(r"(products|deliverables)/.*|(TREE|CHAT|mission)\.md|CERTIFICATE\.yaml")  # of a mission, besides
_GIVEN = re.compile(r"00-[^/]+|skills/[^/]+")
_CHECKSUM = re.compile(r"^sha256: [0-9a-f]{64}\n", re.MULTILINE)
WORDING = "its template or its data"
ROOM = 100_000_000  # tokens: a prompt that nobody reads is not shortened


class Unrecorded(CdoError):
    """The record of an unfinished session ends here."""


@dataclass(frozen=True)
class Rehearsal:
    """What came of it: the session as it was read (`then`), and what was `made` in its place.

    `calls` are all that the program made, `kept` the replies to them by name, `texts` these as readers see them.
    `elsewise` are the calls that the record answers although they were asked with other inputs, with what differs;
    `unknown` those that nobody recorded; `notes` what a person was asked otherwise. `outcome` and
    `result` are None where it ended early; `stopped` says why.
    """

    then: Kept
    made: Kept
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


async def rehearse(archive: Archive, library: Library) -> Rehearsal:
    """Run what a session recorded through today's programs; raises `SessionError` where it is damaged.

    `ContentError` tells that today's content cannot word the session's plan.
    """
    then = snapshot(archive)
    plan = read_frozen(then.text("session.yaml"), Path(then.place)).plan
    with tempfile.TemporaryDirectory(prefix="cdo-replay-") as folder:
        session = Session.create(Path(folder) / f"{PREFIX}{then.name}", dict(_inputs(then)))
        try:
            return await _Stage(then, plan, session, library).run()
        finally:
            session.close()


def snapshot(archive: Archive) -> Kept:
    """The files of a session as they are now; records come last, so that nothing is there without its record."""
    found: dict[str, bytes] = {}
    for calls in (False, True):
        for file in archive.files():
            if file.startswith("calls/") is calls and (data := archive.data(file)) is not None:
                found[file] = data
    return Kept(archive.name, archive.place, found)


def _inputs(then: Kept) -> Iterator[tuple[str, bytes]]:
    """What the rehearsal begins with: the question, the records, and what people changed."""
    reviewed = {str(record["file"]) for record in then.records() if record["kind"] == "reviewed"}
    for file in then.files():
        given = file == "session.yaml" or _GIVEN.fullmatch(file) or group_number(file)
        if given or (file in reviewed and _PLAN.fullmatch(file)) or file in edited(then):
            yield file, then.data(file) or b""


def edited(archive: Archive) -> tuple[str, ...]:
    """What a person changed, or that cannot be read any more: it is taken as it is.

    Of a mission that are also the versions that they edited or added, and what they left in its inbox.
    """
    found = [file for file in archive.files() if standing.given(file, archive.data(file) or b"")]
    for file in filter(_MADE.fullmatch, archive.files()):
        try:
            artifact = archive.artifact(file.removesuffix(".md"))
        except SessionError:
            artifact = None
        if artifact is None or artifact.edited:
            found.append(file)
    return tuple(found)


@dataclass
class _Silent:
    """A backend that answers nothing: what it is asked for, nobody has recorded. `unknown` are these calls.

    Where `ends` is set, the first of them ends the rehearsal; else it is a voice that is missing. `written` are the
    calls that came to an end, if with an invalid reply that was mended.
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
                raise Unrecorded(f"{call} is not on record.")
        raise BackendError(Fault.REJECTED, "not on record")

    async def close(self) -> None: ...


@dataclass
class _Actor(Runner):
    """A runner that takes what is recorded of a call also where it is made with other inputs today.

    `calls` are all that were made; `elsewise` the inputs of those that the record answers all the same, by call;
    `held` is what a deliberation came to that is asked otherwise today.
    """

    calls: list[Call] = field(default_factory=list)
    elsewise: dict[str, Mapping[str, str]] = field(default_factory=dict)
    held: Callable[[Nest], Nested | None] = lambda _: None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._people.closed = True

    def _lifted(self, record: Mapping[str, Any]) -> bool:
        return False  # there are no caps here: what one ended stays ended

    def _prepare(self, call: Call) -> Work:
        work = super()._prepare(call)
        if not (work.records or work.given_up or work.artifact):
            self._adopt(work)
        # By the models that answered it then: a resume may have asked others than the plan names.
        asked = [str(record["model"]) for record in work.records[work.failed :]]
        work.call = replace(call, models=tuple(dict.fromkeys(asked)) or call.models)
        self.calls.append(work.call)
        return work

    async def _nested(self, nest: Nest) -> Nested | None:
        return await super()._nested(nest) or self.held(nest)

    def _adopt(self, work: Work) -> None:
        """Take over what is on record of the last call of this name."""
        known = [record for record in self.session.records if record.get("call") == work.call.name]
        for record in known:
            if record.get("inputs") == known[-1]["inputs"]:
                work.take(record)
        if known:
            self.elsewise[work.call.name] = work.inputs


class _Stage:
    """One rehearsal while it runs."""

    def __init__(self, then: Kept, plan: Plan, session: Session, library: Library) -> None:
        self._then, self._plan, self._session, self._library = then, plan, session, library
        names = frozenset(file.removesuffix(".md") for file in then.files() if _MADE.fullmatch(file))
        finished = "FINAL" in names
        self._backend = _Silent(ends=not finished, written=names | {"final"} if finished else names)
        self._pauses = {
            str(record["name"]): str(record["answer"]) for record in session.records if record["kind"] == "answer"
        }
        self._plans = {
            str(record["file"]): str(record["text"]) for record in session.records if record["kind"] == "reviewed"
        }
        self._notes: list[str] = []

    async def run(self) -> Rehearsal:
        """Drive the program to its end, or as far as the record goes."""
        runner, outcome, result, stopped = self._runner(), None, None, ""
        try:
            outcome = await runner.drive(modes.program(self._plan, self._library))
            result = app.finish(self._session, self._plan, outcome, runner)
        except (ContentError, SessionError) as error:  # of the session that is looked at, not of the folder here
            raise type(error)(self._named(error.message), self._named(error.hint)) from None
        except CdoError as error:
            stopped = self._named(error.message)
        self._session.flush()
        return Rehearsal(
            then=self._then,
            made=snapshot(Folder(self._session.path)),
            plan=self._plan,
            calls=tuple(runner.calls),
            kept=dict(runner.kept),
            texts={name: marked(kept.reply, runner.findings(name)) for name, kept in runner.kept.items()},
            elsewise={name: self._differing(name, inputs, runner) for name, inputs in runner.elsewise.items()},
            unknown=tuple(self._backend.unknown),
            notes=tuple(self._notes),
            outcome=outcome,
            result=result,
            stopped=stopped,
        )

    def _named(self, text: str) -> str:
        return text.replace(str(self._session.path), self._then.place)

    def _runner(self) -> _Actor:
        asked = {str(record["model"]) for record in self._session.records if record["kind"] == "exchange"}
        return _Actor(
            session=self._session,
            library=self._library,
            seats={name: self._seat(name) for name in (*self._plan.models, *asked)},
            budget=Budget(Limits(), totals(self._session.records)),
            observe=_unseen,
            human=Human(self._answer, _consent, self._review, self._tell),
            held=self._held,
        )

    def _seat(self, name: str) -> Seat:
        return Seat(ModelSpec(name, "scripted", name, window=ROOM), self._backend, Gate())

    def _differing(self, name: str, inputs: Mapping[str, str], runner: _Actor) -> tuple[str, ...]:
        """What differs in the inputs of a call: the files it reads, by their names; else its template or its data."""
        file = next(call.artifact for call in runner.calls if call.name == name)
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
            raise NeedsHuman(f"The team asks you: {flat(ask.question)}")
        self._notes.append(f"{ask.name} is asked in other words ({flat(ask.question)}): answered “{answer}” as then")
        return answer

    def _held(self, nest: Nest) -> Nested | None:
        """What a deliberation of this name came to, though it is asked otherwise; else it is not on record."""
        for record in reversed(self._session.records):
            if record["kind"] == "nested" and record["name"] == nest.name:
                self._notes.append(f"{nest.name} is deliberated otherwise; what it came to then was used")
                return Nested(**record["result"])
        self._backend.unknown.append(nest.name)
        if self._backend.ends:
            raise Unrecorded(f"{nest.name} is not on record.")
        return None

    async def _review(self, editing: Editing) -> str:
        """A plan that is proposed in other words than then: as the person left it; else it waits for them."""
        text = self._plans.get(editing.review.file)
        if text is None:
            raise NeedsHuman(f"{editing.review.file} waits for you.")
        self._notes.append(f"{editing.review.file} is proposed in other words; it was taken as you left it")
        return text


def _unseen(_: Event) -> None:
    """What happens is told by what comes of it."""


async def _consent(_: Sequence[str], __: Sequence[str]) -> bool:
    return True


# -- what differs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A file that is not what it was: `how` is differs, gone (it would not be made any more) or new.

    `diff` are the lines of a unified diff from then to now.
    """

    file: str
    how: str
    diff: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ending:
    """How a session ended, as its FINAL.md and its last synthesis say it; `unit` is what its turns are called."""

    status: str
    why: str
    confidence: float | None
    decision: str
    turns: int
    tensions: tuple[tuple[str, str], ...]
    unit: str = "turn"

    @classmethod
    def of(cls, archive: Archive) -> Ending | None:
        """The ending of a session, or None while there is no FINAL.md; raises `SessionError`."""
        found = history.read(archive)
        if found.final is None:
            return None
        tensions = tuple((life.id, life.status) for life in found.tensions)
        final = found.final
        artifact = archive.artifact("FINAL")
        if found.frozen.plan.mode == MODE and artifact:
            rounds = artifact.own.get("turns")
            held = rounds if isinstance(rounds, int) else 0
            return cls(final.status, final.why, None, decided(artifact.body), held, (), "round")
        return cls(final.status, final.why, final.confidence, final.decision, len(found.turns), tensions)


@dataclass(frozen=True)
class Replayed:
    """A session beside what today's code makes of its record.

    `same` are the files that are equal byte for byte, `alike` those that say the same from other inputs, `edited`
    those that were taken as a person left them. `elsewise`, `unknown`, `notes` and `stopped` are the rehearsal's.
    `then` and `now` are None where there is no FINAL.md.
    """

    session: str
    calls: int
    same: tuple[str, ...]
    alike: tuple[str, ...]
    edited: tuple[str, ...]
    differences: tuple[Difference, ...]
    elsewise: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]
    stopped: str
    then: Ending | None
    now: Ending | None

    @property
    def differs(self) -> bool:
        """Whether today's code would come to anything else; that an unfinished session goes on is nothing else."""
        broken_off = self.then is not None and self.now is None
        lacking = bool(self.then and self.unknown)
        return bool(self.differences or self.elsewise or self.notes or lacking or broken_off)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """What of the ending differs, as (then, now) by its name; nothing where one of them is not there."""
        if self.then is None or self.now is None:
            return {}
        now = asdict(self.now)
        return {key: (value, now[key]) for key, value in asdict(self.then).items() if value != now[key]}

    def json(self) -> dict[str, Any]:
        """The whole as `--json` prints it."""
        return {**asdict(self), "differs": self.differs}


def compare(rehearsal: Rehearsal) -> Replayed:
    """Set what was made beside what there was; raises `SessionError` where a FINAL.md cannot be read."""
    then, made = rehearsal.then, rehearsal.made
    taken = tuple(file for file, _ in _inputs(then))
    same, alike, differences = [], [], []
    for file in sorted({*then.files(), *made.files()} - {*taken, "journal.jsonl"}):
        before, after = then.data(file), made.data(file)
        known = _MADE.fullmatch(file) or _KEPT.fullmatch(file)
        if file.startswith("calls/") or ((before is None or after is None) and not known):
            continue
        if before == after:
            same.append(file)
        elif file.removesuffix(".md") in _files(rehearsal) and _says(then, file) == _says(made, file):
            alike.append(file)
        else:
            how = "new" if before is None else "gone" if after is None else "differs"
            differences.append(Difference(file, how, _diff(before or b"", after or b"")))
    return Replayed(
        then.name, len(rehearsal.calls), tuple(same), tuple(alike), edited(then), tuple(differences),
        rehearsal.elsewise, rehearsal.unknown, rehearsal.notes, rehearsal.stopped, Ending.of(then), Ending.of(made),
    )  # fmt: skip


def _files(rehearsal: Rehearsal) -> set[str]:
    """The artifacts of the calls that were asked with other inputs."""
    return {call.artifact for call in rehearsal.calls if call.name in rehearsal.elsewise}


def _says(archive: Kept, file: str) -> Any:
    """An artifact without what it was made from."""
    artifact = archive.artifact(file.removesuffix(".md"))
    own = {key: value for key, value in artifact.own.items() if key != "inputs"} if artifact else {}
    return artifact and (dict(artifact.meta), artifact.body, own)


def _diff(before: bytes, after: bytes) -> tuple[str, ...]:
    """The lines that differ, but for the checksum that differs with them."""
    old, new = (_CHECKSUM.sub("", data.decode("utf-8", "replace"), count=1).splitlines() for data in (before, after))
    return tuple(difflib.unified_diff(old, new, "then", "now", lineterm="", n=1))
