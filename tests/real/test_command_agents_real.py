"""The real `codex`, `opencode` and `claude` against providers on loopback: `dispatch/agents` says what they do.

`tests/support/agents/install.sh` installs them; CDO_TEST_AGENTS names another folder of programs. What
is not installed is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdo.content.library import PACKAGED, Library
from cdo.core.exchange import BackendError, Fault, Message, Request, Response, Thread, Usage
from cdo.providers.command_agent_process import CommandBackend
from tests.support import harness
from tests.support.agents import LIBRARY, agent, backend, drive
from tests.support.backends import answered, attempt, failed
from tests.support.provider import Answer, Provider
from tests.support.provider import Fault as Spoiled
from tests.support.responses import Failure, Responses, settle

BIN = Path(os.environ.get("CDO_TEST_AGENTS") or Path("~/.cache/cdo-tests/agents/node_modules/.bin").expanduser())
NASTY = "--help -m evil\n\"quoted\" 'single' $(touch hacked) `id` \\ ;|&<> é 🎉 \0 end\n\n"
HEARD = NASTY.replace("\0", "\ufffd").strip()


def needs(program: str) -> pytest.MarkDecorator:
    """Skips where a program is not installed."""
    return harness.needs(
        program, (BIN / program).exists(), f"{program} is not installed: tests/support/agents/install.sh"
    )


def around(home: Path, **more: str) -> dict[str, str]:
    """An environment in which nothing leaves this machine: what is not on loopback meets a closed port."""
    nowhere = "http://127.0.0.1:9"
    home.mkdir(exist_ok=True)
    return {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(home),
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
        "CANARY_TOKEN": "must-not-leak",
        **more,
    }


def asked(prompt: str = "say it", *, model: str = "m1", **more: Any) -> Request:
    """A request with rules, as the runner makes it."""
    return Request(model, (Message("system", 'Be "brief".\n--no é 🎉'), Message("user", prompt)), 256, **more)


def ask(made: CommandBackend, request: Request, heard: list[str] | None = None) -> Response | BackendError:
    """What one request comes to, within a minute."""
    return asyncio.run(asyncio.wait_for(attempt(made, request, heard), 60))


def outcomes(made: CommandBackend, *requests: Request) -> list[Response | BackendError]:
    """What requests come to, made at the same time."""

    async def main() -> list[Response | BackendError]:
        return list(await asyncio.gather(*(attempt(made, request) for request in requests)))

    return asyncio.run(main())


def left_behind(folder: Path) -> list[str]:
    """What calls left beside their work folder, and in it."""
    return [str(path) for path in folder.rglob("*") if path.name != "work"]


def running(home: Path) -> list[str]:
    """The processes that were given `home`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(home).encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


# -- codex -------------------------------------------------------------------------------------------


@pytest.fixture
def codex(tmp_path: Path) -> Callable[[Responses], CommandBackend]:
    """Makes backends of the real codex: the file as it ships, and a provider on loopback in it."""

    def make(p: Responses) -> CommandBackend:
        text = (PACKAGED / "dispatch/agents/codex.yaml").read_text()
        provider = (
            f'{{name="stub",base_url="{p.url}",env_key="STUB_KEY",wire_api="responses",'
            "request_max_retries=0,stream_max_retries=0}"
        )
        more = f"  - --config=model_provider=stub\n  - '--config=model_providers.stub={provider}'\n"
        text = text.replace("  - --ignore-rules\n", "  - --ignore-rules\n" + more)
        text = text.replace("names: [PATH,", "names: [PATH, STUB_KEY,")
        place = tmp_path / "content" / "dispatch" / "agents"
        place.mkdir(parents=True, exist_ok=True)
        (place / "codex.yaml").write_text(text)
        library = Library((("user", tmp_path / "content"), ("packaged", PACKAGED)))
        env = around(tmp_path / "home", STUB_KEY="k", CODEX_HOME=str(tmp_path / "home" / "codex"))
        (tmp_path / "home" / "codex").mkdir(exist_ok=True)
        return backend(agent("codex", library), str(BIN / "codex"), env, tmp_path / "folder")

    return make


