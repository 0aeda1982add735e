"""What a person sees: the fold by hand, plain lines to the letter, frames at fixed sizes, a real terminal."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from cdo.core.events import BatchBegan, Event, ReplyAccepted
from cdo.core.formatting import money, visible
from cdo.core.usage import TotalUsage
from cdo.terminal.live_screen import frame
from cdo.terminal.run_state import CallState, LiveRun
from cdo.terminal.run_words import line, summary
from cdo.terminal.views import LiveView, PlainView, make_view
from tests.support.events import happened

ROOT = Path(__file__).resolve().parents[3]
USAGE = {"input_tokens": 700, "output_tokens": 112, "measured": True}


def event(kind: str, name: str = "", **data: Any) -> Event:
    return happened(kind, name, data)


def exchange(name: str, cost: float | None = 0.0012, **data: Any) -> Event:
    return event("exchange", name, model="m", attempt=1, seconds=3.2, usage=USAGE, cost=cost, **data)


def batch(*names: str, kind: str = "agent") -> Event:
    return event("batch", calls=[[name, kind] for name in names])


RUN = event("run", "audit", preset="deep", why="wide scope", models=["a/b", "c"], path="tmp/cdo-audit", resumed=False)

# One turn as the runner tells it: (seconds, event).
TURN: list[tuple[float, Event]] = [
    (0.0, RUN),
    (0.0, batch("t1-architect", "t1-critic", "t1-security-reviewer")),
    (1.0, event("call", "t1-architect", model="a/b", attempt=1)),
    (1.0, event("call", "t1-critic", model="c", attempt=1)),
    (1.0, event("call", "t1-security-reviewer", model="a/b", attempt=1)),
    (2.0, event("progress", "t1-architect", characters=0)),
    (2.0, event("progress", "t1-critic", characters=41)),
    (2.5, event("exchange", "t1-security-reviewer", model="a/b", attempt=1, seconds=1.5, fault="overloaded")),
    (2.5, event("retry", "t1-security-reviewer", fault="overloaded", message="try later", wait=2.0)),
    (4.2, exchange("t1-critic")),
    (4.2, event("reply", "t1-critic", position="Not yet.", confidence=0.62)),
    (4.5, event("call", "t1-security-reviewer", model="a/b", attempt=2)),
    (5.0, exchange("t1-architect", cost=None)),
    (5.0, event("invalid", "t1-architect", problems=["`position` is missing.", "`confidence` is missing."])),
    (5.0, event("call", "t1-architect", model="a/b", attempt=2)),
    (6.0, exchange("t1-architect", cost=None)),
    (6.0, event("reply", "t1-architect", position="One gateway.", confidence=0.8)),
    (7.0, event("missing", "t1-security-reviewer", reason="overloaded: try later")),
    (7.0, batch("t1-synthesis", kind="synthesis")),
    (7.0, event("call", "t1-synthesis", model="a/b", attempt=1)),
    (8.5, exchange("t1-synthesis")),
    (8.5, event("reply", "t1-synthesis", confidence=0.55, focus="Zone failure", exit_ready=False)),
]


class Played:
    """Feeds events to a view whose clock shows each one's time."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def feed(self, view: Any, events: Iterable[tuple[float, Event]]) -> None:
        for self.now, told in events:
            view(told)


def folded(events: Iterable[tuple[float, Event]], board: LiveRun | None = None) -> LiveRun:
    board = board or LiveRun()
    for now, told in events:
        board = board.apply(told, now)
    return board


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext – ü 認証 🙂 a\u00a0b", "plain\n\ttext – ü 認証 🙂 a\u00a0b"),
        ("\x1b[2J\x07\x00\r\n", "␛[2J␇␀␍\n"),
        ("\x7f\x80\x9b31m\x85", "␡<U+0080><U+009B>31m<U+0085>"),
        (
            "\u200b\u200f\u202a\u202e\u2066\u2069\ufeff",
            "<U+200B><U+200F><U+202A><U+202E><U+2066><U+2069><U+FEFF>",
        ),
        ("\u2028\u2029\u00ad\u061c\U000e0041", "<U+2028><U+2029><U+00AD><U+061C><U+E0041>"),
        ("\ud800 \udfff", "<U+D800> <U+DFFF>"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_instead(text: str, shown: str) -> None:
    assert visible(text) == shown


ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text("\x1b\x9b\r\n\t\u202e\u200b[2J;m\ud800a ")


@given(ANY_TEXT)
def test_nothing_that_controls_a_terminal_gets_through(text: str) -> None:
    shown = visible(text)
    assert all(char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in shown)
    assert visible(shown) == shown
    shown.encode("utf-8")
    assert [char for char in text if char in "\n\t"] == [char for char in shown if char in "\n\t"]


def test_every_character_named_in_the_rule_is_shown() -> None:
    named = [*range(0x20), *range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x202A, 0x202F)]
    named += [*range(0x2066, 0x206A), 0xFEFF, *range(0xD800, 0xE000)]
    for code in set(named) - {0x09, 0x0A}:
        assert chr(code) not in visible(f"a{chr(code)}b")


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "unknown"),
        (0, "$0"),
        (0.0, "$0"),
        (1e-9, "<$0.0001"),
        (0.00005, "$0.0001"),
        (0.0012, "$0.0012"),
        (0.5, "$0.50"),
        (0.05263, "$0.053"),
        (0.0996, "$0.10"),
        (0.99996, "$1.00"),
        (1234.5, "$1,234.50"),
    ],
)
def test_money(cost: float | None, text: str) -> None:
    assert money(cost) == text


