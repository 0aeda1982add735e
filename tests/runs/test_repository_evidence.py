"""The repository as evidence, as real processes: a look around, tools, citations that code checks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.conftest import A, Desk
from tests.support.answers import Answer, RequestInfo, agent_text, synthesis_text
from tests.support.harness import exchanges, tree
from tests.support.provider import Fault, Provider, ToolCall

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


@pytest.mark.parametrize("kept", [True, False], ids=["signed", "a gateway loses the signature"])
def test_a_provider_that_wants_its_signature_back_with_a_use_of_tools(
    checkout: Desk, provider: Provider, kept: bool
) -> None:
    """Gemini refuses the next round otherwise. Then the voice answers from what it has seen, and people are told."""
    use = {"id": "u1", "type": "function", "function": {"name": "search", "arguments": '{"text": "heappush"}'}}
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}} if kept else {}
    asked = {"choices": [{"message": {"tool_calls": [use | signed]}, "finish_reason": "tool_calls"}]}
    missing = {"error": {"message": "Function call is missing a thought_signature in functionCall parts."}}

    def script(info: RequestInfo) -> Answer | Fault | None:
        uses = [call for message in info.body["messages"] for call in message.get("tool_calls", ())]
        if info.kind != "agent" or not (uses or info.body.get("tools")):
            return None
        if not uses:
            return Fault(status=200, body=asked)
        return None if all("extra_content" in call for call in uses) else Fault(status=400, body=missing)

    provider.script = script
    done = checkout("think", "--turns", "1", *A, "How does the queue push a job?").ok()
    voices = {info.call: info for info in provider.calls if info.kind == "agent"}
    assert len(voices) > 1 and all("heapq.heappush(HEAP, item)" in info.prompt for info in voices.values())
    assert done.err.count("refuses tools: its voices cannot look") == (not kept)
    assert all((checkout.session() / f"{call}.md").exists() for call in voices)


# -- further files ----------------------------------------------------------------------------------

TURNS = ("t1", "t2", "t3")
FOCUS = "whether settle_invoice in src/billing.py rounds half cents"


@pytest.fixture
def large(checkout: Desk) -> Desk:
    """The same repository with two files that are too long for the context."""
    for name, what in (("billing", "invoice"), ("reports", "report")):
        parts = [f"def step_{number}(x):\n    return x + {number}\n" for number in range(1500)]
        parts.insert(
            700, f"def settle_{what.lower()}(cents):\n    # {name} rounds half cents\n    return int(cents + 0.5)\n"
        )
        checkout.write(f"src/{name}.py", "\n\n".join(parts))
    return checkout


def focusing(info: RequestInfo) -> Answer | None:
    """The first turn asks for a look at billing, the second at nothing that the repository has."""
    if info.call == "t1-synthesis":
        return Answer(synthesis_text(focus=FOCUS, tensions=["Rounding"], confidence=0.5))
    if info.call == "t2-synthesis":
        return Answer(synthesis_text(focus="which season suits Paris", tensions=["Rounding"], confidence=0.5))
    return None


def test_a_turn_with_a_focus_of_its_own_is_shown_further_files(large: Desk, provider: Provider) -> None:
    provider.script = focusing
    done = large("think", "-v", "--turns", "3", *A, "How does the queue push a job?").ok()
    file = large.session() / "00-context-t2.md"
    assert "# billing rounds half cents" in file.read_text() and "src/queue.py" not in file.read_text()
    mark = '<context for="the focus of this turn">'
    marked = {turn: {mark in info.prompt for info in provider.calls if info.call[:2] == turn} for turn in TURNS}
    assert marked == {"t1": {False}, "t2": {True}, "t3": {False}}
    assert "further files of the repository for the focus: src/billing.py, " in done.err
    assert not (large.session() / "00-context-t3.md").exists()

    before, calls = tree(large.session()), len(provider.calls)
    file.unlink()
    (large.session() / "FINAL.md").unlink()
    large.write("src/billing.py", "")  # what was shown stays what was shown
    large("resume", "a").ok()
    assert tree(large.session()) == before and len(provider.calls) == calls

    large("fork", "a", "--turn", "3", "--session", "b").ok()
    assert (large.session("b") / file.name).read_bytes() == file.read_bytes()
    assert not [info for info in provider.calls[calls:] if info.call.startswith(("t1", "t2"))]


def test_another_focus_gets_other_files_and_the_old_ones_are_kept(large: Desk, provider: Provider) -> None:
    provider.script = focusing
    large("think", "--turns", "2", *A, "How does the queue push a job?").ok()
    synthesis = large.session() / "t1-synthesis.md"
    synthesis.write_text(
        synthesis.read_text().replace("settle_invoice in src/billing", "settle_report in src/reports")
    )
    large("resume", "a", "--yes").ok()
    assert "`src/reports.py`: " in (large.session() / "00-context-t2.md").read_text().partition("## ")[0]
    (old,) = large.session().glob("superseded/*/00-context-t2.md")
    assert "`src/billing.py`: " in old.read_text()
    assert "src/reports.py" in [info.prompt for info in provider.calls if info.call == "t2-synthesis"][-1]


def test_no_context_means_no_further_files(large: Desk, provider: Provider) -> None:
    provider.script = focusing
    large("think", "--turns", "2", "--no-context", *A, "How does the queue push a job?").ok()
    assert "# billing rounds" not in "".join(info.prompt for info in provider.calls)
    assert not list(large.session().glob("00-context-t*"))


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
    assert [bool(info.body.get("tools")) for info in mine] == [True, True, False]
    answers = [m["content"] for m in mine[-1].body["messages"] if m["role"] == "tool"]
    assert len(answers) == 8 and sum("Refused" in answer for answer in answers) == 3
    told = "Your looks into the repository are used up: 5 of 5 requests, in 2 rounds."
    assert [told in answer for answer in answers] == [False] * 7 + [True] and "Answer now" in answers[-1]
    assert not any(told in str(info.body) for info in mine[:-1])
    provider.script = looking(*([wish("list")] for _ in range(9)))
    checkout("quick", "--session", "b", "How does the queue push a job?").ok()
    mine = [info for info in provider.calls if info.call == "t1-critic"][-4:]
    assert [bool(info.body.get("tools")) for info in mine] == [True, True, True, False]
    assert "used up: 3 of 5 requests, in 3 rounds." in mine[-1].body["messages"][-1]["content"]


def test_a_deep_deliberation_looks_more_often(checkout: Desk, provider: Provider) -> None:
    provider.script = looking(*([wish("list"), wish("search", pattern="push")] for _ in range(9)))
    checkout("deep", "--turns", "1", *A, "How does the queue push a job?").ok()
    mine = [info for info in provider.calls if info.call == "t1-critic"]
    assert [bool(info.body.get("tools")) for info in mine] == [*[True] * 6, False]
    assert "at most 12 requests in\n6 rounds" in mine[0].prompt
    answers = [m["content"] for m in mine[-1].body["messages"] if m["role"] == "tool"]
    assert len(answers) == 12 and "Refused" not in str(answers) and "12 of 12 requests, in 6 rounds" in answers[-1]


def test_a_model_that_only_ever_looks_is_a_missing_voice(checkout: Desk, provider: Provider) -> None:
    def script(info: RequestInfo) -> Answer | None:
        return Answer(tool_calls=(wish("list"),)) if info.call == "t1-critic" else None

    provider.script = script
    checkout("quick", *A, "How does the queue push a job?").ok()
    mine = [info for info in provider.calls if info.call == "t1-critic"]
    assert [bool(info.body.get("tools")) for info in mine] == [True, True, True, False, False]
    assert "t1-critic" in checkout("show", "a").ok().out
    assert "missing_voices: ['t1-critic: empty" in (checkout.session() / "FINAL.yaml").read_text()


def test_a_model_that_knows_no_tools_is_asked_without(checkout: Desk, provider: Provider) -> None:
    from tests.support.faults import Fault

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
        {"text": "It imports.", "evidence": ["Queue.py:1"]},
    ],
)


def test_citations_are_checked_and_marked_everywhere(checkout: Desk, provider: Provider) -> None:
    provider.script = lambda info: Answer(CITING) if info.call == "t1-critic" else None
    done = checkout("quick", "--json", *A, "How does the queue push a job?").ok()
    artifact = (checkout.session() / "t1-critic.md").read_text()
    assert artifact.count("verified: true") == 1 and artifact.count("verified: false") == 3
    assert artifact.count("exists: true") == 1 and "path: src/queue.py" in artifact
    (synthesis,) = [info.prompt for info in provider.calls if info.call == "t1-synthesis"]
    assert "✓" in synthesis and synthesis.count("✗ (") == 2 and "Queue.py:1 ○ (found as src/queue.py)" in synthesis
    assert "A ○: the line exists, but no words were quoted" in synthesis
    (final,) = [info.prompt for info in provider.calls if info.kind == "final"]
    assert "src/worker.py:9" in final
    text = (checkout.session() / "FINAL.md").read_text()
    assert (
        "Citations: 1 of 4 verified (✓, the quoted words stand there), 1 where the line exists (○, no words were "
        "quoted), 2 not found (✗).\n\n- ✗ `"
    ) in text
    assert "✗ `src/worker.py:9`" in text
    keys = (checkout.session() / "FINAL.yaml").read_text()
    assert "citations:\n  verified: 1\n  exists: 1\n  unverified:" in keys
    assert (done.json["verified"], done.json["exists"], len(done.json["unverified"])) == (1, 1, 2)
    checkout("report", "a").ok()
    page = (checkout.session() / "report.html").read_text()
    assert "1 of 4 verified; of 1 more the line exists" in page and page.count("○ line exists") >= 1


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