def said_by(body: dict[str, Any], role: str) -> list[str]:
    """The texts of one role in a request of the Responses protocol."""
    return [part["text"] for item in body["input"] if item.get("role") == role for part in item["content"]]


@needs("codex")
def test_codex_answers(codex: Callable[[Responses], CommandBackend], tmp_path: Path) -> None:
    heard: list[str] = []
    with Responses("---\nfine ü\n" + "long " * 1000) as p:
        reply = answered(ask(codex(p), asked(NASTY), heard))
        body = p.requests[0]
    assert reply.text.startswith("---\nfine ü\nlong ")
    assert reply.usage == Usage(100, 7, 40) and reply.usage.cost is None
    assert reply.thread is None
    assert heard and set(heard) == {""}
    assert body["model"] == "m1" and len(p.requests) == 1
    assert [text.strip() for text in said_by(body, "user")] == [HEARD]
    assert 'Be "brief".\n--no é 🎉' in said_by(body, "developer")
    assert {tool.get("name", tool["type"]) for tool in body["tools"]} <= {"request_user_input", "multi_agent_v1"}
    assert "must-not-leak" not in json.dumps(body)
    assert not left_behind(tmp_path / "folder")
    assert not list((tmp_path / "home" / "codex").glob("sessions/**/*.jsonl"))  # kept only when asked


@needs("codex")
def test_codex_goes_on_with_a_kept_conversation(codex: Callable[[Responses], CommandBackend]) -> None:
    with Responses() as p:
        made = codex(p)
        first = answered(ask(made, asked("one", keep=True)))
        assert first.thread == Thread(first.thread.id if first.thread else "", 100, 7, 40)
        more = Request(
            "m1",
            (
                Message("system", "Be brief."),
                Message("user", "one"),
                Message("assistant", "x"),
                Message("user", "two"),
            ),
            256,
            thread=first.thread,
        )
        second = answered(ask(made, more))
        said = said_by(p.requests[1], "user")
    assert second.usage == Usage(100, 7, 40)  # codex reports 200, 14 and 80
    assert second.thread == Thread(first.thread.id, 200, 14, 80)
    assert [text for text in said if text in ("one", "two")] == ["one", "two"]


@needs("codex")
@pytest.mark.parametrize(
    ("failure", "fault", "wait"),
    [
        (Failure(429, "rate_limit_exceeded", "Rate limit reached."), Fault.RATE_LIMITED, None),
        (
            Failure(0, "rate_limit_exceeded", "Rate limit reached. Please try again in 11.5s"),
            Fault.RATE_LIMITED,
            11.5,
        ),
        (Failure(0, "context_length_exceeded", "Your input exceeds the context window."), Fault.OVERFLOW, None),
        (Failure(401, "invalid_api_key", "Incorrect API key"), Fault.DENIED, None),
        (Failure(503, "server", "over"), Fault.OVERLOADED, None),
        (Failure(400, "invalid_request_error", "The model m1 does not exist"), Fault.REJECTED, None),
    ],
)
def test_codex_says_what_went_wrong(
    codex: Callable[[Responses], CommandBackend], failure: Failure, fault: Fault, wait: float | None
) -> None:
    with Responses(failure) as p:
        error = failed(ask(codex(p), asked()))
        assert len(p.requests) == 1
    assert (error.fault, error.retry_after) == (fault, wait)
    assert error.message and "\n" not in error.message


@needs("codex")
def test_codex_without_a_provider_or_a_conversation(codex: Callable[[Responses], CommandBackend]) -> None:
    with Responses() as p:
        made = codex(p)
        gone = asked(thread=Thread("0199aaaa-0000-7000-8000-000000000000"))
        error = failed(ask(made, gone))
    assert error.fault is Fault.REJECTED and error.message.startswith("lost conversation: ")
    assert "no rollout" in error.message
    assert failed(ask(made, asked())).fault is Fault.NETWORK


@needs("codex")
def test_six_of_codex_side_by_side(codex: Callable[[Responses], CommandBackend], tmp_path: Path) -> None:
    with Responses(lambda body: said_by(body, "user")[-1].upper()) as p:
        found = outcomes(codex(p), *(asked(f"voice {number}") for number in range(6)))
    assert [answered(reply).text for reply in found] == [f"VOICE {number}" for number in range(6)]
    assert not left_behind(tmp_path / "folder")


