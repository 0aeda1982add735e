"""The real codex, opencode and claude use `cdo mcp` as `cdo mcp install` registers it; everything is on loopback."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Desk, explained
from tests.real.test_command_agents_real import BIN, around, needs
from tests.support.answers import Answer, RequestInfo
from tests.support.provider import Provider, ToolCall

DECISION = "Stage it: build the reversible half now, and decide on the rest when the figures are in."
ASKED = "Should we split the service?"


def offered(info: RequestInfo) -> list[str]:
    """The names of the tools that an agent offers to its model, as it names them."""

    def named(tool: dict[str, Any], space: str = "") -> list[str]:
        inner = tool.get("tools")
        if isinstance(inner, list):  # a namespace
            return [name for one in inner for name in named(one, f"{tool['name']}|")]
        return [space + str(tool.get("name") or tool.get("function", {}).get("name") or tool["type"])]

    return [name for tool in info.body.get("tools") or () for name in named(tool)]


def decider(info: RequestInfo) -> Answer | None:
    """The model of an agent: it calls `decide`, and then says that it is done. cdo has its usual voices."""
    if info.call:
        return None
    body = json.dumps(info.body)
    if "Stage it:" in body:
        return Answer("The voices have decided.")
    if '"c1"' in body:
        return Answer("The call came to nothing.")
    tool = next((name for name in offered(info) if name.endswith("decide")), "")
    return (
        Answer("", tool_calls=(ToolCall("c1", tool, json.dumps({"question": ASKED})),))
        if tool
        else Answer("No tool.")
    )


def desk_of(desk: Desk, provider: Provider, **more: str) -> Desk:
    """A desk at which an agent finds a home of its own, nothing outside, and the keys of cdo."""
    env = around(desk.path.parent / "home", **more)
    return replace(
        desk, env={**env, "OPENAI_BASE_URL": f"{provider.url}/v1", "PYTHONPATH": desk.environment()["PYTHONPATH"]}
    )


def used(desk: Desk, *argv: str) -> str:
    """Run an agent to its end, and return what it said."""
    done = subprocess.run(
        argv, cwd=desk.path, env=desk.environment(), capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def called(provider: Provider, desk: Desk) -> None:
    """The agent's model was offered all tools, one was called, and its answer came back."""
    asked = [info for info in provider.calls if not info.call]
    names = [
        re.split(r"[|_]", name)[-1] for info in asked for name in offered(info)
    ]  # a call for a title offers none
    assert {"deliberate", "decide", "status", "result", "cancel", "list", "decisions", "answer"} <= set(names)
    assert DECISION in json.dumps(asked[-1].body)
    (session,) = desk.sessions()
    assert (session / "00-input.md").read_text() == f"{ASKED}\n" and (session / "FINAL.md").exists()


@needs("codex")
@pytest.mark.slow
def test_codex_calls_a_tool(cdo: Desk, provider: Provider) -> None:
    provider.script = decider
    desk = desk_of(cdo, provider, STUB_KEY="k")
    home = desk.path.parent / "home" / ".codex"
    home.mkdir()
    stub = f'name = "stub"\nbase_url = "{provider.url}/v1"\nenv_key = "STUB_KEY"\nwire_api = "responses"\n'
    (home / "config.toml").write_text(f'model = "m1"\nmodel_provider = "stub"\n[model_providers.stub]\n{stub}')
    desk("mcp", "install", "codex", "--write").ok()
    with (home / "config.toml").open("a") as config:
        config.write("required = true\n")  # the first request waits for the server, as a person's typing would
    said = used(
        desk, str(BIN / "codex"), "exec", "--json", "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox", "Decide it.",
    )  # fmt: skip
    assert "The voices have decided." in said
    called(provider, desk)


