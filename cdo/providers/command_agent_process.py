"""Runs a command-line agent as a model: one process for each request, which leaves nothing behind.

Content files say how the agent is called and how its output is read (`cdo.providers.command_agent`). The process is
run by `cdo.security.child_processes`. It ends with its call, so that no output is paid for that is never read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cdo.core.errors import ConfigError
from cdo.core.exchange import BackendError, Fault, Message, OnText, Request, Response
from cdo.providers import command_agent, command_agent_output
from cdo.providers.command_agent import CommandAgent, Launch
from cdo.providers.command_agent_output import ProcessResult
from cdo.security.child_processes import LOOK, Sink, private_folder, run, sweep

MAX_OUT = 64 * 2**20  # most bytes of output
MAX_ERR = 64 * 2**10  # bytes of stderr that are kept: the last ones
SIGN = 1.0  # seconds between two signs of life


class CommandBackend:
    """Answers each request by a process of its own; several may run at the same time.

    `program` is the agent's absolute path. `word` renders messages as one prompt. Of `env`, the agent gets the
    variables that its file allows. The agent works in `folder`/work, which is empty and always the same, because some
    agents find a conversation by the folder in which it began. Files for one call are beside it until the call ends.
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
        messages = command_agent.unseen(self._agent, request)
        prompt = messages[0].text if len(messages) == 1 else self._word(messages)
        folder = self._ready()
        with self._home(folder) as home:
            launch = command_agent.launch(self._agent, request, prompt, str(home), self._env)
            for name, text in launch.files.items():
                (home / name).write_text(text, encoding="utf-8")
            ended = await self._run(launch, folder / "work", on_text)
        return command_agent_output.read(self._agent, request, ended)

    async def close(self) -> None:
        """Do nothing: processes end with their calls."""

    def _ready(self) -> Path:
        """Return the agents' folder with an empty `work` in it, swept once of leftovers; raise `ConfigError`."""
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
                "Agents take settings and instructions from the folder in which they work: empty that folder.",
            )
        if not self._swept:
            self._swept = True
            sweep(folder)
        return folder

    @contextlib.contextmanager
    def _home(self, folder: Path) -> Iterator[Path]:
        """Make a folder for the files of one call, removed afterwards; raise `ConfigError` if it cannot be made."""
        with contextlib.ExitStack() as stack:
            try:
                home = stack.enter_context(private_folder(folder))
            except OSError as error:
                raise _unusable(folder, error) from None
            yield home

    async def _run(self, launch: Launch, work: Path, on_text: OnText) -> ProcessResult:
        """Run one process to its end. However the call ends, the process and its group are ended with it."""
        again = self._agent.read.again
        out, err = Sink(MAX_OUT, again), Sink(MAX_ERR, again, tail=True)
        if not shutil.which(self._program):
            raise BackendError(Fault.REJECTED, f"{self._program} cannot be started: there is no such program")

        async def watch(child: subprocess.Popen[bytes]) -> None:
            await _watch(child, out, err, on_text)

        with tempfile.TemporaryFile() as prompt:  # a file, unlike a pipe, needs no writer and has an end
            prompt.write(launch.stdin.encode("utf-8"))
            prompt.seek(0)
            try:
                code = await run([self._program, *launch.argv], work, launch.env, prompt, out, err, watch)
            except OSError as error:
                fault = Fault.OVERFLOW if error.errno == errno.E2BIG else Fault.REJECTED
                why = f"{self._program} cannot be started: {error.strerror or error}"
                raise BackendError(fault, why) from None
        if out.over:
            raise BackendError(Fault.MALFORMED, f"the agent printed more than {MAX_OUT >> 20} MB")
        return ProcessResult(out.text(), err.text(), code, out.again or err.again)


def _cache() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("cdo"))


def _unusable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The folder of command-line agents {folder} cannot be used: {error.strerror or error}.",
        "Fix its permissions, or set XDG_CACHE_HOME to a folder that can be written.",
    )


async def _watch(child: subprocess.Popen[bytes], out: Sink, err: Sink, on_text: OnText) -> None:
    """Wait until the process ends, prints too much or is about to retry; call `on_text` for lines and each second."""
    told, lines = time.monotonic(), 0
    while child.poll() is None and not (out.over or out.again or err.again):
        if out.lines > lines or time.monotonic() - told >= SIGN:
            told, lines = time.monotonic(), out.lines
            on_text("")
        await asyncio.sleep(LOOK)
