"""Applies collabs, remarks, reflections, reviews and messages to the state of a mission. Pure.

Each function takes a state and a reply, and returns the next state and the problems with the reply: sentences that a
model can act on. If there is a problem, the state is returned unchanged. Agents of one step answer at the same time:
a reply that is valid before the other replies of its step are applied is also valid after them, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from cdo.cabal.model import references
from cdo.cabal.model.entities import (
    BLOCKING,
    Collab,
    EnvoyMessage,
    FeedbackResponse,
    MissionEvent,
    MissionStep,
    Product,
    Reflection,
    Remark,
    Version,
)
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.names import called
from cdo.cabal.model.references import absent, listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CollabItem, ReflectionItem, RemarkItem, ResponseFields
from cdo.cabal.replies.schemas import ReflectReply, ReviewReply, TalkReply
from cdo.core.mission_names import USER, WATCHDOG
from cdo.formats.fields import twice

Judged = tuple[MissionState, tuple[str, ...]]

_SILENT = (MissionStep.BOOTSTRAP, MissionStep.PRESENT)  # steps without remarks
_DONE = {"replied": "answered", "confirmed": "confirmed as settled", "withdrawn": "withdrawn", "waived": "waived"}


# -- talk ------------------------------------------------------------------------------------------


def talked(
    state: MissionState, step: MissionStep, agent: str, reply: TalkReply, about: Collection[str] | None = None
) -> Judged:
    """Apply what `agent` confirms, withdraws, raises and remarks in `step`.

    `about` are the products that collabs may be on, None for all. An endorsement never blocks: its importance is
    kept below `BLOCKING`. A confirmation needs a version newer than the collab, and must come from the collab's
    author or the watchdog. Only its author can withdraw a collab.
    """
    after, problems = _settled(state, step, agent, reply)
    after, wrong = commented(after, step, agent, reply.collabs, about)
    after, misdirected = remarked(after, step, agent, reply.remarks)
    problems += (*wrong, *misdirected)
    return (state, problems) if problems else (after, ())


def remarked(state: MissionState, step: MissionStep, agent: str, items: Sequence[RemarkItem]) -> Judged:
    """Add the remarks of `agent` with canonical recipients; one to the user is a message too.

    Bootstrap and Presentation allow no remarks.
    """
    if items and step in _SILENT:
        return state, ("No remarks are made in this step; leave `remarks` out.",)
    problems = references.problems([item.content for item in items], state, "A remark")
    made: list[Remark] = []
    for item in items:
        recipients, wrong = references.recipients(item.recipients, state, agent)
        problems += wrong
        made.append(Remark(agent, recipients, item.type, item.content, state.round, state.at))
    if problems:
        return state, tuple(problems)
    after = replace(state, remarks=(*state.remarks, *made))
    for remark in made:
        to = listed("itself" if name == agent else called(state, name) for name in remark.recipients)
        text = f"From {called(state, agent)} to {to}: {told(state, remark.content)}"
        after = recorded(after, step, "message" if USER in remark.recipients else "remark", agent, text)
        if USER in remark.recipients:
            after = replace(after, messages=(*after.messages, EnvoyMessage(state.round, agent, remark.content, ())))
    return after, ()


def closed(state: MissionState, step: MissionStep, id: str, by: str, how: str, why: str) -> MissionState:
    """Close a collab and record an event; a collab that is already closed stays unchanged."""
    collab = state.collabs[id]
    if not collab.open:
        return state
    shut = replace(collab, open=False, closed_by=by, how=how, why=why)
    text = (
        f"{state.products[collab.product].name}: {told(state, collab.summary)}: {_DONE[how]} by {called(state, by)}"
    )
    after = replace(state, collabs={**state.collabs, id: shut})
    return recorded(after, step, "closed", by, text, collab.product, id)


def answerable(state: MissionState, step: MissionStep, product: str) -> dict[str, Collab]:
    """Return the collabs of a product that a reply of `step` may answer: open ones, and ones closed in this step."""
    shut = {item.ref for item in _lately(state, step) if item.kind == "closed" and item.product == product}
    found = state.about(product, closed=bool(shut))
    return {item.id: item for item in found if item.open or item.id in shut}


def _lately(state: MissionState, step: MissionStep) -> Iterator[MissionEvent]:
    """Yield the events of this step of this round, newest first."""
    for item in reversed(state.events):
        if item.round != state.round or item.step is not step:
            return
        yield item


def _settled(state: MissionState, step: MissionStep, agent: str, reply: TalkReply) -> Judged:
    """Close the collabs that `agent` confirms or withdraws."""
    shut = {item.ref for item in _lately(state, step) if item.kind == "closed"}
    problems = twice((*reply.confirms, *reply.withdraws), "In `confirms` and `withdraws`,")
    after = state
    rules: tuple[tuple[str, Sequence[str], Callable[[MissionState, str, Collab], str]], ...] = (
        ("confirmed", reply.confirms, _unconfirmed),
        ("withdrawn", reply.withdraws, _kept),
    )
    for how, ids, rule in rules:
        for id in ids:
            collab = state.collabs.get(id)
            if collab is None or not (collab.open or id in shut):
                own = listed(item.id for item in state.collabs.values() if item.open and item.author == agent)
                problems.append(f"{id} is not an open collab; those that you raised and that are open: {own}.")
            elif problem := rule(state, agent, collab):
                problems.append(problem)
            else:
                after = closed(after, step, id, agent, how, "")
    return (state, tuple(problems)) if problems else (after, ())


def _unconfirmed(state: MissionState, agent: str, collab: Collab) -> str:
    """Return why `agent` cannot confirm that a collab is settled, "" if it can."""
    if agent not in (collab.author, WATCHDOG):
        return f"{collab.id} was raised by {collab.author}: only {collab.author} or {WATCHDOG} can confirm it."
    if not renewed(state, collab):
        inside = state.products[collab.product].container
        none = f"nothing in {collab.product} has a" if inside else f"{collab.product} has no"
        return f"{collab.id} cannot be confirmed: {none} version since it was raised."
    return ""


def renewed(state: MissionState, collab: Collab) -> bool:
    """True if a product, or for a container any live product in it, has a version newer than a collab on it."""
    return _newest(state, collab.product) > _number(collab.version)


def _newest(state: MissionState, product: str, counted: Callable[[Version], bool] = lambda version: True) -> int:
    """Return the number in the id of a product's newest version for which `counted` is true, 0 if there is none.

    For a container, the versions of all live products below it count.
    """
    found = [product, *(_below(state, product) if state.products[product].container else ())]
    versions = (next(filter(counted, reversed(state.history(id))), None) for id in found)
    return max((_number(version.id) for version in versions if version), default=0)


def _below(state: MissionState, product: str) -> Iterator[str]:
    """Yield the live products below a product, at any depth."""
    children: dict[str, list[str]] = {}
    for item in state.products.values():
        if item.live and item.parent is not None:
            children.setdefault(item.parent, []).append(item.id)
    left = children.get(product, [])
    while left:
        yield from left
        left = [id for each in left for id in children.get(each, ())]


def _number(version: str) -> int:
    """Return the number in a version's id, 0 for an empty id."""
    return int(version[1:] or 0)


