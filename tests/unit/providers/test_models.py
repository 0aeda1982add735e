"""From a model's name to how it is reached and what it costs, without a request and without litellm."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from cdo.app.seats import seats
from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Price
from cdo.core.errors import ConfigError, ContentError, NoModel
from cdo.core.exchange import Message, Request, Response, Thread, Usage
from cdo.planning.settings import Resolved, Settings
from cdo.providers import models, price_table
from cdo.providers.command_agent import launch, unseen
from cdo.providers.models import ModelSpec, available, choose, resolve, vendors
from cdo.providers.price_table import DEFAULT_WINDOW
from cdo.providers.vendors import Vendors, maker
from cdo.security import secrets
from cdo.security.secrets import secret_values
from tests.support.backends import attempt, request
from tests.support.provider import Provider

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = Library((("packaged", PACKAGED),))
PROVIDERS = models.table(LIBRARY)
OPENAI, ANTHROPIC, LOCAL = "https://api.openai.com/v1", "https://api.anthropic.com", "http://127.0.0.1:9/v1"
GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai"
FREE = Price(input=0, output=0)


def spec(name: str, env: Mapping[str, str] | None = None, prices: Mapping[str, Price] | None = None) -> ModelSpec:
    return resolve(name, LIBRARY, prices or {}, env or {})


@pytest.mark.parametrize(
    ("name", "env", "route", "model", "url", "key_env"),
    [
        ("openai/gpt-4.1", {"OPENAI_API_KEY": "k"}, "direct", "gpt-4.1", OPENAI, "OPENAI_API_KEY"),
        ("openai/gpt-4.1", {"OPENAI_BASE_URL": LOCAL}, "direct", "gpt-4.1", LOCAL, ""),
        ("openai/x", {"OPENAI_BASE_URL": LOCAL, "OPENAI_API_KEY": "k"}, "direct", "x", LOCAL, "OPENAI_API_KEY"),
        ("openai/a/b:c", {"OPENAI_BASE_URL": LOCAL}, "direct", "a/b:c", LOCAL, ""),
        ("openai/x", {"OPENAI_API_BASE": LOCAL}, "direct", "x", LOCAL, ""),
        ("openai/x", {"OPENAI_BASE_URL": LOCAL, "OPENAI_API_BASE": "http://other"}, "direct", "x", LOCAL, ""),
        # bare names: by the price table, else by whoever serves at OPENAI_BASE_URL
        ("gpt-4.1", {"OPENAI_API_KEY": "k"}, "direct", "gpt-4.1", OPENAI, "OPENAI_API_KEY"),
        ("gpt-4.1", {"OPENAI_BASE_URL": LOCAL}, "direct", "gpt-4.1", LOCAL, ""),
        ("my-own", {"OPENAI_BASE_URL": LOCAL}, "direct", "my-own", LOCAL, ""),
        ("my-own", {"OPENAI_API_BASE": LOCAL}, "direct", "my-own", LOCAL, ""),
        ("claude-opus-4-5", {"ANTHROPIC_API_KEY": "k"}, "direct", "claude-opus-4-5", ANTHROPIC, "ANTHROPIC_API_KEY"),
        ("gemini-2.5-pro", {"GEMINI_API_KEY": "k"}, "direct", "gemini-2.5-pro", GEMINI, "GEMINI_API_KEY"),
        ("mistral-large-latest", {"MISTRAL_API_KEY": "k"}, "direct", "mistral-large-latest", "…", "MISTRAL_API_KEY"),
        ("ai21.jamba-instruct-v1:0", {}, "litellm", "ai21.jamba-instruct-v1:0", "", ""),
        # the table's providers
        ("openrouter/openai/gpt-4.1:free", {"OPENROUTER_API_KEY": "k"}, "direct", "openai/gpt-4.1:free", "…", "…"),
        ("groq/openai/gpt-oss-120b", {"GROQ_API_KEY": "k"}, "direct", "openai/gpt-oss-120b", "…", "GROQ_API_KEY"),
        ("together_ai/x/y", {"TOGETHER_API_KEY": "k"}, "direct", "x/y", "…", "TOGETHER_API_KEY"),
        ("anthropic/claude-x", {"ANTHROPIC_API_KEY": "k"}, "direct", "claude-x", ANTHROPIC, "ANTHROPIC_API_KEY"),
        ("anthropic/claude-x", {"ANTHROPIC_BASE_URL": LOCAL}, "direct", "claude-x", LOCAL, ""),
        ("gemini/x", {"GOOGLE_API_KEY": "k"}, "direct", "x", GEMINI, "GOOGLE_API_KEY"),
        ("ollama/llama3:8b", {}, "direct", "llama3:8b", "http://127.0.0.1:11434/v1", ""),
        ("hosted_vllm/x", {"HOSTED_VLLM_API_BASE": "http://gpu:8001/v1"}, "direct", "x", "http://gpu:8001/v1", ""),
        ("hosted_vllm/x", {"HOSTED_VLLM_API_KEY": "k"}, "direct", "x", "…", "HOSTED_VLLM_API_KEY"),
        ("llamacpp/x", {}, "direct", "x", "http://127.0.0.1:8080/v1", ""),
        # everybody else, by litellm, under the name as it was given
        ("bedrock/anthropic.claude-x", {}, "litellm", "bedrock/anthropic.claude-x", "", ""),
        ("vertex_ai/claude-opus-4-5", {}, "litellm", "vertex_ai/claude-opus-4-5", "", ""),
        ("azure/my-deployment", {}, "litellm", "azure/my-deployment", "", ""),
        ("github/gpt-4.1", {"OPENAI_API_KEY": "k"}, "litellm", "github/gpt-4.1", "", ""),
        ("custom_openai/knows", {}, "litellm", "custom_openai/knows", "", ""),
        # not by the network
        ("local", {}, "local", "", "", ""),
        ("local:/models/x.gguf", {}, "local", "/models/x.gguf", "", ""),
        ("scripted:/tmp/a:b.yaml", {}, "scripted", "/tmp/a:b.yaml", "", ""),
    ],
)
def test_names(name: str, env: dict[str, str], route: str, model: str, url: str, key_env: str) -> None:
    found = spec(name, env)
    assert (found.name, found.route, found.model) == (name, route, model)
    assert (found.url == url) if url != "…" else found.url.startswith("http")
    assert (found.key_env == key_env) if key_env != "…" else found.key_env in env


@pytest.mark.parametrize(
    ("name", "env", "message", "hint"),
    [
        ("openai/gpt-4.1", {}, "no key for openai/gpt-4.1", "OPENAI_API_KEY"),
        ("gpt-4.1", {}, "no key for gpt-4.1", "OPENAI_API_KEY"),
        ("openai/gpt-4.1", {"OPENAI_API_KEY": "  "}, "no key", "OPENAI_API_KEY"),
        ("openai/gpt-4.1", {"OPENAI_BASE_URL": " "}, "no key", "OPENAI_API_KEY"),
        ("anthropic/claude-x", {}, "no key for anthropic/claude-x", "ANTHROPIC_API_KEY"),
        ("gemini/x", {}, "no key", "GEMINI_API_KEY or GOOGLE_API_KEY"),
        ("mistral/x", {"OPENAI_API_KEY": "k"}, "no key", "MISTRAL_API_KEY"),
        ("no-such-model", {"OPENAI_API_KEY": "k"}, "`no-such-model` is not a model", "PROVIDER/MODEL"),
        ("sample_spec", {"OPENAI_API_KEY": "k"}, "not a model", "PROVIDER/MODEL"),
        ("", {}, "not a model", "PROVIDER/MODEL"),
        ("/x", {}, "not a model", "PROVIDER/MODEL"),
        ("openai/", {"OPENAI_API_KEY": "k"}, "not a model", "PROVIDER/MODEL"),
        ("codex", {}, "`codex` needs the program `codex`", "npm install -g @openai/codex"),
        ("codex:gpt-5", {"PATH": "/nowhere"}, "needs the program `codex`", "codex login"),
        ("claude", {"ANTHROPIC_API_KEY": "k"}, "needs the program `claude`", "npm install"),
        ("claude:opus", {"PATH": ""}, "needs the program `claude`", "log in"),
        ("gemini-cli", {}, "needs the program `gemini`", "GEMINI_API_KEY"),
        ("opencode:x/y", {}, "needs the program `opencode`", "opencode auth login"),
        ("codex:", {}, "`codex:` names no model", "codex:MODEL"),
        ("opencode: ", {}, "names no model", "opencode:MODEL"),
    ],
)
def test_what_cannot_be_reached_says_why_and_what_to_do(
    name: str, env: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(name, env)
    assert message in caught.value.message and hint in caught.value.hint
    assert caught.value.exit_code == 4


# -- prices and windows ----------------------------------------------------------------------------

TABLE: dict[str, Any] = json.loads(price_table.price_text())
KEYS = {key: "k" * 9 for provider in PROVIDERS.values() for key in provider.key_env}


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("openai/gpt-4.1", "gpt-4.1"),
        ("gpt-4.1", "gpt-4.1"),
        ("anthropic/claude-opus-4-5", "claude-opus-4-5"),
        ("gemini/gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("gemini-2.5-pro", "gemini/gemini-2.5-pro"),
        ("mistral/mistral-large-latest", "mistral/mistral-large-latest"),
        ("vertex_ai/claude-opus-4-5", "vertex_ai/claude-opus-4-5"),
        ("azure/gpt-4.1", "azure/gpt-4.1"),
    ],
)
def test_prices_and_windows_are_the_table_s(name: str, entry: str) -> None:
    found, row = spec(name, KEYS), TABLE[entry]
    assert found.price is not None
    assert found.price.input == pytest.approx(row["input_cost_per_token"] * 1e6)
    assert found.price.output == pytest.approx(row["output_cost_per_token"] * 1e6)
    cached = row.get("cache_read_input_token_cost")
    assert found.price.cached == (None if cached is None else pytest.approx(cached * 1e6))
    written = row.get("cache_creation_input_token_cost")
    assert found.price.cache_write == (None if written is None else pytest.approx(written * 1e6))
    assert found.window == row["max_input_tokens"]
    assert found.reply_tokens == min(32_768 if row.get("supports_reasoning") else 16_384, row["max_output_tokens"])
    assert found.longest_reply == min(row["max_output_tokens"], row["max_input_tokens"] // 2)


def test_prices_above_a_length_of_the_prompt_are_the_table_s() -> None:
    price = spec("openai/gpt-5.4", KEYS).price
    row = TABLE["gpt-5.4"]
    assert price and [item.above for item in price.long_prompts] == [272_000]
    assert price.of(272_000) is price
    assert price.of(272_001).input == pytest.approx(row["input_cost_per_token_above_272k_tokens"] * 1e6)
    assert price.of(272_001).output == pytest.approx(row["output_cost_per_token_above_272k_tokens"] * 1e6)
    cached = row["cache_read_input_token_cost_above_272k_tokens"]
    assert price.of(272_001).cached == pytest.approx(cached * 1e6)
    assert price.input < price.of(272_001).input and price.output < price.of(272_001).output


def test_a_tier_without_prices_for_long_prompts_takes_the_usual_ones() -> None:
    row = {
        "input_cost_per_token": 2e-6, "output_cost_per_token": 8e-6,
        "input_cost_per_token_flex": 1e-6, "output_cost_per_token_flex": 4e-6,
        "cache_read_input_token_cost_flex": 1e-7,
        "input_cost_per_token_above_200k_tokens": 4e-6,
        "input_cost_per_token_above_500k_tokens": 6e-6,
        "input_cost_per_token_above_500k_tokens_flex": 3e-6, "output_cost_per_token_above_500k_tokens_flex": 5e-6,
        "cache_creation_input_token_cost_above_200k_tokens": 1e-9,  # of storage: there is no price of writing
        "input_cost_per_token_above_200k_tokens_priority": 9e-6,
    }  # fmt: skip
    flex = price_table.price_of(row, "_flex")
    assert flex and flex.of(200_000) is flex
    assert to_builtins(flex.of(200_001)) == {
        "above": 200_000, "input": pytest.approx(4), "output": pytest.approx(4), "cached": None, "cache_write": None,
    }  # fmt: skip
    assert to_builtins(flex.of(500_001)) == {
        "above": 500_000, "input": pytest.approx(3), "output": pytest.approx(5), "cached": None, "cache_write": None,
    }  # fmt: skip
    usual = price_table.price_of(row)
    assert usual and usual.of(500_001).input == pytest.approx(6) and usual.of(500_001).output == pytest.approx(8)


def test_writing_to_a_cache_is_never_cheaper_than_sending() -> None:
    """litellm's table has such zeros; a provider that reports all of a prompt as written would cost nothing."""
    row = {"input_cost_per_token": 2e-6, "output_cost_per_token": 8e-6, "cache_creation_input_token_cost": 0.0}
    price = price_table.price_of(row)
    assert price is not None and price.cache_write is None
    found = ModelSpec("m", "direct", "m", price=price)
    assert found.cost(Usage(1_000_000, 0, cache_write_tokens=1_000_000)) == pytest.approx(2.0)


