"""The Messages client: what it sends, what it accepts as an answer, and what it makes of every fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any

import anthropic
import pytest
from anthropic import types
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import TypeAdapter

from cdo.core.exchange import (
    Backend,
    BackendError,
    Effort,
    Fault,
    Finish,
    Message,
    Request,
    Response,
    ToolCall,
    Usage,
)
from cdo.providers.http.faults import classify
from cdo.providers.http.messages import MessagesBackend
from cdo.providers.http.messages_prompt import conversation
from tests.support import backends, client
from tests.support.backends import EVENTS, Outcome, answered, attempt, failed, request, using
from tests.support.faults import error_data
from tests.support.prompt_cache import PromptCache
from tests.support.provider import Answer, Provider
from tests.support.provider import Fault as Trouble

HARD = "Zoë 🤖 says 日本語: “naïve” ≠ 🏳️‍🌈.\n\n| a | b |\n"
MARK = {"cache_control": {"type": "ephemeral"}}
LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
CALLS = (ToolCall("c1", "look", '{"at": "日本", "deep": [1, 2]}'), ToolCall("c2", "stop", "{}"))
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "ZZZ"}


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as p:
        yield p


@pytest.fixture
def p(server: Provider) -> Provider:
    server.script, server.faults, server.chunk, server.cache = None, (), 64, None
    server.reset()
    return server


ask = partial(backends.ask, protocol="messages")


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def events(*data: Any) -> bytes:
    """The body of a stream of these events (JSON where not text)."""
    shown = [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in data]
    return "".join(f"event: x\ndata: {item}\n\n" for item in shown).encode("utf-8", "surrogatepass")


def start(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"content": [], "usage": usage}}


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of one content block."""
    begun = {"type": "content_block_start", "index": index, "content_block": content}
    added = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [begun, *added, {"type": "content_block_stop", "index": index}]


def says(value: str, index: int = 0) -> list[dict[str, Any]]:
    return block(index, text(""), {"type": "text_delta", "text": value})


def end(reason: str | None = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


STOP = {"type": "message_stop"}


def sent(p: Provider, body: bytes, *, kind: str = EVENTS["Content-Type"], **more: Any) -> Outcome:
    """What an answer of exactly these bytes comes to."""
    p.faults = [Trouble(status=200, body=body, headers={"Content-Type": kind}, **more)]
    return ask(p)


# -- what is sent ----------------------------------------------------------------------------------

LOOP = (
    Message("system", "Be brief.", shared=9),
    Message("user", "shared, own", shared=8),
    Message("assistant", "Look.", tool_calls=CALLS, carried=(THOUGHT, HIDDEN, {"type": "reasoning"})),
    Message("tool", "seen", tool_call_id="c1"),
    Message("tool", " ", tool_call_id="c2"),
    Message("assistant", " ", tool_calls=(ToolCall("c3", "look", '{"at'),)),
    Message("tool", "more", tool_call_id="c3"),
    Message("user", "Answer now."),
)


def test_a_request_carries_everything_in_the_vendor_s_shapes(p: Provider) -> None:
    asked = Request("bench", LOOP, 99, {"X-Cdo-Call": "t2-critic"}, tools=(LOOK,), effort=Effort.MAX)
    answered(ask(p, asked, key="sk-1 \n", temperature=0.5, extra={"service_tier": "auto"}))
    (seen,) = p.requests
    assert (seen.path, seen.call) == ("/v1/messages", "t2-critic")
    assert (seen.headers["x-api-key"], seen.headers["anthropic-version"]) == ("sk-1", "2023-06-01")
    assert seen.body == {
        "model": "bench",
        "max_tokens": 99,
        "stream": True,
        "system": [text("Be brief.", **MARK)],
        "messages": [
            {"role": "user", "content": [text("shared, ", **MARK), text("own")]},
            {
                "role": "assistant",
                "content": [
                    THOUGHT,
                    HIDDEN,
                    text("Look."),
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "日本", "deep": [1, 2]}},
                    {"type": "tool_use", "id": "c2", "name": "stop", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "seen"},
                    {"type": "tool_result", "tool_use_id": "c2", **MARK},
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c3", "name": "look", "input": {"INVALID_JSON": '{"at'}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c3", "content": "more"},
                    text("Answer now.", **MARK),
                ],
            },
        ],
        "tools": [{"name": "look", "description": "Look.", "input_schema": LOOK["parameters"]}],
        "output_config": {"effort": "max"},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "service_tier": "auto",
    }
    shapes: dict[str, Any] = {
        "text": types.TextBlockParam, "thinking": types.ThinkingBlockParam,
        "redacted_thinking": types.RedactedThinkingBlockParam, "tool_use": types.ToolUseBlockParam,
        "tool_result": types.ToolResultBlockParam,
    }  # fmt: skip
    contents = [part for message in seen.body["messages"] for part in message["content"]]
    named = [(shapes[part["type"]], part) for part in contents] + [
        (types.TextBlockParam, seen.body["system"][0]),
        (types.ToolParam, seen.body["tools"][0]),
        (types.OutputConfigParam, seen.body["output_config"]),
        (types.ThinkingConfigAdaptiveParam, seen.body["thinking"]),
    ]
    for shape, part in named:
        TypeAdapter(shape).validate_python(part)
        assert set(part) <= set(shape.__annotations__), part


