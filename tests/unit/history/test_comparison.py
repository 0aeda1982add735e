"""Two sessions side by side: what meets what, what differs, and a drawing that fits any terminal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace
from rich.cells import cell_len

from cdo.core.usage import TotalUsage
from cdo.history import comparison
from cdo.history.comparison import Comparison, ComparisonRow, compare
from cdo.history.comparison_text import lines, wrapped
from cdo.history.snapshot import FinalPosition, SessionSnapshot
from cdo.programs.deliberation.convergence import Tension
from cdo.programs.deliberation.objections import Dissent
from cdo.session.session_file import Forked

A = SessionSnapshot(
    session="queue",
    place="tmp/cdo-queue",
    created="2026-11-22T10:00:00+00:00",
    turn=None,
    held=3,
    problem="Should the queue be replaced?",
    preset="think",
    models=("openai/gpt-4.1",),
    status="max_turns",
    why="the cap of 3 turns was reached",
    decision="Stage it: the reversible half now.",
    ground="All want figures.",
    focus="the way back",
    confidence=0.7,
    stated=0.7,
    agreement=0.6,
    voices=(
        FinalPosition("critic", "critic", 3, "Wait for the figures.", 0.6, "openai/gpt-4.1"),
        FinalPosition("pragmatist", "pragmatist", 3, "Stage it.", 0.7, "openai/gpt-4.1"),
        FinalPosition("historian", "historian", 2, "It was tried in 2019.", 0.55, "openai/gpt-4.1"),
    ),
    tensions=(Tension("T1", "speed or safety", "resolved", 1), Tension("T2", "who pays", "open", 2)),
    gaps=("the load",),
    objections=(Dissent("o1", "critic", "the way back is untested", 5),),
    minority=("critic: the way back is untested",),
    votes=(),
    verified=4,
    unverified=1,
    spent=TotalUsage(13, 18_878, 0, 0.0582),
    shared=TotalUsage(),
    forked=None,
)
B = replace(
    A,
    session="queue-2",
    place="tmp/cdo-queue-2",
    decision="Replace it, in two steps: 決定は二段階で行う。まず可逆な半分から。",
    confidence=0.82,
    stated=0.9,
    voices=(
        FinalPosition("pragmatist", "pragmatist", 3, "stage it", 0.75, "openai/gpt-4.1"),
        FinalPosition("critic", "critic", 3, "Replace it.", 0.6, "openai/gpt-4.1"),
        FinalPosition("operator", "operator", 3, missing="missing: it did not answer"),
    ),
    tensions=(Tension("T1", "Who pays", "accepted", 2), Tension("T7", "Speed or safety.", "resolved", 1)),
    gaps=("The Load.", "the price of going back"),
    minority=(),
    spent=TotalUsage(15, 20_000, 0, 0.01, 2),
)
HERE = compare(A, B)


def rows(found: Comparison, part: str) -> list[tuple[str, str, str, bool | None]]:
    return [(row.name, row.a, row.b, row.same) for row in found.rows if row.part == part]


def drawn(found: Comparison, width: int, **more: bool) -> list[str]:
    return [line.text for line in lines(found, width, **more)]


# -- what meets what -------------------------------------------------------------------------------


def test_rows_come_in_the_order_in_which_people_ask() -> None:
    parts = list(dict.fromkeys(row.part for row in HERE.rows))
    assert parts == [
        "preset", "models", "status", "decision", "confidence", "agreement", "turns", "voices", "tensions", "gaps",
        "minority reports", "citations", "requests", "tokens", "cost",
    ]  # fmt: skip
    assert rows(compare(A, replace(B, problem="Why?")), "question") == [("", A.problem, "Why?", False)]
    assert not {"question", "preset", "models", "status"} & {row.part for row in compare(A, B, one=True).rows}


def test_confidence_tells_by_how_much_it_changed_and_what_was_stated() -> None:
    assert rows(HERE, "confidence") == [("", "0.70", "0.82 (+0.12), stated 0.90", False)]
    assert rows(compare(B, A), "confidence") == [("", "0.82, stated 0.90", "0.70 (-0.12)", False)]
    assert rows(compare(A, replace(A, stated=0.9)), "confidence") == [("", "0.70", "0.70, stated 0.90", False)]
    none = replace(A, confidence=None, stated=None, agreement=None)
    assert rows(compare(A, none), "confidence") == [("", "0.70", "", False)]
    assert rows(compare(none, none), "agreement") == [("", "", "", True)]


def test_voices_are_matched_by_name_and_tell_what_changed() -> None:
    assert rows(HERE, "voices") == [
        ("", "3", "3", True),
        ("critic", "0.60: Wait for the figures.", "0.60: Replace it.", False),
        ("pragmatist", "0.70: Stage it.", "0.75 (+0.05), same position", False),
        ("historian", "0.55, turn 2: It was tried in 2019.", "", False),
        ("operator", "", "missing: it did not answer", False),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "anthropic/x"}, "0.60, anthropic/x: Wait for the figures."),
        ({"role": "skeptic"}, "0.60, as skeptic: Wait for the figures."),
        ({"position": "", "confidence": None, "missing": "cannot be read: x"}, "cannot be read: x"),
        ({"position": "No.", "edited": True}, "0.60, edited: No."),
        ({"confidence": None}, "Wait for the figures."),
    ],
)
def test_whatever_is_another_about_a_voice_is_a_difference(change: dict[str, Any], words: str) -> None:
    other = replace(A, voices=(replace(A.voices[0], **change), *A.voices[1:]))
    name, _, said, same = rows(compare(A, other), "voices")[1]
    assert (name, said, same) == ("critic", words, False)
    assert all(row[3] for row in rows(compare(A, other), "voices")[2:])


def test_tensions_meet_by_id_and_title_then_title_then_id() -> None:
    assert rows(HERE, "tensions") == [
        ("", "1 open, 1 resolved", "1 resolved, 1 accepted", False),
        ("T1, T7", "resolved: speed or safety", "resolved", True),
        ("T2, T1", "open: who pays", "accepted", False),
    ]
    renamed = replace(A, tensions=(Tension("T1", "haste", "resolved", 1), Tension("T3", "new", "open", 3)))
    assert rows(compare(A, renamed), "tensions")[1:] == [
        ("T1", "resolved: speed or safety", "resolved: haste", False),
        ("T2", "open: who pays", "", False),
        ("T3", "", "open: new", False),
    ]


def test_gaps_meet_by_their_words_and_so_do_dissents() -> None:
    assert rows(HERE, "gaps") == [
        ("", "1", "2", False),
        ("1", "the load", "The Load.", True),
        ("2", "", "the price of going back", False),
    ]
    assert rows(HERE, "minority reports") == [
        ("", "1", "none", False), ("1", "critic: the way back is untested", "", False),
    ]  # fmt: skip
    raised = (Dissent("o1", "critic", "The way back is untested.", 8), Dissent("o1", "tester", "no load test", 3))
    early = replace(A, turn=1, minority=None, objections=raised)
    assert rows(compare(early, A), "objections") == [
        ("", "2", "1", False),
        ("critic", "severity 8: The way back is untested.", "severity 5: the way back is untested", False),
        ("tester", "severity 3: no load test", "", False),
    ]


def test_turns_have_common_ground_and_focus_in_place_of_a_decision() -> None:
    early, late = replace(A, turn=1, decision="", minority=None), replace(A, turn=2, decision="", focus="the price")
    found = compare(early, late, one=True)
    assert rows(found, "common ground") == [("", "All want figures.", "All want figures.", True)]
    assert rows(found, "focus") == [("", "the way back", "the price", False)]
    assert rows(found, "turns") == [("", "after turn 1 of 3", "after turn 2 of 3", False)]
    assert rows(compare(early, A, one=True), "decision") == [
        ("", "Common ground: All want figures.", "Stage it: the reversible half now.", False)
    ]
    assert rows(compare(early, A, one=True), "turns") == [("", "after turn 1 of 3", "3", False)]


def test_a_price_that_is_not_known_is_never_zero_nor_the_same() -> None:
    assert rows(HERE, "cost") == [("", "$0.058", "at least $0.01", None)]
    unknown = replace(A, spent=TotalUsage(2, 10, 0, 0.0, 1))
    assert rows(compare(unknown, unknown), "cost") == [("", "unknown", "unknown", None)]
    assert compare(unknown, unknown).same
    cheaper = replace(A, spent=TotalUsage(13, 18_878, 0, 0.05))
    assert rows(compare(A, cheaper), "cost") == [("", "$0.058", "$0.05 (-$0.0082)", False)]
    assert rows(HERE, "tokens") == [("", "18,878", "20,000 (+1,122)", False)]


def test_a_fork_says_from_where_and_what_it_took_over() -> None:
    origin = Forked(session="queue", turn=2, created=A.created)
    fork = replace(B, forked=origin, shared=TotalUsage(9, 12_000, 0, 0.03))
    assert compare(A, fork).past == "B is a fork of A after turn 2."
    assert compare(fork, A).past == "A is a fork of B after turn 2."
    assert rows(compare(A, fork), "tokens") == [("", "18,878", "20,000, and 12,000 before the fork (+1,122)", False)]
    assert rows(compare(A, fork), "cost")[0][2] == "at least $0.01, and $0.03 before the fork"
    other = replace(A, session="c", forked=replace(origin, turn=0))
    assert compare(other, fork).past == "Both are forks of queue: A from its start, B after turn 2."
    for update in (
        {"session": "elsewhere"},
        {"created": "2025-01-01T00:00:00+00:00"},
    ):  # another, or another of that name
        assert compare(A, replace(fork, forked=replace(origin, **update))).past == ""
    assert compare(A, B).past == ""
    assert comparison.json(compare(A, fork))["b"]["forked"] == to_builtins(origin)
    assert drawn(compare(A, fork), 100)[0] == "B is a fork of A after turn 2."


def test_votes_are_shown_where_there_are_any() -> None:
    voted = replace(A, votes=("M1 carries 3:1",))
    assert rows(compare(A, voted), "votes") == [("", "none", "1", False), ("1", "", "M1 carries 3:1", False)]
    assert rows(HERE, "votes") == []


# -- as drawn --------------------------------------------------------------------------------------

AT_60 = """\
A queue (end)
B queue-2 (end)
  preset = think
  models = openai/gpt-4.1
  status = max_turns: the cap of 3 turns was reached
