"""Several processes that want the same thing at once: exactly one gets it, and nothing of anybody is lost."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdo.core.errors import SessionError
from cdo.files.atomic_files import file_new
from cdo.session.records import locked, read_session
from cdo.session.store import Session
from tests.unit.session.test_store import FILES, Recorder, failing, new, python

# -- processes that race -----------------------------------------------------------------------------

RACER = """
import sys

from pathlib import Path
from cdo.formats.documents.document import adr_file_name
from cdo.files.atomic_files import file_new, names_in
from cdo.core.errors import SessionError
from cdo.session import store
from cdo.session.store import Session
from tests.support.records import ANSWER
import asyncio
store._PATIENCE = 0.01  # how long the loser waits for somebody who only looks is not the point here
me, held = sys.argv[1], None
print("ready", flush=True)
for line in sys.stdin:
    what, path = line.split()
    path = Path(path)
    try:
        if what == "create":
            held = Session.create(path, {"00-input.md": me, "session.yaml": "cdo: x"})
        elif what == "open":
            held = Session.open(path)
            asyncio.run(held.commit({**ANSWER, "by": me}))
        elif what == "close":
            held, _ = None, held and held.close()
        elif what == "file":
            while True:
                try:
                    path = file_new(path, adr_file_name(names_in(path), "The same title"), f"{me} " * 2000)
                    break
                except FileExistsError:
                    pass
        print("won", flush=True)
    except SessionError as error:
        print(error.message, flush=True)
"""


class Racers:
    """Two processes that are told the same at the same moment."""

    NAMES = ("one", "two")

    def __init__(self) -> None:
        self._processes = [python(RACER, name, stdin=subprocess.PIPE) for name in self.NAMES]
        self._turn = 0
        for process in self._processes:
            assert process.stdout and process.stdout.readline() == "ready\n"

    def do(self, what: str, path: Path) -> dict[str, str]:
        """What each said."""
        self._turn += 1
        for process in self._processes if self._turn % 2 else self._processes[::-1]:
            assert process.stdin
            process.stdin.write(f"{what} {path}\n")
            process.stdin.flush()
        said = [process.stdout.readline().strip() for process in self._processes if process.stdout]
        return dict(zip(self.NAMES, said, strict=True))

    def end(self) -> None:
        for process in self._processes:
            process.communicate(timeout=60)


@pytest.fixture
def racers() -> Iterator[Racers]:
    found = Racers()
    yield found
    found.end()


def winner(said: dict[str, str], words: str) -> str:
    """Who alone won; the other was told `words`."""
    won = [name for name, text in said.items() if text == "won"]
    assert len(won) == 1, said
    assert any(words in text for text in said.values()), said
    return won[0]


def test_of_two_that_begin_a_session_one_wins_a_hundred_times(tmp_path: Path, racers: Racers) -> None:
    for number in range(100):
        path = tmp_path / f"cdo-{number}"
        won = winner(racers.do("create", path), "There is a session")
        assert (path / "00-input.md").read_text() == won
        racers.do("close", path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_of_two_that_go_on_with_a_session_one_wins_a_hundred_times(tmp_path: Path, racers: Racers) -> None:
    path, winners = tmp_path / "cdo-a", []
    new(path).close()
    for _ in range(100):
        winners.append(winner(racers.do("open", path), "is in use by another cdo process"))
        assert locked(path)
        racers.do("close", path)
    assert [record["by"] for record in read_session(path)] == winners, "each winner's record, in order"


def test_decision_records_of_two_runs_never_take_each_others_place(tmp_path: Path, racers: Racers) -> None:
    for _ in range(50):
        assert racers.do("file", tmp_path) == {"one": "won", "two": "won"}
    texts = [path.read_text().split() for path in sorted(tmp_path.iterdir())]
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"{number:04}-the-same-title.md" for number in range(1, 101)
    ]
    assert all(len(set(text)) == 1 and len(text) == 2000 for text in texts), "each is whole"
    assert sorted(text[0] for text in texts) == ["one"] * 50 + ["two"] * 50, "and none was written over"


HOLDER = """
import sys, threading
from pathlib import Path
from cdo.session.store import Session
session = Session.open(Path(sys.argv[1]))
def write():
    for number in range(10**9):
        session.note({**ANSWER, "n": number})
        session.flush()
threading.Thread(target=write, daemon=True).start()
print("held", flush=True)
threading.Event().wait()
"""


def test_kill_9_frees_the_lock_whatever_the_holder_was_writing(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    for _ in range(5):
        with python(HOLDER, str(path)) as holder:
            assert holder.stdout and holder.stdout.readline() == "held\n"
            assert locked(path)
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            # The kernel gives it up with the process, which is gone by now: nothing is waited for.
            assert not locked(path)
            session = Session.open(path)
            numbers = [record["n"] for record in session.records]
            session.close()
        for file in (path / "calls").iterdir():
            file.unlink()
        assert numbers == list(range(len(numbers))), "what is there is whole, and nothing of it is missing"


# -- a file that is new ----------------------------------------------------------------------------------


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_new(tmp_path, "a.md", "first").read_text() == "first"
    with pytest.raises(FileExistsError):
        file_new(tmp_path, "a.md", "second")
    (tmp_path / "link.md").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        file_new(tmp_path, "link.md", "second")
    monkeypatch.setattr(os, "link", refuses)  # as a file system does that knows no second name
    with pytest.raises(FileExistsError):
        file_new(tmp_path, "a.md", "third")
    assert file_new(tmp_path, "b.md", "fourth").read_text() == "fourth"
    assert (tmp_path / "a.md").read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == ["a.md", "b.md", "link.md"]


def refuses(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


# -- a folder that another process made ------------------------------------------------------------------


def test_a_folder_that_a_killed_process_made_is_made_durable_once(
    tmp_path: Path,
) -> None:
    """It died before the folder's name was durable: what is put there must not vanish with it."""
    session = new(tmp_path / "cdo-a", {**FILES, "inbox/one.md": "1", "inbox/two.md": "2"})
    (session.path / "quarantine").mkdir()
    with Recorder(tmp_path) as log:
        session.move("inbox/one.md", "quarantine")
        first = len(log)
        session.move("inbox/two.md", "quarantine")
    session.close()
    moved = next(place for place, op in enumerate(log) if op[0] == "rename")
    assert ("fsync", "cdo-a") in log[:moved], "its name is durable before anything is put there"
    assert log[first:].count(("fsync", "cdo-a")) == 0, "and seen to once"


def test_a_folder_whose_name_cannot_be_synced_is_not_used(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a", {**FILES, "inbox/one.md": "1"})
    (session.path / "quarantine").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):  # nor believed the second time
        with Recorder(tmp_path, failing("fsync")), pytest.raises(SessionError, match="input/output error"):
            session.move("inbox/one.md", "quarantine")
    assert len(os.listdir("/proc/self/fd")) == before
    assert (session.path / "inbox" / "one.md").read_text() == "1"
    session.close()
