"""Plans: what words, settings and content come to, who sits where, and what a run may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Criteria, Price
from cdo.content.skill_ranking import SkillCard
from cdo.core.errors import ContentError, UsageError
from cdo.core.schema import SchemaError, fitted
from cdo.formats import strict_yaml
from cdo.formats.role_names import ROLE, role_problem
from cdo.planning.arguments import Invocation
from cdo.planning.estimate import Range, estimate, summary
from cdo.planning.plan import Plan, seats
from cdo.planning.plan_builder import PlanEnvironment, make
from cdo.planning.role_choice import SPECIAL_ROLES
from cdo.planning.settings import Resolved, Settings
from cdo.providers.models import ModelSpec

LIBRARY = Library((("packaged", PACKAGED),))
ALONE = PlanEnvironment()


def invocation(preset: str | None = None, *modifiers: str) -> Invocation:
    return Invocation(preset, modifiers, None, None, "x")


def planned(
    preset: str | None = "think",
    *modifiers: str,
    problem: str = "Should we?",
    library: Library = LIBRARY,
    models: tuple[str, ...] = ("m/a",),
    around: PlanEnvironment = ALONE,
    **chosen: Any,
) -> Plan:
    resolved = Resolved(fitted(Settings, chosen), {})
    return make(invocation(preset, *modifiers), problem, resolved, library, models, around)


def test_the_budget_for_files_of_the_repository_grows_with_the_preset() -> None:
    around = PlanEnvironment(root=".")
    budgets = [planned(preset, around=around).context_tokens for preset in ("quick", "think", "deep", "full")]
    assert budgets == [6000, 16_000, 32_000, 32_000]
    assert planned("quick").context_tokens is None, "there is no repository"
    looking = replace(around, looks=(5, 3))
    assert planned("deep", around=looking).focus_tokens == 8000
    assert planned("deep", around=around).focus_tokens == 0, "voices may not see more than the context"


@pytest.mark.parametrize(
    ("preset", "looks"),
    [("quick", (5, 3)), ("think", (5, 3)), ("deep", (12, 6)), ("full", (16, 8)), ("debug", (5, 3))],
)
def test_each_preset_says_how_often_its_voices_may_look(preset: str, looks: tuple[int, int]) -> None:
    assert planned(preset, around=PlanEnvironment(looks=(5, 3), root=".")).tools == looks
    assert planned(preset, around=PlanEnvironment(looks=(5, 0), root=".")).tools is None, "0 turns tools off for all"
    assert planned(preset).tools is None


def spec(name: str = "m/a", price: Price | None = None) -> ModelSpec:
    return ModelSpec(name, "direct", name, price=price)


# -- making a plan ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "width", "start", "turns", "adaptive", "first"),
    [
        ("quick", (1, 2), 2, (1, 1), False, ["pragmatist", "critic"]),
        ("think", (2, 4), 3, (2, 3), False, ["first-principles", "critic", "pragmatist"]),
        (
            "deep", (3, 8), 5, (3, 5), False,
            ["architect", "critic", "systems-thinker", "pragmatist", "risk-analyst"],
        ),
        (
            "full", (5, 20), 7, (5, 10), True,
            ["architect", "critic", "systems-thinker", "pragmatist", "risk-analyst", "empiricist", "user-advocate"],
        ),
    ],
)  # fmt: skip
def test_a_preset_is_taken_as_it_is(
    preset: str, width: tuple[int, int], start: int, turns: tuple[int, int], adaptive: bool, first: list[str]
) -> None:
    made = planned(preset)
    assert (made.preset, made.why) == (preset, f"you asked for {preset}")
    assert (made.width, made.start, made.turns, made.adaptive) == (width, start, turns, adaptive)
    assert [role for _, role, _ in seats(made.roles, made.known_roles, made.start)] == first
    assert (made.mode, made.modifiers, made.domain, made.models) == (None, (), None, ("m/a",))


PRESETS = ["quick", "think", "deep", "full"]


@pytest.mark.wide
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("modifiers", [(), ("adaptive",), ("team", "bd"), ("adaptive", "team", "lev-exec", "hitl")])
@pytest.mark.parametrize("width", [None, (1, 1), (1, 3), (3, 3), (6, 6), (1, 256), (256, 256)])
@pytest.mark.parametrize("turns", [None, 1, 4, 100])
def test_settings_win_over_the_preset_and_stay_consistent(
    preset: str, modifiers: tuple[str, ...], width: tuple[int, int] | None, turns: int | None
) -> None:
    plain, made = planned(preset), planned(preset, *modifiers, width=width and list(width), turns=turns)
    assert made.width == (width or plain.width)
    assert made.width[0] <= made.start <= made.width[1]
    assert made.start == plain.start or not plain.width[0] <= plain.start <= plain.width[1] or width
    assert made.turns == ((turns, turns) if turns else plain.turns)
    assert made.adaptive is (preset == "full" or "adaptive" in modifiers)
    assert made.modifiers == modifiers
    assert fitted(Plan, to_builtins(made)) == made
    assert fitted(Plan, strict_yaml.load(strict_yaml.dump(to_builtins(made)))) == made


@pytest.mark.parametrize(
    ("width", "start"), [((1, 1), 1), ((1, 2), 2), ((1, 3), 3), ((2, 9), 3), ((3, 3), 3), ((4, 9), 4), ((50, 60), 50)]
)
def test_the_first_turn_is_as_wide_as_the_preset_says_within_the_band(width: tuple[int, int], start: int) -> None:
    assert planned("think", width=width).start == start


def test_without_a_preset_gauge_picks_one_and_says_why() -> None:
    made = planned(None, problem="Summarize this in one sentence")
    assert made.preset == "quick"
    assert made.why and "you asked for" not in made.why


def test_criteria_are_those_of_the_content() -> None:
    assert planned().criteria == Criteria(
        exit_confidence=0.8, quiet_turns=2, agreement_flag=0.7, confidence_drop=0.2, severe=8
    )


def test_known_roles_are_those_with_a_method_but_not_the_special_ones() -> None:
    made = planned()
    assert set(SPECIAL_ROLES) == {"refuter", "referee", "steelman", "checker"}
    assert not set(SPECIAL_ROLES) & set(made.known_roles)
    assert {*made.known_roles, *SPECIAL_ROLES} == set(LIBRARY.names("templates/roles"))
    assert not [role for role in made.known_roles if role_problem(role)]


@pytest.fixture
def own(tmp_path: Path) -> Library:
    """A library with a project folder of its own before the packaged content."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "templates" / "roles").mkdir(parents=True)
    return Library((("project", tmp_path), ("packaged", PACKAGED)))