≠ decision
     A Stage it: the reversible half now.
     B Replace it, in two steps:
       決定は二段階で行う。まず可逆な半分から。
≠ confidence
     A 0.70
     B 0.82 (+0.12), stated 0.90
  agreement = 0.60
  turns = 3
  voices = 3
≠   critic
     A 0.60: Wait for the figures.
     B 0.60: Replace it.
≠   pragmatist
     A 0.70: Stage it.
     B 0.75 (+0.05), same position
≠   historian
     A 0.55, turn 2: It was tried in 2019.
     B — only in A
≠   operator
     A — only in B
     B missing: it did not answer
≠ tensions
     A 1 open, 1 resolved
     B 1 resolved, 1 accepted
    T1, T7 = resolved: speed or safety
≠   T2, T1
     A open: who pays
     B accepted
≠ gaps
     A 1
     B 2
    1 = the load
≠   2
     A — only in B
     B the price of going back
≠ minority reports
     A 1
     B none
≠   1
     A critic: the way back is untested
     B — only in A
  citations = 4 of 5 verified
≠ requests
     A 13
     B 15 (+2)
≠ tokens
     A 18,878
     B 20,000 (+1,122)
  cost
     A $0.058
     B at least $0.01
"""
AT_100 = """\
                    A queue (end)                           B queue-2 (end)
  preset            think                                   =
  models            openai/gpt-4.1                          =
  status            max_turns: the cap of 3 turns was       =
                    reached
