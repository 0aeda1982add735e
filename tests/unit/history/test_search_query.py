"""What a person types to find runs: dates, filters, search words."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdo.core.errors import UsageError
from cdo.history.search_query import RunFilter, content_words, created, filtered, finished, match, moment

NOW = datetime(2026, 3, 1, 15, 30)
WORD = st.text("abcdefgh", min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("2026-02-28", datetime(2026, 2, 28), datetime(2026, 3, 1)),
        ("today", datetime(2026, 3, 1), datetime(2026, 3, 2)),
        (" Yesterday ", datetime(2026, 2, 28), datetime(2026, 3, 1)),
        ("24h", datetime(2026, 2, 28, 15, 30), datetime(2026, 2, 28, 15, 30)),
        ("7d", datetime(2026, 2, 22, 15, 30), datetime(2026, 2, 22, 15, 30)),
        ("2w", datetime(2026, 2, 15, 15, 30), datetime(2026, 2, 15, 15, 30)),
    ],
)
def test_a_day_runs_from_its_first_moment_to_the_next_day(text: str, since: datetime, until: datetime) -> None:
    assert moment(text, NOW) == since
    assert moment(text, NOW, end=True) == until


@pytest.mark.parametrize("text", ["", "2026-02-30", "26-1-1x", "7", "d", "-7d", "99999d", "tomorrow", "9999-12-31"])
def test_what_is_no_date_is_explained(text: str) -> None:
    with pytest.raises(UsageError, match="is not a date") as caught:
        moment(text, NOW, end=True)
    assert "24h, 7d, 2w" in caught.value.hint


@given(st.text())
@example("9999w")
def test_any_text_is_a_date_or_a_usage_error(text: str) -> None:
    try:
        assert isinstance(moment(text, NOW), datetime)
    except UsageError as error:
        assert len(error.message) < 100


def row(**values: Any) -> dict[str, Any]:
    return {"session": "s", "status": "converged", "problem": "", "created": "2026-03-01T12:00:00+00:00", **values}


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "session": WORD,
            "status": st.sampled_from(["converged", "max_turns", "unfinished", "paused", "running", "damaged"]),
            "problem": st.lists(WORD, max_size=4).map(" ".join),
        },
        optional={
            "created": st.one_of(
                st.text(max_size=3),
                st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)).map(datetime.isoformat),
            ),
            "decision": st.one_of(st.none(), WORD),
            "preset": st.sampled_from(["think", "deep"]),
            "mode": st.sampled_from([None, "debug"]),
            "domain": st.sampled_from([None, "arch"]),
        },
    ),
    max_size=6,
)
DAY = st.one_of(st.none(), st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC)))
WANTED = st.builds(
    RunFilter,
    words=st.lists(WORD, max_size=2).map(tuple),
    kind=st.sampled_from(["", "think", "debug", "arch"]),
    status=st.sampled_from(["", "converged", "finished", "unfinished", "damaged"]),
    since=DAY,
    until=DAY,
)


@given(ROWS, WANTED)
def test_filters_keep_order_and_each_one_holds_alone(rows: list[dict[str, Any]], wanted: RunFilter) -> None:
    """All conditions together are what each of them leaves, one after the other."""
    found = filtered(rows, wanted)
    left = rows
    for alone in (
        RunFilter(wanted.words),
        RunFilter(kind=wanted.kind),
        RunFilter(status=wanted.status),
        RunFilter(since=wanted.since),
        RunFilter(until=wanted.until),
    ):
        left = filtered(left, alone)
    assert found == left
    assert filtered(rows, RunFilter()) == rows
    for taken in found:
        begun = created(taken)
        assert not wanted.since or (begun and begun >= wanted.since)
        assert not wanted.until or (begun and begun < wanted.until)
        assert wanted.status != "finished" or finished(taken)


def test_filters_by_what_a_row_says() -> None:
    rows = [
        row(session="One", preset="think", mode="debug", decision="Keep the Queue", status="odd"),
        row(session="two", preset="deep", domain="arch", problem="queue or not?", created="2026-02-01T00:00:00"),
        {"session": "three", "status": "damaged", "problem": "x/calls is damaged"},
        row(session="four", preset="deep", status="running"),
        row(session="five", status="paused"),
        row(session="six", status="unfinished"),
    ]

    def names(**wanted: Any) -> list[str]:
        return [str(found["session"]) for found in filtered(rows, RunFilter(**wanted))]

    assert names(words=("QUEUE",)) == ["One", "two"]
    assert names(words=("queue", "one")) == ["One"]
    assert names(kind="debug") == ["One"]
    assert names(kind="arch") == ["two"]
    assert names(kind="deep") == ["two", "four"]
    assert names(status="finished") == ["One", "two"]
    assert names(status="paused") == ["five"]
    assert names(status="unfinished") == ["five", "six"]
    assert names(status="running") == ["four"]
    assert names(since=datetime(2026, 3, 1, tzinfo=UTC)) == ["One", "four", "five", "six"]
    assert names(until=datetime(2026, 2, 1, tzinfo=UTC) + timedelta(seconds=1)) == ["two"]


# -- searches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["event", "bus"], '"event" AND "bus"'),
        (["event bus"], '"event bus"'),
        (['"event bus"', "x"], '"event bus" AND "x"'),
        (['a "b c" -d'], '"a" AND "b c") NOT ("d"'),
        (["-event bus", "x"], '"x") NOT ("event bus"'),
        (["cach*"], '"cach"*'),
        (["x", "-cach*"], '"x") NOT ("cach"*'),
        (["OR", "NEAR(a", "problem:x"], '"OR" AND "NEAR(a" AND "problem:x"'),
        (['a"b'], '"a" AND "b"'),
        (["-x"], ""),
        (["*", '"', "-", "--", ""], ""),
    ],
)
def test_words_are_words_phrases_beginnings_or_left_out(words: list[str], expected: str) -> None:
    assert match(words) in (expected, f"({expected})")


@pytest.fixture(scope="module")
def table() -> sqlite3.Connection:
    """A table with one text."""
    db = sqlite3.connect(":memory:")
    db.execute('CREATE VIRTUAL TABLE t USING fts5(a, b, tokenize = "porter unicode61 remove_diacritics 2")')
    db.execute("INSERT INTO t VALUES ('Keep the event bus', 'naïve caching of services')")
    return db


SYNTAX = st.lists(st.one_of(st.text(), st.text('"*-^(){}:+,ab OR NEAR\0\ud800', max_size=12)), max_size=4)


@given(words=SYNTAX)
@example(words=["²"])
@example(words=['"a', "b\0c"])
def test_nothing_that_a_person_types_is_an_error_of_syntax(table: sqlite3.Connection, words: list[str]) -> None:
    if expression := match(words):
        assert len(table.execute("SELECT * FROM t WHERE t MATCH ?", [expression]).fetchall()) in (0, 1)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["naive", "cached"], True),
        (["service", "bus"], True),
        (["event bus"], True),
        (["bus event"], False),
        (["eve*"], True),
        (["eve"], False),
        (["bus", "-naive"], False),
        (["bus", "-queue"], True),
        (['"the event" NAÏVE'], True),
    ],
)
def test_words_find_their_forms(table: sqlite3.Connection, words: list[str], found: bool) -> None:
    assert bool(table.execute("SELECT * FROM t WHERE t MATCH ?", [match(words)]).fetchall()) is found


def test_content_words_say_what_a_text_is_about() -> None:
    assert content_words("Should we split the service's queues, or the Queue itself?") == [
        "split", "service", "queues",
    ]  # fmt: skip
    assert content_words("Why not? It is so.") == []
    assert len(content_words(" ".join(f"word{n}x" for n in range(99)))) == 48
