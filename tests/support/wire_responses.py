"""Answers as bytes of OpenAI's Responses protocol, as `wire` has those of the other two."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cdo.core.exchange import Usage
from tests.support.answers import Answer, RequestInfo
from tests.support.faults import Shape
from tests.support.wire import _event as named_event
from tests.support.wire import _ident, _model, _pieces

_BROKEN = b'data: {"type": "response.output_text.delta", "output_index": 0, "delt\n\n'
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PART: dict[str, Any] = {"annotations": [], "logprobs": []}


def encode(info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape, chunk: int) -> list[bytes]:
    """The body of the answer to `info`: its events where it is streamed, else one piece of JSON."""
    if not info.streaming:
        data = _response(info, answer, usage, shape)
        if shape == "no-finish":
            data["status"] = "in_progress"
        body = json.dumps(data).encode()
        return [body[: len(body) * 3 // 5]] if shape == "malformed" else [body]
    numbered = enumerate(_events(info, answer, usage, shape, chunk))
    events = [named_event(kind, {**data, "sequence_number": number}) for number, (kind, data) in numbered]
    if shape == "malformed":
        events[len(events) // 2] = _BROKEN
    return events


def error_event(kind: str, info: RequestInfo) -> bytes:
    """An error at HTTP 200, in one of the protocol's ways. Its data is the whole body if nothing is streamed."""
    code = {"overloaded_error": "server_is_overloaded", "rate_limit_error": "rate_limit_exceeded"}.get(kind, kind)
    error: dict[str, Any] = {"code": code, "message": f"Provider returned error: {kind}"}
    failed = {**_response(info, Answer(), None, ""), "status": "failed", "error": error}
    if not info.streaming:
        return b"data: " + json.dumps(failed).encode()
    name, data = {
        "rate_limit_error": ("error", {"error": {"type": "tokens", **error, "param": None}}),
        "overloaded_error": ("error", {**error, "param": None}),
    }.get(kind, ("response.failed", {"response": failed}))
    return named_event(name, {**data, "sequence_number": 99})


def _response(info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape) -> dict[str, Any]:
    reason = _REASONS.get(answer.finish_reason)
    data: dict[str, Any] = {
        "id": _ident("resp", info),
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": _model(info),
        "output": [] if shape == "no-choices" else _items(info, answer),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    if usage is not None:
        data["usage"] = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
            },
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        if usage.cost is not None:
            data["usage"]["cost"] = usage.cost
    return data


def _items(info: RequestInfo, answer: Answer) -> list[dict[str, Any]]:
    """Reasoning, the message (also an empty one, where nothing else is said), and the calls."""
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        item = {"type": "reasoning", "id": _ident("rs", info)}
        items.append({**item, "summary": [{"type": "summary_text", "text": answer.reasoning}]})
        if "reasoning.encrypted_content" in (info.body.get("include") or ()):
            items[-1]["encrypted_content"] = f"sealed-{len(answer.reasoning)}"
    parts: list[dict[str, Any]] = [{"type": "output_text", "text": answer.text, **_PART}] if answer.text else []
    if answer.refusal:
        parts.append({"type": "refusal", "refusal": answer.refusal})
    if parts or not (answer.reasoning or answer.tool_calls):
        message = {"type": "message", "id": _ident("msg", info), "role": "assistant", "status": "completed"}
        items.append({**message, "content": parts})
    for call in answer.tool_calls:
        space, _, name = call.name.rpartition("|")  # a tool of a namespace is called `namespace|name` in tests
        named = {"call_id": call.id, "name": name, "arguments": call.arguments}
        named |= {"namespace": space} if space else {}
        items.append({"type": "function_call", "id": f"fc-{call.id}", "status": "completed", **named})
    return items


def _events(
    info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape, size: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    whole = _response(info, answer, usage, shape)
    begun = {key: value for key, value in whole.items() if key != "usage"}
    begun |= {"status": "in_progress", "output": [], "incomplete_details": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        yield "response.output_item.added", {**at, "item": _hollow(item)}
        for kind, data in _item_events(item, size):
            yield f"response.{kind}", {**at, "item_id": item["id"], **data}
        yield "response.output_item.done", {**at, "item": item}
    if shape != "no-finish":
        yield f"response.{whole['status']}", {"response": whole}


def _hollow(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is announced: without its texts."""
    empty = {"content": [], "summary": [], "arguments": ""}
    return {key: empty.get(key, value) for key, value in item.items() if key != "encrypted_content"}


def _item_events(item: dict[str, Any], size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if item["type"] == "function_call":
        for piece in _pieces(item["arguments"], max(1, min(size, 8))):
            yield "function_call_arguments.delta", {"delta": piece}
        yield "function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}
        return
    thinks = item["type"] == "reasoning"
    for number, part in enumerate(item["summary"] if thinks else item["content"]):
        place = {"summary_index" if thinks else "content_index": number}
        kind, text = part["type"], "refusal" if part["type"] == "refusal" else "text"
        around = "reasoning_summary_part" if thinks else "content_part"
        within = "reasoning_summary_text" if thinks else kind
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        yield f"{around}.added", {**place, "part": {**part, text: ""}}
        for piece in _pieces(part[text], size):
            yield f"{within}.delta", {**place, "delta": piece, **logprobs}
        yield f"{within}.done", {**place, text: part[text], **logprobs}
        yield f"{around}.done", {**place, "part": part}
