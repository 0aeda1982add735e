"""Validates new versions, adds them to products and applies the consequences. Pure.

A version of an accepted product reopens it. A version that changes the outcome of a binding Decision makes the
inspections of all products that refer to the Decision stale.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from msgspec.structs import replace

from cdo.cabal.model import references
from cdo.cabal.model.entities import BLOCKING, Assignment, Kind, MissionStep, Product, Status, Version
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.names import called
from cdo.cabal.model.product_files import folder_problems, is_code
from cdo.cabal.model.references import absent, listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import VersionItem
from cdo.cabal.replies.schemas import WriteReply
from cdo.cabal.rules import criteria
from cdo.cabal.rules.feedback import Judged, answerable, closed, talked
from cdo.cabal.rules.reopening import reopened
from cdo.core import file_paths
from cdo.formats.fields import twice
from cdo.formats.sections import folded

SHARED = 98  # least percent of shared shingles for two texts to be nearly the same
_SHINGLE = 25  # letters and digits: about five words


@lru_cache(maxsize=256)  # a reply is checked when it arrives, and again when it is applied
def alike(old: str, new: str) -> bool:
    """True if two texts are nearly the same, by the runs of letters and digits that they share; takes linear time."""
    first, second, other = set(_shingles(letters(old))), letters(new), set[str]()
    enough = (100 - SHARED) * (len(first) + len(second)) // 100  # most shingles that only the new text has
    for shingle in _shingles(second):
        if shingle not in first:
            other.add(shingle)
            if len(other) > enough:
                return False
    both = set(_shingles(second)) - other
    return 100 * len(both) >= SHARED * len(first | other)


def letters(text: str) -> str:
    """Return a text's letters and digits without case: texts that differ only in case or signs count as the same."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", criteria.seen(text)).casefold()))


def _shingles(found: str) -> Iterator[str]:
    return (found[at : at + _SHINGLE] for at in range(max(1, len(found) - _SHINGLE + 1)))


# -- versions by operatives ------------------------------------------------------------------------


def wrote(
    state: MissionState, agent: str, reply: WriteReply, about: Collection[str] = (), *, part: bool = False
) -> Judged:
    """Apply the versions that `agent` wrote as this round's assigned writer, and its feedback.

    Every assigned product (of `about`, if there is one) gets one version, or a collab that says why not, unless the
    reply is only `part` of one. A version closes the collabs below `BLOCKING` that it addresses. A version nearly the
    same as the last is refused, unless it answers another agent's collab or changes the outcome.
    """
    orders = {id: item for id, item in state.assignments.items() if item.writer == agent}
    problems = twice([item.product_id for item in reply.versions], "In `versions`,")
    after = state
    for item in reply.versions:
        if wrong := _refused(state, agent, item, orders):
            problems += wrong
        else:
            after = versioned(
                after, MissionStep.WRITE, agent, item.product_id, item.title, item.content, item.change_summary,
                outcome=item.outcome, addresses=item.addresses,
            )  # fmt: skip
    if not part:
        problems += _unsaid(state, agent, reply, {id: orders[id] for id in orders if not about or id in about})
    after, talk = talked(after, MissionStep.WRITE, agent, reply)
    problems += talk
    return (state, tuple(problems)) if problems else (after, ())


def _refused(state: MissionState, agent: str, item: VersionItem, orders: Mapping[str, Assignment]) -> list[str]:
    """Return the problems with one version."""
    id = item.product_id
    if id not in orders:
        return [f"{id} is not yours to write in this round; you write {listed(orders)}."]
    if problem := absent(state, id):
        return [f"{problem}."]
    product, latest = state.products[id], state.latest(id)
    if latest and latest.author == agent and latest.round == state.round:
        return [f"{id} has its version of this round already."]
    text = "" if is_code(product) else item.content  # [[p:p9]] in a program is no reference
    texts = (item.title, text, item.change_summary, item.outcome)
    problems = references.problems(texts, state, f"The version of {id}")
    if file_paths.is_folder(product.path):
        problems += (f"The version of {id}: {why}." for why in folder_problems(product.path, item.content))
    if product.kind is Kind.DECISION and not item.outcome:
        problems.append(f"{id} is a Decision: state its `outcome` in one line.")
    problems += _unanswered(state, item, orders[id].address)
    if latest and _repeats(state, agent, product, latest, item):
        problems.append(f"The version of {id} is nearly the same as the last: change it, or say why not.")
    return problems


