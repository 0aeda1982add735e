"""How a mission begins, its rounds open and close, and it is halted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cdo.cabal.model.entities import MissionStep, Status
from cdo.cabal.rules import rounds
from cdo.cabal.rules.acceptance import current, due, missing_for_acceptance
from cdo.cabal.rules.versions import versioned
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, USER, WATCHDOG
from tests.support.missions import ALEX, JORDAN, REQUEST, todo
from tests.unit.cabal.test_reducer import kinds


def test_a_mission_begins_with_its_team_alone() -> None:
    state = rounds.begin(REQUEST, 2)
    assert (state.request, state.team, state.round, state.at) == (REQUEST, (ALEX, JORDAN), 0, 0)
    assert state.agents == (CHAIR, ALEX, JORDAN, WATCHDOG, ENVOY)


def test_a_round_opens_without_the_orders_of_the_last() -> None:
    before = todo(2)
    state = rounds.open_round(replace(before, halt="rounds", why="the cap is reached"))
    assert (state.round, state.assignments, state.reflections, state.halt, state.why) == (3, {}, (), "", "")
    assert kinds(state, before) == []  # p3 was assigned and written


def test_an_order_that_nobody_carried_out_has_lapsed() -> None:
    before = todo(1)
    order = replace(before.assignments["p4"], round=2)
    idle = replace(before, round=2, assignments={"p4": order})
    state = rounds.open_round(idle)
    (event,) = state.events[len(before.events) :]
    assert (event.kind, event.product, event.round) == ("lapsed", "p4", 3)
    written = versioned(idle, MissionStep.WRITE, ALEX, "p4", "x", "y", "z")
    assert kinds(rounds.open_round(written), written) == []
    by_another = versioned(idle, MissionStep.WRITE, USER, "p4", "x", "y", "z")
    assert kinds(rounds.open_round(by_another), by_another) == ["lapsed"]


@pytest.mark.parametrize(
    ("pending", "stale"),
    [
        ({"mission": "Another mission"}, True),
        ({"objectives": ("One",)}, True),
        ({"constraints": ()}, True),
        ({"personas": {CHAIR: "You are another."}}, False),
        ({"domains": {ALEX: ("All", "All")}}, False),
        ({}, False),
    ],
)
def test_overrides_hold_from_the_next_round_and_touch_what_was_accepted(pending: dict[str, Any], stale: bool) -> None:
    before = replace(todo(3), pending=pending)
    state = rounds.open_round(before)
    assert state.mission is not None and before.mission is not None and state.pending == {}
    assert state.mission == replace(before.mission, **pending)
    assert ("override" in kinds(state, before)) is bool(pending)
    if not stale:
        assert state.acceptances == before.acceptances
        return
    assert state.acceptances == {}
    for id in ("p3", "p4", "p5", ROOT):
        product = state.products[id]
        assert product.status is Status.IN_PROGRESS and product.stale_why.endswith("changed")
        event = state.events[product.stale_at - 1]
        assert (event.kind, event.product) == ("stale", id)


def test_a_new_charter_leaves_no_inspection_that_counts() -> None:
    before = replace(todo(2), pending={"objectives": ("Works offline",)})
    assert not before.acceptances and not missing_for_acceptance(before, "p4")
    state = rounds.open_round(before)
    assert all(current(state, id) is None for id in ("p3", "p4", "p5", ROOT))
    assert "the objectives changed" in missing_for_acceptance(state, "p4")[0]
    assert due(state) == ("p3", "p4", "p5")
    assert state.products["p2"].stale_at == 0


def test_rounds_in_which_nothing_moves_are_counted() -> None:
    before = replace(todo(2), idle=1)
    still = rounds.close_round(before, replace(before, round=3))
    assert (still.idle, kinds(still, before)) == (2, ["stall"])
    by_chair = versioned(before, MissionStep.PLAN, CHAIR, "p2", "Log", "Text", "Anew")
    assert rounds.close_round(before, by_chair).idle == 2


@pytest.mark.parametrize("author", [ALEX, USER])
def test_a_version_is_progress(author: str) -> None:
    before = replace(todo(2), idle=1)
    assert rounds.close_round(before, versioned(before, MissionStep.WRITE, author, "p4", "x", "y", "z")).idle == 0


def test_a_blocker_closed_and_a_criterion_newly_met_are_progress() -> None:
    before = replace(todo(1), idle=1)
    for how, idle in {"confirmed": 0, "waived": 0, "withdrawn": 2}.items():
        shut = replace(before.collabs["c2"], open=False, how=how)
        assert rounds.close_round(before, replace(before, collabs={**before.collabs, "c2": shut})).idle == idle
    minor = replace(before.collabs["c1"], open=False, how="confirmed")
    assert rounds.close_round(before, replace(before, collabs={**before.collabs, "c1": minor})).idle == 2
    old = before.inspections["i1"]
    again = {**before.inspections, "i3": replace(old, id="i3")}
    assert rounds.close_round(before, replace(before, inspections=again)).idle == 2
    met = replace(old, id="i3", results=tuple(replace(item, passed=True) for item in old.results))
    assert rounds.close_round(before, replace(before, inspections={**before.inspections, "i3": met})).idle == 0
    other = replace(met, dod="reworded")  # what has to be met now is another thing than what was not met before
    assert rounds.close_round(before, replace(before, inspections={**before.inspections, "i3": other})).idle == 2
    first = replace(met, product="p2")
    assert rounds.close_round(before, replace(before, inspections={**before.inspections, "i3": first})).idle == 0


def test_a_halt_is_told() -> None:
    state = rounds.halted(todo(1), "budget", "the cap of $1 is reached")
    assert (state.halt, state.why, state.events[-1].kind) == ("budget", "the cap of $1 is reached", "halt")
