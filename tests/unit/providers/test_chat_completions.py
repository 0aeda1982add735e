"""The Chat Completions client: what it sends, what it accepts as an answer, and what it makes of every fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

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
from cdo.providers.http import transport
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.http.faults import classify
from tests.support import client
from tests.support.backends import EVENTS, Outcome, answered, ask, attempt, failed, request, using
from tests.support.effort import at_most
from tests.support.prompt_cache import PromptCache
from tests.support.provider import OVERFLOW_BODIES, Answer, Provider, http_date
from tests.support.provider import Fault as Trouble

HARD = "Zoë 🤖 says 日本語: “naïve” ≠ 🏳️‍🌈.\n\n| a | b |\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as p:
        yield p


@pytest.fixture
def p(server: Provider) -> Provider:
    server.script, server.faults, server.chunk, server.cache = None, (), 64, None
    server.delivery.between = 0.0
    server.reset()
    return server


def events(*data: Any, end: str = "\n\n") -> bytes:
    """The body of a stream of these events (JSON where not text)."""
    shown = [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in data]
    return "".join(f"data: {item}{end}" for item in shown).encode("utf-8", "surrogatepass")


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def sent(p: Provider, body: bytes, *, kind: str = EVENTS["Content-Type"], **more: Any) -> Outcome:
    """What an answer of exactly these bytes comes to."""
    p.faults = [Trouble(status=200, body=body, headers={"Content-Type": kind}, **more)]
    return ask(p)


# -- what is sent ----------------------------------------------------------------------------------


def test_a_request_carries_prompt_cap_headers_and_key(p: Provider) -> None:
    tool = {"name": "look", "parameters": {"type": "object"}}
    asked = Request(
        "bench",
        (
            Message("system", "Be brief."),
            Message("assistant", "", tool_calls=(ToolCall("c1", "look", '{"at": 1}'),)),
            Message("tool", "seen", tool_call_id="c1"),
        ),
        99,
        {"X-Cdo-Session": "s", "X-Cdo-Call": "t2-critic", "X-Cdo-Kind": "agent", "X-Cdo-Attempt": "3"},
        grammar='root ::= "x"',
        tools=(tool,),
    )
    answered(ask(p, asked, key="sk-1 \n", cap="max_completion_tokens", temperature=0.5, extra={"seed": 7}))
    (seen,) = p.requests
    assert (seen.path, seen.call, seen.attempt) == ("/v1/chat/completions", "t2-critic", 3)
    assert seen.headers["Authorization"] == "Bearer sk-1"
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    assert seen.body == {
        "model": "bench",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "content": "seen", "tool_call_id": "c1"},
        ],
        "stream": True,
        "max_completion_tokens": 99,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "tools": [{"type": "function", "function": tool}],
        "grammar": 'root ::= "x"',
        "seed": 7,
    }


def test_what_is_not_set_is_not_sent(p: Provider) -> None:
    answered(ask(p, usage=False))
    assert set(p.requests[0].body) == {"model", "messages", "stream", "max_tokens"}
    assert "Authorization" not in p.requests[0].headers


def test_the_environments_proxy_is_used_except_for_this_machine(p: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider plays the proxy of an address that nothing answers under."""
    monkeypatch.setenv("HTTP_PROXY", p.url.removesuffix("/v1"))
    monkeypatch.delenv("NO_PROXY", raising=False)
    backend = ChatBackend("http://models.invalid/v1", "sk")
    answered(using(backend, attempt))
    assert p.requests[-1].headers["Host"] == "models.invalid"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
    answered(ask(p))
    backend = ChatBackend("http://models.invalid/v1", "sk")
    fault = failed(using(backend, attempt))
    assert fault.fault is Fault.NETWORK
    assert f"no connection to the proxy 127.0.0.1:{port} (HTTP_PROXY, HTTPS_PROXY)" in str(fault)


def test_the_key_is_not_shown_with_the_backend() -> None:
    assert "sk-secret" not in repr(ChatBackend("http://x", "sk-secret"))


def test_prompts_over_a_megabyte_arrive_whole(p: Provider) -> None:
    prompt = f"{HARD * 80_000}the end"
    assert len(prompt.encode()) > 4 * 2**20
    answered(ask(p, request(prompt)))
    assert p.requests[0].prompt == f"Be brief.\n\n{prompt}"


def test_half_a_character_in_a_prompt_does_not_stop_the_request(p: Provider) -> None:
    answered(ask(p, request("a\ud83db")))
    assert p.requests[0].prompt.endswith("a?b")


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_comes_whole_with_its_usage(p: Provider, stream: bool, chunk: int) -> None:
    p.chunk, p.script = chunk, lambda _: Answer(HARD, reasoning="hm, 🤔", usage=Usage(11, 22))
    heard: list[str] = []
    assert ask(p, stream=stream, heard=heard) == Response(HARD, Finish.STOP, Usage(11, 22), "hm, 🤔")
    assert "".join(heard) == HARD
    assert len(p.requests) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ("", Usage(400, 100)),
        ("cached", Usage(400, 100, 300)),
        ("cost", Usage(400, 100, 0, 0.00125)),
        ("zero", None),
        ("none", None),
    ],
)
def test_usage_is_what_the_provider_counted(p: Provider, usage: Any, expected: Usage | None, stream: bool) -> None:
    p.script = lambda _: Answer("yes", usage=Usage(400, 100))
    p.faults = [Trouble(usage=usage)]
    assert answered(ask(p, stream=stream)).usage == expected


