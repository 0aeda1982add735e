"""Parses the YAML in documents: the utility tree of an ATAM evaluation, and a work breakdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.blocks import Block, Id, Line, Strings, Text, Tolerant, validate
from cdo.formats.fields import as_list, load, twice

MAX_BYTES = 65_536
MAX_TASKS = 40
_DEEPEST = 8  # nested lists and mappings: a utility tree has seven


def _filled(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise ValueError("must not be empty")
    return value


# Not `min_length`: pydantic counts only valid items, and would report one error twice.
FILLED = AfterValidator(_filled)


def _listed(found: list[str]) -> str:
    return ", ".join(found[:8]) + (" …" if len(found) > 8 else "")


# -- ATAM ------------------------------------------------------------------------------------------

_RANKS = {"high": "H", "medium": "M", "low": "L"}
Rank = Annotated[
    Literal["H", "M", "L"],
    BeforeValidator(lambda value: _RANKS.get(value.strip().lower(), value) if isinstance(value, str) else value),
]
Ids = Annotated[tuple[Id, ...], BeforeValidator(as_list), Field(max_length=64)]


class Scenario(Tolerant):
    """A leaf of the utility tree: a scenario with its importance to the business and how hard it is to meet."""

    id: Id
    text: Text
    importance: Rank
    difficulty: Rank


class Refinement(Tolerant):
    """The meaning of a quality attribute here, and the scenarios that make it testable."""

    name: Line
    scenarios: Annotated[tuple[Scenario, ...], Field(max_length=32), FILLED]


class Attribute(Tolerant):
    """A quality attribute with its refinements."""

    name: Line
    refinements: Annotated[tuple[Refinement, ...], Field(max_length=16), FILLED]


class Point(Tolerant):
    """A finding of the analysis, with the ids of the scenarios it is about."""

    id: Id
    text: Text
    scenarios: Annotated[Ids, FILLED]


Points = Annotated[
    tuple[Point, ...], BeforeValidator(lambda value: [] if value is None else value), Field(max_length=64)
]


class UtilityTree(Block):
    """The utility tree of an ATAM evaluation, and what its analysis found."""

    attributes: Annotated[tuple[Attribute, ...], Field(max_length=16), FILLED]
    sensitivity_points: Points
    tradeoffs: Points
    risks: Points
    non_risks: Points

    def leaves(self) -> Iterator[tuple[Attribute, Scenario]]:
        """Yield every scenario with the attribute it belongs to, in the order of the tree."""
        for attribute in self.attributes:
            for refinement in attribute.refinements:
                yield from ((attribute, scenario) for scenario in refinement.scenarios)


def atam(text: str, above: int = 0) -> UtilityTree:
    """Parse a utility tree; raise `InvalidReply` with at most 8 problems.

    `above` is the number of lines of the reply before `text`. A trade-off must name scenarios of at least two
    attributes: a point about one attribute is a sensitivity point.
    """
    what = "The utility tree"
    tree = validate(UtilityTree, load(text, above, what, MAX_BYTES, _DEEPEST), what)
    home = {scenario.id: attribute.name for attribute, scenario in tree.leaves()}
    names = {attribute.name for attribute in tree.attributes}
    points = {key: getattr(tree, key) for key in ("sensitivity_points", "tradeoffs", "risks", "non_risks")}
    problems = [
        *([f"{what}: two attributes have the same name."] if len(names) < len(tree.attributes) else []),
        *twice([scenario.id for _, scenario in tree.leaves()], f"{what}: the scenario id"),
        *twice([point.id for found in points.values() for point in found], f"{what}: the id"),
    ]
    for key, found in points.items():
        for point in found:
            if unknown := [ident for ident in point.scenarios if ident not in home]:
                problems.append(
                    f"{what}: {key}: {point.id} names {_listed(unknown)}, which is no scenario of the tree."
                )
            elif key == "tradeoffs" and len({home[ident] for ident in point.scenarios}) < 2:
                problems.append(
                    f"{what}: tradeoffs: {point.id} must name scenarios of at least two attributes; "
                    "what touches one only is a sensitivity point."
                )
    if problems:
        raise InvalidReply(problems[:8])
    return tree


def atam_shape() -> str:
    """Return a grammar's expression for a small utility tree: two attributes, one scenario each."""
    text, rank = gbnf.quoted(12, 60), gbnf.choice("HML")

    def attribute(number: int, names: list[str]) -> str:
        leaf = f'{{id: S{number}, text: " {text} ", importance: " {rank} ", difficulty: " {rank} "}}'
        refined = f'"\\n    refinements:\\n      - name: " {text} "\\n        scenarios:\\n          - {leaf}\\n"'
        return f'"  - name: " {gbnf.choice(names)} {refined}'

    points = " ".join(
        f'"{key}: [{{id: {ident}, text: " {text} ", scenarios: [{scenarios}]}}]\\n"'
        for key, ident, scenarios in (
            ("sensitivity_points", "P1", "S1"), ("tradeoffs", "P2", "S1, S2"), ("risks", "P3", "S2"),
        )
    )  # fmt: skip
    first = attribute(1, ["Performance", "Availability", "Security"])
    return (
        f'"attributes:\\n" {first} {attribute(2, ["Modifiability", "Usability", "Cost"])} {points} "non_risks: []\\n"'
    )


