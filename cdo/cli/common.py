"""What the commands share: common options, how they print and how they end.

What others wrote reaches a terminal only so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cdo.core.errors import CdoError, SessionError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from cdo.content.library import Library
    from cdo.planning.settings import Resolved
    from cdo.providers.models import ModelSpec
    from cdo.session.reader import SessionReader

OUT = click.option("--out", metavar="DIR", help="Folder of the sessions (default: tmp at the repository's root).")
JSON = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.", expose_value=False)


def library_here(*, trust_now: bool = False) -> Library:
    """The content visible from the working directory. With `trust_now` the project there is trusted from now on."""
    from cdo.content.library import Library

    return Library.at(Path.cwd(), trust_now=trust_now)


def out_folder(out: str | None) -> Path:
    """The folder that sessions live in: the one given, else the one set, else `tmp` at the repository's root."""
    from cdo.app.session_places import sessions_folder

    return sessions_folder(out, library_here())


def session_folders(out: str | None) -> list[Path]:
    """The folders to look for sessions in: `out_folder`, and the `tmp` here that an older version may have used."""
    folder, here = out_folder(out), Path("tmp")
    more = not out and folder.name == "tmp" and ".." in folder.parts and here.is_dir()
    return [folder, here] if more else [folder]


def all_sessions(out: str | None) -> list[Path]:
    """The directories of all sessions, newest first."""
    from cdo.session.records import newest_first, sessions

    return newest_first(path for folder in session_folders(out) for path in sessions(folder))


def require_allowed_weights(
    specs: Sequence[ModelSpec], session: str, resolved: Resolved, options: Mapping[str, Any]
) -> None:
    """Raise `NeedsHuman` where a session names a model file that the person never named on this machine.

    What the person's command line or settings name is allowed, from now on too, and so is all with --trust. Whoever
    gives --yes is not asked.
    """
    from cdo.app import seats

    seats.allow_weights([spec for spec in specs if options["trust"] or spec.name in resolved.values.model])
    if not options.get("yes"):
        seats.require_allowed_weights(specs, session)


def session_place(name: str, out: str | None) -> Path:
    """The directory of a session by its name or path, whether or not it is there; raise `UsageError`."""
    from cdo.session.records import session_path

    places = [Path(name)] if os.sep in name else [session_path(folder, name) for folder in session_folders(out)]
    return next((place for place in places if place.is_dir()), places[0])


def session_folder(name: str | None, out: str | None) -> Path:
    """The directory of a session by its name or path; the newest without one."""
    if name is None:
        found = all_sessions(out)
        if not found:
            hint = in_batches(out) or 'Begin one: cdo think "Should we …?"'
            raise SessionError(f"There is no session in {out_folder(out)}.", hint)
        return found[0]
    if not Path(name).is_dir():
        name = name.removeprefix("refs/").removeprefix("cdo/")  # as git calls it
    path = session_place(name, out)
    if not path.is_dir():
        hint = "`cdo list --git` shows what there is, in git too."
        raise SessionError(f"There is no session {path}.", in_batches(out, path.name) or hint)
    return path


def in_batches(out: str | None, name: str = "") -> str:
    """Say which batches have sessions, or the one in a folder `name`, and how to reach them; "" if none has."""
    import shlex

    from cdo.core.formatting import one_line
    from cdo.session.records import PREFIX

    folder, shown = out_folder(out), 5
    places = folder.glob("batch-*")
    found = sorted(place for place in places if any(place.glob(name or f"{PREFIX}*")))
    if not found:
        return ""
    names = ", ".join(one_line(place.name.removeprefix("batch-"), 64) for place in found[:shown])
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    batches = f"The batch {names} has" if len(found) == 1 else f"The batches {names}{more} have"
    return f"{batches} {'it' if name else 'sessions'}: add --out {shlex.quote(str(found[0]))}."


def is_session(name: str, out: str | None) -> bool:
    """True if there is a folder of a session with this name."""
    from cdo.session.records import session_path

    try:
        return (session_path(out_folder(out), name) / "session.yaml").is_file()
    except (CdoError, OSError, ValueError):
        return False


def complete_session(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of sessions that begin with `incomplete`, newest first, for a shell's completion."""
    from cdo.session.records import PREFIX

    return completions(
        lambda: (path.name.removeprefix(PREFIX) for path in all_sessions(ctx.params.get("out"))), incomplete
    )


def completions(names: Callable[[], Iterable[str]], incomplete: str) -> list[CompletionItem]:
    """The names that begin with `incomplete`, for a shell's completion; none where they cannot be read."""
    from click.shell_completion import CompletionItem

    try:
        return [CompletionItem(name) for name in names() if name.startswith(incomplete)]
    except CdoError:
        return []


def session_archive(name: str | None, out: str | None) -> SessionReader:
    """A session to look back on, by its name or path; the newest without one. Raises `SessionError`.

    One whose folder is gone is read from git, and that is said.
    """
    from cdo.session.reader import SessionFolder

    try:
        return SessionFolder(session_folder(name, out))
    except (SessionError, UsageError):  # `origin/a` is no name of a folder
        found = _on_branch(name, out) if name else None
        if found is None:
            raise
        from cdo.core.formatting import visible

        click.echo(visible(f"{found.name}: its folder is not there; this is {found.place}."), err=True)
        return found


def _on_branch(name: str, out: str | None) -> SessionReader | None:
    """A session on a branch of the repository that sessions live in, else of the working directory's."""
    from cdo.session.branch_reader import open_branch

    places = (place for place in (out_folder(out), Path()) if place.is_dir())
    return next((found for place in places if (found := open_branch(place, name))), None)


SESSION = click.argument("session", required=False, shell_complete=complete_session)


def print_text(text: str) -> None:
    """Print text that a model may have written: controls made visible."""
    from cdo.core.formatting import visible

    click.echo(visible(text.rstrip("\n")))


def print_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print rows in columns as wide as they need; those numbered in `right` end at the right."""
    from cdo.core.formatting import visible

    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    line = "  ".join(f"{{:{'>' if at in right else '<'}{width}}}" for at, width in enumerate(widths))
    lines = (f"{line.format(*row).rstrip()}\n" for row in shown)
    click.echo("".join(lines), nl=False)


def dumps(value: Any) -> str:
    """`value` as JSON that can be read by people too: what a terminal would act on or cannot show is escaped."""
    narrow = not (sys.stdout.encoding or "").lower().startswith("utf")
    return re.sub(r"[^\n -~]", _escaped, json.dumps(value, indent=2, ensure_ascii=narrow))


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    if char.isprintable():
        return char
    return json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"


def columns(stream: Any) -> int:
    """How many columns there are to write in."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if stream.isatty() or os.environ.get("COLUMNS") else 100


def text_width() -> int:
    """How many columns text on stdout is wrapped to, at most 100; 0 for a pipe, where it is not wrapped."""
    return min(100, columns(sys.stdout)) if sys.stdout.isatty() else 0


def exit_now(code: int) -> NoReturn:
    """End the process with `code`, at once.

    What is left to do has been done: litellm's exit handlers would cost a second, and a question that waits for an
    answer in its thread would abort the interpreter.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that went away
            stream.flush()
    os._exit(code)
