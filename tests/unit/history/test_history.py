"""What happened in a session, as data: real runs with scripted answers, then unfinished, edited and damaged ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.core.errors import SessionError
from cdo.core.steps import CitationCheck
from cdo.core.usage import TotalUsage
from cdo.formats.voice_blocks import Camp, Directive
from cdo.history import history
from cdo.history.past_session import History, TensionHistory, TurnRecord, VoiceReply
from cdo.programs.deliberation.convergence import Record
from cdo.session.reader import InMemorySession, SessionFolder
from tests.conftest import Desk, _desk
from tests.support.answers import Answer, RequestInfo, agent_text, final_text, synthesis_text
from tests.support.provider import Provider

ROLES = ["critic", "pragmatist", "first-principles"]
FIRST, SECOND = 'src/queue.py:1 "import heapq"', 'src/queue.py:3 "HEAP: list = []"'
WRONG = 'src/queue.py:2 "import os"'
# What each voice says in each turn: position, evidence, why it changed.
SAID: dict[str, tuple[str, tuple[str, ...], str]] = {
    "t1-critic": ("Keep it whole.", (FIRST, WRONG), ""),
    "t1-pragmatist": ("Split it.", (FIRST,), ""),
    "t1-first-principles": ("Split  IT", (), ""),
    "t2-critic": ("Split it in two.", (FIRST, SECOND), "the heap is global"),
    "t2-pragmatist": ("split it", (SECOND,), "no reason, the same words"),
    "t3-critic": ("Wait a month.", (SECOND,), "I have slept on it"),
    "t3-pragmatist": ("Wait a month.", (), ""),
    "t3-first-principles": ("Split it.", (), ""),
}
TENSIONS: dict[int, list[dict[str, str]]] = {
    1: [{"id": "T1", "title": "speed or safety", "status": "open"}],
    2: [
        {"id": "T1", "title": "speed or safety", "status": "resolved"},
        {"id": "T2", "title": "who pays", "status": "open"},
    ],
    3: [
        {"id": "T1", "title": "speed against safety", "status": "accepted"},
        {"id": "T3", "title": "when", "status": "open"},
    ],
}
GAPS = {1: ["the load"], 2: ["The  load", "the price"], 3: []}
CAMPS = {
    1: [
        {"position": "split", "voices": ["pragmatist", "first-principles"]},
        {"position": "keep", "voices": ["critic"]},
    ],
    2: [{"position": "split", "voices": ["critic", "pragmatist", "critic", "nobody"]}],
    3: [],
}


def scripted(info: RequestInfo) -> Answer | None:
    """Three turns in which the critic moves twice; `first-principles` is not to be understood in turn 2.

    All who are heard in turn 2 agree, so that a refuter is asked in turn 3: nor is it to be understood.
    """
    turn = int(info.call[1]) if info.call[0] == "t" else 0
    if info.kind == "agent":
        if info.call not in SAID:
            return Answer("I had rather not use your format.")
        position, evidence, because = SAID[info.call]
        claims = [{"text": "It is so.", "evidence": evidence or ("reasoning",)}]
        objections = ["the way back is untested"] if info.call.endswith("critic") else []
        text = agent_text(position, 0.5 + turn / 10, objections, claims)
        return Answer(
            text.replace("claims:", f"changed_because: {json.dumps(because)}\nclaims:", 1) if because else text
        )
    if info.kind == "synthesis":
        text = synthesis_text(
            roles=ROLES, confidence=0.5 + turn / 20, tensions=TENSIONS[turn], gaps=GAPS[turn], focus=f"focus {turn}"
        )
        return Answer(text.replace("camps: []", f"camps: {json.dumps(CAMPS[turn])}", 1))
    minority = "- critic: the way back is untested (o1)"
    return Answer(final_text("Wait a month.", tensions=["T1", "T2", "T3"], minority=minority, confidence=0.65))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk in a checkout with a finished session `a`, and `b`, stopped by a cap; only to be looked at."""
    with Provider(script=scripted) as provider:
        desk = _desk(tmp_path_factory.mktemp("history"), provider.url)
        desk.write("src/queue.py", "import heapq\n\nHEAP: list = []\n")
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *words], cwd=desk.path, check=True, env=desk.environment())
        a, b = desk.several(
            ["think", "--turns", "3", "--session", "a", "-q", "Should we split the queue?"],
            ["think", "--turns", "3", "--session", "b", "-q", "--max-calls", "7", "--concurrency", "1", "Why?"],
        )
        assert (a.ok().code, b.code) == (0, 5), b.err
        yield desk


