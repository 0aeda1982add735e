"""What the person writes, says and answers changes the mission."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cdo.cabal.model.entities import Status
from cdo.cabal.rules import person, reducer, rounds
from cdo.core.mission_names import ROOT, USER
from tests.support.missions import V4, todo
from tests.unit.cabal.test_reducer import kinds


def test_the_person_writes_a_version_of_anything_that_has_versions() -> None:
    before = todo(3)
    state = person.user_version(before, "p3", "Mine", "All by magic link", "I decide")
    made = state.latest("p3")
    assert made is not None
    assert (made.author, made.number, made.outcome) == (USER, 3, before.versions["v3"].outcome)
    assert "p3" not in state.acceptances and ROOT not in state.acceptances and "p4" in state.acceptances
    other = person.user_version(before, "p3", "Mine", "All by magic link", "I decide", "Magic links")
    assert other.products["p4"].stale_at > 0
    assert before.products["p3"].owner == state.products["p3"].owner
    first = person.user_version(todo(0), "p3", "Magic links", "All by magic link", "I decide").latest("p3")
    assert first is not None and first.outcome == "Magic links"


def test_what_the_person_did_not_change_is_no_version() -> None:
    before = todo(3)
    assert person.user_version(before, "p4", "Same", f"\n{V4}\n\n", "Nothing", "No outcome") is before


@pytest.mark.parametrize("product", [ROOT, "p5"])
def test_what_cannot_have_a_version_gets_none(product: str) -> None:
    before = todo(2)
    before = replace(
        before, products={**before.products, "p5": replace(before.products["p5"], status=Status.ARCHIVED)}
    )
    state = person.user_version(before, product, "x", "y", "z")
    assert state.versions == before.versions and kinds(state, before) == ["user"]
    with pytest.raises(ValueError, match="p9"):
        person.user_version(before, "p9", "x", "y", "z")


def test_the_person_speaks_of_a_product_or_to_all() -> None:
    state = person.user_said(todo(3), "I want no cookies at all", "p3", "concern", 9)
    made = state.collabs["c3"]
    assert (made.author, made.blocking, made.flag, made.version) == (USER, True, False, "v3")
    assert "p3" not in state.acceptances
    for product in ("", "p77"):
        state = person.user_said(todo(1), "Hurry up", product)
        assert state.collabs == todo(1).collabs
        assert state.remarks[-1].recipients == state.agents
        later = rounds.stepped(state)
        assert all(any(item.content == "Hurry up" for item in reducer.heard(later, agent)) for agent in state.agents)


def test_what_the_person_says_of_what_is_archived_keeps_its_name_and_weight() -> None:
    before = todo(2)
    gone = {**before.products, "p5": replace(before.products["p5"], status=Status.ARCHIVED)}
    state = person.user_said(replace(before, products=gone), "I want it back", "p5", "concern", 9)
    assert state.collabs == before.collabs
    said = "About Error Handling, which is archived (concern, importance 9): I want it back"
    assert state.remarks[-1].content == said
    assert state.events[-1].text == f"The user said: {said}"


def test_a_question_is_asked_and_answered() -> None:
    state = person.asked(todo(1), "r1-plan", "Accounts or none?", ("Accounts", "None"))
    (question,) = state.questions
    assert (question.name, question.options, question.answer, question.round) == (
        "r1-plan", ("Accounts", "None"), "", 1,
    )  # fmt: skip
    state = person.answered(state, "r1-plan", "None")
    assert state.questions[0].answer == "None"
    assert [event.kind for event in state.events[-2:]] == ["question", "answer"]
    with pytest.raises(ValueError, match="r2-plan"):
        person.answered(state, "r2-plan", "None")
