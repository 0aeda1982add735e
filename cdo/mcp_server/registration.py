"""Registers the server with another agent, as the agent's file in `dispatch/agents` says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from cdo.content.library import Library
from cdo.core.errors import ConfigError, UsageError
from cdo.files.atomic_files import closing, explain, open_path, write_file
from cdo.providers import models
from cdo.providers.command_agent import CommandAgent, render
from cdo.security.safe_open import read_regular

_MAX_BYTES = 10_000_000  # of a configuration
_BY_HAND = "Without --write the entry is printed: put it in by hand."


class AgentRegistration(Struct, frozen=True):
    """What registers the server with an agent: a command of the agent, or an entry in its configuration."""

    command: tuple[str, ...] = ()
    removal: tuple[str, ...] = ()
    install: str = ""
    file: Path = Path()
    entry: str = ""

    def shown(self) -> str:
        """Return the command, or the entry and where it belongs, for a person to carry out."""
        if self.command:
            return shlex.join(self.command)
        return f"# {self.file}\n{self.entry}"

    def written(self) -> str:
        """Register the server, and return what was done; raise `CdoError`."""
        if self.command:
            return self._run()
        now = self._now()
        added = _merged_json(now, self.entry) if self.file.suffix == ".json" else _added_toml(now, self.entry)
        if added is None:
            raise UsageError(f"{self.file} is not valid, or has another server called cdo.", _BY_HAND)
        if added != now:
            try:
                with closing(open_path(self.file.parent, make=True)) as folder:
                    write_file(folder, self.file.name, added.encode(), mode=0o600)
            except OSError as error:
                raise explain(error, self.file) from None
        return f"{self.file} names the server cdo."

    def _now(self) -> str:
        try:
            return read_regular(self.file, _MAX_BYTES).decode("utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"{self.file} cannot be read.", _BY_HAND) from None

    def _run(self) -> str:
        program = shutil.which(self.command[0])
        if program is None:
            raise ConfigError(f"{self.command[0]} is not installed.", f"{self.install}.")
        done = subprocess.run([program, *self.command[1:]], capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            taken = f"If cdo is registered already, `{shlex.join(self.removal)}` takes that back; then do it again."
            hint = taken if self.removal else "Run it yourself to see more."
            raise ConfigError(f"`{self.shown()}` failed: {said[-300:]}", hint)
        return f"{self.command[0]} knows the server cdo now."


def registration(agent: str, library: Library, options: Sequence[str]) -> AgentRegistration:
    """Return what registers `cdo mcp OPTIONS` with an agent; raise `UsageError` for an agent that takes no server."""
    known = {name: library.read(f"{models.AGENTS}/{name}", CommandAgent)[0] for name in library.names(models.AGENTS)}
    found = known.get(agent)
    if found is None or found.mcp is None:
        able = ", ".join(name for name, one in known.items() if one.mcp)
        raise UsageError(f"`{agent[:60]}` is not an agent that cdo can register with.", f"It can with: {able}.")
    own = Path(sys.executable).with_name("cdo")
    server = [str(own)] if own.exists() else [sys.executable, "-P", "-m", "cdo"]
    server += ["mcp", *options]
    keys = {key for provider in models.table(library).values() for key in (*provider.key_env, *provider.url_env)}
    passed = sorted(name for name in os.environ if name in keys or name.startswith("CDO_"))
    values = {"server": server, "keys": passed, "env": dict(os.environ), "home": str(Path.home())}
    if found.mcp.argv:
        argv = [render(item, values, found) for item in found.mcp.argv]
        removal = (found.program, *found.mcp.removal) if found.mcp.removal else ()
        return AgentRegistration((found.program, *argv, *server), removal, found.install)
    file, entry = render(found.mcp.file, values, found), render(found.mcp.entry, values, found)
    return AgentRegistration(file=Path(file), entry=entry)


def _added_toml(now: str, entry: str) -> str | None:
    """Return a TOML file with the tables of `entry` at its end; None if it has them already or is not valid."""
    wanted = tomllib.loads(entry)
    try:
        there = tomllib.loads(now)
        if _holds(there, wanted):
            return now
        added = f"{now.rstrip()}\n\n{entry.strip()}\n".lstrip()
        return added if _holds(tomllib.loads(added), wanted) else None
    except tomllib.TOMLDecodeError:
        return None


def _merged_json(now: str, entry: str) -> str | None:
    """Return a JSON file with the keys of `entry`; None if it is not JSON, or has another value there."""
    try:
        there = json.loads(now or "{}")
    except ValueError:
        return None
    wanted = json.loads(entry)
    if _holds(there, wanted):
        return now
    return f"{json.dumps(merged, indent=2, ensure_ascii=False)}\n" if (merged := _merged(there, wanted)) else None


def _merged(there: Any, wanted: Any) -> Any:
    """Return `there` with what is only in `wanted`; None if both have another value in the same place."""
    if not (isinstance(there, dict) and isinstance(wanted, dict)):
        return there if there == wanted else None
    found = dict(there)
    for key, value in wanted.items():
        found[key] = _merged(there[key], value) if key in there else value
        if found[key] is None:
            return None
    return found


def _holds(there: Any, wanted: Any) -> bool:
    """True if `wanted` is a part of `there`."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        return all(key in there and _holds(there[key], value) for key, value in wanted.items())
    return bool(there == wanted)