≠ decision          Stage it: the reversible half now.      Replace it, in two steps:
                                                            決定は二段階で行う。まず可逆な半分から
                                                            。
≠ confidence        0.70                                    0.82 (+0.12), stated 0.90
  agreement         0.60                                    =
  turns             3                                       =
  voices            3                                       =
≠   critic          0.60: Wait for the figures.             0.60: Replace it.
≠   pragmatist      0.70: Stage it.                         0.75 (+0.05), same position
≠   historian       0.55, turn 2: It was tried in 2019.     — only in A
≠   operator        — only in B                             missing: it did not answer
≠ tensions          1 open, 1 resolved                      1 resolved, 1 accepted
    T1, T7          resolved: speed or safety               =
≠   T2, T1          open: who pays                          accepted
≠ gaps              1                                       2
    1               the load                                =
≠   2               — only in B                             the price of going back
≠ minority reports  1                                       none
≠   1               critic: the way back is untested        — only in A
  citations         4 of 5 verified                         =
≠ requests          13                                      15 (+2)
≠ tokens            18,878                                  20,000 (+1,122)
  cost              $0.058                                  at least $0.01
"""
AT_140 = """\
                    A queue (end)                                               B queue-2 (end)
≠ decision          Stage it: the reversible half now.                          Replace it, in two steps:
                                                                                決定は二段階で行う。まず可逆な半分から。
