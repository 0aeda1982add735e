"""Whether a product can be accepted: a function of the record, and closed wherever the record says nothing. Pure.

An acceptance rests on an inspection that is of the newest version (for a container: of what it holds as it is now),
of the definition of done as it reads now, and newer than whatever made older ones stale.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256

from cdo.cabal.model.entities import (
    BLOCKING,
    REVISION,
    Inspection,
    InspectionFinding,
    InspectionVerdict,
    Product,
    Status,
    Version,
)
from cdo.cabal.model.state import MissionState

Parts = tuple[tuple[str, str], ...]


def verdict(severities: Iterable[int]) -> InspectionVerdict:
    """What findings of these severities (1 to 10) come to."""
    worst = max(severities, default=0)
    if worst >= BLOCKING:
        return InspectionVerdict.BLOCKED
    return InspectionVerdict.NEEDS_REVISION if worst >= REVISION else InspectionVerdict.APPROVED


def parts(state: MissionState, product: str) -> Parts:
    """What a container holds, as it is now: (id, sha of the newest version, "" for none), in the order of `held`.

    For what is a container itself it is the hash of its own parts.
    """
    order, seen = [product], {product}
    for id in order:  # grows while it is read
        inner = [item.id for item in held(state, id) if item.container and item.id not in seen]
        seen.update(inner)
        order += inner
    known: dict[str, Parts] = {}
    for id in reversed(order):
        known[id] = tuple((item.id, _content(state, item, known)) for item in held(state, id))
    return known[product]


def held(state: MissionState, product: str) -> tuple[Product, ...]:
    """What a container's acceptance rests on: its live children, each that is no container followed by what is live
    below it. What lies in a container among them is that one's to hold."""
    found: dict[str, Product] = {}  # by id: what is a ring by mistake ends too
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
    """A version never changes, and is asked for in every step: its content is hashed once."""
    return version.sha


def current(state: MissionState, product: str) -> Inspection | None:
    """The newest inspection of a product if it still holds, else None."""
    newest = state.inspection(product)
    return newest if newest and not _outdated(state, state.products[product], newest) else None


def _outdated(state: MissionState, product: Product, found: Inspection) -> str:
    """Why an inspection no longer holds, "" where it does."""
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
    """Whether a finding blocks, and was taken back by whoever made it: no new version will ever show that."""
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
    """Why a product cannot be accepted now, as clauses ("it has no version"); () when it can.

    `waiver` is the chair's reason to let needs_revision pass; `waived` are collabs that count as closed (the
    watchdog's flags never do), `accepting` products that are accepted along with it.
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
    """What a product is without: a version, or children that are accepted."""
    if not product.container:
        return [] if product.versions else ["it has no version"]
    inner = held(state, product.id)
    if not inner:
        return ["it holds nothing yet"]
    missing = [item.name for item in inner if item.id not in accepting and not holds(state, item.id)]
    return [f"not accepted of what it holds: {', '.join(missing)}"] if missing else []


def _opposed(state: MissionState, product: Product, waived: Container[str]) -> list[str]:
    """The collabs that keep a product from being accepted."""
    return [
        f"{'a flag of the watchdog' if item.flag else 'a blocking ' + item.kind} is open: {item.summary}"
        for item in state.blockers(product.id)
        if item.flag or item.id not in waived
    ]


def _failed(product: Product, found: Inspection) -> list[str]:
    """The criteria that an inspection does not show to be met; a pass is code's own, or rests on a quote."""
    shown: set[str] = set()
    denied: set[str] = set()
    for result in found.results:
        sound = result.passed and bool(result.by == "code" or result.quote.strip())
        (shown if sound else denied).add(result.criterion)
    return [f"not met: {item.text}" for item in product.dod if item.id not in shown or item.id in denied]


def _judged(found: Inspection, waiver: str) -> list[str]:
    """What the verdict on a product forbids: that of the findings or that on record, whichever is worse."""
    verdicts = (found.verdict, verdict(item.severity for item in found.findings))
    if InspectionVerdict.BLOCKED in verdicts:
        return ["its inspection blocks it"]
    if InspectionVerdict.NEEDS_REVISION in verdicts and not waiver.strip():
        return ["its inspection wants a revision, which only a waiver with a reason lets pass"]
    return []


def holds(state: MissionState, product: str) -> bool:
    """Whether a product is accepted, and everything that it was accepted for is still so.

    False also where a blocking collab was raised since, or something that a container holds no longer holds.
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


def _kept(state: MissionState, product: Product) -> bool:
    """Whether a product is accepted as it is now, whatever it holds."""
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
    """What each live product whose acceptance does not hold lacks, by id, children before what holds them.

    () for one that can be accepted now, along with those before it that can.
    """
    found: dict[str, tuple[str, ...]] = {}
    ready: set[str] = set()
    for item in sorted(unaccepted(state), key=lambda item: -depth(state, item)):
        found[item.id] = missing_for_acceptance(state, item.id, accepting=ready)
        if not found[item.id]:
            ready.add(item.id)
    return found


def missing(state: MissionState, product: str) -> tuple[str, ...]:
    """Why a live product is not accepted, for people: what it lacks, a waiver that it had counted, or that nobody has
    accepted it yet."""
    pinned = state.acceptances.get(product)
    return missing_for_acceptance(state, product, pinned.waiver if pinned else "") or (
        "the chair has not accepted it",
    )


def unaccepted(state: MissionState) -> tuple[Product, ...]:
    """The live products without an acceptance that holds: while there are any, the mission is not done."""
    return tuple(item for item in state.live() if not holds(state, item.id))


# -- inspecting ------------------------------------------------------------------------------------


def due(state: MissionState) -> tuple[str, ...]:
    """The ids of what has to be inspected now, in this order.

    Live products whose newest version has no inspection that holds; then containers, the deepest first, that have
    none and of what they hold each has one or stands in the list.
    """
    seen = {item.id for item in state.live() if current(state, item.id)}
    found = [item.id for item in state.live() if not item.container and item.versions and item.id not in seen]
    containers = [item for item in state.live() if item.container]
    for item in sorted(containers, key=lambda item: -depth(state, item)):
        inner = held(state, item.id)
        ready = inner and all(each.id in seen or each.id in found for each in inner)
        if ready and item.id not in seen:
            found.append(item.id)
    return tuple(found)


def depth(state: MissionState, product: Product) -> int:
    """How many products hold this one; a tree that is a ring by mistake ends too."""
    seen = {product.id}
    while (parent := state.products.get(product.parent or "")) and parent.id not in seen:
        seen.add(parent.id)
        product = parent
    return len(seen)
