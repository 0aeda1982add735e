"""Says why a product cannot have a name, an owner, a kind or a place in the tree, as clauses. Pure.

A Content holds nothing, a Collection only Contents, a Decision and an Orchestration anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cdo.cabal.model.entities import Kind, Product, Status
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance
from cdo.core.mission_names import CHAIR, ROOT

LEVELS = 12  # most levels of a tree; the root is level 1
PRODUCTS = 300  # most products of a mission that are not archived


def holds(parent: Kind, child: Kind) -> bool:
    """True if a product of kind `parent` may hold a product of kind `child`."""
    return parent is not Kind.CONTENT and (parent is not Kind.COLLECTION or child is Kind.CONTENT)


def held_wrongly(parent: Product, child: Kind) -> str:
    """Return that `parent` cannot hold a product of kind `child`, and why."""
    held = "nothing" if parent.kind is Kind.CONTENT else "only Content"
    return f"{parent.id} ({parent.name}) is a {parent.kind}, which holds {held}: no {child} can be below it"


def misnamed(name: str) -> Iterator[str]:
    """Yield why a product cannot have this name."""
    if not any(char.isalnum() for char in name) or "[[" in name:
        yield "its name must have a letter or a digit, and no reference"


def crowded(state: MissionState) -> Iterator[str]:
    """Yield why there can be no further product."""
    if sum(item.status is not Status.ARCHIVED for item in state.products.values()) >= PRODUCTS:
        yield f"there are {PRODUCTS} products, and no mission has more; REMOVE what is not needed"


def too_deep(state: MissionState, parent: Product, product: Product | None = None) -> Iterator[str]:
    """Yield a problem if `product` with its subtree (None: a new one) would be too deep below `parent`."""
    level = acceptance.depth(state, parent) + 1
    if product is not None:
        depths = [acceptance.depth(state, state.products[id]) for id in below(state, product.id)]
        level += max(depths) - depths[0]
    if level > LEVELS:
        yield f"the tree would have {level} levels, and {LEVELS} is the most; put it higher up"


def misowned(state: MissionState, owner: str | None) -> Iterator[str]:
    """Yield why nobody of this name can own a product."""
    if owner is not None and owner not in (*state.team, CHAIR):
        yield f"{owner} cannot own a product; {listed(state.team)} can"


def not_given(state: MissionState, product: Product, owner: str | None) -> Iterator[str]:
    """Yield why a product cannot be given to this owner.

    The chair's own products need no acceptance, so no existing product may become one of them.
    """
    yield from misowned(state, owner)
    if owner is None or owner == product.owner:
        return
    if product.meta or product.id == ROOT:
        yield "it stays with chair-1; ADD another product for an operative"
    elif owner == CHAIR:
        yield "chair-1 writes only what was its own from the beginning; leave it to an operative"


def undecidable(kind: Kind, preset: str, presets: Collection[str]) -> Iterator[str]:
    """Yield why a product of this kind cannot be decided by this preset; `presets` are those that there are."""
    if preset and kind is not Kind.DECISION:
        yield f"decide_by is for a Decision only; its type is {kind}"
    elif preset and preset not in presets:
        yield f"decide_by must be one of {listed(presets)}"


def mistyped(state: MissionState, product: Product, kind: Kind, stuck: Collection[str]) -> Iterator[str]:
    """Yield why a product cannot become one of this kind. Children in `stuck` do not count: why they stay is told."""
    if kind is product.kind:
        return
    if product.id == ROOT or product.meta:
        yield f"its type stays {product.kind}"
        return
    above = state.products[product.parent or ROOT]
    if not holds(above.kind, kind):
        yield held_wrongly(above, kind)
    held = (child for child in state.children(product.id) if child.id not in stuck)
    if bad := [child.id for child in held if not holds(kind, child.kind)]:
        yield f"a {kind} cannot hold {listed(bad)}; move or remove them first"
    latest = state.latest(product.id)
    if latest and kind in (Kind.COLLECTION, Kind.ORCHESTRATION):
        yield f"it has versions of its own, and no {kind} has any"
    if latest and kind is Kind.DECISION and not latest.outcome:
        yield "its newest version states no outcome, and a Decision has one; ADD a Decision"


def below(state: MissionState, id: str) -> list[str]:
    """Return the ids of the product and of all unarchived products below it, from the top."""
    children: dict[str, list[str]] = {}
    for item in state.products.values():
        if item.parent is not None and item.status is not Status.ARCHIVED:
            children.setdefault(item.parent, []).append(item.id)
    found = [id]
    for each in found:  # grows during the iteration
        found += children.get(each, ())
    return found
