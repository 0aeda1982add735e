"""Asks the person at the terminal what a run must know: a choice, consent, a turn's plan, a seat's answer."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import click

from cdo.core.errors import NeedsHuman
from cdo.core.events import BatchBegan, Event, ReplyAccepted
from cdo.core.formatting import shorten_middle, visible
from cdo.core.steps import Ask, InvalidReply, Pause
from cdo.formats.person_reply import own_words, summary
from cdo.runner.people.human_steps import Human, PendingReview, PendingSeat, chosen
from cdo.terminal.plan_dashboard import PastTurn, lines
from cdo.terminal.plan_preview import Preview
from cdo.terminal.views import RunView

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import VoiceData


class TerminalPerson:
    """The person at the terminal, whom a run asks while `view` is shown. With `yes` they have agreed already."""

    def __init__(self, view: RunView, preview: Preview, *, yes: bool) -> None:
        self._view = view
        self._past = PastTurns(preview)
        self._yes = yes
        self._one_at_a_time = asyncio.Lock()

    def human(self, *, terminal: bool) -> Human:
        """Return what a run may ask them: everything at a `terminal`, else only consent that they gave with --yes."""
        return Human(
            answer=self._answer if terminal and not self._yes else None,
            tell=self._tell if terminal else None,
            consent=self._consent if terminal or self._yes else None,
            review=self._review if terminal else None,
            speak=self._speak if terminal else None,
        )

    def note(self, event: Event) -> None:
        """Note an event of the run: reviews of plans show the turns so far."""
        self._past.note(event)

    async def _answer(self, pause: Pause) -> str:
        return await _ask(self._view, pause.question, pause.options)

    async def _tell(self, ask: Ask) -> str:
        return await _told(self._view, ask)

    async def _consent(self, stale: Sequence[str], kept: Sequence[str]) -> bool:
        if self._yes:
            return True
        question = f"Edited files make these stale: {', '.join(f'{name}.md' for name in stale)}."
        if kept:
            question += f" Kept, since you edited them: {', '.join(f'{name}.md' for name in kept)}."
        question += " Ask for them again (the old ones move to superseded/)?"
        return await _ask(self._view, question, ("yes", "no")) == "yes"

    async def _review(self, editing: PendingReview) -> str:
        return await self._past.review(self._view, editing)

    async def _speak(self, form: PendingSeat) -> None:
        async with self._one_at_a_time:
            await _spoken(self._view, form)


class PastTurns:
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
        # lazily: few runs ask for it
        from cdo.planning import turn_plan, turn_plan_commands
        from cdo.terminal import plan_editor

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
    from cdo.terminal import plan_editor  # lazily: few runs have such a seat

    def show(data: VoiceData, columns: int) -> list[str]:
        said, counts = summary(data)
        return [shorten_middle(f"Your answer: {said}", columns), counts]

    typed = [own_words(form.text)]  # what `say` may replace

    def say(line: str, text: str) -> str:
        words = line.partition(" ")[2].strip()
        if not words:
            raise InvalidReply(["Type your answer behind `say`: say Keep it whole."])
        if own_words(text) not in typed:
            raise InvalidReply([f"{form.path.name} has words of yours: change them there, with `edit`."])
        typed.append(words)
        return words

    about = [
        f"{form.person}, turn {form.turn} waits for your answer until {form.until}. The models are asked meanwhile.",
        f"What they are told is in {form.brief}",
        "To answer in a line, type `say` and the answer: say Keep it whole.",
    ]
    await plan_editor.review(
        view, form.path, form.text, form.parse, show,
        write=form.write, change=say, commands=[("say ANSWER", "make this your answer")], noun="form", above=about,
    )  # fmt: skip


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
            if not view.has_asked(question):
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
    from cdo.terminal.typed_line import typed_line  # lazily: few runs ask

    with view.suspend():
        if not view.has_asked(ask.question):
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
