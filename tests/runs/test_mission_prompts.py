"""What the agents of a mission are told, and what they are not asked for. Real processes against a scripted team."""

from __future__ import annotations

import re

from tests.conftest import Desk
from tests.runs.test_mission import TEAM, todo, todo_script_of, told
from tests.support.cabal_team import ALEX, DRAFT, JORDAN, REQUEST, UNSAFE, assignment, inspect, plan, version, write
from tests.support.provider import Provider
from tests.support.repositories import git

__all__ = ["todo"]  # the fixture


def test_everybody_is_told_how_many_rounds_are_left(todo: Desk, provider: Provider) -> None:
    unread = {"r2-inspect-p1": "I cannot say.", "r3-inspect-p1": todo_script_of("r2-inspect-p1"), "r3-plan": plan()}
    provider.script = told(unread)
    todo(*TEAM, "-q", "--rounds", "2", REQUEST).failed(3)
    said = {
        0: "The mission has at most 2 rounds after this step.",
        1: "This is round 1 of at most 2.",
        2: "This is round 2, the last one: what is not delivered now is not delivered.",
    }
    for info in provider.calls:
        assert said[int(info.call[1])] in info.prompt, info.call
    provider.reset()
    todo("resume", "a", "-q", "--rounds", "3").ok()
    assert {info.call[:2] for info in provider.calls} == {"r3"}, "a raised cap makes nothing stale"
    assert all("This is round 3, the last one" in info.prompt for info in provider.calls)


def test_an_endorsement_asks_for_no_answer_and_the_writer_keeps_what_it_praises(
    todo: Desk, provider: Provider
) -> None:
    todo(*TEAM, "-q", "--rounds", "2", REQUEST).ok()
    assert any("endorsement" in path.read_text() for path in todo.session().glob("products/p4-*/c*.md"))
    for step in ("reflect", "plan"):
        assert not re.search(r"(?m)^- c\d+ (on p4: )?endorsement", todo("context", "p4", "--step", step).ok().out)
    shown = todo("context", "p4", "--step", "write").ok().out
    assert f"- {JORDAN} endorses, so keep it: The limits fit the API" in shown
    todo("report", "a").ok()
    assert "endorsed</span>" in (todo.session() / "report.html").read_text()


def test_the_envoy_is_told_one_thing_about_ids(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", "--rounds", "1", REQUEST).failed(3)
    for info in provider.calls:
        assert ("refer to things as [[p:p4]]" in info.prompt) is not info.call.endswith("-present"), info.call
        assert ("never ids or [[...]]" in info.prompt) is info.call.endswith("-present"), info.call


def test_the_envoy_hears_of_an_order_only_where_nothing_came_of_it(todo: Desk, provider: Provider) -> None:
    provider.script = told({f"r1-write-{JORDAN}": "I would rather not."})
    todo(*TEAM, "-q", "--rounds", "1", REQUEST).failed(3)
    (asked,) = (info.prompt for info in provider.calls if info.call == "r1-present")
    assert "MVP Features Selection was assigned to Jordan" in asked
    assert "Technical Architecture got its version 1" in asked and "Architecture was assigned" not in asked


def test_an_empty_repository_is_no_place_to_look(todo: Desk, provider: Provider) -> None:
    git(todo.path, "init", "-q")
    todo(*TEAM, "-q", "--rounds", "1", REQUEST).failed(3)
    assert not any("tools" in info.body for info in provider.calls)
    provider.reset()
    todo.write("app.py", "print('hello')\n")
    todo("cabal", "--operatives", "2", "--session", "b", "-q", "--rounds", "1", REQUEST).failed(3)
    assert any("tools" in info.body for info in provider.calls)


def test_what_an_owner_promised_is_shown_to_its_writer_and_the_watchdog(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", REQUEST).ok()
    promise = (
        "- c2, which the owner accepted: Say what a client sees when limited. "
        "Promised: Rate limits, with error codes aligned"
    )
    shown = {info.call: info.prompt for info in provider.calls}
    assert promise in shown["r2-write-operative-1"] and promise in shown["r2-inspect-p4"]
    assert promise not in shown["r2-inspect-p3"] + shown[f"r2-review-{JORDAN}"]


def test_what_rests_on_a_decision_is_written_after_it_in_the_same_round(todo: Desk, provider: Provider) -> None:
    log = version("p2", "Change Log", "# Change Log\n\n- Round 1: first the features, then the architecture.")
    orders = (assignment("p4", ALEX, attach_context=["p3"]), assignment("p3", JORDAN, ALEX))
    says = {
        "r1-plan": plan(*orders, chair_versions=[log]),
        "r1-inspect-p3": inspect(),
        "r1-inspect-p4": inspect(),
    }
    provider.script = told(says)
    todo(*TEAM, "-q", "--rounds", "1", REQUEST).failed(3)
    calls = {info.call: info for info in provider.calls}
    decision, writer = calls[f"r1-write-{JORDAN}"], calls[f"r1-write-{ALEX}"]
    assert decision.ended and decision.ended <= writer.arrived
    assert UNSAFE in writer.prompt and "Outcome: Task CRUD, login by JWT in localStorage" in writer.prompt
    assert DRAFT not in decision.prompt and sum("-write-" in name for name in calls) == 2
    provider.reset()
    todo("replay", "a").ok()
    todo("verify", "a").ok()
    assert not provider.calls


def test_a_writer_of_both_writes_a_decision_and_what_rests_on_it_together(todo: Desk, provider: Provider) -> None:
    both = write(
        version("p3", "MVP features", UNSAFE, outcome="Task CRUD, login by JWT in localStorage"),
        version("p4", "Technical architecture", DRAFT),
    )
    orders = (assignment("p3", ALEX, JORDAN), assignment("p4", ALEX, attach_context=["p3"]))
    provider.script = told({"r1-plan": plan(*orders), f"r1-write-{ALEX}": both})
    todo(*TEAM, "-q", "--rounds", "1", REQUEST).failed(3)
    assert [info.call for info in provider.calls if "-write-" in info.call] == [f"r1-write-{ALEX}"]
