"""Computes the next state of a mission from the reply of an agent or the result of a deliberation. Pure.

A mission is the fold of these functions, and those of `rounds` and `person`, over the record, so that a resume
restores it exactly. `apply_reply` handles the replies of the seven steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from cdo.cabal.model.entities import STEPS, Kind, MissionStep, Rationale, Remark
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.names import called
from cdo.cabal.model.references import listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.partial import RefusedPart
from cdo.cabal.replies.schemas import (
    BootstrapReply,
    InspectReply,
    PlanReply,
    PresentReply,
    ReflectReply,
    ReviewReply,
    StepReply,
    WriteReply,
)
from cdo.cabal.rules.feedback import Judged, reflected, reviewed
from cdo.cabal.rules.inspection import inspected
from cdo.cabal.rules.plan_transaction import bootstrapped, planned
from cdo.cabal.rules.presentation import presented
from cdo.cabal.rules.product_tree import PRESETS
from cdo.cabal.rules.reopening import objected
from cdo.cabal.rules.versions import versioned, wrote
from cdo.core.exchange import Fault
from cdo.core.formatting import one_line
from cdo.core.mission_names import CHAIR, ENVOY, USER, WATCHDOG
from cdo.core.steps import Missing

_ACTORS = {
    MissionStep.BOOTSTRAP: CHAIR,
    MissionStep.PLAN: CHAIR,
    MissionStep.INSPECT: WATCHDOG,
    MissionStep.PRESENT: ENVOY,
}
_DOING = {
    MissionStep.BOOTSTRAP: "bootstrap",
    MissionStep.REFLECT: "reflection",
    MissionStep.PLAN: "plan",
    MissionStep.WRITE: "writing",
    MissionStep.REVIEW: "review",
    MissionStep.INSPECT: "inspection",
    MissionStep.PRESENT: "presentation",
}
_ABOUT = (MissionStep.WRITE, MissionStep.REVIEW, MissionStep.INSPECT)  # steps that are about single products
_NAMED = 5  # most products that are named in one event
OVERTAKEN = Missing("overtaken by others")
_ENDED = {  # how a deliberation ended, by its status
    "converged": "converged",
    "max_turns": "took all of its turns",
    "stopped": "was stopped before its end",
}
_WHY = {  # by the kind of reason
    **{fault.value: fault.value for fault in Fault},
    **{kind: kind for kind in (OVERTAKEN.kind, "no model")},
    Fault.INVALID.value: "no valid reply",
    Fault.LENGTH.value: "cut off",
    Fault.TRUNCATED.value: "cut off",
    "budget": "a cap was reached",
}


# -- replies of agents -----------------------------------------------------------------------------


def apply_reply(
    state: MissionState,
    step: MissionStep,
    agent: str,
    reply: StepReply,
    about: Sequence[str] = (),
    presets: Collection[str] = PRESETS,
    *,
    part: bool = False,
) -> Judged:
    """Apply a reply; return the state and the problems with the reply. With problems, the state is unchanged.

    `about` are the products to write, to review or due to be inspected; `presets` are what a Decision may be decided
    by. With `part`, the reply is part of one and need not be complete. A blocking collab reopens an accepted product.
    """
    if problem := _misplaced(state, step, agent):
        return state, (problem,)
    after, problems = _dispatched(state, step, agent, reply, about, presets, part=part)
    if problems:
        return state, problems
    for collab in islice(after.collabs.values(), len(state.collabs), None):
        if collab.blocking:
            after = objected(after, collab, step, agent, f"a blocking {collab.kind} was raised")
    if reply.rationale:
        reason = Rationale(state.round, step, agent, reply.rationale)
        after = replace(after, rationales=(*after.rationales, reason))
    return _forgotten(after, agent), ()


def _misplaced(state: MissionState, step: MissionStep, agent: str) -> str:
    """Return why this agent cannot reply in this step now, "" if it can."""
    allowed = (_ACTORS[step],) if step in _ACTORS else state.team
    if agent not in allowed:
        return f"{agent} has no part in the step {step}, which is for {listed(allowed)}."
    if (step is MissionStep.BOOTSTRAP) is (state.mission is not None):
        return "The mission is set already." if state.mission else "The mission is not set yet."
    return ""


def _dispatched(
    state: MissionState,
    step: MissionStep,
    agent: str,
    reply: StepReply,
    about: Sequence[str],
    presets: Collection[str],
    *,
    part: bool,
) -> Judged:
    match step, reply:
        case MissionStep.BOOTSTRAP, BootstrapReply():
            return bootstrapped(state, reply, presets)
        case MissionStep.REFLECT, ReflectReply():
            return reflected(state, agent, reply)
        case MissionStep.PLAN, PlanReply():
            return planned(state, reply, presets)
        case MissionStep.WRITE, WriteReply():
            return wrote(state, agent, reply, about, part=part)
        case MissionStep.REVIEW, ReviewReply():
            return reviewed(state, agent, reply, about)
        case MissionStep.INSPECT, InspectReply():
            return inspected(state, reply, about, part=part)
        case MissionStep.PRESENT, PresentReply():
            return presented(state, reply, _events(state))
    return state, (f"This is not a reply to the step {step}.",)


def _events(state: MissionState) -> tuple[str, ...]:
    """Return the ids of this round's events, in order."""
    found: list[str] = []
    for item in reversed(state.events):
        if item.round != state.round:
            break
        found.append(item.id)
    return tuple(reversed(found))


