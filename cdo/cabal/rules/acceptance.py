"""Decides whether a product can be accepted, from the record alone; a missing fact prevents acceptance. Pure.

An acceptance needs an inspection of the newest version (for a container: of its current parts) with the current
definition of done. The inspection must be newer than the last event that made inspections of the product stale.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256

from cdo.cabal.model.entities import (
    BLOCKING,
    REVISION,
    Collab,
    Inspection,
    InspectionFinding,
    InspectionVerdict,
    Product,
    Status,
    Version,
)
from cdo.cabal.model.state import MissionState
from cdo.core.mission_names import USER

Parts = tuple[tuple[str, str], ...]


def verdict(severities: Iterable[int]) -> InspectionVerdict:
    """Return the verdict for findings of these severities (1 to 10)."""
    worst = max(severities, default=0)
    if worst >= BLOCKING:
        return InspectionVerdict.BLOCKED
    return InspectionVerdict.NEEDS_REVISION if worst >= REVISION else InspectionVerdict.APPROVED


def parts(state: MissionState, product: str) -> Parts:
    """Return a container's current parts: (id, hash of the newest version or ""), in the order of `held`.

    A part that is a container itself has the hash of its own parts.
    """
    order, seen = [product], {product}
    for id in order:  # grows during the iteration
        inner = [item.id for item in held(state, id) if item.container and item.id not in seen]
        seen.update(inner)
        order += inner
    known: dict[str, Parts] = {}
    for id in reversed(order):
        known[id] = tuple((item.id, _content(state, item, known)) for item in held(state, id))
    return known[product]


def held(state: MissionState, product: str) -> tuple[Product, ...]:
    """Return the products that a container's acceptance depends on.

    These are its live children; a child that is not a container is followed by the live products below it. Products
    inside an inner container belong to that container and are left out.
    """
    found: dict[str, Product] = {}  # by id, so that the loop ends even if the tree has a cycle by mistake
    rest = [*reversed(state.below.get(product, ()))]
    while rest:
        item = rest.pop()
        if item.id not in found:
            found[item.id] = item
            rest += () if item.container else reversed(state.below.get(item.id, ()))
    return tuple(found.values())


def _content(state: MissionState, product: Product, known: Mapping[str, Parts]) -> str:
    if product.container:
        return sha256(json.dumps(known.get(product.id, ())).encode("ascii")).hexdigest()
    latest = state.latest(product.id)
    return _sha(latest) if latest else ""


@lru_cache(maxsize=2048)
def _sha(version: Version) -> str:
    """Return the hash of a version. It is cached: versions are immutable, and every step needs the hash."""
    return version.sha


def current(state: MissionState, product: str) -> Inspection | None:
    """Return the newest inspection of a product if it is still valid, else None."""
    newest = state.inspection(product)
    return newest if newest and not _outdated(state, state.products[product], newest) else None


def _outdated(state: MissionState, product: Product, found: Inspection) -> str:
    """Return why an inspection is no longer valid, "" if it is valid."""
    latest = state.latest(product.id)
    if product.container:
        if found.version or found.parts != parts(state, product.id):
            return "what it holds has changed since its last inspection"
    elif not latest or found.version != latest.id:
        return "its newest version has not been inspected"
    if found.dod != product.dod_sha:
        return "its definition of done has changed since its last inspection"
    if found.at <= product.stale_at:
        return f"its last inspection is stale: {product.stale_why or 'something that it rests on has changed'}"
    if any(_withdrawn(state, item) for item in found.findings):
        return "what its last inspection blocked it for has been withdrawn"
    return ""


def _withdrawn(state: MissionState, finding: InspectionFinding) -> bool:
    """True if a finding blocks and its collab was withdrawn: no new version would show that the finding is void."""
    collab = state.collabs.get(finding.collab)
    return finding.severity >= BLOCKING and collab is not None and collab.how == "withdrawn"


# -- accepting -------------------------------------------------------------------------------------


def missing_for_acceptance(
    state: MissionState,
    product: str,
    waiver: str = "",
    waived: Container[str] = (),
    accepting: Collection[str] = (),
) -> tuple[str, ...]:
    """Return why a product cannot be accepted now, as clauses ("it has no version"); () if it can.

    `waiver` is the chair's reason to let needs_revision pass. Collabs in `waived` count as closed, except the
    watchdog's flags and notes by the user. Products in `accepting` count as accepted.
    """
    item = state.products.get(product)
    if item is None:
        return ("there is no such product",)
    if not item.live:
        return (
            "it is archived" if item.status is Status.ARCHIVED else "it is the chair's own, and nobody accepts that",
        )
    found = [*_unmade(state, item, accepting), *_opposed(state, item, waived)]
    newest = state.inspection(product)
    if newest is None:
        return (*found, "it has not been inspected")
    if why := _outdated(state, item, newest):
        return (*found, why)
    return (*found, *_failed(item, newest), *_judged(newest, waiver))


def _unmade(state: MissionState, product: Product, accepting: Collection[str]) -> list[str]:
    """Return a problem if a product has no version, or if a container is empty or has parts that are not accepted."""
    if not product.container:
        return [] if product.versions else ["it has no version"]
    inner = held(state, product.id)
    if not inner:
        return ["it holds nothing yet"]
    missing = [item.name for item in inner if item.id not in accepting and not holds(state, item.id)]
    return [f"not accepted of what it holds: {', '.join(missing)}"] if missing else []


def _opposed(state: MissionState, product: Product, waived: Container[str]) -> list[str]:
    """Return the open collabs that prevent the acceptance of a product, as clauses."""
    return [
        f"{called(item)} is open: {item.summary}"
        for item in state.blockers(product.id)
        if not (item.waivable and item.id in waived)
    ]


def called(item: Collab) -> str:
    """Return what a blocking collab is, in words."""
    if item.flag:
        return "a flag of the watchdog"
    return f"a blocking {item.kind}{' by the user' if item.author == USER else ''}"


def _failed(product: Product, found: Inspection) -> list[str]:
    """Return the criteria that an inspection does not prove to be met. A pass needs code's test or a quote."""
    shown: set[str] = set()
    denied: set[str] = set()
    for result in found.results:
        sound = result.passed and bool(result.by == "code" or result.quote.strip())
        (shown if sound else denied).add(result.criterion)
    return [f"not met: {item.text}" for item in product.dod if item.id not in shown or item.id in denied]


