"""The Responses client: what it sends, what it accepts as an answer, and what it makes of refused parameters.

What it makes of faults in general is in tests/faults/test_provider_matrix.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from cdo.core.exchange import Effort, Fault, Finish, Message, Request, Response, ToolCall, Usage
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.http.responses import ResponsesBackend
from tests.support import backends
from tests.support.backends import EVENTS, Outcome, answered, attempt, failed, request, using
from tests.support.faults import tools_refused
from tests.support.provider import Answer, Provider
from tests.support.provider import Fault as Trouble

if TYPE_CHECKING:
    from openai.types.responses import Response as SdkResponse

HARD = "Zoë 🤖 says 日本語: “naïve” ≠ 🏳️‍🌈.\n\n| a | b |\n"
CALLS = (ToolCall("c1", "look", '{"at": "日本", "deep": [1, 2]}'), ToolCall("c2", "stop", "{}"))
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as p:
        yield p


@pytest.fixture
def p(server: Provider) -> Provider:
    server.script, server.faults, server.chunk = None, (), 64
    server.reset()
    return server


ask = partial(backends.ask, protocol="responses")


@cache
def typed(name: str) -> TypeAdapter[Any]:
    """What checks data by one of the vendor's own types."""
    from openai.types import responses
    from openai.types.responses import response_create_params

    return TypeAdapter(getattr(responses, name, None) or getattr(response_create_params, name))


def body_of(p: Provider, asked: Request, **more: Any) -> dict[str, Any]:
    """The body of a request, which the vendor's types accept."""
    p.reset()
    answered(ask(p, asked, **more))
    body: dict[str, Any] = p.requests[0].body
    items = [entry if entry.get("role") != "assistant" else _with_id(entry) for entry in body["input"]]
    typed("ResponseCreateParamsStreaming").validate_python({**body, "input": items})
    return body


def _with_id(entry: dict[str, Any]) -> dict[str, Any]:
    """The types want an id and a status on messages of the model, which the protocol does not."""
    content = [{**part, "annotations": []} for part in entry["content"]]
    return {**entry, "content": content, "id": "msg_1", "status": "completed"}


def raw(p: Provider, number: int) -> str:
    return json.dumps(p.requests[number].body)


def events(*data: Any) -> bytes:
    """The body of a stream of these events (JSON where not text)."""
    shown = [item if isinstance(item, str) else json.dumps(item) for item in data]
    return "".join(f"data: {item}\n\n" for item in shown).encode()


def sent(p: Provider, body: bytes, *, kind: str = EVENTS["Content-Type"], **more: Any) -> Outcome:
    """What an answer of exactly these bytes comes to."""
    p.faults = [Trouble(status=200, body=body, headers={"Content-Type": kind}, **more)]
    return ask(p)


def delta(text: str, kind: str = "output_text", **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": 0, "delta": text, **more}


def item(event: str, data: Any, index: int = 0) -> dict[str, Any]:
    return {"type": f"response.output_item.{event}", "output_index": index, "item": data}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def end(status: str = "completed", **response: Any) -> dict[str, Any]:
    return {"type": f"response.{status}", "response": {"status": status, **response}}


# -- what is sent ----------------------------------------------------------------------------------


def test_a_request_carries_the_conversation_its_tools_and_its_settings(p: Provider) -> None:
    asked = Request(
        "gpt-4.1-mini",
        (
            Message("system", "Be brief."),
            Message("user", "What is there?"),
            Message("assistant", "Let me look.", tool_calls=CALLS[:1]),
            Message("tool", "seen", tool_call_id="c1"),
        ),
        99,
        {"X-Cdo-Call": "t2-critic", "X-Cdo-Attempt": "3"},
        tools=(LOOK,),
        effort=Effort.LOW,
        cache_key="k" * 70,
    )
    assert body_of(p, asked, key="sk-1 \n", temperature=0.5) == {
        "model": "gpt-4.1-mini",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is there?"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": CALLS[0].arguments},
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        ],
        "stream": True,
        "store": False,
        "max_output_tokens": 99,
        "tools": [{"type": "function", **LOOK, "strict": False}],
        "reasoning": {"effort": "low"},
        "temperature": 0.5,
        "prompt_cache_key": "k" * 64,
    }
    (seen,) = p.requests
    assert (seen.path, seen.call, seen.attempt) == ("/v1/responses", "t2-critic", 3)
    assert seen.headers["Authorization"] == "Bearer sk-1"