WITHOUT = Usage(3, unreported="output")


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ('{"prompt_tokens": 3, "completion_tokens": 4}', Usage(3, 4)),
        ('{"prompt_tokens": 3, "completion_tokens": null, "cost": "0.1"}', WITHOUT),
        ('{"prompt_tokens": 3, "completion_tokens": 4, "cost": 0}', Usage(3, 4, 0, 0.0)),
        ('{"prompt_tokens": 3, "completion_tokens": 4, "cost": NaN}', Usage(3, 4)),
        ('{"prompt_tokens": 3, "completion_tokens": Infinity, "cost": Infinity}', WITHOUT),
        ('{"prompt_tokens": 3, "completion_tokens": 4.5}', WITHOUT),
        ('{"prompt_tokens": 3, "completion_tokens": -4}', WITHOUT),
        ('{"prompt_tokens": 3, "completion_tokens": 5000000000}', WITHOUT),
        ('{"prompt_tokens": 3.0, "completion_tokens": 0}', Usage(3, 0)),
        ('{"prompt_tokens": 0, "completion_tokens": 4}', Usage(0, 4, unreported="input")),
        ('{"prompt_tokens": 3, "completion_tokens": 4, "cost": -1}', Usage(3, 4)),
        ('{"prompt_tokens": -3, "completion_tokens": true}', None),
        ('{"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1e400}}', WITHOUT),
        ('{"prompt_tokens": 3, "prompt_tokens_details": []}', WITHOUT),
        ("[]", None),
        ("null", None),
    ],
)
def test_odd_usage_is_never_money_or_a_crash(p: Provider, reported: str, expected: Usage | None) -> None:
    body = events(delta("stop", content="x"), f'{{"choices": [], "usage": {reported}}}', "[DONE]")
    assert answered(sent(p, body)).usage == expected


def test_usage_may_come_with_every_chunk_and_the_last_one_counts(p: Provider) -> None:
    chunks = [{**delta(content="x"), "usage": {"prompt_tokens": 9, "completion_tokens": n}} for n in (1, 2, 3)]
    assert answered(sent(p, events(*chunks, delta("stop"), "[DONE]"))).usage == Usage(9, 3)


CALLS = (ToolCall("c1", "look", '{"at": "日本", "deep": [1, 2]}'), ToolCall("c2", "stop", "{}"))


@pytest.mark.parametrize("text", ["", "Let me look."])
@pytest.mark.parametrize("stream", [True, False])
def test_tool_calls_come_whole(p: Provider, stream: bool, text: str) -> None:
    p.script = lambda _: Answer(text, tool_calls=CALLS)
    got = answered(ask(p, stream=stream))
    assert (got.text, got.finish, got.tool_calls) == (text, Finish.TOOLS, CALLS)


def tool(arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    named = {"name": fields.pop("name")} if "name" in fields else {}
    return {**fields, "function": {**named, "arguments": arguments}}


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(
            [[tool(id="a", name="f", index=0), tool(id="b", name="g", index=1)]],
            [("a", "f", "{}"), ("b", "g", "{}")],
            id="whole, in one chunk",
        ),
        pytest.param(
            [[tool(id="a", name="f", index=0)], [tool(id="b", name="g", index=0)]],
            [("a", "f", "{}"), ("b", "g", "{}")],
            id="every call numbered 0",
        ),
        pytest.param(
            [[tool("", id="a", name="f", index=0)], [tool('{"x"', id="a", index=0)], [tool(":1}", id="a", index=0)]],
            [("a", "f", '{"x":1}')],
            id="id with every piece",
        ),
        pytest.param(
            [[tool(id="a", name="f")], [tool(id="b", name="g")]],
            [("a", "f", "{}"), ("b", "g", "{}")],
            id="no numbers",
        ),
        pytest.param([[tool({"x": [1]}, id="a", name="f", index=0)]], [("a", "f", '{"x": [1]}')], id="object"),
        pytest.param([[tool(None, id="a", name="f", index=3)]], [("a", "f", "")], id="no arguments"),
        pytest.param([["f", None, 3, {"function": "f"}], 5, {"a": 1}], [("", "", "")], id="nonsense"),
    ],
)
def test_tool_calls_in_the_ways_providers_write_them(p: Provider, pieces: list[Any], expected: list[Any]) -> None:
    body = events(*(delta(tool_calls=piece) for piece in pieces), delta("tool_calls"), "[DONE]")
    got = answered(sent(p, body)).tool_calls
    assert [(call.id, call.name, call.arguments) for call in got] == expected


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", Finish.STOP),
        ("STOP", Finish.STOP),
        ("end_turn", Finish.STOP),
        ("length", Finish.LENGTH),
        ("MAX_TOKENS", Finish.LENGTH),
        ("model_length", Finish.LENGTH),
        ("content_filter", Finish.REFUSAL),
        ("SAFETY", Finish.REFUSAL),
        ("tool_calls", Finish.TOOLS),
    ],
)
def test_reasons_for_the_end(p: Provider, reason: str, finish: Finish) -> None:
    assert answered(sent(p, events(delta(content="x"), delta(reason), "[DONE]"))).finish is finish


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource", "¿?"])
def test_an_unknown_reason_for_the_end_is_not_an_answer(p: Provider, reason: str) -> None:
    error = failed(sent(p, events(delta(content="x"), delta(reason), "[DONE]")))
    assert error.fault is Fault.TRUNCATED and reason in error.message and error.text == "x"


