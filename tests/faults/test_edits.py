"""A person beside a run: however an editor saves, each call is given every text, whole, old or new."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from cdo.core.errors import SessionError
from cdo.core.steps import Batch, Program, Reply
from cdo.files.atomic_files import read_file
from cdo.session import human_edits, store
from cdo.session.artifact import from_file
from tests.support.answers import agent_text
from tests.unit.runner.test_runner import Bench, bench, once, synthesis, voice

READER = synthesis()
VOICES = tuple(voice(said["name"]) for said in READER.data["voices"])
OLD = "the old position"
LONG = "A line of the new position, which is long enough for a program to write it in pieces.\n" * 300


def between(b: Bench, deed: Callable[[], object]) -> Program[tuple[Reply, ...]]:
    """Three voices, then the `deed` of a person, then a synthesis that reads them."""
    yield Batch(VOICES, len(VOICES))
    b.session.flush()
    deed()
    answer = yield Batch((READER,), 1)
    assert isinstance(answer, tuple)
    return answer


def prompt(b: Bench) -> str:
    """What the synthesis was asked."""
    (request,) = b.model.named(READER.name)
    return "\n".join(message.text for message in request.messages)


def edited(mark: str) -> str:
    """A voice as a person wrote it: it ends in the mark that it begins with."""
    return f"---\nposition: {mark}\nconfidence: 0.5\n---\n\nbegin {mark}\n{LONG}end {mark}\n"


# -- ways of saving: each takes the file and its new text, and yields the seconds it pauses for ----------

Saving = Iterator[float]


def by_rename(file: Path, text: str) -> Saving:
    beside = file.with_name(f".{file.name}.swp")
    beside.write_text(text)
    yield 0.1
    beside.replace(file)


def in_pieces(file: Path, text: str) -> Saving:
    """As a program does that has to wait for what it writes."""
    with file.open("w") as out:
        for start in range(0, len(text), len(text) // 3):
            out.write(text[start : start + len(text) // 3])
            out.flush()
            yield 0.3


def with_a_backup(file: Path, text: str) -> Saving:
    """vim with `backupcopy=no`: the old file gets another name before there is a new one."""
    file.rename(file.with_name(file.name + "~"))
    yield 0.3
    file.write_text(text)


def copied_first(file: Path, text: str) -> Saving:
    """vim with `backupcopy=yes`."""
    file.with_name(file.name + "~").write_bytes(file.read_bytes())
    yield from in_pieces(file, text)


def removed_first(file: Path, text: str) -> Saving:
    file.unlink()
    yield 0.3
    yield from in_pieces(file, text)


def emptied_first(file: Path, text: str) -> Saving:
    file.write_text("")
    yield 0.3
    file.write_text(text)


WAYS = (by_rename, in_pieces, with_a_backup, copied_first, removed_first, emptied_first)


class Desk:
    """A clock that moves on while the session waits or reads, and the editors that are at work by it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.waited = 0
        self._editors: list[tuple[float, int, Saving]] = []
        real = read_file

        def read(directory: int, name: str, **more: Any) -> Any:
            self.pass_by(0.001)
            found = real(directory, name, **more)
            self.pass_by(0.001)
            return found

        # What the files themselves say of time is the machine's, which this clock knows nothing of.
        clock = SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: 0, sleep=self.pass_by)
        patch.setattr(human_edits, "time", clock)
        patch.setattr(human_edits, "asyncio", SimpleNamespace(sleep=self._sleep))
        patch.setattr(store, "read_file", read)

    async def _sleep(self, seconds: float) -> None:
        self.waited += 1
        self.pass_by(seconds)

    def sits(self, editor: Saving) -> None:
        """Let an editor begin now."""
        self._editors.append((self.now, len(self._editors), editor))
        self.pass_by(0.0)

    def pass_by(self, seconds: float) -> None:
        """Let time pass, and the editors do what is due by then."""
        until = self.now + seconds
        while self._editors and min(self._editors)[0] <= until:
            entry = min(self._editors)
            self._editors.remove(entry)
            self.now, number, editor = entry
            with contextlib.suppress(StopIteration):
                self._editors.append((self.now + next(editor), number, editor))
        self.now = until

    def until_all_is_saved(self) -> None:
        while self._editors:
            self.pass_by(0.1)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


