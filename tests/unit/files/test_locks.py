"""Locks between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdo.files.locks import take

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


def test_a_file_system_without_locks_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="not implemented"):
        take(fd, 5)
    os.close(fd)
