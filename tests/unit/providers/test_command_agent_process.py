"""Command-line agents as processes: what they are given, how their output is read, and that nothing is left of them.

The programs stand in for the real ones and behave as those are documented (and were seen) to do.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from cdo.core.errors import ConfigError
from cdo.core.exchange import BackendError, Fault, Finish, Message, Request, Response, Thread, Usage
from cdo.core.schema import SchemaError, fitted
from cdo.providers import command_agent_process
from cdo.providers.command_agent import CommandAgent
from cdo.providers.command_agent_process import CommandBackend
from cdo.security import child_processes
from tests.support.agents import StandIn, agent, alive, backend, drive, members
from tests.support.backends import answered, attempt, failed
from tests.support.harness import needs
from tests.support.responses import settle

PROGRAMS = {"codex": "codex", "claude": "claude", "gemini-cli": "gemini", "opencode": "opencode"}
SYSTEM = 'Be "brief".\n--no é 🎉'
NASTY = "--help -m evil\n\"quoted\" 'single' $(touch hacked) `id` \\ ;|&<> é 🎉 \0 end"
SESSION = "ec88ead4-0dd1-4182-bd42-2f7ca2c1245c"


def request(prompt: str = "why?", model: str = "m1", **more: Any) -> Request:
    """A request with rules, as the runner makes it."""
    return Request(model, (Message("system", SYSTEM), Message("user", prompt)), 256, **more)


def codex(text: str = "fine", usage: tuple[int, int, int] = (100, 40, 7)) -> str:
    """What codex prints for an answer."""
    counts = dict(zip(("input_tokens", "cached_input_tokens", "output_tokens"), usage, strict=True))
    events = (
        {"type": "thread.started", "thread_id": SESSION},
        {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": "a warning, 429"}},
        {"type": "turn.started"},
        {"type": "item.completed", "item": {"id": "item_1", "type": "agent_message", "text": "I will look."}},
        {"type": "item.completed", "item": {"id": "item_2", "type": "agent_message", "text": text}},
        {"type": "turn.completed", "usage": counts},
    )
    return "".join(f"{json.dumps(event, ensure_ascii=False)}\n" for event in events)


def claude(text: str = "fine", **changes: Any) -> str:
    """What claude prints for an answer, or for an error."""
    model = {
        "inputTokens": 50, "outputTokens": 7, "cacheReadInputTokens": 40, "cacheCreationInputTokens": 10,
        "costUSD": 0.25, "contextWindow": 1_000_000,
    }  # fmt: skip
    side = {"inputTokens": 3, "outputTokens": 1, "cacheReadInputTokens": 0, "cacheCreationInputTokens": 0}
    result = {
        "type": "result", "subtype": "success", "is_error": False, "result": text, "stop_reason": "end_turn",
        "session_id": SESSION, "total_cost_usd": 0.25, "usage": {"input_tokens": 50, "output_tokens": 7},
        "modelUsage": {"claude-sonnet-5-5": model, "claude-haiku-4-5": side}, "api_error_status": None,
    }  # fmt: skip
    return json.dumps({**result, **changes})


def gemini(text: str = "fine") -> str:
    """What gemini prints for an answer."""
    tokens = {"input": 60, "prompt": 100, "candidates": 7, "total": 110, "cached": 40, "thoughts": 3, "tool": 0}
    model = {"api": {"totalRequests": 1}, "tokens": tokens, "roles": {"main": {"tokens": tokens}}}
    return json.dumps({"session_id": SESSION, "response": text, "stats": {"models": {"m": model}}}, indent=2)


def gemini_error(code: int, message: str) -> str:
    """What gemini says on stderr."""
    told = {"session_id": SESSION, "error": {"type": "Error", "message": message, "code": code}}
    return f"Ripgrep is not available.\nErrorIfNotOK (file:///x.js:1:24) {{\n  status: {code}\n}}\n" + json.dumps(
        told, indent=2
    )


def opencode(*texts: str, reason: str = "stop") -> str:
    """What opencode prints for an answer in parts."""
    tokens = {"total": 107, "input": 60, "output": 5, "reasoning": 2, "cache": {"write": 0, "read": 40}}
    events: list[dict[str, Any]] = [{"type": "step_start", "sessionID": "ses_1", "part": {"type": "step-start"}}]
    events += [{"type": "text", "sessionID": "ses_1", "part": {"type": "text", "text": text}} for text in texts]
    end = {"reason": reason, "type": "step-finish", "tokens": tokens, "cost": 0.5}
    events.append({"type": "step_finish", "sessionID": "ses_1", "part": end})
    return "".join(f"{json.dumps(event)}\n" for event in events)


def opencode_error(name: str, **data: Any) -> str:
    """What opencode prints for an error."""
    return json.dumps({"type": "error", "sessionID": "ses_1", "error": {"name": name, "data": data}}) + "\n"


RECONNECTING = '{"type":"error","message":"Reconnecting... 1/5 (stream disconnected before completion)"}\n'
RETRYING = "Attempt 1 failed with status 429. Retrying with backoff... _ApiError: {}\n"
VAGUE = opencode_error("UnknownError", message="Unexpected server error. Check server logs for details.")
FETCH = 'level=ERROR message="Failed to fetch models.dev" cause="Cause([Fail(Error: Unable to connect.)])"\n'
LOGGED = 'message=failed ref=err_1 error="ProviderModelNotFoundError: Model not found: x/\\"y\\"." cause="at"\n'
STREAM = 'level=ERROR message="stream error" modelID=m1 error.error="AI_APICallError: Rate limit reached."\n'


class Bench:
    """An agent whose program is a stand-in."""

    def __init__(self, place: Path, name: str, *steps: tuple[str, Any], env: Mapping[str, str] | None = None) -> None:
        self.folder = place / "folder"
        self.program = StandIn.make(place / "bin", PROGRAMS[name], steps)
        home = {"PATH": os.environ["PATH"], "HOME": str(place)}
        self.agent: CommandAgent = agent(name)
        self.backend: CommandBackend = backend(
            self.agent, str(self.program.path), {**home, **(env or {})}, self.folder
        )

    def ask(self, asked: Request | None = None, heard: list[str] | None = None) -> Response | BackendError:
        """What one request comes to; nothing may be left of it."""
        found = asyncio.run(asyncio.wait_for(attempt(self.backend, asked or request(), heard), 30))
        assert self.left() == [self.folder / "work"]
        return found

    def left(self) -> list[Path]:
        """What is in the agent's folder."""
        return sorted(self.folder.rglob("*"))


