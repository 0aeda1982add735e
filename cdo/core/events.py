"""What observers of a run are told. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Event:
    """Something that happened: a line of the journal, and what live views show.

    `kind` is one of run, dashboard, batch, call, progress, tool, exchange, retry, invalid, reply, missing, pause,
    review, round, stale, note, stopped, done, content; `name` is the call, file or question it is about; `data` is
    JSON.
    """

    kind: str
    name: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


Observe: TypeAlias = Callable[[Event], None]
