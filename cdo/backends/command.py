"""A command-line agent as a model: one process for each request, read to its end, and nothing of it left behind.

What the agent is called with and how its output is read is content (`cdo.agents`); here the process is run. It is
the leader of a session of its own, so that it has no terminal and can be ended with all that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from cdo import agents
from cdo.agents import CommandAgent, Ended, Launch
from cdo.errors import ConfigError
from cdo.types import BackendError, Fault, Message, OnText, Request, Response

MAX_OUT = 64 * 2**20  # bytes of output
MAX_ERR = 64 * 2**10  # bytes of the last words on stderr; what comes before them is dropped
MAX_LINE = 4096  # bytes of a line in which words are looked for
LOOK = 0.02  # seconds between two looks at whether the process has ended
SIGN = 1.0  # seconds between two signs of life
DRAIN = 0.5  # seconds that the pipes may take to end when the processes have


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
        self._folder = folder

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Answer one request; raises `BackendError`, or `ConfigError` when the agent's folder cannot be used."""
        messages = agents.unseen(self._agent, request)
        prompt = messages[0].text if len(messages) == 1 else self._word(messages)
        work, home = self._places()
        try:
            launch = agents.launch(self._agent, request, prompt, str(home), self._env)
            for name, text in launch.files.items():
                (home / name).write_text(text, encoding="utf-8")
            ended = await self._run(launch, work, on_text)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return agents.read(self._agent, request, ended)

    async def close(self) -> None:
        """Nothing to close: processes end with their calls."""

    def _places(self) -> tuple[Path, Path]:
        """The empty folder that the agent works in, and a new one for the files of this call."""
        folder = self._folder or _cache() / "agents"
        work = folder / "work"
        try:
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = next(work.iterdir(), None)
            home = Path(tempfile.mkdtemp(prefix="call-", dir=folder))
        except OSError as error:
            raise ConfigError(
                f"The folder of command-line agents {folder} cannot be used: {error.strerror or error}.",
                "Mend its permissions, or set XDG_CACHE_HOME to a folder that can be written.",
            ) from None
        if found:
            home.rmdir()
            raise ConfigError(
                f"The folder that command-line agents work in is not empty: it holds {found}.",
                "Agents take settings and instructions from where they work: remove what is in there.",
            )
        return work, home

    async def _run(self, launch: Launch, work: Path, on_text: OnText) -> Ended:
        """Run one process to its end; whatever becomes of the call, it and its group are gone afterwards."""
        with tempfile.TemporaryFile() as prompt:  # a file needs no one to feed it, and has an end
            prompt.write(launch.stdin.encode("utf-8"))
            prompt.seek(0)
            child = self._start(launch, work, prompt)
        again = self._agent.read.again
        out, err = _Sink(MAX_OUT, again), _Sink(MAX_ERR, again, tail=True)
        pipes: list[asyncio.BaseTransport | IO[bytes]] = []
        assert child.stdout and child.stderr
        try:
            try:
                pipes += [await out.read(child.stdout), await err.read(child.stderr)]
                await _watch(child, out, err, on_text)
            finally:
                _kill(child)  # also what it left running, which would hold the pipes open
            await asyncio.wait({out.closed, err.closed}, timeout=DRAIN)
        finally:
            for pipe in (*pipes, child.stdout, child.stderr):
                pipe.close()
        if out.over:
            raise BackendError(Fault.MALFORMED, f"the agent printed more than {MAX_OUT >> 20} MB")
        return Ended(out.text(), err.text(), child.returncode, out.again or err.again)

    def _start(self, launch: Launch, work: Path, prompt: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [self._program, *launch.argv],
                stdin=prompt,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=work,
                env=dict(launch.env),
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            fault = Fault.OVERFLOW if error.errno == errno.E2BIG else Fault.REJECTED
            raise BackendError(fault, f"{self._program} cannot be started: {error.strerror or error}") from None


def _cache() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("cdo"))


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


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a process and all of its group, at once; wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
