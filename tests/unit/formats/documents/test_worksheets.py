"""Utility trees and work breakdowns: what is accepted, the sentences that are sent back, and cycles."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.documents.worksheets import MAX_TASKS, atam, atam_shape, wbs, wbs_shape
from tests.support.effort import at_most
from tests.unit.formats import test_gbnf

quick = settings(max_examples=120, deadline=None)


def problems(read: Callable[..., Any], data: Any, above: int = 0) -> tuple[str, ...]:
    with pytest.raises(InvalidReply) as caught:
        read(data if isinstance(data, str) else strict_yaml.dump(data), above)
    assert caught.value.problems
    return caught.value.problems


# -- ATAM ------------------------------------------------------------------------------------------


def tree(**changes: Any) -> dict[str, Any]:
    """A sound utility tree with two attributes, with other values for some keys."""

    def attribute(name: str, *leaves: tuple[str, str, str]) -> dict[str, Any]:
        scenarios = [
            {"id": ident, "text": f"what {ident} asks", "importance": importance, "difficulty": difficulty}
            for ident, importance, difficulty in leaves
        ]
        return {"name": name, "refinements": [{"name": f"{name} here", "scenarios": scenarios}]}

    return {
        "attributes": [
            attribute("Performance", ("S1", "H", "M"), ("S2", "L", "L")),
            attribute("Security", ("S3", "M", "H")),
        ],
        "sensitivity_points": [{"id": "P1", "text": "hinges on the cache", "scenarios": ["S1"]}],
        "tradeoffs": [{"id": "P2", "text": "keys slow it down", "scenarios": ["S1", "S3"]}],
        "risks": [{"id": "R1", "text": "nobody measured", "scenarios": "S1"}],
        "non_risks": None,
        **changes,
    }  # fmt: skip


def test_a_utility_tree_is_read() -> None:
    found = atam(strict_yaml.dump(tree()))
    assert [(attribute.name, leaf.id, leaf.importance, leaf.difficulty) for attribute, leaf in found.leaves()] == [
        ("Performance", "S1", "H", "M"),
        ("Performance", "S2", "L", "L"),
        ("Security", "S3", "M", "H"),
    ]
    assert found.tradeoffs[0].scenarios == ("S1", "S3")
    assert found.risks[0].scenarios == ("S1",)
    assert found.non_risks == ()


def test_ranks_may_be_spelled_out() -> None:
    text = (
        strict_yaml.dump(tree())
        .replace("importance: H", "importance: High")
        .replace("difficulty: M", "difficulty: m")
    )
    assert problems(atam, text) == (
        "The utility tree: `attributes.0.refinements.0.scenarios.0.difficulty`: must be 'H', 'M' or 'L'.",
    )
    found = atam(text.replace("difficulty: m", "difficulty: medium"))
    assert next(found.leaves())[1].importance == "H"


def point(ident: str, *scenarios: str) -> dict[str, Any]:
    return {"id": ident, "text": "said", "scenarios": list(scenarios)}


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({"attributes": []}, ["`attributes`: must"]),
        ({"attributes": [{"name": "A", "refinements": []}]}, ["`attributes.0.refinements`: must"]),
        (
            {"attributes": [{"name": "A", "refinements": [{"name": "r", "scenarios": [{"id": "S1"}]}]}]},
            [
                "`attributes.0.refinements.0.scenarios.0.text` is missing.",
                "`attributes.0.refinements.0.scenarios.0.importance` is missing.",
                "`attributes.0.refinements.0.scenarios.0.difficulty` is missing.",
            ],
        ),
        ({"attributes": tree()["attributes"][:1] * 2, "tradeoffs": []}, [
            "two attributes have the same name.", "the scenario id S1, S2 is used twice.",
        ]),
        ({"risks": [point("R1", "S9")]}, ["risks: R1 names S9, which is no scenario of the tree."]),
        ({"risks": [point("R1")]}, ["`risks.0.scenarios`: must"]),
        ({"risks": "many"}, ["`risks`: must be a list."]),
        ({"risks": [point("P1", "S1")]}, ["the id P1 is used twice."]),
        (
            {"tradeoffs": [point("P2", "S1", "S2")]},
            [
                "tradeoffs: P2 must name scenarios of at least two attributes; what touches one only is a "
                "sensitivity point."
            ],
        ),
        ({"themes": []}, ["`themes` is not a key; the keys are attributes,"]),
    ],
)  # fmt: skip
def test_a_utility_tree_is_sent_back_with_what_is_wrong(changes: dict[str, Any], sentences: list[str]) -> None:
    found = problems(atam, tree(**changes))
    assert len(found) == len(sentences)
    for told, sentence in zip(found, sentences, strict=True):
        assert told.startswith(f"The utility tree: {sentence}")


def test_what_is_not_yaml_is_told_by_the_replys_lines() -> None:
    assert problems(atam, "attributes:\n  - a: b: c", 7) == (
        "The utility tree is not valid YAML: line 9, column 9: mapping values are not allowed in this context. "
        "Put text values between double quotes.",
    )
    assert problems(wbs, "[]") == ("The work breakdown must be a YAML mapping with the keys tasks.",)


# -- work breakdown --------------------------------------------------------------------------------


def task(ident: str, *after: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": ident, "title": f"do {ident}", "description": "what to do", "acceptance": ["it runs"],
        "depends_on": list(after), "estimate": "4h", **changes,
    }  # fmt: skip


def test_a_work_breakdown_is_read() -> None:
    text = """
