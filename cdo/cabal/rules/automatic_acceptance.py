"""Accepts every product that lacks nothing: no agent is asked for a verdict that the record holds already. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from cdo.cabal.model.entities import Acceptance, MissionStep, Product, Status
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance
from cdo.core.mission_names import CHAIR

NO_WAIVERS: Mapping[str, str] = {}


def accepted(state: MissionState, step: MissionStep, waivers: Mapping[str, str] = NO_WAIVERS) -> MissionState:
    """Accept all products that lack nothing, children before parents, with an event each that says why.

    `waivers` are the chair's reasons, by product, to let a version pass though its inspection wants a revision.
    """
    for item in sorted(acceptance.unaccepted(state), key=lambda item: -acceptance.depth(state, item)):
        if not acceptance.missing_for_acceptance(state, item.id):
            state = _accept(state, step, item, "")
        elif (waiver := waivers.get(item.id, "")) and not acceptance.missing_for_acceptance(state, item.id, waiver):
            state = _accept(state, step, item, waiver)
    return state


def _accept(state: MissionState, step: MissionStep, item: Product, waiver: str) -> MissionState:
    found, latest = acceptance.current(state, item.id), state.latest(item.id)
    assert found is not None  # nothing is accepted without an inspection
    version, sha = (latest.id, latest.sha) if latest and not item.container else ("", "")
    pinned = Acceptance(item.id, version, sha, item.dod_sha, found.id, waiver, state.round)
    state = replace(
        state,
        products={**state.products, item.id: replace(item, status=Status.ACCEPTED)},
        acceptances={**state.acceptances, item.id: pinned},
        earlier={id: held for id, held in state.earlier.items() if id != item.id},
    )
    if waiver:
        why = f"{item.name} may pass without a revision: {told(state, waiver)}"
        state = recorded(state, step, "waived", CHAIR, why, item.id, found.id)
    count = len(item.dod)
    met = "its criterion is met" if count == 1 else f"all {count} criteria are met"
    said = f"{item.name} was accepted: {met}, and nothing open is against it"
    return recorded(state, step, "accepted", "code", said, item.id, found.id)
