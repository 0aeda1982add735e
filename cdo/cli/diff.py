"""Implements the command `diff`, which compares two sessions or two turns."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdo.cli.common import JSON, OUT, VERBOSE, columns, complete_session, dumps, session_archive
from cdo.core.errors import UsageError
from cdo.core.formatting import visible

if TYPE_CHECKING:
    from cdo.history.comparison import Comparison
    from cdo.history.comparison_text import Line
    from cdo.history.past_session import History
    from cdo.history.version_comparison import VersionComparison
    from cdo.session.reader import SessionReader

EXIT_STRICT = 3
_TURN = re.compile(r"(.+):([0-9]{1,6})", re.DOTALL)
_VERSION = re.compile(r"(.+):([pv][1-9][0-9]{0,5})", re.DOTALL)


@click.command()
@click.argument("a", required=False, shell_complete=complete_session)
@click.argument("b", required=False, shell_complete=complete_session)
@click.option("--changed", is_flag=True, help="Show only what differs.")
@click.option("--strict", is_flag=True, help="Exit with code 3 if they differ.")
@OUT
@JSON
@VERBOSE
@click.pass_context
def diff(
    ctx: click.Context, a: str | None, b: str | None, changed: bool, strict: bool, out: str | None, as_json: bool
) -> None:
    """Compare two sessions, two turns, or two versions.

    Write SESSION for the end of a session and SESSION:TURN for one of its turns (`a:2`). `cdo diff a` compares the
    first turn of a with its end, `cdo diff a:2` turn 2 with its end.

    Missions are compared as they ended. `cdo diff a:v3 a:v9` compares two versions of a mission's products line by
    line, `cdo diff a:p4` the newest two of a product.
    """
    from cdo.history import comparison, comparison_text

    if versions := _versions(a, b, out):
        if as_json:
            click.echo(dumps(versions.json()))
        else:
            click.echo(visible("\n".join(versions.lines(changed=changed))))
        if strict and not versions.same:
            ctx.exit(EXIT_STRICT)
        return
    found = _found(a, b, out)
    if as_json:
        click.echo(dumps(comparison.json(found, changed=changed)))
    else:
        for line in comparison_text.lines(found, columns(sys.stdout), changed=changed):
            click.echo(_painted(line))
    if strict and not found.same:
        ctx.exit(EXIT_STRICT)


def _versions(a: str | None, b: str | None, out: str | None) -> VersionComparison | None:
    """Compare the versions that the arguments name, None if they name none; raise `UsageError` or `SessionError`."""
    named = [_VERSION.fullmatch(text) for text in (a, b) if text]
    sides = [match for match in named if match]
    if not sides:
        return None
    if len(sides) < len(named):
        raise UsageError("A version is compared with a version alone.", "Name two: cdo diff a:v3 a:v9.")
    from cdo.cabal.reconstruction import is_mission
    from cdo.history import version_comparison

    archives = [session_archive(match[1], out) for match in sides]
    for archive in archives:
        if not is_mission(archive):
            raise UsageError(f"{archive.name} is not a mission and has no versions.", "Name a turn: cdo diff a:2.")
    ids = [match[2] for match in sides]
    return version_comparison.compared(archives[0], ids[0], archives[-1], ids[1] if len(ids) > 1 else "")


def _found(a: str | None, b: str | None, out: str | None) -> Comparison:
    """Compare what the arguments name. One session is read only once. Raise `UsageError` or `SessionError`."""
    from cdo.history import comparison, history, snapshot
    from cdo.history.pending import require_heard

    (name, turn), other = _named(a), _named(b)
    left = session_archive(name, out)
    right = left if b is None else session_archive(other[0], out)
    one = Path(left.place).resolve() == Path(right.place).resolve()
    past = history.read(left)
    other_past = past if one else history.read(right)
    if past.frozen.plan.crew or other_past.frozen.plan.crew:
        if turn is not None or other[1] is not None or b is None:
            mission = left if past.frozen.plan.crew else right
            raise UsageError(
                _no_rounds(mission),
                f"Name two missions (cdo diff a b), two versions ({mission.name}:v1 {mission.name}:v2) or a product "
                f"({mission.name}:p2).",
            )
        return _missions(left, past, right, other_past)
    if b is None:
        turn = turn or (past.turns[0].number if past.turns else 1)
    require_heard(left, "The comparison", turn=turn or 0)
    require_heard(right, "The comparison", turn=other[1] or 0)
    views = (
        snapshot.view(left, past, turn),
        snapshot.view(right, other_past, other[1]),
    )
    return comparison.compare(*views, one=one)


def _no_rounds(mission: SessionReader) -> str:
    name = mission.name
    return f"{name} is a mission: its rounds are compared by git, each with the one before (`git log -p cdo/{name}`)."


def _missions(left: SessionReader, past: History, right: SessionReader, other: History) -> Comparison:
    """Compare the endings of two missions; raise `UsageError` if one is a deliberation."""
    from cdo.history import comparison, snapshot

    if not (past.frozen.plan.crew and other.frozen.plan.crew):
        mission, rest = (left, right) if past.frozen.plan.crew else (right, left)
        raise UsageError(
            f"{mission.name} is a mission and {rest.name} a deliberation: they have too little in common.",
            "Compare two missions, or two deliberations.",
        )
    return comparison.outcomes(snapshot.mission(left, past), snapshot.mission(right, other))


def _named(text: str | None) -> tuple[str | None, int | None]:
    """Split an argument into a session's name or path, and the turn after its last colon, if any."""
    match = _TURN.fullmatch(text or "")
    return (match[1], int(match[2])) if match else (text, None)


def _painted(line: Line) -> str:
    """Return a line in the colours of its tone. `click.echo` removes them if stdout is not a terminal."""
    if os.environ.get("NO_COLOR"):
        return line.text
    if line.tone == "head":
        return click.style(line.text, bold=True)
    if line.tone == "same":
        return click.style(line.text, dim=True)
    return (click.style(line.what, fg="yellow", bold=True) + line.said).rstrip()