# -- how streams are written -----------------------------------------------------------------------

STREAM = (delta(role="assistant", content=""), delta(content=HARD[:9]), delta(content=HARD[9:]), delta("stop"))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(events(*STREAM, "[DONE]"), id="plain"),
        pytest.param(events(*STREAM, "[DONE]", end="\r\n\r\n"), id="CRLF"),
        pytest.param(events(*STREAM, "[DONE]").replace(b"data: ", b"data:"), id="no space"),
        pytest.param(events(*STREAM, "[DONE]").replace(b"data: ", b"event: x\nid: 1\nretry: 9\ndata: "), id="fields"),
        pytest.param(
            b": hi\n\n" + events(*STREAM).replace(b"\n\n", b"\n\n: OPENROUTER PROCESSING\n\n"), id="comments"
        ),
        pytest.param(events(*STREAM), id="no end mark"),
        pytest.param(events(*STREAM, "[DONE]").rstrip(b"\n"), id="last event without its blank line"),
        pytest.param(events(*STREAM)[:-1], id="last event without its blank line, no end mark"),
        pytest.param(events(*STREAM, "[DONE]", "after the end"), id="what follows the end mark"),
        pytest.param(events(*STREAM).replace(b', "finish', b',\ndata: "finish'), id="data over two lines"),
        pytest.param(
            b"\n\n" + events({}, {"choices": None}, {"choices": [None]}, *STREAM, "[DONE]"), id="empty chunks"
        ),
    ],
)
def test_streams_in_all_spellings_cut_up_anywhere(p: Provider, body: bytes) -> None:
    for drip in (None, 0.0):  # in one piece, and byte by byte
        assert answered(sent(p, body, drip=drip)).text == HARD


def test_characters_cut_into_halves_are_put_together(p: Provider) -> None:
    halves = [json.dumps(delta(content=half)) for half in ("a\ud83e", "\udd16b")]
    assert answered(sent(p, events(*halves, delta("stop"), "[DONE]"))).text == "a🤖b"
    lonely = answered(sent(p, events(halves[0], delta("stop"), "[DONE]"))).text
    assert lonely.startswith("a") and lonely.encode()


def test_bytes_that_are_not_utf_8_do_not_break_an_answer(p: Provider) -> None:
    got = answered(sent(p, events(delta(content="a?b"), delta("stop"), "[DONE]").replace(b"a?b", b"a\xff\xc3b")))
    assert got.text[0] == "a" and got.text[-1] == "b"


def test_signs_of_life_are_told(p: Provider) -> None:
    heard: list[str] = []
    p.faults = [Trouble(status=200, headers=EVENTS, body=b": wait\n\n" + events(delta(reasoning="hm"), *STREAM))]
    answered(ask(p, heard=heard))
    assert heard == ["", "", "", HARD[:9], HARD[9:], ""]


def test_content_parts_are_joined(p: Provider) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, "x", {"type": "text", "text": None}, {"text": "b"}]
    assert answered(sent(p, events(delta(content=parts), delta("stop")))).text == "ab"


