"""Defines the data block of the ranked findings of a run. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from cdo.formats.blocks import Block, Id, Strings, Text, Tolerant
from cdo.formats.fields import as_list, number


class RankedFinding(Tolerant):
    """One finding: `rank` 1 changes the decision or the first steps, 2 supports them, 3 is a detail.

    `sources` are the ids of the claims and objections that it joins.
    """

    id: Id
    rank: Annotated[int, BeforeValidator(number), Field(ge=1, le=3)]
    text: Text
    sources: Strings = ()


class FindingsData(Block):
    """Every finding of a run, those of the first rank first."""

    findings: Annotated[tuple[RankedFinding, ...], BeforeValidator(as_list), Field(min_length=1)]

    @property
    def others(self) -> tuple[str, ...]:
        """The texts of the findings of the second rank."""
        return tuple(item.text for item in self.findings if item.rank == 2)

    @property
    def first(self) -> tuple[tuple[str, str], ...]:
        """(id, text) of the findings of the first rank."""
        return tuple((item.id, item.text) for item in self.findings if item.rank == 1)
