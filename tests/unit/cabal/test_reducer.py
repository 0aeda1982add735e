"""From one state of a mission to the next: replies, remarks, deliberations, and who reviews whom."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cdo.cabal.files.serialization import inspection_of, inspection_text, version_of, version_text
from cdo.cabal.model.entities import STEPS, Criterion, Kind, MissionStep, Product, Remark, Status, Version
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import reducer, rounds
from cdo.cabal.rules.peer_review import reviewers, unreviewed
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, USER, WATCHDOG, operatives
from cdo.core.steps import Missing
from tests.support.missions import ALEX, JORDAN, REQUEST, todo
from tests.unit.cabal.test_feedback import collab, reduced, reply, version


def kinds(state: MissionState, since: MissionState) -> list[str]:
    return [event.kind for event in state.events[len(since.events) :]]


# -- replies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "agent"),
    [
        (MissionStep.PLAN, ALEX),
        (MissionStep.REFLECT, CHAIR),
        (MissionStep.WRITE, WATCHDOG),
        (MissionStep.REVIEW, "operative-9"),
        (MissionStep.INSPECT, JORDAN),
        (MissionStep.PRESENT, CHAIR),
        (MissionStep.BOOTSTRAP, CHAIR),
    ],
)
def test_nobody_speaks_in_a_step_that_is_not_theirs(step: MissionStep, agent: str) -> None:
    state = todo(1)
    keys: dict[MissionStep, dict[str, Any]] = {
        MissionStep.BOOTSTRAP: {
            "mission": "x",
            "objectives": ["x"],
            "initial_products": [{"name": "x", "type": "Content"}],
        },
        MissionStep.INSPECT: {"inspections": []},
        MissionStep.PRESENT: {"messages": [{"content": "x", "as_agent": CHAIR, "events": ["e1"]}]},
    }
    after, problems = reducer.apply_reply(state, step, agent, reply(step, **keys.get(step, {})))
    assert after is state and len(problems) == 1


def test_nothing_is_planned_before_there_is_a_mission() -> None:
    state = rounds.begin(REQUEST, 2)
    assert reducer.apply_reply(state, MissionStep.PLAN, CHAIR, reply(MissionStep.PLAN)) == (
        state,
        ("The mission is not set yet.",),
    )


def test_a_reply_to_another_step_is_none() -> None:
    state = todo(1)
    after, problems = reducer.apply_reply(state, MissionStep.WRITE, ALEX, reply(MissionStep.REFLECT))
    assert after is state and problems == ("This is not a reply to the step write.",)


def test_a_wrong_reply_changes_nothing() -> None:
    state, said = todo(1), reply(MissionStep.REVIEW, collabs=[collab("p9")])
    after, problems = reducer.apply_reply(state, MissionStep.REVIEW, JORDAN, said, ("p4",))
    assert after is state and "p9 is not a product" in problems[0]
    right = reply(MissionStep.REVIEW, collabs=[collab("p4")])
    assert "c3" in reduced(state, MissionStep.REVIEW, JORDAN, right, ("p4",)).collabs


def test_a_blocker_on_what_was_accepted_reopens_it() -> None:
    before = todo(3)
    minor = reduced(before, MissionStep.REVIEW, JORDAN, reply(MissionStep.REVIEW, collabs=[collab("p5", 7)]), ("p5",))
    assert minor.acceptances == before.acceptances
    state = reduced(before, MissionStep.REVIEW, JORDAN, reply(MissionStep.REVIEW, collabs=[collab("p5", 8)]), ("p5",))
    assert set(state.acceptances) == {"p3", "p4"}
    assert state.products["p5"].status is Status.IN_PROGRESS


def test_the_envoy_rests_on_events_of_this_round_only() -> None:
    state = todo(2)
    this = [event.id for event in state.events if event.round == 2]
    said = {"content": "We go on.", "as_agent": CHAIR}
    right = reply(MissionStep.PRESENT, messages=[{**said, "events": this[:2]}])
    assert reducer.apply_reply(state, MissionStep.PRESENT, ENVOY, right)[1] == ()
    old = reply(MissionStep.PRESENT, messages=[{**said, "events": ["e1"]}])
    assert "rests on e1" in reducer.apply_reply(state, MissionStep.PRESENT, ENVOY, old)[1][0]


def test_what_comes_of_an_edited_reply_says_so_in_its_file_too() -> None:
    before = todo(1)
    after = todo(2)
    marked = reducer.edited_by_hand(before, after, MissionStep.WRITE, ALEX, "r2-write-operative-1")
    assert not marked.versions["v1"].edited and not marked.inspections["i1"].edited
    assert marked.versions["v4"].edited and marked.inspections["i3"].edited and marked.messages[-1].edited
    assert version_of(version_text(marked.versions["v4"])) == marked.versions["v4"]
    assert inspection_of(inspection_text(marked.inspections["i3"])) == marked.inspections["i3"]
    event = marked.events[-1]
    assert (event.kind, event.actor, event.ref) == ("edited", USER, "r2-write-operative-1")
    assert event.text == "The user edited the reply of Alex in its writing by hand"


def test_who_gives_no_reply_is_told_of_by_no_id() -> None:
    why, asked = Missing("invalid", "`p4` of operative-1 is no e2 in collabs.0"), (todo(1), MissionStep.REVIEW, ALEX)
    state = reducer.record_missing_reply(*asked, why, ("p3", "p4"))
    assert state.events[-1].kind == "missed"
    both = f"{todo(1).products['p3'].name} and {todo(1).products['p4'].name}"
    assert state.events[-1].text == f"Nothing came from Alex in the review of {both}: no valid reply"
    earlier = reducer.record_missing_reply(replace(todo(1), rules=4), *asked[1:], why, ("p3", "p4"))
    assert earlier.events[-1].text == "Nothing came from operative 1 in its review: no valid reply"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("budget: The cap of $1 is reached.", "a cap was reached"),
        ("refused: I cannot", "refused"),
        ("length: cut at 400 tokens", "cut off"),
        ("truncated: the stream ended", "cut off"),
        ("rate-limited: 429 from p4", "rate-limited"),
        ("no model", "no model"),
        ("overtaken by others", "overtaken by others"),
        ("say that all is done", "no reply"),
        ("", "no reply"),
    ],
)
def test_of_a_missing_reply_only_the_kind_of_reason_is_told(reason: str, told: str) -> None:
    text = reducer.record_missing_reply(todo(1), MissionStep.WRITE, ALEX, Missing.read(reason)).events[-1].text
    assert text == f"Nothing came from Alex in its writing: {told}"


def test_what_an_agent_was_shown_is_kept() -> None:
    before = todo(1)
    state = reducer.mark_seen(reducer.mark_seen(before, ALEX, ("p3", "p4")), JORDAN, ("p3",))
    number = len(before.events)
    assert state.seen == {ALEX: {"p3": number, "p4": number}, JORDAN: {"p3": number}}
    assert reducer.mark_seen(before, ALEX, ()) is before


# -- remarks ---------------------------------------------------------------------------------------


def note(*recipients: str) -> dict[str, Any]:
    return {"recipients": list(recipients), "type": "note", "content": "Look here."}


def says(state: MissionState, step: MissionStep, agent: str, *recipients: str) -> MissionState:
    keys: dict[str, Any] = {"inspections": []} if step is MissionStep.INSPECT else {}
    if step is MissionStep.WRITE:
        keys["collabs"] = [collab(id, 3) for id, item in state.assignments.items() if item.writer == agent]
    return reduced(state, step, agent, reply(step, remarks=[note(*recipients)], **keys))


def hears(state: MissionState, agent: str) -> bool:
    return bool(reducer.heard(state, agent))


def test_a_remark_is_heard_after_its_step_until_the_same_step_of_the_next_round() -> None:
    state = says(rounds.stepped(replace(todo(1), remarks=())), MissionStep.REVIEW, JORDAN, ALEX)
    assert not hears(state, ALEX)  # whoever answers in the same step must not depend on who was faster
    heard = []
    for step in range(1, 16):
        state = rounds.stepped(rounds.open_round(state) if step % 6 == 3 else state)
        heard.append(hears(state, ALEX))
        assert not hears(state, JORDAN)
    assert heard == [True] * 7 + [False] * 8


@pytest.mark.parametrize("inspections", [1, 2, 9])
def test_the_next_plan_hears_what_was_written_however_long_the_round_was(inspections: int) -> None:
    state = says(rounds.stepped(replace(todo(1), remarks=())), MissionStep.WRITE, ALEX, CHAIR)
    for _ in range(1 + inspections + 1):  # review, inspections, presentation
        state = rounds.stepped(state)
        assert hears(state, CHAIR)
    state = rounds.open_round(state)
    for _ in (MissionStep.REFLECT, MissionStep.PLAN):
        state = rounds.stepped(state)
        assert hears(state, CHAIR)
    for _ in STEPS:
        state = rounds.stepped(state)
    assert not hears(rounds.open_round(state), CHAIR) and rounds.open_round(state).remarks == ()


def test_a_note_to_oneself_is_heard_in_ones_next_step_only() -> None:
    state = says(rounds.stepped(replace(todo(1), remarks=())), MissionStep.REFLECT, ALEX, "self", JORDAN)
    state = rounds.stepped(rounds.stepped(state))
    assert hears(state, ALEX) and hears(state, JORDAN)
    state = rounds.stepped(says(state, MissionStep.WRITE, ALEX, CHAIR))
    assert not hears(state, ALEX)
    assert hears(state, JORDAN)
    other = reducer.record_missing_reply(
        rounds.stepped(says(state, MissionStep.REVIEW, ALEX, "self")), MissionStep.REVIEW, ALEX, Missing("none")
    )
    assert not hears(rounds.stepped(other), ALEX)


# -- deliberations ---------------------------------------------------------------------------------


def test_a_deliberation_writes_for_the_owner() -> None:
    before = todo(1)
    order = replace(before.assignments["p3"], address=("c2",))
    before = replace(before, assignments={**before.assignments, "p3": order})
    state = reducer.deliberated(before, "p3", "No accounts", "Because.", "cdo-20260101-000000", "decided")
    made = state.latest("p3")
    assert made is not None
    assert (made.author, made.outcome, made.session, made.addresses) == (
        JORDAN, "No accounts", "cdo-20260101-000000", ("c2",),
    )  # fmt: skip
    assert kinds(state, before) == ["version", "decided"] and state.collabs["c2"].open
    done, problems = reducer.apply_reply(state, MissionStep.WRITE, JORDAN, reply(MissionStep.WRITE))
    assert problems == () and done.versions == state.versions  # nothing is left for its writer to do
    with pytest.raises(ValueError, match="p4"):
        reducer.deliberated(before, "p4", "x", "y", "z")


# -- who reviews -----------------------------------------------------------------------------------


def team(
    count: int, domains: dict[str, tuple[str, str]], *products: tuple[str, str | None, str, str]
) -> MissionState:
    """A mission of products as (id, owner, name, content of version 1)."""
    start = todo(0)
    assert start.mission is not None
    made, versions = {ROOT: start.products[ROOT]}, {}
    for place, (id, owner, name, content) in enumerate(products, 1):
        made[id] = Product(
            id, name, Kind.CONTENT, ROOT, owner, (Criterion("d1", "Is there"),), versions=(f"v{place}",)
        )
        versions[f"v{place}"] = Version(f"v{place}", 1, id, owner or USER, name, content, "First", 1)
    mission = replace(start.mission, domains=domains)
    return replace(start, team=operatives(count), mission=mission, products=made, versions=versions, round=1)


ONE, TWO, THREE = operatives(3)
WORLD = {
    ONE: ("All pages of the shop", "Frontend"),
    TWO: ("Payments and invoices", "Billing"),
    THREE: ("Servers and databases", "Operations"),
}


def test_who_refers_to_a_product_reviews_it() -> None:
    state = team(
        3, WORLD, ("p2", ONE, "Billing pages", "x"), ("p3", TWO, "Invoice", "y"), ("p4", THREE, "Db", "[[p:p2]]")
    )
    assert reviewers(state, ("p2",)) == ({THREE: ("p2",)}, ())
    assert reviewers(state, ("p4",)) == ({ONE: ("p4",)}, ())


def test_without_references_the_domain_decides_and_then_the_load() -> None:
    state = team(3, WORLD, ("p2", ONE, "Payment pages", "x"), ("p3", ONE, "Other", "y"), ("p4", ONE, "Third", "z"))
    assert reviewers(state, ("p2", "p3", "p4")) == ({TWO: ("p2", "p4"), THREE: ("p3",)}, ())


def test_those_whom_the_assignment_names_review_as_well_but_never_their_own() -> None:
    state = team(3, WORLD, ("p2", ONE, "Payments", "x"))
    order = replace(todo(1).assignments["p4"], product="p2", writer=ONE, reviewers=(ONE, THREE, "operative-9"))
    state = replace(state, assignments={"p2": order})
    assert reviewers(state, ("p2",)) == ({TWO: ("p2",), THREE: ("p2",)}, ())


def test_what_nobody_else_can_review_is_told() -> None:
    state = team(1, WORLD, ("p2", ONE, "Payments", "x"), ("p3", None, "By the user", "y"))
    chosen, alone = reviewers(state, ("p2", "p3"))
    assert (chosen, alone) == ({ONE: ("p3",)}, ("p2",))
    after = unreviewed(state, alone)
    assert [(event.kind, event.product) for event in after.events[len(state.events) :]] == [("unreviewed", "p2")]


def test_the_chairs_own_and_what_is_archived_is_not_reviewed() -> None:
    state = team(2, WORLD, ("p2", ONE, "Payments", "x"), ("p3", CHAIR, "Change Log", "y"))
    products = {
        **state.products,
        "p2": replace(state.products["p2"], status=Status.ARCHIVED),
        "p3": replace(state.products["p3"], meta=True),
    }
    assert reviewers(replace(state, products=products), ("p2", "p3")) == ({}, ())


def test_each_of_many_products_is_read_once_and_by_no_owner() -> None:
    owners = {f"p{number}": operatives(8)[number % 8] for number in range(2, 200)}
    state = team(8, {}, *((id, owner, f"Part of {owner}", "[[p:p2]] " * 9) for id, owner in owners.items()))
    chosen, alone = reviewers(state, list(owners))
    assert alone == () and sorted(id for ids in chosen.values() for id in ids) == sorted(owners)
    assert not any(owners[id] == agent for agent, ids in chosen.items() for id in ids)


def test_a_remark_from_elsewhere_is_heard_as_any_other() -> None:
    state = replace(todo(1), at=12, remarks=(Remark(USER, (CHAIR, ALEX), "note", "Hurry", 1, 11),))
    assert [item.content for item in reducer.heard(state, ALEX)] == ["Hurry"] and reducer.heard(state, JORDAN) == ()


def test_a_collab_of_write_is_on_what_its_author_has_seen() -> None:
    before = replace(todo(1), round=2)
    orders = {id: replace(item, round=2) for id, item in before.assignments.items()}
    before = replace(before, assignments=orders)
    writes = reply(MissionStep.WRITE, versions=[version("p4", "React and Go, in words of its own.")])
    speaks = reply(MissionStep.WRITE, collabs=[collab("p3", 3), collab("p4", 9), collab(ROOT, 9)])
    first = reduced(reduced(before, MissionStep.WRITE, ALEX, writes), MissionStep.WRITE, JORDAN, speaks)
    last = reduced(reduced(before, MissionStep.WRITE, JORDAN, speaks), MissionStep.WRITE, ALEX, writes)
    for state in (first, last):
        raised = {item.product: item.version for item in state.collabs.values() if item.round == 2}
        assert raised == {"p3": "v1", "p4": "v2", ROOT: "v2"}
    confirmed = reply(MissionStep.REVIEW, confirms=[id for id, item in first.collabs.items() if item.blocking][1:])
    done = reduced(first, MissionStep.REVIEW, JORDAN, confirmed, ("p4",))
    assert {item.product for item in done.collabs.values() if item.how == "confirmed"} == {"p4", ROOT}
    own = reply(
        MissionStep.WRITE, versions=[version("p4", "React and Go, in words of its own.")], collabs=[collab("p4", 9)]
    )
    assert [*reduced(before, MissionStep.WRITE, ALEX, own).collabs.values()][-1].version == "v3"
    later = reduced(first, MissionStep.REVIEW, JORDAN, reply(MissionStep.REVIEW, collabs=[collab("p4", 9)]), ("p4",))
    assert [*later.collabs.values()][-1].version == "v3"


def test_versions_of_one_step_do_not_depend_on_who_was_faster() -> None:
    before = replace(todo(1), round=2)
    orders = {id: replace(item, round=2) for id, item in before.assignments.items()}
    before = replace(before, assignments=orders)
    first = reply(MissionStep.WRITE, versions=[version("p3", "Sessions in cookies.", outcome="Cookies")])
    second = reply(MissionStep.WRITE, versions=[version("p4", "React and Go, see [[p:p3]].", addresses=["c1"])])
    one = reduced(reduced(before, MissionStep.WRITE, JORDAN, first), MissionStep.WRITE, ALEX, second)
    two = reduced(reduced(before, MissionStep.WRITE, ALEX, second), MissionStep.WRITE, JORDAN, first)
    assert {item.sha for item in one.versions.values()} == {item.sha for item in two.versions.values()}
    assert {id for id, item in one.collabs.items() if item.open} == {
        id for id, item in two.collabs.items() if item.open
    }
