"""Runs a session at the terminal: shows its plan and progress, asks the person, prints the result, exits.

`app` wires the run; this module contains only the interaction with the person.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cdo.app import run
from cdo.cli.common import columns, dumps, exit_now, text_width
from cdo.core.demo_model import DEMO_ADVICE, DEMO_NOTICE, only_demo
from cdo.core.errors import BudgetReached, CdoError, Interrupted, NeedsHuman, WaitsForBatch
from cdo.core.events import Event, NoteTold, PlanShown, RoundEnded, RunBegan, TreeChanged
from cdo.core.mission_names import round_of
from cdo.core.result import Result
from cdo.core.signals import deferred
from cdo.core.usage import totals
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.runner.model_seat import ModelSeat
from cdo.security.secrets import redactor
from cdo.session.store import Session
from cdo.terminal.asking import TerminalPerson
from cdo.terminal.plan_dashboard import lines, markdown
from cdo.terminal.plan_preview import Preview
from cdo.terminal.run_words import summary
from cdo.terminal.views import RunView, make_view

EXIT_STRICT = 3
# The statuses of a run, an audit and a mission that ended successfully.
CLEAN = ("converged", "survives", "done")
UNRESOLVED = "unresolved"  # the status of a mission ended by a cap or a stall


def run_and_report(
    session: Session,
    kept: Plan,
    preview: Preview,
    settings: Settings,
    options: Mapping[str, Any],
    *,
    resumed: bool,
    notes: Sequence[str] = (),
    plan_shown: bool = False,
    seats: Mapping[str, ModelSeat] | None = None,
) -> None:
    """Run a session's stored plan (`kept`) with a view, print its result, and exit with its code.

    `preview` shows the plan with the models asked from now on, which may differ from those of the stored plan.
    `seats` answer in place of the models that the preview names. With `plan_shown`, the person has seen the plan.
    """
    view = make_view(sys.stderr, quiet=options["quiet"], verbose=options["verbose"], json=options["as_json"])
    try:
        with deferred():
            _show_start(session, preview, view, notes, resumed=resumed, plan_shown=plan_shown)
            shell = _shell(session, kept, preview, settings, view, options)
            shell.seats = seats
            result = asyncio.run(run.run(session, kept, settings, preview.library, shell))
    except CdoError as error:
        if options["as_json"]:
            view.close()
            click.echo(dumps(_broken_off(session, error, "round" if kept.crew else "turn").json()))
        if isinstance(error, NeedsHuman) and (view.has_asked(error.question) or view.has_asked(error.message)):
            raise NeedsHuman("Paused.", error.hint) from error
        raise
    finally:
        view.close()
        session.close()
    hints = seats is None and not options["quiet"]  # a played recording names its own commands
    width = text_width()
    with contextlib.suppress(BrokenPipeError):  # if stdout is closed, the exit code still matters
        click.echo(dumps(result.json()) if options["as_json"] else summary(result, width, commands=hints))
    if result.status == UNRESOLVED:
        exit_now(EXIT_STRICT)
    if settings.strict and (result.status not in CLEAN or result.degraded):
        exit_now(EXIT_STRICT)


def _show_start(
    session: Session, preview: Preview, view: RunView, notes: Sequence[str], *, resumed: bool, plan_shown: bool
) -> None:
    """Show what begins: the session, its models, `notes`, and the plan unless the person has seen it."""
    plan, path = preview.plan, str(session.path)
    view(
        RunBegan(name=session.name, preset=plan.preset, why=plan.why, models=plan.models, path=path, resumed=resumed)
    )
    if only_demo(plan.models):
        view(NoteTold(text=f"{DEMO_NOTICE}. {DEMO_ADVICE}"))
    for note in notes:
        view(NoteTold(text=note))
    begun = any(record["kind"] in ("exchange", "batch-intent") for record in session.records)
    if plan.dashboard and not begun:
        _show_plan(session, preview, view, seen=plan_shown)


def _shell(
    session: Session, kept: Plan, preview: Preview, settings: Settings, view: RunView, options: Mapping[str, Any]
) -> run.RunHooks:
    """Return the run's hooks: ask the person if there is a terminal; --yes gives consent and skips pauses."""
    terminal = sys.stdin.isatty() and sys.stderr.isatty() and not options.get("no_input")
    person = TerminalPerson(view, preview, yes=bool(options.get("yes")))

    def observe(event: Event) -> None:
        person.note(event)
        view(event)
        if isinstance(event, RoundEnded):
            view(TreeChanged(products=event.products))

    shell = run.RunHooks(
        preview.specs,
        observe,
        human=person.human(terminal=terminal),
        instead=kept.instead(preview.plan.models),
        wait=bool(options.get("wait")),
    )
    if options.get("otlp"):
        from cdo.observers.live_trace import SpanSender

        shell.sender = SpanSender(options["otlp"], redactor(os.environ))
    if kept.crew:
        from cdo.app.nested_run import holder

        shell.nest = holder(session, kept, settings, preview.library, shell)
        shell.reopened = bool(options.get("rounds"))
    return shell


def _show_plan(session: Session, preview: Preview, view: RunView, *, seen: bool) -> None:
    """Show the plan's dashboard, and save it. With `hitl` it is shown at the first review."""
    sketch = preview.first()
    session.put_text("00-plan.md", markdown(sketch))
    if not (seen or preview.plan.hitl):
        view(PlanShown(lines=lines(sketch, columns(sys.stderr))))


def _broken_off(session: Session, error: CdoError, unit: str) -> Result:
    """Return the result that `--json` prints for a run that broke off: its progress, and why it ended."""
    kinds = {BudgetReached: "budget", NeedsHuman: "paused", WaitsForBatch: "waiting", Interrupted: "interrupted"}
    used = totals(session.records)
    asked = [record for record in session.records if record["kind"] == "exchange"]
    turns = {record["call"] for record in asked if record["call_kind"] == "synthesis"}
    rounds = [number for record in asked if (number := round_of(record["call"])) is not None]
    waits = error if isinstance(error, NeedsHuman) else NeedsHuman("")
    return Result(
        session=session.name,
        path=str(session.path),
        status=kinds.get(type(error), "failed"),
        why=error.message,
        decision="",
        confidence=None,
        turns=max(rounds, default=0) if unit == "round" else len(turns),
        calls=used.calls,
        tokens=used.tokens,
        cost=used.known_cost,
        unit=unit,
        question=waits.question,
        options=waits.options,
    )