def test_what_is_not_set_is_not_sent(p: Provider) -> None:
    body = body_of(p, request(model="o3"))
    assert set(body) == {"model", "input", "stream", "store", "max_output_tokens", "include"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert "Authorization" not in p.requests[0].headers


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-6.1-sol", ["low", "medium", "high", "max"]),
        ("gpt-5.6", ["low", "medium", "high", "max"]),
        ("gpt-5.2-pro", ["low", "medium", "high", "xhigh"]),
        ("gpt-5-mini", ["low", "medium", "high", "high"]),
        ("o3", ["low", "medium", "high", "high"]),
    ],
)
def test_effort_in_the_words_that_a_model_knows(p: Provider, model: str, words: list[str]) -> None:
    sent_words = [body_of(p, request(model=model, effort=effort))["reasoning"]["effort"] for effort in Effort]
    assert sent_words == words


@pytest.mark.parametrize(
    ("model", "marked"),
    [
        ("openai/gpt-6-sol", True),
        ("gpt-5.6", True),
        ("gpt-5.5", False),
        ("gpt-4o", False),
        ("gpt-35-turbo", False),
        ("o3", False),
    ],
)
@pytest.mark.parametrize("shared", [0, 7, 11])
def test_what_voices_share_is_a_part_that_ends_at_a_breakpoint(
    p: Provider, model: str, shared: int, marked: bool
) -> None:
    """Also with half a character in it; without tools nothing else is written to the cache."""
    asked = Request(model, (Message("user", "shared\ud83d own", shared=shared),), 9)
    body, text = body_of(p, asked), "shared? own"
    (message,) = body["input"]
    assert [part["text"] for part in message["content"]] == [part for part in (text[:shared], text[shared:]) if part]
    point = {"mode": "explicit"} if marked else None
    points = [part.get("prompt_cache_breakpoint") for part in message["content"]]
    assert points == [point if shared else None, None][: len(points)]
    assert body.get("prompt_cache_options") == point
    assert "prompt_cache_options" not in body_of(p, Request(model, asked.messages, 9, tools=(LOOK,)))


def test_a_message_without_text_is_left_out(p: Provider) -> None:
    messages = (Message("system", ""), Message("user", "x", shared=1), Message("assistant", ""), Message("user", "y"))
    assert [entry["role"] for entry in body_of(p, Request("m", messages, 9))["input"]] == ["user", "user"]


REASONING = (SEALED, {**SEALED, "id": "rs_2"})
ORDER: list[Any] = [
    SEALED,
    {"type": "message", "phase": "commentary"},
    {"type": "function_call", "call_id": "c1"},
    REASONING[1],
    {"type": "function_call", "call_id": "c2"},
]


@pytest.mark.parametrize(
    ("text", "calls", "carried", "expected"),
    [
        pytest.param("I look.", CALLS, ORDER, "rs_1 I look. c1 rs_2 c2", id="as it came"),
        pytest.param("I look.", CALLS[:1], ORDER, "rs_1 I look. c1", id="a call that was not run"),
        pytest.param("", CALLS, REASONING, "rs_1 rs_2 c1 c2", id="reasoning alone"),
        pytest.param("I look.", CALLS, [{"type": "thinking"}], "I look. c1 c2", id="another protocol's"),
        pytest.param("", (), ORDER, "", id="reasoning that leads nowhere"),
    ],
)  # fmt: skip
def test_reasoning_goes_back_where_it_came_from(
    p: Provider, text: str, calls: tuple[ToolCall, ...], carried: list[Any], expected: str
) -> None:
    told = Message("assistant", text, tool_calls=calls, carried=tuple(carried))
    items = body_of(p, Request("m", (Message("user", "x"), told), 9))["input"][1:]
    shown = [entry.get("call_id") or entry.get("id") or entry["content"][0]["text"] for entry in items]
    assert " ".join(shown) == expected
    assert [entry for entry in items if entry["type"] == "reasoning"] == [
        entry for entry in carried if entry.get("id") in shown
    ]
    if text and ORDER[1] in carried:
        assert next(entry for entry in items if entry["type"] == "message")["phase"] == "commentary"


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 4096])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_comes_whole_with_its_usage(p: Provider, stream: bool, chunk: int) -> None:
    usage = Usage(500, 22, 300, 0.01, 100)
    p.chunk, p.script = chunk, lambda _: Answer(HARD, reasoning="hm, 🤔", tool_calls=CALLS, usage=usage)
    heard: list[str] = []
    got = answered(ask(p, stream=stream, heard=heard))
    kept = {"type": "reasoning", "id": "rs-t1-architect-1", "encrypted_content": "sealed-5"}
    kept["summary"] = [{"type": "summary_text", "text": "hm, 🤔"}]  # type: ignore[assignment]
    places = [{"type": "function_call", "call_id": call.id} for call in CALLS]
    carried = (kept, {"type": "message"}, *places)
    assert got == Response(HARD, Finish.TOOLS, usage, "hm, 🤔", CALLS, carried=carried)
    assert "".join(heard) == HARD and len(p.requests) == 1
    assert not stream or heard.count("") > len(HARD) // chunk  # other events are signs of life


