"""The plan of a turn as a file: what is written reads back the same, and what is wrong is told with its place."""

from __future__ import annotations

import functools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Convergence, Criteria
from cdo.core.schema import field_names
from cdo.core.steps import InvalidReply
from cdo.formats.role_names import role_problem
from cdo.planning import turn_plan
from cdo.planning.role_choice import SPECIAL_ROLES
from cdo.planning.turn_plan import Combo, Combos, PlanFormat, PlanMessage, PlannedSeat, Proposal, dump
from cdo.planning.turn_plan_commands import COMMANDS, applied
from tests.support.effort import at_most

LIBRARY = Library((("packaged", PACKAGED),))
RENDER = functools.partial(LIBRARY.render, "templates/turn-plan")
ROLES = tuple(role for role in LIBRARY.names("templates/roles") if role not in SPECIAL_ROLES)
COMBOS = LIBRARY.read("templates/combos", Combos)[0].combos
RULES = LIBRARY.read("engine/convergence", Convergence)[0].criteria
PLAN = Proposal(
    turn=2,
    voices=(
        PlannedSeat(role="architect"),
        PlannedSeat(role="critic", charge="attack the seam", skills=("adr",), model="openai/gpt-4.1"),
        PlannedSeat(role="pragmatist"),
    ),
    focus="settle the seam",
    turns=(3, 5),
    criteria=RULES,
)
FORMAT = PlanFormat(PLAN, (2, 5), ROLES, ("adr", "c4", "threat-model"), COMBOS, ("openai/gpt-4.1", "local"))


def text(plan: Proposal = PLAN, format: PlanFormat = FORMAT) -> str:
    return dump(plan, format, RENDER)


def read(typed: str) -> Proposal:
    return FORMAT.parse(typed)


def refused(typed: str, format: PlanFormat = FORMAT) -> str:
    """The one sentence with which a file's text is refused."""
    with pytest.raises(InvalidReply) as caught:
        format.parse(typed)
    (problem,) = caught.value.problems
    return str(problem)


# -- what is written -------------------------------------------------------------------------------


def test_a_plan_is_a_short_file_with_comments_that_reads_back_the_same() -> None:
    written = text()
    assert read(written) == PLAN
    lines = written.splitlines()
    assert max(map(len, lines)) <= 120
    assert len(lines) < 70
    assert [line for line in lines if not line.startswith("#") and line] == [
        "voices:",
        "- {role: architect}",
        "- role: critic",
        "  charge: attack the seam",
        "  skills: [adr]",
        "  model: openai/gpt-4.1",
        "- {role: pragmatist}",
        "combo:",
        "width:",
        "focus: settle the seam",
        "turns: [3, 5]",
        "criteria:",
        "  exit_confidence: 0.8",
        "  quiet_turns: 2",
        "  agreement_flag: 0.7",
        "  confidence_drop: 0.2",
        "  severe: 8",
        "note: ''",
        "messages: []",
        "decision: go",
    ]
    comments = "\n".join(line for line in lines if line.startswith("#"))
    for word in (*COMBOS, *ROLES, "adr", "threat-model", "local", "2 to 5"):
        assert word in comments


def test_hostile_names_stay_in_their_comment() -> None:
    format = PlanFormat(PLAN, None, ROLES, ("a\nvoices: []\x1b[31m", "{{ 7 * 7 }}"), {}, ("m\r\ndecision: done",))
    written = text(format=format)
    assert format.parse(written) == PLAN
    assert "\x1b" not in written and "\r" not in written and "{{ 7 * 7 }}" in written


WORDS = st.text(max_size=60).map(str.strip)  # a plan holds texts without white space around them
NAMES = st.from_regex("[a-z][a-z0-9-]{0,31}", fullmatch=True).filter(lambda name: role_problem(name) is None)
SEATS = st.builds(
    PlannedSeat,
    role=st.one_of(st.sampled_from(ROLES), NAMES),
    charge=WORDS,
    skills=st.lists(WORDS.filter(str.strip), max_size=3).map(tuple),
    model=WORDS,
)
SHARES = st.floats(0, 1, allow_nan=False)
PLANS = st.builds(
    Proposal,
    turn=st.integers(2, 4),
    voices=st.lists(SEATS, min_size=1, max_size=5).map(tuple),
    focus=WORDS,
    turns=st.tuples(st.integers(1, 5), st.integers(5, 256)),
    criteria=st.builds(
        Criteria,
        exit_confidence=SHARES,
        quiet_turns=st.integers(1, 256),
        agreement_flag=SHARES,
        confidence_drop=SHARES,
        severe=st.integers(1, 10),
    ),
    note=WORDS,
    messages=st.lists(st.builds(PlanMessage, to=NAMES, text=WORDS.filter(str.strip)), max_size=2).map(tuple),
    decision=st.sampled_from(["go", "done"]),
)


