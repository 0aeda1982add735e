"""Takes back acceptances that what happened since contradicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from cdo.cabal.model.entities import Collab, MissionStep, Status
from cdo.cabal.model.events import recorded
from cdo.cabal.model.state import MissionState


def reopened(
    state: MissionState, product: str, step: MissionStep, actor: str, why: str, *, delivered: bool = False
) -> MissionState:
    """Set the product and the containers around it back to in progress if they were accepted, with an event each.

    `why` is a clause without ids: "its definition of done changed". Call this for any change of an accepted product.
    With `delivered`, the version that was accepted stays delivered; otherwise no version of the product does.
    """
    pinned = state.acceptances.get(product) or state.earlier.get(product)
    state = taken_back(state, (product, *containers(state, product)), step, actor, why)
    earlier = {id: held for id, held in state.earlier.items() if id != product}
    if delivered and pinned and pinned.version:
        earlier[product] = pinned
    return state if earlier == state.earlier else replace(state, earlier=earlier)


def objected(state: MissionState, collab: Collab, step: MissionStep, actor: str, why: str) -> MissionState:
    """Reopen the product of a new blocking collab.

    An earlier version stays delivered if the collab is on a newer one. It also does if a command that no longer
    passes is the reason: what others drafted since may be the cause.
    """
    pinned = state.earlier.get(collab.product)
    apart = pinned is not None and (collab.version != pinned.version or _by_command(state, collab))
    return reopened(state, collab.product, step, actor, why, delivered=apart)


def _by_command(state: MissionState, collab: Collab) -> bool:
    """True if a collab comes from a finding on a criterion that a command tests."""
    found = state.inspections.get(collab.finding)
    named = {item.criterion for item in (found.findings if found else ()) if item.collab == collab.id}
    return any(item.id in named and item.check.kind == "command" for item in state.products[collab.product].dod)


def taken_back(state: MissionState, products: Iterable[str], step: MissionStep, actor: str, why: str) -> MissionState:
    """Remove the acceptances of these products, with an event for each one removed."""
    for id in products:
        if id in state.acceptances:
            item = replace(state.products[id], status=Status.IN_PROGRESS)
            kept = {other: held for other, held in state.acceptances.items() if other != id}
            state = replace(state, products={**state.products, id: item}, acceptances=kept)
            state = recorded(state, step, "reopened", actor, f"{item.name} was reopened: {why}", id)
    return state


def containers(state: MissionState, product: str) -> Iterator[str]:
    """Yield the containers around a product, innermost first: their acceptance depends on it.

    A Decision between them is skipped: it is accepted on its own, but the products below it are parts of the
    container.
    """
    above = state.products[product].parent
    while above is not None:
        if state.products[above].container:
            yield above
        above = state.products[above].parent