@pytest.mark.parametrize("size", [2**20, 5 * 2**20])
@pytest.mark.parametrize("stream", [True, False])
def test_huge_answers_come_whole(p: Provider, stream: bool, size: int) -> None:
    p.chunk, text = 2**16, "0123456789abcdef" * (size // 16)
    p.script = lambda _: Answer(text)
    assert answered(ask(p, stream=stream)).text == text


def test_an_answer_without_end_is_given_up(p: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BODY", 100_000)
    monkeypatch.setattr(transport, "MAX_STREAM", 300_000)
    many, long = [delta(content="x" * 900)] * 400, delta(content="x" * 200_000)
    for body, kind in (
        (events(*many, delta("stop")), "text/event-stream"),
        (events(long, delta("stop")), "text/event-stream"),
        (b'{"choices": "' + b"x" * 200_000 + b'"}', "application/json"),
    ):
        error = failed(sent(p, body, kind=kind))
        assert error.fault is Fault.MALFORMED and "larger than" in error.message
    many[300:] = []
    assert len(answered(sent(p, events(*many, delta("stop")))).text) == 270_000


def test_one_long_line_costs_linear_time(p: Provider) -> None:
    body = events(delta(content="x" * (transport.MAX_BODY - 1000)), delta("stop"))
    with at_most(1.5):
        assert len(answered(sent(p, body)).text) == transport.MAX_BODY - 1000


# -- the end of an answer --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst", "end"])
def test_a_stream_cut_anywhere_is_never_a_complete_answer(p: Provider, how: Any) -> None:
    p.script = lambda _: Answer(HARD * 3, reasoning="hm", usage=Usage(7, 9))
    p.chunk = 20
    whole = client.ask(p, stream=True)[1]
    finish = whole.index(b'"finish_reason": "stop"')
    end_of_finish = whole.index(b"\n\n", finish) + 2
    positions = sorted(
        {round(index * len(whole) / 150) for index in range(150)} | set(range(finish - 40, finish + 40))
    )
    backend = ChatBackend(p.url)

    async def cut(backend: Backend) -> list[Outcome]:
        found = []
        for position in positions:
            p.faults = [Trouble(cut=position, how=how)]
            found.append(await attempt(backend))
        return found

    outcomes: list[Outcome] = using(backend, cut)
    assert len(positions) >= 200
    for position, outcome in zip(positions, outcomes, strict=True):
        if isinstance(outcome, BackendError):
            # A reset may overtake the bytes before it, the headers among them.
            lost = {Fault.TRUNCATED} if how != "rst" else {Fault.TRUNCATED, Fault.NETWORK}
            assert outcome.fault in lost, (position, outcome.message)
            assert position < end_of_finish or how == "rst"
            assert (HARD * 3).startswith(outcome.text)
        else:
            assert position >= end_of_finish - 2, position  # its line is whole, though the blank line after it is not
            assert (outcome.text, outcome.finish) == (HARD * 3, Finish.STOP)
            assert outcome.usage in (None, Usage(7, 9))


@pytest.mark.parametrize("answer", [Answer("", refusal="I'm sorry, no."), Answer("", tool_calls=CALLS)])
def test_refusals_and_tool_calls_cut_short_are_not_complete(p: Provider, answer: Answer) -> None:
    p.script, p.chunk = lambda _: answer, 6
    whole = client.ask(p, stream=True)[1]
    finish = whole.index(b'"finish_reason": "')
    for position in range(0, finish, 23):
        p.faults = [Trouble(cut=position, how="end")]
        assert failed(ask(p)).fault is Fault.TRUNCATED


@pytest.mark.parametrize("how", ["fin", "rst", "end"])
def test_a_whole_answer_cut_anywhere_is_not_accepted(p: Provider, how: Any) -> None:
    size = len(client.ask(p)[1])
    for position in range(0, size, 97):
        p.faults = [Trouble(cut=position, how=how)]
        assert failed(ask(p, stream=False)).fault in (Fault.TRUNCATED, Fault.MALFORMED, Fault.NETWORK)


def test_what_came_before_a_cut_is_kept_for_the_record(p: Provider) -> None:
    first = {**delta(content="half an answer"), "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    error = failed(sent(p, events(first, delta(content="lost")), cut=len(events(first)) + 10))
    assert (error.text, error.usage) == ("half an answer", Usage(5, 2))
    assert "the connection broke" in error.message


@pytest.mark.parametrize(
    ("shape", "stream", "expected"),
    [
        ("no-finish", True, Fault.TRUNCATED),
        ("no-finish", False, Fault.TRUNCATED),
        ("no-done", True, Finish.STOP),
        ("no-choices", True, Fault.EMPTY),
        ("no-choices", False, Fault.EMPTY),
        ("empty", True, Finish.STOP),
        ("empty", False, Finish.STOP),
        ("reasoning-only", True, Finish.STOP),
        ("reasoning-only", False, Finish.STOP),
        ("length", True, Finish.LENGTH),
        ("length", False, Finish.LENGTH),
        ("content-filter", True, Finish.REFUSAL),
        ("content-filter", False, Finish.REFUSAL),
        ("refusal", True, Finish.REFUSAL),
        ("refusal", False, Finish.REFUSAL),
        ("malformed", True, Fault.MALFORMED),
        ("malformed", False, Fault.MALFORMED),
        ("html", True, Fault.MALFORMED),
        ("html", False, Fault.MALFORMED),
    ],
)
def test_shapes_of_an_answer(p: Provider, shape: Any, stream: bool, expected: Fault | Finish) -> None:
    p.faults = [Trouble(shape=shape)]
    outcome = ask(p, stream=stream)
    assert (outcome.fault if isinstance(outcome, BackendError) else outcome.finish) is expected
    assert len(p.requests) == 1
    if isinstance(outcome, Response):
        assert outcome.usage and outcome.usage.measured
        assert bool(outcome.text) == (shape not in ("empty", "reasoning-only"))
        assert bool(outcome.reasoning) == (shape == "reasoning-only")
    if shape == "refusal":
        assert answered(outcome).text == "I'm sorry, but I can't help with that request."


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"null", "application/json"),
        (b"[]", "application/json"),
        (b'"text"', "application/json"),
        (b"[" * 200_000, "application/json"),
        (b'{"a":' * 200_000, "application/json"),
        (events("{}", "[" * 200_000, "{}"), "text/event-stream"),
        (events("null"), "text/event-stream"),
        (events("<html>"), "text/event-stream"),
        (events('{"n": 1' + "0" * 5000 + "}", "x"), "text/event-stream"),
    ],
)
def test_what_is_not_the_protocol_is_malformed(p: Provider, body: bytes, kind: str) -> None:
    assert failed(sent(p, body, kind=kind)).fault is Fault.MALFORMED


@pytest.mark.parametrize("body", [b"", b"\n\n", b": wait\n\n", b"event: x\n\n", b'{"error": {"message": "x"}}\n'])
def test_a_stream_of_nothing_is_truncated(p: Provider, body: bytes) -> None:
    assert failed(sent(p, body)).fault is Fault.TRUNCATED