def _unanswered(state: MissionState, item: VersionItem, ordered: tuple[str, ...]) -> list[str]:
    """Return the problems with the collabs that a version claims, or is ordered, to answer."""
    there = answerable(state, MissionStep.WRITE, item.product_id)
    problems = [
        f"{id} is not an open collab of {item.product_id}; those are {listed(there)}."
        for id in item.addresses
        if id not in there
    ]
    if left := [id for id in ordered if id in there and there[id].open and id not in item.addresses]:
        problems.append(f"The version of {item.product_id} has to answer {listed(left)}, named in `addresses`.")
    return problems


def _repeats(state: MissionState, agent: str, product: Product, latest: Version, item: VersionItem) -> bool:
    """True if a version repeats the last one. A small change is enough if it answers another agent's collab."""
    if product.kind is Kind.DECISION and letters(latest.outcome) != letters(item.outcome):
        return False
    if is_code(product):  # one sign can be the whole of a change
        return _unspaced(latest.content) == _unspaced(item.content)
    if any(id in state.collabs and state.collabs[id].author != agent for id in item.addresses):
        return letters(latest.content) == letters(item.content)
    return alike(latest.content, item.content)


def _unspaced(text: str) -> list[str]:
    """Return the lines of a text without blanks at their ends, for comparison."""
    return [line.rstrip() for line in text.strip().split("\n")]


def _unsaid(state: MissionState, agent: str, reply: WriteReply, orders: Mapping[str, Assignment]) -> list[str]:
    """Return a problem for each assigned product without a version or a collab that says why there is none."""
    spoken = {item.product_id for item in reply.versions} | {item.refersToProduct for item in reply.collabs}
    return [
        f"{id} is yours to write: give a version, or say in a collab on {id} why there is none."
        for id in orders
        if id not in spoken and not _written(state, agent, id)
    ]


def _written(state: MissionState, agent: str, product: str) -> bool:
    """True if a product has its version of this round, from its writer or a deliberation."""
    latest = state.latest(product)
    return bool(latest and latest.round == state.round and (latest.session or latest.author == agent))


# -- consequences of a version ---------------------------------------------------------------------


def versioned(
    state: MissionState, step: MissionStep, author: str, product: str, title: str, content: str, summary: str, *,
    outcome: str = "", addresses: tuple[str, ...] = (), session: str = "",
) -> MissionState:  # fmt: skip
    """Add a new version of a product and apply its consequences.

    Only a Decision keeps its `outcome`. The caller must have checked that the author may write.
    """
    item, last = state.products[product], state.latest(product)
    version = Version(
        f"v{len(state.versions) + 1}", len(item.versions) + 1, product, author, title, content, summary, state.round,
        outcome if item.kind is Kind.DECISION else "", tuple(dict.fromkeys(addresses)), session,
    )  # fmt: skip
    status = Status.IN_PROGRESS if item.status is Status.PENDING else item.status
    item = replace(item, status=status, versions=(*item.versions, version.id))
    after = replace(
        state, products={**state.products, product: item}, versions={**state.versions, version.id: version}
    )
    text = f"{item.name} got its version {version.number} from {called(state, author)}: {told(state, summary)}"
    after = recorded(after, step, "version", author, text, product, version.id)
    if not item.meta:
        after = reopened(after, product, step, author, "it has a new version", delivered=True)
    if last and folded(last.outcome) != folded(version.outcome):
        after = unbound(after, step, author, product, f"the outcome of {item.name} changed")
    for id in version.addresses:
        if after.collabs[id].importance < BLOCKING:
            after = closed(after, step, id, author, "replied", summary)
    return after


def unbound(state: MissionState, step: MissionStep, actor: str, decision: str, why: str) -> MissionState:
    """Make inspections of all products stale that refer to a Decision, because it no longer binds as before.

    `why` is a clause without ids. A Decision that was never accepted was never binding, so nothing changes.
    """
    if not any(item.kind == "accepted" and item.product == decision for item in state.events):
        return state
    inspected = {item.product for item in state.inspections.values()}
    for item in state.live():
        latest = state.latest(item.id)
        if item.id == decision or item.id not in inspected or latest is None:
            continue
        if ("p", decision) in references.cited(f"{latest.outcome}\n{latest.content}"):
            state = staled(state, step, actor, item.id, why)
    return state


def staled(
    state: MissionState, step: MissionStep, actor: str, product: str, why: str, *, delivered: bool = False
) -> MissionState:
    """Make all inspections of a product up to now stale; `why` is a clause without ids.

    With `delivered`, the version that was accepted stays delivered until the next one is accepted.
    """
    item = state.products[product]
    after = recorded(state, step, "stale", actor, f"{item.name} has to be inspected again: {why}", product)
    item = replace(item, stale_at=len(after.events), stale_why=why)
    after = replace(after, products={**after.products, product: item})
    return reopened(after, product, step, actor, why, delivered=delivered)