tasks:
  - {id: T1, title: "Measure", description: "Count the calls", acceptance: "a table", estimate: 2 d}
  - id: T2
    title: "Split"
    description: |
      Cut it
      in two.
    acceptance: ["both start", "both stop"]
    depends_on: T1
    estimate: "1.5w"
    owner: somebody
"""
    first, second = wbs(text).tasks
    assert (first.acceptance, first.depends_on, first.estimate) == (("a table",), (), "2d")
    assert (second.acceptance, second.depends_on, second.estimate) == (("both start", "both stop"), ("T1",), "1.5w")
    assert second.description == "Cut it\nin two."


@pytest.mark.parametrize(
    ("tasks", "sentences"),
    [
        ([], ["`tasks`: must"]),
        ([task(f"T{number}") for number in range(MAX_TASKS + 1)], ["`tasks`: must"]),
        ([task("T1", acceptance=[])], ["`tasks.0.acceptance`: must"]),
        ([task("T 1")], ["`tasks.0.id`: must match"]),
        (
            [task("T1", estimate="soon")],
            ['`tasks.0.estimate`: must be a number with h, d or w (hours, days, weeks), such as "4h" or "2.5d".'],
        ),
        ([task("T1", estimate=4)], ["`tasks.0.estimate`: must be a number with h"]),
        (
            [{"id": "T1"}],
            [f"`tasks.0.{key}` is missing." for key in ("title", "description", "acceptance", "estimate")],
        ),
        ([task("T1"), task("T1")], ["the task id T1 is used twice."]),
        ([task("T1", "T2", "T3")], ["T1 depends on T2, T3, which is no task."]),
        ([task("T1", "T1")], ["the dependencies go in a circle: T1 before T1. Take one of them out."]),
        (
            [task("T0"), task("T1", "T2"), task("T2", "T3"), task("T3", "T1", "T0")],
            ["the dependencies go in a circle: T"],
        ),
        (
            [task("T1", "T9"), task("T2", "T2")],
            ["T1 depends on T9", "the dependencies go in a circle: T2 before T2."],
        ),
    ],
)
def test_a_work_breakdown_is_sent_back_with_what_is_wrong(tasks: list[Any], sentences: list[str]) -> None:
    found = problems(wbs, {"tasks": tasks})
    assert len(found) == len(sentences)
    for told, sentence in zip(found, sentences, strict=True):
        assert told.startswith(f"The work breakdown: {sentence}")


def test_the_circle_is_told_in_the_order_of_the_work() -> None:
    (told,) = problems(wbs, {"tasks": [task("A", "C"), task("B", "A"), task("C", "B"), task("D", "A")]})
    ring = told.partition("circle: ")[2].partition(".")[0].split(" before ")
    after = {"A": "C", "B": "A", "C": "B"}
    assert ring[0] == ring[-1] and len(ring) == 4
    assert all(after[later] == earlier for earlier, later in pairwise(ring))


@pytest.mark.wide
@quick
@given(st.lists(st.lists(st.integers(0, 7), max_size=4, unique=True), min_size=8, max_size=8))
def test_a_breakdown_is_refused_just_when_some_task_waits_for_itself(after: list[list[int]]) -> None:
    reach = [set(first) for first in after]
    for _ in reach:
        reach = [found.union(*(reach[number] for number in found)) for found in reach]
    tasks = [task(f"T{number}", *(f"T{other}" for other in others)) for number, others in enumerate(after)]
    if any(number in found for number, found in enumerate(reach)):
        assert "in a circle" in problems(wbs, {"tasks": tasks})[0]
    else:
        assert len(wbs(strict_yaml.dump({"tasks": tasks})).tasks) == 8


def test_a_dense_breakdown_is_read_fast() -> None:
    tasks = [task(f"T{number}", *(f"T{other}" for other in range(number))) for number in range(MAX_TASKS)]
    with at_most(5):
        assert len(wbs(strict_yaml.dump({"tasks": tasks})).tasks) == MAX_TASKS
        tasks[0]["depends_on"] = [f"T{MAX_TASKS - 1}"]
        assert "in a circle" in problems(wbs, {"tasks": tasks})[0]


# -- both ------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 99)
    | st.sampled_from(["S1", "H", "T1", "4h", ""])
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "text", "name", "scenarios", "importance", "title", "depends_on"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@pytest.mark.wide
@quick
@given(st.sampled_from([*tree(), "tasks"]), VALUES)
def test_any_data_is_read_or_refused(key: str, value: Any) -> None:
    for read, data in ((atam, tree(**{key: value})), (wbs, {"tasks": value}), (wbs, {"tasks": [value]})):
        try:
            read(strict_yaml.dump(data))
        except InvalidReply as invalid:
            assert 0 < len(invalid.problems) <= 8


@pytest.mark.parametrize(
    "text", ["a: &x [*x]", "- " * 20_000, "{" * 5000, "x" * 70_000, "!!python/object:x {}", "\x00"]
)
@pytest.mark.parametrize("read", [atam, wbs])
def test_hostile_yaml_is_refused(read: Callable[..., Any], text: str) -> None:
    assert "is not valid YAML" in problems(read, text)[0]


def test_what_a_grammar_lets_a_small_model_write_is_valid() -> None:
    for seed in range(40):
        assert len(atam(test_gbnf.sample(atam_shape(), seed)).attributes) == 2
    sizes = {len(wbs(test_gbnf.sample(wbs_shape(), seed)).tasks) for seed in range(40)}
    assert sizes == {1, 2, 3}