def test_what_is_not_set_is_not_sent(p: Provider) -> None:
    for address in (p.url, f"{p.url}/", f"{p.url}/v1", f"{p.url}/v1/"):
        backend = MessagesBackend(address, temperature=0.5)
        answered(using(backend, attempt))
    assert {seen.path for seen in p.requests} == {"/v1/messages"} and "x-api-key" not in p.requests[0].headers
    assert set(p.requests[0].body) == {"model", "max_tokens", "stream", "system", "messages", "temperature"}
    assert "sk-secret" not in repr(MessagesBackend("http://x", "sk-secret"))


TEXTS = st.text(" \nab🤖", max_size=6)
SAID = st.builds(
    lambda role, said, share, calls: Message(role, said, min(share, len(said)), calls if role == "assistant" else ()),
    st.sampled_from(["system", "user", "user", "assistant", "tool"]),
    TEXTS,
    st.integers(0, 6),
    st.sampled_from([(), CALLS]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(SAID, max_size=12))
def test_no_character_is_lost_and_nothing_is_sent_that_the_vendor_refuses(messages: list[Message]) -> None:
    system, turns = conversation(messages)
    assert all(before["role"] != after["role"] for before, after in pairwise(turns))
    blocks = [*system, *(part for turn in turns for part in turn["content"])]
    assert all(part["text"].strip() for part in blocks if part["type"] == "text")
    assert sum("cache_control" in part for part in blocks) <= 4
    shown = "".join(part.get("text") or part.get("content") or "" for part in blocks)
    ordered = [message for message in messages if message.role == "system"]
    ordered += [message for message in messages if message.role != "system"]
    assert shown == "".join(message.text for message in ordered if message.text.strip())
    plain = conversation(messages, marked=False)
    assert "cache_control" not in json.dumps(plain)


BOTH = {"output_config", "thinking"}


@pytest.mark.parametrize(
    ("words", "effort", "named", "left"),
    [
        ("adaptive thinking is not supported on this model", Effort.LOW, {"thinking"}, {"output_config"}),
        ("thinking.adaptive.display: Extra inputs are not permitted", Effort.LOW, {"thinking"}, {"output_config"}),
        ("This model does not support the effort parameter.", Effort.LOW, BOTH, set()),
        ("output_config: Extra inputs are not permitted", Effort.LOW, BOTH, set()),
        ("`temperature` is deprecated for this model.", None, {"temperature"}, set()),
        ("messages.0.content.0.cache_control: Extra inputs are not permitted", Effort.LOW, {"cache_control"}, BOTH),
        ("thinking, effort and temperature are words of this complaint", None, {"temperature"}, set()),
        ("messages.1.content.0: Invalid `signature` in `thinking` block", Effort.LOW, {"carried"}, BOTH),
        (
            "messages.1.content.0: `thinking` blocks in the latest assistant message cannot be modified.",
            Effort.LOW,
            {"carried"},
            BOTH,
        ),
        ("tools.0.custom.name: String should match pattern", Effort.LOW, set(), BOTH),
    ],
)
def test_a_refused_parameter_is_left_out_from_then_on_for_that_model(
    p: Provider, words: str, effort: Effort | None, named: set[str], left: set[str]
) -> None:
    looked = Message("assistant", "", tool_calls=CALLS[:1], carried=(THOUGHT,))
    asked = request(effort=effort)
    asked = replace(asked, messages=(*asked.messages, looked, Message("tool", "seen", tool_call_id="c1")))
    p.faults = [Trouble(status=400, body=error_data("invalid_request_error", words), nth=1)]

    async def main(backend: Backend) -> None:
        assert isinstance(backend, MessagesBackend) and backend.left_out("bench") == ()
        error = failed(await attempt(backend, asked))
        assert (error.fault, error.message) == (Fault.REJECTED, f"HTTP 400: {words}")
        assert backend.left_out("bench") == tuple(sorted(named)) and not backend.left_out("other")
        for _ in range(2):
            answered(await attempt(backend, asked))

    using(MessagesBackend(p.url, temperature=0.5), main)
    plain = {"model", "max_tokens", "stream", "system", "messages"}
    first, *later = (seen.body for seen in p.requests)
    assert set(first) - plain == (BOTH if effort else {"temperature"}) and "cache_control" in json.dumps(first)
    for body in later:
        # Temperature is refused beside thinking, so it comes in only where thinking is left out.
        assert set(body) - plain - {"temperature"} == left
        assert ("temperature" in body) == ("thinking" not in body and "temperature" not in named)
        assert ("cache_control" in json.dumps(body)) == ("cache_control" not in named)
        assert ("signature" in json.dumps(body)) == ("carried" not in named)


@pytest.mark.parametrize(("status", "kind"), [(529, "overloaded_error"), (404, "not_found_error")])
def test_a_parameter_named_by_a_fault_that_is_no_refusal_of_it_stays(p: Provider, status: int, kind: str) -> None:
    p.faults = [Trouble(status=status, body=error_data(kind, "model: claude-thinking"))]
    backend = MessagesBackend(p.url)
    failed(using(backend, lambda backend: attempt(backend, request(effort=Effort.LOW))))
    assert not backend.left_out("bench")


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_comes_whole_with_its_usage(p: Provider, stream: bool, chunk: int) -> None:
    p.chunk, usage = chunk, Usage(400, 22, 300, None, 60)
    p.script = lambda _: Answer(HARD, reasoning="hm, 🤔", redacted="ZZZ", usage=usage)
    heard: list[str] = []
    assert ask(p, stream=stream, heard=heard) == Response(HARD, Finish.STOP, usage, "hm, 🤔")
    assert "".join(heard) == HARD
    assert not stream or heard.count("") >= 8  # every event is a sign of life, pings and thinking among them


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("said", ["", "Let me look."])
def test_tool_calls_come_whole_and_what_is_carried_goes_back(p: Provider, stream: bool, said: str) -> None:
    p.script = lambda _: Answer(said, reasoning="hm", redacted="ZZZ", tool_calls=CALLS)
    got = answered(ask(p, stream=stream))
    assert (got.text, got.finish, got.tool_calls) == (said, Finish.TOOLS, CALLS)
    assert got.carried == (THOUGHT, HIDDEN)
    _, (back,) = conversation([Message("assistant", got.text, tool_calls=CALLS, carried=got.carried)])
    kinds = [part["type"] for part in back["content"]]
    assert kinds == ["thinking", "redacted_thinking", *(["text"] if said else []), "tool_use", "tool_use"]


def test_thinking_between_text_and_tools_goes_back_in_its_place(p: Provider) -> None:
    signed = {"type": "signature_delta", "signature": "c2ln"}
    thought = {"type": "thinking", "thinking": "", "signature": ""}
    uses = [{"type": "tool_use", "id": f"c{number}", "name": "look", "input": {}} for number in range(3)]
    pieces = [
        block(0, thought, {"type": "thinking_delta", "thinking": "a"}, signed),
        says("one ", 1),
        block(2, uses[0], {"type": "input_json_delta", "partial_json": '{"x": 1}'}),
        block(3, thought, signed),
        says("two", 4),
        block(5, uses[1]),
        block(6, uses[2]),
    ]
    got = answered(sent(p, events(start(), *chain(*pieces), end("tool_use"), STOP)))
    kept = got.tool_calls[:2]  # as when a model wishes for more than is allowed
    _, (back,) = conversation([Message("assistant", got.text, tool_calls=kept, carried=got.carried)])
    first = {"type": "thinking", "thinking": "a", "signature": "c2ln"}
    used = [{**uses[0], "input": {"x": 1}}, uses[1]]
    assert back["content"] == [first, text("one "), used[0], {**first, "thinking": ""}, text("two"), used[1]]
    _, (changed,) = conversation([Message("assistant", "cut", tool_calls=kept[1:], carried=got.carried)])
    assert changed["content"] == [first, {**first, "thinking": ""}, text("cut"), uses[1]]


WITHOUT = Usage(3, unreported="output")


@pytest.mark.parametrize(
    ("begun", "ended", "expected"),
    [
        ({"input_tokens": 3, "output_tokens": 1}, {"output_tokens": 4}, Usage(3, 4)),
        ({"input_tokens": 3, "output_tokens": 1}, {}, WITHOUT),
        ({"input_tokens": 3}, {"output_tokens": None}, WITHOUT),
        ({"input_tokens": 3}, {"output_tokens": -4}, WITHOUT),
        ({"input_tokens": 3}, {"output_tokens": 4.5}, WITHOUT),
        ({"input_tokens": 3}, {"output_tokens": 0}, Usage(3, 0)),
        ({"input_tokens": 3}, {"input_tokens": 0, "output_tokens": 4}, Usage(3, 4)),
        ({"input_tokens": 0}, {"input_tokens": 9, "output_tokens": 4}, Usage(9, 4)),
        ({"input_tokens": 0, "cache_read_input_tokens": 5}, {"output_tokens": 4}, Usage(5, 4, 5)),
        (
            {"input_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 7},
            {"output_tokens": 4},
            Usage(14, 4, 5, cache_write_tokens=7),
        ),
        ({"input_tokens": 2, "cache_read_input_tokens": 10**12}, {"output_tokens": 4}, Usage(2, 4)),
        ({"cache_read_input_tokens": 5}, {"output_tokens": 4}, Usage(0, 4, unreported="input")),
        ({"input_tokens": "3"}, {"output_tokens": True}, None),
        ({}, {}, None),
    ],
)
def test_usage_is_the_whole_prompt_and_odd_usage_never_money(
    p: Provider, begun: Any, ended: Any, expected: Usage | None
) -> None:
    assert answered(sent(p, events(start(**begun), *says("x"), end(**ended), STOP))).usage == expected


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("tool_use", Finish.TOOLS),
        ("refusal", Finish.REFUSAL),
        ("pause_turn", Fault.TRUNCATED),
        ("compaction", Fault.TRUNCATED),
        (None, Fault.TRUNCATED),
    ],
)
def test_reasons_for_the_end(p: Provider, reason: str | None, finish: Finish | Fault) -> None:
    whole = json.dumps({"type": "message", "content": [text("x")], "stop_reason": reason}).encode()
    streamed = events(start(), *says("x"), end(reason), STOP)
    for body, kind in ((streamed, EVENTS["Content-Type"]), (whole, "application/json")):
        outcome = sent(p, body, kind=kind)
        assert (outcome.fault if isinstance(outcome, BackendError) else outcome.finish) is finish
        assert outcome.text == "x" and (reason or "end") in str(getattr(outcome, "message", reason))


