"""What is alarming about a turn, for programs that no convergence ends: flagged, and put to the human. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cdo import convergence
from cdo.turn import Course, Heard
from cdo.types import Pause, Program

FINISH = "finish now"


@dataclass(frozen=True)
class Alarms:
    """Whether a turn's agreement is suspiciously high, and what makes it a conflict ("" when nothing does)."""

    suspicious: bool = False
    conflict: str = ""


def raised(course: Course, heard: Heard) -> Alarms:
    """The alarms of the turn that was just heard; each becomes a flag of the run."""
    record, criteria, turn = course.record, course.plan.criteria, len(course.record.turns)
    found = Alarms(convergence.suspicious(record, criteria), convergence.conflict(record, criteria))
    if found.suspicious:
        course.flags.append(f"turn {turn}: agreement {heard.directive.agreement:.0%} was flagged")
    if found.conflict:
        course.flags.append(f"turn {turn}: conflict: {found.conflict}")
    return found


def finished(course: Course, alarms: Alarms, go_on: str) -> Program[bool]:
    """Whether the human ends the run over a conflict of the last turn; `go_on` words the other choice.

    One who forked the run after that turn has chosen already.
    """
    if not alarms.conflict or course.plan.change(course.turn):
        return False
    turn = len(course.record.turns)
    question = f"Turn {turn} ended in a conflict: {alarms.conflict}."
    answer = yield Pause(f"t{turn}-conflict", question, (go_on, FINISH), go_on)
    return bool(answer == FINISH)
