"""Models of different makers where none is named: which are at hand, which sit together, and how a run uses them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Price
from cdo.planning.mixed_models import Mix, mix
from tests.conftest import A, Desk
from tests.support.answers import RequestInfo
from tests.support.faults import Fault
from tests.support.harness import exchanges, tree, without_agents
from tests.support.provider import Provider
from tests.unit.providers.test_models import installed, silent

LIBRARY = Library((("packaged", PACKAGED),))
QUESTION = "Should we split the service?"
OPENAI, CLAUDE, GEMINI, GROK = (
    "openai/gpt-6.1-sol", "anthropic/claude-sonnet-5-5", "gemini/gemini-3.8-flash", "xai/grok-4.7",
)  # fmt: skip


def mixed(env: dict[str, str], ollama: str = "", *, library: Library = LIBRARY, **more: Any) -> Mix:
    return mix(library, env, (lambda url: ollama) if ollama else silent, more.pop("prices", {}), **more)


def keys(*names: str) -> dict[str, str]:
    return {f"{name.upper()}_API_KEY": "k" for name in names}


# -- which models ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "programs", "ollama", "names"),
    [
        (keys("openai"), (), "", [OPENAI]),
        (keys("openai", "anthropic"), (), "", [CLAUDE, OPENAI]),
        (keys("openai", "anthropic", "gemini", "xai"), (), "", [CLAUDE, OPENAI, GEMINI, GROK]),
        # One maker, however many sell it.
        (keys("openai", "groq", "togetherai"), (), "", [OPENAI]),
        (keys("groq", "xai"), (), "", ["groq/openai/gpt-oss-120b", GROK]),
        # A gateway that picks the model itself may pick one of the others' makers.
        (keys("openai", "openrouter"), (), "", [OPENAI]),
        (keys("openrouter", "xai"), (), "", ["openrouter/openrouter/auto"]),
        # A small model is not put beside large ones.
        (keys("openai"), (), "llama3.2:3b", [OPENAI]),
        (keys("openai"), (), "llama3.2", [OPENAI]),
        (keys("openai"), (), "llama3.3:70b-instruct", [OPENAI, "ollama/llama3.3:70b-instruct"]),
        (keys("openai"), (), "mixtral:8x22b", [OPENAI, "ollama/mixtral:8x22b"]),
        (keys("openai"), (), "gpt-oss:120b", [OPENAI]),
        (keys("openai"), (), "delphi:70b", [OPENAI]),
        ({}, (), "llama3.3:70b", ["ollama/llama3.3:70b"]),
        # Agents only where providers are of fewer than two makers.
        (keys("openai"), ("claude", "codex", "opencode"), "", [OPENAI, "claude"]),
        (keys("openai", "anthropic"), ("claude", "codex", "gemini"), "", [CLAUDE, OPENAI]),
        ({}, ("claude", "codex", "gemini"), "", ["claude", "codex", "gemini-cli"]),
        ({}, ("codex",), "llama3.3:70b", ["ollama/llama3.3:70b", "codex"]),
        ({}, ("codex", "claude"), "llama3.2:3b", ["ollama/llama3.2:3b"]),
        ({}, (), "", ["local"]),
    ],
)  # fmt: skip
def test_one_model_of_each_maker_that_is_at_hand(
    env: dict[str, str],
    programs: tuple[str, ...],
    ollama: str,
    names: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "xllamacpp" or None)
    found = mixed({**env, **installed(tmp_path, *programs)}, ollama)
    assert list(found.names) == names
    assert found.several is (len(names) > 1) and len(set(found.makers)) == len(names)
    assert bool(found.notes()) is found.several


def test_the_note_says_which_models_why_and_how_to_use_one() -> None:
    (told,) = mixed(keys("openai", "anthropic", "xai")).notes()
    assert told.startswith("Voices sit on models of 3 makers, since voices on one model share its errors: ")
    assert f"{CLAUDE} (anthropic), {OPENAI} (openai), {GROK} (xai)." in told
    assert told.endswith(f"To use one model only: -m {CLAUDE}")


@pytest.fixture
def unpriced(tmp_path: Path) -> Library:
    """A table of one's own in which the default models of anthropic and xai have no known price."""
    text = (PACKAGED / "dispatch/providers.yaml").read_text()
    (tmp_path / "dispatch").mkdir()
    text = text.replace("model: claude-sonnet-5-5", "model: claude-next").replace(
        "model: grok-4.7", "model: grok-next"
    )
    (tmp_path / "dispatch/providers.yaml").write_text(text)
    return Library((("user", tmp_path), ("packaged", PACKAGED)))