def _judged(found: Inspection, waiver: str) -> list[str]:
    """Return the problem with an inspection's verdict: the recorded or the derived one, whichever is worse."""
    verdicts = (found.verdict, verdict(item.severity for item in found.findings))
    if InspectionVerdict.BLOCKED in verdicts:
        return ["its inspection blocks it"]
    if InspectionVerdict.NEEDS_REVISION in verdicts and not waiver.strip():
        return ["its inspection wants a revision, which only a waiver with a reason lets pass"]
    return []


def holds(state: MissionState, product: str) -> bool:
    """True if a product is accepted, and nothing that its acceptance depends on has changed since.

    A blocking collab raised since then invalidates the acceptance, and so does any invalid acceptance in a container.
    """
    rest, seen = [product], {product}
    while rest:
        item = state.products[rest.pop()]
        inner = [each.id for each in held(state, item.id)] if item.container else []
        if (item.container and not inner) or not _kept(state, item):
            return False
        rest += (id for id in inner if id not in seen)
        seen.update(inner)
    return True


def delivered_version(state: MissionState, product: str) -> Version | None:
    """Return the version of a live product that is delivered, None if there is none.

    It is the newest if its acceptance holds, else an earlier one, accepted for the same definition of
    done.
    """
    item = state.products[product]
    if holds(state, product):
        return state.latest(product)
    pinned = state.earlier.get(product)
    if pinned is None or not item.live or pinned.dod != item.dod_sha:
        return None
    return state.versions.get(pinned.version)


def _kept(state: MissionState, product: Product) -> bool:
    """True if a product's own acceptance matches its current state; the acceptances of its parts are not checked."""
    pinned = state.acceptances.get(product.id)
    if product.status is not Status.ACCEPTED or pinned is None or pinned.dod != product.dod_sha:
        return False
    if state.blockers(product.id):
        return False
    found = current(state, product.id)
    if found is None or found.id != pinned.inspection:
        return False
    latest = state.latest(product.id)
    return product.container or (latest is not None and (pinned.version, pinned.sha) == (latest.id, _sha(latest)))


def acceptance_status(state: MissionState) -> dict[str, tuple[str, ...]]:
    """Return what each live product without a valid acceptance lacks, by id, children before parents.

    The value is () for a product that can be accepted now, together with the acceptable products before it.
    """
    found: dict[str, tuple[str, ...]] = {}
    ready: set[str] = set()
    for item in sorted(unaccepted(state), key=lambda item: -depth(state, item)):
        found[item.id] = missing_for_acceptance(state, item.id, accepting=ready)
        if not found[item.id]:
            ready.add(item.id)
    return found


def missing(state: MissionState, product: str) -> tuple[str, ...]:
    """Return why a live product is not accepted, for people: what it lacks, or that the mission ended before.

    If its last acceptance had a waiver, that waiver counts.
    """
    pinned = state.acceptances.get(product)
    return missing_for_acceptance(state, product, pinned.waiver if pinned else "") or (
        "it lacks nothing, and the mission ended before it was accepted",
    )


def unaccepted(state: MissionState) -> tuple[Product, ...]:
    """Return the live products without a valid acceptance. While there are any, the mission is not done."""
    return tuple(item for item in state.live() if not holds(state, item.id))


# -- inspecting ------------------------------------------------------------------------------------


def due(state: MissionState) -> tuple[str, ...]:
    """Return the ids of the products that have to be inspected now, in order; none depends on another one of them.

    These are the live products whose newest version has no valid inspection, and the containers without one whose
    parts are all accepted: what is not accepted changes, and the container with it.
    """
    return tuple(item.id for item in state.live() if not current(state, item.id) and _ready(state, item))


def _ready(state: MissionState, product: Product) -> bool:
    """True if there is what an inspection of a product would judge."""
    if not product.container:
        return bool(product.versions)
    inner = held(state, product.id)
    return bool(inner) and all(holds(state, item.id) for item in inner)


def depth(state: MissionState, product: Product) -> int:
    """Return the level of a product in the tree; the root has level 1. A cycle by mistake ends the count."""
    seen = {product.id}
    while (parent := state.products.get(product.parent or "")) and parent.id not in seen:
        seen.add(parent.id)
        product = parent
    return len(seen)