def test_no_http_at_all_is_malformed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
        writer.close()

    async def main() -> Outcome:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            backend = ChatBackend(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            try:
                return await attempt(backend)
            finally:
                await backend.close()

    assert failed(asyncio.run(main())).fault is Fault.MALFORMED


# -- errors by status ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (400, Fault.REJECTED),
        (401, Fault.DENIED),
        (402, Fault.USED_UP),
        (403, Fault.DENIED),
        (404, Fault.REJECTED),
        (408, Fault.OVERLOADED),
        (409, Fault.OVERLOADED),
        (413, Fault.OVERFLOW),
        (422, Fault.REJECTED),
        (425, Fault.OVERLOADED),
        (429, Fault.RATE_LIMITED),
        (500, Fault.OVERLOADED),
        (502, Fault.OVERLOADED),
        (503, Fault.OVERLOADED),
        (504, Fault.OVERLOADED),
        (529, Fault.OVERLOADED),
        (302, Fault.REJECTED),
        (204, Fault.REJECTED),
    ],
)
def test_statuses(p: Provider, status: int, fault: Fault) -> None:
    p.faults = [Trouble(status=status, headers={"Location": "/elsewhere"} if status == 302 else {})]
    error = failed(ask(p))
    assert error.fault is fault and error.message.startswith(f"HTTP {status}: ")
    assert len(p.requests) == 1  # neither retried nor redirected


@pytest.mark.parametrize("overflow", OVERFLOW_BODIES, ids=lambda overflow: overflow.provider)
def test_ten_ways_to_say_that_the_prompt_is_too_long(p: Provider, overflow: Any) -> None:
    p.faults = [Trouble(status=overflow.status, body=overflow.body)]
    error = failed(ask(p))
    assert error.fault is Fault.OVERFLOW and len(p.requests) == 1
    inside = events({"error": {"message": json.dumps(overflow.body), "code": overflow.status}})
    assert failed(sent(p, inside)).fault is Fault.OVERFLOW


@pytest.mark.parametrize(
    ("status", "text", "fault"),
    [
        (
            429,
            "Rate limit reached for input tokens per minute. Limit: 50000. The context window is 8k",
            "rate-limited",
        ),
        (429, "Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 42000", "overflow"),
        (429, "Too many tokens, please wait before trying again.", "rate-limited"),
        (429, '{"code": "insufficient_quota", "message": "You exceeded your current quota"}', "quota-used-up"),
        (429, "You exceeded your current quota, please check your plan", "rate-limited"),  # Gemini, by the minute
        (400, "Your credit balance is too low to access the Anthropic API. Please go to Plans", "quota-used-up"),
        (400, "You have reached your specified API usage limits. You will regain access on", "quota-used-up"),
        (402, "This request requires more credits, or fewer max_tokens.", "quota-used-up"),
        (403, "Your team has used all available credits or reached its monthly spending limit", "quota-used-up"),
        (429, "You exceeded your current quota. {'quotaId': 'RequestsPerDayPerProject-FreeTier'}", "quota-used-up"),
        (429, "Quota exceeded for metric: free_tier_requests, limit: 0, model: gemini-pro", "quota-used-up"),
        (429, "Quota exceeded for metric: free_tier_requests, limit: 15, PerMinute", "rate-limited"),
        (429, "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock", "quota-used-up"),
        (401, "insufficient_quota", "denied"),
        (500, "insufficient_quota is a word of the question", "overloaded"),
        (500, "the request exceeds the available context size", "overflow"),
        (503, "the request exceeds the available context size", "overflow"),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", "overflow"),
        (400, "Range of input length should be [1, 30720]", "overflow"),
        (400, "Input is too long for requested model.", "overflow"),
        (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081", "overflow"),
        (400, "prompt too long; exceeded max context length by 4 tokens", "overflow"),
        (400, "The response was filtered due to the prompt triggering content management policy", "refused"),
        (403, "Your chosen model requires moderation and your input was flagged", "refused"),
        (400, "Invalid value for temperature", "rejected"),
        (400, "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens", "rejected"),
        (401, "content policy", "denied"),
        (403, "You exceed the input limit of your key", "denied"),
        (500, "content filter backend crashed", "overloaded"),
    ],
)
def test_the_text_tells_what_the_status_does_not(status: int, text: str, fault: str) -> None:
    assert classify(status, text) == Fault(fault)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"error": {"message": "too bad", "code": 1}}, "too bad"),
        ({"error": "too bad"}, "too bad"),
        ({"error": {"message": None, "type": "bad_type"}}, "bad_type"),
        ({"code": "x", "error": "too bad"}, "too bad"),
        ({"message": "too bad", "object": "error"}, "too bad"),
        ({"detail": "too bad"}, "too bad"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ([{"error": {"message": "too bad"}}], "too bad"),
        ({"error": {"message": "Provider error", "metadata": {"raw": "deep"}}}, "Provider error: deep"),
        ({"error": {}}, '{"error": {}}'),
        ([], "[]"),
        ("plain\n\ttext", "plain text"),
        ("", ""),
        (b"\xff\xfe", "��"),
        ('{"error": {"message": "half \\ud83d"}}', "half �"),
        ("[" * 60_000, "[" * 300),
        ("x" * 100_000, "x" * 300),
        ("<html><body>nginx</body></html>", "a page instead of an answer: nginx"),
    ],
)
def test_what_an_error_says_is_found_wherever_it_is(p: Provider, body: Any, shown: str) -> None:
    p.faults = [Trouble(status=400, body=body)]
    error = failed(ask(p))
    assert (error.fault, error.message) == (Fault.REJECTED, f"HTTP 400: {shown}")


def test_an_error_that_drips_is_read_to_its_end(p: Provider) -> None:
    overflow = OVERFLOW_BODIES[0]
    p.faults = [Trouble(status=overflow.status, body=overflow.body, drip=0.0005)]
    error = failed(ask(p))
    assert error.fault is Fault.OVERFLOW and "reduce the length" in error.message


