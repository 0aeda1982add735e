"""What the user asked for decides how a mission ends: objectives, their evidence, what a team cannot take back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Desk
from tests.runs.test_mission import TEAM, Said, tells, told
from tests.support.answers import RequestInfo
from tests.support.cabal_team import (
    ALEX,
    JORDAN,
    assignment,
    bootstrap,
    done,
    inspect,
    inspection,
    plan,
    present,
    product,
    review,
    said,
    version,
    write,
)
from tests.support.provider import Provider

HELLO = "# Hello\n\nThe page greets its visitor with the words: hello, world."
AUDIT = "A PCI audit"


@pytest.fixture
def desk(cdo: Desk, provider: Provider) -> Desk:
    """A desk at which a team makes one product, Hello, in one round and wants to end in the next."""
    provider.script = told(hello())
    return cdo


def hello(**changes: Said) -> dict[str, Said]:
    """The team's replies, by call (r1_plan for r1-plan)."""
    script: dict[str, Said] = {
        "r0-bootstrap": bootstrap(
            objectives=["A page that greets", AUDIT, "100 unit tests"],
            initial_products=[product("Hello", "Content", "Greets the visitor")],
        ),
        "r1-plan": plan(assignment("p2", ALEX, JORDAN)),
        f"r1-write-{ALEX}": write(version("p2", "Hello", HELLO)),
        f"r1-review-{JORDAN}": review(),
        "r1-inspect": inspect(
            inspection("p2", "v1", {"d1": "hello, world"}),
            inspection("p1", "", {"d1": "greets its visitor", "d2": "", "d3": ""}),
        ),
        "r1-present": tells(("chair-1", "The page greets.")),
        f"r2-reflect-{ALEX}": said(),
        "r2-plan": done(),
        "r2-present": tells(("chair-1", "Not everything can be proved.")),
    }
    return script | {name.replace("_", "-"): reply for name, reply in changes.items()}


def section(session: Path, title: str) -> str:
    """The lines of a section of FINAL.md."""
    return (session / "FINAL.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0].strip()


# -- objectives ------------------------------------------------------------------------------------------


def test_objectives_that_no_deliverable_proves_end_unresolved(desk: Desk) -> None:
    desk(*TEAM, "--rounds", "2", "Make an app").failed(3)
    listed = section(desk.session(), "Objectives").splitlines()
    assert re.fullmatch(r"- \*\*A page that greets\*\*: met: “greets its visitor” \(.*Hello.*\)\.", listed[0])
    assert listed[1:] == [
        f"- **{AUDIT}**: not met: It is not shown.",
        "- **100 unit tests**: not met: It is not shown.",
    ]
    assert f"not met: {AUDIT}" in section(desk.session(), "What is missing")
    assert "**Unresolved**" in section(desk.session(), "Result")


def test_an_objective_cannot_be_met_by_a_quote_that_stands_nowhere(desk: Desk, provider: Provider) -> None:
    quotes = {"d1": "greets its visitor", "d2": "The audit was passed", "d3": "100 tests pass"}
    claims = inspect(inspection("p2", "v1", {"d1": "hello, world"}), inspection("p1", "", quotes))
    provider.script = told(hello(r1_inspect=claims))
    desk(*TEAM, "--rounds", "2", "Make an app").failed(3)
    assert (
        section(desk.session(), "Objectives").count("not inspected")
        + section(desk.session(), "Objectives").count("not met")
        >= 2
    )


def test_met_objectives_are_listed_with_their_evidence_and_where_it_stands(cdo: Desk, provider: Provider) -> None:
    provider.script = told({})
    cdo(*TEAM, "-q", "Build it").ok()
    lines = section(cdo.session(), "Objectives").splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        "- **Functional CRUD of tasks**: met: “Users create, read, update and delete tasks.” "
        "([MVP Features Selection](deliverables/mvp-features-selection.md))."
    )
    assert "deliverables/technical-architecture.md" in lines[2]


# -- definitions of done ---------------------------------------------------------------------------------


def test_what_the_team_no_longer_asks_of_itself_is_told_everywhere(desk: Desk, provider: Provider) -> None:
    fewer = {"action": "UPDATE", "product_id": "p2", "product": {"dod": ["Says hello"]}}
    once = plan(bootstrap_overrides={"objectives": ["A page that greets"]}, tree_operations=[fewer])
    again = inspect(
        inspection("p2", "v1", {"d2": "hello, world"}), inspection("p1", "", {"d1": "greets its visitor"})
    )
    provider.script = told({
        **hello(r2_plan=once, r2_inspect=again),
        f"r3-reflect-{ALEX}": said(), "r3-plan": plan(), "r3-inspect": again,
        "r3-present": tells(("chair-1", "We ask for less.")),
        f"r4-reflect-{ALEX}": said(), "r4-plan": done(), "r4-present": tells(("chair-1", "It greets.")),
    })  # fmt: skip
    desk(*TEAM, "--rounds", "4", "Make an app").ok()
    session = desk.session()
    concerns = section(session, "Concerns on record")
    assert "Round 2: Hello no longer has to meet “Greets the visitor”; new instead: “Says hello”" in concerns
    assert f"no longer has to meet “{AUDIT}” and “100 unit tests”; nothing stands in its place" in concerns
    for file in ("TREE.md", "CHAT.md"):
        text = (session / file).read_text()
        assert "“Greets the visitor”; new instead: “Says hello”" in text and AUDIT in text
    assert section(session, "Objectives").count("**") == 2