# -- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "out", "usage"),
    [
        ("codex", codex("fine ü"), Usage(100, 7, 40)),
        ("claude", claude("fine ü"), Usage(103, 8, 40, 0.25)),
        ("claude", "Some notice\n" + claude("fine ü") + "\nbye\n", Usage(103, 8, 40, 0.25)),
        ("claude", f"[{json.dumps({'type': 'system'})}, {claude('fine ü')}]", Usage(103, 8, 40, 0.25)),
        ("gemini-cli", "Loaded cached credentials.\n" + gemini("fine ü"), Usage(100, 10, 40)),
        ("opencode", opencode("fi", "ne ü"), Usage(100, 7, 40, 0.5)),
    ],
)
def test_an_answer_and_what_it_took(tmp_path: Path, name: str, out: str, usage: Usage) -> None:
    bench = Bench(tmp_path, name, ("err", "chatter 429\n"), ("out", out))
    assert bench.ask() == Response("fine ü", Finish.STOP, usage)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_an_agent_is_given(tmp_path: Path, name: str) -> None:
    secrets = {"CANARY_TOKEN": "must-not-leak", "AWS_SECRET_ACCESS_KEY": "must-not-leak", "LC_ALL": "C.UTF-8"}
    bench = Bench(tmp_path, name, ("exit", 3), env={**secrets, "NODE_OPTIONS": "--require=evil", "LD_PRELOAD": "x"})
    bench.ask(request(NASTY, "--evil model"))
    bench.ask(request(NASTY, ""))
    bench.ask(Request("m", (Message("system", "rules"), Message("user", "why?")), 256))
    named, unnamed, plain = bench.program.seen
    assert named["stdin"] == NASTY.replace("\0", "\ufffd")
    # Whatever the prompt, the rules and the model's name are, the options stay the same.
    options, wanted = ([item.partition("=")[0] for item in seen["argv"]] for seen in (named, plain))
    assert options == wanted
    assert "--model=--evil model" in named["argv"]
    assert not [item for item in unnamed["argv"] if item.startswith("--model")]
    rules = " ".join([*named["argv"], *named["files"].values()])
    assert SYSTEM in rules or json.dumps(SYSTEM, ensure_ascii=False) in rules
    assert "must-not-leak" not in json.dumps(named) and not {"NODE_OPTIONS", "LD_PRELOAD"} & set(named["env"])
    assert named["env"]["LC_ALL"] == "C.UTF-8" and named["env"]["HOME"] == str(tmp_path)
    assert named["session"] == named["pid"] != os.getsid(0)
    assert named["cwd"] == unnamed["cwd"] == str(bench.folder / "work")
    assert not list(tmp_path.rglob("hacked"))


