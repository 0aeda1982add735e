"""Power loss at every point of what a session does: what was promised is there, and the session opens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdo.files import atomic_files
from cdo.files.atomic_files import file_new
from cdo.session.creation import MadeFolder, NewFolder, Taken, create_session_dirs
from cdo.session.records import sessions
from cdo.session.store import Session
from tests.support.power import Killed, Tape, Tree, lay_out
from tests.support.records import ANSWER
from tests.unit.session.test_store import FILES, python, voice

PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # states are laid out by the thousand
Check = Callable[[int, Path], None]  # whether all holds that was promised when so many operations were done


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory: what a disk does to it is what the tape says, and a sync takes no time."""
    monkeypatch.setattr(atomic_files, "_synced", set())
    monkeypatch.setattr(atomic_files, "_JUST_NOW", 0)  # nobody is saving: no state of a disk has to be waited for
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        yield Path(folder)


def hold(tape: Tape, root: Path, check: Check, *, begin: int = 0, about: int | None = None) -> int:
    """Check all states that a loss of power can leave, or `about` so many at equal distances; return their number."""
    every = max(1, sum(1 for _ in tape.states(begin)) // about) if about else 1
    count, real = 0, os.fsync
    os.fsync = lambda fd: None
    try:
        for number, (cut, tree) in enumerate(tape.states(begin)):
            if number % every == 0:
                place = root.parent / f"{root.name}-{count}"
                place.mkdir()
                try:
                    lay_out(tree, place)
                    check(cut, place)
                except BaseException as error:
                    error.add_note(f"after {cut} of {len(tape.ops)} operations: {told(tree)}")
                    raise
                finally:
                    shutil.rmtree(place)
                count += 1
    finally:
        os.fsync = real
    return count


def told(tree: Tree) -> str:
    return ", ".join(f"{path}{'/' if data is None else f' ({len(data)})'}" for path, data in sorted(tree.items()))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Session]:
    atomic_files._synced.clear()
    session = Session.open(path)
    try:
        yield session
    finally:
        session.close()


# -- a run -----------------------------------------------------------------------------------------------


class Work:
    """A session that is born, is answered in turns, and puts something aside: what it promises, and when."""

    def __init__(self, root: Path, turns: int) -> None:
        self.promised: list[tuple[int, set[int]]] = []
        self.flushed: list[tuple[int, set[str]]] = []
        with Tape(root) as self.tape:
            self.session = Session.create(root / "out" / "cdo-a", FILES)
            self.born = len(self.tape.ops)
            asyncio.run(self._answer(turns))
            self.session.put("FINAL", voice("final"))
            self.session.flush()
            self.aside = len(self.tape.ops)
            self.session.supersede(["t1-v0", "FINAL"])
            self.moved = len(self.tape.ops)
            self.session.put("FINAL", voice("final again"))
            self.session.close()

    async def _answer(self, turns: int) -> None:
        done: set[int] = set()
        files: set[str] = set()

        async def one(number: int) -> None:
            await self.session.commit({**ANSWER, "n": number})
            done.add(number)
            self.promised.append((len(self.tape.ops), set(done)))

        for turn in range(1, turns + 1):
            await asyncio.gather(*(one(turn * 3 + seat) for seat in range(3)))
            for seat in range(3):
                self.session.put(f"t{turn}-v{seat}", voice(f"t{turn}-v{seat}"))
                self.session.journal({"event": "reply", "name": f"t{turn}-v{seat}"})
            self.session.put_now("team/messages/m1.md", f"after turn {turn}\n")
            files |= {f"t{turn}-v{seat}" for seat in range(3)}
            self.flushed.append((len(self.tape.ops), set(files)))

    def check(self, cut: int, place: Path) -> None:
        found = sessions(place / "out") if (place / "out").exists() else []
        assert found or cut < self.born, "a session that was born is gone"
        for path in found:
            with opened(path) as session:
                self._holds(cut, session)

    def _holds(self, cut: int, session: Session) -> None:
        assert (session.read("00-input.md"), session.read("session.yaml")) == tuple(FILES.values())
        known: set[int] = max((done for at, done in self.promised if at <= cut), key=len, default=set())
        assert known <= {record["n"] for record in session.records}, "what was acknowledged is lost"
        there = set(session.artifact_names())
        files: set[str] = max((names for at, names in self.flushed if at <= cut), key=len, default=set())
        aside = {path.stem for path in session.path.glob("superseded/*/*.md")}
        assert files <= there | aside, "what was flushed is lost"
        if cut >= self.moved:
            assert {"t1-v0", "FINAL"} <= aside
        for name in there:
            artifact = session.artifact(name)
            assert artifact and not artifact.edited, f"half of {name}"
            assert artifact.meta["position"] in (name, "final", "final again"), f"{name} is neither old nor new"
        message = session.read("team/messages/m1.md")
        turns = len([at for at, _ in self.flushed if at <= cut])
        assert message in (None, *(f"after turn {turn}\n" for turn in range(1, 50))), "half a file"
        assert turns == 0 or (message and int(message.split()[2]) >= turns), "an older one than was promised"


