"""Implements `cdo report`, which writes a session as one HTML page or its history as JSON."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo.cli.common import JSON, OUT, SESSION, VERBOSE, dumps, library_here, print_text, session_archive
from cdo.core.errors import SessionError, UsageError

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.session.reader import SessionReader

_DEPTH = 3  # levels of nested folders searched upwards for a session


@click.command()
@SESSION
@click.option(
    "-o", "--output", metavar="FILE", help="File to write (default: report.html in the session; -: standard output)."
)
@OUT
@JSON
@VERBOSE
def report(session: str | None, output: str | None, out: str | None, as_json: bool) -> None:
    """Write a session as one self-contained HTML page.

    Without a name, take the newest session.
    """
    from cdo.history.pending import require_heard

    archive = session_archive(session, out)
    require_heard(archive, "The report")
    target = _target(archive, output or ("-" if as_json else None))
    if as_json:
        return deliver(dumps(_data(archive)) + "\n", target)
    from cdo.report.session_page import page

    return deliver(page(archive, trusted_library(), _base(archive, target)), target)


def _data(archive: SessionReader) -> dict[str, Any]:
    """Return the history of a session, or the state of a mission, as JSON data; raise `SessionError`."""
    from msgspec import to_builtins

    from cdo.cabal import reconstruction
    from cdo.history import history
    from cdo.report.page import as_data

    if reconstruction.is_mission(archive):
        state: dict[str, Any] = to_builtins(reconstruction.retrace(archive).state)
        return state
    return as_data(history.read(archive))


def trusted_library() -> Library:
    """Return the content without the project's files, so that a cloned project cannot change the text of a page."""
    from cdo.content.library import Library

    return Library(tuple(root for root in library_here().roots if root[0] != "project"))


def _target(archive: SessionReader, output: str | None) -> Path | None:
    """Return the path of the page, None for stdout; raise `UsageError` for a folder or another session file."""
    from cdo.report.page import NAME
    from cdo.session.reader import SessionFolder

    if output in ("-", "/dev/stdout"):
        return None
    if output:
        target = Path(output)
        if target.is_dir():
            raise UsageError(f"{target} is a folder.", f"Give a file: -o {target / NAME}")
        here = target.parent.resolve()
        within = [folder for folder in (here, *here.parents[: _DEPTH - 1]) if (folder / "session.yaml").is_file()]
        if within and (target.name != NAME or here not in within):
            raise UsageError(
                f"{target} lies in the session {within[0].name}, where only {NAME} is written.",
                "Give a file elsewhere, or none.",
            )
        return target
    return (
        archive.path / NAME
        if isinstance(archive, SessionFolder)
        else Path(f"cdo-{re.sub(r'[^A-Za-z0-9.-]+', '-', archive.name)}-{NAME}")
    )


def _base(archive: SessionReader, target: Path | None) -> str | None:
    """Return the relative URL from the page to the session's folder; None if the session has no folder.

    A page printed to stdout is assumed to be in the working directory.
    """
    from urllib.parse import quote

    from cdo.session.reader import SessionFolder

    if not isinstance(archive, SessionFolder):
        return None
    place = os.path.relpath(archive.path.resolve(), (target.parent if target else Path()).resolve())
    return "" if place == "." else quote(Path(place).as_posix(), errors="surrogateescape")


def deliver(text: str, target: Path | None) -> None:
    """Print `text`, or replace the target file with it, never through a symlink; raise `SessionError`.

    A device or pipe named by the person is written to directly.
    """
    from cdo.files.atomic_files import closing, encodable, explain, kind_of, open_path, write_file

    if target is None:
        click.echo(text, nl=False)
        return
    try:
        if _takes(target):
            with click.open_file(str(target), "wb") as stream:
                click.echo(encodable(text).encode(), file=stream, nl=False)
            return
        with closing(open_path(target.parent, make=True)) as folder:
            kind = kind_of(target.name, folder)
            if kind is not None and not stat.S_ISREG(kind):
                code = errno.ELOOP if stat.S_ISLNK(kind) else errno.EINVAL
                raise OSError(code, "it is not a regular file", target.name)
            write_file(folder, target.name, encodable(text).encode())
    except OSError as error:
        found = explain(error, target)
        known = error.errno in (errno.ELOOP, errno.ENOSPC)
        raise SessionError(found.message, found.hint if known else "Give a file elsewhere with -o.") from None
    print_text(str(target))


def _takes(target: Path) -> bool:
    """True if `target` is a character device or pipe. A symlink is followed only if the path is absolute."""
    try:
        kind = target.stat(follow_symlinks=target.is_absolute()).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(kind) or stat.S_ISFIFO(kind)
