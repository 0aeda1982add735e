"""`cdo restore`: a session's folder made again from its branch of git. Sends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdo.console import OUT, VERBOSE, out_folder, print_text
from cdo.errors import SessionError

if TYPE_CHECKING:
    from cdo.archive import Archive


@click.command()
@click.argument("name")
@OUT
@VERBOSE
def restore(name: str, out: str | None) -> None:
    """Restore a session's folder from its branch cdo/NAME.

    NAME is as `cdo list --git` shows it; the folder of origin/NAME is called NAME. What is restored can be shown and
    resumed; nothing is paid twice.
    """
    from cdo.births import Taken
    from cdo.sessions import session_path
    from cdo.store import Session
    from cdo.wording import visible

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


def _archive(folder: Path, name: str) -> Archive:
    """The session on its branch, in the repository that holds the sessions or that one stands in."""
    from cdo.branches import open_branch

    for place in (folder, Path.cwd()):
        if found := open_branch(place, name):
            return found
    raise SessionError(f"There is no branch of git for a session {name}.", "`cdo list --git` shows what there is.")