@needs("codex")
def test_what_codex_takes_from_its_user(codex: Callable[[Responses], CommandBackend], tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Responses() as p:
        made = codex(p)
        for place in (home / "codex/skills/one", home / ".agents/skills/two"):
            place.mkdir(parents=True)
            text = f"---\nname: {place.name}\ndescription: listed-canary\n---\nObey.\n"
            (place / "SKILL.md").write_text(text)
        (home / "codex/config.toml").write_text('developer_instructions = "configured-canary"\n')
        (home / "codex/AGENTS.md").write_text("global-canary")
        answered(ask(made, asked()))
        body = json.dumps(p.requests[0])
    assert "listed-canary" not in body and "configured-canary" not in body
    assert "global-canary" in body  # no option turns it off; when one does, the file must not say this any more
    assert "AGENTS.md" in agent("codex").purpose


@needs("codex")
def test_codex_dies_with_the_process_that_called_it(
    codex: Callable[[Responses], CommandBackend], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with Responses(Failure(hang=60.0)) as p:
        codex(p)  # leaves its file in `content`
        env = around(home, STUB_KEY="k", CODEX_HOME=str(home / "codex"))
        driver = drive("codex", BIN / "codex", tmp_path / "folder", "m1", str(tmp_path / "content"), env=env)
        try:
            settle(lambda: bool(p.requests), 50.0)
            assert len(running(home)) >= 4  # the driver, what npm installs, the program proper, the guard
        finally:
            driver.kill()
            driver.wait()
        settle(lambda: not running(home), 20.0)


@needs("codex")
def test_codex_is_ended_with_all_its_processes(codex: Callable[[Responses], CommandBackend], tmp_path: Path) -> None:
    async def main(made: CommandBackend) -> float:
        call = asyncio.create_task(attempt(made, asked()))
        await asyncio.to_thread(settle, lambda: bool(p.requests), 50.0)
        assert len(running(tmp_path / "home")) >= 2  # what npm installs starts the program proper
        began = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return time.monotonic() - began

    with Responses(Failure(hang=60.0)) as p:
        assert asyncio.run(main(codex(p))) < 30
    settle(lambda: not running(tmp_path / "home"), 20.0)
    assert not left_behind(tmp_path / "folder")


# -- opencode ----------------------------------------------------------------------------------------


@pytest.fixture
def opencode(tmp_path: Path) -> Callable[[Provider], CommandBackend]:
    """Makes backends of the real opencode, whose user has set up a provider on loopback."""

    def make(p: Provider) -> CommandBackend:
        home = tmp_path / "home"
        env = around(home)
        model = {"limit": {"context": 32_000, "output": 4000}, "cost": {"input": 1, "output": 2, "cache_read": 0.5}}
        options = {"baseURL": f"{p.url}/v1", "apiKey": "k"}
        stub = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m1": model}}
        (home / ".config/opencode").mkdir(parents=True, exist_ok=True)
        (home / ".config/opencode/opencode.json").write_text(json.dumps({"provider": {"stub": stub}}))
        return backend(agent("opencode", LIBRARY), str(BIN / "opencode"), env, tmp_path / "folder")

    return make


@needs("opencode")
@pytest.mark.slow
def test_opencode_answers_and_goes_on(opencode: Callable[[Provider], CommandBackend], tmp_path: Path) -> None:
    # It never ends when the answer comes before it listens for it: no real provider is that fast.
    with Provider(script=lambda _: Answer("fine ü", usage=Usage(100, 7, 40)), latency=1.0) as p:
        made = opencode(p)
        (tmp_path / "home/.config/opencode/AGENTS.md").write_text("global-canary")
        reply = answered(ask(made, asked(NASTY, model="stub/m1", keep=True)))
        assert reply.text == "fine ü"
        assert reply.usage and reply.usage.cost == pytest.approx((60 * 1 + 40 * 0.5 + 7 * 2) / 1e6)
        assert reply.thread and reply.thread == Thread(reply.thread.id, 100, 7, 40)
        [call] = p.calls  # no second one for a title
        system, user = (message["content"] for message in call.body["messages"])
        assert system.startswith('Be "brief".\n--no é 🎉') and user.strip() == HEARD
        assert not call.body.get("tools")
        assert "must-not-leak" not in json.dumps(call.body) and "global-canary" not in json.dumps(call.body)
        again = answered(ask(made, asked("two", model="stub/m1", thread=reply.thread)))
        assert [message["role"] for message in p.calls[1].body["messages"]] == ["system", "user", "assistant", "user"]
    assert again.usage and again.usage.input_tokens == 100
    assert again.thread == Thread(reply.thread.id, 200, 14, 80)
    assert not left_behind(tmp_path / "folder")


@needs("opencode")
@pytest.mark.slow
@pytest.mark.parametrize(("status", "fault"), [(401, Fault.DENIED), (400, Fault.REJECTED), (429, Fault.RATE_LIMITED)])
def test_opencode_says_what_went_wrong(
    opencode: Callable[[Provider], CommandBackend], status: int, fault: Fault
) -> None:
    with Provider(faults=[Spoiled(status=status)], latency=1.0) as p:
        error = failed(ask(opencode(p), asked(model="stub/m1")))
        assert len(p.calls) == 1  # it would try again after the last one
    assert error.fault is fault


@needs("opencode")
@pytest.mark.slow
def test_opencode_without_the_model_or_the_conversation(opencode: Callable[[Provider], CommandBackend]) -> None:
    with Provider() as p:
        made = opencode(p)
        wrong = failed(ask(made, asked(model="stub/none")))
        lost = failed(ask(made, asked(model="stub/m1", thread=Thread("ses_0000000000000000000000000"))))
        assert not p.calls
    assert wrong.fault is Fault.REJECTED and "Model not found: stub/none" in wrong.message
    assert lost.fault is Fault.REJECTED and lost.message == "lost conversation: Error: Session not found"


@needs("opencode")
@pytest.mark.slow
def test_opencode_dies_with_the_process_that_called_it(
    opencode: Callable[[Provider], CommandBackend], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with Provider(script=lambda _: Answer("fine")) as p:
        p.hold()
        opencode(p)  # sets up its user's provider
        driver = drive("opencode", BIN / "opencode", tmp_path / "folder", "stub/m1", env=around(home))
        try:
            settle(lambda: bool(p.calls), 60.0)
            assert len(running(home)) >= 3  # its wrapper, the program and the guard
        finally:
            driver.kill()
            driver.wait()
        settle(lambda: not running(home), 20.0)


# -- claude ------------------------------------------------------------------------------------------


@needs("claude")
def test_claude_answers_and_goes_on(tmp_path: Path) -> None:
    with Provider(script=lambda _: Answer("fine ü", usage=Usage(100, 7, 40))) as p:
        env = around(tmp_path / "home", ANTHROPIC_BASE_URL=p.url, ANTHROPIC_API_KEY="sk-ant-k")
        made = backend(agent("claude"), str(BIN / "claude"), env, tmp_path / "folder")
        model = "claude-sonnet-5-5"
        reply = answered(ask(made, asked(NASTY, model=model, keep=True)))
        again = answered(ask(made, asked("two", model=model, thread=reply.thread)))
        p.faults = [Spoiled(status=429)]
        error = failed(ask(made, asked(model=model)))
        calls = [call.body for call in p.calls if call.body["model"] == model]
    assert reply.text == "fine ü" and reply.usage and reply.thread
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens) == (100, 7, 40)
    assert reply.usage.cost is not None and reply.usage.cost > 0
    assert again.usage == Usage(100, 7, 40)  # of the cost only a sum is told
    assert again.thread == Thread(reply.thread.id, 200, 14, 80)
    assert 'Be "brief".\n--no é 🎉' in [part["text"] for part in calls[0]["system"]]
    assert calls[0]["messages"][0]["content"].strip() == HEARD and not calls[0].get("tools")
    assert error.fault is Fault.RATE_LIMITED
