"""Runs the deliberation loop, as a pure program.

compose → voices → synthesis → directive → adapt, until the record converges; then FINAL.md. The program sees
only validated data blocks: every text reaches the models through the artifacts that a call `reads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from cdo.core.steps import Program
from cdo.planning.plan import Plan
from cdo.planning.role_choice import SPECIAL_ROLES
from cdo.programs.deliberation import convergence
from cdo.programs.deliberation.alerts import ask_to_stop, check_alerts
from cdo.programs.deliberation.calls import Voice, seated
from cdo.programs.deliberation.convergence import StopReason
from cdo.programs.deliberation.turn import RunState, TurnResult

if TYPE_CHECKING:
    from cdo.programs.deliberation.conclusion import Outcome

GO_ON = "go on with a referee"
DONE = StopReason("stopped", "you said that it is done")


class Needs(Struct, frozen=True):
    """What the next turn needs in addition to the directive's roles.

    `argued` is the role that argues the other side: "steelman", "refuter", or "" for none. `referee` is the conflict
    that a referee has to weigh, "" for none.
    """

    argued: str = ""
    referee: str = ""

    @property
    def roles(self) -> list[str]:
        """The roles that these needs require, the most needed first."""
        other = {"steelman": ["steelman", "checker"], "refuter": ["refuter"]}.get(self.argued, [])
        return [*(["referee"] if self.referee else []), *other]


def deliberate(plan: Plan) -> Program[Outcome]:
    """Run a plan to its outcome: yields batches of calls and pauses, receives validated replies."""
    course, needs = RunState(plan), Needs()
    heard: TurnResult | None = None
    while True:
        voices = yield from course.prepare(compose(course, needs))
        if course.stop and heard:
            return (yield from _conclude(course, DONE, heard))
        heard = yield from course.hear(voices, before=heard)
        ending, needs = yield from adapt(course)
        if ending:
            return (yield from _conclude(course, ending, heard))


def _conclude(course: RunState, ending: StopReason, heard: TurnResult) -> Program[Outcome]:
    from cdo.programs.deliberation.conclusion import conclude  # the first turn does not wait for it

    return conclude(course, ending, heard)


def adapt(course: RunState) -> Program[tuple[StopReason | None, Needs]]:
    """Return why the loop ends after a turn (None if it goes on), and what the next turn needs.

    High agreement without an argued other side, and a conflict that no referee has weighed, defer the end. A conflict
    also pauses the run for the human. If a person forked the run after this turn, it goes on in any case.
    """
    record, criteria, turn = course.record, course.plan.criteria, len(course.record.turns)
    alarms = check_alerts(course)
    conflict = alarms.conflict
    unopposed = convergence.unopposed(record, criteria) and not course.argued
    argue = ("steelman" if turn == 1 else "refuter") if unopposed else ""
    needs = Needs(argue, conflict)
    unheard = bool(record.objections.severe(criteria.severe)) or (bool(conflict) and not course.refereed)
    if course.plan.change(course.turn):
        return None, needs
    ending = convergence.verdict(
        record,
        course.plan.turns,
        criteria,
        confidence=course.confidence[0],
        argued=course.argued,
        withheld=bool(argue) or unheard,
    )
    if not ending and (yield from ask_to_stop(course, alarms, GO_ON)):
        ending = StopReason("stopped", "you asked for the result")
    return ending, needs


def compose(course: RunState, needs: Needs) -> list[Voice]:
    """Return the voices of the next turn: the plan's roles for the first, then the roles of the last directive.

    If not adaptive, the first turn's width stays. If adaptive, it is the directive's width, kept within the band. If
    the directive names fewer roles, the plan's roles fill the seats, roles just dropped last. If it names more, the
    first ones sit. The roles of `needs` take those free seats, then additional ones, at most one beyond the band.
    They never take the seat of a role with a charge from the directive, nor of a voice whose objection is the
    conflict.
    """
    plan, directive = course.plan, course.directive
    if directive is None:
        return seated(plan.roles, plan.known_roles, plan.start, plan.charges)
    low, high = course.band()
    extra = needs.roles
    apart = {*SPECIAL_ROLES, *(seat.role for seat in plan.people)}  # seated otherwise
    wishes = {wish.name: wish for wish in directive.roles if wish.name not in apart}
    charges = {
        **plan.charges,
        **course.invented,
        **{name: wish.charge for name, wish in wishes.items() if wish.charge},
    }
    objectors = course.objectors if needs.referee else []
    charged = [name for name, wish in wishes.items() if wish.charge or name in course.invented]
    fixed = list(dict.fromkeys([*charged, *objectors]))
    width = min(max(directive.width, low), high)
    regular, extra = _shared(course, width, len({*wishes, *objectors}), fixed, extra)
    wanted = list(dict.fromkeys([*fixed, *wishes])) if extra else list(wishes)
    spare = _spare([*plan.roles, *plan.known_roles], course.last if wishes else ())
    voices = seated(wanted, spare, regular, charges) if regular else []
    voices += [Voice(role, role, 1, charges.get(role, "")) for role in extra]
    return [replace(voice, wishes=wishes[voice.role].skills) if voice.role in wishes else voice for voice in voices]


def _shared(
    course: RunState, width: int, wanted: int, fixed: Sequence[str], extra: list[str]
) -> tuple[int, list[str]]:
    """Return how many seats go to the directive's roles, and which extra roles sit beside them.

    If nothing is left to settle and only the other side has to be argued, no other role needs a seat.
    """
    if not extra:
        return width, extra
    most, turn = course.plan.width[1], course.turn
    extra = extra[: max(1, most + 1 - len(fixed))]
    fewest = 0 if course.record.settled and not fixed else max(0, width - len(extra))
    room = max(most - len(extra), min(len(fixed), most + 1 - len(extra)))
    regular = min(max(fewest, min(wanted, width), len(fixed)), room)
    if (seats := regular + len(extra)) > most:
        course.flags.append(
            f"turn {turn}: {seats} voices sit, one more than the band allows, for {' and '.join(extra)}"
        )
    return regular, extra


def _spare(roles: Sequence[str], dropped: Sequence[str]) -> list[str]:
    """Return the roles that may fill seats; roles that the directive dropped come last."""
    return [*(role for role in roles if role not in dropped), *(role for role in roles if role in dropped)]