# -- the fold -------------------------------------------------------------------------------------


def test_each_state_a_voice_goes_through() -> None:
    board, states = LiveRun(), []
    for now, told in TURN:
        board = board.apply(told, now)
        if told.name == "t1-security-reviewer":
            states.append(board.voices[told.name].state)
    assert states == ["thinking", "waiting", "retrying", "thinking", "missing"]
    assert [voice.state for voice in folded(TURN[:2]).voices.values()] == [CallState.WAITING] * 3
    busy = folded(TURN[:7]).voices
    assert busy["t1-architect"].state is CallState.THINKING, "a sign of life is not an answer"
    assert busy["t1-critic"].state is CallState.WRITING


def test_cells_tick_and_settle() -> None:
    voices = folded(TURN[:9]).voices
    assert voices["t1-critic"].cells(3.0) == ("writing", "2.0 s", "~11", "", "", "")
    retrying = "overloaded: try later"
    assert voices["t1-security-reviewer"].cells(3.5) == ("retrying in 1 s", "2.5 s", "", "", "", retrying)
    assert voices["t1-security-reviewer"].cells(99.0)[0] == "retrying in 0 s"
    voices = folded(TURN).voices
    assert voices["t1-critic"].cells(99.0) == ("done", "3.2 s", "812", "$0.0012", "0.62", "Not yet.")
    assert voices["t1-architect"].cells(99.0) == ("done", "5.0 s", "1,620", "unknown", "0.80", "One gateway.")


def test_an_unknown_price_is_never_zero() -> None:
    spent = TotalUsage(calls=5, input_tokens=4 * 700, output_tokens=4 * 112, cost=0.0024, unpriced=2)
    assert folded(TURN).spent == spent
    assert folded(TURN).spent.price == "$0.0024 + ?"
    assert TotalUsage(input_tokens=5, unpriced=1).price == "unknown"
    assert TotalUsage(input_tokens=5).price == "$0"
    assert TotalUsage(calls=1).price == ""


def test_a_turn_ends_when_the_next_begins() -> None:
    board = folded(TURN)
    assert (board.title, board.settled, board.finished) == ("turn 1", True, ())
    assert board.confidences == {"t1-synthesis": 0.55}
    board = board.apply(batch("t2-critic", "t2-referee"), 9.0)
    assert list(board.voices) == ["t2-critic", "t2-referee"]
    assert not board.settled
    assert board.finished == ("turn 1  2/3 voices  0.55   7.5 s  $0.0024 + ?   3,250 tok  focus: Zone failure",)
    board = board.apply(batch("final", kind="final"), 9.0)
    assert board.title == "final"
    assert len(board.finished) == 2


def test_other_programs_name_their_batches_too() -> None:
    assert folded([(0, batch("r1-plan", kind="plan"))]).title == "round 1"
    assert folded([(0, batch("a", kind="write")), (0, batch("b", "c", kind="review"))]).title == "review"
    assert folded([(0, batch("t1-a", "t2-a", kind="write"))]).title == "write"


def test_replayed_voices_cost_nothing() -> None:
    board = folded(
        [
            (0, event("run", "audit", preset="deep", why="", models=[], path="", resumed=True)),
            (0, batch("t1-architect", "t1-sage", "t1-critic", "t1-scout")),
            (0, event("reply", "t1-architect", position="A", confidence=0.7, how="recorded")),
            (0, event("reply", "t1-sage", position="C", confidence=0.5)),
            (0, event("reply", "t1-critic", position="B", confidence=0.6, how="edited")),
            (0, event("missing", "t1-scout", reason="refused: no", how="recorded")),
        ]
    )
    assert [voice.cells(5.0)[:4] for voice in board.voices.values()] == [
        ("from record", "", "", ""),
        ("from record", "", "", ""),
        ("edited", "", "", ""),
        ("missing", "", "", ""),
    ]
    assert board.outcome() == "turn 1  3/4 voices  from record"
    assert board.header() == ["audit", "deep (resumed)", "turn 1"]


def test_the_head_shows_confidence_by_turn() -> None:
    board = folded(TURN)
    assert board.header()[-1] == "confidence 0.55"
    for number, confidence in enumerate((0.6, 0.65, 0.7, 0.72), 2):
        board = board.apply(batch(f"t{number}-synthesis", kind="synthesis"), 9.0)
        board = board.apply(event("reply", f"t{number}-synthesis", confidence=confidence, focus="f"), 9.0)
    assert board.header()[-1] == "confidence 0.55 → … → 0.70 → 0.72"