WITHOUT = Usage(3, unreported="output")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, Usage(3, 4)),
        ({"input_tokens": 3, "output_tokens": None, "input_tokens_details": []}, WITHOUT),
        ({"input_tokens": 3, "input_tokens_details": {"cached_tokens": -1, "cache_write_tokens": "2"}}, WITHOUT),
        ({"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}, Usage(3, 4, 2)),
        ({"input_tokens": 1e400, "output_tokens": 5_000_000_000}, None),
        ([], None),
        (None, None),
    ],
)
def test_odd_usage_is_never_money_or_a_crash(p: Provider, told: Any, expected: Usage | None) -> None:
    assert answered(sent(p, events(delta("x"), end(usage=told)))).usage == expected


def piece(text: str) -> dict[str, Any]:
    return delta(text, "function_call_arguments")


CALL = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": ""}
TWICE = Response("one\n\ntwo")
NONSENSE: list[Any] = [
    {},
    {"type": 3},
    {"type": "keepalive"},
    {"type": "response.new.delta", "delta": "x"},
    {"type": "response.output_text.delta", "output_index": "x", "delta": None},
    item("done", None),
    item("done", {"type": "message", "content": [3, {}, {"type": "output_text", "text": 3}]}, 5),
]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        pytest.param([delta("a"), delta("b"), end()], Response("ab"), id="pieces alone"),
        pytest.param([item("done", said("ab")), end(output=[])], Response("ab"), id="items alone"),
        pytest.param([end(output=[said("ab")])], Response("ab"), id="the end alone"),
        pytest.param([delta("a"), end(output=[said("ab")]), "[DONE]"], Response("ab"), id="the end holds more"),
        pytest.param([delta("ab"), item("done", said("")), end(output=None)], Response("ab"), id="pieces hold more"),
        pytest.param([item("done", said("one")), item("done", said("two"), 1), end()], TWICE, id="two messages"),
        pytest.param(
            [item("done", said("hm", phase="commentary")), item("done", said("so", phase="final_answer"), 1), end()],
            Response("so", reasoning="hm", carried=({"type": "message", "phase": "final_answer"},)),
            id="a commentary before the answer",
        ),
        pytest.param(
            [item("added", CALL), piece('{"a"'), piece(": 1}"), end()],
            Response("", Finish.TOOLS, tool_calls=(ToolCall("c1", "look", '{"a": 1}'),)),
            id="a call in pieces",
        ),
        pytest.param(
            [item("done", {**CALL, "arguments": {"a": 1}}), end()],
            Response("", Finish.TOOLS, tool_calls=(ToolCall("c1", "look", '{"a": 1}'),)),
            id="arguments that are no text",
        ),
        pytest.param(
            [delta("hm", "reasoning_text"), delta("ab", output_index=1), end()],
            Response("ab", reasoning="hm"),
            id="reasoning in the clear",
        ),
        pytest.param(
            [item("done", {"type": "reasoning", "id": "rs_1", "summary": []}), delta("ab", output_index=1), end()],
            Response("ab"),
            id="reasoning that is not sealed is not sent back",
        ),
        pytest.param([delta("\ud83e"), delta("\udd16\udd16"), end()], Response("🤖\ufffd"), id="half characters"),
        pytest.param([delta("no", "refusal"), end()], Response("no", Finish.REFUSAL), id="a refusal"),
        pytest.param([end()], Response(""), id="nothing"),
        pytest.param([*NONSENSE, delta("ab"), {"type": "response.completed"}], Response("ab"), id="nonsense between"),
    ],
)  # fmt: skip
def test_answers_as_providers_write_them(p: Provider, told: list[Any], expected: Response) -> None:
    assert sent(p, events(*told)) == expected