@pytest.mark.wide
def test_every_entry_of_the_table_is_found_however_it_is_laid_out() -> None:
    ours = [name for name, row in TABLE.items() if row.get("litellm_provider") in PROVIDERS]
    assert len(ours) > 200
    for name in ours:
        assert price_table.entry(name) == TABLE[name]
    for row in TABLE.values():
        price = price_table.price_of(row)
        assert price is None or price.input >= 0
    assert price_table.entry("search_context_cost_per_query") is None  # a key inside entries


@pytest.mark.parametrize("name", [f"{key}/{item.model}" for key, item in PROVIDERS.items() if item.model])
def test_every_default_model_has_a_price(name: str) -> None:
    found = spec(name, KEYS)
    if name.startswith("openrouter/"):  # a gateway: it chooses the model, and states each call's cost
        assert found.price is None
    else:
        assert found.price and found.price.input > 0 and found.price.output > 0
        assert found.window >= 100_000


@pytest.mark.parametrize(
    "name",
    ["github/gpt-4.1", "openrouter/gpt-4.1", "openai/no-such", "custom_openai/claude-opus-4-5", "azure/no-such"],
)
def test_the_price_of_another_provider_s_model_is_not_known(name: str) -> None:
    found = spec(name, KEYS)
    assert found.price is None and found.window == DEFAULT_WINDOW
    assert found.cost(Usage(10, 10)) is None