@needs("opencode")
@pytest.mark.slow
def test_opencode_calls_a_tool(cdo: Desk, provider: Provider) -> None:
    provider.script, provider.latency = decider, 1.0
    desk = desk_of(cdo, provider)
    desk("mcp", "install", "opencode", "--write").ok()
    config = Path(desk.path.parent / "home" / ".config" / "opencode" / "opencode.json")
    model = {"limit": {"context": 32_000, "output": 4000}, "tool_call": True}
    options = {"baseURL": f"{provider.url}/v1", "apiKey": "k"}
    stub = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m1": model}}
    config.write_text(json.dumps({**json.loads(config.read_text()), "provider": {"stub": stub}}))
    said = used(desk, str(BIN / "opencode"), "run", "--format=json", "--model=stub/m1", "Decide it.")
    print([(offered(i), list(i.body)) for i in provider.calls])
    assert "The voices have decided." in said
    called(provider, desk)


@needs("claude")
@pytest.mark.slow
def test_claude_finds_the_tool_by_what_it_is_for(cdo: Desk, provider: Provider) -> None:
    """Claude Code names the tools of servers to its model only when that searches for them."""
    queries = ("second opinion", "council debate", "architecture decision", "review plan", "root cause bug")
    found: dict[str, str] = {}

    def script(info: RequestInfo) -> Answer | None:
        if info.call:
            return None
        if "ToolSearch" not in offered(info):
            return Answer("A title.")
        parts = [part for message in info.body["messages"] for part in message["content"] if isinstance(part, dict)]
        results = [part for part in parts if part["type"] == "tool_result"]
        told = {part["tool_use_id"]: str(part["content"]) for part in results}
        found.update({id: text for id, text in told.items() if "still connecting" not in text})
        if len(found) == len(queries) or len(told) > 20:
            return Answer("The search is over.")
        query = json.dumps({"query": queries[len(found)], "max_results": 10})
        return Answer("", tool_calls=(ToolCall(f"c{len(told)}", "ToolSearch", query),))

    provider.script, provider.latency = script, 1.0
    search = {"DISABLE_AUTOUPDATER": "1", "MCP_CONNECTION_NONBLOCKING": "0", "ENABLE_TOOL_SEARCH": "true"}
    desk = desk_of(cdo, provider, ANTHROPIC_BASE_URL=provider.url, ANTHROPIC_API_KEY="k", **search)
    desk("mcp", "install", "claude", "--write").ok()
    words = ("--print", "--no-session-persistence", "--model=claude-sonnet-5-5", "Decide it.")
    assert "The search is over." in used(desk, str(BIN / "claude"), *words)
    missed = [query for query, text in zip(queries, found.values(), strict=True) if "__deliberate" not in text]
    assert missed == [], found


@needs("claude")
@pytest.mark.slow
def test_claude_calls_a_tool(cdo: Desk, provider: Provider) -> None:
    provider.script = decider
    # Its first request has all tools, where it would else connect beside it and name them only when asked.
    whole = {"DISABLE_AUTOUPDATER": "1", "MCP_CONNECTION_NONBLOCKING": "0", "ENABLE_TOOL_SEARCH": "false"}
    desk = desk_of(cdo, provider, ANTHROPIC_BASE_URL=provider.url, ANTHROPIC_API_KEY="k", **whole)
    desk("mcp", "--max-budget", "2", "install", "claude", "--write").ok()
    shown = used(desk, str(BIN / "claude"), "mcp", "get", "cdo")
    assert "Connected" in shown and "mcp --max-budget 2" in shown
    again = "`claude mcp remove --scope=user cdo` takes that back"
    explained(desk("mcp", "install", "claude", "--write"), 4, again)
    used(desk, str(BIN / "claude"), "mcp", "remove", "--scope=user", "cdo")
    desk("mcp", "install", "claude", "--write").ok()
    said = used(
        desk, str(BIN / "claude"), "--print", "--no-session-persistence", "--allowedTools=mcp__cdo__decide",
        "--model=claude-sonnet-5-5", "Decide it.",
    )  # fmt: skip
    print([(offered(i), list(i.body)) for i in provider.calls])
    assert "The voices have decided." in said
    called(provider, desk)
