"""Which program runs a plan: a mission, plain deliberation, or the one that the mode's document names."""

from __future__ import annotations

from cdo import audit
from cdo.cabal import reducer
from cdo.cabal.delivery import Delivery
from cdo.cabal.program import Desk, cabal
from cdo.content import MEND, Library
from cdo.debug import DebugMode, debug
from cdo.debug import outline as debugging
from cdo.deliberate import deliberate
from cdo.ending import Outcome
from cdo.errors import ContentError
from cdo.parliament import ParliamentMode, parliament
from cdo.parliament import outline as sitting
from cdo.plan import Plan
from cdo.types import Batch, Collect, Program, Review


def program(plan: Plan, library: Library) -> Program[Outcome | Delivery]:
    """The program of a plan, not yet begun; raise `ContentError` where its mode's document is wrong."""
    if plan.crew:
        return cabal(plan, plan.crew, Desk(reducer.begin(plan.topic, plan.crew.operatives)))
    if plan.mode is None:
        return deliberate(plan)
    if plan.mode == audit.MODE:
        return audit.program(plan)
    name = f"modes/{plan.mode}"
    match library.load(name).meta.get("program"):
        case "phases":
            return debug(plan, library.read(name, DebugMode)[0])
        case "parliament":
            return parliament(plan, library.read(name, ParliamentMode)[0])
    path = library.find(name)[1]
    raise ContentError(f"{path}: `program` must be phases or parliament.", MEND)


def phased(plan: Plan, library: Library) -> bool:
    """Whether each turn is a phase of its own, so that the voices of the first do not answer the question itself."""
    name = f"modes/{plan.mode}"
    return plan.mode in library.names("modes") and library.load(name).meta.get("program") == "phases"


def outline(plan: Plan, library: Library) -> tuple[tuple[tuple[str, int], ...], str]:
    """How a mode goes on after the first turn (name and voices of each phase), and when it ends, in words.

    Nothing for plain deliberation, where every turn is shaped by the one before, nor for audits and missions, which
    have none.
    """
    if plan.crew or plan.mode in (None, audit.MODE):
        return (), ""
    name = f"modes/{plan.mode}"
    if library.load(name).meta.get("program") == "phases":
        phases = library.read(name, DebugMode)[0]
        return debugging(plan, phases), phases.ends
    house = library.read(name, ParliamentMode)[0]
    return sitting(house), house.ends


def first_turn(plan: Plan, library: Library) -> Batch:
    """The calls of the first turn, as the program makes them when nobody changes anything."""
    running = program(plan, library)
    step = next(running)
    while not isinstance(step, Batch):
        answer = step.format.parse("decision: go") if isinstance(step, Review) else ()
        step = running.send(answer if isinstance(step, Review | Collect) else None)
    running.close()
    return step
