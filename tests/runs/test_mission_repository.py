"""Missions in a git repository, as real processes: what the team is shown, looks up and cites of it."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.conftest import A, Desk
from tests.runs import test_mission
from tests.runs.test_mission import files, told
from tests.runs.test_repository_evidence import checkout, large, wish
from tests.support.answers import Answer, RequestInfo, agent_text, final_text
from tests.support.cabal_team import (
    ALEX,
    DRAFT,
    ERRORS,
    JORDAN,
    LIMITED,
    assignment,
    bootstrap,
    collab,
    plan,
    product,
    question,
    review,
    todo_script,
    version,
    write,
)
from tests.support.faults import Fault
from tests.support.provider import Provider

__all__ = ["checkout", "large"]  # fixtures
TEAM = (*test_mission.TEAM, "--yes")  # with looks into the repository the estimate is above what is asked for
QUEUE = "Describe how the queue pushes a job, src/queue.py"
LINE = "4| def push(item):"
LOOKERS = {"bootstrap", "plan", "write", "review", "inspect", "reflect"}


def looking(call: str, then: str) -> Callable[[RequestInfo], Answer | str]:
    """A model that reads the queue in this call before it says `then`; the TODO team does the rest."""

    def script(info: RequestInfo) -> Answer | str:
        if info.call != call:
            return told({})(info) or ""
        if info.body.get("tools") and not any(message["role"] == "tool" for message in info.body["messages"]):
            return Answer(tool_calls=(wish("read", path="src/queue.py"),))
        return then

    return script


def step(info: RequestInfo) -> str:
    return info.call.split("-")[1]


def test_a_mission_in_a_checkout_is_shown_what_its_request_is_about(checkout: Desk, provider: Provider) -> None:
    provider.script = told({})
    shown = checkout(*TEAM, "--dry-run", QUEUE).ok().out
    assert "Would send 3 files" in shown and "agents may read further files of the repository" in shown
    assert "--no-context sends none" in shown and not provider.calls
    done = checkout(*TEAM, QUEUE).ok()
    assert "Sending 3 files" in done.err and "Warning" not in done.err
    seen = {step(info): LINE in info.prompt for info in provider.calls}
    assert seen == {name: name not in ("reflect", "present") for name in {*LOOKERS, "present"}}
    assert {step(info) for info in provider.calls if info.body.get("tools")} == LOOKERS
    assert "at most 8 requests in\n4 rounds" in next(info.prompt for info in provider.calls if step(info) == "write")


def test_a_mission_without_context_is_shown_no_file_and_gets_no_tools(checkout: Desk, provider: Provider) -> None:
    provider.script = told({})
    checkout(*TEAM, "--no-context", QUEUE).ok()
    assert not any("def push" in info.prompt or info.body.get("tools") for info in provider.calls)
    checkout(*TEAM, "--no-context", "-c", "src", QUEUE).failed(2, "--context and --no-context exclude each other")


def test_files_given_stand_beside_what_was_found(checkout: Desk, provider: Provider) -> None:
    checkout.write("docs/more.md", "# More\n\nJobs have a priority.\n")
    provider.script = told({})
    checkout(*TEAM, "-c", "docs/more.md", QUEUE).ok()
    write_ = next(info.prompt for info in provider.calls if step(info) == "write")
    assert "Jobs have a priority." in write_ and LINE in write_


def test_an_operative_looks_first_and_a_resume_does_not_look_again(checkout: Desk, provider: Provider) -> None:
    call = "r1-write-operative-1"
    provider.script = looking(call, write(version("p4", "Technical architecture", DRAFT)))
    checkout(*TEAM, QUEUE).ok()
    first, second = (info for info in provider.calls if info.call == call)
    (answer,) = (message["content"] for message in second.body["messages"] if message["role"] == "tool")
    assert "heapq.heappush(HEAP, item)" in answer and len(second.body["messages"]) > len(first.body["messages"])
    before, calls = files(checkout.session()), len(provider.calls)
    checkout.write("src/queue.py", "")
    for name in ("FINAL.md", f"{call}.md"):
        (checkout.session() / name).unlink()
    checkout("resume", "a").ok()
    assert files(checkout.session()) == before and len(provider.calls) == calls
    checkout("verify", "a").ok()


def test_a_model_that_refuses_tools_is_asked_without_and_told_of_once(checkout: Desk, provider: Provider) -> None:
    provider.script = lambda info: Fault(status=400) if info.body.get("tools") else todo_script(info)
    done = checkout(*TEAM, QUEUE).ok()
    assert done.err.count("refuses tools") == 1
    (asked,) = (info for info in provider.calls if info.call == "r2-inspect-p3" and not info.body.get("tools"))
    assert "You may look into the repository" not in asked.prompt
    assert "You can read what is shown here" in asked.prompt


def test_a_call_that_closes_under_a_cap_spends_nothing_of_the_reserve_on_looking(
    checkout: Desk, provider: Provider
) -> None:
    def always(info: RequestInfo) -> Answer | str:
        looks = step(info) == "inspect" and info.body.get("tools")
        return Answer(tool_calls=(wish("list"),)) if looks else todo_script(info)

    provider.script = always
    checkout(*TEAM, "--max-calls", "10", QUEUE).failed(3)
    closing = [info for info in provider.calls if re.fullmatch("r1-inspect-p[34]-2|r1-present", info.call)]
    assert closing and not any(info.body.get("tools") for info in closing)


RIGHT = 'src/queue.py:4 "def push(item)"'
WRONG = 'src/queue.py:4 "with LOCK"'
CITED = f"{LIMITED}\n\nA job goes on a heap ({RIGHT}), under a lock ({WRONG}), by src/worker.py:9."
REFUTED = (
    'This does not hold:\n- src/queue.py:4 "with LOCK": the words are not in the file\n'
    "- src/worker.py:9: no such file"
)


def test_citations_that_do_not_hold_are_told_to_all_who_see_them_and_stand_in_the_end(
    checkout: Desk, provider: Provider
) -> None:
    """The author in its next steps, the watchdog beside the version, the reader of FINAL.md."""
    early = looking("r1-write-operative-1", write(version("p4", "Technical architecture", f"{DRAFT}\n\n{WRONG}")))
    errors = version("p5", "Error handling", ERRORS)
    late = write(version("p4", "Technical architecture", CITED, "Adds rate limiting"), errors)
    doubted = review(collab("p4", f"The lock is missing, see {WRONG}", "concern", 6))
    script = {"r2-write-operative-1": late, "r1-review-operative-2": doubted}
    provider.script = lambda info: script.get(info.call) or early(info)
    checkout(*TEAM, QUEUE).ok()
    prompts = {info.call: info.prompt for info in provider.calls}
    assert REFUTED.partition("\n- src/worker")[0] in prompts["r1-inspect-p4"]
    assert "(code: its citation does not hold: src/queue.py:4" in prompts["r1-inspect-p4"]
    for call in ("r2-reflect-operative-1", "r2-write-operative-1"):
        assert 'src/queue.py:4 "with LOCK": the words are not in the file' in prompts[call], call
    assert "Of what you cited in your last reply, this does not hold" in prompts["r2-reflect-operative-2"]
    assert REFUTED in prompts["r2-inspect-p4"] and f"- {RIGHT}" not in prompts["r2-inspect-p4"]
    final = (checkout.session() / "FINAL.md").read_text()
    concern = next(line for line in final.splitlines() if "was accepted, and cites what does not hold" in line)
    assert "Technical Architecture" in concern and "src/queue.py:4" in concern and "src/worker.py:9" in concern
    assert "Technical Architecture, version 2: 2 citations of the repository do not hold" in final

    before, calls = files(checkout.session()), len(provider.calls)
    checkout.write("src/queue.py", "with LOCK\n" * 9)  # what was found stays what was found
    checkout.write("src/worker.py", "x\n" * 9)
    (checkout.session() / "FINAL.md").unlink()
    checkout("resume", "a").ok()
    assert files(checkout.session()) == before and len(provider.calls) == calls
    checkout("verify", "a").ok()
    checkout("replay", "a").ok()


def test_files_that_the_mission_makes_are_no_citations(checkout: Desk, provider: Provider) -> None:
    page = product("Page", "Content", path="app/index.html")
    guide = "# Guide\n\nThe title is set in app/index.html:3 and used in index.html:12, as in src/queue.py:99."
    provider.script = told({
        "bootstrap": bootstrap(initial_products=[page, product("Guide")]),
        "r0-bootstrap": bootstrap(initial_products=[page, product("Guide")]),
        "r1-plan": plan(assignment("p2", ALEX), assignment("p3", JORDAN)),
        "r1-write-operative-1": write(version("p2", "Page", "<p>See main.py:7 for more of what this page says.</p>")),
        "r1-write-operative-2": write(version("p3", "Guide", guide)),
        "r1-review-operative-1": review(), "r1-review-operative-2": review(),
    })  # fmt: skip
    checkout(*TEAM, "--rounds", "1", QUEUE)
    prompt = next(info.prompt for info in provider.calls if info.call == "r1-inspect-p3")
    assert "This does not hold:\n- src/queue.py:99: the file has 5 lines\n" in prompt
    assert "main.py:7:" not in prompt and "index.html:3:" not in prompt and "index.html:12:" not in prompt


def test_the_estimate_knows_of_tools(checkout: Desk) -> None:
    def high(*more: str) -> int:
        calls = checkout(*TEAM, "--dry-run", "--json", *more, QUEUE).ok().json["calls"]
        return int(calls[1])

    assert high() > 2 * high("--no-context")


def test_a_preview_of_a_prompt_says_what_the_prompt_says(checkout: Desk, provider: Provider) -> None:
    provider.script = told({})
    checkout(*TEAM, QUEUE).ok()
    shown = checkout("context", "p4", "--step", "write", *A).ok().out
    assert "You may look into the repository first" in shown and LINE in shown


# -- deliberations of a mission ---------------------------------------------------------------------

ABOUT_BILLING = "Does settle_invoice in src/billing.py round half cents?"
FAR = "# billing rounds half cents"  # stands in the middle of a file that is too long for the context
HELD, REFUSED = 'src/queue.py:4 "def push(item)"', 'src/reports.py:1 "with LOCK"'
REASON = "the words are not in the file"


def deciding(info: RequestInfo) -> Answer | str | None:
    """A mission with one Decision, whose voices read a file first and cite two places."""
    if not re.match(r"r\d+-[a-z]", info.call):
        looked = any(message["role"] == "tool" for message in info.body["messages"])
        if info.kind == "agent" and info.body.get("tools") and not looked:
            return Answer(tool_calls=(wish("read", path="src/reports.py"),))
        text = f"Round as {HELD} and {REFUSED} say."
        if info.call == "final":
            return Answer(final_text(decision=text))
        return Answer(agent_text(text)) if info.kind == "agent" else None
    script = test_mission.deciding()
    script["r0-bootstrap-2"] = script["r0-bootstrap"]
    script["r1-plan"] = plan(assignment("p2", ALEX, objective=ABOUT_BILLING))
    return told(script)(info)


def voices(provider: Provider) -> list[RequestInfo]:
    return [info for info in provider.calls if info.kind == "agent" and not info.call.startswith("r")]


def test_a_deliberation_of_a_mission_sees_the_repository_and_its_citations_are_checked(
    large: Desk, provider: Provider
) -> None:
    provider.script = deciding
    large(*TEAM, QUEUE).ok()
    mission, nested = large.session(), large.session("a-r1-p2")
    assert FAR in (nested / "00-context.md").read_text() and FAR not in (mission / "00-context.md").read_text()
    assert voices(provider) and all(LINE in info.prompt and FAR in info.prompt for info in voices(provider))
    looked = [info for info in voices(provider) if info.body["messages"][-1]["role"] == "tool"]
    assert looked and all("def step_0(x)" in str(info.body["messages"][-1]["content"]) for info in looked)
    version = next(mission.glob("products/p2-*/v1.md")).read_text()
    assert f"{HELD} ✓ and {REFUSED} ✗ ({REASON})" in version
    inspected = next(info.prompt for info in provider.calls if info.call == "r1-inspect-p2")
    assert f"This does not hold:\n- {REFUSED}: {REASON}" in inspected
    assert (
        f"was accepted, and cites what does not hold in the repository: {REFUSED}"
        in (mission / "FINAL.md").read_text()
    )

    before, calls = [files(folder) for folder in (mission, nested)], len(provider.calls)
    for path in ("billing", "reports", "queue"):
        large.write(f"src/{path}.py", "with LOCK\n")  # what was shown and found stays as it was
    for name in ("FINAL.md", "t1-synthesis.md", "00-context.md"):
        (nested / name).unlink()
    (mission / "FINAL.md").unlink()
    large("resume", "a-r1-p2").ok()
    large("resume", "a").ok()
    assert [files(folder) for folder in (mission, nested)] == before and len(provider.calls) == calls
    large("verify", "a").ok()
    large("replay", "a").ok()
    large("replay", "a-r1-p2").ok()
    large("fork", "a-r1-p2", "--turn", "1", "--turns", "2", "--session", "b").ok()
    assert (large.session("b") / "00-context.md").read_bytes() == (nested / "00-context.md").read_bytes()
    later = [info.prompt for info in provider.calls[calls:] if info.kind == "agent"]
    assert later and all(FAR in prompt for prompt in later)


def test_a_deliberation_of_a_mission_without_context_sees_no_file_and_checks_no_citation(
    large: Desk, provider: Provider
) -> None:
    provider.script = deciding
    large(*TEAM, "--no-context", QUEUE).ok()
    assert voices(provider)
    assert not any("def push(item):" in info.prompt or FAR in info.prompt for info in voices(provider))
    assert not any(info.body.get("tools") for info in provider.calls)
    version = next(large.session().glob("products/p2-*/v1.md")).read_text()
    assert HELD in version and "✓" not in version and "✗" not in version


def test_a_deliberation_of_a_mission_outside_of_a_repository_sees_the_files_that_were_given(
    cdo: Desk, provider: Provider
) -> None:
    cdo.write("notes/queue.md", "# Queue\n\nJobs have a priority.\n")
    provider.script = deciding
    cdo(*TEAM, "-c", "notes", QUEUE).ok()
    assert voices(provider) and all("3| Jobs have a priority." in info.prompt for info in voices(provider))
    assert not any(info.body.get("tools") for info in provider.calls)


def test_a_mission_that_was_begun_before_deliberates_as_it_did(large: Desk, provider: Provider) -> None:
    provider.script = told({"r0-bootstrap": question("Which queue?", "This one")})
    large(*TEAM, QUEUE).failed(6)
    frozen = large.session() / "session.yaml"
    text = frozen.read_text()
    assert "evidence: " in text
    frozen.write_text(re.sub(r"^ +evidence: \d+\n", "", text, flags=re.MULTILINE))
    large("answer", "a", "This one").ok()
    provider.script = deciding
    large("resume", "a").ok()
    assert voices(provider) and not any(FAR in info.prompt or LINE in info.prompt for info in voices(provider))
    assert not any(info.body.get("tools") for info in voices(provider))
