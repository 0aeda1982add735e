"""The product tree: whatever the chair orders, it stays a tree of legal products, or nothing happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from cdo.cabal.model.entities import Kind, MissionStep, Status, identity
from cdo.cabal.model.events import recorded
from cdo.cabal.model.names import role
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import TreeOperation
from cdo.cabal.rules.acceptance import depth, holds
from cdo.cabal.rules.composition import LEVELS, PRODUCTS
from cdo.cabal.rules.product_tree import PRESETS, drafted
from cdo.cabal.rules.reopening import reopened
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, WATCHDOG
from tests.support.missions import ALEX, JORDAN, todo

Operation = dict[str, Any]
DOD = ["It says what it is for"]


def operations(*items: Operation) -> list[TreeOperation]:
    return [TreeOperation.model_validate(item) for item in items]


def add(new: str, parent: str = ROOT, type: str = "Content", **more: Any) -> Operation:
    return {
        "action": "ADD",
        "new_id": new,
        "parent_id": parent,
        "product": {"name": f"Part {new[4:]}", "type": type, "dod": DOD, **more},
    }


def update(id: str, **change: Any) -> Operation:
    return {"action": "UPDATE", "product_id": id, "product": change}


def move(id: str, parent: str) -> Operation:
    return {"action": "MOVE", "product_id": id, "parent_id": parent}


def remove(id: str) -> Operation:
    return {"action": "REMOVE", "product_id": id, "reason": "Nobody needs it"}


def operated(
    state: MissionState, items: Sequence[TreeOperation], presets: Sequence[str] = PRESETS
) -> tuple[MissionState, Mapping[str, str], tuple[str, ...]]:
    """As a plan takes operations: all of them or none."""
    draft = drafted(state, items, presets)
    return (state, {}, draft.problems) if draft.problems else (draft.state, draft.made, ())


def done(state: MissionState, *items: Operation) -> MissionState:
    after, _, problems = operated(state, operations(*items))
    assert problems == ()
    legal(after)
    return after


def refused(state: MissionState, *items: Operation) -> list[str]:
    after, made, problems = operated(state, operations(*items))
    assert problems
    assert after is state
    assert made == {}
    return list(problems)


def legal(state: MissionState) -> None:
    """What is true of every tree, said a second time and in another way than the code does."""
    items = state.products
    root = items[ROOT]
    assert (root.parent, root.kind, root.owner, root.meta) == (None, Kind.ORCHESTRATION, CHAIR, False)
    for id, item in items.items():
        assert item.id == id
        way = [id]
        while (parent := items[way[-1]].parent) is not None:
            assert parent not in way, "a ring"
            way.append(parent)
        assert way[-1] == ROOT, "an orphan"
        if item.status is Status.ARCHIVED:
            assert id != ROOT
            assert id not in state.acceptances
            continue
        if item.parent:
            above = items[item.parent]
            assert above.status is not Status.ARCHIVED, "alive below the dead"
            assert (above.kind, item.kind) not in {(Kind.CONTENT, kind) for kind in Kind}
            assert above.kind is not Kind.COLLECTION or item.kind is Kind.CONTENT
        assert item.name.strip() and item.name.isprintable() and len(item.name) <= 120
        assert item.owner in (None, CHAIR, *state.team)
        assert item.meta == (item.owner == CHAIR and id != ROOT)
        assert not item.meta or item.kind is Kind.CONTENT
        assert not item.decide_by or (item.kind is Kind.DECISION and item.decide_by in PRESETS)
        assert item.dod or item.meta or item.kind in (Kind.COLLECTION, Kind.ORCHESTRATION)
        assert len({criterion.id for criterion in item.dod}) == len(item.dod)
        assert not item.versions or item.kind in (Kind.CONTENT, Kind.DECISION)
        assert (item.status is Status.ACCEPTED) == (id in state.acceptances)
        if item.status is Status.ACCEPTED:
            assert identity(item.dod) == state.acceptances[id].dod
            assert holds(state, id), "accepted for something else"
    assert [event.number for event in state.events] == list(range(1, len(state.events) + 1))


IDS = st.sampled_from([f"p{number}" for number in range(1, 14)] + [f"new-{number}" for number in range(1, 5)])
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["Plan B", "", "\x1b[31m", "[[p:p3]]", "x" * 120, "Zeile\nzwei"]),
        "type": st.sampled_from([kind.value for kind in Kind]),
        "dod": st.sampled_from([[], DOD, ["Other", "Things"], [{"text": "x", "id": "d1"}], ["Like [[p:p99]]"]]),
        "owner": st.sampled_from([None, CHAIR, ALEX, JORDAN, WATCHDOG, ENVOY, "operative-9"]),
        "decide_by": st.sampled_from(["", "deep", "think", "gauge"]),
    },
)
OPERATIONS = st.one_of(
    st.builds(lambda new, parent, more: add(new, parent, **more), IDS, IDS, CHANGES),
    st.builds(
        lambda new, parent, type: add(new, parent, type),
        IDS,
        st.sampled_from([ROOT, "p6", "p7", "new-1"]),
        st.sampled_from([kind.value for kind in Kind]),
    ),
    st.builds(move, IDS, IDS),
    st.builds(remove, IDS),
    st.builds(lambda id, change: update(id, **change), IDS, CHANGES),
)


def parsed(items: Sequence[Operation]) -> list[TreeOperation]:
    """Those that a reply can hold at all."""
    found = []
    for item in items:
        try:
            found.append(TreeOperation.model_validate(item))
        except ValidationError:
            continue
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 3), st.lists(st.lists(OPERATIONS, max_size=3), max_size=10))
def test_the_tree_is_legal_whatever_the_chair_orders(rounds: int, plans: list[list[Operation]]) -> None:
    state = todo(rounds)
    legal(state)
    for plan in plans:
        items = parsed(plan)
        after, made, problems = operated(state, items)
        legal(after)
        if problems:
            assert after is state and not made
        else:
            assert set(made) == {item.new_id for item in items if item.action == "ADD"}
            assert not set(made.values()) & set(state.products)
            assert set(after.products) == {*state.products, *made.values()}
        assert after.versions == state.versions and after.collabs == state.collabs
        state = after


# -- what may be done ------------------------------------------------------------------------------


def test_what_is_new_may_hold_what_comes_after_it_and_be_referred_to_by_all() -> None:
    state = done(
        todo(1),
        add("new-2", type="Orchestration", name="API", dod=[]),
        add("new-1", "new-2", dod=["Agrees with [[p:new-3]]", {"text": "x", "check": _refers("new-3")}], owner=ALEX),
        add("new-3", "new-2", "Decision", decide_by="deep"),
        move("p4", "new-2"),
        update("new-3", name="Style of the API"),
    )
    assert [item.id for item in state.children("p5")] == ["p4", "p6", "p7"]
    made = state.products["p6"]
    assert [item.text for item in made.dod] == ["Agrees with [[p:p7]]", "x"]
    assert made.dod[1].check.value == "p7"
    assert (made.owner, made.round, made.status) == (ALEX, 1, Status.PENDING)
    assert (state.products["p7"].name, state.products["p7"].slug) == ("Style of the API", "part-3")
    texts = [(item.kind, item.text) for item in state.events[len(todo(1).events) :]]
    assert ("created", "API was planned") in texts
    assert ("moved", "Technical Architecture was moved to API") in texts
    assert ("updated", "Part 3 is now called Style of the API") in texts


def _refers(id: str) -> Operation:
    return {"kind": "reference", "value": id}


def test_what_is_removed_is_archived_with_all_below_it_and_still_resolves() -> None:
    state = done(todo(2), add("new-1", type="Decision", name="Errors"), move("p5", "p6"), remove("p6"))
    assert {state.products[id].status for id in ("p5", "p6")} == {Status.ARCHIVED}
    assert [item.text for item in state.events[-4:]] == [
        "Errors was archived: Nobody needs it",
        "Error Handling was archived with Errors",
        "Error Handling was archived, and nothing has to meet “Names the format of errors” for it",
        "Errors was archived, and nothing has to meet “It says what it is for” for it",
    ]
    state = done(state, add("new-1", dod=["Unlike [[p:p6]]"]))
    for item in (add("new-1", "p5"), move("p4", "p6"), update("p5", name="Again"), remove("p6"), move("p5", ROOT)):
        [problem] = refused(state, item)
        assert "is archived; the products are p1, p2, p3, p4 and p7." in problem


def test_a_reason_is_told_with_names_in_place_of_ids() -> None:
    item = {**remove("p5"), "reason": "[[p:p4]] covers it, says [[a:operative-1]]"}
    archived, *rest = (event.text for event in done(todo(2), item).events[len(todo(2).events) :])
    assert archived == "Error Handling was archived: Technical Architecture covers it, says Alex"
    assert len(rest) == 1 and not done(replace(todo(2), rules=3), item).events[len(todo(2).events) + 1 :]
    assert "[[p:p77]]" in refused(todo(2), {**item, "reason": "See [[p:p77]]"})[0]


def test_an_update_that_changes_nothing_tells_nothing() -> None:
    state = todo(3)
    assert done(state, update("p5", name="Error Handling", owner=ALEX), move("p5", ROOT)) == state


# -- what was accepted -----------------------------------------------------------------------------


def test_a_new_definition_of_done_reopens_what_was_accepted_and_what_holds_it() -> None:
    before = todo(3)
    state = done(before, update("p5", dod=[{"text": "Names the format of errors"}, "Lists all codes"]))
    assert [item.id for item in state.products["p5"].dod] == ["d1", "d2"]
    assert {id: item.status.value for id, item in state.products.items()} == {
        "p1": "in_progress",
        "p2": "pending",
        "p3": "accepted",
        "p4": "accepted",
        "p5": "in_progress",
    }
    assert set(state.acceptances) == {"p3", "p4"}
    assert [item.text for item in state.events[-2:]] == [
        "Error Handling was reopened: its definition of done changed",
        "Specify a TODO list MVP was reopened: its definition of done changed",
    ]


@pytest.mark.parametrize("item", [add("new-1"), remove("p5"), update("p3", type="Content")])
def test_what_a_container_was_accepted_for_cannot_change_behind_its_back(item: Operation) -> None:
    state = done(todo(3), item)
    assert ROOT not in state.acceptances
    assert "p4" in state.acceptances
    assert state.events[-1].kind == "reopened"


def test_a_move_reopens_what_is_left_and_what_is_entered() -> None:
    state = todo(3)
    groups = {id: replace(state.products[ROOT], id=id, parent=ROOT) for id in ("p6", "p7", "p8")}
    pinned = {id: replace(state.acceptances[ROOT], product=id) for id in groups}
    inside = {"p5": replace(state.products["p5"], parent="p6")}
    state = replace(
        state, products={**state.products, **groups, **inside}, acceptances={**state.acceptances, **pinned}
    )
    after, _, problems = operated(state, operations(move("p5", "p7")))
    assert problems == ()
    assert set(after.acceptances) == {"p3", "p4", "p5", "p8"}


def test_a_decision_is_accepted_for_itself_not_for_what_it_holds() -> None:
    state = done(todo(3), add("new-1", "p3"), add("new-2", "p3"), move("p7", "p3"), remove("p6"))
    assert set(state.acceptances) == {"p3", "p4", "p5"}  # what it holds is part of what the root brings together


def test_nothing_was_accepted_for_what_is_the_chairs_own() -> None:
    state = done(todo(3), add("new-1", owner=CHAIR, dod=[]), remove("p2"), move("p6", "p3"), remove("p6"))
    assert state.acceptances == todo(3).acceptances


def test_a_new_name_owner_or_way_to_decide_reopens_nothing() -> None:
    state = done(todo(3), update("p3", name="Features", owner=ALEX, decide_by="deep"))
    assert set(state.acceptances) == set(todo(3).acceptances)
    assert state.events[-1].text == (
        "MVP Features Selection is now called Features, has a new owner and is decided in another way"
    )


def test_what_is_no_longer_of_its_type_is_inspected_anew() -> None:
    item = done(todo(3), update("p3", type="Content")).products["p3"]
    assert (item.status, item.stale_why) == (Status.IN_PROGRESS, "its type changed")
    assert item.stale_at > todo(3).inspections["i3"].at


def test_reopening_goes_up_to_what_does_not_rest_on_it() -> None:
    assert reopened(todo(2), "p5", MissionStep.WRITE, ALEX, "it has a new version") == todo(2)
    state = reopened(todo(3), "p5", MissionStep.WRITE, ALEX, "it has a new version")
    assert [(item.actor, item.step, item.product) for item in state.events[-2:]] == [
        (ALEX, MissionStep.WRITE, "p5"),
        (ALEX, MissionStep.WRITE, ROOT),
    ]


def test_reopening_climbs_through_a_decision_that_it_leaves_accepted() -> None:
    state = todo(3)
    below = {**state.products, "p5": replace(state.products["p5"], parent="p3")}
    after = reopened(replace(state, products=below), "p5", MissionStep.WRITE, ALEX, "it has a new version")
    assert set(after.acceptances) == {"p3", "p4"}
    assert [item.product for item in after.events[len(state.events) :]] == ["p5", ROOT]


# -- what may not be done --------------------------------------------------------------------------

ILLEGAL = [
    (add("new-1", "p4"), "ADD new-1: p4 (Technical Architecture) is a Content, which holds nothing"),
    (add("new-1", "p9"), "ADD new-1: p9 is not a product; the products are p1, p2, p3, p4 and p5."),
    (add("new-1", "new-2"), "ADD new-1: new-2 is not added here"),
    (add("new-1", "new-1"), "ADD new-1: new-1 is added only later; put its ADD first."),
    (add("new-1", dod=[]), "ADD new-1: a Content needs at least one criterion in its dod."),
    (add("new-1", owner=WATCHDOG), "ADD new-1: watchdog-1 cannot own a product; operative-1 and operative-2 can."),
    (add("new-1", owner="operative-3"), "ADD new-1: operative-3 cannot own a product"),
    (add("new-1", type="Decision", owner=CHAIR), "ADD new-1: the chair owns only Content, no Decision"),
    (add("new-1", decide_by="deep"), "ADD new-1: decide_by is for a Decision only; its type is Content."),
    (
        add("new-1", type="Decision", decide_by="gauge"),
        "ADD new-1: decide_by must be one of quick, think, deep and full.",
    ),
    (add("new-1", name="***"), "ADD new-1: its name must have a letter or a digit"),
    (add("new-1", dod=["See [[p:p88]]"]), "p88"),
    (remove(ROOT), "REMOVE p1: the root holds all others and cannot be removed."),
    (move(ROOT, "p3"), "MOVE p1: the root holds all others and cannot be moved."),
    (move("p3", "p3"), "MOVE p3: p3 is p3 itself or lies below it"),
    (move("p3", "p4"), "MOVE p3: p4 (Technical Architecture) is a Content, which holds nothing"),
    (update(ROOT, type="Collection"), "UPDATE p1: its type stays Orchestration."),
    (update(ROOT, owner=ALEX), "UPDATE p1: it stays with chair-1"),
    (update("p2", owner=ALEX), "UPDATE p2: it stays with chair-1"),
    (update("p2", type="Decision"), "UPDATE p2: its type stays Content."),
    (update("p4", owner=CHAIR), "UPDATE p4: chair-1 writes only what was its own from the beginning"),
    (update("p4", owner=ENVOY), "UPDATE p4: envoy-1 cannot own a product"),
    (update("p4", dod=[]), "UPDATE p4: a Content needs at least one criterion in its dod."),
    (update("p4", type="Decision"), "UPDATE p4: its newest version states no outcome"),
    (update("p4", type="Collection"), "UPDATE p4: it has versions of its own, and no Collection has any."),
    (update("p4", decide_by="deep"), "UPDATE p4: decide_by is for a Decision only"),
]


@pytest.mark.parametrize(("item", "why"), ILLEGAL, ids=[why[:40] for _, why in ILLEGAL])
def test_what_is_illegal_is_told_and_changes_nothing(item: Operation, why: str) -> None:
    [problem] = refused(todo(2), item)
    assert why in problem


def test_nothing_goes_below_itself_however_deep() -> None:
    state = done(
        todo(0), *(add(f"new-{n}", f"new-{n - 1}" if n > 1 else ROOT, "Orchestration", dod=[]) for n in range(1, 12))
    )
    assert "lies below it" in refused(state, move("p5", "p15"))[0]
    assert done(state, move("p15", ROOT), move("p5", "p15")).products["p5"].parent == "p15"


def test_a_tree_has_twelve_levels_at_most() -> None:
    chain = [add(f"new-{n}", f"new-{n - 1}" if n > 1 else ROOT, "Orchestration", dod=[]) for n in range(1, 13)]
    [problem] = refused(todo(0), *chain)
    assert problem == "ADD new-12: the tree would have 13 levels, and 12 is the most; put it higher up."
    state = done(todo(0), *chain[:-1])
    assert depth(state, state.products["p15"]) == LEVELS
    assert "MOVE p3: the tree would have 13 levels" in refused(state, move("p3", "p15"))[0]
    inner = done(state, add("new-1", type="Orchestration", dod=[]), add("new-2", "new-1"), move("p16", "p13"))
    assert depth(inner, inner.products["p17"]) == LEVELS
    assert "MOVE p16: the tree would have 13 levels" in refused(inner, move("p16", "p14"))[0]


def test_a_mission_has_three_hundred_products_at_most() -> None:
    state = todo(0)
    many = {f"p{n}": replace(state.products["p4"], id=f"p{n}") for n in range(5, PRODUCTS + 1)}
    state = replace(state, products={**state.products, **many})
    assert "ADD new-1: there are 300 products, and no mission has more" in refused(state, add("new-1"))[0]
    done(state, remove("p5"), add("new-1"))


@pytest.mark.parametrize("gone", ["p3", "p5"])
def test_what_blocks_a_product_is_not_silenced_by_archiving_it_or_what_holds_it(gone: str) -> None:
    state = done(todo(1), add("new-1", type="Orchestration", dod=[]), move("p3", "p5"))
    [problem] = refused(state, remove(gone), add("new-1", "p5", "Decision"))
    flag = "c2, a flag of the watchdog on p3 (MVP Features Selection), is open; have it settled first."
    assert problem == f"REMOVE {gone}: {flag} Until then MOVE or rename it."
    assert drafted(state, operations(remove(gone)), PRESETS, ("c2",)).problems == (problem,)
    done(state, move("p3", ROOT), update("p3", name="Features"))
    blocked = replace(state, collabs={"c2": replace(state.collabs["c2"], author=JORDAN)})
    assert "c2, a blocking concern on p3" in refused(blocked, remove(gone))[0]
    assert drafted(blocked, operations(remove(gone)), PRESETS, ("c2",)).problems == ()
    done(replace(state, collabs={"c2": replace(state.collabs["c2"], open=False)}), remove(gone))


def test_a_collection_holds_only_content() -> None:
    state = done(todo(0), add("new-1", type="Collection", dod=[]), add("new-2", "new-1"))
    for item in (add("new-1", "p5", "Decision"), move("p3", "p5")):
        assert "p5 (Part 1) is a Collection, which holds only Content: no Decision can be below it" in " ".join(
            refused(state, item)
        )
    assert "p5 (Part 1) is a Collection" in refused(state, update("p6", type="Orchestration"))[0]
    assert "a Content cannot hold p6; move or remove them first" in refused(state, update("p5", type="Content"))[0]
    mixed = done(state, update("p5", type="Orchestration"), move("p3", "p5"))
    assert "a Collection cannot hold p3" in refused(mixed, update("p5", type="Collection"))[0]


def test_only_the_cause_is_told_of_what_fails_for_one_reason() -> None:
    told = refused(
        todo(0),
        add("new-1", "p99"),
        add("new-2", "new-1"),
        add("new-3", "new-2", dod=["As [[p:new-1]]"]),
        move("p4", "new-1"),
        update("new-1", name="Other"),
        remove("new-2"),
    )
    assert len(told) == 1
    assert told[0].startswith("ADD new-1: p99 is not a product")


def test_what_could_not_be_moved_away_is_told_once() -> None:
    state = done(todo(0), add("new-1", type="Orchestration", dod=[]), move("p3", "p5"))
    told = refused(state, move("p3", "p99"), update("p5", type="Collection"), update("p99", name="x"))
    assert [problem.split(";")[0] for problem in told] == [
        "MOVE p3: p99 is not a product",
        "UPDATE p99: p99 is not a product",
    ]


def test_all_that_is_wrong_is_told_at_once_and_an_id_is_new_once() -> None:
    told = refused(todo(0), add("new-1"), add("new-1"), remove("p99"), update("p4", owner=ENVOY, decide_by="deep"))
    assert [problem.split(":")[0] for problem in told] == ["ADD new-1", "REMOVE p99", "UPDATE p4", "UPDATE p4"]
    assert "new-1 is used twice" in told[0]


def test_presets_are_those_that_are_given() -> None:
    item = operations(add("new-1", type="Decision", decide_by="mine"))
    assert operated(todo(0), item, ("mine",))[2] == ()
    assert operated(todo(0), item, ())[2]


# -- in words --------------------------------------------------------------------------------------


def test_agents_have_plain_roles() -> None:
    names = [role(agent) for agent in (CHAIR, ALEX, WATCHDOG, ENVOY, "u:user-1", "u:all", "code", "")]
    assert names == [
        "the chair",
        "operative 1",
        "the watchdog",
        "the envoy",
        "the user",
        "the user",
        "the program",
        "nobody",
    ]


def test_lists_read_as_sentences_and_end() -> None:
    assert [listed("abc"[:size]) for size in range(4)] == ["none", "a", "a and b", "a, b and c"]
    assert listed((str(number) for number in range(9)), 3) == "0, 1, 2 and 6 more"


def test_an_event_has_the_next_number_and_is_one_visible_line() -> None:
    state = recorded(todo(1), MissionStep.PLAN, "updated", CHAIR, "One\nline \x1b[31mred", "p4", "v2")
    last = state.events[-1]
    assert last.number == len(todo(1).events) + 1
    assert last.text == "One line ␛[31mred"
    assert (last.round, last.step, last.product, last.ref) == (1, MissionStep.PLAN, "p4", "v2")


# -- paths -----------------------------------------------------------------------------------------


def test_a_content_is_a_file_or_a_folder_of_files() -> None:
    after = done(todo(0), add("new-1", path="index.html"), add("new-2", path="app/"))
    made = [item for item in after.products.values() if item.path]
    assert [item.path for item in made] == ["index.html", "app/"]
    after = done(after, update(made[0].id, path="public/index.html"))
    assert after.products[made[0].id].path == "public/index.html"
    assert "is now the file public/index.html" in after.events[-1].text
    gone = done(after, remove(made[1].id), add("new-1", path="app/main.py"))  # an archived product leaves its place
    assert [item.path for item in gone.live() if item.path] == ["public/index.html", "app/main.py"]


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([add("new-1", path="../x.py")], "`../x.py` cannot be its path: its part `..` has only dots"),
        ([add("new-1", path="/etc/x")], "it must be relative, such as src/app.js"),
        ([add("new-1", path="a/.git/hooks")], "its part `.git` is a folder of git's or cdo's own"),
        ([add("new-1", path="a.js"), add("new-2", path="A.js")], "its path A.js collides with a.js of p"),
        ([add("new-1", path="a/b.js"), add("new-2", path="a/")], "its path a/ collides with a/b.js of p"),
        (
            [add("new-1", path="a.js", type="Decision")],
            "a path is for Content of operatives only; its type is Decision",
        ),
        ([add("new-1", path="a.js", owner=CHAIR)], "a path is for Content of operatives only; chair-1 owns it"),
        ([update("p4", path="app/")], "ADD another Content"),
    ],
)
def test_a_path_that_cannot_be_delivered_is_refused_in_a_sentence(items: list[Operation], why: str) -> None:
    assert why in " ".join(refused(todo(2), *items))
