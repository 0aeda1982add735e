"""Defines the command line group and its entry point, which turns errors into messages and exit codes.

Results (or `--json`) go to stdout, everything else to stderr. Heavy modules are imported inside functions, so that
`cdo --help` needs only click.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from cdo import __version__
from cdo.cli.commands import Commands
from cdo.cli.common import exit_now
from cdo.cli.help import COMMANDS, EPILOG, asks_for_help, write_groups
from cdo.core.errors import CdoError, Interrupted, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# -- the shape of the command line -----------------------------------------------------------------


class Cli(click.Group):
    """A group whose default command is `run`: arguments that do not begin with a command go to `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "-h", "--version"}
        first = args[0] if args else ""
        if first == "help" and (meant := asks_for_help(args[1:], list(self.commands))):
            args = meant
        elif args == ["version"]:
            args = ["--version"]
        elif first not in self.commands and not (first in own and len(args) == 1):
            if not args and (ctx.resilient_parsing or not _piped()):
                args = [] if ctx.resilient_parsing else ["--help"]
            elif any(word in own for word in args[:1]):
                args = args[:1]
            else:
                args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups, each with one line."""
        limit = max(20, formatter.width - 6 - max(map(len, self.commands)))
        rows = {name: (name, command.get_short_help_str(limit)) for name, command in self.commands.items()}
        write_groups(formatter, rows, COMMANDS, "Other")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands and options, and the words that can begin a run."""
        from click.shell_completion import CompletionItem

        from cdo.content.library import Library
        from cdo.planning.arguments import EXEC, MODIFIERS

        library = Library.at(Path.cwd())
        words = [*library.names("presets"), *MODIFIERS, *library.names("modes"), EXEC]
        begun = [CompletionItem(word) for word in dict.fromkeys(words) if word.startswith(incomplete)]
        return [*super().shell_complete(ctx, incomplete), *begun]


def _piped() -> bool:
    """True if the problem may come from stdin: a pipe, a socket or a file, neither a terminal nor /dev/null."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


@click.group(
    cls=Cli,
    commands=Commands(),
    epilog=EPILOG,
    options_metavar="",
    subcommand_metavar="[ARGS] PROBLEM… | COMMAND …",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cdo")
def cli() -> None:
    """Turn one question into a decision worth reading.

    `cdo [ARGS] PROBLEM…` sends the problem to several independent voices, lets a synthesis decide each next turn,
    and ends with FINAL.md. ARGS are comma-separated: a preset (quick, think, deep, full, debug; none: the problem
    decides), modifiers (hitl, adaptive, team, bd, lev-exec), a mode (parliament); `exec TAG` names a domain.

    `cdo help think` explains a preset, modifier or mode, `cdo help resume` a command, `cdo run --help` the options.
    """


def _fix_streams() -> None:
    """Open closed standard streams on /dev/null (`cdo … >&-`), so that no other file gets their number.

    Characters that a stream's encoding lacks are escaped, so that printing a paid result cannot fail.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit. Only this function turns errors into messages and exit codes."""
    words = list(sys.argv[1:] if args is None else args)
    code = 1
    try:
        _fix_streams()
        if instruction := os.environ.get("_CDO_COMPLETE"):
            from click.shell_completion import shell_complete

            exit_now(shell_complete(cli, {}, "cdo", "_CDO_COMPLETE", instruction))
        # Not `cli.main`, which handles closed pipes and early exits itself.
        with cli.make_context("cdo", words.copy()) as context:
            cli.invoke(context)
        code = 0
    except CdoError as error:
        code = _explain(error, words)
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.ctx.get_help() if error.ctx else "")
        code = 2
    except click.ClickException as error:
        code = _explain(_misused(error, words), words)
    except (click.Abort, EOFError, KeyboardInterrupt):
        _say("cdo: Stopped.")
        code = 130
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except BrokenPipeError:
        code = 0
    except OSError as error:
        from cdo.files.atomic_files import explain

        if isinstance(error, FileNotFoundError) and error.filename is None:
            gone = UsageError("The folder you are in does not exist any more.", "Change to one that does: cd …")
            code = _explain(gone, words)
        elif error.filename is None:
            told = explain(error, "The output")
            code = _explain(type(told)(told.message, "Send the output elsewhere; nothing recorded is lost."), words)
        else:
            code = _explain(explain(error, str(error.filename)), words)
    except Exception as error:
        code = _explain(
            CdoError(
                f"Internal error: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
                "Nothing recorded is lost. Run again with -v for the traceback, and please report it.",
            ),
            words,
        )
    exit_now(code)


_SEATING = 'cdo think --seat human:NAME "…"'
# Why a command has no --seat, and what to do.
_SEATED = {
    "batch": f"No person can answer every turn of every row: ask one question by itself, {_SEATING}",
    "serve": "A chat client gets no form to fill in. `cdo mcp` shows one, where a client asks for a `seat`.",
    "mcp": "Each run names its own people: a client gives your name as `seat` to the tool `deliberate`.",
    "resume": f"Who sits is part of the plan, which a resume keeps: begin another run, {_SEATING}",
    "fork": f"Who sits is part of the plan, which a fork keeps; --without leaves somebody out. Or begin: {_SEATING}",
}


def _misused(error: click.ClickException, words: Sequence[str]) -> UsageError:
    """Convert click's error about the arguments into a `UsageError` with a hint."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "cdo run"
    hint = f"`{path} --help` shows how it is called."
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        hint = f"Did you mean {error.possibilities[0]}? {hint}"
    if isinstance(error, click.NoSuchOption) and error.option_name == "--seat":
        hint = _SEATED.get(path.split()[1], f"A person gets a seat where a run begins: {_SEATING}")
    elif isinstance(error, click.NoSuchOption) and path == "cdo run":
        hint = f"{hint} If it belongs to the problem, put `--` before the problem."
    elif path == f"cdo {words[0] if words else ''}" and len(words) > 2 and words[1][:1] != "-":
        hint = f"{hint} To deliberate a problem that begins with this word, quote the problem."
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    plain = " ".join(message.split())
    for kind, word in (("float", "number"), ("integer", "whole number")):  # click says "float range"
        plain = plain.replace(f"is not a valid {kind} range.", f"is not a {word}.")
    return UsageError(plain, hint)


def _explain(error: CdoError, words: Sequence[str]) -> int:
    """Print an error and its hint; return the exit code. After a stop signal, any error counts as the stop."""
    from cdo.core.formatting import visible
    from cdo.core.signals import stopped

    if stopped() and not isinstance(error, Interrupted):
        _say("cdo: Stopped.")
        return Interrupted.exit_code

    if {"-v", "--verbose"} & set(words):
        import traceback

        _say(visible(traceback.format_exc().rstrip("\n")))

    def sentence(text: str) -> str:
        return visible(text if text.endswith((".", "?", "!", "…")) else f"{text}.")

    _say(f"cdo: {sentence(error.message)}")
    if error.hint:
        _say(f"     {sentence(error.hint)}")
    return error.exit_code


def _say(text: str) -> None:
    """Print to stderr; ignore failures to write, since the exit code still reports the error."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)
