"""The composition root: builds sessions, seats and runners from plans, and ends a run with FINAL.md.

The command line parses and prints; this module wires. It is the only one that knows both a program and the runner.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from cdo.app import run_tools
from cdo.app import seats as seating
from cdo.app.run_observers import RunObservers, TraceTarget
from cdo.content.library import Library
from cdo.core.errors import CdoError, Interrupted
from cdo.core.events import Observe, RunEnded, RunStopped
from cdo.core.result import Result
from cdo.core.signals import interruptible
from cdo.core.steps import Nest, Nested
from cdo.core.usage import TotalUsage, totals
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.programs import registry
from cdo.providers.models import ModelSpec
from cdo.runner.attempts import Deadlines
from cdo.runner.budget import Budget, BudgetShare, Limits, held_back
from cdo.runner.endpoint_batches.submissions import open_submissions
from cdo.runner.model_seat import ModelSeat
from cdo.runner.people.human_steps import Human
from cdo.runner.retry import RetryBudget
from cdo.runner.runner import Runner
from cdo.session.given_files import keep_or_restore
from cdo.session.live_reader import LiveSessionReader
from cdo.session.reader import SessionReader
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.history.past_session import History
    from cdo.observers.live_trace import SpanSender
    from cdo.runner.endpoint_batches.depot import BatchDepot
    from cdo.runner.endpoint_batches.lane import BatchLane
    from cdo.tracing.identity import TraceIdentity


def _depot() -> BatchDepot:
    """Return a depot for batches; its modules are imported only for runs that may use one."""
    from cdo.runner.endpoint_batches.depot import BatchDepot

    return BatchDepot()


class SharedByRuns(Struct, frozen=True):
    """What runs have in common that one process makes at the same time.

    The seats with their connections and circuit breakers, the caps of all, their retries, how many requests may
    be in flight, and what sends their spans.
    """

    seats: Mapping[str, ModelSeat]
    budget: Budget
    allowance: RetryBudget
    slots: asyncio.Semaphore
    depot: BatchDepot = msgspec.field(default_factory=_depot)
    sender: SpanSender | None = None


class RunHooks(Struct):
    """What surrounds a run: its models, how events are shown, and how the person is asked.

    `instead` names models that are asked from now on in place of the plan's: the plan itself, and so every question
    on record, stays as it was. `nest` holds a deliberation for a session, where one may be held; `reopened` tells
    that this invocation lifts a cap for good. `seats` are used in place of those that the specs describe. `shared`
    is what this run has in common with others at the same time: then its seats are neither built nor closed here.
    With `wait`, a run whose calls go through a batch endpoint stays until these have ended, and one that waits for
    people until they have answered; `again` is the command that collects otherwise.
    `ended` is given the session when FINAL.md is on disk, and its history without that where it was read. `sender`
    takes the spans of the run while it goes on; `within` is the place of the mission of whose trace they are a part;
    `labels` are further attributes of the span of the run.
    """

    specs: Sequence[ModelSpec]
    observe: Observe
    human: Human = field(default_factory=Human)
    instead: Mapping[str, str] = field(default_factory=dict)
    nest: Callable[[Nest, Limits], Awaitable[tuple[Nested | None, TotalUsage]]] | None = None
    reopened: bool = False
    seats: Mapping[str, ModelSeat] | None = None
    shared: SharedByRuns | None = None
    wait: bool = False
    again: str = ""
    ended: Callable[[SessionReader, History | None], None] | None = None
    sender: SpanSender | None = None
    within: TraceIdentity | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


# Modules that the end of a deliberation needs.
_LATER = ("cdo.programs.deliberation.conclusion", "cdo.repository.citation_marks", "cdo.app.finish")
AT_STOP = 1.5  # seconds that everything has to close when somebody wants the run to end


async def run(session: Session, plan: Plan, settings: Settings, library: Library, shell: RunHooks) -> Result:
    """Drive a session to its end and write FINAL.md; raises `CdoError`. Closes the session in any case."""
    return await _SessionRun(session, plan, settings, library, shell).to_end()


class _SessionRun:
    """One run of a session in this process: its models, its runner, and what runs beside it."""

    def __init__(self, session: Session, plan: Plan, settings: Settings, library: Library, shell: RunHooks) -> None:
        self._session = session
        self._plan = plan
        self._settings = settings
        self._library = library
        self._shell = shell
        self._root = (session.path / plan.root).resolve() if plan.root else None
        self._beside = RunObservers(session, shell.observe)

    async def to_end(self) -> Result:
        """Run the program and write FINAL.md. See `run`."""
        session, beside = self._session, self._beside
        if self._plan.crew:
            session.make_folder("inbox")
        for note in keep_or_restore(session):
            beside.say(note)
        models, waiting = self._models()
        lane = self._lane(models, waiting)
        runner = self._runner(models, lane)
        beside.begin(self._plan, self._settings, self._library, self._root or Path.cwd(), self._trace())
        for note in session.notes:
            beside.say(note)
        until = float("inf")
        try:
            with interruptible(session.name):
                outcome = await runner.drive(registry.program(self._plan, self._library))
                return await self._finish(runner, outcome)
        except (CdoError, asyncio.CancelledError) as error:
            if isinstance(error, (Interrupted, asyncio.CancelledError)):
                until = time.monotonic() + AT_STOP
            if isinstance(error, CdoError):
                beside.tell(RunStopped(status=type(error).__name__, why=error.message))
            raise
        finally:
            await beside.close(self._library, until)
            if not self._shell.shared:
                if lane:
                    lane.depot.close()
                await close_all({**models, **waiting}, until)
            await session.ended()

    async def _finish(self, runner: Runner, outcome: Any) -> Result:
        """Write FINAL.md and what else a run leaves."""
        # Only here, so that the first request need not wait for it.
        from cdo.app.finish import finish
        from cdo.programs.deliberation.conclusion import Outcome

        session, plan, beside = self._session, self._plan, self._beside
        if plan.crew and plan.crew.deliver and not isinstance(outcome, Outcome):
            from cdo.app.handover import hand_over

            beside.say(hand_over(session, plan.crew, outcome, self._library))
        await session.flushed()
        archive = LiveSessionReader(session)
        finished = finish(session, plan, outcome, runner, archive)
        if isinstance(outcome, Outcome) and outcome.documents:
            from cdo.app.filing import file_documents

            await file_documents(session, plan, outcome, self._settings, beside.tracker, beside.say)
        beside.tell(RunEnded(result=finished.result))
        await session.flushed()
        if self._shell.ended:
            self._shell.ended(archive, finished.past)
        return finished.result

    def _models(self) -> tuple[Mapping[str, ModelSeat], Mapping[str, ModelSeat]]:
        """Return the seats of the run's models, and of those at whose batch endpoints calls of the session wait.

        Raises `ConfigError`.
        """
        shell, settings, library, say = self._shell, self._settings, self._library, self._beside.say
        if shell.shared:
            found = shell.shared.seats
        else:
            found = shell.seats or seating.seats(shell.specs, settings, library, say)
        calls = [call for submission in open_submissions(self._session.records) for call in submission.calls]
        names = dict.fromkeys(str(call.asked["model"]) for call in calls)
        missing = [name for name in names if name not in found]
        more: Mapping[str, ModelSeat] = {}
        if missing:
            plain = replace(settings, batch_api=False, flex=False)
            more = seating.seats(seating.specs(missing, library, plain, os.environ), plain, library, say)
        return found, {name: found.get(name) or more[name] for name in names}

    def _lane(self, models: Mapping[str, ModelSeat], waiting: Mapping[str, ModelSeat]) -> BatchLane | None:
        """Return what lets calls wait at batch endpoints; None for a run that has none there."""
        if not waiting and not self._settings.batch_api:
            return None
        from cdo.runner.endpoint_batches.lane import BatchLane

        session, shell = self._session, self._shell
        if self._root and self._plan.tools and any(models[name].spec.batch for name in self._asked.values()):
            self._beside.say(
                "a batch has no second round: voices that are asked through it cannot look into the repository"
            )
        depot = shell.shared.depot if shell.shared else _depot()
        again = shell.again or f"cdo resume {session.name}"
        return BatchLane(session, self._budget, self._beside.tell, depot, {**models, **waiting}, again, shell.wait)

    @property
    def _asked(self) -> Mapping[str, str]:
        """The plan's models, each with the name of the model that is asked in its place."""
        return {name: self._shell.instead.get(name, name) for name in self._plan.named}

    @cached_property
    def _budget(self) -> Budget:
        """The budget of the run, which begins with what its session has used so far."""
        used = totals(self._session.records)
        if self._shell.shared:
            return BudgetShare(self._shell.shared.budget, used)
        limits = limits_of(self._settings)
        return Budget(limits, used, held_back(limits) if self._plan.crew else Limits())

    def _runner(self, models: Mapping[str, ModelSeat], lane: BatchLane | None) -> Runner:
        session, plan, settings, library, shell = (
            self._session, self._plan, self._settings, self._library, self._shell,
        )  # fmt: skip
        shared, root = shell.shared, self._root
        # The embedded model answers one at a time: more in flight would only let deadlines run.
        one_at_a_time = any(seat.spec.route == "local" for seat in models.values())
        return Runner(
            session=session,
            library=library,
            seats={name: models[asked] for name, asked in self._asked.items()},
            budget=self._budget,
            observe=self._beside.tell,
            human=shell.human,
            deadlines=Deadlines(settings.first_byte_timeout, settings.idle_timeout, settings.call_timeout),
            concurrency=1 if one_at_a_time else settings.concurrency,
            allowance=shared.allowance if shared else RetryBudget(),
            slots=shared.slots if shared else None,
            lane=lane,
            reply_tokens=settings.reply_tokens,
            effort=settings.effort or plan.effort,
            toolbox=run_tools.toolbox(root, plan, library),
            check=run_tools.citation_checker(session, root),
            search=run_tools.repository_search(root) if root and not plan.crew else None,
            skill=run_tools.skill_bodies(plan, library),
            nest=shell.nest,
            run_check=run_tools.check_runner(session, plan, settings, self._beside.say),
            survey=run_tools.surveyor(session, root) if root and plan.focus_tokens else None,
            reopened=shell.reopened,
            seat_wait=settings.seat_wait,
            stay=shell.wait,
            ahead=() if plan.crew else _LATER,
        )

    def _trace(self) -> TraceTarget | None:
        """Return where the spans of the run go while it runs; None for nowhere."""
        shell = self._shell
        sender = shell.shared.sender if shell.shared else shell.sender
        if sender is None:
            return None
        from cdo.app.batch.folder import trace_labels

        labels = shell.labels or trace_labels(self._session.path)
        return TraceTarget(sender, shell.within, labels, shared=shell.shared is not None)


def limits_of(settings: Settings) -> Limits:
    """Return the caps that are set."""
    return Limits(settings.max_calls, settings.max_tokens, settings.budget, settings.timeout)


async def close_all(seats: Mapping[str, ModelSeat], until: float) -> None:
    """Close the backends of all seats side by side, each once.

    It takes a second at most, and not much longer than `until` (monotonic).
    """
    patience = min(1.0, max(0.2, until - time.monotonic()))
    backends = {id(seat.backend): seat.backend for seat in seats.values()}
    closing = (asyncio.wait_for(backend.close(), patience) for backend in backends.values())
    await asyncio.gather(*closing, return_exceptions=True)