def test_the_fold_leaves_the_board_before_alone() -> None:
    before = folded(TURN[:4])
    copy = folded(TURN[:4])
    folded(TURN[4:], before)
    assert before == copy


def synthesis(turn: int, confidence: float = 0.5, **tensions: str) -> list[tuple[float, Event]]:
    """A turn of one voice, whose synthesis tells of `tensions`, each by its status; ten seconds from turn to turn."""
    ledger = [{"id": name, "title": f"about {name}", "status": status} for name, status in tensions.items()]
    name, now = f"t{turn}-synthesis", 10.0 * turn
    said = event("reply", name, confidence=confidence, focus="f", exit_ready=False, directive={"tensions": ledger})
    return [
        (now, batch(f"t{turn}-critic")),
        (now, event("call", f"t{turn}-critic", model="m", attempt=1)),
        (now + 1, exchange(f"t{turn}-critic")),
        (now + 1, event("reply", f"t{turn}-critic", position="Yes.", confidence=0.5)),
        (now + 1, batch(name, kind="synthesis")),
        (now + 1, event("call", name, model="m", attempt=1)),
        (now + 2, exchange(name)),
        (now + 2, said),
    ]


DISPUTE = [
    *synthesis(1, 0.5, T1="open", T2="open", T3="open"),
    *synthesis(2, 0.6, T1="resolved", T4="open"),
    *synthesis(3, 0.7, T1="open", T2="accepted", T5="resolved"),
]


def test_tensions_live_through_the_turns() -> None:
    board = folded(DISPUTE)
    lives = [(item.id, item.since, item.changed, item.state(3)) for item in board.tensions.values()]
    assert lives == [
        ("T1", 1, 3, "reopened"),
        ("T2", 1, 3, "accepted"),
        ("T3", 1, 1, "open"),
        ("T4", 2, 2, "open"),
        ("T5", 3, 3, "resolved"),
    ]
    assert board.news == "reopened T1, accepted T2, resolved T5"
    assert [row.partition("tok  ")[2] for row in board.finished] == [
        "opened T1 T2 T3  focus: f",
        "resolved T1, opened T4  focus: f",
    ]
    many = folded(synthesis(1, 0.5, **{f"T{number}": "open" for number in range(1, 8)}))
    assert many.news == "opened T1 T2 T3 T4 …"


def test_what_did_not_change_is_not_told_again() -> None:
    missing = event("missing", "t2-synthesis", reason="timeout")
    board = folded([*synthesis(1, T1="open"), (20.0, batch("t2-synthesis", kind="synthesis")), (21.0, missing)])
    assert "opened" not in board.outcome()
    assert "opened" not in folded(synthesis(3, T1="open"), board).outcome()
    chairs = batch("t1-synthesis", "t2-synthesis", kind="synthesis")
    other = folded([(30.0, chairs), (31.0, happened("reply", "t2-synthesis", DISPUTE[-1][1].json()))])
    assert (other.tensions, other.confidences) == ({}, {"t2-synthesis": 0.7})


def replayed(events: Iterable[tuple[float, Event]], at: float) -> list[tuple[float, Event]]:
    """The same as told from the record by a run that was resumed at `at`."""
    kept = [told for _, told in events if isinstance(told, BatchBegan | ReplyAccepted)]
    return [(at, replace(told, how="recorded") if isinstance(told, ReplyAccepted) else told) for told in kept]


def test_a_run_that_begins_again_is_one_run() -> None:
    whole = folded([*DISPUTE, (50.0, batch("final", kind="final"))])
    cut = [*DISPUTE[:16], *DISPUTE[16:18]]  # killed while the third turn's voice was asked
    board = folded(cut)
    assert board.title == "turn 3"
    board = folded([*replayed(DISPUTE[:16], 25.0), *DISPUTE[16:]], board)
    assert (board.resumed, board.title, board.turn) == (True, "turn 3", 3)
    assert board.tensions == whole.tensions
    assert board.confidences == whole.confidences
    assert board.spent.tokens == whole.spent.tokens
    assert board.spent.calls == whole.spent.calls, "what was cut off is not on record: the result does not count it"
    board = board.apply(batch("final", kind="final"), 50.0)
    assert board.finished == whole.finished
    assert board.paid["t3-critic"].calls == 1


def test_a_turn_that_an_edit_changes_is_told_once_more() -> None:
    board = folded([*synthesis(1, 0.5, T1="open"), (20.0, event("stopped", status="NeedsHuman", why="Paused."))])
    assert (board.status, board.over) == ("stopped", True)
    again = folded([*synthesis(1, 0.9, T1="resolved"), (30.0, batch("final", kind="final"))], board)
    assert (again.status, again.over, again.confidences) == ("", False, {"t1-synthesis": 0.9})
    assert [row.split()[2:5] for row in again.finished] == [["1", "voice", "0.50"], ["1", "voice", "0.90"]]
    assert again.tensions["T1"].status == "resolved"


