"""The page of a session: what it says, where it leads, and that nothing in it can act, whatever models wrote."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from cdo.content.library import PACKAGED, Library
from cdo.core.formatting import money, visible
from cdo.core.usage import TotalUsage
from cdo.files.atomic_files import closing, open_directory
from cdo.files.locks import take
from cdo.history import baseline as worths
from cdo.history import history
from cdo.history.past_session import History
from cdo.planning.plan import Plan
from cdo.report import charts, safe_html
from cdo.report import page as report
from cdo.report.rendering import STYLE
from cdo.session.reader import InMemorySession, SessionFolder
from cdo.session.session_file import Frozen
from tests.conftest import A, Desk, _desk, explained
from tests.runs.test_modes_run import GATEWAY, HOUSE, case, house
from tests.support import stories
from tests.support.effort import at_most
from tests.support.faults import Fault
from tests.support.harness import tree
from tests.support.pages import Page, inert, parsed
from tests.support.provider import Provider

LIBRARY = Library((("packaged", PACKAGED),))
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk where the story was told as session `a`; only to be looked at."""
    with Provider() as running:
        desk = _desk(tmp_path_factory.mktemp("told"), running.url)
        stories.tell(desk, running)
        yield desk
        assert not desk.tried()


@pytest.fixture
def copy(told: Desk, tmp_path: Path) -> Path:
    """The story's session, to be changed."""
    return Path(shutil.copytree(told.session(), tmp_path / "cdo-a"))


def page_of(session: Path, base: str | None = "") -> str:
    archive = SessionFolder(session)
    return report.page(history.read(archive), report.papers(archive, base), LIBRARY)


def section(html: str, ident: str) -> str:
    """The text of a section of the page."""
    start = html.index(f'<section id="{ident}"')
    return parsed_part(html[start : html.index("</section>\n", html.index("<h2", start))])


def parsed_part(html: str) -> str:
    page = Page()
    page.feed(html)
    return page.text


# -- what it says ----------------------------------------------------------------------------------


@pytest.mark.wide
def test_the_decision_comes_first_and_dissent_with_it(told: Desk) -> None:
    html = page_of(told.session())
    page = parsed(html)
    inert(page)
    order = [
        "decision", "minority", "actions", "worth", "course", "tensions", "moves", "turns", "citations", "cost",
        "files",
    ]  # fmt: skip
    assert [ident for ident in page.ids if ident in order] == order
    top = parsed_part(html[: html.index("<nav")])
    for words in (
        stories.QUESTION, "Write to both queues now; read from Redis only after the sale.", "0.64",
        "moderate, uncalibrated", "max turns", "the cap of 3 turns was reached", "0.84 was stated",
        "critic (o1, severity 7): two writes without one transaction", "Name who owns the nightly comparison",
        "turn 3: agreement of 75% is suspiciously high: above 70% voices may follow one another rather",
        "t2-systems-thinker",
        "Still open T4: Who owns the comparison at night", "lowered because 2 of 5 citations were not found",
    ):  # fmt: skip
        assert words in top, words
    addresses = parsed(html).addresses
    assert "#tension-4" in addresses and addresses.index("#tension-4") < addresses.index("#FINAL")


def test_every_turn_tells_who_said_what(told: Desk) -> None:
    html = page_of(told.session())
    voice = parsed_part(html[html.index('<article id="t1-architect"') : html.index('<article id="t1-critic"')])
    for words in (
        stories.SPEECHES["architect"][0][0], "confidence 0.72", "✗ not verified src/queue.py:6",
        "✓ verified docs/inc",
        "the words are not in the file", "openai/gpt-6.1-sol", "t1-architect.md", "Full text of architect, turn 1",
        "Seen from this seat",
    ):  # fmt: skip
        assert words in voice, words
    critic = parsed_part(html[html.index('<article id="t2-critic"') : html.index('<article id="t2-pragmatist"')])
    assert "severity 6/10 o1 Two writes without one transaction lose or double jobs." in critic
    assert "systems-thinker was not heard: rejected: HTTP 400" in section(html, "turns") + parsed(html).text
    synthesis = html[html.index('id="t2-synthesis"') :]
    for words in ("Focus of the next turn", "how two queues are compared", "T3", "Full text of the synthesis"):
        assert words in parsed_part("<p " + synthesis[: synthesis.index("</article>")]), words
    edited = parsed_part("<p " + html[html.index(f'id="{stories.EDITED}"') :][:1500])
    assert "edited by a person" in edited and "it is a single line" in edited


