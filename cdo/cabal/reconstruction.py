"""Reconstructs a mission: runs the program over the record of a session, as far as the record goes. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from cdo.cabal.asking import MissionContext
from cdo.cabal.files.final_report import Delivery
from cdo.cabal.model.state import MissionState
from cdo.cabal.program import cabal
from cdo.core.errors import CdoError, SessionError
from cdo.core.exchange import Fault
from cdo.core.steps import (
    Ask,
    Batch,
    Call,
    CheckRun,
    Collect,
    DivisibleFormat,
    Gather,
    InvalidReply,
    Missing,
    Nest,
    Nested,
    Pause,
    Reply,
    RunCheck,
    Step,
)
from cdo.formats.lenient.reading import read
from cdo.session.artifact import Artifact
from cdo.session.reader import SessionReader, checked_in
from cdo.session.recorded_replies import reply_text
from cdo.session.session_file import read_frozen


class ReconstructedMission(Struct, frozen=True):
    """A mission as recorded in its session: the current `state`, and the states at the end of each round.

    Round 0 is the bootstrap. `asked` are the calls without an answer yet; `question` is the question to the person
    that the team waits for. `outcome` is set once the mission has ended. `replies` are the calls whose reply has a
    file, with that file. `lost` are the files of replies that are gone or cannot be read, with the reason.
    """

    state: MissionState
    rounds: tuple[MissionState, ...]
    asked: tuple[Call, ...]
    question: Ask | None
    outcome: Delivery | None
    replies: tuple[tuple[Call, Artifact], ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)


def is_mission(archive: SessionReader) -> bool:
    """True if a session is a mission of a cabal; raise `SessionError` if its session.yaml cannot be read."""
    return read_frozen(archive.text("session.yaml"), Path(archive.place)).plan.crew is not None


def retrace(archive: SessionReader, *, without_files: bool = False) -> ReconstructedMission:
    """Reconstruct the mission of a session; raise `SessionError` if it is no mission, or damaged.

    A reply without a valid file ends it there. With `without_files`, its recorded exchange is taken instead.
    """
    plan = read_frozen(archive.text("session.yaml"), Path(archive.place)).plan
    if plan.crew is None:
        raise SessionError(f"{archive.place} is not a mission.", "`cdo show` shows what it is.")
    desk = MissionContext.begin(plan, plan.crew)
    program, past, outcome = cabal(plan, plan.crew, desk), _RecordedReplies(archive, without_files), None
    answer: Any = None
    try:
        while True:
            answer = past.answer(program.send(answer))
    except StopIteration as stop:
        outcome = stop.value
    except (_EndOfRecord, CdoError):
        pass
    finally:
        program.close()
    asked = tuple(call for call in desk.asked if f"{call.artifact}.md" not in past.files)
    return ReconstructedMission(
        desk.state, tuple(desk.rounds), asked, desk.question, outcome, tuple(past.replies), past.lost
    )


class _EndOfRecord(Exception):
    """Raised when the record has no answer to the next step."""


class _RecordedReplies:
    """The answers to a program's steps that a session has on record."""

    def __init__(self, archive: SessionReader, without_files: bool) -> None:
        self._archive = archive
        self.lost: dict[str, str] = {}
        self._exchanged: dict[str, list[Mapping[str, Any]]] = {}
        self._cut: dict[str, list[str]] = {}
        self.files = frozenset(archive.files())
        self.replies: list[tuple[Call, Artifact]] = []
        self._missing: dict[str, str] = {}
        self._collected: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._answers: dict[tuple[str, str], str] = {}
        self._nested: dict[str, Nested] = {}
        self._checked = checked_in(archive.records())
        self._runs: dict[str, CheckRun] = {}
        for record in archive.records():
            match record["kind"]:
                case "exchange" if without_files and "response" in record:
                    self._exchanged.setdefault(record["call"], []).append(record)
                case "exchange" if without_files and record["fault"]["kind"] == Fault.LENGTH.value:
                    self._cut.setdefault(record["call"], []).append(str(record["fault"]["text"]))
                case "missing":
                    self._missing[record["call"]] = str(record["reason"])
                case "collected":
                    self._collected[record["name"]] = record["items"]
                case "answer":
                    self._answers[record["name"], record["question"]] = str(record["answer"])
                case "nested":
                    self._nested[record["name"]] = Nested.of(record["result"])
                case "check-run":
                    self._runs[record["name"]] = CheckRun.of(record["run"])

    def answer(self, step: Step) -> Any:
        """Return the answer to a step; raise `_EndOfRecord` if there is none yet."""
        match step:
            case Batch():
                return tuple(self._reply(call) for call in step.calls)
            case Ask() | Pause():
                return self._known(self._answers, (step.name, step.question))
            case Collect():
                return tuple(step.format.parse(item["text"]) for item in self._left(step))
            case Gather():
                return tuple((item["file"], step.format.parse(item["text"])) for item in self._left(step))
            case Nest():
                return self._known(self._nested, step.name)
            case RunCheck():
                return self._known(self._runs, step.name)
        return None

    def _left(self, step: Collect | Gather) -> Sequence[Mapping[str, Any]]:
        return () if step.again and step.name not in self._collected else self._known(self._collected, step.name)

    @staticmethod
    def _known(there: Mapping[Any, Any], key: Any) -> Any:
        if key not in there:
            raise _EndOfRecord
        return there[key]

    def _reply(self, call: Call) -> Reply:
        file = f"{call.artifact}.md"
        if file in self.files and (artifact := self._archive.artifact(call.artifact)):
            try:
                data = call.format.parse(artifact.reply)
                self.replies.append((call, artifact))
                found = self._checked.get(artifact.sha, ())
                return Reply(call.name, data, findings=found, edited=artifact.edited)
            except InvalidReply:
                self.lost[file] = "it was edited, and is no valid reply any more"
        exchanges = self._exchanged.get(call.name, [])
        for record in exchanges:
            with suppress(InvalidReply):
                data = read(call.format, reply_text(record, exchanges)).data
                self.lost.setdefault(file, "it is gone")
                return Reply(call.name, data)
        for text in self._cut.get(call.name, ()) if call.name not in self._missing else ():
            if isinstance(call.format, DivisibleFormat) and (part := call.format.complete_part(text)):
                self.lost.setdefault(file, "it is gone")
                return Reply(call.name, call.format.parse(part))
        if file in self.lost:
            raise _EndOfRecord
        return Reply(call.name, reason=Missing.read(self._known(self._missing, call.name)))
