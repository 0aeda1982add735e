"""Reads the question of a run, or the request of a mission: from words, a file or a pipe."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from cdo.cli.common import is_session, library_here
from cdo.core.errors import UsageError

if TYPE_CHECKING:
    from cdo.content.library import Library
    from cdo.planning.arguments import Invocation, Vocabulary

MAX_PROBLEM = 2**20  # bytes


def asked(ctx: click.Context, words: tuple[str, ...], options: Mapping[str, Any], library: Library) -> Invocation:
    """Read `[ARGS] PROBLEM`; a problem that is not there comes from a pipe. Raises `UsageError`."""
    from cdo.planning import arguments as grammar

    vocabulary = grammar.vocabulary(library.names("presets"), library.names("modes"))
    after = ctx.meta.get("cdo.after")
    _not_waiting(words, vocabulary.words(), library)
    require_question(words, after, vocabulary, options["out"])
    try:
        found = grammar.parse(words, vocabulary, after_dashes=after)
    except grammar.NoProblem:
        if sys.stdin.isatty():
            raise
        return grammar.parse([*words, "-"], vocabulary)
    if found.problem != "-" and not options["quiet"] and _unread_pipe():
        click.echo(
            "What comes by stdin is not read: save it in a file and give that with -c FILE, "
            "or write - for the question.",
            err=True,
        )
    return found


def _unread_pipe() -> bool:
    """True if stdin is a pipe with something in it by now, as in `git diff | cdo think "Is this safe?"`."""
    try:
        count = bytearray(4)
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            fcntl.ioctl(0, termios.FIONREAD, count)
        return any(count)
    except OSError:
        return False


def given_request(words: Sequence[str], after: Sequence[str] | None, library: Library, out: str | None) -> str:
    """Return the request of `cdo cabal` from its arguments, stdin (`-`) or a file (`@FILE`); raise `UsageError`.

    `after` are the words after a `--`, None if there is none.
    """
    from cdo.planning import arguments as grammar

    vocabulary = grammar.vocabulary(library.names("presets"), library.names("modes"))
    text = grammar.request(words, vocabulary, after_dashes=after)
    require_question(words, after, vocabulary, out, "cdo cabal")
    return given_text(text)


def require_question(
    words: Sequence[str], after: Sequence[str] | None, vocabulary: Vocabulary, out: str | None, program: str = "cdo"
) -> None:
    """Raise `UsageError` if the first word of the question is more likely a mistyped command."""
    from cdo.content.schemas import CommandWords
    from cdo.planning import mistyped

    table = library_here().read(mistyped.TABLE, CommandWords)[0]
    known = mistyped.KnownWords(_commands(), vocabulary, table, lambda name: is_session(name, out), program)
    known.require_question(words, after)


def _not_waiting(words: Sequence[str], vocabulary: Sequence[str], library: Library) -> None:
    """Raise `ContentError` if the words name a preset, mode or domain of a project that is not trusted."""
    after_exec = False
    for word in chain.from_iterable(word.split(",") for word in words):
        for folder in ("domains",) if after_exec else ("presets", "modes"):
            if f"{folder}/{word}" in library.waiting() and not library.has(f"{folder}/{word}"):
                library.find(f"{folder}/{word}")
        if word not in vocabulary and not after_exec:
            return
        after_exec = word == "exec"


def _commands() -> list[str]:
    """Return the names of all commands."""
    parent = click.get_current_context().find_root().command
    return list(parent.commands) if isinstance(parent, click.Group) else []


def given_text(words: str) -> str:
    """Return a text that is given as words, as `@FILE` or by stdin (`-`); raise `UsageError`."""
    from cdo.planning.arguments import problem_source

    source, value = problem_source(words)
    try:
        if source == "stdin":
            text = _bounded(sys.stdin.buffer)
        elif source == "file":
            with Path(value).open("rb") as file:
                text = _bounded(file)
        else:
            text = value
            text.encode()  # fails if an argument contains bytes that are not UTF-8
    except UnicodeError:
        raise UsageError("The problem is not UTF-8 text.", "Convert it first.") from None
    except OSError as error:
        raise UsageError(f"The file {value} cannot be read: {error.strerror}.", "Check the path.") from None
    if not text.strip():
        why = {"stdin": ": nothing came by stdin", "file": f": the file {value} is empty", "text": ""}[source]
        raise UsageError(f"There is no problem to deliberate{why}.", 'Give one: cdo think "Should we …?"')
    return text.strip()


def _bounded(file: BinaryIO) -> str:
    """Return the text of a file or pipe, which may never end; raise `UsageError` if it is too long for a problem."""
    data = file.read(MAX_PROBLEM + 1)
    if len(data) > MAX_PROBLEM:
        raise UsageError(
            f"The problem is longer than {MAX_PROBLEM:,} bytes.",
            "State the question in a few pages, and give long material with -c FILE.",
        )
    return data.decode("utf-8-sig")