def test_tensions_and_moves_are_told_from_birth_to_end(told: Desk) -> None:
    html = page_of(told.session())
    lives = section(html, "tensions")
    assert "T1 Speed of the move against the sale open open resolved resolved in turn 3" in lives
    assert "T3 Two writes without a transaction not yet named open accepted accepted in turn 3" in lives
    assert "T4 Who owns the comparison at night not yet named not yet named open open since turn 3" in lives
    moves = section(html, "moves")
    assert "Turn 2: 3 of 3 voices changed position, 1 on new evidence" in moves
    assert "Because A double write keeps the way back open. Evidence ✓ new src/queue.py:11" in moves
    assert "Because no reason was stated Evidence no new evidence" in moves
    course = section(html, "course")
    assert "Turn 2 1 missing 3 0.62 67% 2 T1, T3 1 3 $" in course
    assert "Turn 3 4 0.84 flagged 75% 1 T4 0 4 $" in course
    worth = section(html, "worth")
    assert "3 tensions settled" in worth and "The synthesis of turn 1 grouped the voices" in worth
    assert "2 Leave the queue as it is for now critic, systems-thinker" in worth
    gained = worths.measure(history.read(SessionFolder(told.session())))
    assert gained and gained.vote in worth and gained.counting in worth, "the page and FINAL.md agree"


def test_every_number_leads_to_its_artifact_and_that_to_its_file(told: Desk) -> None:
    page = parsed(page_of(told.session()))
    assert len(page.ids) == len(set(page.ids))
    inner = {address[1:] for address in page.addresses if address.startswith("#")}
    assert inner <= set(page.ids) and {"t1-architect", "t2-synthesis", "t3-critic", "FINAL"} <= inner
    files = [address for address in page.addresses if not address.startswith("#")]
    assert files and all((told.session() / file).is_file() for file in files)
    assert {f"{stem}.md" for stem in page.ids if re.match(r"t\d-", stem) and not stem.endswith("-name")} <= set(files)


def test_every_figure_of_the_overview_leads_somewhere(told: Desk) -> None:
    html = page_of(told.session())
    for ident in ("worth", "course"):
        start = html.index(f'<section id="{ident}"')
        rows = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", html[start : html.index("</section>\n", start)], re.DOTALL)
        bare = [cell for cell in rows if re.fullmatch(r"\s*\$?[0-9.%]+\s*", cell)]
        assert rows and not bare, bare
    figures = html[html.index('<dl class="figures">') :].partition("</dl>")[0]
    assert '<a href="#turns">11 answers</a>' in figures and '<a href="#cost">17 calls</a>' in figures


@pytest.mark.wide
def test_what_it_cost_is_what_is_on_record(told: Desk) -> None:
    html = page_of(told.session())
    record = history.read(SessionFolder(told.session()))
    cost = money(record.spent.cost)
    assert cost in section(html, "decision") and cost in section(html, "cost")
    assert f"openai/gpt-6.1-sol 17 {record.spent.tokens:,}" in section(html, "cost")
    unpriced = {name: replace(spent, unpriced=1, cost=0.0) for name, spent in record.calls.items()}
    some = replace(record.calls["t1-critic"], cost=0.5, unpriced=0)
    partly = replace(
        record,
        calls={**unpriced, "t1-critic": some},
        spent=TotalUsage(17, 100, 0, 0.5, 16),
        shared=TotalUsage(1, 5, 0, 0.0, 1),
    )
    told_cost = section(report.page(partly, report.papers(SessionFolder(told.session()), ""), LIBRARY), "cost")
    assert "$0.50 + ? for" in told_cost and "$0 " not in told_cost and " ? " in told_cost


def test_it_is_made_for_everybody(told: Desk) -> None:
    html = page_of(told.session())
    page = parsed(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in html
    assert ("title", {}) in page.tags and stories.QUESTION in html[: html.index("</title>")]
    levels = page.headings
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later <= level + 1 for level, later in pairwise(levels)), levels
    names = [tag for tag, _ in page.tags]
    for landmark in ("header", "main", "nav", "footer"):
        assert landmark in names
    assert next(attrs for tag, attrs in page.tags if tag == "a") == {"class": "skip", "href": "#main"}
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.tags if tag == "th")
    assert all("aria-labelledby" in attrs and attrs["role"] == "img" for tag, attrs in page.tags if tag == "svg")
    for wish in ("prefers-color-scheme: dark", "@media print", ":focus-visible", "max-width: 34rem"):
        assert wish in html


