"""Missions as real processes against a scripted team: from a request to deliverables, and every way that may go."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pexpect
import pytest
import yaml

from cdo.core.demo_model import DEMO_MISSION
from tests.conftest import A, Desk, explained
from tests.runs.test_seats_run import AGENT
from tests.support.answers import Answer, RequestInfo
from tests.support.cabal_team import (
    ALEX,
    CRUD,
    DRAFT,
    JORDAN,
    REQUEST,
    SAFE,
    asking,
    assignment,
    bootstrap,
    done,
    inspect,
    inspection,
    newest_events,
    of_product,
    plan,
    present,
    product,
    question,
    review,
    said,
    todo_script,
    version,
    write,
)
from tests.support.faults import Fault
from tests.support.harness import finish, kill_group, wait_for
from tests.support.provider import Provider

TEAM = ("cabal", "--operatives", "2", *A)
Said = Callable[[RequestInfo], str] | str


def told(script: Mapping[str, Said]) -> Callable[[RequestInfo], str | Answer | None]:
    """A script that says these in calls of these names, else what the TODO team says; deliberations go as ever.

    What "r1-inspect" says is said product by product.
    """

    def say(info: RequestInfo) -> str | Answer | None:
        found = script.get(info.call)
        if found is not None:
            return found if isinstance(found, str) else found(info)
        whole = script.get(info.call.rpartition("-p")[0]) if info.kind == "inspect" else None
        if whole is not None:
            return of_product(whole if isinstance(whole, str) else whole(info), info.call)
        return todo_script(info) if re.match(r"r\d+-[a-z]", info.call) else None

    return say


def tells(*messages: tuple[str, str]) -> Said:
    """Messages that rest on the newest event."""
    return lambda info: present(*messages, events=newest_events(info.prompt))


def names(provider: Provider) -> list[str]:
    return [info.call for info in provider.calls]


def files(session: Path) -> dict[str, bytes]:
    """What a mission leaves behind, without what times and prices may change: replies, projections, deliverables."""
    left = ("calls", "journal.jsonl", "session.yaml", "superseded", "taken")
    found = {}
    for path in sorted(session.rglob("*")):
        name = str(path.relative_to(session))
        if path.is_file() and not name.startswith(left):
            found[name] = path.read_bytes()
    return found


@pytest.fixture
def todo(cdo: Desk, provider: Provider) -> Desk:
    """A desk at which the TODO team works."""
    provider.script = told({})
    return cdo


# -- the example session of seed 000, part 9 -----------------------------------------------------------


@pytest.mark.quick
def test_the_todo_list_is_blocked_then_approved_then_done(todo: Desk, provider: Provider) -> None:
    ended = todo(*TEAM, "--json", REQUEST).ok()
    result = ended.json
    assert (result["status"], result["unit"], result["turns"], result["confidence"]) == ("done", "round", 3, None)
    assert result["calls"] == len(provider.calls) == 25
    session = todo.session()
    assert re.search(r"^round 1 ends: .*1 of 3 accepted, 1 blocker", ended.err, re.MULTILINE)
    assert re.search(r"^round 2 ends: .*4 of 4 accepted$", ended.err, re.MULTILINE)
    assert re.search(r"^round 3 ends: .*4 of 4 accepted; done: ", ended.err, re.MULTILINE)
    assert len({row.index(" tok") for row in ended.err.splitlines() if row.startswith("  r")}) == 1, "one column"
    steps = [name for name in names(provider) if name.startswith("r1-")]
    assert [name.removeprefix("r1-").partition("-")[0] for name in steps] == [
        "plan", "write", "write", "review", "review", "inspect", "inspect", "present",
    ]  # fmt: skip
    assert not [name for name in names(provider) if name.startswith(("r3-write", "r3-review", "r3-inspect"))]
    assert {path.name for path in (session / "deliverables").iterdir()} == {
        "mvp-features-selection.md", "technical-architecture.md", "error-handling.md",
    }  # fmt: skip
    assert SAFE in (session / "deliverables/mvp-features-selection.md").read_text()
    final = (session / "FINAL.md").read_text()
    assert "**Status:** done after 3 rounds" in final and "Say what a client sees when limited" in final
    proof = yaml.safe_load((session / "CERTIFICATE.yaml").read_text())
    assert proof["status"] == "done"
    assert "httpOnly cookies" in (session / "CHAT.md").read_text()
    assert "Error Handling" in (session / "TREE.md").read_text()
    assert (session / "r2-inspect-p3.md").is_file() and (session / "mission.md").is_file()
    todo("verify", "a").ok()
    before = files(session)
    provider.reset()
    again = todo("resume", "a", "--json").ok().json
    assert provider.calls == [] and files(session) == before
    assert {**again, "path": ""} == {**result, "path": ""}


def test_calls_tell_gateways_what_they_are_for(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", REQUEST).ok()
    kinds = {info.headers["X-Cdo-Kind"] for info in provider.calls}
    assert kinds == {"bootstrap", "reflect", "plan", "write", "review", "inspect", "present"}
    assert {info.headers["X-Cdo-Session"] for info in provider.calls} == {"a"}


def test_what_a_step_shares_comes_first_and_is_the_same_for_everybody(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", REQUEST).ok()
    both = [info.body["messages"] for info in provider.calls if info.call.startswith("r2-write")]
    assert both[0][0] == both[1][0], "the system prompts"
    one, other = both[0][1]["content"], both[1][1]["content"]
    common = one[: next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)]
    assert "Products in round 2" in common
    assert "operative-1" in one[len(common) :] and "operative-2" in other[len(common) :]


def test_every_agent_reads_the_words_of_the_user(todo: Desk, provider: Provider) -> None:
    request = f"{REQUEST}, with </request> <b>no</b> mobile app"
    todo(*TEAM, "-q", request).ok()
    for info in provider.calls:
        body = info.body["messages"][1]["content"]
        assert body.startswith("# Request of the user\n<request>\n" + request.replace("</req", "‹/req")), info.call


def test_reviewers_do_not_see_the_change_summary(todo: Desk, provider: Provider) -> None:
    provider.script = told(
        {f"r1-write-{ALEX}": write(version("p4", "Technical architecture", DRAFT, "SECRET-SUMMARY of the change"))}
    )
    todo(*TEAM, "-q", "--rounds", "1", REQUEST)
    shown = {info.call: info.prompt for info in provider.calls}
    assert DRAFT.splitlines()[2] in shown[f"r1-review-{JORDAN}"]
    assert "SECRET-SUMMARY" not in shown[f"r1-review-{JORDAN}"]


# -- replies that break rules ------------------------------------------------------------------------


def test_an_illegal_reply_goes_back_with_what_is_wrong(todo: Desk, provider: Provider) -> None:
    tries: list[str] = []

    def stubborn(info: RequestInfo) -> str:
        tries.append(info.prompt)
        return write(version("p3", "Not mine", "Something")) if len(tries) == 1 else todo_script(info)

    provider.script = told({f"r1-write-{ALEX}": stubborn})
    todo(*TEAM, REQUEST).ok()
    assert len(tries) == 2 and "p3" in tries[1].rpartition("Something")[2]
    versions = list(todo.session().glob("products/p3-*/v*.md"))
    assert len(versions) == 2, "the one that was not assigned became none"


def test_done_is_refused_while_anything_is_unaccepted(todo: Desk, provider: Provider) -> None:
    provider.script = told({"r1-plan": done(), "r1-present": tells(("chair-1", "Nothing is ready yet."))})
    ended = todo(*TEAM, "--rounds", "1", REQUEST).failed(3)
    assert names(provider).count("r1-plan") == 3
    assert "unresolved" in ended.out and "MVP Features Selection" in ended.out
    third = [info.prompt for info in provider.calls if info.call == "r1-plan"][2]
    assert "Technical Architecture" in third.rpartition('"done"')[2]


def test_an_unreadable_inspection_accepts_nothing(todo: Desk, provider: Provider) -> None:
    provider.script = told({"r2-inspect": "Looks good to me. Approved!", "r3-plan": done()})
    ended = todo(*TEAM, "--rounds", "3", REQUEST).failed(3)
    assert names(provider).count("r2-inspect-p5") == 3
    final = (todo.session() / "FINAL.md").read_text()
    assert "**Status:** unresolved after 3 rounds: " in final and "has not been inspected" in final
    assert [path.name for path in (todo.session() / "deliverables").iterdir()] == ["technical-architecture.md"]
    assert "passes one gateway" in (todo.session() / "deliverables/technical-architecture.md").read_text(), (
        "as accepted in round 1"
    )
    assert "0 of 4" in ended.err


def test_a_quote_that_stands_nowhere_proves_nothing(todo: Desk, provider: Provider) -> None:
    made_up = inspect(
        inspection("p3", "v7", {"d1": CRUD, "d2": "It uses quantum-safe passkeys"}),
        inspection("p4", "v5", {"d1": "React in the browser", "d2": "Ten logins a minute"}),
        inspection("p5", "v6", {"d1": "problem+json"}),
        inspection("p1"),
        confirms=["c3"],
    )
    provider.script = told({"r2-inspect": made_up})
    todo(*TEAM, "--rounds", "2", REQUEST).failed(3)
    sent = [info for info in provider.calls if info.call.startswith("r2-inspect-p3")]
    assert [info.call for info in sent] == ["r2-inspect-p3", "r2-inspect-p3-again"]
    assert "the quote for d2 does not stand there" in sent[1].prompt and "passkeys" in sent[1].prompt
    assert len(list(todo.session().glob("products/p3-*/i*.md"))) == 1, "that of round 1"
    assert len(list(todo.session().glob("products/p[45]-*/i*.md"))) == 3, "it is nothing to the others"


def test_an_operative_that_says_nothing_valid_is_missed_and_the_round_goes_on(todo: Desk, provider: Provider) -> None:
    provider.script = told({f"r1-write-{ALEX}": "I would rather not.", "r1-inspect": inspect(
        inspection("p3", "v2", {"d1": CRUD, "d2": "A JWT is kept in localStorage"}))})  # fmt: skip
    todo(*TEAM, "--rounds", "1", REQUEST).failed(3)
    assert names(provider).count(f"r1-write-{ALEX}") == 3
    assert len(list(todo.session().glob("products/p3-*/i1.md"))) == 1
    final = (todo.session() / "FINAL.md").read_text()
    assert "Nothing came from Alex in the writing of Technical Architecture: no valid reply" in final


def test_a_chair_that_cannot_begin_ends_the_run_and_another_model_goes_on(todo: Desk, provider: Provider) -> None:
    provider.script = told({"r0-bootstrap": "No."})
    explained(todo(*TEAM, REQUEST), 7, "r0-bootstrap: invalid")
    provider.script = told({})
    todo("resume", "a", "-q").ok()


def test_a_provider_that_is_down_fails_the_run_and_resume_goes_on(todo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=401, call="r1-write-*")]
    todo(*TEAM, REQUEST).failed(4)
    provider.faults = []
    provider.reset()
    todo("resume", "a", "-q").ok()
    assert "r0-bootstrap" not in names(provider) and "r1-plan" not in names(provider)


# -- more context, questions, notes ------------------------------------------------------------------


def test_an_agent_gets_what_it_asks_for_three_times_at_most(todo: Desk, provider: Provider) -> None:
    greedy: list[str] = []

    def ask(info: RequestInfo) -> str:
        greedy.append(info.prompt)
        return todo_script(info) if len(greedy) == 4 else asking(("p3", "full_content"), ("p4", "version_history"))

    provider.script = told({f"r2-write-{ALEX}{part}": ask for part in ("", "-2", "-3", "-4")})
    todo(*TEAM, "-q", REQUEST).ok()
    assert [name for name in names(provider) if name.startswith(f"r2-write-{ALEX}")] == [
        f"r2-write-{ALEX}{part}" for part in ("", "-2", "-3", "-4")
    ]
    assert "localStorage" not in greedy[0].rpartition("What you are to write")[2]
    assert "A JWT is kept in localStorage" in greedy[1], "the Decision in full"
    last = "You cannot ask for more context"
    assert last in greedy[3] and last not in greedy[2]


def test_a_question_pauses_the_run_and_its_answer_reaches_the_chair(todo: Desk, provider: Provider) -> None:
    ask = question("Which database?", "PostgreSQL", "SQLite")
    provider.script = told({"r0-bootstrap": ask, "r0-bootstrap-2": bootstrap()})
    explained(todo(*TEAM, REQUEST), 6, "Which database?", "PostgreSQL / SQLite", "cdo answer a")
    paused = todo("resume", "a", "--json").failed(6).json
    assert names(provider) == ["r0-bootstrap"]
    assert (paused["status"], paused["unit"], paused["turns"], paused["calls"]) == ("paused", "round", 0, 1)
    assert (paused["question"], paused["options"]) == ("Which database?", ["PostgreSQL", "SQLite"])
    assert "SQLite" in todo("answer", "a", "2").ok().out
    todo("resume", "a", "-q").ok()
    second = next(info.prompt for info in provider.calls if info.call == "r0-bootstrap-2")
    assert "Which database?" in second and "SQLite" in second
    assert "Which database?" in (todo.session() / "FINAL.md").read_text()
    explained(todo("answer", "a", "again"), 8, "no question")


def test_a_question_of_a_plan_is_answered_by_a_file_too(todo: Desk, provider: Provider) -> None:
    provider.script = told({"r1-plan": question("Cookies?", "yes", "no"), "r1-plan-2": todo_script_of("r1-plan")})
    assert todo(*TEAM, REQUEST).failed(6, "Cookies?", "`cdo answer a").err.count("Cookies?") == 1
    todo.write("tmp/cdo-a/inbox/answer.md", "yes, httpOnly")
    todo("resume", "a", "-q").ok()
    assert "yes, httpOnly" in next(info.prompt for info in provider.calls if info.call == "r1-plan-2")
    assert not list((todo.session() / "inbox").iterdir())


def todo_script_of(call: str) -> Said:
    """What the TODO team says in another call."""
    from tests.support.cabal_team import todo as says

    return lambda info: says(call, newest_events(info.prompt))


def test_a_note_in_the_inbox_becomes_feedback_that_blocks(todo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=401, call="r1-present")]
    todo(*TEAM, "--rounds", "3", REQUEST).failed(4)
    note = "---\nproduct: Technical Architecture\nimportance: 9\n---\n\nNo React, please."
    todo.write("tmp/cdo-a/inbox/note.md", note)
    todo.write("tmp/cdo-a/inbox/hello.md", "---\nproduct: The Moon\n---\n\nTake your time.")
    todo.write("tmp/cdo-a/inbox/broken.md", "---\nimportance: eleven\n---\n\nText.")
    provider.faults = []
    ended = todo("resume", "a", "--json").failed(3)
    assert any("No React" in line for line in ended.json["unaccepted"]), "nobody closed what the user said blocks"
    plan_2 = next(info.prompt for info in provider.calls if info.call == "r2-plan")
    assert "No React, please." in plan_2 and "About The Moon: Take your time." in plan_2
    assert "eleven" not in plan_2 and (todo.session() / "quarantine/broken.md").is_file()
    assert not list((todo.session() / "inbox").iterdir())


def test_a_file_beside_the_versions_becomes_one(todo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=401, call="r1-present")]
    todo(*TEAM, REQUEST).failed(4)
    folder = next(todo.session().glob("products/p4-*"))
    mine = "# Architecture\n\nOne PostgreSQL, one process, and nothing to keep in step with it for [[p:p3]]."
    (folder / "mine.md").write_text(mine)
    provider.faults = [Fault(status=401, call="r2-plan")]
    todo("resume", "a", "-q").failed(4)
    assert not (folder / "mine.md").exists()
    (version,) = [path for path in folder.glob("v*.md") if "One PostgreSQL" in path.read_text()]
    assert "author: u:user-1" in version.read_text()
    assert "One PostgreSQL" in next(info.prompt for info in provider.calls if info.call == f"r2-reflect-{ALEX}")


def test_an_edited_version_becomes_one_by_the_user(todo: Desk, provider: Provider) -> None:
    provider.faults = [Fault(status=401, call="r1-present")]
    todo(*TEAM, REQUEST).failed(4)
    file = next(todo.session().glob("products/p4-*/v2.md"))
    original = file.read_text()
    file.write_text(original.replace("PostgreSQL", "CockroachDB"))
    provider.faults = [Fault(status=401, call="r2-plan")]
    todo("resume", "a", "-q").failed(4)
    assert file.read_text() == original, "what was written stays as it was"
    mine = [path for path in todo.session().glob("products/p4-*/v*.md") if "CockroachDB" in path.read_text()]
    assert len(mine) == 1 and "author: u:user-1" in mine[0].read_text()
    assert "CockroachDB" in (todo.session() / "superseded/edits/v2.md").read_text()


def test_what_is_left_after_the_end_opens_another_round(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", REQUEST).ok()
    ended = (todo.session() / "FINAL.md").read_bytes()
    todo.write("tmp/cdo-a/inbox/note.md", "---\nproduct: Error Handling\nimportance: 9\n---\n\nName the codes.")
    codes = "# Error handling\n\nEvery error is problem+json; its code is one of E1, E2 and E3, which never change."
    provider.script = told({
        f"r4-reflect-{ALEX}": said(), f"r4-reflect-{JORDAN}": said(),
        "r4-plan": plan(assignment("p5", ALEX, address=["c6"])),
        f"r4-write-{ALEX}": write(version("p5", "Error handling", codes, "Names the codes", addresses=["c6"])),
        f"r4-review-{JORDAN}": review(),
        "r4-inspect": inspect(inspection("p5", "v9", {"d1": "problem+json"}), inspection("p1"), confirms=["c6"]),
        "r4-present": tells((ALEX, "The codes have names.")),
        f"r5-reflect-{ALEX}": said(), f"r5-reflect-{JORDAN}": said(),
        "r5-plan": done(), "r5-present": tells(("chair-1", "Done again.")),
    })  # fmt: skip
    provider.reset()
    result = todo("resume", "a", "--json").ok().json
    assert (result["status"], result["turns"]) == ("done", 5)
    assert "Name the codes." in next(info.prompt for info in provider.calls if info.call == "r4-plan")
    assert not [name for name in names(provider) if name.startswith(("r0", "r1", "r2", "r3"))]
    assert "E1, E2 and E3" in (todo.session() / "deliverables/error-handling.md").read_text()
    assert (todo.session() / "superseded/ended/FINAL.md").read_bytes() == ended
    todo("verify", "a").ok()
    whole = files(todo.session())
    provider.reset()
    todo("resume", "a", "-q").ok()
    assert provider.calls == [] and files(todo.session()) == whole


# -- caps ----------------------------------------------------------------------------------------------


def test_a_cap_of_rounds_ends_unresolved_with_what_is_missing(todo: Desk) -> None:
    ended = todo(*TEAM, "--rounds", "1", "--json", REQUEST).failed(3)
    result = ended.json
    assert result["status"] == "unresolved" and "cap of 1 round" in result["why"]
    assert result["deliverables"] == ["deliverables/technical-architecture.md"] and len(result["unaccepted"]) == 2
    assert any("localStorage" in line for line in result["unaccepted"])
    assert "status: unresolved" in (todo.session() / "FINAL.yaml").read_text()
    todo("verify", "a").ok()


@pytest.mark.slow
def test_a_higher_cap_of_rounds_goes_on_for_good(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "--rounds", "1", "-q", REQUEST).failed(3)
    provider.reset()
    result = todo("resume", "a", "--rounds", "5", "--json").ok().json
    assert (result["status"], result["turns"]) == ("done", 3)
    assert not [name for name in names(provider) if name.startswith(("r0-", "r1-"))]
    provider.reset()
    assert todo("resume", "a", "--json").ok().json["status"] == "done" and provider.calls == []
    todo("think", "--session", "t", "-q", "--turns", "1", "Should we?").ok()
    explained(todo("resume", "t", "--rounds", "5"), 2, "not a mission")


def test_a_cap_of_calls_leaves_room_for_inspection_and_end_and_a_higher_one_goes_on(
    todo: Desk, provider: Provider
) -> None:
    ended = todo(*TEAM, "--max-calls", "9", "--json", REQUEST).failed(3)
    assert ended.json["status"] == "unresolved" and "cap of 9 calls" in ended.json["why"]
    assert names(provider) == [
        "r0-bootstrap", "r1-plan", f"r1-write-{ALEX}", f"r1-write-{JORDAN}", f"r1-review-{ALEX}",
        f"r1-review-{JORDAN}", "r1-inspect-p3-2", "r1-inspect-p4-2", "r1-present",
    ]  # fmt: skip
    assert ended.json["deliverables"] == ["deliverables/technical-architecture.md"]
    assert (todo.session() / "FINAL.md").is_file()
    provider.reset()
    result = todo("resume", "a", "--json", "--yes", "--max-calls", "100").ok().json
    assert result["status"] == "done"
    assert "r0-bootstrap" not in names(provider), "nothing is paid twice"
    assert not {"r1-plan", f"r1-write-{ALEX}"} & set(names(provider))


def test_two_idle_rounds_are_nudged_then_planned_anew_then_it_ends(todo: Desk, provider: Provider) -> None:
    nothing = plan()
    quiet: dict[str, Said] = {f"r{number}-plan": nothing for number in range(1, 9)}
    quiet |= {f"r{number}-present": tells(("chair-1", "Nothing moved.")) for number in range(1, 9)}
    provider.script = told(quiet)
    ended = todo(*TEAM, "--json", REQUEST).failed(3)
    assert ended.json["status"] == "unresolved" and ended.json["turns"] == 4
    plans = [info.prompt for info in provider.calls if info.kind == "plan"]
    assert ["No progress" in prompt for prompt in plans] == [False, False, True, True]
    assert ["Plan anew" in prompt for prompt in plans] == [False, False, False, True]


# -- decisions -----------------------------------------------------------------------------------------


def deciding() -> dict[str, Said]:
    """A mission whose first product is a Decision that is deliberated."""
    stack = product("Stack", "Decision", "Says which database", decide_by="quick")
    return {
        "r0-bootstrap": bootstrap(initial_products=[stack], objectives=["A database is chosen"]),
        "r1-plan": plan(assignment("p2", ALEX, objective="Which database shall we take?")),
        f"r1-review-{JORDAN}": review(),
        "r1-inspect": lambda info: inspect(
            inspection("p2", "v1", {"d1": _line(info.prompt)}), inspection("p1", "", {"d1": _line(info.prompt)})
        ),
        "r1-present": tells((ALEX, "The stack is chosen.")),
        f"r2-reflect-{ALEX}": said(reflections=[]),
        "r2-plan": done(),
        "r2-present": tells(("chair-1", "We are done.")),
    }


def _line(prompt: str) -> str:
    """Words of the version that an inspection is shown."""
    body = re.search(r"<version product=\"p2\"[^>]*>\n(.*?)</version>", prompt, re.DOTALL)
    assert body, prompt
    return str(re.findall(r"[A-Za-z][A-Za-z ,]{20,}", body[1])[-1])


@pytest.mark.quick
def test_a_decision_is_deliberated_in_a_session_of_its_own(todo: Desk, provider: Provider) -> None:
    provider.script = told(deciding())
    result = todo(*TEAM, "--json", REQUEST).ok().json
    nested = todo.session("a-r1-p2")
    assert (nested / "FINAL.md").is_file() and (nested / "t1-synthesis.md").is_file()
    assert not [name for name in names(provider) if name.startswith("r1-write")]
    version = next(todo.session().glob("products/p2-*/v1.md")).read_text()
    assert "session: a-r1-p2" in version and "## Minority Reports" in version
    assert "change_summary: A deliberation decided this; it took all of its turns\n" in version
    assert result["calls"] == len(provider.calls), "what the deliberation took counts"
    assert "Minority" in (todo.session() / "FINAL.md").read_text()
    provider.reset()
    todo("resume", "a", "-q").ok()
    assert provider.calls == []


def test_without_deliberations_a_decision_is_written(todo: Desk, provider: Provider) -> None:
    script = deciding()
    text = "# Stack\n\nPostgreSQL, since everybody knows it."
    script[f"r1-write-{ALEX}"] = write(version("p2", "Stack", text, outcome="PostgreSQL"))
    provider.script = told(script)
    todo(*TEAM, "--deliberations", "0", "-q", REQUEST).ok()
    assert not todo.session("a-r1-p2").exists()


def test_a_deliberation_that_was_killed_goes_on_where_it_stopped(todo: Desk, provider: Provider) -> None:
    provider.script = told(deciding())
    provider.hold("final")
    process = todo.start(*TEAM, REQUEST)
    try:
        wait_for(lambda: "final" in names(provider))
        kill_group(process.pid)
    finally:
        process.communicate()
        provider.release()
    before = [name for name in names(provider) if name.startswith("t1-")]
    provider.reset()
    todo("resume", "a", "-q").ok()
    assert not set(before) & set(names(provider)) and "final" in names(provider)


# -- crashes, signals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at",
    [
        "r1-write-*",
        *(
            pytest.param(at, marks=pytest.mark.slow)
            for at in ("r0-bootstrap", "r1-inspect-p3", "r2-plan", "r3-present")
        ),
    ],
)
def test_a_killed_mission_goes_on_and_pays_for_nothing_twice(at: str, todo: Desk, provider: Provider) -> None:
    todo("cabal", "--operatives", "2", "--session", "whole", "-q", REQUEST).ok()
    whole = files(todo.session("whole"))
    provider.reset()
    provider.hold(at)
    process = todo.start(*TEAM, REQUEST)
    try:
        wait_for(lambda: any(info.call.startswith(at.rstrip("*")) for info in provider.calls))
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.communicate()
        provider.release()
    answered = {path.stem for path in todo.session().glob("r*.md")}
    provider.reset()
    todo("resume", "a", "-q").ok()
    assert not answered & set(names(provider))
    left = files(todo.session())
    assert left.keys() == whole.keys()
    plain = {name: re.sub(rb"cdo-whole|session: (whole|a)\b|sha256: \w+|final: \w+", b"", text)
             for name, text in whole.items()}  # fmt: skip
    for name, text in left.items():
        assert re.sub(rb"cdo-a|session: (whole|a)\b|sha256: \w+|final: \w+", b"", text) == plain[name], name


def test_ctrl_c_ends_a_mission_and_resume_goes_on(todo: Desk, provider: Provider) -> None:
    provider.hold("r1-plan")
    process = todo.start(*TEAM, REQUEST)
    wait_for(lambda: "r1-plan" in names(provider))
    os.killpg(process.pid, signal.SIGINT)
    ended = finish(process)
    provider.release()
    ended.failed(130, "Stopped", "cdo resume a")
    todo("resume", "a", "-q").ok()


# -- the command ---------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_team_and_sends_nothing(todo: Desk, provider: Provider) -> None:
    shown = todo("cabal", "--dry-run", "--operatives", "2", "--rounds", "4", "--deliberations", "1", REQUEST).ok().out
    assert "operative-2" in shown and "operative-3" not in shown
    assert "4 rounds at most" in shown and "at most 1 Decision" in shown and "Nothing was sent." in shown
    most = re.search(r"(\d+) to (\d+) calls", shown)
    assert most and (int(most[1]), int(most[2])) == (10, 85), "in each round 8, and 13 inspections"
    data = todo("cabal", "--dry-run", "--json", "--seat", "watchdog=openai/gpt-4.1-mini", REQUEST).ok().json
    assert data["seats"]["watchdog-1"] == "openai/gpt-4.1-mini" and data["seats"]["operative-3"]
    assert data["calls"][0] < data["calls"][1] and data["cost"]
    assert provider.calls == [] and not todo.sessions()


def test_the_watchdog_sits_on_another_makers_model(todo: Desk, provider: Provider) -> None:
    assert "same vendor" in todo("cabal", "--dry-run", REQUEST).ok().out
    data = todo("cabal", "--dry-run", "--json", "-m", "openai/gpt-4.1", "--seat", "operatives=openai/x", REQUEST).ok()
    assert data.json["seats"]["operative-1"] == "openai/x" and data.json["seats"]["chair-1"] == "openai/gpt-4.1"
    env = {"ANTHROPIC_API_KEY": "x-key-123"}
    words = ("cabal", "--dry-run", "--json", "-m", "openai/gpt-4.1")
    assert set(todo(*words, REQUEST, env=env).ok().json["seats"].values()) == {"openai/gpt-4.1"}
    several = todo(*words, "-m", "anthropic/claude-sonnet-5-5", "--operatives", "1", REQUEST, env=env).ok().json
    assert several["seats"]["watchdog-1"].startswith("anthropic/")
    seats = todo(*words, "--independent", REQUEST, env=env).ok().json
    assert seats["seats"]["watchdog-1"].startswith("anthropic/") and "another family" in seats["notes"][0]


def test_seats_of_several_providers_work_in_one_mission(todo: Desk, provider: Provider) -> None:
    env = {"ANTHROPIC_API_KEY": "x-key-123456", "ANTHROPIC_BASE_URL": provider.url}
    models = {"openai/gpt-4.1": 19, "anthropic/claude-sonnet-5-5": 6}
    large, other = models
    todo(*TEAM, "-m", large, "--seat", f"watchdog={other}", "-q", REQUEST, env=env).ok()
    assert {info.kind for info in provider.calls if info.path == "/v1/messages"} == {"inspect"}
    proof = yaml.safe_load((todo.session() / "CERTIFICATE.yaml").read_text())
    assert {role: found for role, found in proof["models"].items() if found != [large]} == {"watchdog-1": [other]}
    told_ = todo("cost", "a", "--by", "model").ok().out
    assert {name: int(count) for name, count in re.findall(r"^(\w+/\S+) +(\d+)", told_, re.MULTILINE)} == models
    todo("verify", "a").ok()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seat", "watchdog", REQUEST), "is not a seat"),
        (("--seat", "janitor=openai/x", REQUEST), "janitor"),
        (("--operatives", "0", REQUEST), "operatives"),
        (("--rounds", "0", REQUEST), "rounds"),
        (("@nowhere.md",), "nowhere.md"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    args: tuple[str, ...], words: str, todo: Desk, provider: Provider
) -> None:
    explained(todo("cabal", *args), 2, words)
    assert provider.calls == [] and not todo.sessions()


def test_the_request_comes_from_a_file_or_a_pipe_and_material_goes_with_it(todo: Desk, provider: Provider) -> None:
    todo.write("request.md", REQUEST)
    todo.write("notes.md", "Our users are on slow phones.")
    todo(*TEAM, "-q", "-c", "notes.md", "@request.md").ok()
    assert (todo.session() / "00-input.md").read_text() == f"{REQUEST}\n"
    first = {info.call: info.prompt for info in provider.calls}
    assert REQUEST in first["r0-bootstrap"] and "slow phones" in first["r0-bootstrap"]
    assert "slow phones" in first[f"r1-write-{ALEX}"]
    todo("cabal", "--operatives", "2", "--session", "b", "-q", "--rounds", "1", "-", stdin=REQUEST).failed(3)
    assert (todo.session("b") / "00-input.md").read_text() == f"{REQUEST}\n"


def test_context_shows_what_an_agent_would_be_shown(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", "--rounds", "1", REQUEST).failed(3)
    provider.reset()
    shown = todo("context", "p3", "--step", "write").ok().out
    assert "operative-2" in shown.splitlines()[0] and "tokens" in shown.splitlines()[0]
    assert "A JWT is kept in localStorage" in shown
    data = json.loads(
        todo("context", "Technical Architecture", "--step", "plan", "--session", "a", "--json").ok().out
    )
    assert data["agent"] == "chair-1" and data["tokens"] > data["shared"] > 0
    assert "operative-2" in todo("context", "p4", "--step", "reflect", "--agent", "operative-2").ok().out
    explained(todo("context", "p9", "--step", "write"), 2, "p9")
    explained(todo("context", "p3", "--step", "dance"), 2, "dance")
    explained(todo("context", "p3", "--step", "write", "--agent", "nobody"), 2, "nobody")
    assert provider.calls == []
    todo("think", "--session", "t", "-q", "--turns", "1", "Should we?").ok()
    explained(todo("context", "p3", "--step", "write", "--session", "t"), 8, "not a mission")
    explained(todo("answer", "t", "yes"), 8, "waits for no answer to a turn")


def test_a_line_tells_what_each_reply_came_to(todo: Desk) -> None:
    lines = todo(*TEAM, REQUEST).ok().err.splitlines()
    assert next(line for line in lines if line.strip().startswith("r1-plan")).endswith("2 assignments")


def test_the_options_of_a_run_are_those_of_a_mission(todo: Desk, provider: Provider) -> None:
    provider.script = told({"r1-plan": question("Cookies?", "yes", "no")})
    options = ("--out", "runs", "--session", "x", "--no-git", "--concurrency", "1", "--operatives", "2")
    quiet = todo("cabal", *options, "-q", REQUEST).failed(6)
    assert "r0-bootstrap" not in quiet.err
    assert "Cookies?" in todo("answer", "x", "yes", "--out", "runs").ok().out
    assert "operative-1" in todo("context", "p4", "--step", "write", "--out", "runs").ok().out
    provider.script = told({"r1-plan-2": todo_script_of("r1-plan")})
    loud = todo("resume", "x", "--out", "runs", "-v").ok()
    assert "asking openai/gpt-6.1-sol" in loud.err and "r0-bootstrap" in loud.err
    frozen = yaml.safe_load((todo.path / "runs/cdo-x/session.yaml").read_text())
    assert frozen["settings"]["no_git"] and frozen["settings"]["concurrency"] == 1
    assert frozen["sources"]["concurrency"] == "--concurrency"
    spans = sorted((info.arrived, info.ended or 0.0) for info in provider.calls)
    assert all(end <= begin + 0.05 for (_, end), (begin, _) in pairwise(spans)), "one at a time"


@pytest.mark.parametrize(
    ("cap", "why"),
    [(("--max-tokens", "9000"), "cap of 9000 tokens"), (("--budget", "0.05"), "budget of $0.05")],
)
def test_every_cap_ends_a_mission_unresolved(cap: tuple[str, str], why: str, todo: Desk, provider: Provider) -> None:
    ended = todo(*TEAM, *cap, "--json", REQUEST).failed(3)
    assert ended.json["status"] == "unresolved" and why in ended.json["why"]
    assert (todo.session() / "FINAL.md").is_file()
    provider.faults = [Fault(hang="headers", call="r1-plan")]
    slow = todo("cabal", "--operatives", "2", "--session", "s", "--timeout", "4", REQUEST)
    assert slow.code in (3, 5) and "time" in slow.err + slow.out


def test_a_projects_agent_sits_in_the_team_only_with_trust(todo: Desk) -> None:
    todo.write(".cdo/dispatch/agents/mine.yaml", AGENT)
    path = todo.write("../bin/mine-agent", "#!/bin/sh\n")
    path.chmod(0o755)
    desk = todo.having(PATH=f"{path.parent}:{os.environ['PATH']}")
    words = ("cabal", "--dry-run", "--seat", "operatives=mine", REQUEST)
    desk(*words).failed(4, "which you do not trust as it is now", "--trust")
    assert desk(*words, "--trust", "--json").ok().json["seats"]["operative-1"] == "mine"


@pytest.mark.parametrize("how", ["typed", "elsewhere", ""])
def test_at_a_terminal_the_person_is_asked_unless_there_is_no_input(how: str, todo: Desk, provider: Provider) -> None:
    """The answer is typed there, or given by `cdo answer`, which says that the run is on."""
    provider.script = told({"r1-plan": question("Cookies?", "yes", "no"), "r1-plan-2": todo_script_of("r1-plan")})
    words = [sys.executable, "-m", "cdo", *TEAM, *([] if how else ["--no-input"]), REQUEST]
    terminal = pexpect.spawn(
        words[0], words[1:], cwd=str(todo.path), env=dict(todo.environment()), encoding="utf-8", timeout=60
    )
    if how:
        terminal.expect("Your answer")
    if how == "typed":
        terminal.sendline("1")
    elif how:
        told_ = todo("answer", "a", "yes").ok().out
        assert "The process that runs it takes it." in told_ and "cdo resume" not in told_
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == (0 if how else 6)
    assert any("Answer: yes" in info.prompt for info in provider.calls) is bool(how)


@pytest.mark.slow
@pytest.mark.model
def test_the_embedded_model_comes_to_an_honest_end(bare: Desk) -> None:
    words = ("cabal", "-m", "local", "--operatives", "2", "--rounds", "2", "--json", *A, REQUEST)
    ended = bare(*words, env={"CDO_MODELS_DIR": os.environ.get("CDO_MODELS_DIR", "")}, timeout=900)
    assert ended.code in (0, 3), ended.err
    assert ended.json["status"] == {0: "done", 3: "unresolved"}[ended.code]
    assert (bare.session() / "r0-bootstrap.md").is_file() and REQUEST in (bare.session() / "mission.md").read_text()
    assert f"> **{DEMO_MISSION}** For answers worth having" in (bare.session() / "FINAL.md").read_text()
    assert (bare.session() / "r1-present.md").is_file(), "the word check refuses nothing that happened"
    assert bool(ended.json["unaccepted"]) is (ended.code == 3)
    bare("verify", "a").ok()


def test_a_mission_begun_under_other_rules_is_not_paid_for_again(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", "--max-calls", "5", REQUEST).failed(3)
    head = todo.session() / "session.yaml"
    head.write_text(re.sub(r" *rules: \d+\n", "", head.read_text()))
    before, asked = files(todo.session()), len(provider.calls)
    for words in (("resume", "a", "--yes", "--max-calls", "100"), ("replay", "a")):
        todo(*words).failed(8, "another version of cdo, whose rules of missions differ")
    assert len(provider.calls) == asked and files(todo.session()) == before
