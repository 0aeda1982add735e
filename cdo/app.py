"""The composition root: builds sessions, seats and runners from plans, and ends a run with FINAL.md.

The command line parses and prints; this module wires. It is the only one that knows both a program and the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdo import artifacts, history, modes, seating, skill_files, worth
from cdo.archive import Archive
from cdo.attempts import Deadlines
from cdo.briefs import fit
from cdo.budget import Budget, Limits, Totals, held_back
from cdo.citations import check_all, marked
from cdo.content import Library
from cdo.documents import adr_file_name, stamped
from cdo.durable import file_new, names_in
from cdo.ending import Outcome
from cdo.errors import CdoError, Interrupted, SessionError
from cdo.final import add_to_section, final_section
from cdo.markup import sections
from cdo.models import ModelSpec
from cdo.people import Human
from cdo.plan import AUDIT, Plan
from cdo.results import Result
from cdo.runner import Runner, totals
from cdo.secrets import redactor
from cdo.settings import Settings
from cdo.signals import interruptible
from cdo.skills import SkillInjection, resolve
from cdo.store import Session
from cdo.tools import Tools
from cdo.trail import Trail
from cdo.types import Backend, Event, Finding, Nest, Nested, Observe
from cdo.worksheets import WorkBreakdown

if TYPE_CHECKING:
    from cdo.beads import Beads
    from cdo.cabal.delivery import Delivery


@dataclass
class Shell:
    """What surrounds a run: its models, how events are shown, and how the person is asked.

    `instead` names models that are asked from now on in place of the plan's: the plan itself, and so every question
    on record, stays as it was. `nest` holds a deliberation for a session, where one
    may be held; `reopened` tells that this invocation lifts a cap for good.
    """

    specs: Sequence[ModelSpec]
    observe: Observe
    human: Human = field(default_factory=Human)
    instead: Mapping[str, str] = field(default_factory=dict)
    nest: Callable[[Nest, Limits], Awaitable[tuple[Nested | None, Totals]]] | None = None
    reopened: bool = False


# -- running ---------------------------------------------------------------------------------------


async def run(session: Session, plan: Plan, settings: Settings, library: Library, shell: Shell) -> Result:
    """Drive a session to its end and write FINAL.md; raises `CdoError`. Closes the session in any case."""
    observers = [shell.observe]
    observe = _journaled(session, observers)

    def say(text: str) -> None:
        observe(Event("note", "", {"text": text}))

    found = seating.seats(shell.specs, settings, library, say)
    # The embedded model answers one at a time: more in flight would only let deadlines run.
    concurrency = 1 if any(seat.spec.route == "local" for seat in found.values()) else settings.concurrency
    root = (session.path / plan.root).resolve() if plan.root else None
    seats = {name: found[shell.instead.get(name, name)] for name in plan.named}
    limits = Limits(settings.max_calls, settings.max_tokens, settings.budget, settings.timeout)
    runner = Runner(
        session=session,
        library=library,
        seats=seats,
        budget=Budget(limits, totals(session.records), held_back(limits) if plan.crew else Limits()),
        observe=observe,
        human=shell.human,
        deadlines=Deadlines(settings.first_byte_timeout, settings.idle_timeout, settings.call_timeout),
        concurrency=concurrency,
        reply_tokens=settings.reply_tokens,
        toolbox=Tools(root, library) if root and plan.tools else None,
        check=None if plan.crew else _checker(session, root),
        skill=_bodies(plan, library),
        nest=shell.nest,
        reopened=shell.reopened,
    )
    tracker = _tracker(session, root or Path.cwd(), library, say) if plan.bd else None
    if tracker:
        observers.append(tracker)
    trail = Trail(session, say, Path.cwd(), redactor(os.environ)) if not settings.no_git else None
    if trail:
        observers.append(trail)
    for note in session.notes:
        say(note)
    until = float("inf")
    try:
        with interruptible(session.name):
            outcome = await runner.drive(modes.program(plan, library))
            result = finish(session, plan, outcome, runner)
            if isinstance(outcome, Outcome):
                await _file(session, plan, outcome, settings, tracker, say)
            observe(Event("done", "", result.json()))
            session.flush()
            return result
    except (CdoError, asyncio.CancelledError) as error:
        if isinstance(error, (Interrupted, asyncio.CancelledError)):
            until = time.monotonic() + AT_STOP
        if isinstance(error, CdoError):
            observe(Event("stopped", "", {"status": type(error).__name__, "why": error.message}))
        raise
    finally:
        if tracker:
            with contextlib.suppress(Exception):
                await tracker.close(min(TRACKER_PATIENCE, round((until - time.monotonic()) / 2, 1)))
        observe(Event("content", "", {"opened": library.opened}))
        if trail:
            trail.close(until)
        await _closed({id(seat.backend): seat.backend for seat in found.values()}.values(), until)
        session.close()


async def _closed(backends: Iterable[Backend], until: float) -> None:
    """Close all backends side by side, for a second at most, and not much longer than `until` (monotonic)."""
    patience = min(1.0, max(0.2, until - time.monotonic()))
    closing = (asyncio.wait_for(backend.close(), patience) for backend in backends)
    await asyncio.gather(*closing, return_exceptions=True)


def _checker(session: Session, root: Path | None) -> Callable[[str], tuple[Finding, ...]] | None:
    """What checks citations: against the repository, or where there is none the folder that `-c` was relative to."""
    given = not (session.read("00-context.md") or "").startswith("# Context\n\nNo context was given.")
    place = root or (Path.cwd() if given else None)
    return (lambda text: check_all([text], place)) if place else None


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


def _tracker(session: Session, folder: Path, library: Library, say: Callable[[str], None]) -> Beads:
    from cdo.beads import Beads

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
    from cdo.beads import Task

    for document in outcome.documents.values():
        for block in document.blocks:
            if isinstance(block, WorkBreakdown):
                tasks = [
                    Task(
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
        if event.kind != "progress":  # several a second, and gone when the call is done
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            session.journal(
                {"at": now, "event": event.kind, **({"name": event.name} if event.name else {}), **event.data}
            )
        for observe in observers:
            observe(event)

    return told


def finish(session: Session, plan: Plan, outcome: Outcome | Delivery, runner: Runner) -> Result:
    """Write FINAL.md (unless a person edited it) and return the result."""
    used = runner.budget.totals
    if not isinstance(outcome, Outcome):
        from cdo import handover

        return handover.deliver(session, outcome, used, runner.kept)
    if plan.mode == AUDIT:
        from cdo.audit import Audited
        from cdo.audit_report import report

        assert isinstance(outcome, Audited)
        reply = report(outcome, _asked_by_call(session), used.calls, used.known_cost)
    else:
        reply = runner.kept["final"]
    missing = tuple(f"t{turn}-{role}: {reason}" for turn, role, reason in outcome.missing)
    existing = session.artifact("FINAL")
    if existing is None or not (existing.edited or existing is reply):
        session.flush()
        past = history.read(_Owned(session))
        own = {
            "session": session.name,
            **_origin(past),
            **({"audits": reply.own["audits"]} if "audits" in reply.own else {}),
            "problem": " ".join((session.read("00-input.md") or "").split())[:300],
            "preset": plan.preset,
            "status": outcome.status,
            "why": outcome.why,
            "turns": outcome.turns,
            "models": _asked(session) or list(plan.models),
            "cost": used.known_cost,
            "missing_voices": list(missing),
            "open_tensions": list(outcome.open_tensions),
            **({"added": list(outcome.added)} if outcome.added else {}),
            **({"flags": list(outcome.flags)} if outcome.flags else {}),
            **({"votes": list(outcome.votes)} if outcome.votes else {}),
            **({"citations": _citations(outcome)} if outcome.verified or outcome.unverified else {}),
            "inputs": reply.own.get("inputs", {}),
        }
        lowered = f"the last synthesis said {outcome.stated:.2f}, bounded by {outcome.lowered}"
        lowered = lowered if outcome.lowered else ""
        if lowered:
            own["stated_confidence"] = outcome.stated
        final = _checked(artifacts.final(reply, outcome.confidence, own, lowered), outcome, runner)
        if gained := None if modes.phased(plan, runner.library) else worth.of(past, outcome.votes):
            final = replace(final, body=f"{final.body.rstrip()}\n\n## {worth.TITLE}\n\n{gained.markdown()}")
        session.put("FINAL", final)
    shown = session.artifact("FINAL") or reply
    return Result(
        session=session.name,
        path=str(session.path),
        status=outcome.status,
        why=outcome.why,
        decision=final_section(shown.body, "Decision") or sections(shown.body).get("verdict", ""),
        confidence=outcome.confidence,
        turns=outcome.turns,
        calls=used.calls,
        tokens=used.tokens,
        cost=used.known_cost,
        missing_voices=missing,
        added=outcome.added,
        flags=outcome.flags,
        verified=len(outcome.verified),
        unverified=tuple(citation for citation, _ in outcome.unverified),
        documents=tuple(f"{name}.md" for name in outcome.documents),
    )


def _origin(past: history.History) -> dict[str, Any]:
    """For a fork: the session it comes from, the last turn that they share, and what that one paid for it."""
    forked = past.frozen.forked
    if forked is None:
        return {}
    return {"forked": {"session": forked.session, "turn": forked.turn, "cost": past.shared.known_cost}}


class _Owned(Archive):
    """The session that this process runs, read without parsing again what it has written."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.name, str(session.path))
        self._session = session

    def files(self) -> tuple[str, ...]:
        return tuple(f"{name}.md" for name in self._session.artifact_names())

    def data(self, file: str) -> bytes | None:
        text = self._session.read(file)
        return None if text is None else text.encode()

    def artifact(self, stem: str) -> artifacts.Artifact | None:
        return self._session.artifact(stem)

    def records(self) -> list[dict[str, Any]]:
        return self._session.records


