"""The session directory: durable writes, links, names, locks, groups, damage, secrets, a person's edits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdo.core.errors import SessionError, UsageError
from cdo.files.atomic_files import fill, read_file, write_file
from cdo.security.secrets import redactor
from cdo.session import artifact as artifacts
from cdo.session import creation, store, writer
from cdo.session import records as module
from cdo.session.artifact import Artifact
from cdo.session.records import group_records, locked, read_session, session_path, sessions
from cdo.session.store import Session
from tests.support.harness import ROOT
from tests.support.records import ANSWER, EXCHANGE

FILES = {"00-input.md": "Why?\n", "session.yaml": "cdo: x\n"}


def new(path: Path, files: dict[str, str] | None = None, **more: Any) -> Session:
    return Session.create(path, FILES if files is None else files, **more)


def refused(make: Callable[[], object], *words: str) -> SessionError:
    """The error of something that must not work: exit 8, one sentence each of what and what to do."""
    with pytest.raises(SessionError) as caught:
        make()
    error = caught.value
    assert error.exit_code == 8
    assert error.hint and "\n" not in error.message + error.hint
    for word in words:
        assert word in error.message, error.message
    return error


def commit(session: Session, *records: dict[str, Any]) -> None:
    async def main() -> None:
        await asyncio.gather(*(session.commit(record) for record in records))

    asyncio.run(main())


def voice(position: str = "yes", body: str = "Because.") -> Artifact:
    return artifacts.from_reply(f'---\nposition: "{position}"\nconfidence: 0.5\n---\n\n{body}\n', {"kind": "agent"})


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


Op = tuple[str, ...]


class Recorder:
    """Notes each call that changes a directory or a file below `root`; may spoil one with `spoil(op)`."""

    NAMES = ("open", "write", "fsync", "rename", "unlink", "mkdir")

    def __init__(self, root: Path, spoil: Callable[[list[Op]], None] = lambda log: None) -> None:
        self.root, self.log, self.spoil = root.resolve(), list[Op](), spoil
        self._real = {name: getattr(os, name) for name in self.NAMES}
        self._lock = threading.Lock()

    def __enter__(self) -> list[Op]:
        for name in self.NAMES:
            setattr(os, name, getattr(self, f"_{name}"))
        return self.log

    def __exit__(self, *_: object) -> None:
        for name, function in self._real.items():
            setattr(os, name, function)

    def _path(self, name: Any, parent: int | None) -> str:
        base = str(Path(f"/proc/self/fd/{parent}").readlink() if parent is not None else Path.cwd())
        return os.path.relpath(os.path.join(base, os.fspath(name)), self.root)  # noqa: PTH118

    def _note(self, kind: str, *paths: str) -> None:
        if not paths[0].startswith(".."):
            with self._lock:
                self.log.append((kind, *paths))
                self.spoil(self.log)

    def _of(self, fd: int) -> str:
        try:
            return os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), self.root)
        except OSError:
            return ".."

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            self._note("create", self._path(path, dir_fd))
        return int(self._real["open"](path, flags, mode, dir_fd=dir_fd))

    def _write(self, fd: int, data: Any) -> int:
        self._note("write", self._of(fd))
        return int(self._real["write"](fd, data))

    def _fsync(self, fd: int) -> None:
        self._note("fsync", self._of(fd))
        self._real["fsync"](fd)

    def _rename(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        self._note("rename", self._path(source, src_dir_fd), self._path(target, dst_dir_fd))
        self._real["rename"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._note("unlink", self._path(path, dir_fd))
        self._real["unlink"](path, dir_fd=dir_fd)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._note("mkdir", self._path(path, dir_fd))
        self._real["mkdir"](path, mode, dir_fd=dir_fd)


def failing(kind: str, number: int = 1, error: int = errno.EIO, part: str = "") -> Callable[[list[Op]], None]:
    """Makes the `number`th operation of a kind (on a path with `part` in it) fail, once."""

    def spoil(log: list[Op]) -> None:
        like = [op for op in log if op[0] == kind and part in op[1]]
        if log[-1][0] == kind and part in log[-1][1] and len(like) == number:
            raise OSError(error, os.strerror(error))

    return spoil


def durable(log: list[Op]) -> None:
    """Every rename is of a file synced after its last write, and its directory is synced afterwards."""
    for place, op in enumerate(log):
        if op[0] != "rename":
            continue
        before = [item for item in log[:place] if item[1] == op[1] and item[0] in ("create", "write", "fsync")]
        if ("create", op[1]) in before:  # a file, and not a directory
            assert [item[0] for item in before if item[0] != "write"][-2:] == ["create", "fsync"]
            assert before[-1][0] == "fsync"
        folder = str(Path(op[2]).parent)
        assert ("fsync", folder) in log[place:], f"{op} is never made durable"


# -- one file ----------------------------------------------------------------------------------------


def test_a_file_is_written_synced_renamed_and_its_directory_synced(tmp_path: Path, directory: int) -> None:
    with Recorder(tmp_path) as log:
        write_file(directory, "a.md", b"text")
    temporary = f".a.md.{os.getpid()}.tmp"
    assert log == [
        ("create", temporary),
        ("write", temporary),
        ("fsync", temporary),
        ("rename", temporary, "a.md"),
        ("fsync", "."),
    ]
    durable(log)
    assert (tmp_path / "a.md").read_bytes() == b"text"
    assert os.listdir(tmp_path) == ["a.md"]


def test_short_writes_are_completed(tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    write_file(directory, "a.md", b"0123456789")
    monkeypatch.undo()
    assert (tmp_path / "a.md").read_bytes() == b"0123456789"


@pytest.mark.parametrize("kind", ["create", "write", "fsync", "rename"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, directory: int, kind: str, code: int
) -> None:
    (tmp_path / "a.md").write_bytes(b"old")
    with Recorder(tmp_path, failing(kind, error=code)) as log, pytest.raises(OSError) as caught:
        write_file(directory, "a.md", b"new")
    assert caught.value.errno == code
    assert [op[0] for op in log].count(kind) == 1, "what failed is never tried again"
    assert os.listdir(tmp_path) == ["a.md"]
    assert (tmp_path / "a.md").read_bytes() == b"old"


def test_a_failed_sync_of_the_directory_is_an_error(tmp_path: Path, directory: int) -> None:
    with Recorder(tmp_path, failing("fsync", 2)), pytest.raises(OSError):
        write_file(directory, "a.md", b"new")


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    session = new(tmp_path / "cdo-a")
    commit(session, {**ANSWER, "n": 1})
    session.put("t1-critic", voice())
    session.supersede(["t1-critic"])
    session.close()
    for spoilt in ("mkdir", "create", "write", "fsync", "rename"):
        for number in (1, 2, 3):
            with Recorder(tmp_path, failing(spoilt, number)), contextlib.suppress(SessionError):
                new(tmp_path / f"cdo-{spoilt}-{number}").close()
    for _ in range(3):
        Session.open(tmp_path / "cdo-a").close()
        with contextlib.suppress(SessionError):
            Session.open(tmp_path / "nothing")
        read_session(tmp_path / "cdo-a")
        locked(tmp_path / "cdo-a")
    assert len(os.listdir("/proc/self/fd")) == before


# -- links -------------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder outside that a planted link points to; nothing in it may change."""
    path = tmp_path / "victim"
    path.mkdir()
    (path / "file").write_text("untouched")
    (path / "session.yaml").write_text("untouched")
    before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir())
    yield path
    assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir()) == before
    assert {entry.read_text() for entry in path.iterdir()} == {"untouched"}