@pytest.mark.parametrize("how", [{"hang": "first-byte"}, {"hang": "middle"}, {"cut": 5}, {"cut": 5, "how": "rst"}])
def test_the_status_counts_even_if_its_text_never_comes(
    p: Provider, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ERROR_BODY", 0.1)
    p.faults = [Trouble(status=429, headers={"Retry-After": "9"}, **how)]
    error = failed(ask(p))
    assert (error.fault, error.retry_after) == (Fault.RATE_LIMITED, 9.0)


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "2"}, 2, 2),
        ({"Retry-After": "1.5"}, 1.5, 1.5),
        ({"retry-after": "0"}, 0, 0),
        ({"Retry-After": "-3"}, 0, 0),
        ({"Retry-After-Ms": "20"}, 0.02, 0.02),
        ({"Retry-After-Ms": "20", "Retry-After": "9"}, 0.02, 0.02),
        ({"Retry-After-Ms": "soon", "Retry-After": "9"}, 9, 9),
        ({"Retry-After": "in an hour"}, 3500, 3601),
        ({"Retry-After": "an hour ago"}, 0, 0),
        ({"Retry-After": "86400"}, 86400, 86400),
        ({"Retry-After": "soon"}, None, None),
        ({"Retry-After": "nan"}, None, None),
        ({"Retry-After": "inf"}, None, None),
        ({"Retry-After": ""}, None, None),
        ({}, None, None),
    ],
)
def test_retry_after(p: Provider, headers: dict[str, str], low: float | None, high: float | None) -> None:
    dates = {
        "in an hour": http_date(3600),
        "an hour ago": http_date(-3600),
    }  # as of now, not of the suite's beginning
    headers = {name: dates.get(value, value) for name, value in headers.items()}
    for status in (429, 503):
        p.faults = [Trouble(status=status, headers=headers)]
        wait = failed(ask(p)).retry_after
        assert (wait is None) if low is None or high is None else (wait is not None and low <= wait <= high)


# -- errors inside a 200 ---------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("overloaded_error", Fault.OVERLOADED),
        ("rate_limit_error", Fault.RATE_LIMITED),
        ("server_error", Fault.OVERLOADED),
    ],
)
def test_errors_inside_a_200(p: Provider, kind: str, fault: Fault, stream: bool, after: int) -> None:
    p.faults = [Trouble(stream_error=kind, after=after)]
    error = failed(ask(p, stream=stream))
    assert error.fault is fault and kind in error.message
    assert bool(error.text) == (stream and after == 3)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"message": "m", "code": 429}, Fault.RATE_LIMITED),
        ({"message": "m", "code": "529"}, Fault.OVERLOADED),
        ({"message": "m", "code": "rate_limit_exceeded"}, Fault.RATE_LIMITED),
        ({"message": "Too many requests"}, Fault.RATE_LIMITED),
        ({"message": "m", "status": "RESOURCE_EXHAUSTED"}, Fault.RATE_LIMITED),
        ({"message": "failed to generate within the limit"}, Fault.OVERLOADED),
        ({"message": "invalid answer from upstream", "type": "server_error"}, Fault.OVERLOADED),
        ({"message": "m", "type": "invalid_request_error"}, Fault.REJECTED),
        ({"message": "m", "code": "invalid_api_key"}, Fault.DENIED),
        ({"message": "m", "code": 403}, Fault.DENIED),
        ({"message": "m", "code": "insufficient_quota"}, Fault.USED_UP),
        ({"message": "prompt is too long: 9 tokens > 8 maximum"}, Fault.OVERFLOW),
        ({"message": "prompt is too long", "type": "invalid_request_error"}, Fault.OVERFLOW),
        ({"message": "too large for model with 8 maximum context length", "code": "3051"}, Fault.OVERFLOW),
        ({"message": "m", "code": "3051"}, Fault.OVERLOADED),
        ({"message": "m", "code": "²"}, Fault.OVERLOADED),
        ({"message": "m", "code": True}, Fault.OVERLOADED),
        ({"message": {"deep": "m"}, "code": None}, Fault.OVERLOADED),
        ("out of memory", Fault.OVERLOADED),
        (["x"], Fault.OVERLOADED),
    ],
)
def test_the_code_inside_counts_not_the_status(p: Provider, error: Any, fault: Fault) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    found = failed(
        sent(p, events({**delta(content="so "), "usage": usage}, {"error": error}, delta("stop"), "[DONE]"))
    )
    assert found.fault is fault
    assert (found.text, found.usage) == ("so ", Usage(5, 1))
    assert failed(sent(p, json.dumps({"error": error}).encode(), kind="application/json")).fault is fault
    chosen = {"choices": [{"index": 0, "error": error, "finish_reason": "error"}]}
    assert not isinstance(error, dict) or failed(sent(p, events(chosen, "[DONE]"))).fault is fault


TOO_LATE: list[Any] = [
    {"error": {"message": "overloaded", "code": 529}},
    {"error": {"message": "Rate limit reached", "type": "rate_limit_error"}},
    {"object": "error", "message": "engine died"},
    {"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "upstream"}}]},
    "no JSON",
    "[1]",
]


@pytest.mark.parametrize("late", TOO_LATE)
def test_an_error_after_the_end_takes_nothing_back(p: Provider, late: Any) -> None:
    """The provider has said that it ended: to ask again would be to pay the same answer twice."""
    usage = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 22}}
    body = events(delta(content="whole answer"), delta("stop"), late, usage, "[DONE]")
    assert answered(sent(p, body)) == Response("whole answer", Finish.STOP, Usage(11, 22))


