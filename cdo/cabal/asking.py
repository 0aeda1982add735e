"""Asks the agents of one step: makes their calls, follows up on requests for context, applies the replies. Pure.

All the state of a mission's program is in a `MissionContext`, so the program can be run over a record to get the
mission at the end of every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.cabal.context import pack as packs
from cdo.cabal.context import token_budget
from cdo.cabal.context.pack import Pack, StepScope
from cdo.cabal.model.entities import ITERATIONS, MissionStep
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.partial import PARTS, RefusedPart
from cdo.cabal.replies.schemas import ContextRequest, InspectReply, ReflectReply, ReviewReply, WriteReply
from cdo.cabal.reply_format import StepFormat
from cdo.cabal.rules import citations, reducer, rounds
from cdo.core.events import ProductData
from cdo.core.steps import CAPPED, CONTEXT, INPUT, Ask, Batch, Call, Json, Program, Reply
from cdo.planning.mission_crew import Crew
from cdo.planning.plan import Plan

KERNEL = "engine/cabal-kernel"
COMMON = "templates/cabal/common"  # what the prompts of several steps have in common
CLOSING = (
    MissionStep.INSPECT,
    MissionStep.PRESENT,
)  # steps that may use the reserve of the caps, once a cap is reached
UNSHOWN = (MissionStep.REFLECT, MissionStep.PRESENT)  # steps that do not need the material beside the request

Briefs = Sequence[tuple[str, StepScope]]  # (agent, its task): an agent may have several calls in a step


class MissionContext(Struct):
    """The program's whole state: the mission now, and its states at the ends of the rounds (first: the bootstrap).

    `asked` are the calls that it waits for, `question` is the open question to the person. `capped` describes the cap
    that ended the work. `numbers` counts the calls of each name in this round. `said` counts the messages that
    observers were told; `tree` is the tree as they were told last.
    """

    state: MissionState
    rounds: list[MissionState] = field(default_factory=list)
    asked: tuple[Call, ...] = ()
    question: Ask | None = None
    capped: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    said: int = 0
    tree: Sequence[ProductData] = ()

    @classmethod
    def begin(cls, plan: Plan, crew: Crew) -> MissionContext:
        """Return the beginning of a planned mission."""
        begun = rounds.begin(plan.topic, crew.operatives, exec=crew.exec, sign_off=crew.sign_off, rules=crew.rules)
        return cls(begun)


class StepCalls(Struct):
    """The calls of a mission's steps to its agents."""

    plan: Plan
    crew: Crew
    desk: MissionContext

    def ask(self, step: MissionStep, briefs: Briefs) -> Program[dict[int, Any]]:
        """Ask each agent with its brief until it gives its final reply; apply the replies.

        They are returned by the place of their brief.

        An agent may first request more context up to `ITERATIONS` times; then it has to reply. All agents that are
        asked at the same time see the same state.
        """
        base = self.desk.state = rounds.stepped(self.desk.state)
        waiting, said = dict(enumerate(briefs)), dict[int, tuple[Call, Reply]]()
        for iteration in range(ITERATIONS + 1):
            last = iteration == ITERATIONS
            waiting = {
                place: (agent, replace(brief, last=brief.last or last)) for place, (agent, brief) in waiting.items()
            }
            calls = self.calls(base, step, list(waiting.values()))
            lenient = step is not MissionStep.BOOTSTRAP  # without a charter the mission cannot go on
            replies = yield from self._heard(Batch(tuple(calls), quorum=1, lenient=lenient))
            again: dict[int, tuple[str, StepScope]] = {}
            for (place, (agent, brief)), call, reply in zip(waiting.items(), calls, replies, strict=True):
                if reply.missing:
                    self._missed(step, agent, brief, reply)
                elif isinstance(reply.data, ContextRequest):
                    again[place] = agent, replace(brief, asked=(*brief.asked, *reply.data.requests))
                else:
                    said[place] = call, reply
            waiting = again
            if not waiting:
                break
        for place in sorted(said):  # in the order of the briefs, not of the replies
            self._take(step, briefs[place][0], *said[place])
        yield from self._ask_again(step, [(*briefs[place], said[place][1].data) for place in sorted(said)])
        return {place: reply.data for place, (_, reply) in said.items()}

    def _ask_again(self, step: MissionStep, replies: Sequence[tuple[str, StepScope, Any]]) -> Program[None]:
        """Ask once more for the parts of these replies that were not taken: a writer for one version in each call."""
        briefs: list[tuple[str, StepScope]] = []
        for agent, brief, data in replies:
            groups, left = _groups(step, brief, data.refused)
            briefs += ((agent, replace(brief, asked=(), last=True, **group)) for group in groups)
            for parts, again in ((left, False), (tuple(p for group in groups for p in group["refused"]), True)):
                if parts:
                    self.desk.state = reducer.record_refused(self.desk.state, step, agent, parts, again=again)
        if not briefs or self.desk.capped:
            return
        base = self.desk.state = rounds.stepped(self.desk.state)
        calls = self.calls(base, step, briefs)
        answers = yield from self._heard(Batch(tuple(calls), quorum=1, lenient=True))
        for (agent, brief), call, reply in zip(briefs, calls, answers, strict=True):
            if reply.missing:
                self._missed(step, agent, brief, reply)
                parts = brief.refused
            else:
                self._take(step, agent, call, reply)
                parts = reply.data.refused
            if parts:
                self.desk.state = reducer.record_refused(self.desk.state, step, agent, parts, again=False)

    def _heard(self, batch: Batch) -> Program[tuple[Reply, ...]]:
        self.desk.asked = batch.calls
        replies = cast("tuple[Reply, ...]", (yield batch))
        self.desk.asked = ()
        return replies

    def calls(self, state: MissionState, step: MissionStep, briefs: Briefs) -> list[Call]:
        """Return a call for each brief: a view of `state` and the reply's format. Mark shown products as seen."""
        shown = packs.packs(state, step, briefs, self.crew.tokens - self.crew.request_shown)
        for (agent, _), pack in zip(briefs, shown, strict=True):
            self.desk.state = reducer.mark_seen(self.desk.state, agent, pack.shown)
        return [self._call(step, *brief, pack) for brief, pack in zip(briefs, shown, strict=True)]

    def _call(self, step: MissionStep, agent: str, brief: StepScope, pack: Pack) -> Call:
        state, seat = self.desk.state, self.crew.seats[agent]
        about = agent if agent in state.team else brief.products[0] if step is MissionStep.INSPECT else ""
        name = f"r{state.round}-{step}" + (f"-{about}" if about else "")
        if brief.refused:
            name += f"-{brief.products[0]}" if step is MissionStep.WRITE else "-again"
        name = self.numbered(name)
        data: dict[str, Json] = {
            "turn": state.round,
            "role": agent,
            "step": step.value,
            "shared": pack.shared,
            "own": pack.own,
            "include": {"kernel": KERNEL},
            "common": COMMON,
            "limits": self._limits(step),
        }
        closes = step in CLOSING and bool(self.desk.capped)
        # A call that closes spends nothing of the reserve on looking.
        tools = None if closes or step is MissionStep.PRESENT else self.plan.tools
        if step is not MissionStep.PRESENT:
            data["tools"] = {"requests": tools[0], "rounds": tools[1]} if tools else None
        return Call(
            name,
            step.value,
            f"templates/cabal/{step}",
            StepFormat(step, agent, state, brief.products, brief.last, self.crew.presets, brief.ask),
            tuple(dict.fromkeys((seat, *self.plan.models))),
            data,
            (INPUT, CONTEXT) if self.crew.material and step not in UNSHOWN else (INPUT,),
            caps={"rounds": self.crew.rounds},
            tools=tools is not None,
            closes=closes,
        )

    def _limits(self, step: MissionStep) -> dict[str, Json]:
        """Return the most characters of the request that a step shows, by name; Bootstrap shows all of it."""
        crew = self.crew
        if step is MissionStep.BOOTSTRAP or crew.request == crew.request_shown:
            return {}
        return {INPUT: crew.request_shown * token_budget.TOKEN}

    def numbered(self, name: str) -> str:
        """Return `name`, with a number appended from the second call of that name in this round on."""
        number = self.desk.numbers[name] = self.desk.numbers.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"

    def _take(self, step: MissionStep, agent: str, call: Call, reply: Reply) -> None:
        """Apply a reply. Leave out collabs to close that another reply of the same step has closed first.

        If the reply is still invalid, record it as missing. What a reply brings that the person edited says so.
        """
        state, format, data = self.desk.state, cast(StepFormat, call.format), reply.data
        part = bool(data.refused)
        after, problems = format.judged(data, state, part=part)
        if problems and isinstance(data, ReflectReply | WriteReply | ReviewReply | InspectReply):
            gone = {item.id for item in state.collabs.values() if not item.open}
            change: dict[str, Any] = {
                key: tuple(id for id in getattr(data, key) if id not in gone) for key in ("confirms", "withdraws")
            }
            after, problems = format.judged(data.model_copy(update=change), state, part=part)
        if problems:
            self.desk.state = reducer.record_missing_reply(state, step, agent, reducer.OVERTAKEN, format.about)
            return
        after = citations.checked(state, after, step, agent, reply.findings)
        if reply.edited:
            after = reducer.edited_by_hand(state, after, step, agent, call.name)
        known = len(state.events)
        events = tuple(replace(event, call=call.name) for event in after.events[known:])
        self.desk.state = replace(after, events=(*after.events[:known], *events))

    def _missed(self, step: MissionStep, agent: str, brief: StepScope, reply: Reply) -> None:
        """Record a missing reply. If a cap is the reason, only the steps that close the run are asked from now on."""
        self.desk.state = reducer.record_missing_reply(self.desk.state, step, agent, reply.reason, brief.products)
        if reply.reason.kind == CAPPED:
            self.desk.capped = reply.reason.text or CAPPED


def _groups(
    step: MissionStep, brief: StepScope, refused: Sequence[RefusedPart]
) -> tuple[list[dict[str, Any]], tuple[RefusedPart, ...]]:
    """Return what to ask for again, as fields of a scope for each call, and the parts that are not asked for again.

    Collabs and remarks beside the work of a step are left.
    """
    core = PARTS[step] if step in (MissionStep.REVIEW, MissionStep.PLAN) else PARTS.get(step, ("",))[:1]
    mine = [item for item in refused if item.key in core and (item.product in brief.products or not brief.products)]
    left = tuple(item for item in refused if item not in mine)
    if not mine:
        return [], left
    ids = tuple(dict.fromkeys(item.product for item in mine))
    if step is not MissionStep.WRITE:
        products = ids if step is MissionStep.REFLECT else brief.products
        return [{"products": products, "refused": tuple(mine)}], left
    return [{"products": (id,), "refused": tuple(item for item in mine if item.product == id)} for id in ids], left