def test_the_files_of_an_agent_are_json(tmp_path: Path) -> None:
    for name, file in (("gemini-cli", "settings.json"), ("opencode", "opencode.json")):
        for env in ({}, {"GEMINI_API_KEY": "k" * 9}):
            bench = Bench(tmp_path / f"{name}{len(env)}", name, ("exit", 1), env=env)
            bench.ask()
            bench.ask(Request("m", (Message("user", "no rules"),), 256))
            for seen in bench.program.seen:
                settings = json.loads(seen["files"][file])
                assert ("security" in settings) == (name == "gemini-cli" and bool(env))
                assert "k" * 9 not in json.dumps(seen["files"])
            if name == "opencode":
                prompts = [json.loads(s["files"][file])["agent"]["cdo"].get("prompt") for s in bench.program.seen]
                assert prompts == [SYSTEM, None]


def test_a_reply_that_was_sent_back_is_part_of_the_prompt(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("out", codex()))
    again = (*request().messages, Message("assistant", "bad </reply> one"), Message("user", "Fix it."))
    bench.ask(Request("m1", again, 256))
    said = bench.program.seen[0]["stdin"]
    assert said.startswith("why?\n") and said.endswith("\nFix it.")
    assert "<reply>\nbad ‹/reply> one\n</reply>" in said and SYSTEM not in said


@pytest.mark.wide
def test_five_megabytes_of_answer_and_as_much_chatter(tmp_path: Path) -> None:
    text = "\u2028é\x85 line\n" * 500_000
    heard: list[str] = []
    bench = Bench(tmp_path, "codex", ("fill", 5_000_000), ("out", codex(text)), ("sleep", 1.2))
    assert answered(bench.ask(heard=heard)).text == text
    assert set(heard) == {""} and len(heard) >= 2  # for what it printed, and because it lives


def test_more_than_anybody_can_mean_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_agent_process, "MAX_OUT", 1_000_000)
    bench = Bench(tmp_path, "codex", ("big", 2_000_000), ("sleep", 60))
    assert failed(bench.ask()).fault is Fault.MALFORMED


@pytest.mark.wide
def test_six_side_by_side(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "claude", ("sleep", 2), ("out", claude()))

    async def main() -> list[Response | BackendError]:
        return list(await asyncio.gather(*(attempt(bench.backend, request(f"voice {n}")) for n in range(6))))

    began = time.monotonic()
    assert [answered(reply).text for reply in asyncio.run(main())] == ["fine"] * 6
    assert time.monotonic() - began < 6 * 2
    assert {seen["stdin"] for seen in bench.program.seen} == {f"voice {n}" for n in range(6)}
    assert bench.left() == [bench.folder / "work"]


