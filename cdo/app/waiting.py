"""Tells what a session waits for from a person, and puts what the person answers or writes into it. Sends nothing.

A run waits for a decision on the plan of its next turn (`hitl`), for the answer to a question of a mission's team, or
for a person who has a seat in a turn. The process that waits for it takes it up, else a resume does. Letters can be
left at any time.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdo.core.errors import SessionError, UsageError
from cdo.formats.person_reply import complete, own_words
from cdo.runner.people.human_steps import INBOX, LETTER, chosen, minute
from cdo.security import secrets
from cdo.session.artifact import digest
from cdo.session.left_files import leave
from cdo.session.reader import SessionFolder, SessionReader
from cdo.session.records import locked
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.cabal.reconstruction import ReconstructedMission
    from cdo.planning.turn_plan import PlanFormat

ANSWER = f"{INBOX}/{LETTER}.md"  # the file with the answer to a team's question
LONGEST_ANSWER = 60_000  # bytes: a form is read up to 64 KiB


class StateChanged(SessionError):
    """What a person was shown has changed since, so what they say to it is not taken."""


class PendingInput(Struct, frozen=True):
    """What a session waits for: a question with the options that it offers, or a decision on the plan in `file`.

    With `person`, it is that person's answer to a turn, whose form is `file`; the turn waits `until` then. `name`
    tells it from everything else that the session asks. `proposed` is the text of the plan before anybody changed it,
    "" in sessions of earlier versions, and `proposal` identifies it on record. A plan is `approved` if the person
    agreed to it and no process has taken it up since. `sign_off` is True for the question whether a mission is done.
    """

    name: str
    question: str
    options: tuple[str, ...] = ()
    file: str = ""
    plan: str = ""
    person: str = ""
    until: datetime | None = None
    proposed: str = ""
    proposal: str = ""
    approved: bool = False
    sign_off: bool = False

    @property
    def turn(self) -> int:
        """The number of the turn whose plan or answer waits; 0 for a team's question."""
        return int(self.name.partition("-")[0].removeprefix("t")) if self.plan or self.person else 0

    @property
    def first_turn(self) -> bool:
        """True for the plan of the first turn, before which there is nothing to write a result from."""
        return bool(self.plan) and self.turn == 1


def pending(archive: SessionReader) -> PendingInput | None:
    """Return what a session waits for, or None; raise `SessionError` if it is damaged."""
    from cdo.cabal.reconstruction import is_mission

    if seats := open_seats(archive):
        return seats[0]
    if (plan := plan_of(archive)) and not plan.approved:
        return plan
    return team_question(archive) if is_mission(archive) else None


def plan_of(archive: SessionReader) -> PendingInput | None:
    """Return the plan that waits for the person's decision, or that they approved and no process has taken up."""
    records = archive.records()
    shown = [record for record in records if "proposed" in record]
    if not shown or not (plan := archive.text(file := str(shown[-1]["file"]))):
        return None
    approved = shown[-1]["kind"] == "reviewed"
    if approved and records[-1] is not shown[-1]:
        return None
    proposal = str(shown[-1]["proposed"])
    first = next(record for record in shown if record["proposed"] == proposal)
    return PendingInput(
        file.rpartition(".")[0],
        f"Hold turn {file.partition('-')[0].removeprefix('t')} as planned?",
        file=file,
        plan=plan,
        proposed=str(first.get("text") or "") if first["kind"] == "proposed" else "",
        proposal=proposal,
        approved=approved,
    )


def team_question(archive: SessionReader) -> PendingInput | None:
    """Return the question of a mission's team to the person, or None; raise `SessionError` if it is no mission."""
    from cdo.cabal.reconstruction import retrace

    return question_of(retrace(archive))


