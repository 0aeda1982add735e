"""Runs the mode `debug`: a root-cause analysis in seven phases of one turn each. Pure.

reproduce → isolate → hypothesize → verify → fix → validate → document. The phases are fixed: only the human ends the
run before the last one, never confidence or agreement. A hypothesis stays possible until evidence rules it out, and
is called a cause only if evidence supports it. If a person edits the plan, its criteria for conflicts and agreement
apply, but its `turns` cannot change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.content.schemas import Count
from cdo.core.schema import Line, Schema
from cdo.core.steps import Batch, Program, Reply, RunCheck
from cdo.formats.role_names import RoleName
from cdo.formats.voice import SynthesisFormat
from cdo.formats.voice_blocks import VoiceData
from cdo.planning.plan import Plan
from cdo.programs.debug.check_runs import CheckRuns
from cdo.programs.debug.evidence import Checks
from cdo.programs.debug.hypotheses import SHOWN, Duty, Hypotheses, HypothesisWish
from cdo.programs.debug.reply_formats import CaseData, CaseDirective, CaseFormat, CaseSynthesis
from cdo.programs.debug.root_cause_report import RcaFormat
from cdo.programs.deliberation.alerts import Alarms, ask_to_stop, check_alerts
from cdo.programs.deliberation.calls import TurnTemplate, Voice, rotated, seated
from cdo.programs.deliberation.conclusion import FinalTemplate, Outcome, conclude, final_form
from cdo.programs.deliberation.convergence import StopReason
from cdo.programs.deliberation.turn import RunState, TurnResult
from cdo.repository.citations import TOO_MANY

PHASES = ("reproduce", "isolate", "hypothesize", "verify", "fix", "validate", "document")
MODE = "modes/debug"  # its body becomes part of the prompts for voices and syntheses
FINAL = "engine/rca-protocol"
GO_ON = "go on with a referee"
MOST_PATCHES = 4  # most patches that the person's command is run with
T = TypeVar("T")


class Phase(Schema, frozen=True, kw_only=True):
    """One phase: its preferred roles, its number of voices, and what each voice must bring."""

    name: Literal["reproduce", "isolate", "hypothesize", "verify", "fix", "validate", "document"]
    goal: str
    roles: tuple[RoleName, ...]
    width: Count
    must: tuple[Duty, ...] = ()


class DebugMode(Schema, frozen=True, kw_only=True):
    """`modes/debug.md`: the seven phases, and what `ends` them; the body explains them to the models.

    `people` says whether people may have a seat. They put no hypotheses on the ledger: the synthesis takes up what
    they say.
    """

    purpose: str
    load_when: str
    about: str
    program: Literal["phases"]
    ends: Line
    people: bool = False
    phases: tuple[Phase, ...]

    def require_sound(self) -> None:
        if tuple(phase.name for phase in self.phases) != PHASES:
            raise ValueError(f"`phases`: must be the phases {', '.join(PHASES)}, in this order")


class _CaseState(Struct):
    """The state of a case: the ledger, the fixes as (artifact, diff), and the positions of each phase.

    `places` says where the words that replies quote were found. `runs` are the runs of the person's command.
    """

    ledger: Hypotheses = field(default_factory=Hypotheses)
    fixes: list[tuple[str, str]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    runs: CheckRuns = field(default_factory=CheckRuns)

    @property
    def best_fixes(self) -> list[tuple[str, str]]:
        """The fixes with which the person's command passes; all fixes if there is none."""
        passing = [(artifact, diff) for artifact, diff in self.fixes if artifact in self.runs.passing]
        return passing or self.fixes


def debug(plan: Plan, mode: DebugMode) -> Program[Outcome]:
    """Run the seven phases of a case to its outcome; a domain's team is the first `start` of the plan's roles."""
    course, case, alarms, heard = RunState(plan), _CaseState(), Alarms(), None
    stopped, team = "", plan.roles[: plan.start] if plan.domain else ()
    if plan.check:
        case.runs = CheckRuns((yield RunCheck("t1-check", plan.check.command)))
    for phase in mode.phases:
        if phase.name == "validate" and plan.check:
            yield from _try_fixes(course, case, plan.check.command)
        chosen = compose(course, phase, alarms, team)
        course.plan = replace(course.plan, start=len(chosen))  # the band of this phase
        voices = yield from course.prepare(chosen)
        if course.plan.turns != plan.turns:
            course.plan = replace(course.plan, turns=plan.turns)
            course.flags.append(f"turn {course.turn}: turns are fixed in debug, so the plan's change was left out")
        if course.stop and heard:
            stopped = "you said that it is done"
            break
        hearing = course.hear(voices, _shape(course, phase, case, voices), before=heard)
        heard = yield from _noting(case, hearing)
        _learn(course, case, phase, heard)
        alarms = check_alerts(course)
        if phase is not mode.phases[-1] and (yield from ask_to_stop(course, alarms, GO_ON)):
            stopped = "you asked for the result"
            break
    assert heard is not None  # a human cannot end the run before its first turn
    course.flags += _unchecked(case.ledger, _checks(course, case))
    return (yield from conclude(course, ruling(case.ledger, stopped, case.runs), heard, _final(course, case)))