@pytest.mark.wide
@settings(max_examples=100, deadline=None)
@given(PLANS)
def test_whatever_is_proposed_reads_back_the_same(plan: Proposal) -> None:
    format = PlanFormat(plan, (2, 3), ROLES, (), COMBOS, ())
    assert format.parse(dump(plan, format, RENDER)) == plan


KEYS = [*field_names(turn_plan._PlanFile), "role", "charge", "skills", "to", "text"]
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS, st.sampled_from([*ROLES, *COMBOS])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.dictionaries(st.sampled_from(KEYS), VALUES).map(str), VALUES.map(repr)))
def test_hostile_text_is_a_plan_or_refused(typed: str) -> None:
    try:
        assert isinstance(read(typed), Proposal)
    except InvalidReply as error:
        assert error.problems
        for problem in error.problems:
            assert re.search("line [0-9]+, column [0-9]+: ", problem) or "bytes of YAML" in problem
            assert problem.isprintable()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_file_with_one_line_spoilt_is_a_plan_or_refused_with_its_place(data: st.DataObject) -> None:
    lines = text().splitlines()
    index = data.draw(st.integers(0, len(lines) - 1))
    lines[index] = data.draw(st.one_of(st.text(), st.sampled_from(lines)))
    try:
        read("\n".join(lines))
    except InvalidReply as error:
        assert all("line " in problem for problem in error.problems)


@pytest.mark.wide
def test_large_files_are_refused_fast() -> None:
    with at_most(5):
        assert "bytes of YAML" in refused("a" * 10_000_000)
        assert "nested deeper" in refused("[" * 100_000)
        with pytest.raises(InvalidReply):
            read("voices:\n" + "- {role: A}\n" * 20_000)
        with pytest.raises(InvalidReply):
            read("voices:\n" + "- x\n" * 257)


# -- what a person makes of it ---------------------------------------------------------------------


def test_what_is_left_out_stays_as_proposed() -> None:
    assert read("decision: done") == replace(PLAN, decision="done")
    assert read("criteria: {severe: 9}").criteria == replace(RULES, severe=9)
    assert read("focus:").focus == ""


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("voices: [tester, critic]", ["tester", "critic"]),
        ("voices: [critic, critic, critic-2]", ["critic", "critic-2", "critic-2-2"]),
        ("voices:\n- {role: skeptic, charge: attack the seam}\n- critic", ["skeptic", "critic"]),
        ("width: 2", ["architect", "critic"]),
        ("width: 4", ["architect", "critic", "pragmatist", "compliance-reviewer"]),
        ("voices: [tester]\nwidth: 2", ["tester", "architect"]),
        ("voices:\nwidth: 2", ["architect", "compliance-reviewer"]),
        ("combo: core\nvoices: []", ["architect", "critic", "pragmatist"]),
        ("combo: Security", ["security-reviewer", "risk-analyst", "compliance-reviewer", "operator"]),
        ("combo: critic + tester", ["critic", "tester"]),
        ("combo: critic", None),
        ("combo: simplicity+tester", ["first-principles", "minimalist", "maintainer", "tester"]),
        ("combo: core\nwidth: 2", ["architect", "critic"]),
        ("turn: 2\nturns: 4", ["architect", "critic", "pragmatist"]),
    ],
)
def test_voices_width_and_combo_make_up_the_turn(typed: str, names: list[str] | None) -> None:
    assert list(read(typed).names) == (names or ["critic", "architect"])


def test_a_role_of_a_combo_keeps_what_it_was_charged_with() -> None:
    assert read("combo: core").voices == PLAN.voices
    assert read("combo: evidence").voices[1] == PLAN.voices[1]


def test_one_name_stands_for_a_voice_and_one_line_for_its_skills() -> None:
    (first, second) = read("voices:\n- tester\n- {role: critic, skills: 'adr, c4', model: local}").voices
    assert first == PlannedSeat(role="tester")
    assert (second.skills, second.model) == (("adr", "c4"), "local")


@pytest.mark.parametrize(("typed", "turns"), [("[2, 9]", (2, 9)), ("4", (4, 4)), ("3-6", (3, 6)), ("'4'", (4, 4))])
def test_turns_are_two_numbers_or_one_for_both(typed: str, turns: tuple[int, int]) -> None:
    assert read(f"turns: {typed}").turns == turns


