"""Rounds of tools over Chat Completions: what a provider wants back with its tool uses, and what it does not take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cdo.core.exchange import Backend, Effort, Fault, Message, Request, Response, ToolCall
from cdo.providers.http.chat_completions import ChatBackend
from tests.support.backends import EVENTS, answered, attempt, failed, using
from tests.support.provider import Fault as Trouble
from tests.support.provider import Provider, RequestInfo

TOOLS = ({"name": "look", "parameters": {"type": "object"}},)
SIGNED = {"google": {"thought_signature": "c2ln"}}
USES = ("c1", "c2")
BRIEF = Message("user", "why?")


@pytest.fixture
def p() -> Iterator[Provider]:
    with Provider() as p:
        yield p


def use(ident: str, **more: Any) -> dict[str, Any]:
    function: Any = {"name": "look", "arguments": "{}"}
    return {"id": ident, "type": "function", "function": function, **more}


def body(stream: bool, *pieces: dict[str, Any]) -> Trouble:
    """An answer of these pieces that ends with tool uses: a chunk for each, or one message."""
    if stream:
        shown: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces
        ]
        shown.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        text = "".join(f"data: {json.dumps(item)}\n\n" for item in shown)
        return Trouble(status=200, body=f"{text}data: [DONE]\n\n".encode(), headers=dict(EVENTS), nth=1)
    message = {key: value for piece in pieces for key, value in piece.items()}
    return Trouble(status=200, body={"choices": [{"message": message, "finish_reason": "tool_calls"}]}, nth=1)


def next_round(got: Response) -> Request:
    """The request that follows an answer with tool uses."""
    results = [Message("tool", "seen", tool_call_id=call.id) for call in got.tool_calls]
    own = Message("assistant", got.text, tool_calls=got.tool_calls, carried=got.carried)
    return Request("m", (BRIEF, own, *results), 99, tools=TOOLS)


THOUGHTS = {
    "Gemini": (
        [{"tool_calls": [use("c1", index=0, extra_content=SIGNED), use("c2", index=1)]}],
        [{"tool_calls": [use("c1", extra_content=SIGNED), use("c2")]}],
        {"tool_calls": [use("c1", extra_content=SIGNED), use("c2")]},
    ),
    "DeepSeek": (
        [
            {"content": None, "reasoning_content": "I must "},
            {"content": None, "reasoning_content": "look."},
            {"reasoning_content": None, "tool_calls": [use("c1", index=0), use("c2", index=1)]},
        ],
        [{"reasoning_content": "I must look.", "tool_calls": [use("c1"), use("c2")]}],
        {"reasoning_content": "I must look.", "tool_calls": [use("c1"), use("c2")]},
    ),
    "DeepSeek without a thought": (
        [{"content": "", "reasoning_content": ""}, {"tool_calls": [use("c1", index=0), use("c2", index=1)]}],
        [{"reasoning_content": "", "tool_calls": [use("c1"), use("c2")]}],
        {"reasoning_content": "", "tool_calls": [use("c1"), use("c2")]},
    ),
    "OpenRouter": (
        [
            {"reasoning_details": [{"type": "reasoning.text", "text": "I ", "index": 0, "format": "x"}]},
            {"reasoning_details": [{"type": "reasoning.text", "text": "look.", "index": 0, "format": None}]},
            {"reasoning_details": [{"type": "reasoning.text", "signature": "c2ln", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "id": "c1", "index": 0}]},
            {"tool_calls": [use("c1", index=0), use("c2", index=1)]},
        ],
        [
            {
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "I look.", "index": 0, "format": "x", "signature": "c2ln"},
                    {"type": "reasoning.encrypted", "data": "x", "id": "c1", "index": 0},
                ],
                "tool_calls": [use("c1"), use("c2")],
            }
        ],
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "I look.", "index": 0, "format": "x", "signature": "c2ln"},
                {"type": "reasoning.encrypted", "data": "x", "id": "c1", "index": 0},
            ],
            "tool_calls": [use("c1"), use("c2")],
        },
    ),
    "who sends nothing of it": (
        [{"reasoning": "I look.", "tool_calls": [use("c1", index=0), use("c2", index=1)]}],
        [{"reasoning": "I look.", "tool_calls": [use("c1"), use("c2")]}],
        {"tool_calls": [use("c1"), use("c2")]},
    ),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("pieces", "whole", "back"), THOUGHTS.values(), ids=THOUGHTS)
def test_what_came_with_tool_uses_goes_back_with_them(
    p: Provider, pieces: list[Any], whole: list[Any], back: dict[str, Any], stream: bool
) -> None:
    """Gemini and DeepSeek refuse the round after a use of tools otherwise: no voice could look anything up."""
    p.faults = [body(stream, *(pieces if stream else whole))]

    async def rounds(backend: Backend) -> Response:
        got = answered(await attempt(backend, Request("m", (BRIEF,), 99, tools=TOOLS)))
        assert [call.id for call in got.tool_calls] == list(USES)
        return answered(await attempt(backend, next_round(got)))

    assert using(ChatBackend(p.url), rounds).text
    own = p.requests[-1].body["messages"][1]
    assert own == {"role": "assistant", "content": "", **back}


def test_an_answer_without_tool_uses_brings_nothing_that_goes_back(p: Provider) -> None:
    pieces = [{"reasoning_content": "Hm."}, {"content": "So."}]
    p.faults = [body(True, *pieces)]
    got = answered(using(ChatBackend(p.url), attempt))
    assert (got.text, got.reasoning, got.carried) == ("So.", "Hm.", ())


REFUSED = "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property "
CARRIED = {"message": {"reasoning_content": "hm"}, "calls": [{"extra_content": SIGNED}]}


@pytest.mark.parametrize(
    ("message", "carried", "left_out"),
    [
        (f"{REFUSED}'reasoning_content' is unsupported)]", CARRIED, ("carried",)),
        ("messages.1.reasoning_content: Extra inputs are not permitted", CARRIED, ("carried",)),
        ("Unknown name \"extra_content\" at 'messages[1].tool_calls[0]': Cannot find field.", CARRIED, ("carried",)),
        (f"{REFUSED}'reasoning_content' is unsupported)]", {}, ()),
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", CARRIED, ()),
        ("Function call is missing a thought_signature in functionCall parts.", CARRIED, ()),
    ],
)
def test_what_a_provider_does_not_take_back_is_not_sent_again(
    p: Provider, message: str, carried: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    p.faults = [Trouble(status=400, body={"error": {"message": message}}, nth=1)]
    got = Response("", tool_calls=(ToolCall("c1", "look", "{}"),), carried=(carried,) if carried else ())

    async def twice(backend: Any) -> tuple[str, ...]:
        assert failed(await attempt(backend, next_round(got))).fault is Fault.REJECTED
        answered(await attempt(backend, next_round(got)))
        return tuple(backend.left_out("m"))

    assert using(ChatBackend(p.url), twice) == left_out
    assert ("hm" in str(p.requests[-1].body)) == (bool(carried) and not left_out)


def strict(*unknown: str) -> Any:
    """A server that refuses each of these parameters, in its own words and one at a time."""
    words = {
        "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead.",
        "max_completion_tokens": "Unrecognized request argument supplied: max_completion_tokens",
        "temperature": "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default (1) "
        "value is supported.",
    }

    def script(info: RequestInfo) -> Trouble | None:
        for name in unknown:
            if name in info.body:
                error = {"error": {"message": words[name]}} if name in words else None
                place = {"detail": [{"loc": ["body", name], "msg": "Extra inputs are not permitted"}]}
                return Trouble(status=400 if error else 422, body=error or place)
        return None

    return script


@pytest.mark.parametrize(
    ("unknown", "cap", "sent"),
    [
        (("max_tokens",), "max_tokens", {"max_completion_tokens", "temperature", "stream_options"}),
        (("max_completion_tokens",), "max_completion_tokens", {"max_tokens", "temperature", "stream_options"}),
        (("temperature", "stream_options"), "max_tokens", {"max_tokens"}),
    ],
)
def test_a_parameter_that_a_server_does_not_know_is_left_out_or_has_its_other_name(
    p: Provider, unknown: tuple[str, ...], cap: str, sent: set[str]
) -> None:
    p.script = strict(*unknown)

    async def until_it_answers(backend: Any) -> tuple[str, ...]:
        asked = Request("m", (BRIEF,), 99, effort=Effort.LOW)
        for _ in unknown:
            assert failed(await attempt(backend, asked)).fault is Fault.REJECTED
        assert answered(await attempt(backend, asked))
        return tuple(backend.left_out("m"))

    backend = ChatBackend(p.url, temperature=0.5, cap=cap)
    assert using(backend, until_it_answers) == tuple(sorted(unknown))
    found = p.requests[-1].body
    assert found.keys() - {"model", "messages", "stream", "reasoning_effort"} == sent
    assert 99 in found.values()