ENDS = {
    "completed": Finish.STOP,
    "max_output_tokens": Finish.LENGTH,
    "content_filter": Finish.REFUSAL,
    "a new reason": Fault.TRUNCATED,
    "": Fault.TRUNCATED,
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reason", ENDS)
def test_only_a_known_reason_ends_an_answer(p: Provider, reason: str, stream: bool) -> None:
    cut = {} if reason == "completed" else {"incomplete_details": {"reason": reason} if reason else None}
    last = end("incomplete" if cut else "completed", output=[said("ab")], usage={"input_tokens": 3}, **cut)
    kind = EVENTS["Content-Type"] if stream else "application/json"
    found = sent(p, events(delta("a"), last) if stream else json.dumps(last["response"]).encode(), kind=kind)
    if isinstance(ENDS[reason], Fault):
        error = failed(found)
        assert (error.fault, error.usage) == (Fault.TRUNCATED, WITHOUT) and (reason or "incomplete") in error.message
    else:
        assert (answered(found).finish, answered(found).text) == (ENDS[reason], "ab")


@pytest.mark.parametrize("status", ["in_progress", "queued", "cancelled", None])
def test_an_answer_that_goes_on_elsewhere_is_not_whole(p: Provider, status: str | None) -> None:
    body = json.dumps({"id": "resp_1", "status": status, "output": [said("ab")]}).encode()
    assert failed(sent(p, body, kind="application/json")).fault is Fault.TRUNCATED


def test_a_stream_that_is_cut_at_any_byte_is_no_answer(p: Provider) -> None:
    body = events(item("added", said("")), delta("ab"), item("done", said("ab")), end(output=[said("ab")]))
    needed = len(body.rstrip())

    async def each(backend: ResponsesBackend) -> list[Outcome]:
        found = []
        for size in range(len(body)):
            p.faults = [Trouble(status=200, body=body[:size], headers=EVENTS)]
            found.append(await attempt(backend))
        return found

    outcomes = using(ResponsesBackend(p.url), each)  # type: ignore[arg-type]
    assert {failed(outcome).fault for outcome in outcomes[:needed]} == {Fault.TRUNCATED}
    assert all(answered(outcome).text == "ab" for outcome in outcomes[needed:])


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "message", "fault"),
    [
        ("rate_limit_exceeded", "m", Fault.RATE_LIMITED),
        ("server_error", "m", Fault.OVERLOADED),
        ("server_is_overloaded", "m", Fault.OVERLOADED),
        ("insufficient_quota", "m", Fault.USED_UP),
        ("context_length_exceeded", "m", Fault.OVERFLOW),
        ("invalid_prompt", "Your prompt was flagged as potentially violating our usage policy.", Fault.REFUSED),
        ("bio_policy", "m", Fault.REFUSED),
        ("invalid_request_error", "m", Fault.REJECTED),
        (None, "Too many requests", Fault.RATE_LIMITED),
    ],
)
def test_an_error_inside_a_200_in_each_of_its_shapes(p: Provider, code: str, message: str, fault: Fault) -> None:
    error = {"code": code, "message": message}
    usage = {"input_tokens": 5, "output_tokens": 1}
    shapes: list[dict[str, Any]] = [{"type": "error", **error}, {"type": "error", "error": error}, {"error": error}]
    for shape in [*shapes, end("failed", error=error, usage=usage)]:
        found = failed(sent(p, events(delta("so "), shape, delta("x"), end())))
        assert (found.fault, found.message, found.text) == (fault, message, "so ")
        assert found.usage == (Usage(5, 1) if "response" in shape else None)
        body = json.dumps(shape.get("response", shape)).encode()
        assert failed(sent(p, body, kind="application/json")).fault is fault


