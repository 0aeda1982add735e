"""The provider of tests/support/provider.py answers, logs and serves as a plain client expects."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import pytest
import yaml

from cdo.formats.final_answer import FINAL_SECTIONS, FinalFormat
from cdo.programs.deliberation.draft_review import DraftReview, ReviewFormat
from cdo.programs.deliberation.findings import FindingsFormat, Source
from tests.support.client import CHAT, MESSAGES, ask, data, events, headers, run, text
from tests.support.harness import wait_for
from tests.support.provider import (
    Answer,
    Fault,
    Provider,
    RequestInfo,
    Row,
    ToolCall,
    agent_text,
    final_text,
    synthesis_text,
)

VOICES = ("skeptic", "critic", "architect", "pragmatist", "operator")

# -- answers --------------------------------------------------------------------------------------


def test_both_protocols_say_the_same_streamed_or_not() -> None:
    with Provider(chunk=7) as p:
        whole = data(p)["choices"][0]
        streamed = events(p)
        message = data(p, MESSAGES)
        told = events(p, MESSAGES)
    assert whole["finish_reason"] == "stop"
    assert streamed[-1] == "[DONE]"
    assert streamed[-3]["choices"][0]["finish_reason"] == "stop"
    assert streamed[-2]["choices"] == [] and streamed[-2]["usage"]["completion_tokens"] > 200
    assert whole["message"]["content"] == text(streamed) == message["content"][0]["text"] == text(told)
    assert [event["type"] for event in told[:3]] == ["message_start", "ping", "content_block_start"]
    assert [event["type"] for event in told[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert told[-2]["delta"]["stop_reason"] == message["stop_reason"] == "end_turn"
    assert told[0]["message"]["usage"]["input_tokens"] == message["usage"]["input_tokens"] == 1
    assert told[-2]["usage"]["output_tokens"] == streamed[-2]["usage"]["completion_tokens"]


def test_usage_is_streamed_only_when_asked_for() -> None:
    with Provider() as p:

        async def client(session: aiohttp.ClientSession) -> str:
            async with session.post(p.url + CHAT, json={"stream": True, "messages": []}) as response:
                return await response.text()

        assert '"usage"' not in run(client)


def test_default_answers_follow_the_reply_formats() -> None:
    with Provider(width=5) as p:
        voice = data(p, call="t2-critic")["choices"][0]["message"]["content"]
        again = data(p, call="t2-critic", attempt=2)["choices"][0]["message"]["content"]
        shown = "\n\n".join(f'<voice role="{name}">\nx\n</voice>' for name in VOICES)
        synthesis = data(p, kind="synthesis", call="t2-synthesis", prompt=shown)["choices"][0]["message"]["content"]
        prompt = (
            "<voice>\n- F7: no\n</voice>\n# Your part\n- F1 (rank 1): a\n- F2 (rank 2): b\n- T1: c\n"
            "These can only be found out elsewhere.\n- T2: d\n"
        )
        finals = [
            data(p, kind=kind, call=kind, prompt=prompt)["choices"][0]["message"]["content"]
            for kind in ("draft", "final")
        ]
        claims = "# Your part\n- t1-critic/c1: It holds.\n- t2-critic/c1: It does not.\n"
        listed = data(p, kind="findings", call="findings", prompt=claims)["choices"][0]["message"]["content"]
        review = data(p, kind="review", call="review")["choices"][0]["message"]["content"]
    assert voice == again and 800 < len(voice) < 2000
    front = yaml.safe_load(voice.split("---")[1])
    assert 0.6 <= front["confidence"] < 0.8 and front["claims"][0]["evidence"] == ["reasoning"]
    assert front["objections"][0]["severity"] == 6
    directive = yaml.safe_load(synthesis.split("```yaml")[1].split("```")[0])
    assert directive["width"] == 5 == len(set(directive["roles"])) and directive["exit_ready"] is False
    assert [item["status"] for item in directive["tensions"]] == ["resolved", "open"]
    assert directive["gaps"] and "agreement" not in directive
    sizes = [len(camp["voices"]) for camp in directive["camps"]]
    assert sizes == [3, 2] and {name for camp in directive["camps"] for name in camp["voices"]} == set(VOICES)
    assert [line[3:] for line in synthesis.splitlines() if line.startswith("## ")] == [
        "Common ground",
        "Tensions",
        "Gaps",
        "Surprises",
        "Anti-groupthink",
        "Next turn directive",
    ]
    form = FinalFormat((("F1", "a"),), (("T2", "d"),))
    assert [form.parse(text).sections for text in finals] == [FINAL_SECTIONS] * 2 and "F7" not in finals[0]
    sources = (Source("t1-critic/c1", "It holds."), Source("t2-critic/c1", "It does not."))
    found = FindingsFormat(sources).parse(listed).findings
    assert [(item.id, item.rank, item.text, item.sources) for item in found] == [
        ("F1", 1, "It holds.", ("t1-critic/c1",)),
        ("F2", 2, "It does not.", ("t2-critic/c1",)),
    ]
    assert ReviewFormat().parse(review) == DraftReview()


def test_builders_take_hostile_text() -> None:
    nasty = 'a "quoted": #text\n---\n{% x %}'
    front = yaml.safe_load(agent_text(nasty, objections=[nasty, ("x", 9)], prose="p").split("\n---\n\n")[0])
    assert front["position"] == nasty and front["objections"][1] == {"id": "o2", "text": "x", "severity": 9}
    said = synthesis_text(roles=[{"name": "a", "charge": nasty}], tensions=[nasty], gaps=[nasty], exit_ready=True)
    directive = yaml.safe_load(said.split("```yaml")[1].split("```")[0])
    assert directive["roles"][0]["charge"] == directive["tensions"][0]["title"] == nasty
    assert "- T2 is resolved" in final_text("yes", tensions=["T2 is resolved"])


def test_scripts_override_by_function_or_rows() -> None:
    def script(info: RequestInfo) -> Answer | str | Fault | None:
        if info.call == "t1-critic":
            return Fault(status=503) if info.attempt == 1 else "better now"
        return None

    with Provider(script=script) as p:
        assert ask(p, call="t1-critic")[0] == 503
        assert data(p, call="t1-critic", attempt=2)["choices"][0]["message"]["content"] == "better now"
        assert data(p)["choices"][0]["message"]["content"].startswith("---\nposition: ")
        p.script = [Row("second", kind="agent", nth=2), Row(Answer("slow", latency=0.1), call="t?-synthesis")]
        assert [data(p)["choices"][0]["message"]["content"] == "second" for _ in range(3)] == [
            False,
            True,
            False,
        ]
        assert data(p, kind="synthesis", call="t9-synthesis")["choices"][0]["message"]["content"] == "slow"
        last = p.calls[-1]
        assert last.ended is not None and 0.1 <= last.ended - last.arrived < 0.4


def test_a_mistake_in_a_script_reaches_the_test() -> None:
    def script(info: RequestInfo) -> None:
        raise AssertionError("not this call")

    with pytest.raises(AssertionError, match="not this call"), Provider(script=script) as p:
        assert ask(p)[0] == 500


def test_tool_calls() -> None:
    calls = (ToolCall("call_1", "read", '{"path": "a.py"}'), ToolCall("call_2", "grep", '{"bad'))
    with Provider(script=lambda info: Answer(tool_calls=calls)) as p:
        choice = data(p)["choices"][0]
        streamed = events(p)
        message = data(p, MESSAGES)
        told = events(p, MESSAGES)
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][1]["function"]["arguments"] == '{"bad'
    parts = [part for event in streamed[:-2] for part in event["choices"][0]["delta"].get("tool_calls", [])]
    assert [part["id"] for part in parts if "id" in part] == ["call_1", "call_2"]
    for index, call in enumerate(calls):
        pieces = [part["function"]["arguments"] for part in parts if part["index"] == index]
        assert "".join(pieces) == call.arguments
    assert message["stop_reason"] == "tool_use" and message["content"][0]["input"] == {"path": "a.py"}
    raw = [event["delta"]["partial_json"] for event in told if event.get("index") == 1 and "delta" in event]
    assert "".join(raw) == '{"bad'


def test_models_are_listed_as_openai_and_ollama_do() -> None:
    async def client(session: aiohttp.ClientSession) -> list[Any]:
        found = []
        for path in ("/v1/models", "/models", "/api/tags", "/nothing"):
            async with session.get(p.url + path) as response:
                found.append((response.status, await response.json()))
        return found

    with Provider(models=["m"], faults=[Fault(status=500), Fault(status=403, path="/models")]) as p:
        answers = run(client)
        assert [info.status for info in p.requests] == [200, 403, 200, 404] and not p.calls
    assert answers[0][1]["data"][0]["id"] == "m"
    assert answers[2][1]["models"][0]["name"] == "m:latest"


# -- the log --------------------------------------------------------------------------------------


@pytest.mark.wide
def test_log_and_concurrency() -> None:
    async def client(session: aiohttp.ClientSession) -> None:
        async def one(number: int) -> None:
            async with session.post(
                p.url + CHAT, json={"messages": []}, headers=headers(call=f"t1-a{number}")
            ) as response:
                await response.read()

        await asyncio.gather(*(one(number) for number in range(20)))
        async with session.post(p.url + CHAT, data=b"not json", headers=headers("final", "final", 2)) as response:
            await response.read()

    with Provider(latency=1.0) as p:
        run(client)
        p.settle()
        assert p.peak == {"agent": 20, "all": 20, "final": 1}
        last = p.requests[-1]
        assert (last.kind, last.call, last.attempt, last.nth, last.number) == ("final", "final", 2, 1, 21)
        assert last.body == "not json" and last.headers["x-cdo-kind"] == "final"
        assert last.ended is not None and 1.0 <= last.ended - last.arrived < 10
        stats = json.loads(urllib.request.urlopen(p.url + "/stats").read())
        assert stats["calls"] == 21 and stats["by_kind"] == {"agent": 20, "final": 1} and stats["peak"] == 20
        assert 2.0 <= stats["span"] < 20 and stats["in_flight"] == 0
        urllib.request.urlopen(p.url + "/reset", data=b"").read()
        assert p.requests == [] and p.stats()["peak"] == 0


def test_what_is_held_is_answered_when_it_is_let_go() -> None:
    with Provider() as p, ThreadPoolExecutor(1) as pool:
        p.hold("t1-*")
        held = pool.submit(ask, p, call="t1-critic")
        wait_for(lambda: p.named("t1-critic"))
        assert ask(p, call="t2-critic")[0] == 200, "no other call is held"
        assert not held.done() and p.stats()["in_flight"] == 1
        p.release()
        assert held.result(60)[0] == 200


def test_long_prompts_are_read() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 3_000_000}]}).encode()

    async def client(session: aiohttp.ClientSession) -> int:
        async with session.post(p.url + CHAT, data=io.BytesIO(body)) as response:
            return response.status

    with Provider() as p:
        assert run(client) == 200
        assert len(p.requests[0].prompt) == 3_000_000


# -- as a process ---------------------------------------------------------------------------------


@pytest.mark.wide
def test_process_prints_its_url_and_is_fast() -> None:
    async def client(session: aiohttp.ClientSession) -> float:
        async def worker() -> None:
            for _ in range(50):
                async with session.post(url + CHAT, json={"messages": []}, headers=headers()) as response:
                    await response.read()

        start = time.monotonic()
        await asyncio.gather(*(worker() for _ in range(20)))
        return 1000 / (time.monotonic() - start)

    command = [sys.executable, "-m", "tests.support.provider", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        rate = run(client)
        stats = json.loads(urllib.request.urlopen(url + "/stats").read())
        process.terminate()
        assert process.wait(60) == 0
    assert stats["calls"] == 1000
    print(f"{rate:.0f} requests a second")
    assert rate > 50  # several thousand on an idle machine; this only notices a collapse
