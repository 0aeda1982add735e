"""The litellm backend: both protocols of the provider, every fault under its right name, one request a call."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from cdo.core.errors import ConfigError
from cdo.core.exchange import Backend, BackendError, Fault, Finish, Message, Request, Response, ToolCall, Usage
from cdo.providers import litellm_backend
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.litellm_backend import LiteLLMBackend
from tests.support.backends import Outcome, answered, attempt, failed, reach_by_litellm, request, using
from tests.support.provider import OVERFLOW_BODIES, Answer, Provider, http_date
from tests.support.provider import Fault as Trouble

ROOT = Path(__file__).resolve().parents[3]
ANTHROPIC, VLLM, OPENAI = "anthropic/claude-x", "hosted_vllm/x", "openai/x"  # two of litellm's clients, and OpenAI's
# Its warnings are not ours to fix; a process of its own, further down, shows that it prints none.
pytestmark = pytest.mark.filterwarnings("ignore:::pydantic", "ignore:::litellm", "ignore:Sending a large body")
each_client = pytest.mark.parametrize("model", [ANTHROPIC, VLLM, OPENAI])


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as p, pytest.MonkeyPatch.context() as patch:
        reach_by_litellm(p, patch)
        yield p


@pytest.fixture
def p(server: Provider, capfd: pytest.CaptureFixture[str]) -> Iterator[Provider]:
    server.script, server.faults = None, ()
    server.reset()
    yield server
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


def ask(model: str, asked: Request | None = None, **more: Any) -> Outcome:
    """What one request comes to."""
    return using(LiteLLMBackend(**more), lambda backend: attempt(backend, asked or request(model=model)))  # type: ignore[no-any-return]


def asks(p: Provider, model: str, faults: list[Trouble]) -> list[Outcome]:
    """What one request comes to under each of the faults; each is sent exactly once."""

    async def each(backend: Backend) -> list[Outcome]:
        found = []
        for fault in faults:
            p.reset()
            p.faults = [fault]
            found.append(await attempt(backend, request(model=model)))
            assert len(p.requests) == 1, vars(fault)
        return found

    return using(LiteLLMBackend(), each)  # type: ignore[no-any-return]


# -- requests and answers --------------------------------------------------------------------------


@pytest.mark.wide
@each_client
def test_a_request_carries_prompt_cap_and_headers(p: Provider, model: str) -> None:
    asked = Request(
        model,
        (
            Message("system", "Be brief."),
            Message("user", "why?"),
            Message("assistant", "", tool_calls=(ToolCall("c1", "look", '{"at": 1}'),)),
            Message("tool", "seen", tool_call_id="c1"),
        ),
        99,
        {"X-Cdo-Session": "s", "X-Cdo-Call": "t2-critic", "X-Cdo-Kind": "agent", "X-Cdo-Attempt": "3"},
        tools=({"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}},),
    )
    answered(ask(model, asked, temperature=0.5))
    (seen,) = p.requests
    assert (seen.call, seen.kind, seen.attempt, seen.headers["X-Cdo-Session"]) == ("t2-critic", "agent", 3, "s")
    assert seen.path == ("/v1/messages" if model == ANTHROPIC else "/v1/chat/completions")
    assert (seen.body["max_tokens"], seen.body["temperature"]) == (99, 0.5)
    assert not seen.streaming and "Be brief." in seen.prompt and "why?" in seen.prompt
    sent = json.dumps(seen.body)
    assert all(word in sent for word in ("c1", "seen", "look")) and "_skip" not in sent
    key = seen.headers.get("x-api-key") or seen.headers["Authorization"].removeprefix("Bearer ")
    assert key in ("sk-ant-test", "sk-vllm-test", "sk-openai-test")


@each_client
def test_an_answer_comes_whole_with_its_usage(p: Provider, model: str) -> None:
    text = "Zoë 🤖 says 日本語\n" * 40
    p.script = lambda _: Answer(text, reasoning="hm, 🤔", usage=Usage(11, 22))
    heard: list[str] = []
    backend = LiteLLMBackend()
    assert not backend.streams
    got = using(backend, lambda backend: attempt(backend, request(model=model), heard))
    assert got == Response(text, Finish.STOP, Usage(11, 22), "hm, 🤔")
    assert "".join(heard) == text and len(p.requests) == 1


@pytest.mark.parametrize(
    ("model", "usage", "expected"),
    [
        (ANTHROPIC, "cached", Usage(400, 100, 300)),
        (ANTHROPIC, "zero", None),
        (VLLM, "cached", Usage(400, 100, 300)),
        (VLLM, "zero", None),
        (VLLM, "none", None),
        (VLLM, "cost", Usage(400, 100, 0, 0.00125)),
    ],
)
def test_usage_is_what_the_provider_counted(p: Provider, model: str, usage: Any, expected: Usage | None) -> None:
    p.script = lambda _: Answer("yes", usage=Usage(400, 100))
    p.faults = [Trouble(usage=usage)]
    assert answered(ask(model)).usage == expected


def test_an_answer_that_litellm_cannot_read_without_usage_is_malformed(p: Provider) -> None:
    (outcome,) = asks(p, ANTHROPIC, [Trouble(usage="none")])
    assert failed(outcome).fault is Fault.MALFORMED


@each_client
@pytest.mark.parametrize("text", ["", "Let me look."])
def test_tool_calls_come_whole(p: Provider, model: str, text: str) -> None:
    calls = (ToolCall("c1", "look", '{"at": "日本", "deep": [1, 2]}'), ToolCall("c2", "stop", "{}"))
    p.script = lambda _: Answer(text, tool_calls=calls)
    got = answered(ask(model))
    assert (got.text, got.finish) == (text, Finish.TOOLS)
    shown = [(call.id, call.name, json.loads(call.arguments)) for call in got.tool_calls]
    assert shown == [("c1", "look", {"at": "日本", "deep": [1, 2]}), ("c2", "stop", {})]


@pytest.mark.parametrize("model", [VLLM, OPENAI])
def test_tool_calls_whose_arguments_are_no_json_are_kept_as_they_are(p: Provider, model: str) -> None:
    p.script = lambda _: Answer("", tool_calls=(ToolCall("c1", "look", '{"at": '),))
    assert answered(ask(model)).tool_calls == (ToolCall("c1", "look", '{"at": '),)


@each_client
def test_prompts_over_a_megabyte_arrive_whole(p: Provider, model: str) -> None:
    prompt = "Zoë 🤖 says 日本語. " * 60_000 + "the end"
    answered(ask(model, request(prompt, model=model)))
    assert p.requests[0].prompt.endswith(prompt)


@pytest.mark.wide
@each_client
def test_many_calls_at_once_in_several_loops(p: Provider, model: str) -> None:
    p.script = lambda _: Answer("short")

    async def many(backend: Backend) -> list[Outcome]:
        p.hold()
        calls = asyncio.gather(*(attempt(backend, request(model=model, call=f"t1-{n}")) for n in range(30)))
        async with asyncio.timeout(60):
            while p.peak["all"] < 20:  # noqa: ASYNC110 (another thread counts them)
                await asyncio.sleep(0.005)
        p.release()
        return await calls

    for _ in range(3):
        outcomes: list[Outcome] = using(LiteLLMBackend(), many)
        assert {answered(outcome).text for outcome in outcomes} == {"short"}
    assert p.peak["all"] >= 20 and len(p.requests) == 90


@each_client
def test_closing_gives_every_connection_back(p: Provider, model: str) -> None:
    answered(ask(model))  # what is made once

    async def many(backend: Backend) -> None:
        await asyncio.gather(*(attempt(backend, request(model=model)) for _ in range(10)))

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    gc.disable()  # the collector would close what was forgotten
    try:
        using(LiteLLMBackend(), many)
        limit = time.monotonic() + 30
        while count() > before and time.monotonic() < limit:  # the provider, in this process, has ends to close too
            time.sleep(0.01)
        assert count() <= before
    finally:
        gc.enable()


# -- faults ----------------------------------------------------------------------------------------


@each_client
def test_shapes_of_an_answer(p: Provider, model: str) -> None:
    expected: dict[Any, Fault | Finish] = {
        "empty": Finish.STOP,
        "no-choices": Finish.STOP if model == ANTHROPIC else Fault.EMPTY,
        "reasoning-only": Finish.STOP,
        "length": Finish.LENGTH,
        "content-filter": Finish.REFUSAL,
        "refusal": Finish.REFUSAL,
        "malformed": Fault.MALFORMED,
        "html": Fault.MALFORMED,
        "no-finish": Fault.TRUNCATED,
    }
    for shape, outcome in zip(expected, asks(p, model, [Trouble(shape=shape) for shape in expected]), strict=True):
        assert (outcome.fault if isinstance(outcome, BackendError) else outcome.finish) is expected[shape], shape
        if isinstance(outcome, Response):
            if (shape, model) != ("refusal", ANTHROPIC):  # whose words litellm passes on since 1.107
                assert bool(outcome.text) == (shape not in ("empty", "no-choices", "reasoning-only")), shape
            assert bool(outcome.reasoning) == (shape == "reasoning-only"), shape


def kind(outcome: Outcome) -> Fault | Finish:
    """What an outcome is, in a word."""
    return outcome.fault if isinstance(outcome, BackendError) else outcome.finish


REASONS = [
    "", "stop", "STOP", "eos", "end_turn", "stop_sequence", "length", "max_tokens", "model_length", "content_filter",
    "refusal", "error", "ERROR", "abort", "network_error", "insufficient_system_resource", "null", "pause_turn",
    "MALFORMED_RESPONSE", "FINISH_REASON_UNSPECIFIED", "x" * 99,
]  # fmt: skip


@pytest.mark.parametrize("model", [VLLM, OPENAI])
def test_why_an_answer_ended_is_what_the_chat_backend_makes_of_the_same_bytes(p: Provider, model: str) -> None:
    """litellm itself says `stop` where the provider gave no reason, and for every one that it does not know."""

    async def each(backend: Backend) -> list[Fault | Finish]:
        found = []
        for reason in REASONS:
            p.script = lambda _, reason=reason: Answer("Half an ans", finish=reason)
            p.faults = [] if reason else [Trouble(shape="no-finish")]
            found.append(kind(await attempt(backend, request(model=model))))
        return found

    plain = using(ChatBackend(f"{p.url}/v1", extra={"stream": False}), each)
    assert using(LiteLLMBackend(), each) == plain
    assert plain.count(Fault.TRUNCATED) == 11 and len(p.requests) == 2 * len(REASONS)


def test_why_a_message_ended(p: Provider) -> None:
    expected = dict.fromkeys(REASONS, Fault.TRUNCATED) | {
        "stop": Finish.STOP,
        "end_turn": Finish.STOP,
        "stop_sequence": Finish.STOP,
        "max_tokens": Finish.LENGTH,
        "refusal": Finish.REFUSAL,
    }
    for reason in (
        "",
        "end_turn",
        "stop_sequence",
        "max_tokens",
        "refusal",
        "error",
        "pause_turn",
        "abort",
        "x" * 99,
    ):
        p.script = lambda _, reason=reason: Answer("Half an ans", finish=reason)
        p.faults = [] if reason else [Trouble(shape="no-finish")]
        assert kind(ask(ANTHROPIC)) is expected[reason], reason


@each_client
def test_what_a_model_says_is_not_taken_for_the_end(p: Provider, model: str) -> None:
    said = '{"stop_reason": "end_turn", "finish_reason": "stop", "done_reason": "stop"}'
    p.script = lambda _: Answer(said, tool_calls=(ToolCall("c1", "look", said),))
    (error,) = map(failed, asks(p, model, [Trouble(shape="no-finish")]))
    assert error.fault is Fault.TRUNCATED and error.text == said and error.usage


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"candidates": [{"content": {}, "finishReason": "STOP"}]}, "STOP"),
        ({"output": {"message": {}}, "stopReason": "end_turn"}, "end_turn"),
        ({"message": {"content": []}, "finish_reason": "COMPLETE"}, "COMPLETE"),
        ({"message": {"content": "x"}, "done": True, "done_reason": "stop"}, "stop"),
        ({"results": [{"outputText": "x", "completionReason": "FINISH"}]}, "FINISH"),
        ({"outputs": [{"text": "x", "stop_reason": "stop"}]}, "stop"),
        ({"choices": [{"message": {"finish_reason": "stop"}, "finish_reason": None}]}, ""),
        ({"choices": []}, ""),
        ({}, ""),
    ],
)
def test_where_other_protocols_say_why_they_ended(body: dict[str, Any], reason: str) -> None:
    wire = litellm_backend._Wire()
    wire.watch({"log_event_type": "pre_api_call", "original_response": '{"stop_reason": "end_turn"}'})
    wire.watch({"log_event_type": "post_api_call", "original_response": json.dumps(body)})
    assert wire.reason() == reason
    assert not reason or litellm_backend._finish("stop", wire, blank=False) is Finish.STOP


@pytest.mark.parametrize("came", [None, "no JSON", "[" * 100_000, "[]", b"{}", object()])
def test_an_end_that_litellm_does_not_show_is_not_believed(came: Any) -> None:
    wire = litellm_backend._Wire()
    wire.watch({"log_event_type": "post_api_call", "original_response": came})
    with pytest.raises(BackendError, match="does not show how"):
        litellm_backend._finish("stop", wire, blank=False)


def test_a_parameter_that_is_left_out_is_told_once(p: Provider) -> None:
    told: list[str] = []

    async def several(backend: Backend) -> None:
        for model in ("openai/o3", "openai/gpt-5", "openai/o3", OPENAI, VLLM, ANTHROPIC):
            answered(await attempt(backend, request(model=model, tools=({"name": "look", "parameters": {}},))))

    using(LiteLLMBackend(0.5, told.append), several)
    assert [sorted({"temperature", "tools"} & seen.body.keys()) for seen in p.requests] == [
        *[["tools"]] * 3,
        *[["temperature", "tools"]] * 3,
    ]
    left_out = "does not take `temperature` through litellm: it was left out."
    assert told == [f"openai/o3 {left_out}", f"openai/gpt-5 {left_out}"]
    using(LiteLLMBackend(None, told.append), several)
    assert len(told) == 2, "what nobody asked for is not missed"


@pytest.mark.parametrize(
    ("sent", "lacks"),
    [
        ({"messages": [{"temperature": 1}]}, True),
        ({"generationConfig": {"temperature": 1}}, False),
        ('{"inferenceConfig": {"temperature": 1}}', False),
        ('{"inferenceConfig": {}}', True),
        ("no JSON", False),
        (None, False),
    ],
)
def test_what_was_sent_is_known_from_the_body_alone(sent: Any, lacks: bool) -> None:
    wire = litellm_backend._Wire()
    wire.watch({"additional_args": {"complete_input_dict": sent}})
    assert wire.lacks("temperature") is lacks


STATUSES = {
    400: Fault.REJECTED,
    401: Fault.DENIED,
    402: Fault.USED_UP,
    403: Fault.DENIED,
    404: Fault.REJECTED,
    408: Fault.OVERLOADED,
    409: Fault.OVERLOADED,
    413: Fault.OVERFLOW,
    422: Fault.REJECTED,
    429: Fault.RATE_LIMITED,
    500: Fault.OVERLOADED,
    502: Fault.OVERLOADED,
    503: Fault.OVERLOADED,
    529: Fault.OVERLOADED,
}


@each_client
def test_statuses(p: Provider, model: str) -> None:
    for status, outcome in zip(
        STATUSES, asks(p, model, [Trouble(status=status) for status in STATUSES]), strict=True
    ):
        error = failed(outcome)
        assert error.fault is STATUSES[status], (status, error.message)
        assert error.message and "litellm" not in error.message, (status, error.message)


@each_client
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after(p: Provider, model: str, status: int) -> None:
    forms: list[tuple[dict[str, str], float | None, float | None]] = [
        ({"Retry-After": "7"}, 7, 7),
        ({"Retry-After": "0.5"}, 0.5, 0.5),
        ({"Retry-After": "-3"}, 0, 0),
        ({"retry-after-ms": "20"}, 0.02, 0.02),
        ({"Retry-After": http_date(3600)}, 3500, 3601),
        ({"Retry-After": "soon"}, None, None),
        ({}, None, None),
    ]
    outcomes = asks(p, model, [Trouble(status=status, headers=headers) for headers, _, _ in forms])
    for (headers, low, high), outcome in zip(forms, outcomes, strict=True):
        wait = failed(outcome).retry_after
        assert wait == low if low is None or high is None else wait is not None and low <= wait <= high, headers


@each_client
def test_ten_ways_to_say_that_the_prompt_is_too_long(p: Provider, model: str) -> None:
    faults = [Trouble(status=overflow.status, body=overflow.body) for overflow in OVERFLOW_BODIES]
    for overflow, outcome in zip(OVERFLOW_BODIES, asks(p, model, faults), strict=True):
        assert failed(outcome).fault is Fault.OVERFLOW, (overflow.provider, failed(outcome).message)


@each_client
def test_an_overflow_is_known_by_its_text_wherever_it_is_filed(p: Provider, model: str) -> None:
    text = "x" * 400 + " the request exceeds the available context size"  # the message shown is cut before that
    faults = [
        Trouble(status=status, body={"error": {"message": text, "type": "t"}}) for status in (400, 422, 500, 503)
    ]
    for outcome in asks(p, model, faults):
        assert failed(outcome).fault is Fault.OVERFLOW


@pytest.mark.parametrize("status", [400, 422])
def test_azure_s_refusal_of_tools_is_an_error_and_no_second_request(
    p: Provider, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """litellm would leave the tools out by itself; the runner does, and says so."""
    monkeypatch.setenv("AZURE_AI_API_BASE", p.url)
    monkeypatch.setenv("AZURE_AI_API_KEY", "sk-azure-test")
    detail = [{"loc": ["body", "tools"], "msg": "Extra inputs are not permitted", "type": "extra_forbidden"}]
    told = json.dumps({"detail": detail})
    p.faults = [Trouble(status=status, body={"error": {"message": told, "type": "t"}})]
    tool = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
    found = failed(ask("azure_ai/x", Request("azure_ai/x", (Message("user", "why?"),), 99, tools=(tool,))))
    assert found.fault is Fault.REJECTED and "Extra inputs are not permitted" in found.message
    (seen,) = p.requests
    assert seen.body["tools"]


@each_client
def test_errors_inside_a_200(p: Provider, model: str) -> None:
    kinds = {
        "overloaded_error": Fault.OVERLOADED,
        "server_error": Fault.OVERLOADED,
        "rate_limit_error": Fault.RATE_LIMITED,
    }
    for kind, outcome in zip(kinds, asks(p, model, [Trouble(stream_error=kind) for kind in kinds]), strict=True):
        assert failed(outcome).fault is kinds[kind]


@each_client
def test_broken_connections(p: Provider, model: str) -> None:
    cut = {Fault.NETWORK if model == OPENAI else Fault.TRUNCATED}  # OpenAI's client does not tell them apart
    cases: list[tuple[Trouble, set[Fault]]] = [
        (Trouble(drop=True), {Fault.NETWORK}),
        (Trouble(drop=True, how="rst"), {Fault.NETWORK}),
        (Trouble(cut=100), cut),
        (Trouble(cut=0), cut),
        (Trouble(cut=-1), cut),
        (Trouble(cut=100, how="rst"), {Fault.TRUNCATED, Fault.NETWORK}),
        (Trouble(cut=100, how="end"), {Fault.MALFORMED}),
        (Trouble(cut=0, how="end"), {Fault.MALFORMED}),
        (Trouble(cut=-1, how="end"), {Fault.MALFORMED}),
    ]
    for (fault, expected), outcome in zip(cases, asks(p, model, [fault for fault, _ in cases]), strict=True):
        assert failed(outcome).fault in expected, (vars(fault), failed(outcome).message)


@pytest.mark.wide
@each_client
@pytest.mark.parametrize("how", ["fin", "rst", "end"])
def test_an_answer_cut_anywhere_is_never_complete(p: Provider, model: str, how: Any) -> None:
    p.script = lambda _: Answer("A text of some length, twice. " * 4)
    for outcome in asks(p, model, [Trouble(cut=-missing, how=how) for missing in range(1, 460, 20)]):
        assert failed(outcome).fault in (Fault.TRUNCATED, Fault.MALFORMED, Fault.NETWORK)


@each_client
@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://", "nonsense"])
def test_an_address_where_nobody_is(p: Provider, model: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_BASE", "HOSTED_VLLM_API_BASE", "OPENAI_API_BASE"):
        monkeypatch.setenv(name, url)
    error = failed(ask(model))
    if url == "http://127.0.0.1:9":
        assert error.fault is Fault.NETWORK and ("127.0.0.1:9" in error.message or model == OPENAI)
    else:  # litellm does not tell these from a server's errors
        assert error.fault in (Fault.NETWORK, Fault.OVERLOADED, Fault.REJECTED)


def test_a_provider_that_litellm_does_not_know_is_rejected(p: Provider) -> None:
    error = failed(ask("nobody/knows"))
    assert error.fault is Fault.REJECTED and "nobody/knows" in error.message


def test_a_missing_key_is_denied(p: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert failed(ask(ANTHROPIC)).fault is Fault.DENIED
    assert p.requests == []


@each_client
@pytest.mark.parametrize("hang", ["headers", "first-byte", "middle"])
def test_a_deadline_from_outside_ends_any_hang(p: Provider, model: str, hang: Any) -> None:
    p.faults = [Trouble(hang=hang)]

    async def hurried(backend: Backend) -> None:
        call = asyncio.create_task(attempt(backend, request(model=model)))
        while not p.requests and not call.done():  # noqa: ASYNC110 (another thread notes them)
            await asyncio.sleep(0.005)
        async with asyncio.timeout(0.1):
            await call

    with pytest.raises(TimeoutError):
        using(LiteLLMBackend(), hurried)
    p.settle()
    assert p.requests[0].left and len(p.requests) == 1


def raised(kind: str, text: str = "m") -> Exception:
    """One of litellm's own exceptions, as it would be raised without an answer of the provider."""
    assert litellm_backend._module is not None
    error = getattr(litellm_backend._module.result(), kind)
    if kind == "APIError":
        return error(500, text, "anthropic", "claude-x")  # type: ignore[no-any-return]
    return error(message=text, llm_provider="anthropic", model="claude-x")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("Timeout", "Connection timed out. Timeout passed=3600", Fault.TIMEOUT),
        ("ContextWindowExceededError", "m", Fault.OVERFLOW),
        ("ContentPolicyViolationError", "m", Fault.REFUSED),
        ("BadRequestError", "prompt is too long: 9 tokens > 8 maximum", Fault.OVERFLOW),
        ("RateLimitError", "Too many tokens, please wait before trying again.", Fault.RATE_LIMITED),
        ("RateLimitError", "Request too large for x on tokens per min", Fault.OVERFLOW),
        ("APIConnectionError", "the request exceeds the available context size", Fault.OVERFLOW),
        ("APIConnectionError", "Cannot connect to host x:443", Fault.NETWORK),
        ("APIConnectionError", "[Errno 104] Connection reset by peer", Fault.NETWORK),
        ("APIConnectionError", "No module named 'boto3'", Fault.MALFORMED),
        ("APIConnectionError", "'usage'\nTraceback (most recent call last):\n  File x", Fault.MALFORMED),
        ("InternalServerError", "Overloaded", Fault.OVERLOADED),
        ("ServiceUnavailableError", "m", Fault.OVERLOADED),
        ("APIError", "the model overran its context window", Fault.OVERFLOW),
    ],
)
def test_litellm_s_own_errors(p: Provider, kind: str, text: str, fault: Fault) -> None:
    assert litellm_backend._module is not None
    found = litellm_backend._fault(litellm_backend._module.result(), raised(kind, text))
    assert found.fault is fault and "Traceback" not in found.message


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (KeyError("usage"), Fault.MALFORMED),
        (ValueError("x"), Fault.MALFORMED),
        (ConnectionResetError("x"), Fault.NETWORK),
        (OSError("x"), Fault.NETWORK),
    ],
)
def test_errors_that_are_not_litellm_s(p: Provider, error: Exception, fault: Fault) -> None:
    assert litellm_backend._module is not None
    assert litellm_backend._fault(litellm_backend._module.result(), error).fault is fault