def test_a_link_called_tmp_is_refused(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    Path("tmp").symlink_to(victim)
    refused(lambda: new(Path("tmp/cdo-a")), "tmp cannot be used: it is a symbolic link")
    (work / "deep").mkdir()
    Path("deep/tmp").symlink_to(victim)
    refused(lambda: new(Path("deep/tmp/cdo-a")), "it is a symbolic link")
    refused(lambda: new(Path("deep/tmp/more/cdo-a")), "it is a symbolic link")
    refused(lambda: Session.open(Path("tmp/cdo-a")), "tmp cannot be used: it is a symbolic link")


def test_an_absolute_path_is_a_persons_own_word(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    new(tmp_path / "link" / "deeper" / "cdo-a").close()
    assert (real / "deeper" / "cdo-a" / "session.yaml").exists()


def test_a_link_in_place_of_the_session_is_refused(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "cdo-a"
    path.symlink_to(victim)
    refused(lambda: Session.open(path), "cdo-a cannot be used: it is a symbolic link")
    refused(lambda: new(path), "cdo-a cannot be used: it is a symbolic link")
    assert not locked(path)
    refused(lambda: read_session(path), "it is a symbolic link")
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    refused(lambda: new(path), "it is a symbolic link")
    assert not (tmp_path / "nowhere").exists()


def test_a_link_in_place_of_calls_is_refused(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    (path / "calls").rmdir()
    (path / "calls").symlink_to(victim)
    refused(lambda: Session.open(path), "cdo-a/calls cannot be used: it is a symbolic link")
    refused(lambda: read_session(path), "cdo-a/calls cannot be used: it is a symbolic link")


def test_a_link_planted_for_calls_while_a_session_is_open_is_refused(tmp_path: Path, victim: Path) -> None:
    session = new(tmp_path / "cdo-a")
    (tmp_path / "cdo-a" / "calls").rmdir()
    (tmp_path / "cdo-a" / "calls").symlink_to(victim)
    refused(lambda: commit(session, {**ANSWER}), "it is a symbolic link")
    session.close()


@pytest.mark.parametrize("name", ["journal.jsonl", "calls/0001.jsonl"])
def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path, victim: Path, name: str) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    (path / name).symlink_to(victim / "file")
    refused(lambda: Session.open(path), f"{name} cannot be used: it is a symbolic link")


def test_a_link_planted_for_the_journal_while_a_session_is_open_is_not_followed(tmp_path: Path, victim: Path) -> None:
    session = new(tmp_path / "cdo-a")
    (tmp_path / "cdo-a" / "journal.jsonl").symlink_to(victim / "file")
    session.journal({"event": "run"})
    with pytest.raises(SessionError, match="symbolic link"):
        for _ in range(1000):
            session.flush()
            time.sleep(0.01)
    session.close()


@pytest.mark.parametrize("name", ["00-input.md", "t1-critic.md", "FINAL.md"])
def test_a_link_in_place_of_an_artifact_is_never_read(tmp_path: Path, victim: Path, name: str) -> None:
    session = new(tmp_path / "cdo-a")
    (tmp_path / "cdo-a" / name).unlink(missing_ok=True)
    (tmp_path / "cdo-a" / name).symlink_to(victim / "file")
    refused(lambda: session.read(name), f"cdo-a/{name} cannot be used: it is a symbolic link")
    if not name.startswith("00"):
        refused(lambda: session.artifact(name[:-3]), f"cdo-a/{name} cannot be used: it is a symbolic link")
    session.close()


def test_links_in_the_way_of_a_write_are_replaced_and_not_followed(tmp_path: Path, victim: Path) -> None:
    session = new(tmp_path / "cdo-a")
    pid = os.getpid()
    for name in (f".FINAL.md.{pid}.tmp", "FINAL.md", f"calls/.0001.jsonl.{pid}.tmp", "calls/0001.jsonl"):
        (tmp_path / "cdo-a" / name).symlink_to(victim / "file")
    session.put("FINAL", voice())
    commit(session, {**ANSWER})
    session.flush()
    session.close()
    assert not (tmp_path / "cdo-a" / "FINAL.md").is_symlink()
    assert read_session(tmp_path / "cdo-a") == [{**ANSWER}]
    assert not [path for path in (tmp_path / "cdo-a").rglob("*") if path.is_symlink() or path.name.endswith(".tmp")]


def test_a_link_planted_in_the_last_moment_is_not_followed(
    tmp_path: Path, victim: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.unlink
    (tmp_path / f".a.md.{os.getpid()}.tmp").write_text("of a process of the same number that was killed")

    def plant(name: Any, **more: Any) -> None:
        real(name, **more)
        (tmp_path / name).symlink_to(victim / "file")

    monkeypatch.setattr(os, "unlink", plant)
    with pytest.raises(FileExistsError):
        write_file(directory, "a.md", b"text")


def test_a_link_called_superseded_is_refused(tmp_path: Path, victim: Path) -> None:
    session = new(tmp_path / "cdo-a")
    session.put("t1-critic", voice())
    (tmp_path / "cdo-a" / "superseded").symlink_to(victim)
    refused(lambda: session.supersede(["t1-critic"]), "superseded cannot be used: it is a symbolic link")
    session.close()
    assert (tmp_path / "cdo-a" / "t1-critic.md").exists()


def test_left_over_temporary_files_are_swept_and_links_among_them_not_followed(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    (path / ".t1-critic.md.123.tmp").write_text("half")
    (path / ".FINAL.md.124.tmp").symlink_to(victim / "file")
    (path / "calls" / ".0001.jsonl.9.tmp").write_text("half")
    (path / "team" / "messages").mkdir(parents=True)
    (path / "team" / ".roster.yaml.9.tmp").write_text("half")
    (path / "team" / "messages" / ".m1-critic.md.9.tmp").write_text("half")
    kept = [path / ".hidden.tmp", path / ".editor.swp", path / "notes.123.tmp"]
    for mine in kept:
        mine.write_text("mine")
    (path / ".a-folder.1.tmp").mkdir()
    Session.open(path).close()
    assert sorted(entry.name for entry in path.iterdir() if entry.name.startswith(".") or entry in kept) == sorted(
        [*(mine.name for mine in kept), ".a-folder.1.tmp"]
    )
    assert not list((path / "calls").iterdir())
    assert [entry.name for entry in (path / "team").rglob("*")] == ["messages"]


def test_what_is_no_session_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    (place / ".x.1.tmp").write_text("mine")
    (place / "journal.jsonl").write_text("torn")
    refused(lambda: Session.open(place), "is not a session")
    assert sorted(path.name for path in place.iterdir()) == [".x.1.tmp", "journal.jsonl"]
    assert (place / "journal.jsonl").read_text() == "torn"


@pytest.mark.parametrize("name", ["journal.jsonl", "calls/0001.jsonl", "t1-critic.md"])
def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    os.mkfifo(path / name)

    def use() -> None:
        session = Session.open(path)
        try:
            session.artifact("t1-critic")
        finally:
            session.close()

    began = time.monotonic()
    refused(use, "it is not a regular file")
    assert time.monotonic() - began < 10


# -- names -------------------------------------------------------------------------------------------

BAD = [
    "", ".", "..", "../x", "a/../b", "a/b", "/etc", "a\\b", "a\0b", "\0", "-x", "--help", "_x", ".hidden", "a..b",
    "a.", "a b", " a", "a ", "a\n", "\ta", "a:b", "a*", "~", "$HOME", "ａ", "ä", "e\u0301", "a\u202eb", "\u202e",
    "a\u200b", "\ufeffa", "😀", "a" * 65, "cdo-cdo-x", "cdo-", "cdo-../x", "Straße", "\u0131", "\u212a",
]  # fmt: skip
HOSTILE = st.one_of(
    st.text(min_size=0, max_size=80),
    st.text(alphabet="aA0._-/\\ \0\n\u202e\u0301ａäK:~$*", max_size=70),
    st.sampled_from(BAD),
    st.builds("".join, st.lists(st.sampled_from(["..", "/", "cdo-", "a", ".", "CON", "con", "\0", "-"]), max_size=6)),
)
GOOD = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@pytest.mark.wide
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(HOSTILE | GOOD)
def test_a_name_is_one_plain_entry_of_the_folder_or_an_error(name: str) -> None:
    out = Path("/nowhere/tmp")
    try:
        path = session_path(out, name)
    except UsageError as error:
        assert error.exit_code == 2 and error.hint
        return
    assert path.parent == out
    assert re.fullmatch(r"cdo-[A-Za-z0-9][A-Za-z0-9._-]{0,63}", path.name)
    assert ".." not in path.name and not path.name.endswith(".")
    assert Path(os.path.normpath(path)) == path
    shown = path.name.removeprefix("cdo-")
    assert session_path(out, shown) == session_path(out, path.name) == path, "the name cdo shows finds it again"


@pytest.mark.parametrize("name", BAD)
def test_bad_names(name: str) -> None:
    with pytest.raises(UsageError):
        session_path(Path("tmp"), name)


@pytest.mark.parametrize("name", ["CON", "aux", "nul.txt", "COM1", "lock", "calls", "x.tmp", "2026-01-02", "a" * 64])
def test_names_that_only_look_dangerous_become_plain_folders(tmp_path: Path, name: str) -> None:
    path = session_path(tmp_path, name)
    new(path).close()
    assert path.name == f"cdo-{name}"
    assert sessions(tmp_path) == [path]


def test_case_twins_never_share_a_folder(tmp_path: Path) -> None:
    new(session_path(tmp_path, "Ab")).close()
    with contextlib.suppress(SessionError):  # refused where the file system ignores case
        new(session_path(tmp_path, "aB"), {**FILES, "00-input.md": "other"}).close()
    assert (tmp_path / "cdo-Ab" / "00-input.md").read_text() == "Why?\n"


# -- birth -------------------------------------------------------------------------------------------


def test_birth_is_durable_down_to_the_folder_it_had_to_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Recorder(tmp_path) as log:
        session = new(Path("tmp/deeper/cdo-a"))
    session.close()
    durable(log)
    for made, parent in (("tmp", "."), ("tmp/deeper", "tmp")):
        assert log.index(("mkdir", made)) < log.index(("fsync", parent))
    (rename,) = [op for op in log if op[0] == "rename" and op[2] == "tmp/deeper/cdo-a"]
    assert log.index(rename) == len(log) - 2 and log[-1] == ("fsync", "tmp/deeper")
    birth = rename[1]
    assert log.index(("mkdir", f"{birth}/calls")) < log.index(("fsync", birth))


def test_birth_is_all_or_nothing_when_any_operation_fails(tmp_path: Path) -> None:
    with Recorder(tmp_path) as log:
        new(tmp_path / "whole" / "cdo-a").close()
    total = len(log)
    assert total > 12
    for number in range(1, total + 1):
        out = tmp_path / f"out{number}"

        def spoil(log: list[Op], number: int = number) -> None:
            if len(log) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with Recorder(tmp_path, spoil) as log:
            try:
                new(out / "cdo-a").close()
            except SessionError as error:
                assert "the disk is full" in error.message
        left = os.listdir(out) if out.exists() else []
        assert left in ([], ["cdo-a"]), (number, left)
        if left:
            assert sorted(os.listdir(out / "cdo-a")) == ["00-input.md", "calls", "session.yaml"]
            Session.open(out / "cdo-a").close()


KILLED = """
import os, signal, sys
from pathlib import Path
from cdo.session.store import Session
out, last = Path(sys.argv[1]), int(sys.argv[2])
for number in range(1, last + 1):
    if (child := os.fork()) == 0:
        left = number
        def counted(real):
            def call(*a, **k):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*a, **k)
            return call
        for name in ("open", "write", "fsync", "rename", "unlink", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        Session.create(out / str(number) / "cdo-a", {"00-input.md": "Why?", "session.yaml": "cdo: x"})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(number, os.WTERMSIG(status) if os.WIFSIGNALED(status) else "done", flush=True)
"""


def python(code: str, *args: str, **more: Any) -> subprocess.Popen[str]:
    """A process of its own that runs `code` with cdo at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


@pytest.mark.wide
def test_birth_is_all_or_nothing_under_kill_9_at_every_operation(tmp_path: Path) -> None:
    with python(KILLED, str(tmp_path), "60") as process:
        out, _ = process.communicate(timeout=60)
    ends = dict(line.split() for line in out.splitlines())
    assert len(ends) == 60 and ends["60"] == "done"
    killed = [number for number, end in ends.items() if end == str(int(signal.SIGKILL))]
    assert len(killed) > 16 and killed == list(ends)[: len(killed)]
    born = []
    for number in ends:
        folder = tmp_path / number
        seen = [path for path in folder.glob("*") if not path.name.startswith(".")]
        assert seen == sessions(folder), "what is visible is a session"
        for path in seen:
            assert sorted(os.listdir(path)) == ["00-input.md", "calls", "session.yaml"]
            Session.open(path).close()
            born.append(number)
    assert len([number for number in killed if number in born]) == 1, "killed between the rename and its sync"
    # What was killed is swept by a later birth, once it is old enough to be nobody's.
    litter = list(tmp_path.glob("*/.cdo-a.*.tmp"))
    assert len(litter) >= 10
    for path in litter:
        new(path.parent / "cdo-soon").close()
        assert path.exists()
        os.utime(path, (1, 1))
        creation._prepared.clear()  # as in another process
        new(path.parent / "cdo-later").close()
        assert not path.exists()


def test_a_birth_that_is_under_way_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename
    monkeypatch.setattr(creation, "_STALE", -1.0)

    def slow(source: Any, target: Any, **more: Any) -> None:
        if target == "cdo-slow":
            new(tmp_path / "cdo-quick").close()  # sweeps while the other is half made
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", slow)
    new(tmp_path / "cdo-slow").close()
    assert {path.name for path in sessions(tmp_path)} == {"cdo-slow", "cdo-quick"}


def test_a_rival_born_in_between_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename
    rivals: list[Session] = []

    def slow(source: Any, target: Any, **more: Any) -> None:
        if target == "cdo-a" and not rivals:
            rivals.append(None)  # type: ignore[arg-type]
            rivals[0] = new(tmp_path / "cdo-a", {**FILES, "00-input.md": "rival"})
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", slow)
    refused(lambda: new(tmp_path / "cdo-a"), "There is a session", "already")
    rivals[0].close()
    assert (tmp_path / "cdo-a" / "00-input.md").read_text() == "rival"
    assert os.listdir(tmp_path) == ["cdo-a"]


# -- the lock ----------------------------------------------------------------------------------------


@pytest.mark.wide
def test_there_is_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    session = new(path)
    assert locked(path)
    refused(lambda: Session.open(path), "is in use by another cdo process")
    session.close()
    assert not locked(path)
    again = Session.open(path)
    refused(lambda: Session.open(path), "is in use by another cdo process")
    again.close()


def test_somebody_who_only_looks_does_not_keep_an_owner_out(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)  # as `locked` does for a moment
    timer = threading.Timer(0.1, os.close, [fd])
    timer.start()
    Session.open(path).close()
    timer.join()


# -- commits -----------------------------------------------------------------------------------------


def test_a_commit_is_durable_before_it_returns(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    with Recorder(tmp_path) as log:

        async def main() -> None:
            await session.commit({**ANSWER, "n": 1})
            log.append(("returned", ""))
            await session.commit({**ANSWER, "n": 2})

        asyncio.run(main())
    session.close()
    durable(log)
    end = log.index(("returned", ""))
    (rename,) = [op for op in log[:end] if op[0] == "rename"]
    assert rename[2] == "cdo-a/calls/0001.jsonl"
    assert ("fsync", "cdo-a/calls") in log[log.index(rename) : end]


def test_commits_that_come_together_become_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = new(tmp_path / "cdo-a")
    real, gate, begun = os.fsync, threading.Event(), []

    def slow(fd: int) -> None:
        gate.wait(60)
        real(fd)

    monkeypatch.setattr(os, "fsync", slow)

    async def one(number: int) -> None:
        await asyncio.sleep(0.001 * (number % 7))
        begun.append(number)
        if len(begun) == 60:  # the disk is done with the first when the last one is on its way
            asyncio.get_running_loop().call_soon(gate.set)
        await session.commit({**ANSWER, "n": number})
        assert number in {record["n"] for record in read_session(session.path)}, "durable when it returns"

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(60)))

    asyncio.run(main())
    session.close()
    groups = os.listdir(session.path / "calls")
    assert len(groups) <= 4, groups
    assert sorted(record["n"] for record in read_session(session.path)) == list(range(60))
    assert [record["n"] for record in session.records] == [r["n"] for r in session.records]
    assert sorted(r["n"] for r in session.records) == list(range(60))


def test_records_go_before_artifacts(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    gate = threading.Event()
    session._writer.later(lambda: void(gate.wait(60)))

    async def commits() -> None:
        waiting = asyncio.create_task(session.commit({**ANSWER}))
        await asyncio.sleep(0)  # now it stands in line
        gate.set()
        await waiting

    with Recorder(tmp_path) as log:
        for name in ("t1-critic", "t1-architect"):
            session.put(name, voice())
        asyncio.run(commits())
        session.flush()
    session.close()
    renamed = [op[2] for op in log if op[0] == "rename"]
    assert renamed == ["cdo-a/calls/0001.jsonl", "cdo-a/t1-critic.md", "cdo-a/t1-architect.md"]


def void(_: object) -> None:
    """Drop a value."""


def test_the_calls_folder_may_vanish_and_comes_back_durably(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    (session.path / "calls").rmdir()
    with Recorder(tmp_path) as log:
        commit(session, {**ANSWER})
    session.close()
    durable(log)
    assert log.index(("mkdir", "cdo-a/calls")) < log.index(("fsync", "cdo-a"))
    assert read_session(tmp_path / "cdo-a") == [{**ANSWER}]


def test_after_an_interrupted_commit_the_record_is_there_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = new(tmp_path / "cdo-a")
    real, slow = os.fsync, threading.Event()

    def sync(fd: int) -> None:
        slow.wait(60)
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)

    async def main() -> None:
        task = asyncio.create_task(session.commit({**ANSWER, "n": 1}))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        slow.set()
        await session.commit({**ANSWER, "n": 2})

    asyncio.run(main())
    session.put("t1-critic", voice())
    session.flush()
    session.close()
    assert [record["n"] for record in read_session(session.path)] == [1, 2]
    assert (session.path / "t1-critic.md").exists()


@pytest.mark.parametrize("kind", ["create", "write", "fsync", "rename"])
def test_a_failed_commit_ends_the_session_for_all_who_wait(tmp_path: Path, kind: str) -> None:
    session = new(tmp_path / "cdo-a")
    commit(session, {**ANSWER, "n": 0})

    async def main() -> list[BaseException | dict[str, Any]]:
        wishes = [session.commit({**ANSWER, "n": n}) for n in range(1, 9)]
        return await asyncio.gather(*wishes, return_exceptions=True)

    with Recorder(tmp_path, failing(kind, part="calls")) as log:
        results = asyncio.run(main())
        assert all(isinstance(result, SessionError) for result in results)
        refused(lambda: commit(session, {**ANSWER}), "input/output error")
        refused(session.flush, "input/output error")
        refused(lambda: session.put("t1-critic", voice()), "input/output error")
        refused(lambda: session.shared_text("text"), "input/output error")
    session.close()
    assert [op[0] for op in log].count(kind) == 1, "what failed is never tried again"
    assert [record["n"] for record in read_session(session.path)] == [0], "old state, whole"
    Session.open(session.path).close()


def test_a_failed_artifact_ends_the_session_too(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    with Recorder(tmp_path, failing("fsync", part="t1-critic", error=errno.ENOSPC)):
        session.put("t1-critic", voice())
        refused(session.flush, "the disk is full")
    session.close()
    assert not (session.path / "t1-critic.md").exists()


def test_whatever_stops_the_writer_is_told(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")

    def broken() -> None:
        raise ValueError("a defect")

    session._writer.later(broken)
    refused(session.flush, "a defect")
    refused(lambda: commit(session, {**ANSWER}), "a defect")
    session.close()
    refused(lambda: commit(new_closed(tmp_path), {**ANSWER}), "is closed")


def test_a_session_that_cannot_be_written_does_not_stop_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real = threading.Event(), fill

    def full(directory: int, temporary: str, data: bytes) -> int:
        if b"too much" in data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(directory, temporary, data)

    monkeypatch.setattr("cdo.files.grouped_writes.fill", full)
    one, other = new(tmp_path / "cdo-a"), new(tmp_path / "cdo-b")
    one._writer.later(lambda: void(gate.wait(60)))  # then both are written in one pass
    one.put_text("t1-plan.yaml", "too much")
    other.put_text("t1-plan.yaml", "little")
    gate.set()
    other.flush()
    refused(one.flush, "the disk is full")
    refused(lambda: commit(one, {**ANSWER}), "the disk is full")
    commit(other, {**ANSWER})
    one.close()
    other.close()
    assert (other.path / "t1-plan.yaml").read_text() == "little" and len(read_session(other.path)) == 1
    assert not (one.path / "t1-plan.yaml").exists()


def new_closed(tmp_path: Path) -> Session:
    session = new(tmp_path / "cdo-closed")
    session.close()
    session.close()
    return session


def test_ten_thousand_groups_stay_in_order(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    session = new(path)
    commit(session, {**ANSWER, "n": 1})
    session.close()
    for number in (9998, 9999, 10000):
        body = json.dumps({**ANSWER, "n": number}).encode() + b"\n"
        head = {"kind": "group", "records": 1, "sha256": sha256(body).hexdigest()}
        (path / "calls" / f"{number:04}.jsonl").write_bytes(json.dumps(head).encode() + b"\n" + body)
    session = Session.open(path)
    commit(session, {**ANSWER, "n": 10001})
    session.close()
    assert [record["n"] for record in read_session(path)] == [1, 9998, 9999, 10000, 10001]
    assert (path / "calls" / "10001.jsonl").exists()


def test_shared_texts_are_recorded_once_and_not_after_what_refers_to_them(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    identity = session.shared_text("long text")
    assert session.shared_text("long text") == identity
    commit(session, {**ANSWER, "shared": identity})
    session.close()
    again = Session.open(session.path)
    assert again.shared_text("long text") == identity
    commit(again, {**ANSWER, "shared": again.shared_text("other")})
    again.close()
    kinds = [record["kind"] for record in read_session(session.path)]
    assert kinds == ["text", "answer", "text", "answer"]


# -- damage ------------------------------------------------------------------------------------------


@pytest.mark.wide
def test_a_damaged_group_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    session = new(path)
    commit(session, {**ANSWER, "n": 1})
    commit(session, {**ANSWER, "n": 2, "text": "é"})
    session.close()
    file = path / "calls" / "0002.jsonl"
    whole = file.read_bytes()
    found = group_records(whole, "x")
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        refused(lambda: Session.open(path), "cdo-a/calls/0002.jsonl is damaged")
        refused(lambda: read_session(path), "cdo-a/calls/0002.jsonl is damaged")
    for place in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1
        with contextlib.suppress(SessionError):
            assert group_records(bytes(spoilt), "x") == found, f"byte {place} changed what is read"
    for junk in (b"", b"\n", b"null\n", b"[]\n", b"{}\n", b"\0" * 50, b"[" * 100_000, whole + b"{}\n"):
        file.write_bytes(junk)
        refused(lambda: Session.open(path), "cdo-a/calls/0002.jsonl is damaged")
    file.write_bytes(whole)
    again = Session.open(path)
    again.close()
    assert again.notes == []


def test_a_group_that_is_missing_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    session = new(path)
    for number in range(1, 5):
        commit(session, {**ANSWER, "n": number})
    session.close()
    (path / "calls" / "0002.jsonl").unlink()
    (path / "calls" / "0003.jsonl").unlink()
    again = Session.open(path)
    assert again.notes == ["calls/0002.jsonl and 1 more: not there; answers that it held may be asked for again"]
    assert [record["n"] for record in again.records] == [1, 4]
    commit(again, {**ANSWER, "n": 5})
    again.close()
    assert (path / "calls" / "0005.jsonl").exists()


def journal(path: Path) -> list[Any]:
    return [json.loads(line) for line in (path / "journal.jsonl").read_bytes().splitlines()]


@pytest.mark.wide
def test_a_journal_torn_at_any_byte_of_its_last_two_lines_loses_the_torn_line_aloud(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    session = new(path)
    for number in range(5):
        session.journal({"event": "call", "name": f"é{number}", "text": "x\ny"})
    session.flush()
    session.close()
    file = path / "journal.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 5
    silent = 0
    for size in range(len(whole) - len(lines[-1]) - len(lines[-2]), len(whole) + 1):
        file.write_bytes(whole[:size])
        torn = size - (whole[:size].rfind(b"\n") + 1)
        session = Session.open(path)
        silent += bool(torn) and not any(f"torn last line of {torn} bytes" in note for note in session.notes)
        assert bool(torn) == bool(session.notes)
        session.journal({"event": "new"})
        session.close()
        kept = [json.loads(line) for line in whole[: size - torn].splitlines()]
        assert journal(path) == [*kept, {"event": "new"}], "no line is glued to another"
    assert silent == 0


@pytest.mark.parametrize("tail", [b"\0" * 4096, b'{"event"', b"\xff\xfe", b'{"event": "x"}\0\0'])
def test_a_journal_that_ends_in_rubbish(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    (path / "journal.jsonl").write_bytes(b'{"event": "a"}\n' + tail)
    session = Session.open(path)
    assert session.notes == [f"journal.jsonl: a torn last line of {len(tail)} bytes was dropped"]
    session.close()
    assert (path / "journal.jsonl").read_bytes() == b'{"event": "a"}\n'


def test_damage_in_the_middle_of_the_journal_is_named_and_left(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    text = b'{"event": "a"}\n{"event": \n{"event": "b"}\n\0\0\0\n{"event": "c"}\n'
    (path / "journal.jsonl").write_bytes(text)
    session = Session.open(path)
    (note,) = session.notes
    assert "lines 2, 4 are damaged" in note
    session.close()
    assert (path / "journal.jsonl").read_bytes() == text
    (path / "journal.jsonl").write_bytes(b"\n")
    session = Session.open(path)
    assert "line 1 is damaged" in session.notes[0]
    session.close()


def test_an_unreadable_artifact_is_named(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    (session.path / "t1-critic.md").write_bytes(b"\xff\xfe")
    refused(lambda: session.artifact("t1-critic"), "cdo-a/t1-critic.md is not UTF-8")
    (session.path / "t1-critic.md").write_text("---\nposition: [\n---\nbody\n")
    error = refused(lambda: session.artifact("t1-critic"), "t1-critic.md", "line", "column")
    assert "Fix" in error.hint
    session.close()


# -- artifacts and a person beside them ---------------------------------------------------------------


def test_an_artifact_can_be_read_at_once_and_is_on_disk_after_flush(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    put = session.put("t1-critic", voice())
    assert session.artifact("t1-critic") == put and not put.edited
    session.flush()
    assert session.artifact("t1-critic") == put
    assert (session.path / "t1-critic.md").read_text() == put.text()
    session.close()
    again = Session.open(session.path)
    assert again.artifact("t1-critic") == put
    again.close()


def test_the_last_of_two_puts_wins(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    for number in range(20):
        session.put("t1-critic", voice(f"v{number}"))
        seen = session.artifact("t1-critic")
        assert seen and seen.meta["position"] == f"v{number}"
    session.flush()
    assert "v19" in (session.path / "t1-critic.md").read_text()
    session.close()


def test_a_persons_save_is_seen_whole(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    session.put("t1-critic", voice())
    session.flush()
    texts = [f"---\nposition: p{n}\nconfidence: 0.5\n---\n\n{'long ' * 9000}{n}\n" for n in range(2)]
    stop, read = threading.Event(), threading.Event()

    def edit() -> None:
        file, beside = session.path / "t1-critic.md", session.path / "t1-critic.md~"
        for number in range(300):
            for _ in range(2 if number % 11 == 0 else 0):  # it is read now and then while it rests
                read.clear()
                read.wait(60)
            if stop.is_set():
                return
            if number % 3:
                beside.write_text(texts[number % 2])
                beside.replace(file)
            else:  # as some editors save: in place
                file.write_text(texts[number % 2])

    session.artifact("t1-critic")
    editor = threading.Thread(target=edit)
    editor.start()
    seen = set()
    try:
        while editor.is_alive():
            artifact = session.artifact("t1-critic")
            assert artifact is not None
            if artifact.meta["position"] != "yes":
                assert artifact.edited
                assert artifact.body == f"{'long ' * 9000}{artifact.meta['position'][1]}", "half a file was read"
                seen.add(artifact.meta["position"])
            read.set()
    finally:
        stop.set()
        read.set()
        editor.join()
    assert seen == {"p0", "p1"}
    session.close()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, real, saves = tmp_path / "a.md", os.read, ["second version", "third"]
    file.write_text("first version of it")

    def read(fd: int, size: int) -> bytes:
        data = real(fd, 5)
        if saves and data:
            file.write_text(saves.pop(0))
        return data

    monkeypatch.setattr(os, "read", read)
    assert read_file(directory, "a.md")[0] == b"third"


def test_a_deleted_or_restored_artifact_is_seen(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    put = session.put("t1-critic", voice())
    session.flush()
    file = session.path / "t1-critic.md"
    text = file.read_text()
    file.unlink()
    assert session.artifact("t1-critic") is None
    file.write_text(text.replace("\n", "\r\n"))
    found = session.artifact("t1-critic")
    assert found == put and not found.edited, "line ends do not make an edit"
    file.write_text(text.replace("Because.", "Therefore."))
    found = session.artifact("t1-critic")
    assert found and found.edited and found.body == "Therefore."
    session.close()


WORDS = st.text(max_size=60)
REPLIES = st.builds(
    lambda position, text, body: (
        f"---\nposition: {json.dumps(position)}\nconfidence: 0.5\nclaims:\n  - id: c1\n    text: {json.dumps(text)}\n"
        f"---\n\n{body}\n"
    ),
    WORDS,
    WORDS,
    st.text(max_size=300),
)


@pytest.mark.wide
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=REPLIES | st.text(max_size=200))
def test_what_a_model_wrote_never_looks_edited_after_a_resume(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(os, "fsync", lambda fd: None)  # a power loss is not the point here
        session = new(Path(folder) / "cdo-a")
        commit(session, {**EXCHANGE, "response": {"text": text, "finish": "stop"}})
        try:
            reply = artifacts.from_reply(session.records[0]["response"]["text"], {"kind": "agent", "role": "critic"})
        except SessionError:
            session.close()
            return  # never valid: no format lets it through
        put = session.put("t1-critic", reply)
        session.close()
        again = Session.open(session.path)
        found = again.artifact("t1-critic")
        again.close()
    assert again.records == session.records, "what is replayed is what was used"
    assert found == put and not found.edited
    assert found.reply == put.reply


def test_half_a_character_means_the_same_in_memory_and_on_disk(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    commit(session, {**EXCHANGE, "text": "\ud83d half", "deep": [{"a": "\udc00"}]})
    session.journal({"event": "x", "text": "\ud83d"})
    put = session.put("t1-critic", Artifact({"position": "\ud83d", "confidence": 0.5}, "body \udfff", {}))
    identity = session.shared_text("shared \ud83d")
    commit(session, {**ANSWER})
    session.close()
    again = Session.open(session.path)
    assert again.records[0] == session.records[0] == {**EXCHANGE, "text": "? half", "deep": [{"a": "?"}]}
    found = again.artifact("t1-critic")
    assert found == put and not found.edited
    assert again.shared_text("shared \ud83d") == identity
    again.close()


def test_superseding_keeps_and_numbers(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    for name in ("t1-synthesis", "t2-critic", "FINAL"):
        session.put(name, voice(name))
    session.flush()
    with Recorder(tmp_path) as log:
        assert session.supersede(["t1-synthesis", "FINAL", "t9-nobody"]).name == "1"
    durable(log)
    assert log.index(("mkdir", "cdo-a/superseded")) < log.index(("fsync", "cdo-a"))
    assert session.artifact("FINAL") is None
    assert session.artifact_names() == ["t2-critic"]
    session.put("FINAL", voice("again"))
    (session.path / "superseded" / "²").mkdir()
    (session.path / "superseded" / "notes").write_text("mine")
    assert session.supersede(["FINAL"]).name == "2"
    session.close()
    folder = session.path / "superseded"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.md")) == [
        "1/FINAL.md",
        "1/t1-synthesis.md",
        "2/FINAL.md",
    ]
    assert sorted(path.parent.name for path in folder.rglob("FINAL.yaml")) == ["1", "2"]
    assert "again" in (folder / "2" / "FINAL.yaml").read_text()


def test_artifacts_are_listed_in_the_order_of_turns(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    for name in ("FINAL", "t10-critic", "t2-synthesis", "t2-zebra", "t2-architect", "t1-critic"):
        session.put(name, voice())
    session.put_text("notes.md", "not an artifact")
    session.flush()
    assert session.artifact_names() == [
        "t1-critic",
        "t2-architect",
        "t2-zebra",
        "t2-synthesis",
        "t10-critic",
        "FINAL",
    ]
    session.close()


# -- secrets -----------------------------------------------------------------------------------------

CANARIES = {
    "OPENAI_API_KEY": "sk-canary-0001-abcdef",
    "GITHUB_TOKEN": 'gh"quoted\\back\\slash-0002',
    "MY_SECRET": "with: colon and spaces that a long line of YAML could well fold in two somewhere 0003",
    "DB_PASSWORD": "üñïçødé-0004-pässwörd",
    "AWS_CREDENTIALS": "line-one-0005",
    "SOME_AUTH": "'single'-0006-{}[]#&*!",
    "TAB_KEY": "tab\there-0007",
}


def leaks(root: Path) -> list[tuple[str, str]]:
    """(variable, file) wherever a canary stands, also as JSON, YAML or unescaped text would have it."""
    found = []
    for path in root.rglob("*"):
        if path.is_file():
            raw = path.read_bytes().decode("utf-8", "replace")
            folded = " ".join(raw.split())
            for name, value in CANARIES.items():
                ways = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
                ways |= {value.replace("'", "''"), " ".join(value.split())}
                if any(way in raw or way in folded for way in ways):
                    found.append((name, path.name))
    return found


def test_no_secret_reaches_any_file(tmp_path: Path) -> None:
    every = " | ".join(CANARIES.values())
    redact = redactor({**CANARIES, "HOME": "/root", "EDITOR_KEYS": "short"})
    session = Session.create(tmp_path / "cdo-a", {**FILES, "00-input.md": f"Why {every}?"}, redact)
    session.shared_text(f"shared {every}")
    commit(session, {**EXCHANGE, "text": every, "deep": [{"a": [every]}, {every: {every: 1}}, every]})
    meta = {"position": every, "confidence": 0.5, "claims": [{"id": "c1", "text": every, "evidence": [every]}]}
    meta |= {every: "a key that a model made up", "deep": {every: 1}}
    put = session.put("t1-critic", Artifact(meta, f"Body {every}", {"kind": "agent", "model": every}))
    session.put_text("t2-plan.yaml", every)
    session.journal({"event": "retry", "message": every, "deep": [every, {every: 1}]})
    session.flush()
    assert not put.edited, "taking secrets out does not look like a person's edit"
    session.supersede(["t1-critic"])
    session.put("t1-critic", Artifact(meta, f"Body {every}", {}))
    session.close()
    assert leaks(tmp_path) == []
    again = Session.open(session.path, redact)
    found = again.artifact("t1-critic")
    assert found and not found.edited
    again.close()
    assert found.meta["deep"] and "a key that a model made up" in found.meta.values()
    assert "[redacted:GITHUB_TOKEN]" in (session.path / "t1-critic.md").read_text()
    assert "[redacted:OPENAI_API_KEY]" in (session.path / "journal.jsonl").read_text()


# -- size --------------------------------------------------------------------------------------------


def test_what_was_recorded_together_is_written_such_that_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 2000)
    session = new(tmp_path / "cdo-a")
    session._writer.later(lambda: time.sleep(0.05))  # so that the rest comes together
    commit(session, *({**ANSWER, "n": number, "text": "x" * 300} for number in range(40)))
    commit(session, {**ANSWER, "n": 40, "text": "x" * 1700})
    session.close()
    assert max(path.stat().st_size for path in (session.path / "calls").iterdir()) <= 2000
    again = Session.open(session.path)
    assert [record["n"] for record in again.records] == list(range(41))
    refused(lambda: commit(again, {**ANSWER, "text": "x" * 2000}), "too large to be kept")
    again.close()
    assert len(read_session(session.path)) == 41, "what could not be read again is not written"


def test_a_journal_never_grows_beyond_what_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "JOURNAL_BYTES", 4000)
    monkeypatch.setattr(store, "JOURNAL_BYTES", 4000)
    session = new(tmp_path / "cdo-a")
    for number in range(300):
        session.journal({"event": "call", "n": number})
        if number % 50 == 0:
            session.flush()
    session.close()
    size = (session.path / "journal.jsonl").stat().st_size
    assert 2000 < size <= 4000
    again = Session.open(session.path)
    (note,) = again.notes
    assert note.startswith(f"journal.jsonl: it had {size:,} bytes; the last ")
    again.journal({"event": "new"})
    again.close()
    lines = journal(session.path)
    assert lines[-1] == {"event": "new"}
    numbers = [line["n"] for line in lines[:-1]]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 20, "the newest, each whole"


def test_a_journal_that_is_too_large_to_read_keeps_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "cdo-a"
    new(path).close()
    with (path / "journal.jsonl").open("wb") as file:
        file.truncate(70 * 2**20)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"event": "last"}\n{"torn')
    session = Session.open(path)
    assert len(session.notes) == 2 and "torn last line of 6 bytes" in session.notes[1]
    session.close()
    assert journal(path) == [{"event": "last"}]


# -- looking without owning ----------------------------------------------------------------------------


def test_sessions_are_listed_newest_first_without_links_and_other_things(tmp_path: Path) -> None:
    assert sessions(tmp_path / "nothing") == []
    for number, name in enumerate(["old", "mid", "new"]):
        new(tmp_path / f"cdo-{name}").close()
        os.utime(tmp_path / f"cdo-{name}" / "session.yaml", (number, number + 1))
    (tmp_path / "cdo-empty").mkdir()
    (tmp_path / "cdo-file").write_text("")
    (tmp_path / "cdo-link").symlink_to(tmp_path / "cdo-old")
    (tmp_path / "other").mkdir()
    assert [path.name for path in sessions(tmp_path)] == ["cdo-new", "cdo-mid", "cdo-old"]


def test_reading_without_owning_changes_nothing(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    commit(session, {**ANSWER})
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    assert read_session(session.path) == [{**ANSWER}]
    assert read_session(tmp_path / "nothing") == []
    assert locked(session.path)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    session.close()


def test_a_huge_file_is_refused(tmp_path: Path, directory: int) -> None:
    (tmp_path / "big").write_bytes(b"x" * 2000)
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_file(directory, "big", limit=1000)


def test_what_is_moved_is_durable_in_both_folders(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    (session.path / "inbox").mkdir()
    (session.path / "inbox" / "letter.md").write_text("hello")
    with Recorder(session.path) as log:
        session.move("inbox/letter.md", "taken", "it was read")
    session.close()
    after = log[log.index(("rename", "inbox/letter.md", "taken/letter.md")) :]
    assert {("fsync", "taken"), ("fsync", "inbox")} <= set(after)
    durable(log)


def test_a_pipe_planted_for_the_journal_while_a_session_is_open_stops_nothing(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-a")
    pipe = session.path / "journal.jsonl"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)

    def use() -> None:
        with contextlib.suppress(SessionError):
            session.journal({"event": "run"})
            commit(session, {"kind": "x"})
        with contextlib.suppress(SessionError):
            session.close()

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(10)
    stuck = thread.is_alive()
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # whoever waits for a reader goes on
    thread.join()
    assert not stuck


def test_no_control_character_of_a_reply_reaches_a_file(tmp_path: Path) -> None:
    """`cat` of any file of a session shows text and does nothing else; a record keeps the reply as it was."""
    acting = "\x1b]52;c;x\x07 \x9b2J \x7f \u202eevil\u202c \u2066x\u2069 \0"
    kept = "tab\there, 👩\u200d🔬, \u200fעברית\u200e, می\u200cخواهم"
    path = tmp_path / "cdo-a"
    session = Session.create(path, FILES)
    try:
        recorded = asyncio.run(session.commit({**ANSWER, "answer": acting + kept}))
        known = session.put("t1-critic", Artifact({"position": acting, "why": kept}, f"{acting}\n\n{kept}", {}))
        session.put_text("00-plan.md", acting + kept)
        session.journal({"event": "note", "text": acting + kept})
        session.flush()
        assert session.records[-1] == recorded and recorded["answer"] == acting + kept
        assert known == session.artifact("t1-critic") and "␛]52;c;x␇ [U+009B]2J ␡ [U+202E]evil" in known.body
    finally:
        session.close()
    for file in filter(Path.is_file, path.rglob("*")):
        text = file.read_text("utf-8")
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), file
    assert kept in (path / "t1-critic.md").read_text("utf-8")


def test_a_kill_between_the_page_and_its_sidecar_never_makes_an_edit(tmp_path: Path) -> None:
    """Killed at any write, FINAL.md is absent, or unedited as it was or as it is to be."""
    for stop in range(1, 30):
        session = new(tmp_path / f"cdo-{stop}")
        session.put("FINAL", voice("old"))
        session.flush()
        left = stop

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left <= 0:
                    raise OSError(errno.EIO, "killed")
                return real(*given, **named)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("rename", "unlink", "fsync"):
                patch.setattr(os, name, counted(getattr(os, name)))
            session.put("FINAL", voice("new"))
            with contextlib.suppress(SessionError):
                session.flush()
            done = left > 0
        session.close()
        with contextlib.closing(Session.open(session.path)) as again:
            found = again.artifact("FINAL")
            assert found is None or (not found.edited and found.meta["position"] in ("old", "new"))
            assert not done or (found and found.meta["position"] == "new")
        if done:
            return
    raise AssertionError("never written")


def test_a_session_that_has_ended_leaves_the_memory_at_once(tmp_path: Path) -> None:
    session = new(tmp_path / "cdo-x")
    session.put("t1-critic", voice())
    commit(session, EXCHANGE)
    session.close()
    gone = weakref.ref(session)
    gc.disable()  # in a process of many sessions Python looks for circles of objects much too late
    try:
        del session
        assert gone() is None
    finally:
        gc.enable()