@pytest.mark.parametrize("how", ["told", "seen"])
def test_no_voice_of_a_run_that_is_over_goes_on(how: str) -> None:
    board = folded(TURN[:7])
    stopped = event("stopped", status="Interrupted", why="Stopped.")
    board = board.apply(stopped, 9.0) if how == "told" else board.left("nobody runs it")
    assert {voice.state for voice in board.voices.values()} == {CallState.STOPPED}
    assert "thinking" not in "\n".join(drawn(board, 9.0, 100))
    done = folded(TURN).left("nobody runs it")
    assert [voice.state for voice in done.voices.values()] == [voice.state for voice in folded(TURN).voices.values()]
    # Who resumes it asks again.
    again = folded([(20.0, batch(*board.voices)), (20.0, event("call", "t1-critic", model="m", attempt=1))], board)
    assert again.voices["t1-critic"].state is CallState.THINKING


def test_the_head_says_how_the_run_stands() -> None:
    board = LiveRun(going="running")
    for now, told in [(0.0, RUN), *synthesis(1)]:
        board = board.apply(told, now)
    assert board.header()[2:4] == ["running", "turn 1"]
    asked = board.apply(event("pause", "t1-conflict", question="Go on?", options=["yes", "no"]), 20.0)
    assert asked.header()[2:4] == ["waits for an answer", "turn 1"]
    assert asked.apply(batch("final", kind="final"), 21.0).header()[2:4] == ["running", "final"]
    assert board.apply(event("done", status="converged"), 20.0).header()[2:4] == ["converged", "2 calls"]


# -- plain lines ----------------------------------------------------------------------------------

PLAIN = """\
session audit: deep (wide scope) · a/b, c · tmp/cdo-audit
turn 1: architect, critic, security-reviewer
  t1-security-reviewer  overloaded: try later; again in 2.0 s
  t1-critic             0.62   3.2 s     812 tok  $0.0012  Not yet.
  t1-architect          0.80   5.0 s   1,620 tok  unknown  One gateway.
  t1-security-reviewer  missing: overloaded: try later
turn 1: synthesis
  t1-synthesis          0.55   1.5 s     812 tok  $0.0012  focus: Zone failure
stale: t2-critic.md, t2-synthesis.md moved to superseded/1; kept as edited: t2-scout.md
turn 2: critic, scout
  t2-critic  0.60  from record  Yes.
  t2-scout   0.70  edited  Hm.
question: Turn 2 ended in a conflict. (go on / finish now)
FINAL.md was asked for again.
final
  final         2.0 s     812 tok  $0.0012
"""
MORE: list[tuple[float, Event]] = [
    (9.0, event("stale", superseded=["t2-critic", "t2-synthesis"], kept=["t2-scout"], place="1")),
    (9.0, batch("t2-critic", "t2-scout")),
    (9.0, event("reply", "t2-critic", position="Yes.", confidence=0.6, how="recorded")),
    (9.0, event("reply", "t2-scout", position="Hm.", confidence=0.7, how="edited")),
    (
        9.0,
        event("pause", "t2-conflict", question="Turn 2 ended in a conflict.", options=["go on", "finish now"]),
    ),
    (9.0, event("note", text="FINAL.md was\nasked for again.")),
    (9.0, batch("final", kind="final")),
    (9.0, event("call", "final", model="c", attempt=1)),
    (11.0, exchange("final")),
    (11.0, event("reply", "final")),
    (11.0, event("done", status="converged")),
]


def plain(events: Iterable[tuple[float, Event]], **levels: bool) -> str:
    stream, played = io.StringIO(), Played()
    view = PlainView(stream, clock=played.clock, **levels)
    with view.suspend():
        played.feed(view, events)
    view.close()
    return stream.getvalue()


def test_plain_lines() -> None:
    assert plain(TURN + MORE) == PLAIN


def test_quiet_tells_problems_only() -> None:
    told = PLAIN.splitlines()
    assert plain(TURN + MORE, quiet=True).splitlines() == [told[5], told[8], told[13]]


def test_verbose_adds_calls_and_what_was_invalid() -> None:
    added = [text for text in plain(TURN, verbose=True).splitlines() if text not in PLAIN.splitlines()]
    assert added == [
        "  t1-architect          asking a/b",
        "  t1-critic             asking c",
        "  t1-security-reviewer  asking a/b",
        "  t1-security-reviewer  asking a/b, attempt 2",
        "  t1-architect          invalid reply: `position` is missing. `confidence` is missing.",
        "  t1-architect          asking a/b, attempt 2",
        "  t1-synthesis          asking a/b",
    ]


def test_replayed_and_resumed_are_said() -> None:
    board = folded([(0, event("run", "audit", preset="deep", why="", models=[], path="", resumed=True))])
    assert line(event("run", "audit", preset="deep", why=""), board) == "resumed session audit: deep"
    missing = event("missing", "t1-scout", reason="refused: no", how="recorded")
    assert line(missing, board.apply(batch("t1-scout"), 0)) == "  t1-scout  missing (from record): refused: no"


