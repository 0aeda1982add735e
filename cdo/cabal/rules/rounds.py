"""Begins a mission, opens and closes its rounds, and halts it. Pure."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from cdo.cabal.model.entities import FIRST, STEPS, Assignment, MissionStep, Status
from cdo.cabal.model.events import recorded
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules.objectives import set_objectives
from cdo.cabal.rules.versions import staled
from cdo.core.mission_names import CHAIR, operatives
from cdo.planning.mission_crew import RULES

_TOUCHING = ("mission", "objectives", "constraints")  # parts of the charter that acceptances depend on
_CHARTER = {"mission": "the mission", "personas": "the personas", "domains": "the operatives' domains"}
_SETTLED = ("confirmed", "waived")  # ways to close a blocker that count as progress


def begin(request: str, team: int, *, exec: bool = False, sign_off: bool = False, rules: int = RULES) -> MissionState:
    """Return the initial state of a mission; `team` is the number of operatives.

    With `exec`, commands may run. With `sign_off`, the person has to sign the mission off. `rules` is the version of
    the rules that it was begun under.
    """
    return MissionState(request, operatives(team), exec=exec, sign_off=sign_off, rules=rules)


def open_round(state: MissionState) -> MissionState:
    """Open the next round: overrides take effect, data of the last round lapses, a halt ends.

    If the mission, its objectives or constraints change, all inspections and acceptances become invalid.
    """
    lapsed = [item for item in state.assignments.values() if not _kept(state, item)]
    # Keep remarks visible until the next plan, however many inspections came after them.
    said = [item for item in state.remarks if item.round == state.round]
    remarks = tuple(replace(item, at=max(item.at, state.at - len(STEPS) + 2)) for item in said)
    opened = replace(
        state, round=state.round + 1, assignments={}, reflections=(), remarks=remarks, pending={}, halt="", why=""
    )
    for item in lapsed:
        text = f"{state.products[item.product].name}: no version came of last round's assignment"
        opened = recorded(opened, FIRST, "lapsed", "code", text, item.product)
    return _overridden(opened, state)


def _kept(state: MissionState, order: Assignment) -> bool:
    """True if the writer wrote the assigned product in the assignment's round, or if the product is archived."""
    if state.products[order.product].status is Status.ARCHIVED:
        return True
    versions = reversed(state.products[order.product].versions)
    written = (state.versions[id] for id in versions)
    return any(item.author == order.writer for item in written if item.round == order.round)


def _overridden(opened: MissionState, before: MissionState) -> MissionState:
    """Apply the overrides that were ordered in the last round."""
    if before.mission is None or not before.pending:
        return opened
    opened = replace(opened, mission=replace(before.mission, **before.pending))
    names = {key: _CHARTER.get(key, f"the {key}") for key in before.pending}
    text = f"What the chair changed holds from now on: {listed(names.values())}"
    opened = recorded(opened, FIRST, "override", "code", text)
    if "objectives" in before.pending:
        opened = set_objectives(opened, before.mission.objectives, FIRST, CHAIR)
    if touching := [name for key, name in names.items() if key in _TOUCHING]:
        inspected = {item.product for item in before.inspections.values()}
        for product in before.live():
            if product.id in inspected:
                opened = staled(opened, FIRST, "code", product.id, f"{listed(touching)} changed")
    return opened


def stepped(state: MissionState) -> MissionState:
    """Return the state at the beginning of the next step."""
    return replace(state, at=state.at + 1)


def close_round(before: MissionState, after: MissionState) -> MissionState:
    """Return `after` with the round counted as idle if there was no progress since `before`.

    A version by an operative or the person, an acceptance, a criterion newly met, a blocker confirmed or waived and a
    refused sign-off are progress. A changed definition of done is no progress, and neither is a withdrawn collab.
    """
    if _moved(before, after):
        return replace(after, idle=0)
    text = "Nothing moved in this round: no new version, no acceptance, no criterion newly met, no blocker closed"
    return recorded(replace(after, idle=after.idle + 1), MissionStep.INSPECT, "stall", "code", text)


def _moved(before: MissionState, after: MissionState) -> bool:
    accepted = any(before.acceptances.get(id) != pinned for id, pinned in after.acceptances.items())
    if accepted or after.sign_off_asked:
        return True
    if any(item.author != CHAIR for item in islice(after.versions.values(), len(before.versions), None)):
        return True
    if any(item.blocking and after.collabs[id].how in _SETTLED for id, item in before.collabs.items()):
        return True
    for item in islice(after.inspections.values(), len(before.inspections), None):
        old = before.inspection(item.product)
        if old is not None and old.dod != item.dod:
            continue
        had = {result.criterion for result in (old.results if old else ()) if result.passed}
        if any(result.passed and result.criterion not in had for result in item.results):
            return True
    return False


def halted(state: MissionState, kind: str, why: str) -> MissionState:
    """End the mission for the reason `why`, in words; `kind` is a value of `MissionState.halt`."""
    why = f"{why.rstrip(' .')}. The user has not signed it off." if state.sign_off and kind != "done" else why
    return recorded(
        replace(state, halt=kind, why=why), MissionStep.PRESENT, "halt", "code", f"The mission ended: {why}"
    )
