"""The planning dashboard: only the next turn is concrete, it fits any terminal, and hostile names stay visible."""

from __future__ import annotations

import json
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace
from rich.cells import cell_len

from cdo.content.schemas import Criteria
from cdo.core import formatting
from cdo.terminal import plan_dashboard
from cdo.terminal.plan_dashboard import Model, PastTurn, PlannedVoice, Sketch, Span, lines, markdown

RULES = Criteria(exit_confidence=0.8, quiet_turns=2, agreement_flag=0.7, confidence_drop=0.2, severe=8)
SKETCH = Sketch(
    preset="deep",
    why="you asked for deep",
    problem="Should we split the service?",
    voices=(
        PlannedVoice("architect", "Structure and boundaries", skills=("c4", "adr"), model="openai/gpt-4.1"),
        PlannedVoice("critic", "Argument audit", "the seam", model="anthropic/claude-sonnet-5-5"),
        PlannedVoice("token-auditor", "", "attack the token flow", ("threat-model",), "openai/gpt-4.1"),
    ),
    width=(3, 8),
    turns=(3, 5),
    adaptive=False,
    criteria=RULES,
    models=(Model("openai/gpt-4.1", "openai", True), Model("anthropic/claude-sonnet-5-5", "anthropic", False)),
    span=Span((5, 21), (12_000, 90_000), (0.05, 1.25), (20, 605)),
    session="demo",
    domain="arch",
    notes=("bd: on",),
)


def test_the_first_turn_is_concrete_and_later_ones_are_what_may_vary() -> None:
    assert lines(SKETCH, 100) == [
        "Plan of turn 1 · demo",
        "preset    deep · you asked for deep · domain arch",
        "problem   Should we split the service?",
        "",
        "turn  voice          method                    skills        model",
        "1     architect      Structure and boundaries  c4, adr       openai/gpt-4.1",
        "      critic         Argument audit: the seam                anthropic/claude-sonnet-5-5",
        "      token-auditor  attack the token flow     threat-model  openai/gpt-4.1",
        "2–5   3 voices; roles, skills and focus as each synthesis directs",
        "",
        "goes on   after turn 3 only for an open tension, a new gap or a conflict",
        "ends at   ready to exit at confidence 0.80 · 2 turns without an open tension or a new gap · 5 turns",
        "conflict  confidence falls by 0.20 · an objection of severity 8",
        "model     openai/gpt-4.1 · openai · price known",
        "model     anthropic/claude-sonnet-5-5 · anthropic · price unknown",
        "calls     5 to 21",
        "tokens    about 12,000 to 90,000",
        "cost      $0.05 to $1.25",
        "time      about 20.0 s to 10m05s",
        "note      bd: on",
    ]


def test_a_role_that_was_chosen_by_the_question_says_by_which_words() -> None:
    chosen = replace(SKETCH, matches=(("architect", ("coupling", "monolith")),))
    told = "architect (matches: coupling, monolith); the others are those of the preset"
    assert f"roles     {told}" in lines(chosen, 100)
    assert f"- Roles: {told}\n" in markdown(chosen)
    assert plan_dashboard.json(chosen)["matches"] == (("architect", ("coupling", "monolith")),)
    every = replace(chosen, voices=SKETCH.voices[:1])
    assert "roles     architect (matches: coupling, monolith)" in lines(every, 100)
    assert not any(row.startswith("roles ") for row in lines(SKETCH, 100))


CASE = replace(
    SKETCH, turns=(4, 4), ends="after its four phases", phases=(("see", 3), ("part", 2), ("test", 3), ("tell", 1))
)
HOUSE = replace(
    SKETCH, adaptive=True, turns=(3, 9), ends="when a motion carries", phases=(("open", 0), ("debate", 0))
)


