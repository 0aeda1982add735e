"""`cdo diff`: two sessions, or two turns, side by side. Real processes, real sessions."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from rich.cells import cell_len

from tests.conftest import Desk, _desk, explained
from tests.support.answers import Answer, RequestInfo, agent_text, final_text, synthesis_text
from tests.support.provider import Provider

QUESTION = "Should we split the queue?"
HOSTILE = "Wait \x1b[31mred\x07 \u202e漢字 and \u200b|pipes|"
DECISIONS = {"a": "Stage it.", "b": "Replace it, 二段階で.", "wild": HOSTILE}


def scripted(info: RequestInfo) -> Answer | None:
    """Two turns. In `b` the critic gives in and the tension is settled; in `wild` every word is hostile."""
    session = info.headers["X-Cdo-Session"]
    turn = int(info.call[1]) if info.call[0] == "t" else 0
    settled = session == "b" and turn == 2
    if info.kind == "agent":
        if session == "wild":
            return Answer(agent_text(HOSTILE, 0.5, [(HOSTILE, 4)]))
        position = "Split it." if settled else f"{info.call[3:]} says no in turn {turn}."
        return Answer(agent_text(position, 0.5 + turn / 10, [] if settled else ["the way back is untested"]))
    if info.kind == "synthesis":
        title = HOSTILE if session == "wild" else "speed or safety"
        wish = {"id": "T1", "title": title, "status": "resolved" if settled else "open"}
        gaps = [HOSTILE] if session == "wild" else [] if settled else ["the load"]
        roles = ["critic", "pragmatist", "historian" if session == "b" else "first-principles"]
        confidence = 0.75 if settled else 0.6
        return Answer(
            synthesis_text(roles=roles, confidence=confidence, tensions=[wish], gaps=gaps, focus=f"F{turn}")
        )
    minority = "None." if session == "b" else "- the way back is untested"
    return Answer(final_text(DECISIONS.get(session, "Stage it."), ["T1"], minority))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Sessions `a`, `b` and `wild` of two turns each, and `cut`, stopped in its first; only to be looked at."""
    with Provider(script=scripted) as provider:
        desk = _desk(tmp_path_factory.mktemp("diff"), provider.url)
        think = ["think", "--turns", "2", "-q", "--session"]
        a, b, wild, cut = desk.several(
            [*think, "a", QUESTION], [*think, "b", QUESTION], [*think, "wild", HOSTILE.replace("\x1b", "")],
            [*think, "cut", "--max-calls", "2", "--concurrency", "1", QUESTION],
        )  # fmt: skip
        for done in (a, b, wild):
            done.ok()
        assert cut.code == 5, cut.err
        yield desk
        assert not desk.tried()


