"""Says what is recorded of one exchange: the request, the response or the fault, and the usage. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from cdo.core.exchange import BackendError, Fault, Finish, Message, Request, Response, Usage
from cdo.core.usage import estimate_tokens
from cdo.formats.fields import MAX_REPLY_CHARS
from cdo.runner.prompts import fit
from cdo.runner.requests import MOST_WORDS, PendingCall

# Faults after which the provider has most likely done the work: if it reports no usage, usage is estimated.
CHARGED = frozenset(
    {Fault.TIMEOUT, Fault.TRUNCATED, Fault.MALFORMED, Fault.EMPTY, Fault.LENGTH, Fault.REFUSED, Fault.INVALID}
)

MOST = 4 * MAX_REPLY_CHARS  # characters recorded of a text; more than any format reads
MOST_WISHES = 64  # tool uses recorded of one response; more than are ever granted
MOST_WISHED = 65_536  # characters recorded of each field of a tool use


def kept_of(response: Response) -> dict[str, Any]:
    """Return the recorded form of a response, as JSON data. Overlong texts keep their beginning and end."""
    kept: dict[str, Any] = {"text": fit(response.text, MOST), "finish": response.finish.value}
    if response.reasoning:
        kept["reasoning"] = fit(response.reasoning, MOST)
    if response.tool_calls:
        wishes = response.tool_calls[:MOST_WISHES]
        kept["tool_calls"] = [{key: text[:MOST_WISHED] for key, text in asdict(wish).items()} for wish in wishes]
    if response.thread:
        kept["thread"] = asdict(response.thread)
    if response.carried and len(json.dumps(response.carried)) <= MOST:  # a part of it would be refused
        kept["carried"] = list(response.carried)
    return kept


def fault_of(response: Response, request: Request) -> BackendError | None:
    """Return the fault of a complete response that is visible without parsing it, or None.

    A tool use counts as an answer only if tools were offered; otherwise a model could use tools without end.
    """
    wrong: tuple[Fault, str] | None = None
    if response.finish is Finish.REFUSAL:
        wrong = Fault.REFUSED, "the model refused to answer"
    elif response.tool_calls and request.tools:
        return None
    elif not response.text.strip():
        what = "it asks for tools that it was not offered" if response.tool_calls else "the answer is empty"
        what = "only reasoning, no answer" if response.reasoning else what
        if response.finish is Finish.LENGTH:
            what = f"{what}: {_cap(request)} was used up before the answer began"
        wrong = Fault.EMPTY, what
    elif response.finish is Finish.LENGTH:
        wrong = Fault.LENGTH, f"the answer was cut off at {_cap(request)}"
    return BackendError(*wrong, usage=response.usage, text=response.text) if wrong else None


def _cap(request: Request) -> str:
    return f"the cap of {request.max_tokens:,} tokens (setting `reply_tokens`)"


def usage_of(response: Response | None, error: BackendError | None, input_tokens: int) -> Usage | None:
    """Return the usage of an exchange: as reported, else estimated if the provider most likely did the work.

    A count that the provider left out is estimated too, and so is a count of zero for an answer that has text. Then
    the usage is not `measured`.
    """
    reported = (response.usage if response else None) or (error.usage if error else None)
    if not reported and error and error.fault not in CHARGED:
        return None
    wishes = "".join(wish.name + wish.arguments for wish in response.tool_calls) if response else ""
    text = response.text + response.reasoning + wishes if response else error.text if error else ""
    written = estimate_tokens(text)
    if not reported:
        return Usage(input_tokens, written, measured=False)
    if reported.unreported == "input":
        reported = replace(reported, input_tokens=max(input_tokens, reported.cached_tokens), measured=False)
    if reported.unreported == "output" or (written and not reported.output_tokens):
        reported = replace(reported, output_tokens=written, measured=False)
    return replace(reported, unreported="")


def record_of(
    work: PendingCall,
    model: str,
    request: Request,
    result: Response | BackendError,
    usage: Usage | None,
    cost: float | None,
    shared_text: Callable[[str], str],
) -> dict[str, Any]:
    """Return the record of one exchange. Text that a batch shares is recorded once with `shared_text`."""
    return asked_of(work, model, request, shared_text) | answered_of(result, usage, cost)


def asked_of(work: PendingCall, model: str, request: Request, shared_text: Callable[[str], str]) -> dict[str, Any]:
    """Return the part of a record that is known when the request is sent."""
    return {
        "kind": "exchange",
        "call": work.call.name,
        "call_kind": work.call.kind,
        "inputs": work.key,
        "attempt": len(work.records) + 1,
        "model": model,
        "request": {
            "max_tokens": request.max_tokens,
            "messages": [_message(message, shared_text) for message in request.messages],
            **({"tools": [str(tool["name"]) for tool in request.tools]} if request.tools else {}),
            **({"effort": request.effort.value} if request.effort else {}),
            **({"schema": True} if request.schema else {}),
            **({"joins": True} if request.joins else {}),
        },
        **({"thread": work.call.thread} if work.call.thread else {}),
    }


def answered_of(result: Response | BackendError, usage: Usage | None, cost: float | None) -> dict[str, Any]:
    """Return the part of a record that is known when the answer is there."""
    record: dict[str, Any] = {}
    if isinstance(result, Response):
        record["response"] = kept_of(result)
    else:
        text, message = fit(result.text, MOST), fit(result.message, MOST_WORDS)
        record["fault"] = {"kind": result.fault.value, "message": message, "text": text}
    if usage:
        record["usage"] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            **({"cache_write_tokens": usage.cache_write_tokens} if usage.cache_write_tokens else {}),
            "measured": usage.measured,
        }
        record["cost"] = cost
    return record


def _message(message: Message, shared_text: Callable[[str], str]) -> dict[str, Any]:
    shared = message.text[: message.shared]
    head = {"shared": shared_text(shared)} if len(shared) > 200 else {}
    tools: dict[str, Any] = (
        {"tool_calls": [asdict(wish) for wish in message.tool_calls]} if message.tool_calls else {}
    )
    tools |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
    text = message.text[message.shared :] if head else message.text
    return {"role": message.role, **head, "text": text, **tools}


def tools_refused(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the attempts of a call end without tools because the model refused the ones it was offered."""
    refused = (
        record.get("fault", {}).get("kind") == Fault.REJECTED and not record["fault"].get("left_out")
        for record in records
        if "tools" in record["request"]
    )
    return bool(records) and "tools" not in records[-1]["request"] and any(refused)