def question_of(mission: ReconstructedMission) -> PendingInput | None:
    """Return the question that a mission's team has for the person, or None."""
    if (asked := mission.question) is None:
        return None
    signs = {item.name: item.sign_off for item in mission.state.questions}
    options, sign_off = tuple(asked.options), signs.get(asked.name, False)
    return PendingInput(asked.name, asked.question, options, sign_off=sign_off)


def open_seats(archive: SessionReader) -> list[PendingInput]:
    """Return whose answers to the present turn a session waits for; raise `SessionError` if it is damaged."""
    records = archive.records()
    if not any(record["kind"] == "seated" for record in records):
        return []
    wait = timedelta(seconds=archive.frozen().settings.seat_wait)
    settled = {
        (record["call"], record["inputs"])
        for record in records
        if record["kind"] == "missing" or (record["kind"] == "exchange" and "response" in record)
    }
    forms = {str(record["call"]): record for record in records if record["kind"] == "seated"}  # the last of each call
    found = []
    for record in forms.values():
        if (record["call"], record["inputs"]) not in settled:
            stem = str(record["file"]).rpartition("/")[2].removesuffix(".md")
            turn, _, person = stem.partition("-")
            question = f"{person}, what is your answer to turn {turn.removeprefix('t')}?"
            until = datetime.fromisoformat(record["at"]) + wait
            found.append(PendingInput(stem, question, (), str(record["file"]), person=person, until=until))
    last = max((item.turn for item in found), default=0)
    return [item for item in found if item.turn == last]


def seat_standing(archive: SessionReader, asked: PendingInput) -> str:
    """Return how the answer of a person to a turn stands, for people."""
    place = f"{archive.place}/{asked.file}"
    if complete(archive.text(asked.file) or ""):
        return f"the answer of {asked.person} to turn {asked.turn} is in {place}, and was not taken yet"
    until = f" until {minute(asked.until)}" if asked.until else ""
    return f"the answer of {asked.person} to turn {asked.turn} is awaited{until}: {place}"


def answer_seat(path: Path, text: str, person: str = "") -> PendingInput:
    """Put a person's answer to the present turn into their form; return what was asked; raise `CdoError`.

    `text` is plain words, or the form as it is filled in. `person` says whose answer it is where several are awaited.
    """
    from cdo.core.steps import InvalidReply
    from cdo.formats.person_reply import worded

    archive = SessionFolder(path)
    waiting = open_seats(archive)
    asked = [item for item in waiting if person in ("", item.person)]
    if not asked:
        who = f" of {person}" if person else ""
        raise SessionError(f"{path} waits for no answer{who} to a turn.", "`cdo show` tells how it stands.")
    if len(asked) > 1:
        names = ", ".join(item.person for item in asked)
        raise UsageError(f"Several people are asked: {names}.", "Say with --seat NAME whose answer it is.")
    if len(text.encode()) > LONGEST_ANSWER:
        raise UsageError(
            f"The answer has {len(text.encode()):,} bytes; at most {LONGEST_ANSWER:,} are read.", "Say it in less."
        )
    try:
        reply = worded(text)
    except InvalidReply as invalid:
        raise UsageError(" ".join(invalid.problems), "Say it again, or fill in the form.") from None
    if reply is None:
        raise UsageError("The answer is empty.", "Say in a sentence what you would do.")
    _put(path, asked[0].file, f"{own_words(text)}\n", archive.text(asked[0].file))
    return asked[0]


def answer_question(path: Path, text: str) -> tuple[str, str]:
    """Put the answer to a team's question into its session; return the question, and the answer as it is taken.

    `text` is one of the options, its number, or anything else. Raises `SessionError` and `UsageError`.
    """
    archive = SessionFolder(path)
    asked = team_question(archive)
    if asked is None:
        raise SessionError(
            f"{path} has no question for you.", "`cdo show` tells how it stands; a note in inbox/ reaches the team."
        )
    return asked.question, put_answer(path, asked, text, archive.text(ANSWER))


