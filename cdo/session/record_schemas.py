"""Checks the records of a session as they are read: their shape, and that what they cost is possible.

A session can come from another person. A record with the right checksum and the wrong shape must be named, not crash.
A negative cost, or a count that no provider reports, must not lift a cap.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from cdo.core.exchange import Fault

_Name = Annotated[str, Field(max_length=20_000)]
_Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]  # tokens or calls
_Dollars = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_FAULTS = frozenset(fault.value for fault in Fault)


class _RecordPart(BaseModel):
    """The keys that cdo reads of a part of a record. Others are kept and not looked at."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class _Wish(_RecordPart):
    id: str
    name: str
    arguments: str


class _RecordedMessage(_RecordPart):
    role: str
    text: str
    shared: str | None = None
    tool_calls: tuple[_Wish, ...] = ()
    tool_call_id: str | None = None


class _RecordedRequest(_RecordPart):
    messages: tuple[_RecordedMessage, ...]
    tools: tuple[str, ...] = ()
    joins: bool = False


class _SubmittedRequest(_RecordedRequest):
    max_tokens: _Count


class _RecordedThread(_RecordPart):
    id: str
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cached_tokens: _Count = 0


class _RecordedResponse(_RecordPart):
    text: str
    finish: str
    reasoning: str = ""
    tool_calls: tuple[_Wish, ...] = ()
    thread: _RecordedThread | None = None


class _RecordedFault(_RecordPart):
    kind: str
    message: str
    text: str = ""


class _RecordedUsage(_RecordPart):
    input_tokens: _Count
    output_tokens: _Count
    cached_tokens: _Count = 0
    cache_write_tokens: _Count = 0
    measured: bool = True


class _ExchangeHead(_RecordPart):
    kind: Literal["exchange"]
    call: _Name
    call_kind: _Name
    inputs: _Name
    attempt: _Count
    model: _Name


class _RecordedExchange(_ExchangeHead):
    request: _RecordedRequest
    thread: _Name | None = None
    response: _RecordedResponse | None = None
    fault: _RecordedFault | None = None
    usage: _RecordedUsage | None = None
    cost: _Dollars | None = None
    started: str = ""
    seconds: _Seconds = 0.0
    batch: _Name = ""
    from_: Annotated[str, Field(alias="from")] = ""


class _TextRecord(_RecordPart):
    kind: Literal["text"]
    sha256: str
    text: str


class _ToolsRecord(_RecordPart):
    kind: Literal["tools"]
    call: _Name
    inputs: _Name
    attempt: _Count
    results: tuple[str, ...]


class _FailedRecord(_RecordPart):
    kind: Literal["failed"]
    call: _Name
    inputs: _Name


class _MissingRecord(_RecordPart):
    kind: Literal["missing"]
    call: _Name
    inputs: _Name
    reason: str


class _SeatedRecord(_RecordPart):
    kind: Literal["seated"]
    call: _Name
    inputs: _Name
    file: _Name
    at: AwareDatetime


class _AnswerRecord(_RecordPart):
    kind: Literal["answer"]
    name: _Name
    question: str
    answer: str
    by: str
    letter: tuple[str, str] | None = None


class _PlanRecord(_RecordPart):
    kind: Literal["proposed", "reviewed"]
    file: _Name
    proposed: str
    text: str | None = None


class _FileItem(_RecordPart):
    file: str
    text: str


class _CollectedRecord(_RecordPart):
    kind: Literal["collected"]
    name: _Name
    items: tuple[_FileItem, ...]


class _NestedResult(_RecordPart):
    session: str
    status: str
    decision: str
    confidence: Annotated[float, Field(allow_inf_nan=False)] | None
    text: str
    refuted: tuple[tuple[str, str], ...] = ()
    model_config = ConfigDict(extra="forbid")


class _NestedUse(_RecordPart):
    calls: _Count = 0
    input_tokens: _Count = 0
    output_tokens: _Count = 0
    cost: _Dollars = 0.0
    unpriced: _Count = 0
    model_config = ConfigDict(extra="forbid")


class _NestedRecord(_RecordPart):
    kind: Literal["nested"]
    name: _Name
    inputs: _Name
    result: _NestedResult
    used: _NestedUse


