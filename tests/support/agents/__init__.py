"""What the tests of command-line agents share: a backend for one, and programs that stand in for real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdo.content.library import PACKAGED, Library
from cdo.core.exchange import Message
from cdo.providers.command_agent import CommandAgent
from cdo.providers.command_agent_process import CommandBackend

LIBRARY = Library((("packaged", PACKAGED),))
ROOT = Path(__file__).parents[3]
STAND_IN = Path(__file__).with_name("stand_in.py")


def agent(name: str, library: Library = LIBRARY) -> CommandAgent:
    """An agent as its file describes it."""
    return library.read(f"dispatch/agents/{name}", CommandAgent)[0]


def backend(found: CommandAgent, program: str, env: Mapping[str, str], folder: Path) -> CommandBackend:
    """A backend that works in `folder`."""

    def word(messages: Sequence[Message]) -> str:
        return LIBRARY.render("dispatch/command-prompt", {"messages": messages})

    return CommandBackend(found, program, word, env, folder)


def drive(
    name: str, program: Path, folder: Path, *more: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process of its own that asks an agent; `more` is what `driver.py` takes after these."""
    argv = [sys.executable, "-m", "tests.support.agents.driver", name, str(program), str(folder), *(more or ("m1",))]
    return subprocess.Popen(argv, cwd=ROOT, env=env)


@dataclass(frozen=True)
class StandIn:
    """A program that does what it is told in `plan.json` beside it, and keeps what it was called with."""

    path: Path

    @classmethod
    def make(cls, folder: Path, name: str, steps: Sequence[Sequence[Any]]) -> StandIn:
        """Put one called `name` into `folder`; `steps` are those of `stand_in.py`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {STAND_IN} "$0" "$@"\n')
        path.chmod(0o755)
        made = cls(path)
        made.plan(*steps)
        return made

    def plan(self, *steps: Sequence[Any]) -> None:
        """What it does from now on."""
        (self.path.parent / "plan.json").write_text(json.dumps(steps))

    @property
    def seen(self) -> list[dict[str, Any]]:
        """What it was called with so far: argv, env, stdin, cwd, pid, and the files beside its work folder."""
        files = sorted(self.path.parent.glob("seen-*.json"), key=lambda file: file.stat().st_mtime_ns)
        return [json.loads(file.read_text(encoding="utf-8", errors="surrogatepass")) for file in files]

    def children(self) -> list[int]:
        """The processes that it started."""
        return [int(file.read_text()) for file in self.path.parent.glob("child-*")]


def alive(pid: int) -> bool:
    """Whether a process still runs (one that only waits to be noticed does not)."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its = entry.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it just ended
            continue
        if int(its) == group and state != "Z":
            found.append(int(entry.parent.name))
    return found