def seen(text: str) -> dict[str, list[str]]:
    """The rows of a drawing in two columns by their label, as (A, B); lines that go on are left out."""
    head = text.splitlines()[0]
    left, right = head.index("A "), head.index("B ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        if label := line[:left].strip():
            found[label] = [line[left:right].strip(), line[right:].strip()]
    return found


def test_two_sessions_side_by_side(ran: Desk) -> None:
    done = ran("diff", "a", "b").ok()
    assert done.err == ""
    rows = seen(done.out)
    assert done.out.splitlines()[0].split() == ["A", "a", "(end)", "B", "b", "(end)"]
    assert "question" not in rows and "≠ question" not in rows
    assert rows["preset"] == ["think", "="]
    assert rows["≠ decision"] == ["Stage it.", "Replace it, 二段階で."]
    assert rows["≠ confidence"] == ["0.60", "0.75 (+0.15)"]
    assert rows["≠   critic"] == ["0.70: critic says no in turn 2.", "0.70: Split it."]
    assert rows["≠   historian"] == ["— only in B", "0.70: Split it."]
    assert rows["≠ tensions"] == ["1 open", "1 resolved"]
    assert rows["≠   T1"] == ["open: speed or safety", "resolved"]
    assert rows["≠ gaps"] == ["1", "none"] and rows["≠ minority reports"] == ["1", "none"]
    assert rows["citations"] == ["none", "="]
    assert max(map(cell_len, done.out.splitlines())) < 100


def test_turns_of_one_session_and_what_is_meant_without_a_second_name(ran: Desk) -> None:
    both, first, alone, second, end = ran.several(
        ["diff", "b:1", "b:2"], ["diff", "b:1", "b"], ["diff", "b"], ["diff", "b:2"], ["diff", "a:2", "a"]
    )
    rows = seen(both.ok().out)
    assert both.out.splitlines()[0].split() == ["A", "b:1", "B", "b:2"]
    assert not {"preset", "models", "decision"} & {label.removeprefix("≠ ") for label in rows}
    assert rows["≠ focus"] == ["F1", "F2"] and rows["≠ turns"] == ["after turn 1 of 2", "after turn 2 of 2"]
    assert rows["≠   T1"] == ["open: speed or safety", "resolved"]
    assert first.ok().out == alone.ok().out
    assert seen(alone.out)["≠ decision"][1] == "Replace it, 二段階で."
    assert second.ok().out.splitlines()[0].split() == ["A", "b:2", "B", "b", "(end)"]
    assert seen(end.ok().out)["confidence"] == ["0.60", "="]


def test_a_session_is_found_by_its_path_too(ran: Desk) -> None:
    path, absolute, elsewhere = ran.several(
        ["diff", "tmp/cdo-a:1", "./tmp/cdo-b/"], ["diff", f"{ran.session()}:1", "b"],
        ["diff", "a:1", "b", "--out", str(ran.path / "tmp")],
    )  # fmt: skip
    assert path.ok().out == absolute.ok().out == elsewhere.ok().out != ""
    same = ran("diff", "tmp/cdo-a", str(ran.session()), "--changed").ok()
    assert same.out.splitlines()[-1] == "Nothing differs."


def test_only_what_differs(ran: Desk) -> None:
    everything, changed, data = ran.several(
        ["diff", "a", "b"], ["diff", "a", "b", "--changed"], ["diff", "a", "b", "--changed", "--json"]
    )
    marked = [label for label in seen(everything.ok().out) if label.startswith("≠")]
    assert [label for label in seen(changed.ok().out) if label.startswith("≠")] == marked
    assert "preset" in seen(everything.out) and "preset" not in seen(changed.out)
    assert all(row["same"] is False for row in data.ok().json["rows"])


def test_strict_exits_3_when_they_differ(ran: Desk) -> None:
    differ, same, data = ran.several(
        ["diff", "a", "b", "--strict"], ["diff", "a", "a", "--strict"], ["diff", "a:1", "a:2", "--strict", "--json"]
    )
    assert (differ.code, same.code, data.code) == (3, 0, 3)
    assert differ.out == ran("diff", "a", "b").ok().out and differ.err == ""
    assert not data.json["same"]


def test_json_is_both_sides_and_the_rows(ran: Desk) -> None:
    found = ran("diff", "a", "b:1", "--json").ok().json
    assert (found["a"]["session"], found["a"]["turn"], found["b"]["session"], found["b"]["turn"]) == (
        "a",
        None,
        "b",
        1,
    )
    assert (found["a"]["decision"], found["b"]["decision"]) == ("Stage it.", "")
    shown = ran("show", "a", "--json").ok().json
    spent = found["a"]["spent"]
    assert (spent["calls"], spent["tokens"], spent["cost"]) == (shown["calls"], shown["tokens"], shown["cost"])
    assert [voice["name"] for voice in found["b"]["voices"]] != []
    confidence = next(row for row in found["rows"] if row["part"] == "confidence")
    assert confidence == {"part": "confidence", "name": "", "a": "0.60", "b": "0.60", "same": True}
    assert found["past"] == "" and found["same"] is False


def test_unfinished_edited_and_damaged_sessions(ran: Desk, tmp_path: Path) -> None:
    edited = shutil.copytree(ran.session("a"), tmp_path / "cdo-edited")
    file = edited / "t2-critic.md"
    file.write_text(file.read_text().replace("critic says no", "a person says maybe"))
    broken = shutil.copytree(ran.session("a"), tmp_path / "cdo-broken")
    (broken / "t2-critic.md").write_text("---\nposition: [\n---\n")
    damaged = shutil.copytree(ran.session("a"), tmp_path / "cdo-damaged")
    (damaged / "calls" / "0001.jsonl").write_text("x\n")
    cut, mine, not_read, lost = ran.several(
        ["diff", "cut", "a"], ["diff", "a", str(edited), "--changed"], ["diff", "a", str(broken), "--changed"],
        ["diff", "a", str(damaged)],
    )  # fmt: skip
    rows = seen(cut.ok().out)
    assert rows["≠ status"][0] == "unfinished" and rows["≠ confidence"] == ["—", "0.60"]
    rows = seen(mine.ok().out)
    assert rows["≠   critic"][1].startswith("0.70, edited: a person says")
    assert set(rows) == {"voices", "≠   critic"}
    assert seen(not_read.ok().out)["≠   critic"][1].startswith("cannot be read:")
    explained(lost, 8, "calls/0001.jsonl is damaged")


def test_a_price_that_is_not_known_and_the_newest_session(ran: Desk, tmp_path: Path) -> None:
    with Provider(script=scripted) as provider:
        desk = _desk(tmp_path, provider.url)
        desk("quick", "-q", "-m", "openai/nobody-knows-it", "--session", "odd", "Why?").ok()
        other, alone, named = desk.several(["diff", "odd", str(ran.session("a"))], ["diff"], ["diff", "odd:1", "odd"])
        assert seen(other.ok().out)["cost"][0] == "unknown" and "$" in seen(other.out)["cost"][1]
        assert alone.ok().out == named.ok().out and seen(alone.out)["cost"] == ["unknown", "unknown"]


def test_a_fork_beside_what_it_was_forked_from(tmp_path: Path) -> None:
    with Provider(script=scripted) as provider:
        desk = _desk(tmp_path, provider.url)
        desk("think", "--turns", "2", "-q", "--session", "a", QUESTION).ok()
        desk("fork", "a", "--turn", "1", "--session", "b", "-q").ok()
        both, back, first = desk.several(["diff", "a", "b"], ["diff", "b", "a", "--json"], ["diff", "a:1", "b:1"])
    assert both.ok().out.splitlines()[0] == "B is a fork of A after turn 1."
    rows = seen(both.out.partition("\n")[2])
    assert rows["≠ decision"] == ["Stage it.", "Replace it, 二段階で."]
    assert "before the fork" in both.out and rows["≠   T1"] == ["open: speed or safety", "resolved"]
    found = back.ok().json
    assert found["past"] == "A is a fork of B after turn 1." and found["a"]["forked"]["turn"] == 1
    assert found["b"]["shared"]["calls"] == 0 < found["a"]["shared"]["calls"]
    assert found["a"]["shared"]["calls"] + found["a"]["spent"]["calls"] == found["b"]["spent"]["calls"]
    changed = [label for label in seen(first.ok().out.partition("\n")[2]) if label.startswith("≠")]
    assert changed == ["≠ status"]  # the turn that they share is the same; they ended for different reasons


def test_what_cannot_be_compared_is_explained(ran: Desk) -> None:
    (ran.path / "empty").mkdir(exist_ok=True)
    no_turn, zero, none, name, path, three, nothing = ran.several(
        ["diff", "a:3", "b"], ["diff", "a", "b:0"], ["diff", "a", "nope"], ["diff", "a:b", "b"],
        ["diff", "a", "tmp/cdo-nope:1"], ["diff", "a", "b", "a"], ["diff", "--out", "empty"],
    )  # fmt: skip
    explained(no_turn, 2, "a has no turn 3", "turns 1 to 2")
    explained(zero, 2, "b has no turn 0")
    explained(none, 8, "There is no session", "cdo list")
    explained(name, 2, "cannot be the name of a session")
    explained(path, 8, "There is no session tmp/cdo-nope")
    assert three.code == 2
    explained(nothing, 8, "There is no session in empty")
    loud = ran("diff", "a:3", "b", "-v")
    assert loud.code == 2 and "Traceback" in loud.err and "a has no turn 3" in loud.err


def test_what_models_wrote_reaches_nobody_as_more_than_text(ran: Desk) -> None:
    plain, data = ran.several(["diff", "wild", "a"], ["diff", "wild", "wild:1", "--json"])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e]", plain.ok().out)
    assert "漢字" in plain.out and max(map(cell_len, plain.out.splitlines())) < 100
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e]", data.ok().out)
    assert json.loads(data.out)["a"]["voices"][0]["position"].startswith("Wait")


@pytest.mark.parametrize("width", [60, 72, 100, 200])
def test_at_a_terminal_it_fits_and_differences_stand_out(ran: Desk, width: int) -> None:
    for variables in ({}, {"NO_COLOR": "1"}):
        child = pexpect.spawn(
            sys.executable, ["-m", "cdo", "diff", "wild", "b"], cwd=str(ran.path), dimensions=(80, width), timeout=60,
            env={**ran.environment(), "TERM": "xterm-256color", **variables}, encoding="utf-8",
        )  # fmt: skip
        text = child.read().replace("\r\n", "\n")
        child.close()
        assert child.exitstatus == 0
        bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert "\x1b" not in bare and (bare == text) == bool(variables)
        assert max(map(cell_len, bare.splitlines())) < min(width, 160)
        assert ("\n     A " in bare) == (width < 70)
        assert bool(variables) or re.search(r"\x1b\[33m\x1b\[1m≠ decision", text)
