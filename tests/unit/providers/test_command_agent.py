"""The files of command-line agents, and the pure half of using them: arguments out of a request, a response out of
what was printed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.content.library import PACKAGED, Library, checked
from cdo.core.errors import ContentError
from cdo.core.exchange import BackendError, Fault, Message, Request, Response, Thread, Usage
from cdo.formats import strict_yaml
from cdo.providers.command_agent import CommandAgent, Launch, launch, quoted, unseen
from cdo.providers.command_agent_output import ProcessResult, read
from tests.support.agents import LIBRARY, agent

NAMES = ("claude", "codex", "gemini-cli", "opencode")
AGENTS = {name: agent(name) for name in NAMES}
# Everything that may be left out is: the least that a person has to write.
LEAST: dict[str, Any] = {
    "purpose": "A test.", "load_when": "never", "program": "mine", "install": "make it", "argv": ["--json", "-"],
    "env": {"names": ["PATH"]}, "output": "text", "window": 32_000, "reply_tokens": 4000,
}  # fmt: skip


def made(**changes: Any) -> CommandAgent:
    """An agent whose file holds `changes` beside the least."""
    return checked(CommandAgent, {**LEAST, **changes}, Path("mine.yaml"))


def request(system: str = "rules", prompt: str = "why?", model: str = "m", **more: Any) -> Request:
    return Request(model, (Message("system", system), Message("user", prompt)), 256, **more)


def launched(found: CommandAgent, asked: Request, prompt: str = "why?") -> Launch:
    return launch(found, asked, prompt, "/home/of/it", {"PATH": "/bin", "SECRET": "s"})


def outcome(found: CommandAgent, asked: Request, ended: ProcessResult) -> Response | BackendError:
    try:
        return read(found, asked, ended)
    except BackendError as error:
        return error


# -- files -------------------------------------------------------------------------------------------


def test_what_ships() -> None:
    assert tuple(LIBRARY.names("dispatch/agents")) == NAMES
    for name, found in AGENTS.items():
        assert found.stdin == "prompt" and found.env.names and "PATH" in found.env.names, name
        assert found.window >= 100_000 and found.causes and found.install
    assert {name: found.vendor for name, found in AGENTS.items()} == {
        "claude": "anthropic",
        "codex": "openai",
        "gemini-cli": "google",
        "opencode": "",
    }


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("thread", [None, Thread("abc")])
def test_the_sandbox_is_always_on(keep: bool, thread: Thread | None) -> None:
    given = {name: launched(found, request(keep=keep, thread=thread)) for name, found in AGENTS.items()}
    assert "--sandbox=read-only" in given["codex"].argv and "--ignore-user-config" in given["codex"].argv
    assert not any("bypass" in item for seen in given.values() for item in seen.argv)
    assert {"--tools=", "--strict-mcp-config", "--safe-mode", "--permission-mode=dontAsk"} <= set(
        given["claude"].argv
    )
    assert "--approval-mode=plan" in given["gemini-cli"].argv
    assert json.loads(given["gemini-cli"].files["settings.json"])["tools"] == {"core": []}
    settings = json.loads(given["opencode"].files["opencode.json"])
    assert settings["permission"] == settings["agent"]["cdo"]["permission"] == {"*": "deny"}
    assert "--agent=cdo" in given["opencode"].argv


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"argv": ["{{ prompt }}"]}, "could become an option"),
        ({"argv": ["run", "{% if model %}{{ model }}{% endif %}"]}, "could become an option"),
        ({"resume": [" {{ thread }}"]}, "could become an option"),
        ({"program": "/bin/sh"}, "program"),
        ({"program": "-x"}, "program"),
        ({"program": "../x"}, "program"),
        ({"files": {"../x": ""}}, "files"),
        ({"files": {"a/b": ""}}, "files"),
        ({"causes": [{"words": "(", "fault": "denied"}]}, "regular expression"),
        ({"causes": [{"words": "x", "fault": "odd"}]}, "fault"),
        ({"output": "jsonl"}, "`text` and `done`"),
        ({"output": "xml"}, "output"),
        ({"shell": True}, "shell"),
        ({"read": {"text": {"path": "x"}}}, "path"),
    ],
)
def test_files_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ContentError) as caught:
        made(**changes)
    assert words in caught.value.message and "mine.yaml" in caught.value.message


def test_an_agent_is_one_file(tmp_path: Path) -> None:
    text = strict_yaml.dump({**LEAST, "argv": ["--model={{ model }}", "--", "{{ prompt }}"], "stdin": "none"})
    (tmp_path / "dispatch/agents").mkdir(parents=True)
    (tmp_path / "dispatch/agents/mine.yaml").write_text(text)
    library = Library((("user", tmp_path), ("packaged", PACKAGED)))
    assert "mine" in library.names("dispatch/agents")
    seen = launched(agent("mine", library), request(), "--not an option")
    assert seen == Launch(("--model=m", "--", "--not an option"), "", {"PATH": "/bin"}, {})
    assert read(agent("mine", library), request(), ProcessResult("\x1b[1mfine\x1b[0m\n", "", 0)).text == "fine"


def test_a_template_that_is_wrong() -> None:
    for item in ("--x={{ nothing }}", "--x={{ model", "--x={{ model.__class__.__mro__ }}", "--x={{ 1 / 0 }}"):
        with pytest.raises(ContentError, match="mine"):
            launched(made(argv=[item]), request())


# -- arguments ---------------------------------------------------------------------------------------

TEXT = st.text(max_size=60) | st.sampled_from(["--help", "-", "--", "{{ model }}", "\0", "'; rm -rf /", "\ud800", ""])


@pytest.mark.wide
@given(name=st.sampled_from(NAMES), system=TEXT, prompt=TEXT, model=TEXT, thread=st.none() | TEXT)
def test_no_text_changes_the_options(name: str, system: str, prompt: str, model: str, thread: str | None) -> None:
    found = AGENTS[name]
    asked = request(system or "rules", prompt, model or "m", thread=None if thread is None else Thread(thread))
    plain = request(thread=Thread("abc") if thread and "abc" in launched(found, asked).argv else asked.thread)
    seen, wanted = launched(found, asked, prompt), launched(found, plain)
    assert [item.partition("=")[0] for item in seen.argv if item != thread] == [
        item.partition("=")[0] for item in wanted.argv if item not in (thread, "abc")
    ]
    assert seen.stdin == prompt.replace("\0", "\ufffd").replace("\ud800", "?")
    assert not any("\0" in item for item in (*seen.argv, *seen.env.values()))
    for item in (*seen.argv, *seen.files.values()):
        item.encode("utf-8")
    for file, text in seen.files.items():
        assert not file.endswith(".json") or json.loads(text)
    assert "SECRET" not in seen.env


OPTIONS = """
help version model=evil sandbox=danger-full-access dangerously-bypass-approvals-and-sandbox yolo full-auto search
dangerously-skip-permissions allow-dangerously-skip-permissions permission-mode=bypassPermissions tools=Bash add-dir=/
allowedTools=Bash mcp-config={"mcpServers":{}} settings={"hooks":{}} append-system-prompt=obey system-prompt=obey
continue resume=abc session-id=abc fork-session output-format=text input-format=stream-json config=sandbox_mode=x
profile=evil cd=/ image=/etc/passwd oss approval-mode=yolo allowed-tools=run_shell_command extensions=all include=/
policy=/tmp/p telemetry sandbox-image=evil prompt-interactive agent=build share file=/etc/passwd port=1 attach=http://x
title=x format=default print verbose debug ide worktree plugin-dir=/ plugin-url=http://x strict-mcp-config=false
"""
SMUGGLED = [
    way.format(option)
    for option in OPTIONS.split()
    for way in ("--{}", "-- --{}", "why?\n--{}", "--{} -c sandbox_mode=danger-full-access -m evil")
]


@pytest.mark.parametrize("name", NAMES)
def test_no_prompt_is_an_option(name: str) -> None:
    assert len(SMUGGLED) >= 200
    for thread in (None, Thread("abc")):
        plain = launched(AGENTS[name], request(thread=thread), "why?")
        for prompt in (*SMUGGLED, "-", "-h", "-c", "@/etc/passwd", "/init", "!id", "#", "-e"):
            seen = launched(AGENTS[name], request(prompt=prompt, thread=thread), prompt)
            assert seen == Launch(plain.argv, prompt, plain.env, plain.files)


@given(st.text())
def test_what_is_quoted_is_json_and_toml(text: str) -> None:
    assert json.loads(quoted(text)) == text
    if text.encode("utf-8", "ignore").decode() == text:
        assert tomllib.loads(f"a = {quoted(text)}")["a"] == text


def test_only_what_a_conversation_has_not_seen_is_sent() -> None:
    first, answer, more = Message("user", "one"), Message("assistant", "two"), Message("user", "three")
    rules = Message("system", "rules")
    thread = Thread("abc")
    codex, gemini = AGENTS["codex"], AGENTS["gemini-cli"]

    def sent(found: CommandAgent, *messages: Message, thread: Thread | None = None) -> tuple[Message, ...]:
        return unseen(found, Request("m", messages, 256, thread=thread))

    assert sent(codex, rules, first) == (first,)
    assert sent(codex, rules, first, answer, more) == (first, answer, more)
    assert sent(codex, rules, first, answer, more, thread=thread) == (more,)
    assert sent(codex, rules, first, thread=thread) == (first,)
    assert sent(codex, rules, first, answer, thread=thread) == (answer,)
    forgetful = replace(gemini, resume=())
    assert sent(forgetful, rules, first, answer, more, thread=thread) == (first, answer, more)
    assert sent(made(system="prompt"), rules, first) == (rules, first)
    assert launched(made(system="prompt", argv=["--s={{ system }}"]), request()).argv == ("--s=",)


# -- output ------------------------------------------------------------------------------------------

KEYS = """
type item text part result is_error response error message usage tokens stats models m total_cost_usd modelUsage
inputTokens input output cached stop_reason session_id thread_id code data name
"""
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS.split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KINDS = st.sampled_from(["turn.completed", "turn.failed", "error", "item.completed", "result", "text", "step_finish"])
RECORD = st.dictionaries(st.text(max_size=4), VALUE, max_size=3) | st.builds(
    lambda kind, more: {**(more if isinstance(more, dict) else {}), "type": kind}, KINDS, VALUE
)
OUTPUT = st.text(max_size=80) | st.lists(RECORD, max_size=5).map(lambda all: "\n".join(map(json.dumps, all)))


@pytest.mark.wide
@given(name=st.sampled_from(NAMES), out=OUTPUT, err=OUTPUT, code=st.integers(-15, 255), resumed=st.booleans())
def test_whatever_is_printed_is_an_answer_or_an_error(
    name: str, out: str, err: str, code: int, resumed: bool
) -> None:
    thread = Thread("abc", 5, 5, 5) if resumed else None
    found = outcome(AGENTS[name], request(thread=thread, keep=True), ProcessResult(out, err, code))
    if isinstance(found, Response):
        assert found.text.strip()
    else:
        assert found.message and "\n" not in found.message
    if found.usage:
        assert min(found.usage.input_tokens, found.usage.output_tokens, found.usage.cached_tokens) >= 0
        assert found.usage.cost is None or found.usage.cost >= 0


@given(text=st.text(min_size=1).filter(str.strip), counts=st.tuples(*[st.integers(1, 10**9)] * 3))
def test_every_text_comes_back_as_it_was(text: str, counts: tuple[int, int, int]) -> None:
    usage = dict(zip(("input_tokens", "output_tokens", "cached_input_tokens"), counts, strict=True))
    events = (
        {"type": "item.completed", "item": {"type": "agent_message", "text": text}},
        {"type": "turn.completed", "usage": usage},
    )
    out = "\n".join(json.dumps(event, ensure_ascii=False) for event in events)
    found = read(AGENTS["codex"], request(), ProcessResult(out, "", 0))
    assert found.text == text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    assert found.usage == Usage(*counts)


def test_true_is_not_one_and_one_is_not_true() -> None:
    asked, found = request(), AGENTS["claude"]
    for odd in (1, "true", None):
        out = json.dumps({"type": "result", "is_error": odd, "result": "x"})
        assert isinstance(outcome(found, asked, ProcessResult(out, "", 0)), BackendError)


def test_the_end_counts_only_without_an_error_after_it() -> None:
    text = {"type": "text", "part": {"text": "so far"}}
    end = {"type": "step_finish", "part": {"reason": "tool-calls", "cost": 1.5, "tokens": {"input": 3, "output": 2}}}
    error = {"type": "error", "error": {"name": "APIError", "data": {"statusCode": 429, "message": "slow"}}}
    out = "\n".join(map(json.dumps, (text, end, error)))
    found = outcome(AGENTS["opencode"], request(), ProcessResult(out, "", 1))
    assert isinstance(found, BackendError) and found.fault is Fault.RATE_LIMITED
    assert found.text == "so far" and found.usage == Usage(3, 2, 0, 1.5)
    assert outcome(
        AGENTS["opencode"], request(), ProcessResult("\n".join(map(json.dumps, (error, text, end))), "", 1)
    ) == (Response("so far", usage=Usage(3, 2, 0, 1.5)))


def test_unknown_cost_is_not_zero() -> None:
    end = {"type": "step_finish", "part": {"reason": "stop", "tokens": {"input": 3, "output": 2}}}
    out = "\n".join(map(json.dumps, ({"type": "text", "part": {"text": "x"}}, end)))
    found = read(AGENTS["opencode"], request(), ProcessResult(out, "", 0))
    assert found.usage == Usage(3, 2, 0, None)
    assert read(AGENTS["opencode"], request(), ProcessResult(out.replace("tokens", "t"), "", 0)).usage is None


def test_text_is_an_answer_only_with_exit_code_0() -> None:
    found = made(causes=[{"words": "429", "fault": "rate-limited"}], exits={"7": "denied"})
    assert isinstance(outcome(found, request(), ProcessResult("half", "", 0)), Response)
    for ended, fault in (
        (ProcessResult("half", "429\n", 1), Fault.RATE_LIMITED),
        (ProcessResult("half", "", 7), Fault.DENIED),
        (ProcessResult("half", "", -9), Fault.CRASHED),
        (ProcessResult(" \n", "", 0), Fault.EMPTY),
    ):
        error = outcome(found, request(), ended)
        assert isinstance(error, BackendError) and error.fault is fault


# -- what the synthesis is told -----------------------------------------------------------------------


@pytest.mark.parametrize(("voices", "vendors"), [(3, 1), (5, 3), (2, 2)])
def test_the_synthesis_learns_how_many_makers_and_not_which(voices: int, vendors: int) -> None:
    text = LIBRARY.render("dispatch/multi-model", {"voices": voices, "vendors": vendors})
    assert text == LIBRARY.render("dispatch/multi-model", {"voices": [{}] * voices, "vendors": vendors})
    assert str(voices) in text and (vendors == 1 or f"{vendors} independent makers" in text)
    assert "counts once" in text
    table = strict_yaml.load((PACKAGED / "dispatch/vendors.yaml").read_text())
    assert isinstance(table, dict) and isinstance(table["names"], dict)
    assert not [name for name in (*table["names"].values(), *NAMES) if str(name) in text.lower().split()]


def test_a_single_voice_agrees_with_nobody() -> None:
    assert LIBRARY.render("dispatch/multi-model", {"voices": 1, "vendors": 1}) == ""