@pytest.mark.parametrize(
    ("details", "said", "shown"),
    [
        ({"type": "refusal", "category": "bio", "explanation": "Not this."}, "", "Not this."),
        ({"type": "refusal", "category": "bio", "explanation": None}, "", "bio"),
        ({"type": "refusal", "category": "bio", "explanation": "Not this."}, "I beg", "I beg"),
        (None, "", ""),
    ],
)
def test_a_refusal_says_why(p: Provider, details: Any, said: str, shown: str) -> None:
    stopped = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": details}}
    got = answered(sent(p, events(start(), *(says(said) if said else []), stopped, STOP)))
    assert (got.finish, got.text) == (Finish.REFUSAL, shown)


WHOLE = [start(input_tokens=7), *says(HARD), end(output_tokens=9)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(events(*WHOLE), id="no end mark"),
        pytest.param(events(*WHOLE)[:-1], id="last event without its blank line"),
        pytest.param(events(*WHOLE, STOP, "after the end"), id="what follows the end"),
        pytest.param(events(*WHOLE, "[DONE]"), id="another protocol's end mark"),
        pytest.param(events(*WHOLE, STOP).replace(b"event: x\n", b""), id="data alone"),
        pytest.param(events({"type": "ping"}, *WHOLE, {"type": "error", "error": {}}, STOP), id="error after all"),
        pytest.param(events({"type": "new"}, {}, *WHOLE[:1], {"type": "content_block_delta"}, *WHOLE[1:]), id="new"),
        pytest.param(events(WHOLE[0], *WHOLE[2:], STOP), id="a block without its start"),
        pytest.param(events(WHOLE[0], *block(0, text(HARD)), WHOLE[-1], STOP), id="text in the start"),
        pytest.param(
            events(WHOLE[0], *({k: v for k, v in e.items() if k != "index"} for e in WHOLE[1:])), id="no number"
        ),
    ],
)
def test_streams_in_all_spellings_cut_up_anywhere(p: Provider, body: bytes) -> None:
    for drip in (None, 0.0):  # in one piece, and byte by byte
        got = answered(sent(p, body, drip=drip))
        assert (got.text, got.usage) == (HARD, Usage(7, 9))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"null", "application/json"),
        (b'{"content": ' * 100_000, "application/json"),
        (events("<html>"), "text/event-stream"),
        (events("[]"), "text/event-stream"),
    ],
)
def test_what_is_not_the_protocol_is_malformed(p: Provider, body: bytes, kind: str) -> None:
    assert failed(sent(p, body, kind=kind)).fault is Fault.MALFORMED