def test_a_mode_with_phases_says_what_comes_and_when_it_ends() -> None:
    rows = lines(CASE, 100)
    assert rows[8:11] == ["2     part: 2 voices", "3     test: 3 voices", "4     tell: 1 voice"]
    assert "ends      after its four phases · at most 4 turns" in rows
    assert not any("directs" in row or "ready to exit" in row or row.startswith("goes on") for row in rows)
    assert "4     tell: 1 voice" in lines(replace(CASE, turn=3), 100)
    assert not any("test: " in row for row in lines(replace(CASE, turn=3), 100))
    assert "| 3 | test: 3 voices |  |  |  |" in markdown(CASE)
    assert plan_dashboard.json(CASE)["later"] == {
        "turns": [2, 4],
        "width": [1, 3],
        "adaptive": False,
        "phases": [
            {"turn": 2, "name": "part", "voices": 2},
            {"turn": 3, "name": "test", "voices": 3},
            {"turn": 4, "name": "tell", "voices": 1},
        ],
    }
    assert plan_dashboard.json(replace(CASE, turn=4))["later"] is None


def test_the_last_phase_stands_for_all_that_follow() -> None:
    rows = lines(HOUSE, 100)
    assert "2–9   debate: 3 voices" in rows and "ends      when a motion carries · at most 9 turns" in rows
    assert not any("to 8 voices" in row or row.startswith("goes on") for row in rows)
    assert plan_dashboard.json(HOUSE)["later"]["width"] == [3, 3]


def test_nothing_beyond_the_next_turn_has_a_role() -> None:
    rows = lines(SKETCH, 100)
    later = rows[rows.index("") :]
    later = later[[row[:3] for row in later].index("2–5") :]
    for voice in SKETCH.voices:
        assert not any(voice.name in row for row in later)


@pytest.mark.parametrize(
    ("change", "row"),
    [
        ({"adaptive": True}, "2–5   3 to 8 voices; roles, skills and focus as each synthesis directs"),
        ({"turns": (2, 2)}, "2     3 voices; roles, skills and focus as each synthesis directs"),
        ({"turn": 4}, "5     3 voices; roles, skills and focus as each synthesis directs"),
    ],
)
def test_what_may_follow_depends_on_preset_and_turn(change: dict[str, object], row: str) -> None:
    assert row in lines(replace(SKETCH, **change), 100)


@pytest.mark.parametrize("change", [{"turns": (1, 1)}, {"turn": 5}])
def test_after_the_last_turn_nothing_follows(change: dict[str, object]) -> None:
    sketch = replace(SKETCH, **change)
    assert not any("synthesis directs" in row or row.startswith("goes on") for row in lines(sketch, 100))
    assert plan_dashboard.json(sketch)["later"] is None


def test_later_dashboards_tell_what_happened_before() -> None:
    sketch = replace(
        SKETCH,
        turn=3,
        focus="who owns it",
        past=(PastTurn(1, 3, 0.5, 2), PastTurn(2, 1, 0.625, 0)),
        tensions=("speed",),
    )
    rows = lines(sketch, 100)
    assert rows[0] == "Plan of turn 3 · demo"
    assert rows[3:7] == [
        "turn 1    3 voices, confidence 0.50, 2 tensions open",
        "turn 2    1 voice, confidence 0.62, no tension open",
        "open      speed",
        "focus     who owns it",
    ]
    assert any(row.startswith("3     architect") for row in rows)


def test_a_price_that_is_not_known_is_not_zero() -> None:
    rows = lines(replace(SKETCH, span=Span((3, 3), (10, 10))), 100)
    assert {"cost      unknown", "calls     3", "tokens    about 10"} <= set(rows)
    assert not any(row.startswith("time") for row in rows)


@pytest.mark.parametrize(("width", "columns"), [(60, 4), (80, 5), (120, 5), (200, 5)])
def test_narrow_terminals_go_without_the_method(width: int, columns: int) -> None:
    head = next(row for row in lines(SKETCH, width) if row.startswith("turn  voice"))
    assert len(head.split()) == columns
    assert all(voice.name in "\n".join(lines(SKETCH, width)) for voice in SKETCH.voices)


def test_columns_with_nothing_in_them_are_left_out() -> None:
    rows = lines(replace(SKETCH, voices=(PlannedVoice("critic"), PlannedVoice("tester"))), 80)
    assert "turn  voice" in rows


