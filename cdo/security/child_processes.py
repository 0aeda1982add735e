"""Child processes that leave nothing behind: read within bounds, and ended with all that they started.

A child leads a session of its own, so that it has no terminal. A guard in its group ends the group when this process
dies, in whatever way. A process that left the group is known by a mark in its environment, where the system shows
those (Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from cdo.files import locks

MAX_LINE = 4096  # bytes of a line in which words are looked for
LOOK = 0.02  # seconds between two looks at whether the process has ended
DRAIN = 0.5  # seconds that the pipes may take to end when the processes have
MARK = "CDO_CALL"  # the variable by which processes are known to belong to a call
ROUNDS = 3  # of looking for them: one that is being ended may just have started another
ABOVE = 20  # the numbers of files below are the guard's own
STALE = 3600.0  # seconds after which files of a call that nobody holds are removed

# Becomes the program: `sh -c GUARDED FD PROGRAM ARGUMENT…` with its input on FD. Before that it leaves the guard
# behind, which waits for the end of the pipe that came as stdin and then ends the group, itself included.
GUARDED = """\
exec 3<&0
{ trap '' HUP INT TERM; read -r end <&3; kill -9 -$$; } >/dev/null 2>&1 &
exec "$@" 3<&- </dev/fd/$0
"""


async def run(
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    stdin: IO[bytes],
    out: Sink,
    err: Sink,
    watch: Callable[[subprocess.Popen[bytes]], Awaitable[None]],
) -> int:
    """Run one process in `folder` until it ends or `watch` returns or raises; returns its exit code (see `Popen`).

    Whatever becomes of it, the process and all that it started are gone afterwards. Raises `OSError` where it cannot
    be started.
    """
    pipes: list[asyncio.BaseTransport | IO[bytes]] = []
    mark = os.urandom(16).hex()
    with _lifeline() as lifeline:
        child = _start(argv, folder, {**env, MARK: mark}, stdin, lifeline)
        assert child.stdout and child.stderr
        try:
            try:
                pipes.append(await out.read(child.stdout))
                pipes.append(await err.read(child.stderr))
                await watch(child)
            finally:
                _kill(child, mark)  # also what it left running, which would hold the pipes open
            await asyncio.wait({out.closed, err.closed}, timeout=DRAIN)
        finally:
            for pipe in (*pipes, child.stdout, child.stderr):
                pipe.close()
    return child.returncode


def _start(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], stdin: IO[bytes], lifeline: int
) -> subprocess.Popen[bytes]:
    given = fcntl.fcntl(stdin.fileno(), fcntl.F_DUPFD_CLOEXEC, ABOVE)
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", GUARDED, str(given), *argv],
            stdin=lifeline,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(given,),
            cwd=folder,
            env=env,
            bufsize=0,
            start_new_session=True,
        )
    finally:
        os.close(given)


@contextlib.contextmanager
def private_folder(folder: Path) -> Iterator[Path]:
    """Make a new folder in `folder` for the files of one call, and remove it afterwards. Raises `OSError`.

    It is locked, so that `sweep` leaves it alone.
    """
    home = Path(tempfile.mkdtemp(prefix="call-", dir=folder))
    lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody can sweep it either
            locks.take(lock)
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def sweep(folder: Path, age: float = STALE) -> None:
    """Remove the folders of calls whose process was killed: older than `age` seconds, and not locked."""
    for home in folder.glob("call-*"):
        with contextlib.suppress(OSError):
            lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(lock).st_mtime > age and locks.take(lock):
                    shutil.rmtree(home, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def _lifeline() -> Iterator[int]:
    """The reading end of a pipe that ends when this process does: nobody else holds the other one."""
    end, held = os.pipe()
    try:
        yield end
    finally:
        os.close(end)
        os.close(held)


class Sink(asyncio.Protocol):
    """What comes out of a pipe, up to `limit` bytes: the first ones, or with `tail` the last ones.

    `again` becomes the first line in which its pattern is found.
    """

    def __init__(self, limit: int, again: str = "", tail: bool = False) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over, self.again, self.lines = False, "", 0
        self._limit, self._tail = limit, tail
        self._pattern = re.compile(again, re.IGNORECASE) if again else None
        self._data, self._line = bytearray(), bytearray()

    async def read(self, pipe: IO[bytes]) -> asyncio.ReadTransport:
        """Begin to take in what comes out of `pipe`."""
        return (await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe))[0]

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        if self.over:
            return
        self._data += data
        if self._tail:
            del self._data[: -self._limit]
        else:
            self.over = len(self._data) > self._limit
        *lines, rest = data.split(b"\n")
        for piece in lines:
            self.lines += 1
            self._look(self._line + piece[:MAX_LINE])
            self._line.clear()
        self._line += rest[: max(0, MAX_LINE - len(self._line))]

    def _look(self, line: bytes | bytearray) -> None:
        text = line[:MAX_LINE].decode("utf-8", "replace")
        if self._pattern and not self.again and self._pattern.search(text):
            self.again = text

    def connection_lost(self, exc: Exception | None) -> None:
        """The pipe ended."""
        if not self.closed.done():
            self.closed.set_result(None)

    def text(self) -> str:
        """All of it, valid in UTF-8."""
        return self._data.decode("utf-8", "replace")


def _kill(child: subprocess.Popen[bytes], mark: str) -> None:
    """End a process, all of its group and whatever else has `mark` in its environment, at once; wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for _ in range(ROUNDS):
        if not [pid for pid in _processes() if _end(pid, f"{MARK}={mark}".encode())]:
            break


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """End a child and whatever it started in its process group; wait for it."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def end_of(log: IO[bytes]) -> str:
    """Return the last 4,000 bytes of what a child wrote to a file, as text."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4000))
    return log.read().decode("utf-8", "replace").strip()


def _processes() -> list[int]:
    """All processes there are, where the system lists them."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _end(pid: int, entry: bytes) -> bool:
    """End a process that began with `entry` in its environment; says whether it is one."""
    try:
        if entry not in Path(f"/proc/{pid}/environ").read_bytes():
            return False
        handle = os.pidfd_open(pid)
    except OSError:  # it has ended, or is somebody else's
        return False
    try:
        # Looked at again, now that no other process can get its number.
        if entry in Path(f"/proc/{pid}/environ").read_bytes():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