@pytest.mark.parametrize("odd", [None, 3, "x", [], [None], {"type": 3}, {"type": "tool_use", "id": 5, "input": [1]}])
def test_nonsense_in_the_protocol_is_no_crash(p: Provider, odd: Any) -> None:
    named = ("message", "index", "content_block", "delta", "usage", "error", "content", "stop_reason")
    kinds = ("message_start", "content_block_start", "content_block_delta", "message_delta", "ping")
    odds = [{"type": kind, **dict.fromkeys(named, odd)} for kind in kinds]
    plain = [{name: value for name, value in event.items() if name not in ("error", "stop_reason")} for event in odds]
    got = answered(sent(p, events(*plain, *WHOLE, STOP)))
    assert got.text == HARD and got.finish is Finish.STOP
    for body, kind in ((events(*odds), "text/event-stream"), (json.dumps(odds[0]).encode(), "application/json")):
        assert isinstance(sent(p, body, kind=kind), Response | BackendError)


def test_characters_cut_into_halves_are_put_together(p: Provider) -> None:
    halves = [*says("a\ud83e"), *says("\udd16b", 1)]
    assert answered(sent(p, events(*(json.dumps(half) for half in [*halves, end(), STOP])))).text == "a🤖b"
    odd = [*block(0, {**THOUGHT, "thinking": "\ud83e"}), *block(1, {"type": "tool_use", "id": "c", "name": "n"})]
    carried = answered(sent(p, events(*(json.dumps(item) for item in [*odd, end("tool_use")])))).carried
    assert json.dumps(carried, ensure_ascii=False).encode()


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst", "end"])
def test_a_stream_cut_anywhere_is_never_a_complete_answer(p: Provider, how: Any) -> None:
    p.script = lambda _: Answer(HARD, reasoning="hm", tool_calls=CALLS[:1], usage=Usage(7, 9, 3))
    p.chunk = 20
    whole = client.ask(p, client.MESSAGES, stream=True)[1]
    finish = whole.index(b'"stop_reason": "tool_use"')
    end_of_finish = whole.index(b"\n\n", finish) + 2
    positions = sorted({*range(0, len(whole), 37), *range(finish - 20, finish + 20)})

    async def cut(backend: Backend) -> list[Outcome]:
        found = []
        for position in positions:
            p.faults = [Trouble(cut=position, how=how)]
            found.append(await attempt(backend))
        return found

    outcomes: list[Outcome] = using(MessagesBackend(p.url), cut)
    for position, outcome in zip(positions, outcomes, strict=True):
        if isinstance(outcome, BackendError):
            # A reset may overtake the bytes before it, the headers among them.
            lost = {Fault.TRUNCATED} if how != "rst" else {Fault.TRUNCATED, Fault.NETWORK}
            assert outcome.fault in lost and (position < end_of_finish or how == "rst"), (position, outcome.message)
            assert HARD.startswith(outcome.text) and outcome.usage in (None, Usage(7, 0, 3, unreported="output"))
        else:
            assert position >= end_of_finish - 2, position
            assert (outcome.text, outcome.tool_calls, outcome.usage) == (HARD, CALLS[:1], Usage(7, 9, 3))