@pytest.mark.parametrize("late", TOO_LATE)
@pytest.mark.parametrize("finish", [None, "error"])
def test_an_error_counts_while_no_end_that_is_known_was_seen(p: Provider, late: Any, finish: str | None) -> None:
    error = failed(sent(p, events(delta(content="half an ans"), delta(finish), late, "[DONE]")))
    assert error.fault in (Fault.OVERLOADED, Fault.RATE_LIMITED, Fault.MALFORMED) and error.text == "half an ans"


def test_an_error_event_without_an_error_key(p: Provider) -> None:
    body = events(
        {"object": "error", "message": "maximum context length is 9", "type": "BadRequestError", "code": 400}
    )
    assert failed(sent(p, body)).fault is Fault.OVERFLOW


# -- connections -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_connection_dropped_before_the_answer_is_a_fault_of_the_network(p: Provider, how: Any) -> None:
    p.faults = [Trouble(drop=True, how=how)]
    assert failed(ask(p)).fault is Fault.NETWORK
    assert len(p.requests) == 1


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_refused_connection_names_the_address() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    error = failed(using(ChatBackend(url), attempt))
    assert error.fault is Fault.NETWORK and url in error.message


def test_a_connection_that_is_not_taken_up_ends_in_time() -> None:
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(8):  # fill its queue
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        began = time.monotonic()
        backend = ChatBackend(f"http://127.0.0.1:{listening.getsockname()[1]}", connect_timeout=0.2)
        error = failed(using(backend, attempt))
        assert error.fault is Fault.NETWORK and "in time" in error.message
        assert 0.15 < time.monotonic() - began < 9  # the default is ten


@pytest.mark.parametrize("url", ["", "api.example.com/v1", "ftp://x/v1", "http://[::1", "http://x:99999", "http://"])
def test_an_address_that_cannot_be_used_is_named(url: str) -> None:
    error = failed(using(ChatBackend(url), attempt))
    assert error.fault is Fault.REJECTED and url[:40] in error.message


def test_a_key_that_cannot_be_sent_is_no_crash(p: Provider) -> None:
    error = failed(ask(p, key="sk-1\r\nX-Evil: 1"))
    assert error.fault is Fault.REJECTED and "sk-1" not in error.message
    assert p.requests == []


@pytest.mark.wide
def test_calls_one_after_the_other_share_a_connection(p: Provider) -> None:
    # What follows the end mark comes by itself: a connection that is left before its end cannot be used again.
    p.faults = [
        Trouble(status=200, headers=EVENTS, body=events(delta("stop", content="x"), "[DONE]", "bye"), drip=0.0005)
    ]

    async def five(backend: Backend) -> None:
        for _ in range(5):
            answered(await attempt(backend))

    using(ChatBackend(p.url), five)
    assert len({info.port for info in p.requests}) == 1


def test_two_hundred_calls_at_once_are_all_sent_at_once(p: Provider) -> None:
    p.script = lambda _: Answer("short")
    p.hold()

    async def many(backend: Backend) -> list[Outcome]:
        calls = asyncio.gather(*(attempt(backend, request(call=f"t1-{n}")) for n in range(200)))
        async with asyncio.timeout(60):
            while p.peak["all"] < 200:  # noqa: ASYNC110 (another thread counts them)
                await asyncio.sleep(0.005)
        p.release()
        return await calls

    found: list[Outcome] = using(ChatBackend(p.url), many)
    assert {answered(outcome).text for outcome in found} == {"short"}
    assert p.peak["all"] == 200


def test_the_end_mark_ends_an_answer_though_the_connection_stays_open(p: Provider) -> None:
    body = events(*STREAM, "[DONE]")
    began = time.monotonic()
    assert answered(sent(p, body + b" " * len(body), hang="middle")).text == HARD
    assert time.monotonic() - began < transport.LINGER


