"""What a line of journal.jsonl may say. Whatever else it says is not looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdo.core.events import Event

Count = Annotated[int, Field(ge=0, le=10**12)]
Amount = Annotated[float, Field(ge=0, le=10**12, allow_inf_nan=False)]


class _EventFields(BaseModel):
    """What a view reads of an event; whatever else it says is not looked at."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Run(_EventFields):
    preset: str
    why: str = ""
    models: list[str] = []
    path: str = ""


class _BatchEvent(_EventFields):
    calls: list[Annotated[list[str], Field(min_length=2, max_length=2)]]


class _CallEvent(_EventFields):
    model: str
    attempt: Count


class _UsageFields(_EventFields):
    input_tokens: Count
    output_tokens: Count


class _Exchange(_EventFields):
    usage: _UsageFields | None = None
    cost: Amount | None = None
    fault: str | None = None


class _Retry(_EventFields):
    fault: str
    message: str
    wait: Amount


class _Invalid(_EventFields):
    problems: list[str]


class _TensionFields(_EventFields):
    id: str
    title: str
    status: str


class _DirectiveEvent(_EventFields):
    tensions: list[_TensionFields] = []


class _ReplyEvent(_EventFields):
    position: str | None = None
    focus: str | None = None
    confidence: Amount | None = None
    how: str | None = None
    directive: _DirectiveEvent | None = None


class _ReplyMissing(_EventFields):
    reason: str
    how: str | None = None


class _VersionFields(_EventFields):
    product: str
    number: Count
    author: str
    summary: str


class _VerdictFields(_EventFields):
    product: str
    verdict: str


class _Blocked(_EventFields):
    product: str
    by: list[str]


class _Round(_EventFields):
    round: Count
    accepted: Count
    live: Count
    blockers: Count
    versions: list[_VersionFields]
    verdicts: list[_VerdictFields]
    blocked: list[_Blocked]
    halt: str
    why: str


class _Stale(_EventFields):
    superseded: list[str]
    kept: list[str]
    place: str


class _Dashboard(_EventFields):
    lines: list[str]


class _ToolEvent(_EventFields):
    tool: str
    arguments: str


class _PauseEvent(_EventFields):
    question: str
    options: list[str]


class _ReviewEvent(_EventFields):
    path: str


class _NoteEvent(_EventFields):
    text: str


class _Stopped(_EventFields):
    why: str


class RunEnd(_EventFields):
    """How a run ended, as its `done` event tells: what `views.summary` puts into words."""

    path: str
    status: str
    why: str
    decision: str
    confidence: Amount | None
    turns: Count
    calls: Count
    tokens: Count
    cost: Amount | None
    missing_voices: list[str] = []
    flags: list[str] = []
    unit: str = "turn"
    unaccepted: list[str] = []


_SHAPES: Mapping[str, type[_EventFields]] = {
    "run": _Run,
    "batch": _BatchEvent,
    "call": _CallEvent,
    "exchange": _Exchange,
    "retry": _Retry,
    "invalid": _Invalid,
    "reply": _ReplyEvent,
    "missing": _ReplyMissing,
    "stale": _Stale,
    "dashboard": _Dashboard,
    "tool": _ToolEvent,
    "pause": _PauseEvent,
    "review": _ReviewEvent,
    "round": _Round,
    "note": _NoteEvent,
    "stopped": _Stopped,
    "done": RunEnd,
}


def parsed(line: bytes) -> dict[str, Any]:
    """The object that a line of the journal holds; raise `ValueError` where it is none."""
    try:
        data = json.loads(line, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    return data


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def told(data: Mapping[str, Any]) -> tuple[float, Event] | None:
    """What a line tells: when (seconds since 1970) and what; None for a kind of event that no view knows.

    Raises `ValueError` where it lacks what that kind has, or has it otherwise.
    """
    kind = data.get("event")
    if not isinstance(kind, str):
        raise ValueError("it tells no event")
    if kind not in _SHAPES:
        return None
    try:
        at = datetime.fromisoformat(data.get("at", 0)).timestamp()
        name = data.get("name", "")
        if not isinstance(name, str):
            raise ValueError("its name is not a text")
        _SHAPES[kind].model_validate(data)
    except (TypeError, OverflowError, OSError, ValidationError) as error:
        raise ValueError(f"it is not a {kind} event") from error
    return at, Event(kind, name, data)
