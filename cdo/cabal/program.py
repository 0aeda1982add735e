"""Runs a mission in rounds of steps until it is done or a cap ends it (program `cabal`). Pure.

    bootstrap → (reflect → plan → write → review → inspect → present)…

It decides which agents are asked; `reducer` applies their replies. All its state is in a `MissionContext`, so the
program can be run over a record to get the mission at the end of every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from cdo.cabal import human_input
from cdo.cabal.context import pack as packs
from cdo.cabal.context import token_budget
from cdo.cabal.context.pack import Pack, StepScope
from cdo.cabal.files.final_report import Delivery
from cdo.cabal.files.layout import deliverables, files
from cdo.cabal.files.serialization import untouched
from cdo.cabal.human_input import HumanInput
from cdo.cabal.model.entities import ITERATIONS, Kind, MissionStep
from cdo.cabal.model.round_summary import bulletin
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import (
    BootstrapReply,
    ContextRequest,
    InspectReply,
    PlanReply,
    ReflectReply,
    ReviewReply,
    WriteReply,
)
from cdo.cabal.reply_format import StepFormat
from cdo.cabal.rules import acceptance, peer_review, reducer
from cdo.core.formatting import one_line
from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG
from cdo.core.steps import (
    CAPPED,
    CONTEXT,
    INPUT,
    Ask,
    Batch,
    Call,
    Json,
    Nest,
    Nested,
    Program,
    Project,
    Publish,
    Reply,
)
from cdo.planning.mission_crew import Crew
from cdo.planning.plan import Plan

KERNEL = "engine/cabal-kernel"
COMMON = "templates/cabal/common"  # what the prompts of several steps have in common
DELIVERABLES = "deliverables"
ENDINGS = ("FINAL.md", "FINAL.yaml", "CERTIFICATE.yaml")  # files that exist only when a mission has ended
CLOSING = (
    MissionStep.INSPECT,
    MissionStep.PRESENT,
)  # steps that may use the reserve of the caps, once a cap is reached
SAID = 4000  # most characters of a line in a deliberation's context
PORTION = 24  # most products in one inspection, because its reply is limited too


@dataclass
class MissionContext:
    """The program's whole state: the mission now, and its states at the ends of the rounds (first: the bootstrap).

    `asked` are the calls that it waits for, `question` is the open question to the person. `capped` describes the cap
    that ended the work. `numbers` counts the calls of each name in this round.
    """

    state: MissionState
    rounds: list[MissionState] = field(default_factory=list)
    asked: tuple[Call, ...] = ()
    question: Ask | None = None
    capped: str = ""
    numbers: dict[str, int] = field(default_factory=dict)


def cabal(plan: Plan, crew: Crew, desk: MissionContext) -> Program[Delivery]:
    """Run a mission to its end. If the person leaves input after that, run another round."""
    work = _MissionLoop(plan, crew, desk)
    yield Publish({}, folder=DELIVERABLES, gone=ENDINGS)  # remove files of an earlier end: a cap was raised since
    yield from work.bootstrap()
    given = HumanInput()
    while True:
        yield from work.round(given)
        if not desk.state.halt:
            given = HumanInput()
            continue
        yield Publish(deliverables(desk.state), folder=DELIVERABLES)
        given = yield from human_input.left(desk.state, f"r{desk.state.round}-after", again=True)
        if not given:
            return Delivery.of(desk.state)
        desk.capped = ""
        yield Publish({}, folder=DELIVERABLES, gone=ENDINGS)


@dataclass
class _MissionLoop:
    """The steps of one mission."""

    plan: Plan
    crew: Crew
    desk: MissionContext

    # -- the seven steps ----------------------------------------------------------------------

    def bootstrap(self) -> Program[None]:
        """Run round 0: charter, team and first tree, after at most `crew.questions` questions by the chair."""
        for number in range(1, self.crew.questions + 2):
            last = number > self.crew.questions
            brief = StepScope(questions=self.desk.state.questions, last=last)
            replies = yield from self._step(MissionStep.BOOTSTRAP, {CHAIR: brief})
            reply = cast(BootstrapReply, replies[CHAIR])
            if reply.halt is None:
                break
            yield from self._answer(MissionStep.BOOTSTRAP, reply.halt.message, reply.halt.options)
        yield from self._publish()

    def round(self, given: HumanInput) -> Program[None]:
        """Run one round as far as the caps allow, beginning with `given` and any input left by the person since."""
        before = self.desk.state
        self.desk.state, self.desk.numbers = reducer.open_round(before), {}
        found = yield from human_input.left(self.desk.state, f"r{self.desk.state.round}")
        self.desk.state = human_input.take_in(self.desk.state, given + found)
        yield from self._reflect()
        if not self.desk.capped:
            yield from self._plan()
        written: tuple[str, ...] = ()
        if not self.desk.capped and not self.desk.state.halt:
            written = yield from self._write(before)
            yield from self._review(written)
        yield from self._inspect()
        yield from self._present()
        self._close(before)
        yield from self._publish()

    def _reflect(self) -> Program[None]:
        """Let each operative reflect that owns a product with a version or an open collab."""
        state = self.desk.state
        agents = [
            agent for agent in state.team if any(item.versions or state.about(item.id) for item in state.owned(agent))
        ]
        briefs = {agent: StepScope(tuple(item.id for item in state.owned(agent))) for agent in agents}
        yield from self._step(MissionStep.REFLECT, briefs)

    def _plan(self) -> Program[None]:
        """Ask the chair for its plan, after its questions to the person."""
        idle = self.desk.state.idle
        nudge = "" if idle < self.crew.idle else "nudge" if idle == self.crew.idle else "replan"
        for asked in range(self.crew.questions + 1):
            state = self.desk.state
            recent = tuple(item for item in state.questions if item.round >= state.round - 1)
            brief = StepScope(nudge=nudge, questions=recent)
            replies = yield from self._step(MissionStep.PLAN, {CHAIR: brief})
            reply = cast("PlanReply | None", replies.get(CHAIR))
            if reply is None or reply.halt is None or reply.halt.type == "done" or asked == self.crew.questions:
                return
            yield from self._answer(MissionStep.PLAN, reply.halt.message, reply.halt.options)
            if reply.assignments:
                return

    def _write(self, before: MissionState) -> Program[tuple[str, ...]]:
        """Get new versions of the assigned products; Decisions with a preset are deliberated first.

        Returns the products (except meta products) with a version that they did not have `before` the round,
        including versions by the person.
        """
        yield from self._decide()
        state = self.desk.state
        briefs: dict[str, StepScope] = {}
        for agent in state.team if not self.desk.capped else ():
            mine = tuple(
                item.product
                for item in state.assignments.values()
                if item.writer == agent and not self._decided(item.product)
            )
            if mine:
                briefs[agent] = StepScope(mine)
        yield from self._step(MissionStep.WRITE, briefs)
        state = self.desk.state
        new = [version.product for id, version in state.versions.items() if id not in before.versions]
        return tuple(dict.fromkeys(product for product in new if not state.products[product].meta))

    def _review(self, written: Sequence[str]) -> Program[None]:
        """Ask peers to review the new versions."""
        if not written:
            return
        chosen, alone = peer_review.reviewers(self.desk.state, written)
        self.desk.state = peer_review.unreviewed(self.desk.state, alone)
        if not self.desk.capped:
            yield from self._step(
                MissionStep.REVIEW, {agent: StepScope(products) for agent, products in chosen.items()}
            )

    def _inspect(self) -> Program[None]:
        """Ask the watchdog to inspect new and stale products, in portions that fit into its context."""
        for portion in self._portions(acceptance.due(self.desk.state)):
            yield from self._closing(MissionStep.INSPECT, {WATCHDOG: StepScope(portion)})

    def _present(self) -> Program[None]:
        """Let the envoy report to the person, if this round has events."""
        state = self.desk.state
        if any(event.round == state.round for event in state.events):
            yield from self._closing(MissionStep.PRESENT, {ENVOY: StepScope()})

    def _closing(self, step: MissionStep, briefs: Mapping[str, StepScope]) -> Program[None]:
        """Run a step that ends a round. If a cap is reached in it, repeat it with the reserve kept for the end."""
        open_ = not self.desk.capped
        yield from self._step(step, briefs)
        if open_ and self.desk.capped:
            yield from self._step(step, briefs)

    def _close(self, before: MissionState) -> None:
        """Count the progress of a round, and end the mission if it cannot go on."""
        if self.desk.state.halt:
            return
        self.desk.state = state = reducer.close_round(before, self.desk.state)
        if self.desk.capped:
            self.desk.state = reducer.halted(state, "budget", self.desk.capped)
        elif state.idle > self.crew.idle + 1:
            why = f"{state.idle} rounds brought no new version, no criterion newly met and no blocker closed."
            self.desk.state = reducer.halted(state, "stall", why)
        elif state.round >= self.crew.rounds:
            why = f"The cap of {self.crew.rounds} round{'' if self.crew.rounds == 1 else 's'} is reached."
            self.desk.state = reducer.halted(state, "rounds", why)

    # -- asking agents ------------------------------------------------------------------------

    def _step(self, step: MissionStep, briefs: Mapping[str, StepScope]) -> Program[dict[str, Any]]:
        """Ask each agent with its brief until it gives its final reply; apply and return the replies by agent.

        An agent may first request more context up to `ITERATIONS` times; then it has to reply. All agents that are
        asked at the same time see the same state.
        """
        if not briefs:
            return {}
        base = self.desk.state = reducer.stepped(self.desk.state)
        waiting, said = dict(briefs), dict[str, tuple[Call, Any]]()
        for iteration in range(ITERATIONS + 1):
            last = iteration == ITERATIONS
            waiting = {agent: replace(brief, last=brief.last or last) for agent, brief in waiting.items()}
            calls = self.calls(base, step, waiting)
            lenient = step is not MissionStep.BOOTSTRAP  # without a charter the mission cannot go on
            replies = yield from self._heard(Batch(tuple(calls), quorum=1, lenient=lenient))
            again: dict[str, StepScope] = {}
            for (agent, brief), call, reply in zip(waiting.items(), calls, replies, strict=True):
                if reply.missing:
                    self._missed(step, agent, reply)
                elif isinstance(reply.data, ContextRequest):
                    again[agent] = replace(brief, asked=(*brief.asked, *reply.data.requests))
                else:
                    said[agent] = call, reply.data
            waiting = again
            if not waiting:
                break
        for agent in filter(said.__contains__, briefs):  # in the order of the briefs, not of the replies
            self._take(step, agent, *said[agent])
        yield from self._publish(told=False)
        return {agent: data for agent, (_, data) in said.items()}

    def _heard(self, batch: Batch) -> Program[tuple[Reply, ...]]:
        self.desk.asked = batch.calls
        replies = cast("tuple[Reply, ...]", (yield batch))
        self.desk.asked = ()
        return replies

    def calls(self, state: MissionState, step: MissionStep, briefs: Mapping[str, StepScope]) -> list[Call]:
        """Return a call to each agent: its view of `state` and its reply's format. Mark shown products as seen."""
        shown = packs.packs(state, step, briefs, self.crew.tokens - self.crew.request_shown)
        for agent, pack in shown.items():
            self.desk.state = reducer.mark_seen(self.desk.state, agent, pack.shown)
        return [self._call(step, agent, brief, shown[agent]) for agent, brief in briefs.items()]

    def _call(self, step: MissionStep, agent: str, brief: StepScope, pack: Pack) -> Call:
        state, seat = self.desk.state, self.crew.seats[agent]
        name = self._numbered(f"r{state.round}-{step}" + (f"-{agent}" if agent in state.team else ""))
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
        return Call(
            name,
            step.value,
            f"templates/cabal/{step}",
            StepFormat(step, agent, state, brief.products, brief.last, self.crew.presets),
            tuple(dict.fromkeys((seat, *self.plan.models))),
            data,
            (INPUT, CONTEXT) if self.crew.material else (INPUT,),
            closes=step in CLOSING and bool(self.desk.capped),
        )

    def _limits(self, step: MissionStep) -> dict[str, Json]:
        """Return the most characters of the request that a step shows, by name; Bootstrap shows all of it."""
        crew = self.crew
        if step is MissionStep.BOOTSTRAP or crew.request == crew.request_shown:
            return {}
        return {INPUT: crew.request_shown * token_budget.TOKEN}

    def _numbered(self, name: str) -> str:
        """Return `name`, with a number appended from the second call of that name in this round on."""
        number = self.desk.numbers[name] = self.desk.numbers.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"

    def _take(self, step: MissionStep, agent: str, call: Call, data: Any) -> None:
        """Apply a reply. Leave out collabs to close that another reply of the same step has closed first.

        If the reply is still invalid, record it as missing.
        """
        state, format = self.desk.state, cast(StepFormat, call.format)
        after, problems = format.judged(data, state)
        if problems and isinstance(data, ReflectReply | WriteReply | ReviewReply | InspectReply):
            gone = {item.id for item in state.collabs.values() if not item.open}
            change: dict[str, Any] = {
                key: tuple(id for id in getattr(data, key) if id not in gone) for key in ("confirms", "withdraws")
            }
            after, problems = format.judged(data.model_copy(update=change), state)
        if problems:
            self.desk.state = reducer.record_missing_reply(state, step, agent, reducer.OVERTAKEN)
            return
        known = len(state.events)
        events = tuple(replace(event, call=call.name) for event in after.events[known:])
        self.desk.state = replace(after, events=(*after.events[:known], *events))

    def _missed(self, step: MissionStep, agent: str, reply: Reply) -> None:
        """Record a missing reply. If a cap is the reason, only the steps that close the run are asked from now on."""
        self.desk.state = reducer.record_missing_reply(self.desk.state, step, agent, reply.reason)
        if reply.reason.kind == CAPPED:
            self.desk.capped = reply.reason.text or CAPPED

    def _portions(self, due: Sequence[str]) -> list[tuple[str, ...]]:
        """Split the products to inspect into calls that show every version in full; containers come last."""
        state, room = self.desk.state, self.crew.tokens * token_budget.TOKEN * 2 // 3
        portions: list[tuple[str, ...]] = []
        size, held = 0, list[str]()
        for product in due:
            latest = state.latest(product)
            taken = token_budget.size(latest.content) if latest else 0
            if held and (size + taken > room or len(held) == PORTION):
                portions.append(tuple(held))
                size, held = 0, []
            held.append(product)
            size += taken
        return [*portions, tuple(held)] if held else portions

    # -- decisions ----------------------------------------------------------------------------

    def _decided(self, product: str) -> bool:
        """True if a deliberation gave this Decision a version in this round."""
        state = self.desk.state
        latest = state.latest(product)
        return bool(latest and latest.session and latest.round == state.round)

    def _decide(self) -> Program[None]:
        """Run one deliberation for each assigned Decision with a preset and no version, while the cap allows it."""
        for product in list(self.desk.state.assignments):
            state = self.desk.state
            item = state.products[product]
            held = sum(bool(version.session) for version in state.versions.values())
            if item.kind is not Kind.DECISION or not item.decide_by or item.versions:
                continue
            if held >= self.crew.deliberations:
                continue
            order = state.assignments[product]
            question = "\n\n".join(filter(None, (item.name, order.objective, order.why)))
            context = _context(state, product, order.attach)
            nest = Nest(f"r{state.round}-{product}", question, context, item.decide_by)
            result = cast("Nested | None", (yield nest))
            if result is None:
                self.desk.capped = "A cap ended a deliberation."
                return
            self.desk.state = reducer.deliberated(
                state, product, result.decision, result.text, result.session, status=result.status
            )

    # -- the person ---------------------------------------------------------------------------

    def _answer(self, step: MissionStep, question: str, options: Sequence[str]) -> Program[None]:
        """Ask the person a question, and apply the answer."""
        name = self._numbered(f"r{self.desk.state.round}-{step}-question")
        self.desk.state = reducer.asked(self.desk.state, name, question, tuple(options))
        self.desk.question = Ask(name, question, tuple(options))
        yield from self._publish(told=False)
        answer = cast(str, (yield self.desk.question))
        self.desk.question = None
        self.desk.state = reducer.answered(self.desk.state, name, answer)

    def _publish(self, *, told: bool = True) -> Program[None]:
        """Write the mission's files for the person; at the end of a round (`told`), also report its results."""
        state = self.desk.state
        if not told:
            yield Project(state, files, untouched=untouched)
            return
        self.desk.rounds.append(state)
        yield Project(state, files, bulletin(self.desk.rounds), untouched)


def _context(state: MissionState, product: str, attached: Sequence[str]) -> str:
    """Return the context of a nested deliberation: mission, past decisions, criteria, and the attached products."""
    mission = state.mission
    assert mission is not None  # nothing is assigned before the bootstrap
    told = [
        ("Request of the user", state.request),
        ("Mission", mission.mission),
        *(("Objective", item) for item in mission.objectives),
        *(("Constraint", item) for item in mission.constraints),
        *(("Decided", f"{name}: {outcome}") for name, outcome in packs.facts(state)),
        *(("It has to meet", item.text) for item in state.products[product].dod),
    ]
    parts = [f"- {word}: {one_line(text, SAID)}" for word, text in told]  # one line each: no text can add an entry
    for id in attached:
        if latest := state.latest(id):
            quoted = (f"> {line}" for line in latest.content.splitlines())  # so no line can end the quote
            parts += ["", f"## {one_line(state.products[id].name)}", "", *quoted]
    return "\n".join(parts)


def shown(plan: Plan, crew: Crew, state: MissionState, step: MissionStep, agent: str, product: str) -> Call:
    """Return the call that would ask an agent about a product now."""
    return _MissionLoop(plan, crew, MissionContext(state)).calls(state, step, {agent: StepScope((product,))})[0]