def test_a_definition_of_done_does_not_vanish_with_its_product(desk: Desk, provider: Provider) -> None:
    """A product that is archived for another one with less to meet ends as a concern, and so does one inside it."""
    group = product("Group", "Collection", new_id="new-1")
    begun = bootstrap(
        objectives=["A page that greets"],
        initial_products=[product("Hello", "Content", "Greets the visitor"), group, product(
            "Inner", "Content", {"text": "Is long", "check": {"kind": "min_words", "value": 900}}, parent_id="new-1"
        )],
    )  # fmt: skip
    swapped = [
        {"action": "REMOVE", "product_id": "p2", "reason": "replaced"},
        {"action": "REMOVE", "product_id": "p3", "reason": "replaced"},
        {"action": "ADD", "new_id": "new-1", "parent_id": "p1", "product": product("Page", "Content", "Says hello")},
    ]
    provider.script = told(hello(
        r0_bootstrap=begun,
        r2_plan=plan(assignment("new-1", ALEX, JORDAN), tree_operations=swapped),
        **{f"r2_write_{ALEX}": write(version("p5", "Page", HELLO)), f"r2_review_{JORDAN}": review()},
        r2_inspect=inspect(
            inspection("p5", "v2", {"d1": "hello, world"}), inspection("p1", "", {"d1": "greets its visitor"})
        ),
        r2_present=tells(("chair-1", "One page took the place of the others.")),
    ))  # fmt: skip
    desk(*TEAM, "--rounds", "2", "Make an app").ok()
    concerns = section(desk.session(), "Concerns on record")
    assert "Round 2: Hello was archived, and nothing has to meet “Greets the visitor” for it." in concerns
    assert "Round 2: Inner was archived, and nothing has to meet “Is long” (min words: 900) for it." in concerns
    assert concerns.count("was archived") == 3 and "Hello was archived" in (desk.session() / "CHAT.md").read_text()
    desk("verify", "a").ok()


# -- the user's own notes --------------------------------------------------------------------------------


def test_a_blocking_note_by_the_user_is_closed_by_the_user_alone(desk: Desk, provider: Provider) -> None:
    proved = {"d1": "greets its visitor", "d2": "greets its visitor", "d3": "greets its visitor"}
    approved = inspect(inspection("p2", "v1", {"d1": "hello, world"}), inspection("p1", "", proved))
    waived = done(waivers=[{"collab_id": "c1", "reason": "It is good enough."}])
    later = {f"r{number}-present": tells(("chair-1", "The user has a note.")) for number in range(3, 7)}
    later |= {f"r{number}-reflect-{ALEX}": said() for number in range(3, 7)}
    later |= {f"r{number}-plan": waived for number in (3, 4)} | {"r5-plan": done()}
    later["r3-inspect"] = later["r4-inspect"] = later["r5-inspect"] = approved
    provider.script = told(hello(r1_inspect=approved) | later)
    desk(*TEAM, "-q", "--rounds", "4", "Make an app").ok()
    desk.write("tmp/cdo-a/inbox/note.md", "---\nproduct: Hello\nimportance: 9\n---\n\nIt must greet in German.")
    desk("resume", "a", "-q").failed(3)
    asked = [info.prompt for info in provider.calls if info.call == "r3-plan"]
    assert "only the user can withdraw it" in asked[1]
    assert "It must greet in German" in section(desk.session(), "What is missing")
    note = next(desk.session().glob("products/p2-*/c1.md"))
    assert "open: true" in note.read_text()
    desk.write("tmp/cdo-a/inbox/back.md", "---\nwithdraw: c1\n---\n\nEnglish will do.")
    desk("resume", "a", "-q", "--rounds", "6").ok()
    text = note.read_text()
    assert "how: withdrawn" in text and "closed_by: u:user-1" in text and "English will do." in text


# -- what the user is told -------------------------------------------------------------------------------

BOAST = "Everything is finished, accepted and shipped to production."


@pytest.mark.parametrize(
    ("said_", "why"),
    [
        (BOAST, "the team ships, deploys or releases nothing"),
        ("The page is now online.", "the team ships, deploys or releases nothing"),
        ("Hello is approved by Marco.", "cites no verdict of that kind"),
    ],
)
def test_a_presentation_that_contradicts_the_facts_is_refused(
    said_: str, why: str, desk: Desk, provider: Provider
) -> None:
    failed = inspect(inspection("p2", "v1", {"d1": ""}))
    provider.script = told(hello(r1_inspect=failed, r1_present=tells(("chair-1", said_))))
    desk(*TEAM, "-q", "--rounds", "1", "Make an app").failed(3)
    sent = [info.prompt for info in provider.calls if info.call == "r1-present"]
    assert len(sent) == 3 and why in sent[1]
    assert said_ not in (desk.session() / "CHAT.md").read_text()


def test_an_approval_that_is_cited_is_told(desk: Desk, provider: Provider) -> None:
    def tells_it(info: RequestInfo) -> str:
        (event,) = re.findall(r"(?m)^- (e\d+): Hello: approved$", info.prompt)
        return present(("chair-1", "Hello is approved by Marco."), events=[event])

    provider.script = told(hello(r1_present=tells_it))
    desk(*TEAM, "-q", "--rounds", "1", "Make an app").failed(3)
    assert "Hello is approved by Marco." in (desk.session() / "CHAT.md").read_text()