@pytest.fixture(scope="module")
def told(ran: Desk) -> History:
    """What happened in `a`."""
    return history.read(SessionFolder(ran.session()))


@pytest.fixture
def session(ran: Desk, tmp_path: Path) -> Path:
    """A copy of `a` that may be changed."""
    return shutil.copytree(ran.session(), tmp_path / "cdo-a")


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


# -- a finished run --------------------------------------------------------------------------------


@pytest.mark.wide
def test_a_finished_run_is_told_from_question_to_end(told: History) -> None:
    assert (told.session, told.problem, told.status) == ("a", "Should we split the queue?", "max_turns")
    assert told.frozen.plan.preset == "think"
    assert [turn.number for turn in told.turns] == [1, 2, 3]
    assert [sorted(said.voice for said in turn.voices) for turn in told.turns] == [
        sorted(ROLES), ["critic", "pragmatist"], sorted(ROLES),
    ]  # fmt: skip
    assert [dict(turn.missing).keys() for turn in told.turns] == [set(), {"first-principles"}, {"refuter"}]
    assert "did not have the form" in dict(told.turns[1].missing)["first-principles"]
    assert [turn.synthesis for turn in told.turns] == ["t1-synthesis", "t2-synthesis", "t3-synthesis"]
    assert [turn.directive.focus for turn in told.turns if turn.directive] == ["focus 1", "focus 2", "focus 3"]
    assert told.confidences == ((1, 0.55), (2, 0.6), (3, 0.65))
    assert [turn for turn, _ in told.agreements] == [1, 2, 3]
    assert [share for _, share in told.agreements] == pytest.approx([2 / 3, 1.0, 1 / 3])
    assert [turn.gaps for turn in told.turns] == [("the load",), ("the price",), ()]
    assert not any(turn.edited or said.edited or said.broken for turn in told.turns for said in turn.voices)


def test_what_a_voice_said_is_all_there(told: History) -> None:
    critic = next(said for said in told.turns[0].voices if said.voice == "critic")
    assert (critic.role, critic.turn, critic.artifact) == ("critic", 1, "t1-critic")
    assert (critic.position, critic.confidence, critic.model) == ("Keep it whole.", 0.6, "openai/gpt-6.1-sol")
    assert [(claim.id, claim.evidence) for claim in critic.claims] == [("c1", (FIRST, WRONG))]
    assert [(item.id, item.text, item.severity) for item in critic.objections] == [
        ("o1", "the way back is untested", 5)
    ]
    assert {(finding.citation, finding.verified) for finding in critic.findings} == {(FIRST, True), (WRONG, False)}
    assert critic.verified == (FIRST,)


def test_the_end_is_told_as_its_head_and_its_sections(told: History) -> None:
    final = told.final
    assert final and final.decision == "Wait a month."
    assert list(final.sections)[:5] == ["Decision", "Confidence", "Key Tensions", "Minority Reports", "Action Items"]
    assert final.sections["Minority Reports"] == "- critic: the way back is untested (o1)"
    assert (final.status, final.why) == ("max_turns", "the cap of 3 turns was reached")
    # Citations that do not hold lower what was stated.
    assert (final.stated, final.confidence, final.edited) == (0.65, final.confidence, False)
    assert final.open_tensions == ("T2: who pays", "T3: when")
    assert final.verified >= 2 and any("src/queue.py:2" in citation for citation in final.unverified)