def record_missing_reply(
    state: MissionState, step: MissionStep, agent: str, reason: Missing, about: Sequence[str] = ()
) -> MissionState:
    """Record that an agent gave no valid reply in a step. The event tells only the kind of the reason.

    It names the products that the agent was to write, review or inspect (`about`), by rules since 5.
    """
    why, doing = _WHY.get(reason.kind, "no reply"), f"its {_DOING[step]}"
    named = about if step in _ABOUT and state.rules >= 5 else ()
    if named:
        doing = f"the {_DOING[step]} of {listed((state.products[id].name for id in named), _NAMED)}"
    text = f"Nothing came from {called(state, agent)} in {doing}: {why}"
    return recorded(_forgotten(state, agent), step, "missed", agent, text, named[0] if len(named) == 1 else "")


def record_refused(
    state: MissionState, step: MissionStep, agent: str, parts: Sequence[RefusedPart], *, again: bool
) -> MissionState:
    """Record that parts of an agent's reply were not taken; the agent and the chair are told why.

    With `again`, the agent is asked for them once more; otherwise they are missing.
    """
    ids = dict.fromkeys(item.product for item in parts)
    names = [state.products[id].name for id in ids if id in state.products]
    about = f" on {listed(names)}" if names else ""
    why = "; ".join(dict.fromkeys(problem for item in parts for problem in item.problems))
    said = "asked for again" if again else "not taken"
    remark = f"What {agent} replied{about} was {said}: {one_line(why, 1000)}"
    told_to = tuple(dict.fromkeys((agent, CHAIR)))
    state = replace(state, remarks=(*state.remarks, Remark("code", told_to, "note", remark, state.round, state.at)))
    text = f"Part of what {called(state, agent)} replied in its {_DOING[step]} was {said}{about}"
    return recorded(state, step, "again" if again else "missed", agent, text)


def edited_by_hand(
    before: MissionState, after: MissionState, step: MissionStep, agent: str, call: str
) -> MissionState:
    """Mark what the reply to `call` added since `before` as coming from a reply that the person edited.

    An event records the edit; its `ref` is the call.
    """
    marked: dict[str, Any] = {
        kind: {
            id: item if id in getattr(before, kind) else replace(item, edited=True)
            for id, item in getattr(after, kind).items()
        }
        for kind in ("versions", "collabs", "inspections")
    }
    known = len(before.messages)
    said = tuple(replace(item, edited=True) for item in after.messages[known:])
    after = replace(after, messages=(*after.messages[:known], *said), **marked)
    text = f"The user edited the reply of {called(after, agent)} in its {_DOING[step]} by hand"
    return recorded(after, step, "edited", USER, text, "", call)


def mark_seen(state: MissionState, agent: str, products: Sequence[str]) -> MissionState:
    """Record that `agent` was shown these products as they are now."""
    if not products:
        return state
    now = {**state.seen.get(agent, {}), **dict.fromkeys(products, len(state.events))}
    return replace(state, seen={**state.seen, agent: now})


# -- remarks ---------------------------------------------------------------------------------------


def heard(state: MissionState, agent: str) -> tuple[Remark, ...]:
    """Return the remarks that `agent` is shown in the current step, oldest first.

    Remarks by others are shown from the next step on, to the end of the round and for at least as many steps as a
    round has. An agent's notes to itself are shown only until it has acted again. No remark is shown in the step in
    which it was made, because the order of the replies must not matter.
    """
    return tuple(
        item
        for item in state.remarks
        if agent in item.recipients
        and item.at != state.at
        and (item.round == state.round or state.at - item.at <= len(STEPS))
    )


def _forgotten(state: MissionState, agent: str) -> MissionState:
    """Remove the notes that `agent` made for itself before this step, now that it has acted."""
    if not any(item.author == agent in item.recipients and item.at != state.at for item in state.remarks):
        return state
    kept: list[Remark] = []
    for item in state.remarks:
        if item.author == agent and item.at != state.at:
            item = replace(item, recipients=tuple(name for name in item.recipients if name != agent))
        if item.recipients:
            kept.append(item)
    return replace(state, remarks=tuple(kept))


# -- deliberations ---------------------------------------------------------------------------------


def deliberated(
    state: MissionState, product: str, outcome: str, content: str, session: str, status: str = ""
) -> MissionState:
    """Add a version of a Decision by its owner, from a deliberation in `session` that ended with `status`.

    It addresses the open collabs that the owner's assignment lists. Raises `ValueError` for a product that has no
    owner or is not a Decision.
    """
    item = state.products.get(product)
    if item is None or item.owner is None or item.kind is not Kind.DECISION:
        raise ValueError(f"{product} is not a Decision that somebody owns")
    order = state.assignments.get(product)
    open_ones = {collab.id for collab in state.about(product)}
    addresses = tuple(id for id in (order.address if order else ()) if id in open_ones)
    outcome = outcome.strip() or "No decision was reached"
    summary = f"Deliberated: {status}" if status else "Deliberated"
    if state.rules >= 5:
        summary = f"A deliberation decided this; it {_ENDED.get(status, 'came to its end')}"
    state = versioned(
        state,
        MissionStep.WRITE,
        item.owner,
        product,
        item.name,
        content,
        summary,
        outcome=outcome,
        addresses=addresses,
        session=session,
    )
    return recorded(state, MissionStep.WRITE, "decided", "code", f"{item.name}: {told(state, outcome)}", product)
