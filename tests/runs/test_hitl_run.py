"""The human in the loop, as real processes: plans as files, exit 6 and resume, and messages to teammates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import A, Desk
from tests.support.harness import QUESTION, exchanges, journal_events, tree, wait_for
from tests.support.provider import Provider


def roles(cdo: Desk, turn: int) -> list[str]:
    found = [record["call"] for record in exchanges(cdo.session()) if record["call_kind"] == "agent"]
    return sorted(name.partition("-")[2] for name in found if name.startswith(f"t{turn}-"))


@pytest.fixture
def paused(cdo: Desk) -> Desk:
    """A run that waits before its first turn."""
    cdo("hitl,think", *A, QUESTION).failed(6, "t1-plan.yaml", "cdo resume a")
    return cdo


def test_nothing_is_asked_before_the_human_has_seen_the_plan(paused: Desk, provider: Provider) -> None:
    assert provider.calls == []
    plan = yaml.safe_load((paused.session() / "t1-plan.yaml").read_text())
    assert [voice["role"] for voice in plan["voices"]] == ["first-principles", "critic", "pragmatist"]
    assert plan["turns"] == [2, 3] and plan["criteria"]["exit_confidence"] == 0.8 and plan["decision"] == "go"


def test_a_plan_left_as_it_is_is_taken_and_the_next_one_waits(paused: Desk, provider: Provider) -> None:
    paused("resume", "a").failed(6, "t2-plan.yaml")
    assert roles(paused, 1) == ["critic", "first-principles", "pragmatist"]
    assert len(provider.calls) == 4
    paused("resume", "a").failed(6, "t3-plan.yaml")
    assert len(provider.calls) == 8


@pytest.mark.quick
def test_what_the_human_changes_is_what_is_held(paused: Desk, provider: Provider) -> None:
    (paused.session() / "t1-plan.yaml").write_text(
        "voices:\n"
        "  - {role: historian, charge: look for the last attempt}\n"
        "  - {role: lawyer, charge: read the contracts}\n"
        "note: mind the users in Peru\nturns: 1\n"
    )
    done = paused("resume", "a", "--json").ok()
    assert roles(paused, 1) == ["historian", "lawyer"] and done.json["turns"] == 1
    prompts = {info.call: info.prompt for info in provider.calls}
    assert "read the contracts" in prompts["t1-lawyer"] and "read the contracts" not in prompts["t1-historian"]
    assert all("mind the users in Peru" in prompts[name] for name in ("t1-lawyer", "t1-historian", "t1-synthesis"))


def test_a_combo_seats_its_roles(paused: Desk) -> None:
    (paused.session() / "t1-plan.yaml").write_text("combo: architect + critic + pragmatist\n")
    paused("resume", "a").failed(6)
    assert roles(paused, 1) == ["architect", "critic", "pragmatist"]


def test_done_ends_with_the_result(paused: Desk, provider: Provider) -> None:
    paused("resume", "a").failed(6)
    (paused.session() / "t2-plan.yaml").write_text("decision: done\n")
    done = paused("resume", "a", "--json").ok()
    assert (done.json["status"], done.json["turns"]) == ("stopped", 1)
    assert len(provider.calls) == 5 and (paused.session() / "FINAL.md").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("voices: [critic\nwidth: 2\n", "line 2"),
        ("voices:\n  - role: critic\n  - role: ../etc\n", "line 3, column 11"),
        ("decision: done\n", "before the first turn there is nothing"),
        ("voices: [critc]\n", "There is no role called `critc`. Did you mean critic?"),
        pytest.param("rounds: 3\n", "`rounds` is not a key", marks=pytest.mark.slow),
        pytest.param("", "is empty", marks=pytest.mark.slow),
    ],
)
def test_a_broken_plan_is_explained_and_nothing_is_lost(
    paused: Desk, provider: Provider, text: str, words: str
) -> None:
    file = paused.session() / "t1-plan.yaml"
    file.write_text(text)
    paused("resume", "a").failed(6, "t1-plan.yaml", words)
    assert file.read_text() == text and provider.calls == []
    file.write_text("decision: go\n")
    paused("resume", "a").failed(6, "t2-plan.yaml")
    assert len(provider.calls) == 4


def test_yes_is_consent_to_stale_files_and_never_to_a_plan(cdo: Desk, provider: Provider) -> None:
    cdo("hitl,think", "--yes", *A, QUESTION).failed(6, "t1-plan.yaml")
    assert provider.calls == []


def test_a_plan_that_is_changed_later_makes_its_turn_stale(paused: Desk, provider: Provider) -> None:
    paused("resume", "a").failed(6)
    (paused.session() / "t1-plan.yaml").write_text("note: think of Peru\n")
    paused("resume", "a").failed(6, "stale", "--yes")
    before = len(provider.calls)
    paused("resume", "a", "--yes").failed(6, "t2-plan.yaml")
    again = [info.call for info in provider.calls[before:]]
    assert {"t1-critic", "t1-synthesis"} <= set(again) and not any(call.startswith("t2-") for call in again)
    assert (paused.session() / "superseded/1/t1-critic.md").exists()


def test_resuming_a_finished_run_asks_and_changes_nothing(cdo: Desk, provider: Provider) -> None:
    cdo("hitl,team,think", "--turns", "2", *A, QUESTION).failed(6)
    cdo("resume", "a").failed(6)
    cdo("resume", "a").ok()
    before, calls = tree(cdo.session()), len(provider.calls)
    cdo("resume", "a").ok()
    assert tree(cdo.session()) == before and len(provider.calls) == calls


# -- the team, on disk -----------------------------------------------------------------------------


@pytest.fixture
def letters(paused_team: Desk) -> Iterator[Path]:
    inbox = paused_team.session() / "team/inbox"
    inbox.mkdir(parents=True)
    yield inbox


@pytest.fixture
def paused_team(cdo: Desk) -> Desk:
    """A team that waits before its second turn."""
    cdo("hitl,team,think", *A, QUESTION).failed(6)
    cdo("resume", "a").failed(6, "t2-plan.yaml")
    return cdo


def roster(cdo: Desk) -> dict[str, str]:
    text = (cdo.session() / "team/roster.yaml").read_text()
    return {mate["name"]: mate["state"] for mate in yaml.safe_load(text)["mates"]}


def test_the_roster_can_be_read_while_the_run_waits(paused_team: Desk) -> None:
    assert roster(paused_team) == dict.fromkeys(("first-principles", "critic", "pragmatist"), "idle")


def test_a_letter_left_in_the_inbox_reaches_its_mate_and_a_broken_one_goes_into_quarantine(
    cdo: Desk, provider: Provider
) -> None:
    cdo("team,think", "--max-calls", "4", *A, QUESTION).failed(5)
    inbox = cdo.session() / "team/inbox"
    inbox.mkdir()
    (inbox / "1.md").write_text("---\nto: critic\n---\nWhat does Peru pay?\n")
    (inbox / "2.md").write_text("To the critic: hello\n")
    (inbox / "3.txt").write_text("not a letter")
    (inbox / "4.md").write_text("---\nto: critc\n---\nWhat does Chile pay?\n")
    told = cdo("resume", "a", "--max-calls", "99").ok()
    folder = cdo.session() / "team"
    assert sorted(path.name for path in inbox.iterdir()) == ["3.txt"]
    assert (folder / "taken/1.md").exists() and (folder / "quarantine/2.md").exists()
    assert "front matter" in (folder / "quarantine/2.md.why").read_text()
    why = "There is no teammate called critc; the team is first-principles, critic, pragmatist"
    assert (folder / "quarantine/4.md").exists() and why in (folder / "quarantine/4.md.why").read_text()
    assert why in told.err and not any("What does Chile pay?" in info.prompt for info in provider.calls)
    assert "What does Peru pay?" in (folder / "messages/m1-critic.md").read_text()
    heard = [info.call for info in provider.calls if "What does Peru pay?" in info.prompt and info.kind == "agent"]
    assert heard and {name.partition("-")[2] for name in heard} == {"critic"}
    assert any("quarantine" in event.get("text", "") for event in journal_events(cdo.session()))
    before, calls = tree(cdo.session()), len(provider.calls)
    cdo("resume", "a").ok()
    assert tree(cdo.session()) == before and len(provider.calls) == calls


def test_a_letter_left_while_the_plan_waits_is_heard_in_that_turn(
    letters: Path, paused_team: Desk, provider: Provider
) -> None:
    (letters / "one.md").write_text("---\nto: critic\n---\nIn time for turn two.\n")
    (letters / "two.md").write_text("---\nto: all\n---\nFor everybody.\n")
    paused_team("resume", "a").failed(6, "t3-plan.yaml")
    heard = {info.call for info in provider.calls if "In time for turn two." in info.prompt and info.kind == "agent"}
    assert heard == {"t2-critic"}
    assert sum("For everybody." in info.prompt for info in provider.calls if info.kind == "agent") >= 3


def test_a_letter_that_comes_too_late_is_named(cdo: Desk, provider: Provider) -> None:
    cdo("team,quick", "--max-calls", "3", *A, QUESTION).failed(5)
    inbox = cdo.session() / "team/inbox"
    inbox.mkdir(parents=True)
    (inbox / "late.md").write_text("---\nto: critic\n---\nWait!\n")
    done = cdo("resume", "a", "--max-calls", "9", "--json").ok()
    assert any("came too late: Wait!" in flag for flag in done.json["flags"])


def test_a_letter_before_the_next_turn_is_told_with_it(letters: Path, paused_team: Desk) -> None:
    (letters / "late.md").write_text("---\nto: critic\n---\nToo late for turn two.\n")
    paused_team("resume", "a").failed(6, "t3-plan.yaml")
    message = (paused_team.session() / "team/messages/m1-critic.md").read_text()
    assert "before_turn: 2" in message


@pytest.mark.parametrize("calls", [2, 5, 9])
@pytest.mark.slow
def test_a_team_that_was_killed_is_the_same_team_after_a_resume(
    cdo: Desk, provider: Provider, calls: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Roster, messages, memory and files: as if nothing had happened."""
    words = ("adaptive,team,think", "--turns", "3", *A, QUESTION)
    cdo(*words).ok()
    whole = tree(cdo.session())
    cdo.session().rename(tmp_path_factory.mktemp("whole") / "cdo-a")
    before = len(provider.calls)
    provider.latency = 0.15
    process = cdo.start(*words)
    wait_for(lambda: len(provider.calls) >= before + calls)
    process.kill()
    process.communicate()
    cdo("resume", "a").ok()
    assert tree(cdo.session()) == whole
