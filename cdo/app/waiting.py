"""Puts what a person answers or writes into the session that waits for it. Sends nothing.

The process that waits for an answer takes it up, else a resume does. Letters can be left at any time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from cdo.core.errors import SessionError, UsageError
from cdo.formats.person_reply import own_words
from cdo.history.pending import ANSWER, PendingInput, open_seats, pending, team_question
from cdo.runner.people.human_steps import chosen
from cdo.security import secrets
from cdo.session.artifact import digest
from cdo.session.left_files import leave
from cdo.session.reader import SessionFolder, SessionReader
from cdo.session.records import locked
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.planning.turn_plan import PlanFormat

LONGEST_ANSWER = 60_000  # bytes: a form is read up to 64 KiB


class StateChanged(SessionError):
    """What a person was shown has changed since, so what they say to it is not taken."""


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
    plan = replace(plan, models=models[-1]) if models else plan
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