def test_a_run_keeps_what_it_promised(root: Path, record_property: Callable[[str, object], None]) -> None:
    work = Work(root, turns=5)
    count = hold(work.tape, root, work.check)
    record_property("states", count)
    assert count >= 1000


@pytest.mark.slow
def test_a_longer_run_keeps_what_it_promised(root: Path, record_property: Callable[[str, object], None]) -> None:
    work = Work(root, turns=26)
    count = hold(work.tape, root, work.check)
    record_property("states", count)
    assert count >= 5000


class Together:
    """Five sessions at once, whose files become durable together: what each of them promises, and when."""

    def __init__(self, root: Path) -> None:
        self.promised: list[tuple[int, str, str]] = []  # operations done, session, record or file
        self.whole = 0
        with Tape(root) as self.tape:
            found = [Session.create(root / "out" / f"cdo-{name}", FILES) for name in "abcde"]
            self.born = len(self.tape.ops)
            gate = threading.Event()
            found[0]._writer.later(lambda: void(gate.wait(60)))  # so that the first pass has all of them
            asyncio.run(self._work(found, gate))
            for session in found:
                session.close()
            self.whole = self.tape.whole

    async def _work(self, found: list[Session], gate: threading.Event) -> None:
        async def one(session: Session) -> None:
            for turn in (1, 2):
                await session.commit({**ANSWER, "n": turn})
                self.promised.append((len(self.tape.ops), session.name, str(turn)))
                session.put(f"t{turn}-v0", voice(f"t{turn}-v0"))
                session.put_text(f"team/messages/m{turn}.md", f"after turn {turn}\n")
            session.put("FINAL", voice("final"))
            await session.flushed()
            self.promised += [(len(self.tape.ops), session.name, name) for name in ("t1-v0", "t2-v0", "FINAL")]

        tasks = [asyncio.create_task(one(session)) for session in found]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)

    def check(self, cut: int, place: Path) -> None:
        found = sessions(place / "out") if (place / "out").exists() else []
        assert len(found) == 5 or cut < self.born, "a session that was born is gone"
        for path in found:
            with opened(path) as session:
                assert (session.read("00-input.md"), session.read("session.yaml")) == tuple(FILES.values())
                there = {*(str(record["n"]) for record in session.records), *session.artifact_names()}
                assert {what for at, name, what in self.promised if name == session.name and at <= cut} <= there
                for name in session.artifact_names():
                    artifact = session.artifact(name)
                    assert artifact and not artifact.edited, f"half of {name}"


def test_sessions_that_are_written_together_keep_what_each_promised(root: Path) -> None:
    work = Together(root)
    assert work.whole >= 2, "nothing was written together"
    assert hold(work.tape, root, work.check, about=1200) >= 1200  # of 15,000 and more: it takes seconds, not minutes


