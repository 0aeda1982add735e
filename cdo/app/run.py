"""The composition root: builds sessions, seats and runners from plans, and ends a run with FINAL.md.

The command line parses and prints; this module wires. It is the only one that knows both a program and the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cdo.app import seats as seating
from cdo.content import skill_files
from cdo.content.library import Library
from cdo.content.skill_ranking import SkillInjection, resolve
from cdo.core.errors import CdoError, Interrupted, SessionError
from cdo.core.events import ContentOpened, Event, NoteTold, Observe, RunEnded, RunStopped, TextReceived, TreeChanged
from cdo.core.result import Result
from cdo.core.signals import interruptible
from cdo.core.steps import CheckRun, CitationCheck, Nest, Nested, RunCheck, Survey
from cdo.core.usage import TotalUsage, totals
from cdo.files.atomic_files import file_new, names_in
from cdo.observers.git_commits import GitCommitObserver
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.programs import registry
from cdo.providers.models import ModelSpec
from cdo.repository import git
from cdo.repository.shown_files import shown_files
from cdo.runner.attempts import Deadlines
from cdo.runner.budget import Budget, BudgetShare, Limits, held_back
from cdo.runner.endpoint_batches.submissions import open_submissions
from cdo.runner.model_seat import ModelSeat
from cdo.runner.people.human_steps import Human
from cdo.runner.prompts import fit
from cdo.runner.requests import Toolbox
from cdo.runner.retry import RetryBudget
from cdo.runner.runner import Runner
from cdo.security.secrets import redactor
from cdo.session.given_files import keep_or_restore
from cdo.session.live_reader import LiveSessionReader
from cdo.session.reader import SessionReader
from cdo.session.store import Session

if TYPE_CHECKING:
    from cdo.observers.beads_tracker import Beads
    from cdo.observers.live_trace import LiveTrace, SpanSender
    from cdo.programs.deliberation.conclusion import Outcome
    from cdo.runner.endpoint_batches.depot import BatchDepot
    from cdo.runner.endpoint_batches.lane import BatchLane
    from cdo.tracing.identity import TraceIdentity


def _depot() -> BatchDepot:
    """Return a depot for batches; its modules are imported only for runs that may use one."""
    from cdo.runner.endpoint_batches.depot import BatchDepot

    return BatchDepot()


@dataclass(frozen=True)
class SharedByRuns:
    """What runs have in common that one process makes at the same time.

    The seats with their connections and circuit breakers, the caps of all, their retries, how many requests may
    be in flight, and what sends their spans.
    """

    seats: Mapping[str, ModelSeat]
    budget: Budget
    allowance: RetryBudget
    slots: asyncio.Semaphore
    depot: BatchDepot = field(default_factory=_depot)
    sender: SpanSender | None = None


@dataclass
class RunHooks:
    """What surrounds a run: its models, how events are shown, and how the person is asked.

    `instead` names models that are asked from now on in place of the plan's: the plan itself, and so every question
    on record, stays as it was. `nest` holds a deliberation for a session, where one may be held; `reopened` tells
    that this invocation lifts a cap for good. `seats` are used in place of those that the specs describe. `shared`
    is what this run has in common with others at the same time: then its seats are neither built nor closed here.
    With `wait`, a run whose calls go through a batch endpoint stays until these have ended, and one that waits for
    people until they have answered; `again` is the command that collects otherwise.
    `ended` is given the session when FINAL.md is on disk. `sender` takes the spans of the run while it goes on;
    `within` is the place of the mission of whose trace they are a part; `labels` are further attributes of the span
    of the run.
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
    ended: Callable[[SessionReader], None] | None = None
    sender: SpanSender | None = None
    within: TraceIdentity | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


# -- running ---------------------------------------------------------------------------------------


