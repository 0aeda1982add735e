"""Determines what one agent sees of a mission in a step: products in full, open collabs, hidden texts, news. Pure."""

from __future__ import annotations

import json
from functools import cached_property

from msgspec import Struct

from cdo.cabal.context.token_budget import Item, middle_cut
from cdo.cabal.model.entities import (
    Collab,
    Criterion,
    CriterionResult,
    Inspection,
    Kind,
    MissionEvent,
    MissionStep,
    Product,
    Status,
    Version,
)
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance, citations, criteria
from cdo.cabal.rules.feedback import renewed
from cdo.core.formatting import one_line
from cdo.core.mission_names import WATCHDOG

VERSIONS = 3  # most versions of a history that are shown individually
TALK = 12  # most open collabs of a product besides blocking ones and those that have to be answered
NEWS = 3  # most events of one product that are shown as new
LOG = 2400  # most bytes shown of the chair's own products, such as the Change Log

# Kinds of events that the tree, the orders and the events behind them tell already.
_NO_NEWS = ("reflection", "created", "assigned", "reopened")
BLIND = (MissionStep.REVIEW, MissionStep.INSPECT)  # steps that judge a text as it is: no summary of a change, no news


class Visibility(Struct, frozen=True, dict=True):
    """The view of `agent` in `step`. `products` are those it writes, reviews or inspects; empty means the default.

    Lookups that every product needs are cached.
    """

    state: MissionState
    step: MissionStep
    agent: str
    products: tuple[str, ...] = ()

    @cached_property
    def focus(self) -> tuple[str, ...]:
        """The products shown in full."""
        given = tuple(id for id in self.products if id in self.state.products)
        if self.step is MissionStep.REFLECT:
            given = given or tuple(item.id for item in self.state.owned(self.agent))
            return tuple(filter(self._unsettled, given)) or given[:1]
        if given:
            return given
        if self.step is MissionStep.WRITE:
            return tuple(id for id, item in self.state.assignments.items() if item.writer == self.agent)
        if self.step is MissionStep.PLAN:
            return tuple(item.id for item in self.state.owned(self.agent) if item.meta)
        return acceptance.due(self.state) if self.step is MissionStep.INSPECT else ()

    def _unsettled(self, id: str) -> bool:
        """True if a product has versions without an acceptance, or open collabs that its owner can reflect on.

        What is accepted stays as it is: there only collabs that block, or that were raised since the last reflection.
        """
        product, collabs = self.state.products[id], self.open.get(id, ())
        if product.status is not Status.ACCEPTED:
            return bool(collabs or product.versions)
        return any(item.blocking or item.round >= self.state.round - 1 for item in collabs)

    @cached_property
    def open(self) -> dict[str, list[Collab]]:
        """Open collabs by product, the most important first. Endorsements ask for nothing and are left out."""
        found: dict[str, list[Collab]] = {}
        for item in self.state.collabs.values():
            if item.open and item.kind != "endorsement":
                found.setdefault(item.product, []).append(item)
        return {id: sorted(items, key=lambda item: -item.importance) for id, items in found.items()}

    @cached_property
    def below(self) -> dict[str | None, list[Product]]:
        """The unarchived products, by parent."""
        found: dict[str | None, list[Product]] = {}
        for item in self.state.products.values():
            if item.status is not Status.ARCHIVED:
                found.setdefault(item.parent, []).append(item)
        return found

    @cached_property
    def news(self) -> dict[str, list[MissionEvent]]:
        """Events of each product since the agent last saw it, newest first; if it never did, the recent events."""
        seen, recent = self.state.seen.get(self.agent, {}), self.state.round - 1
        found: dict[str, list[MissionEvent]] = {}
        oldest = min(seen.values(), default=len(self.state.events))  # older events are known, or not recent
        for number in range(len(self.state.events), 0, -1):
            item = self.state.events[number - 1]
            if number <= oldest and item.round < recent:
                break
            known = seen.get(item.product)
            fresh = number > known if known is not None else item.round >= recent
            if item.product and fresh and item.actor != self.agent and item.kind not in _NO_NEWS:
                found.setdefault(item.product, []).append(item)
        return found

    # -- one product --------------------------------------------------------------------------

    def row(self, product: Product, depth: int) -> Item:
        """Return a product as a line of the tree."""
        latest, collabs = self.state.latest(product.id), self.open.get(product.id, ())
        return {
            "id": product.id,
            "depth": depth,
            "name": product.name,
            "kind": product.kind.value,
            "path": product.path,
            "container": product.container,
            "status": product.status.value,
            "owner": product.owner or "",
            "number": latest.number if latest else 0,
            "version": latest.id if latest else "",
            "open": len(collabs),
            "blocking": sum(item.blocking for item in collabs),
            "summary": "" if self.step is MissionStep.PRESENT else self._summary(product, latest),
        }

    def line(self, product: Product, depth: int) -> Item:
        """Return a product as a line of the tree.

        The watchdog is asked about one product in each call, so each call repeats the tree: it shows what the others
        are and came to, not who owns them, which version is the newest or how many collabs are open.
        """
        row, latest = self.row(product, depth), self.state.latest(product.id)
        if self.step is MissionStep.INSPECT:
            outcome = self._summary(product, latest) if latest and latest.outcome else ""
            row |= {"owner": "", "number": 0, "version": "", "open": 0, "blocking": 0, "summary": outcome}
        return row

    def _summary(self, product: Product, latest: Version | None) -> str:
        """Return one line on a product's content; "" for an accepted Decision, because it is among the facts."""
        if not latest or (product.status is Status.ACCEPTED and product.kind is Kind.DECISION):
            return ""
        return one_line(latest.outcome or ("" if self.hidden(latest) else latest.summary), 120)

    def hidden(self, version: Version) -> bool:
        """True if the agent must not see the author's summary of a version."""
        return self.step in BLIND and (version.round == self.state.round or self._judged(version))

    def _judged(self, version: Version) -> bool:
        return version.product in self.focus and version.id == self.state.products[version.product].versions[-1]

    def whole(self, product: Product) -> Item:
        """Return a product in full, with its criteria, open collabs, history and inspection."""
        latest, inspection = self.state.latest(product.id), self.state.inspection(product.id)
        order = self.state.assignments.get(product.id)
        history = () if self.step in BLIND else self.state.history(product.id)
        return {
            **self.row(product, 0),
            "summary": "",
            "author": latest.author if latest else "",
            "outcome": latest.outcome if latest else "",
            "content": self.log(product.id),
            "criteria": self._criteria(product, inspection),
            "history": [_told(item) for item in history[-VERSIONS:]],
            "older": max(0, len(history) - VERSIONS),
            "collabs": [self.collab(item) for item in self.talk(product.id)],
            "endorsed": self._endorsed(product.id),
            "promised": self._promised(product.id),
            "parts": [self._part(item) for item in self.below.get(product.id, ())] if product.container else [],
            "verdict": inspection.verdict.value if inspection else "",
            "inspected": inspection.version if inspection else "",
            "notes": self._notes(inspection),
            "stale": product.stale_why if inspection and inspection.at <= product.stale_at else "",
            "news": [self.word(item) for item in self.news.get(product.id, ())[:NEWS] if self.step not in BLIND],
            "order": self._order(product.id) if order and order.writer == self.agent else {},
            "unfounded": self._unfounded(latest.id) if latest else [],
            "spare": self.step is MissionStep.REFLECT
            and not any(item.blocking for item in self.open.get(product.id, ())),
        }

    def content(self, id: str) -> str:
        """Return the content of a product's newest version, "" if there is none."""
        latest = self.state.latest(id)
        return latest.content if latest else ""

    def log(self, id: str) -> str:
        """Return the content of a product; of the chair's own products, only the beginning and the end."""
        return middle_cut(self.content(id), LOG) if self.state.products[id].meta else self.content(id)

    def _criteria(self, product: Product, inspection: Inspection | None) -> list[Item]:
        """Return a product's criteria; for an inspection, with the current results of code's tests."""
        made = product.container or bool(product.versions)
        text = criteria.whole(self.state, product.id) if made and self.step is MissionStep.INSPECT else None
        results = {item.criterion: item for item in inspection.results} if inspection else {}
        return [
            self._criterion(item, results.get(item.id), criteria.tested(item, text, self.state) if text else None)
            for item in product.dod
        ]

    def _criterion(self, item: Criterion, last: CriterionResult | None, tested: CriterionResult | None) -> Item:
        """Return a criterion, its test, and its results: of the last inspection, and of code now."""
        value = item.check.value
        return {
            "id": item.id,
            "text": item.text,
            "check": "" if item.check.kind == "judged" else item.check.kind,
            "value": "" if value is None else json.dumps(value, ensure_ascii=False),
            "last": "" if not last else "met" if last.passed else "not met",
            "note": last.note if last and not last.passed else "",
            "code": "" if not tested else "met" if tested.passed else "not met",
            "found": tested.note or tested.quote if tested else "",
        }

    def talk(self, product: str) -> list[Collab]:
        """Return a product's open collabs: all that block or have to be answered, and the most important others."""
        order = self.state.assignments.get(product)
        due = order.address if order else ()
        items = self.open.get(product, [])
        first = [item for item in items if item.blocking or item.id in due]
        return first + [item for item in items if item not in first][:TALK]

    def _endorsed(self, product: str) -> list[Item]:
        """Return what others endorsed in the newest version of a product, for its next writer."""
        latest = self.state.latest(product) if self.step is MissionStep.WRITE else None
        found = [item for item in self.state.about(product) if item.kind == "endorsement"]
        kept = [item for item in found if latest and item.version == latest.id]
        return [{"author": item.author, "text": item.summary} for item in kept[:TALK]]

    def _promised(self, product: str) -> list[Item]:
        """Return the collabs that the owner accepted in this round's reflection, with what it said it would change.

        The answer has closed them, so that they do not stand among the open ones.
        """
        if self.step not in (MissionStep.WRITE, MissionStep.INSPECT):
            return []
        said = [answer for item in self.state.reflections if item.product == product for answer in item.responses]
        return [
            {"id": answer.collab, "text": self.state.collabs[answer.collab].comment, "change": answer.text}
            for answer in said
            if answer.action == "accept" and not self.state.collabs[answer.collab].open
        ][:TALK]

    def collab(self, item: Collab) -> Item:
        """Return a collab in full, with what the agent may or has to do about it."""
        order = self.state.assignments.get(item.product)
        return {
            "id": item.id,
            "product": item.product,
            "kind": item.kind,
            "importance": item.importance,
            "author": item.author,
            "text": item.comment,
            "address": bool(order and item.id in order.address),
            "confirm": item.blocking and self.agent in (item.author, WATCHDOG) and renewed(self.state, item),
            "waivable": item.waivable,
            "unfounded": self._unfounded(item.id),
        }

    def _unfounded(self, id: str) -> list[str]:
        """Return what a version or collab cites of the repository that does not hold, each as one line."""
        return [citations.words(item) for item in self.state.unfounded.get(id, ())[: citations.SHOWN]]

    def _part(self, product: Product) -> Item:
        """Return a child product as shown with its container."""
        inspection = self.state.inspection(product.id)
        return {**self.row(product, 0), "verdict": inspection.verdict.value if inspection else ""}

    def _notes(self, inspection: Inspection | None) -> list[Item]:
        """Return the findings of the last inspection that have no collab."""
        found = inspection.findings if inspection else ()
        return [
            {"category": item.category, "severity": item.severity, "issue": item.issue, "advice": item.recommendation}
            for item in found
            if not item.collab
        ][:TALK]

    def _order(self, product: str) -> Item:
        item = self.state.assignments[product]
        return {
            "importance": item.importance,
            "objective": item.objective,
            "dod": item.dod,
            "why": item.why,
            "context": item.context,
            "address": list(item.address),
        }

    def text(self, id: str) -> Item:
        """Return a product's newest version, without criteria, collabs or history."""
        product, latest = self.state.products[id], self.state.latest(id)
        return {
            "id": id,
            "name": product.name,
            "path": product.path,
            "status": product.status.value,
            "version": latest.id if latest else "",
            "outcome": latest.outcome if latest else "",
            "content": latest.content if latest else "",
        }

    # -- events ---------------------------------------------------------------------------------

    def word(self, event: MissionEvent) -> str:
        """Return an event in one line with its actor; for a version, without its author's summary."""
        if event.kind == "version":
            version = self.state.versions.get(event.ref)
            return f"version {version.number} by {version.author}" if version else f"a version by {event.actor}"
        if event.kind in ("collab", "closed") and event.ref in self.state.collabs:
            item = self.state.collabs[event.ref]
            how = f"{item.kind} of importance {item.importance}" if event.kind == "collab" else f"closed ({item.how})"
            return f"{how} by {event.actor}: {one_line(item.summary, 120)}"
        if event.kind == "accepted":
            return f"accepted ({event.actor})"
        name = self.state.products[event.product].name if event.product in self.state.products else ""
        return f"{one_line(event.text.removeprefix(f'{name}: '), 160)} ({event.actor})"  # the product is named beside


def _told(item: Version) -> Item:
    return {"id": item.id, "number": item.number, "author": item.author, "round": item.round, "summary": item.summary}
