"""When a deliberation ends, and what is a conflict: each rule of SPEC 5 by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.convergence import Record, Tension, Verdict, bounded, conflict, suspicious, verdict
from cdo.final import Dissent
from cdo.protocol import Directive
from cdo.schemas import Bounds, Criteria

CRITERIA = Criteria(exit_confidence=0.8, quiet_turns=2, agreement_flag=0.7, confidence_drop=0.2, severe=8)
OPEN = {"id": "T1", "title": "speed against safety", "status": "open"}
SETTLED = {**OPEN, "status": "resolved"}
ACCEPTED = {**OPEN, "status": "accepted"}


def directive(**changes: Any) -> Directive:
    """One that ends nothing and starts nothing."""
    plain = {"width": 3, "roles": [], "focus": "x", "confidence": 0.6, "exit_ready": False, "tensions": [OPEN]}
    return Directive.model_validate({**plain, **changes})


def record(*turns: dict[str, Any], objections: Sequence[Dissent] = ()) -> Record:
    """The record after these directives; the objections are those of the last turn."""
    made = Record()
    for number, changes in enumerate(turns, 1):
        made = made.after(directive(**changes), objections if number == len(turns) else ())
    return made


def ends(*turns: dict[str, Any], cap: tuple[int, int] = (50, 50), unheard: bool = False) -> Verdict | None:
    return verdict(record(*turns), cap, CRITERIA, unheard=unheard)


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
    assert found == (Verdict("converged", f"exit-ready at confidence {confidence:.2f}") if converged else None)


def test_exit_ready_is_believed_in_the_first_turn_and_with_open_tensions() -> None:
    assert ends({"exit_ready": True, "confidence": 0.9, "tensions": [OPEN], "gaps": ["a"]}) is not None


def test_only_the_last_turns_exit_ready_counts() -> None:
    assert ends({"exit_ready": True, "confidence": 0.9}, {}) is None


def test_an_unheard_conflict_defers_the_exit() -> None:
    assert ends({"exit_ready": True, "confidence": 0.9}, unheard=True) is None


# -- caps ------------------------------------------------------------------------------------------


def test_the_cap_ends_the_loop_whatever_is_open() -> None:
    assert ends({"gaps": ["a"]}, {"gaps": ["b"]}, cap=(2, 3)) is None
    assert ends({"gaps": ["a"]}, {"gaps": ["b"]}, {"gaps": ["c"]}, cap=(2, 3)) == Verdict(
        "max_turns", "the cap of 3 turns was reached"
    )
    assert ends({"gaps": ["a"]}, cap=(1, 1), unheard=True) == Verdict("max_turns", "the cap of 1 turn was reached")


def test_what_converges_in_the_last_turn_has_converged() -> None:
    found = ends({"exit_ready": True, "confidence": 0.9}, cap=(1, 1))
    assert found is not None
    assert found.status == "converged"


@pytest.mark.parametrize(
    ("last", "unheard", "ended"),
    [
        ({"tensions": [SETTLED]}, False, True),
        ({"tensions": [ACCEPTED]}, False, True),
        ({"tensions": []}, False, True),
        ({"tensions": [OPEN]}, False, False),
        ({"tensions": [], "gaps": ["new"]}, False, False),
        ({"tensions": []}, True, False),
    ],
)
def test_turns_after_the_soft_cap_are_earned(last: dict[str, Any], unheard: bool, ended: bool) -> None:
    first = {"tensions": [], "gaps": ["old"]}
    found = ends(first, {**last, "gaps": last.get("gaps", ["old"])}, cap=(2, 5), unheard=unheard)
    why = "after turn 2 nothing open would have earned another"
    assert found == (Verdict("max_turns", why) if ended else None)


def test_before_the_soft_cap_a_turn_needs_no_earning() -> None:
    assert ends({"tensions": [], "gaps": []}, cap=(2, 5)) is None


# -- quiet turns -----------------------------------------------------------------------------------

QUIET = Verdict("converged", "no open tension and no new gap in 2 turns")


@pytest.mark.parametrize(
    ("turns", "ended"),
    [
        ([{"tensions": []}], False),
        ([{"tensions": []}, {"tensions": []}], True),
        ([{"tensions": [OPEN]}, {"tensions": [SETTLED]}], True),
        ([{"tensions": [OPEN]}, {"tensions": [ACCEPTED]}], True),
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
    assert ends(*turns) == (QUIET if ended else None)


def test_a_turn_with_an_unheard_conflict_is_not_quiet() -> None:
    assert ends({"tensions": []}, {"tensions": []}, unheard=True) is None


def test_the_number_of_quiet_turns_is_a_criterion() -> None:
    patient = CRITERIA.model_copy(update={"quiet_turns": 3})
    silent: dict[str, Any] = {"tensions": []}
    assert verdict(record(silent, silent), (50, 50), patient, unheard=False) is None
    assert verdict(record(silent, silent, silent), (50, 50), patient, unheard=False) is not None


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


def test_a_record_never_changes() -> None:
    before = record({"gaps": ["a"]})
    after = before.after(directive(gaps=["a", "b"], tensions=[SETTLED]), [objection(9)])
    assert before == record({"gaps": ["a"]})
    assert [turn.new_gaps for turn in after.turns] == [("a",), ("b",)]
    assert after.turns[-1].objections == (objection(9),)


TENSIONS = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["T1", "T2", "T3"]),
        "title": st.sampled_from(["a", "b"]),
        "status": st.sampled_from(["open", "resolved", "accepted"]),
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
    assert said == (f"critic objects with severity {severity} (o1): it loses data" if is_one else "")


def test_an_earlier_turns_objections_are_no_conflict_now() -> None:
    made = record({}, objections=[objection(9)]).after(directive(), [])
    assert conflict(made, CRITERIA) == ""


def test_all_reasons_are_told_the_gravest_first_and_briefly() -> None:
    objections = [objection(8, "a\n b", "o1"), objection(10, "x" * 500, "o2"), objection(3, "never", "o3")]
    said = conflict(record({"confidence": 0.9}, {"confidence": 0.5}, objections=objections), CRITERIA)
    assert said == (
        "confidence fell from 0.90 to 0.50; "
        f"critic objects with severity 10 (o2): {'x' * 239}…; "
        "critic objects with severity 8 (o1): a b"
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


@pytest.mark.parametrize(
    ("stated", "facts", "left", "why"),
    [
        (0.9, (0, 0, 0, 0), 0.9, ""),
        (0.9, (0, 0, 7, 0), 0.9, ""),
        (0.9, (1, 0, 0, 0), 0.79, "1 open tension"),
        (0.95, (0, 2, 0, 0), 0.9, "2 missing voices"),
        (0.9, (0, 0, 1, 1), 0.75, "1 of 2 citations not verified"),
        (0.9, (0, 0, 0, 4), 0.5, "4 of 4 citations not verified"),
        (0.95, (2, 1, 3, 1), 0.79, "2 open tensions, 1 missing voice, 1 of 4 citations not verified"),
        (0.6, (2, 1, 3, 1), 0.6, ""),
    ],
)
def test_facts_on_record_bound_a_stated_confidence(
    stated: float, facts: tuple[int, int, int, int], left: float, why: str
) -> None:
    tensions, missing, verified, unverified = facts
    found, reason = bounded(
        stated, Bounds(), open_tensions=tensions, missing=missing, verified=verified, unverified=unverified
    )
    assert abs(found - left) < 1e-9 and reason == why


@given(st.floats(0, 1), *[st.integers(0, 9)] * 4)
def test_no_fact_ever_raises_a_confidence(stated: float, a: int, b: int, c: int, d: int) -> None:
    found, why = bounded(stated, Bounds(), open_tensions=a, missing=b, verified=c, unverified=d)
    assert 0 <= found <= stated and bool(why) == (found < stated)