def _try_fixes(course: RunState, case: _CaseState, command: str) -> Program[None]:
    """Run the person's command with each patch that was proposed, so that the phase validate sees the results."""
    for number, (artifact, diff) in enumerate(case.fixes[:MOST_PATCHES], 1):
        run = yield RunCheck(f"t{course.turn}-check-{number}", command, diff)
        if run:
            case.runs = case.runs.with_patch(artifact, run)
    if left := [artifact for artifact, _ in case.fixes[MOST_PATCHES:]]:
        course.flags.append(f"turn {course.turn}: the check was not run with the patch of {', '.join(left)}")


def _noting(case: _CaseState, program: Program[T]) -> Program[T]:
    """Pass on the steps of a program, and store where the words that its replies quote were found."""
    answer: Any = None
    while True:
        try:
            step = program.send(answer)
        except StopIteration as stop:
            return cast(T, stop.value)
        answer = yield step
        for reply in cast("tuple[Reply, ...]", answer) if isinstance(step, Batch) else ():
            # Words that were found once stay found.
            case.places |= {words: place or case.places.get(words, "") for words, place in reply.places.items()}


def compose(course: RunState, phase: Phase, alarms: Alarms, team: Sequence[str] = ()) -> list[Voice]:
    """Return the voices of a phase.

    Seats go to the domain's `team` (each phase starts at another member), then to the phase's first role, the roles
    that the directive gives a charge, the phase's other roles and the plan's roles. The phase's first role and the
    charged roles take seats from the team, but leave it at least one. A refuter and a referee get additional seats if
    the plan's width allows it, else the last seats.
    """
    plan, (low, high) = course.plan, course.plan.width
    extra = [*(["referee"] if alarms.conflict else []), *(["refuter"] if alarms.suspicious else [])][
        : max(1, high - 1)
    ]
    width = min(_width(phase, low, high) + len(extra), high)
    wishes = {wish.name: wish for wish in (course.directive.roles if course.directive else ())}
    charges = {**plan.charges, **{name: wish.charge for name, wish in wishes.items() if wish.charge}}
    charged = [name for name, wish in wishes.items() if wish.charge and name != phase.roles[0]]
    left = max(0, width - len(extra))
    apart = {*extra, *(seat.role for seat in plan.people)}  # seated otherwise
    own = [role for role in (phase.roles[0], *charged) if role not in apart]
    mates = [role for role in rotated(team, PHASES.index(phase.name)) if role not in own and role not in extra]
    kept = max(1, left - len(own))
    wanted = [*mates[:kept], *own, *mates[kept:], *(role for role in phase.roles if role not in apart)]
    voices = seated(wanted, [*plan.roles, *plan.known_roles], left, charges)
    voices += [Voice(role, role, 1, charges.get(role, "")) for role in extra[:width]]
    return [replace(voice, wishes=wishes[voice.role].skills) if voice.role in wishes else voice for voice in voices]


def _width(phase: Phase, low: int, high: int) -> int:
    return min(max(phase.width, low), high)


def outline(plan: Plan, mode: DebugMode) -> tuple[tuple[str, int], ...]:
    """Return the phases for the dashboard as (name, voices), without voices that an alert would add."""
    return tuple((phase.name, _width(phase, *plan.width)) for phase in mode.phases)


def ruling(ledger: Hypotheses, stopped: str = "", runs: CheckRuns | None = None) -> StopReason:
    """Return how a case ends: with a cause that evidence supports, or unresolved. `stopped` says why it ended early.

    If the person's command was run, `runs` must also confirm the cause: the command failed before, and passes with a
    patch.
    """
    roots = ledger.of("supported")
    left = ", ".join(item.id for item in ledger.of("open"))
    shown = runs.verdict if runs else ""
    found = (
        f"root cause: {'; '.join(f'{item.id}: {item.text[:SHOWN]}' for item in roots)}"
        if roots
        else f"unresolved: the root cause is not established; {f'open: {left}' if left else 'nothing is left open'}"
    )
    confirmed = runs is None or not shown or bool(runs.passing)
    if shown:
        found += f"; {('confirmed: ' if confirmed else 'not confirmed: ') if roots else ''}{shown}"
    if stopped:
        return StopReason("stopped", f"{stopped}; {found}")
    return StopReason("converged" if roots and confirmed else "max_turns", f"all seven phases ran; {found}")


