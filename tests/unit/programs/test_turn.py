"""One turn, by hand: what the human changes, which skills and models a seat gets, what the team hears. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import to_builtins

from cdo.content.skill_ranking import SkillCard
from cdo.core.schema import fitted
from cdo.core.steps import Call, CitationCheck, Review
from cdo.planning.plan import Change
from tests.unit.programs.test_deliberation import Run, adaptive, drive, plan

CARDS = tuple(
    SkillCard(
        name=name, description=f"{about}.", tags=(tag,), place="user", path=f"/{name}/SKILL.md", sha256="0" * 64
    )
    for name, about, tag in (
        ("threat-model", "Find abuse paths and attackers", "security"),
        ("load-test", "Measure a service under load", "performance"),
        ("schema-design", "Design tables and data", "data"),
        ("cost-model", "Estimate what running it costs", "cost"),
    )
)


def held(edits: Mapping[str, str], *directives: dict[str, Any], **changes: Any) -> Run:
    """A run with a human who leaves plans as `edits` say."""
    return drive(plan(hitl=True, **changes), *directives, edits=edits)


def reviews(run: Run) -> list[str]:
    return [step.file for step in run.steps if isinstance(step, Review)]


# -- the human -------------------------------------------------------------------------------------


def test_each_turn_is_reviewed_before_its_voices_are_asked() -> None:
    run = held({})
    assert reviews(run) == ["t1-plan.yaml", "t2-plan.yaml", "t3-plan.yaml"]
    kinds = [type(step).__name__ for step in run.steps]
    assert kinds == ["Review", "Batch", "Batch"] * 3 + ["Batch"]
    assert reviews(drive(plan())) == []


def test_the_width_a_person_chose_stays_for_the_turns_after() -> None:
    run = held({"t1-plan.yaml": "voices: [critic, tester]\n"})
    assert [len(run.turn(number)) for number in (1, 2, 3)] == [2, 2, 2]
    assert run.roles(1) == ["critic", "tester"]
    wider = held({"t1-plan.yaml": "width: 6\n"})
    assert [len(wider.turn(number)) for number in (1, 2, 3)] == [6, 6, 6]


def test_an_adaptive_band_is_moved_as_far_as_a_person_asks() -> None:
    run = drive(adaptive(hitl=True), {"width": 9, "roles": ["critic"]}, edits={"t2-plan.yaml": "width: 7\n"})
    assert [len(run.turn(number)) for number in (2, 3)] == [7, 7]


def test_turns_and_criteria_of_the_human_hold_from_then_on() -> None:
    assert held({"t2-plan.yaml": "turns: 2\n"}).outcome.turns == 2
    assert held({"t3-plan.yaml": "turns: 5\n"}).outcome.turns == 5
    sure = {"exit_ready": True, "confidence": 0.85, "tensions": [], "gaps": ["a"]}
    assert held({}, sure, turns=(1, 3)).outcome.turns == 1
    strict = held({"t1-plan.yaml": "criteria: {exit_confidence: 0.9}\n"}, sure, turns=(1, 3))
    assert strict.outcome.turns == 2  # when the gap is no longer new


def test_done_ends_before_the_turn_is_held() -> None:
    run = held({"t2-plan.yaml": "decision: done\n"})
    assert (run.outcome.status, run.outcome.turns) == ("stopped", 1)
    assert "you said" in run.outcome.why


def test_focus_and_note_reach_every_voice_and_the_synthesiser_once() -> None:
    run = held({"t2-plan.yaml": "focus: the cost\nnote: mind Peru\n"})
    assert {call.data["focus"] for call in run.turn(2)} == {"the cost"}
    assert {call.data["note"] for call in (*run.turn(2), run.synthesis(2))} == {"mind Peru"}
    assert {call.data["note"] for call in (*run.turn(1), *run.turn(3))} == {""}


@pytest.mark.parametrize("team", [False, True])
def test_a_message_reaches_its_voice_alone_and_at_once(team: bool) -> None:
    text = "messages: [{to: critic, text: count the users}]\n"
    run = held({"t1-plan.yaml": text}, team=team)
    heard = {call.data["role"]: [item["text"] for item in call.data["messages"]] for call in run.turn(1)}
    assert heard == {"architect": [], "critic": ["count the users"], "pragmatist": []}
    assert not any(call.data["messages"] for call in run.turn(2)) or team


def test_a_message_to_all_reaches_everybody() -> None:
    run = held({"t1-plan.yaml": "messages: [{to: all, text: be brief}]\n"})
    assert all([item["text"] for item in call.data["messages"]] == ["be brief"] for call in run.turn(1))


def test_a_seat_is_asked_of_the_model_that_a_person_chose() -> None:
    edits = {"t1-plan.yaml": "voices: [critic, {role: tester, model: m/b}, architect]\n"}
    run = held(edits, models=("m/a", "m/b"))
    assert [call.models for call in run.turn(1)] == [("m/a",), ("m/b",), ("m/a",)]


def test_the_same_role_twice_is_two_voices() -> None:
    run = held({"t1-plan.yaml": "voices: [critic, critic]\n"})
    assert run.names(1) == ["t1-critic", "t1-critic-2"]
    assert [call.data["seat"] for call in run.turn(1)] == [1, 2]


# -- skills ----------------------------------------------------------------------------------------


def names(call: Call) -> list[str]:
    return [skill["name"] for skill in call.data["skills"]]


def test_skills_are_read_only_by_the_voices_that_were_given_them() -> None:
    run = drive(plan(skills=CARDS, topic="Keep the data of the service safe under load"))
    for call in run.turn(1):
        assert [name for name in call.reads if name.startswith("skills/")] == [f"skills/{one}" for one in names(call)]
        assert ("include" in call.data) == bool(names(call))
    assert len({tuple(names(call)) for call in run.turn(1)}) > 1


def test_a_directive_may_ask_for_skills_for_one_role_or_for_all() -> None:
    wish = {"roles": [{"name": "critic", "skills": ["cost-model"]}, "architect", "tester"], "skills": []}
    run = drive(plan(skills=CARDS, topic="x"), wish)
    second = {call.data["role"]: names(call) for call in run.turn(2)}
    assert "cost-model" in second["critic"]
    everywhere = drive(plan(skills=CARDS, topic="x"), {"roles": [], "skills": ["load-test"]})
    assert any("load-test" in names(call) for call in everywhere.turn(2))


def test_a_person_swaps_the_skills_of_a_voice() -> None:
    run = held({"t1-plan.yaml": "voices: [{role: critic, skills: [load-test]}, {role: tester, skills: []}]\n"},
               skills=CARDS, topic="data")  # fmt: skip
    assert [names(call) for call in run.turn(1)] == [["load-test"], []]


# -- citations -------------------------------------------------------------------------------------


def test_a_citation_that_held_once_holds() -> None:
    from cdo.core.steps import Reply
    from cdo.planning.plan import Plan
    from cdo.programs.deliberation.turn import RunState

    course = RunState(fitted(Plan, to_builtins(plan())))
    bad, good = CitationCheck("a.py:1", False, "no such line"), CitationCheck("a.py:1", True, "found")
    course._count([Reply("t1-critic", object(), findings=(bad,))])
    assert course.unverified == {"a.py:1": "no such line"}
    course._count([Reply("t1-tester", object(), findings=(good,)), Reply("t1-x", object(), findings=(bad,))])
    assert course.verified == {"a.py:1"} and course.unverified == {}


# -- what a fork changes ---------------------------------------------------------------------------


def test_the_plan_that_a_person_reviews_holds_what_their_fork_changed() -> None:
    change = Change(turn=2, focus="the cost", note="mind Peru", roles=(("tester", "measure it"),))
    run = held({"t2-plan.yaml": "note: mind Chile\n"}, changes=(change,))
    (proposed,) = [step.format.proposed for step in run.steps if isinstance(step, Review) and "t2" in step.file]  # type: ignore[attr-defined]
    assert (proposed.focus, proposed.note, proposed.turns) == ("the cost", "mind Peru", (3, 3))
    assert (proposed.voices[-1].role, proposed.voices[-1].charge) == ("tester", "measure it")
    assert {call.data["note"] for call in run.turn(2)} == {"mind Chile"}, "the person has the last word"


def test_a_voice_that_a_fork_leaves_out_is_not_woken_by_a_message() -> None:
    told = {"messages": [{"to": "critic", "text": "What does it cost?"}]}
    woken = drive(plan(team=True), told)
    left = drive(plan(team=True, changes=(Change(turn=2, without=("critic",)),)), told)
    assert "critic" in woken.roles(2) and "critic" not in left.roles(2)
    waiting = [call.data["messages"] for call in left.turn(3) if call.data["role"] == "critic"]
    assert waiting and waiting[0][0]["text"] == "What does it cost?"