async def run(session: Session, plan: Plan, settings: Settings, library: Library, shell: RunHooks) -> Result:
    """Drive a session to its end and write FINAL.md; raises `CdoError`. Closes the session in any case."""
    observers = [shell.observe]
    observe = _journaled(session, observers)

    def say(text: str) -> None:
        observe(NoteTold(text=text))

    if plan.crew:
        session.make_folder("inbox")
    for note in keep_or_restore(session):
        say(note)
    shared = shell.shared
    found = shared.seats if shared else shell.seats or seating.seats(shell.specs, settings, library, say)
    waiting = _waiting(session, found, settings, library, say)
    # The embedded model answers one at a time: more in flight would only let deadlines run.
    concurrency = 1 if any(seat.spec.route == "local" for seat in found.values()) else settings.concurrency
    root = (session.path / plan.root).resolve() if plan.root else None
    seats = {name: found[shell.instead.get(name, name)] for name in plan.named}
    budget = _budget(session, plan, settings, shared)
    lane = None
    if waiting or settings.batch_api:
        if root and plan.tools and any(seat.spec.batch for seat in seats.values()):
            say("a batch has no second round: voices that are asked through it cannot look into the repository")
        lane = _lane(session, budget, observe, shell, {**found, **waiting})
    runner = Runner(
        session=session,
        library=library,
        seats=seats,
        budget=budget,
        observe=observe,
        human=shell.human,
        deadlines=Deadlines(settings.first_byte_timeout, settings.idle_timeout, settings.call_timeout),
        concurrency=concurrency,
        allowance=shared.allowance if shared else RetryBudget(),
        slots=shared.slots if shared else None,
        lane=lane,
        reply_tokens=settings.reply_tokens,
        effort=settings.effort or plan.effort,
        toolbox=_toolbox(root, plan, library),
        check=_checker(session, root),
        search=_search(root) if root and not plan.crew else None,
        skill=_bodies(plan, library),
        nest=shell.nest,
        run_check=_check_runner(session, plan, settings, say),
        survey=_survey(session, root) if root and plan.focus_tokens else None,
        reopened=shell.reopened,
        seat_wait=settings.seat_wait,
        stay=shell.wait,
    )
    tracker = _tracker(session, root or Path.cwd(), library, say) if _tracked(plan, root or Path.cwd()) else None
    if tracker:
        observers.append(tracker)
    trail = None if settings.no_git else _trail(session, settings, library, say)
    if trail:
        observers.append(trail)
    live = _live(session, shell, say)
    if live:
        observers.append(live)
    for note in session.notes:
        say(note)
    until = float("inf")
    try:
        with interruptible(session.name):
            outcome = await runner.drive(registry.program(plan, library))
            # Only here, so that the first request need not wait for it.
            from cdo.app.finish import finish
            from cdo.programs.deliberation.conclusion import Outcome

            if plan.crew and plan.crew.deliver and not isinstance(outcome, Outcome):
                from cdo.app.handover import hand_over

                say(hand_over(session, plan.crew, outcome, library))
            await session.flushed()
            archive = LiveSessionReader(session)
            result = finish(session, plan, outcome, runner, archive)
            if isinstance(outcome, Outcome):
                await _file(session, plan, outcome, settings, tracker, say)
            observe(RunEnded(result=result))
            await session.flushed()
            if shell.ended:
                shell.ended(archive)
            return result
    except (CdoError, asyncio.CancelledError) as error:
        if isinstance(error, (Interrupted, asyncio.CancelledError)):
            until = time.monotonic() + AT_STOP
        if isinstance(error, CdoError):
            observe(RunStopped(status=type(error).__name__, why=error.message))
        raise
    finally:
        if tracker:
            with contextlib.suppress(Exception):
                await tracker.close(min(TRACKER_PATIENCE, round((until - time.monotonic()) / 2, 1)))
        observe(ContentOpened(opened=library.opened))
        if live:
            await asyncio.to_thread(live.close, until)  # a collector may hang; other runs of the loop go on
        if trail:
            trail.close(until)
        if not shared:
            if lane:
                lane.depot.close()
            await close_all({**found, **waiting}, until)
        await session.ended()


