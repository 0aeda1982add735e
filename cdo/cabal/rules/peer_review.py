"""Assigns operatives to review each other's new versions before the inspection. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from cdo.cabal.model import references
from cdo.cabal.model.entities import MissionStep, Status
from cdo.cabal.model.events import recorded
from cdo.cabal.model.state import MissionState

_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter words say nothing about a domain
_STEM = 6  # letters of a word that are compared, so that "authentication" matches "authenticate"


def reviewers(state: MissionState, products: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return which operative reviews which of `products`, by operative, and the products that none can review.

    Each product gets one reviewer that neither owns it nor wrote its newest version. The choice depends, in this
    order, on the number of references between the operative's own products and this one, the words that its domain
    shares with this product, the fewest reviews so far, and the order of the team. Reviewers named in the assignment
    review it as well. Archived products and the chair's own products are not reviewed.
    """
    links = _links(state)
    domains = {agent: _domain(state, agent) for agent in state.team}
    chosen: dict[str, list[str]] = {agent: [] for agent in state.team}
    alone: list[str] = []
    for id in dict.fromkeys(products):
        product, latest = state.products[id], state.latest(id)
        if product.meta or product.status is Status.ARCHIVED or latest is None:
            continue
        free = [agent for agent in state.team if agent not in (product.owner, latest.author)]
        if not free:
            alone.append(id)
            continue
        topic = _stems(f"{product.name} {latest.title} {' '.join(item.text for item in product.dod)}")
        order = {
            agent: (-_linked(state, links, agent, id), -len(domains[agent] & topic), len(chosen[agent]), place)
            for place, agent in enumerate(free)
        }
        named = state.assignments[id].reviewers if id in state.assignments else ()
        best = min(free, key=lambda agent: order[agent])
        for agent in free:
            if agent == best or agent in named:
                chosen[agent].append(id)
    return {agent: tuple(ids) for agent, ids in chosen.items() if ids}, tuple(alone)


def unreviewed(state: MissionState, products: Sequence[str]) -> MissionState:
    """Record an event for each of these products: no operative could review it."""
    for id in products:
        text = f"{state.products[id].name} was not reviewed: there is no operative but its own"
        state = recorded(state, MissionStep.REVIEW, "unreviewed", "code", text, id)
    return state


def _links(state: MissionState) -> Mapping[str, Collection[str]]:
    """Return the products that the newest version of each product refers to; archived products are left out."""
    found: dict[str, Collection[str]] = {}
    for product in state.products.values():
        latest = state.latest(product.id)
        if latest and product.status is not Status.ARCHIVED:
            found[product.id] = {id for kind, id in references.cited(latest.content) if kind == "p"}
    return found


def _linked(state: MissionState, links: Mapping[str, Collection[str]], agent: str, id: str) -> int:
    """Return how many products of an operative refer to a product or are referred to by it."""
    own = (product for product in links if state.products[product].owner == agent)
    return sum(id in links[product] or product in links.get(id, ()) for product in own)


def _domain(state: MissionState, agent: str) -> frozenset[str]:
    parts = state.mission.domains.get(agent, ()) if state.mission else ()
    return _stems(" ".join(parts))


def _stems(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM] for word in _WORD.findall(text.casefold()))