def preset_file(library: Library, name: str, **changes: Any) -> Path:
    keys = {
        "about": "x", "width": [1, 2], "start": 1, "max_turns": [1, 1], "bd": False, "skills": "no",
        "team_mode": "subagents", "dashboard": False, "adaptive": False, "roles": ["critic"], **changes,
    }  # fmt: skip
    path = library.roots[0][1] / "presets" / f"{name}.yaml"
    path.write_text(strict_yaml.dump(keys), encoding="utf-8")
    return path


def role_file(library: Library, name: str) -> None:
    text = "---\ntitle: x\nmethod: m\nevidence: e\ntags: [t]\n---\nDo it.\n"
    (library.roots[0][1] / "templates" / "roles" / f"{name}.md").write_text(text, encoding="utf-8")


def test_a_preset_and_role_of_ones_own_are_used(own: Library) -> None:
    preset_file(own, "mine", roles=["wizard", "critic"])
    role_file(own, "wizard")
    made = planned("mine", library=own)
    assert made.roles == ("wizard", "critic")
    assert "wizard" in made.known_roles


@pytest.mark.parametrize("role", ["wizard", "refuter", "Critic", "../critic", "synthesis"])
def test_a_role_that_does_not_exist_is_named_with_file_and_choice(own: Library, role: str) -> None:
    path = preset_file(own, "mine", roles=["critic", role])
    with pytest.raises(ContentError) as caught:
        planned("mine", library=own)
    assert caught.value.message == f"{path}: `roles`: there is no role called {role}."
    assert caught.value.hint.startswith("Roles: architect, ")


@pytest.mark.parametrize("name", ["synthesis", "plan", "con", "My Role", "Critic", "a_b"])
def test_a_role_file_with_a_name_that_cannot_be_one_is_no_role(own: Library, name: str) -> None:
    role_file(own, name)
    assert name not in planned(library=own).known_roles