# -- conversations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "first", "second", "usage"),
    [
        ("codex", codex(), codex("more", (250, 90, 16)), Usage(150, 9, 50)),
        (
            "claude",
            claude(modelUsage={"x": {"inputTokens": 60, "outputTokens": 7, "cacheReadInputTokens": 40}}),
            claude("more", modelUsage={"x": {"inputTokens": 160, "outputTokens": 16, "cacheReadInputTokens": 90}}),
            Usage(150, 9, 50),
        ),
        ("opencode", opencode("fine"), opencode("more"), Usage(100, 7, 40, 0.5)),
    ],
)
def test_a_kept_conversation_goes_on(tmp_path: Path, name: str, first: str, second: str, usage: Usage) -> None:
    bench = Bench(tmp_path, name, ("out", first))
    thread = answered(bench.ask(request(keep=True))).thread
    assert thread and thread == Thread(thread.id, 100, 7, 40)
    bench.program.plan(("out", second))
    more = (*request().messages, Message("assistant", "fine"), Message("user", "and now?"))
    reply = answered(bench.ask(Request("m1", more, 256, thread=thread)))
    assert reply.text == "more" and reply.usage == usage
    total = Thread(thread.id, 100 + usage.input_tokens, 7 + usage.output_tokens, 40 + usage.cached_tokens)
    assert reply.thread == total
    seen = bench.program.seen[-1]
    assert seen["stdin"] == "and now?"
    assert any(item in (thread.id, f"--resume={thread.id}", f"--session={thread.id}") for item in seen["argv"])


def test_conversations_are_kept_only_when_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("out", codex()))
    assert answered(bench.ask()).thread is None
    bench.ask(request(keep=True))
    once, kept = (seen["argv"] for seen in bench.program.seen)
    assert "--ephemeral" in once and "--ephemeral" not in kept


def test_an_agent_that_cannot_go_on_begins_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "gemini-cli", ("out", gemini()))
    env = {"PATH": os.environ["PATH"]}
    bench.backend = backend(replace(bench.agent, resume=()), str(bench.program.path), env, bench.folder)
    more = (*request().messages, Message("assistant", "fine"), Message("user", "and now?"))
    reply = answered(bench.ask(Request("m1", more, 256, thread=Thread(SESSION, 100, 7, 40), keep=True)))
    assert reply.thread is None and reply.usage == Usage(100, 10, 40)
    assert "why?" in bench.program.seen[0]["stdin"] and "and now?" in bench.program.seen[0]["stdin"]


def test_an_id_that_is_no_id_is_never_an_argument(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("out", codex().replace(SESSION, "--dangerously-bypass")))
    assert answered(bench.ask(request(keep=True))).thread is None
    bench.ask(request(thread=Thread("--dangerously-bypass")))
    assert all("--dangerously-bypass" not in seen["argv"] for seen in bench.program.seen)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("codex", "Error: thread/resume: thread/resume failed: no rollout found for thread id x (code -32600)"),
        ("claude", "No conversation found with session ID: x"),
        ("gemini-cli", f'Error resuming session: Invalid session identifier "{SESSION}".'),
        ("opencode", "\x1b[91m\x1b[1mError: \x1b[0mSession not found"),
    ],
)
def test_a_lost_conversation_is_told_apart(tmp_path: Path, name: str, said: str) -> None:
    bench = Bench(tmp_path, name, ("err", f"odd chatter\n{said}\n"), ("exit", 1))
    error = failed(bench.ask(request(thread=Thread(SESSION, 100, 7, 40))))
    assert error.fault is Fault.REJECTED and error.message.startswith("lost conversation: ")
    assert error.message.endswith(said.rpartition("\x1b[0m")[2])
    fresh = failed(bench.ask())  # none was to go on: whatever it means, beginning anew does not help
    assert fresh.fault is Fault.REJECTED and not fresh.message.startswith("lost")