class _RecordedRun(_RecordPart):
    command: str
    code: Annotated[int, Field(strict=True)] | None = None
    seconds: _Seconds = 0.0
    limit: _Seconds = 0.0
    out: str = ""
    err: str = ""
    sandbox: str = ""
    held: tuple[str, ...] = ()
    refused: str = ""
    model_config = ConfigDict(extra="forbid")


class _CheckRecord(_RecordPart):
    kind: Literal["check-run"]
    name: _Name
    inputs: _Name
    run: _RecordedRun


class _SurveyedRecord(_RecordPart):
    kind: Literal["surveyed"]
    name: Annotated[str, Field(pattern=r"^00-context-t[1-9][0-9]{0,5}$")]
    inputs: _Name
    text: str


class _Finding(_RecordPart):
    citation: str
    verified: bool
    why: str
    exists: bool = False
    path: str = ""
    line: _Count = 0
    lines: str = ""
    model_config = ConfigDict(extra="forbid")


class _CheckedRecord(_RecordPart):
    kind: Literal["checked"]
    sha: str
    findings: tuple[_Finding, ...]


class _QuotedRecord(_RecordPart):
    kind: Literal["quoted"]
    sha: str
    words: tuple[str, ...]


class _GivenRecord(_RecordPart):
    kind: Literal["given"]
    files: dict[_Name, str]


class _TrailRecord(_RecordPart):
    kind: Literal["trail"]
    branch: _Name


class _FiledRecord(_RecordPart):
    kind: Literal["filed"]
    name: _Name
    date: _Name


class _DeliveredRecord(_RecordPart):
    kind: Literal["delivered"]
    files: _Name
    branch: _Name
    commit: _Name
    told: str


class _AskedPart(_ExchangeHead):
    request: _SubmittedRequest


class _IntentCall(_RecordPart):
    id: Annotated[str, Field(max_length=64)]
    asked: _AskedPart
    body: dict[str, Any]
    estimate: _Count


class _IntentRecord(_RecordPart):
    kind: Literal["batch-intent"]
    marker: Annotated[str, Field(pattern=r"^cdo-[0-9a-f]{16}$")]
    provider: _Name
    url: _Name
    factor: Annotated[float, Field(gt=0, le=1)]
    at: _Name
    calls: tuple[_IntentCall, ...]
    of: _Name = ""


class _SentRecord(_RecordPart):
    kind: Literal["batch-sent"]
    marker: _Name
    id: Annotated[str, Field(min_length=1, max_length=200)]
    at: _Name


class _ClosedRecord(_RecordPart):
    kind: Literal["batch-void", "batch-ended"]
    marker: _Name
    why: str = ""
    status: _Name = ""
    problems: tuple[str, ...] = ()


class _BeadsRecord(_RecordPart):
    kind: Literal["bd"]
    op: _Name
    turn: _Count | None = None
    id: _Name | None = None
    item: str | int | None = None


@cache
def _record() -> TypeAdapter[Any]:
    """Return what checks a record. It is made at the first record, since a new session has none to read."""
    return TypeAdapter(
        Annotated[
            _RecordedExchange | _TextRecord | _ToolsRecord | _FailedRecord | _MissingRecord | _AnswerRecord
            | _SeatedRecord | _PlanRecord | _CollectedRecord | _NestedRecord | _CheckRecord | _SurveyedRecord
            | _CheckedRecord | _QuotedRecord | _GivenRecord | _TrailRecord | _FiledRecord | _DeliveredRecord
            | _BeadsRecord | _IntentRecord | _SentRecord | _ClosedRecord,
            Field(discriminator="kind"),
        ]
    )  # fmt: skip


def problem(record: object) -> str:
    """Return what is wrong with a record as it was read from JSON; "" if nothing is."""
    try:
        found = _record().validate_python(record)
    except ValidationError as error:
        item = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in item["loc"][1:])
        return f"`{place}`: {item['msg'][:200]}" if place else "it is of no kind that cdo writes"
    if isinstance(found, _RecordedExchange):
        if (found.response is None) == (found.fault is None):
            return "it has neither a response nor a fault, or both"
        if found.fault and found.fault.kind not in _FAULTS:
            return f"`fault.kind`: {found.fault.kind[:40]!r} is not a fault that cdo knows"
    return ""
