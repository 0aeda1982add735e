"""Implements the command `demo`, which plays the recording that ships with cdo."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from cdo.cli.common import OUT, library_here
from cdo.cli.options import OUTPUT, preview, resolve
from cdo.core.errors import Interrupted
from cdo.core.formatting import one_line

if TYPE_CHECKING:
    from cdo.app.demo import Playback


@click.command()
@click.option("--fast", is_flag=True, help="Do not wait for the replies.")
@OUT
@OUTPUT
def demo(fast: bool, **options: Any) -> None:
    """Play a recorded run: no key, no network, no cost.

    The first line says who gave the recorded answers. They are played in 40 seconds through the program that makes
    real runs, so that the session is an ordinary one: read it, compare its turns, make its report, fork it.
    """
    from cdo.app import demo as playing
    from cdo.cli.run_session import run_and_report

    resolved = resolve(options, library_here())
    recording = playing.shipped()
    playback = playing.begin(recording, resolved, 0.0 if fast else playing.DURATION)
    session, plan = playback.session, playback.plan
    question, context = session.read("00-input.md") or "", session.read("00-context.md") or ""
    shown = preview(plan, playback.specs, question, context, playback.library, session.name)
    told = (*plan.remarks, *([] if options["quiet"] else [f"The question: {one_line(question)}"]))
    try:
        run_and_report(
            session, plan, shown, playback.settings, options, resumed=False, notes=told, seats=playback.seats
        )
    except Interrupted:
        raise Interrupted("Stopped.", "`cdo demo` plays the recording from its beginning.") from None
    if not (options["quiet"] or options["as_json"]):
        click.echo(_next(playback, options["out"]), err=True)


def _next(playback: Playback, out: str | None) -> str:
    """Return the last words: that this was a recording, and what to do with its session."""
    name = playback.session.name
    where = f" --out {shlex.quote(out)}" if out else ""
    rows = [
        (f"cdo final {name}{where}", "the decision"),
        (f"cdo report {name}{where}", "one HTML file of the whole run"),
        (f"cdo diff {name}{where}", "the first turn and the end"),
        (f'cdo fork {name}{where} --turn 1 --note "…" --no-run', "turn 2 with a word from you"),
        (f"cdo show {name}{where}", "every call"),
    ]
    width = max(len(command) for command, _ in rows)
    return "\n".join(
        [
            "",
            "That was a recording: no model was asked, nothing was sent or paid. Try next:",
            *(f"  {command:<{width}}  {what}" for command, what in rows),
            'A run of your own: cdo think -m MODEL "Should we …?"',
        ]
    )