# -- one phase -------------------------------------------------------------------------------------


def _checks(course: RunState, case: _CaseState) -> Checks:
    """Return what code found out about evidence so far; citations that it did not look up are not refuted."""
    refuted = frozenset(citation for citation, why in course.unverified.items() if why != TOO_MANY)
    return Checks(frozenset(course.verified), refuted, frozenset(course.existing), case.places)


def _shape(course: RunState, phase: Phase, case: _CaseState, voices: Sequence[Voice]) -> TurnTemplate:
    """Return the prompts and formats of a phase. A refuter sees the hypotheses without status and evidence."""
    ledger, shown = case.ledger, case.ledger.data(_checks(course, case))
    told = {
        "phase": phase.name,
        "goal": phase.goal,
        "number": PHASES.index(phase.name) + 1,
        "phases": list(PHASES),
        "must": list(phase.must),
        "hypotheses": shown,
        "next_id": ledger.following,
        "fixes": [{"artifact": artifact, "diff": diff} for artifact, diff in case.fixes],
        "check": case.runs.data(),
    }
    bare = [{**item, "status": "open", "evidence": []} for item in shown]

    def synthesis(band: tuple[int, int], roles: tuple[str, ...], voices: tuple[str, ...]) -> CaseSynthesis:
        return CaseSynthesis(SynthesisFormat(band, roles, voices), ledger)

    shape = TurnTemplate(
        format=CaseFormat(ledger, phase.must),
        directive=synthesis,
        brief={**told, "part": "voice"},
        sums={**told, "part": "synthesis", "include": {"phase": MODE}},
        include={"phase": MODE},
    )
    return replace(shape, own={voice.name: {"hypotheses": bare} for voice in voices if voice.role in shape.fresh})


def _learn(course: RunState, case: _CaseState, phase: Phase, heard: TurnResult) -> None:
    """Add a turn to the ledger, and keep its fixes and positions for the report."""
    turn, before = len(course.record.turns), case.ledger
    said = [(voice, reply.call, cast(VoiceData, reply.data)) for voice, reply in heard.present]
    cases = [(voice.name, call, data) for voice, call, data in said if isinstance(data, CaseData)]
    proposed = [(name, wish) for name, _, data in cases for wish in data.hypotheses]
    wishes = cast(CaseDirective, heard.directive).hypotheses
    checks = _checks(course, case)
    case.ledger = before.after(turn, wishes, proposed, checks)
    course.flags += [f"turn {turn}: {flag}" for flag in _doubts(before, case.ledger, wishes, proposed, checks)]
    fixes = {
        diff: artifact for artifact, diff in reversed([*case.fixes, *((call, data.fix) for _, call, data in cases)])
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
    checks: Checks,
) -> list[str]:
    """Return flags for the reader: hypotheses reopened, changes of status not made, and changes no voice reported."""
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
            found.append(f"{item.id} stays {item.status}: what was to make it {wish.status} {_why_not(wish, checks)}")
            continue
        names = {name.casefold() for name in wish.merges}
        backed = any(
            own.status == wish.status and (own.id == wish.id if old else f"{voice}/{own.id}".casefold() in names)
            for voice, own in proposed
        )
        if not backed:
            found.append(f"{item.id} became {item.status} by the synthesis's own reading: no voice reported it so")
    return found


def _why_not(wish: HypothesisWish, checks: Checks) -> str:
    """Return why the evidence of a wish carries no status."""
    kinds = {checks.kind(item) for item in wish.evidence}
    if "not found" in kinds:
        return "stands neither in the question nor in the context, the repository or the record of a command"
    return "cites what does not hold" if "refuted" in kinds else "quotes nothing that code could look up"


# -- the end ---------------------------------------------------------------------------------------


def _unchecked(ledger: Hypotheses, checks: Checks) -> list[str]:
    """Return flags for the reader: hypotheses that rest only on reports in the question or the context."""
    return [
        f"{item.id} is {item.status} by what the question or the context reports alone: nobody here checked it"
        for item in ledger.of("supported", "ruled-out")
        if checks.best(item.evidence) == "reported"
    ]


def _final(course: RunState, case: _CaseState) -> FinalTemplate:
    """Return the prompt and the format of the report."""
    checks = _checks(course, case)
    data = {
        "hypotheses": case.ledger.data(checks),
        "roots": [item.id for item in case.ledger.of("supported")],
        "fixes": [{"artifact": artifact, "diff": diff} for artifact, diff in case.best_fixes],
        "timeline": case.timeline,
        "check": case.runs.data(),
    }
    form = RcaFormat(final_form(course.record), case.ledger, tuple(case.best_fixes), checks)
    return FinalTemplate(template=FINAL, form=form, data=data, record=case.runs.section())
