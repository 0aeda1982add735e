"""Runs beads (`bd`) and parses its answers.

A command gets no terminal, few environment variables and a timeout; when it ends, or the wait for it, its process
group is killed. Its output is untrusted: the JSON of issues is searched for in it, even between warnings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from cdo.core.errors import CdoError
from cdo.core.formatting import one_line
from cdo.repository import git

SECONDS = 20.0  # that one command of bd may take
OUTPUT = 4 * 2**20  # bytes of an answer that are read
INIT = "bd init -p PREFIX --non-interactive --skip-agents --skip-hooks"

# The variables that bd needs: its own settings, git's and dolt's, and access to a remote. No key of a model.
_PASSED = re.compile(
    r"(?i:PATH|HOME|USER|LOGNAME|LANG|TZ|TMPDIR|DO_NOT_TRACK|SSH_AUTH_SOCK|SSL_CERT_(FILE|DIR)|(HTTPS?|NO|ALL)_PROXY)"
    r"|(LC|XDG|BEADS|BD|DOLT|GIT_CONFIG)_\w+"
)
_SET = {"BD_JSON_ENVELOPE": "1", "BD_NON_INTERACTIVE": "1", "BEADS_ACTOR": "cdo"}

Issue = Mapping[str, Any]


class BeadsError(CdoError):
    """bd cannot be used: it is missing, has no database, or fails. Ends the tracking, not the run."""


class Bd(Struct):
    """The program `bd`, run in `cwd`, with a timeout of `seconds` for each command."""

    cwd: Path
    seconds: float = SECONDS
    _program: str = ""

    async def __call__(self, *argv: str) -> list[Issue]:
        """Run one command with `--json`; return the issues in its answer, or raise `BeadsError`."""
        if not self._program:
            self._program = await self._probe()
        code, out, err = await self._run(self._program, *argv, "--json")
        if code:
            raise self._refused(argv[0], out, err, code)
        try:
            return issues(out)
        except ValueError as error:
            raise BeadsError(f"`bd {argv[0]}` answered {error}", "See what `bd doctor` says.") from None

    async def _probe(self) -> str:
        """Return the path of bd after a check that it is beads: other programs have this name too."""
        found = git.program("bd", self._root)
        if not found:
            raise BeadsError("bd is not installed", f"Install beads and run `{INIT}` in the repository.")
        code, out, _ = await self._run(found, "version")
        if code or not re.search(r"\d+\.\d+\.\d+", out):
            raise BeadsError(f"{found} is not beads: `bd version` names no version", "Put beads first in PATH.")
        return found

    @property
    def _root(self) -> str:
        """The repository: no program inside it is run. Outside of any, a file, which cannot contain programs."""
        return str(git.marked_root(self.cwd) or os.devnull)

    def _refused(self, command: str, out: str, err: str, code: int) -> BeadsError:
        why = complaint(out, err) or f"exit code {code}"
        if "no beads database" in why.lower() or "bd init" in why:
            return BeadsError("this folder has no beads database", f"`{INIT}` in the repository makes one.")
        return BeadsError(f"`bd {command}` failed: {why}", "See what `bd doctor` says.")

    async def _run(self, program: str, *argv: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr. Kill what is left of the command's process group."""
        env = {key: value for key, value in os.environ.items() if _PASSED.fullmatch(key)}
        env.pop("BD_ACTOR", None)  # the older name of BEADS_ACTOR
        env["PATH"] = os.pathsep.join(git.places(self._root))  # bd finds git by it
        with _Drain() as out, _Drain() as err:
            try:
                process = await asyncio.create_subprocess_exec(
                    program, *argv, cwd=self.cwd, env=env | _SET, stdin=asyncio.subprocess.DEVNULL,
                    stdout=out.writing, stderr=err.writing, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise BeadsError(f"bd cannot be started: {error.strerror}", "Install it anew.") from None
            out.begin()
            err.begin()
            try:
                async with asyncio.timeout(self.seconds):
                    code = await process.wait()
            except TimeoutError:
                raise BeadsError(
                    f"`bd {argv[0]}` did not end within {self.seconds:g} s", "See what `bd doctor` says."
                ) from None
            finally:
                # Also after a normal end: bd may have left a child running. macOS refuses a group of zombies.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            return code, out.text(), err.text()


class _Drain:
    """The output of a child process, up to a limit: complete when the child ends, even if its own child runs on."""

    def __enter__(self) -> _Drain:
        self._kept = bytearray()
        self._reading, self.writing = os.pipe()
        self._open = [self._reading, self.writing]
        os.set_blocking(self._reading, False)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._reading)
        for end in self._open:
            os.close(end)

    def begin(self) -> None:
        """Start to read, and close the writing end in this process: only the child has it then."""
        os.close(self.writing)
        self._open.remove(self.writing)
        asyncio.get_running_loop().add_reader(self._reading, self._take)

    def _take(self) -> bool:
        """Read one piece; return whether there may be more."""
        try:
            piece = os.read(self._reading, 65_536)
        except BlockingIOError:
            return False
        self._kept += piece[: OUTPUT - len(self._kept)]
        if not piece:
            asyncio.get_running_loop().remove_reader(self._reading)
        return bool(piece)

    def text(self) -> str:
        """Return the whole output, once the child has ended."""
        while len(self._kept) < OUTPUT and self._take():
            pass
        return self._kept.decode("utf-8", "replace")


def issues(text: str) -> list[Issue]:
    """Return the issues in bd's answer: an envelope, a list, one object or `{items: […]}`; raise ValueError."""
    data = _unwrapped(next(_documents(text), text))
    if isinstance(data, dict) and isinstance(data.get("items"), list):
        data = data["items"]
    found = [data] if isinstance(data, dict) else [] if data is None else data
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"something that is not JSON of issues: {one_line(text, 80)}" if text.strip() else "nothing")
    if any("error" in item and "id" not in item for item in found):
        raise ValueError(f"with an error: {complaint(text, '')}")
    return found


def complaint(out: str, err: str) -> str:
    """Return why bd failed, in one line: from its JSON, else from its first line of plain text; "" for nothing."""
    for text in (out, err):
        for data in map(_unwrapped, _documents(text)):
            if isinstance(data, dict) and data.get("error"):
                return one_line(". ".join(str(data[key]) for key in ("error", "hint") if data.get(key)), 300)
    lines = [one_line(line, 300) for text in (err, out) for line in text.splitlines()]
    return next((line.removeprefix("Error: ") for line in lines if line), "")


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON values that begin a line of `text`; warnings may stand around them."""
    end = 0
    # Limit the attempts: each may read all of a hostile answer.
    for start in islice(re.finditer(r"(?m)^[\[{]", text), 20):
        if start.start() >= end:
            with contextlib.suppress(ValueError, RecursionError):
                data, end = json.JSONDecoder().raw_decode(text, start.start())
                yield data


def _unwrapped(data: Any) -> Any:
    """Return the content of an envelope, or other data as it is."""
    return data["data"] if isinstance(data, dict) and "schema_version" in data and "data" in data else data
