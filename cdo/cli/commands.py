"""Names the commands and the module of each, which is imported when the command is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import click

PLACES: Mapping[str, str] = {
    "run": "run:run_command",
    "batch": "batch:batch",
    "demo": "demo:demo",
    "resume": "run:resume_command",
    "audit": "examine:audit",
    "list": "library:list_",
    "show": "show:show",
    "final": "show:final",
    "report": "report:report",
    "trace": "trace:trace",
    "watch": "watch:watch",
    "search": "library:search",
    "diff": "diff:diff",
    "cost": "library:cost",
    "fork": "fork:fork",
    "replay": "examine:replay",
    "restore": "restore:restore",
    "cabal": "mission:cabal",
    "answer": "mission:answer",
    "context": "mission:context",
    "verify": "examine:verify_command",
    "doctor": "machine:doctor",
    "models": "models:models_",
    "config": "machine:config",
    "content": "machine:content",
    "skills": "skills:skills",
    "mcp": "servers:mcp",
    "serve": "servers:serve",
    "completion": "machine:completion",
}


class Commands(Mapping[str, click.Command]):
    """The commands by name. Names are known at once; a command is imported when it is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = PLACES[name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"cdo.cli.{module}"), function)
        return command

    def __contains__(self, name: object) -> bool:
        return name in PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)
