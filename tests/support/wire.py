"""Answers as bytes of the two protocols: Chat Completions (OpenAI and many others) and Messages (Anthropic).

A streamed answer is a list of server-sent events, so that whoever sends it can pause, break or cut it
between any two of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cdo.core.exchange import ToolCall, Usage
from tests.support.answers import Answer, RequestInfo
from tests.support.faults import Shape, error_data

DONE = b"data: [DONE]\n\n"
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_BROKEN = b'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"conte\n\n'


def encode(info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape, chunk: int) -> list[bytes]:
    """The body of the answer to `info`: its events where it is streamed, else one piece of JSON."""
    if not info.streaming:
        data = (_message if info.anthropic else _completion)(info, answer, usage, shape)
        body = json.dumps(data).encode()
        return [body[: len(body) * 3 // 5]] if shape == "malformed" else [body]
    events = list((_message_events if info.anthropic else _chunks)(info, answer, usage, shape, chunk))
    if shape == "malformed":
        events[len(events) // 2] = _BROKEN
    return events


def error_event(kind: str, anthropic: bool) -> bytes:
    """An error inside a stream that began with HTTP 200."""
    if anthropic:
        return _event("error", error_data(kind, "Overloaded" if kind == "overloaded_error" else kind))
    code = {"overloaded_error": 529, "rate_limit_error": 429}.get(kind, 500)
    return _data({"error": {"message": f"Provider returned error: {kind}", "type": kind, "code": code}})


def measure(info: RequestInfo, answer: Answer) -> Usage:
    """The usage of an exchange, four characters a token."""
    spoken = len(answer.text) + len(answer.reasoning) + sum(len(call.arguments) for call in answer.tool_calls)
    return Usage(input_tokens=max(1, len(info.prompt) // 4), output_tokens=max(1, spoken // 4))


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _model(info: RequestInfo) -> str:
    return str(info.body.get("model", "bench")) if isinstance(info.body, dict) else "bench"


def _ident(prefix: str, info: RequestInfo) -> str:
    """An id that is a function of the request, so that the same call always gets the same bytes."""
    return f"{prefix}-{info.call or 'anonymous'}-{info.attempt}"


# -- Chat Completions -----------------------------------------------------------------------------


def _chat_usage(usage: Usage) -> dict[str, Any]:
    data: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.cached_tokens or usage.cache_write_tokens:
        data["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.cache_write_tokens:  # OpenRouter's name
        data["prompt_tokens_details"]["cache_write_tokens"] = usage.cache_write_tokens
    if usage.cost is not None:
        data["cost"] = usage.cost
    return data


def _completion(info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape) -> dict[str, Any]:
    bare = bool(answer.tool_calls or answer.refusal) and not answer.text
    message: dict[str, Any] = {"role": "assistant", "content": None if bare else answer.text, "refusal": None}
    if answer.refusal:
        message["refusal"] = answer.refusal
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    finish = None if shape == "no-finish" else answer.finish_reason
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    data = {
        "id": _ident("chatcmpl", info),
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": _model(info),
        "choices": [] if shape == "no-choices" else [choice],
    }
    if usage is not None:
        data["usage"] = _chat_usage(usage)
    return data


def _data(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _chunks(info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape, size: int) -> Iterator[bytes]:
    head: dict[str, Any] = {
        "id": _ident("chatcmpl", info),
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": _model(info),
    }
    options = info.body.get("stream_options")
    counted = usage is not None and isinstance(options, dict) and bool(options.get("include_usage"))
    if counted:
        head["usage"] = None

    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    if shape != "no-choices":
        yield event({"role": "assistant", "content": "" if answer.text else None})
        for piece in _pieces(answer.reasoning, size):
            yield event({"reasoning_content": piece})
        for piece in _pieces(answer.text, size):
            yield event({"content": piece})
        for piece in _pieces(answer.refusal, size):
            yield event({"refusal": piece})
        for index, call in enumerate(answer.tool_calls):
            for delta in _tool_deltas(index, call, size):
                yield event({"tool_calls": [delta]})
        if shape != "no-finish":
            yield event({}, answer.finish_reason)
    if counted and usage is not None:
        yield _data({**head, "choices": [], "usage": _chat_usage(usage)})
    if shape != "no-done":
        yield DONE


def _tool_deltas(index: int, call: ToolCall, size: int) -> Iterator[dict[str, Any]]:
    """The first delta names the tool, later ones carry only the index and a piece of the arguments."""
    function = {"name": call.name, "arguments": ""}
    yield {"index": index, "id": call.id, "type": "function", "function": function}
    for piece in _pieces(call.arguments, max(1, min(size, 8))):
        yield {"index": index, "function": {"arguments": piece}}


# -- Messages -------------------------------------------------------------------------------------


def _message_usage(usage: Usage) -> dict[str, int]:
    """Messages counts what was read from and written to its cache beside the input, not within it."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def _blocks(answer: Answer, shape: Shape) -> list[dict[str, Any]]:
    if shape == "no-choices":
        return []
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "c2ln"})
    if answer.redacted:
        blocks.append({"type": "redacted_thinking", "data": answer.redacted})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call)})
    return blocks