def test_under_a_budget_models_of_unknown_price_are_left_out_and_named(unpriced: Library) -> None:
    env = keys("anthropic", "openai", "gemini", "xai")
    free = mixed(env, library=unpriced)
    assert [name.partition("/")[0] for name in free.names] == ["anthropic", "openai", "gemini", "xai"]
    held = mixed(env, library=unpriced, capped=True)
    assert held.names == (OPENAI, GEMINI), "the first one whose price is known is now the default"
    assert held.unpriced == ("anthropic/claude-next", "xai/grok-next")
    assert held.notes()[1] == (
        "With --budget anthropic/claude-next, xai/grok-next cannot be used: the price is not known."
    )
    mine = {"xai/grok-next": Price(input=1, output=2)}
    assert mixed(env, library=unpriced, capped=True, prices=mine).names == (OPENAI, GEMINI, "xai/grok-next")
    one = mixed(keys("anthropic", "openai"), library=unpriced, capped=True)
    assert one.names == (OPENAI,) and not one.several and len(one.notes()) == 1
    none = mixed(keys("anthropic", "xai"), library=unpriced, capped=True)
    assert none == Mix(("anthropic/claude-next",), ("anthropic",)), "nothing is priced: refused as a named one is"


def test_these_tests_ask_no_agent_of_this_machine(tmp_path: Path) -> None:
    installed(tmp_path / "bin", "claude", "codex", "git")
    path = without_agents(f"{tmp_path / 'bin'}:/nowhere")
    assert shutil.which("claude", path=path) is None and shutil.which("codex", path=path) is None
    assert shutil.which("git", path=path) and path.endswith(":/nowhere")
    assert without_agents(str(tmp_path)) == str(tmp_path)


# -- in a run --------------------------------------------------------------------------------------


@pytest.fixture
def several(cdo: Desk, provider: Provider) -> Desk:
    """A desk with keys for three makers, all of which are the provider on loopback."""
    url = f"{provider.url}/v1"
    return cdo.having(
        XAI_API_KEY="x-test-key-xai-12", XAI_API_BASE=url,
        DEEPSEEK_API_KEY="x-test-key-deep-1", DEEPSEEK_API_BASE=url,
    )  # fmt: skip


