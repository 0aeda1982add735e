"""Computes the next state of a mission from a reply or an event; every change of state goes through here. Pure.

A mission is the fold of these functions over the record, so that a resume restores it exactly. `apply_reply` handles
the replies of the seven steps; the other functions handle actions of the program, the person and deliberations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from cdo.cabal.model.entities import STEPS, Assignment, Kind, MissionStep, Question, Rationale, Remark, Status
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.names import called
from cdo.cabal.model.product_files import folder_problems
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
from cdo.cabal.rules.feedback import Judged, closed, raised, reflected, reviewed
from cdo.cabal.rules.inspection import inspected
from cdo.cabal.rules.objectives import set_objectives
from cdo.cabal.rules.plan_transaction import bootstrapped, planned
from cdo.cabal.rules.presentation import presented
from cdo.cabal.rules.product_tree import PRESETS
from cdo.cabal.rules.reopening import objected
from cdo.cabal.rules.versions import staled, versioned, wrote
from cdo.core import file_paths
from cdo.core.exchange import Fault
from cdo.core.formatting import one_line
from cdo.core.mission_names import CHAIR, ENVOY, USER, WATCHDOG, operatives
from cdo.core.steps import Missing
from cdo.planning.mission_crew import RULES

_ACTORS = {
    MissionStep.BOOTSTRAP: CHAIR,
    MissionStep.PLAN: CHAIR,
    MissionStep.INSPECT: WATCHDOG,
    MissionStep.PRESENT: ENVOY,
}
_TOUCHING = ("mission", "objectives", "constraints")  # parts of the charter that acceptances depend on
_CHARTER = {"mission": "the mission", "personas": "the personas", "domains": "the operatives' domains"}
_FIRST = MissionStep.REFLECT  # the step recorded for events before a round's first reply
_SUMMARY = 120  # most characters of the summary of a person's comment
_SETTLED = ("confirmed", "waived")  # ways to close a blocker that count as progress
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


# -- a round ---------------------------------------------------------------------------------------


def begin(request: str, team: int, *, exec: bool = False, sign_off: bool = False, rules: int = RULES) -> MissionState:
    """Return the initial state of a mission; `team` is the number of operatives.

    With `exec`, commands may run. With `sign_off`, the person has to sign the mission off. `rules` is the version of
    the rules that it was begun under.
    """
    return MissionState(request, operatives(team), exec=exec, sign_off=sign_off, rules=rules)


def open_round(state: MissionState) -> MissionState:
    """Open the next round: overrides take effect, data of the last round lapses, a halt ends.

    If the mission, its objectives or constraints change, all inspections and acceptances become invalid.
    """
    lapsed = [item for item in state.assignments.values() if not _kept(state, item)]
    # Keep remarks visible until the next plan, however many inspections came after them.
    said = [item for item in state.remarks if item.round == state.round]
    remarks = tuple(replace(item, at=max(item.at, state.at - len(STEPS) + 2)) for item in said)
    opened = replace(
        state, round=state.round + 1, assignments={}, reflections=(), remarks=remarks, pending={}, halt="", why=""
    )
    for item in lapsed:
        text = f"{state.products[item.product].name}: no version came of last round's assignment"
        opened = recorded(opened, _FIRST, "lapsed", "code", text, item.product)
    return _overridden(opened, state)


def _kept(state: MissionState, order: Assignment) -> bool:
    """True if the writer wrote the assigned product in the assignment's round, or if the product is archived."""
    if state.products[order.product].status is Status.ARCHIVED:
        return True
    versions = reversed(state.products[order.product].versions)
    written = (state.versions[id] for id in versions)
    return any(item.author == order.writer for item in written if item.round == order.round)


def _overridden(opened: MissionState, before: MissionState) -> MissionState:
    """Apply the overrides that were ordered in the last round."""
    if before.mission is None or not before.pending:
        return opened
    opened = replace(opened, mission=replace(before.mission, **before.pending))
    names = {key: _CHARTER.get(key, f"the {key}") for key in before.pending}
    text = f"What the chair changed holds from now on: {listed(names.values())}"
    opened = recorded(opened, _FIRST, "override", "code", text)
    if "objectives" in before.pending:
        opened = set_objectives(opened, before.mission.objectives, _FIRST, CHAIR)
    if touching := [name for key, name in names.items() if key in _TOUCHING]:
        inspected = {item.product for item in before.inspections.values()}
        for product in before.live():
            if product.id in inspected:
                opened = staled(opened, _FIRST, "code", product.id, f"{listed(touching)} changed")
    return opened


def stepped(state: MissionState) -> MissionState:
    """Return the state at the beginning of the next step."""
    return replace(state, at=state.at + 1)


def close_round(before: MissionState, after: MissionState) -> MissionState:
    """Return `after` with the round counted as idle if there was no progress since `before`.

    A version by an operative or the person, an acceptance, a criterion newly met, a blocker confirmed or waived and a
    refused sign-off are progress. A changed definition of done is no progress, and neither is a withdrawn collab.
    """
    if _moved(before, after):
        return replace(after, idle=0)
    text = "Nothing moved in this round: no new version, no acceptance, no criterion newly met, no blocker closed"
    return recorded(replace(after, idle=after.idle + 1), MissionStep.INSPECT, "stall", "code", text)