def test_long_texts_do_not_flood_a_log() -> None:
    long = plain([(0, batch("t1-a")), (0, event("reply", "t1-a", position="x " * 300, confidence=0.5))])
    assert max(map(len, long.splitlines())) < 130
    assert long.endswith("…\n")


def test_a_broken_stream_does_not_end_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(5, "the terminal is gone")

    played, closed = Played(), io.StringIO()
    closed.close()
    for stream in (Gone(), closed):
        played.feed(PlainView(stream), TURN)
        view = LiveView(stream)
        played.feed(view, TURN)
        view.close()


# Whatever a model, a provider or a person can put into an event.
HOSTILE = st.text(st.characters(exclude_categories=()), max_size=30) | st.sampled_from(
    [
        "\x1b[2J\x1b]0;owned\x07",
        "a\r\nb\n\nc",
        "\u202egnp.exe",
        "[bold red]markup[/]",
        ":smile:",
        "認証" * 40,
        "\ud800",
    ]
)


@st.composite
def hostile_events(draw: st.DrawFn) -> list[Event]:
    names = [f"t1-role-{number}" for number in range(draw(st.integers(1, 30)))]
    status = HOSTILE | st.sampled_from(["open", "resolved", "accepted"])
    tension = st.fixed_dictionaries({"id": HOSTILE, "title": HOSTILE, "status": status})
    kinds: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "call": {"model": HOSTILE, "attempt": st.integers(1, 9)},
        "progress": {"characters": st.integers(0, 10**7), "tail": HOSTILE},
        "retry": {"fault": HOSTILE, "message": HOSTILE, "wait": st.floats(0, 600)},
        "exchange": {
            "usage": st.none() | st.just(USAGE),
            "cost": st.none() | st.floats(0, 9999),
            "fault": st.just("network"),
        },
        "invalid": {"problems": st.lists(HOSTILE, min_size=1, max_size=3)},
        "reply": {
            "position": HOSTILE,
            "confidence": st.floats(0, 1),
            "how": st.sampled_from(["", "edited", "recorded"]),
            "directive": st.none() | st.fixed_dictionaries({"tensions": st.lists(tension, max_size=12)}),
        },
        "missing": {"reason": HOSTILE},
        "note": {"text": HOSTILE},
        "pause": {"question": HOSTILE, "options": st.lists(HOSTILE, max_size=3)},
        "done": {"status": HOSTILE},
        "stopped": {"why": HOSTILE},
        "review": {"path": HOSTILE},
        "stale": {"superseded": st.lists(HOSTILE), "kept": st.lists(HOSTILE), "place": HOSTILE},
    }
    start: dict[str, st.SearchStrategy[Any]] = {
        "preset": HOSTILE,
        "why": HOSTILE,
        "models": st.lists(HOSTILE, max_size=3),
        "path": HOSTILE,
    }
    drawn = [happened("run", draw(HOSTILE), draw(st.fixed_dictionaries(start)))]
    drawn.append(batch(*names, kind=draw(st.sampled_from(["agent", "synthesis", "write"]))))
    for kind in draw(st.lists(st.sampled_from(sorted(kinds)), max_size=25)):
        drawn.append(happened(kind, draw(st.sampled_from(names)), draw(st.fixed_dictionaries(kinds[kind]))))
    return drawn


@pytest.mark.wide
@given(hostile_events())
@settings(deadline=None)
def test_one_clean_line_an_event_whatever_it_says(events: list[Event]) -> None:
    board = LiveRun()
    for number, told in enumerate(events):
        board = board.apply(told, float(number))
        text = line(told, board)
        assert "\n" not in text
        assert "\t" not in text
        assert visible(text) == text


# -- frames ---------------------------------------------------------------------------------------


def drawn(board: LiveRun, now: float, width: int, height: int = 24, **options: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, record=True, force_terminal=True)
    console.print(frame(board, now, width, height, **options))
    return console.export_text().splitlines()


def test_a_frame_at_100_columns() -> None:
    assert drawn(folded(TURN[:10]), 4.4, 100) == [
        "audit · deep · turn 1 · 2 calls · 812 tok · $0.0012",
        "voice              state               time  tokens     cost  conf  position",
        "architect          thinking           3.4 s",
        "critic             answered           3.4 s     812  $0.0012",
        "security-reviewer  retrying in 0 s    3.4 s                         overloaded: try later",
    ]


def test_a_voice_shows_its_last_words_what_it_looks_at_and_its_model() -> None:
    words = "The queue can be replaced in two steps, and the first of them can be taken back " * 3
    told = [
        batch("t1-critic", "t1-architect"),
        event("call", "t1-critic", model="anthropic/claude-x", attempt=1),
        event("call", "t1-architect", model="openai/gpt-x", attempt=1),
        event("progress", "t1-critic", characters=len(words), tail=f"{words}and \x1b[31mred now"),
        event("tool", "t1-architect", tool="read", arguments='{"path": "src/queue.py", "start": 4}'),
    ]
    board = folded((0.0, item) for item in told)
    rows = drawn(board, 2.0, 120)
    head, critic, architect = rows[1], rows[2], rows[3]
    assert head.index("model") == critic.index("claude-x") == architect.index("gpt-x")
    assert critic[head.index("position")] == "…" and critic.endswith("can be taken back and ␛[31mred now")
    assert architect.endswith("looks: read src/queue.py 4")
    assert "model" not in drawn(board, 2.0, 90)[1]