@pytest.mark.parametrize(
    ("kind", "message", "fault"),
    [
        ("overloaded_error", "Overloaded", Fault.OVERLOADED),
        ("api_error", "Internal server error", Fault.OVERLOADED),
        ("timeout_error", "Request timed out", Fault.OVERLOADED),
        ("rate_limit_error", "This request would exceed your organization's rate limit", Fault.RATE_LIMITED),
        ("authentication_error", "invalid x-api-key", Fault.DENIED),
        ("permission_error", "Your key may not", Fault.DENIED),
        ("billing_error", "Please pay", Fault.USED_UP),
        ("invalid_request_error", "messages: at least one message is required", Fault.REJECTED),
        ("not_found_error", "model: claude-1", Fault.REJECTED),
        ("request_too_large", "Request exceeds the maximum size", Fault.OVERFLOW),
        ("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum", Fault.OVERFLOW),
    ],
)
def test_errors_inside_a_stream_and_a_whole_answer(p: Provider, kind: str, message: str, fault: Fault) -> None:
    data = error_data(kind, message)
    error = failed(sent(p, events(start(input_tokens=3), *says("half"), data)))
    assert (error.fault, error.message, error.text) == (fault, message, "half")
    assert error.usage == WITHOUT
    assert failed(sent(p, json.dumps(data).encode(), kind="application/json")).fault is fault
    bare = {"type": "error", "code": data["error"]["type"], "message": message}  # as some gateways write it
    assert failed(sent(p, events(start(), bare))).message == message


