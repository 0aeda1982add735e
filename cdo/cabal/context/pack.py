"""Builds each agent's context in each step: products in full, as one line, or not at all, and recent changes. Pure.

Products that an agent owns, writes, reviews or inspects are shown in full; all others are a line of the tree. Only
open collabs are shown, and histories are bounded, so that a pack grows with recent changes, not with a mission's age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from cdo.cabal.context.token_budget import TOKEN, Item, fit_own, fit_shared, id_ranges, size
from cdo.cabal.context.visibility import BLIND, NEWS, Visibility
from cdo.cabal.model.entities import Collab, Kind, MissionStep, Need, Product, Question, Remark, Status, Version
from cdo.cabal.model.product_files import commands
from cdo.cabal.model.references import cited
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import StepQuestion
from cdo.cabal.replies.partial import RefusedPart
from cdo.cabal.rules import acceptance, reducer
from cdo.core.formatting import one_line
from cdo.core.mission_names import CHAIR, ENVOY, ROOT

HIGH = 7  # least importance of an open collab that the chair is shown in full
CLOSING = 400  # bytes reserved for the text at the end of every prompt
PEERS = 4  # most products shown for a request of peer_content
PRINTED = 2000  # most characters of a command's output
RAISED = 8  # most of an agent's own blocking collabs that it is reminded of

_MANY = (
    MissionStep.REFLECT,
    MissionStep.WRITE,
    MissionStep.REVIEW,
    MissionStep.INSPECT,
)  # steps of which several calls are made at the same time
_GRAVE = {
    **dict.fromkeys(("mission", "halt", "accepted", "question", "answer", "user", "stall"), 3),
    **dict.fromkeys(("version", "inspection", "waived", "reopened", "decided", "override", "missed", "redefined"), 2),
    "command": 2,
    **dict.fromkeys(("created", "archived", "closed", "stale", "unreviewed", "unfounded"), 1),
}  # weight by kind of event: the envoy must not miss heavy ones


class StepScope(Struct, frozen=True):
    """An agent's task: the `products` it writes, reviews or inspects; if empty, the default products of its step.

    `nudge` is "nudge" or "replan" after rounds without progress. `asked` are the agent's context requests in this
    step; `last` means that it cannot request more. `ask`: the chair may ask the person. `questions` are questions to
    the person that the state does not have. `refused` are the parts of its last reply that it is asked for again.
    `decisions` are Decisions of this round that the products to write rest on: they are shown in full.
    """

    products: tuple[str, ...] = ()
    nudge: str = ""
    asked: tuple[StepQuestion, ...] = ()
    last: bool = False
    ask: bool = True
    questions: tuple[Question, ...] = ()
    refused: tuple[RefusedPart, ...] = ()
    decisions: tuple[str, ...] = ()


class Pack(Struct, frozen=True):
    """An agent's context, as variables of its step's template (JSON only).

    `shared` is the same for all agents that take the step at the same time; `own` is the rest. `shown` are the
    products whose newest state the agent now knows; `left_out` describes what did not fit the budget.
    """

    shared: dict[str, Any]
    own: dict[str, Any]
    shown: tuple[str, ...]
    left_out: tuple[str, ...]


def packs(state: MissionState, step: MissionStep, briefs: Sequence[tuple[str, StepScope]], budget: int) -> list[Pack]:
    """Return the pack of each (agent, task) in `step` within `budget` estimated tokens, the step's rules not counted.

    Content that binds an agent (decisions, orders, collabs to answer) is shown even if it exceeds the budget.
    """
    room = max(0, budget * TOKEN - CLOSING)
    # In a step of several agents, the shared part must not depend on an agent's own part; else it takes what is free.
    part = room // (6 if step is MissionStep.INSPECT else 3)
    every = StepScope(tuple(dict.fromkeys(id for _, brief in briefs for id in brief.products)))
    common = _Share.of(_PackBuilder(state, step, "", every), part) if step in _MANY else None
    found: list[Pack] = []
    for agent, brief in briefs:
        view = _PackBuilder(state, step, agent, brief)
        own = view.own()
        taken = size(own)
        share = common or _Share.of(view, max(part, room - taken))
        told = (*view.capped, *share.left_out)
        more, silent = fit_own(own, room - share.size - size([*told]), taken)
        left_out = (*told, *more)
        own["left_out"] = list(left_out)
        known = {item["id"] for key in ("products", "attached", "requested") for item in own[key]}
        known |= share.listed - set(silent)
        found.append(Pack(share.shared, own, tuple(id for id in state.products if id in known), left_out))
    return found


class _Share(Struct, frozen=True):
    """The part that is the same for all agents of a step; `listed` are the products with a complete line in it."""

    shared: Item
    size: int
    left_out: tuple[str, ...]
    listed: frozenset[str]

    @classmethod
    def of(cls, view: _PackBuilder, limit: int) -> _Share:
        """Return the shared part of a view, shortened to `limit` bytes."""
        shared = view.shared()
        left, hidden = fit_shared(shared, limit)
        return cls(shared, size(shared), tuple(left), frozenset(row["id"] for row in shared["tree"]) - set(hidden))


def facts(state: MissionState) -> tuple[tuple[str, str], ...]:
    """Return (name, outcome) of every accepted Decision: they bind all agents."""
    return tuple((product.name, outcome) for product, outcome in _binding(state))


def _binding(state: MissionState) -> Iterator[tuple[Product, str]]:
    for id, accepted in state.acceptances.items():
        product = state.products[id]
        if product.kind is Kind.DECISION and product.status is Status.ACCEPTED and accepted.version:
            yield product, state.versions[accepted.version].outcome


class _PackBuilder(Struct, frozen=True, dict=True):
    """Builds one agent's context in one step. Lookups that every product needs are cached."""

    state: MissionState
    step: MissionStep
    agent: str
    brief: StepScope

    @cached_property
    def sight(self) -> Visibility:
        """The parts of the mission that the agent sees."""
        return Visibility(self.state, self.step, self.agent, self.brief.products)

    @cached_property
    def capped(self) -> tuple[str, ...]:
        """Descriptions of what is left out regardless of the budget."""
        if self.step in (MissionStep.BOOTSTRAP, MissionStep.PRESENT):
            return ()
        told = []
        if many := [id for id in self.sight.focus if len(self.sight.talk(id)) < len(self.sight.open.get(id, ()))]:
            told.append(f"collabs of less importance on {id_ranges(many)} (need all_feedback)")
        if long := [id for id in self.sight.focus if self.sight.log(id) != self.sight.content(id)]:
            told.append(f"the middle of {id_ranges(long)} (need full_content)")
        return tuple(told)

    # -- shared by all agents -----------------------------------------------------------------

    def shared(self) -> Item:
        """Return the variables that are the same for all agents of the step."""
        state, mission = self.state, self.state.mission
        bootstrap, present = self.step is MissionStep.BOOTSTRAP, self.step is MissionStep.PRESENT
        domains = mission.domains if mission and self.step is not MissionStep.INSPECT else {}
        team = [(agent, *domains.get(agent, ("", ""))) for agent in state.team]
        return {
            "round": state.round,
            "mission": mission.mission if mission else "",
            "objectives": [{"text": text} for text in mission.objectives] if mission and not present else [],
            "constraints": [{"text": text} for text in mission.constraints] if mission and not present else [],
            "team": [{"agent": agent, "responsibility": duty, "area": area} for agent, duty, area in team],
            "voices": self._voices() if present else [],
            "answers": [_answer(item) for item in state.questions if _recent(state, item)],
            "facts": [{"id": item.id, "name": item.name, "outcome": outcome} for item, outcome in _binding(state)],
            "tree": [] if bootstrap else self._tree(),
            "events": self._events() if present else [],
            "accepted": sum(item.status is Status.ACCEPTED for item in state.live()),
            "live": len(state.live()),
            "exec": state.exec,
        }

    def _tree(self) -> list[Item]:
        """Return a line for each unarchived product, as a tree; for the envoy only products changed in this round."""
        rows: list[Item] = []
        waiting = [(item, 0) for item in reversed(self.sight.below.get(None, ()))]
        while waiting:
            item, depth = waiting.pop()
            rows.append(self.sight.line(item, depth))
            waiting += [(child, depth + 1) for child in reversed(self.sight.below.get(item.id, ()))]
        if self.step is not MissionStep.PRESENT:
            return rows
        touched = {event.product for event in self.state.events if event.round == self.state.round}
        return [row for row in rows if row["id"] in touched]

    def _voices(self) -> list[Item]:
        """Return the agents in whose voice the envoy may write."""
        personas = self.state.mission.personas if self.state.mission else {}
        return [{"agent": id, "persona": one_line(personas.get(id, ""), 160)} for id in (CHAIR, *self.state.team)]

    def _events(self) -> list[Item]:
        """Return the events of this round, with their ids for citation; no order that led to a version."""
        written = {
            item.product for item in self.state.events if item.round == self.state.round and item.kind == "version"
        }
        return [
            {"id": item.id, "number": item.number, "weight": _GRAVE.get(item.kind, 0), "text": item.text}
            for item in self.state.events
            if item.round == self.state.round
            and item.kind != "message"
            and not (item.kind == "assigned" and item.product in written)
        ]

    # -- shown to one agent -------------------------------------------------------------------

    def own(self) -> Item:
        """Return the variables that only this agent gets."""
        plan, focused = self.step is MissionStep.PLAN, self.step not in (MissionStep.BOOTSTRAP, MissionStep.PRESENT)
        known = {item.name for item in self.state.questions if _recent(self.state, item)}
        return {
            "nudge": self.brief.nudge,
            "idle": self.state.idle,
            "answers": [_answer(item) for item in self.brief.questions if item.answer and item.name not in known],
            "products": [self.sight.whole(self.state.products[id]) for id in self.sight.focus] if focused else [],
            "attached": self._attached() if focused else [],
            "reflections": self._reflections() if plan else [],
            "collabs": self._high() if plan else [],
            "pending": sorted(self.state.pending) if plan else [],
            **(self._standing() if plan else {"lacking": [], "unwritten": ""}),
            "raised": self._raised(),
            "runs": self._runs() if focused else [],
            "remarks": [{"author": item.author, "kind": item.kind, "text": item.content} for item in self._remarks()],
            "news": self._news() if focused and self.step not in BLIND else [],
            "requested": [self._requested(id, needs) for id, needs in self._asked().items()],
            "refused": [
                {
                    "what": item.product or item.key,
                    "problems": [{"text": text} for text in item.problems],
                    "said": item.said,
                }
                for item in self.brief.refused
            ],
            "last": self.brief.last,
            "left_out": [],
            "identity": self._identity(),
        }

    def _identity(self) -> Item:
        mission = self.state.mission
        duty, area = mission.domains.get(self.agent, ("", "")) if mission else ("", "")
        return {
            "agent": self.agent,
            "role": self.agent.rpartition("-")[0],
            "persona": mission.personas.get(self.agent, "") if mission else "",
            "responsibility": duty,
            "area": area,
        }

    def _remarks(self) -> list[Remark]:
        """Return the remarks to the agent; for the envoy also this round's remarks to the user."""
        heard = list(reducer.heard(self.state, self.agent))
        if self.agent == ENVOY:
            to_user = [item for item in self.state.remarks if any(name.startswith("u:") for name in item.recipients)]
            heard += [item for item in to_user if item.round == self.state.round and item not in heard]
        return heard

    # -- changes, collabs and attachments -------------------------------------------------------

    def _news(self) -> list[Item]:
        """Return recent events of products that are not shown in full, the latest first."""
        found = []
        for id, items in self.sight.news.items():
            product = self.state.products[id]
            if id not in self.sight.focus and product.status is not Status.ARCHIVED:
                words = [self.sight.word(item) for item in items[:NEWS]]
                more = len(items) - len(words)
                found.append(
                    {"id": id, "name": product.name, "newest": items[0].number, "words": words, "more": more}
                )
        return found

    def _runs(self) -> list[Item]:
        """Return the newest runs of commands, with the ends of their outputs; the chair sees only the outcomes."""
        plan = self.step is MissionStep.PLAN
        return [
            {"command": item.command, "outcome": item.outcome, "output": "" if plan else item.output[-PRINTED:]}
            for item in self.state.runs.values()
            if item.command in commands(self.state)
        ]

    def _raised(self) -> list[Item]:
        """Return the agent's own blocking collabs on products that are not shown in full and have a newer version."""
        own = [
            item
            for items in self.sight.open.values()
            for item in items
            if item.author == self.agent and item.blocking
        ]
        return [
            {"id": item.id, "product": item.product, "importance": item.importance, "summary": item.summary}
            for item in own
            if item.product not in self.sight.focus and self.sight.collab(item)["confirm"]
        ][:RAISED]

    def _attached(self) -> list[Item]:
        """Return other products in full: attached by the chair, held by a container under inspection, or decided.

        A reviewer is shown the accepted Decisions that a version cites.
        """
        ids = [*self.brief.decisions]
        for id in self.sight.focus:
            order = self.state.assignments.get(id)
            if self.step is MissionStep.WRITE and order:
                ids += order.attach
            if self.step is MissionStep.REVIEW:
                decided = {product.id for product, _ in _binding(self.state)}
                ids += [other for _, other in cited(self.sight.content(id)) if other in decided]
            if self.step is MissionStep.INSPECT and self.state.products[id].container:
                ids += [item.id for item in self.sight.below.get(id, ())]
        return [
            self.sight.text(id) for id in dict.fromkeys(ids) if id not in self.sight.focus and self.sight.content(id)
        ]

    # -- shown to the chair ---------------------------------------------------------------------

    def _reflections(self) -> list[Item]:
        return [
            {
                "agent": item.agent,
                "product": item.product,
                "dod": item.dod_status,
                "gaps": list(item.gaps),
                "responses": [
                    {"collab": answer.collab, "action": answer.action, "text": answer.text}
                    for answer in item.responses
                ],
                "lessons": item.lessons,
                "delta": item.delta,
                "blockers": list(item.blockers),
            }
            for item in self.state.reflections
        ]

    def _high(self) -> list[Item]:
        """Return open collabs of high importance, the most important first."""
        found = [item for items in self.sight.open.values() for item in items if item.importance >= HIGH]
        live = [item for item in found if self.state.products[item.product].live]
        return [self.sight.collab(item) for item in sorted(live, key=lambda item: -item.importance)]

    def _standing(self) -> Item:
        """Return the products with what they lack for acceptance, and those without a version."""
        lacking: list[Item] = []
        unwritten: list[str] = []
        for id, why in acceptance.acceptance_status(self.state).items():
            product, latest = self.state.products[id], self.state.latest(id)
            if not latest and not product.container:
                unwritten.append(id)
            elif why:
                lacking.append({"id": id, "name": product.name, "why": [{"text": text} for text in why]})
        return {"lacking": lacking, "unwritten": id_ranges(unwritten)}

    # -- requested context ----------------------------------------------------------------------

    def _asked(self) -> dict[str, list[Need]]:
        found: dict[str, list[Need]] = {}
        for item in self.brief.asked:
            if item.product_id in self.state.products and item.need not in found.setdefault(item.product_id, []):
                found[item.product_id].append(item.need)
        return found

    def _requested(self, id: str, needs: list[Need]) -> Item:
        """Return the requested context of one product: texts, and lines on its versions and collabs."""
        texts: list[Item] = []
        lines: list[Item] = []
        for need in needs:
            if need is Need.FULL_CONTENT:
                texts.append(self.sight.text(id))
            elif need is Need.PEER_CONTENT:
                texts += [self.sight.text(peer) for peer in self._peers(id)]
            elif need is Need.VERSION_HISTORY:
                lines += [self._history_line(item) for item in self.state.history(id)]
            else:
                lines += [_feedback_line(item) for item in self.state.about(id, closed=True)]
        texts = [item for item in texts if item["content"]]
        return {"id": id, "name": self.state.products[id].name, "texts": texts, "lines": lines}

    def _history_line(self, item: Version) -> Item:
        told = "" if self.sight.hidden(item) else f": {item.summary}"
        return {"text": f"version {item.number} ({item.id}) by {item.author} in round {item.round}{told}"}

    def _peers(self, id: str) -> list[str]:
        """Return products related to this one: those it refers to, then those that refer to it, then siblings."""
        texts = {item.id: self.sight.content(item.id) for item in self.state.live()}
        named = [other for kind, other in cited(self.sight.content(id)) if kind == "p"]
        naming = [other for other, text in texts.items() if f"[[p:{id}]]" in text]
        beside = [item.id for item in self.sight.below.get(self.state.products[id].parent, ())]
        found = [other for other in dict.fromkeys((*named, *naming, *beside)) if other not in (id, ROOT)]
        return [other for other in found if texts.get(other)][:PEERS]


# -- words -----------------------------------------------------------------------------------------


def _recent(state: MissionState, item: Question) -> bool:
    return bool(item.answer) and item.round >= state.round - 1


def _answer(item: Question) -> Item:
    return {"question": item.question, "answer": item.answer}


def _feedback_line(item: Collab) -> Item:
    fate = "open" if item.open else f"{item.how} by {item.closed_by}"
    about = f"{item.id} {item.kind} of importance {item.importance} by {item.author} in round {item.round}"
    return {"text": f"{about}, {fate}: {item.comment}"}