def _lane(
    session: Session, budget: Budget, observe: Observe, shell: RunHooks, seats: Mapping[str, ModelSeat]
) -> BatchLane:
    """Return what lets the calls of a session wait at batch endpoints."""
    from cdo.runner.endpoint_batches.lane import BatchLane

    depot = shell.shared.depot if shell.shared else _depot()
    again = shell.again or f"cdo resume {session.name}"
    return BatchLane(session, budget, observe, depot, seats, again, shell.wait)


def _waiting(
    session: Session,
    found: Mapping[str, ModelSeat],
    settings: Settings,
    library: Library,
    say: Callable[[str], None],
) -> dict[str, ModelSeat]:
    """Return the seats of the models at whose batch endpoints calls of a session wait; raise `ConfigError`."""
    calls = [call for submission in open_submissions(session.records) for call in submission.calls]
    names = dict.fromkeys(str(call.asked["model"]) for call in calls)
    if missing := [name for name in names if name not in found]:
        plain = settings.model_copy(update={"batch_api": False, "flex": False})
        more = seating.seats(seating.specs(missing, library, plain, os.environ), plain, library, say)
        return {name: seat for name, seat in {**found, **more}.items() if name in names}
    return {name: found[name] for name in names}


def _budget(session: Session, plan: Plan, settings: Settings, shared: SharedByRuns | None) -> Budget:
    """Return the budget of a run, which begins with what its session has used so far."""
    used = totals(session.records)
    if shared:
        return BudgetShare(shared.budget, used)
    limits = limits_of(settings)
    return Budget(limits, used, held_back(limits) if plan.crew else Limits())


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


def _checker(session: Session, root: Path | None) -> Callable[[str], tuple[CitationCheck, ...]] | None:
    """What checks citations: against the repository, or where there is none the folder that `-c` was relative to."""
    place = root or (Path.cwd() if shown_files(session.read("00-context.md") or "") else None)
    if place is None:
        return None
    from cdo.repository.citations import check_all

    return lambda text: check_all([text], place)


def _search(root: Path) -> Callable[[Sequence[str]], frozenset[str]]:
    """What searches the repository for words."""
    from cdo.repository.citations import standing_in

    return lambda words: standing_in(words, root)


def _toolbox(root: Path | None, plan: Plan, library: Library) -> Toolbox | None:
    """What answers the requests of models that look into the repository; None without a repository or tools."""
    if not root or not plan.tools:
        return None
    from cdo.repository.tools import Tools

    return Tools(root, library, plan.tools)


def _survey(session: Session, root: Path) -> Callable[[Survey], str]:
    """What chooses further files for a focus: those that the context of the run does not show whole."""

    def text(step: Survey) -> str:
        from cdo.repository.survey import further

        return further(root, step.focus, step.tokens, session.read("00-context.md") or "")

    return text


def _check_runner(
    session: Session, plan: Plan, settings: Settings, say: Callable[[str], None]
) -> Callable[[RunCheck], Awaitable[CheckRun]] | None:
    """What runs the person's command, or those of a mission's team; None for a run without any."""
    if plan.check is None and not (plan.crew and plan.crew.exec):
        return None
    from cdo.runner import check_command
    from cdo.session import session_file

    if plan.check is None:
        root, created = plan.crew.root if plan.crew else "", session_file.load(session).created
        return check_command.team_runner(session.path, created, root, settings.check_timeout, say)

    return check_command.runner(plan.check, session.path, settings.check_timeout, say)


def _bodies(plan: Plan, library: Library) -> Callable[[str], str]:
    """What reads the body of a skill of the plan's catalogue; raises `SessionError` where it has changed since."""

    def body(name: str) -> str:
        most = library.read("dispatch/skill-injection", SkillInjection)[0].max_chars
        card = resolve(name, plan.skills)
        return fit(skill_files.body(card), most) if card else ""

    return body


# -- beside the run --------------------------------------------------------------------------------

AT_STOP = 1.5  # seconds that all of them have when somebody wants the run to end
TRACKER_PATIENCE = 30.0  # seconds that bd gets at the end to take in what is left