# -- the import ------------------------------------------------------------------------------------


def test_giving_up_one_call_while_litellm_loads_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()

    def slow(done: Any) -> None:
        release.wait(10)
        done.set_result("the module")

    monkeypatch.setattr(litellm_backend, "_module", None)
    monkeypatch.setattr(litellm_backend, "_import", slow)

    async def main() -> None:
        backend = LiteLLMBackend()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await backend.complete(request(), lambda text: None)
        release.set()
        assert litellm_backend._module is not None
        assert await asyncio.wrap_future(litellm_backend._module) == "the module"

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [ImportError("no module named x"), AttributeError("half installed"), OSError("disk")]
)
def test_an_import_that_fails_is_a_matter_of_configuration(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm_backend, "_module", None)
    monkeypatch.setattr(litellm_backend, "_import", lambda done: done.set_exception(error))
    with pytest.raises(ConfigError, match=f"litellm cannot be imported: {error}"):
        using(LiteLLMBackend(), attempt)


@pytest.mark.parametrize(
    ("module", "pattern"),
    [
        ("custom_httpx.http_handler", r"await self\.single_connection_(post_)?request\("),
        ("custom_httpx.http_handler", r"self\._?client = self\.create_client\("),
        ("openai.openai", r"= drop_params_from_unprocessable_entity_error\("),
        ("openai.openai", r"import \(?[^)]*\bdrop_params_from_unprocessable_entity_error\b"),
        (
            "custom_httpx.llm_http_handler",
            r"= provider_config\.should_retry_llm_api_inside_llm_translation_on_http_error\(",
        ),
        ("openai.openai", r"OpenAIChatCompletion\._get_async_http_client\("),
    ],
)
def test_what_is_turned_off_in_litellm_is_still_what_it_calls(module: str, pattern: str) -> None:
    """A version that renames one of these would try again by itself, or follow a redirection, unseen."""
    litellm_backend.preload()
    assert litellm_backend._module is not None and litellm_backend._module.result(60)
    assert re.search(pattern, inspect.getsource(importlib.import_module(f"litellm.llms.{module}")))