def test_sessions_that_are_made_together_appear_whole_and_stay(root: Path) -> None:
    names = ["cdo-a", "cdo-b", "cdo-c"]
    with Tape(root) as tape:
        wanted = [NewFolder(root / "out" / name, FILES, str) for name in names]
        made = create_session_dirs([*wanted, wanted[0]])
        born = len(tape.ops)
        for new, folder in zip(wanted, made, strict=False):
            assert isinstance(folder, MadeFolder)
            Session.born(new, folder).close()
    assert isinstance(made[3], Taken), "two are made of one name"
    assert tape.whole == 2, "each was made durable by itself"

    def check(cut: int, place: Path) -> None:
        found = sessions(place / "out") if (place / "out").exists() else []
        assert cut < born or sorted(path.name for path in found) == names, "a session that was made is gone"
        for path in found:
            with opened(path) as session:
                assert (session.read("00-input.md"), session.read("session.yaml")) == tuple(FILES.values())

    assert hold(tape, root, check) >= 20


def void(_: object) -> None:
    """Drop a value."""


# -- letters -----------------------------------------------------------------------------------------------

LETTERS = {"inbox/one.md": "the first letter\n", "inbox/two.md": "the second letter\n"}


def letters(place: Path) -> set[str]:
    return {path.read_text() for path in place.rglob("cdo-a/**/*.md") if path.parent.name in FOLDERS}


FOLDERS = ("inbox", "taken", "quarantine")


def take(path: Path) -> None:
    """What a process does with letters that it finds: one is taken, one is put into quarantine, with the reason."""
    with opened(path) as session:
        for name, _, _ in session.files.taken("inbox"):
            if "one" in name:
                session.move(f"inbox/{name}", "taken")
            else:
                session.move(f"inbox/{name}", "quarantine", "It cannot be read.\n")


def kept(cut: int, place: Path) -> None:
    assert letters(place) == set(LETTERS.values()), "a letter is lost"
    with opened(place / "cdo-a") as session:
        assert session.read("00-input.md") == FILES["00-input.md"]


def test_no_letter_is_lost_on_its_way(root: Path) -> None:
    Session.create(root / "cdo-a", {**FILES, **LETTERS}).close()
    with Tape(root) as tape:
        take(root / "cdo-a")
    assert hold(tape, root, kept) >= 40


def killed_and_gone_on(root: Path, number: int) -> tuple[int, bool]:
    """A process that moves letters dies at an operation, another goes on, and then the power fails."""
    place = root / str(number)
    place.mkdir()
    Session.create(place / "cdo-a", {**FILES, **LETTERS}).close()
    with Tape(place, kill=number) as tape:
        try:
            take(place / "cdo-a")
        except Killed:
            died = True
        else:
            died = False
        tape.revive()
        take(place / "cdo-a")
    end = len(tape.ops)

    def check(cut: int, found: Path) -> None:
        kept(cut, found)
        if cut == end:
            assert letters_in(found, "inbox") == set(), "what both are done with is done"
            assert letters_in(found, "quarantine") == {LETTERS["inbox/two.md"]}

    return hold(tape, place, check), died


def letters_in(place: Path, folder: str) -> set[str]:
    return {path.read_text() for path in place.glob(f"cdo-a/{folder}/*.md")}


@pytest.mark.parametrize("part", range(3))
def test_no_letter_is_lost_by_a_kill_and_then_a_loss_of_power(root: Path, part: int) -> None:
    deaths, states = 0, 0
    for number in range(1 + part, 40, 3):
        count, died = killed_and_gone_on(root, number)
        states += count
        deaths += died
        if not died:
            break
    print(f"{deaths} deaths, {states} states")
    assert deaths >= 4 and states >= 200


# -- a decision record -----------------------------------------------------------------------------------