@pytest.mark.parametrize(
    ("status", "kind", "message", "fault"),
    [
        (
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API.",
            "quota-used-up",
        ),
        (402, "billing_error", "Please pay", "quota-used-up"),
        (429, "rate_limit_error", "contract_spend_limit_reached", "quota-used-up"),
        (429, "rate_limit_error", "This request would exceed your rate limit of 30,000 input tokens", "rate-limited"),
        (400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum", "overflow"),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000",
            "overflow",
        ),
        (413, "request_too_large", "Request exceeds the maximum size", "overflow"),
        (400, "invalid_request_error", "max_tokens: 64000 > 32000, which is the maximum allowed", "rejected"),
        (529, "overloaded_error", "Overloaded", "overloaded"),
    ],
)
def test_errors_by_status(status: int, kind: str, message: str, fault: str) -> None:
    assert classify(status, json.dumps(error_data(kind, message))) == Fault(fault)


def test_the_wait_that_a_provider_asks_for_is_told(p: Provider) -> None:
    p.faults = [Trouble(status=429, headers={"retry-after": "7"})]
    error = failed(ask(p))
    assert (error.fault, error.retry_after, len(p.requests)) == (Fault.RATE_LIMITED, 7.0, 1)


# -- the prompt cache ------------------------------------------------------------------------------


def test_eight_voices_write_what_they_share_once(p: Provider) -> None:
    p.cache = PromptCache(minimum=1000)
    shared, own = "all of it " * 800, "your role: "

    def voice(number: int, *more: Message, effort: Effort = Effort.LOW) -> Request:
        asked = Message("user", f"{shared}{own}{number}", shared=len(shared))
        system = Message("system", "Be brief.", shared=9)
        return Request("bench", (system, asked, *more), 99, tools=(LOOK,), effort=effort)

    def round_of(size: int, name: str) -> list[Message]:
        calls = tuple(ToolCall(f"{name}{number}", "look", "{}") for number in range(size))
        results = [Message("tool", "seen " * 100, tool_call_id=call.id) for call in calls]
        return [Message("assistant", "", tool_calls=calls), *results]

    first, second = round_of(2, "a"), round_of(15, "b")
    asked = [*map(voice, range(8)), voice(1, *first), voice(1, *first, *second), voice(9, effort=Effort.HIGH)]

    async def main(backend: Backend) -> list[Usage | None]:
        return [answered(await attempt(backend, one)).usage for one in asked]

    *voices, looked, again, harder = (usage for usage in using(MessagesBackend(p.url), main) if usage)
    assert (voices[0].cached_tokens, voices[0].cache_write_tokens) == (0, voices[0].input_tokens)
    common = voices[1].cached_tokens
    assert 2000 < common < voices[1].input_tokens
    for usage in voices[1:]:  # each writes its own part, for its next round
        assert (usage.cached_tokens, usage.cache_write_tokens) == (common, usage.input_tokens - common)
    assert looked.cached_tokens == voices[1].input_tokens and looked.cache_write_tokens > 200
    assert again.cached_tokens == looked.cached_tokens + looked.cache_write_tokens  # also over more than 20 blocks
    assert again.input_tokens == again.cached_tokens + again.cache_write_tokens
    # Another effort is another cache, as the vendor says.
    assert (harder.cached_tokens, harder.cache_write_tokens) == (0, harder.input_tokens)