@pytest.mark.parametrize(
    "late", [{"type": "error", "code": "server_error", "message": "m"}, "no JSON", end("failed")]
)
def test_an_error_after_the_end_takes_nothing_back(p: Provider, late: Any) -> None:
    assert answered(sent(p, events(delta("whole"), end(), late))).text == "whole"


REFUSALS: dict[str, tuple[str | None, str]] = {
    "Unsupported parameter: 'temperature' is not supported with this model.": ("temperature", "temperature"),
    "Unsupported value: 'reasoning.effort' does not support 'max' with this model.": (
        "reasoning.effort",
        "reasoning",
    ),
    "Invalid value: 'high'. Supported values are: 'medium'.": ("reasoning.effort", "reasoning"),
    "Encrypted content is not supported with this model.": ("include", "include"),
    "Unknown parameter: 'prompt_cache_options'.": ("prompt_cache_options", "prompt_cache_options"),
    "Unknown parameter: 'input[0].content[0].prompt_cache_breakpoint'.": (None, "prompt_cache_breakpoint"),
    "Unrecognized request argument supplied: prompt_cache_key": (None, "prompt_cache_key"),
    "The encrypted content for item rs_1 could not be verified.": (None, "encrypted_content"),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_a_part_that_a_model_refuses_is_sent_to_it_once(p: Provider, message: str) -> None:
    param, name = REFUSALS[message]
    told = Message("assistant", "I look.", tool_calls=CALLS[:1], carried=(SEALED,))
    asked = Request("gpt-6-sol", (Message("system", "s", shared=1), told), 9, effort=Effort.HIGH, cache_key="k")
    p.faults = [Trouble(status=400, body={"error": {"message": message, "param": param}}, nth=1)]

    async def twice(backend: ResponsesBackend) -> None:
        assert backend.left_out("gpt-6-sol") == ()
        error = failed(await attempt(backend, asked))
        assert error.fault is Fault.REJECTED and message in error.message and (param or "") in error.message
        assert len(p.requests) == 1 and f'"{name}": ' in raw(p, 0)
        assert backend.left_out("gpt-6-sol") == (name,) and backend.left_out("gpt-6-luna") == ()
        answered(await attempt(backend, asked))
        assert f'"{name}": ' not in raw(p, 1) and "function_call" in raw(p, 1)

    using(ResponsesBackend(p.url, temperature=0.5), twice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        "The model `m` does not exist.",
        "Item 'i' of type 'reasoning' was provided without its required following item.",
    ],
)
def test_no_other_refusal_changes_what_is_sent(p: Provider, message: str) -> None:
    p.faults = [Trouble(status=400, body={"error": {"message": message, "param": "input"}})]
    backend = ResponsesBackend(p.url)
    assert failed(using(backend, attempt)).fault is Fault.REJECTED
    assert backend.left_out("bench") == ()


def test_the_key_is_not_shown_with_the_backend() -> None:
    assert "sk-secret" not in repr(ResponsesBackend("http://x", "sk-secret"))


# -- the provider of the tests, as the vendor's own client sees it -----------------------------------

COUNTED = Usage(500, 22, 300, None, 100)
SPOKEN = {
    "text": Answer(HARD, usage=COUNTED),
    "tools": Answer("", reasoning="hm", tool_calls=CALLS, usage=COUNTED),
    "refusal": Answer("", refusal="I cannot.", usage=COUNTED),
    "length": Answer("half", finish="length", usage=COUNTED),
    "filter": Answer("half", finish="content_filter", usage=COUNTED),
}


