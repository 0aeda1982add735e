"""Implements the commands about many runs: list, search, cost. They read session files and send nothing."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo.cli.common import (
    JSON,
    OUT,
    VERBOSE,
    columns,
    complete_session,
    dumps,
    in_batches,
    library_here,
    print_table,
    session_archive,
    session_folders,
)
from cdo.core.errors import UsageError

if TYPE_CHECKING:
    from cdo.history.costs import Sum
    from cdo.history.index_entries import IndexEntry
    from cdo.history.search import Hit
    from cdo.history.search_query import RunFilter

STATUSES = (
    "converged", "max_turns", "stopped", "done", "unresolved", "survives", "changed", "unclear", "finished",
    "unfinished", "paused", "answered", "waiting", "running", "damaged",
)  # fmt: skip
_BROKEN_OFF = ("running", "failed", "budget", "interrupted")  # statuses in the last commit of an unfinished run
BY = ("session", "model", "role", "kind", "turn", "day", "preset")
_DROPPED = ("cost", "begun", "sure", "preset")  # columns left out on a narrow terminal, in this order
_PROBLEM = 20  # minimum width of the problem's column
_LEFT_OUT = re.compile(r"-(?!n[0-9]+$)\w{2,}[\w*-]*")  # `-word`, but not an option of `cdo search`
LIMIT = click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show at most N sessions.")


def _filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that filter sessions."""
    for option in (
        LIMIT,
        click.option("--until", metavar="DATE", help="Only sessions that began by this date."),
        click.option(
            "--since",
            metavar="DATE",
            help="Only sessions that began since: 2026-11-22, today, yesterday, 24h, 7d.",
        ),
        click.option("--status", metavar="NAME", help=f"Only sessions that are {', '.join(STATUSES)}."),
        click.option("--preset", metavar="NAME", help="Only sessions with this preset, mode or domain."),
    ):
        function = option(function)
    return function


# -- list ------------------------------------------------------------------------------------------


@click.command("list")
@click.argument("text", nargs=-1, metavar="[TEXT]…")
@_filters
@click.option("--git", is_flag=True, help="List also sessions that are only in git.")
@OUT
@JSON
@VERBOSE
def list_(
    text: tuple[str, ...], git: bool, out: str | None, as_json: bool, limit: int | None, **options: str | None
) -> None:
    """List sessions, newest first.

    With TEXT, list only sessions whose problem, decision or name contains all its words.
    """
    from cdo.history import run_index
    from cdo.history.search_query import filtered

    folder, *others = session_folders(out)
    words = tuple(word for argument in text for word in argument.split())
    most = None if git or words or any(options.values()) else limit
    rows = _in_order([run_index.rows(place, most) for place in (folder, *others)])
    if git:
        rows = _with_branches(rows, folder)
    chosen = filtered(rows, _wanted(options, rows, words))[:limit]
    if as_json:
        click.echo(dumps(chosen))
    elif chosen:
        _print_rows(chosen)
    else:
        none = f"There is no session in {folder}. {in_batches(out)}".rstrip()
        _say(f"None of the sessions in {folder} is like that." if rows else none)


