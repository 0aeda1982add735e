"""Runs one git process through GitPython, with its own environment and with bounded time and output.

ARCHITECTURE.md ("Plumbing that stays") says which part GitPython does, and why.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from io import BufferedWriter
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, cast

from cdo.core.formatting import one_line

if TYPE_CHECKING:
    from git import Git as GitCommand

ENV = "/usr/bin/env"  # absolute, because a program found on PATH could lie in the repository


class Refused(Exception):
    """Raised when a git command fails; the message is a one-line reason. `process` is its id, 0 if unknown."""

    process = 0


class TooSlow(Refused):
    """Raised when git exceeded its time limit and was terminated."""


def answer(
    words: Sequence[str], folder: Path, env: Mapping[str, str], data: bytes, until: Callable[[], float], limit: int
) -> bytes:
    """Run a git command with `data` on stdin and return its stdout.

    `words` begin with the absolute path of git; `env` is its whole environment. It runs in its own session, so that
    Ctrl-C does not reach it. Raises `Refused` if it fails, cannot be started or prints more than `limit` bytes, and
    `TooSlow` when the monotonic clock reaches `until()`.
    """
    process, _owner = _started(words, folder, env)
    try:
        out, err = _talk(process, memoryview(data), until, limit)
        if process.returncode in (126, 127):  # exit codes of `env` when it cannot start a program
            raise Refused(f"git cannot be started: {_complaint(err).rpartition(': ')[2]}")
        if process.returncode:
            raise Refused(_complaint(err) or f"git ended with code {process.returncode}")
    except Refused as refused:
        refused.process = process.pid
        raise
    finally:
        _end(process)
    return out


def _started(
    words: Sequence[str], folder: Path, env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], GitCommand.AutoInterrupt]:
    """Start a git process whose environment is `env` only. GitPython terminates it when the owner is deleted.

    GitPython would pass on this process's environment and add variables to it. `env -i` clears all of them, because
    a GIT_DIR or GIT_EXTERNAL_DIFF set by the person would change what git does.
    """
    command = [ENV, "-i", *(f"{name}={value}" for name, value in env.items()), *words]
    library = _gitpython()
    try:
        owner = library.Git(str(folder)).execute(
            command, istream=subprocess.PIPE, as_process=True, start_new_session=True
        )
    except (OSError, ValueError, library.GitCommandNotFound) as error:
        raise Refused(f"git cannot be started: {getattr(error, 'strerror', None) or error}") from None
    assert owner.proc is not None
    return owner.proc, owner


_IMPORT = threading.Lock()


@functools.cache
def _gitpython() -> ModuleType:
    """Import GitPython.

    On import, GitPython would run `git version` from PATH without a time limit. To prevent that, it is given a
    program that does not exist, and ignores the failure silently. Later commands give the path of git explicitly.
    """
    told = {"GIT_PYTHON_GIT_EXECUTABLE": "/nonexistent/git", "GIT_PYTHON_REFRESH": "quiet"}
    with _IMPORT:
        before = {name: os.environ.get(name) for name in told}
        os.environ.update(told)
        try:
            import git
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
    return git


def _talk(
    process: subprocess.Popen[bytes], data: memoryview, until: Callable[[], float], limit: int
) -> tuple[bytes, bytes]:
    """Feed `data` to the process and return its (stdout, stderr) once it has ended; raise `Refused`."""
    assert process.stdin and process.stdout and process.stderr
    said = {process.stdout: bytearray(), process.stderr: bytearray()}
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdin, selectors.EVENT_WRITE)
        for stream in said:
            ready.register(stream, selectors.EVENT_READ)
        over = False
        while ready.get_map() or process.poll() is None:
            if time.monotonic() > until():
                raise TooSlow("git did not end in time")
            if not over and process.poll() is not None:
                over = True
                _signal(process, signal.SIGKILL)  # what git left running may hold the pipes open
            if not ready.get_map():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            events = ready.select(0.05) if ready.get_map() else []
            if over and all(key.fileobj is process.stdin for key, _ in events):
                break  # git wrote all of its answer before it ended
            for key, _ in events:
                if key.fileobj is process.stdin:
                    data = _fed(process.stdin, data)
                    if not data:
                        ready.unregister(process.stdin)
                        process.stdin.close()
                    continue
                piece = os.read(key.fd, 1 << 16)
                said[key.fileobj] += piece  # type: ignore[index]
                if not piece:
                    ready.unregister(key.fileobj)
                if sum(map(len, said.values())) > limit + 65_536:
                    raise Refused("git answers at too great a length")
    return bytes(said[process.stdout]), bytes(said[process.stderr])


def _fed(stream: IO[bytes], data: memoryview) -> memoryview:
    """Write a piece of `data`, unbuffered, and return the rest; empty if the process has closed its stdin."""
    try:
        return data[cast(BufferedWriter, stream).raw.write(data[: 1 << 16]) or 0 :] if data else data
    except BrokenPipeError:
        return data[:0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process group of a running process: SIGTERM first, then SIGKILL for what did not end."""
    for number, patience in ((signal.SIGTERM, 0.3), (signal.SIGKILL, 5.0)):
        if process.poll() is None:
            _signal(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to all processes of the group that a process led or leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(process.pid, number)


def _complaint(err: bytes) -> str:
    """Return the most relevant line of git's stderr: the first `fatal` or `error` line, else the first line."""
    lines = [one_line(line, 300) for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    worst = [line for line in lines if line.startswith(("fatal: ", "error: "))] or lines
    return re.sub(r"^(fatal|error|warning): ", "", worst[0]).rstrip(".") if worst else ""
