"""The page of a mission: what it says and where that leads, what it costs, and that nothing in it can act."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from cdo.cabal.files.delivered_files import deliverables
from cdo.cabal.files.layout import files
from cdo.cabal.model.entities import (
    Acceptance,
    Assignment,
    Collab,
    Criterion,
    CriterionResult,
    Inspection,
    InspectionFinding,
    InspectionVerdict,
    Kind,
    MissionEvent,
    MissionStep,
    Product,
    Question,
    Status,
    Version,
    identity,
)
from cdo.cabal.model.state import MissionState
from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Criteria
from cdo.core.errors import ContentError
from cdo.core.formatting import money, visible
from cdo.core.mission_names import CHAIR, ROOT, USER, WATCHDOG, operatives
from cdo.core.steps import Ask, CitationCheck
from cdo.core.usage import TotalUsage
from cdo.formats import strict_yaml
from cdo.planning.mission_crew import Crew
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.report import charts, mission_costs, mission_page, safe_html
from cdo.report.page import Standing
from cdo.session.reader import InMemorySession
from cdo.session.session_file import new_session_file
from tests.support.harness import sampled
from tests.support.missions import ALEX, JORDAN, MISSION, REQUEST, todo
from tests.support.pages import Page, inert, parsed
from tests.support.records import EXCHANGE
from tests.unit.report.test_page import HOSTILE

LIBRARY = Library((("packaged", PACKAGED),))
BIG, SMALL = "openai/gpt-4.1", "openai/gpt-4.1-mini"


class Course(Struct, frozen=True):
    """A mission as retracing gives it."""

    state: MissionState
    rounds: tuple[MissionState, ...]
    question: Ask | None = None
    asked: tuple[Any, ...] = ()
    outcome: Any = None
    records: tuple[Mapping[str, Any], ...] = ()


def course(rounds: int) -> Course:
    """The TODO list after so many rounds, each of them closed."""
    states = tuple(todo(number) for number in range(rounds + 1))
    return Course(states[-1], states, records=tuple(paid(rounds)))


def paid(rounds: int) -> Iterable[Mapping[str, Any]]:
    """What the calls of these rounds took."""
    yield exchange("r0-bootstrap", 0.04, (900, 100))
    for number in range(1, rounds + 1):
        yield exchange(f"r{number}-plan", 0.03, (700, 50))
        yield exchange(f"r{number}-plan-2", 0.01, (200, 50))
        for agent in (ALEX, JORDAN):
            yield exchange(f"r{number}-write-{agent}", 0.02, (501, 200), SMALL)
        yield exchange(f"r{number}-inspect", 0.05, (2001, 300))
        yield exchange(f"r{number}-present", 0.005, (300, 60), SMALL)


def exchange(call: str, cost: float | None, tokens: tuple[int, int], model: str = BIG) -> Mapping[str, Any]:
    usage = {"input_tokens": tokens[0], "output_tokens": tokens[1]}
    return {**EXCHANGE, "call": call, "model": model, "cost": cost, "usage": usage, "seconds": 2.0}


def kept(told: Course, *more: str) -> InMemorySession:
    """The session that a mission leaves, with files of the names `more` besides."""
    criteria = Criteria(exit_confidence=0.8, quiet_turns=2, agreement_flag=0.85, confidence_drop=0.2, severe=8)
    plan = Plan(
        preset="cabal", why="", mode="cabal", width=(1, 1), start=1, turns=(1, 9), adaptive=False, roles=(),
        known_roles=(), models=(BIG, SMALL), criteria=criteria,
        crew=Crew(
            operatives=len(told.state.team), rounds=9, idle=2, deliberations=0, questions=0, presets=(), tokens=9000,
            seats=dict.fromkeys(told.state.agents, BIG),
        ),
    )  # fmt: skip
    body = "".join(f"{json.dumps(record)}\n" for record in told.records).encode()
    head = json.dumps({"sha256": sha256(body).hexdigest()}).encode()
    named = [f"{record['call']}.md" for record in told.records if record["kind"] == "exchange"]
    texts = {**files(told.state, None)[0], **files(told.state, None)[1], **deliverables(told.state)}
    ends = ["FINAL.md", "CERTIFICATE.yaml"] if told.state.halt else []
    texts |= dict.fromkeys((*named, *more, *ends), "")
    texts["session.yaml"] = strict_yaml.dump(to_builtins(new_session_file(plan, Settings(), {})))
    data = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    return InMemorySession("todo", "memory", {**data, "calls/0001.jsonl": head + b"\n" + body})


def page_of(told: Course, now: Standing | None = None, base: str | None = "") -> str:
    return mission_page.page(kept(told), told, LIBRARY, base, now)


def text(html: str, ident: str) -> str:
    """The text of a section or an article of the page, without what stands below it in others."""
    match = re.search(rf'<(section|article) id="{ident}"', html)
    assert match, ident
    found = Page()
    found.feed(html[match.start() : html.index(f"</{match[1]}>\n", match.end())])
    return found.text


def round_of(html: str, number: int) -> str:
    start = html.index(f'aria-labelledby="round-{number}"')
    found = Page()
    found.feed(html[start - 10 : html.index("</section>", start)])
    return found.text


# -- what it says ----------------------------------------------------------------------------------


def test_status_and_deliverables_come_first() -> None:
    html = page_of(course(3))
    page = parsed(html)
    inert(page)
    order = ["status", "tree", "course", "products", "decisions", "chat", "cost", "files"]
    assert [ident for ident in page.ids if ident in order] == order
    top = text(html, "status")
    for words in (
        "Done", MISSION.mission, "MVP Features Selection accepted", "CRUD, session in an httpOnly cookie",
        "Accepted 4 of 4", "3 rounds", "Open blockers 0", "$0.45", "FINAL.md", "CERTIFICATE.yaml",
        "3 files in deliverables/", "deliverables/mvp-features.md",
    ):  # fmt: skip
        assert words in top, words
    assert "What is missing" not in top and "Specification only: no code is deployed" in top
    assert "<h1>Build a simple TODO list web application MVP</h1>" in html


def test_what_is_missing_is_told_beside_it() -> None:
    html = page_of(course(1))
    top = text(html, "status")
    assert "Not done yet unfinished The mission has not ended" in top and "Nothing is accepted yet." in top
    assert "MVP Features Selection: a flag of the watchdog is open: JWT in localStorage is open to XSS" in top
    assert "Accepted 0 of 3" in top and "Open blockers 1 of 2 collabs" in top
    assert '<a class="figure" href="#c2">1</a>' in html


def test_a_mission_that_was_capped_is_unresolved() -> None:
    state = replace(todo(2), halt="rounds", why="The cap of 2 rounds was reached.")
    html = page_of(replace(course(2), state=state))
    top = text(html, "status")
    assert top.startswith("Unresolved unresolved It ended (rounds) before everything was accepted: The cap of 2")
    assert (
        "Technical Architecture: it lacks nothing, and the mission ended before it was accepted" in top
        and "accepted Deliverables" not in top
    )
    # What was accepted and lost its ground is no deliverable, even in a mission that was declared done.
    done = todo(3)
    late = replace(done.collabs["c2"], id="c3", open=True, product="p4")
    lost = replace(done, collabs={**done.collabs, "c3": late})
    top = text(page_of(replace(course(3), state=lost)), "status")
    assert top.startswith("Unresolved") and "Technical Architecture accepted" not in top and "2 of 4" in top


def test_a_question_is_put_first() -> None:
    asked = Ask("r1-plan", "Do we need accounts?", ("yes", "no"))
    state = replace(todo(1), questions=(Question("r1-plan", asked.question, asked.options, "", 1),))
    html = page_of(replace(course(1), state=state, question=asked))
    assert text(html, "status").startswith(
        "A question for you paused It waits for your answer: Do we need accounts? (yes / no) cdo answer todo gives"
    )
    assert "Questions Do we need accounts? (yes / no) not answered yet" in round_of(html, 1)
    answered = replace(state, questions=(replace(state.questions[0], answer="yes, two kinds"),))
    assert "Answer: yes, two kinds" in round_of(page_of(replace(course(1), state=answered)), 1)


def test_a_mission_that_runs_or_stopped_says_so() -> None:
    assert "running It runs now" in text(page_of(course(1), Standing(running=True)), "status")
    assert "It stopped: the models failed" in text(page_of(course(1), Standing(why="the models failed")), "status")


def test_the_tree_tells_who_is_blocked_by_what() -> None:
    html = page_of(course(1))
    row = re.compile(r'<tr><th scope="row" class="d\d"><a href="#(\w+)">.*?</tr>', re.DOTALL)
    rows = {match[1]: match[0] for match in row.finditer(html)}
    assert list(rows) == ["p1", "p2", "p3", "p4"], "as it is nested"
    for id, words in {
        "p1": ("chair-1", "pending", 'waits for <a href="#p3">MVP Features', '</a>, <a href="#p4">Technical'),
        "p2": ("the chair&#39;s own",),
        "p3": ("Jordan", "in progress", '<a href="#i1">1/2</a>', 'href="#c2">concern</a> of watchdog-1: JWT'),
        "p4": (
            'href="products/p4-tech-arch/v2.md">1 (v2)</a>',
            '<a href="#i2">2/2</a>',
            "it lacks nothing, and the mission ended before it was accepted",
        ),
    }.items():
        for word in words:
            assert word in rows[id], (id, word)
    assert 'class="d0"' in rows["p1"] and 'class="d1"' in rows["p3"]


def test_the_course_is_told_round_by_round() -> None:
    html = page_of(course(3))
    first, second, third = (round_of(html, number) for number in (1, 2, 3))
    for words in (
        "Assigned MVP Features Selection to Jordan: Select the features",
        "Technical Architecture to Alex, reviewed by Jordan: Draft the architecture",
        "New versions MVP Features Selection version 1 (v1) by Jordan: First draft",
        "Reviews 6/10 suggestion on Technical Architecture by Jordan: 429?",
        "Verdicts blocked MVP Features Selection, version 1 (v1) i1 9/10 security: JWT in localStorage is open to "
        "XSS c2",
        "approved Technical Architecture, version 1 (v2) i2",
        "Blockers opened 9/10 concern on MVP Features Selection by watchdog-1: JWT in localStorage is open to XSS",
        "r1-plan-2.md r1-inspect.md r1-present.md",
    ):  # fmt: skip
        assert words in first, words
    assert "Switch to httpOnly cookies answers c2" in second and "Blockers opened" not in second
    assert "Closed confirmed 9/10 concern on MVP Features Selection: JWT in localStorage" in second
    assert "Error Handling was planned" in second
    assert (
        "Accepted accepted MVP Features Selection accepted Technical" in third and "halt The chair declared" in third
    )
    table = text(html, "course")
    assert "Round 1 2 2 1 blocked 1 approved 1 1 0/3 $0.14" in table
    assert "Round 3 0 0 0 0 4/4 $0.14" in table and "Bootstrap 0 0 0 0 0/3 $0.04" in table


def test_the_plots_tell_what_was_counted() -> None:
    html = page_of(course(3))
    assert "Accepted, round 0: 0, round 1: 0, round 2: 0, round 3: 4." in html
    assert "To be accepted, round 0: 3, round 1: 3, round 2: 4, round 3: 4." in html
    assert "New versions, round 0: 0, round 1: 2, round 2: 3, round 3: 0." in html
    assert "Open blockers, round 0: 0, round 1: 1, round 2: 0, round 3: 0." in html


def test_a_round_that_is_open_counts_as_far_as_it_came() -> None:
    told = course(2)
    html = page_of(replace(told, rounds=told.rounds[:2]))
    assert page_of(told) == html
    assert "New versions Error Handling" in round_of(html, 2) or "Error Handling version 1" in round_of(html, 2)


def test_each_product_has_its_place() -> None:
    html = page_of(course(2))
    features = text(html, "p3")
    for words in (
        "MVP Features Selection Decision p3", "owner Jordan", "products/p3-mvp-features/product.yaml",
        "Not accepted: it lacks nothing, and the mission ended before it was accepted",
        "CRUD, session in an httpOnly cookie",
        "d1 Lists task CRUD contains ✓ met by code create",
        "d2 Says how users log in, safely against script injection ✓ met by watchdog-1 a session in an",
        "version 1 (v1) by Jordan in round 1: First draft Outcome: CRUD, JWT in localStorage",
        "version 2 (v3) by Jordan in round 2: Login by httpOnly cookie", "answers c2",
        "blocked i1 of version 1 (v1) in round 1, 1 of 2 criteria met 9/10 security: JWT in localStorage is open to "
        "XSS → Use httpOnly cookies c2",
        "confirmed 9/10 concern c2 by watchdog-1, round 1: A token in localStorage is", "confirmed by watchdog-1",
        "Latest version of MVP Features Selection", "Users create, read, update and delete tasks.",
    ):  # fmt: skip
        assert words in features, words
    assert "Accepted version of MVP Features Selection" in text(page_of(course(3)), "p3")
    assert "no longer holds" not in features
    stale = replace(todo(2).products["p3"], stale_at=len(todo(2).events), stale_why="the mission changed")
    moved = replace(todo(2), products={**todo(2).products, "p3": stale})
    again = text(page_of(replace(course(2), state=moved)), "p3")
    assert "no longer holds" in again and "its last inspection is stale: the mission changed" in again


def test_what_is_doubtful_stands_beside_what_is_delivered() -> None:
    """Citations that do not hold, and replies that the person edited."""
    state = todo(3)
    doubt = CitationCheck('src/a.py:4 "with <LOCK>"', False, "the words are not in the file")
    changed = replace(state.versions["v4"], edited=True)
    told = replace(state, unfounded={"v4": (doubt,), "c1": (doubt,)}, versions={**state.versions, "v4": changed})
    html = page_of(replace(course(3), state=told))
    first = r"Technical Architecture accepted version 2 \(v4\), \S+ edited by hand 1 citation without ground"
    assert re.search(first, text(html, "status"))
    product = text(html, "p4")
    assert product.count('citation does not hold src/a.py:4 "with <LOCK>": the words are not in the file') == 2
    assert product.count("edited by hand") == 1 and "<LOCK>" not in html


def test_the_objectives_stand_with_their_evidence() -> None:
    top = text(page_of(course(3)), "status")
    for item in MISSION.objectives:
        assert item in top
    assert "Functional CRUD of tasks ✓ met" in top
    assert "Functional CRUD of tasks not inspected" in text(page_of(course(0)), "status")


def test_a_file_that_is_no_markdown_is_shown_as_it_is() -> None:
    state = todo(3)
    page = replace(state.versions["v4"], content="# no heading\n<b>bold</b> & more")
    made = replace(state.products["p4"], path="src/app.py")
    told = replace(state, versions={**state.versions, "v4": page}, products={**state.products, "p4": made})
    html = page_of(replace(course(3), state=told))
    assert "<code># no heading\n&lt;b&gt;bold&lt;/b&gt; &amp; more</code></pre>" in html
    assert "src/app.py" in text(html, "tree")


def test_long_versions_are_cut_and_linked() -> None:
    state = todo(2)
    long = replace(state.versions["v4"], content=f"# Long\n\n{'word ' * 2000}THE END")
    html = page_of(replace(course(2), state=replace(state, versions={**state.versions, "v4": long})))
    assert "It is cut here; products/p4-tech-arch/v4.md has all of it." in text(html, "p4") and "THE END" not in html
    assert "It is cut here" not in text(html, "p3")


def test_what_is_archived_stays_readable() -> None:
    state = todo(2)
    gone = replace(state.products["p5"], status=Status.ARCHIVED)
    html = page_of(replace(course(2), state=replace(state, products={**state.products, "p5": gone})))
    assert "Error Handling" not in text(html, "tree") and "Error Handling Content p5 archived" in text(html, "p5")


def test_decisions_bind_and_keep_those_who_were_against() -> None:
    state = todo(3)
    nested = replace(
        state.versions["v3"],
        content="# Login\n\n## Decision\n\nCookies.\n\n## Minority Reports\n\n- critic: **tokens**\n",
        session="todo-p3",
    )  # fmt: skip
    waived = Collab(
        "c3", "p3", "concern", 8, ALEX, "Cookies need CSRF", "CSRF", 2, "v3", "", False, CHAIR, "waived", "Lax"
    )
    state = replace(state, versions={**state.versions, "v3": nested}, collabs={**state.collabs, "c3": waived})
    accepted = replace(state.acceptances["p3"], sha=nested.sha)
    state = replace(state, acceptances={**state.acceptances, "p3": accepted})
    html = page_of(replace(course(3), state=state))
    found = text(html, "decisions")
    for words in (
        "MVP Features Selection binding CRUD, session in an httpOnly cookie", "deliberated: cdo report todo-p3",
        "Minority reports on version 2 (v3) critic: tokens",
        "Overruled 8/10 concern of Alex: CSRF waived: Lax",
    ):  # fmt: skip
        assert words in found, words
    assert "not binding yet" in text(page_of(course(2)), "decisions")


def test_the_chat_names_what_it_rests_on() -> None:
    chat = text(page_of(course(2)), "chat")
    assert "Round 1 r1-present.md Jordan operative-2: Hit a security issue with the login." in chat
    assert "Round 2 r2-present.md Alex operative-1: The architecture is aligned" in chat
    assert "MVP Features Selection: blocked" in text(page_of(course(1)), "chat") or "Technical" in chat


# -- what it costs ---------------------------------------------------------------------------------


def test_what_each_seat_and_product_cost() -> None:
    told = course(2)
    html, costs = page_of(told), mission_costs.summed(told.records, told.state)
    shown = text(html, "cost")
    assert costs.total.calls == 13 and f"{money(costs.total.cost)} for 13 calls" in shown
    assert f"chair-1 {BIG} 5 3,000 10.0 s $0.12" in shown and f"watchdog-1 {BIG} 2" in shown
    assert f"Alex {SMALL} 2 1,402" in shown and f"envoy-1 {SMALL} 2 720" in shown
    # Of two products that an inspection looked at each bears a half; the envoy's words touch none.
    assert costs.products["team"].calls == 2 + 2, "envoys, and plans of a round without events of the chair"
    assert costs.of(CHAIR).cost == pytest.approx(0.12)
    for measure in ("tokens", "cost", "seconds"):
        parts = sum(getattr(spent, measure) for spent in costs.products.values())
        assert parts == pytest.approx(getattr(costs.total, measure)), measure


def test_a_call_is_shared_among_what_it_touched() -> None:
    state = todo(1)
    costs = mission_costs.summed([exchange("r1-inspect", 0.05, (2001, 300))], state)
    assert set(costs.products) == {"p3", "p4"}
    assert [costs.products[id].tokens for id in ("p3", "p4")] == [1151, 1150]
    assert costs.products["p3"].cost == costs.products["p4"].cost == 0.025
    named = tuple(replace(item, call="r1-plan-2") for item in state.events if item.ref == "v1")
    shares = mission_costs.summed([exchange("r1-plan", 0.03, (9, 1))], replace(state, events=named)).products
    assert shares == {"p3": TotalUsage(1, 10, 0, 0.03, 0, 2.0)}, "what an event says of its call wins"
    told = mission_costs.summed(
        [exchange("r1-write-operative-1", None, (5, 5)), exchange("group", 1.0, (1, 1))], state
    )
    assert told.products["p4"].unpriced == 1 and told.seats["beside"][-1].cost == 1.0
    assert told.products["team"].cost == 1.0


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_parts_add_up(tokens: int, count: int) -> None:
    parts = mission_costs.parts(TotalUsage(1, tokens, 0, 0.7, 0, 3.0), count)
    assert sum(part.tokens for part in parts) == tokens and len(parts) == count
    assert sum(part.cost for part in parts) == pytest.approx(0.7)
    assert max(part.tokens for part in parts) - min(part.tokens for part in parts) <= 1


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ("r0-bootstrap", (0, MissionStep.BOOTSTRAP, CHAIR)),
        ("r12-plan-2", (12, MissionStep.PLAN, CHAIR)),
        ("r1-write-operative-3", (1, MissionStep.WRITE, "operative-3")),
        ("r1-review-operative-12-2", (1, MissionStep.REVIEW, "operative-12")),
        ("r3-inspect-p4", (3, MissionStep.INSPECT, WATCHDOG)),
        ("r3-present", (3, MissionStep.PRESENT, "envoy-1")),
        ("t1-critic", None),
        ("r1-write-user-1", None),
        ("r1-plans", None),
    ],
)
def test_the_name_of_a_call_tells_whose_it_is(call: str, key: object) -> None:
    assert mission_costs.made(call) == key


# -- where it leads --------------------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_every_link_leads_somewhere(rounds: int) -> None:
    told = course(rounds)
    there = kept(told).files()
    page = parsed(page_of(told))
    inert(page)
    assert len(page.ids) == len(set(page.ids))
    inner = {address[1:] for address in page.addresses if address.startswith("#")}
    assert inner <= set(page.ids), inner - set(page.ids)
    outer = {address for address in page.addresses if not address.startswith("#")}
    assert outer == set(there), "every file is linked, and nothing else"
    assert all(address.startswith("#") for address in parsed(page_of(told, base=None)).addresses)
    below = {f"../run/{name}" for name in there}
    assert {a for a in parsed(page_of(told, base="../run")).addresses if not a.startswith("#")} == below


def test_every_figure_of_the_overview_leads_somewhere() -> None:
    html = page_of(course(3))
    for ident in ("tree", "course"):
        start = html.index(f'<section id="{ident}"')
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", html[start : html.index("</table>", start)], re.DOTALL)
        bare = [cell for cell in cells if re.fullmatch(r"\s*\$?[0-9.%/]+\s*", cell)]
        assert cells and not bare, bare


def test_references_lead_to_what_they_name() -> None:
    state = todo(2)
    ids = "See [[p:p4]], [[v:v3]], [[c:c2]], [[a:operative-1]] and [[p:p99]] <b>."
    order = replace(state.assignments["p3"], objective=ids)
    html = page_of(replace(course(2), state=replace(state, assignments={"p3": order})))
    assert (
        'See <a href="#p4">Technical Architecture</a>, <a href="#v3">MVP Features Selection, version 2</a>, '
        '<a href="#c2">c2</a>, [[a:operative-1]] and [[p:p99]] &lt;b&gt;.'
    ) in html


def test_it_is_made_for_everybody() -> None:
    page = parsed(page_of(course(3)))
    levels = page.headings
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later <= level + 1 for level, later in pairwise(levels)), levels
    assert {"header", "main", "nav", "footer"} <= {tag for tag, _ in page.tags}
    assert next(attrs for tag, attrs in page.tags if tag == "a") == {"class": "skip", "href": "#main"}
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.tags if tag == "th")
    assert all("aria-labelledby" in attrs and attrs["role"] == "img" for tag, attrs in page.tags if tag == "svg")
    boxes = [attrs for _, attrs in page.tags if attrs.get("class") == "scroll"]
    assert boxes and all(attrs["tabindex"] == "0" for attrs in boxes), "what scrolls can be scrolled by keys"


def test_nothing_but_a_request_is_a_page_too() -> None:
    state = MissionState(REQUEST, operatives(2))
    html = page_of(Course(state, ()))
    page = parsed(html)
    inert(page)
    assert "The mission is not set up yet." in text(html, "status") and "There are no products yet." in html
    assert "<svg" not in html and {a[1:] for a in page.addresses if a.startswith("#")} <= set(page.ids)


@pytest.mark.parametrize(
    ("name", "body", "line"),
    [
        ("templates/cabal/report", "<p>\n{{ nothing }}\n", 5),
        ("templates/cabal/report", "{{ head(title, 'x') }}\n\n{% if %}\n", 6),
        ("templates/report-parts", "{% macro head(title, first) %}\n{{ title.nothing }}{% endmacro %}\n", 5),
    ],
)
def test_a_broken_template_is_named_with_its_line(tmp_path: Path, name: str, body: str, line: int) -> None:
    place = tmp_path / f"{name}.md"
    place.parent.mkdir(parents=True)
    place.write_text(f"---\npurpose: x\n---\n{body}", "utf-8")
    mine = Library((("user", tmp_path), ("packaged", PACKAGED)))
    with pytest.raises(ContentError, match=re.escape(f"{place}: line {line}: ")):
        mission_page.page(kept(course(1)), course(1), mine)


# -- hostile text ----------------------------------------------------------------------------------

# What code makes itself, or checks before it becomes part of a state: ids, kinds, folders.
CHECKED = frozenset((
    "id", "slug", "parent", "product", "owner", "author", "actor", "writer", "reviewers", "agent", "version",
    "versions", "inspection", "collab", "criterion", "ref", "events", "attach", "address", "addresses", "team", "by",
    "recipients", "finding", "halt", "closed_by", "sha", "parts", "call", "kind", "seen",
))  # fmt: skip


def poisoned(value: Any, word: str) -> Any:
    """A state with `word` in place of every text that an agent or a person could have written."""
    if isinstance(value, str):
        return value if isinstance(value, Enum) else word
    if isinstance(value, Struct):
        known = {"dod"} if isinstance(value, (Acceptance, Inspection)) else set()  # identities there, texts elsewhere
        known |= CHECKED if not isinstance(value, MissionState) else {"team", "halt", "seen"}
        names = [name for name in value.__struct_fields__ if name not in known]
        return replace(value, **{name: poisoned(getattr(value, name), word) for name in names})
    if isinstance(value, Mapping):
        return {key: poisoned(item, word) for key, item in value.items()}
    return type(value)(poisoned(item, word) for item in value) if isinstance(value, (tuple, list)) else value


@pytest.fixture(scope="module")
def shapes() -> set[tuple[str, str]]:
    """Every tag and attribute that a page may have."""
    rich = safe_html.html(
        "# a\n\n- b\n\n3. *c* **d** ~~e~~ `f`\n\n> g  \n> h\n\n---\n\n| i |\n|---|\n| j |\n\n```\nk\n```\n"
    )
    deep = {(f"h{level}", "") for level in range(1, 7)}
    both = [page_of(course(number)) for number in (1, 3)]
    return {shape for html in (*both, rich) for shape in parsed(html).shapes} | deep


@pytest.mark.wide
@pytest.mark.parametrize("word", sampled(HOSTILE, HOSTILE[::3]), ids=range(len(HOSTILE)))
def test_whatever_is_written_anywhere_stays_text(shapes: set[tuple[str, str]], word: str) -> None:
    told = course(2)
    rounds = tuple(poisoned(state, word) for state in told.rounds)
    asked = Ask(word, word, (word, word))
    questions = (Question("r1-plan", word, (word,), word, 1),)
    state = replace(rounds[-1], questions=questions, halt="rounds", why=word)
    models = [{**record, "model": word} for record in told.records]
    models = [json.loads(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")) for record in models]
    session = kept(replace(told, records=tuple(models)), f"{word}.md".replace("\ud800", "?"))
    page = parsed(mission_page.page(session, replace(told, state=state, rounds=rounds, question=asked), LIBRARY))
    assert page.shapes <= shapes | {("small", ""), ("br", "")}, page.shapes - shapes
    inert(page)
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", page.text
    )
    assert "54439" not in page.text
    ids = {address[1:] for address in page.addresses if address.startswith("#")}
    assert ids <= set(page.ids)
    wanted = " ".join(visible(word).split())[:40]
    assert sum(wanted in " ".join(piece.split()) for _, piece in page.texts) >= 10


# -- plots -----------------------------------------------------------------------------------------

COUNTS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=40)


@given(COUNTS)
@settings(max_examples=100, deadline=None)
def test_plots_of_counts_stay_within_their_frame(counts: list[tuple[int, int]]) -> None:
    rounds = range(len(counts))
    first, second = ([(at, pair[place]) for at, pair in enumerate(counts)] for place in (0, 1))
    for svg in (charts.progress(rounds, first, second), charts.work(rounds, first, second)):
        page = parsed(svg)
        height = float(page.tags[0][1]["viewbox"].split()[3])
        dots = [attrs for tag, attrs in page.tags if tag == "circle"]
        assert len(dots) == len(counts)
        assert all(0 <= float(dot["cx"]) <= 340 and 0 <= float(dot["cy"]) <= height - 36 for dot in dots)
        bars = [attrs for tag, attrs in page.tags if tag == "rect"]
        assert all(float(bar["y"]) >= 0 and float(bar["height"]) >= 0 for bar in bars)
        assert all(float(bar["y"]) + float(bar["height"]) == pytest.approx(height - 36) for bar in bars)
        values = [value for _, value in (first if "progress" in svg else second)]
        heights = [float(dot["cy"]) for dot in dots]
        assert heights[values.index(max(values))] == min(heights), "more stands higher"
    assert len(bars) == len(counts) and sum(tag == "polyline" for tag, _ in page.tags) == (len(counts) > 1)


# -- size ------------------------------------------------------------------------------------------


def large(products: int = 50, rounds: int = 20, seats: int = 4) -> Course:
    """A mission of many products, of which each gets a version, two collabs and an inspection in every round."""
    team, states, records = operatives(seats), list[MissionState](), list[Mapping[str, Any]]()
    dod = tuple(Criterion(f"d{at}", f"Criterion {at}: says enough of what readers ask for") for at in range(1, 5))
    tree = {ROOT: Product(ROOT, "A large mission", Kind.ORCHESTRATION, None, CHAIR, (), slug="large")}
    for at in range(2, products + 1):
        parent = ROOT if at < 10 else f"p{at % 8 + 2}"
        kind = Kind.ORCHESTRATION if at < 10 else Kind.CONTENT
        tree[f"p{at}"] = Product(
            f"p{at}", f"Product number {at}", kind, parent, team[at % seats], dod if at >= 10 else (),
            Status.IN_PROGRESS, slug=f"product-{at}",
        )  # fmt: skip
    state = MissionState("A large mission", team, MISSION, tree)
    states.append(state)
    for number in range(1, rounds + 1):
        state = grown(replace(state, round=number), number)
        states.append(state)
        names = ["plan", "inspect", "present", *(f"{step}-{agent}" for step in ("write", "review") for agent in team)]
        records += [exchange(f"r{number}-{name}", 0.01, (5000, 900)) for name in names]
    return Course(states[-1], tuple(states), records=tuple(records))


def grown(state: MissionState, number: int) -> MissionState:
    """One more round of a large mission."""
    leaves = [item for item in state.products.values() if not item.container]
    products, versions, collabs = dict(state.products), dict(state.versions), dict(state.collabs)
    inspections, assignments, events = dict(state.inspections), dict[str, Assignment](), list(state.events)

    def tell(step: MissionStep, kind: str, actor: str, id: str, ref: str) -> None:
        events.append(MissionEvent(f"e{len(events) + 1}", number, step, kind, actor, f"Something of {id}", id, ref))

    for at, item in enumerate(leaves):
        owner = item.owner or ""
        version = Version(
            f"v{len(versions) + 1}", number, item.id, owner, item.name,
            f"# Text\n\n{'All of **it** matters. ' * 260}",
            "Answers what was said of the version before it, and adds what was asked for. " * 3, number,
        )  # fmt: skip
        versions[version.id] = version
        products[item.id] = replace(products[item.id], versions=(*products[item.id].versions, version.id))
        assignments[item.id] = Assignment(
            item.id, owner, (), 7, "Write the next version of it, as said", "", "", "", number
        )
        tell(MissionStep.WRITE, "version", owner, item.id, version.id)
        for importance, author in ((4 + at % 3, "operative-1"), (8 if at % 9 == number % 9 else 6, WATCHDOG)):
            id = f"c{len(collabs) + 1}"
            collabs[id] = Collab(
                id, item.id, "concern", importance, author, "It does not say what happens when it fails. " * 20,
                "It does not say what happens when it fails, nor who is told of it then",
                number, version.id, open=number % 3 != at % 3,
                closed_by="", how="replied", why="Said now",
            )  # fmt: skip
            tell(MissionStep.REVIEW, "collab", author, item.id, id)
        results = tuple(
            CriterionResult(one.id, at % 2 == 0, "All of **it** matters.", "", WATCHDOG) for one in item.dod
        )
        finding = InspectionFinding(
            "quality", 5, "It does not say what happens when it fails", "Say it", "d1", f"c{len(collabs)}"
        )
        tell(MissionStep.INSPECT, "inspection", WATCHDOG, item.id, "")
        id = f"i{len(inspections) + 1}"
        inspections[id] = Inspection(
            id, item.id, version.id, identity(item.dod), results, (finding,), InspectionVerdict.NEEDS_REVISION,
            number, len(events),
        )  # fmt: skip
    return replace(
        state, products=products, versions=versions, collabs=collabs, inspections=inspections,
        assignments=assignments, events=tuple(events),
    )  # fmt: skip


@pytest.mark.slow
def test_a_large_mission_is_a_small_page() -> None:
    told = large()
    session = kept(told)
    html = mission_page.page(session, told, LIBRARY)  # how long it takes: benchmarks/report.py
    assert len(html.encode()) <= 3_000_000, len(html.encode())
    page = parsed(html)
    inert(page)
    assert {f"p{number}" for number in range(1, 51)} <= set(page.ids)
    assert {a[1:] for a in page.addresses if a.startswith("#")} <= set(page.ids)
    for ident in ("p10", "p50"):
        assert html.count(f'id="{ident}"') == 1
    assert USER not in html
