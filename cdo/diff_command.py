"""The command `diff`: two sessions, or two turns, side by side."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdo.console import JSON, OUT, VERBOSE, columns, complete_session, dumps, session_archive
from cdo.errors import UsageError

if TYPE_CHECKING:
    from cdo.archive import Archive
    from cdo.comparison import Comparison
    from cdo.history import History
    from cdo.side_by_side import Line

EXIT_STRICT = 3
_TURN = re.compile(r"(.+):([0-9]{1,6})", re.DOTALL)


@click.command()
@click.argument("a", required=False, shell_complete=complete_session)
@click.argument("b", required=False, shell_complete=complete_session)
@click.option("--changed", is_flag=True, help="Only what differs.")
@click.option("--strict", is_flag=True, help="Exit 3 when they differ.")
@OUT
@JSON
@VERBOSE
@click.pass_context
def diff(
    ctx: click.Context, a: str | None, b: str | None, changed: bool, strict: bool, out: str | None, as_json: bool
) -> None:
    """Set two sessions, or two turns, side by side.

    Each is SESSION (its end) or SESSION:TURN (`a:2`). `cdo diff a` alone sets its first turn beside its end, and
    `cdo diff a:2` turn 2. Two missions are set side by side as they ended.
    """
    from cdo import comparison, side_by_side

    found = _found(a, b, out)
    if as_json:
        click.echo(dumps(comparison.json(found, changed=changed)))
    else:
        for line in side_by_side.lines(found, columns(sys.stdout), changed=changed):
            click.echo(_painted(line))
    if strict and not found.same:
        ctx.exit(EXIT_STRICT)


def _found(a: str | None, b: str | None, out: str | None) -> Comparison:
    """What is to be compared, read once where both are of one session; raises `UsageError` and `SessionError`."""
    from cdo import comparison, history

    (name, turn), other = _named(a), _named(b)
    left = session_archive(name, out)
    right = left if b is None else session_archive(other[0], out)
    one = Path(left.place).resolve() == Path(right.place).resolve()
    past = history.read(left)
    other_past = past if one else history.read(right)
    if past.frozen.plan.crew or other_past.frozen.plan.crew:
        if turn is not None or other[1] is not None or b is None:
            raise UsageError(_no_rounds(left if past.frozen.plan.crew else right), "Name two missions: cdo diff a b.")
        return _missions(left, past, right, other_past)
    if b is None:
        turn = turn or (past.turns[0].number if past.turns else 1)
    views = (
        comparison.view(left, past, turn),
        comparison.view(right, other_past, other[1]),
    )
    return comparison.compare(*views, one=one)


def _no_rounds(mission: Archive) -> str:
    name = mission.name
    return f"{name} is a mission: its rounds are compared by git, each with the one before (`git log -p cdo/{name}`)."


def _missions(left: Archive, past: History, right: Archive, other: History) -> Comparison:
    """Two missions as they ended; raises `UsageError` where one is a deliberation."""
    from cdo import comparison

    if not (past.frozen.plan.crew and other.frozen.plan.crew):
        mission, rest = (left, right) if past.frozen.plan.crew else (right, left)
        raise UsageError(
            f"{mission.name} is a mission and {rest.name} a deliberation: they have too little in common.",
            "Compare two missions, or two deliberations.",
        )
    return comparison.outcomes(comparison.mission(left, past), comparison.mission(right, other))


def _named(text: str | None) -> tuple[str | None, int | None]:
    """A session's name or path, and the turn behind its last colon, if any."""
    match = _TURN.fullmatch(text or "")
    return (match[1], int(match[2])) if match else (text, None)


def _painted(line: Line) -> str:
    """A line in the colours of its tone; `click.echo` takes them away where nobody could see them."""
    if os.environ.get("NO_COLOR"):
        return line.text
    if line.tone == "head":
        return click.style(line.text, bold=True)
    if line.tone == "same":
        return click.style(line.text, dim=True)
    return (click.style(line.what, fg="yellow", bold=True) + line.said).rstrip()