def _arguments(call: ToolCall) -> Any:
    try:
        return json.loads(call.arguments)
    except ValueError:
        return {}


def _message(info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape) -> dict[str, Any]:
    reason = "refusal" if answer.refusal else _STOP_REASONS.get(answer.finish_reason, answer.finish_reason)
    details = {"type": "refusal", "category": None, "explanation": answer.refusal or None}
    data: dict[str, Any] = {
        "id": _ident("msg", info),
        "type": "message",
        "role": "assistant",
        "model": _model(info),
        "content": _blocks(answer, shape),
        "stop_reason": None if shape == "no-finish" else reason,
        "stop_sequence": None,
        "stop_details": details if reason == "refusal" else None,
    }
    if usage is not None:
        written = {"ephemeral_5m_input_tokens": usage.cache_write_tokens, "ephemeral_1h_input_tokens": 0}
        data["usage"] = {**_message_usage(usage), "cache_creation": written, "service_tier": "standard"}
    return data


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def _message_events(
    info: RequestInfo, answer: Answer, usage: Usage | None, shape: Shape, size: int
) -> Iterator[bytes]:
    message = _message(info, answer, usage, shape)
    end = {key: message[key] for key in ("stop_reason", "stop_sequence", "stop_details")}
    start = {**message, "content": [], "stop_reason": None, "stop_details": None}
    if "usage" in start:
        start["usage"] = {**start["usage"], "output_tokens": 1}
    yield _event("message_start", {"message": start})
    yield _event("ping", {})
    raw = iter(answer.tool_calls)
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        empty: dict[str, Any]
        if kind == "tool_use":
            empty = {**block, "input": {}}
            pieces = _pieces(next(raw).arguments, max(1, min(size, 8)))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        elif kind == "redacted_thinking":  # comes whole
            empty, deltas = block, []
        else:
            empty = {key: kind if key == "type" else "" for key in block}
            deltas = [{"type": f"{kind}_delta", kind: piece} for piece in _pieces(block[kind], size)]
            if kind == "thinking":
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield _event("content_block_start", {"index": index, "content_block": empty})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    if shape != "no-finish":
        counted = {} if usage is None else {"usage": _message_usage(usage)}
        yield _event("message_delta", {"delta": end, **counted})
    if shape != "no-done":
        yield _event("message_stop", {})


# -- lists of models ---------------------------------------------------------------------------------


def openai_models(models: Sequence[str]) -> dict[str, Any]:
    """A list that clients of both OpenAI and Anthropic understand."""
    fixed = {"object": "model", "type": "model", "created": 1_700_000_000, "owned_by": "bench"}
    listed = [{"id": name, "display_name": name, **fixed} for name in models]
    return {"object": "list", "data": listed, "has_more": False}


def ollama_models(models: Sequence[str]) -> dict[str, Any]:
    details = {"format": "gguf", "family": "llama", "parameter_size": "8.0B", "quantization_level": "Q4_K_M"}
    listed = [
        {
            "name": f"{name}:latest",
            "model": f"{name}:latest",
            "modified_at": "2026-01-02T03:04:05.678901234Z",
            "size": 4_661_224_676,
            "digest": "365c0bd3c000a25d28ddbf732fe1c6add414de7275464c4e4d1c3b5fcb5d8ad1",
            "details": details,
        }
        for name in models
    ]
    return {"models": listed}
