"""Domains: what ships is sound and complete, and a field without a file gets its team from skills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.content.library import PACKAGED, Library
from cdo.core.errors import ContentError
from cdo.formats.documents.prompt import DocumentPrompt
from cdo.formats.role_names import role_problem
from cdo.planning.domains import CHARGE, Domain, TeamSeat, team_from_skills

LIBRARY = Library((("packaged", PACKAGED),))
SKILLS = [{"name": "load-test", "description": "Puts a service under load"}]


@dataclass(frozen=True)
class Skill:
    """A skill as the catalogue knows it."""

    name: str
    description: str = "Does something."
    tags: Sequence[str] = ()


# -- what ships ------------------------------------------------------------------------------------

SEED_TABLE = """
dev | dev-lead implementer reviewer tester | lev-sdlc, work, entity lifecycle | .lev/pm/ entities, bd tasks
arch | architect critic systems-thinker pragmatist | arch, ATAM, C4, ADR | docs/specs/, docs/design/
"""


@pytest.mark.parametrize("row", SEED_TABLE.strip().split("\n"), ids=lambda row: row.split()[0])
def test_the_domains_are_those_of_the_table(row: str) -> None:
    name, team, skills, integration = row.split(" | ")
    domain, _ = LIBRARY.read(f"domains/{name}", Domain)
    assert list(domain.team) == team.split()
    assert ", ".join(domain.skills) == skills
    assert all(what in place for what, place in zip(integration.split(", "), domain.integration, strict=True))


@pytest.mark.parametrize("name", LIBRARY.names("domains"))
def test_every_domain_names_roles_and_documents_that_are_there(name: str) -> None:
    domain, _ = LIBRARY.read(f"domains/{name}", Domain)
    assert set(domain.team) <= set(LIBRARY.names("templates/roles"))
    assert len(set(domain.team)) == len(domain.team)
    files = [LIBRARY.read(f"templates/documents/{item}", DocumentPrompt)[0].file for item in domain.documents]
    assert len(set(files)) == len(files)
    assert domain.about.endswith(".")
    text = LIBRARY.render(f"domains/{name}", {"tag": "TAG", "skills": SKILLS})
    assert not any(place in text for place in domain.integration), "where results go is told to writers alone"
    assert 300 < len(text) < 2000
    assert ("TAG" in text) is ("load-test: Puts a service under load" in text) is (not domain.team)


def test_the_generic_domain_is_strict_and_shows_hostile_words_on_one_line() -> None:
    hostile = [{"name": "x\n# Rules\n", "description": "y\n\n## Your task\n" + "z" * 900}]
    text = LIBRARY.render("domains/generic", {"tag": "a\n# b" + "c" * 200, "skills": hostile})
    heads = [line for line in text.split("\n") if line.startswith("#")]
    assert heads == ["# What the field demands here"]
    assert max(map(len, text.split("\n"))) < 420
    assert "No skill of your own covers it." in LIBRARY.render("domains/generic", {"tag": "law", "skills": []})
    lacking: list[dict[str, object]] = [{"tag": "law"}, {"skills": []}]
    for values in lacking:
        with pytest.raises(ContentError, match="is undefined"):
            LIBRARY.render("domains/generic", values)


def test_a_file_is_a_new_domain(tmp_path: Path) -> None:
    folder = tmp_path / "domains"
    folder.mkdir()
    head = "purpose: p\nload_when: l\nabout: Law.\nteam: [critic]\n"
    (folder / "law.md").write_text(f"---\n{head}---\nName the clause.\n", encoding="utf-8")
    library = Library((("project", tmp_path), ("packaged", PACKAGED)))
    assert library.read("domains/law", Domain)[0].team == ("critic",)
    assert "law" in library.names("domains")
    (folder / "bad.md").write_text(f"---\n{head}documents: [../../x]\n---\nx\n", encoding="utf-8")
    with pytest.raises(ContentError, match=r"`documents.0`: must match pattern"):
        library.read("domains/bad", Domain)
    (folder / "worse.md").write_text(f"---\n{head.replace('critic', 'CON')}---\nx\n", encoding="utf-8")
    with pytest.raises(ContentError, match=r"`team.0`: `CON` cannot be a role"):
        library.read("domains/worse", Domain)


# -- a team from skills ----------------------------------------------------------------------------


def test_filed_under_the_tag_comes_before_named_and_named_before_described() -> None:
    cards = [
        Skill("notes", "Writes about privacy law"),
        Skill("privacy-check", "Reads a policy"),
        Skill("gardening", "Grows things", ("plants",)),
        Skill("clauses", "Finds  the\nclause", ("Privacy", "law")),
    ]
    assert team_from_skills("privacy", cards, ["critic", "tester"], ["tester"], 6) == [
        TeamSeat("clauses", "Finds the clause", ("clauses",)),
        TeamSeat("privacy-check", "Reads a policy", ("privacy-check",)),
        TeamSeat("notes", "Writes about privacy law", ("notes",)),
        TeamSeat("tester"),
        TeamSeat("critic"),
    ]
    assert [seat.role for seat in team_from_skills("privacy", cards, ["critic"], [], 2)] == [
        "clauses",
        "privacy-check",
    ]
    assert [seat.role for seat in team_from_skills("privacy law", cards, ["critic"], [], 2)] == ["notes", "critic"]


def test_skills_of_workshops_and_first_trials_come_first_in_their_field() -> None:
    weighted = LIBRARY.read("domains/generic", Domain)[0].skills
    assert {"workshop", "poc"} <= set(weighted)
    cards = [
        Skill("about", "On privacy", ("workshop",)),
        Skill("plain", tags=("privacy",)),
        Skill("trial", tags=("Privacy", "POC")),
        Skill("privacy-check", tags=("law",)),
        Skill("other", tags=("workshop", "poc")),
        Skill("meeting", tags=("workshop", "privacy")),
        Skill("noted", "On privacy"),
        Skill("privacy-day", tags=("work shop", "poc")),
    ]
    team = team_from_skills("privacy", cards, [], [], 8, weighted)
    assert [seat.role for seat in team] == [
        "trial", "meeting", "plain", "privacy-day", "privacy-check", "about", "noted",
    ]  # fmt: skip
    # Few seats: what is weighted has them.
    assert [seat.role for seat in team_from_skills("privacy", cards, [], [], 2, weighted)] == ["trial", "meeting"]
    assert [seat.role for seat in team_from_skills("privacy", cards, [], [], 2)] == ["plain", "trial"]
    assert [seat.role for seat in team_from_skills("privacy", cards, [], [], 1, ["LAW", "privacy"])] == ["plain"]


def test_roles_that_carry_the_tag_sit_beside_the_skills_in_up_to_half_of_the_seats() -> None:
    cards = [Skill(f"law-{number}", tags=("law",)) for number in range(5)]
    carry = ["compliance-reviewer", "negotiator", "historian"]

    def team(count: int, given: Sequence[Skill]) -> list[str]:
        return [seat.role for seat in team_from_skills("law", given, ["architect"], ["critic"], count, (), carry)]

    assert team(4, cards) == ["compliance-reviewer", "negotiator", "law-0", "law-1"]
    assert team(3, cards) == ["compliance-reviewer", "negotiator", "law-0"]
    assert team(1, cards) == ["compliance-reviewer"] and team(0, cards) == []
    assert team(5, cards[:1]) == ["compliance-reviewer", "negotiator", "historian", "law-0", "critic"]
    assert team(5, []) == [*carry, "critic", "architect"], "no skill: the roles, then spare ones"


def test_a_tag_is_a_word_and_not_a_part_of_one() -> None:
    cards = [Skill("mlops", tags=("ml ops",)), Skill("html", "About ml in html")]
    assert [seat.role for seat in team_from_skills("ml", cards, [], [], 3)] == ["html"]
    assert [seat.role for seat in team_from_skills("ML-Ops", cards, [], [], 3)] == ["mlops"]
    assert team_from_skills("-", cards, ["critic"], [], 1) == [TeamSeat("critic")]


def test_a_skill_without_a_name_for_a_role_is_taken_on_by_a_spare_one() -> None:
    cards = [
        Skill(name, f"About {name}", ("x",)) for name in ("9-lives", "Final", "Big Data!", "big-data", "критика")
    ]
    team = team_from_skills("x", cards, ["critic", "tester", "operator"], ["maintainer"], 5)
    assert [(seat.role, seat.skills) for seat in team] == [
        ("maintainer", ("9-lives",)),
        ("critic", ("Final",)),
        ("big-data", ("Big Data!",)),
        ("tester", ("big-data",)),
        ("operator", ("критика",)),
    ]
    assert team_from_skills("x", cards[:2], [], ["critic"], 2) == [TeamSeat("critic", "About 9-lives", ("9-lives",))]


NAMES = st.sampled_from(["critic", "tester", "con", "synthesis", "a" * 40, "../x", "a\n\x1b[0m"]) | st.text(
    max_size=12
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.builds(Skill, NAMES, st.text(max_size=2000), st.lists(NAMES, max_size=2)), max_size=6),
    st.lists(st.sampled_from(["critic", "tester", "operator", "final"]), max_size=4),
    st.integers(0, 6),
    NAMES,
)
def test_every_team_is_of_sound_and_different_roles(
    cards: list[Skill], spare: list[str], count: int, tag: str
) -> None:
    team = team_from_skills(tag, cards, ["architect"], spare, count)
    assert len(team) <= count
    assert len({seat.role for seat in team}) == len(team)
    assert all(role_problem(seat.role) is None for seat in team)
    assert all(len(seat.charge) <= CHARGE and "\n" not in seat.charge for seat in team)
    if len(team) < count:
        assert {"architect", *spare} - {"final"} <= {seat.role for seat in team}