def test_a_preset_without_roles_is_filled_from_the_known_ones(own: Library) -> None:
    preset_file(own, "mine", roles=[], start=2)
    made = planned("mine", library=own)
    assert len(seats(made.roles, made.known_roles, made.start)) == 2


def test_a_preset_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(ContentError) as caught:
        planned("thnk")
    assert caught.value.hint == "Did you mean presets/think?"


@pytest.mark.parametrize("key", ["roles", "known_roles"])
@pytest.mark.parametrize("role", ["../../etc/passwd", "Critic", "synthesis", ""])
def test_a_frozen_plan_holds_no_role_that_is_none(key: str, role: str) -> None:
    with pytest.raises(SchemaError):
        fitted(Plan, {**to_builtins(planned()), key: [role]})


def test_the_question_chooses_roles_and_the_plan_says_why() -> None:
    made = planned("think", problem="Should we migrate the database?")
    assert [role for _, role, _ in seats(made.roles, made.known_roles, made.start)] == [
        "first-principles", "critic", "data-modeler",
    ]  # fmt: skip
    assert made.matches == {"data-modeler": ("data", "database", "migration")}
    assert set(planned("think").roles) < set(made.roles), "the preset's others fill later turns"
    assert planned("think").matches == {}


@pytest.mark.parametrize(
    ("preset", "mode", "domain"), [("debug", None, None), ("full", "parliament", None), ("deep", None, "dev")]
)
def test_phases_parliaments_and_domains_seat_their_own(preset: str, mode: str | None, domain: str | None) -> None:
    asked = Invocation(preset, (), mode, domain, "x")
    plans = [
        make(asked, problem, Resolved(Settings(), {}), LIBRARY, ["m/a"])
        for problem in ("Is the login safe?", "Should we migrate the database?", "x")
    ]
    assert len({made.roles for made in plans}) == 1 and not any(made.matches for made in plans)


@pytest.mark.parametrize(
    ("preset", "words", "chosen", "remarks"),
    [
        ("quick", ("adaptive",), {}, ["`adaptive` does nothing here: there is one turn, "]),
        ("quick", ("team",), {}, ["`team` does nothing here: there is one turn, "]),
        ("think", ("adaptive", "team"), {"turns": 1}, ["`adaptive` does nothing here", "`team` does nothing here"]),
        ("think", ("adaptive",), {"width": (3, 3)}, ["`adaptive` does nothing here: every turn has 3 voices."]),
        (
            "debug",
            ("adaptive",),
            {},
            ["`adaptive` does nothing here: `debug` decides how many voices each turn has."],
        ),
        ("think", ("lev-exec",), {}, ["`lev-exec` has one model to seat, m/a: "]),
        ("think", ("adaptive", "team", "hitl", "bd"), {}, []),
        ("quick", ("adaptive", "team"), {"turns": 2}, []),
        ("full", ("adaptive",), {}, []),
        ("quick", (), {}, []),
        ("debug", ("team",), {}, []),
    ],
)
def test_words_that_cannot_act_are_remarked_on(
    preset: str, words: tuple[str, ...], chosen: dict[str, Any], remarks: list[str]
) -> None:
    made = planned(preset, *words, **chosen)
    assert len(made.remarks) == len(remarks)
    assert all(told.startswith(wanted) for told, wanted in zip(made.remarks, remarks, strict=True))


# -- seats -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "spare", "count", "names"),
    [
        (["a", "b"], ["c"], 0, []),
        (["a", "b"], ["c"], 1, ["a"]),
        (["a", "b"], ["c"], 3, ["a", "b", "c"]),
        (["a", "b"], ["b", "a"], 5, ["a", "b", "a-2", "b-2", "a-3"]),
        (["a", "a"], [], 3, ["a", "a-2", "a-3"]),
        (["a", "a-2"], [], 4, ["a", "a-2", "a-2-2", "a-3"]),
        (["x" * 32], [], 3, ["x" * 32, "x" * 30 + "-2", "x" * 30 + "-3"]),
        ([], ["c"], 2, ["c", "c-2"]),
    ],
)
def test_seats_are_filled_in_order(wanted: list[str], spare: list[str], count: int, names: list[str]) -> None:
    assert [name for name, _, _ in seats(wanted, spare, count)] == names


