"""`cdo restore`: a session's folder made again from its branch of git. Sends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdo.console import OUT, VERBOSE, out_folder
from cdo.errors import SessionError

if TYPE_CHECKING:
    from cdo.archive import Archive


@click.command()
@click.argument("name")
@click.option("--turn", type=click.IntRange(1), metavar="N", help="As it was after turn N (default: as it is now).")
@click.option("--session", metavar="NAME", help="Call the restored session so.")
@OUT
@VERBOSE
def restore(name: str, turn: int | None, session: str | None, out: str | None) -> None:
    """Restore a session's folder from its branch cdo/NAME.

    NAME is as `cdo list --git` shows it. What is restored can be shown and resumed; nothing is paid twice.
    """
    from cdo.sessions import session_path
    from cdo.store import Session, Taken

    folder = out_folder(out)
    path = session_path(folder, session or name.rpartition("/")[2])
    found = _archive(folder, name, turn)
    files = {file: found.data(file) or b"" for file in found.files()}
    try:
        restored = Session.create(path, files)
    except Taken:
        raise SessionError(
            f"There is a session {path} already.", "Name the restored one with --session, or remove this."
        ) from None
    restored.close()
    click.echo(str(path))
    command = "show" if "FINAL.md" in files else "resume"
    what = "looks at it" if command == "show" else "goes on with it"
    click.echo(
        f"Restored {len(files)} files from the {found.place}. `cdo {command} {restored.name}` {what}.", err=True
    )


def _archive(folder: Path, name: str, turn: int | None) -> Archive:
    """The session on its branch, in the repository that holds the sessions or that one stands in."""
    from cdo.branches import open_branch

    for place in (folder, Path.cwd()):
        if found := open_branch(place, name, turn):
            return found
    raise SessionError(f"There is no branch of git for a session {name}.", "`cdo list --git` shows what there is.")
