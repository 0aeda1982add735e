"""Who reads whose work before it is inspected. Pure (SPEC-cabal, peer review)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from cdo.cabal.model import references
from cdo.cabal.model.entities import MissionStep, Status
from cdo.cabal.model.events import recorded
from cdo.cabal.model.state import MissionState

_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter ones say nothing of a domain
_STEM = 6  # letters of a word that count: "authentication" and "authenticate" are of one domain


def reviewers(state: MissionState, products: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Who reviews the new versions of `products`, as products by operative, and what nobody can review.

    Each is read by one operative who neither owns nor wrote it: whose own work refers to it or is referred to most,
    then whose domain shares most words with it, then who has least to read, then the first of the team. Those whom
    the assignment names read it as well. What is archived or the chair's own is read by nobody.
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
    """The state with it told that nobody could review these products."""
    for id in products:
        text = f"{state.products[id].name} was not reviewed: there is no operative but its own"
        state = recorded(state, MissionStep.REVIEW, "unreviewed", "code", text, id)
    return state


def _links(state: MissionState) -> Mapping[str, Collection[str]]:
    """The products that the newest version of each product refers to."""
    found: dict[str, Collection[str]] = {}
    for product in state.products.values():
        latest = state.latest(product.id)
        if latest and product.status is not Status.ARCHIVED:
            found[product.id] = {id for kind, id in references.cited(latest.content) if kind == "p"}
    return found


def _linked(state: MissionState, links: Mapping[str, Collection[str]], agent: str, id: str) -> int:
    """How many products of an operative refer to a product or are referred to by it."""
    own = (product for product in links if state.products[product].owner == agent)
    return sum(id in links[product] or product in links.get(id, ()) for product in own)


def _domain(state: MissionState, agent: str) -> frozenset[str]:
    parts = state.mission.domains.get(agent, ()) if state.mission else ()
    return _stems(" ".join(parts))


def _stems(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM] for word in _WORD.findall(text.casefold()))