@pytest.mark.parametrize("way", WAYS)
def test_a_save_under_way_is_waited_for(tmp_path: Path, desk: Desk, way: Callable[[Path, str], Saving]) -> None:
    with bench(tmp_path, {"t1-critic": [agent_text(OLD)]}) as b:
        file = b.path / "t1-critic.md"
        text = edited("new")
        b.run(between(b, lambda: desk.sits(way(file, text))))
        desk.until_all_is_saved()
        asked = prompt(b)
        if way is by_rename:  # the old one is whole until then
            assert OLD in asked
        else:
            assert f"begin new\n{LONG}end new\n" in asked, "half a save was read, or none"
            assert OLD not in asked
            assert desk.waited >= human_edits.QUIET / 0.02
        assert file.read_text() == text
        assert not b.told("note")


def test_a_voice_that_is_gone_is_written_again_and_read(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [agent_text(OLD)]}) as b:
        file = b.path / "t1-critic.md"
        held = []

        def deed() -> None:
            held.append(file.read_bytes())
            file.unlink()

        b.run(between(b, deed))
        assert OLD in prompt(b), "a voice was left out unasked"
        (note,) = b.told("note")
        assert note.json()["text"] == "t1-critic.md was gone; it is written again as it was"
        b.session.flush()
        assert [file.read_bytes()] == held
        b.reopen()
        b.run(between(b, lambda: None))
        assert len(b.model.named(READER.name)) == 1, "nothing is stale for it"


