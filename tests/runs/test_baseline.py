"""What a run was worth: counted from real runs, and told in FINAL.md."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.formats.voice_blocks import Camp, Directive
from cdo.history import baseline, history
from cdo.history.baseline import Baseline
from cdo.history.past_session import TurnRecord, VoiceReply
from cdo.session.reader import SessionFolder
from tests.conftest import A, Desk
from tests.runs.test_modes_run import case, house
from tests.support.answers import Answer, RequestInfo, agent_text, synthesis_text
from tests.support.provider import Provider, Script

ROLES = ("first-principles", "critic", "pragmatist")
KEEP, SPLIT = "Keep the service whole.", "Split the service | at once."


def story(*turns: dict[str, tuple[str, str, str]], camps: bool | dict[str, str] = True) -> Script:
    """A script: what each role says a turn, as (position, reason for a change, evidence); camps by position.

    `camps` names the camp of a role where it is not its position.
    """

    def script(info: RequestInfo) -> Answer | None:
        if not info.call.startswith("t"):
            return None
        number, _, role = info.call[1:].partition("-")
        said = turns[int(number) - 1]
        if info.kind == "agent":
            position, reason, evidence = said[role]
            claims = [{"text": "It is so.", "evidence": [evidence or "reasoning"]}]
            text = agent_text(position, 0.6, claims=claims)
            return Answer(text.replace("\nclaims:", f"\nchanged_because: {reason}\nclaims:", 1) if reason else text)
        grouped: dict[str, list[str]] = {}
        for name, (position, _, _) in said.items():
            words = camps.get(name, position) if isinstance(camps, dict) else position
            grouped.setdefault(words, []).append(name)
        return Answer(
            synthesis_text(
                roles=ROLES,
                confidence=round(0.5 + 0.1 * int(number), 2),
                tensions=[{"id": "T1", "title": "cost of two", "status": "resolved" if number == "2" else "open"}],
                camps=grouped if camps else None,
            )
        )

    return script


def gained(desk: Desk, name: str = "a") -> Baseline:
    found = baseline.measure(history.read(SessionFolder(desk.session(name))))
    assert found
    return found


@pytest.fixture
def checkout(cdo: Desk) -> Desk:
    cdo.write("service.py", "import one\nimport two\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=cdo.path, check=True, env={"PATH": "/usr/bin:/bin", "HOME": "/"})
    return cdo


def test_what_later_turns_changed_on_what_evidence_at_what_cost(checkout: Desk, provider: Provider) -> None:
    first = {"first-principles": (KEEP, "", ""), "critic": (SPLIT, "", ""), "pragmatist": (KEEP, "", "")}
    second = {
        "first-principles": (SPLIT, "", ""),
        "critic": (SPLIT, "", 'service.py:1 "import one"'),
        "pragmatist": (SPLIT, "The imports show it.", 'service.py:2 "import two"'),
    }
    provider.script = story(first, second)
    checkout("think", "--turns", "2", "--width", "3", *A, "Split the service?").ok()
    found = gained(checkout)
    assert found.single.voice == "first-principles" and found.single.position == KEEP
    assert [(camp.position, len(camp.voices)) for camp in found.camps] == [(KEEP, 2), (SPLIT, 1)]
    assert [len(camp.voices) for camp in found.led] == [3]
    assert found.confidence == (0.6, 0.7) and found.agreement == (2 / 3, 1.0)
    assert [(life.id, life.ended) for life in found.settled] == [("T1", 2)] and not found.opened
    moves = {move.voice: move for move in found.moves}
    assert set(moves) == {"first-principles", "pragmatist"} and not any(move.joined for move in moves.values())
    assert moves["pragmatist"].evidence and not moves["first-principles"].evidence
    assert len(found.evidence) == 2
    assert "- 2 citations that code verified after turn 1 only." in found.markdown()
    calls = [info for info in provider.calls if info.call]
    assert found.blind.calls == 3 and found.total.calls == len(calls) == found.blind.calls + found.later.calls
    text = (checkout.session() / "FINAL.md").read_text()
    told = text.partition("## Worth of the run")[2]
    assert "| one voice (`t1-first-principles`) | Keep the service whole (0.60) |" in told
    assert "| plain vote of turn 1 | Keep the service whole (2 of 3 voices) |" in told
    assert "The synthesis of turn 1 grouped the voices by their answers; code counted them." in told
    assert "Leading answer: “Keep the service whole” (2 of 3) → “Split the service | at once” (3 of 3)." in told
    assert "Confidence of the synthesis: 0.60 → 0.70." in told and "Agreement: 67% → 100%." in told
    assert "T1 cost of two: resolved in turn 2." in told
    assert "pragmatist moved in turn 2 (new verified evidence: `service.py:2" in told
    assert "; because: The imports show it." in told
    assert "Changed the answer without giving a reason: first-principles (turn 2)." in told
    # The same on every resume, byte for byte.
    checkout("resume", "a").ok()
    assert (checkout.session() / "FINAL.md").read_text() == text


def test_whoever_joins_the_largest_camp_without_evidence_is_named(cdo: Desk, provider: Provider) -> None:
    first = {"first-principles": (KEEP, "", ""), "critic": (SPLIT, "", ""), "pragmatist": (KEEP, "", "")}
    provider.script = story(first, {**first, "critic": (KEEP, "", "")})
    cdo("think", "--turns", "2", "--width", "3", *A, "Split the service?").ok()
    told = (cdo.session() / "FINAL.md").read_text().partition("## Worth of the run")[2]
    assert "critic moved in turn 2, to the camp that led (no new verified evidence)" in told
    assert "; no reason was stated." in told


def test_a_dissenter_who_wins_is_no_conformist(cdo: Desk, provider: Provider) -> None:
    """The others came over: the camp that the critic is in leads now, but it is the critic's own."""
    first = {"first-principles": (KEEP, "", ""), "critic": (SPLIT, "", ""), "pragmatist": (KEEP, "", "")}
    second = {name: (f"{SPLIT} Now." if name == "critic" else SPLIT, "", "") for name in first}
    provider.script = story(first, second, camps={"critic": SPLIT})
    cdo("think", "--turns", "2", "--width", "3", *A, "Split the service?").ok()
    moves = {move.voice: (move.joined, move.reworded) for move in gained(cdo).moves}
    assert moves == {"critic": (False, True), "first-principles": (False, False), "pragmatist": (False, False)}
    told = (cdo.session() / "FINAL.md").read_text().partition("## Worth of the run")[2]
    assert "without giving a reason: first-principles (turn 2), pragmatist (turn 2)." in told
    assert "critic moved" not in told and "critic (turn" not in told