def _kept(state: MissionState, agent: str, collab: Collab) -> str:
    """Return why `agent` cannot withdraw a collab, "" if it can."""
    if agent == collab.author:
        return ""
    return f"{collab.id} was raised by {collab.author}: only {collab.author} can withdraw it."


def commented(
    state: MissionState,
    step: MissionStep,
    agent: str,
    items: Sequence[CollabItem],
    about: Collection[str] | None = None,
) -> Judged:
    """Raise collabs by `agent` on products of `about`, None for all."""
    problems = [problem for item in items for problem in _unfit(state, agent, item, about)]
    texts = [text for item in items for text in (item.comment, item.shortestSummary)]
    problems += references.problems(texts, state, "A collab")
    if problems:
        return state, tuple(problems)
    after = state
    for item in items:
        importance = min(item.importance, BLOCKING - 1) if item.type == "endorsement" else item.importance
        after, _ = raised(
            after, step, agent, item.refersToProduct, item.type, importance, item.comment, item.shortestSummary
        )
    return after, ()


def raised(
    state: MissionState,
    step: MissionStep,
    author: str,
    product: str,
    kind: str,
    importance: int,
    comment: str,
    summary: str,
    finding: str = "",
) -> tuple[MissionState, Collab]:
    """Raise a collab on the newest version of a product and record an event; return the state and the collab.

    For a container, it is the newest version in it. Versions that other operatives write in the same step do not
    count: the author has not seen them.
    """

    def seen(version: Version) -> bool:
        beside = step is MissionStep.WRITE and version.round == state.round and not version.session
        return not beside or version.author == author or version.author not in state.team

    newest = _newest(state, product, seen)
    collab = Collab(
        f"c{len(state.collabs) + 1}", product, kind, importance, author, comment, summary, state.round,
        f"v{newest}" if newest else "", finding,
    )  # fmt: skip
    after = replace(state, collabs={**state.collabs, collab.id: collab})
    text = f"{state.products[product].name}: {told(state, summary)} ({kind}, {importance})"
    return recorded(after, step, "collab", author, text, product, collab.id), collab


