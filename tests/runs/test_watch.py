"""Watching a session: what of a journal is told, how it is followed, and `cdo watch` beside real runs."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pexpect
import pyte
import pytest
import watchfiles
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from cdo.core.errors import SessionError
from cdo.core.events import RunEnded
from cdo.core.formatting import visible
from cdo.history.journal_events import parsed, told
from cdo.history.journal_follower import JOURNAL, LONGEST, Follower, Journal, SessionPhase
from cdo.terminal.live_screen import frame
from cdo.terminal.run_state import LiveRun
from cdo.terminal.run_words import line
from tests.conftest import A, Desk, explained
from tests.support.harness import QUESTION, Done, at_once, finish, kill_group, wait_for
from tests.support.provider import Provider

AT = "2026-11-22T05:04:22.671+00:00"
RUN = ("think", "--width", "2", "--turns", "2", *A, QUESTION)


def row(kind: str, name: str = "", **data: Any) -> bytes:
    """A line of a journal."""
    return json.dumps({"at": AT, "event": kind, **({"name": name} if name else {}), **data}).encode() + b"\n"


def notes(*texts: str) -> bytes:
    return b"".join(row("note", text=text) for text in texts)


# -- what a line tells -----------------------------------------------------------------------------


def test_all_that_a_run_tells_is_understood(finished: Desk) -> None:
    fresh = list(Journal(finished.session()).news())
    assert len(fresh) == 1
    assert fresh[0].damaged == 0
    kinds = [event.kind for _, event in fresh[0].events]
    assert set(kinds) == {"batch", "call", "exchange", "reply", "done"}
    assert len(fresh[0].lines) == len(kinds) + 1, "the list of opened content is of no use to a view"
    times = [at for at, _ in fresh[0].events]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(time.time(), abs=600)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "3", "{", '{"at": NaN}', "[" * 100_000, '{"a": 1}', '{"event": 3}', '{"event": "batch"}',
        f'{{"at": "{AT}", "event": "batch", "calls": [["a"]]}}', f'{{"at": "{AT}", "event": "batch", "calls": null}}',
        f'{{"at": "{AT}", "event": "note", "text": 3}}', f'{{"at": "{AT}", "event": "note", "name": 3, "text": ""}}',
        '{"at": "yesterday", "event": "note", "text": ""}', '{"event": "note", "text": ""}',
        '{"at": 3, "event": "note", "text": ""}', '{"at": "0001-01-01T00:00:00+23:59", "event": "note", "text": 0}',
        f'{{"at": "{AT}", "event": "retry", "fault": "", "message": "", "wait": 1e999}}',
        f'{{"at": "{AT}", "event": "reply", "confidence": "0.5"}}',
        f'{{"at": "{AT}", "event": "note", "text": {"9" * 5000}}}',
        f'{{"at": "{AT}", "event": "exchange", "usage": {{"input_tokens": -1, "output_tokens": 1}}}}',
        f'{{"at": "{AT}", "event": "reply", "directive": {{"tensions": [{{"id": "T1"}}]}}}}',
    ],
)  # fmt: skip
def test_what_has_another_shape_is_damaged(text: str) -> None:
    with pytest.raises(ValueError):
        told(parsed(text.encode()))


def test_events_of_a_later_version_are_no_damage() -> None:
    assert told({"at": AT, "event": "hologram", "text": 3}) is None
    found = told({"at": AT, "event": "note", "text": "x", "more": [1]})
    assert found is not None
    assert found[1].json()["text"] == "x"


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=()), max_size=20)
    | st.sampled_from(["\x1b[2J", "open", "t1-synthesis", "t2-critic", "\ud800", "9" * 2000]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["id", "title", "status", "tensions", "input_tokens"]), inner, max_size=4)
    ),
    max_leaves=8,
)
GOOD: list[dict[str, Any]] = [
    {"event": "run", "name": "a", "preset": "deep", "why": "", "models": ["m"], "path": "tmp/cdo-a"},
    {"event": "batch", "calls": [["t1-critic", "agent"], ["t1-synthesis", "synthesis"]]},
    {"event": "batch", "calls": [["t2-critic", "agent"], ["t2-synthesis", "synthesis"]]},
    {"event": "call", "name": "t1-critic", "model": "m", "attempt": 1},
    {"event": "exchange", "name": "t1-critic", "usage": {"input_tokens": 1, "output_tokens": 2}, "cost": 0.1},
    {"event": "retry", "name": "t1-critic", "fault": "network", "message": "gone", "wait": 2.0},
    {"event": "invalid", "name": "t1-critic", "problems": ["x"]},
    {"event": "missing", "name": "t1-critic", "reason": "x"},
    {"event": "reply", "name": "t2-critic", "position": "x", "confidence": 0.5},
    {"event": "reply", "name": "t1-synthesis", "focus": "x", "confidence": 0.5, "directive": {"tensions": [
        {"id": "T1", "title": "a", "status": "open"}, {"id": "T2", "title": "b", "status": "resolved"}]}},
    {"event": "stale", "superseded": ["a"], "kept": [], "place": "1"},
    {"event": "tool", "name": "t1-critic", "tool": "read", "arguments": "x"},
    {"event": "pause", "question": "x", "options": ["a"]},
    {"event": "review", "name": "00-plan.md", "path": "x"},
    {"event": "dashboard", "lines": ["x"]},
    {"event": "note", "text": "x"},
    {"event": "stopped", "status": "Interrupted", "why": "x"},
    {"event": "done", "session": "a", "path": "p", "status": "s", "why": "", "decision": "", "confidence": None,
     "turns": 1, "calls": 1, "tokens": 1, "cost": None},
]  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A line of a journal of which a part may be anything."""
    data = {"at": AT, **draw(st.sampled_from(GOOD))}
    for key in draw(st.lists(st.sampled_from(sorted(data)), max_size=2)):
        data[key] = draw(ANY)
    if draw(st.booleans()):
        data.pop(draw(st.sampled_from(sorted(data))), None)
    return json.dumps(data).encode()


