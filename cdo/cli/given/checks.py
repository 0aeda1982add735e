"""The check command of a debug run and the commands of a mission's team: how a person gives and allows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from cdo.core.errors import UsageError
from cdo.core.formatting import one_line

if TYPE_CHECKING:
    from cdo.planning.plan import CheckCommand
    from cdo.session.session_file import Frozen


def given_check(command: str | None) -> CheckCommand | None:
    """Return the check of a run from this folder, with an absolute root; None without --check."""
    if command is None:
        return None
    from cdo.repository.work_tree import root_of
    from cdo.runner import check_command
    from cdo.security import secrets

    if secrets.redactor(os.environ)(command) != command:
        raise UsageError(
            "The command of --check holds the value of a secret variable, which is never written to a file.",
            "Put the command into a script that reads the variable from a file of its own.",
        )
    return check_command.given(command, root_of(Path.cwd()), Path.cwd())


def allow(check: CheckCommand) -> None:
    """Record that the person lets this command run for its folder."""
    from cdo.runner import check_command

    check_command.allow(check, Path(check.root))


def allow_team(kept: Frozen, session: Path) -> None:
    """Record that the person lets the commands of a mission's team run; raise `UsageError` if it has none."""
    from cdo.runner import check_command

    if not (kept.plan.crew and kept.plan.crew.exec):
        raise UsageError(
            "This session runs no commands of a team.", 'Begin a mission with them: cdo cabal --exec "What to make"'
        )
    check_command.require_sandbox()
    check_command.allow_team(session, kept.created)


def announce(check: CheckCommand, limit: float) -> None:
    """Print how a run would run the check, and in which sandbox, without running it."""
    from cdo.core.formatting import visible
    from cdo.runner import check_command

    text = check_command.announced(check.command, check_command.sandbox_here(), limit)
    click.echo(visible(text.replace("` runs in a copy", "` would run in a copy", 1)), err=True)


def confirm(command: str, check: CheckCommand | None, session: Path) -> None:
    """Record that the person gave a session's check; raise `UsageError` if `command` differs from it."""
    if check is None:
        raise UsageError("This session has no check.", 'Begin a run with one: cdo debug --check "…" "What fails"')
    if command.strip() != check.command:
        raise UsageError(
            f"The check of this session is another command: `{one_line(check.command, 200)}`.",
            "A session keeps the check that it began with; begin a new run for another one.",
        )
    allow(replace(check, root=os.path.realpath(session / check.root)))