def test_without_tools_only_what_is_shared_is_written(p: Provider) -> None:
    p.cache = PromptCache(minimum=1000)
    shared = "all of it " * 800
    asked = [Request("bench", (Message("user", f"{shared}{number}", shared=len(shared)),), 99) for number in "12"]

    async def main(backend: Backend) -> list[Usage | None]:
        return [answered(await attempt(backend, one)).usage for one in asked]

    first, second = (usage for usage in using(MessagesBackend(p.url), main) if usage)
    assert first.cached_tokens == 0 and first.cache_write_tokens == second.cached_tokens == 2000
    assert second.cache_write_tokens == 0


# -- the loopback provider, as the vendor's own client sees it -------------------------------------


def by_sdk(p: Provider, stream: bool, **more: Any) -> types.Message:
    """One answer of the provider through the vendor's client."""

    async def main() -> types.Message:
        async with anthropic.AsyncAnthropic(base_url=p.url, api_key="sk-ant-x", max_retries=0) as sdk:
            asked: dict[str, Any] = {
                "model": "bench", "max_tokens": 99, "messages": [{"role": "user", "content": "why?"}], **more,
            }  # fmt: skip
            if not stream:
                return await sdk.messages.create(**asked)  # type: ignore[no-any-return]
            async with sdk.messages.stream(**asked) as told:
                return await told.get_final_message()

    return asyncio.run(main())


def shown(message: types.Message) -> Sequence[dict[str, Any]]:
    return [part.model_dump(exclude_unset=True, exclude={"citations", "caller"}) for part in message.content]


@pytest.mark.parametrize("stream", [True, False])
def test_the_vendor_s_client_reads_the_loopback_provider(p: Provider, stream: bool) -> None:
    p.chunk = 7
    p.script = lambda _: Answer(HARD, "hm", CALLS, redacted="ZZZ", usage=Usage(400, 22, 300, None, 60))
    message = by_sdk(p, stream, tools=[{"name": "look", "input_schema": {"type": "object"}}])
    uses = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)} for call in CALLS
    ]
    assert [{key: part[key] for key in part if key != "parsed_output"} for part in shown(message)] == [
        THOUGHT, HIDDEN, text(HARD), *uses,
    ]  # fmt: skip
    assert message.stop_reason == "tool_use"
    usage = message.usage
    counts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    assert (*counts, usage.output_tokens) == (40, 300, 60, 22)
    p.script = lambda _: Answer(refusal="Not this.")
    refused = by_sdk(p, stream)
    assert refused.stop_reason == "refusal" and refused.content == []
    assert refused.stop_details and refused.stop_details.explanation == "Not this."


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (Trouble(status=400), anthropic.BadRequestError),
        (Trouble(status=401), anthropic.AuthenticationError),
        (Trouble(status=403), anthropic.PermissionDeniedError),
        (Trouble(status=404), anthropic.NotFoundError),
        (Trouble(status=413), anthropic.APIStatusError),
        (Trouble(status=429), anthropic.RateLimitError),
        (Trouble(status=529), anthropic.APIStatusError),
        (Trouble(stream_error="overloaded_error"), anthropic.APIStatusError),
        (Trouble(drop=True), anthropic.APIConnectionError),
    ],
)
def test_the_vendor_s_client_knows_the_loopback_provider_s_errors(p: Provider, trouble: Trouble, kind: Any) -> None:
    p.faults = [trouble]
    with pytest.raises(kind) as caught:
        by_sdk(p, stream=True)
    if trouble.status or trouble.stream_error:
        assert caught.value.body["type"] == "error" and caught.value.body["error"]["message"]