def by_sdk(p: Provider, *, stream: bool, **more: Any) -> tuple[SdkResponse, str]:
    """The response as the vendor's client reads it, and the text of its deltas; every event must fit its types."""

    from openai import AsyncOpenAI

    async def main() -> tuple[SdkResponse, str]:
        asked = {"model": "gpt-6-sol", "input": "why?", "include": ["reasoning.encrypted_content"], **more}
        async with AsyncOpenAI(api_key="sk", base_url=f"{p.url}/v1", max_retries=0) as client:
            if not stream:
                found = await client.responses.create(**asked)
                return typed("Response").validate_python(found.to_dict()), found.output_text
            heard, last = "", None
            async for event in await client.responses.create(stream=True, **asked):
                checked = typed("ResponseStreamEvent").validate_python(event.to_dict())
                heard += checked.delta if checked.type == "response.output_text.delta" else ""
                last = event
            assert last is not None and last.type in ("response.completed", "response.incomplete")
            return last.response, heard

    return asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("said_as", SPOKEN)
def test_the_vendor_s_client_reads_the_same(p: Provider, said_as: str, stream: bool) -> None:
    spoken = SPOKEN[said_as]
    p.script, p.chunk = (lambda _: spoken), 5
    seen, heard = by_sdk(p, stream=stream)
    got = answered(ask(p, stream=stream))
    assert seen.output_text == heard == spoken.text == got.text.removesuffix(spoken.refusal)
    assert seen.usage and got.usage == COUNTED
    details = seen.usage.input_tokens_details
    counts = (
        seen.usage.input_tokens,
        seen.usage.output_tokens,
        details.cached_tokens,
        None,
        details.cache_write_tokens,
    )
    assert Usage(*counts) == COUNTED
    calls = [entry for entry in seen.output if entry.type == "function_call"]
    assert (
        got.tool_calls
        == tuple(ToolCall(call.call_id, call.name, call.arguments) for call in calls)
        == spoken.tool_calls
    )
    reason = seen.incomplete_details.reason if seen.incomplete_details else said_as
    assert {"max_output_tokens": "length", "content_filter": "filter"}.get(str(reason), reason) == said_as
    ends = {"text": Finish.STOP, "tools": Finish.TOOLS, "length": Finish.LENGTH}
    assert got.finish is ends.get(said_as, Finish.REFUSAL)


def test_the_vendor_s_client_sends_the_same_second_round(p: Provider) -> None:
    p.script = lambda _: Answer("", reasoning="hm", tool_calls=CALLS)
    headers = request().headers
    seen, _ = by_sdk(p, stream=True, extra_headers=headers)
    got = answered(ask(p))
    outputs = [{"type": "function_call_output", "call_id": call.id, "output": "seen"} for call in CALLS]
    begun = {"role": "user", "content": [{"type": "input_text", "text": "why?"}], "type": "message"}
    by_sdk(p, stream=True, input=[begun, *(entry.to_dict() for entry in seen.output), *outputs])
    told = Message("assistant", got.text, tool_calls=got.tool_calls, carried=got.carried)
    results = (Message("tool", "seen", tool_call_id=call.id) for call in CALLS)
    answered(ask(p, Request("gpt-6-sol", (Message("user", "why?"), told, *results), 9)))
    theirs, ours = (info.body["input"] for info in p.requests[-2:])
    for entry in theirs:
        if entry["type"] == "function_call":
            del entry["id"], entry["status"]
    assert ours == theirs


def test_the_vendor_s_client_meets_the_same_errors(p: Provider) -> None:
    from openai import APIError, BadRequestError

    p.faults = [Trouble(status=400)]
    with pytest.raises(BadRequestError):
        by_sdk(p, stream=True)
    p.faults = [Trouble(stream_error="rate_limit_error")]
    with pytest.raises(APIError) as error:
        by_sdk(p, stream=True)
    assert error.value.code == "rate_limit_exceeded"


def test_current_models_get_tools_here_and_not_by_chat_completions(p: Provider) -> None:
    p.script = lambda info: Answer("", tool_calls=CALLS) if info.body.get("tools") else "yes"
    asked = request(model="gpt-6-sol", tools=(LOOK,))
    assert answered(ask(p, asked)).tool_calls == CALLS
    p.script = tools_refused
    error = failed(using(ChatBackend(f"{p.url}/v1"), lambda backend: attempt(backend, asked)))
    assert error.fault is Fault.REJECTED and "use /v1/responses" in error.message
    answered(using(ChatBackend(f"{p.url}/v1"), lambda backend: attempt(backend, request(model="gpt-6-sol"))))
