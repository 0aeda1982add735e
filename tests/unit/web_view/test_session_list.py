"""The list of sessions: a page waits for no thousands of them, and what it lacks is counted."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cdo.core.errors import SessionError
from cdo.history import run_index
from cdo.web_view import session_list
from cdo.web_view.session_list import NEWEST, SessionList

FURTHER = 10


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sessions, of which the one with the highest number is the newest."""
    monkeypatch.setenv("CDO_CACHE_DIR", str(tmp_path / "cache"))
    for number in range(NEWEST + FURTHER):
        plan = tmp_path / "out" / f"cdo-n{number}" / "session.yaml"
        plan.parent.mkdir(parents=True)
        plan.write_text("damaged\n")
        os.utime(plan, (1_000_000 + number, 1_000_000 + number))
    return tmp_path / "out"


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is not set, a reading of all sessions goes on and on. Pages do not wait for it."""
    may, rows = threading.Event(), run_index.rows

    def held(out: Path) -> list[dict[str, Any]]:
        may.wait()
        return rows(out)

    monkeypatch.setattr(run_index, "rows", held)
    monkeypatch.setattr(session_list, "WAIT", 0.05)
    monkeypatch.setattr(session_list, "LISTED", 0.0)
    return may


def settled(listed: SessionList, reading: threading.Event) -> list[str]:
    """The names of the sessions when the reading that goes on has ended."""
    thread = listed._reading
    assert thread
    reading.set()
    thread.join()
    reading.clear()
    assert listed._known and listed._known.unread == 0
    return [row["session"] for row in listed._known.rows]


@pytest.mark.parametrize(("many", "wait"), [(1000, 0.05), (10, 600.0)])
def test_the_newest_are_shown_until_all_are_read(
    many: int, wait: float, place: Path, reading: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few sessions when the reading takes long, of many at once."""
    monkeypatch.setattr(session_list, "MANY", many)
    monkeypatch.setattr(session_list, "WAIT", wait)
    listed = SessionList([place])
    for _ in range(2):
        found = listed.listed()
        assert found.unread == FURTHER and [row["session"] for row in found.rows] == [
            f"n{number}" for number in range(NEWEST + FURTHER - 1, FURTHER - 1, -1)
        ]
    assert len(settled(listed, reading)) == NEWEST + FURTHER


def test_what_was_read_before_is_shown_while_it_is_read_again(place: Path, reading: threading.Event) -> None:
    listed = SessionList([place])
    listed.listed()
    before = settled(listed, reading)
    listed._until = 0.0
    (place / "cdo-n3" / "session.yaml").unlink()
    found = listed.listed()
    assert [row["session"] for row in found.rows] == before and found.unread == 0
    assert settled(listed, reading) == [name for name in before if name != "n3"]


def test_a_reading_that_fails_is_told_and_tried_again(
    place: Path, reading: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(out: Path) -> list[dict[str, Any]]:
        raise SessionError(f"{out} cannot be read.", "Look at it.")

    listed = SessionList([place])
    with monkeypatch.context() as patch:
        patch.setattr(run_index, "rows", failing)
        patch.setattr(session_list, "WAIT", 30.0)
        with pytest.raises(SessionError, match="cannot be read"):
            listed.listed()
    listed._until = 0.0
    reading.set()
    monkeypatch.setattr(session_list, "WAIT", 30.0)
    assert len(listed.listed().rows) == NEWEST + FURTHER