def put_answer(path: Path, asked: PendingInput, text: str, stands: str | None) -> str:
    """Put the answer to a question into its session; return it as it is taken.

    `stands` is the answer that was left before, None without one. Raises `SessionError` and `UsageError`.
    """
    taken = chosen(text, asked.options)
    if asked.options and text.isdecimal() and taken not in asked.options:
        raise UsageError(
            f"There is no option {text}.", f"There are {len(asked.options)}; say one, its number, or in words."
        )
    _put(path, ANSWER, f"{text}\n", stands)
    return taken


def answer_plan(path: Path, decision: str, note: str = "", focus: str = "") -> PendingInput:
    """Decide on the plan of the next turn ("go" or "done") and return it as it was; raise `SessionError`.

    A `note` reaches every voice of the turn, a `focus` says what it is to settle; "" leaves what the plan says.
    """
    from cdo.formats import strict_yaml

    asked = pending(SessionFolder(path))
    if asked is None or not asked.file or asked.person:
        raise SessionError(f"{path} has no plan that waits for you.", "`cdo show` tells how it stands.")
    if decision not in ("go", "done") or (decision == "done" and asked.first_turn):
        allowed = "`go`" if asked.first_turn else "`go` or `done`"
        raise UsageError(f"A plan is not answered with `{decision[:60]}`.", f"Answer it with {allowed}.")
    changes = {"decision": decision, "note": note, "focus": focus}
    try:
        plan: Any = strict_yaml.load(asked.plan, max_bytes=262_144)
    except strict_yaml.YamlProblem as problem:
        raise SessionError(f"{path / asked.file}: {problem}.", "Fix the file, then answer again.") from None
    plan = plan if isinstance(plan, dict) else {}
    changed = {key: value for key, value in changes.items() if value and plan.get(key) != value}
    put_plan(path, asked, strict_yaml.dump({**plan, **changed}) if changed else asked.plan)
    return asked


def plan_format(archive: SessionReader, asked: PendingInput) -> PlanFormat:
    """Return the format of the plan that waits, as the run itself will read it.

    Raises `SessionError`, and `InvalidReply` in a session of an earlier version whose plan was edited down to a part.
    """
    from cdo.planning import turn_plan

    plan = archive.frozen().plan
    models = [change.models for change in plan.changes if change.turn <= asked.turn and change.models]
    plan = plan.model_copy(update={"models": models[-1]}) if models else plan
    return plan.turn_format(turn_plan.proposal(asked.proposed or asked.plan, asked.turn))


def put_plan(path: Path, asked: PendingInput, text: str) -> None:
    """Write the plan that waits, with the person's approval; raise `SessionError`.

    At a terminal that waits with the plan, the written file is the approval. If no process runs the session, the
    approval goes on record, so that the next resume holds the turn and does not ask again.
    """
    _put(path, asked.file, text, asked.plan, approves=asked.proposal)


def put_letter(path: Path, folder: str, text: str) -> bool:
    """Leave a letter in a folder of a session; return False if the same letter waits there already."""
    return leave(path, f"{folder}/letter-{digest(text)[:16]}.md", text, new=True)


def _put(path: Path, file: str, text: str, stands: str | None, *, approves: str = "") -> None:
    """Write a file of a session, unless it no longer `stands` as the person has seen it; raise `SessionError`.

    `approves` identifies the proposed plan that the person agreed to by writing the file; "" for any other file.
    """
    archive = SessionFolder(path)
    if locked(path):
        _require(archive, file, stands)
        leave(path, file, text)
        return
    session = Session.open(path, secrets.redactor(os.environ))
    try:
        _require(archive, file, stands)
        session.put_now(file, text)
        if approves:
            session.note({"kind": "reviewed", "file": file, "proposed": approves, "text": text})
    finally:
        session.close()


def _require(archive: SessionReader, file: str, stands: str | None) -> None:
    if archive.text(file) != stands:
        raise StateChanged(f"{archive.place}/{file} has changed since you saw it.", "Look at it again, then answer.")
