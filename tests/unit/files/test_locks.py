"""Locks between real processes."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdo.core.errors import SessionError
from cdo.files import locks
from cdo.files.locks import take
from cdo.session.records import locked
from cdo.session.store import Session

HOLD = """
import os, sys, time
from cdo.files.locks import take
fd = os.open(sys.argv[1], os.O_RDONLY)
print(take(fd, shared=sys.argv[2] == "shared"), flush=True)
time.sleep(float(sys.argv[3]))
"""


def holder(path: Path, kind: str, seconds: float) -> subprocess.Popen[str]:
    """A process that has the lock."""
    words = [sys.executable, "-c", HOLD, str(path), kind, str(seconds)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "True\n"
    return child


@pytest.mark.parametrize("folder", [True, False])
def test_a_lock_keeps_others_out_until_its_holder_is_killed(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "x"
    path.mkdir() if folder else path.write_text("")
    with holder(path, "whole", 60) as child:
        fd = os.open(path, os.O_RDONLY)
        assert not take(fd) and not take(fd, shared=True)
        begun = time.monotonic()
        assert not take(fd, 0.1) and time.monotonic() - begun >= 0.1
        child.send_signal(signal.SIGKILL)
        assert take(fd, 30)
        os.close(fd)


def test_shared_locks_go_together_and_keep_a_whole_one_out(tmp_path: Path) -> None:
    with holder(tmp_path, "shared", 60) as child:
        fd = os.open(tmp_path, os.O_RDONLY)
        assert take(fd, shared=True) and not take(fd)
        child.kill()
        os.close(fd)


def test_whoever_waits_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    with holder(tmp_path, "whole", 0.5):
        fd = os.open(tmp_path, os.O_RDONLY)
        assert take(fd, 30)
        os.close(fd)


# -- where the file system has no locks ------------------------------------------------------------

NO_LOCKS = """
import fcntl, os, sys
def refuse(*_):
    raise OSError(int(sys.argv[1]), "no locks")
fcntl.flock = refuse
from cdo.files.locks import broken, release, take
"""
OWNER = f"""{NO_LOCKS}
fd = os.open(sys.argv[2], os.O_RDONLY)
print(take(fd, 600), flush=True)
sys.stdin.readline()
release(fd)
"""


def refuse(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def next_owner(waiting: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """The one process that gets the lock, taken out of the list."""
    outputs = [process.stdout for process in waiting if process.stdout]
    ready, _, _ = select.select(outputs, [], [], 300)
    assert len(ready) == 1
    owner = waiting.pop(outputs.index(ready[0]))
    assert owner.stdout and owner.stdout.readline() == "True\n"
    return owner


@pytest.mark.wide
def test_without_locks_of_the_kernel_one_process_owns_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several that wait, one gets the lock, and when it is killed or lets go, one of the others does."""
    monkeypatch.setattr("fcntl.flock", refuse)
    fd = os.open(tmp_path, os.O_RDONLY)
    waiting = [
        subprocess.Popen(
            [sys.executable, "-c", OWNER, str(code), str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for code in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.ENOLCK)
    ]  # fmt: skip
    for kill in (True, True, False, True, False, True):
        owner = next_owner(waiting)
        assert not take(fd) and not take(fd, shared=True)
        assert json.loads((tmp_path / locks.FILE).read_text())["pid"] == owner.pid
        if kill:
            owner.kill()
        owner.communicate(None if kill else "\n")
    assert take(fd, shared=True) and take(fd, 30) and str(owner.pid) in locks.broken(fd)
    locks.release(fd)
    assert os.listdir(tmp_path) == []
    os.close(fd)


def test_a_lock_file_is_broken_only_when_its_process_has_ended_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", refuse)
    fd, file = os.open(tmp_path, os.O_RDONLY), tmp_path / locks.FILE
    parent, host = os.getppid(), locks._host()
    mine = {"host": host, "pid": parent, "start": locks.process_start(parent)}
    for change, free in (
        ({}, False),
        ({"start": "when another process had the number"}, True),
        ({"pid": 2**22 + 1}, True),
        ({"pid": 2**22 + 1, "host": "another"}, False),
    ):
        file.write_text(json.dumps({**mine, **change}))
        assert take(fd) is free, change
        assert str(mine["pid"] if "pid" not in change else change["pid"]) in locks.broken(fd) or not free
        locks.release(fd)
    file.write_text("")  # about to be written
    assert not take(fd)
    os.utime(file, (1, 1))  # its process was killed before
    assert take(fd)
    locks.release(fd)
    assert not file.exists()
    os.close(fd)


def test_a_session_has_one_owner_without_locks_of_the_kernel_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "cdo-a"
    first = Session.create(path, {"session.yaml": "a: 1\n"})
    with pytest.raises(SessionError, match="in use"):
        Session.open(path)
    assert locked(path)
    first.close()
    assert not locked(path) and not (path / locks.FILE).exists()
    again = Session.open(path)
    assert again.notes == []
    lock = (path / locks.FILE).read_text()
    again.close()
    (path / locks.FILE).write_text(lock.replace(f'"pid": {os.getpid()}', '"pid": 4194999'))
    last = Session.open(path)
    assert "4194999" in last.notes[0]
    last.close()
