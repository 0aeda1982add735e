"""Rules of missions that came later: what they do, and that a mission keeps those that it was begun under."""

from __future__ import annotations

import re

import pytest

from cdo.planning.mission_crew import KNOWN_RULES
from tests.conftest import Desk
from tests.runs.test_mission import Said, names, tells, told
from tests.runs.test_mission_authority import HELLO, hello
from tests.support.answers import RequestInfo
from tests.support.cabal_team import (
    ALEX,
    JORDAN,
    assignment,
    bootstrap,
    collab,
    finding,
    inspect,
    inspection,
    plan,
    product,
    question,
    version,
    write,
)
from tests.support.faults import Fault
from tests.support.provider import Provider

ROUND = ("cabal", "--operatives", "2", "--session", "a", "--rounds", "1", "Make a page")
PERSONAS = {
    "chair-1": "Richard, Full-Stack Developer leading this MVP.",
    ALEX: "Alex, Frontend specialist. Focus: React, UI/UX.",
    JORDAN: "The Backend, all of it.",
    "watchdog-1": "Meticulous about details.",
}
GREETS = inspect(inspection("p2", "v1", {"d1": "hello, world"}), inspection("p1", "", {"d1": "greets its visitor"}))


def page(**changes: Said) -> dict[str, Said]:
    """A team that makes one page in one round, which is accepted."""
    begun = bootstrap(
        objectives=["A page that greets"], initial_products=[product("Hello", "Content", "Greets")], personas=PERSONAS
    )
    return hello(**{"r0_bootstrap": begun, "r1_inspect": GREETS, **changes})


def after(first: str, then: str) -> tuple[list[str], Said]:
    """A reply that is `first` at first, with the prompts to which it was given."""
    prompts: list[str] = []

    def say(info: RequestInfo) -> str:
        prompts.append(info.prompt)
        return first if len(prompts) == 1 else then

    return prompts, say


CODE = "Use `greet [[p:p2]]` there.\n\n    greet [[p:p2]]\n"  # references in code that no fence holds


@pytest.mark.parametrize("rules", KNOWN_RULES)
def test_a_persona_may_begin_with_its_name_and_code_is_left_alone(rules: int, cdo: Desk, provider: Provider) -> None:
    """A mission that was begun before that goes on with ids, and its files are still those of its record."""
    made = version("p2", "Hello", f"{HELLO}\n\n{CODE}", "Calls `greet`")
    provider.script = told(page(**{f"r1_write_{ALEX}": write(made), f"r1_review_{JORDAN}": "I would rather not."}))
    provider.faults = [Fault(status=401, call="r1-plan")]
    cdo(*ROUND).failed(4)
    head = cdo.session() / "session.yaml"
    head.write_text(re.sub(r"\brules: \d\b", f"rules: {rules}", head.read_text()))
    provider.faults = []
    ended = cdo("resume", "a").ok()
    chair, writer = ("Richard", "Alex (operative-1)") if rules >= 4 else ("chair-1", "operative-1")
    assert f"{chair} to you: The page greets." in ended.err.splitlines()
    session = cdo.session()
    assert ("**Richard (chair-1):** The page greets." in (session / "CHAT.md").read_text()) is (rules >= 4)
    assert f"owner {writer}, version 1" in (session / "TREE.md").read_text()
    pages = "".join((session / name).read_text() for name in ("CHAT.md", "TREE.md", "FINAL.md"))
    text = (session / "deliverables/hello.md").read_text()
    assert text.endswith(CODE if rules >= 4 else CODE.replace("[[p:p2]]", "Hello"))
    by, said = ("Alex", "`greet`") if rules >= 5 else ("operative 1", r"\`greet\`")
    assert pages.count(f"Hello got its version 1 from {by}: Calls {said}") == 2
    missed = "the review of Hello" if rules >= 5 else "its review"
    assert pages.count(f"Nothing came from operative 2 in {missed}: no valid reply") == 3
    assert "The Backend (" not in pages and "Meticulous" not in pages
    cdo("verify", "a").ok()
    cdo("replay", "a", "--strict").ok()


