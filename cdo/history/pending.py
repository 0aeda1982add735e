"""Tells what a session waits for from a person, and what a person does not see before they have answered.

A run waits for a decision on the plan of its next turn (`hitl`), for the answer to a question of a mission's team, or
for a person who has a seat in a turn.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from cdo.core.errors import SessionError
from cdo.formats.person_reply import complete
from cdo.runner.people.human_steps import INBOX, LETTER, TAKEN, minute
from cdo.session.reader import SessionReader

if TYPE_CHECKING:
    from cdo.cabal.reconstruction import ReconstructedMission

ANSWER = f"{INBOX}/{LETTER}.md"  # the file with the answer to a team's question


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


# -- what is answered, and what is not shown before ------------------------------------------------


def answered(archive: SessionReader) -> str:
    """Return in a sentence what a person answered or approved that no process has taken up since; "" without it.

    Raises `SessionError` if the session is damaged.
    """
    if seats := open_seats(archive):
        if not all(complete(archive.text(item.file) or "") for item in seats):
            return ""
        who = " and ".join(item.person for item in seats)
        told = f"{who} answered turn {seats[0].turn}."
    elif any(file.startswith(f"{INBOX}/{LETTER}") for file in archive.files()):
        told = "You answered the team."
    elif (plan := plan_of(archive)) and plan.approved:
        told = f"You approved the plan of turn {plan.turn}."
    else:
        return ""
    return f"{told} `cdo resume {archive.name}` goes on with it."


def unheard(archive: SessionReader) -> int:
    """Return the turn whose voices are not shown yet, as a person in it has not answered; 0 without one."""
    return next((item.turn for item in open_seats(archive)), 0)


def require_heard(archive: SessionReader, what: str, *, file: str = "", turn: int = 0) -> None:
    """Raise `SessionError` for what the voices of a turn say, while a person who has a seat in it has not answered.

    `what` names in the message what would show it. With `file` it is that file or call alone, with `turn` what was
    said until then.
    """
    if not (seats := open_seats(archive)):
        return
    present = seats[0].turn
    of_turn = ("calls/", f"t{present}-", f"{TAKEN}/t{present}-")
    said = not file or (file.startswith(of_turn) and not file.endswith(".yaml"))
    if len(seats) > 1 and file in {item.file for item in seats}:
        said = complete(archive.text(file) or "")  # another person's answer
    if said and not 0 < turn < present:
        who = " and ".join(item.person for item in seats)
        raise SessionError(
            f"{what} shows what others say in turn {present}, in which {who} answers without seeing it.",
            "It is shown after the answer.",
        )
