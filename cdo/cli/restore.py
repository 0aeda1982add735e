"""Implements `cdo restore`, which writes a session's folder again from git. Sends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdo.cli.common import OUT, VERBOSE, out_folder, print_text
from cdo.core.errors import SessionError

if TYPE_CHECKING:
    from cdo.session.reader import SessionReader


@click.command()
@click.argument("name")
@OUT
@VERBOSE
def restore(name: str, out: str | None) -> None:
    """Restore a session's folder from git.

    It is read from refs/cdo/NAME or the branch cdo/NAME. `cdo list --git` shows the names. The folder of origin/NAME
    is called NAME. A restored session can be read and resumed; no recorded call is repeated or billed again.
    """
    from cdo.core.formatting import visible
    from cdo.session.creation import Taken
    from cdo.session.records import session_path
    from cdo.session.store import Session

    folder = out_folder(out)
    short = name.rpartition("/")[2]
    path = session_path(folder, short)
    found = _archive(folder, name)
    files = {file: found.data(file) or b"" for file in found.files()}
    try:
        restored = Session.create(path, files)
    except Taken:
        raise SessionError(
            f"There is a session {path} already.",
            f"Remove it first, or restore elsewhere with --out; `cdo fork {short}` begins another one from it.",
        ) from None
    restored.close()
    print_text(str(path))
    command = "show" if "FINAL.md" in files else "resume"
    what = "looks at it" if command == "show" else "goes on with it"
    told = f"Restored {len(files)} files from the {found.place}. `cdo {command} {restored.name}` {what}."
    click.echo(visible(told), err=True)


def _archive(folder: Path, name: str) -> SessionReader:
    """Return the session as git keeps it, in the repository of the sessions' folder or the working directory."""
    from cdo.session.branch_reader import open_branch

    for place in (folder, Path.cwd()):
        if found := open_branch(place, name):
            return found
    raise SessionError(f"Git keeps no session {name} here.", "`cdo list --git` shows what there is.")