def test_what_the_watchdog_says_twice_is_one_flag(cdo: Desk, provider: Provider) -> None:
    leak = finding("security", 9, "It leaks secrets")
    twice = [collab("p2", "It leaks secrets", "concern", 9), collab("p2", "It is slow", "concern", 8)]
    provider.script = told(
        page(r1_inspect=inspect(inspection("p2", "v1", {"d1": "hello, world"}, leak), collabs=twice))
    )
    cdo(*ROUND).failed(3)
    notes = sorted(cdo.session().glob("products/p2-*/c*.md"))
    assert ["It leaks secrets" in note.read_text() for note in notes] == [True, False]
    assert "collab: c1" in next(cdo.session().glob("products/p2-*/i1.md")).read_text()
    assert (cdo.session() / "FINAL.md").read_text().count("a flag of the watchdog is open: It leaks secrets") == 1


def test_a_chair_that_has_asked_often_enough_plans(cdo: Desk, provider: Provider) -> None:
    prompts, once_more = after(question("Sure?", "yes"), plan(assignment("p2", ALEX, JORDAN)))
    asked: dict[str, Said] = {f"r1-plan{part}": question(f"Which{part}?", "a", "b") for part in ("", "-2", "-3")}
    provider.script = told(page() | asked | {"r1-plan-4": once_more})
    paused = cdo(*ROUND)
    for _ in asked:
        paused.failed(6)
        cdo("answer", "a", "1").ok()
        paused = cdo("resume", "a", "--yes")
    paused.ok()
    assert len(prompts) == 2 and "the user answered all the questions that one step may ask" in prompts[1]
    assert f"r1-write-{ALEX}" in names(provider)


def test_a_check_that_nothing_can_pass_is_refused(cdo: Desk, provider: Provider) -> None:
    part = product("Part", "Content", {"text": "Refers", "check": {"kind": "reference", "value": "new-1"}})
    group = product("Group", "Collection", new_id="new-1")
    prompts, begun = after(
        bootstrap(objectives=["A page"], initial_products=[group, part]), str(page()["r0-bootstrap"])
    )
    provider.script = told(page(r0_bootstrap=begun))
    cdo(*ROUND).ok()
    assert "p2 only holds other products and never has a version" in prompts[1]


HIDDEN = "It greets each visitor by name"


@pytest.mark.parametrize("rules", [5, 4])
def test_words_that_no_viewer_shows_are_no_evidence(rules: int, cdo: Desk, provider: Provider) -> None:
    made = version("p2", "Hello", f"{HELLO}\n\n[//]: # ({HIDDEN})\n")
    quoted = inspect(inspection("p2", "v1", {"d1": HIDDEN}), inspection("p1", "", {"d1": "greets its visitor"}))
    provider.script = told(page(**{f"r1_write_{ALEX}": write(made)}, r1_inspect=quoted))
    provider.faults = [Fault(status=401, call="r1-plan")]
    cdo(*ROUND).failed(4)
    head = cdo.session() / "session.yaml"
    head.write_text(re.sub(r"\brules: \d\b", f"rules: {rules}", head.read_text()))
    provider.faults = []
    assert cdo("resume", "a").code == (3 if rules == 5 else 0)
    asked = [info.prompt for info in provider.calls if info.call.startswith("r1-inspect-p2")]
    assert any("the quote for d1 does not stand there" in prompt for prompt in asked) == (rules == 5)
    cdo("verify", "a").ok()


def test_a_boast_stands_behind_the_facts_everywhere(cdo: Desk, provider: Provider) -> None:
    boast = "Alles fertig und schon online, ready and live!"
    provider.script = told(page(r1_inspect="Nothing.", r1_present=tells(("chair-1", boast))))
    ended = cdo(*ROUND).failed(3)
    fact = "0 of 2 products accepted"
    lines = ended.err.splitlines()
    assert lines[lines.index(f"Richard to you: {boast}") - 1] == f"By the record: {fact}"
    session = cdo.session()
    chat = (session / "CHAT.md").read_text()
    assert f"**By the record:** {fact}\n\n**Richard (chair-1):** {boast}" in chat
    course = (session / "FINAL.md").read_text().partition("## Course")[2]
    assert f"  - By the record: {fact}.\n  - Told to you: {boast}\n" in course
    cdo("report", "a").ok()
    assert re.search(
        rf"<p><b>By the record</b>: {fact}</p>\s*<div class=\"move\">", (session / "report.html").read_text()
    )
    cdo("verify", "a").ok()
