"""Applies a bootstrap or a plan to the state as one transaction, all or nothing. Pure.

The order within a plan: overrides (from the next round on), tree operations, waivers, the chair's collabs, what code
accepts then, assignments, the chair's own versions, remarks, halt. All problems are reported at once, so that a model
can fix them in one retry. If one mistake causes others, only the first is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from textwrap import shorten
from typing import Any

from msgspec.structs import replace

from cdo.cabal.model import references
from cdo.cabal.model.entities import Assignment, Kind, Mission, MissionStep, Product, Status, slug
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.names import called
from cdo.cabal.model.references import absent, listed
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import (
    AssignmentItem,
    CollabItem,
    DomainItem,
    HaltItem,
    Overrides,
    RemarkItem,
    VersionItem,
    WaiverItem,
)
from cdo.cabal.replies.schemas import BootstrapReply, PlanReply
from cdo.cabal.rules import acceptance, automatic_acceptance, feedback
from cdo.cabal.rules.feedback import Judged
from cdo.cabal.rules.objectives import set_objectives
from cdo.cabal.rules.product_tree import PRESETS, Drafted, drafted, planted, settled
from cdo.cabal.rules.versions import alike, letters, unbound, versioned
from cdo.core.mission_names import CHAIR, ROOT
from cdo.formats.fields import twice

ORDERS = 24  # most products that one operative has to write in a round: they must fit into one reply
_TITLE = 60  # most characters of the root's name
_CLAUSE = re.compile(r"(?<=[.!?])\s|[;:,(]\s|\s[–—(-]")  # where the first clause of a mission ends


# -- round 0 ---------------------------------------------------------------------------------------


def bootstrapped(state: MissionState, reply: BootstrapReply, presets: Collection[str] = PRESETS) -> Judged:
    """Set the charter and the first products; return the state and the problems. With problems, nothing changes.

    A reply that asks a question changes nothing. Personas and domains of agents outside the team are dropped; missing
    ones are not invented. The root holds all products; its name is the charter's title, or else the first clause of
    the mission. Its criteria are the objectives.
    """
    if reply.halt is not None:
        return state, ()
    name = _title(state, reply.title) or _title(state, _CLAUSE.split(reply.mission, maxsplit=1)[0]) or "The mission"
    root = Product(ROOT, name, Kind.ORCHESTRATION, None, CHAIR, (), slug=slug(name), round=state.round)
    begun = recorded(
        replace(state, products={ROOT: root}), MissionStep.BOOTSTRAP, "mission", CHAIR, "The mission was set"
    )
    begun = recorded(begun, MissionStep.BOOTSTRAP, "created", CHAIR, f"{name} was planned", ROOT)
    draft = planted(begun, reply.initial_products, presets)
    problems = list(draft.problems)
    if not draft.doubtful and all(item.id == ROOT for item in draft.state.live()):
        problems.append("initial_products: there must be a product that is not the chair's own.")
    mission = _charter(state, reply, draft)
    problems += _unresolved(mission, draft.state)
    if problems:
        return state, tuple(problems)
    return set_objectives(replace(draft.state, mission=mission), (), MissionStep.BOOTSTRAP, CHAIR), ()


def _title(state: MissionState, text: str) -> str:
    """Return a text as the name of the root: one line, cut at a word."""
    line = told(state, text)
    return (shorten(line, _TITLE, placeholder="") or line[:_TITLE]).rstrip(" .,;:")


def _charter(state: MissionState, reply: BootstrapReply, draft: Drafted) -> Mission:
    def text(value: str) -> str:
        return settled(value, draft.made)

    return Mission(
        text(reply.mission),
        tuple(map(text, reply.objectives)),
        tuple(map(text, reply.constraints)),
        _personas(reply.personas, state.agents, draft.made),
        _domains(reply.operative_domains, state.team, draft.made),
    )


def _personas(items: Mapping[str, str], agents: Sequence[str], made: Mapping[str, str]) -> dict[str, str]:
    """Return the personas of the team's agents."""
    return {agent: settled(items[agent], made) for agent in agents if agent in items}


