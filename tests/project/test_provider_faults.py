"""Every fault of tests/support/faults.py reaches a plain client as it is meant to."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from tests.support.client import CHAT, MESSAGES, ask, data, deltas, events, headers, run, text
from tests.support.provider import OVERFLOW_BODIES, Answer, Fault, Provider, Row, Usage, http_date


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 429, 500, 502, 503, 529])
def test_statuses_in_the_words_of_the_protocol(status: int, path: str) -> None:
    with Provider(faults=[Fault(status=status, headers={"Retry-After": http_date(2)})]) as p:
        got, body = ask(p, path)
    error = json.loads(body)["error"]
    assert got == status and error["message"] and error["type"]
    assert ("code" in error) == (path == CHAT)


@pytest.mark.parametrize(
    "wait",
    [{"Retry-After": "-3"}, {"Retry-After": "soon"}, {"retry-after-ms": "20"}, {"Retry-After": http_date(5)}],
)
def test_headers_go_out_as_they_are(wait: dict[str, str]) -> None:
    async def client(session: aiohttp.ClientSession) -> Any:
        async with session.post(p.url + CHAT, json={}) as response:
            return response.headers

    with Provider(faults=[Fault(status=429, headers=wait)]) as p:
        assert wait.items() <= dict(run(client)).items()


def test_overflows_of_ten_providers() -> None:
    assert len({overflow.provider for overflow in OVERFLOW_BODIES}) == 10
    with Provider() as p:
        for provider, status, body in OVERFLOW_BODIES:
            p.faults = [Fault(status=status, body=body)]
            assert ask(p) == (status, json.dumps(body).encode()), provider


def test_which_requests_are_met() -> None:
    with Provider() as p:
        p.faults = [Fault(status=500, call="t1-*", attempt=1), Fault(status=502, nth=range(3, 5))]
        got = [ask(p, call=call, attempt=attempt)[0] for call in ("t1-a", "t2-a", "t3-a") for attempt in (1, 2)]
        assert got == [500, 200, 502, 502, 200, 200]
        assert [info.fault is not None for info in p.requests] == [True, False, True, True, False, False]


def test_random_faults_are_the_same_in_any_order() -> None:
    names = [f"t{number}-a" for number in range(40)]
    with Provider() as p:
        rounds = []
        for order in (names, names[::-1]):
            p.reset()
            p.faults = [Fault(status=503, rate=0.3, seed=7)]
            rounds.append({call: ask(p, call=call)[0] for call in order})
    assert rounds[0] == rounds[1]
    assert 4 < list(rounds[0].values()).count(503) < 22


def test_shapes_of_chat_completions() -> None:
    def shaped(shape: Any) -> tuple[Any, list[Any]]:
        p.faults = [Fault(shape=shape)]
        return data(p)["choices"], events(p)

    with Provider() as p:
        whole = data(p)["choices"][0]["message"]["content"]
        (choice,), streamed = shaped("empty")
        assert choice["message"]["content"] == "" == text(streamed) and choice["finish_reason"] == "stop"
        choices, streamed = shaped("no-choices")
        assert choices == [] and streamed[0]["choices"] == [] and streamed[-1] == "[DONE]"
        (choice,), streamed = shaped("reasoning-only")
        assert choice["message"]["reasoning_content"] == whole == deltas(streamed, "reasoning_content")
        assert not choice["message"]["content"] and not text(streamed)
        (choice,), streamed = shaped("length")
        assert choice["finish_reason"] == "length" and text(streamed) == whole[: len(whole) // 2]
        (choice,), streamed = shaped("content-filter")
        assert choice["finish_reason"] == "content_filter" == streamed[-3]["choices"][0]["finish_reason"]
        (choice,), streamed = shaped("refusal")
        assert choice["message"]["refusal"] == deltas(streamed, "refusal") != ""
        (choice,), streamed = shaped("no-finish")
        assert choice["finish_reason"] is None and text(streamed) == whole
        assert all(not event["choices"] or not event["choices"][0]["finish_reason"] for event in streamed[:-1])
        (choice,), streamed = shaped("no-done")
        assert "[DONE]" not in streamed
        p.faults = [Fault(shape="html")]
        assert ask(p)[1].startswith(b"<!DOCTYPE html>")
        p.faults = [Fault(shape="malformed")]
        for broken in (data, events):
            with pytest.raises(json.JSONDecodeError):
                broken(p)


def test_shapes_of_messages() -> None:
    def shaped(shape: Any) -> tuple[Any, list[Any]]:
        p.faults = [Fault(shape=shape)]
        return data(p, MESSAGES), events(p, MESSAGES)

    with Provider() as p:
        for shape in ("empty", "no-choices"):
            message, streamed = shaped(shape)
            assert message["content"] == [] and message["stop_reason"] == "end_turn" and not text(streamed)
        message, streamed = shaped("reasoning-only")
        assert [block["type"] for block in message["content"]] == ["thinking"] and not text(streamed)
        for shape, reason in (
            ("length", "max_tokens"),
            ("content-filter", "refusal"),
            ("refusal", "refusal"),
        ):
            message, streamed = shaped(shape)
            assert message["stop_reason"] == reason == streamed[-2]["delta"]["stop_reason"]
        message, streamed = shaped("no-finish")
        assert message["stop_reason"] is None and streamed[-2]["type"] == "content_block_stop"
        message, streamed = shaped("no-done")
        assert streamed[-1]["type"] == "message_delta"


def test_usage() -> None:
    def counted(**fault: Any) -> Any:
        p.faults = [Fault(**fault)]
        streamed = [event for event in events(p)[:-1] if event.get("usage")]
        whole = data(p).get("usage")
        assert [event["usage"] for event in streamed] == ([whole] if whole else [])
        return whole

    with Provider(script=lambda info: Answer("hi", usage=Usage(100, 20))) as p:
        assert counted() == {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        assert counted(usage="none") is None
        assert counted(usage="zero")["total_tokens"] == 0
        assert counted(usage="cached")["prompt_tokens_details"] == {"cached_tokens": 75}
        assert counted(usage="cost")["cost"] == 0.00125
        p.faults = [Fault(usage="cached")]
        usage = data(p, MESSAGES)["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (25, 75)


def test_error_inside_a_stream() -> None:
    with Provider(faults=[Fault(stream_error="overloaded_error", after=4)]) as p:
        streamed, told = events(p), events(p, MESSAGES)
        assert len(streamed) == len(told) == 5 and text(streamed)
        assert streamed[-1]["error"]["code"] == 529
        assert b"event: error\n" in ask(p, MESSAGES, stream=True)[1]
        assert told[-1]["error"]["type"] == "overloaded_error"
        assert data(p)["error"]["type"] == "overloaded_error"


@pytest.mark.wide
@pytest.mark.parametrize("hang", ["headers", "first-byte", "middle"])
def test_hangs(hang: Any) -> None:
    async def client(session: aiohttp.ClientSession) -> tuple[bool, int]:
        seen, had_headers = 0, False
        try:
            async with asyncio.timeout(1.0), session.post(p.url + CHAT, json={"stream": True}) as response:
                had_headers = True
                async for piece in response.content.iter_any():
                    seen += len(piece)
        except TimeoutError:
            return had_headers, seen
        raise AssertionError("it did not hang")

    with Provider(faults=[Fault(hang=hang)]) as p:
        had_headers, seen = run(client)
        assert had_headers == (hang != "headers") and bool(seen) == (hang == "middle")
        p.settle()
        assert p.requests[0].left
        p.faults = [Fault(hang=hang, hang_for=0.1)]
        for stream in (False, True):
            start = time.monotonic()
            assert ask(p, stream=stream)[0] == 200
            assert 0.1 <= time.monotonic() - start < 4


def test_a_hanging_provider_closes_at_once() -> None:
    async def client(session: aiohttp.ClientSession) -> None:
        call = asyncio.create_task(session.post(p.url + CHAT, json={}))
        while not p.requests:  # noqa: ASYNC110 (another thread notes them)
            await asyncio.sleep(0.005)
        await asyncio.to_thread(p.__exit__, None, None, None)
        with pytest.raises(aiohttp.ClientError):
            await call

    start = time.monotonic()
    with Provider(faults=[Fault(hang="headers")]) as p:
        run(client)
    assert time.monotonic() - start < 9 and not p.requests[0].left


@pytest.mark.wide
def test_pauses_and_drip() -> None:
    def timed() -> float:
        start = time.monotonic()
        assert ask(p, stream=True)[0] == 200
        return time.monotonic() - start

    script = [Row("x" * 100)]
    with Provider(script=script, between=0.01, chunk=10) as p:
        assert 0.12 <= timed() < 4
    with Provider(script=script, first_byte=0.1) as p:
        assert 0.1 <= timed() < 4
    with Provider(script=script) as p:
        size = len(ask(p, MESSAGES)[1])
        p.faults = [Fault(drip=0.0002)]
        start = time.monotonic()
        assert len(ask(p, MESSAGES)[1]) == size
        assert size * 0.0002 <= time.monotonic() - start < 5


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["fin", "rst"])
def test_cuts_break_the_body_off(how: Any, stream: bool) -> None:
    async def client(session: aiohttp.ClientSession) -> bytes:
        got = b""
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            async with session.post(p.url + CHAT, json={"stream": stream}, headers=headers()) as response:
                async for piece in response.content.iter_any():
                    got += piece
        return got

    with Provider() as p:
        whole = run(lambda session: _read(session, p, stream))
        for cut in (0, 1, 200, -1):
            p.faults = [Fault(cut=cut, how=how)]
            got = run(client)
            assert whole.startswith(got)
            assert how == "rst" or len(got) == (cut if cut >= 0 else len(whole) + cut)
        p.settle()
        assert not any(info.left for info in p.requests)


async def _read(session: aiohttp.ClientSession, p: Provider, stream: bool) -> bytes:
    async with session.post(p.url + CHAT, json={"stream": stream}, headers=headers()) as response:
        return await response.read()


def test_cuts_that_look_like_the_end() -> None:
    with Provider() as p:
        whole = [ask(p, stream=stream)[1] for stream in (False, True)]
        p.faults = [Fault(cut=300, how="end")]
        assert [ask(p, stream=stream)[1] for stream in (False, True)] == [body[:300] for body in whole]


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_dropped_before_any_header(how: Any) -> None:
    with Provider(faults=[Fault(drop=True, how=how, attempt=1)]) as p:
        with pytest.raises(aiohttp.ClientOSError if how == "rst" else aiohttp.ServerDisconnectedError):
            ask(p)
        assert ask(p, attempt=2)[0] == 200
        assert [info.status for info in p.calls] == [0, 200]
