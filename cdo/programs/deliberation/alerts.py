"""Flags suspicious agreement and conflicts of a turn, and asks the person about a conflict. Pure."""

from __future__ import annotations

from msgspec import Struct

from cdo.core.steps import Pause, Program
from cdo.programs.deliberation import convergence
from cdo.programs.deliberation.turn import RunState

FINISH = "finish now"


class Alarms(Struct, frozen=True):
    """The alarms of a turn: if its agreement is suspiciously high, and what makes it a conflict ("" if it is none).

    `dispute` is the text about the conflict for voices.
    """

    suspicious: bool = False
    conflict: str = ""
    dispute: str = ""


def check_alerts(course: RunState) -> Alarms:
    """Return the alarms of the last turn; each becomes a flag of the run."""
    record, criteria, turn = course.record, course.plan.criteria, len(course.record.turns)
    found = Alarms(
        convergence.suspicious(record, criteria),
        convergence.conflict(record, criteria),
        convergence.dispute(record, criteria),
    )
    if found.suspicious:
        share = record.turns[-1].directive.agreement
        course.flags.append(f"turn {turn}: agreement of {share:.0%} is suspiciously high")
    if found.conflict:
        course.flags.append(f"turn {turn}: conflict: {found.conflict}")
    return found


def ask_to_stop(course: RunState, alarms: Alarms, go_on: str) -> Program[bool]:
    """Return True if the human ends the run because of a conflict in the last turn; `go_on` is the other choice.

    The question is not asked if the person forked the run after that turn: the fork was the decision to go on.
    """
    if not alarms.conflict or course.plan.change(course.turn):
        return False
    turn = len(course.record.turns)
    question = f"Turn {turn} ended in a conflict: {alarms.conflict.rstrip('.')}."
    answer = yield Pause(f"t{turn}-conflict", question, (go_on, FINISH), go_on)
    return bool(answer == FINISH)
