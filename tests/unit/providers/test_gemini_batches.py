"""Gemini's own form of requests and answers, and its batches, against a server on loopback."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from cdo.core.exchange import BackendError, Effort, Fault, Finish, Message, Request, Usage
from cdo.providers.http.batch_client import StillUnclear
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.http.gemini_batches import GeminiBatches
from cdo.providers.http.generate_content import content_answer
from cdo.runner.endpoint_batches.depot import Parcel
from tests.support.provider import Provider

SAID = (
    Message("system", "Answer briefly."),
    Message("user", "Why?"),
    Message("assistant", "Because."),
    Message("user", "And?"),
    Message("user", " "),
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


def client(url: str = "http://127.0.0.1:9/v1beta/openai") -> GeminiBatches:
    return GeminiBatches(ChatBackend(url, key="k", temperature=0.5))


def line(request: Request) -> Mapping[str, Any]:
    gemini = client()
    told: dict[str, Any] = json.loads(gemini.line("cdo-1-x", gemini.body(request)))
    assert told["metadata"] == {"key": "cdo-1-x"} and set(told) == {"request", "metadata"}
    found: Mapping[str, Any] = told["request"]
    return found


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-3.8-flash", None, None),
        ("gemini-3.8-flash", Effort.LOW, {"thinkingLevel": "low"}),
        ("gemini-3.1-pro-preview", Effort.MAX, {"thinkingLevel": "high"}),
        ("gemini-flash-latest", Effort.MEDIUM, {"thinkingLevel": "medium"}),
        ("gemini-2.5-flash", Effort.MEDIUM, {"thinkingBudget": 8192}),
    ],
)
def test_a_request_in_geminis_own_form(model: str, effort: Effort | None, thinking: object) -> None:
    told = line(Request(model, SAID, 99, effort=effort, schema=SCHEMA))
    assert told["systemInstruction"] == {"parts": [{"text": "Answer briefly."}]}
    assert [(item["role"], item["parts"]) for item in told["contents"]] == [
        ("user", [{"text": "Why?"}]), ("model", [{"text": "Because."}]), ("user", [{"text": "And?"}]),
    ]  # fmt: skip
    assert told["generationConfig"] == {
        "maxOutputTokens": 99, "temperature": 0.5, "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA, **({"thinkingConfig": thinking} if thinking else {}),
    }  # fmt: skip
    alone = line(Request(model, SAID[:1], 99))
    assert "systemInstruction" not in alone
    assert alone["contents"] == [{"role": "user", "parts": [{"text": "Answer briefly."}]}]


def answer(finish: str | None, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 4, "cachedContentTokenCount": 2}
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish, **more}
    return {"candidates": [candidate], "usageMetadata": usage}


def test_an_answer_in_geminis_own_form() -> None:
    thought = {"text": "Hm.", "thought": True}
    for stated, finish in (("STOP", Finish.STOP), ("MAX_TOKENS", Finish.LENGTH), ("SAFETY", Finish.REFUSAL)):
        got = content_answer(answer(stated, thought, {"text": "Yes\ud83d"}, {"text": "."}))
        assert (got.text, got.reasoning, got.finish) == ("Yes\ufffd.", "Hm.", finish)
        assert got.usage == Usage(10, 7, 2)  # thinking is paid as output
    refused = content_answer(answer("PROHIBITED_CONTENT", finishMessage="It may be prohibited."))
    assert (refused.text, refused.finish) == ("It may be prohibited.", Finish.REFUSAL)
    blocked = content_answer({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 8}})
    assert blocked.finish is Finish.REFUSAL and "blocked: SAFETY" in blocked.text
    assert blocked.usage and (blocked.usage.input_tokens, blocked.usage.unreported) == (8, "output")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({}, Fault.EMPTY),
        ({"candidates": []}, Fault.EMPTY),
        ({"candidates": ["x"]}, Fault.EMPTY),
        (answer(None, {"text": "So far"}), Fault.TRUNCATED),
        (answer("MALFORMED_RESPONSE", {"text": "So far"}), Fault.TRUNCATED),
        (answer("OTHER", {"text": 7}, {}), Fault.TRUNCATED),
    ],
)
def test_an_answer_whose_end_was_not_stated_is_none(data: dict[str, Any], fault: Fault) -> None:
    with pytest.raises(BackendError) as caught:
        content_answer(data)
    assert caught.value.fault is fault
    assert (caught.value.usage is None) == ("usageMetadata" not in data)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ({"code": 1, "message": "cancelled"}, Fault.OVERLOADED),
        ({"code": 3, "message": "Invalid argument"}, Fault.REJECTED),
        (
            {"code": 3, "message": "The input token count exceeds the maximum number of tokens allowed"},
            Fault.OVERFLOW,
        ),
        ({"code": 7, "message": "no"}, Fault.DENIED),
        ({"code": 8, "message": "Resource exhausted"}, Fault.RATE_LIMITED),
        ({"code": 13, "message": "Internal error"}, Fault.OVERLOADED),
        ({"code": 400, "message": "Invalid argument"}, Fault.REJECTED),
        ("odd", Fault.OVERLOADED),
    ],
)
def test_errors_of_single_requests_have_codes_of_grpc(error: object, fault: Fault) -> None:
    with pytest.raises(BackendError) as caught:
        client().read({"error": error})
    assert caught.value.fault is fault
    with pytest.raises(BackendError, match="no answer"):
        client().read({"response": "x"})


def test_a_refused_level_of_thinking_is_left_out_of_the_next_request() -> None:
    gemini, request = client(), Request("gemini-x", SAID, 9, effort=Effort.LOW)
    body = gemini.body(request)
    with pytest.raises(BackendError) as caught:
        gemini.read({"error": {"code": 3, "message": "Thinking level is not supported for this model."}})
    gemini.backend.learn("gemini-x", caught.value, body)
    assert gemini.backend.left_out("gemini-x") == ("reasoning_effort",)
    assert "thinkingConfig" not in json.loads(gemini.line("x", gemini.body(request)))["request"]["generationConfig"]


def test_a_lost_batch_is_found_on_any_page(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        gemini = client(f"{provider.url}/v1beta/openai")
        ident = "cdo-0123456789abcdef-quick-0123456789abcdef"
        text = gemini.line(ident, gemini.body(Request("gemini-x", SAID, 9))) + b"\n"
        try:
            for marker in ("cdo-1", "cdo-2", "cdo-3"):
                made = await gemini.submit(marker, io.BytesIO(text), len(text), "gemini-x")
                assert (made.ended, made.done, made.count) == (False, 0, 1)
            found = await gemini.found("cdo-3", 0, 1, set())
            assert found and found.id == made.id == "batches/3"
            assert await gemini.found("cdo-4", 0, 1, set()) is None
            monkeypatch.setattr("cdo.providers.http.gemini_batches.PAGES", 1)
            with pytest.raises(StillUnclear):  # and so it is not submitted again
                await gemini.found("cdo-4", 0, 1, set())
        finally:
            await gemini.backend.close()

    provider.batches.going = True
    asyncio.run(run())
    with pytest.raises(BackendError, match="names no batch"):
        client().state({"name": "batches/../files/1"})


def test_what_is_too_large_for_one_batch_goes_into_the_next() -> None:
    parcel = Parcel("m", client(), "gemini", "u", 0.5, "gemini-x", io.BytesIO())
    assert parcel.has_room(19_000_000) and not parcel.has_room(19_000_001)
    parcel.promise(10_000_000)
    assert parcel.has_room(9_000_000) and not parcel.has_room(9_000_001)
    parcel.count = 500
    assert not parcel.has_room(1)
