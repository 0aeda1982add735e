"""Runs a session at the terminal: shows its plan and progress, asks the person, prints the result, exits.

`app` wires the run; this module contains only the interaction with the person.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import click

from cdo.app import run
from cdo.cli.common import columns, dumps, exit_now, text_width
from cdo.core.demo_model import DEMO_ADVICE, DEMO_NOTICE, only_demo
from cdo.core.errors import BudgetReached, CdoError, Interrupted, NeedsHuman, WaitsForBatch
from cdo.core.events import BatchBegan, Event, NoteTold, PlanShown, ReplyAccepted, RoundEnded, RunBegan, TreeChanged
from cdo.core.formatting import one_line, pluralise, shorten_middle, visible
from cdo.core.mission_names import round_of
from cdo.core.result import Result
from cdo.core.signals import deferred
from cdo.core.steps import Ask, Pause
from cdo.core.usage import totals
from cdo.formats.voice import VoiceData
from cdo.planning import turn_plan, turn_plan_commands
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.runner.model_seat import ModelSeat
from cdo.runner.people.human_steps import Human, PendingReview, PendingSeat, chosen
from cdo.security.secrets import redactor
from cdo.session.store import Session
from cdo.terminal import plan_editor
from cdo.terminal.plan_dashboard import PastTurn, lines, markdown
from cdo.terminal.plan_preview import Preview
from cdo.terminal.typed_line import typed_line
from cdo.terminal.views import RunView, make_view, summary

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
    plan = preview.plan
    view = make_view(sys.stderr, quiet=options["quiet"], verbose=options["verbose"], json=options["as_json"])
    try:
        with deferred():
            view(
                RunBegan(
                    name=session.name,
                    preset=plan.preset,
                    why=plan.why,
                    models=plan.models,
                    path=str(session.path),
                    resumed=resumed,
                )
            )
            if only_demo(plan.models):
                view(NoteTold(text=f"{DEMO_NOTICE}. {DEMO_ADVICE}"))
            for note in notes:
                view(NoteTold(text=note))
            if plan.dashboard:
                _show_plan(
                    session,
                    preview,
                    view,
                    begun=any(record["kind"] in ("exchange", "batch-intent") for record in session.records),
                    seen=plan_shown,
                )
            shell = _shell(view, preview, options, kept.instead(plan.models))
            shell.seats, shell.wait = seats, bool(options.get("wait"))
            if options.get("otlp"):
                from cdo.observers.live_trace import SpanSender

                shell.sender = SpanSender(options["otlp"], redactor(os.environ))
            if kept.crew:
                from cdo.app.nested_run import holder

                shell.nest = holder(session, kept, settings, preview.library, shell)
                shell.reopened = bool(options.get("rounds"))
            result = asyncio.run(run.run(session, kept, settings, preview.library, shell))
    except CdoError as error:
        if options["as_json"]:
            view.close()
            click.echo(dumps(_broken_off(session, error, "round" if plan.crew else "turn").json()))
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


def _show_plan(session: Session, preview: Preview, view: RunView, *, begun: bool, seen: bool) -> None:
    """Show the plan's dashboard before the first turn, and save it. With `hitl` it is shown at the first review."""
    if begun:
        return
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


def _shell(view: RunView, preview: Preview, options: Mapping[str, Any], instead: Mapping[str, str]) -> run.RunHooks:
    """Return the run's hooks: ask the person if there is a terminal; --yes gives consent and skips pauses."""
    terminal = sys.stdin.isatty() and sys.stderr.isatty() and not options.get("no_input")
    past = Progress(preview)
    one_at_a_time = asyncio.Lock()

    def observe(event: Event) -> None:
        past.note(event)
        view(event)
        if isinstance(event, RoundEnded):
            view(TreeChanged(products=event.products))

    async def answer(pause: Pause) -> str:
        return await _ask(view, pause.question, pause.options)

    async def tell(ask: Ask) -> str:
        return await _told(view, ask)

    async def consent(stale: Sequence[str], kept: Sequence[str]) -> bool:
        if options.get("yes"):
            return True
        question = f"Edited files make these stale: {', '.join(stale)}."
        if kept:
            question += f" Kept, since you edited them: {', '.join(kept)}."
        return (
            await _ask(view, f"{question} Ask for them again (the old ones move to superseded/)?", ("yes", "no"))
            == "yes"
        )

    async def review(editing: PendingReview) -> str:
        return await past.review(view, editing)

    async def speak(form: PendingSeat) -> None:
        async with one_at_a_time:
            await _spoken(view, form)

    may_ask = terminal and not options.get("yes")
    return run.RunHooks(
        preview.specs,
        observe,
        human=Human(
            answer=answer if may_ask else None,
            tell=tell if terminal else None,
            consent=consent if terminal or options.get("yes") else None,
            review=review if terminal else None,
            speak=speak if terminal else None,
        ),
        instead=instead,
    )


