"""Deliberates assigned Decisions that name a preset, each in a nested session. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cdo.cabal.asking import MissionContext
from cdo.cabal.context import pack as packs
from cdo.cabal.model.entities import Kind, MissionStep
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import citations, reducer
from cdo.core.formatting import one_line
from cdo.core.steps import CitationCheck, Nest, Nested, Program

SAID = 4000  # most characters of a line in a deliberation's context


def decided(state: MissionState, product: str) -> bool:
    """True if a deliberation gave this Decision a version in this round."""
    latest = state.latest(product)
    return bool(latest and latest.session and latest.round == state.round)


def decide(desk: MissionContext, most: int) -> Program[None]:
    """Run one deliberation for each assigned Decision with a preset and no version, while the cap allows it.

    A mission has at most `most` deliberations.
    """
    for product in list(desk.state.assignments):
        state = desk.state
        item = state.products[product]
        held = sum(bool(version.session) for version in state.versions.values())
        if item.kind is not Kind.DECISION or not item.decide_by or item.versions or held >= most:
            continue
        order = state.assignments[product]
        question = "\n\n".join(filter(None, (item.name, order.objective, order.why)))
        context = _context(state, product, order.attach)
        nest = Nest(f"r{state.round}-{product}", question, context, item.decide_by)
        result = cast("Nested | None", (yield nest))
        if result is None:
            desk.capped = "A cap ended a deliberation."
            return
        after = reducer.deliberated(
            state, product, result.decision, result.text, result.session, status=result.status
        )
        refuted = [CitationCheck(citation, verified=False, why=why) for citation, why in result.refuted]
        desk.state = citations.checked(state, after, MissionStep.WRITE, item.owner or "", refuted)


def _context(state: MissionState, product: str, attached: Sequence[str]) -> str:
    """Return the context of a nested deliberation: mission, past decisions, criteria, and the attached products."""
    mission = state.mission
    assert mission is not None  # nothing is assigned before the bootstrap
    told = [
        ("Request of the user", state.request),
        ("Mission", mission.mission),
        *(("Objective", item) for item in mission.objectives),
        *(("Constraint", item) for item in mission.constraints),
        *(("Decided", f"{name}: {outcome}") for name, outcome in packs.facts(state)),
        *(("It has to meet", item.text) for item in state.products[product].dod),
    ]
    parts = [f"- {word}: {one_line(text, SAID)}" for word, text in told]  # one line each: no text can add an entry
    for id in attached:
        if latest := state.latest(id):
            quoted = (f"> {line}" for line in latest.content.splitlines())  # so no line can end the quote
            parts += ["", f"## {one_line(state.products[id].name)}", "", *quoted]
    return "\n".join(parts)
