"""The ledger of objections: nothing leaves it, and only those who may can close what stands on it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.formats.voice_blocks import Ruling
from cdo.programs.deliberation.objections import NOTED, Dissent, Objections


def raised(severity: int = 9, text: str = "it loses data", role: str = "critic", **more: Any) -> Dissent:
    return Dissent("o1", role, text, severity, **more)


def ruling(**changes: Any) -> Ruling:
    return Ruling.model_validate({"id": "O1", "why": "the log is kept", **changes})


def fates(ledger: Objections) -> list[tuple[str, str]]:
    return [(item.id, item.status) for item in ledger.items]


def test_ids_are_those_of_the_run_and_never_given_twice() -> None:
    ledger = Objections().raised(1, [raised(), raised(role="tester")]).raised(2, [raised(text="it is slow")])
    assert [(item.id, item.role, item.turn, item.text) for item in ledger.items] == [
        ("O1", "critic", 1, "it loses data"),
        ("O2", "tester", 1, "it loses data"),
        ("O3", "critic", 2, "it is slow"),
    ]


def test_what_is_less_severe_than_five_is_not_kept() -> None:
    assert [item.severity for item in Objections().raised(1, [raised(n, str(n)) for n in range(1, 11)]).items] == [
        *range(NOTED, 11)
    ]


def test_the_most_severe_ones_come_first_and_each_voice_has_its_own() -> None:
    ledger = Objections().raised(1, [raised(5, "a"), raised(9, "b", "tester"), raised(7, "c")])
    assert [item.severity for item in ledger.open] == [9, 7, 5]
    assert [item.text for item in ledger.of("critic")] == ["c", "a"]
    assert [item.text for item in ledger.severe(7)] == ["b", "c"]


def test_it_says_what_it_is_against() -> None:
    (item,) = Objections().raised(1, [raised(against="the date")]).items
    assert (item.against, item.leading) == ("the date", True)


@pytest.mark.parametrize("leading", [True, False])
def test_a_ruling_that_does_not_say_what_it_is_aimed_at_changes_nothing_of_that(leading: bool) -> None:
    first = Objections().raised(1, [raised()]).after(1, [ruling(leading=leading)], [], refereed=False)
    again = first.after(2, [ruling()], [], refereed=False)
    assert [item.leading for item in again.items] == [leading]
    assert bool(again.severe(8)) is leading
    turned = again.after(3, [ruling(leading=not leading)], [], refereed=False)
    assert [item.leading for item in turned.items] == [not leading]


def test_the_same_words_are_the_same_objection_and_open_it_again() -> None:
    closed = Objections().raised(1, [raised(6)]).after(1, [ruling(status="answered")], [], refereed=False)
    again = closed.raised(2, [raised(7, "It  loses\nDATA")])
    assert fates(again) == [("O1", "open")]
    assert (again.items[0].severity, again.items[0].turn, again.items[0].why, again.items[0].ended) == (7, 1, "", 0)
    assert fates(closed.raised(2, [raised(7, role="tester")])) == [("O1", "answered"), ("O2", "open")]
    twice = Objections().raised(1, [raised(6), raised(9)])  # in one reply: the first counts
    assert [item.severity for item in twice.items] == [6]


@pytest.mark.parametrize(("turn", "weighed"), [(1, False), (2, True)])
def test_a_referee_weighs_what_was_raised_before_the_turn_in_which_it_sat(turn: int, weighed: bool) -> None:
    ledger = Objections().raised(1, [raised()]).after(turn, [], [], refereed=True)
    assert [item.weighed for item in ledger.items] == [weighed]
    assert ledger.severe(8, weighed=True) == ledger.items and ledger.severe(8) == (() if weighed else ledger.items)


@pytest.mark.parametrize(("severity", "weighed"), [(8, True), (9, True), (10, False)])
def test_what_was_weighed_is_a_conflict_again_only_where_it_got_worse(severity: int, weighed: bool) -> None:
    ledger = Objections().raised(1, [raised(9)]).after(2, [], [], refereed=True)
    assert [item.weighed for item in ledger.raised(3, [raised(severity)]).items] == [weighed]


TEXTS, ROLES = st.sampled_from(["a", "A ", "b"]), st.sampled_from(["critic", "tester"])
IDENTS = st.sampled_from(["O1", "O2", "O3", "O9"])
TURNS = st.lists(
    st.tuples(
        st.lists(st.builds(Dissent, st.just("o1"), ROLES, TEXTS, st.integers(1, 10)), max_size=3),
        st.lists(
            st.builds(
                Ruling,
                id=IDENTS,
                leading=st.none() | st.booleans(),
                status=st.sampled_from(["open", "answered", "ruled"]),
                why=st.sampled_from(["", " ", "the log is kept"]),
            ),
            max_size=3,
            unique_by=lambda item: item.id,
        ),
        st.lists(st.tuples(ROLES, IDENTS), max_size=2),
        st.booleans(),
    ),
    max_size=6,
)


@pytest.mark.wide
@settings(max_examples=150, deadline=None)
@given(TURNS)
def test_nothing_leaves_the_ledger_and_nothing_closes_without_its_reason(turns: list[Any]) -> None:
    ledger = Objections()
    sat: list[int] = []
    for turn, (dissents, rulings, withdrawn, refereed) in enumerate(turns, 1):
        before, sat = {item.id: item for item in ledger.items}, [*sat, *([turn] if refereed else [])]
        noted = ledger.raised(turn, dissents)
        ledger = noted.after(turn, rulings, withdrawn, refereed=refereed)
        assert [item.id for item in ledger.items] == [f"O{n}" for n in range(1, len(ledger.items) + 1)]
        assert [item.text for item in ledger.items][: len(before)] == [item.text for item in before.values()]
        for was, item in zip(noted.items, ledger.items, strict=True):
            if item.status == was.status:
                continue
            asked = {one.id: one for one in rulings}.get(item.id)
            assert was.status == "open" and item.ended == turn
            if item.status == "withdrawn":
                assert (item.role, item.id) in withdrawn
            else:
                assert asked and asked.status != "open" and asked.why.strip() and item.why == asked.why
            if item.status == "ruled":
                assert asked and asked.status == "ruled" and any(at > item.turn for at in sat)
