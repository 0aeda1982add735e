"""Who sits in the first turn: the preset's roles, and those that fit the question; the same for the same question."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Complexity, Preset
from cdo.planning import role_choice
from cdo.planning.complexity import TABLES
from cdo.planning.role_choice import LONG, Choice, RoleCard, known_roles

LIBRARY = Library((("packaged", PACKAGED),))
TABLE = LIBRARY.read(TABLES, Complexity)[0]
PRESETS = {name: LIBRARY.read(f"presets/{name}", Preset)[0] for name in ("quick", "think", "deep", "full")}
CARDS = known_roles("think", PRESETS["think"], LIBRARY)
PART = {card.name: card.part for card in CARDS}
PARTS = ("evidence", "critique")


def choose(question: str, cards: Sequence[RoleCard], default: Sequence[str], seats: int) -> Choice:
    return role_choice.choose(question, cards, default, seats, TABLE)


def matched(question: str, cards: Sequence[RoleCard]) -> dict[str, tuple[str, ...]]:
    return role_choice.matched(question, cards, TABLE)


def sitting(question: str, preset: str, seats: int = 0) -> tuple[str, ...]:
    found = PRESETS[preset]
    return choose(question, CARDS, found.roles, seats or found.start).roles


@pytest.mark.parametrize(
    ("question", "wanted", "matches"),
    [
        ("Is the login safe against credential stuffing?", "security-reviewer", ("security",)),
        ("Does the hosted plan pay, at these prices, for three years?", "economist", ("cost", "price", "pricing")),
        ("Should we migrate billing to Stripe?", "implementer", ("migration",)),
        ("Should we migrate from MySQL to Postgres?", "data-modeler", ("data", "migration")),
        ("Can we keep customer data under GDPR?", "compliance-reviewer", ("legal", "gdpr")),
        ("How do we halve p99 latency?", "performance-engineer", ("performance", "latency")),
        ("What is the probability that we ship by June?", "forecaster", ("probability",)),
        ("How do we test the parser without flaky results?", "tester", ("testing", "flaky")),
        ("What should change after the last outage?", "operator", ("operations", "outage")),
        ("Microservices or a monolith?", "architect", ("architecture", "microservices", "monolith")),
        ("Which market should we enter first?", "strategist", ("market",)),
        ("Should we reorganise the departments?", "negotiator", ("reorganisation",)),
    ],
)
def test_a_question_seats_the_role_that_fits_it_and_says_by_which_words(
    question: str, wanted: str, matches: tuple[str, ...]
) -> None:
    for preset in ("think", "deep", "full"):
        found = choose(question, CARDS, PRESETS[preset].roles, PRESETS[preset].start)
        assert wanted in found.roles, preset
        assert found.matches[wanted] == matches


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "question", ["Should we split the service?", "Should we reduce node types?", "Who is right?", "Was nun?", ""]
)
def test_a_question_that_fits_no_role_gives_exactly_those_of_the_preset(preset: str, question: str) -> None:
    found = choose(question, CARDS, PRESETS[preset].roles, PRESETS[preset].start)
    assert found.roles == PRESETS[preset].roles[: PRESETS[preset].start] and not found.matches


def test_what_does_not_fit_makes_room_from_the_end_and_no_more_than_half() -> None:
    wide = "Compare security, cost, latency, legal risk, database migration and market strategy."
    for preset in PRESETS.values():
        first = preset.roles[: preset.start]
        found = choose(wide, CARDS, preset.roles, preset.start).roles
        new = [role for role in found if role not in first]
        assert len(found) == preset.start and 0 < len(new) <= (preset.start + 1) // 2
        kept = [role for role in first if role in found]
        assert list(found) == [*kept, *new], "the preset's keep their order and come first"
    assert sitting("How do we halve p99 latency?", "think") == ("first-principles", "critic", "performance-engineer")
    assert sitting("How do we halve p99 latency?", "quick") == ("critic", "performance-engineer")
    assert sitting("Is the login safe?", "quick") == ("pragmatist", "security-reviewer"), "one critic for another"
    assert sitting("Should we reorganise the departments?", "quick") == ("pragmatist", "critic"), (
        "no room beside both"
    )
    assert sitting("Is the login safe?", "quick", 1) == ("pragmatist",)


@pytest.mark.wide
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(sorted({tag for card in CARDS for tag in card.tags})), max_size=12),
    st.sampled_from(sorted(PRESETS)),
    st.integers(1, 24),
)
def test_whatever_is_asked_somebody_argues_from_evidence_and_somebody_attacks(
    words: list[str], preset: str, seats: int
) -> None:
    default, question = PRESETS[preset].roles, f"What about {' '.join(words)}?"
    found = choose(question, CARDS, default, seats)
    first = default[:seats]
    assert len(set(found.roles)) == len(found.roles) <= seats and len(found.roles) >= len(first)
    for part in PARTS:
        assert any(PART[role] == part for role in found.roles) or not any(PART[role] == part for role in first)
    assert set(found.matches) <= set(found.roles)
    assert found == choose(question, tuple(reversed(CARDS)), default, seats), "in whatever order roles are known"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_itself_seats_evidence_and_a_critic(preset: str) -> None:
    first = PRESETS[preset].roles[: PRESETS[preset].start]
    assert {PART[role] for role in first} >= set(PARTS)


def test_in_a_long_question_one_word_is_not_enough() -> None:
    padding = "The lamp stands on the shelf beside a green door. " * (LONG // 10 + 1)
    assert matched(f"{padding} What about latency?", CARDS) == {"performance-engineer": ("performance", "latency")}
    assert matched(f"{padding} What about a deadline?", CARDS) == {}
    assert matched("What about a deadline?", CARDS) == {"pragmatist": ("deadline",)}


def test_pasted_code_is_not_what_is_asked() -> None:
    code = "```python\ndef encrypt(password, database, latency):\n    return cost\n```"
    assert matched(f"Is this right?\n\n{code}\n", CARDS) == {}


def test_a_role_of_ones_own_is_found_by_its_tags() -> None:
    mine = RoleCard("brewer", "Brewing. Follows the mash.", ("beer", "hops"))
    cards = (*CARDS, mine)
    assert choose("Which hops for a pale beer?", cards, PRESETS["think"].roles, 3).matches["brewer"] == (
        "beer",
        "hops",
    )
    assert "brewer" not in choose("Which malt?", cards, PRESETS["think"].roles, 3).roles
