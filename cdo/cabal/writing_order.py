"""Orders the writing of a round: first Decisions, then what rests on them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cdo.cabal.context.pack import StepScope
from cdo.cabal.model.entities import Assignment, Kind
from cdo.cabal.model.references import cited
from cdo.cabal.model.state import MissionState
from cdo.cabal.nested_decisions import decided


def waves(state: MissionState) -> list[list[tuple[str, StepScope]]]:
    """Return the writers of this round with what they write, as one wave or two.

    The second wave has the products that rest on a Decision of the first wave by another writer. A writer of both
    writes them together: it knows what it decides.
    """
    orders = [item for item in state.assignments.values() if not decided(state, item.product)]
    rests = {item.product: _decisions(state, item, orders) for item in orders}
    second = [item for item in orders if rests[item.product]]
    first = [item for item in orders if item not in second]
    return [_briefs(state, wave, rests) for wave in (first, second) if wave]


def _briefs(
    state: MissionState, orders: Sequence[Assignment], rests: dict[str, tuple[str, ...]]
) -> list[tuple[str, StepScope]]:
    found: list[tuple[str, StepScope]] = []
    for agent in state.team:
        mine = tuple(item.product for item in orders if item.writer == agent)
        if mine:
            found.append(
                (agent, StepScope(mine, decisions=tuple(dict.fromkeys(d for id in mine for d in rests[id]))))
            )
    return found


def _decisions(state: MissionState, order: Assignment, orders: Sequence[Assignment]) -> tuple[str, ...]:
    """Return the Decisions that others write in this round and that an order rests on: a Decision rests on none.

    A product rests on what is attached to its order, what its order cites, and what it stands below in the tree.
    """
    if state.products[order.product].kind is Kind.DECISION:
        return ()
    told = " ".join((order.objective, order.dod, order.why, order.context))
    base = {*order.attach, *(id for kind, id in cited(told) if kind == "p")}
    above = state.products[order.product].parent
    while above is not None:
        base.add(above)
        above = state.products[above].parent
    return tuple(
        item.product
        for item in orders
        if item.product in base and item.writer != order.writer and state.products[item.product].kind is Kind.DECISION
    )