def test_a_role_that_is_called_like_a_second_seat_keeps_its_name() -> None:
    assert seats(["a", "a-2"], [], 4) == [("a", "a", 1), ("a-2", "a-2", 1), ("a-2-2", "a-2", 2), ("a-3", "a", 3)]


@pytest.mark.parametrize("count", [1, 7, 24, 25, 200, 256])
@pytest.mark.parametrize("preset", PRESETS)
def test_seats_are_unique_for_any_number(preset: str, count: int) -> None:
    made = planned(preset)
    found = seats(made.roles, made.known_roles, count)
    assert len({name for name, _, _ in found}) == len(found) == count
    assert all(role_problem(name) is None for name, _, _ in found)
    assert all(role in made.known_roles for _, role, _ in found)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "a-2", "a-2-2", "b" * 32, "b" * 31, "b" * 30 + "-2", "b" * 30 + "cc", "ab-"])
        | st.from_regex(ROLE, fullmatch=True),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 60),
)
def test_seats_are_unique_for_any_roles(roles: list[str], count: int) -> None:
    found = seats(roles, [], count)
    assert len({name for name, _, _ in found}) == len(found) == count
    assert all(ROLE.fullmatch(name) for name, _, _ in found)
    assert len({(role, seat) for _, role, seat in found}) == count
    assert {role for _, role, _ in found} <= set(roles)


def test_no_role_at_all_is_an_error() -> None:
    with pytest.raises(UsageError, match="has no roles"):
        seats([], [], 1)


# -- what it may take ------------------------------------------------------------------------------

PRICE = Price(input=1, output=10)


def test_the_smallest_run_by_hand() -> None:
    """Two voices, a synthesis, the final: briefs of 100 + 700 tokens, replies of 250 to 1000."""
    # fewest: voices 2 × (800 + 250), synthesis 800 + 2 × 250 + 250, final 800 + 3 × 250 + 250
    # most: voices 2 × (800 + 1000), synthesis 800 + 2 × 1000 + 1000, final 800 + 3 × 1000 + 1000
    found = estimate(planned("quick"), [spec(price=PRICE)], 100)
    assert (found.calls, found.tokens) == ((4, 4), (5450, 12200))
    assert found.cost == pytest.approx((0.01445, 0.0482))


def test_later_turns_read_the_last_synthesis_by_hand() -> None:
    # turn 1: 3 × (800 + 1000) + 800 + 3000 + 1000
    # turn 2 with steelman and checker: 5 × (1800 + 1000) + 1800 + 5000 + 1000
    # turn 3 with a referee: 4 × (1800 + 1000) + 1800 + 4000 + 1000; the record: 800 + (3 + 5 + 3) × 1000
    # findings 11800 + 3000, draft 800 + 2000, review 3800 + 1000, final text 11800 + 5000 + 2000
    found = estimate(planned("think"), [spec()], 100)
    assert found.tokens[1] == 10_200 + 21_800 + 18_000 + 14_800 + 2800 + 4800 + 18_800
    assert found.calls == (3 + 1 + 2 + 1 + 4, 3 + 1 + 5 + 1 + 4 + 1 + 4)


@pytest.mark.parametrize(
    ("preset", "chosen", "modifiers", "calls"),
    [
        ("quick", {}, (), (4, 4)),
        ("think", {}, (), (11, 19)),
        ("deep", {}, (), (13, 40)),  # 5 + 1, 8 + 1, three times 6 + 1, and four for FINAL.md
        ("full", {}, (), (15, 210)),  # 7 + 1, nine turns of 20 + 1 extra seat + 1, and four
        ("quick", {"turns": 2}, ("adaptive",), (7, 8)),
        ("think", {"turns": 3}, ("adaptive",), (11, 20)),
        ("think", {"width": (2, 2), "turns": 1}, (), (7, 7)),
        ("full", {"width": (5, 5), "turns": 2}, (), (13, 17)),
        ("quick", {"width": (200, 200)}, (), (202, 202)),
    ],
)
def test_calls_are_exact(
    preset: str, chosen: dict[str, Any], modifiers: tuple[str, ...], calls: tuple[int, int]
) -> None:
    assert estimate(planned(preset, *modifiers, **chosen), [spec()], 0).calls == calls


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("given_", [0, 1000, 100_000])
def test_ranges_are_sane(preset: str, given_: int) -> None:
    found = estimate(planned(preset), [spec(price=PRICE)], given_)
    assert found.cost is not None
    for low, high in (found.calls, found.tokens, found.cost):
        assert 0 < low <= high
    assert found.tokens[0] >= found.calls[0] * given_


