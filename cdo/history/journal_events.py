"""What a line of journal.jsonl may say. Whatever else it says is not looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

import msgspec

from cdo.core import events
from cdo.core.events import Event
from cdo.core.result import Result

_MOST = 10**12  # the largest number that an event may have
_READ: Mapping[str, type[Event]] = {
    each.kind: each
    for each in (
        events.RunBegan, events.PlanShown, events.BatchBegan, events.CallSent, events.ToolUsed,
        events.ExchangeRecorded, events.RetryPlanned, events.ReplyRefused, events.ReplyAccepted, events.ReplyMissing,
        events.ReplyCorrected, events.MessageTold,
        events.QuestionAsked, events.ReviewBegan, events.RoundEnded, events.FilesStale, events.NoteTold,
        events.AnswerAwaited, events.RunStopped, events.RunEnded,
    )
}  # fmt: skip


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
    if kind not in _READ:
        return None
    try:
        at = datetime.fromisoformat(data.get("at", 0)).timestamp()
        event = _event(_READ[kind], data)
    except (TypeError, OverflowError, OSError, RecursionError, msgspec.DecodeError) as error:
        raise ValueError(f"it is not a {kind} event") from error
    if any(not (math.isfinite(number) and 0 <= number <= _MOST) for number in _numbers(event)):
        raise ValueError(f"it has a number that no {kind} event has")
    return at, event


def _event(kind: type[Event], data: Mapping[str, Any]) -> Event:
    """Return the event that a line's data is; raise `DecodeError` where it is none."""
    if kind is events.RunEnded:
        name = msgspec.convert(data.get("name", ""), str)
        return events.RunEnded(name=name, result=msgspec.json.decode(_text(data), type=Result))
    return msgspec.json.decode(_text(data), type=kind)


def _text(data: Mapping[str, Any]) -> bytes:
    """Return JSON in which each half of a surrogate pair without the other half is a question mark."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


def _numbers(value: Any) -> Iterator[float]:
    """Yield all numbers in an event."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, msgspec.Struct):
        yield from _numbers(msgspec.structs.asdict(value))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