def _unfit(state: MissionState, agent: str, item: CollabItem, about: Collection[str] | None) -> list[str]:
    """Return the problems with the product and type of a collab by `agent`."""
    id = item.refersToProduct
    if problem := absent(state, id):
        return [f"{problem}."]
    if about is not None and id not in about:
        return [f"A collab is on {id}; in this step they may be on {listed(sorted(about, key=_order))}."]
    if item.type == "endorsement" and state.products[id].owner == agent:
        return [f"{id} is yours: nobody endorses its own product."]
    return []


def _order(id: str) -> tuple[int, str]:
    return (len(id), id)


# -- steps that only give feedback -----------------------------------------------------------------


def reflected(state: MissionState, agent: str, reply: ReflectReply) -> Judged:
    """Apply what `agent` reports about the products that it owns, and its responses to their collabs.

    A response by a product's owner closes a collab below `BLOCKING`; a blocking collab stays open.
    """
    own = {product.id: product for product in state.owned(agent)}
    names = [item.refersToProduct for item in reply.reflections]
    problems = twice(names, "In `reflections`,")
    after = state
    for item in reply.reflections:
        if item.refersToProduct in own:
            after, wrong = _reflection(after, agent, own[item.refersToProduct], item)
            problems += wrong
        else:
            problems.append(f"{item.refersToProduct} is not yours to reflect on; you own {listed(own)}.")
    after, talk = talked(after, MissionStep.REFLECT, agent, reply)
    problems += talk
    return (state, tuple(problems)) if problems else (after, ())


def _reflection(state: MissionState, agent: str, product: Product, item: ReflectionItem) -> Judged:
    there = answerable(state, MissionStep.REFLECT, product.id)
    texts = [*item.dod_gaps, item.lessons_from_history, item.next_version_delta, *item.blockers]
    texts += [text for said in item.feedback_responses for text in (said.planned_change, said.rationale)]
    problems = references.problems(texts, state, f"The reflection on {product.id}")
    problems += twice([said.collab_id for said in item.feedback_responses], "In `feedback_responses`,")
    for said in item.feedback_responses:
        if said.collab_id not in there:
            problems.append(f"{said.collab_id} is not an open collab of {product.id}; those are {listed(there)}.")
        elif said.action != "accept" and not _said(said):
            problems.append(f"Say in `rationale` why you {said.action} {said.collab_id}.")
    if problems:
        return state, tuple(problems)
    responses = tuple(FeedbackResponse(said.collab_id, said.action, _said(said)) for said in item.feedback_responses)
    made = Reflection(
        agent, product.id, item.dod_status, item.dod_gaps, responses, item.lessons_from_history,
        item.next_version_delta, item.blockers,
    )  # fmt: skip
    after = replace(state, reflections=(*state.reflections, made))
    text = (
        f"{product.name}: {called(state, agent)} says its definition of done is {item.dod_status.replace('_', ' ')}"
    )
    after = recorded(after, MissionStep.REFLECT, "reflection", agent, text, product.id)
    for response in responses:
        if there[response.collab].importance < BLOCKING:
            why = f"{response.action}: {response.text}" if response.text else response.action
            after = closed(after, MissionStep.REFLECT, response.collab, agent, "replied", why)
    return after, ()


def _said(response: ResponseFields) -> str:
    """Return what an owner plans about a collab, or the reason why it defers or rejects it."""
    first, second = response.planned_change, response.rationale
    return (first or second) if response.action == "accept" else (second or first)


def reviewed(state: MissionState, agent: str, reply: ReviewReply, products: Collection[str]) -> Judged:
    """Apply the review by `agent` of the `products` assigned to it; it may also comment on its own products."""
    mine = [product.id for product in state.owned(agent)]
    return talked(state, MissionStep.REVIEW, agent, reply, {*products, *mine})
