"""Runs a mission in rounds of steps until it is done or a cap ends it (program `cabal`). Pure.

    bootstrap → (reflect → plan → write → review → inspect → present)…

It decides which agents are asked; `asking` asks them and `reducer` applies their replies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from msgspec import Struct

from cdo.cabal import human_input, writing_order
from cdo.cabal.asking import Briefs, MissionContext, StepCalls
from cdo.cabal.context.pack import StepScope
from cdo.cabal.files.delivered_files import deliverables, spoken
from cdo.cabal.files.final_report import Delivery
from cdo.cabal.files.layout import files
from cdo.cabal.files.serialization import written_by_cdo
from cdo.cabal.human_input import HumanInput
from cdo.cabal.model.entities import MissionStep
from cdo.cabal.model.names import speaker
from cdo.cabal.model.product_files import files_digest, staged
from cdo.cabal.model.round_summary import bulletin, tree
from cdo.cabal.model.state import MissionState
from cdo.cabal.nested_decisions import decide
from cdo.cabal.replies.schemas import BootstrapReply, PlanReply
from cdo.cabal.rules import acceptance, automatic_acceptance, command_checks, peer_review, person, rounds, sign_off
from cdo.cabal.rules.presentation import STANDING
from cdo.core.events import MessageTold, TreeChanged
from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG
from cdo.core.steps import Ask, Call, CheckRun, Program, Project, Publish, RunCheck
from cdo.planning.mission_crew import Crew
from cdo.planning.plan import Plan

DELIVERABLES = "deliverables"
ENDINGS = ("FINAL.md", "FINAL.yaml", "CERTIFICATE.yaml")  # files that exist only when a mission has ended


def cabal(plan: Plan, crew: Crew, desk: MissionContext) -> Program[Delivery]:
    """Run a mission to its end. If the person leaves input after that, run another round."""
    work = _MissionLoop(crew, desk, StepCalls(plan, crew, desk))
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


class _MissionLoop(Struct):
    """The steps of one mission."""

    crew: Crew
    desk: MissionContext
    calls: StepCalls

    # -- the seven steps ----------------------------------------------------------------------

    def bootstrap(self) -> Program[None]:
        """Run round 0: charter, team and first tree, after at most `crew.questions` questions by the chair."""
        for number in range(1, self.crew.questions + 2):
            last = number > self.crew.questions
            brief = StepScope(questions=self.desk.state.questions, last=last)
            replies = yield from self._step(MissionStep.BOOTSTRAP, [(CHAIR, brief)])
            reply = cast(BootstrapReply, replies[0])
            if reply.halt is None:
                break
            yield from self._answer(MissionStep.BOOTSTRAP, reply.halt.message, reply.halt.options)
        yield from self._publish()

    def round(self, given: HumanInput) -> Program[None]:
        """Run one round as far as the caps allow, beginning with `given` and any input left by the person since."""
        before = self.desk.state
        self.desk.state, self.desk.numbers = rounds.open_round(before), {}
        found = yield from human_input.left(self.desk.state, f"r{self.desk.state.round}")
        self.desk.state = human_input.take_in(self.desk.state, given + found)
        yield from self._reflect()
        if not self.desk.capped:
            yield from self._plan()
        written: tuple[str, ...] = ()
        if not self.desk.capped and not self.desk.state.halt:
            written = yield from self._write(before)
            yield from self._review(written)
        yield from self._run_commands()
        yield from self._inspect()
        yield from self._present()
        self._close(before)
        yield from self._sign_off(before)
        yield from self._publish()

    def _reflect(self) -> Program[None]:
        """Let each operative reflect that owns a product with a version or an open collab."""
        state = self.desk.state
        agents = [
            agent for agent in state.team if any(item.versions or state.about(item.id) for item in state.owned(agent))
        ]
        briefs = [(agent, StepScope(tuple(item.id for item in state.owned(agent)))) for agent in agents]
        yield from self._step(MissionStep.REFLECT, briefs)

    def _plan(self) -> Program[None]:
        """Ask the chair for its plan, after its questions to the person."""
        idle = self.desk.state.idle
        nudge = "" if idle < self.crew.idle else "nudge" if idle == self.crew.idle else "replan"
        for asked in range(self.crew.questions + 1):
            state = self.desk.state
            recent = tuple(item for item in state.questions if item.round >= state.round - 1)
            brief = StepScope(nudge=nudge, questions=recent, ask=asked < self.crew.questions or state.rules < 4)
            replies = yield from self._step(MissionStep.PLAN, [(CHAIR, brief)])
            reply = cast("PlanReply | None", replies.get(0))
            if reply is None or reply.halt is None or reply.halt.type == "done" or asked == self.crew.questions:
                return
            yield from self._answer(MissionStep.PLAN, reply.halt.message, reply.halt.options)
            if reply.assignments:
                return

    def _write(self, before: MissionState) -> Program[tuple[str, ...]]:
        """Get new versions of the assigned products; Decisions with a preset are deliberated first.

        What rests on a Decision that another agent writes in this round is written after it.
        Returns the products (except meta products) with a version that they did not have `before` the round,
        including versions by the person.
        """
        yield from decide(self.desk, self.crew.deliberations)
        waves = writing_order.waves(self.desk.state)
        for briefs in waves:
            if not self.desk.capped:
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
            briefs = [(agent, StepScope(products)) for agent, products in chosen.items()]
            yield from self._step(MissionStep.REVIEW, briefs)

    def _run_commands(self) -> Program[None]:
        """Run the commands of definitions of done on the newest files of all products."""
        files = staged(self.desk.state)
        for command in command_checks.due(self.desk.state):
            name = f"check-{files_digest({**files, '': command})[:16]}"
            found = cast(CheckRun, (yield RunCheck(name, command, files=files)))
            self.desk.state = command_checks.ran(self.desk.state, found)

    def _inspect(self) -> Program[None]:
        """Have the watchdog inspect new and stale products, one in each call, and accept what lacks nothing.

        A container follows when all its parts are accepted.
        """
        asked = set[str]()
        while due := [id for id in acceptance.due(self.desk.state) if id not in asked]:
            asked.update(due)
            yield from self._closing(MissionStep.INSPECT, [(WATCHDOG, StepScope((id,))) for id in due])
            self.desk.state = automatic_acceptance.accepted(self.desk.state, MissionStep.INSPECT)
        self.desk.state = automatic_acceptance.accepted(self.desk.state, MissionStep.INSPECT)

    def _present(self) -> Program[None]:
        """Let the envoy report to the person, if this round has events."""
        state = self.desk.state
        if any(event.round == state.round for event in state.events):
            yield from self._closing(MissionStep.PRESENT, [(ENVOY, StepScope())])

    def _closing(self, step: MissionStep, briefs: Briefs) -> Program[None]:
        """Run a step that ends a round. What a cap keeps from being answered is asked again, with the reserve."""
        open_ = not self.desk.capped
        replies = yield from self._step(step, briefs)
        if open_ and self.desk.capped:
            yield from self._step(step, [brief for place, brief in enumerate(briefs) if place not in replies])

    def _close(self, before: MissionState) -> None:
        """Count the progress of a round, and end the mission if it cannot go on."""
        if self.desk.state.halt:
            return
        self.desk.state = state = rounds.close_round(before, self.desk.state)
        if self.desk.capped:
            self._end("budget", self.desk.capped)
        elif state.idle > self.crew.idle + 1:
            why = (
                f"{state.idle} rounds brought no new version, no acceptance, no criterion newly met and no blocker "
                "closed."
            )
            self._end("stall", why)
        elif state.round >= self.crew.rounds:
            why = f"The cap of {self.crew.rounds} round{'' if self.crew.rounds == 1 else 's'} is reached."
            self._end("rounds", why)

    def _end(self, kind: str, why: str) -> None:
        """End the mission. It is done if everything is accepted, and no change of the charter waits for a round."""
        state = self.desk.state
        if state.live() and not state.pending and not acceptance.unaccepted(state):
            kind, why = "done", f"All products are accepted. {why}"
        self.desk.state = rounds.halted(state, kind, why)

    # -- asking agents ------------------------------------------------------------------------

    def _step(self, step: MissionStep, briefs: Briefs) -> Program[dict[int, Any]]:
        """Ask agents in a step, publish what they changed, and return their replies by the place of the brief."""
        if not briefs:
            return {}
        replies = yield from self.calls.ask(step, briefs)
        yield from self._publish(told=False)
        return replies

    # -- the person ---------------------------------------------------------------------------

    def _answer(self, step: MissionStep, question: str, options: Sequence[str]) -> Program[None]:
        """Ask the person a question, and apply the answer."""
        name = self.calls.numbered(f"r{self.desk.state.round}-{step}-question")
        self.desk.state = person.asked(self.desk.state, name, question, tuple(options))
        answer = yield from self._answered(Ask(name, question, tuple(options)))
        self.desk.state = person.answered(self.desk.state, name, answer)

    def _sign_off(self, before: MissionState) -> Program[None]:
        """Ask the person to sign off the deliverables of a mission that would be done. A refusal opens it again."""
        if not sign_off.due(self.desk.state):
            return
        self.desk.state, item = sign_off.asked(self.desk.state)
        yield Publish(deliverables(self.desk.state), folder=DELIVERABLES)
        answer = yield from self._answered(Ask(item.name, item.question, item.options))
        self.desk.state = sign_off.answered(self.desk.state, item.name, answer)
        if not self.desk.state.signed_off:
            yield Publish({}, folder=DELIVERABLES)
            self._close(before)

    def _answered(self, question: Ask) -> Program[str]:
        """Return the person's answer to a question."""
        self.desk.question = question
        yield from self._publish(told=False)
        answer = cast(str, (yield question))
        self.desk.question = None
        return answer

    def _publish(self, *, told: bool = True) -> Program[None]:
        """Write the mission's files for the person; at the end of a round (`told`), also report its results."""
        state = self.desk.state
        if told:
            self.desk.rounds.append(state)
        ended = bulletin(self.desk.rounds) if told else None
        yield Project(state, files, ended, written_by_cdo, tuple(self._news()))

    def _news(self) -> Iterator[MessageTold | TreeChanged]:
        """Yield what observers have not been told yet: messages to the person, and the tree if it has changed."""
        state, desk = self.desk.state, self.desk
        standing = {event.round: event.text for event in state.events if event.kind == STANDING}
        for message in state.messages[desk.said :]:
            if message.events and (fact := standing.pop(message.round, "")):
                yield MessageTold(name=f"r{message.round}", by="", text=fact)
            by = speaker(state, message.agent)
            yield MessageTold(name=f"r{message.round}", by=by, text=spoken(state, message.content))
        desk.said = len(state.messages)
        if (rows := tree(state)) != desk.tree:
            desk.tree = rows
            yield TreeChanged(products=rows)


def shown(plan: Plan, crew: Crew, state: MissionState, step: MissionStep, agent: str, product: str) -> Call:
    """Return the call that would ask an agent about a product now."""
    return StepCalls(plan, crew, MissionContext(state)).calls(state, step, [(agent, StepScope((product,)))])[0]