@given(st.lists(spoiled() | st.binary(max_size=40), max_size=25), st.integers(20, 170), st.integers(3, 40))
@settings(deadline=None)
def test_whatever_stands_in_a_journal_is_shown_clean(lines: list[bytes], width: int, height: int) -> None:
    board = LiveRun(going="running")
    for raw in lines:
        try:
            found = told(parsed(raw))
        except ValueError:
            continue
        if found:
            board = board.apply(found[1], found[0])
            said = "" if found[1].kind == "dashboard" else line(found[1], board)
            assert "\n" not in said
            assert visible(said) == said
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(frame(board, 2e9, width, height))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert visible(text) == text
    assert text.count("\n") <= max(height - 1, len(board.header()) + 3)


# -- reading a journal -----------------------------------------------------------------------------


class Writing:
    """A journal that is written to, and what a reader hears of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.journal = folder, folder / JOURNAL, Journal(folder)

    def append(self, data: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(data)

    def heard(self) -> tuple[list[str], bool, int]:
        """The texts of fresh notes, whether the journal is another one, how many lines were damaged."""
        fresh = list(self.journal.news())
        texts = [event.json()["text"] for part in fresh for _, event in part.events]
        return texts, any(part.anew for part in fresh), sum(part.damaged for part in fresh)


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path)


def test_only_what_was_appended_is_read_and_a_torn_line_waits(writing: Writing) -> None:
    assert writing.heard() == ([], False, 0)
    writing.append(notes("a", "b") + notes("c")[:20])
    assert writing.heard() == (["a", "b"], False, 0)
    assert writing.heard() == ([], False, 0)
    writing.append(notes("c")[20:-1])
    assert writing.heard() == ([], False, 0)
    writing.append(b"\n")
    assert writing.heard() == (["c"], False, 0)


def test_damaged_lines_are_left_out_and_counted(writing: Writing) -> None:
    writing.append(notes("a") + b"\x00\xff{\n\n" + notes("b") + b"[]\n")
    assert writing.heard() == (["a", "b"], False, 3)


def test_a_line_without_end_is_neither_kept_nor_read_twice(writing: Writing) -> None:
    writing.append(notes("a") + b"x" * (3 * LONGEST))
    assert writing.heard() == (["a"], False, 1)
    writing.append(b"x" * LONGEST)
    assert writing.heard() == ([], False, 0)
    writing.append(b"\n" + notes("b"))
    assert writing.heard() == (["b"], False, 0)


def test_a_mended_journal_is_read_on(writing: Writing) -> None:
    writing.append(notes("a", "b") + b'{"at": "20')
    assert writing.heard() == (["a", "b"], False, 0)
    new = writing.folder / "new"
    new.write_bytes(notes("a", "b"))
    new.rename(writing.file)
    assert writing.heard() == ([], False, 0)
    writing.append(notes("c"))
    assert writing.heard() == (["c"], False, 0)


@pytest.mark.parametrize("whole", [b"", notes("new"), notes("new", "n" * 500)])
def test_another_journal_is_read_from_its_beginning(writing: Writing, whole: bytes) -> None:
    writing.append(notes("a", "b"))
    writing.heard()
    writing.file.write_bytes(whole)
    texts, anew, _ = writing.heard()
    assert anew
    assert texts == [json.loads(text)["text"] for text in whole.splitlines()]
    assert writing.heard() == ([], False, 0)


def test_a_journal_that_is_gone_and_comes_back(writing: Writing) -> None:
    writing.append(notes("a"))
    writing.heard()
    writing.file.unlink()
    assert writing.heard() == ([], True, 0)
    writing.append(notes("b"))
    assert writing.heard() == (["b"], False, 0)


def test_what_is_no_journal_is_said(writing: Writing) -> None:
    writing.file.symlink_to("/etc/passwd")
    with pytest.raises(SessionError, match="symbolic link"):
        writing.heard()
    writing.file.unlink()
    os.mkfifo(writing.file)
    with pytest.raises(SessionError, match="not a regular file"):
        writing.heard()
    writing.file.unlink()
    writing.folder.rmdir()
    with pytest.raises(FileNotFoundError):
        writing.heard()


@given(st.lists(st.text(max_size=5), max_size=12), st.lists(st.integers(1, 200), max_size=12))
@settings(deadline=None)
def test_however_it_is_written_the_same_is_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], sizes: list[int]
) -> None:
    writing, data, found = Writing(tmp_path_factory.mktemp("journal")), notes(*texts), []
    for size in [*sizes, len(data)]:
        writing.append(data[:size])
        data = data[size:]
        heard, anew, damaged = writing.heard()
        assert (anew, damaged) == (False, 0)
        found += heard
    assert found == texts


# -- following -------------------------------------------------------------------------------------


def test_without_notices_of_the_system_it_looks_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Iterator[Any]:
        raise OSError(24, "too many watches")

    monkeypatch.setattr(watchfiles, "watch", refused)
    writing, found, began = Writing(tmp_path), [], time.monotonic()
    writing.append(notes("a"))
    for news in Follower(tmp_path).news():
        found += [event.json()["text"] for _, event in news.fresh.events]
        if found == ["a"]:
            writing.append(notes("b"))
            found.append("written")
        if found[-1] == "b" or time.monotonic() - began > 60:
            break
    assert found == ["a", "written", "b"]


def test_a_session_that_nobody_runs_is_known_at_once(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(notes("a") + row("stopped", status="Interrupted", why="Stopped."))
    looks = [news.phase for _, news in zip(range(2), Follower(tmp_path).news(), strict=False)]
    assert looks[-1] is SessionPhase.STOPPED
    (tmp_path / JOURNAL).write_bytes(notes("a"))
    assert list(zip(range(2), Follower(tmp_path).news(), strict=False))[-1][1].phase is SessionPhase.LEFT
    gone = next(Follower(tmp_path / "nowhere").news())
    assert gone.phase is SessionPhase.GONE


# -- beside real runs ------------------------------------------------------------------------------


def timeless(text: str) -> list[str]:
    """Lines without times, which two watchers read off different clocks."""
    return [re.sub(r"\d+\.\d s", "T", row).rstrip() for row in text.splitlines()]


def begun(desk: Desk, name: str = "a", words: bytes = b'"call"') -> None:
    """Wait until a run's journal says `words`."""
    journal = desk.session(name) / JOURNAL
    wait_for(lambda: journal.exists() and words in journal.read_bytes(), every=0.02)


