"""Holds the state of a mission, as a fold of its records, and the queries that the steps need. Pure; decides nothing.

A state is never changed in place: `reducer` makes the next one from a recorded reply, `rounds` and `person` from what
else happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from cdo.cabal.model.entities import (
    Acceptance,
    Assignment,
    Collab,
    CommandRun,
    EnvoyMessage,
    Inspection,
    Mission,
    MissionEvent,
    Product,
    Question,
    Rationale,
    Reflection,
    Remark,
    Status,
    Version,
)
from cdo.core.mission_names import CHAIR, ENVOY, ROOT, WATCHDOG
from cdo.core.steps import CitationCheck
from cdo.planning.mission_crew import RULES


class MissionState(Struct, frozen=True, dict=True):
    """The whole state of a mission, as the fold of its records.

    `assignments` (by product) and `reflections` are those of the current round; `acceptances` are by product, and
    so are `earlier` ones: of a version that stays delivered while a newer one is not accepted.
    `pending` are overrides that take effect next round. `seen` gives, by agent and product, the number of the last
    event when the product was shown to the agent. `at` counts steps; `idle` counts rounds without progress. `halt`
    ("done", "stall", "budget", "rounds", "stopped") ends the mission; `why` is the reason in words. With `exec`,
    commands in definitions of done are run; `runs` are the newest ones, by command.
    `unfounded` are the citations of the repository that do not hold, by the id of a version, collab or inspection.
    With `sign_off`, the mission is done only when the person has signed it off. `rules` is the version of the rules
    that it was begun under.
    """

    request: str
    team: tuple[str, ...]
    mission: Mission | None = None
    products: Mapping[str, Product] = field(default_factory=dict)
    versions: Mapping[str, Version] = field(default_factory=dict)
    collabs: Mapping[str, Collab] = field(default_factory=dict)
    inspections: dict[str, Inspection] = field(default_factory=dict)
    acceptances: Mapping[str, Acceptance] = field(default_factory=dict)
    earlier: Mapping[str, Acceptance] = field(default_factory=dict)
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    reflections: tuple[Reflection, ...] = ()
    remarks: tuple[Remark, ...] = ()
    questions: tuple[Question, ...] = ()
    runs: Mapping[str, CommandRun] = field(default_factory=dict)
    messages: tuple[EnvoyMessage, ...] = ()
    rationales: tuple[Rationale, ...] = ()
    events: tuple[MissionEvent, ...] = ()
    pending: Mapping[str, Any] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    round: int = 0
    at: int = 0
    idle: int = 0
    halt: str = ""
    why: str = ""
    unfounded: Mapping[str, tuple[CitationCheck, ...]] = field(default_factory=dict)
    exec: bool = False
    sign_off: bool = False
    rules: int = RULES

    # -- queries ------------------------------------------------------------------------------

    def latest(self, product: str) -> Version | None:
        """Return the newest version of a product, or None."""
        ids = self.products[product].versions
        return self.versions[ids[-1]] if ids else None

    def history(self, product: str) -> tuple[Version, ...]:
        """Return all versions of a product, oldest first."""
        return tuple(self.versions[id] for id in self.products[product].versions)

    def children(self, product: str) -> tuple[Product, ...]:
        """Return the children of a product that are not archived, in order of ids."""
        return tuple(
            item for item in self.products.values() if item.parent == product and item.status is not Status.ARCHIVED
        )

    def about(self, product: str, *, closed: bool = False) -> tuple[Collab, ...]:
        """Return the open collabs of a product (with `closed`, all collabs), oldest first."""
        return tuple(item for item in self._said.get(product, ()) if closed or item.open)

    def blockers(self, product: str) -> tuple[Collab, ...]:
        """Return the open collabs that prevent the acceptance of a product."""
        return tuple(item for item in self.about(product) if item.blocking)

    def inspection(self, product: str) -> Inspection | None:
        """Return the newest inspection of a product, even if it is outdated, or None."""
        return self._inspected.get(product)

    def owned(self, agent: str) -> tuple[Product, ...]:
        """Return the products of an agent that are not archived."""
        return tuple(
            item for item in self.products.values() if item.owner == agent and item.status is not Status.ARCHIVED
        )

    def live(self) -> tuple[Product, ...]:
        """Return the products that have to be accepted before the mission is done."""
        return self._live

    def walk(self) -> Iterator[tuple[Product, int]]:
        """Yield the products that are not archived with their depth, parents before children."""
        below: dict[str, list[Product]] = {}
        for item in self.products.values():
            if item.parent and item.status is not Status.ARCHIVED:
                below.setdefault(item.parent, []).append(item)
        open_ = [(self.products[ROOT], 0)] if ROOT in self.products else []
        while open_:
            product, depth = open_.pop()
            yield product, depth
            open_ += [(item, depth + 1) for item in reversed(below.get(product.id, ()))]

    # Cached, because every step needs these for every product, and a state never changes.

    @cached_property
    def below(self) -> Mapping[str, Sequence[Product]]:
        """The live products by the id of their parent, "" for the root."""
        found: dict[str, list[Product]] = {}
        for item in self.live():
            found.setdefault(item.parent or "", []).append(item)
        return found

    @cached_property
    def _live(self) -> tuple[Product, ...]:
        return tuple(item for item in self.products.values() if item.live)

    @cached_property
    def _said(self) -> Mapping[str, Sequence[Collab]]:
        found: dict[str, list[Collab]] = {}
        for item in self.collabs.values():
            found.setdefault(item.product, []).append(item)
        return found

    @cached_property
    def _inspected(self) -> Mapping[str, Inspection]:
        return {item.product: item for item in self.inspections.values()}

    def named(self, words: str) -> str:
        """Return the id of the product with this id or name (products not archived first); "" if there is none."""
        wanted = words.strip().lower()
        if wanted in self.products:
            return wanted
        alike = [item for item in self.products.values() if item.name.lower() == wanted]
        alike.sort(key=lambda item: item.status is Status.ARCHIVED)
        return alike[0].id if alike else ""

    @property
    def sign_off_asked(self) -> Question | None:
        """The question of this round that asks the person for the sign-off, or None."""
        return next((item for item in self.questions if item.sign_off and item.round == self.round), None)

    @property
    def signed_off(self) -> bool:
        """True if the person signed the mission off in this round."""
        asked = self.sign_off_asked
        return asked is not None and asked.answer in asked.options

    @property
    def agents(self) -> tuple[str, ...]:
        """The ids of the whole team."""
        return (CHAIR, *self.team, WATCHDOG, ENVOY)