def test_tensions_live_from_birth_to_end(told: History) -> None:
    assert told.tensions == (
        TensionHistory("T1", "speed against safety", 1, ((1, "open"), (2, "resolved"), (3, "accepted"))),
        TensionHistory("T2", "who pays", 2, ((2, "open"), (3, "open"))),  # what nobody mentions any more stays open
        TensionHistory("T3", "when", 3, ((3, "open"),)),
    )
    assert [(life.status, life.ended) for life in told.tensions] == [("accepted", 2), ("open", None), ("open", None)]


def test_moves_tell_who_changed_and_on_what(told: History) -> None:
    first, second, third = told.moves
    assert (first.voice, first.turn, first.because) == ("critic", 2, "the heap is global")
    assert (first.before.position, first.after.position) == ("Keep it whole.", "Split it in two.")
    assert first.evidence == (SECOND,) and first.joined
    assert (second.voice, second.turn, second.evidence, second.joined) == ("critic", 3, (), False)
    assert (third.voice, third.turn, third.because, third.evidence) == ("pragmatist", 3, "", ())


def test_camps_count_each_voice_that_was_heard_once(told: History) -> None:
    one, two, three = (turn.camps for turn in told.turns)
    assert one[0] == Camp(position="split", voices=("pragmatist", "first-principles"))
    assert one[1] == Camp(position="keep", voices=("critic",))
    assert two == (Camp(position="split", voices=("critic", "pragmatist")),)
    assert three == ()


@pytest.mark.wide
def test_what_was_spent_is_what_the_records_say(ran: Desk, told: History) -> None:
    shown = ran("show", "a", "--json").ok().json
    spent = told.spent
    assert (spent.calls, spent.tokens) == (shown["calls"], shown["tokens"])
    assert spent.known_cost == pytest.approx(shown["cost"])
    assert told.shared == TotalUsage()
    calls = {row["call"]: (row["attempts"], row["tokens"]) for row in shown["ledger"]}
    assert {name: (call.calls, call.tokens) for name, call in told.calls.items()} == calls
    assert list(told.by_model) == list(dict.fromkeys(row["model"] for row in shown["ledger"]))
    assert sum(told.by_model.values(), TotalUsage()).calls == spent.calls
    # Turns and the end together are everything; a missing voice was paid too.
    turns = sum((turn.spent for turn in told.turns), told.calls["final"])
    assert (turns.calls, turns.tokens) == (spent.calls, spent.tokens)
    assert turns.cost == pytest.approx(spent.cost)
    assert told.calls["t2-first-principles"].calls > 1
    assert all(turn.synthesis_spent == told.calls[turn.synthesis] for turn in told.turns)
    assert all(said.spent == told.calls[said.artifact] for turn in told.turns for said in turn.voices)


def test_it_does_not_matter_where_a_session_is_kept(ran: Desk, told: History) -> None:
    folder = SessionFolder(ran.session())
    assert (
        history.read(InMemorySession("a", "a branch", {file: folder.data(file) or b"" for file in folder.files()}))
        == told
    )


def test_calls_that_a_fork_took_over_are_not_its_own() -> None:
    usage = {"input_tokens": 10, "output_tokens": 5}
    records: list[dict[str, Any]] = [
        {"kind": "exchange", "call": "t1-critic", "usage": usage, "cost": 0.5, "seconds": 1.5, "from": "a"},
        {"kind": "exchange", "call": "t1-critic", "usage": None, "cost": None, "seconds": 2.0},
        {"kind": "exchange", "call": "t2-critic", "usage": usage, "cost": None},
        {"kind": "missing", "call": "t2-critic", "reason": "x"},
    ]
    own, shared = history.spent_by(records)
    assert shared == {"t1-critic": TotalUsage(1, 10, 5, 0.5, 0, 1.5)}
    assert own == {"t1-critic": TotalUsage(1, 0, 0, 0.0, 0, 2.0), "t2-critic": TotalUsage(1, 10, 5, 0.0, 1, 0.0)}
    assert own["t1-critic"].known_cost == 0  # what was not answered was not charged for
    assert own["t2-critic"].known_cost is None and sum(own.values(), TotalUsage()).known_cost is None