def _asked_by_call(session: Session) -> dict[str, str]:
    """The model that was asked last, by call."""
    return {record["call"]: str(record["model"]) for record in session.records if record["kind"] == "exchange"}


def _asked(session: Session) -> list[str]:
    """The models that were asked, by name."""
    return sorted({str(record["model"]) for record in session.records if "model" in record})


def _citations(outcome: Outcome) -> dict[str, Any]:
    return {"verified": len(outcome.verified), "unverified": [f"{item}: {why}" for item, why in outcome.unverified]}


def _checked(final: artifacts.Artifact, outcome: Outcome, runner: Runner) -> artifacts.Artifact:
    """FINAL.md with what only the record knows: how each tension stands, and what the citations are worth."""
    body = marked(final.body, runner.findings("final"))
    if outcome.ledger and final_section(body, "Key Tensions") is not None:
        told = ", ".join(f"{name} {status}" for name, status in outcome.ledger)
        body = add_to_section(body, "Key Tensions", f"On record: {told}.", first=True)
    if total := len(outcome.verified) + len(outcome.unverified):
        line = f"Citations: {len(outcome.verified)} of {total} were found in the repository as cited."
        if outcome.unverified:
            listed = "\n".join(f"- ✗ `{item}`: {why}" for item, why in outcome.unverified)
            line += f" Not verified:\n\n{listed}"
        body = add_to_section(body, "Confidence", line) if final_section(body, "Confidence") is not None else body
    return replace(final, body=f"{body.rstrip()}\n\n{outcome.record}" if outcome.record else body)
