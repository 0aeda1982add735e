"""Validates and applies the chair's operations on the product tree: composition, ownership, all or none. Pure.

Every product that is not archived is below the root. Code makes the root; it cannot be removed, moved or retyped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from cdo.cabal.model import references
from cdo.cabal.model.entities import Criterion, Kind, MissionStep, Product, Status, slug
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.references import absent, listed, there
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CriterionItem, NewProduct, ProductChange, ProductItem, TreeOperation
from cdo.cabal.rules import acceptance, composition, criteria, product_paths
from cdo.cabal.rules.objectives import redefined, with_objectives
from cdo.cabal.rules.reopening import containers, reopened, taken_back
from cdo.core.formatting import one_line
from cdo.core.mission_names import CHAIR, ROOT

PRESETS = ("quick", "think", "deep", "full")  # default presets that a Decision may be decided by

_NAME = 120  # characters of a product's name
_NEW = re.compile(r"(?<![\w-])new-[1-9][0-9]{0,2}(?![\w-])")


class Drafted(Struct, frozen=True):
    """The tree after the legal operations.

    `made` maps each `new-N` to the id of the new product. `doubtful` are ids of products with a refused operation:
    further problems with them may only follow from that. `problems` are sentences. If there are any, `state` only
    serves to find more problems: it has archived stand-ins for products that could not be made.
    """

    state: MissionState
    made: Mapping[str, str]
    doubtful: frozenset[str]
    problems: tuple[str, ...]


def drafted(
    state: MissionState, operations: Sequence[TreeOperation], presets: Collection[str], waived: Collection[str] = ()
) -> Drafted:
    """Apply a plan's operations in order; illegal ones change nothing.

    Open blocking collabs prevent the removal of their product, except those that the plan waives (`waived`). Flags of
    the watchdog always prevent it.
    """
    labels = [item.new_id for item in operations if item.action == "ADD"]
    draft = _Draft(state, MissionStep.PLAN, presets, labels, waived)
    for item in operations:
        draft.operate(item)
    return draft.finished()


def planted(state: MissionState, items: Sequence[NewProduct], presets: Collection[str]) -> Drafted:
    """Add the first products, each below the root or an earlier product; the root already exists."""
    labels = [item.new_id or f"initial_products {place}" for place, item in enumerate(items, 1)]
    draft = _Draft(state, MissionStep.BOOTSTRAP, presets, labels)
    for label, item in zip(labels, items, strict=True):
        draft.add(one_line(f"initial_products ({item.name})", 80), label, item.parent_id or ROOT, item)
    return draft.finished()


def settled(text: str, made: Mapping[str, str]) -> str:
    """Return a text with each `new-N` replaced by the id of the new product."""
    return _NEW.sub(lambda match: made.get(match[0], match[0]), text)


class _Draft:
    """A tree in progress: its methods apply legal operations and record problems with the others."""

    def __init__(
        self,
        state: MissionState,
        step: MissionStep,
        presets: Collection[str],
        labels: Iterable[str],
        waived: Collection[str] = (),
    ) -> None:
        self.state = state
        self.step, self.presets, self.waived = step, presets, waived
        start = 1 + max((int(id[1:]) for id in state.products), default=0)
        self.made = {label: f"p{number}" for number, label in enumerate(dict.fromkeys(labels), start)}
        self.doubtful: set[str] = set()
        self.stuck: set[str] = set()  # ids of products with a refused MOVE or REMOVE
        self.problems: list[str] = []
        self.tests: list[tuple[str, Sequence[CriterionItem]]] = []  # checked when all products exist
        self.texts: list[tuple[str, str]] = []

    def operate(self, item: TreeOperation) -> None:
        """Apply one operation of a plan, or record why it is refused."""
        what = f"{item.action} {item.new_id if item.action == 'ADD' else item.product_id}"
        if isinstance(item.product, ProductItem):
            self.add(what, item.new_id, item.parent_id or ROOT, item.product)
            return
        product = self._found(what, item.product_id or "")
        before = len(self.problems)
        if product is None:
            return
        {"REMOVE": self._remove, "MOVE": self._move, "UPDATE": self._update}[item.action](what, product, item)
        if len(self.problems) > before:
            (self.doubtful if item.action == "UPDATE" else self.stuck).add(product.id)

    def add(self, what: str, label: str, below: str, item: ProductItem) -> None:
        """Create one product with the id of its label, or record why it is refused."""
        id = self.made[label]
        if id in self.state.products or id in self.doubtful:
            self.problems.append(f"{what}: {label} is used twice; every new product needs a new_id of its own.")
            return
        meta = item.owner == CHAIR
        parent = self._found(what, below)
        wrong = [
            *composition.misnamed(item.name),
            *composition.misowned(self.state, item.owner),
            *composition.undecidable(item.type, item.decide_by, self.presets),
            *product_paths.misplaced(self.state, id, item.type, item.path, meta=meta),
        ]
        if meta and item.type is not Kind.CONTENT:
            wrong.append(f"the chair owns only Content, no {item.type}; leave its owner out")
        if not meta and not item.dod and item.type in (Kind.CONTENT, Kind.DECISION):
            wrong.append(f"a {item.type} needs at least one criterion in its dod")
        if parent is not None and not composition.holds(parent.kind, item.type):
            wrong.append(composition.held_wrongly(parent, item.type))
        wrong += composition.crowded(self.state)
        if parent is not None:
            wrong += composition.too_deep(self.state, parent)
        self.problems += (f"{what}: {problem}." for problem in wrong)
        if wrong or parent is None:
            self.doubtful.add(id)
            return
        name, dod = one_line(item.name, _NAME), self._criteria(what, item.dod)
        product = Product(
            id, name, item.type, parent.id, item.owner, criteria.made(dod), meta=meta, decide_by=item.decide_by,
            slug=slug(name), round=self.state.round, path=item.path,
        )  # fmt: skip
        self._put(product)
        self._tell("created", f"{name} was planned", id)
        self._regroup(parent.id, product, "was added to it")

    def finished(self) -> Drafted:
        """Check references and criteria, now that all products exist, and return the result."""
        lost = {
            id: Product(id, id, Kind.CONTENT, ROOT, None, (), Status.ARCHIVED)
            for id in self.made.values()
            if id not in self.state.products
        }
        self.state = replace(self.state, products={**self.state.products, **lost})
        for what, items in self.tests:
            self.problems += (f"{what}: {problem}" for problem in criteria.problems(items, self.state))
        for what, text in self.texts:
            self.problems += references.problems([text], self.state, what)
        return Drafted(self.state, self.made, frozenset(self.doubtful), tuple(self.problems))

    # -- the operations -----------------------------------------------------------------------

    def _remove(self, what: str, product: Product, item: TreeOperation) -> None:
        if product.id == ROOT:
            self.problems.append(f"{what}: the root holds all others and cannot be removed.")
            return
        reason = settled(item.reason, self.made)
        self.texts.append((what, reason))
        around = product.parent or ROOT
        gone = set(composition.below(self.state, product.id))
        if held := self._disputed(gone):
            self.problems.append(f"{what}: {held}.")
            return
        kept, earlier = (
            {id: held for id, held in pinned.items() if id not in gone}
            for pinned in (self.state.acceptances, self.state.earlier)
        )
        products = {
            id: replace(other, status=Status.ARCHIVED) if id in gone else other
            for id, other in self.state.products.items()
        }
        self.state = replace(self.state, products=products, acceptances=kept, earlier=earlier)
        self._tell("archived", f"{product.name} was archived: {told(self.state, reason)}", product.id)
        for id in sorted(gone - {product.id}, key=lambda id: int(id[1:])):
            self._tell("archived", f"{products[id].name} was archived with {product.name}", id)
        for old in (other for id, other in self.state.products.items() if id in gone and not other.meta):
            if self.state.rules >= 4:
                self.state = redefined(self.state, self.step, CHAIR, old)
        self._regroup(around, product, "was archived")

    def _move(self, what: str, product: Product, item: TreeOperation) -> None:
        if product.id == ROOT:
            self.problems.append(f"{what}: the root holds all others and cannot be moved.")
            return
        parent = self._found(what, item.parent_id or "")
        if parent is None:
            return
        if parent.id in composition.below(self.state, product.id):
            self.problems.append(
                f"{what}: {parent.id} is {product.id} itself or lies below it; choose another parent."
            )
        elif not composition.holds(parent.kind, product.kind):
            self.problems.append(f"{what}: {composition.held_wrongly(parent, product.kind)}.")
        elif wrong := list(composition.too_deep(self.state, parent, product)):
            self.problems += (f"{what}: {problem}." for problem in wrong)
        elif parent.id != product.parent:
            self._regroup(product.parent or ROOT, product, "was moved out of it")
            self._put(replace(product, parent=parent.id))
            self._tell("moved", f"{product.name} was moved to {parent.name}", product.id)
            self._regroup(parent.id, product, "was moved to it")

    def _update(self, what: str, product: Product, item: TreeOperation) -> None:
        change = item.product
        assert isinstance(change, ProductChange)  # an UPDATE has nothing else
        kind = change.type or product.kind
        decide_by = product.decide_by if kind is Kind.DECISION else ""
        decide_by = decide_by if change.decide_by is None else change.decide_by
        dod = product.dod
        wrong = [
            *composition.not_given(self.state, product, change.owner),
            *composition.mistyped(self.state, product, kind, self.stuck),
        ]
        wrong += composition.undecidable(kind, decide_by, self.presets)
        path = product.path if change.path is None else change.path
        wrong += product_paths.misplaced(self.state, product.id, kind, path, meta=product.meta)
        wrong += product_paths.reshaped(product, path)
        if change.name is not None:
            wrong += composition.misnamed(change.name)
        if change.dod is not None:
            dod = self._redefined(what, product, change.dod)
        if not dod and not product.meta and kind in (Kind.CONTENT, Kind.DECISION):
            wrong.append(f"a {kind} needs at least one criterion in its dod")
        self.problems += (f"{what}: {problem}." for problem in wrong)
        if not wrong:
            name = one_line(change.name, _NAME) if change.name is not None else product.name
            owner = change.owner or product.owner
            self._change(
                product,
                replace(product, name=name, kind=kind, owner=owner, dod=dod, decide_by=decide_by, path=path),
            )

    def _redefined(self, what: str, product: Product, items: Sequence[CriterionItem]) -> tuple[Criterion, ...]:
        """Return a product's new definition of done; the root keeps the mission's objectives."""
        asked, mission = self._criteria(what, items), self.state.mission
        if product.id == ROOT and mission:
            return with_objectives(mission.objectives, asked, product.dod)
        return criteria.made(asked, product.dod)

    def _change(self, old: Product, new: Product) -> None:
        """Replace a product, record an event that names the changes, and reopen it for a new type or new criteria."""
        said = {
            f"is now called {new.name}": old.name != new.name,
            f"is now of type {new.kind}": old.kind is not new.kind,
            "has a new owner": old.owner != new.owner,
            "has a new definition of done": old.dod != new.dod,
            "is decided in another way": old.decide_by != new.decide_by,
            f"is now {product_paths.told(new.path)}": old.path != new.path,
        }
        news = [clause for clause, true in said.items() if true]
        if not news:
            return
        self._put(new)
        self._tell("updated", f"{old.name} {listed(news)}", new.id)
        why = "its type changed" if old.kind is not new.kind else "its path changed" if old.path != new.path else ""
        if why:  # its inspections were made for the old type or path
            self._put(replace(new, stale_at=len(self.state.events), stale_why=why))
            self._reopen(new.id, why)
        if old.dod != new.dod:
            self.state = redefined(self.state, self.step, CHAIR, old)
            self._reopen(new.id, "its definition of done changed")

    # -- validation ---------------------------------------------------------------------------

    def _disputed(self, products: Collection[str]) -> str:
        """Return the first open blocker of products to be removed, "" for none: archiving must not silence it."""
        for item in self.state.collabs.values():
            if item.product in products and item.blocking and not (item.waivable and item.id in self.waived):
                first = "waive it, or have it settled first" if item.waivable else "have it settled first"
                name = f"{item.product} ({self.state.products[item.product].name})"
                return (
                    f"{item.id}, {acceptance.called(item)} on {name}, is open; {first}. Until then MOVE or rename it"
                )
        return ""

    # -- helpers ------------------------------------------------------------------------------

    def _found(self, what: str, id: str) -> Product | None:
        """Return the product if it exists and is not archived. Else record the problem, once, and return None."""
        real = self.made.get(id, id)
        product = self.state.products.get(real)
        if real in self.doubtful:
            return None
        if product is not None and product.status is not Status.ARCHIVED:
            return product
        if product is None and id in self.made:
            why = f"{id} is added only later; put its ADD first"
        elif product is None and id.startswith("new-"):
            why = f"{id} is not added here; {there(self.state)}"
        else:
            why = absent(self.state, real)
        self.problems.append(f"{what}: {why}.")
        return None

    def _criteria(self, what: str, items: Sequence[CriterionItem]) -> list[CriterionItem]:
        """Return criteria with `new-N` replaced by real ids; they are checked at the end."""
        done = []
        for item in items:
            value = item.check.value
            value = settled(value, self.made) if isinstance(value, str) else value
            check = item.check.model_copy(update={"value": value})
            done.append(item.model_copy(update={"text": settled(item.text, self.made), "check": check}))
        self.tests.append((what, done))
        return done

    def _put(self, product: Product) -> None:
        self.state = replace(self.state, products={**self.state.products, product.id: product})

    def _tell(self, kind: str, text: str, product: str) -> None:
        self.state = recorded(self.state, self.step, kind, CHAIR, text, product)

    def _regroup(self, parent: str, child: Product, why: str) -> None:
        """Reopen the containers around a child that was added or removed; Decisions and meta children are exempt."""
        if not child.meta:
            held = [parent] if self.state.products[parent].container else []
            around = (*held, *containers(self.state, parent))
            self.state = taken_back(self.state, around, self.step, CHAIR, f"{child.name} {why}")

    def _reopen(self, product: str, why: str) -> None:
        self.state = reopened(self.state, product, self.step, CHAIR, why)