def test_a_root_cause_analysis_has_no_blind_answer_to_compare_with(cdo: Desk, provider: Provider) -> None:
    provider.script = case
    cdo("debug", *A, "The gateway crashes.").ok()
    assert "## Worth" not in (cdo.session() / "FINAL.md").read_text()


def test_a_parliament_tells_what_was_voted(cdo: Desk, provider: Provider) -> None:
    provider.script = house
    cdo("parliament,think", "-m", "openai/a", "-m", "openai/b", *A, "Who is right?").ok()
    told = (cdo.session() / "FINAL.md").read_text().partition("## Worth of the run")[2]
    assert "- Voted on: " in told


def test_a_fork_says_what_of_its_cost_it_took_over(cdo: Desk) -> None:
    cdo("think", "--turns", "2", *A, "Split the service?").ok()
    cdo("fork", "a", "--turn", "1", "--session", "b").ok()
    told = (cdo.session("b") / "FINAL.md").read_text().partition("## Worth of the run")[2]
    assert "\nforked: {session: a, turn: 1, cost: 0.0" in (cdo.session("b") / "FINAL.yaml").read_text()
    assert "taken over with the fork) |" in told
    cdo("report", "b").ok()
    assert "a fork of a after turn 1" in (cdo.session("b") / "report.html").read_text()
    found = gained(cdo, "b")
    assert found.shared.calls == 4 and found.total.calls == found.shared.calls + 5


def test_what_failed_in_turn_1_is_a_cost_of_turn_1(cdo: Desk, provider: Provider) -> None:
    provider.script = lambda info: Answer("nothing of use") if info.call == "t1-critic" else None
    cdo("think", "--turns", "1", "--width", "3", *A, "Split the service?").ok()
    found = gained(cdo)
    assert found.blind.calls == 5 and found.later.calls == 2


def test_a_tie_and_one_turn(cdo: Desk, provider: Provider) -> None:
    provider.script = story({"first-principles": (SPLIT, "", ""), "critic": (KEEP, "", "")})
    cdo("think", "--turns", "1", "--width", "2", *A, "Split the service?").ok()
    told = (cdo.session() / "FINAL.md").read_text().partition("## Worth of the run")[2]
    assert "a tie (1 of 2 voices each): Split the service \\| at once / Keep the service whole" in told
    assert "There was no later turn" in told


def test_without_camps_equal_words_are_votes(cdo: Desk, provider: Provider) -> None:
    said = {"first-principles": (KEEP, "", ""), "critic": (KEEP.upper(), "", ""), "pragmatist": (SPLIT, "", "")}
    provider.script = story(said, camps=False)
    cdo("think", "--turns", "1", "--width", "3", *A, "Split the service?").ok()
    found = gained(cdo)
    assert not found.grouped and [camp.voices for camp in found.camps] == [
        ("critic", "first-principles"),
        ("pragmatist",),
    ]
    assert "(2 of 3 voices)" in found.markdown()


def test_a_first_answer_alone_is_enough_and_none_is_none(cdo: Desk, provider: Provider) -> None:
    cdo("think", "--max-calls", "3", *A, "Split the service?").failed(5)
    found = gained(cdo)
    assert found.turns == 1 and found.confidence == (None, None) and "one voice" in found.markdown()
    cdo("think", "--max-calls", "0", "--session", "b", "Split the service?")
    if cdo.session("b").exists():
        assert baseline.measure(history.read(SessionFolder(cdo.session("b")))) is None


NAMES = st.lists(st.sampled_from(["a", "b", "c", "d", "nobody"]), max_size=6)


@given(st.lists(NAMES, max_size=5))
def test_each_voice_that_was_heard_counts_once(groups: list[list[str]]) -> None:
    voices = tuple(VoiceReply(name, name, 1, f"t1-{name}", position=f"{name} says so") for name in "abc")
    camps = tuple(Camp(position="p", voices=tuple(names)) for names in groups)
    directive = Directive(width=3, roles=(), focus="", confidence=0.5, exit_ready=False, camps=camps)
    found = TurnRecord(1, voices, directive=directive).camps
    counted = [name for camp in found for name in camp.voices]
    assert sorted(counted) == (["a", "b", "c"] if any(set(names) & set("abc") for names in groups) else [])
    assert [len(camp.voices) for camp in found] == sorted((len(camp.voices) for camp in found), reverse=True)