def _moved(before: MissionState, after: MissionState) -> bool:
    accepted = any(before.acceptances.get(id) != pinned for id, pinned in after.acceptances.items())
    if accepted or after.sign_off_asked:
        return True
    if any(item.author != CHAIR for item in islice(after.versions.values(), len(before.versions), None)):
        return True
    if any(item.blocking and after.collabs[id].how in _SETTLED for id, item in before.collabs.items()):
        return True
    for item in islice(after.inspections.values(), len(before.inspections), None):
        old = before.inspection(item.product)
        if old is not None and old.dod != item.dod:
            continue
        had = {result.criterion for result in (old.results if old else ()) if result.passed}
        if any(result.passed and result.criterion not in had for result in item.results):
            return True
    return False


def halted(state: MissionState, kind: str, why: str) -> MissionState:
    """End the mission for the reason `why`, in words; `kind` is a value of `MissionState.halt`."""
    why = f"{why.rstrip(' .')}. The user has not signed it off." if state.sign_off and kind != "done" else why
    return recorded(
        replace(state, halt=kind, why=why), MissionStep.PRESENT, "halt", "code", f"The mission ended: {why}"
    )


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


# -- the person, and deliberations -----------------------------------------------------------------


def user_version(
    state: MissionState, product: str, title: str, content: str, summary: str, outcome: str = ""
) -> MissionState:
    """Add a version by the person. A Decision without an `outcome` keeps its last one, or else takes its title.

    No version is added to an archived product or a container, or if the text equals the last version. Raises
    `ValueError` for an unknown product.
    """
    item = state.products.get(product)
    if item is None:
        raise ValueError(f"{product} is not a product")
    last = state.latest(product)
    decided = outcome.strip() or (last.outcome if last else title)
    outcome = decided if item.kind is Kind.DECISION else ""
    if last and (last.content.strip(), last.outcome) == (content.strip(), outcome):
        return state
    if item.container or item.status is Status.ARCHIVED:
        why = "it is archived" if item.status is Status.ARCHIVED else "it only holds others"
        text = f"What the user wrote for {item.name} was not taken: {why}"
        return recorded(state, _FIRST, "user", USER, text, product)
    if file_paths.is_folder(item.path) and (wrong := folder_problems(item.path, content)):
        text = f"What the user wrote for {item.name} was not taken: {'; '.join(wrong)}"
        return recorded(state, _FIRST, "user", USER, text, product)
    return versioned(state, _FIRST, USER, product, title, content, summary, outcome=outcome)


def user_said(
    state: MissionState, text: str, product: str = "", kind: str = "feedback", importance: int = 7
) -> MissionState:
    """Add the person's comment: a collab if `product` exists and is not archived, else a remark to the whole team.

    A remark about an archived product begins with the product's name, the kind and the importance.
    """
    item = state.products.get(product)
    if item is None or item.status is Status.ARCHIVED:
        if item is not None:
            text = f"About {item.name}, which is archived ({kind}, importance {importance}): {text}"
        remark = Remark(USER, state.agents, "note", text, state.round, state.at)
        state = replace(state, remarks=(*state.remarks, remark))
        return recorded(state, _FIRST, "user", USER, f"The user said: {told(state, text)}")
    summary = told(state, text, _SUMMARY)
    state, collab = raised(state, _FIRST, USER, product, kind, importance, text, summary)
    if collab.blocking:
        state = objected(state, collab, _FIRST, USER, f"the user raised a blocking {kind}")
    return state


def user_withdrew(state: MissionState, id: str, why: str) -> MissionState:
    """Close a collab by the person that no longer holds; if there is none of this id, record that."""
    collab = state.collabs.get(id)
    if collab is None or collab.author != USER or not collab.open:
        text = "The user withdrew a note that is not open, or not by the user: nothing changed"
        return recorded(state, _FIRST, "user", USER, text, collab.product if collab else "")
    return closed(state, _FIRST, id, USER, "withdrawn", why)


def asked(state: MissionState, name: str, question: str, options: Sequence[str]) -> MissionState:
    """Record a question to the person, asked in the call `name`."""
    item = Question(name, question, tuple(options), "", state.round)
    state = replace(state, questions=(*state.questions, item))
    return recorded(state, _asking(state), "question", CHAIR, f"The chair asks: {told(state, question)}", "", name)


def answered(state: MissionState, name: str, answer: str) -> MissionState:
    """Record the person's answer to the question asked in the call `name`; raise `ValueError` if there is none."""
    place = next((at for at in reversed(range(len(state.questions))) if state.questions[at].name == name), None)
    if place is None:
        raise ValueError(f"nothing was asked in {name}")
    given = replace(state.questions[place], answer=answer)
    state = replace(state, questions=(*state.questions[:place], given, *state.questions[place + 1 :]))
    return recorded(state, _asking(state), "answer", USER, f"The user answers: {told(state, answer)}", "", name)


def _asking(state: MissionState) -> MissionStep:
    return MissionStep.PLAN if state.round else MissionStep.BOOTSTRAP


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