def test_a_frame_at_80_columns_keeps_every_column() -> None:
    assert drawn(folded(TURN), 9.0, 80) == [
        "audit · deep · turn 1 · 5 calls · 3,250 tok · $0.0024 + ? · confidence 0.55",
        "voice             state       time  tokens     cost  conf  position",
        "architect         done       5.0 s   1,620  unknown  0.80  One gateway.",
        "critic            done       3.2 s     812  $0.0012  0.62  Not yet.",
        "security-rev…wer  missing    6.0 s                         overloaded: try lat…",
        "synthesis         done       1.5 s     812  $0.0012  0.55  focus: Zone failure",
    ]


def test_a_frame_at_40_columns_keeps_what_matters() -> None:
    assert drawn(folded(TURN), 9.0, 40) == [
        "audit · deep · turn 1 · 5 calls",
        "3,250 tok · $0.0024 + ?",
        "confidence 0.55",
        "voice      state      time    cost conf",
        "architect  done      5.0 s unknown 0.80",
        "critic     done      3.2 s $0.0012 0.62",
        "securi…wer missing   6.0 s",
        "synthesis  done      1.5 s $0.0012 0.55",
    ]


def test_only_the_head_is_left_of_a_folded_frame() -> None:
    assert len(drawn(folded(TURN), 9.0, 80, folded=True)) == 1


def test_tensions_stand_under_the_voices() -> None:
    assert drawn(folded(DISPUTE), 40.0, 80) == [
        "turn 3 · 6 calls · 4,870 tok · $0.0072 · confidence 0.50 → 0.60 → 0.70",
        "voice      state       time  tokens     cost  conf  position",
        "critic     done       1.0 s     812  $0.0012  0.50  Yes.",
        "synthesis  done       1.0 s     812  $0.0012  0.70  focus: f",
        "tensions: 3 open, 1 accepted, 1 resolved · turn 3: reopened T1, accepted T2, r…",
        "» T1  reopened in turn 3  about T1",
        "» T2  accepted in turn 3  about T2",
        "» T5  resolved in turn 3  about T5",
        "  T3  open since turn 1   about T3",
        "  T4  open since turn 2   about T4",
    ]
    assert [row.split()[0] for row in drawn(folded(DISPUTE), 40.0, 80, folded=True)[1:3]] == ["tensions:", "»"]


def test_the_question_stands_in_the_head_where_there_is_room() -> None:
    run = (0.0, event("run", "a", preset="deep", question="Should we\nsplit \x1b[31mthe service? " + "Why? " * 40))
    board = folded([run, *DISPUTE])
    head = drawn(board, 40.0, 80)
    (question,) = [row for row in head if row.startswith("Should we split ␛[31mthe service? Why?")]
    assert question.endswith("…") and len(question) < 80
    assert [row for size in ((79, 24), (80, 11)) for row in drawn(board, 40.0, *size) if "split" in row] == []


@pytest.mark.parametrize(("height", "voices", "tensions"), [(7, 2, 0), (9, 2, 1), (12, 2, 4), (13, 2, 5), (40, 2, 6)])
def test_what_a_low_terminal_keeps(height: int, voices: int, tensions: int) -> None:
    rows = drawn(folded(DISPUTE), 40.0, 80, height)
    table = next((number for number, row in enumerate(rows) if row.startswith("tensions")), len(rows))
    assert (table - 2, len(rows) - table) == (voices, tensions)
    assert len(rows) < height


def twenty(settled: int, active: int) -> LiveRun:
    names = [f"t2-voice-{number}" for number in range(1, 21)]
    events = [(0.0, told) for _, told in TURN] + [(0.0, batch(*names))]
    for name in names[:settled]:
        events += [(0.0, event("reply", name, position="Yes.", confidence=0.5))]
    for name in names[settled : settled + active]:
        events += [
            (0.0, event("call", name, model="m", attempt=1)),
            (0.0, event("progress", name, characters=9)),
        ]
    return folded(events)


def test_active_voices_come_first_where_not_all_fit() -> None:
    rows = drawn(twenty(settled=8, active=5), 1.0, 80, 16)
    shown = [row.split()[0] for row in rows[2:-1]]
    assert shown == [*(f"voice-{number}" for number in range(9, 19))]
    assert rows[-1] == "… and 10 more: 2 waiting, 8 from record"
    rows = drawn(twenty(settled=8, active=5), 1.0, 80, 40)
    assert [row.split()[0] for row in rows[2:]] == [f"voice-{number}" for number in range(1, 21)]


