"""The deliberation loop as a pure program (seed 004 section 4, SPEC 5).

compose → voices → synthesis → directive → adapt, until the record converges; then FINAL.md. The program sees
only validated data blocks: every text reaches the models through the artifacts that a call `reads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdo import convergence
from cdo.calls import Voice
from cdo.convergence import Verdict
from cdo.ending import Outcome, conclude
from cdo.plan import Plan
from cdo.turn import Course, Heard, seated
from cdo.types import Pause, Program

GO_ON, FINISH = "go on with a referee", "finish now"
DONE = Verdict("stopped", "you said that it is done")


@dataclass(frozen=True)
class Needs:
    """What the turn before calls for beside the directive's roles."""

    refuter: bool = False
    referee: str = ""


def deliberate(plan: Plan) -> Program[Outcome]:
    """Run a plan to its outcome: yields batches of calls and pauses, receives validated replies."""
    course, needs, judged = Course(plan), Needs(), False
    heard: Heard | None = None
    while True:
        voices = yield from course.prepare(compose(course, needs))
        if course.stop and heard:
            return (yield from conclude(course, DONE, heard))
        heard = yield from course.hear(voices, claims=heard.claims if heard else ())
        ending, needs = yield from adapt(course, heard, judged)
        judged = bool(needs.referee)
        if ending:
            return (yield from conclude(course, ending, heard))


def adapt(course: Course, heard: Heard, judged: bool) -> Program[tuple[Verdict | None, Needs]]:
    """What follows from a turn: whether the loop ends, and what the next turn needs.

    A conflict pauses the run for the human; one who forked it after this turn has decided that it goes on. `judged`
    tells that the turn had a referee for the conflict before it: a conflict that nobody has refereed yet defers the
    end, except at the cap.
    """
    record, criteria, turn = course.record, course.plan.criteria, len(course.record.turns)
    conflict = convergence.conflict(record, criteria)
    suspicious = convergence.suspicious(record, criteria)
    if suspicious:
        course.flags.append(f"turn {turn}: agreement {heard.directive.agreement:.0%} was flagged")
    if conflict:
        course.flags.append(f"turn {turn}: conflict: {conflict}")
    needs = Needs(refuter=suspicious, referee=conflict)
    if course.plan.change(course.turn):
        return None, needs
    ending = convergence.verdict(record, course.plan.turns, criteria, unheard=bool(conflict) and not judged)
    if conflict and not ending:
        question = f"Turn {turn} ended in a conflict: {conflict}."
        answer = yield Pause(f"t{turn}-conflict", question, (GO_ON, FINISH), GO_ON)
        if answer == FINISH:
            ending = Verdict("stopped", "you asked for the result")
    return ending, needs


def compose(course: Course, needs: Needs) -> list[Voice]:
    """Seat the next turn: the plan's roles for the first, then what the last directive asks for.

    Not adaptive: the first turn's width stays. Adaptive: the directive's width, kept within the band. Where it
    names fewer roles, the plan's fill the seats, those it just dropped last; where it names more, the first ones
    sit. A refuter and a referee take seats of their own where the band allows it, else the last ones.
    """
    plan, directive = course.plan, course.directive
    if directive is None:
        return seated(plan.roles, plan.known_roles, plan.start, plan.charges)
    low, high = course.band()
    extra = [
        *(["referee"] if needs.referee else []),
        *(["refuter"] if needs.refuter else []),
    ][: max(1, high - 1)]
    width = min(max(directive.width, low), high)
    width = min(high, width + len(extra)) if plan.adaptive else width
    extra = extra[:width]
    wishes = {wish.name: wish for wish in directive.roles}
    charges = {**plan.charges, **{name: wish.charge for name, wish in wishes.items() if wish.charge}}
    wanted = [role for role in wishes if role not in extra]
    if "referee" in extra:
        charges["referee"] = needs.referee
    spare = _spare([*plan.roles, *plan.known_roles], course.last if wanted else ())
    voices = [*seated(wanted, spare, width - len(extra), charges)]
    voices += [Voice(role, role, 1, charges.get(role, "")) for role in extra]
    return [replace(voice, wishes=wishes[voice.role].skills) if voice.role in wishes else voice for voice in voices]


def _spare(roles: Sequence[str], dropped: Sequence[str]) -> list[str]:
    """The roles that may fill seats; one that the directive dropped comes last: it was dropped for a reason."""
    return [*(role for role in roles if role not in dropped), *(role for role in roles if role in dropped)]
