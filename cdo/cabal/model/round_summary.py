"""Summarises a finished round for observers: its results, and the product tree. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdo.cabal.model.entities import Collab, Inspection, Product
from cdo.cabal.model.names import speaker
from cdo.cabal.model.state import MissionState
from cdo.core.events import ProductData, RoundEnded
from cdo.core.mission_names import OWN


def bulletin(rounds: Sequence[MissionState]) -> RoundEnded:
    """Return the last of `rounds` (the states at their ends) as observers are told of it, with names of products."""
    state = rounds[-1]
    had = rounds[-2].versions if len(rounds) > 1 else {}
    name = {product.id: product.name for product in state.products.values()}
    live = state.live()
    return RoundEnded(
        name=f"r{state.round}",
        round=state.round,
        accepted=sum(item.id in state.acceptances for item in live),
        live=len(live),
        blockers=sum(item.blocking for item in state.collabs.values()),
        versions=[
            {"product": name[item.product], "number": item.number, "author": item.author, "summary": item.summary}
            for id, item in state.versions.items()
            if id not in had
        ],
        verdicts=[
            {"product": name[item.product], "verdict": item.verdict.value}
            for item in state.inspections.values()
            if item.round == state.round
        ],
        blocked=[
            {"product": item.name, "by": [collab.summary for collab in state.blockers(item.id)]}
            for item in live
            if state.blockers(item.id)
        ],
        taken=[name[item.product] for item in state.acceptances.values() if item.round == state.round],
        edited=[f"{item.ref}.md" for item in state.events if item.kind == "edited" and item.round == state.round],
        products=list(tree(state)),
        halt=state.halt,
        why=state.why,
    )


def tree(state: MissionState) -> tuple[ProductData, ...]:
    """Return the tree of products as live views show it, with the names of owners; () before there is one."""
    return tuple(
        {
            **row(item, depth, state.inspection(item.id), state.about(item.id)),
            "owner": speaker(state, item.owner) if item.owner else "",
        }
        for item, depth in state.walk()
    )


def row(product: Product, depth: int, inspection: Inspection | None, collabs: Iterable[Collab]) -> ProductData:
    """Return a product as live views and lists show it, with its blocking collabs.

    `inspection` is its newest one, whose verdict is left out once there is a newer version.
    """
    newest = product.versions[-1] if product.versions else ""
    verdict = inspection.verdict if inspection and inspection.version in ("", newest) else None
    return {
        "id": product.id,
        "name": product.name,
        "kind": product.kind.value,
        "depth": depth,
        "status": OWN if product.meta else product.status.value.replace("_", " "),
        "owner": product.owner or "",
        "version": len(product.versions),
        "version_id": newest,
        "verdict": verdict.value.replace("_", " ") if verdict else "",
        "blocked": [collab.summary for collab in collabs if collab.blocking],
    }