# -- work breakdown --------------------------------------------------------------------------------


def _estimate(value: str) -> str:
    number, unit = value[:-1].strip(), value[-1:]
    if unit not in ("h", "d", "w") or not number.replace(".", "", 1).isdecimal() or len(number) > 5:
        raise ValueError('must be a number with h, d or w (hours, days, weeks), such as "4h" or "2.5d"')
    return number + unit


class WorkItem(Tolerant):
    """One task: how to see that it is done, which tasks come before it, and about how long it takes."""

    id: Id
    title: Annotated[str, Field(min_length=1, max_length=200)]
    description: Text
    acceptance: Annotated[Strings, FILLED]
    depends_on: Ids = ()
    estimate: Annotated[str, AfterValidator(_estimate)]

    @property
    def minutes(self) -> int:
        """The estimate in minutes of work: a day has 8 hours, a week 5 days."""
        hours = {"h": 1, "d": 8, "w": 40}[self.estimate[-1]]
        return max(1, round(float(self.estimate[:-1]) * hours * 60))


class WorkBreakdown(Block):
    """Tasks whose dependencies are known and free of cycles."""

    tasks: Annotated[tuple[WorkItem, ...], Field(max_length=MAX_TASKS), FILLED]


def wbs(text: str, above: int = 0) -> WorkBreakdown:
    """Parse a work breakdown; raise `InvalidReply` with at most 8 problems, which name the tasks of a cycle."""
    what = "The work breakdown"
    found = validate(WorkBreakdown, load(text, above, what, MAX_BYTES, _DEEPEST), what)
    known = {task.id for task in found.tasks}
    problems = twice([task.id for task in found.tasks], f"{what}: the task id")
    for task in found.tasks:
        if unknown := [ident for ident in task.depends_on if ident not in known]:
            problems.append(f"{what}: {task.id} depends on {_listed(unknown)}, which is no task.")
    try:
        TopologicalSorter({task.id: task.depends_on for task in found.tasks}).prepare()
    except CycleError as error:
        ring = " before ".join(error.args[1])
        problems.append(f"{what}: the dependencies go in a circle: {ring}. Take one of them out.")
    if problems:
        raise InvalidReply(problems[:8])
    return found


def wbs_shape() -> str:
    """Return a grammar's expression for one to three tasks, each after the one before or independent."""
    text = gbnf.quoted(12, 60)

    def task(number: int) -> str:
        after = f'(" T{number - 1}")? ' if number > 1 else ""
        return (
            f'"  - id: T{number}\\n    title: " {text} "\\n    description: " {text} '
            f'"\\n    acceptance: [" {text} "]\\n    depends_on: [" {after} "]\\n    estimate: " [1-9] [hd] "\\n"'
        )

    return f'"tasks:\\n" {task(1)} ({task(2)} ({task(3)})?)?'
