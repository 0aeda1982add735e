"""What agents of a cabal say and write: what is taken, what is refused, and what ends a collab."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.cabal.model.entities import Acceptance, Kind, MissionStep, Product, Status
from cdo.cabal.model.events import identifiers, told
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import REPLIES, StepReply
from cdo.cabal.rules import reducer
from cdo.cabal.rules.feedback import reflected, reviewed, talked
from cdo.cabal.rules.presentation import presented
from cdo.cabal.rules.versions import alike, versioned, wrote
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, USER, WATCHDOG
from tests.support.missions import ALEX, JORDAN, V2, V4, todo

MORE = V4.replace("[[p:p5]]", "HTTP says")  # than in V2
Problems = tuple[str, ...]


def reply(step: MissionStep, **keys: Any) -> Any:
    return REPLIES[step].model_validate({"response_type": "final_output", **keys})


def reduced(
    state: MissionState, step: MissionStep, agent: str, said: StepReply, about: Sequence[str] = ()
) -> MissionState:
    """The state after a reply that is right."""
    after, problems = reducer.apply_reply(state, step, agent, said, about)
    assert problems == ()
    return after


def collab(product: str, importance: int = 5, kind: str = "feedback", comment: str = "Say more.") -> dict[str, Any]:
    return {
        "refersToProduct": product,
        "type": kind,
        "importance": importance,
        "comment": comment,
        "shortestSummary": comment,
    }


def version(product: str, content: str, **keys: Any) -> dict[str, Any]:
    return {"product_id": product, "title": "Next", "content": content, "change_summary": "It says more", **keys}


def taken(result: tuple[MissionState, Problems]) -> MissionState:
    state, problems = result
    assert problems == ()
    return state


def refused(before: MissionState, result: tuple[MissionState, Problems], *parts: str) -> None:
    """The state is as it was, and one problem says all the parts."""
    state, problems = result
    assert state is before
    assert any(all(part in problem for part in parts) for problem in problems), problems


def newer(state: MissionState, product: str, author: str) -> MissionState:
    """The state with another version of a product, from outside of the rules of Write."""
    return versioned(
        state, MissionStep.WRITE, author, product, "Next", f"Other words for {product} of {author}", "Anew"
    )


# -- collabs ---------------------------------------------------------------------------------------


def test_a_collab_gets_the_next_id_the_newest_version_and_an_event_without_ids() -> None:
    said = reply(MissionStep.REVIEW, collabs=[collab("p4", 8, "concern", "Not as in v1, [[p:p3]].")])
    state = taken(talked(todo(1), MissionStep.REVIEW, JORDAN, said))
    made = state.collabs["c3"]
    assert (made.product, made.version, made.importance, made.author, made.round) == ("p4", "v2", 8, JORDAN, 1)
    assert made.blocking and not made.flag
    event = state.events[-1]
    assert (event.kind, event.actor, event.product, event.ref) == ("collab", JORDAN, "p4", "c3")
    named = "Not as in v1, MVP Features Selection."
    assert event.text == f"Technical Architecture: {named} (concern, 8)"


@pytest.mark.parametrize(
    ("item", "parts"),
    [
        (collab("p9"), ("p9 is not a product", "p1, p2, p3 and p4")),
        (collab("new-1"), ("new-1 is not a product",)),
        (collab("p4", comment="See [[p:p99]]."), ("p99",)),
        (collab("p3", kind="endorsement"), ("p3 is yours",)),
    ],
)
def test_a_collab_on_nothing_or_that_praises_itself_is_refused(item: dict[str, Any], parts: tuple[str, ...]) -> None:
    state = todo(1)
    refused(state, talked(state, MissionStep.REVIEW, JORDAN, reply(MissionStep.REVIEW, collabs=[item])), *parts)


def test_nobody_speaks_of_what_is_archived() -> None:
    state = todo(1)
    gone = replace(state, products={**state.products, "p4": replace(state.products["p4"], status=Status.ARCHIVED)})
    refused(
        gone,
        talked(gone, MissionStep.REFLECT, JORDAN, reply(MissionStep.REFLECT, collabs=[collab("p4")])),
        "p4 (Technical",
        "is archived",
    )


def test_an_endorsement_never_blocks() -> None:
    state = taken(
        talked(
            todo(1), MissionStep.REVIEW, JORDAN, reply(MissionStep.REVIEW, collabs=[collab("p4", 10, "endorsement")])
        )
    )
    assert state.collabs["c3"].importance == 7 and not state.blockers("p4")


def test_a_reviewer_speaks_of_what_it_reviews_and_of_its_own() -> None:
    state = todo(1)
    taken(reviewed(state, JORDAN, reply(MissionStep.REVIEW, collabs=[collab("p4"), collab("p3")]), ("p4",)))
    refused(
        state, reviewed(state, JORDAN, reply(MissionStep.REVIEW, collabs=[collab(ROOT)]), ("p4",)),
        "A collab is on p1", "p3 and p4",
    )  # fmt: skip


# -- what ends one ---------------------------------------------------------------------------------


def test_the_raiser_withdraws_its_collab_and_nobody_else() -> None:
    state, withdrawn = todo(1), reply(MissionStep.REVIEW, withdraws=["c1"])
    refused(state, talked(state, MissionStep.REVIEW, ALEX, withdrawn), "c1 was raised by operative-2", "can withdraw")
    done = taken(talked(state, MissionStep.REVIEW, JORDAN, withdrawn)).collabs["c1"]
    assert (done.open, done.closed_by, done.how) == (False, JORDAN, "withdrawn")


@pytest.mark.parametrize(("agent", "right"), [(JORDAN, True), (WATCHDOG, True), (ALEX, False)])
def test_a_confirmation_needs_a_newer_version_and_comes_from_the_raiser_or_the_watchdog(
    agent: str, right: bool
) -> None:
    state, step = todo(1), MissionStep.INSPECT if agent == WATCHDOG else MissionStep.REVIEW
    said = reply(step, confirms=["c1"], **({"inspections": []} if agent == WATCHDOG else {}))
    if right:
        refused(state, talked(state, step, agent, said), "p4 has no version since")
    after = newer(state, "p4", ALEX)
    if not right:
        refused(after, talked(after, step, agent, said), "only operative-2 or watchdog-1 can confirm")
        return
    done = taken(talked(after, step, agent, said))
    assert (done.collabs["c1"].closed_by, done.collabs["c1"].how) == (agent, "confirmed")
    assert (done.events[-1].kind, done.events[-1].ref) == ("closed", "c1")


def test_what_blocks_a_container_is_confirmed_once_something_in_it_is_newer() -> None:
    state = todo(1)
    inner = Product("p5", "Group", Kind.ORCHESTRATION, ROOT, None, ())
    state = replace(state, products={**state.products, "p5": inner, "p4": replace(state.products["p4"], parent="p5")})
    state = taken(talked(state, MissionStep.INSPECT, WATCHDOG, inspect(collabs=[collab(ROOT, 9), collab("p5", 9)])))
    assert [state.collabs[id].version for id in ("c3", "c4")] == ["v2", "v2"]
    both = inspect(confirms=["c3", "c4"])
    for same in (state, versioned(state, MissionStep.PLAN, CHAIR, "p2", "Log", "What changed", "Round 1")):
        refused(same, talked(same, MissionStep.INSPECT, WATCHDOG, both), "c3", "nothing in p1 has a version since")
    beside = newer(state, "p3", JORDAN)
    refused(beside, talked(beside, MissionStep.INSPECT, WATCHDOG, both), "c4", "nothing in p5 has a version since")
    done = taken(talked(newer(state, "p4", ALEX), MissionStep.INSPECT, WATCHDOG, both))
    assert [done.collabs[id].how for id in ("c3", "c4")] == ["confirmed", "confirmed"]


def inspect(**keys: Any) -> Any:
    return reply(MissionStep.INSPECT, inspections=[], **keys)


def test_a_flag_is_confirmed_by_the_watchdog_only() -> None:
    state = newer(todo(1), "p3", JORDAN)
    refused(
        state,
        talked(state, MissionStep.REVIEW, JORDAN, reply(MissionStep.REVIEW, confirms=["c2"])),
        "raised by watchdog-1",
    )
    done = taken(
        talked(state, MissionStep.INSPECT, WATCHDOG, reply(MissionStep.INSPECT, inspections=[], confirms=["c2"]))
    )
    assert not done.blockers("p3")


def test_what_is_not_open_is_neither_confirmed_nor_withdrawn() -> None:
    state = todo(2)  # c1 was closed in an earlier step
    for id in ("c1", "c77"):
        refused(
            state,
            talked(state, MissionStep.REFLECT, JORDAN, reply(MissionStep.REFLECT, withdraws=[id])),
            id,
            "not an open",
        )
    both = reply(MissionStep.REVIEW, confirms=["c1"], withdraws=["c1"])
    base = todo(1)
    refused(base, talked(base, MissionStep.REVIEW, JORDAN, both), "c1", "twice")


# -- remarks ---------------------------------------------------------------------------------------


def test_remarks_have_canonical_recipients() -> None:
    said = reply(
        MissionStep.WRITE,
        remarks=[
            {"recipients": ["self", "team"], "type": "note", "content": "Look at [[p:p4]] again."},
            {"recipients": ["user-1", "[[u:user-1]]", "u:all"], "type": "question", "content": "Is that so?"},
        ],
    )
    state = taken(talked(replace(todo(2), at=4), MissionStep.WRITE, JORDAN, said))
    assert [item.recipients for item in state.remarks] == [(JORDAN, CHAIR, ALEX, WATCHDOG, ENVOY), (USER,)]
    assert {item.at for item in state.remarks} == {4}
    assert state.events[-1].text == "From Jordan to the user: Is that so?"
    assert state.events[-2].text.endswith(": Look at Technical Architecture again.")


def test_a_remark_to_nobody_is_refused() -> None:
    state, said = todo(1), {"recipients": ["operative-7"], "type": "note", "content": "Hello"}
    refused(state, talked(state, MissionStep.WRITE, ALEX, reply(MissionStep.WRITE, remarks=[said])), "operative-7")


# -- reflections -----------------------------------------------------------------------------------


def reflection(product: str, *responses: dict[str, Any]) -> Any:
    item = {"refersToProduct": product, "dod_status": "partially_met", "feedback_responses": list(responses)}
    return reply(MissionStep.REFLECT, reflections=[item])


def test_a_reply_of_the_owner_closes_what_does_not_block() -> None:
    response = {"collab_id": "c1", "action": "reject", "rationale": "A client sees no limit."}
    state = taken(reflected(todo(1), ALEX, reflection("p4", response)))
    done = state.collabs["c1"]
    assert (done.open, done.closed_by, done.how, done.why) == (
        False, ALEX, "replied", "reject: A client sees no limit.",
    )  # fmt: skip
    (made,) = state.reflections
    assert (made.agent, made.product, made.responses[0].collab) == (ALEX, "p4", "c1")
    assert [event.kind for event in state.events[-2:]] == ["reflection", "closed"]


@pytest.mark.parametrize("action", ["accept", "defer", "reject"])
def test_no_reply_of_the_owner_closes_a_blocker(action: str) -> None:
    response = {"collab_id": "c2", "action": action, "rationale": "It is fine."}
    state = taken(reflected(todo(1), JORDAN, reflection("p3", response)))
    assert state.collabs["c2"].blocking
    assert state.reflections[0].responses[0].action == action


@pytest.mark.parametrize(
    ("agent", "product", "response", "parts"),
    [
        (ALEX, "p3", {}, ("p3 is not yours", "p4")),
        (ALEX, "p4", {"collab_id": "c2", "action": "accept"}, ("c2 is not an open collab of p4", "c1")),
        (ALEX, "p4", {"collab_id": "c1", "action": "defer"}, ("why you defer c1",)),
        (ALEX, "p4", {"collab_id": "c1", "action": "accept", "planned_change": "[[v:v9]]"}, ("v9",)),
    ],
)
def test_nobody_answers_for_what_is_anothers(
    agent: str, product: str, response: dict[str, Any], parts: tuple[str, ...]
) -> None:
    state = todo(1)
    refused(state, reflected(state, agent, reflection(product, *([response] if response else []))), *parts)


def test_what_another_closed_in_the_same_step_is_no_mistake() -> None:
    """Two agents answer at the same time, seeing the same state: either order is right, and the first one counts."""
    state = todo(1)
    owner = reflection("p4", {"collab_id": "c1", "action": "accept", "planned_change": "Yes"})
    raiser = reply(MissionStep.REFLECT, withdraws=["c1"])
    one = taken(reflected(taken(reflected(state, ALEX, owner)), JORDAN, raiser))
    two = taken(reflected(taken(reflected(state, JORDAN, raiser)), ALEX, owner))
    assert (one.collabs["c1"].how, two.collabs["c1"].how) == ("replied", "withdrawn")
    later = replace(one, round=2)
    refused(later, reflected(later, JORDAN, raiser), "c1 is not an open collab")


# -- versions --------------------------------------------------------------------------------------


def assigned() -> MissionState:
    """Round 2 of the mission before anything is written: p3 with c2 to answer, p4 without anything."""
    state = replace(todo(1), round=2)
    orders = {id: replace(item, round=2) for id, item in state.assignments.items()}
    orders["p3"] = replace(orders["p3"], address=("c2",))
    return replace(state, assignments=orders)


def decision(**keys: Any) -> dict[str, Any]:
    return version("p3", "Users log in by an httpOnly cookie.", outcome="CRUD, cookies", addresses=["c2"], **keys)


def test_a_version_is_numbered_told_and_answers_what_it_was_told_to() -> None:
    state = taken(wrote(assigned(), JORDAN, reply(MissionStep.WRITE, versions=[decision()])))
    made = state.latest("p3")
    assert made is not None
    assert (made.id, made.number, made.author, made.round, made.outcome) == ("v3", 2, JORDAN, 2, "CRUD, cookies")
    assert state.collabs["c2"].blocking  # only the watchdog lifts its flag
    assert state.products["p3"].versions == ("v1", "v3")
    assert state.events[-1].text == "MVP Features Selection got its version 2 from Jordan: It says more"


def test_a_version_closes_what_it_addresses_and_does_not_block() -> None:
    said = reply(MissionStep.WRITE, versions=[version("p4", MORE, addresses=["c1"])])
    done = taken(wrote(assigned(), ALEX, said)).collabs["c1"]
    assert (done.open, done.closed_by, done.how) == (False, ALEX, "replied")


@pytest.mark.parametrize(
    ("agent", "item", "parts"),
    [
        (ALEX, decision(), ("p3 is not yours", "p4")),
        (ALEX, version("p9", "x"), ("p9 is not yours",)),
        (ALEX, version("p2", "x"), ("p2 is not yours",)),
        (JORDAN, {**decision(), "outcome": ""}, ("p3 is a Decision", "outcome")),
        (JORDAN, {**decision(), "addresses": []}, ("has to answer c2",)),
        (JORDAN, {**decision(), "addresses": ["c2", "c1"]}, ("c1 is not an open collab of p3", "c2")),
        (ALEX, version("p4", V2), ("nearly the same",)),
        (ALEX, version("p4", V2.upper().replace(" ", "  ")), ("nearly the same",)),
        (ALEX, version("p4", V2 + "\nSee [[c:c9]]."), ("c9",)),
    ],
)
def test_a_version_that_breaks_a_rule_is_refused(agent: str, item: dict[str, Any], parts: tuple[str, ...]) -> None:
    state = assigned()
    refused(state, wrote(state, agent, reply(MissionStep.WRITE, versions=[item])), *parts)


def test_one_version_of_a_product_a_round() -> None:
    state = assigned()
    refused(state, wrote(state, ALEX, reply(MissionStep.WRITE, versions=[version("p4", MORE)] * 2)), "p4", "twice")
    again = taken(wrote(state, ALEX, reply(MissionStep.WRITE, versions=[version("p4", MORE)])))
    refused(again, wrote(again, ALEX, reply(MissionStep.WRITE, versions=[version("p4", MORE + " More.")])), "already")


def test_what_is_not_written_needs_a_word_on_why() -> None:
    state = assigned()
    refused(state, wrote(state, ALEX, reply(MissionStep.WRITE)), "p4 is yours to write")
    done = taken(wrote(state, ALEX, reply(MissionStep.WRITE, collabs=[collab("p4", 4, "question")])))
    assert done.latest("p4") == state.latest("p4")


def test_a_small_change_is_enough_where_somebody_asked_for_it() -> None:
    long = " ".join(f"word{number}" for number in range(2000))
    state = newer(assigned(), "p4", USER)
    state = versioned(state, MissionStep.WRITE, USER, "p4", "Long", long, "Long")
    small = long.replace("word7 ", "word seven ")
    refused(state, wrote(state, ALEX, reply(MissionStep.WRITE, versions=[version("p4", small)])), "nearly the same")
    taken(wrote(state, ALEX, reply(MissionStep.WRITE, versions=[version("p4", small, addresses=["c1"])])))
    same = reply(MissionStep.WRITE, versions=[version("p4", long, addresses=["c1"])])
    refused(state, wrote(state, ALEX, same), "nearly the same")


def test_another_outcome_is_another_version_of_a_decision() -> None:
    state = assigned()
    content = state.versions["v1"].content
    taken(wrote(state, JORDAN, reply(MissionStep.WRITE, versions=[{**decision(), "content": content}])))


@pytest.mark.parametrize(
    "pressed",
    [
        lambda text: "\u200b".join(text),
        lambda text: " ".join(f"**{word}**" for word in text.split()),
        lambda text: ". ".join(text.split()) + "\u2063\u3164\ufe0f",
        lambda text: "\n> - _".join(text.split()),
    ],
)
@pytest.mark.parametrize("addresses", [(), ("c1",)])
def test_signs_and_marks_make_no_new_version(pressed: Callable[[str], str], addresses: tuple[str, ...]) -> None:
    state, content = assigned(), pressed(V2.replace("[[p:p3]]", "p:p3"))
    said = reply(MissionStep.WRITE, versions=[version("p4", content, addresses=addresses)])
    refused(state, wrote(state, ALEX, said), "nearly the same")


def test_a_full_stop_makes_no_other_outcome() -> None:
    state = assigned()
    old = state.versions["v1"]
    for outcome in (f"{old.outcome}.", f"**{old.outcome}**", old.outcome.replace(", ", "; \u200b")):
        item = {**decision(), "content": old.content, "outcome": outcome}
        refused(state, wrote(state, JORDAN, reply(MissionStep.WRITE, versions=[item])), "nearly the same")


def test_what_one_raised_oneself_is_no_reason_for_a_small_change() -> None:
    state = versioned(
        assigned(), MissionStep.WRITE, USER, "p4", "Long", " ".join(f"word{n}" for n in range(2000)), "Long"
    )
    state = taken(talked(state, MissionStep.REFLECT, ALEX, reply(MissionStep.REFLECT, collabs=[collab("p4", 1)])))
    small = state.versions["v3"].content.replace("word7 ", "word seven ")
    own = reply(MissionStep.WRITE, versions=[version("p4", small, addresses=["c3"])])
    refused(state, wrote(state, ALEX, own), "nearly the same")
    taken(wrote(state, ALEX, reply(MissionStep.WRITE, versions=[version("p4", small, addresses=["c3", "c1"])])))


@given(st.lists(st.text("ab", min_size=1, max_size=3), max_size=60), st.text(" \n\t", min_size=1, max_size=3))
def test_white_space_and_case_never_make_a_version_new(words: list[str], blank: str) -> None:
    assert alike(" ".join(words), blank.join(words).upper())


@given(st.lists(st.integers(0, 10**9), min_size=6, max_size=300, unique=True))
def test_another_tenth_of_the_words_does(numbers: list[int]) -> None:
    words = [f"w{number}" for number in numbers]
    more = [f"x{number}" for number in range(1 + len(words) // 10)]
    assert not alike(" ".join(words), " ".join([*words, *more]))


# -- what follows from a version -------------------------------------------------------------------


def test_a_version_of_what_was_accepted_reopens_it_and_what_holds_it() -> None:
    state = newer(todo(3), "p5", ALEX)
    assert {"p5", ROOT} == set(todo(3).acceptances) - set(state.acceptances)
    assert state.products["p5"].status is state.products[ROOT].status is Status.IN_PROGRESS
    assert [event.product for event in state.events if event.kind == "reopened"] == ["p5", ROOT]


def test_a_decision_decided_otherwise_makes_stale_what_refers_to_it() -> None:
    before = todo(3)  # p4 refers to p3 and to p5
    same = versioned(before, MissionStep.WRITE, JORDAN, "p3", "x", "y", "z", outcome=before.versions["v3"].outcome)
    assert set(same.acceptances) == {"p4", "p5"}
    state = versioned(before, MissionStep.WRITE, JORDAN, "p3", "x", "y", "z", outcome="No accounts at all")
    assert set(state.acceptances) == {"p5"}
    stale = state.products["p4"]
    assert stale.status is Status.IN_PROGRESS
    event = state.events[stale.stale_at - 1]
    assert (event.kind, event.product) == ("stale", "p4") and "MVP Features Selection" in stale.stale_why


def test_a_decision_that_never_held_binds_nobody() -> None:
    state = versioned(todo(2), MissionStep.WRITE, JORDAN, "p3", "x", "y", "z", outcome="No accounts at all")
    assert state.products["p4"].stale_at == 0


def test_the_chairs_own_products_reopen_nothing() -> None:
    state = versioned(todo(3), MissionStep.PLAN, CHAIR, "p2", "Log", "What changed", "Round 3")
    assert state.acceptances == todo(3).acceptances and ROOT in state.acceptances
    assert isinstance(state.acceptances[ROOT], Acceptance)


def test_only_a_decision_has_an_outcome() -> None:
    state = versioned(todo(1), MissionStep.WRITE, ALEX, "p4", "x", "y", "z", outcome="Something")
    assert state.products["p4"].kind is Kind.CONTENT
    made = state.latest("p4")
    assert made is not None and made.outcome == ""


# -- the envoy -------------------------------------------------------------------------------------


def message(content: str, agent: str = CHAIR, *events: str) -> dict[str, Any]:
    return {"content": content, "as_agent": agent, "events": list(events or ("e5",))}


def test_the_envoy_speaks_for_others_and_rests_on_what_happened() -> None:
    said = reply(MissionStep.PRESENT, messages=[message("The login is open to XSS; we fix it.", JORDAN, "e7", "e7")])
    state = taken(presented(todo(1), said, ("e5", "e6", "e7")))
    made = state.messages[-1]
    assert (made.agent, made.events, state.events[-1].kind) == (JORDAN, ("e7",), "message")
    assert state.events[-1].actor == ENVOY


@pytest.mark.parametrize(
    ("item", "parts"),
    [
        (message("We go on.", WATCHDOG), ("speaks as watchdog-1", "chair-1")),
        (message("We go on.", ENVOY), ("speaks as envoy-1",)),
        (message("We go on.", "operative-9"), ("speaks as operative-9",)),
        (message("We go on.", CHAIR, "e6"), ("rests on e6", "e5")),
        (message("We go on.", CHAIR, "e999"), ("rests on e999",)),
        (message("[[p:p4]] is next."), ("names [[p:p4]]",)),
        (message("p4 and v2 are next, says operative-2."), ("names p4, operative-2:",)),
        (message("After [[v:v2]] comes new-1."), ("names [[v:v2]], new-1:",)),
        (message("c1, i2 and d1 are next."), ("names c1, i2, d1",)),
    ],
)
def test_the_envoy_neither_lies_nor_names_ids(item: dict[str, Any], parts: tuple[str, ...]) -> None:
    state = todo(1)
    refused(state, presented(state, reply(MissionStep.PRESENT, messages=[item]), ("e5",)), *parts)


def test_words_that_look_like_ids_are_none() -> None:
    state = todo(1)
    said = "The p95 latency, i18n, a C4 diagram, H2, v20 and e2e-tests; p4s, the v1 API and its v2"
    assert identifiers(state, said) == () and told(state, said) == said
    assert told(state, "As in [[v:v1]]") == "As in version 1 of MVP Features Selection"


NAMED: tuple[Callable[[MissionState, str], object], ...] = (told, identifiers)


@pytest.mark.parametrize("function", NAMED)
@given(text=st.text(st.sampled_from("[]pvcuaedi:-0129 x\n\u0662²"), max_size=80))
def test_any_text_can_be_told(function: Callable[[MissionState, str], object], text: str) -> None:
    function(todo(1), text)


@given(st.lists(st.sampled_from(["[[p:p4]]", "[[c:c1]]", "[[a:chair-1]]", "p3", "v2", "operative-1", "is", "e2"])))
def test_what_is_told_names_nothing_that_is_there(words: list[str]) -> None:
    state = todo(1)
    assert identifiers(state, told(state, " ".join(words), 10_000)) == ()