@pytest.mark.parametrize(
    ("name", "price"),
    [
        ("ollama/llama3", FREE),
        ("hosted_vllm/gpt-4.1", FREE),
        ("local", FREE),
        ("scripted:x.yaml", FREE),
    ],
)
def test_what_runs_at_home_costs_nothing(name: str, price: Price) -> None:
    assert spec(name).price == price


def test_prices_of_the_configuration_win() -> None:
    mine = Price(input=1, output=2)
    for name in (
        "openai/gpt-4.1",
        "openai/no-such",
        "custom_openai/x",
        "ollama/x",
        "scripted:x",
        "gemini/gemini-2.5-pro",
    ):
        assert spec(name, KEYS, {name: mine}).price == mine
    assert spec("openai/gpt-4.1", KEYS, {"openai/gpt-4": mine}).price != mine


def test_litellm_is_never_imported_for_a_price_or_an_answer() -> None:
    code = """
import sys
from cdo.providers import models, price_table
from cdo.content.library import PACKAGED, Library
import cdo.providers.http.chat_completions, cdo.providers.litellm_backend, cdo.runner.retry, cdo.runner.budget
library = Library((("packaged", PACKAGED),))
env = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
assert models.resolve("gpt-4.1", library, {}, env).price.input == 2.0
assert models.resolve("bedrock/anthropic.claude-x", library, {}, env).route == "litellm"
found = {"litellm", "openai", "httpx", "tiktoken", "aiohttp"} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_without_litellm_s_table_prices_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    price_table._litellm_file.cache_clear()
    price_table.entry.cache_clear()
    try:
        assert spec("openai/gpt-4.1", KEYS).price is None
    finally:
        price_table._litellm_file.cache_clear()
        price_table.entry.cache_clear()


# -- addresses -------------------------------------------------------------------------------------

HOME = "http://127.0.0.1:11434/v1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # what Ollama's own OLLAMA_HOST may be
        ("", HOME),
        ("  ", HOME),
        ("127.0.0.1", HOME),
        ("127.0.0.1:11434", HOME),
        ("127.0.0.1:1234", "http://127.0.0.1:1234/v1"),
        ("0.0.0.0", HOME),
        ("0.0.0.0:1234", "http://127.0.0.1:1234/v1"),
        (":1234", "http://127.0.0.1:1234/v1"),
        ("localhost", "http://localhost:11434/v1"),
        ("box", "http://box:11434/v1"),
        ("box.lan:1234", "http://box.lan:1234/v1"),
        ("::1", "http://[::1]:11434/v1"),
        ("[::1]", "http://[::1]:11434/v1"),
        ("[::1]:1234", "http://[::1]:1234/v1"),
        ("[::]:1234", "http://[::1]:1234/v1"),
        ("::", "http://[::1]:11434/v1"),
        ("http://127.0.0.1:11434", HOME),
        ("http://127.0.0.1:11434/", HOME),
        ("http://127.0.0.1:11434/v1", HOME),
        ("http://127.0.0.1:11434/v1/", HOME),
        ("HTTP://127.0.0.1:11434", HOME),
        ("http://0.0.0.0:11434", HOME),
        ("http://box", "http://box/v1"),
        ("https://ollama.example.com", "https://ollama.example.com/v1"),
        ("https://ollama.example.com:8443/ollama/v1", "https://ollama.example.com:8443/ollama/v1"),
        ('"127.0.0.1:1234"', "http://127.0.0.1:1234/v1"),
        (" 127.0.0.1:1234\n", "http://127.0.0.1:1234/v1"),
    ],
)
def test_where_ollama_is(given: str, expected: str) -> None:
    assert spec("ollama/x", {"OLLAMA_HOST": given}).url == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://gw.example.com/v1", "https://gw.example.com/v1"),
        ("https://gw.example.com", "https://gw.example.com/v1"),
        ("https://gw.example.com/openai/v2/", "https://gw.example.com/openai/v2"),
        ("gw.example.com/v1", "https://gw.example.com/v1"),  # a key does not travel in clear
        ("gw.example.com:8443", "https://gw.example.com:8443/v1"),
        ("localhost:8000", "http://localhost:8000/v1"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("http://gw.example.com:80", "http://gw.example.com:80/v1"),
        ("https://me:pass@gw.example.com:8443", "https://me:pass@gw.example.com:8443/v1"),
    ],
)
def test_where_openai_s_protocol_is_spoken(given: str, expected: str) -> None:
    assert spec("openai/x", {"OPENAI_BASE_URL": given}).url == expected


def test_the_bare_address_of_a_server_reaches_it() -> None:
    from cdo.providers.http.chat_completions import ChatBackend

    async def main(url: str) -> Any:
        backend = ChatBackend(url)
        try:
            return await attempt(backend, request(model="x"))
        finally:
            await backend.close()

    with Provider() as p:
        for given in (p.url, p.url.removeprefix("http://"), p.url + "/v1/"):
            assert isinstance(asyncio.run(main(spec("ollama/x", {"OLLAMA_HOST": given}).url)), Response)
            assert p.requests[-1].path == "/v1/chat/completions"


# -- the model that is used when none is named -----------------------------------------------------


@pytest.mark.parametrize(
    ("env", "ollama", "name", "why"),
    [
        ({"OPENAI_API_KEY": "k"}, "llama3", "openai/gpt-6.1-sol", "OPENAI_API_KEY is set"),
        ({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, None, "anthropic/…", "ANTHROPIC_API_KEY is set"),
        ({"GOOGLE_API_KEY": "k"}, None, "gemini/…", "GOOGLE_API_KEY is set"),
        ({"OPENAI_API_KEY": "  "}, "llama3", "ollama/llama3", "Ollama is running"),
        ({"HOSTED_VLLM_API_KEY": "k"}, "llama3", "ollama/llama3", "Ollama is running"),
        ({}, "llama3:8b", "ollama/llama3:8b", "Ollama is running"),
        ({}, None, "local", "the embedded model needs no key"),
    ],
)
def test_the_first_provider_that_can_answer(
    env: dict[str, str], ollama: str | None, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "xllamacpp" or None)
    asked: list[str] = []

    def probe(url: str) -> str | None:
        asked.append(url)
        return ollama

    found = choose(LIBRARY, {**env, "OLLAMA_HOST": "0.0.0.0:1234"}, probe)
    assert found[0].startswith(name.removesuffix("…")) and found[1].startswith(why)
    assert asked == ([] if "is set" in why else ["http://127.0.0.1:1234/v1"])


def test_with_nothing_at_all_every_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoModel) as caught:
        choose(LIBRARY, {}, lambda url: None)
    for way in (
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "MISTRAL_API_KEY",
        "Ollama",
        "codex",
        "opencode",
        "[local]",
        "-m",
    ):
        assert way in caught.value.hint
    assert caught.value.exit_code == 4


# -- command-line agents ---------------------------------------------------------------------------

AGENTS = {"claude": "claude", "codex": "codex", "gemini-cli": "gemini", "opencode": "opencode"}


def installed(place: Path, *programs: str) -> dict[str, str]:
    """An environment in which these programs are on PATH."""
    for program in programs:
        place.mkdir(parents=True, exist_ok=True)
        (place / program).write_text("#!/bin/sh\n")
        (place / program).chmod(0o755)
    return {"PATH": f"/nowhere:{place}"}


def silent(url: str) -> None:
    """No Ollama is running."""


@pytest.mark.parametrize(
    ("name", "program", "model", "vendor", "family"),
    [
        ("codex", "codex", "", "openai", ""),
        ("codex:gpt-5.5", "codex", "gpt-5.5", "openai", "gpt"),
        ("claude", "claude", "", "anthropic", ""),
        ("claude:opus", "claude", "opus", "anthropic", ""),
        ("gemini-cli:gemini-2.5-pro", "gemini", "gemini-2.5-pro", "google", "gemini"),
        ("opencode", "opencode", "", "", ""),
        ("opencode:anthropic/claude-x", "opencode", "anthropic/claude-x", "anthropic", "claude"),
        ("opencode:groq/llama-4:70b", "opencode", "groq/llama-4:70b", "meta", "llama"),
    ],
)
def test_agents_are_models(tmp_path: Path, name: str, program: str, model: str, vendor: str, family: str) -> None:
    env = installed(tmp_path, *AGENTS.values())
    found = spec(name, env)
    assert (found.name, found.route, found.model, found.vendor, found.family) == (
        name,
        "command",
        model,
        vendor,
        family,
    )
    assert found.agent == name.partition(":")[0] and found.program == str(tmp_path / program)
    assert found.price is None and found.cost(Usage(10, 10)) is None
    assert found.cost(Usage(10, 10, cost=0.5)) == 0.5
    assert found.window >= 100_000 and found.reply_tokens >= 8192 and not found.grammar
    mine = Price(input=1, output=2)
    assert spec(name, env, {name: mine}).price == spec(name, env, {found.agent: mine}).price == mine


def test_a_program_is_never_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "codex")
    monkeypatch.chdir(tmp_path)
    for path in (".", "", ":", "./", f"{tmp_path.name}/.."):
        with pytest.raises(ConfigError, match="not on PATH"):
            spec("codex", {"PATH": path})


def test_a_project_s_agent_needs_trust(tmp_path: Path) -> None:
    env = installed(tmp_path / "bin", "codex", "claude")
    text = (PACKAGED / "dispatch/agents/codex.yaml").read_bytes()
    place = tmp_path / ".cdo/dispatch/agents"
    place.mkdir(parents=True)
    (place / "codex.yaml").write_bytes(text)
    (place / "helper.yaml").write_bytes(text.replace(b"program: codex", b"program: claude"))
    (place / "claude.yaml").write_bytes(b"anything")
    library = Library.at(tmp_path)
    for name in ("helper", "helper:m"):
        with pytest.raises(ContentError, match="which you do not trust as it is now") as caught:
            resolve(name, library, {}, env)
        assert "--trust" in caught.value.hint and str(tmp_path) in caught.value.message
    assert resolve("claude", library, {}, env).program  # the packaged one
    assert [name for name, _ in available(library, env, silent)] == ["claude", "codex"]
    (place / "claude.yaml").unlink()
    library = Library.at(tmp_path, trust_now=True)
    assert resolve("helper", library, {}, env).program == str(tmp_path / "bin/claude")
    assert [name for name, _ in available(library, env, silent)] == ["claude", "codex", "helper"]
    (place / "codex.yaml").write_bytes(text + b"# changed\n")
    with pytest.raises(ContentError, match="do not trust"):
        resolve("helper", Library.at(tmp_path), {}, env)


def test_a_project_s_table_of_providers_needs_trust(tmp_path: Path) -> None:
    env = {"OPENAI_API_KEY": "k" * 20}
    place = tmp_path / ".cdo/dispatch"
    place.mkdir(parents=True)
    text = (PACKAGED / "dispatch/providers.yaml").read_text()
    assert "https://api.openai.com/v1" in text
    theirs = place / "providers.yaml"
    theirs.write_text(text.replace("https://api.openai.com/v1", "https://evil.example/v1"))
    doubted = Library.at(tmp_path)
    assert resolve("openai/gpt-4.1", doubted, {}, env).url == "https://api.openai.com/v1"
    with pytest.raises(
        ConfigError, match=r"sets the addresses of providers in .*, and you do not trust it"
    ) as caught:
        Resolved(Settings(model=("openai/gpt-4.1",)), {"model": "--model"}).sure(doubted)
    assert "--trust" in caught.value.hint and str(theirs.parents[1]) in caught.value.message
    trusted = Library.at(tmp_path, trust_now=True)
    assert resolve("openai/gpt-4.1", trusted, {}, env).url == "https://evil.example/v1"
    own = Library((("user", tmp_path / ".cdo"), ("packaged", PACKAGED)))
    assert resolve("openai/gpt-4.1", own, {}, env).url == "https://evil.example/v1"  # the person's own


@pytest.mark.parametrize(
    "name", ["huggingface/https://evil.example", "https://evil.example", "openai/http://h", "oobabooga/HTTPS://h"]
)
def test_no_name_of_a_model_says_where_a_key_goes(name: str) -> None:
    with pytest.raises(ConfigError, match="an address and not the name of a model"):
        spec(name, {"OPENAI_API_KEY": "k" * 20, "HUGGINGFACE_API_KEY": "k" * 20})


def test_every_agent_as_shipped_can_go_on_with_a_conversation() -> None:
    for name in LIBRARY.names(models.AGENTS):
        found = models.agent(name, LIBRARY)
        told = (
            Message("system", "Be brief."),
            Message("user", "one"),
            Message("assistant", "1"),
            Message("user", "two"),
        )
        request = Request("m", told, 10, thread=Thread("0b9f-41"))
        assert unseen(found, request) == told[-1:], name
        argv = launch(found, request, "two", "/home", {}).argv
        assert [word for word in argv if "0b9f-41" in word], name


def test_every_seat_of_a_machine(tmp_path: Path) -> None:
    env = {**installed(tmp_path, "codex", "opencode"), "OPENAI_API_KEY": "k", "GROQ_API_KEY": "k", "XAI_API_KEY": " "}
    found = available(LIBRARY, env, lambda url: "llama3:8b")
    assert [name.partition("/")[0] for name, _ in found] == ["codex", "opencode", "openai", "groq", "ollama"]
    assert dict(found)["codex"] == f"{tmp_path / 'codex'} is on PATH"
    assert dict(found)["openai/gpt-6.1-sol"] == "OPENAI_API_KEY is set"
    assert dict(found)["ollama/llama3:8b"] == "Ollama is running"
    for name, _ in found:
        assert spec(name, env).name == name
    assert available(LIBRARY, {}, silent) == []


def test_an_agent_comes_after_keys_and_ollama_and_before_the_embedded_model(tmp_path: Path) -> None:
    env = installed(tmp_path, "gemini")
    assert choose(LIBRARY, env, silent) == ("gemini-cli", f"{tmp_path / 'gemini'} is on PATH")
    assert choose(LIBRARY, env, lambda url: "x") == ("ollama/x", "Ollama is running")
    assert choose(LIBRARY, {**env, "OPENAI_API_KEY": "k"}, silent)[0] == "openai/gpt-6.1-sol"


# -- vendors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "vendor", "family"),
    [
        ("openai/gpt-4.1", "openai", "gpt"),
        ("openai/x", "openai", ""),
        ("openai/o3", "openai", "o"),
        ("gpt-4.1", "openai", "gpt"),
        ("anthropic/claude-x", "anthropic", "claude"),
        ("bedrock/anthropic.claude-x", "anthropic", "claude"),
        ("vertex_ai/claude-opus-4-5", "anthropic", "claude"),
        ("gemini/gemini-2.5-pro", "google", "gemini"),
        ("groq/openai/gpt-oss-120b", "openai", "gpt-oss"),
        ("openrouter/anthropic/claude-x", "anthropic", "claude"),
        ("openrouter/x-ai/some", "xai", ""),
        ("openrouter/newcomer/some:free", "newcomer", ""),
        ("openrouter/auto", "", ""),
        ("openrouter/nousresearch/hermes-3-llama-3.1-70b", "meta", "llama"),
        ("together_ai/deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek", "deepseek"),
        ("ollama/llama3:8b", "meta", "llama"),
        ("ollama/qwen3:4b", "alibaba", "qwen"),
        ("ollama/gemma3", "google", "gemma"),
        ("ollama/smollm2", "huggingface", "smollm"),
        ("ollama/mixtral:8x7b", "mistral", "mixtral"),
        ("ollama/delphi", "", ""),
        ("hosted_vllm/x", "", ""),
        ("local", "huggingface", "smollm"),
        ("local:/claude/Qwen3-4B-Q4.gguf", "alibaba", "qwen"),
        ("scripted:/gpt/claude.yaml", "", ""),
    ],
)
def test_who_made_a_model(name: str, vendor: str, family: str) -> None:
    found = spec(name, {**KEYS, "HOSTED_VLLM_API_KEY": "k"})
    assert (found.vendor, found.family) == (vendor, family)


def test_three_voices_of_one_vendor_are_one_vendor(tmp_path: Path) -> None:
    env = {**KEYS, **installed(tmp_path, "codex")}
    names = ["codex", "openai/gpt-4.1", "openrouter/openai/gpt-4.1", "ollama/llama3", "openrouter/auto", "scripted:x"]
    assert vendors([spec(name, env) for name in names]) == {"openai": 3, "meta": 1, "unknown": 2}
    assert vendors([]) == {}


@given(st.text(max_size=40))
def test_any_name_has_a_vendor_or_none(name: str) -> None:
    vendor, family = maker(name, LIBRARY.read("dispatch/vendors", Vendors)[0])
    assert vendor or not family


# -- secrets ---------------------------------------------------------------------------------------

RANDOM = "sk-proj-4fJ2kQ9zXw7LmN8p"


SECRET_NAMES = """
OPENAI_API_KEY ANTHROPIC_API_KEY OPENAI_APIKEY openai_api_key GITHUB_TOKEN GH_TOKEN HF_TOKEN SLACK_BOT_TOKEN
TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN DB_PASSWORD PGPASSWORD MYSQL_PWD SSHPASS
SMTP_PASS DJANGO_SECRET_KEY CLIENT_SECRET STRIPE_SECRET NPM_AUTH REDIS_AUTH GITHUB_PAT AZURE_CREDENTIALS
GPG_PASSPHRASE CLAUDE_CODE_OAUTH_TOKEN SESSION_COOKIE MINIMAX_API_KEY API_KEY_2 SIGNING_KEY ACCESSKEY KEY
GITHUBTOKEN MY_JWT VAULT_TOKENS HTTP_AUTHORIZATION CDO_TEST_KEY
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_of_secrets(name: str) -> None:
    assert secret_values({name: RANDOM}) == {name: RANDOM}
    assert secret_values({name: f' "{RANDOM}"\n'}) == {name: RANDOM}