def test_messages_reach_voices_of_the_turn() -> None:
    plan = read("voices: [critic, critic]\nmessages:\n- {to: critic-2, text: hear}\n- {to: all, text: hear}")
    assert [message.to for message in plan.messages] == ["critic-2", "all"]


def test_an_empty_file_is_never_taken_for_done() -> None:
    for typed in ("", "\n\n", "# done\n", "\ufeff", "---\n", "{}"):
        assert "line 1, column 1: The plan is empty." in refused(typed)
        assert "`decision: done`" in refused(typed)


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("- go", "line 1, column 1: The plan has no keys."),
        ("go", "line 1, column 1: The plan has no keys."),
        ("voices: []", "line 1, column 9: `voices`: there must be at least one."),
        ("voices: [critic]", "line 1, column 9: `voices`: 1 of them, where 2 to 5 can sit."),
        ("note: x\nwidth: 6", "line 2, column 8: `voices`: 6 of them, where 2 to 5 can sit."),
        ("combo: core + data", "line 1, column 8: `voices`: 7 of them, where 2 to 5 can sit."),
        ("width: 0", "line 1, column 8: `width`: must be greater than or equal to 1."),
        ("width: yes", "line 1, column 8: `width`: must be a whole number."),
        ("width: true", "line 1, column 8: `width`: must be a whole number."),
        ("voices:\n- critic\n- {role: Critic}", "line 3, column 10: `role`: `Critic` cannot be a role"),
        ("voices:\n- critic\n- ../../etc", "line 3, column 3: `role`: `../../etc` cannot be a role"),
        ("voices:\n- critic\n- synthesis", "line 3, column 3: `role`: `synthesis` cannot be a role"),
        ("voices:\n- critic\n- {charge: x}", "line 3, column 3: `role` is missing."),
        (
            "voices:\n- critic\n- role: tester\n  chrage: x",
            "line 4, column 3: `chrage` is not a key; the keys are role, charge, skills, model, effort. Did you mean",
        ),
        (
            "voices:\n- critic\n- {role: tester, skills: [adr, treat-model]}",
            "line 3, column 32: There is no skill called `treat-model`. Did you mean threat-model?",
        ),
        (
            "voices:\n- critic\n- {role: tester, model: gpt-9}",
            "line 3, column 25: There is no model called `gpt-9`. There are: openai/gpt-4.1, local.",
        ),
        ("combo: securty", "line 1, column 8: There is no combo called `securty`. Did you mean security?"),
        ("combo: critic + tster", "line 1, column 8: There is no combo or role called `tster`. Did you mean tester?"),
        ("combo: critic +", "line 1, column 8: There is no combo or role called ``."),
        ("criteria: {exit: 1}", "line 1, column 12: `exit` is not a key; the keys are exit_confidence, quiet_turns"),
        ("criteria:\n  severe: 11", "line 2, column 11: `severe`: must be less than or equal to 10."),
        ("criteria: {severe: true}", "line 1, column 20: `severe`: must be a whole number."),
        ("criteria: {exit_confidence: nan}", "line 1, column 29: `exit_confidence`: must be"),
        ("criteria: none", "line 1, column 11: `criteria`: must be a mapping with the keys exit_confidence"),
        ("turns: [5, 3]", "line 1, column 8: `turns`: the first number must not be above the second."),
        ("turns: soon", "line 1, column 8: `turns`: must be two numbers, such as [3, 5]."),
        ("turns: 1", "line 1, column 8: `turns`: at most 1, and this is turn 2."),
        ("turns:", "line 1, column 7: `turns`: must be two numbers, such as [3, 5]."),
        ("turn: 3", "line 1, column 7: `turn`: this is the plan of turn 2."),
        ("decision: stop", "line 1, column 11: `decision`: must be 'go' or 'done'."),
        ("decision:", "line 1, column 10: `decision`: must be 'go' or 'done'."),
        ("desicion: done", "line 1, column 1: `desicion` is not a key; "),
        (
            "messages: [{to: tester, text: x}]",
            "line 1, column 17: There is no voice called `tester`. There are: arch",
        ),
        ("messages: [{to: critic}]", "line 1, column 12: `text` is missing."),
        ("note: [a]", "line 1, column 7: `note`: must be text."),
        ("note: &a x", "The plan is not valid YAML: line 1, column 7: anchors (&name) are not allowed."),
        ("note: a\nnote: b", "The plan is not valid YAML: line 2, column 1: the key `note` is there twice."),
        ("note: 'a\n\nfocus: b", "The plan is not valid YAML: line 3, column 9: found unexpected end of stream"),
        ("note: !!python/object:os.system x", "line 1, column 7: tags (!name) are not allowed"),
        ("note: \x1b[31m", "line 1, column 7: the character U+001B is not allowed"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_column(typed: str, problem: str) -> None:
    assert problem in refused(typed)


def test_every_complaint_of_a_file_is_told_at_once() -> None:
    with pytest.raises(InvalidReply) as caught:
        read("decision: stop\nturns: [2, 1]\nvoices: [A, critic]\nwdth: 3\n")
    assert [problem[:6] for problem in caught.value.problems] == ["line 1", "line 2", "line 3", "line 4"]


def test_done_before_the_first_turn_is_refused() -> None:
    first = replace(PLAN, turn=1)
    assert "before the first turn" in refused("decision: done", PlanFormat(first))


def test_without_skills_or_a_band_there_is_no_list_to_choose_from() -> None:
    format = PlanFormat(PLAN)
    assert "There is no skill called `c4`. There is none." in refused("voices: [{role: x, skills: c4}]", format)
    assert len(format.parse("width: 200").voices) == 200
    assert len(set(format.parse("width: 256").names)) == 256


def test_a_new_role_is_allowed_and_remarked_on() -> None:
    plan = read("voices: [pragmatis, critic, token-auditor]")
    near, new = FORMAT.remarks(plan)
    assert near == "pragmatis is a new role: its name and its charge are all it goes by. Did you mean pragmatist?"
    assert new == "token-auditor is a new role: its name and its charge are all it goes by."
    assert FORMAT.remarks(PLAN) == []
    assert FORMAT.mistyped(plan) == {"pragmatis": "pragmatist"}
    assert FORMAT.question(plan).startswith("There is no role called `pragmatis`. Did you mean pragmatist?")
    assert FORMAT.question(read("voices: [{role: pragmatis, charge: count}, critic, token-auditor]")) == ""


def test_what_was_proposed_is_allowed_whatever_the_rest_knows() -> None:
    format = PlanFormat(PLAN, (1, 2), (), (), {}, ())
    assert format.parse(text(format=format)) == PLAN


# -- seats -----------------------------------------------------------------------------------------


@pytest.mark.wide
@given(st.lists(NAMES, min_size=1, max_size=40))
def test_names_are_unique_and_can_be_files(roles: list[str]) -> None:
    plan = replace(PLAN, voices=tuple(PlannedSeat(role=role) for role in [*roles, *roles]))
    assert len(set(plan.names)) == 2 * len(roles)
    assert [role for _, role, _ in plan.seats] == [*roles, *roles]
    assert all(len(name) <= 32 for name in plan.names)


@given(st.lists(NAMES, max_size=6), st.lists(NAMES, min_size=1, max_size=6), st.integers(0, 30))
def test_filling_up_keeps_who_sits_and_brings_new_methods_first(sit: list[str], order: list[str], count: int) -> None:
    voices = tuple(PlannedSeat(role=role) for role in sit)
    after = PlanFormat(PLAN, None, tuple(order[1:]), order=tuple(order[:1])).filled(voices, count)
    assert len(after) == count
    assert after[: len(sit)] == voices[:count]
    added = [voice.role for voice in after[len(sit) :]]
    fresh = [role for role in dict.fromkeys(order) if role not in sit]
    assert added[: len(fresh)] == fresh[: len(added)]


# -- combos ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMBOS)
def test_every_combo_is_of_roles_that_there_are(name: str) -> None:
    assert role_problem(name) is None
    assert set(COMBOS[name].roles) <= set(ROLES)
    assert 3 <= len(set(COMBOS[name].roles)) == len(COMBOS[name].roles) <= 5
    assert COMBOS[name].about.endswith(".")


def test_a_combo_of_more_voices_than_a_turn_can_have_is_refused() -> None:
    combos = {name: Combo(about="x", roles=tuple(f"{name}{n}" for n in range(200))) for name in ("a", "b")}
    assert "These are 400 roles" in refused("combo: a + b", PlanFormat(PLAN, combos=combos))


def test_combos_are_named_otherwise_than_roles() -> None:
    assert not set(COMBOS) & set(ROLES)
    assert COMBOS["core"] == Combo(about=COMBOS["core"].about, roles=("architect", "critic", "pragmatist"))


# -- commands --------------------------------------------------------------------------------------


def after(command: str, plan: Proposal = PLAN) -> Proposal:
    return applied(command, plan, FORMAT)


def complaint(command: str, plan: Proposal = PLAN) -> str:
    with pytest.raises(InvalidReply) as caught:
        after(command, plan)
    return " ".join(caught.value.problems)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("combo delivery", ["implementer", "tester", "operator", "pragmatist"]),
        ("combo architect + tester", ["architect", "tester"]),
        ("add tester break it", ["architect", "critic", "pragmatist", "tester"]),
        ("add critic", ["architect", "critic", "pragmatist", "critic-2"]),
        ("REMOVE critic", ["architect", "pragmatist"]),
        ("rename critic skeptic", ["architect", "skeptic", "pragmatist"]),
        ("width 2", ["architect", "critic"]),
        ("  width   4 ", ["architect", "critic", "pragmatist", "compliance-reviewer"]),
    ],
)
def test_commands_change_who_sits(command: str, names: list[str]) -> None:
    assert list(after(command).names) == names


