"""Runs that speak each provider's own protocol: tools, effort and caching, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import A, Desk
from tests.runs.test_repository_evidence import checkout, wish
from tests.support.answers import Answer, RequestInfo, agent_text
from tests.support.faults import Fault, tools_refused
from tests.support.harness import KEY, exchanges, tree
from tests.support.provider import Provider

__all__ = ["checkout"]  # a fixture
CLAUDE, GPT = ("-m", "anthropic/claude-sonnet-5-5"), ("-m", "openai/gpt-6.1-sol")
QUESTION = "How does the queue push a job?"


def with_responses(cdo: Desk, provider: Provider) -> Desk:
    """The desk of a person whose table of providers has this one, which speaks Responses."""
    url = f"{provider.url}/v1"
    table = {"openai": {"url": url, "protocol": "responses", "key_env": ["OPENAI_API_KEY"], "flex": True}}
    cdo.write(
        "../home/.config/cdo/dispatch/providers.yaml",
        json.dumps({"purpose": "x", "load_when": "x", "providers": table}),
    )
    return cdo.having(OPENAI_BASE_URL="")


def with_messages(cdo: Desk, provider: Provider) -> Desk:
    return cdo.having(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=provider.url)


WAYS = {"/v1/responses": (with_responses, GPT), "/v1/messages": (with_messages, CLAUDE)}


def looks_once(info: RequestInfo) -> Answer | None:
    if info.kind != "agent":
        return None
    used = "seen on the way" in str(info.body) or "heapq" in str(info.body).rpartition("tool_result")[2]
    if (
        info.body.get("tools")
        and "function_call_output" not in str(info.body)
        and "tool_result" not in str(info.body)
    ):
        return Answer(reasoning="I should look.", tool_calls=(wish("read", path="src/queue.py"),))
    return Answer(agent_text(f"After a look ({used}): stage it."))


@pytest.mark.parametrize("path", WAYS)
def test_a_run_in_the_provider_s_own_protocol(checkout: Desk, provider: Provider, path: str) -> None:
    """Voices use tools; what the model thought goes back with the results; a resume asks nothing."""
    way, model = WAYS[path]
    provider.script = looks_once
    desk = way(checkout, provider)
    desk("think", "--turns", "1", *model, *A, QUESTION).ok()
    assert {info.path for info in provider.calls} == {path}
    second = [info for info in provider.calls if info.call == "t1-critic"][1]
    assert '"thinking"' in json.dumps(second.body) or '"encrypted_content"' in json.dumps(second.body)
    assert "heapq.heappush" in json.dumps(second.body["input" if path.endswith("responses") else "messages"])
    assert "After a look" in (desk.session() / "t1-critic.md").read_text()
    before, calls = tree(desk.session()), len(provider.calls)
    (desk.session() / "FINAL.md").unlink()
    desk("resume", "a").ok()
    assert tree(desk.session()) == before and len(provider.calls) == calls


@pytest.mark.parametrize("path", WAYS)
def test_what_a_model_thought_outlives_the_process(checkout: Desk, provider: Provider, path: str) -> None:
    way, model = WAYS[path]
    provider.script = looks_once
    desk = way(checkout, provider)
    desk("quick", "--max-calls", "2", *model, *A, QUESTION).failed(5)  # both voices have looked, and no more
    desk("resume", "a", "--max-calls", "9").ok()
    (second,) = [info for info in provider.calls if info.call == "t1-critic" and info.attempt == 2]
    assert '"signature"' in json.dumps(second.body) or '"encrypted_content"' in json.dumps(second.body)
    assert {info.attempt for info in provider.calls if info.call.startswith("t1-critic")} == {1, 2}


def efforts(provider: Provider) -> dict[str, str]:
    """The effort that each call of a run asked for, in Messages."""
    return {info.call: info.body.get("output_config", {}).get("effort", "") for info in provider.calls}


@pytest.mark.parametrize(
    ("words", "voice", "synthesis"),
    [
        (("quick",), "low", "low"),
        (("think", "--turns", "1"), "", "high"),
        (("think", "--effort", "max"), "max", "max"),
    ],
)
def test_effort_is_the_person_s_else_the_preset_s_else_the_prompt_s(
    cdo: Desk, provider: Provider, words: tuple[str, ...], voice: str, synthesis: str
) -> None:
    desk = with_messages(cdo, provider)
    desk(*words, *CLAUDE, *A, QUESTION).ok()
    found = efforts(provider)
    assert (found["t1-critic"], found["t1-synthesis"]) == (voice, synthesis)
    provider.reset()
    desk("quick", "--session", "b", "-m", "anthropic/claude-3-haiku-20240307", QUESTION).ok()  # cannot be told
    assert set(efforts(provider).values()) == {""}


def test_effort_and_flex_reach_every_command_that_asks_models(cdo: Desk, provider: Provider) -> None:
    desk = with_responses(cdo, provider)
    think = ("--effort", "medium", "--flex")
    desk("quick", *GPT, *A, QUESTION).ok()
    usual, others = desk("list", "--json").ok().json[0]["cost"], len(provider.calls)
    assert not any("service_tier" in info.body for info in provider.calls)
    desk("quick", *GPT, *think, "--session", "b", QUESTION).ok()
    costs = {row["session"]: row["cost"] for row in desk("list", "--json").ok().json}
    assert costs["b"] == pytest.approx(usual / 2)
    desk("fork", "a", "--turn", "0", "--note", "Be brief.", *think).ok()
    desk("audit", "a", *GPT, *think, "--yes").failed(7)  # nobody here compares
    desk("quick", *GPT, "--session", "c", "--max-calls", "1", QUESTION).failed(5)
    begun = len(provider.calls)
    desk("resume", "c", "--max-calls", "9", *think).ok()
    desk("cabal", *GPT, *think, "--max-calls", "1", "--session", "m", "Build a list").failed(5)
    asked = [*provider.calls[others : begun - 1], *provider.calls[begun:]]
    assert {(info.body["reasoning"]["effort"], info.body["service_tier"]) for info in asked} == {("medium", "flex")}
    told = desk("quick", "-m", "openai/gpt-4.1", "--flex", "--session", "d", QUESTION).ok()
    assert "no flex tier is known for openai/gpt-4.1: asked at the full price" in told.err


def test_a_seat_can_think_longer(cdo: Desk, provider: Provider) -> None:
    desk = with_messages(cdo, provider)
    desk("think,hitl", "--turns", "1", *CLAUDE, *A, QUESTION).failed(6)
    plan = desk.session() / "t1-plan.yaml"
    plan.write_text("voices:\n  - {role: critic, effort: low}\n  - {role: architect}\n")
    desk("resume", "a").ok()
    found = efforts(provider)
    assert (found["t1-critic"], found["t1-architect"]) == ("low", "")


def test_a_parameter_that_a_model_refuses_is_left_out_from_then_on(cdo: Desk, provider: Provider) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "output_config: not supported"}}
    provider.script = lambda info: Fault(status=400, body=error) if "output_config" in info.body else None
    desk = with_messages(cdo, provider)
    desk("quick", *CLAUDE, *A, QUESTION).ok()
    assert 1 <= sum("output_config" in info.body for info in provider.calls) <= 2
    left_out = [record["fault"] for record in exchanges(desk.session()) if "fault" in record]
    assert left_out and all("output_config" in fault["left_out"] for fault in left_out if "left_out" in fault)


def test_tools_that_a_model_refuses_are_told_once_and_noted(checkout: Desk, provider: Provider) -> None:
    provider.script = tools_refused
    done = checkout("think", "--turns", "1", "-m", "openai/gpt-6-sol", *A, QUESTION).ok()
    assert done.err.count("openai/gpt-6-sol refuses tools: its voices cannot look into the repository") == 1
    assert "tools_refused: true" in (checkout.session() / "t1-critic.md").read_text()
    assert "tools_refused: true" not in (checkout.session() / "t1-synthesis.md").read_text()


@pytest.fixture
def caching() -> Iterator[Provider]:
    with Provider(cache=1024, first_byte=0.2) as provider:
        yield provider


def test_voices_after_the_first_read_what_they_share_from_the_cache(cdo: Desk, caching: Provider) -> None:
    desk = with_messages(cdo, caching)
    material = desk.write(
        "notes.md", "\n".join(f"Fact {number}: the queue holds {number} jobs." for number in range(900))
    )
    done = desk("deep", "--turns", "1", *CLAUDE, "-c", str(material), "--json", "--yes", *A, QUESTION).ok()
    voices = [record for record in exchanges(desk.session()) if record["call_kind"] == "agent"]
    reads = sorted(record["usage"]["cached_tokens"] for record in voices)
    writes = sorted(record["usage"].get("cache_write_tokens", 0) for record in voices)
    assert len(voices) >= 5 and reads[0] == 0 and reads[1] > 8000 and writes[-1] > 8000 and writes[-2] < 1000
    shared = reads[1]
    fresh = sum(record["usage"]["input_tokens"] for record in voices) * 2e-6
    paid = sum(record["cost"] - record["usage"]["output_tokens"] * 1e-5 for record in voices)
    assert paid < fresh - (len(voices) - 1) * shared * 2e-6 * 0.85, "reads cost a twentieth, the write a quarter more"
    assert done.json["cost"] == pytest.approx(sum(record["cost"] for record in exchanges(desk.session())), abs=1e-6)