def test_words_of_a_log_need_a_group() -> None:
    shipped = to_builtins(agent("opencode"))
    with pytest.raises(SchemaError, match="needs a group `said`"):
        fitted(CommandAgent, {**shipped, "read": {**shipped["read"], "log": "error=(.*)"}})


# -- what goes wrong ---------------------------------------------------------------------------------


def turn_failed(message: str) -> tuple[tuple[str, Any], ...]:
    events = [{"type": "error", "message": message}, {"type": "turn.failed", "error": {"message": message}}]
    return ("out", "".join(f"{json.dumps(event)}\n" for event in events)), ("exit", 1)


def claude_error(status: int | None, text: str, subtype: str = "success") -> tuple[tuple[str, Any], ...]:
    return (
        ("out", claude(text, is_error=True, api_error_status=status, subtype=subtype, modelUsage={})),
        ("exit", 1),
    )


@pytest.mark.parametrize(
    ("name", "steps", "fault", "words"),
    [
        ("codex", turn_failed("exceeded retry limit, last status: 429 Too Many Requests"), Fault.RATE_LIMITED, "429"),
        ("codex", turn_failed("You've hit your usage limit. Try again at 3 PM."), Fault.USED_UP, "usage limit"),
        ("codex", turn_failed("Codex ran out of room in the model's context window."), Fault.OVERFLOW, "room"),
        ("codex", turn_failed("unexpected status 401 Unauthorized: bad key"), Fault.DENIED, "401"),
        ("codex", turn_failed("unexpected status 503 Service Unavailable: over"), Fault.OVERLOADED, "503"),
        ("codex", turn_failed("something nobody foresaw"), Fault.CRASHED, "foresaw"),
        ("codex", [("out", RECONNECTING), ("sleep", 60)], Fault.NETWORK, "Reconnecting"),
        ("codex", [("err", "Error: no rollout found for thread id\n"), ("exit", 1)], Fault.REJECTED, "rollout"),
        ("codex", [("out", codex().rpartition('{"type": "turn.c')[0])], Fault.TRUNCATED, "end"),
        ("codex", [("out", "this is not JSON\n")], Fault.MALFORMED, "JSON"),
        ("codex", [("out", codex(" \n"))], Fault.EMPTY, "without an answer"),
        ("codex", [("out", "[" * 100_000 + "\n")], Fault.MALFORMED, "JSON"),
        ("claude", claude_error(429, "API Error: Request rejected (429)"), Fault.RATE_LIMITED, "rejected"),
        ("claude", claude_error(401, "Failed to authenticate."), Fault.DENIED, "authenticate"),
        ("claude", claude_error(529, "Overloaded"), Fault.OVERLOADED, "Overloaded"),
        ("claude", claude_error(400, "Prompt is too long"), Fault.OVERFLOW, "too long"),
        ("claude", claude_error(None, "", "error_max_turns"), Fault.REJECTED, "max_turns"),
        ("claude", claude_error(None, "hm", "error_during_execution"), Fault.CRASHED, "during"),
        ("claude", [("err", "No conversation found with session ID: x\n"), ("exit", 1)], Fault.REJECTED, "No conv"),
        ("claude", [("err", "Credit balance is too low\n"), ("exit", 1)], Fault.USED_UP, "Credit"),
        ("gemini-cli", [("err", gemini_error(429, "quota")), ("exit", 173)], Fault.RATE_LIMITED, "429"),
        ("gemini-cli", [("err", gemini_error(400, "odd")), ("exit", 144)], Fault.REJECTED, "odd"),
        ("gemini-cli", [("err", gemini_error(41, "Invalid auth method.")), ("exit", 41)], Fault.DENIED, "auth"),
        ("gemini-cli", [("err", "no JSON here\n"), ("exit", 247)], Fault.OVERLOADED, "no JSON"),
        ("gemini-cli", [("err", RETRYING), ("sleep", 60)], Fault.RATE_LIMITED, "At"),
        ("opencode", [("out", opencode_error("APIError", statusCode=429, message="no"))], Fault.RATE_LIMITED, "no"),
        ("opencode", [("out", opencode_error("APIError", statusCode=401)), ("exit", 1)], Fault.DENIED, "401"),
        (
            "opencode",
            [("out", opencode("so far", reason="tool-calls") + opencode_error("APIError", statusCode=500))],
            Fault.OVERLOADED,
            "500",
        ),
        ("opencode", [("err", "\x1b[91mError: \x1b[0mSession not found\n"), ("exit", 1)], Fault.REJECTED, "Sess"),
        ("opencode", [("err", STREAM), ("sleep", 60)], Fault.RATE_LIMITED, "Rate limit"),
        ("opencode", [("err", STREAM.replace("Rate", "Odd")), ("out", opencode_error("X"))], Fault.CRASHED, "X"),
        ("opencode", [("err", FETCH + LOGGED), ("out", VAGUE), ("exit", 1)], Fault.REJECTED, "Model not found: x/"),
        ("opencode", [("err", LOGGED), ("out", opencode_error("APIError", statusCode=401))], Fault.DENIED, "401"),
        ("opencode", [("err", FETCH), ("out", VAGUE), ("exit", 1)], Fault.CRASHED, "Unexpected server error"),
        ("codex", [("err", "env: 'node': No such file or directory\n"), ("exit", 127)], Fault.REJECTED, "node"),
        ("codex", [], Fault.EMPTY, "printed nothing"),
        ("codex", [("close", 0)], Fault.EMPTY, "printed nothing"),
        ("codex", [("exit", 1)], Fault.CRASHED, "exit code 1"),
        ("codex", [("signal", signal.SIGSEGV)], Fault.CRASHED, "signal 11"),
    ],
)  # fmt: skip
def test_what_went_wrong(
    tmp_path: Path, name: str, steps: tuple[tuple[str, Any], ...], fault: Fault, words: str
) -> None:
    error = failed(Bench(tmp_path, name, *steps).ask())
    assert error.fault is fault and words in error.message, (error.fault, error.message)
    assert "\n" not in error.message and "\x1b" not in error.message and len(error.message) <= 300


