"""Compares two versions of products of missions, line by line. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

from msgspec import Struct

from cdo.cabal.files import serialization
from cdo.cabal.model.entities import Version
from cdo.cabal.model.names import role
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.core.errors import UsageError
from cdo.core.formatting import one_line
from cdo.session.reader import SessionReader

CONTEXT = 3  # unchanged lines shown around a change


class ComparedVersion(Struct, frozen=True):
    """A version, the session that it is from, and the name of its product."""

    session: str
    name: str
    version: Version

    @property
    def label(self) -> str:
        """What it is, in one line."""
        it = self.version
        return (
            f"{self.session}:{it.id} {one_line(self.name, 120)}, version {it.number} by {role(it.author)} "
            f"in round {it.round}: {one_line(it.summary, 200)}"
        )

    @property
    def text(self) -> str:
        """Its content, with the outcome of a Decision above it."""
        it = self.version
        return f"Outcome: {it.outcome}\n\n{it.content}" if it.outcome else it.content

    def json(self) -> dict[str, Any]:
        """Return it as data, without its text."""
        it = self.version
        return {
            "session": self.session, "product": it.product, "name": self.name, "version": it.id, "number": it.number,
            "author": it.author, "round": it.round, "summary": it.summary,
        }  # fmt: skip


class VersionComparison(Struct, frozen=True):
    """Two versions."""

    a: ComparedVersion
    b: ComparedVersion

    @property
    def same(self) -> bool:
        """True if their texts are the same."""
        return self.a.text == self.b.text

    def lines(self, *, changed: bool = False) -> Iterator[str]:
        """Yield their labels and the differences of their texts in unified format; with `changed`, no other lines."""
        yield f"A {self.a.label}"
        yield f"B {self.b.label}"
        old, new = (side.text.splitlines() for side in (self.a, self.b))
        found = list(unified_diff(old, new, n=0 if changed else CONTEXT, lineterm=""))
        yield from ("", *found[2:]) if found else ("Nothing differs.",)

    def json(self) -> dict[str, Any]:
        """Return the comparison as data."""
        return {"a": self.a.json(), "b": self.b.json(), "same": self.same, "diff": list(self.lines())[3:]}


def compared(left: SessionReader, a: str, right: SessionReader | None = None, b: str = "") -> VersionComparison:
    """Compare two versions by their ids, or the newest two versions of a product (`a` is its id, `b` is "").

    A version as `a` alone is compared with the one before it. Raises `UsageError` if there is no such version.
    """
    state = _products(left)
    if right is not None and b:
        return VersionComparison(_version(left, state, a), _version(right, _products(right), b))
    newer = _version(left, state, a)
    it = newer.version
    older = [item for item in state.history(it.product) if item.number < it.number]
    if not older:
        raise UsageError(
            f"{one_line(newer.name, 120)} ({it.product}) has no version before {it.id}.",
            f"Name two versions: cdo diff {left.name}:{it.id} SESSION:VERSION.",
        )
    return VersionComparison(ComparedVersion(left.name, newer.name, older[-1]), newer)


def _products(archive: SessionReader) -> MissionState:
    """Return the products and versions in the files of a session."""
    texts = {file: archive.text(file) or "" for file in archive.files() if serialization.PLACE.fullmatch(file)}
    return serialization.read(texts).state


def _version(archive: SessionReader, state: MissionState, id: str) -> ComparedVersion:
    """Return a version, or the newest one of a product; raise `UsageError` if there is none."""
    found = state.latest(id) if id in state.products else state.versions.get(id)
    if found is None:
        there = listed(sorted(state.versions, key=lambda id: int(id[1:])))
        raise UsageError(f"{archive.name} has no version {id}.", f"Its versions are {there}.")
    return ComparedVersion(archive.name, state.products[found.product].name, found)
