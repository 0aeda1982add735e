"""`cdo mcp` from outside: the SDK's client over stdio, the real server, real runs against a provider on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from cdo.session.records import read_session
from tests.conftest import Desk, explained
from tests.runs.test_mission import told
from tests.support.cabal_team import REQUEST, question
from tests.support.harness import QUESTION, exchanges, wait_for
from tests.support.mcp_clients import Agent, connected
from tests.support.provider import Provider

DECISION = "Stage it: build the reversible half now, and decide on the rest when the figures are in."
Steps = Callable[[Agent], Coroutine[Any, Any, None]]


def with_agent(steps: Steps, desk: Desk, *options: str, **more: Any) -> None:
    """Connect to a server of its own and take the steps."""

    async def main() -> None:
        async with connected(desk, *options, **more) as agent:
            await steps(agent)

    asyncio.run(main())


def records(desk: Desk) -> list[Path]:
    """The files in which the server keeps the runs that it began."""
    return sorted((desk.path.parent / "data" / "client-runs").glob("*/*.json"))


def process_of(desk: Desk) -> int:
    """The process of the only run."""
    (record,) = records(desk)
    return int(json.loads(record.read_text())["pid"])


def lives(pid: int) -> bool:
    """True if a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


# -- start and poll --------------------------------------------------------------------------------


def test_a_client_without_tasks_starts_and_polls(cdo: Desk, provider: Provider) -> None:
    cdo.write("docs/plan.md", "# Plan\n\nSplit after the audit in May.\n")

    async def steps(agent: Agent) -> None:
        begun = await agent.begin(QUESTION, preset="think", evidence=["docs/plan.md"], models=["openai/gpt-4.1"])
        session = begun["session"]
        assert set(begun) >= {"session", "status", "message"} and begun["status"] in ("working", "completed")
        ended = await agent.settled(session)
        assert ended["status"] == "completed" and ended["cost"] > 0
        final = await agent.call("result", session=session)
        assert DECISION in final and not final.startswith("---")
        assert (await agent.client.read_resource(ended["final"])).contents[0].text.endswith(f"{final}\n")  # type: ignore[union-attr]
        voice = await agent.client.read_resource(f"cdo://sessions/{session}/t1-critic.md")
        assert "position:" in voice.contents[0].text  # type: ignore[union-attr]
        assert await agent.call("decide", question="Cookies?") == DECISION
        rows = json.loads(await agent.call("list"))
        assert [row["problem"] for row in rows] == ["Cookies?", QUESTION]
        (hit,) = json.loads(await agent.call("search_decisions", query="cookies"))
        assert hit["decision"] == DECISION and hit["where"] == "problem"
        prompt = await agent.client.get_prompt("arch", {"question": "Which {store}?"})
        assert "exec arch" in prompt.messages[0].content.text  # type: ignore[union-attr]
        assert "Which {store}?" in prompt.messages[0].content.text  # type: ignore[union-attr]
        assert {prompt.name for prompt in (await agent.client.list_prompts()).prompts} == {
            "think", "deep", "arch", "debug",
        }  # fmt: skip
        # Ids of tasks are for those who declare them: not one word of what this client was told is one.
        task = records(cdo)[0].stem
        assert task not in json.dumps([begun, ended, rows])
        assert (await agent.error("tasks/get", task)).code == -32021

    with_agent(steps, cdo)
    voices = [info for info in provider.calls if info.call == "t1-critic"]
    assert "Split after the audit in May." in voices[0].prompt and voices[0].body["model"] == "gpt-4.1"


HELLO = (
    json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "raw", "version": "1"},
            },
        }
    ),
    json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
)