TEXTS = st.text(max_size=80)
VOICES = st.builds(PlannedVoice, TEXTS, TEXTS, TEXTS, st.lists(TEXTS, max_size=3).map(tuple), TEXTS)
SKETCHES = st.builds(
    Sketch,
    preset=TEXTS,
    why=TEXTS,
    problem=TEXTS,
    voices=st.lists(VOICES, min_size=1, max_size=4).map(tuple),
    width=st.just((1, 20)),
    turns=st.tuples(st.integers(1, 3), st.integers(3, 99)),
    adaptive=st.booleans(),
    criteria=st.just(RULES),
    models=st.lists(st.builds(Model, TEXTS, TEXTS, st.booleans()), max_size=2).map(tuple),
    span=st.just(SKETCH.span),
    session=TEXTS,
    mode=TEXTS,
    domain=TEXTS,
    turn=st.integers(1, 5),
    focus=TEXTS,
    past=st.lists(st.builds(PastTurn, st.integers(1, 9), st.integers(1, 9), st.just(0.5), st.integers(0, 3))).map(
        tuple
    ),
    tensions=st.lists(TEXTS, max_size=2).map(tuple),
    notes=st.lists(TEXTS, max_size=2).map(tuple),
    phases=st.lists(st.tuples(TEXTS, st.integers(0, 3)), max_size=3).map(tuple),
    ends=TEXTS,
)


@pytest.mark.wide
@settings(max_examples=100, deadline=None)
@given(SKETCHES, st.sampled_from([0, 40, 60, 80, 120, 300]))
def test_every_row_fits_and_no_sign_acts_on_the_terminal(sketch: Sketch, width: int) -> None:
    for row in lines(sketch, width):
        assert cell_len(row) < max(plan_dashboard.NARROW, width)
        assert row.replace("\u3000", " ").isprintable() or all(ord(char) >= 0x20 for char in row)
        assert not {"\x1b", "\n", "\r", "\t", "\u202e", "\u200b"} & set(row)


@pytest.mark.wide
@settings(max_examples=100, deadline=None)
@given(SKETCHES)
def test_markdown_and_json_hold_whatever_there_is(sketch: Sketch) -> None:
    text = markdown(sketch)
    rows = [row for row in text.split("\n") if row.startswith("|")]
    count, following = len(sketch.phases), range(sketch.turn + 1, sketch.turns[1] + 1)
    named = [sketch.phases[min(turn, count) - 1] if count else ("", 1) for turn in following]
    later = len(list(groupby((formatting.one_line(name), voices or len(sketch.voices)) for name, voices in named)))
    assert len(rows) == 2 + len(sketch.voices) + later
    assert all(row.replace("\\\\", "").replace("\\|", "").count("|") == 6 for row in rows)
    assert all(row == "" or row.startswith(("# Plan", "- ", "| ")) for row in text.split("\n"))
    assert json.loads(json.dumps(plan_dashboard.json(sketch)))["turn"] == sketch.turn


def test_hostile_names_are_visible_and_no_markup() -> None:
    name = "cri\x1b[31mtic | <script>`rm`[x](y)\n# Plan\u202e"
    sketch = replace(SKETCH, voices=(PlannedVoice(name),), problem=name, notes=(name,))
    shown = "\n".join(lines(sketch, 200))
    assert "cri␛[31mtic | <script>" in shown and "<U+202E>" in shown
    text = markdown(sketch)
    assert "<script" not in text and "\n# Plan\\" not in text
    assert "| 1 | cri␛\\[31mtic \\| &lt;script\\>\\`rm\\`\\[x\\](y) \\# Plan" in text


def test_json_says_what_the_dashboard_shows() -> None:
    data = plan_dashboard.json(SKETCH)
    assert data["voices"][0] == {
        "name": "architect",
        "method": "Structure and boundaries",
        "charge": "",
        "skills": ("c4", "adr"),
        "model": "openai/gpt-4.1",
    }
    assert data["later"] == {"turns": [2, 5], "width": [3, 3], "adaptive": False}
    assert plan_dashboard.json(replace(SKETCH, adaptive=True))["later"]["width"] == [3, 8]
    assert data["criteria"] == to_builtins(RULES)
    assert data["span"]["cost"] == (0.05, 1.25)