def _with_branches(rows: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Add rows for sessions that exist only in git; return all, newest first."""
    from cdo.session import branch_reader

    there = {row["session"] for row in rows}
    kept = {item.name: item for place in (Path(), folder) if place.is_dir() for item in branch_reader.kept(place)}
    more = [
        {
            "session": item.name,
            "path": item.branch,
            "created": item.created or item.date,
            "preset": item.preset.partition(",")[0],
            "mode": item.preset.partition(",")[2] or None,
            "status": "unfinished" if item.status in _BROKEN_OFF else item.status,
            "confidence": item.confidence,
            "cost": item.cost,
            "problem": item.problem,
        }
        for item in kept.values()
        if item.name not in there
    ]
    return _in_order([rows, more])


def _in_order(parts: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of several places, newest first; those of one place stay as they are."""
    from cdo.history.search_query import created

    if len(parts) == 1:
        return list(parts[0])
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted([row for part in parts for row in part], key=lambda row: created(row) or oldest, reverse=True)


def _wanted(options: dict[str, str | None], rows: Sequence[dict[str, Any]], words: tuple[str, ...] = ()) -> RunFilter:
    """Build the filter from the options; raise `UsageError`."""
    from cdo.history.search_query import RunFilter, moment

    kind, status, since, until = (options[key] or "" for key in ("preset", "status", "since", "until"))
    if status:
        _known(status, "status", [*STATUSES, *(str(row["status"]) for row in rows)])
    if kind:
        library = library_here()
        there = [name for folder in ("presets", "modes", "domains") for name in library.names(folder)]
        used = [str(row[key]) for row in rows for key in ("preset", "mode", "domain") if row.get(key)]
        _known(kind, "preset, mode or domain", [*there, *used])
    now = datetime.now()
    first = moment(since, now).astimezone() if since else None
    last = moment(until, now, end=True).astimezone() if until else None
    return RunFilter(words, kind, status, first, last)


def _known(name: str, what: str, names: Sequence[str]) -> None:
    """Raise `UsageError` if a name is not one of `names`."""
    import difflib

    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    every = ", ".join(dict.fromkeys(names))
    raise UsageError(
        f"`{name[:40]}` is not a {what}.", f"{f'Did you mean {near[0]}? ' if near else ''}There are {every}."
    )


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table: with a head, dates and the terminal's width on a terminal, plain otherwise."""
    if not sys.stdout.isatty():
        print_table([[*_cells(row), _short(row["problem"], 80)] for row in rows])
        return
    from cdo.core.formatting import one_line, shorten_middle, visible

    name, *others = ["session", "preset", "status", "sure", "cost"]
    table = [[name, "begun", *others]]
    for row in rows:
        name, *others = _cells(row)
        table.append([visible(name), _begun(row), *others])
    width, kept = columns(sys.stdout), list(zip(*table, strict=True))
    for title in _DROPPED:
        if _taken(kept) + _PROBLEM > width:
            kept = [column for column in kept if column[0] != title]
    if (over := _taken(kept) + _PROBLEM - width) > 0:
        most = max(8, max(map(len, kept[0])) - over)
        kept[0] = tuple(shorten_middle(cell, most) for cell in kept[0])
    room = max(1, width - _taken(kept))
    problems = ["problem", *(one_line(row["problem"]) for row in rows)]
    print_table([[*cells, _short(problem, room)] for *cells, problem in zip(*kept, problems, strict=True)])


def _taken(table: Sequence[Sequence[str]]) -> int:
    """Return the width of these columns with the gaps after them."""
    return sum(max(map(len, column)) + 2 for column in table)


def _cells(row: dict[str, Any]) -> list[str]:
    from cdo.core.formatting import money, one_line

    cost = money(row["cost"]) if "cost" in row else ""
    preset, mode = row.get("preset", ""), row.get("mode")
    kind = f"{preset},{mode}" if mode and mode != preset else preset
    return [row["session"], one_line(kind, 24), one_line(row["status"], 24), _sure(row), cost]


def _sure(row: dict[str, Any]) -> str:
    sure = row.get("confidence")
    return f"{sure:.2f}" if isinstance(sure, (int, float)) else ""


def _begun(row: dict[str, Any]) -> str:
    from cdo.history.search_query import created

    begun = created(row)
    return f"{begun.astimezone():%Y-%m-%d}" if begun else ""


def _short(text: str, width: int) -> str:
    """Shorten `text` to at most `width` columns of a terminal."""
    if text[: width + 1].isascii():
        return text if len(text) <= width else f"{text[: width - 1]}…"
    ends = list(accumulate(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text[: width + 1]))
    if len(text) <= width and ends[-1] <= width:
        return text
    return f"{text[: bisect_left(ends, width)]}…"


# -- search ----------------------------------------------------------------------------------------


class _SearchCommand(click.Command):
    """A command that treats `-word` as a word to exclude, not as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        without = [word for word in args[:split] if _LEFT_OUT.fullmatch(word)]
        others = [word for word in args[:split] if word not in without]
        return super().parse_args(ctx, [*others, "--", *without, *args[split + 1 :]])


@click.command(cls=_SearchCommand)
@click.argument("words", nargs=-1, required=True, metavar="WORDS…")
@LIMIT
@OUT
@JSON
@VERBOSE
def search(words: tuple[str, ...], limit: int | None, out: str | None, as_json: bool) -> None:
    """Search past runs: questions, decisions, arguments. The best match comes first.

    A session must contain all words, in any grammatical form. "two words" is a phrase, -word excludes a word, word*
    matches every word that begins so. Prints ten sessions, or N.
    """
    from cdo.history import search as fulltext
    from cdo.history.search_query import match

    folders, expression, most = session_folders(out), match(words), limit or 10
    hits = [hit for place in folders for hit in fulltext.search(place, expression, most)][:most]
    if as_json:
        return click.echo(dumps([_hit(hit) for hit in hits]))
    for hit in hits:
        _print_hit(hit)
    if not hits:
        phrase = any(len(argument.split()) > 1 for argument in words)
        hint = " Words in quotes are a phrase; without quotes each is looked for." if phrase else ""
        none = f"No session in {folders[0]} matches.{hint} {in_batches(out)}".rstrip()
        _say(none if expression else "There is no word to look for.")
    return None


def _hit(hit: Hit) -> dict[str, Any]:
    from cdo.history.search import MARKS

    keys = ("session", "path", "created", "status", "confidence", "problem", "decision")
    passage = "".join(char for char in hit.passage if char not in MARKS)
    return {**{key: hit.row.get(key) for key in keys}, "where": hit.where, "passage": passage}


def _print_hit(hit: Hit) -> None:
    from cdo.core.formatting import columns as line
    from cdo.core.formatting import one_line, visible

    row = hit.row
    parts = line(visible(row["session"]), _begun(row), one_line(row["status"], 24), _sure(row))
    width = columns(sys.stdout)
    click.echo(line(parts, _short(one_line(row["problem"]), max(16, width - len(parts) - 2))))
    click.echo(f"    {one_line(hit.where, 40)}: {_marked(hit.passage)}")


def _marked(passage: str) -> str:
    """Return a passage with its matches in bold, if stdout is a terminal that can show it."""
    from cdo.core.formatting import visible
    from cdo.history.search import MARKS

    begin, end = MARKS
    bold = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
    parts = re.split(f"[{begin}{end}]", passage)
    shown = (
        click.style(visible(part), bold=True) if bold and at % 2 else visible(part) for at, part in enumerate(parts)
    )
    return "".join(shown)


# -- cost ------------------------------------------------------------------------------------------


@click.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]…", shell_complete=complete_session)
@click.option("--by", type=click.Choice(BY), default="session", metavar="KEY", help=f"Sum by {', '.join(BY)}.")
@_filters
@OUT
@JSON
@VERBOSE
def cost(
    sessions: tuple[str, ...], by: str, out: str | None, as_json: bool, limit: int | None, **options: str | None
) -> None:
    """Add up calls, tokens and cost of sessions.

    Without a name, add up all sessions.
    """
    from cdo.history import costs, run_index
    from cdo.history.search_query import filtered

    folders = session_folders(out)
    every = (item for place in folders for item in run_index.entries(place))
    found = _named(sessions, out) if sessions else list(every)
    rows = [entry.row for entry in found]
    chosen = filtered(rows, _wanted(options, rows))[:limit]
    damaged = [str(row["session"]) for row in chosen if row["status"] == "damaged"]
    taken = {row["path"] for row in chosen if row["status"] != "damaged"}
    entries = [entry for entry in found if entry.row["path"] in taken]
    sums = costs.summed(entries, by)
    total = sum(sums, costs.Sum("total"))
    if damaged:
        _say(f"Left out, as they are damaged: {', '.join(damaged)}.")
    if as_json:
        body = [{by: item.key or None, **item.data()} for item in sums]
        click.echo(dumps({"by": by, "sums": body, "total": total.data(), "damaged": damaged}))
    elif sums:
        _print_sums(by, sums, total)
    else:
        _say(f"{folders[0]} holds no sessions to add up.")


def _named(names: Sequence[str], out: str | None) -> list[IndexEntry]:
    """Return the index entries of these sessions, each once; a session without a folder is read from git."""
    from cdo.history.index_entries import entry, look
    from cdo.session.reader import SessionFolder

    found: dict[str, IndexEntry] = {}
    for archive in (session_archive(name, out) for name in names):
        if isinstance(archive, SessionFolder):
            found.setdefault(os.path.realpath(archive.path), entry(archive.path))
        else:
            found.setdefault(archive.place, look(archive))
    return list(found.values())


def _print_sums(by: str, sums: Sequence[Sum], total: Sum) -> None:
    """Print a table with its total; the columns `no price` and `shared` are left out if all zero."""
    head = [by, "calls", "tokens", "cost"]
    rows = [
        [item.key or "-", f"{item.spent.calls:,}", f"{item.spent.tokens:,}", item.price] for item in (*sums, total)
    ]
    for title, counts in (
        ("no price", [item.spent.unpriced for item in (*sums, total)]),
        ("shared", [item.shared for item in (*sums, total)]),
    ):
        if any(counts):
            head.append(title)
            rows = [[*row, f"{count:,}" if count else ""] for row, count in zip(rows, counts, strict=True)]
    print_table([head, *rows], right=range(1, len(head)))
    if total.shared:
        _say("Shared: calls that a fork took over from another session, where they are counted.")


def _say(text: str) -> None:
    from cdo.core.formatting import visible

    click.echo(visible(text), err=True)