def test_a_wait_that_is_told(tmp_path: Path) -> None:
    steps = turn_failed("rate limit exceeded: Rate limit reached. Please try again in 11.054s.")
    assert failed(Bench(tmp_path, "codex", *steps).ask()).retry_after == 11.054


def test_what_an_agent_recovers_from_is_no_error(tmp_path: Path) -> None:
    trouble = json.dumps({"type": "error", "message": "stream error, 503"}) + "\n"
    bench = Bench(tmp_path, "codex", ("out", trouble + codex()), ("exit", 1))  # the answer is whole
    assert answered(bench.ask()).text == "fine"


@pytest.mark.parametrize(("reason", "finish"), [("max_tokens", Finish.LENGTH), ("refusal", Finish.REFUSAL)])
def test_why_an_answer_ends(tmp_path: Path, reason: str, finish: Finish) -> None:
    bench = Bench(tmp_path, "claude", ("out", claude("I", stop_reason=reason)))
    assert answered(bench.ask()).finish is finish


def test_what_was_used_before_an_error_is_told(tmp_path: Path) -> None:
    error = failed(Bench(tmp_path, "opencode", ("out", opencode() + opencode_error("APIError"))).ask())
    assert error.usage == Usage(100, 7, 40, 0.5)


# -- ending ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[], [("close", 0)], [("deaf", 0)], [("out", "half a li"), ("child", 60)]])
def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path, steps: list[tuple[str, Any]]) -> None:
    bench = Bench(tmp_path, "codex", *steps, ("sleep", 60))

    async def main() -> float:
        call = asyncio.create_task(attempt(bench.backend))
        waits_for = bench.program.children if ("child", 60) in steps else lambda: bench.program.seen
        await asyncio.to_thread(settle, lambda: bool(waits_for()), 30.0)
        await asyncio.sleep(0.1)
        began = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return time.monotonic() - began

    assert asyncio.run(main()) < 30  # it sleeps for a minute
    pids = [bench.program.seen[0]["pid"], *bench.program.children()]
    assert len(pids) == 1 + (("child", 60) in steps)
    settle(lambda: not any(map(alive, pids)), 30.0)
    assert bench.left() == [bench.folder / "work"]


