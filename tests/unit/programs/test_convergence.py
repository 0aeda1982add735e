"""When a deliberation ends, and what is a conflict: each rule of SPEC 5 by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.content.schemas import ConfidenceCaps, Criteria
from cdo.formats.voice_blocks import Camp, Directive
from cdo.programs.deliberation.convergence import (
    UNSETTLED,
    Position,
    Record,
    StopReason,
    Tension,
    bounded,
    conflict,
    dispute,
    suspicious,
    verdict,
)
from cdo.programs.deliberation.objections import Dissent

CRITERIA = Criteria(exit_confidence=0.8, quiet_turns=2, agreement_flag=0.7, confidence_drop=0.2, severe=8)
OPEN = {"id": "T1", "title": "speed against safety", "status": "open"}
SETTLED = {**OPEN, "status": "resolved"}
ACCEPTED = {**OPEN, "status": "accepted"}
OUTSIDE = {**OPEN, "status": "outside", "settled_by": "the vendor"}


def directive(**changes: Any) -> Directive:
    """One that ends nothing and starts nothing."""
    plain = {"width": 3, "roles": [], "focus": "x", "confidence": 0.6, "exit_ready": False, "tensions": [OPEN]}
    return Directive.model_validate({**plain, **changes})


def positions(camps: Sequence[Camp]) -> list[Position]:
    return [Position(name, 0, camp.position, 0.6) for camp in camps for name in camp.voices]


def record(*turns: dict[str, Any], objections: Sequence[Dissent] = ()) -> Record:
    """The record after these directives, each of which its camps' voices were heard in; the objections are those of
    the last turn."""
    made = Record()
    for number, changes in enumerate(turns, 1):
        said = directive(**changes)
        made = made.after(said, objections if number == len(turns) else (), positions(said.camps))
    return made


def ends(
    *turns: dict[str, Any],
    turns_: tuple[int, int] = (1, 50),
    confidence: float | None = None,
    argued: bool = False,
    withheld: bool = False,
) -> StopReason | None:
    """The verdict; the confidence is the stated one unless facts on record bound it."""
    made = record(*turns)
    left = made.turns[-1].directive.confidence if confidence is None else confidence
    return verdict(made, turns_, CRITERIA, confidence=left, argued=argued, withheld=withheld)


def objection(severity: int, text: str = "it loses data", ident: str = "o1", role: str = "critic") -> Dissent:
    return Dissent(ident, role, text, severity)


# -- exit-ready ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_ready", "confidence", "converged"),
    [(True, 0.8, True), (True, 1.0, True), (True, 0.79, False), (False, 1.0, False), (False, 0.8, False)],
)
def test_exit_ready_counts_with_a_confidence_of_at_least_the_threshold(
    exit_ready: bool, confidence: float, converged: bool
) -> None:
    found = ends({"exit_ready": exit_ready, "confidence": confidence})
    why = f"ready to exit at confidence {confidence:.2f}"
    assert found == (StopReason("converged", why, UNSETTLED) if converged else None)


def test_the_bounded_confidence_decides_and_not_the_stated_one() -> None:
    ready = {"exit_ready": True, "confidence": 0.95}
    assert ends(ready, confidence=0.79) is None
    found = ends(ready, confidence=0.81)
    assert found and found.why == "ready to exit at confidence 0.81"


def test_only_the_last_turns_exit_ready_counts() -> None:
    assert ends({"exit_ready": True, "confidence": 0.9}, {}) is None


# -- before the lower number of turns --------------------------------------------------------------

ONE = [{"position": "stage it", "voices": ["architect", "critic"]}]
TWO = [{"position": "stage it", "voices": ["architect"]}, {"position": "at once", "voices": ["critic"]}]
EARLY: dict[str, Any] = {"exit_ready": True, "confidence": 0.95, "camps": ONE, "tensions": [SETTLED]}


@pytest.mark.parametrize(
    ("changes", "argued", "ended"),
    [
        ({}, True, True),
        ({}, False, False),  # nobody argued for the other side
        ({"camps": TWO}, True, False),  # two answers
        ({"tensions": [OPEN]}, True, False),  # something that can be settled is open
        ({"tensions": [OUTSIDE]}, True, True),  # only a fact from outside can settle it
        ({"exit_ready": False}, True, False),
        ({"confidence": 0.79}, True, False),
    ],
)
def test_a_run_ends_before_the_lower_number_only_with_one_answer_that_was_argued_and_nothing_open(
    changes: dict[str, Any], argued: bool, ended: bool
) -> None:
    assert bool(ends({"gaps": ["a"]}, {**EARLY, **changes}, turns_=(3, 5), argued=argued)) is ended


def test_quiet_turns_end_a_run_before_the_lower_number_on_the_same_terms() -> None:
    silent = {"tensions": [], "camps": ONE}
    assert ends(silent, silent, turns_=(3, 5)) is None
    assert ends(silent, silent, turns_=(3, 5), argued=True) == QUIET


# -- caps ------------------------------------------------------------------------------------------


def test_the_cap_ends_the_loop_whatever_is_open() -> None:
    gaps: list[dict[str, Any]] = [{"gaps": [name]} for name in "abc"]
    assert ends(*gaps[:2], turns_=(2, 3)) is None
    capped = StopReason("max_turns", "the cap of 3 turns was reached", "a higher --turns; T1 is still open")
    assert ends(*gaps, turns_=(2, 3)) == capped
    assert ends(*gaps, turns_=(2, 3), withheld=True) == capped


@pytest.mark.parametrize(
    ("tensions", "needed"),
    [
        ([], "a higher --turns; nothing is open"),
        ([OUTSIDE], "a higher --turns; nothing is open"),
        ([OPEN], "a higher --turns; T1 is still open"),
        ([OPEN, {**OPEN, "id": "T2"}], "a higher --turns; T1, T2 are still open"),
    ],
)
def test_at_the_cap_it_is_said_what_another_turn_would_have_needed(
    tensions: list[dict[str, Any]], needed: str
) -> None:
    found = ends({"tensions": tensions, "gaps": ["a"]}, turns_=(1, 1))
    assert found == StopReason("max_turns", "the cap of 1 turn was reached", needed)


def test_what_converges_in_the_last_turn_has_converged() -> None:
    found = ends({"exit_ready": True, "confidence": 0.9}, turns_=(1, 1))
    assert found is not None
    assert found.status == "converged"


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ({"tensions": [SETTLED]}, True),
        ({"tensions": [ACCEPTED]}, True),
        ({"tensions": [OUTSIDE]}, True),
        ({"tensions": []}, True),
        ({"tensions": [OPEN]}, False),
        ({"tensions": [], "gaps": ["new"]}, False),
    ],
)
def test_from_the_lower_number_on_a_run_ends_where_nothing_can_be_settled(last: dict[str, Any], ended: bool) -> None:
    first = {"tensions": [], "gaps": ["old"]}
    turns = first, {**last, "gaps": last.get("gaps", ["old"])}
    why = "nothing that could be settled here was open after turn 2"
    assert ends(*turns, turns_=(2, 5)) == (StopReason("converged", why, UNSETTLED) if ended else None)
    assert ends(*turns, turns_=(3, 5)) is None


@pytest.mark.parametrize("last", [{"exit_ready": True, "confidence": 1.0, "camps": ONE}, {}])
def test_what_is_withheld_ends_by_no_rule_but_the_cap(last: dict[str, Any]) -> None:
    silent = {"tensions": [], **last}
    assert ends(silent, silent, argued=True) is not None
    assert ends(silent, silent, argued=True, withheld=True) is None


# -- quiet turns -----------------------------------------------------------------------------------

QUIET = StopReason("converged", "no open tension and no new gap in 2 turns", UNSETTLED)


@pytest.mark.parametrize(
    ("turns", "ended"),
    [
        ([{"tensions": []}], False),
        ([{"tensions": []}, {"tensions": []}], True),
        ([{"tensions": [OPEN]}, {"tensions": [SETTLED]}], True),
        ([{"tensions": [OPEN]}, {"tensions": [ACCEPTED]}], True),
        ([{"tensions": [OPEN]}, {"tensions": [OUTSIDE]}], True),
        ([{"tensions": []}, {"tensions": [OPEN]}], False),
        ([{"tensions": [], "gaps": ["a"]}, {"tensions": []}], False),
        ([{"tensions": []}, {"tensions": [], "gaps": ["a"]}], False),
        ([{"tensions": [], "gaps": ["a"]}, {"tensions": []}, {"tensions": []}], True),
        # A gap that was named before is not new, however it is written.
        ([{"tensions": [], "gaps": ["A  gap"]}, {"tensions": []}, {"tensions": [], "gaps": ["a gap "]}], True),
        ([{"tensions": [], "gaps": ["a"]}, {"tensions": [], "gaps": ["a"]}, {"tensions": [], "gaps": ["b"]}], False),
        # Leaving a tension out does not resolve it.
        ([{"tensions": [OPEN]}, {"tensions": []}, {"tensions": []}], False),
        ([{"tensions": [OPEN]}, {"tensions": []}, {"tensions": [SETTLED]}], True),
        ([{"tensions": [SETTLED]}, {"tensions": []}], True),
    ],
)
def test_two_quiet_turns_without_open_tensions_converge(turns: list[dict[str, Any]], ended: bool) -> None:
    spoken = [{**turn, "camps": ONE} for turn in turns]
    assert ends(*spoken, turns_=(40, 50), argued=True) == (QUIET if ended else None)


def test_the_number_of_quiet_turns_is_a_criterion() -> None:
    patient = replace(CRITERIA, quiet_turns=3)
    silent: dict[str, Any] = {"tensions": [], "camps": ONE}

    def found(*turns: dict[str, Any]) -> StopReason | None:
        return verdict(record(*turns), (40, 50), patient, confidence=0.6, argued=True, withheld=False)

    assert found(silent, silent) is None
    assert found(silent, silent, silent) is not None


# -- the ledger ------------------------------------------------------------------------------------


def test_a_tension_lives_from_the_turn_that_named_it_first() -> None:
    made = record(
        {"tensions": [OPEN]},
        {"tensions": [{**OPEN, "title": "speed against proof"}, {"id": "T2", "title": "cost", "status": "open"}]},
        {"tensions": [{"id": "T2", "title": "cost", "status": "accepted"}]},
    )
    assert made.ledger == (
        Tension("T1", "speed against proof", "open", 1),
        Tension("T2", "cost", "accepted", 2),
    )
    assert made.open == (Tension("T1", "speed against proof", "open", 1),)


def test_a_tension_can_open_again() -> None:
    made = record({"tensions": [OPEN]}, {"tensions": [SETTLED]}, {"tensions": [OPEN]})
    assert [(item.status, item.since) for item in made.ledger] == [("open", 1)]


def test_what_settled_a_tension_is_kept_while_its_status_stays() -> None:
    named = {**OUTSIDE, "settled_by": "the vendor"}
    bare = {**OUTSIDE, "settled_by": ""}
    assert [item.settled_by for item in record({"tensions": [named]}, {"tensions": [bare]}).ledger] == ["the vendor"]
    assert [item.settled_by for item in record({"tensions": [named]}, {"tensions": [OPEN]}).ledger] == [""]


def test_a_tension_for_the_outside_is_not_open() -> None:
    made = record({"tensions": [OUTSIDE, {**OPEN, "id": "T2"}]})
    assert ([item.id for item in made.outside], [item.id for item in made.open]) == (["T1"], ["T2"])
    assert not made.settled and record({"tensions": [OUTSIDE]}).settled


def test_a_record_never_changes() -> None:
    before = record({"gaps": ["a"]})
    after = before.after(directive(gaps=["a", "b"], tensions=[SETTLED]), [objection(9)])
    assert before == record({"gaps": ["a"]})
    assert [turn.new_gaps for turn in after.turns] == [("a",), ("b",)]
    assert after.turns[-1].objections == (objection(9),)
    assert [item.id for item in after.objections.open] == ["O1"]


def test_the_last_position_of_a_voice_that_sits_no_longer_is_kept() -> None:
    first = [Position("critic", 1, "no", 0.4), Position("architect", 1, "yes", 0.6)]
    made = Record().after(directive(), [], first).after(directive(), [], [Position("architect", 2, "yes", 0.7)])
    assert made.dropped == (first[0],)
    back = made.after(directive(), [], [Position("critic", 3, "perhaps", 0.5)])
    assert [(item.voice, item.text) for item in back.dropped] == [("architect", "yes")]


@pytest.mark.parametrize(
    ("camps", "sizes", "leading"),
    [
        ([("yes", ["a", "b"]), ("no", ["c"])], [2, 1], "yes"),
        ([("no", ["c"]), ("yes", ["a", "b"])], [2, 1], "yes"),
        ([("yes", ["a"]), ("no", ["b"])], [1, 1, 1], ""),  # nobody named c: it is a camp of its own
        ([("yes", ["a", "b", "c"])], [3], "yes"),
        ([("yes", ["a", "b"]), ("no", ["b", "c"])], [2, 1], "yes"),  # b counts once, where it is named first
        ([("yes", ["a", "ghost", "a"]), ("no", ["b", "c"])], [2, 1], "no"),
        ([], [1, 1, 1], ""),
    ],
)
def test_camps_hold_each_voice_that_was_heard_once(
    camps: list[tuple[str, list[str]]], sizes: list[int], leading: str
) -> None:
    told = [{"position": position, "voices": voices} for position, voices in camps]
    made = Record().after(directive(camps=told), [], [Position(name, 1, name, 0.5) for name in "abc"])
    last = made.turns[-1]
    assert [len(camp.voices) for camp in last.camps] == sizes
    assert sorted(name for camp in last.camps for name in camp.voices) == ["a", "b", "c"]
    assert (last.leading, made.one_camp) == (leading, len(sizes) == 1)


TENSIONS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["T1", "T2", "T3"]),
        "title": st.sampled_from(["a", "b"]),
        "status": st.sampled_from(["open", "resolved", "accepted", "outside"]),
    }
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "tensions": st.lists(TENSIONS, max_size=3, unique_by=lambda item: item["id"]),
            "gaps": st.lists(st.sampled_from(["g", "G ", "h"]), max_size=2),
        }
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=120, deadline=None)
@given(TURNS)
def test_no_tension_ever_leaves_the_ledger_and_no_gap_is_new_twice(turns: list[dict[str, Any]]) -> None:
    made = record(*turns)
    named = {item["id"]: item["status"] for turn in turns for item in turn["tensions"]}
    assert {item.id: item.status for item in made.ledger} == named
    first: dict[str, int] = {}
    for number, turn in enumerate(turns, 1):
        for item in turn["tensions"]:
            first.setdefault(item["id"], number)
    assert {item.id: item.since for item in made.ledger} == first
    new = [{gap.strip().lower() for gap in turn.new_gaps} for turn in made.turns]
    assert sum(map(len, new)) == len(set().union(*new))


# -- conflicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "is_one"),
    [
        (0.9, 0.7, True),
        (0.8, 0.6, True),
        (0.7, 0.5, True),  # 0.19999999999999996 in binary
        (0.6, 0.4, True),
        (0.3, 0.1, True),
        (1.0, 0.2, True),
        (0.8, 0.61, False),
        (0.7, 0.51, False),
        (0.5, 0.9, False),
        (0.5, 0.5, False),
    ],
)
def test_a_drop_of_confidence_is_a_conflict_from_two_tenths_on(before: float, after: float, is_one: bool) -> None:
    said = conflict(record({"confidence": before}, {"confidence": after}), CRITERIA)
    assert said == (f"confidence fell from {before:.2f} to {after:.2f}" if is_one else "")


def test_the_first_turn_cannot_drop_and_only_neighbours_are_compared() -> None:
    assert conflict(record({"confidence": 0.0}), CRITERIA) == ""
    assert conflict(record({"confidence": 0.9}, {"confidence": 0.8}, {"confidence": 0.65}), CRITERIA) == ""


@pytest.mark.parametrize(("severity", "is_one"), [(7, False), (8, True), (10, True), (1, False)])
def test_a_severe_objection_is_a_conflict(severity: int, is_one: bool) -> None:
    said = conflict(record({}, objections=[objection(severity)]), CRITERIA)
    assert said == (f"critic objects with severity {severity} (O1): it loses data" if is_one else "")


@pytest.mark.parametrize(
    ("ruling", "is_one"),
    [
        ({}, True),
        ({"leading": True}, True),
        ({"leading": False}, False),  # against an option that nobody holds
        ({"status": "answered", "why": "the log is kept"}, False),
        ({"status": "answered", "why": " "}, True),  # an answer without a reason answers nothing
    ],
)
def test_only_an_open_objection_against_the_leading_answer_is_a_conflict(
    ruling: dict[str, Any], is_one: bool
) -> None:
    made = record({"objections": [{"id": "O1", **ruling}]}, objections=[objection(9)])
    assert bool(conflict(made, CRITERIA)) is is_one


def test_an_objection_is_a_conflict_until_a_referee_has_weighed_it() -> None:
    made = record({}, objections=[objection(9)])
    later = made.after(directive(), [])
    assert conflict(later, CRITERIA) == "critic objects with severity 9 (O1): it loses data"
    weighed = later.after(directive(), [], refereed=True)
    assert conflict(weighed, CRITERIA) == "" and [item.id for item in weighed.objections.open] == ["O1"]


def test_all_reasons_are_told_the_gravest_first_and_briefly() -> None:
    objections = [objection(8, "a\n b", "o1"), objection(10, "x" * 500, "o2"), objection(3, "never", "o3")]
    made = record({"confidence": 0.9}, {"confidence": 0.5}, objections=objections)
    severe = f"critic objects with severity 10 (O2): {'x' * 239}…; critic objects with severity 8 (O1): a b"
    assert conflict(made, CRITERIA) == f"confidence fell from 0.90 to 0.50; {severe}"
    # What a voice is told of it holds no confidence of the synthesis.
    assert dispute(made, CRITERIA) == (
        f"the leading answer stands on weaker evidence than it did in the turn before; {severe}"
    )


def test_a_flood_of_objections_is_counted_not_repeated() -> None:
    objections = [objection(9, "no " * 1000, f"o{n}", f"role-{n}") for n in range(200)]
    said = conflict(record({}, objections=objections), CRITERIA)
    assert said.endswith("; and 195 more")
    assert len(said) < 2000


# -- agreement -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agreement", "flagged"), [(0.7, False), (0.71, True), (1.0, True), (0.0, False), (None, False)]
)
def test_agreement_is_flagged_above_the_threshold_only(agreement: float | None, flagged: bool) -> None:
    assert suspicious(record({"agreement": 0.9}, {"agreement": agreement}), CRITERIA) is flagged


# -- confidence ------------------------------------------------------------------------------------


FACTS = ("open_tensions", "objections", "missing", "verified", "unverified")


@pytest.mark.parametrize(
    ("stated", "facts", "left", "why"),
    [
        (0.9, (0, 0, 0, 0, 0), 0.9, ""),
        (0.9, (0, 0, 0, 7, 0), 0.9, ""),
        (0.9, (1, 0, 0, 0, 0), 0.79, "1 question is still open"),
        (0.9, (0, 1, 0, 0, 0), 0.79, "1 severe objection is still open"),
        (0.95, (0, 0, 2, 0, 0), 0.9, "2 voices are missing"),
        (0.9, (0, 0, 0, 1, 1), 0.65, "1 of 2 citations was not found"),
        (0.9, (0, 0, 0, 0, 4), 0.4, "4 of 4 citations were not found"),
        (0.85, (0, 0, 0, 7, 3), 0.7, "3 of 10 citations were not found"),
        (
            0.95,
            (2, 2, 1, 19, 1),
            0.79,
            "1 of 20 citations was not found, 2 questions are still open, 2 severe objections are still open, "
            "1 voice is missing",
        ),
        (0.6, (2, 3, 1, 4, 0), 0.6, ""),
        (0.6, (2, 3, 1, 3, 1), 0.47, "1 of 4 citations was not found"),
    ],
)
def test_facts_on_record_bound_a_stated_confidence(
    stated: float, facts: tuple[int, int, int, int, int], left: float, why: str
) -> None:
    found, reason = bounded(stated, ConfidenceCaps(), **dict(zip(FACTS, facts, strict=True)))
    assert abs(found - left) < 1e-9 and reason == why


@given(st.floats(0, 1), st.fixed_dictionaries({name: st.integers(0, 9) for name in FACTS}))
def test_no_fact_ever_raises_a_confidence(stated: float, facts: dict[str, int]) -> None:
    found, why = bounded(stated, ConfidenceCaps(), **facts)
    assert 0 <= found <= stated and bool(why) == (found < stated)