def test_no_variable_of_the_environment_makes_litellm_fetch_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in litellm_backend._SETTINGS:
        monkeypatch.setenv(name, "False")
    done: Future[Any] = Future()
    litellm_backend._import(done)
    assert done.result()
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == os.environ["LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS"] == "True"
    assert os.environ["LITELLM_MODE"] == "PRODUCTION"


QUIET = """
import asyncio, socket, sys
reached = []
connect = socket.socket.connect
def watched(self, address):
    reached.append(address[0])
    return connect(self, address)
def looked_up(host, *args, **kwargs):
    reached.append(host)
    raise OSError("no network in this test")
socket.socket.connect, socket.getaddrinfo = watched, looked_up

from cdo.providers import litellm_backend as litellm
from tests.support.backends import attempt, request, using
assert not litellm.loaded()
for model in ("anthropic/claude-x", "hosted_vllm/x", "nobody/x"):
    outcome = using(litellm.LiteLLMBackend(), lambda backend: attempt(backend, request(model=model)))
    print(type(outcome).__name__, getattr(outcome, "fault", ""), file=sys.stderr)
assert litellm.loaded()
from litellm.anthropic_beta_headers_manager import get_beta_headers_config
get_beta_headers_config("https://example.com/headers.json")  # which litellm does when it first needs one
print(sorted(set(reached) - {"127.0.0.1"}), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_process_prints_nothing_and_reaches_nobody_but_the_provider(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HOSTED_VLLM_API_KEY=sk-from-dot-env\n", encoding="utf-8")
    with Provider(faults=[Trouble(status=500, nth=2)]) as p:
        env = {
            "PYTHONPATH": str(ROOT),
            "ANTHROPIC_API_KEY": "sk-ant-test",
            "ANTHROPIC_API_BASE": p.url,
            "HOSTED_VLLM_API_BASE": f"{p.url}/v1",
            "HOME": str(tmp_path),
            "LITELLM_LOCAL_MODEL_COST_MAP": "False",
            "LITELLM_MODE": "DEV",
        }
        done = subprocess.run(
            [sys.executable, "-c", QUIET], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == ""
        told = ["Response ", "BackendError overloaded", "BackendError rejected", "[]"]
        assert done.stderr.splitlines() == told
        assert len(p.requests) == 2
        assert p.requests[0].headers["x-api-key"] == "sk-ant-test"
        assert "sk-from-dot-env" not in str(p.requests[1].headers)