def test_an_edit_that_is_gone_comes_back_as_an_edit(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        file = b.path / "t1-critic.md"
        b.run(once(*VOICES, quorum=len(VOICES)))
        b.session.flush()
        file.write_text(edited("mine"))
        b.reopen()
        b.run(between(b, file.unlink))
        assert "begin mine\n" in prompt(b)
        b.session.flush()
        found = from_file(file.read_text(), "x")
        assert found.edited and found.body.startswith("begin mine")


def test_what_a_person_makes_in_the_last_moment_stays(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.run(once(*VOICES, quorum=len(VOICES)))
        b.session.flush()
        file = b.path / "t1-critic.md"
        file.unlink()
        gate = threading.Event()
        b.session._writer.later(lambda: void(gate.wait(60)))
        again = b.session.edits.last_seen("t1-critic")
        assert again and not again.edited
        b.session.write_again("t1-critic.md", again.as_found())
        file.write_text("mine\n")
        gate.set()
        b.session.flush()
        assert file.read_text() == "mine\n"
        assert not list(b.path.glob(".*"))


def void(_: object) -> None:
    """Drop a value."""


def test_the_question_that_is_gone_is_written_again(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        file = b.path / "00-input.md"
        text = file.read_text()
        b.run(between(b, file.unlink))
        assert text.strip() in prompt(b)
        b.session.flush()
        assert file.read_text() == text


def test_the_question_that_is_emptied_is_written_again(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        file = b.path / "00-input.md"
        text = file.read_text()
        b.run(between(b, lambda: file.write_text("")))
        assert text.strip() in prompt(b)
        (note,) = b.told("note")
        assert note.json()["text"] == "00-input.md was empty; it is written again as it was"
        b.session.flush()
        assert file.read_text() == text


@pytest.mark.parametrize("left", ["", "\n", "  \n\n"])
def test_an_emptied_voice_is_never_read_as_one(tmp_path: Path, left: str) -> None:
    with bench(tmp_path) as b:
        file = b.path / "t1-critic.md"
        with pytest.raises(SessionError, match=r"t1-critic\.md is empty") as caught:
            b.run(between(b, lambda: file.write_text(left)))
        assert "remove it" in caught.value.hint
        assert b.model.named(READER.name) == [], "nothing is asked without it"
        b.reopen()
        file.unlink()
        b.run(between(b, lambda: None))
        assert len(b.model.requests) == len(VOICES) + 1


def test_a_voice_that_did_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path, {"t1-critic": ["no answer"] * 3}) as b:
        pauses = waits(monkeypatch)

        def program() -> Program[Any]:
            yield Batch(VOICES, len(VOICES) - 1)
            yield Batch((READER,), 1)

        b.run(program())
        assert pauses == []


def test_what_cdo_wrote_is_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path) as b:
        pauses = waits(monkeypatch)
        b.run(between(b, lambda: None))
        b.reopen()
        b.run(between(b, lambda: None))
        assert len(b.model.requests) == len(VOICES) + 1
        assert pauses == []


def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits for files to come to rest, from now on."""
    found: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float, *more: Any) -> None:
        if seconds == 0.02:
            found.append(seconds)
        await real(seconds, *more)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


def test_a_clock_that_was_set_back_makes_nobody_wait_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path) as b:
        file = b.path / "t1-critic.md"
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 10**9)
        b.run(between(b, lambda: file.write_text(edited("new"))))
        assert "end new\n" in prompt(b)


def test_a_file_that_keeps_changing_ends_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(human_edits, "RESTLESS", 0.3)
    monkeypatch.setattr(human_edits, "QUIET", 60.0)
    with bench(tmp_path) as b:
        file = b.path / "t1-critic.md"
        with pytest.raises(SessionError, match=r"t1-critic\.md has been changing for 0\.3 seconds"):
            b.run(between(b, lambda: file.write_text(edited("new"))))
        assert b.model.named(READER.name) == []


# -- many saves ------------------------------------------------------------------------------------------


def edit(file: Path, who: int, saves: int, chance: random.Random) -> Saving:
    """Save a file again and again, in one way and another, now soon and now after a while.

    Between two saves it is there for long enough to be seen: else two in a row look like one that takes long.
    """
    for number in range(saves):
        yield from chance.choice(WAYS)(file, edited(f"v{who}.{number}"))
        yield chance.choice((0.05, 0.1, 0.4, 0.6, 3.0))


def many(path: Path, desk: Desk, saves: int, seed: int) -> int:
    """Editors save voices while call after call reads them: each reads whole texts, and all voices."""
    chance = random.Random(seed)
    with bench(path) as b:
        files = [b.path / f"{voice.name}.md" for voice in VOICES]
        editors = [edit(file, who, saves, chance) for who, file in enumerate(files)]

        def program() -> Program[Any]:
            yield Batch(VOICES, len(VOICES))
            b.session.flush()
            for editor in editors:
                desk.sits(editor)
            number = 0
            while desk._editors:
                number += 1
                yield Batch((replace(READER, name=f"t{number}-synthesis", data={**READER.data, "turn": number}),), 1)
                desk.pass_by(1.0)

        b.run(program())
        asked = [r for r in b.model.requests if r.headers["X-Cdo-Kind"] == "synthesis"]
        versions = set()
        for request in asked:
            text = "\n".join(message.text for message in request.messages)
            begun, ended = re.findall(r"^begin (\S+)\n", text, re.M), re.findall(r"^end (\S+)\n", text, re.M)
            assert begun == ended, "half of a save was read"
            assert text.count(LONG) == len(begun)
            assert len(begun) + text.count("Stage it.") >= len(VOICES), "a voice is missing"
            versions |= set(begun)
        assert len(versions) > saves * len(VOICES) / 8, "most of the saves were never seen"
        for who, file in enumerate(files):
            assert file.read_text() == edited(f"v{who}.{saves - 1}"), "a save was lost"
        assert not b.told("note"), "what a person was saving was not taken for gone"
        return len(asked)


def test_voices_that_are_saved_while_they_are_read(tmp_path: Path, desk: Desk) -> None:
    assert many(tmp_path, desk, saves=20, seed=1) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_voices_that_are_saved_hundreds_of_times_while_they_are_read(tmp_path: Path, desk: Desk, seed: int) -> None:
    assert many(tmp_path, desk, saves=40, seed=seed) >= 10