def test_commands_change_one_thing_each() -> None:
    assert after("rename critic skeptic").voices[1] == replace(PLAN.voices[1], role="skeptic")
    assert after("add tester break it: all").voices[-1] == PlannedSeat(role="tester", charge="break it: all")
    assert after("charge critic").voices[1].charge == ""
    assert after("skills critic c4, threat-model").voices[1].skills == ("c4", "threat-model")
    assert after("skills critic").voices[1].skills == ()
    assert after("model architect local").voices[0].model == "local"
    assert after("model critic").voices[1].model == ""
    assert after("turns 4").turns == (4, 4)
    assert after("turns 2-9").turns == (2, 9)
    assert after("set exit_confidence 0.9").criteria.exit_confidence == 0.9
    assert after("set severe  9").criteria.severe == 9
    assert after("focus who owns it").focus == "who owns it"
    assert after("note 'quoted' # no comment").note == "'quoted' # no comment"
    assert after("note", replace(PLAN, note="x")).note == ""
    assert after("done").decision == "done"
    assert after("go", after("done")) == PLAN


def test_a_renamed_voice_keeps_its_messages_and_one_that_leaves_is_not_forgotten() -> None:
    plan = read("messages: [{to: critic, text: hear}]")
    assert after("rename critic skeptic", plan).messages == (PlanMessage(to="skeptic", text="hear"),)
    assert "There is no voice called `critic`." in complaint("remove critic", plan)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("", "There is no command called ``."),
        ("widht 3", "There is no command called `widht`. Did you mean width?"),
        ("\x1b[2J\u202e", "There is no command called `\ufffd[2j\ufffd`."),
        ("add", "`add` takes ROLE [CHARGE]."),
        ("rename critic", "`rename` takes VOICE ROLE."),
        ("go on", "`go` takes nothing."),
        ("add ../x", "`../x` cannot be a role"),
        ("rename critic a b", "`a b` cannot be a role"),
        ("remove tester", "There is no voice called `tester`. There are: architect, critic, pragmatist."),
        ("remove critic now", "`remove` takes VOICE."),
        ("skills critic addr", "There is no skill called `addr`. Did you mean adr?"),
        ("model critic gpt", "There is no model called `gpt`."),
        ("combo nothing", "There is no combo called `nothing`. There are: core, security,"),
        ("width many", "`width` takes a number from 1 to 256."),
        ("width 6", "`voices`: 6 of them, where 2 to 5 can sit."),
        ("turns soon", "`turns`: must be two numbers, such as [3, 5]."),
        ("turns 1", "`turns`: at most 1, and this is turn 2."),
        ("set exit 1", "There is no criterion called `exit`. There are: exit_confidence,"),
        ("set severe high", "`set severe` takes a number."),
        ("set exit_confidence 1.5", "must be less than or equal to 1."),
        (f"focus {'x' * 2001}", "at most 2000 characters"),
        (f"add tester {'x' * 2001}", "at most 2000 characters"),
    ],
)
def test_a_command_that_is_wrong_says_why(command: str, problem: str) -> None:
    assert problem in complaint(command)


def test_one_voice_has_to_stay() -> None:
    format = PlanFormat(PLAN, (1, 5))
    plan = applied("width 1", PLAN, format)
    with pytest.raises(InvalidReply, match="One voice has to stay"):
        applied("remove architect", plan, format)


ARGUMENTS = st.one_of(WORDS, st.sampled_from([*PLAN.names, *field_names(Criteria), "3", "core"]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*COMMANDS, "x"]), ARGUMENTS, ARGUMENTS), max_size=6))
def test_any_commands_leave_a_plan_that_can_be_written_and_read(typed: list[tuple[str, str, str]]) -> None:
    plan = PLAN
    for words in typed:
        try:
            plan = after(" ".join(words), plan)
        except InvalidReply as error:
            assert all(problem.isprintable() for problem in error.problems)
    assert read(text(plan)) == plan