OTHER_NAMES = """
PATH HOME USER LANG PWD OLDPWD XAUTHORITY GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL AUTHOR SSH_AUTH_SOCK AUTHORS_FILE
TOKENIZERS_PARALLELISM KEYBOARD_LAYOUT XKB_KEYMAP MONKEY HOTKEYBOARD PYTHON_KEYRING_BACKEND SSH_KEY_PATH
PASSENGER COMPASS KEYMAP TOKEN_URL SECRET_NAME PASSWORD_FILE AUTH_TYPE POSTGRES_HOST_AUTH_METHOD
GIT_CONFIG_KEY_0 BYPASS GIT_ASKPASS SUDO_ASKPASS AUTH_URL KEY_VAULT_URL CREDENTIAL_USERNAME CDO_MODEL PATTERN
EMPATHY CDO_SESSION
"""


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_names_that_only_look_like_it(name: str) -> None:
    assert secret_values({name: RANDOM}) == {}


@pytest.mark.parametrize(
    "value",
    [
        "/run/secrets/openai",
        "/usr/bin:/usr/local/bin",
        "~/.ssh/id_rsa",
        "./keys/server.pem",
        "../keys/server",
        "C:\\keys\\server",
        "certs/server.key",
        "credentials.json",
        "true",
        "disabled",
        "1234567890",
        "12.5e",
        "2026-11-21 10:00",
        "password",
        "postgres",
        "changeme",
        "development",
        "https://auth.example.com/token",
        "short12",
        "",
        "        ",
    ],
)
def test_values_that_are_no_secrets(value: str) -> None:
    assert secret_values(dict.fromkeys(("APP_KEY", "APP_TOKEN", "APP_PASSWORD", "APP_AUTH"), value)) == {}