@pytest.mark.wide
@given(hostile_events(), st.integers(10, 200), st.integers(4, 50))
@settings(deadline=None)
def test_a_frame_fits_the_terminal_whatever_it_says(events: list[Event], width: int, height: int) -> None:
    board = folded([(float(number), told) for number, told in enumerate(events)])
    console = Console(file=io.StringIO(), width=max(width, 21), height=height, force_terminal=True, color_system=None)
    console.print(frame(board, 50.0, width, height))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert visible(text) == text
    rows = text.rstrip("\n").split("\n")
    assert all(cell_len(row) < max(width, 21) for row in rows)
    assert len(rows) <= max(height - 1, len(board.header()) + 3)


# -- the live view --------------------------------------------------------------------------------


def test_finished_turns_collapse_and_the_last_head_stays() -> None:
    stream, played = io.StringIO(), Played()
    console = Console(file=stream, width=80, height=24, force_terminal=True, color_system=None)
    view = LiveView(stream, clock=played.clock, console=console)
    played.feed(view, TURN + MORE)
    view.close()
    view.close()
    screen = pyte.Screen(80, 40)
    pyte.Stream(screen).feed(stream.getvalue().replace("\n", "\r\n"))
    assert [row.rstrip() for row in screen.display if row.strip()] == [
        "session audit: deep (wide scope) · a/b, c · tmp/cdo-audit",
        "t1-security-reviewer missing: overloaded: try later",
        "stale: t2-critic.md, t2-synthesis.md moved to superseded/1; kept as edited:",
        "t2-scout.md",
        "turn 1  2/3 voices  0.55   7.5 s  $0.0024 + ?   3,250 tok  focus: Zone failure",
        "FINAL.md was asked for again.",
        "turn 2  2 voices    from record",
        "final    2.0 s  $0.0012     812 tok",
        "audit · deep · converged · 6 calls · 4,060 tok · $0.0036 + ? · confidence 0.55",
    ]
    assert not screen.cursor.hidden


def test_a_storm_of_events_is_not_a_storm_of_redraws() -> None:
    stream, played = io.StringIO(), Played()
    view = LiveView(stream, console=Console(file=stream, width=80, height=24, force_terminal=True, color_system=None))
    played.feed(view, TURN[:3])
    for characters in range(1, 5000):
        view(event("progress", "t1-architect", characters=characters))
    view.close()
    assert stream.getvalue().count("audit · deep") < 100


def test_nothing_is_drawn_while_a_person_is_asked() -> None:
    stream, played = io.StringIO(), Played()
    view = LiveView(stream, console=Console(file=stream, width=80, height=24, force_terminal=True, color_system=None))
    played.feed(view, TURN[:3])
    with pytest.raises(KeyboardInterrupt), view.suspend():
        assert stream.getvalue().endswith("\x1b[?25h")
        before = stream.getvalue()
        view(event("call", "t1-critic", model="c", attempt=1))
        assert stream.getvalue() == before
        raise KeyboardInterrupt
    view(event("call", "t1-security-reviewer", model="c", attempt=1))
    view.close()
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h") == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("term", "quiet", "live"),
    [
        ("xterm-256color", False, True),
        ("xterm-256color", True, False),
        ("dumb", False, False),
        ("", False, False),
    ],
)
def test_which_view(monkeypatch: pytest.MonkeyPatch, term: str, quiet: bool, live: bool) -> None:
    monkeypatch.setenv("TERM", term)
    view = make_view(Terminal(), quiet=quiet, verbose=False, json=False)
    assert isinstance(view, LiveView) == live
    assert isinstance(make_view(io.StringIO(), quiet=quiet, verbose=True, json=True), PlainView)
    monkeypatch.delenv("TERM")
    assert isinstance(make_view(Terminal(), quiet=False, verbose=False, json=False), PlainView)


def test_importing_the_view_loads_neither_rich_nor_pydantic() -> None:
    code = "import sys, cdo.terminal.views; print(*({'rich', 'pydantic', 'click', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""


# -- a real terminal ------------------------------------------------------------------------------

DRIVER = """
import sys, time
from cdo.terminal.views import make_view
from tests.unit.terminal.test_views import MORE, TURN
view = make_view(sys.stderr, quiet=False, verbose=False, json=False)
try:
    for now, told in TURN + MORE:
        view(told)
        if told.kind == "call":
            print("stray warning \\x1b[2Jhere", file=sys.stderr) if told.attempt == 2 else None
            time.sleep(0.3)
        if told.kind == "pause" and "ask" in sys.argv:
            with view.suspend():
                print("Go on?", file=sys.stderr, flush=True)
                answer = input()
    if "fail" in sys.argv:
        raise SystemExit("failed")
finally:
    view.close()
print("the result")
"""


@dataclass
class Seen:
    """What a terminal got: the raw bytes, and the screen they leave."""

    raw: str
    screen: pyte.Screen

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display if row.strip()]