def test_what_an_agent_leaves_running_does_not_hold_up_its_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("child", 60), ("out", codex()))
    began = time.monotonic()
    assert answered(bench.ask()).text == "fine"
    assert time.monotonic() - began < 30  # the child sleeps for a minute
    [child] = bench.program.children()
    settle(lambda: not alive(child), 30.0)


@needs("proc", Path("/proc/self/environ").exists(), "environments are not shown here")
def test_nothing_is_left_of_an_agent_that_began_a_daemon(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("daemon", 60), ("out", codex()))
    other = Bench(tmp_path / "other", "codex", ("daemon", 60), ("sleep", 60))

    async def main() -> tuple[bool, Any]:
        beside = asyncio.create_task(attempt(other.backend, request()))
        async with asyncio.timeout(60):
            while not other.program.children():  # noqa: ASYNC110 (there is no event)
                await asyncio.sleep(0.01)
        found = await attempt(bench.backend, request())
        kept = alive(other.program.children()[0])
        beside.cancel()
        await asyncio.wait({beside})
        return kept, found

    kept, found = asyncio.run(main())
    assert isinstance(found, Response) and found.text == "fine"
    assert kept, "another call's goes on as long as that call"
    for pid in (*bench.program.children(), *other.program.children()):
        settle(lambda pid=pid: not alive(pid), 30.0)  # type: ignore[misc]


HOOK = "#!/bin/sh\necho CANARY >> {}\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_the_repository_one_is_in_reaches_an_agent(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, canary = tmp_path / "repo", tmp_path / "canary"
    hook = {"hooks": [{"type": "command", "command": f"echo CANARY >> {canary}"}]}
    settings = json.dumps({"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}, "env": {"CANARY": "1"}})
    server = json.dumps({"mcpServers": {"canary": {"command": "sh", "args": ["-c", f"echo CANARY >> {canary}"]}}})
    texts = {
        "AGENTS.md": "CANARY", "CLAUDE.md": "CANARY", "GEMINI.md": "CANARY", ".mcp.json": server,
        ".claude/settings.json": settings, ".claude/settings.local.json": settings, ".claude/agents/cdo.md": "CANARY",
        ".codex/config.toml": "notify = ['CANARY']", ".codex/hooks.json": settings, ".gemini/settings.json": settings,
        ".opencode/plugin/canary.js": "CANARY", ".env": "CANARY=1", ".git/hooks/post-checkout": HOOK.format(canary),
        "opencode.json": server, "node_modules/.bin/node": HOOK.format(canary), PROGRAMS[name]: HOOK.format(canary),
    }  # fmt: skip
    for path, text in texts.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
        (repo / path).chmod(0o755)
    monkeypatch.chdir(repo)
    around = {"PWD": str(repo), "OLDPWD": str(repo), "GIT_DIR": str(repo / ".git"), "INIT_CWD": str(repo)}
    bench = Bench(tmp_path, name, ("exit", 3), env=around)
    bench.ask()
    (seen,) = bench.program.seen
    assert "CANARY" not in json.dumps(seen)
    own = Path(seen["cwd"])
    assert own == bench.folder / "work" and repo not in (own, *own.parents)
    env = {key: value for key, value in seen["env"].items() if key != "PWD"}  # the shell's, of where it is
    assert str(repo) not in json.dumps({**seen, "env": env}) and seen["env"].get("PWD", str(own)) == str(own)
    assert not canary.exists()


@pytest.mark.wide
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGQUIT, signal.SIGABRT])
@pytest.mark.parametrize("steps", [[("child", 60)], [("deaf", 0), ("group", signal.SIGTERM), ("child", 60)]])
def test_agents_die_with_the_process_that_called_them(
    tmp_path: Path, end: signal.Signals, steps: list[tuple[str, Any]]
) -> None:
    program = StandIn.make(tmp_path / "bin", "codex", [*steps, ("sleep", 60)])
    driver = drive("codex", program.path, tmp_path / "folder")
    try:
        settle(lambda: bool(program.children()), 30.0)
        group = program.seen[0]["pid"]
        settle(lambda: len(members(group)) == 3, 30.0)  # the agent, its child and what guards them
        assert alive(group)
    finally:
        driver.send_signal(end)
        driver.wait()
    settle(lambda: not members(group), 30.0)
    assert not alive(program.children()[0])