def _tracked(plan: Plan, folder: Path) -> bool:
    """True if the run goes into bd. Without bd that is so only if the person asked for it, who is then told."""
    return plan.bd and ("bd" in plan.modifiers or git.program("bd", os.path.realpath(folder)) is not None)


def _trail(session: Session, settings: Settings, library: Library, say: Callable[[str], None]) -> GitCommitObserver:
    return GitCommitObserver(session, say, Path.cwd(), library, redactor(os.environ), settings.branch)


def _live(session: Session, shell: RunHooks, say: Callable[[str], None]) -> LiveTrace | None:
    sender = shell.shared.sender if shell.shared else shell.sender
    if sender is None:
        return None
    from cdo.observers.live_trace import LiveTrace

    return LiveTrace(session, sender, say, shell.within, shell.labels, shared=shell.shared is not None)


def _tracker(session: Session, folder: Path, library: Library, say: Callable[[str], None]) -> Beads:
    from cdo.observers.beads_tracker import Beads

    problem = session.read("00-input.md") or ""
    redact = redactor(os.environ)
    return Beads(session.name, problem, folder, session.records, session.commit, say, library, redact)


async def _file(
    session: Session,
    plan: Plan,
    outcome: Outcome,
    settings: Settings,
    tracker: Beads | None,
    say: Callable[[str], None],
) -> None:
    """Take what a domain's documents hold to where it belongs: the decision record, the tracker."""
    try:
        _file_decision(session, plan, outcome, settings, say)
    except SessionError as error:  # what was paid for is told all the same
        say(f"{error.message} The decision record is {session.path / 'ADR.md'}.")
    if tracker:
        await _hand_over(tracker, outcome, say)


async def _hand_over(tracker: Beads, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Take a work breakdown into bd, as tasks under the run's epic."""
    from cdo.formats.documents.worksheets import WorkBreakdown
    from cdo.observers.beads_tracker import BeadsTask

    for document in outcome.documents.values():
        for block in document.blocks:
            if isinstance(block, WorkBreakdown):
                tasks = [
                    BeadsTask(
                        task.id,
                        task.title,
                        f"{task.description}\n\nDone when: {'; '.join(task.acceptance)}",
                        task.depends_on,
                        task.minutes,
                    )
                    for task in block.tasks
                ]
                try:
                    await tracker.breakdown(tasks)
                except CdoError as error:
                    say(f"bd: {error.message}")


def _file_decision(
    session: Session, plan: Plan, outcome: Outcome, settings: Settings, say: Callable[[str], None]
) -> None:
    """Copy the decision record to `--adr-dir`, once, under the next number."""
    prompt = next((prompt for prompt in plan.documents.values() if prompt.target), None)
    if not settings.adr_dir or prompt is None or prompt.file not in outcome.documents:
        return
    from cdo.formats.documents.document import adr_file_name, stamped

    session.flush()
    text = session.read(f"{prompt.file}.md") or ""
    folder = Path(settings.adr_dir)
    record = next((record for record in reversed(session.records) if record["kind"] == "filed"), None)
    if record and record["name"] in names_in(folder):
        return
    while True:
        if record is None:
            name = adr_file_name(names_in(folder), outcome.documents[prompt.file].title, prompt.target)
            record = {"kind": "filed", "name": name, "date": date.today().isoformat()}
            session.note(record)
            session.flush()
        try:
            path = file_new(folder, str(record["name"]), stamped(text, str(record["date"])))
        except FileExistsError:
            record = None  # another run was quicker: then under the next number
        else:
            break
    say(f"the decision record was copied to {path}")


def _journaled(session: Session, observers: Sequence[Observe]) -> Observe:
    def told(event: Event) -> None:
        if not isinstance(event, (TextReceived, TreeChanged)):  # of the moment
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            session.journal(
                {"at": now, "event": event.kind, **({"name": event.name} if event.name else {}), **event.json()}
            )
        for observe in observers:
            observe(event)

    return told