def terminal(*args: str, width: int = 80, env: dict[str, str] | None = None, interrupt: bool = False) -> Seen:
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    child: Any = pexpect.spawn(
        sys.executable,
        ["-c", DRIVER, *args],
        env={**clean, "TERM": "xterm-256color", "COLORTERM": "", **(env or {})},
        dimensions=(24, width),
        cwd=str(ROOT),
        encoding="utf-8",
        timeout=60,
    )
    raw = ""
    if "ask" in args:
        child.expect_exact("Go on?")
        raw = child.before + child.after
        child.sendline("yes")
    if interrupt:
        child.expect_exact("critic")
        raw = child.before + child.after
        child.sendintr()
    child.expect(pexpect.EOF)
    raw += child.before
    screen = pyte.Screen(width, 60)
    pyte.Stream(screen).feed(raw)
    return Seen(raw, screen)


COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7])[;m]")


@pytest.mark.wide
def test_in_a_terminal() -> None:
    seen = terminal("ask")
    assert not seen.screen.cursor.hidden
    assert seen.rows[-1] == "the result"
    assert seen.rows[-2].startswith("audit · deep · converged · 6 calls · 4,060 tok")
    assert any(row.startswith("turn 1  2/3 voices  0.55") for row in seen.rows)
    assert "Go on?" in seen.rows
    assert any("stray warning" in row for row in seen.rows)
    assert COLOUR.search(seen.raw)
    assert "\x1b[2J" not in seen.raw


@pytest.mark.slow
def test_no_color_is_honoured() -> None:
    assert not COLOUR.search(terminal(env={"NO_COLOR": "1"}).raw)
    assert COLOUR.search(terminal(env={"NO_COLOR": ""}).raw)


@pytest.mark.wide
@pytest.mark.parametrize("width", [40, 200])
def test_no_line_wraps_and_nothing_is_left_behind(width: int) -> None:
    rows = terminal(width=width).rows
    assert sum(row.startswith("audit · deep") for row in rows) == 1
    assert not any(row.startswith("voice ") for row in rows), "the table is gone when the turn is over"


@pytest.mark.wide
def test_the_terminal_is_restored_after_a_failure() -> None:
    seen = terminal("fail")
    assert not seen.screen.cursor.hidden
    assert seen.rows[-1] == "failed"


@pytest.mark.wide
def test_the_terminal_is_restored_after_ctrl_c() -> None:
    seen = terminal(interrupt=True)
    assert not seen.screen.cursor.hidden
    assert any("KeyboardInterrupt" in row for row in seen.rows)
    assert any(row.startswith("voice ") for row in seen.rows), "what was under way stays on the screen"


# -- the end --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    session: str = "audit"
    path: str = "tmp/cdo-audit"
    status: str = "converged"
    why: str = "exit-ready at confidence 0.82"
    decision: str = "Keep one gateway.\x1b[2J\n"
    confidence: float | None = 0.82
    turns: int = 2
    calls: int = 9
    tokens: int = 12480
    cost: float | None = 0.0231
    missing_voices: tuple[str, ...] = ("t1-critic: timeout",)
    flags: tuple[str, ...] = ("turn 1: agreement of 80% is suspiciously high",)
    unit: str = "turn"
    unaccepted: tuple[str, ...] = ()
    confidence_reason: str = "0.82, lowered from 0.90: 1 question is still open"


def test_summary() -> None:
    assert summary(Ended()) == (
        "Decision\n"
        "\n"
        "Keep one gateway.␛[2J\n"
        "\n"
        "Confidence  0.82, lowered from 0.90: 1 question is still open (uncalibrated)\n"
        "Status      converged after 2 turns\n"
        "Cost        $0.02 (2 turns, 9 calls, 12,500 tokens)\n"
        "Missing     t1-critic: timeout\n"
        "Note        turn 1: agreement of 80% is suspiciously high: voices may follow one another rather than the "
        "evidence\n"
        "FINAL.md    tmp/cdo-audit/FINAL.md"
    )


def test_at_a_terminal_the_end_is_wrapped_and_names_the_next_commands() -> None:
    told = summary(Ended(decision="Keep one gateway for the next quarter, and measure it first.", turns=1), 40)
    assert told.startswith("Decision\n\nKeep one gateway for the next quarter,\nand measure it first.\n\n")
    assert max(map(len, told.splitlines()[:-1])) <= 40
    assert told.endswith("\n\nnext: cdo report audit · cdo final audit · cdo fork audit")
    mission = summary(Ended(unit="round"), 40)
    assert mission.endswith("· cdo final audit · cdo verify audit"), "a mission cannot be forked"
    assert "next:" not in summary(Ended(), 40, commands=False) + summary(Ended())
    capped = summary(Ended(status="max_turns", why="the cap of 1 turn was reached", turns=1))
    assert "\nStatus      finished after its 1 turn\n" in capped


def test_summary_of_a_run_without_a_decision() -> None:
    ended = Ended(
        path="tmp/a  b", status="paused", why="", decision="", confidence=None, turns=1, calls=1, tokens=0, cost=None,
        missing_voices=(), flags=(),
    )  # fmt: skip
    assert summary(ended) == (
        "Confidence  none\nStatus      paused\nCost        1 turn, 1 call, 0 tokens, price unknown\n"
        "Session     tmp/a  b"
    )