def test_a_filed_record_is_whole_and_others_stay(root: Path) -> None:
    (root / "adr").mkdir()
    (root / "adr" / "0001-old.md").write_text("old")
    with Tape(root) as tape:
        file_new(root / "adr" / "deeper", "0002-new.md", "new " * 5000)
        first = len(tape.ops)
        file_new(root / "adr" / "deeper", "0003-newer.md", "newer")

    def check(cut: int, place: Path) -> None:
        found = {path.name: path.read_text() for path in place.rglob("*.md") if not path.name.startswith(".")}
        assert found.pop("0001-old.md") == "old"
        assert found.get("0002-new.md", "new " * 5000) == "new " * 5000
        assert found.get("0003-newer.md", "newer") == "newer"
        assert ("0002-new.md" in found) >= (cut >= first), "what was filed is gone"
        assert ("0003-newer.md" in found) >= (cut == len(tape.ops))

    assert hold(tape, root, check) >= 40


# -- kill -9 at every operation ----------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from cdo.files.atomic_files import file_new
from cdo.session.store import Session
from cdo.security.trust import Trust
from tests.unit.session.test_store import FILES, python, voice
from tests.support.records import ANSWER
out, what = Path(sys.argv[1]), sys.argv[2]
def begin(place):
    session = Session.create(place / "cdo-a", {**FILES, "notes.md": "old"})
    session.put("t1-critic", voice("t1-critic"))
    session.put("FINAL", voice("FINAL"))
    session.flush()
    Trust(place / "trusted.json", {}).pin("skill", [("/one", "1" * 64)])
    return session
def act(session, place):
    if what == "put_now":
        session.put_now("notes.md", "new")
        session.put_now("team/messages/m1.md", "new")
    elif what == "flush":
        session.note({**ANSWER, "n": 1})
        session.put("t2-critic", voice("t2-critic"))
        session.journal({"event": "x"})
        session.flush()
    elif what == "supersede":
        session.supersede(["t1-critic", "FINAL"])
    elif what == "file_new":
        file_new(place / "adr", "0001-x.md", "new")
    elif what == "trust":
        Trust(place / "trusted.json", {}).pin("skill", [("/two", "2" * 64)])
for number in range(1, 60):
    if (child := os.fork()) == 0:
        session, left = begin(out / str(number)), number
        def counted(real):
            def call(*a, **k):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*a, **k)
            return call
        for name in ("open", "write", "fsync", "rename", "unlink", "mkdir", "link", "replace"):
            setattr(os, name, counted(getattr(os, name)))
        act(session, out / str(number))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else f"done {os.WEXITSTATUS(status)}", flush=True)
    if not os.WIFSIGNALED(status):
        break
"""


ACTS = [("put_now", 12), ("flush", 12), ("supersede", 8), ("file_new", 6), ("trust", 3)]


@pytest.mark.parametrize(("what", "least"), ACTS)
def test_a_kill_at_every_operation_leaves_the_old_or_the_new(root: Path, what: str, least: int) -> None:
    with python(KILLED, str(root), what) as process:
        out, _ = process.communicate(timeout=120)
    *kills, last = out.splitlines()
    assert last == "done 0" and set(kills) == {"killed"} and len(kills) >= least, out
    for place in root.iterdir():
        with opened(place / "cdo-a") as session:
            assert session.read("notes.md") in ("old", "new")
            assert session.read("team/messages/m1.md") in (None, "new")
            assert session.records in ([], [{**ANSWER, "n": 1}])
            assert not any("damaged" in note for note in session.notes)
            there = set(session.artifact_names()) | {path.stem for path in session.path.glob("superseded/*/*.md")}
            assert {"t1-critic", "FINAL"} <= there, "a file is lost"
            for name in session.artifact_names():
                artifact = session.artifact(name)
                assert artifact and not artifact.edited and artifact.meta["position"] == name
        assert not list(place.glob("cdo-a/**/.*")), "nothing half is left"
        assert [path.read_text() for path in place.glob("adr/[!.]*.md")] in ([], ["new"])
        pins = {pin["path"]: pin["sha256"] for pin in json.loads((place / "trusted.json").read_text())["trusted"]}
        assert pins in ({"/one": "1" * 64}, {"/one": "1" * 64, "/two": "2" * 64})