@contextmanager
def patience(process: subprocess.Popen[str]) -> Iterator[IO[str]]:
    """What a process prints, for somebody who waits for it: it is killed after a minute, and what it prints ends."""
    late = threading.Timer(60, kill_group, [process.pid])
    late.start()
    try:
        assert process.stdout
        yield process.stdout
    finally:
        late.cancel()


def read_until(process: subprocess.Popen[str], words: str = "") -> str:
    """What a process prints up to the line with `words`, or its first line."""
    text = ""
    with patience(process) as out:
        for line in out:
            text += line
            if words in line:
                return text
    pytest.fail(f"{words!r} was never said:\n{text}")


def rest(process: subprocess.Popen[str], text: str) -> Done:
    """A process that ends, and all that it printed: `text` has been read already."""
    with patience(process) as out, process:
        text += out.read()
        assert process.stderr
        errors = process.stderr.read()
    return Done(process.returncode, text, errors, 0.0)


def test_in_a_pipe_it_prints_what_the_run_prints(cdo: Desk, provider: Provider) -> None:
    provider.hold()
    run = cdo.start(*RUN)
    begun(cdo)
    watched, lines = cdo.start("watch"), cdo.start("watch", "a", "--json")
    heads = read_until(watched), read_until(lines)
    provider.release()
    ran, seen, passed = finish(run).ok(), rest(watched, heads[0]).ok(), rest(lines, heads[1]).ok()
    sending, _, told = ran.err.partition("\n")
    assert sending.startswith("Sending ")  # before the session begins
    assert timeless(seen.out) == timeless(f"{told}\n{ran.out}")
    assert not seen.err
    assert "opened T1" in seen.out
    journal = [json.loads(text) for text in (cdo.session() / JOURNAL).read_text().splitlines()]
    ended = next(number for number, data in enumerate(journal) if data["event"] == "done")
    passed_on = [json.loads(text) for text in passed.out.splitlines()]
    assert passed_on in (journal[: ended + 1], journal[: ended + 2])
    assert not passed.err