DEEPSEEK = "deepseek/deepseek-v4-flash"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("words", "models"),
    [
        (["deep"], [OPENAI, DEEPSEEK, GROK]),
        (["full"], [OPENAI, DEEPSEEK, GROK]),
        (["parliament,full"], [OPENAI, DEEPSEEK, GROK]),
        (["quick"], [OPENAI]),
        (["think"], [OPENAI]),
        (["debug"], [OPENAI]),
        (["deep", "-m", "openai/gpt-4o"], ["openai/gpt-4o"]),
        (["exec", "dev"], [OPENAI, DEEPSEEK, GROK]),  # which is deep
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_presets_that_ask_for_it_seat_several_makers(several: Desk, words: list[str], models: list[str]) -> None:
    done = several(*words, "--dry-run", "--json", QUESTION).ok()
    assert done.json["models"] == models
    assert any("models of 3 makers" in remark for remark in done.json["remarks"]) is (len(models) > 1)
    alone = several(*words, "-m", OPENAI, "--dry-run", "--json", QUESTION).ok() if len(models) > 1 else done
    assert len(models) == 1 or alone.json["cost"] != done.json["cost"], "priced by the models that are asked"


@pytest.mark.wide
def test_a_configured_model_and_a_cap_decide(several: Desk) -> None:
    capped = several("deep", "--budget", "5", "--dry-run", "--json", QUESTION).ok()
    assert capped.json["models"] == [OPENAI, DEEPSEEK, GROK]
    variable = several("deep", "--dry-run", "--json", QUESTION, env={"CDO_MODEL": "openai/gpt-4o"}).ok()
    assert variable.json["models"] == ["openai/gpt-4o"]


@pytest.mark.wide
def test_it_is_told_before_the_first_call_and_each_maker_has_its_voices(several: Desk, provider: Provider) -> None:
    done = several("deep", "--turns", "1", *A, QUESTION).ok()
    before = done.err.partition("t1-")[0]
    assert "Voices sit on models of 3 makers" in before and f"-m {OPENAI}" in before
    plan = (several.session() / "00-plan.md").read_text()
    assert "models of 3 makers" in plan and plan.count("- Model: ") == 3
    asked = {info.call: info.body["model"] for info in provider.calls}
    voices = [model for call, model in asked.items() if call.startswith("t1-") and call != "t1-synthesis"]
    assert sorted(voices) == sorted(
        ["gpt-6.1-sol", "deepseek-v4-flash", "grok-4.7", "gpt-6.1-sol", "deepseek-v4-flash"]
    )
    assert asked["t1-synthesis"] == asked["final"] == "gpt-6.1-sol"
    synthesis = provider.named("t1-synthesis")[0].prompt
    assert "These 5 voices come from 3 independent makers of models." in synthesis
    assert not any(word in synthesis.lower() for word in ("grok", "deepseek", "xai"))


@pytest.mark.wide
def test_a_maker_that_fails_is_answered_for_by_the_first_and_not_counted(several: Desk, provider: Provider) -> None:
    def denied(info: RequestInfo) -> Fault | None:
        return Fault(status=401) if info.body["model"] == "grok-4.7" else None

    provider.script = denied
    done = several("deep", "--turns", "1", "--json", *A, QUESTION).ok()
    assert not done.json["missing_voices"]
    (flag,) = [flag for flag in done.json["flags"] if "grok" in flag]
    assert flag == f"turn 1: {OPENAI} answered as systems-thinker, since {GROK} did not"
    assert f"{GROK} gave no answer (denied" in done.err and f"now {OPENAI} is asked" in done.err
    synthesis = provider.named("t1-synthesis")[0].prompt
    assert "These 5 voices come from 2 independent makers of models." in synthesis
    before, calls = tree(several.session()), len(provider.calls)
    several("resume", "a").ok()
    assert tree(several.session()) == before and len(provider.calls) == calls


@pytest.mark.wide
def test_a_model_that_was_named_is_answered_for_by_nobody(several: Desk, provider: Provider) -> None:
    provider.script = lambda info: Fault(status=401) if info.body["model"] == "grok-4.7" else None
    done = several("deep", "-m", OPENAI, "-m", GROK, "--turns", "1", "--json", *A, QUESTION).ok()
    assert len(done.json["missing_voices"]) == 2
    assert {record["model"] for record in exchanges(several.session()) if "fault" in record} == {GROK}


@pytest.mark.wide
def test_doctor_says_which_models_are_mixed_and_where(several: Desk, cdo: Desk) -> None:
    told = several("doctor", "--json").ok().json["mixed models"]
    assert told == f"{OPENAI} (openai), {DEEPSEEK} (deepseek), {GROK} (xai) in deep and full, unless -m names others"
    assert cdo("doctor", "--json").ok().json["mixed models"].startswith("off: ")
    assert "mixed models" not in several("doctor", "--json", env={"CDO_MODEL": OPENAI}).ok().json