≠ confidence        0.70                                                        0.82 (+0.12), stated 0.90
  voices            3                                                           =
≠   critic          0.60: Wait for the figures.                                 0.60: Replace it.
≠   pragmatist      0.70: Stage it.                                             0.75 (+0.05), same position
≠   historian       0.55, turn 2: It was tried in 2019.                         — only in A
≠   operator        — only in B                                                 missing: it did not answer
≠ tensions          1 open, 1 resolved                                          1 resolved, 1 accepted
≠   T2, T1          open: who pays                                              accepted
≠ gaps              1                                                           2
≠   2               — only in B                                                 the price of going back
≠ minority reports  1                                                           none
≠   1               critic: the way back is untested                            — only in A
≠ requests          13                                                          15 (+2)
≠ tokens            18,878                                                      20,000 (+1,122)
"""


@pytest.mark.parametrize(
    ("width", "changed", "text"), [(60, False, AT_60), (100, False, AT_100), (140, True, AT_140)]
)
def test_drawings(width: int, changed: bool, text: str) -> None:
    assert drawn(HERE, width, changed=changed) == text.splitlines()


def test_a_terminal_of_seventy_columns_has_two_columns_and_one_less_has_not() -> None:
    assert any("B queue-2 (end)" in line and "A queue (end)" in line for line in drawn(HERE, 70))
    assert drawn(HERE, 69)[:2] == ["A queue (end)", "B queue-2 (end)"]
    assert drawn(HERE, 160) == drawn(HERE, 999) and drawn(HERE, 40) == drawn(HERE, 1)


def test_two_sessions_of_one_name_are_called_by_their_places() -> None:
    other = replace(A, place="old/cdo-queue", turn=2)
    assert drawn(compare(A, other), 60)[:2] == ["A tmp/cdo-queue (end)", "B old/cdo-queue:2"]
    assert drawn(compare(A, replace(A, turn=2), one=True), 60)[:2] == ["A queue (end)", "B queue:2"]


def test_tones_tell_what_stands_out() -> None:
    tones = {line.what.strip(): line.tone for line in lines(HERE, 100) if line.what.strip()}
    assert (tones["≠ decision"], tones["preset"], tones["≠   critic"]) == ("changed", "same", "changed")
    assert lines(HERE, 100)[0].tone == "head"
    assert all(
        line.tone != "changed" for line in lines(HERE, 100) if line.what.startswith("  ") and line.what.strip()
    )


# -- any two views ---------------------------------------------------------------------------------

HOSTILE = st.text(
    st.sampled_from("ab .:-\n\t|")
    | st.characters(codec="utf-8")
    | st.sampled_from("\x1b\x07\u202e\u200b漢字é\u0301👍\x9b"),
    max_size=40,
)
IDS = st.sampled_from(["T1", "T2", "T3", "x" * 32])
SHARES = st.none() | st.floats(0, 1)
NAMES = st.sampled_from(["critic", "a" * 32, "b-2"])
VIEWS = st.builds(
    replace,
    st.sampled_from([A, B, replace(A, turn=2, decision="", minority=None)]),
    problem=HOSTILE,
    decision=HOSTILE,
    focus=HOSTILE,
    confidence=SHARES,
    voices=st.lists(
        st.builds(FinalPosition, NAMES, st.just("critic"), st.integers(1, 3), HOSTILE, SHARES),
        max_size=3, unique_by=lambda voice: voice.name,
    ).map(tuple),
    tensions=st.lists(
        st.builds(Tension, IDS, HOSTILE, st.sampled_from(["open", "resolved", "accepted"]), st.just(1)),
        max_size=4, unique_by=lambda item: item.id,
    ).map(tuple),
    gaps=st.lists(HOSTILE.filter(str.strip), max_size=4).map(tuple),
    objections=st.lists(
        st.builds(Dissent, IDS, st.sampled_from(["critic", "tester"]), HOSTILE, st.integers(1, 10)), max_size=4
    ).map(tuple),
)  # fmt: skip


@given(VIEWS)
def test_whatever_is_set_beside_itself_is_the_same(view: SessionSnapshot) -> None:
    found = compare(view, view)
    assert found.same and all(row.same in (True, None) for row in found.rows)
    assert drawn(found, 100, changed=True)[-1] == "Nothing differs."


@given(VIEWS, VIEWS)
def test_nothing_is_lost_and_both_ways_tell_the_same(a: SessionSnapshot, b: SessionSnapshot) -> None:
    found, back = compare(a, b), compare(b, a)
    assert found.same == back.same
    for part, left, right in (
        ("voices", a.voices, b.voices), ("tensions", a.tensions, b.tensions), ("gaps", a.gaps, b.gaps),
    ):  # fmt: skip
        for here, sides in ((found, (left, right)), (back, (right, left))):
            items = [row for row in here.rows if row.part == part and row.name]
            assert len(items) <= len(left) + len(right)
            if part != "voices":
                assert sum(bool(row.a) for row in items) == len(sides[0])
                assert sum(bool(row.b) for row in items) == len(sides[1])


@pytest.mark.wide
@given(VIEWS, VIEWS, st.integers(1, 200))
def test_a_drawing_fits_and_nothing_in_it_acts(a: SessionSnapshot, b: SessionSnapshot, width: int) -> None:
    found = compare(a, b)
    for changed in (False, True):
        for line in lines(found, width, changed=changed):
            assert cell_len(line.text) < min(max(width, 40), 160)
            assert "\n" not in line.text and not re.search("[\x00-\x1f\x7f-\x9f\u200b\u202a-\u202e]", line.text)
    marked = {row.part for row in found.rows if row.same is False and not row.name}
    for part in marked:
        assert any(line.what.startswith(f"≠ {part}") for line in lines(found, width))


@given(HOSTILE, st.integers(4, 60))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    found = wrapped(text, width)
    assert all(cell_len(line) <= width for line in found)
    assert "".join("".join(found).split()) == "".join("".join(wrapped(text, 9999)).split())


@pytest.mark.wide
@given(VIEWS, VIEWS)
def test_as_data_it_is_all_there(a: SessionSnapshot, b: SessionSnapshot) -> None:
    found = compare(a, b)
    data = json.loads(json.dumps(comparison.json(found)))
    assert set(data["a"]) == set(SessionSnapshot.__struct_fields__)
    assert data["a"]["problem"] == a.problem and data["b"]["confidence"] == b.confidence
    assert [ComparisonRow(**row) for row in data["rows"]] == list(found.rows)
    assert data["same"] == found.same
    assert all(row["same"] is False for row in comparison.json(found, changed=True)["rows"])