# -- unfinished, edited, damaged -------------------------------------------------------------------


def test_an_unfinished_run_is_told_as_far_as_it_came(ran: Desk) -> None:
    found = history.read(SessionFolder(ran.session("b")))
    assert (found.status, found.final, found.problem) == ("unfinished", None, "Why?")
    whole, begun = found.turns
    assert whole.directive and len(whole.voices) == 3
    assert (begun.number, begun.directive, begun.synthesis, begun.gaps) == (2, None, "", ())
    assert begun.ledger == whole.ledger != ()
    assert found.confidences == ((1, 0.55),)
    assert [life.steps for life in found.tensions] == [((1, "open"), (2, "open"))]


def test_a_run_without_a_turn_is_empty(session: Path) -> None:
    for path in (*session.glob("t*.md"), session / "FINAL.md"):
        path.unlink()
    shutil.rmtree(session / "calls")
    found = history.read(SessionFolder(session))
    assert (found.turns, found.tensions, found.moves, found.status) == ((), (), (), "unfinished")
    assert (found.spent, found.calls, found.confidences, found.agreements) == (TotalUsage(), {}, (), ())


def test_what_a_person_edited_counts_as_it_stands(session: Path) -> None:
    change(session / "t3-critic.md", "Wait a month.", "Burn it.")
    change(session / "t3-synthesis.md", "focus 3", "my own focus")
    change(session / "FINAL.md", "## Decision\n\nWait a month.", "## Decision\n\nNever wait.")
    found = history.read(SessionFolder(session))
    critic = next(said for said in found.turns[2].voices if said.voice == "critic")
    assert (critic.position, critic.edited, critic.findings) == ("Burn it.", True, ())
    last = found.turns[2]
    assert last.directive and (last.directive.focus, last.edited) == ("my own focus", True)
    assert found.final and (found.final.decision, found.final.edited) == ("Never wait.", True)
    assert [move.after.position for move in found.moves if move.turn == 3] == ["Burn it.", "Wait a month."]
    assert not any(said.edited for said in (*found.turns[0].voices, *found.turns[1].voices))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("position:", "position: [", "t2-critic.md: line"),
        ("confidence: 0.7", "confidence: 7", "t2-critic.md: Input should be less than"),
        ("position: ", "stance: ", "t2-critic.md: Field required"),
        ("---\n", "", "t2-critic.md: Field required"),
    ],
)
def test_a_voice_that_cannot_be_read_says_why_and_the_rest_is_told(
    session: Path, old: str, new: str, why: str
) -> None:
    change(session / "t2-critic.md", old, new)
    found = history.read(SessionFolder(session))
    critic = next(said for said in found.turns[1].voices if said.voice == "critic")
    assert why in critic.broken
    assert (critic.position, critic.confidence, critic.claims, critic.role) == ("", None, (), "critic")
    assert critic.spent.calls == 1
    # What it said before is what it moves from.
    assert [(move.voice, move.before.turn, move.turn) for move in found.moves] == [
        ("critic", 1, 3),
        ("pragmatist", 2, 3),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("```yaml", "```json"),
        ("confidence: 0.6", "confidence: often"),
        ("width: 3", "- width"),
        ("width: 3", "width: [[[["),
        ("width: 3", "ignored: 1"),
        ("kind:", "kind: ["),
    ],
)
def test_a_synthesis_without_a_directive_leaves_its_turn_without_one(session: Path, old: str, new: str) -> None:
    change(session / "t2-synthesis.md", old, new)
    found = history.read(SessionFolder(session))
    assert found.turns[1].directive is None and found.turns[1].edited
    assert (found.turns[1].synthesis, found.turns[1].gaps) == ("", ())
    assert [turn for turn, _ in found.confidences] == [1, 3]
    one, three = found.tensions
    assert one.steps == ((1, "open"), (2, "open"), (3, "accepted")) and one.ended == 3
    assert (three.id, three.since, three.steps) == ("T3", 3, ((3, "open"),))
    assert [tension.since for tension in found.turns[2].ledger] == [1, 3]