def most_memory(process: subprocess.Popen[str]) -> float:
    """How many megabytes a process held at most."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[0]) / 1024


def test_stdout_carries_the_protocol_only_and_what_is_no_message_is_refused(cdo: Desk) -> None:
    """A request gets an error if its id can be read, wherever it stands; nothing of it takes much memory."""
    call = '{"jsonrpc": "2.0", "id": %s, "method": "tools/call", "params": {"name": "list", "arguments": %s}}'
    lines = [
        *HELLO,
        "no JSON at all",
        "[" * 100_000,
        call % (2, '{"x": "' + "x" * (9 * 2**20) + '"}'),
        '{"method": "tools/call", "params": {"x": "'
        + "x" * (9 * 2**20)
        + '", "id": 99}, "jsonrpc": "2.0", "id": "é"}',
        call % (3, '{"x": [' + "[]," * 600_000 + "0]}"),
        call % (4, '{"a":' * 2000 + "1" + "}" * 2000),
        call % (5, '{"query": "\\ud800"}'),
        call % (6, '{"x": "' + "[{,:" * 100_000 + '"}'),
    ]
    with cdo.start("mcp", stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.flush()
        answers = {(answer := json.loads(process.stdout.readline()))["id"]: answer for _ in range(7)}
        used = most_memory(process)
        process.stdin.close()
        assert process.stdout.read() == "" and process.wait(30) == 0
    assert answers[1]["result"]["capabilities"]["tools"] is not None
    refused = {id: answer["error"]["message"] for id, answer in answers.items() if "error" in answer}
    assert set(refused) == {2, "é", 3, 4, 5} and "not valid JSON" in refused[5]
    assert all("10,000 values" in text for id, text in refused.items() if id != 5)
    assert answers[6]["result"]["content"][0]["text"] == "[]", "what stands in a text is no value"
    assert used < 200


def test_a_client_that_reads_no_answer_is_not_read_from(cdo: Desk) -> None:
    ask = b'{"jsonrpc": "2.0", "id": 5, "method": "tools/list"}\n' * 100
    with cdo.start("mcp", stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write("\n".join(HELLO) + "\n")
        process.stdin.flush()
        fd, taken, blocked = process.stdin.fileno(), 0, 0
        os.set_blocking(fd, False)
        while blocked < 60 and taken < 2_000_000:  # a pipe holds 65,536 bytes
            try:
                taken, blocked = taken + os.write(fd, ask), 0
            except BlockingIOError:
                blocked += 1
                time.sleep(0.1)
        assert taken < 2_000_000 and process.poll() is None and most_memory(process) < 250
        process.stdin.close()
        assert process.wait(60) == 0, "nobody reads, and nobody writes any more"


def test_without_the_extra_one_line_names_it(bare: Desk) -> None:
    code = "import sys; sys.modules['mcp'] = None\nfrom cdo.cli.main import run\nrun(['mcp'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare.environment(), cwd=bare.path, capture_output=True, text=True
    )
    assert done.returncode == 4 and done.stdout == ""
    assert done.stderr.splitlines() == [
        "cdo: cdo mcp needs the package mcp, which is an extra.", "     pip install 'cdo-deliberate[mcp]'.",
    ]  # fmt: skip


# -- tasks -----------------------------------------------------------------------------------------


def test_the_plans_of_a_task_are_forms_and_its_result_is_that_of_the_tool(cdo: Desk, provider: Provider) -> None:
    async def steps(agent: Agent) -> None:
        task = await agent.task("deliberate", question=QUESTION, preset="hitl,think")
        id = task["taskId"]
        assert task["status"] == "working" and len(id) == 32 and task["ttlMs"] is None
        assert records(cdo)[0].stem == id, "it is on disk before the client gets it"
        waiting = await agent.followed(id, "input_required")
        ((key, asked),) = waiting["inputRequests"].items()
        assert asked["method"] == "elicitation/create" and "first-principles" in asked["params"]["message"]
        assert asked["params"]["requestedSchema"]["properties"]["decision"]["enum"] == ["go"]
        assert provider.calls == []
        # What was not asked is ignored; what cannot be taken is refused, and the question stays.
        await agent.ask("tasks/update", id, inputResponses={"t9-plan.1": {"action": "accept", "content": {}}})
        wrong = await agent.error(
            "tasks/update", id, inputResponses={key: {"action": "accept", "content": {"decision": "done"}}}
        )
        assert wrong.code == -32602 and "`go`" in wrong.message and provider.calls == []
        content = {"decision": "go", "note": "mind the users in Peru"}
        await agent.ask("tasks/update", id, inputResponses={key: {"action": "accept", "content": content}})
        again = await agent.followed(id, "input_required")
        ((other, asked),) = again["inputRequests"].items()
        assert other != key and asked["params"]["requestedSchema"]["properties"]["decision"]["enum"] == ["go", "done"]
        await agent.ask("tasks/update", id, inputResponses={key: {"action": "accept", "content": content}})
        assert list((await agent.ask("tasks/get", id))["inputRequests"]) == [other], "an old key is no answer"
        done = {"decision": "done"}
        await agent.ask("tasks/update", id, inputResponses={other: {"action": "accept", "content": done}})
        ended = await agent.followed(id, "completed")
        assert ended["result"]["isError"] is False and DECISION in ended["result"]["content"][0]["text"]

    with_agent(steps, cdo, tasks=True)
    assert all("mind the users in Peru" in info.prompt for info in provider.calls if info.kind == "agent")
    assert {info.call[:2] for info in provider.calls if info.kind == "agent"} == {"t1"}
    (session,) = cdo.sessions()
    assert "budget: null" not in (session / "session.yaml").read_text(), "agreeing to plans is no leave to spend"


def test_who_declines_gives_the_task_up_for_good(cdo: Desk, provider: Provider) -> None:
    async def steps(agent: Agent) -> None:
        id = (await agent.task("deliberate", question=QUESTION, preset="hitl,think"))["taskId"]
        (key,) = (await agent.followed(id, "input_required"))["inputRequests"]
        await agent.ask("tasks/update", id, inputResponses={key: {"action": "decline"}})
        assert (await agent.ask("tasks/get", id))["status"] == "cancelled"

    async def later(agent: Agent) -> None:
        (record,) = records(cdo)
        assert (await agent.ask("tasks/get", record.stem))["status"] == "cancelled"
        (session,) = cdo.sessions()
        said = await agent.refused("answer", session=session.name.removeprefix("cdo-"), answer="go")
        assert "cancelled" in said

    with_agent(steps, cdo, tasks=True)
    with_agent(later, cdo, tasks=True)
    assert provider.calls == []
    cdo("resume").failed(6, "t2-plan.yaml")


def test_the_question_of_a_mission_is_a_form_and_its_answer_goes_on(cdo: Desk, provider: Provider) -> None:
    provider.script = told({"r1-plan": question("Cookies?", "yes", "no")})

    async def steps(agent: Agent) -> None:
        id = (await agent.task("deliberate", question=REQUEST, preset="cabal", budget=4))["taskId"]
        waiting = await agent.followed(id, "input_required")
        ((key, asked),) = waiting["inputRequests"].items()
        assert asked["method"] == "elicitation/create" and asked["params"]["message"] == "Cookies?"
        fields = asked["params"]["requestedSchema"]["properties"]
        assert fields["choice"]["enum"] == ["yes", "no"] and fields["answer"]["type"] == "string"
        empty = await agent.error("tasks/update", id, inputResponses={key: {"action": "accept", "content": {}}})
        assert "no answer" in empty.message
        provider.hold()
        content = {"choice": "no"}
        await agent.ask("tasks/update", id, inputResponses={key: {"action": "accept", "content": content}})
        wait_for(lambda: provider.named("r1-plan-2"))
        going = await agent.ask("tasks/get", id)
        assert going["status"] == "working" and "inputRequests" not in going
        await agent.ask("tasks/cancel", id)
        provider.release()

    with_agent(steps, cdo, tasks=True)
    answers = [record["answer"] for record in read_session(cdo.sessions()[0]) if record["kind"] == "answer"]
    assert answers == ["no"]
    assert "Cookies?" in provider.named("r1-plan-2")[0].prompt


def test_a_client_that_shows_no_forms_answers_with_the_tool(cdo: Desk, provider: Provider) -> None:
    """A question of a mission: asked for in a status message, since this client could show no form."""
    provider.script = told({"r1-plan": question("Cookies?", "yes", "no")})

    async def steps(agent: Agent) -> None:
        id = (await agent.task("deliberate", question=REQUEST, preset="cabal", budget=4))["taskId"]
        (session,) = (path.name.removeprefix("cdo-") for path in cdo.sessions())
        waiting = await agent.settled(session)
        assert waiting["status"] == "input_required"
        assert (waiting["question"], waiting["options"]) == ("Cookies?", ["yes", "no"])
        task = await agent.ask("tasks/get", id)
        assert task["status"] == "working" and "`answer`" in task["statusMessage"] and "inputRequests" not in task
        assert "no option 3" in await agent.refused("answer", session=session, answer="3")
        provider.hold()
        await agent.call("answer", session=session, answer="2")
        wait_for(lambda: any(info.call == "r1-plan-2" for info in provider.calls))
        await agent.ask("tasks/cancel", id)
        provider.release()
        assert (await agent.followed(id, "cancelled"))["status"] == "cancelled"
        wait_for(lambda: not lives(process_of(cdo)))

    with_agent(steps, cdo, tasks=True, forms=False)
    answers = [record["answer"] for record in read_session(cdo.sessions()[0]) if record["kind"] == "answer"]
    assert answers == ["no"]


def test_a_run_outlives_its_server_and_the_next_one_finds_it(cdo: Desk, provider: Provider) -> None:
    provider.hold("t1-critic")
    ids: list[str] = []

    async def first(agent: Agent) -> None:
        ids.append((await agent.task("deliberate", question=QUESTION, preset="think"))["taskId"])
        wait_for(lambda: any(info.call == "t1-critic" for info in provider.calls))

    async def second(agent: Agent) -> None:
        assert lives(process_of(cdo))
        stands = await agent.ask("tasks/get", ids[0])
        assert stands["status"] == "working" and "turn 1: " in stands["statusMessage"]
        assert stands["lastUpdatedAt"] >= stands["createdAt"]
        provider.release()
        ended = await agent.followed(ids[0], "completed")
        assert DECISION in ended["result"]["content"][0]["text"]

    with_agent(first, cdo, tasks=True)
    with_agent(second, cdo, tasks=True)
    asked = [info.call for info in provider.calls]
    assert len(asked) == len(set(asked)), "nothing was asked twice"


def test_a_cancelled_run_stops_and_stays_cancelled(cdo: Desk, provider: Provider) -> None:
    provider.hold("t1-critic")

    async def steps(agent: Agent) -> None:
        id = (await agent.task("deliberate", question=QUESTION, preset="think"))["taskId"]
        wait_for(lambda: any(info.call == "t1-critic" for info in provider.calls))
        pid = process_of(cdo)
        await agent.ask("tasks/cancel", id)
        assert (await agent.ask("tasks/get", id))["status"] == "cancelled"
        wait_for(lambda: not lives(pid))
        await agent.ask("tasks/cancel", id)  # once more is no error
        provider.release()

    with_agent(steps, cdo, tasks=True)
    before = len(exchanges(cdo.sessions()[0]))
    assert before and not (cdo.sessions()[0] / "FINAL.md").exists()
    cdo("resume").ok()  # nothing is lost


def test_a_run_that_broke_off_is_a_failed_tool_and_not_a_failed_task(cdo: Desk, provider: Provider) -> None:
    async def steps(agent: Agent) -> None:
        id = (await agent.task("deliberate", question=QUESTION, preset="think", budget=0.02))["taskId"]
        ended = await agent.followed(id, "completed")
        assert ended["result"]["isError"] is True and "budget" in ended["result"]["content"][0]["text"]
        session = cdo.sessions()[0].name.removeprefix("cdo-")
        assert json.loads(await agent.call("status", session=session))["status"] == "failed"
        assert "has no result" in await agent.refused("result", session=session)

    with_agent(steps, cdo, tasks=True)


# -- what a client may not do ----------------------------------------------------------------------


def test_a_client_cannot_lift_what_the_person_allows(cdo: Desk, provider: Provider) -> None:
    async def usual(agent: Agent) -> None:
        assert "$5" in await agent.refused("deliberate", question=QUESTION, budget=6)
        for budget in (0, -1):
            await agent.refused("deliberate", question=QUESTION, budget=budget)

    async def dear(agent: Agent) -> None:
        """An estimate above what is left needs the person, who is not there."""
        said = await agent.refused("deliberate", question=QUESTION, preset="think")
        assert "may cost up to" in said and "Nothing was sent" in said
        assert "Nothing is left" in await agent.refused("deliberate", question=QUESTION, preset="hitl,think")

    async def capped(agent: Agent) -> None:
        """The cap of the server holds for all runs together: what one has cost is not there for the next."""
        assert "$0.30" in await agent.refused("decide", question=QUESTION, budget=0.31)
        assert await agent.call("decide", question=QUESTION, budget=0.3) == DECISION
        assert "$0.28" in await agent.refused("decide", question=QUESTION, budget=0.29)

    with_agent(usual, cdo)
    with_agent(dear, cdo, env={"CDO_ASK_ABOVE": "0"})
    assert provider.calls == [] and not cdo.sessions() and not records(cdo)
    with_agent(capped, cdo, "--max-budget", "0.3", "--out", "runs")
    assert len(list(cdo.path.glob("runs/cdo-*"))) == 1 and not cdo.sessions()


def test_hostile_requests_get_errors_and_change_nothing(cdo: Desk, provider: Provider, tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("a secret")
    cdo.write(".env", "KEY=1")
    (cdo.path / "link").symlink_to(outside)
    (cdo.path / "tmp").mkdir()
    (cdo.path / "tmp" / "cdo-elsewhere").symlink_to(tmp_path)
    cdo("hitl,think", "--session", "mine", QUESTION).failed(6)
    plan = (cdo.session("mine") / "t1-plan.yaml").read_text()

    async def steps(agent: Agent) -> None:
        paths = ("../secret.txt", str(outside), "link", ".env", ".git/config", "\0", "", "-c", "no/such", "x" * 5000)
        for path in paths:
            await agent.refused("deliberate", question=QUESTION, evidence=[path])
        for model in ("scripted:/etc/passwd", "local:/x.gguf", "--trust", "https://evil/x", "", "a\nb", "nobody/x"):
            await agent.refused("deliberate", question=QUESTION, models=[model])
        for preset in ("bd,think", "lev-exec", "think --trust", "--yes", "@/etc/passwd", "think why", "cabal --exec"):
            await agent.refused("deliberate", question=QUESTION, preset=preset)
        for text in ("", "  \n", "x" * 200_001):
            await agent.refused("deliberate", question=text)
        for session in ("../mine", "elsewhere", "/etc", "cdo-cdo-mine", "", "x" * 99, "mine/../mine", "\0"):
            await agent.refused("status", session=session)
            await agent.refused("result", session=session)
        # What a person began, only a person answers and stops; it can be looked at.
        assert json.loads(await agent.call("status", session="mine"))["status"] == "input_required"
        assert "A person began mine" in await agent.refused("answer", session="mine", answer="go")
        assert "A person began mine" in await agent.refused("cancel", session="mine")
        for file in ("session.yaml", "calls/0001.jsonl", "../x.md", "..%2Fx.md", "journal.jsonl", "%00"):
            with pytest.raises(MCPError):
                await agent.client.read_resource(f"cdo://sessions/mine/{file}")
        for id in ("", "a", "mine", "../../x", "A" * 32, "é" * 32, "x" * 201):
            for method in ("tasks/get", "tasks/cancel"):
                assert (await agent.error(method, id)).code == -32602
            assert (await agent.error("tasks/update", id, inputResponses={})).code == -32602
        assert json.loads(await agent.call("list"))[0]["session"] == "mine"

    with_agent(steps, cdo, tasks=True)
    assert provider.calls == [] and [path.name for path in cdo.sessions() if not path.is_symlink()] == ["cdo-mine"]
    assert (cdo.session("mine") / "t1-plan.yaml").read_text() == plan


def test_runs_and_requests_at_the_same_time_are_few_and_a_question_names_no_file(
    cdo: Desk, provider: Provider
) -> None:
    cdo.write("problem.md", "Should we read files?")
    provider.hold()

    async def steps(agent: Agent) -> None:
        for _ in range(4):
            await agent.begin("@problem.md", preset="quick")
        assert "under way" in await agent.refused("deliberate", question=QUESTION, preset="quick")
        session = json.loads(await agent.call("list"))[0]["session"]
        waits = {"session": session, "wait_seconds": 3}
        flood = await asyncio.gather(
            *(agent.client.call_tool("status", waits) for _ in range(80)), return_exceptions=True
        )
        busy = [error for error in flood if isinstance(error, MCPError) and error.code == -32000]
        assert len(busy) == 16 and sum(not isinstance(found, BaseException) for found in flood) == 64
        provider.release()
        for row in json.loads(await agent.call("list")):
            assert (await agent.settled(row["session"]))["status"] == "completed"

    with_agent(steps, cdo)
    assert {(path / "00-input.md").read_text() for path in cdo.sessions()} == {"@problem.md\n"}


# -- registration ----------------------------------------------------------------------------------


def test_a_registration_is_printed_or_written_beside_what_is_there(bare: Desk) -> None:
    desk = bare.having(OPENAI_API_KEY="x-test-key-123456", CDO_ASK_ABOVE="3", CDO_REVIEW="")
    home = desk.path.parent / "home"
    shown = desk("mcp", "--max-budget", "2", "install", "claude").ok().out
    assert shown.startswith("claude mcp add --scope=user cdo -- /") and shown.endswith(" mcp --max-budget 2\n")
    assert "[mcp_servers.cdo]" in desk("mcp", "install", "codex").ok().out
    assert not (home / ".codex").exists(), "nothing is written unasked"

    config = home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text('model = "m1" # mine\n')
    for _ in range(2):
        desk("mcp", "--max-budget", "2", "install", "codex", "--write").ok()
    text = config.read_text()
    assert text.startswith('model = "m1" # mine\n')
    server = tomllib.loads(text)["mcp_servers"]["cdo"]
    assert server["args"][-3:] == ["mcp", "--max-budget", "2"]
    assert server["env_vars"] == ["CDO_ASK_ABOVE", "OPENAI_API_KEY"] and "x-test-key" not in text
    explained(desk("mcp", "install", "codex", "--write"), 2, "another server called cdo")

    config = home / ".config" / "opencode" / "opencode.json"
    desk("mcp", "install", "opencode", "--write").ok()
    config.write_text(json.dumps({**json.loads(config.read_text()), "theme": "dark"}))
    desk("mcp", "install", "opencode", "--write").ok()
    found = json.loads(config.read_text())
    assert found["theme"] == "dark" and found["mcp"]["cdo"]["command"][-1] == "mcp"
    config.write_text("{// mine\n}")
    explained(desk("mcp", "install", "opencode", "--write"), 2, "is not valid")
    assert config.read_text() == "{// mine\n}"
    explained(desk("mcp", "install", "claude", "--write"), 4, "claude is not installed")
    explained(desk("mcp", "install", "vim"), 2, "claude, codex, opencode")


def test_the_end_of_a_server_is_no_failure(cdo: Desk) -> None:
    with cdo.start("mcp", stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write('{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_person_at_a_client_has_a_seat_and_is_not_waited_for_without_end(cdo: Desk, provider: Provider) -> None:
    async def steps(agent: Agent) -> None:
        id = (await agent.task("deliberate", question=QUESTION, preset="think", seat="anna"))["taskId"]
        waiting = await agent.followed(id, "input_required")
        ((key, asked),) = waiting["inputRequests"].items()
        fields = asked["params"]["requestedSchema"]
        assert list(fields["properties"]) == ["answer", "sure", "reasons", "objections", "change"]
        assert (
            fields["required"] == ["answer"] and "anna, what is your answer to turn 1?" in asked["params"]["message"]
        )
        unclear = {"answer": "Keep it whole.", "sure": "60 or 70"}
        wrong = await agent.error("tasks/update", id, inputResponses={key: {"action": "accept", "content": unclear}})
        assert "60 or 70" in wrong.message
        content = {"answer": "Keep it whole.", "sure": "80 %", "reasons": "- four people"}
        await agent.ask("tasks/update", id, inputResponses={key: {"action": "accept", "content": content}})
        again = await agent.followed(id, "input_required")
        assert next(iter(again["inputRequests"])) != key
        (session,) = (path.name.removeprefix("cdo-") for path in cdo.sessions())
        await agent.call("answer", session=session, answer="As before.")
        await agent.followed(id, "input_required", "completed")

    async def absent(agent: Agent) -> None:
        began = await agent.begin(QUESTION, preset="quick", seat="bert")
        ended = await agent.settled(began["session"])
        while ended["status"] == "input_required":  # the time is over when it is next looked at
            ended = await agent.settled(began["session"])
        assert ended["status"] == "completed"
        assert "bert did not answer turn 1" in await agent.call("result", session=began["session"])
        assert "mission" in await agent.refused("deliberate", question=REQUEST, preset="cabal", seat="bert")
        assert "not a seat of a person" in await agent.refused("deliberate", question=QUESTION, seat="../x")

    with_agent(steps, cdo, tasks=True)
    (session,) = cdo.sessions()
    prompts = {info.call: info.prompt for info in provider.calls}
    assert "Keep it whole." in prompts["t1-synthesis"] and "As before." in prompts["t2-synthesis"]
    assert "model: human:anna" in (session / "t1-practitioner.md").read_text()
    with_agent(absent, cdo.having(CDO_SEAT_WAIT="1s"))