class Progress:
    """The state shown at the terminal before each turn: the plan, and the results of the earlier turns."""

    def __init__(self, preview: Preview) -> None:
        self._preview = preview
        self._past: dict[int, PastTurn] = {}
        self._voices: dict[int, int] = {}
        self._open: dict[str, str] = {}

    def note(self, event: Event) -> None:
        """Note from an event how many voices a turn has, and the content of its synthesis."""
        if isinstance(event, BatchBegan):
            for name, kind in event.calls:
                if kind == "agent" and (found := re.match(r"t(\d+)-", name)):
                    self._voices[int(found[1])] = len(event.calls)
        if not isinstance(event, ReplyAccepted):
            return
        if (directive := event.directive) and (found := re.match(r"t(\d+)-", event.name)):
            turn = int(found[1])
            for tension in directive["tensions"]:
                self._open.pop(tension["id"], None)
                if tension["status"] == "open":
                    self._open[tension["id"]] = tension["title"]
            voices, confidence = self._voices.get(turn, 0), directive["confidence"]
            self._past[turn] = PastTurn(turn, voices, confidence, len(self._open))

    async def review(self, view: RunView, editing: PendingReview) -> str:
        """Let the person change a turn's plan at the terminal or in an editor; return its text."""
        form: Any = editing.review.format

        def show(data: Any, columns: int) -> list[str]:
            past = [item for turn, item in sorted(self._past.items()) if turn < data.turn]
            titles = [f"{name}: {title}" for name, title in self._open.items()]
            return [*lines(self._preview.of(data, past, titles), columns), *form.remarks(data)]

        def change(command: str, text: str) -> str:
            return turn_plan.dump(turn_plan_commands.applied(command, form.parse(text), form), form, editing.render)

        commands = [(f"{verb} {takes}".strip(), what) for verb, (takes, what) in turn_plan_commands.COMMANDS.items()]
        return await plan_editor.review(
            view,
            editing.path,
            editing.text,
            form.parse,
            show,
            write=editing.write,
            change=change,
            commands=commands,
            correct=lambda command: turn_plan_commands.corrected(command, form),
            mistyped=form.mistyped,
        )


async def _spoken(view: RunView, form: PendingSeat) -> None:
    """Let a person fill in the form of their seat, in any editor. Until then no voice of the turn is shown."""

    def show(data: VoiceData, columns: int) -> list[str]:
        sure = "" if data.confidence is None else f" ({data.confidence:.0%} sure)"
        counts = f"{pluralise(len(data.claims), 'reason')}, {pluralise(len(data.objections), 'objection')}"
        return [shorten_middle(one_line(f"Your answer: {data.position}{sure}", 2000), columns), counts]

    about = [
        f"{form.person}, turn {form.turn} waits for your answer until {form.until}. The models are asked meanwhile.",
        f"What they are told is in {form.brief}",
    ]
    await plan_editor.review(view, form.path, form.text, form.parse, show, write=form.write, noun="form", above=about)


def _picked(typed: str, choices: Sequence[str]) -> str:
    """Return the choice that was typed, by its number or its beginning; raise `click.UsageError` if there is none."""
    word = typed.strip().casefold()
    begun = [choice for choice in choices if word and choice.casefold().startswith(word)]
    if word.isdecimal() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1]
    if len(begun) != 1:
        raise click.UsageError(f"Type a number from 1 to {len(choices)}, or how your choice begins.")
    return begun[0]


async def _ask(view: RunView, question: str, choices: Sequence[str]) -> str:
    """Ask at the terminal, with the live view suspended. Runs in a thread, so that the event loop continues."""

    def prompt() -> str:
        with view.suspend():
            click.echo(visible(question), err=True)
            for number, choice in enumerate(choices, 1):
                click.echo(f"  {number}) {visible(choice)}", err=True)
            return str(
                click.prompt("Your choice", value_proc=lambda typed: _picked(typed, choices), default="1", err=True)
            )

    try:
        return await _in_thread(prompt)
    except click.Abort:
        raise NeedsHuman("The question was not answered.", "`cdo resume` asks it again.") from None


def _meant(typed: str, options: Sequence[str]) -> str:
    """Return the answer that was typed; raise `click.UsageError` if it is empty or not the number of an option."""
    answer = chosen(typed.strip(), options)
    if not answer or (options and answer.isdecimal() and answer not in options):
        raise click.UsageError(f"Type a number from 1 to {len(options)}, or an answer in words.")
    return answer


async def _told(view: RunView, ask: Ask) -> str:
    """Ask the person a question at the terminal. The answer is an option's number or any text.

    It can be cancelled, since the answer may come by a file instead.
    """
    with view.suspend():
        click.echo(visible(ask.question), err=True)
        for number, option in enumerate(ask.options, 1):
            click.echo(f"  {number}) {visible(option)}", err=True)
        while True:
            try:
                return _meant(await typed_line("Your answer: "), ask.options)
            except click.UsageError as error:
                click.echo(f"Error: {visible(error.message)}", err=True)
            except EOFError:
                hint = "`cdo answer` answers it, `cdo resume` goes on."
                raise NeedsHuman("The question was not answered.", hint) from None


async def _in_thread(function: Callable[[], str]) -> str:
    """Run a blocking function in a daemon thread, so that Ctrl-C need not wait for Enter to be pressed."""
    done: Future[str] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="cdo-ask", daemon=True).start()
    return await asyncio.wrap_future(done)