def test_files_that_no_turn_has_are_no_voices(session: Path) -> None:
    for name in ("t0-critic", "t01-critic", "t1-", "x-t1-critic", "t1_critic", "t99-synthesis"):
        (session / f"{name}.md").write_text((session / "t1-critic.md").read_text())
    (session / "team").mkdir(exist_ok=True)
    (session / "team" / "t1-ghost.md").write_text("x")
    (session / "t1-ghost.txt").write_text("x")
    found = history.read(SessionFolder(session))
    assert [turn.number for turn in found.turns] == [1, 2, 3]
    assert sorted(said.artifact for said in found.turns[0].voices) == sorted(f"t1-{role}" for role in ROLES)


@pytest.mark.parametrize(
    ("head", "verified", "unverified"),
    [
        ("citations: {verified: many, unverified: [x]}", 0, ("x",)),
        ("citations: {verified: [1], unverified: x}", 0, ()),
        ("citations: {verified: -3}", 0, ()),
        ("citations: {verified: .inf}", 0, ()),
        ("citations: {verified: 2, unverified: [a, 3]}", 2, ("a", "3")),
        ("citations: all", 0, ()),
        ("confidence: .nan", 0, ()),
        ("confidence: .inf\nstated_confidence: -.inf", 0, ()),
        ("confidence: high\nmissing_voices: critic\nvotes: {a: b}", 0, ()),
        ("confidence: true", 0, ()),
    ],
)
def test_whatever_stands_in_the_head_of_an_edited_end_it_can_be_told(
    session: Path, head: str, verified: int, unverified: tuple[str, ...]
) -> None:
    (session / "FINAL.md").write_text(f"---\n{head}\n---\n\n## Answer\n\nMine.\n")
    final = history.read(SessionFolder(session)).final
    assert final and (final.verified, final.unverified) == (verified, unverified)
    assert (final.decision, final.status, final.edited, final.confidence) == ("Mine.", "", True, None)
    assert final.missing == final.votes == ()


def test_an_end_without_a_head_is_an_end(session: Path) -> None:
    (session / "FINAL.md").write_text("Only words.\n")
    (session / "FINAL.yaml").unlink()
    found = history.read(SessionFolder(session))
    assert found.status == "finished"
    assert found.final and (found.final.decision, dict(found.final.sections)) == ("", {})


def test_headings_in_code_are_no_sections(session: Path) -> None:
    text = "## Decision\n\nDo.\n\n### Why\n\nSo.\n\n```md\n## Not one\n```\n\n ## Action Items\n\n- Go.\n"
    (session / "FINAL.md").write_text(text)
    final = history.read(SessionFolder(session)).final
    assert final and list(final.sections) == ["Decision", "Action Items"]
    assert "## Not one" in final.sections["Decision"] and final.sections["Action Items"] == "- Go."


@pytest.mark.parametrize("file", ["session.yaml", "calls/0001.jsonl", "FINAL.md", "FINAL.yaml"])
def test_what_the_rest_depends_on_is_named_when_it_is_damaged(session: Path, file: str) -> None:
    (session / file).write_text("---\n[\n---\n")
    with pytest.raises(SessionError, match=re.escape(file)) as found:
        history.read(SessionFolder(session))
    assert found.value.hint


