"""Bootstrap and plan: one transaction each, judged as a whole, told as a whole, and never half of one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from cdo.cabal.model.entities import Collab, InspectionVerdict, Kind, MissionStep, Status
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import BootstrapReply, PlanReply
from cdo.cabal.rules import automatic_acceptance, reducer, rounds
from cdo.cabal.rules.acceptance import holds, unaccepted
from cdo.cabal.rules.plan_transaction import ORDERS, bootstrapped, planned
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, USER, WATCHDOG, operatives
from tests.support.missions import ALEX, JORDAN, MISSION, REQUEST, TEAM, todo
from tests.unit.cabal.test_product_tree import DOD, OPERATIONS, add, legal, move, remove, update

Item = dict[str, Any]
NEW = MissionState(REQUEST, TEAM)


def charter(**more: Any) -> BootstrapReply:
    item = {
        "response_type": "final_output",
        "mission": "Specify a TODO list MVP. It has accounts.",
        "objectives": ["Functional CRUD of tasks"],
        "initial_products": [{"name": "Change Log", "type": "Content", "owner": CHAIR}, product("Features")],
        **more,
    }
    return BootstrapReply.model_validate(item)


def product(name: str, type: str = "Content", **more: Any) -> Item:
    return {"name": name, "type": type, "dod": DOD, **more}


def begun(reply: BootstrapReply) -> MissionState:
    state, problems = bootstrapped(NEW, reply)
    assert problems == ()
    legal(state)
    return state


def plan(**more: Any) -> PlanReply:
    return PlanReply.model_validate({"response_type": "final_output", **more})


def done(state: MissionState, **more: Any) -> MissionState:
    after, problems = planned(state, plan(**more))
    assert problems == ()
    legal(after)
    return after


def refused(state: MissionState, **more: Any) -> list[str]:
    after, problems = planned(state, plan(**more))
    assert problems and after is state
    return list(problems)


def order(product: str, *agents: str, **more: Any) -> Item:
    directive = {"importance": 7, "objective": "Write it", **more.pop("directive", {})}
    return {"product_id": product, "assignee_ids": agents or (ALEX,), "directive": directive, **more}


def approved(rounds: int) -> MissionState:
    """The mission after so many rounds, with what code accepts then."""
    return automatic_acceptance.accepted(todo(rounds), MissionStep.INSPECT)


def news(before: MissionState, after: MissionState) -> list[tuple[str, str]]:
    return [(item.kind, item.text) for item in after.events[len(before.events) :]]


def with_collab(state: MissionState, product: str, importance: int, author: str = JORDAN) -> MissionState:
    item = Collab("c9", product, "concern", importance, author, "Hm", "It may break", state.round, "v4")
    return replace(state, collabs={**state.collabs, "c9": item})


# -- bootstrap -------------------------------------------------------------------------------------


def test_a_bootstrap_sets_the_charter_and_hangs_all_below_a_root_of_its_own() -> None:
    state = begun(
        charter(
            personas={ALEX: "You are Alex.", "operative-7": "You are nobody."},
            operative_domains={
                JORDAN: {"responsibility": "The backend", "area": "Backend"},
                "operative-9": {"responsibility": "x", "area": "y"},
            },
            initial_products=[
                product("Change Log", owner=CHAIR, dod=[]),
                product("API", "Orchestration", new_id="new-1", dod=[]),
                product("Style", "Decision", new_id="new-2", parent_id="new-1", owner=ALEX, decide_by="deep"),
                product("Endpoints", parent_id="new-1", dod=["Follows [[p:new-2]]"]),
            ],
        )
    )
    root = state.products[ROOT]
    assert (root.name, root.kind, root.owner, root.slug) == (
        "Specify a TODO list MVP",
        Kind.ORCHESTRATION,
        CHAIR,
        "specify-a-todo-list-mvp",
    )
    assert [(item.id, item.parent, item.meta) for item in state.products.values()] == [
        ("p1", None, False),
        ("p2", ROOT, True),
        ("p3", ROOT, False),
        ("p4", "p3", False),
        ("p5", "p3", False),
    ]
    assert state.products["p5"].dod[0].text == "Follows [[p:p4]]"
    assert state.mission is not None
    assert state.mission.personas == {ALEX: "You are Alex."}, "what nobody was given is not made up"
    assert state.mission.domains == {JORDAN: ("The backend", "Backend")}
    assert [item.kind for item in state.events] == ["mission"] + 5 * ["created"]


def test_a_question_of_the_bootstrap_changes_nothing() -> None:
    item = {"response_type": "halt", "halt": {"type": "question", "message": "For whom?"}}
    assert bootstrapped(NEW, BootstrapReply.model_validate(item)) == (NEW, ())


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([product("Change Log", owner=CHAIR)], "there must be a product that is not the chair's own"),
        ([product("A", dod=[])], "initial_products (A): a Content needs at least one criterion"),
        ([product("A", owner="operative-3")], "operative-3 cannot own a product"),
        ([product("A", parent_id="p7")], "p7 is not a product; the products are p1."),
        ([product("A", parent_id="new-1"), product("B", new_id="new-1")], "new-1 is added only later"),
        ([product("A", new_id="new-1"), product("B", new_id="new-1")], "new-1 is used twice"),
        ([product("A", "Decision", decide_by="gauge")], "decide_by must be one of"),
        ([product("A", "Collection", new_id="new-1"), product("B", "Decision", parent_id="new-1")], "only Content"),
        ([product("A", dod=["As [[p:p40]]"])], "p40"),
    ],
)
def test_a_bootstrap_with_anything_wrong_changes_nothing(items: list[Item], why: str) -> None:
    state, problems = bootstrapped(NEW, charter(initial_products=items))
    assert state is NEW
    assert len(problems) == 1
    assert why in problems[0]


def test_the_charter_refers_to_what_there_is() -> None:
    _, problems = bootstrapped(NEW, charter(objectives=["As in [[v:v1]]"]))
    assert problems == ("The charter: [[v:v1]] is not a version; there are no versions yet.",)


def test_the_root_has_a_name_whatever_the_mission_is() -> None:
    assert begun(charter(mission="...")).products[ROOT].name == "The mission"
    assert begun(charter(mission="word " * 500)).products[ROOT].name == "word " * 11 + "word"
    assert len(begun(charter(mission="w" * 500)).products[ROOT].name) == 60
    clause = charter(mission="Build a TODO list, with task CRUD and a login: all of it tested")
    assert begun(clause).products[ROOT].name == "Build a TODO list"
    assert begun(charter(title="TODO list MVP.")).products[ROOT].name == "TODO list MVP"
    assert begun(charter(mission="\x1b]0;x\x07Plan")).products[ROOT].name.isprintable()


# -- overrides -------------------------------------------------------------------------------------


def test_overrides_wait_for_the_next_round_and_hold_only_what_changes() -> None:
    before = approved(1)
    state = done(
        before,
        bootstrap_overrides={
            "mission": MISSION.mission,
            "objectives": ["Offline use"],
            "constraints": [],
            "personas": {JORDAN: "You are Jo.", "operative-9": "x"},
        },
    )
    assert state.mission == before.mission
    assert set(state.pending) == {"objectives", "personas"}
    coming = replace(MISSION, **state.pending)
    assert (coming.mission, coming.objectives, coming.constraints) == (
        MISSION.mission,
        ("Offline use",),
        MISSION.constraints,
    )
    assert coming.personas == {**MISSION.personas, JORDAN: "You are Jo."}
    assert news(before, state) == [
        ("override", "The charter changes from the next round on: objectives and personas")
    ]
    again = done(state, bootstrap_overrides={"operative_domains": {ALEX: {"responsibility": "All", "area": "Any"}}})
    assert set(again.pending) == {"objectives", "personas", "domains"}
    assert again.pending["domains"] == {**MISSION.domains, ALEX: ("All", "Any")}
    assert done(before, bootstrap_overrides={"mission": MISSION.mission}) == before
    assert "v77" in refused(todo(1), bootstrap_overrides={"mission": "As [[v:v77]]"})[0]


# -- waivers ---------------------------------------------------------------------------------------


def test_the_chair_waives_what_blocks_but_never_a_flag_of_the_watchdog() -> None:
    before = with_collab(todo(2), "p4", 9)
    state = done(before, waivers=[{"collab_id": "c9", "reason": "Known, see [[p:p5]]"}])
    item = state.collabs["c9"]
    assert (item.open, item.closed_by, item.how, item.why) == (False, CHAIR, "waived", "Known, see [[p:p5]]")
    assert set(state.acceptances) == {"p1", "p3", "p4", "p5"}
    assert set(done(before).acceptances) == {"p3", "p5"}
    flag = with_collab(todo(2), "p4", 9, WATCHDOG)
    [problem] = refused(flag, waivers=[{"collab_id": "c9", "reason": "Never mind"}])
    assert "c9 is a flag of the watchdog, which nobody can waive" in problem


@pytest.mark.parametrize("id", ["c1", "c9", "c77"])
def test_only_what_blocks_is_waived(id: str) -> None:
    [problem] = refused(with_collab(todo(2), "p4", 7), waivers=[{"collab_id": id, "reason": "Fine"}])
    assert problem == f"waivers: {id} is not an open blocking collab; those that can be waived: none."


# -- acceptance ------------------------------------------------------------------------------------


def test_what_lacks_nothing_is_accepted_by_code_children_before_what_holds_them() -> None:
    before = todo(2)
    state = done(before)
    assert all(holds(state, item.id) for item in state.live())
    assert state.acceptances == {id: replace(item, round=2) for id, item in todo(3).acceptances.items()}
    assert [item.actor for item in state.events[len(before.events) :]] == 4 * ["code"]
    assert [text for _, text in news(before, state)] == [
        "MVP Features Selection was accepted: all 2 criteria are met, and nothing open is against it",
        "Technical Architecture was accepted: all 2 criteria are met, and nothing open is against it",
        "Error Handling was accepted: its criterion is met, and nothing open is against it",
        "Specify a TODO list MVP was accepted: all 3 criteria are met, and nothing open is against it",
    ]
    assert done(todo(3)) == todo(3), "what is accepted already stays so without a word"
    assert set(done(todo(1)).acceptances) == {"p4"}, "p3 is blocked, and the root waits for it"


def wanting() -> MissionState:
    """The mission after round 2, where the inspection of p4 wants a revision."""
    before, finding = todo(2), todo(1).inspections["i1"].findings[0]
    i4 = replace(
        before.inspections["i4"], verdict=InspectionVerdict.NEEDS_REVISION, findings=(replace(finding, severity=6),)
    )
    return replace(before, inspections={**before.inspections, "i4": i4})


def test_needs_revision_passes_with_a_waiver_on_record_only() -> None:
    before = wanting()
    assert "p4" not in done(before).acceptances
    state = done(before, waivers=[{"product_id": "p4", "reason": "It is a detail of [[p:p4]]"}])
    assert state.acceptances["p4"].waiver == "It is a detail of [[p:p4]]" and ROOT in state.acceptances
    assert state.acceptances["p5"].waiver == ""
    told = ("waived", "Technical Architecture may pass without a revision: It is a detail of Technical Architecture")
    assert told in news(before, state)


@pytest.mark.parametrize(
    ("waiver", "why"),
    [
        ({"product_id": "p3"}, "p3 (MVP Features Selection) cannot be accepted with a waiver either: a flag of the"),
        ({"product_id": "p1"}, "not accepted of what it holds: MVP Features Selection"),
        ({"product_id": "p2"}, "it is the chair's own, and nobody accepts that"),
        ({"product_id": "p40"}, "waivers: p40 is not a product; the products are p1, p2, p3 and p4."),
    ],
)
def test_a_waiver_lets_pass_only_what_lacks_no_more_than_a_revision(waiver: Item, why: str) -> None:
    [problem] = refused(todo(1), waivers=[{**waiver, "reason": "Fine"}])
    assert why in problem


@pytest.mark.parametrize("waiver", [{}, {"product_id": "p4", "collab_id": "c1"}])
def test_a_waiver_is_of_one_thing(waiver: Item) -> None:
    with pytest.raises(ValidationError, match="a waiver names a `collab_id` or a `product_id`"):
        plan(waivers=[{**waiver, "reason": "Fine"}])


def objection(product: str, importance: int = 8) -> Item:
    said = {"comment": "[[p:new-1]] must say it first", "shortestSummary": "Too early"}
    return {"refersToProduct": product, "type": "concern", "importance": importance, **said}


def test_the_chair_objects_by_a_collab_and_keeps_a_product_from_being_accepted() -> None:
    state = done(todo(2), tree_operations=[add("new-1", dod=DOD)], collabs=[objection("p4")])
    assert set(state.acceptances) == {"p3", "p5"}
    raised = list(state.collabs.values())[-1]
    assert (raised.author, raised.product, raised.comment) == (CHAIR, "p4", "[[p:p6]] must say it first")
    reply = plan(tree_operations=[add("new-1", dod=DOD)], collabs=[objection("p4")])
    after, problems = reducer.apply_reply(todo(3), MissionStep.PLAN, CHAIR, reply)
    assert not problems and "p4" not in after.acceptances
    assert "p40 is not a product" in refused(todo(2), collabs=[{**objection("p40"), "comment": "x"}])[0]


# -- assignments -----------------------------------------------------------------------------------


def test_a_plan_assigns_what_it_adds() -> None:
    before = approved(1)
    state = done(
        before,
        tree_operations=[add("new-1", name="Error Handling")],
        assignments=[
            order("new-1", JORDAN, ALEX, JORDAN, directive={"context": "For [[p:new-1]]"}, attach_context=["p4"]),
            order("p4", ALEX, attach_context=["new-1"], address=["c1"], directive={"why": "new-1 needs it"}),
        ],
    )
    first, second = state.assignments["p5"], state.assignments["p4"]
    assert (first.writer, first.reviewers, first.attach, first.context) == (JORDAN, (ALEX,), ("p4",), "For [[p:p5]]")
    assert (second.attach, second.address, second.why) == (("p5",), ("c1",), "p5 needs it")
    assert (state.products["p5"].owner, state.products["p5"].status) == (JORDAN, Status.IN_PROGRESS)
    assert news(before, state) == [
        ("created", "Error Handling was planned"),
        ("assigned", "Error Handling was assigned to Jordan"),
        ("assigned", "Technical Architecture was assigned to Alex"),
    ]


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([order("p40")], "p40 is not a product"),
        ([order("new-1")], "new-1 is not a product"),
        ([order("p2")], "p2: it is the chair's own; write it in `chair_versions`."),
        ([order(ROOT)], "p1: its type is Orchestration, which has no versions; assign what it holds."),
        ([order("p4", "operative-3")], "not in the team: operative-3; the operatives are operative-1 and"),
        ([order("p4"), order("p4", JORDAN)], "In `assignments`, p4 is used twice."),
        ([order("p4", address=["c2"])], "no open collab of it: c2; those are c1."),
        ([order("p4", attach_context=["p3", "p50"])], "p50 is not a product; the products are p1, p2, p3 and p4."),
        ([order("p4", directive={"why": "[[c:c50]]"})], "[[c:c50]] is not a collab"),
    ],
)
def test_what_cannot_be_assigned_is_told(items: list[Item], why: str) -> None:
    [problem] = refused(todo(1), assignments=items)
    assert why in problem


def test_one_operative_is_given_what_it_can_write_in_a_round() -> None:
    news = [add(f"new-{n}") for n in range(1, ORDERS + 2)]
    orders = [order(f"new-{n}", ALEX, JORDAN) for n in range(1, ORDERS + 2)]
    [problem] = refused(todo(0), tree_operations=news, assignments=orders)
    assert "operative-1 would have 25 products to write in this round, and 24 is the most" in problem
    orders[0] = order("new-1", JORDAN)
    state = done(todo(0), tree_operations=news, assignments=orders)
    assert "would have 25" in refused(state, assignments=[order("p3", ALEX)])[0]


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([remove("p3")], "MVP Features Selection was archived"),
        ([add("new-1", type="Orchestration", dod=[]), move("p3", "new-1"), remove("new-1")], "was archived"),
        ([update("p3", type="Content")], "MVP Features Selection is no Decision any more"),
    ],
)
def test_what_a_decision_bound_is_stale_once_that_is_none(operations: list[Item], why: str) -> None:
    state = done(todo(3), tree_operations=operations)  # p4 refers to p3
    assert "p4" not in state.acceptances and "p5" in state.acceptances
    assert why in state.products["p4"].stale_why
    never = done(todo(2), tree_operations=operations)
    assert never.products["p4"].stale_at == 0


def test_what_blocks_is_waived_before_its_product_is_archived() -> None:
    before = with_collab(todo(2), "p4", 9)
    assert "c9, a blocking concern" in refused(before, tree_operations=[remove("p4")])[0]
    state = done(before, tree_operations=[remove("p4")], waivers=[{"collab_id": "c9", "reason": "Not needed"}])
    assert (state.products["p4"].status, state.collabs["c9"].how) == (Status.ARCHIVED, "waived")


def test_what_follows_from_a_refused_operation_is_not_told() -> None:
    told = refused(
        todo(2),
        tree_operations=[add("new-1", "p4", dod=["x [[p:new-1]]"]), update("p5", owner=ENVOY)],
        assignments=[order("new-1"), order("p5", directive={"context": "[[p:new-1]]"})],
        chair_versions=[log("With [[p:new-1]]")],
        remarks=[{"recipients": ["team"], "type": "note", "content": "See [[p:new-1]]"}],
        halt={"type": "done", "message": "As [[p:new-1]] says"},
    )
    assert [problem.split(":")[0] for problem in told[:2]] == ["ADD new-1", "UPDATE p5"]
    assert [problem.split(":")[0] for problem in told[2:]] == ["halt"]


def test_all_that_is_wrong_is_told_at_once_up_to_a_dozen() -> None:
    told = refused(
        todo(2),
        tree_operations=[remove(ROOT)],
        waivers=[{"collab_id": "c50", "reason": "x"}],
        collabs=[objection("p50")],
        assignments=[order("p51")],
        chair_versions=[{**log("x"), "product_id": "p4"}],
        remarks=[{"recipients": ["operative-9"], "type": "note", "content": "x"}],
        bootstrap_overrides={"mission": "[[v:v50]]"},
    )
    assert len(told) == 7


# -- the chair's own versions, remarks, the end ----------------------------------------------------


def log(content: str, **more: Any) -> Item:
    return {"product_id": "p2", "title": "Change Log", "content": content, "change_summary": "Round told", **more}


def test_the_chair_writes_only_its_own_and_says_something_new() -> None:
    old = "\n".join(f"- Round {number}: nothing of note happened in this round" for number in range(60))
    state = done(todo(1), chair_versions=[log(old)])
    assert state.products["p2"].versions == ("v3",)
    made = state.versions["v3"]
    assert (made.author, made.number, made.product, made.round) == (CHAIR, 1, "p2", 1)
    assert state.events[-1].kind == "version"
    assert "nearly the same as v3" in refused(state, chair_versions=[log(f"{old.upper()}\n")])[0]
    assert "nearly the same as v3" in refused(state, chair_versions=[log(old.replace("Round 59", "Round 9"))])[0]
    grown = done(state, chair_versions=[log(f"{old}\n- Round 60: done")])
    assert grown.products["p2"].versions == ("v3", "v4")
    for item in ({**log("x"), "product_id": "p4"}, {**log("x"), "product_id": ROOT}):
        assert "it is not the chair's to write; that is p2." in refused(todo(1), chair_versions=[item])[0]
    assert "In `chair_versions`, p2 is used twice." in refused(todo(1), chair_versions=[log("a"), log("b")])
    assert "v77" in refused(todo(1), chair_versions=[log("See [[v:v77]]")])[0]


def test_a_version_of_the_chair_answers_what_is_said_of_it() -> None:
    before = with_collab(todo(1), "p2", 5)
    state = done(before, chair_versions=[log("All new", addresses=["c9"])])
    assert (state.collabs["c9"].open, state.collabs["c9"].closed_by) == (False, CHAIR)
    assert "no open collab of it: c1" in refused(before, chair_versions=[log("x", addresses=["c1"])])[0]


def test_the_chair_remarks_on_what_it_adds() -> None:
    remark = {"recipients": ["team", "u:all"], "type": "note", "content": "[[p:new-1]] comes first"}
    state = done(todo(1), tree_operations=[add("new-1")], remarks=[remark])
    last = state.remarks[-1]
    assert last.recipients == (*TEAM, WATCHDOG, ENVOY, USER)
    assert last.content == "[[p:p5]] comes first"


def test_done_is_refused_while_anything_is_unaccepted_or_assigned() -> None:
    end = {"type": "done", "message": "All of [[p:p1]] is there."}

    def idle(rounds: int) -> MissionState:
        return replace(todo(rounds), assignments={})

    [problem] = refused(idle(1), halt=end)
    assert problem.startswith(
        "halt: not done while these are not accepted: p1 (Specify a TODO list MVP): not accepted of what it holds: "
        "MVP Features Selection and p3 (MVP Features Selection): a flag of the watchdog is open"
    )
    assert "p4" not in problem, "it lacks nothing"
    state = done(idle(2), halt=end)
    assert (state.halt, state.why) == ("done", "All of Specify a TODO list MVP is there.")
    assert state.events[-1].kind == "halt"
    [problem] = refused(idle(3), assignments=[order("p4")], halt=end)
    assert "has no assignments" in problem
    assert len(refused(idle(3), tree_operations=[add("new-1")], halt=end)) == 1


def test_nothing_is_done_while_the_charter_changes() -> None:
    end = {"type": "done", "message": "All is there."}
    before = replace(todo(3), halt="", why="")
    assert done(before, halt=end).halt == "done"
    [problem] = refused(before, bootstrap_overrides={"objectives": ["Works offline"]}, halt=end)
    assert problem.startswith("halt: the charter changes with the next round (objectives)")
    [problem] = refused(replace(before, pending={"mission": "Another"}), halt=end)
    assert "(mission)" in problem
    assert done(before, bootstrap_overrides={"mission": MISSION.mission}, halt=end).halt == "done"


def test_a_question_is_left_to_whoever_asks_it() -> None:
    state = done(approved(1), response_type="halt", halt={"type": "question", "message": "Which cloud?"})
    assert state == approved(1)


# -- whatever is planned ---------------------------------------------------------------------------

IDS = st.sampled_from(["p1", "p2", "p3", "p4", "p5", "p6", "p50", "new-1", "new-2"])
COLLABS = st.sampled_from(["c1", "c2", "c9", "c50"])
AGENTS = st.lists(st.sampled_from([*operatives(3)]), min_size=1, max_size=3)
TEXTS = st.sampled_from(["Fine", "See [[p:p4]]", "See [[p:new-1]]", "[[v:v99]]", "new-2 \x1b[2J"])


PLANS: st.SearchStrategy[Item] = st.fixed_dictionaries(
    {"response_type": st.just("final_output")},
    optional={
        "bootstrap_overrides": st.fixed_dictionaries({}, optional={"mission": TEXTS, "objectives": st.lists(TEXTS)}),
        "tree_operations": st.lists(OPERATIONS, max_size=2),
        "waivers": st.lists(
            st.one_of(
                st.fixed_dictionaries({"collab_id": COLLABS, "reason": TEXTS}),
                st.fixed_dictionaries({"product_id": IDS, "reason": TEXTS}),
            ),
            max_size=2,
        ),
        "collabs": st.lists(st.builds(objection, IDS, st.integers(5, 10)), max_size=1),
        "assignments": st.lists(
            st.builds(lambda id, agents, text: order(id, *agents, directive={"context": text}), IDS, AGENTS, TEXTS),
            max_size=2,
        ),
        "chair_versions": st.lists(st.builds(log, TEXTS), max_size=1),
        "remarks": st.lists(
            st.builds(lambda text: {"recipients": ["team"], "type": "note", "content": text}, TEXTS), max_size=1
        ),
        "halt": st.builds(
            lambda type, text: {"type": type, "message": text}, st.sampled_from(["done", "question"]), TEXTS
        ),
    },
)


@pytest.mark.wide
@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.integers(5, 10), st.lists(PLANS, min_size=1, max_size=4))
def test_a_plan_is_carried_out_whole_or_not_at_all(rounds: int, importance: int, plans: list[Item]) -> None:
    # What was accepted is so no longer once somebody says that it blocks.
    state = with_collab(todo(rounds), "p4", importance if rounds < 3 else min(importance, 7))
    state = replace(state, assignments={}, halt="", why="")
    for item in plans:
        try:
            reply = PlanReply.model_validate(item)
        except ValidationError:
            continue
        after, problems = planned(state, reply)
        if problems:
            assert after is state
            continue
        for id, made in after.assignments.items():
            assert {made.writer, *made.reviewers} <= set(TEAM)
            assert not after.products[id].meta and not after.products[id].container
            assert after.products[id].owner == made.writer
        legal(after)
        assert after.halt != "done" or not unaccepted(after)
        assert all(version.author == CHAIR for id, version in after.versions.items() if id not in state.versions)
        assert after.mission == state.mission
        state = replace(after, halt="")


# -- objectives as the root's definition of done -------------------------------------------------------


def root_dod(state: MissionState) -> list[tuple[str, str, str]]:
    return [(item.id, item.text, item.check.kind) for item in state.products[ROOT].dod]


def test_objectives_are_the_criteria_of_the_root_each_once() -> None:
    state = begun(charter(objectives=["One", "Two", "one "]))
    assert root_dod(state) == [("d1", "One", "judged"), ("d2", "Two", "judged")]


def test_the_chair_adds_criteria_to_the_root_and_cannot_drop_objectives() -> None:
    state = begun(charter(objectives=["One", "Two"]))
    more = [{"text": "two"}, {"text": "Long", "check": {"kind": "min_words", "value": 50}}]
    after = done(state, tree_operations=[update(ROOT, dod=more)])
    assert root_dod(after) == [("d1", "One", "judged"), ("d2", "Two", "judged"), ("d3", "Long", "min_words")]
    fewer = done(after, tree_operations=[update(ROOT, dod=[])])
    assert root_dod(fewer) == root_dod(state)
    told = [item.text for item in fewer.events if item.kind == "redefined"]
    assert told == [
        "Specify a TODO list MVP no longer has to meet “Long” (min words: 50); nothing stands in its place"
    ]


def test_new_objectives_replace_the_old_ones_from_the_next_round_on_and_keep_ids() -> None:
    state = begun(charter(objectives=["One", "Two"]))
    state = done(state, tree_operations=[update(ROOT, dod=[{"text": "More"}])])
    state = done(state, bootstrap_overrides={"objectives": ["Two", "Three"]})
    assert [text for _, text, _ in root_dod(state)] == ["One", "Two", "More"]
    state = rounds.open_round(state)
    assert root_dod(state) == [("d2", "Two", "judged"), ("d4", "Three", "judged"), ("d3", "More", "judged")]
    (told,) = [item for item in state.events if item.kind == "redefined"]
    assert told.text.endswith("no longer has to meet “One”; new instead: “Three”") and told.product == ROOT