@pytest.mark.parametrize(
    "value",
    [
        RANDOM,
        "canary-secret-value",
        "x-test-key-123456",
        "hunter2hunter2",
        "correct horse battery staple",
        "/K7MDENG+bPxRfiCYEXAMPLEKEYwJalrXUtnFEMI",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "supersecretpassword",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQ==\n-----END PRIVATE KEY-----",
        "pässwörter",
        "00000000000000000000000a",
    ],
)
def test_values_that_are_secrets(value: str) -> None:
    assert secret_values({"APP_KEY": value}) == {"APP_KEY": value}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("postgres://app:s3cr3t-pass@db.example.com:5432/app", "s3cr3t-pass"),
        ("http://me:p4ssw0rd1@proxy:8080", "p4ssw0rd1"),
        ("redis://:longpassword@cache", "longpassword"),
        ("https://example.com/a:b@c-d-e-f-g-h", None),
        ("postgres://app@db.example.com/app", None),
        ("postgres://app:short@db.example.com/app", None),
    ],
)
def test_the_password_in_an_address_is_one(value: str, expected: str | None) -> None:
    assert secret_values({"DATABASE_URL": value}) == ({"DATABASE_URL": expected} if expected else {})


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TEST_TOKEN", RANDOM)
    assert secret_values()["MY_TEST_TOKEN"] == RANDOM


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=60), max_size=5))
def test_what_is_taken_out_is_never_short_and_always_in_the_value(env: dict[str, str]) -> None:
    for name, value in secret_values(env).items():
        assert len(value) >= 8 and value in env[name]


