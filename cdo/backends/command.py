"""A command-line agent as a model: one process for each request, read to its end, and nothing of it left behind.

What the agent is called with and how its output is read is content (`cdo.agents`); here the process is run. It is
the leader of a session of its own, so that it has no terminal and can be ended with all that it started; what left
that session is known by a mark in its environment, where the system shows those (Linux). A guard in its group ends
the group when this process dies, in whatever way: nothing goes on that nobody will read and somebody pays.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from cdo import agent_output, agents
from cdo.agent_output import Ended
from cdo.agents import CommandAgent, Launch
from cdo.errors import ConfigError
from cdo.types import BackendError, Fault, Message, OnText, Request, Response

MAX_OUT = 64 * 2**20  # bytes of output
MAX_ERR = 64 * 2**10  # bytes of the last words on stderr; what comes before them is dropped
MAX_LINE = 4096  # bytes of a line in which words are looked for
LOOK = 0.02  # seconds between two looks at whether the process has ended
SIGN = 1.0  # seconds between two signs of life
DRAIN = 0.5  # seconds that the pipes may take to end when the processes have
MARK = "CDO_CALL"  # the variable by which processes are known to belong to a call
ROUNDS = 3  # of looking for them: one that is being ended may just have started another
STALE = 3600.0  # seconds after which files of a call that nobody holds are removed

# Becomes the agent: `sh -c GUARDED FD PROGRAM ARGUMENT…` with the prompt on FD. Before that it leaves the guard
# behind, which waits for the end of the pipe that came as stdin and then ends the group, itself included.
GUARDED = """\
exec 3<&0
{ trap '' HUP INT TERM; read -r end <&3; kill -9 -$$; } >/dev/null 2>&1 &
exec "$@" 3<&- </dev/fd/$0
"""


class CommandBackend:
    """Answers each request by a process of its own; several may run at the same time.

    `program` is the agent's absolute path; `word` makes one prompt of messages; of `env` the agent sees what its
    file allows. The agent works in `folder`/work, which is empty and stays the same, because some agents find a
    conversation again by where it began; files made for one call live beside it, as long as the call.
    """

    streams = False

    def __init__(
        self,
        agent: CommandAgent,
        program: str,
        word: Callable[[Sequence[Message]], str],
        env: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self._agent, self._program, self._word, self._env = agent, program, word, env
        self._folder, self._swept = folder, False

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Answer one request; raises `BackendError`, or `ConfigError` when the agent's folder cannot be used."""
        messages = agents.unseen(self._agent, request)
        prompt = messages[0].text if len(messages) == 1 else self._word(messages)
        folder = self._ready()
        with _files(folder) as home:
            launch = agents.launch(self._agent, request, prompt, str(home), self._env)
            for name, text in launch.files.items():
                (home / name).write_text(text, encoding="utf-8")
            ended = await self._run(launch, folder / "work", on_text)
        return agent_output.read(self._agent, request, ended)

    async def close(self) -> None:
        """Nothing to close: processes end with their calls."""

    def _ready(self) -> Path:
        """The folder of agents, with an empty one in it that they work in, and without what killed runs left."""
        folder = self._folder or _cache() / "agents"
        work = folder / "work"
        try:
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = next(work.iterdir(), None)
        except OSError as error:
            raise _unusable(folder, error) from None
        if found:
            raise ConfigError(
                f"The folder that command-line agents work in is not empty: it holds {found}.",
                "Agents take settings and instructions from where they work: remove what is in there.",
            )
        if not self._swept:
            self._swept = True
            _sweep(folder)
        return folder

    async def _run(self, launch: Launch, work: Path, on_text: OnText) -> Ended:
        """Run one process to its end; whatever becomes of the call, it and its group are gone afterwards."""
        again = self._agent.read.again
        out, err = _Sink(MAX_OUT, again), _Sink(MAX_ERR, again, tail=True)
        pipes: list[asyncio.BaseTransport | IO[bytes]] = []
        with _lifeline() as lifeline:
            mark = os.urandom(16).hex()
            with tempfile.TemporaryFile() as prompt:  # a file needs no one to feed it, and has an end
                prompt.write(launch.stdin.encode("utf-8"))
                prompt.seek(0)
                child = self._start(launch, work, prompt, lifeline, mark)
            assert child.stdout and child.stderr
            try:
                try:
                    pipes.append(await out.read(child.stdout))
                    pipes.append(await err.read(child.stderr))
                    await _watch(child, out, err, on_text)
                finally:
                    _kill(child, mark)  # also what it left running, which would hold the pipes open
                await asyncio.wait({out.closed, err.closed}, timeout=DRAIN)
            finally:
                for pipe in (*pipes, child.stdout, child.stderr):
                    pipe.close()
        if out.over:
            raise BackendError(Fault.MALFORMED, f"the agent printed more than {MAX_OUT >> 20} MB")
        return Ended(out.text(), err.text(), child.returncode, out.again or err.again)

    def _start(
        self, launch: Launch, work: Path, prompt: IO[bytes], lifeline: int, mark: str
    ) -> subprocess.Popen[bytes]:
        if not shutil.which(self._program):
            raise BackendError(Fault.REJECTED, f"{self._program} cannot be started: there is no such program")
        try:
            return subprocess.Popen(
                ["/bin/sh", "-c", GUARDED, str(prompt.fileno()), self._program, *launch.argv],
                stdin=lifeline,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(prompt.fileno(),),
                cwd=work,
                env={**launch.env, MARK: mark},
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            fault = Fault.OVERFLOW if error.errno == errno.E2BIG else Fault.REJECTED
            raise BackendError(fault, f"{self._program} cannot be started: {error.strerror or error}") from None


def _cache() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("cdo"))


def _unusable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The folder of command-line agents {folder} cannot be used: {error.strerror or error}.",
        "Mend its permissions, or set XDG_CACHE_HOME to a folder that can be written.",
    )


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[Path]:
    """A new folder in `folder` for the files of one call, gone afterwards; locked, so that nobody sweeps it away."""
    try:
        home = Path(tempfile.mkdtemp(prefix="call-", dir=folder))
    except OSError as error:
        raise _unusable(folder, error) from None
    lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody can sweep it either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def _sweep(folder: Path) -> None:
    """Remove the files of calls whose process was killed: old, and locked by nobody."""
    for home in folder.glob("call-*"):
        with contextlib.suppress(OSError):
            lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(lock).st_mtime > STALE:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


class _Sink(asyncio.Protocol):
    """What comes out of a pipe, up to `limit` bytes: the first ones, or with `tail` the last ones.

    `again` becomes the first line in which its pattern is found.
    """

    def __init__(self, limit: int, again: str, tail: bool = False) -> None:
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


async def _watch(child: subprocess.Popen[bytes], out: _Sink, err: _Sink, on_text: OnText) -> None:
    """Wait until the process has ended, printed too much or would try again; tell of each line and each second."""
    told, lines = time.monotonic(), 0
    while child.poll() is None and not (out.over or out.again or err.again):
        if out.lines > lines or time.monotonic() - told >= SIGN:
            told, lines = time.monotonic(), out.lines
            on_text("")
        await asyncio.sleep(LOOK)


def _kill(child: subprocess.Popen[bytes], mark: str) -> None:
    """End a process, all of its group and whatever else has `mark` in its environment, at once; wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for _ in range(ROUNDS):
        if not [pid for pid in _processes() if _end(pid, f"{MARK}={mark}".encode())]:
            break


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