def test_a_session_that_has_ended_is_shown_at_once(finished: Desk) -> None:
    seen = finished("watch").ok()
    assert "t1-critic" in seen.out
    assert seen.out.endswith("\nFINAL.md    tmp/cdo-a/FINAL.md\n")
    assert finished("watch", "-f", "a").ok().out == seen.out
    assert json.loads(finished("watch", "a", "--json").ok().out.splitlines()[-2])["event"] == "done"


def test_the_result_is_worded_whatever_the_journal_says(bare: Desk) -> None:
    bare.write("tmp/cdo-a/session.yaml", "\x1b[2J: [")
    data = {**GOOD[-1], "decision": "\x1b[2JBuy.", "path": "/else/where"}
    hostile = {"event": "note", "text": "\x1b]0;owned\x07 \u202e\x7f"}
    lines = [json.dumps({"at": AT, **told}) for told in (hostile, GOOD[1], data)]
    bare.write(f"tmp/cdo-a/{JOURNAL}", "\n".join([lines[0], "{torn", "[]", *lines[1:], ""]))
    seen = bare("watch", "a").ok()
    assert seen.out.count("damaged lines") == 1
    assert "␛]0;owned␇" in seen.out
    assert "␛[2JBuy." in seen.out
    assert "/else/where" not in seen.out
    assert "session.yaml" in seen.out
    passed = bare("watch", "a", "--json").ok()
    assert passed.err.count("damaged lines") == 1
    assert json.loads(passed.out.splitlines()[0])["text"] == hostile["text"]
    for text in (seen.out, seen.err, passed.out, passed.err):
        assert visible(text) == text
    assert not re.search(r"[^\n -~]", passed.out.replace("owned", ""))


@pytest.mark.slow
def test_a_killed_run_is_told_from_a_silent_one(cdo: Desk, provider: Provider) -> None:
    provider.hold()
    run = cdo.start(*RUN)
    begun(cdo)
    watched = cdo.start("watch", "a")
    try:
        head = read_until(watched)
        time.sleep(3.5)  # longer than the silence after which somebody is looked for
        assert watched.poll() is None
        kill_group(run.pid)
        run.communicate()
        seen = rest(watched, head).ok()
    finally:
        kill_group(watched.pid)
    assert seen.err == "Nobody runs it. `cdo resume a` goes on with it.\n"
    stopped = cdo.start("watch", "a")
    assert finish(stopped).ok().err == seen.err


def test_a_stopped_run_says_why(cdo: Desk, provider: Provider) -> None:
    provider.hold()
    run = cdo.start(*RUN)
    begun(cdo)
    watched = cdo.start("watch", "a")
    head = read_until(watched)
    os.killpg(run.pid, signal.SIGINT)
    assert finish(run).code == 130
    seen = rest(watched, head).ok()
    assert seen.err == "Stopped. Everything that was answered is recorded. `cdo resume a` goes on with it.\n"
    assert cdo("watch", "a").ok().err == seen.err


