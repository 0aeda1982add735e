"""Domains as real processes: the team of the first turn, the documents at the end, and where they go."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pytest

from tests.answers import Answer, RequestInfo
from tests.conftest import A, Desk
from tests.harness import tree
from tests.provider import Provider
from tests.test_beads import install
from tests.test_documents import example

QUESTION = "Should the billing service be split?"


def documents(info: RequestInfo) -> Answer | None:
    """Writes every document as its prompt shows it, and names every dissenter."""
    if info.kind != "document":
        return None
    name = info.call.removeprefix("document-")
    text = example(name)
    more = (
        "\n\nThe minority reports of the critic and the systems-thinker stand in FINAL.md.\n" if name == "adr" else ""
    )
    return Answer(text + more)


@pytest.fixture
def writing(cdo: Desk, provider: Provider) -> Desk:
    provider.script = documents
    return cdo


def test_a_domain_shapes_the_first_turn_and_every_brief(writing: Desk, provider: Provider) -> None:
    writing("think", "exec", "arch", "--turns", "2", *A, QUESTION).ok()
    first = [info.call for info in provider.calls if info.call.startswith("t1-") and info.kind == "agent"]
    assert sorted(first) == ["t1-architect", "t1-critic", "t1-pragmatist", "t1-systems-thinker"]
    assert all("What architecture demands here" in info.prompt for info in provider.calls if info.kind == "agent")


def test_arch_ends_with_a_decision_record_a_sketch_and_a_utility_tree(writing: Desk, provider: Provider) -> None:
    done = writing("think", "exec", "arch", "--turns", "1", "--json", *A, QUESTION).ok()
    assert done.json["documents"] == ["ADR.md", "C4.md", "ATAM.md"]
    here = writing.session()
    assert "## Decision Outcome" in (here / "ADR.md").read_text()
    assert "```mermaid" in (here / "C4.md").read_text() and "workspace" in (here / "C4.md").read_text()
    assert "importance" in (here / "ATAM.md").read_text()
    (adr,) = [info.prompt for info in provider.calls if info.call == "document-adr"]
    assert "Stage it: build the reversible half now" in adr, "it is written from the final answer"
    before, calls = tree(here), len(provider.calls)
    writing("resume", "a").ok()
    assert tree(here) == before and len(provider.calls) == calls


def test_the_decision_record_is_copied_once_under_the_next_number(writing: Desk) -> None:
    writing.write("docs/adr/0007-old.md", "# Old\n")
    run = ("think", "exec", "arch", "--turns", "1", "--adr-dir", "docs/adr", *A, QUESTION)
    done = writing(*run).ok()
    (name,) = [path.name for path in (writing.path / "docs/adr").iterdir() if not path.name.startswith("0007")]
    assert name.startswith("0008-") and f"docs/adr/{name}" in done.err
    text = (writing.path / "docs/adr" / name).read_text()
    assert text.startswith(f"---\nstatus: proposed\ndate: {datetime.date.today().isoformat()}\n") or "date: '" in text
    assert "sha256" not in text
    writing("resume", "a").ok()
    assert len(list((writing.path / "docs/adr").iterdir())) == 2


def test_a_document_that_cannot_be_written_costs_nothing_else(cdo: Desk, provider: Provider) -> None:
    provider.script = lambda info: Answer("No.") if info.call == "document-c4" else documents(info)
    done = cdo("think", "exec", "arch", "--turns", "1", "--json", *A, QUESTION).ok()
    assert done.json["documents"] == ["ADR.md", "ATAM.md"]
    assert any("C4.md could not be written" in flag for flag in done.json["flags"])
    assert not (cdo.session() / "C4.md").exists()


def test_dev_ends_with_a_breakdown_that_bd_takes_in(writing: Desk, tmp_path: Path) -> None:
    install(tmp_path / "bin")
    (writing.path / ".beads").mkdir()
    desk = writing.having(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    desk("bd,think", "exec", "dev", "--turns", "1", *A, QUESTION).ok()
    state = json.loads((writing.path / ".beads/state.json").read_text())
    titles = (
        [issue["title"] for issue in state["issues"].values()]
        if isinstance(state["issues"], dict)
        else [issue["title"] for issue in state["issues"]]
    )
    assert "```yaml" in (writing.session() / "WBS.md").read_text()
    assert sum(title.startswith("CDO: ") for title in titles) == 1 and len(titles) >= 4


def test_a_tag_makes_a_team_of_the_skills_that_carry_it(cdo: Desk, provider: Provider) -> None:
    for name in ("ledger", "payouts"):
        head = f"---\nname: {name}\ndescription: What to know of {name}.\nmetadata:\n  tags: money\n---\n\n"
        cdo.write(f"s/{name}/SKILL.md", f"{head}Rules of {name}.\n")
    cdo("think", "exec", "money", "--skills", "s", "--turns", "1", *A, QUESTION).ok()
    prompts = {info.call: info.prompt for info in provider.calls}
    assert {"t1-ledger", "t1-payouts"} <= set(prompts)
    assert "Rules of ledger." in prompts["t1-ledger"] and "What to know of ledger" in prompts["t1-ledger"]


def test_a_tag_that_nobody_carries_is_refused_with_what_there_is(cdo: Desk, provider: Provider) -> None:
    cdo("exec", "nothing", QUESTION).failed(2, "no skill carries the tag", "arch, dev")
    assert provider.calls == []


def test_a_folder_that_cannot_take_the_record_is_refused_before_anything_is_paid(
    cdo: Desk, provider: Provider
) -> None:
    cdo.write("afile", "")
    cdo("think", "exec", "arch", "--adr-dir", "afile", QUESTION).failed(2, "Nothing can be written into", "afile")
    assert provider.calls == []
    done = cdo("quick", "--adr-dir", "docs", *A, QUESTION).ok()
    assert "--adr-dir does nothing here" in done.err


def test_a_domain_says_where_its_results_are_meant_to_go(writing: Desk, provider: Provider) -> None:
    writing("think", "exec", "arch", "--turns", "1", *A, QUESTION).ok()
    assert all("docs/design/" in info.prompt for info in provider.calls if info.kind == "agent")
