"""Chooses the program of a plan: mission, plain deliberation, audit, or the program that the mode's document names.

Each program is imported only when a plan needs it, so that commands start fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cdo.content.library import FIX, Library
from cdo.core.errors import ContentError
from cdo.core.steps import Batch, Collect, Program, Review
from cdo.planning.plan import AUDIT, Plan
from cdo.programs.deliberation.program import deliberate

if TYPE_CHECKING:
    from cdo.cabal.files.final_report import Delivery
    from cdo.core.usage import TotalUsage
    from cdo.programs.debug.program import DebugMode
    from cdo.programs.deliberation.conclusion import Outcome
    from cdo.programs.parliament.program import ParliamentMode
    from cdo.session.artifact import Artifact


def program(plan: Plan, library: Library) -> Program[Outcome | Delivery]:
    """Return the program of a plan, not yet started; raise `ContentError` if its mode's document is wrong."""
    if plan.crew:
        from cdo.cabal.asking import MissionContext
        from cdo.cabal.program import cabal

        plan.crew.require_known_rules()
        return cabal(plan, plan.crew, MissionContext.begin(plan, plan.crew))
    if plan.mode is None:
        return deliberate(plan)
    if plan.mode == AUDIT:
        from cdo.programs.audit import program as audit

        return audit.program(plan)
    match kind := _kind(plan.mode, library):
        case "phases":
            from cdo.programs.debug.program import debug

            return debug(plan, _phases(plan.mode, library))
        case "parliament":
            from cdo.programs.parliament.program import parliament

            return parliament(plan, _house(plan.mode, library))
    from cdo.programs.extensions import extension

    if added := extension(kind):
        return added(plan, library.load(f"modes/{plan.mode}").meta)
    path = library.find(f"modes/{plan.mode}")[1]
    found = f", and not `{kind}`" if kind else ""
    raise ContentError(
        f"{path}: `program` must be phases or parliament, or one that an installed package adds{found}.", FIX
    )


def _kind(mode: str, library: Library) -> str:
    """Return the program that a mode's document names."""
    return str(library.load(f"modes/{mode}").meta.get("program", ""))


def _phases(mode: str, library: Library) -> DebugMode:
    from cdo.programs.debug.program import DebugMode

    return library.read(f"modes/{mode}", DebugMode)[0]


def _house(mode: str, library: Library) -> ParliamentMode:
    from cdo.programs.parliament.program import ParliamentMode

    return library.read(f"modes/{mode}", ParliamentMode)[0]


def phased(plan: Plan, library: Library) -> bool:
    """True if each turn is a phase of its own: the voices of turn 1 then do not answer the question itself."""
    return plan.mode in library.names("modes") and _kind(plan.mode, library) == "phases"


def page(outcome: Outcome, kept: Mapping[str, Artifact], asked: Mapping[str, str], used: TotalUsage) -> Artifact:
    """Return FINAL.md before the record is added: the reply of the call `final`, or an audit's report.

    `kept` are the artifacts by call, `asked` names the model that each call asked last, `used` is the run's usage.
    """
    if "final" in kept:
        return kept["final"]
    from cdo.programs.audit.program import Audited
    from cdo.programs.audit.report import report

    assert isinstance(outcome, Audited)
    return report(outcome, asked, used.calls, used.known_cost)


def outline(plan: Plan, library: Library) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return the phases of a mode (name and number of voices of each), and when the mode ends, in words.

    Both are empty for plain deliberation, where each turn depends on the one before, and for audits and missions.
    """
    if plan.crew or plan.mode in (None, AUDIT):
        return (), ""
    kind = _kind(plan.mode, library)
    if kind == "phases":
        from cdo.programs.debug import program as debug

        phases = _phases(plan.mode, library)
        return debug.outline(plan, phases), phases.ends
    if kind != "parliament":
        return (), str(library.load(f"modes/{plan.mode}").meta.get("ends", ""))
    from cdo.programs.parliament import program as parliament

    house = _house(plan.mode, library)
    return parliament.outline(house), house.ends


def first_turn(plan: Plan, library: Library) -> Batch:
    """Return the calls of the first turn, as the program makes them if no person changes anything."""
    running = program(plan, library)
    step = next(running)
    while not isinstance(step, Batch):
        answer = step.format.parse("decision: go") if isinstance(step, Review) else ()
        step = running.send(answer if isinstance(step, Review | Collect) else None)
    running.close()
    return step