@pytest.mark.slow
def test_with_follow_it_waits_for_who_begins_and_who_goes_on(cdo: Desk, provider: Provider) -> None:
    provider.hold("t1-synthesis")
    watched = cdo.start("watch", "-f", "a")
    try:
        head = read_until(watched)
        run = cdo.start(*RUN)
        begun(cdo, words=b'"t1-synthesis", "model"')
        kill_group(run.pid)
        run.communicate()
        provider.release()
        head += read_until(watched, "Nobody runs it.")
        assert watched.poll() is None
        resumed = cdo("resume", "a").ok()
        seen = rest(watched, head).ok()
    finally:
        kill_group(watched.pid)
    assert seen.out.endswith(f"\n{resumed.out}")
    rows = seen.out.splitlines()
    waits = "Waiting for it; Ctrl-C ends that."
    assert rows[0] == f"There is no session tmp/cdo-a. {waits}"
    assert rows.count(f"Nobody runs it. `cdo resume a` goes on with it. {waits}") == 1
    assert sum("from record" in text for text in rows) == 2


def test_which_session_it_is(cdo: Desk, provider: Provider) -> None:
    provider.hold(session="old")
    run = cdo.start("quick", "--width", "2", "--session", "old", QUESTION)
    begun(cdo, "old")
    cdo("quick", "--width", "2", "--session", "new", QUESTION).ok()
    running = cdo.start("watch")
    assert read_until(running).startswith("session old: quick")
    provider.release()
    finish(running).ok()
    finish(run).ok()
    assert cdo("watch").ok().out.startswith("session new: quick")
    (cdo.path / "tmp").rename(cdo.path / "other")
    assert cdo("watch", "old", "--out", "other").ok().out.startswith("session old: quick")
    explained(cdo("watch"), 8, "no session")
    explained(cdo("watch", "old"), 8, "tmp/cdo-old")


def test_a_folder_that_disappears_ends_it(cdo: Desk, provider: Provider) -> None:
    provider.hold()
    run = cdo.start(*RUN)
    begun(cdo)
    watched = cdo.start("watch", "a")
    head = read_until(watched)
    cdo.session().rename(cdo.path / "elsewhere")
    explained(rest(watched, head), 8, "There is no session tmp/cdo-a", "cdo watch -f")
    kill_group(run.pid)
    run.communicate()


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it(cdo: Desk, provider: Provider) -> None:
    provider.latency = 0.7
    run = cdo.start(*RUN)
    begun(cdo)
    for options in ((), ("--json",)):
        watched = cdo.start("watch", "a", *options)
        assert watched.stdout and watched.stderr
        assert watched.stdout.readline()
        watched.stdout.close()
        assert watched.wait(60) == 0
        assert not watched.stderr.read()
        watched.stderr.close()
    finish(run).ok()


# -- at a terminal ---------------------------------------------------------------------------------


@dataclass
class Terminal:
    """`cdo watch` at a pseudo-terminal, and the screen that a person sees."""

    child: Any
    screen: pyte.Screen
    stream: pyte.Stream
    raw: str = ""

    def read(self) -> list[str]:
        """What stands on the screen now."""
        try:
            while True:
                piece = self.child.read_nonblocking(65536, timeout=0.05)
                self.raw += piece
                self.stream.feed(piece)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return self.rows

    @property
    def rows(self) -> list[str]:
        """What stood on the screen when it was last read."""
        return [row.rstrip() for row in self.screen.display if row.strip()]

    def shows(self, *words: str) -> list[str]:
        """Wait until all `words` stand on the screen."""
        wait_for(lambda: all(word in "\n".join(self.read()) for word in words))
        return self.read()

    def ended(self) -> int:
        """Wait for the process and return its exit code."""
        limit = time.monotonic() + 60
        while self.child.isalive() and time.monotonic() < limit:
            self.read()
        self.read()
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)


@contextmanager
def terminal(desk: Desk, *args: str, width: int = 100, height: int = 40, **env: str) -> Iterator[Terminal]:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "cdo", "watch", *args],
        cwd=str(desk.path),
        env={**desk.environment(), "TERM": "xterm-256color", **env},
        dimensions=(height, width),
        encoding="utf-8",
    )
    screen = pyte.Screen(width, height)
    try:
        yield Terminal(child, screen, pyte.Stream(screen))
    finally:
        child.close(force=True)