def luminance(colour: str) -> float:
    long = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(long[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
def test_every_text_stands_out_from_its_ground(theme: int) -> None:
    style = LIBRARY.load(STYLE).body
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6});", re.findall(r":root \{([^}]*)\}", style)[theme]))
    pairs = [(ink, ground) for ink in ("ink", "muted", "accent", "warn", "bad") for ground in ("paper", "raised")]
    pairs += [(kind, f"{kind}-back") for kind in ("good", "bad", "warn")] + [("ink", "plain-back")]
    for ink, ground in pairs:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)
    for mark in ("faint", "open", "done", "lived"):  # what is drawn
        light, dark = sorted((luminance(colours[mark]), luminance(colours["paper"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 2.5, mark


# -- sessions of every kind ------------------------------------------------------------------------


def test_an_unfinished_session_shows_what_there_is(copy: Path) -> None:
    (copy / "FINAL.md").unlink()
    (copy / "t3-synthesis.md").unlink()
    html = page_of(copy)
    inert(parsed(html))
    top = section(html, "decision")
    assert "Not decided yet unfinished This session has no FINAL.md yet" in top
    assert "0.62 moderate, uncalibrated as the synthesis of turn 2 stated it" not in top  # turn 3 stated nothing yet
    assert "Objections of the last turn" in top and "critic: Two writes without one transaction" in top
    assert "no synthesis Turn 3 has no synthesis that can be read." in parsed(html).text


@pytest.mark.wide
@pytest.mark.parametrize("role", ["refuter", "steelman"])
def test_a_flag_tells_whether_anybody_argued_against_the_agreement(told: Desk, role: str) -> None:
    record, papers = history.read(SessionFolder(told.session())), report.papers(SessionFolder(told.session()), "")
    assert record.final and "nobody argued against it in the next turn." in page_of(told.session())
    flagged = replace(record.final, flags=("turn 2: agreement of 80% is suspiciously high",))
    last = record.turns[-1]
    tested = replace(last, voices=(replace(last.voices[0], role=role), *last.voices[1:]))
    html = report.page(replace(record, final=flagged, turns=(*record.turns[:-1], tested)), papers, LIBRARY)
    assert f"a {role} argued against it in turn 3." in html and "nobody argued" not in html


def test_nothing_but_a_plan_is_a_page_too(copy: Path) -> None:
    for file in (*copy.glob("t*.md"), copy / "FINAL.md", *copy.glob("calls/*.jsonl")):
        file.unlink()
    html = page_of(copy)
    inert(parsed(html))
    assert html.count("No voice has been heard yet.") == 1 and "<svg" not in html


@pytest.mark.wide
def test_what_a_person_changed_is_told_beside_the_decision(copy: Path) -> None:
    top = section(page_of(copy), "decision")
    assert f"not weighed Edited since: {stories.EDITED}; cdo resume a weighs it." in top
    assert top.startswith("Decision Edited") or top.startswith("Decision not weighed")
    stories.edit(copy, "FINAL", "Write to both queues now", "Write to one queue now")
    top = section(page_of(copy), "decision")
    assert top.startswith("Decision edited by a person") and "Write to one queue now" in top


@pytest.mark.wide
def test_what_was_weighed_is_no_longer_told(told: Desk, tmp_path: Path) -> None:
    with Provider(script=stories.told) as running:
        path = Path(shutil.copytree(told.path, tmp_path / "w" / "work"))
        desk = dataclasses.replace(told, path=path, url=running.url)
        desk("resume", "a", "--yes").ok()
    top = section(page_of(desk.session()), "decision")
    assert "Edited since" not in top and top.startswith("Decision Write to both")
    assert f"A person edited {stories.EDITED};" in section(page_of(desk.session()), "files")


@pytest.mark.slow
def test_an_audit_leads_with_its_verdict_and_keeps_what_it_says(told: Desk, tmp_path: Path) -> None:
    with Provider(script=stories.told) as running:
        path = Path(shutil.copytree(told.path, tmp_path / "w" / "work"))
        desk = dataclasses.replace(told, path=path, url=running.url)
        desk("resume", "a", "--yes").ok()
        desk("audit", "a", "-m", "openai/gpt-4.1-mini").ok()
    session = desk.session("a-audit")
    html = page_of(session)
    page = parsed(html)
    inert(page)
    assert section(html, "decision").startswith("Verdict changed: it survives 1 of 2 orders, 1 changed.")
    for words in ("No voice has been", "None was recorded", "Nothing is named", "0 turns", "0 answers", "<svg"):
        assert words not in html, words
    assert not {"course", "turns", "minority", "actions", "worth", "tensions"} & set(page.ids)
    sections = history.read(SessionFolder(session)).final
    assert sections and next(iter(sections.sections)) == "Verdict" and len(sections.sections) == 5
    detail = html[html.index('<section id="records"') :]
    for title, text in list(sections.sections.items())[1:]:
        shown = safe_html.html(text, 3)
        assert f"<h3>{title}</h3>" in detail and shown in detail, title
    assert "leaves out T4 (open)" in parsed_part(detail) and html.count("B leaves the polling alone") >= 2
    inner = {address[1:] for address in page.addresses if address.startswith("#")}
    assert inner <= set(page.ids)
    assert re.search(r'<a href="#file-\d+">\$', html), "the calls of an audit lead to their files"


def test_whatever_final_is_made_of_is_shown(copy: Path) -> None:
    stories.edit(copy, "FINAL", "## Decision", "## What we do")
    html = page_of(copy)
    inert(parsed(html))
    assert section(html, "decision").startswith("Outcome edited by a person")
    assert "What we do Write to both queues now" in section(html, "decision")


@pytest.mark.slow
def test_a_session_that_runs_says_so(told: Desk, tmp_path: Path) -> None:
    desk = dataclasses.replace(told, path=Path(shutil.copytree(told.path, tmp_path / "w" / "work")))
    with closing(open_directory(desk.session())) as folder:
        assert take(folder)
        final = section(desk("report", "a", "-o", "-").ok().out, "decision")
        (desk.session() / "FINAL.md").unlink()
        top = section(desk("report", "a", "-o", "-").ok().out, "decision")
    assert "It runs now: what is decided may change. cdo watch a shows it live." in final
    assert "Not decided yet running It runs now: what follows is as far as it had come." in top
    assert "cdo resume a goes on" not in top and "Status running" in top
    left = section(desk("report", "a", "-o", "-").ok().out, "decision")
    assert "unfinished This session has no FINAL.md yet" in left and "Status unfinished" in left


@pytest.mark.wide
def test_a_session_that_waits_says_for_what(cdo: Desk) -> None:
    cdo("hitl,think", *A, "Is it so?").failed(6)
    top = section(cdo("report", "a", "-o", "-").ok().out, "decision")
    assert "paused It waits for you: t1-plan.yaml." in top and "Status waits for you" in top
    cdo("resume", "a").failed(6, "t2-plan.yaml")
    html = cdo("report", "a", "-o", "-").ok().out
    assert "It waits for you: t2-plan.yaml." in section(html, "decision")
    assert 'href="tmp/cdo-a/t2-plan.yaml"' in html


@pytest.mark.wide
def test_a_session_that_failed_says_why(cdo: Desk, provider: Provider) -> None:
    provider.script = lambda _: Fault(status=400)
    cdo("think", *A, "Is it so?").failed(7)
    top = section(cdo("report", "a", "-o", "-").ok().out, "decision")
    assert "cdo resume a goes on with it. It stopped: The models failed" in top


def test_a_file_that_cannot_be_read_is_shown_as_it_stands(copy: Path) -> None:
    (copy / "t1-critic.md").write_text("---\nposition: [<b>broken\n---\nIt <i>said</i> so.\n")
    (copy / "t1-architect.md").write_bytes(b"---\nposition: \xff\xfe\n---\n")
    html = page_of(copy)
    inert(parsed(html))
    broken = html[html.index('<article id="t1-critic"') :]
    assert "cannot be read" in parsed_part(broken[:800])
    assert "It &lt;i&gt;said&lt;/i&gt; so." in broken[:2500]
    assert "is not UTF-8 text" in html[html.index('<article id="t1-architect"') :][:1500]


def test_other_documents_are_part_of_the_page(copy: Path) -> None:
    (copy / "ADR.md").write_text("# ADR 7\n\n## Context\n\nThe queue **polls**.\n")
    (copy / 'x" onclick="a <b>.md').write_text("## Odd\n\nname\n")
    html = page_of(copy)
    page = parsed(html)
    inert(page)
    assert "<strong>polls</strong>" in html and 'href="ADR.md"' in html
    assert "x%22%20onclick%3D%22a%20%3Cb%3E.md" in page.addresses
    assert 'x" onclick="a <b>.md' in page.text


@pytest.mark.slow
def test_a_parliament_shows_its_votes(cdo: Desk, provider: Provider) -> None:
    provider.script = house
    house_ = cdo.having(ANTHROPIC_API_KEY="x-test-key-654321", ANTHROPIC_API_BASE=provider.url)
    house_("parliament,full", "--width", "5", *HOUSE, *A, "Who is right?").ok()
    html = page_of(cdo.session())
    inert(parsed(html))
    votes = section(html, "records")
    assert (
        votes.startswith("Votes M1 carried (turn 3), 4 yes / 1 no")
        and "critic: no, critic has looked at the cost" in votes
    )
    told_at = [text for place, text in parsed(html).texts if "4 yes / 1 no" in text and "details" not in place]
    counts = [text for text in told_at if not text.startswith("The run ended after turn 3: ")]
    assert len(counts) == 1 == len(told_at) - 1, "a vote is told once, beside FINAL.md in full and how the run ended"
    assert "claude-sonnet-4-5" in section(html, "cost")


@pytest.mark.wide
def test_a_root_cause_analysis_and_one_turn(cdo: Desk, provider: Provider) -> None:
    provider.script = case
    cdo("debug", "--session", "b", GATEWAY).ok()
    html = page_of(cdo.session("b"))
    inert(parsed(html))
    assert "Hypotheses" in section(html, "records") and "Turn 7" in section(html, "course")
    provider.script = None
    cdo("quick", *A, "Yes or no?").ok()
    html = page_of(cdo.session())
    inert(parsed(html))
    assert html.count("<svg") == 2 and "<polyline" not in html and 'class="stated dot"' in html
    assert "There was no later turn" in section(html, "worth") and 'id="moves"' not in html


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.wide
def test_the_page_lies_beside_the_files_and_disturbs_nothing(told: Desk, tmp_path: Path) -> None:
    desk = dataclasses.replace(told, path=Path(shutil.copytree(told.path, tmp_path / "w" / "work")))
    before = tree(desk.session())
    done = desk("report", "a").ok()
    assert (done.out, done.err) == ("tmp/cdo-a/report.html\n", "")
    first = (desk.session() / "report.html").read_bytes()
    assert desk("report").ok().out == "tmp/cdo-a/report.html\n"
    assert (desk.session() / "report.html").read_bytes() == first, "the same session is the same page"
    desk("resume", "a")
    after = tree(desk.session())
    assert after.pop("report.html").encode() == first
    assert {name: text for name, text in after.items() if name in before}.keys() == before.keys()
    listed = json.loads(desk("list", "--json").ok().out)
    assert [row["status"] for row in listed] == ["max_turns"]


@pytest.mark.wide
def test_it_is_written_where_one_says(told: Desk, tmp_path: Path) -> None:
    target = tmp_path / "over" / "here.html"
    assert told("report", "a", "-o", str(target)).ok().out == f"{target}\n"
    page = parsed(target.read_text("utf-8"))
    files = [address for address in page.addresses if not address.startswith("#")]
    assert files and all(address.startswith("../") and (target.parent / address).is_file() for address in files)
    printed = told("report", "a", "--output", "-").ok().out
    assert parsed(printed).text == page.text
    assert 'href="tmp/cdo-a/t1-critic.md"' in printed
    assert told("report", "a", "-o", "-", "--out", "tmp").ok().out == printed


@pytest.mark.wide
def test_the_history_is_there_for_scripts(told: Desk, tmp_path: Path) -> None:
    found = told("report", "a", "--json").ok().json
    assert (found["session"], found["status"], found["problem"]) == ("a", "max_turns", stories.QUESTION)
    assert [turn["number"] for turn in found["turns"]] == [1, 2, 3]
    assert found["turns"][0]["voices"][0]["claims"][0]["id"] == "c1"
    assert found["confidences"] == [[1, 0.55], [2, 0.62], [3, 0.84]] and found["agreements"] == [
        [1, 0.5],
        [2, 2 / 3],
        [3, 0.75],
    ]
    life = found["tensions"][0]
    assert (life["id"], life["status"], life["ended"]) == ("T1", "resolved", 3)
    move = next(move for move in found["moves"] if move["evidence"])
    assert (move["voice"], move["before"]["artifact"], move["after"]["turn"]) == ("architect", "t1-architect", 2)
    assert found["frozen"]["plan"]["preset"] == "deep" and found["calls"]["final"]["calls"] == 1
    target = tmp_path / "a.json"
    told("report", "a", "--json", "-o", str(target)).ok()
    assert json.loads(target.read_text("utf-8")) == found


@pytest.mark.wide
def test_what_cannot_be_done_is_said(told: Desk, tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("mine")
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    (tmp_path / "folder.html").mkdir()
    runs = told.several(
        ["report", "nosuch"],
        ["report", "a", "-o", str(tmp_path / "link.html")],
        ["report", "a", "-o", str(tmp_path / "folder.html")],
        ["report", "a", "-o", str(tmp_path / "real.html" / "x")],
    )
    explained(runs[0], 8, "There is no session")
    explained(runs[1], 8, "symbolic link")
    explained(runs[2], 2, "folder.html is a folder", "Give a file: -o")
    explained(runs[3], 8, "real.html")
    assert all("cdo resume" not in run.err for run in runs)
    assert (tmp_path / "real.html").read_text() == "mine" and (tmp_path / "link.html").is_symlink()


@pytest.mark.wide
@pytest.mark.parametrize(
    "file", ["t1-critic.md", "journal.jsonl", "calls/0001.jsonl", "new.html", "calls/report.html"]
)
def test_what_a_session_keeps_is_never_written_over(told: Desk, file: str) -> None:
    before = tree(told.session())
    runs = told.several(
        ["report", "a", "-o", f"tmp/cdo-a/{file}"],
        ["report", "a", "--json", "-o", str(told.session() / file)],
    )
    for run in runs:
        explained(run, 2, "lies in the session cdo-a", "Give a file elsewhere")
    assert tree(told.session()) == before


@pytest.mark.slow
def test_a_device_and_a_pipe_take_the_page(told: Desk, tmp_path: Path) -> None:
    printed = told("report", "a", "-o", "-").ok().out
    assert told("report", "a", "-o", "/dev/stdout").ok().out == printed
    assert told("report", "a", "-o", "/dev/null").ok().out == ""
    told("report", "a", "--json", "-o", "/dev/null").ok()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_text, "utf-8")
        told("report", "a", "-o", str(tmp_path / "to-pipe")).ok()
        assert parsed(read.result(timeout=20)).text == parsed(printed).text


@pytest.mark.wide
def test_a_project_cannot_replace_the_page(told: Desk, tmp_path: Path) -> None:
    desk = dataclasses.replace(told, path=Path(shutil.copytree(told.path, tmp_path / "w" / "work")))
    desk.write(".cdo/templates/report.md", "---\npurpose: x\n---\n<script>alert(1)</script>\n")
    desk("quick", "--dry-run", "--trust", "Why?").ok()
    assert "alert(1)" not in desk("report", "a", "-o", "-").ok().out
    mine = {"CDO_CONFIG_DIR": str(tmp_path / "mine")}
    (tmp_path / "mine" / "templates").mkdir(parents=True)
    (tmp_path / "mine" / "templates" / "report.md").write_text("---\npurpose: x\n---\n\n<p>{{ nothing }}</p>\n")
    explained(desk("report", "a", env=mine), 4, "report.md: line 5", "nothing")
    (tmp_path / "mine" / "templates" / "report.md").write_text("---\npurpose: x\n---\n<p>{{ title }}\n")
    assert desk("report", "a", "-o", "-", env=mine).ok().out == f"<p>{stories.QUESTION}\n"


def test_a_session_that_has_no_folder_has_no_links_to_files(told: Desk) -> None:
    folder = SessionFolder(told.session())
    kept = InMemorySession("a", "the branch cdo/a", {file: folder.data(file) or b"" for file in folder.files()})
    html = report.page(history.read(kept), report.papers(kept, None), LIBRARY)
    page = parsed(html)
    assert all(address.startswith("#") for address in page.addresses)
    assert "t1-critic.md" in page.text


# -- hostile text ----------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>",
    "</style><script>x</script>", "</title><script>x</script>", "</textarea><script>x</script>",
    "</details></main><h1>owned</h1>", "--><script>x</script>", "<!--", "<![CDATA[<script>x</script>]]>",
    "<?php x ?>", '" onmouseover="alert(1)', "' onfocus='alert(1)' autofocus='",
    '"><iframe src="https://evil.example/">', "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)",
    "[x](javascript:alert(1))", "[x](https://evil.example/ 'y')", "![x](https://evil.example/pixel.png)",
    "![x](data:image/svg+xml;base64,PHN2Zz4=)", "<https://evil.example/>", "<mailto:a@evil.example>",
    "[x][1]\n\n[1]: https://evil.example/", "[1]: javascript:alert(1)\n\n[1]", "https://evil.example/plain",
    "//evil.example/x.js", "<a href=//evil.example>x</a>", "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=0>", "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{background:url(//evil.example)}</style>", "<form action=//evil.example><input>",
    "<object data=//evil.example>", "<embed src=//evil.example>", "<math><mi xlink:href='javascript:x'>",
    "<video poster=//evil.example>", "<body onload=x>", "<div style='position:fixed'>",
    "<b id=decision>clobber</b>", "<input name=getElementById>", "{{ 7777*7 }}", "{% for x in y %}", "${7777*7}",
    "{{ history.__class__ }}", "\x1b[31mred\x1b[0m", "\x00null", "\u202eevil\u202c", "\u2066iso\u2069",
    "\u200bzero", "\ufeffbom", "\r\nHeader: x", "\x7fdel", "\x9bcsi", "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#x3c;script&#x3e;", "&#x202e;bidi", "&#0;", "<scr<script>ipt>", "<SCRIPT SRC=//evil.example>",
    "```\n</code></pre><script>x</script>", "```js onload=x\"><script>\ny\n```", "~~~ \"><b>\nx\n~~~",
    "<details open ontoggle=x>", "| a |\n|---|\n| <img src=x> |", "# <script>x</script>", "> <iframe>",
    "1. <script>\n   - <b>", "***", "a" * 5000, "| " * 3000, "> " * 500, "[" * 3000, "*" * 4001, "`" * 3001,
    "<" * 3000, "\u0300" * 500, "\ud800lone", "٠‏العربية", "../../../etc/passwd", "file:///etc/passwd",
    "%0d%0aSet-Cookie: x", "t1-critic", "x' or 1=1", "=cmd|' /C calc'!A0",
)  # fmt: skip
# What code checks before it becomes a History, and words that the page takes for granted.
CHECKED = frozenset(("artifact", "synthesis", "voice", "voices", "broken"))


def _line(word: str) -> str:
    """A word as it can be a position."""
    return " ".join(word.encode("utf-8", "replace").decode().split())[:200] or "-"


def poisoned(value: Any, word: str, name: str = "") -> Any:
    """A history with `word` in place of every text that anybody could have written."""
    if isinstance(value, str):
        return value if name in CHECKED else _line(word) if name == "position" else word
    if isinstance(value, Frozen):
        return replace(value, plan=poisoned(value.plan, word, "plan"), created=word)
    if isinstance(value, Plan):
        return replace(value, models=(word, word), preset=word, mode=word, domain=word)
    if isinstance(value, BaseModel):
        return value.model_copy(
            update={key: poisoned(getattr(value, key), word, key) for key in type(value).model_fields}
        )
    if isinstance(value, Struct):
        return replace(value, **{key: poisoned(getattr(value, key), word, key) for key in value.__struct_fields__})
    if isinstance(value, Mapping):
        keys = (f"{key}" if name in ("calls", "models") else f"{word} {key}" for key in value)
        found = {key: poisoned(item, word, name) for key, item in zip(keys, value.values(), strict=True)}
        return {**found, word: poisoned(next(iter(value.values())), word, name)} if value else {}
    return type(value)(poisoned(item, word, name) for item in value) if isinstance(value, (tuple, list)) else value


@pytest.fixture(scope="module")
def sound(told: Desk) -> tuple[History, report.Papers, set[tuple[str, str]]]:
    """The story, its files, and every tag and attribute that a page may have."""
    archive = SessionFolder(told.session())
    record, papers = history.read(archive), report.papers(archive, "")
    rich = safe_html.html(
        "# a\n\n- b\n\n3. *c* **d** ~~e~~ `f`\n\n> g  \n> h\n\n---\n\n| i |\n|---|\n| j |\n\n```\nk\n```\n"
    )
    deep = {(f"h{level}", "") for level in range(1, 7)}
    return record, papers, parsed(report.page(record, papers, LIBRARY)).shapes | parsed(rich).shapes | deep


@pytest.mark.wide
@pytest.mark.parametrize("word", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_written_anywhere_stays_text(
    sound: tuple[History, report.Papers, set[tuple[str, str]]], word: str
) -> None:
    record, papers, allowed = sound
    shown = {name: replace(paper, body=f"{word}\n\n{paper.body}\n\n{word}") for name, paper in papers.shown.items()}
    shown |= {
        f"{word}.md": report.Paper(word, edited=True),
        "raw.md": report.Paper(word, raw=True),
    }
    bad = report.Papers(shown, (*papers.files, f"{word}.md", word), "")
    evil = poisoned(record, word)
    first, *others = evil.turns
    lost = replace(first.voices[0], broken=word)
    page = parsed(
        report.page(replace(evil, turns=(replace(first, voices=(lost, *first.voices[1:])), *others)), bad, LIBRARY)
    )
    assert page.shapes <= allowed | {("small", "")}, page.shapes - allowed
    inert(page)
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", page.text
    )
    assert "54439" not in page.text
    said = [text.strip() for place, text in page.texts if place.endswith("article p")]
    wanted = " ".join(visible(_line(word)).split())
    assert sum(" ".join(text.split()) == wanted[:200] or wanted[:50] in text for text in said) >= 10, said


def test_hostile_markdown_keeps_its_words() -> None:
    html = safe_html.html("See [the docs](https://evil.example/x) and ![a picture](https://evil.example/y.png).")
    assert html == "<p>See [the docs](https://evil.example/x) and ![a picture](https://evil.example/y.png).</p>\n"
    assert safe_html.html("&#x202e;") == "<p>&lt;U+202E&gt;</p>\n"
    assert safe_html.html("# A\n### B\n## C\n###### D", under=3) == "<h4>A</h4>\n<h5>B</h5>\n<h5>C</h5>\n<h6>D</h6>\n"
    assert safe_html.html("7) a\n8) b").startswith('<ol start="7"><li>a')
    assert safe_html.html("Said:\n" + "- one *item* of many\n" * 2000).count("<em>item</em>") == 2000


BOMBS = {
    "quotes": ">" * 100_000,
    "nested quotes": "> " * 400 + "the end",
    "lists": "".join("  " * depth + "- item\n" for depth in range(300)) + "the end",
    "stars": "*a **b " * 20_000,
    "brackets": "[" * 60_000,
    "ticks": "".join("`" * size + "a" for size in range(180)),
    "pipes": "|a" * 1000 + "\n" + "|-" * 1000 + "\n" + "|b\n" * 3000,
    "few pipes": "|a" * 190 + "\n" + "|-" * 190 + "\n" + "|b\n" * 3000,
    "emphasis in paragraphs": ("*a " * 1900 + "\n\n") * 30,
    "emphasis in items": "- *a **b\n" * 18_000,
    "no items": "x\n" + "    - *a **b\n" * 12_000,
    "references": "[a]: <b>\n" * 20_000,
    "entities": "&#" * 80_000,
    "fences": "```\n" * 20_000,
    "backslashes": "\\" * 190_000,
}


@pytest.mark.wide
@pytest.mark.parametrize("name", BOMBS)
def test_no_text_takes_the_page_down(name: str) -> None:
    with at_most(6):
        html = safe_html.html(BOMBS[name])
    page = parsed(html)
    assert len(page.text) >= len(" ".join(BOMBS[name].split())) * 0.3, "nothing of it is lost"
    assert "the end" not in BOMBS[name] or "the end" in page.text


MARKS = st.text(st.sampled_from("ab <>&\"'`*_~#>-+|[]()!:/\\=\n\t1.{}%\u202e\x00\ud800é"), max_size=120)


@given(MARKS)
@settings(max_examples=300, deadline=None)
def test_markdown_of_any_kind_gives_known_tags_without_attributes(text: str) -> None:
    page = parsed(safe_html.html(text))
    for tag, attrs in page.tags:
        assert tag in {
            "p", "ul", "ol", "li", "blockquote", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td",
            "pre", "code", "br", "hr", "div", "h3", "h4", "h5", "h6",
        }  # fmt: skip
        known = {("tabindex", "0"), ("class", "scroll"), ("scope", "col")}
        assert all(pair in known or (pair[0] == "start" and pair[1].isdecimal()) for pair in attrs.items())
    letters = re.findall(r"[abé]", text)
    assert re.findall(r"[abé]", page.text.replace("<U+202E>", "").replace("<U+D800>", "")) == letters


# -- plots -----------------------------------------------------------------------------------------

POINTS = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@pytest.mark.wide
@given(POINTS, POINTS, st.none() | st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_plots_stay_within_their_frame(values: list[float], others: list[float], final: float | None) -> None:
    turns = range(1, len(values) + 1)
    stated = list(zip(turns, values, strict=True))
    voices = [(turn, other) for turn in turns for other in others[:20]]
    for svg in (charts.confidence(turns, stated, voices, final), charts.agreement(turns, stated, 0.7)):
        page = parsed(svg)
        height = float(page.tags[0][1]["viewbox"].split()[3])
        dots = [attrs for tag, attrs in page.tags if tag == "circle"]
        assert all(0 <= float(dot["cx"]) <= 340 and 0 <= float(dot["cy"]) <= height for dot in dots)
        marked = [dot for dot in dots if "dot" in dot["class"]]
        assert len(marked) == len(values)
        assert sum(tag == "polyline" for tag, _ in page.tags) == (len(values) > 1)
        heights = [float(dot["cy"]) for dot in marked]
        assert heights[values.index(max(values))] == min(heights), "more stands higher"
    assert ("path" in [tag for tag, _ in parsed(charts.confidence(turns, stated, voices, final)).tags]) == (
        final is not None
    )


def test_a_plot_tells_its_values_to_those_who_cannot_see_it() -> None:
    svg = charts.confidence([1, 2], [(1, 0.5), (2, 0.75)], [(1, 0.4)], 0.7)
    assert "Stated by the synthesis, turn 1: 0.50, turn 2: 0.75. FINAL.md: 0.70." in svg
    assert '<title id="confidence-title">Confidence by turn</title>' in svg and ">0.75</text>" in svg
    assert "turn 1: 30%" in charts.agreement([1], [(1, 0.3)], 0.7) and ">70%</text>" in charts.agreement([1], [], 0.7)
