"""Ctrl-C and its like while all that is beside the run hangs: it ends at once, and nothing it started is left."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from cdo.app.run import close_all
from cdo.core.exchange import OnText, Request, Response
from cdo.providers.models import ModelSpec
from cdo.runner.model_seat import ModelSeat
from cdo.runner.retry import CircuitBreaker
from tests.conftest import Desk
from tests.support.harness import at_once, finish, members, wait_for
from tests.support.provider import Provider
from tests.support.repositories import repository

BD = "#!/bin/sh\ncase $1 in version) echo bd version 1.2.3;; *) exec sleep 600;; esac\n"
GIT = '#!/bin/sh\ncase "$*" in *{word}*) exec sleep 601;; esac\nexec {git} "$@"\n'
CODEX = "#!/bin/sh\ncat > /dev/null\nsleep 602 & wait\n"


def started(folder: Path) -> list[str]:
    """What runs with a folder, or below it: none of it may be left."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words, place = (entry / "cmdline").read_bytes(), str((entry / "cwd").readlink())
            except OSError:
                continue
            if str(folder).encode() in words or place.startswith(str(folder)):
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.fixture
def desk(tmp_path: Path, provider: Provider) -> Desk:
    """A desk in a repository, in front of whose programs others can be put."""
    (tmp_path / "work").mkdir()
    (tmp_path / "bin").mkdir()
    repository(tmp_path / "work")
    return Desk(tmp_path / "work", provider.url, {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})


def program(desk: Desk, name: str, text: str) -> None:
    path = desk.write(f"../bin/{name}", text)
    path.chmod(0o755)


def stopped(desk: Desk, process: subprocess.Popen[str], number: int, began: float) -> str:
    """Send a signal and wait: the run ended at once, cleanly, with all that it had started; returns what it said."""
    soon, sent = at_once(began), time.monotonic()
    process.send_signal(number)
    done = finish(process, sent)
    assert done.seconds < soon, done
    assert done.code == 130 and done.complaint[0].startswith("cdo: Stopped"), done
    assert "Traceback" not in done.err
    assert not members(process.pid)
    assert started(desk.path.parent) == []
    return done.err


@pytest.mark.parametrize(
    ("number", "word"),
    [(signal.SIGINT, "fast-import"), (signal.SIGTERM, "rev-parse"), (signal.SIGHUP, "for-each-ref")],
)
def test_a_bd_and_a_git_that_hang_hold_up_no_signal(desk: Desk, provider: Provider, number: int, word: str) -> None:
    program(desk, "bd", BD)
    program(desk, "git", GIT.format(word=word, git=shutil.which("git")))
    provider.hold("t1-critic")
    began = time.monotonic()
    process = desk.start("bd,think", "--turns", "1", "--session", "a", "Why?")
    wait_for(lambda: provider.named("t1-critic") and len(started(desk.path.parent)) >= 2)
    err = stopped(desk, process, number, began)
    assert err.count("bd") >= 1 and "git: " in err, "both are told"
    provider.release()
    program(desk, "git", GIT.format(word="nothing", git=shutil.which("git")))
    assert (desk.session() / "calls").is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_agents_end_with_the_run(desk: Desk, number: int) -> None:
    program(desk, "codex", CODEX)
    began = time.monotonic()
    process = desk.start("think", "-m", "codex", "--turns", "1", "--session", "a", "Why?")
    wait_for(lambda: sum("sleep 602" in words for words in started(desk.path.parent)) >= 3)
    stopped(desk, process, number, began)


def test_a_terminal_that_is_closed_ends_the_run(desk: Desk, provider: Provider) -> None:
    provider.hold("t1-critic")
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cdo", "think", "--session", "a", "Why?"],
        cwd=desk.path,
        env=desk.environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    wait_for(lambda: provider.named("t1-critic"))
    os.close(ours)
    assert process.wait(60) == 130
    assert started(desk.path.parent) == []
    provider.release()
    assert desk("resume", "a").ok()


def test_backends_are_closed_side_by_side() -> None:
    """However many there are, one that hangs costs its own share of the time alone."""
    entered: list[int] = []

    class Slow:
        streams = True

        async def complete(self, request: Request, on_text: OnText) -> Response:
            raise NotImplementedError

        async def close(self) -> None:
            entered.append(len(entered))
            while len(entered) < 5:  # noqa: ASYNC110 (until all are being closed)
                await asyncio.sleep(0.001)
            await asyncio.Event().wait()

    seats = {str(n): ModelSeat(ModelSpec("m", "scripted", "m"), Slow(), CircuitBreaker()) for n in range(5)}
    asyncio.run(close_all(seats, time.monotonic()))
    assert len(entered) == 5