def test_the_search_for_secrets_takes_linear_time() -> None:
    for value in ("a" * 200_000, "A1/" * 70_000, "://" * 70_000, "x://" + "a:" * 90_000, "." * 200_000):
        secret_values({"APP_KEY": value})
    assert not re.fullmatch(secrets._PLAIN_VALUE, "a" * 200_000)


def test_a_provider_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        spec("nobody/knows", KEYS)


def test_seats_of_one_provider_wait_at_one_door() -> None:
    names = ["openai/gpt-4.1", "openai/gpt-4.1-mini", "openrouter/a/b", "hosted_vllm/x", "hosted_vllm/y"]
    made = seats([spec(name, KEYS) for name in names], Settings(), LIBRARY, print)
    doors = [id(made[name].gate) for name in names]
    assert doors[0] == doors[1] and doors[3] == doors[4] and len(set(doors)) == 3


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("openrouter/anthropic/claude-sonnet-5.5", True),
        ("openrouter/google/gemini-3.8-flash", True),
        ("openrouter/openai/gpt-6.1-sol", False),
        ("anthropic/claude-sonnet-5-5", False),
    ],
)
def test_the_table_says_which_models_cache_only_up_to_marks(name: str, marks: bool) -> None:
    found = spec(name, {"OPENROUTER_API_KEY": "k", "ANTHROPIC_API_KEY": "k"})
    assert found.cache_marks is marks
    # One voice goes ahead also by a gateway whose prices are not known: else every voice would pay for writing.
    assert found.caches is (marks or name.startswith("anthropic/"))