def test_skills_are_part_of_each_voices_brief() -> None:
    card = SkillCard(name="a", description="b", place="user", path="/a/SKILL.md", sha256="0" * 64)
    plain, made = planned("quick"), replace(planned("quick"), skills=(card,), per_agent=(2, 3))
    before, after = (estimate(plan, [spec()], 100).tokens for plan in (plain, made))
    assert (after[0] - before[0], after[1] - before[1]) == (2 * 2 * 700, 2 * 3 * 700), "two voices, one turn"


def test_an_unknown_price_is_not_zero() -> None:
    made = planned("think", models=("m/a", "m/b"))
    free, known, unknown = Price(input=0, output=0), PRICE, None
    assert estimate(made, [spec("m/a", known), spec("m/b", unknown)], 0).cost is None
    assert estimate(made, [spec("m/a", unknown), spec("m/b", known)], 0).cost is None
    assert estimate(made, [spec("m/a", free), spec("m/b", free)], 0).cost == (0.0, 0.0)


def test_each_seat_is_priced_by_its_own_model_and_the_synthesis_by_the_first() -> None:
    dear = Price(input=0, output=1_000_000)  # a dollar a token
    made = planned("quick", models=("m/cheap", "m/dear"))
    free = Price(input=0, output=0)
    assert estimate(made, [spec("m/cheap", free), spec("m/dear", dear)], 0).cost == (250, 1000)
    assert estimate(made, [spec("m/cheap", dear), spec("m/dear", free)], 0).cost == (750, 3000)


def test_models_given_twice_take_their_seats_twice() -> None:
    dear, free = Price(input=0, output=1_000_000), Price(input=0, output=0)
    made = planned("think", models=("m/a", "m/a", "m/b"), turns=1)
    assert estimate(made, [spec("m/a", free), spec("m/b", dear)], 0).cost == (250, 1000)


def test_the_summary_is_what_dry_run_prints() -> None:
    made = planned("full", "adaptive", models=("m/a", "m/b"))
    shown = summary(made, "Should we?", Range((1, 2), (3, 4), (0.1234567, 2.0)), ["a", "b"])
    assert shown == {
        "preset": "full",
        "why": "you asked for full",
        "mode": None,
        "modifiers": ["adaptive"],
        "domain": None,
        "problem": "Should we?",
        "width": [5, 20],
        "max_turns": 10,
        "turns": [5, 10],
        "adaptive": True,
        "roles": ["a", "b"],
        "matches": {},
        "models": ["m/a", "m/b"],
        "hitl": False,
        "team": True,
        "bd": True,
        "skills": [],
        "documents": [],
        "repository": False,
        "calls": [1, 2],
        "tokens": [3, 4],
        "cost": [0.123457, 2.0],
        "seconds": [0, 0],
        "remarks": [],
    }  # fmt: skip
    assert summary(made, "x", Range((1, 2), (3, 4), None), ())["cost"] is None


@pytest.mark.parametrize(
    ("preset", "modifiers", "on"),
    [
        ("quick", (), set()),
        ("think", (), set()),
        ("deep", (), {"bd", "team", "dashboard"}),
        ("full", (), {"bd", "team", "dashboard"}),
        ("debug", (), {"dashboard"}),
        ("think", ("team",), {"team"}),
        ("quick", ("bd",), {"bd"}),
        ("think", ("hitl",), {"hitl", "dashboard"}),
    ],
)
def test_what_a_preset_and_its_modifiers_turn_on(preset: str, modifiers: tuple[str, ...], on: set[str]) -> None:
    made = planned(preset, *modifiers)
    assert {name for name in ("bd", "team", "dashboard", "hitl") if getattr(made, name)} == on
