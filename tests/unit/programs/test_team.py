"""Teammates: their states, memory and messages, as a pure fold; and what a program makes of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.core.steps import Collect, InvalidReply, Publish
from cdo.formats.voice_blocks import Note
from cdo.programs.deliberation.team import MEMORIES, SENDINGS, Memory, NoteFormat, Team
from tests.unit.programs.test_deliberation import Run, adaptive, drive, plan, spoken

NAMES = ("architect", "critic", "tester", "operator")


def memory(turn: int) -> Memory:
    return Memory(turn, "", "", f"position of turn {turn}", 0.6)


def turned(team: Team, turn: int, *names: str, retire: bool = False, silent: tuple[str, ...] = ()) -> Team:
    """The team after a turn of these mates."""
    team = team.begin(turn, {name: name for name in names}, retire=retire).delivered(turn, names)
    return team.end(turn, {name: None if name in silent else memory(turn) for name in names}, {})


# -- states ----------------------------------------------------------------------------------------


def test_a_mate_is_spawned_works_rests_and_is_woken() -> None:
    team = turned(turned(turned(Team(), 1, "critic", "tester"), 2, "tester"), 3, "critic", "tester")
    assert team.mates["critic"].history == (
        (1, "spawned"), (1, "working"), (1, "idle"), (3, "woken"), (3, "working"), (3, "idle"),
    )  # fmt: skip
    assert [item.turn for item in team.mates["critic"].memory] == [1, 3]
    assert team.last("critic") == "t3-critic" and team.last("nobody") == ""


def test_who_is_not_needed_rests_or_is_stopped_and_can_be_woken_again() -> None:
    assert turned(turned(Team(), 1, "critic", "tester"), 2, "tester").mates["critic"].state == "idle"
    team = turned(turned(Team(), 1, "critic", "tester"), 2, "tester", retire=True)
    assert team.mates["critic"].state == "stopped"
    assert turned(team, 3, "critic").mates["critic"].history[-3:] == ((3, "woken"), (3, "working"), (3, "idle"))


def test_a_mate_that_does_not_answer_has_failed_and_keeps_its_memory() -> None:
    team = turned(turned(Team(), 1, "critic"), 2, "critic", silent=("critic",))
    assert team.mates["critic"].state == "failed" and team.last("critic") == "t1-critic"
    assert {mate.state for mate in team.stopped(2).mates.values()} == {"stopped"}


def test_a_brief_reminds_of_the_last_turns_only() -> None:
    team = Team()
    for turn in range(1, 9):
        team = turned(team, turn, "critic")
    told = team.brief("critic", 9)["memory"]
    assert [item["turn"] for item in told] == list(range(9 - MEMORIES, 9))


# -- messages --------------------------------------------------------------------------------------


def note(to: str = "critic", text: str = "count the users") -> Note:
    return Note(to=to, text=text)


def test_a_message_stands_in_the_next_brief_until_it_is_acknowledged() -> None:
    team = turned(Team(), 1, "critic").told(2, "lead", [note()])
    assert team.called() == ("critic",) and team.messages[0].state == "queued"
    team = team.begin(2, {"critic": "critic"}, retire=False).delivered(2, ["critic"])
    assert team.brief("critic", 2)["messages"] == [{"id": "m1", "from": "lead", "text": "count the users"}]
    team = team.end(2, {"critic": memory(2)}, {"critic": ["m1", "m7"]})
    assert team.messages[0].acknowledged == 2 and team.called() == ()


def test_a_message_that_is_never_acknowledged_is_put_twice_and_then_marked() -> None:
    team = turned(Team(), 1, "critic").told(2, "human", [note()])
    for turn in range(2, 6):
        team = turned(team, turn, "critic")
    assert team.messages[0].sent == (2, 3) and len(team.messages[0].sent) == SENDINGS
    assert team.messages[0].state == "unanswered"


def test_nobody_else_hears_a_message_nor_can_acknowledge_it() -> None:
    team = turned(Team(), 1, "critic", "tester").told(2, "lead", [note()])
    team = team.begin(2, {"critic": "critic", "tester": "tester"}, retire=False).delivered(2, ["critic", "tester"])
    assert team.brief("tester", 2)["messages"] == []
    team = team.end(2, {"critic": memory(2), "tester": memory(2)}, {"tester": ["m1"]})
    assert team.messages[0].acknowledged is None


def test_a_message_to_a_stranger_is_named_and_left() -> None:
    team = turned(Team(), 1, "critic")
    assert team.strangers([note("ghost"), note(), note("ghost")]) == ("ghost",)
    assert [message.to for message in team.told(2, "lead", [note("ghost"), note()]).messages] == ["critic"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hello", "must start with front matter"),
        ("---\nto: critic\n---\n", "text"),
        ("---\nto: ../x\n---\nhi", "cannot be a role"),
        ("---\nto: [a\n---\nhi", "not valid YAML"),
        ("---\nto: critic\nfrom: me\n---\nhi", "`from` is not a key"),
        ("---\n- critic\n---\nhi", "mapping"),
    ],
)
def test_a_letter_that_cannot_be_read_says_why(text: str, problem: str) -> None:
    with pytest.raises(InvalidReply) as caught:
        NoteFormat().parse(text)
    assert problem in " ".join(caught.value.problems)


def test_a_letter_is_front_matter_and_text() -> None:
    assert NoteFormat().parse("---\nto: critic\n---\n\nCount them.\n\n- all\n") == note(text="Count them.\n\n- all")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_letter_is_read_or_refused(text: str) -> None:
    try:
        NoteFormat().parse(text)
    except InvalidReply as invalid:
        assert invalid.problems


def test_a_message_may_be_for_one_that_joins_in_the_turn_and_all_are_both() -> None:
    team = turned(Team(), 1, "critic").told(2, "human", [note("tester"), note("all")], ["tester"])
    assert [message.to for message in team.messages] == ["tester", "critic", "tester"]
    team = turned(team, 2, "critic", "tester")
    assert [item["id"] for item in team.brief("tester", 2)["messages"]] == ["m1", "m3"]


def test_a_letter_to_nobody_is_refused_with_the_names_of_the_team() -> None:
    team = turned(Team(), 1, "critic", "tester")
    assert team.unknown(["lawyer"], note("critic")) == team.unknown(["lawyer"], note("lawyer")) == ""
    assert team.unknown([], note("all")) == ""
    assert team.unknown(["lawyer"], note("ghost")) == (
        "There is no teammate called ghost; the team is critic, tester, lawyer (all: everybody)."
    )


moves = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES), min_size=1),
        st.lists(st.sampled_from((*NAMES, "ghost")), max_size=3),
        st.sets(st.sampled_from(NAMES)),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(moves)
def test_whatever_happens_the_roster_stays_sound(turns: list[tuple[set[str], list[str], set[str], bool]]) -> None:
    """States only change along the life of a mate, and no message is lost, doubled or heard by another."""
    allowed = {
        "spawned": {"working"}, "woken": {"working"}, "working": {"idle", "failed"},
        "idle": {"woken", "stopped"}, "failed": {"woken", "stopped"}, "stopped": {"woken"},
    }  # fmt: skip
    team, written = Team(), 0
    for number, (names, letters, silent, retire) in enumerate(turns, 1):
        team = team.told(number, "lead", [note(name) for name in letters])
        written += sum(name in team.mates for name in letters)
        team = turned(team, number, *sorted(names), retire=retire, silent=tuple(silent & names))
    assert len(team.messages) == written and len({message.id for message in team.messages}) == written
    for mate in team.mates.values():
        states = [state for _, state in mate.history]
        assert states[0] == "spawned"
        assert all(after in allowed[before] for before, after in pairwise(states))
    for message in team.messages:
        assert len(message.sent) <= SENDINGS
        assert all(turn >= message.written for turn in message.sent)


# -- in a run --------------------------------------------------------------------------------------


def published(run: Run) -> list[dict[str, Any]]:
    """What was published when letters had come in, before a turn and after it, turn by turn; then at the end."""
    return [dict(step.files) for step in run.steps if isinstance(step, Publish)]


def roster(files: dict[str, Any]) -> dict[str, str]:
    return {mate["name"]: mate["state"] for mate in yaml.safe_load(files["team/roster.yaml"])["mates"]}


def test_a_teammate_reads_its_own_last_artifact_and_nobody_elses() -> None:
    run = drive(plan(team=True), {"roles": ["critic", "architect", "tester"]})
    second = {call.name: call for call in run.turn(2)}
    assert second["t2-critic"].reads == ("00-input", "00-context", "t1-synthesis", "t1-critic")
    assert second["t2-critic"].data["memory"] == [{"turn": 1, "charge": "", "position": "x", "confidence": 0.6}]
    assert second["t2-tester"].reads == ("00-input", "00-context", "t1-synthesis")
    assert second["t2-tester"].data["memory"] == []
    assert second["t2-critic"].data["include"] == {"team": "dispatch/team-mode"}
    assert {call.thread for call in run.turn(2)} == {"critic", "architect", "tester"}
    assert [call.reads for call in drive(plan()).turn(2)] == [("00-input", "00-context", "t1-synthesis")] * 3


def test_a_refuter_has_no_memory_even_on_a_team() -> None:
    run = drive(plan(team=True, turns=(4, 4)), {"roles": ["critic"]}, {"roles": ["critic"], "together": 9})
    (refuter,) = [call for call in run.turn(3) if call.data["role"] == "refuter"]
    assert refuter.reads == ("00-input", "00-context") and "memory" not in refuter.data and not refuter.thread
    assert "refuter" not in roster(published(run)[-1])


def test_the_roster_is_published_before_and_after_each_turn_and_stopped_at_the_end() -> None:
    files = published(drive(plan(team=True), {"roles": ["critic", "architect", "tester"]}))
    assert set(roster(files[0]).values()) == {"working"} and set(roster(files[1]).values()) == {"idle"}
    assert roster(files[2]) == {
        "architect": "working",
        "critic": "working",
        "pragmatist": "idle",
        "tester": "working",
    }
    assert set(roster(files[-1]).values()) == {"stopped"}


def test_adaptive_runs_retire_whom_they_do_not_need() -> None:
    files = published(drive(adaptive(team=True), {"roles": ["critic", "tester"], "width": 2}))
    assert roster(files[2]) == {
        "architect": "stopped",
        "critic": "working",
        "pragmatist": "stopped",
        "tester": "working",
    }


def test_the_leads_message_wakes_a_mate_and_is_acknowledged() -> None:
    wishes = {
        "roles": ["tester", "critic", "operator"],
        "messages": [{"to": "pragmatist", "text": "count the users"}],
    }
    run = drive(plan(team=True), wishes, {}, voices=lambda call: spoken(acknowledged=["m1"]))
    second = {call.data["role"]: call for call in run.turn(2)}
    assert list(second) == ["tester", "critic", "pragmatist"], "whoever a message waits for takes the last seat"
    assert second["pragmatist"].data["messages"] == [{"id": "m1", "from": "lead", "text": "count the users"}]
    last = published(run)[-1]
    assert "state: acknowledged" in last["team/messages/m1-pragmatist.md"]
    assert "count the users" in last["team/messages/m1-pragmatist.md"]


def test_the_humans_letters_reach_their_mates_and_one_on_record_to_a_stranger_is_flagged() -> None:
    letters = {"t2-inbox": [note("critic", "stay with the cost"), note("ghost")]}
    run = drive(plan(team=True), {"roles": ["critic", "architect", "tester"]}, letters=letters)
    (critic,) = [call for call in run.turn(2) if call.data["role"] == "critic"]
    assert critic.data["messages"] == [{"id": "m1", "from": "human", "text": "stay with the cost"}]
    assert run.outcome.flags == ("turn 2: a message to ghost, who is not on the team, was left",)


def test_a_letter_before_the_first_turn_reaches_whoever_sits_in_it() -> None:
    letters = {"t1-inbox": [note("critic", "mind Peru"), note("all", "be brief")]}
    run = drive(plan(team=True), letters=letters)
    heard = {call.data["role"]: [item["text"] for item in call.data["messages"]] for call in run.turn(1)}
    assert heard == {"architect": ["be brief"], "critic": ["mind Peru", "be brief"], "pragmatist": ["be brief"]}
    assert run.outcome.flags == ()


def test_who_may_be_written_to_is_the_team_with_those_who_join_and_no_refuter() -> None:
    wishes = {"roles": ["critic", "lawyer", "tester"], "agreement": 0.9}
    run = drive(plan(team=True, width=(2, 4), turns=(2, 2)), wishes)
    inbox = {step.name: step for step in run.steps if isinstance(step, Collect)}
    refuse = inbox["t2-inbox"].refuse
    assert refuse is not None
    assert [name for name in ("critic", "lawyer", "pragmatist", "all") if refuse(note(name))] == []
    assert "no teammate called refuter" in refuse(note("refuter"))


def test_a_letter_to_one_that_the_person_then_sends_away_waits_and_wakes_nobody() -> None:
    letters = {"t1-inbox": [note("pragmatist", "mind Peru")]}
    edits = {"t1-plan.yaml": "voices: [critic, architect]\n"}
    run = drive(plan(team=True, hitl=True), letters=letters, edits=edits)
    assert not any(call.data["messages"] for number in (1, 2) for call in run.turn(number))
    assert "state: queued" in published(run)[-1]["team/messages/m1-pragmatist.md"]
