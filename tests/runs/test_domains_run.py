"""Domains as real processes: the team of the first turn, the documents at the end, and where they go."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path

import pytest

from tests.conftest import A, Desk
from tests.support.answers import Answer, RequestInfo
from tests.support.harness import tree
from tests.support.provider import Provider
from tests.unit.formats.documents.test_document import example
from tests.unit.observers.test_beads_tracker import install

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


@pytest.mark.quick
def test_arch_ends_with_a_decision_record_a_sketch_and_a_utility_tree(writing: Desk, provider: Provider) -> None:
    done = writing("think", "exec", "arch", "--turns", "1", "--json", *A, QUESTION).ok()
    assert done.json["documents"] == ["ADR.md", "C4.md", "DIAGRAMS.md", "ATAM.md"]
    here = writing.session()
    assert "## Decision Outcome" in (here / "ADR.md").read_text()
    assert "level: container" in (here / "C4.md").read_text()
    drawn = (here / "DIAGRAMS.md").read_text()
    assert drawn.count("```mermaid\nC4") == 2 and "```structurizr\nworkspace" in drawn
    assert "importance" in (here / "ATAM.md").read_text()
    (adr,) = [info.prompt for info in provider.calls if info.call == "document-adr"]
    assert "Stage it: build the reversible half now" in adr, "it is written from the final answer"
    before, calls = tree(here), len(provider.calls)
    writing("resume", "a").ok()
    assert tree(here) == before and len(provider.calls) == calls


def test_an_edited_model_is_drawn_again(writing: Desk) -> None:
    writing("think", "exec", "arch", "--turns", "1", *A, QUESTION).ok()
    path = writing.session() / "C4.md"
    path.write_text(path.read_text().replace('name: "Bank"', 'name: "Savings bank"'))
    writing("resume", "a").ok()
    assert 'System_Ext(s_bank, "Savings bank"' in (writing.session() / "DIAGRAMS.md").read_text()


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


def test_only_the_writer_of_a_document_is_told_where_it_goes_and_only_where_that_folder_is(
    writing: Desk, provider: Provider
) -> None:
    (writing.path / "docs/design").mkdir(parents=True)
    writing("think", "exec", "arch", "--turns", "1", *A, QUESTION).ok()
    told = {info.call for info in provider.calls if "docs/design/" in info.prompt}
    assert told == {"document-adr"}
    assert not any("docs/specs/" in info.prompt for info in provider.calls)
    before = len(provider.calls)
    writing("think", "exec", "dev", "--turns", "1", "--session", "b", QUESTION).ok()
    later = provider.calls[before:]
    assert "document-wbs" in {info.call for info in later}
    assert not any(".lev/pm" in info.prompt or "This project keeps" in info.prompt for info in later)


def test_a_tag_seats_the_roles_that_carry_it_beside_skills(cdo: Desk, provider: Provider) -> None:
    for name in ("ledger", "payouts"):
        head = f"---\nname: {name}\ndescription: What to know of {name}.\nmetadata:\n  tags: cost\n---\n\n"
        cdo.write(f".agents/skills/{name}/SKILL.md", f"{head}Rules of {name}.\n")
    done = cdo("think", "exec", "cost", "--turns", "1", *A, QUESTION).ok()
    voices = {info.call: info.prompt for info in provider.calls if info.kind == "agent"}
    assert sorted(voices) == ["t1-economist", "t1-fermi-estimate", "t1-first-principles"]
    assert 'skill_content name="fermi-estimate"' in voices["t1-fermi-estimate"], "one that ships carries the tag too"
    assert "ledger, payouts: skills of this project with the tag cost, not used" in done.err
    assert "`cdo skills trust NAME`" in done.err and "Rules of" not in str(voices)
    provider.calls.clear()
    done = cdo(
        "deep", "exec", "cost", "--trust", "--turns", "1", "--session", "b", "--dry-run", "--json", QUESTION
    ).ok()
    assert done.json["roles"][:4] == ["economist", "ledger", "payouts", "fermi-estimate"]
    assert done.json["matches"]["economist"] == ["cost"] and done.json["remarks"] == []


def test_a_tag_that_only_untrusted_skills_carry_names_them_and_how_to_trust_them(cdo: Desk) -> None:
    head = "---\nname: ledger\ndescription: Money.\nmetadata:\n  tags: bookkeeping\n---\n\nCount."
    cdo.write(".agents/skills/ledger/SKILL.md", head)
    cdo("think", "exec", "bookkeeping", QUESTION).failed(
        2, "only skills that are not trusted carry the tag", "ledger", "cdo skills trust NAME", "--trust"
    )
    cdo("exec", "securty", QUESTION).failed(2, "Did you mean security?")