def test_the_reason_for_the_end_ends_an_answer_though_nothing_follows(
    p: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LINGER", 0.1)
    body = events(*STREAM)
    assert answered(sent(p, body + b" " * len(body), hang="middle")).text == HARD


@pytest.mark.parametrize("hang", ["headers", "first-byte", "middle"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_from_outside_ends_any_hang(p: Provider, hang: Any, stream: bool) -> None:
    p.faults = [Trouble(hang=hang)]

    async def hurried(backend: Backend) -> None:
        call = asyncio.create_task(attempt(backend))
        while not p.requests and not call.done():  # noqa: ASYNC110 (another thread notes them)
            await asyncio.sleep(0.005)
        async with asyncio.timeout(0.1):
            await call

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        using(ChatBackend(p.url, extra={"stream": stream}), hurried)
    assert time.monotonic() - began < 60
    p.settle()
    assert p.requests[0].left


def test_closing_twice_or_unused_is_fine(p: Provider) -> None:
    async def main() -> None:
        backend = ChatBackend(p.url)
        await backend.close()
        answered(await attempt(backend))
        await backend.close()
        await backend.close()
        answered(await attempt(backend))
        await backend.close()

    asyncio.run(main())


# -- effort ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effort", "word"), [(None, None), (Effort.LOW, "low"), (Effort.HIGH, "high"), (Effort.MAX, "high")]
)
def test_effort_is_told_in_the_protocol_s_word(p: Provider, effort: Effort | None, word: str | None) -> None:
    answered(ask(p, request(effort=effort)))
    assert p.requests[-1].body.get("reasoning_effort") == word


@pytest.mark.parametrize(
    ("message", "left_out"),
    [
        ("Unrecognized request argument supplied: reasoning_effort", ("reasoning_effort",)),
        ("`reasoning_effort` must be one of ...", ("reasoning_effort",)),
        ("Function tools with reasoning_effort are not supported for x", ()),
        ("bad model", ()),
    ],
)
def test_a_model_that_refuses_an_effort_is_not_told_one_again(
    p: Provider, message: str, left_out: tuple[str, ...]
) -> None:
    p.faults = [Trouble(status=400, body={"error": {"message": message}}, nth=1)]

    async def client(backend: Any) -> tuple[str, ...]:
        assert failed(await attempt(backend, request(effort=Effort.HIGH))).fault is Fault.REJECTED
        answered(await attempt(backend, request(effort=Effort.HIGH)))
        return tuple(backend.left_out("bench"))

    assert using(ChatBackend(f"{p.url}/v1"), client) == left_out
    assert ("reasoning_effort" in p.requests[-1].body) == (not left_out)


# -- marks for the provider's cache ----------------------------------------------------------------


def test_the_end_of_what_is_shared_is_marked_where_the_provider_wants_that(p: Provider) -> None:
    from openai.types.chat import ChatCompletionContentPartTextParam
    from pydantic import TypeAdapter

    told = (Message("system", "Rules.", shared=6), Message("user", "Shared. Own.", shared=8), Message("user", "Own."))
    asked = Request("anthropic/claude-x", told, 9)
    for marks in (True, False):
        answered(ask(p, asked, marks=marks))
    mark = {"cache_control": {"type": "ephemeral"}}
    first, second = (seen.body["messages"] for seen in p.requests)
    assert [message["content"] for message in first] == [
        [{"type": "text", "text": "Rules.", **mark}],
        [{"type": "text", "text": "Shared. ", **mark}, {"type": "text", "text": "Own."}],
        "Own.",
    ]
    assert [message["content"] for message in second] == ["Rules.", "Shared. Own.", "Own."]
    for part in [part for message in first[:2] for part in message["content"]]:
        plain = {key: value for key, value in part.items() if key not in mark}
        TypeAdapter(ChatCompletionContentPartTextParam).validate_python(plain)


def test_a_conversation_with_tools_is_marked_at_its_own_end_too(p: Provider) -> None:
    told = (
        Message("system", "Rules.", shared=6), Message("user", "Shared. Own.", shared=8), Message("user", "More."),
        Message("assistant", "", tool_calls=(ToolCall("c1", "look", "{}"),)),
        Message("tool", "Seen.", tool_call_id="c1"),
    )  # fmt: skip
    answered(ask(p, Request("anthropic/claude-x", told, 9, tools=({"name": "look"},)), marks=True))
    contents = [message["content"] for message in p.requests[0].body["messages"]]
    mark = {"cache_control": {"type": "ephemeral"}}
    assert contents == [
        [{"type": "text", "text": "Rules.", **mark}],
        [{"type": "text", "text": "Shared. ", **mark}, {"type": "text", "text": "Own."}],
        [{"type": "text", "text": "More.", **mark}],
        "",
        "Seen.",
    ]


@pytest.mark.parametrize("marks", [True, False])
def test_the_next_round_reads_the_whole_prompt_from_the_cache(p: Provider, marks: bool) -> None:
    p.cache = PromptCache()
    shared, own = "all of it " * 800, "your own part " * 100
    first = Message("user", shared + own, shared=len(shared))
    call = Message("assistant", "", tool_calls=(ToolCall("c1", "look", "{}"),))
    rounds = [(first,), (first, call, Message("tool", "seen " * 50, tool_call_id="c1"))]

    async def both(backend: Backend) -> list[Usage | None]:
        asked = [Request("google/gemini-x", said, 9, tools=({"name": "look"},)) for said in rounds]
        return [answered(await attempt(backend, one)).usage for one in asked]

    one, two = (usage for usage in using(ChatBackend(p.url + "/v1", marks=marks), both) if usage)
    assert one.cached_tokens == 0
    if marks:
        assert one.cache_write_tokens == two.cached_tokens == one.input_tokens
    else:  # cached without marks, in steps, and written without a charge
        assert one.cache_write_tokens == 0 and one.input_tokens - 128 <= two.cached_tokens <= one.input_tokens


def test_marks_that_a_model_refuses_are_left_out(p: Provider) -> None:
    body = {"error": {"message": "messages.0.content.0.cache_control: unknown field"}}
    p.script = lambda info: Trouble(status=400, body=body) if "cache_control" in str(info.body) else None
    asked = Request("m", (Message("user", "Shared. Own.", shared=8),), 9)

    async def twice(backend: Backend) -> list[Outcome]:
        return [await attempt(backend, asked) for _ in range(2)]

    refused, second = using(ChatBackend(p.url, marks=True), twice)
    assert failed(refused).fault is Fault.REJECTED
    assert answered(second) and p.requests[1].body["messages"] == [{"role": "user", "content": "Shared. Own."}]
