"""The repository as evidence, as real processes: a look around, tools, citations that code checks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.answers import Answer, RequestInfo, agent_text
from tests.conftest import A, Desk
from tests.harness import exchanges, tree
from tests.provider import Provider, ToolCall

Script = Callable[[RequestInfo], Answer | None]


@pytest.fixture
def checkout(cdo: Desk) -> Desk:
    """A desk in a small repository."""
    cdo.write("src/queue.py", "import heapq\n\n\ndef push(item):\n    heapq.heappush(HEAP, item)\n")
    cdo.write("README.md", "# Queue\n\nA queue of jobs.\n")
    cdo.write(".gitignore", "tmp/\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Begin"],
    ):
        subprocess.run(
            ["git", *words], cwd=cdo.path, check=True, env={"PATH": "/usr/bin:/bin", "HOME": str(cdo.path)}
        )
    return cdo


def wish(name: str, **arguments: object) -> ToolCall:
    return ToolCall(f"id-{name}", name, json.dumps(arguments))


def looking(*rounds: list[ToolCall]) -> Script:
    """A model whose voices use tools so often before they answer."""

    def script(info: RequestInfo) -> Answer | None:
        used = sum(message["role"] == "tool" for message in info.body["messages"])
        answered = sum(bool(message.get("tool_calls")) for message in info.body["messages"])
        if info.kind == "agent" and info.body.get("tools") and answered < len(rounds):
            return Answer(tool_calls=tuple(rounds[answered]))
        return Answer(agent_text(f"After {used} looks: stage it.")) if info.kind == "agent" else None

    return script


# -- looking around --------------------------------------------------------------------------------


def test_a_checkout_is_looked_at_without_being_asked(checkout: Desk, provider: Provider) -> None:
    checkout("think", "--turns", "1", *A, "How does the queue push a job?").ok()
    text = (checkout.session() / "00-context.md").read_text()
    assert "4| def push(item):" in text and "A queue of jobs." in text and "Begin" in text
    assert all("4| def push(item):" in info.prompt for info in provider.calls if info.kind == "agent")


def test_no_context_means_none_and_no_tools_either(checkout: Desk, provider: Provider) -> None:
    checkout("think", "--turns", "1", "--no-context", *A, "How does the queue push a job?").ok()
    assert "def push" not in "".join(info.prompt for info in provider.calls)
    assert not any(info.body.get("tools") for info in provider.calls)


# -- tools -----------------------------------------------------------------------------------------


def test_a_voice_may_look_and_its_looks_are_recorded_and_never_repeated(checkout: Desk, provider: Provider) -> None:
    provider.script = looking([wish("search", pattern="heappush")], [wish("read", path="src/queue.py", start=4)])
    checkout("quick", *A, "How does the queue push a job?").ok()
    first = [info for info in provider.calls if info.call == "t1-critic"]
    assert [bool(info.body.get("tools")) for info in first] == [True, True, True]
    answers = [m["content"] for m in first[-1].body["messages"] if m["role"] == "tool"]
    assert "src/queue.py" in answers[0] and "heapq.heappush(HEAP, item)" in answers[1]
    assert "After 2 looks" in (checkout.session() / "t1-critic.md").read_text()
    before, calls = tree(checkout.session()), len(provider.calls)
    (checkout.session() / "FINAL.md").unlink()
    (checkout.session() / "t1-critic.md").unlink()
    checkout("resume", "a").ok()
    assert tree(checkout.session()) == before and len(provider.calls) == calls


def test_looks_are_capped_by_rounds_and_by_requests(checkout: Desk, provider: Provider) -> None:
    many = [ToolCall(f"n{number}", "list", "{}") for number in range(4)]
    provider.script = looking(many, many, many, many, many)
    checkout("quick", *A, "How does the queue push a job?").ok()
    mine = [info for info in provider.calls if info.call == "t1-critic"]
    assert [bool(info.body.get("tools")) for info in mine] == [True, True, True, False]
    answers = [m["content"] for m in mine[-1].body["messages"] if m["role"] == "tool"]
    assert len(answers) == 12 and sum("Refused" in answer for answer in answers) == 7


def test_a_model_that_only_ever_looks_is_a_missing_voice(checkout: Desk, provider: Provider) -> None:
    def script(info: RequestInfo) -> Answer | None:
        return Answer(tool_calls=(wish("list"),)) if info.call == "t1-critic" else None

    provider.script = script
    checkout("quick", *A, "How does the queue push a job?").ok()
    mine = [info for info in provider.calls if info.call == "t1-critic"]
    assert [bool(info.body.get("tools")) for info in mine] == [True, True, True, False, False]
    assert "t1-critic" in checkout("show", "a").ok().out
    assert "missing_voices: ['t1-critic: empty" in (checkout.session() / "FINAL.md").read_text()


def test_a_model_that_knows_no_tools_is_asked_without(checkout: Desk, provider: Provider) -> None:
    from tests.faults import Fault

    provider.script = lambda info: Fault(status=400) if info.body.get("tools") else None
    checkout("quick", *A, "How does the queue push a job?").ok()
    mine = [bool(info.body.get("tools")) for info in provider.calls if info.call == "t1-critic"]
    assert mine == [True, False]
    last = [info for info in provider.calls if info.call == "t1-critic"][-1]
    assert "You may look into the repository" not in last.prompt


def test_a_run_that_was_cut_off_between_look_and_answer_goes_on_there(checkout: Desk, provider: Provider) -> None:
    provider.script = looking([wish("read", path="src/queue.py")])
    checkout("quick", "--max-calls", "2", *A, "How does the queue push a job?").failed(5)
    looked = [record["call"] for record in exchanges(checkout.session()) if "tool_calls" in record["response"]]
    checkout("resume", "a", "--max-calls", "99").ok()
    asked = [(info.call, info.attempt) for info in provider.calls]
    assert looked and len(asked) == len(set(asked))


# -- citations -------------------------------------------------------------------------------------

CITING = agent_text(
    "It pushes onto a heap.",
    claims=[
        {"text": "It is a heap.", "evidence": ['src/queue.py:4 "def push(item)"']},
        {"text": "It is locked.", "evidence": ['src/queue.py:4 "with LOCK"']},
        {"text": "There is a worker.", "evidence": ["src/worker.py:9"]},
    ],
)


def test_citations_are_checked_and_marked_everywhere(checkout: Desk, provider: Provider) -> None:
    provider.script = lambda info: Answer(CITING) if info.call == "t1-critic" else None
    done = checkout("quick", "--json", *A, "How does the queue push a job?").ok()
    artifact = (checkout.session() / "t1-critic.md").read_text()
    assert artifact.count("verified: true") == 1 and artifact.count("verified: false") == 2
    (synthesis,) = [info.prompt for info in provider.calls if info.call == "t1-synthesis"]
    assert "✓" in synthesis and synthesis.count("✗ (") == 2
    (final,) = [info.prompt for info in provider.calls if info.kind == "final"]
    assert "src/worker.py:9" in final
    text = (checkout.session() / "FINAL.md").read_text()
    assert "Citations: 1 of 3 were found in the repository as cited." in text
    assert "✗ `src/worker.py:9`" in text
    assert done.json["verified"] == 1 and len(done.json["unverified"]) == 2


def test_what_was_found_stays_found_when_the_files_change_later(checkout: Desk, provider: Provider) -> None:
    provider.script = lambda info: Answer(CITING) if info.call == "t1-critic" else None
    checkout("quick", *A, "How does the queue push a job?").ok()
    before, calls = tree(checkout.session()), len(provider.calls)
    checkout.write("src/queue.py", "")
    (checkout.session() / "t1-critic.md").unlink()
    checkout("resume", "a").ok()
    assert tree(checkout.session()) == before and len(provider.calls) == calls


def test_a_voice_that_cites_nothing_leaves_no_word_about_citations(checkout: Desk) -> None:
    checkout("quick", *A, "How does the queue push a job?").ok()
    assert "citations" not in (checkout.session() / "FINAL.md").read_text().lower()


@pytest.mark.slow
def test_tools_work_through_litellm_too(checkout: Desk, provider: Provider) -> None:
    """The Messages protocol carries uses and results of tools as blocks of content."""

    def script(info: RequestInfo) -> Answer | None:
        if info.kind != "agent":
            return None
        blocks = [
            block for message in info.body["messages"] for block in message["content"] if isinstance(block, dict)
        ]
        if not any(block.get("type") == "tool_result" for block in blocks):
            return Answer(tool_calls=(wish("read", path="src/queue.py"),))
        return Answer(agent_text("Seen." if "heapq.heappush" in json.dumps(blocks) else "Blind."))

    provider.script = script
    desk = checkout.having(ANTHROPIC_API_KEY="x-test-key-654321", ANTHROPIC_API_BASE=provider.url)
    desk("quick", "-m", "anthropic/claude-sonnet-4-5", *A, "How does the queue push a job?").ok()
    assert "Seen." in (checkout.session() / "t1-critic.md").read_text()
    (first, second) = [info for info in provider.calls if info.call == "t1-critic"]
    assert {tool["name"] for tool in first.body["tools"]} == {"list", "read", "search"}
    assert second.attempt == 2
