"""The program `debug`: a root-cause analysis in seven phases of one turn each. Pure.

reproduce → isolate → hypothesize → verify → fix → validate → document. The phases are fixed: no confidence and no
agreement ends the run before the last one, only the human does. What is possible stays possible until evidence
rules it out, and a cause that no evidence carries is not called one. Of a plan that a person edits, the criteria for
conflicts and agreement apply; its `turns` cannot change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator

from cdo.alarms import Alarms, finished, raised
from cdo.blocks import Line, RoleName
from cdo.calls import Shape, Voice, rotated
from cdo.citations import TOO_MANY
from cdo.convergence import Verdict
from cdo.ending import FinalShape, Outcome, conclude, final_form
from cdo.evidence import Checks
from cdo.hypotheses import SHOWN, CaseData, CaseDirective, CaseFormat, CaseSynthesis, Duty, Hypotheses, HypothesisWish
from cdo.plan import Plan
from cdo.protocol import SynthesisFormat
from cdo.rca import RcaFormat
from cdo.schemas import Count, Schema
from cdo.turn import Course, Heard, seated
from cdo.types import Program

PHASES = ("reproduce", "isolate", "hypothesize", "verify", "fix", "validate", "document")
MODE = "modes/debug"  # its body is worded into briefs and syntheses
FINAL = "engine/rca-protocol"
GO_ON = "go on with a referee"


class Phase(Schema):
    """One phase: who sits in it by preference, how many, and what each voice is obliged to bring."""

    name: Literal["reproduce", "isolate", "hypothesize", "verify", "fix", "validate", "document"]
    goal: str
    roles: tuple[RoleName, ...]
    width: Count
    must: tuple[Duty, ...] = ()


def _all_in_order(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    if tuple(phase.name for phase in phases) != PHASES:
        raise ValueError(f"must be the phases {', '.join(PHASES)}, in this order")
    return phases


class DebugMode(Schema):
    """`modes/debug.md`: the seven phases, and what `ends` them; the body words them for voices and synthesisers."""

    purpose: str
    load_when: str
    about: str
    program: Literal["phases"]
    ends: Line
    phases: Annotated[tuple[Phase, ...], AfterValidator(_all_in_order)]


@dataclass
class _Case:
    """What a run knows of its case: the ledger, fixes as (artifact, diff), and what each phase found."""

    ledger: Hypotheses = field(default_factory=Hypotheses)
    fixes: list[tuple[str, str]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)


def debug(plan: Plan, mode: DebugMode) -> Program[Outcome]:
    """Run the seven phases of a case to its outcome; a domain's team is the first `start` of the plan's roles."""
    course, case, alarms, heard = Course(plan), _Case(), Alarms(), None
    stopped, team = "", plan.roles[: plan.start] if plan.domain else ()
    for phase in mode.phases:
        chosen = compose(course, phase, alarms, team)
        course.plan = course.plan.model_copy(update={"start": len(chosen)})  # the band of this phase
        voices = yield from course.prepare(chosen)
        if course.plan.turns != plan.turns:
            course.plan = course.plan.model_copy(update={"turns": plan.turns})
            course.flags.append(f"turn {course.turn}: turns are fixed in debug, so the plan's change was left out")
        if course.stop and heard:
            stopped = "you said that it is done"
            break
        heard = yield from course.hear(voices, _shape(course, phase, case, voices), heard.claims if heard else ())
        _learn(course, case, phase, heard)
        alarms = raised(course, heard)
        if phase is not mode.phases[-1] and (yield from finished(course, alarms, GO_ON)):
            stopped = "you asked for the result"
            break
    assert heard is not None  # a human cannot end the run before its first turn
    course.flags += _unchecked(case.ledger, _checks(course))
    return (yield from conclude(course, ruling(case.ledger, stopped), heard, _final(course, case)))


def compose(course: Course, phase: Phase, alarms: Alarms, team: Sequence[str] = ()) -> list[Voice]:
    """Seat a phase.

    Its seats go to the domain's `team`, from another member on in each phase; then to the phase's first role, to
    the roles that the directive gives a charge, to the phase's other roles and to those of the plan. The phase's
    first role and those with a charge take a seat from the team while that keeps one. A refuter and a referee take
    seats of their own where the plan's width allows it, else the last ones.
    """
    plan, (low, high) = course.plan, course.plan.width
    extra = [*(["referee"] if alarms.conflict else []), *(["refuter"] if alarms.suspicious else [])][
        : max(1, high - 1)
    ]
    width = min(_width(phase, low, high) + len(extra), high)
    wishes = {wish.name: wish for wish in (course.directive.roles if course.directive else ())}
    charges = {**plan.charges, **{name: wish.charge for name, wish in wishes.items() if wish.charge}}
    if alarms.conflict:
        charges["referee"] = alarms.conflict
    charged = [name for name, wish in wishes.items() if wish.charge and name != phase.roles[0]]
    left = max(0, width - len(extra))
    own = [role for role in (phase.roles[0], *charged) if role not in extra]
    mates = [role for role in rotated(team, PHASES.index(phase.name)) if role not in own and role not in extra]
    kept = max(1, left - len(own))
    wanted = [*mates[:kept], *own, *mates[kept:], *(role for role in phase.roles if role not in extra)]
    voices = seated(wanted, [*plan.roles, *plan.known_roles], left, charges)
    voices += [Voice(role, role, 1, charges.get(role, "")) for role in extra[:width]]
    return [replace(voice, wishes=wishes[voice.role].skills) if voice.role in wishes else voice for voice in voices]


def _width(phase: Phase, low: int, high: int) -> int:
    return min(max(phase.width, low), high)


def outline(plan: Plan, mode: DebugMode) -> tuple[tuple[str, int], ...]:
    """The phases as the dashboard shows them: each with its voices, where nothing alarming adds one."""
    return tuple((phase.name, _width(phase, *plan.width)) for phase in mode.phases)


def ruling(ledger: Hypotheses, stopped: str = "") -> Verdict:
    """How a case ends: with a cause that evidence supports, or unresolved; `stopped` tells why it ended early."""
    roots = ledger.of("supported")
    left = ", ".join(item.id for item in ledger.of("open"))
    found = (
        f"root cause: {'; '.join(f'{item.id}: {item.text[:SHOWN]}' for item in roots)}"
        if roots
        else f"unresolved: the root cause is not established; {f'open: {left}' if left else 'nothing is left open'}"
    )
    if stopped:
        return Verdict("stopped", f"{stopped}; {found}")
    return Verdict("converged" if roots else "max_turns", f"all seven phases ran; {found}")


# -- one phase -------------------------------------------------------------------------------------


def _checks(course: Course) -> Checks:
    """What code found out about citations so far; what it had no time to look at is not refuted."""
    refuted = frozenset(citation for citation, why in course.unverified.items() if why != TOO_MANY)
    return Checks(frozenset(course.verified), refuted)


def _shape(course: Course, phase: Phase, case: _Case, voices: Sequence[Voice]) -> Shape:
    """How the turn of a phase is worded and checked. A refuter sees the hypotheses without their evidence."""
    ledger, shown = case.ledger, case.ledger.data(_checks(course))
    told = {
        "phase": phase.name,
        "goal": phase.goal,
        "number": PHASES.index(phase.name) + 1,
        "phases": list(PHASES),
        "must": list(phase.must),
        "hypotheses": shown,
        "next_id": ledger.following,
        "fixes": [{"artifact": artifact, "diff": diff} for artifact, diff in case.fixes],
    }
    bare = [{**item, "status": "open", "evidence": []} for item in shown]

    def synthesis(band: tuple[int, int], roles: tuple[str, ...]) -> CaseSynthesis:
        return CaseSynthesis(SynthesisFormat(band, roles), ledger)

    shape = Shape(
        format=CaseFormat(ledger, phase.must),
        directive=synthesis,
        brief={**told, "part": "voice"},
        sums={**told, "part": "synthesis", "include": {"phase": MODE}},
        include={"phase": MODE},
    )
    return replace(shape, own={voice.name: {"hypotheses": bare} for voice in voices if voice.role in shape.fresh})


def _learn(course: Course, case: _Case, phase: Phase, heard: Heard) -> None:
    """Take a turn into the ledger, and keep its fixes and positions for the report."""
    turn, before = len(course.record.turns), case.ledger
    said = [(voice, reply.call, cast(CaseData, reply.data)) for voice, reply in heard.present]
    proposed = [(voice.name, wish) for voice, _, data in said for wish in data.hypotheses]
    wishes = cast(CaseDirective, heard.directive).hypotheses
    case.ledger = before.after(turn, wishes, proposed, _checks(course))
    course.flags += [f"turn {turn}: {flag}" for flag in _doubts(before, case.ledger, wishes, proposed)]
    fixes = {
        diff: artifact for artifact, diff in reversed([*case.fixes, *((name, data.fix) for _, name, data in said)])
    }
    case.fixes = [(artifact, diff) for diff, artifact in reversed(fixes.items()) if diff]
    case.timeline.append(
        {
            "turn": turn,
            "phase": phase.name,
            "confidence": heard.directive.confidence,
            "positions": [{"role": voice.name, "text": data.position} for voice, _, data in said],
        }
    )


def _doubts(
    before: Hypotheses,
    after: Hypotheses,
    wishes: Sequence[HypothesisWish],
    proposed: Sequence[tuple[str, HypothesisWish]],
) -> list[str]:
    """What a reader should know about changes of status: those not made, and those that no voice asked for."""
    asked = {wish.id for wish in wishes if wish.status == "open"}
    found = [
        f"{old.id} is open again: none of the evidence that made it {old.status} holds"
        for old in before.of("supported", "ruled-out")
        if (now := after.get(old.id)) and now.status == "open" and old.id not in asked
    ]
    for wish in wishes:
        item, old = after.get(wish.id), before.get(wish.id)
        if item is None or wish.status == (old.status if old else "open"):
            continue
        if item.status != wish.status:
            found.append(f"{item.id} stays {item.status}: what was to make it {wish.status} cites what does not hold")
            continue
        names = {name.casefold() for name in wish.merges}
        backed = any(
            own.status == wish.status and (own.id == wish.id if old else f"{voice}/{own.id}".casefold() in names)
            for voice, own in proposed
        )
        if not backed:
            found.append(f"{item.id} became {item.status} by the synthesis's own reading: no voice reported it so")
    return found


# -- the end ---------------------------------------------------------------------------------------


def _unchecked(ledger: Hypotheses, checks: Checks) -> list[str]:
    """What a reader should know about hypotheses that were settled by nobody's word but a voice's."""
    return [
        f"{item.id} is {item.status} by what was reported alone: no voice can run anything, and nobody checked it"
        for item in ledger.of("supported", "ruled-out")
        if checks.best(item.evidence) == "reported"
    ]


def _final(course: Course, case: _Case) -> FinalShape:
    """How the analysis is worded and checked."""
    checks = _checks(course)
    data = {
        "hypotheses": case.ledger.data(checks),
        "roots": [item.id for item in case.ledger.of("supported")],
        "fixes": [{"artifact": artifact, "diff": diff} for artifact, diff in case.fixes],
        "timeline": case.timeline,
    }
    form = RcaFormat(final_form(course.record), case.ledger, tuple(case.fixes), checks)
    return FinalShape(template=FINAL, form=form, data=data)