def test_without_a_plan_it_is_no_session(session: Path) -> None:
    (session / "session.yaml").unlink()
    with pytest.raises(SessionError, match=r"has no session\.yaml"):
        history.read(SessionFolder(session))


# -- any course of things --------------------------------------------------------------------------

STATUS = st.sampled_from(["open", "resolved", "accepted"])
COURSES = st.lists(st.dictionaries(st.sampled_from(["T1", "T2", "T3", "T4"]), STATUS, max_size=4), max_size=7)
POSITIONS = st.sampled_from(["", "Split it.", "split  it", "Keep it.", "Wait."])
CITED = st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=3)
TURNS = st.lists(
    st.dictionaries(st.sampled_from(["critic", "tester", "lawyer"]), st.tuples(POSITIONS, CITED), max_size=3),
    max_size=6,
)
QUICKLY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def directive(**keys: Any) -> Directive:
    base = {"width": 1, "roles": ["critic"], "focus": "", "confidence": 0.5, "exit_ready": False}
    return Directive.model_validate({**base, **keys})


@QUICKLY
@given(course=COURSES)
def test_the_life_of_any_tension(told: History, course: list[dict[str, str]]) -> None:
    record, turns = Record(), []
    for number, wishes in enumerate(course, 1):
        tensions = [{"id": name, "title": f"about {name}", "status": status} for name, status in wishes.items()]
        record = record.after(directive(tensions=tensions), ())
        turns.append(TurnRecord(number, (), ledger=record.ledger))
    found = {life.id: life for life in replace(told, turns=tuple(turns)).tensions}
    assert set(found) == {name for wishes in course for name in wishes}
    for name, life in found.items():
        born = next(number for number, wishes in enumerate(course, 1) if name in wishes)
        status, ended = "", None
        for number, wishes in enumerate(course[born - 1 :], born):
            status = wishes.get(name, status)
            ended = None if status == "open" else ended or number
            assert life.steps[number - born] == (number, status)
        assert (life.since, life.status, life.ended, len(life.steps)) == (born, status, ended, len(course) - born + 1)
    births = [life.since for life in replace(told, turns=tuple(turns)).tensions]
    assert births == sorted(births)


@pytest.mark.wide
@QUICKLY
@given(course=TURNS)
def test_any_moves(told: History, course: list[dict[str, tuple[str, list[tuple[str, bool]]]]]) -> None:
    turns = [
        TurnRecord(number, tuple(
            VoiceReply(voice, voice, number, f"t{number}-{voice}", position=position,
                 findings=tuple(CitationCheck(place, good, "") for place, good in cited))
            for voice, (position, cited) in said.items()
        ))
        for number, said in enumerate(course, 1)
    ]  # fmt: skip
    found = {(move.turn, move.voice): move for move in replace(told, turns=tuple(turns)).moves}
    expected = set()
    for number, said in enumerate(course, 1):
        earlier = {place for turn in course[: number - 1] for _, cited in turn.values() for place, _ in cited}
        for voice, (position, cited) in said.items():
            spoken = [turn[voice][0] for turn in course[: number - 1] if voice in turn and turn[voice][0]]
            if position and spoken and spoken[-1].lower().split()[0] != position.lower().split()[0]:
                expected.add((number, voice))
                move = found[number, voice]
                assert (move.before.position, move.after.position) == (spoken[-1], position)
                assert list(move.evidence) == list(dict.fromkeys(p for p, good in cited if good and p not in earlier))
                assert not move.joined  # nobody grouped the voices
    assert set(found) == expected


AMOUNTS = st.builds(
    TotalUsage,
    st.integers(0, 9),
    st.integers(0, 9999),
    st.integers(0, 1000).map(float),
    st.integers(0, 2),
    st.just(0.0),
)


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_amounts_add_up(a: TotalUsage, b: TotalUsage, c: TotalUsage) -> None:
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + b - b == a
    assert ((a + b).known_cost is None) == (a.known_cost is None or b.known_cost is None)
