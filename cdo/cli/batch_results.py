"""Implements `cdo batch status`, `report` and `merge`, which look at batches and send nothing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from cdo.cli.common import JSON, OUT, VERBOSE, dumps, out_folder, print_text
from cdo.core.errors import SessionError
from cdo.core.formatting import visible


def batch_place(name: str, out: str | None) -> Path:
    """Return the folder of a batch by its name or path; raise `UsageError`."""
    from cdo.app.batch.folder import batch_path

    return Path(name) if os.sep in name else batch_path(out_folder(out), name)


@click.command("status")
@click.argument("name", required=False)
@OUT
@JSON
@VERBOSE
def batch_status(name: str | None, out: str | None, as_json: bool) -> None:
    """Show how far a batch is, and what it cost.

    It counts the items by status, names the causes of failures, and says who runs the batch. Without NAME it shows
    every batch on a line.
    """
    from cdo.core.formatting import paid, pluralise

    if name is None:
        return _all_batches(out, as_json=as_json)
    told = _standing(batch_place(name, out))
    if as_json:
        return click.echo(dumps(told))
    print_text(_headline(told))
    for status, count in told["statuses"].items():
        print_text(f"  {count:>7,}  {status}")
    if told["open"]:
        print_text(f"  {told['open']:>7,}  open")
    if told["waiting"]:
        print_text(f"  {told['waiting']:>7,}  waiting for provider batches, among these")
    print_text(paid(told["cost"], pluralise(told["calls"], "call")))
    for cause, count in list(told["causes"].items())[:5]:
        print_text(f"failed {pluralise(count, 'time')}: {cause}")
    failed = " --retry-failed" if told["failed_waiting"] else ""
    if (told["open"] or failed) and not told["running"]:
        print_text(f"`cdo batch resume {told['batch']}{failed}` goes on.")
    return None


def _headline(told: Mapping[str, Any]) -> str:
    """Say how many items of a batch have ended, and who runs it."""
    from cdo.core.formatting import pluralise

    owner = told["owner"]
    where = f"running on {owner['host']} (process {owner['pid']})" if told["running"] else "not running"
    return f"{told['batch']}: {told['items'] - told['open']:,} of {pluralise(told['items'], 'item')} ended; {where}"


def _all_batches(out: str | None, *, as_json: bool) -> None:
    """Print every batch on a line."""
    from cdo.app.batch.folder import HEAD, PREFIX

    folder = out_folder(out)
    found = []
    for head in sorted(folder.glob(f"{PREFIX}*/{HEAD}")):
        try:
            found.append(_standing(head.parent))
        except SessionError as error:
            click.echo(visible(f"{head.parent.name.removeprefix(PREFIX)}: {error.message}"), err=True)
    if as_json:
        return click.echo(dumps(found))
    for told in found:
        failed = f"; {told['failed']:,} failed" if told["failed"] else ""
        waits = f"; {told['waiting']:,} waiting for provider batches" if told["waiting"] else ""
        print_text(f"{_headline(told)}{failed}{waits}")
    if not found:
        click.echo(visible(f"There is no batch in {folder}."), err=True)
    return None


def unfinished(out: Path) -> list[str]:
    """Return a phrase for each batch in `out` that no process runs and that can go on, with the command for it."""
    from cdo.app.batch.folder import HEAD, PREFIX

    told = []
    for head in sorted(out.glob(f"{PREFIX}*/{HEAD}")):
        try:
            told.append(_left(head.parent))
        except SessionError as error:
            told.append(error.message)
    return [phrase for phrase in told if phrase]


def _left(path: Path) -> str:
    """Say what is left of a batch and how it goes on; "" if it is complete or runs. Raises `SessionError`."""
    from cdo.app.batch.folder import PREFIX, in_use, read_head, read_items, read_results
    from cdo.app.batch.submitted import at_providers
    from cdo.core.formatting import pluralise

    if in_use(path):
        return ""
    name, head, results = path.name.removeprefix(PREFIX), read_head(path), read_results(path)
    ended = {ident for ident, result in results.items() if not result.failed}
    waits = next(at_providers(path, (item for item in read_items(path, head) if item.id not in ended)), None)
    if not (left := head.count - len(results)) and not waits:
        return ""
    why = ", calls wait at a provider" if waits else ""
    failed = " --retry-failed" if waits and waits.id in results else ""
    return f"{name}: {left:,} of {pluralise(head.count, 'item')} open{why}; `cdo batch resume {name}{failed}` goes on"


def _standing(path: Path) -> dict[str, Any]:
    """Return how the batch at `path` stands; raise `SessionError`."""
    from cdo.app.batch.folder import PREFIX, in_use, read_head, read_items, read_results
    from cdo.app.batch.running import used_so_far
    from cdo.app.batch.submitted import at_providers
    from cdo.core.formatting import one_line

    head, results = read_head(path), read_results(path)
    statuses = Counter(ended.status for ended in results.values())
    causes = Counter(one_line(ended.error, 200) for ended in results.values() if ended.failed)
    used = used_so_far(path, results, (item for item in read_items(path, head) if item.id not in results))
    ended = {ident for ident, result in results.items() if not result.failed}
    waits = list(at_providers(path, (item for item in read_items(path, head) if item.id not in ended)))
    return {
        "batch": path.name.removeprefix(PREFIX), "path": str(path), "file": head.file, "created": head.created,
        "running": in_use(path), "owner": to_builtins(head.owner), "shard": head.shard and to_builtins(head.shard),
        "items": head.count, "open": head.count - len(results), "waiting": len(waits), "failed": statuses["failed"],
        "failed_waiting": sum(item.id in results for item in waits),
        "statuses": dict(statuses.most_common()), "causes": dict(causes.most_common()),
        "calls": used.calls, "tokens": used.tokens, "cost": used.known_cost,
    }  # fmt: skip


@click.command("report")
@click.argument("name")
@click.option(
    "-o", "--output", metavar="FILE", help="File to write (default: report.html in the batch; -: standard output)."
)
@OUT
@VERBOSE
def batch_report(name: str, output: str | None, out: str | None) -> None:
    """Write a batch as one HTML page.

    It shows outcomes, costs and outliers, and every item with a link to its session.
    """
    from urllib.parse import quote

    from cdo.app.batch.folder import read_head
    from cdo.app.batch.table import table_rows
    from cdo.cli.report import deliver, trusted_library
    from cdo.report.batch_page import batch_page
    from cdo.report.page import NAME

    path = batch_place(name, out)
    told, rows = _standing(path), list(table_rows(path, read_head(path)))
    target = None if output == "-" else Path(output) if output else path / NAME
    place = os.path.relpath(path.resolve(), (target.parent if target else Path()).resolve())
    base = "" if place == "." else quote(Path(place).as_posix(), errors="surrogateescape")
    deliver(batch_page(told, rows, base, trusted_library()), target)


@click.command("merge")
@click.argument("name")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER…")
@OUT
@JSON
@VERBOSE
def batch_merge(name: str, folders: tuple[str, ...], out: str | None, as_json: bool) -> None:
    """Join batches, such as the shards of one, into the batch NAME.

    Each FOLDER is that of a batch, or its name. Items, results and sessions are copied; the folders stay as they are.
    """
    from cdo.app.batch import table
    from cdo.app.batch.folder import BatchFolder, read_results
    from cdo.app.batch.merging import merge
    from cdo.core.formatting import pluralise
    from cdo.security.secrets import redactor

    path, redact = batch_place(name, out), redactor(os.environ)
    head, notes = merge(path, [batch_place(folder, out) for folder in folders], redact)
    folder = BatchFolder.take(path, redact, make=False)
    try:
        folder.write(table.NAME, table.as_json_lines(path, head))
    finally:
        folder.close()
    for note in notes:
        click.echo(visible(note), err=True)
    ended = len(read_results(path))
    if as_json:
        told = {"batch": name, "path": str(path), "items": head.count, "ended": ended, "remarks": notes}
        click.echo(dumps({**told, "table": str(path / table.NAME)}))
    else:
        print_text(f"{pluralise(head.count, 'item')}, {ended:,} ended\nTable: {path / table.NAME}")