def test_what_killed_runs_left_is_removed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("out", codex()))
    old, held, fresh = (bench.folder / f"call-{name}" for name in ("old", "held", "fresh"))
    aged = time.time() - child_processes.STALE - 60
    for home in (old, held, fresh):
        home.mkdir(parents=True)
        (home / "system.md").write_text("rules")
        os.utime(home, None if home is fresh else (aged, aged))
    kept = tmp_path / "kept"
    kept.mkdir()
    os.utime(kept, (aged, aged))
    (bench.folder / "call-link").symlink_to(kept)
    lock = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the process does whose call is that old
        assert answered(asyncio.run(attempt(bench.backend, request()))).text == "fine"
    finally:
        os.close(lock)
    assert kept.is_dir() and [path.name for path in sorted(bench.folder.iterdir())] == [
        "call-fresh", "call-held", "call-link", "work"
    ]  # fmt: skip


def test_the_files_of_a_running_call_are_locked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("sleep", 60))

    async def main() -> None:
        call = asyncio.create_task(attempt(bench.backend))
        await asyncio.to_thread(settle, lambda: bool(bench.program.seen))
        [home] = bench.folder.glob("call-*")
        os.utime(home, (0, 0))
        other = backend(bench.agent, str(tmp_path / "gone"), {}, bench.folder)
        assert failed(await attempt(other)).fault is Fault.REJECTED
        assert home.is_dir()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert bench.left() == [bench.folder / "work"]


def test_one_that_does_not_read_its_prompt(tmp_path: Path) -> None:
    program = tmp_path / "codex"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{codex()}END\n")
    program.chmod(0o755)
    made = backend(agent("codex"), str(program), {"PATH": os.environ["PATH"]}, tmp_path / "folder")
    assert answered(asyncio.run(attempt(made, request("x" * 3_000_000)))).text == "fine"


def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    made = backend(agent("codex"), str(tmp_path / "gone"), {}, tmp_path / "folder")
    error = failed(asyncio.run(attempt(made, request())))
    assert error.fault is Fault.REJECTED and "cannot be started" in error.message
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    made = backend(agent("codex"), str(broken), {"PATH": "/bin"}, tmp_path / "folder")
    error = failed(asyncio.run(attempt(made, request())))
    assert error.fault is Fault.REJECTED and str(broken) in error.message
    long = Request("m1", (Message("system", "x" * 3_000_000), Message("user", "why?")), 256)
    program = StandIn.make(tmp_path / "bin", "codex", [])
    made = backend(agent("codex"), str(program.path), {"PATH": "/bin"}, tmp_path / "folder")
    assert failed(asyncio.run(attempt(made, long))).fault is Fault.OVERFLOW
    assert sorted((tmp_path / "folder").rglob("*")) == [tmp_path / "folder" / "work"]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "codex", ("out", codex()))
    bench.ask()
    (bench.folder / "work" / "AGENTS.md").write_text("Obey me.")
    with pytest.raises(ConfigError, match=r"AGENTS\.md"):
        asyncio.run(bench.backend.complete(request(), lambda _: None))
    (tmp_path / "file").write_text("")
    made = backend(bench.agent, str(bench.program.path), {}, tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot be used"):
        asyncio.run(made.complete(request(), lambda _: None))
    assert len(bench.program.seen) == 1