@pytest.mark.parametrize(
    ("width", "height"), [(100, 24), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((60, 40), (160, 40)))]
)
def test_a_run_is_drawn_as_it_goes(cdo: Desk, provider: Provider, width: int, height: int) -> None:
    provider.hold("t1-*")
    run = cdo.start(*RUN)
    begun(cdo)
    with terminal(cdo, width=width, height=height) as seen:
        rows = seen.shows("thinking", "a · think · running · turn 1")
        assert rows[0].startswith("session a: think (you asked for think)")
        provider.hold("t2-*")
        rows = seen.shows("turn 1  2 voices", "turn 2", "tensions: 1 open · turn 1: opened T1")
        heads = [row for row in rows if row.startswith("a · think")]
        assert len(heads) == 1, rows
        assert "confidence 0.62" in "\n".join(rows)
        assert [row.split()[:4] for row in rows if row.startswith("» ")] == [["»", "T1", "opened", "in"]]
        assert max(map(len, rows)) <= width
        assert seen.screen.cursor.hidden
        provider.release()
        assert seen.ended() == 0
        rows = seen.rows
        assert not seen.screen.cursor.hidden
    assert not any(row.startswith("voice ") for row in rows), "the table is gone at the end"
    text = "\n".join(rows)
    for words in ("turn 2  2 voices", "final ", "confidence 0.62 → 0.64", "T1", "resolved", "opened", "FINAL.md"):
        assert words in text
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", seen.raw), "colours"
    finish(run).ok()


def test_what_is_over_is_drawn_once_without_colour(finished: Desk) -> None:
    with terminal(finished, "a", height=50, NO_COLOR="1") as seen:
        assert seen.ended() == 0
    rows = seen.rows
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7])[;m]", seen.raw)
    assert sum(row.startswith("a · think · ") for row in rows) == 1
    assert sum(row.startswith("turn ") for row in rows) == 3
    assert any(row.startswith("» T3") for row in rows)
    assert rows[-1].startswith("next: cdo report a") and any(row.startswith("FINAL.md") for row in rows)


@pytest.mark.slow
def test_ctrl_c_ends_the_watching_and_not_the_run(cdo: Desk, provider: Provider) -> None:
    provider.hold()
    run = cdo.start(*RUN)
    begun(cdo)
    began = time.monotonic()
    with terminal(cdo, "a") as seen:
        seen.shows("thinking")
        soon, sent = at_once(began), time.monotonic()
        seen.child.sendintr()
        assert seen.ended() == 130
        assert time.monotonic() - sent < soon
        assert not seen.screen.cursor.hidden
        assert "Traceback" not in seen.raw
        assert "Stopped" not in seen.raw
        assert any("thinking" in row for row in seen.rows), "what was seen last stays"
    provider.release()
    finish(run).ok()


@pytest.mark.slow
def test_a_killed_run_that_is_resumed_is_followed_on_at_a_terminal(cdo: Desk, provider: Provider) -> None:
    provider.hold("t2-*")
    run = cdo.start(*RUN)
    begun(cdo)
    with terminal(cdo, "-f", "a") as seen:
        seen.shows("turn 1  2 voices", "turn 2")
        kill_group(run.pid)
        run.communicate()
        provider.release()
        rows = seen.shows("Nobody runs it. `cdo resume a`", "Waiting", "a · think · nobody runs it · turn 2")
        table = rows[next(at for at, row in enumerate(rows) if row.startswith("a · think · nobody")) :]
        assert QUESTION in table[1]
        assert "stopped" in "".join(table) and "thinking" not in "".join(table)
        cdo("resume", "a").ok()
        assert seen.ended() == 0
        rows = seen.rows
    assert [row.split()[:2] for row in rows if row.startswith("turn ")] == [["turn", "1"], ["turn", "2"]]
    assert any(row.startswith("a · think (resumed) · max_turns") for row in rows)


def test_a_simple_terminal_gets_lines(finished: Desk) -> None:
    with terminal(finished, "a", height=60, TERM="dumb") as seen:
        assert seen.ended() == 0
    assert "\x1b" not in seen.raw
    assert "turn 1: " in seen.raw


def test_a_question_to_the_person_at_the_run_is_shown(bare: Desk) -> None:
    lines = [GOOD[1], {"event": "pause", "question": "Go on?", "options": ["yes", "no"]}]
    bare.write("tmp/cdo-a/session.yaml", "{}")
    bare.write(f"tmp/cdo-a/{JOURNAL}", "".join(json.dumps({"at": AT, **told}) + "\n" for told in lines))
    assert "question: Go on? (yes / no)" in bare("watch", "a").ok().out


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/watch.py", "--rate", "50", "-s", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"\| cdo watch \| 50 \| 1 \|( -?[0-9.]+ \|){4}", done.stdout.splitlines()[-1])


def test_how_a_run_ended_is_what_the_run_says(finished: Desk) -> None:
    events = [event for fresh in Journal(finished.session()).news() for _, event in fresh.events]
    assert isinstance(events[-1], RunEnded)
    ended = events[-1].result
    assert (ended.status, ended.turns, ended.path) == ("max_turns", 3, "tmp/cdo-a")