def _domains(
    items: Mapping[str, DomainItem], team: Sequence[str], made: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the (responsibility, area) of the team's operatives."""
    return {
        agent: (settled(items[agent].responsibility, made), settled(items[agent].area, made))
        for agent in team
        if agent in items
    }


def _unresolved(mission: Mission, state: MissionState) -> list[str]:
    """Return a problem for each reference in a charter that does not resolve."""
    texts = [mission.mission, *mission.objectives, *mission.constraints, *mission.personas.values()]
    texts += [text for pair in mission.domains.values() for text in pair]
    return references.problems(texts, state, "The charter")


# -- a round's plan --------------------------------------------------------------------------------


def planned(state: MissionState, reply: PlanReply, presets: Collection[str] = PRESETS) -> Judged:
    """Apply a plan; return the state and the problems with the plan. With problems, the state is unchanged.

    A halt with a question is left to the caller. `done` sets `halt`; it is refused while a live product is not
    accepted, if the plan has assignments, or if the charter is about to change.
    """
    waived = {item.collab_id for item in reply.waivers if item.collab_id}
    plan = _PlanDraft(drafted(state, reply.tree_operations, presets, waived))
    plan.unbind(state)
    if reply.bootstrap_overrides is not None:
        plan.override(reply.bootstrap_overrides)
    for waiver in reply.waivers:
        plan.waive(waiver)
    plan.object(reply.collabs)
    plan.accept()
    plan.assign(reply.assignments)
    plan.write(reply.chair_versions)
    plan.remark(reply.remarks)
    if reply.halt is not None:
        plan.end(reply.halt, bool(plan.state.assignments))
    return (state, tuple(plan.problems)) if plan.problems else (plan.state, ())


class _PlanDraft:
    """A plan in progress: its methods apply the legal parts and record problems with the others."""

    def __init__(self, draft: Drafted) -> None:
        self.state = draft.state
        self.made = draft.made
        self.doubtful = draft.doubtful  # products with refused operations
        self.waived: dict[str, str] = {}  # reasons to let a product pass without a revision
        self.problems = list(draft.problems)

    def unbind(self, before: MissionState) -> None:
        """Make inspections of products stale that refer to a Decision which was archived or changed its type."""
        for id, old in before.products.items():
            now = self.state.products[id]
            if old.kind is not Kind.DECISION or old.status is Status.ARCHIVED:
                continue
            if now.status is Status.ARCHIVED:
                self.state = unbound(self.state, MissionStep.PLAN, CHAIR, id, f"{now.name} was archived")
            elif now.kind is not Kind.DECISION:
                self.state = unbound(self.state, MissionStep.PLAN, CHAIR, id, f"{now.name} is no Decision any more")

    def override(self, item: Overrides) -> None:
        """Record changes of the charter for the next round. Empty fields and agents outside the team are ignored."""
        mission = self.state.mission
        assert mission is not None  # a plan follows a bootstrap
        now = replace(mission, **self.state.pending)
        new: dict[str, Any] = {
            "mission": self._text(item.mission or "") or now.mission,
            "objectives": tuple(map(self._text, item.objectives or ())) or now.objectives,
            "constraints": tuple(map(self._text, item.constraints or ())) or now.constraints,
            "personas": {**now.personas, **_personas(item.personas or {}, self.state.agents, self.made)},
            "domains": {**now.domains, **_domains(item.operative_domains or {}, self.state.team, self.made)},
        }
        changed = {key: value for key, value in new.items() if value != getattr(now, key)}
        self.problems += _unresolved(replace(now, **changed), self.state)
        if changed:
            self.state = replace(self.state, pending={**self.state.pending, **changed})
            self._tell("override", f"The charter changes from the next round on: {listed(changed)}")

    def waive(self, item: WaiverItem) -> None:
        """Let a product pass, or close a blocking collab that is neither the watchdog's nor the user's."""
        what = f"waivers: {item.collab_id or item.product_id}"
        reason = self._said(what, item.reason)
        if item.product_id is not None:
            if product := self._found("waivers", item.product_id):
                self.waived[product.id] = reason
            return
        collab = self.state.collabs.get(item.collab_id or "")
        if collab is None or not collab.blocking:
            there = [id for id, other in self.state.collabs.items() if other.blocking and other.waivable]
            self.problems.append(f"{what} is not an open blocking collab; those that can be waived: {listed(there)}.")
        elif collab.flag:
            self.problems.append(f"{what} is a flag of the watchdog, which nobody can waive; have it settled.")
        elif not collab.waivable:
            self.problems.append(
                f"{what} was raised by the user, and only the user can withdraw it; have it settled by a new "
                "version, or ask the user."
            )
        else:
            self.state = feedback.closed(self.state, MissionStep.PLAN, collab.id, CHAIR, "waived", reason)

    def object(self, items: Sequence[CollabItem]) -> None:
        """Raise the chair's own collabs; one of blocking importance keeps its product from being accepted."""
        said = []
        for item in items:
            if product := self._found("collabs", item.refersToProduct):
                texts = {key: settled(getattr(item, key), self.made) for key in ("comment", "shortestSummary")}
                said.append(item.model_copy(update={"refersToProduct": product.id, **texts}))
        self.state, problems = feedback.commented(self.state, MissionStep.PLAN, CHAIR, said)
        self.problems += problems

    def accept(self) -> None:
        """Accept what lacks nothing now, also after the waivers of this plan."""
        for id in self.waived:
            if lacking := acceptance.missing_for_acceptance(self.state, id, self.waived[id]):
                what = f"waivers: {id} ({self.state.products[id].name})"
                self.problems.append(f"{what} cannot be accepted with a waiver either: {'; '.join(lacking)}.")
        self.state = automatic_acceptance.accepted(self.state, MissionStep.PLAN, self.waived)

    # -- work ---------------------------------------------------------------------------------

    def assign(self, items: Sequence[AssignmentItem]) -> None:
        """Assign products to operatives, who own them from now on."""
        self.problems += twice([self._real(item.product_id) for item in items], "In `assignments`,")
        for item in items:
            if product := self._found("assignments", item.product_id):
                self._assign(product, item)
        for writer, number in Counter(item.writer for item in self.state.assignments.values()).items():
            if number > ORDERS:
                self.problems.append(
                    f"assignments: {writer} would have {number} products to write in this round, and {ORDERS} is the "
                    "most; give some of them to others, or leave them to the next round."
                )

    def _assign(self, product: Product, item: AssignmentItem) -> None:
        what, order = f"assignments: {product.id}", item.directive
        attached = tuple(dict.fromkeys(map(self._real, item.attach_context)))
        strange = [agent for agent in item.assignee_ids if agent not in self.state.team]
        wrong = [*self._unassignable(product), *self._unaddressed(product, item.address)]
        if strange:
            wrong.append(f"not in the team: {listed(strange)}; the operatives are {listed(self.state.team)}")
        wrong += [absent(self.state, id) for id in attached if id not in self.state.products]
        objective, dod, why, context = (
            self._said(what, text) for text in (order.objective, order.dod, order.why, order.context)
        )
        if wrong:
            self.problems += (f"{what}: {problem}." for problem in wrong)
            return
        writer, *others = dict.fromkeys(item.assignee_ids)
        made = Assignment(
            product.id, writer, tuple(others), order.importance, objective, dod, why, context, self.state.round,
            attached, tuple(dict.fromkeys(item.address)),
        )  # fmt: skip
        status = Status.IN_PROGRESS if product.status is Status.PENDING else product.status
        self._put(replace(product, owner=writer, status=status))
        self.state = replace(self.state, assignments={**self.state.assignments, product.id: made})
        self._tell("assigned", f"{product.name} was assigned to {called(self.state, writer)}", product.id)

    def _unassignable(self, product: Product) -> list[str]:
        """Return why the product cannot be assigned."""
        if product.status is Status.ARCHIVED:
            return [absent(self.state, product.id)]
        if product.meta:
            return ["it is the chair's own; write it in `chair_versions`"]
        return (
            [f"its type is {product.kind}, which has no versions; assign what it holds"] if product.container else []
        )

    def _unaddressed(self, product: Product, ids: Sequence[str]) -> list[str]:
        """Return a problem if any of these collabs is not open on the product."""
        there = [item.id for item in self.state.about(product.id)]
        bad = [id for id in dict.fromkeys(ids) if id not in there]
        return [f"no open collab of it: {listed(bad)}; those are {listed(there)}"] if bad else []

    def write(self, items: Sequence[VersionItem]) -> None:
        """Add versions of the chair's own products."""
        self.problems += twice([self._real(item.product_id) for item in items], "In `chair_versions`,")
        for item in items:
            if product := self._found("chair_versions", item.product_id):
                self._write(product, item)

    def _write(self, product: Product, item: VersionItem) -> None:
        what, latest = f"chair_versions: {product.id}", self.state.latest(product.id)
        if not product.meta or product.status is Status.ARCHIVED:
            own = [other.id for other in self.state.owned(CHAIR) if other.meta]
            self.problems.append(f"{what}: it is not the chair's to write; that is {listed(own)}.")
            return
        wrong = self._unaddressed(product, item.addresses)
        title, content, summary = (self._said(what, text) for text in (item.title, item.content, item.change_summary))
        if latest and alike(latest.content, content) and not _grown(latest.content, content):
            wrong.append(f"it says nearly the same as {latest.id}; leave it out, or write what is new")
        if wrong:
            self.problems += (f"{what}: {problem}." for problem in wrong)
            return
        self.state = versioned(
            self.state, MissionStep.PLAN, CHAIR, product.id, title, content, summary, addresses=item.addresses
        )

    def remark(self, items: Sequence[RemarkItem]) -> None:
        """Add the chair's remarks to others."""
        said = [item.model_copy(update={"content": settled(item.content, self.made)}) for item in items]
        self.state, problems = feedback.remarked(self.state, MissionStep.PLAN, CHAIR, said)
        self.problems += problems

    def end(self, item: HaltItem, assigned: bool) -> None:
        """End the mission if the plan declares it done; record the reasons if it cannot be done yet."""
        message = self._said("halt", item.message)
        if item.type != "done":
            return
        if assigned:
            self.problems.append("halt: a mission that is done has no assignments; leave out the one or the others.")
        if self.state.pending:
            self.problems.append(
                f"halt: the charter changes with the next round ({listed(self.state.pending)}), and everything is "
                "judged by it then; end the mission after that, or leave `bootstrap_overrides` out."
            )
        if left := [product for product in acceptance.unaccepted(self.state) if product.id not in self.doubtful]:
            reasons = [
                f"{product.id} ({product.name}): {acceptance.missing(self.state, product.id)[0]}" for product in left
            ]
            self.problems.append(f"halt: not done while these are not accepted: {listed(reasons)}.")
        self.state = replace(self.state, halt="done", why=told(self.state, message, 600))
        self._tell("halt", "The chair declared the mission done")

    # -- helpers ------------------------------------------------------------------------------

    def _real(self, id: str) -> str:
        return self.made.get(id, id)

    def _text(self, text: str) -> str:
        return settled(text, self.made)

    def _said(self, what: str, text: str) -> str:
        """Return a text with `new-N` replaced by real ids; record references that do not resolve as problems."""
        text = self._text(text)
        self.problems += references.problems([text], self.state, what)
        return text

    def _found(self, what: str, id: str) -> Product | None:
        """Return the product, archived or not. If it does not exist, record the problem once and return None."""
        product = self.state.products.get(self._real(id))
        if product is None:
            self.problems.append(f"{what}: {absent(self.state, id)}.")
        return product if product and product.id not in self.doubtful else None

    def _put(self, product: Product) -> None:
        self.state = replace(self.state, products={**self.state.products, product.id: product})

    def _tell(self, kind: str, text: str, product: str = "", ref: str = "") -> None:
        self.state = recorded(self.state, MissionStep.PLAN, kind, CHAIR, text, product, ref)


def _grown(old: str, new: str) -> bool:
    """True if `new` has every line of `old` and more, as a growing log has, even if it grows by little."""
    return set(map(letters, old.splitlines())) - {""} < set(map(letters, new.splitlines())) - {""}
