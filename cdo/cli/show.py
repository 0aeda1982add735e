"""Implements the commands `show` and `final`. Sends nothing."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from cdo.cli.common import (
    JSON,
    OUT,
    SESSION,
    VERBOSE,
    columns,
    dumps,
    print_table,
    print_text,
    session_archive,
    text_width,
)
from cdo.core.errors import SessionError, UsageError
from cdo.core.mission_names import MODE

if TYPE_CHECKING:
    from cdo.core.events import ProductData
    from cdo.session.reader import SessionReader

OVERVIEW = (
    "session", "path", "created", "forked", "preset", "mode", "modifiers", "domain", "models", "rounds", "calls",
    "tokens", "cost", "deliberations", "status", "waits", "awaits", "question", "confidence", "problem",
)  # fmt: skip


@click.command()
@SESSION
@click.argument("name", required=False)
@OUT
@JSON
@VERBOSE
def show(session: str | None, name: str | None, out: str | None, as_json: bool) -> None:
    """Show a session, or one file or call of it.

    `cdo show` takes the newest session, `cdo show SESSION t1-critic` shows one file, also in a folder of the session
    (`products/p4-api/v7`). With --json a call is shown with every recorded attempt: request, response, usage, cost,
    times.
    """
    from cdo.history.index_entries import look

    archive = session_archive(session, out)
    if session and name:
        return _show_one(archive, session, name.removesuffix(".md"), as_json)
    row = look(archive).row
    calls = _calls(archive.records())
    if row["mode"] == MODE:
        row |= _stands(archive, row)
    elif row["status"] in ("paused", "answered", "unfinished", "waiting", "running"):
        row |= _awaits(archive)
    if as_json:
        click.echo(dumps({**row, "ledger": calls}))
        return None
    from cdo.core.formatting import money

    row["cost"] = money(row["cost"])
    if row["mode"] == MODE:
        nested = row["deliberations"]
        row["deliberations"] = [f"{item['session']} (paid there: {money(item['cost'])})" for item in nested]
        row["mode"] = None
    for key in OVERVIEW:
        if (value := row.get(key)) not in (None, []):
            print_text(f"{key + ':':12}{', '.join(value) if isinstance(value, list) else value}")
    if products := row.get("products"):
        click.echo()
        print_table([["product", "status", "version", "owner", "verdict", ""], *map(_product_row, products)])
    if calls:
        click.echo()
        head = ["call", "attempts", "model", "seconds", "tokens", "cost", ""]
        table = [head, *(_ledger_row(call, money(call["cost"])) for call in calls)]
        print_table(_narrowed(table, 2), right=(1, 3, 4))
    return None


def _narrowed(table: list[list[str]], column: int) -> list[list[str]]:
    """Return a table whose `column` is shortened as far as a terminal needs to show each row on one line.

    In a pipe nothing is shortened. The last column is left out of the count, since few rows have a text there.
    """
    from cdo.core.formatting import shorten_middle

    if not sys.stdout.isatty():
        return table
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)][:-1]
    most = max(12, widths[column] - max(0, sum(widths) + 2 * (len(widths) - 1) - columns(sys.stdout)))
    return [[*row[:column], shorten_middle(row[column], most), *row[column + 1 :]] for row in table]


def _stands(archive: SessionReader, row: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a mission: its products, and the team's open question to the person."""
    from cdo.cabal.files import status
    from cdo.cabal.reconstruction import retrace
    from cdo.core.events import QuestionAsked
    from cdo.terminal.run_state import asking

    found: dict[str, Any] = {"products": status.products(archive)}
    if row["status"] in ("paused", "answered", "unfinished"):
        with contextlib.suppress(SessionError, ValueError, LookupError, TypeError):  # informational only
            if question := retrace(archive).question:
                found["question"] = asking(QuestionAsked(question=question.question, options=question.options))
    return found


def _awaits(archive: SessionReader) -> dict[str, Any]:
    """Return what people have to do before a deliberation goes on; {} if it waits for nobody."""
    from cdo.history.pending import open_seats, pending, seat_standing

    found = [seat_standing(archive, item) for item in open_seats(archive)]
    if not found and (asked := pending(archive)):
        found = [f"your decision on {archive.place}/{asked.file}"]
    return {"awaits": found} if found else {}


def _product_row(item: ProductData) -> list[str]:
    from cdo.core.formatting import one_line

    name = "  " * item["depth"] + one_line(item["name"], 60)
    version = f"{item['version']} ({item['version_id']})" if item["version"] else ""
    blocked = f"✗ {one_line('; '.join(item['blocked']), 100)}" if item["blocked"] else ""
    return [name, item["status"], version, one_line(item["owner"], 20), item["verdict"], blocked]


def _ledger_row(call: dict[str, Any], cost: str) -> list[str]:
    seconds, tokens = f"{call['seconds']:.1f}", f"{call['tokens']:,}"
    shared = f"from {call['from']}" if "from" in call else ""
    last = ", ".join(filter(None, (call["last_fault"], shared)))
    return [call["call"], str(call["attempts"]), call["model"], seconds, tokens, cost, last]


def _calls(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ledger: the usage of each call over all its attempts."""
    found: dict[str, dict[str, Any]] = {}
    empty = {"attempts": 0, "seconds": 0.0, "tokens": 0, "cost": 0.0}
    for record in records:
        if record["kind"] != "exchange":
            continue
        row = found.setdefault(record["call"], {"call": record["call"], "model": record["model"], **empty})
        usage = record.get("usage") or {}
        row["attempts"] += 1
        row["model"] = record["model"]
        row["seconds"] = round(row["seconds"] + record.get("seconds", 0.0), 3)
        row["tokens"] += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        if usage:
            row["cost"] = None if row["cost"] is None or record["cost"] is None else row["cost"] + record["cost"]
        row["last_fault"] = (record.get("fault") or {}).get("kind", "")
        row |= {"from": record["from"]} if record.get("from") else {}
    return list(found.values())


def _show_one(archive: SessionReader, session: str, name: str, as_json: bool) -> None:
    """Print one file of a session, or with `as_json` the records of one call."""
    from cdo.history.pending import require_heard

    if as_json:
        records = archive.records()
        texts = {record["sha256"]: record["text"] for record in records if record["kind"] == "text"}
        require_heard(archive, name, file=name)
        call = name.lower() if name in ("FINAL", "DRAFT", "REVIEW", "FINDINGS") else name
        exchanges = [record for record in records if record.get("call") == call]
        for record in exchanges:
            for message in record.get("request", {}).get("messages", []):
                if identity := message.pop("shared", None):
                    message["text"] = texts.get(identity, "") + message["text"]
        if not exchanges:
            raise UsageError(
                f"{archive.name} has no recorded call named {name}.", f"`cdo show {session}` lists them."
            )
        click.echo(dumps(exchanges))
        return
    wanted = ("FINAL.md",) if name == "final" else (f"{name}.md", name)
    file = next((file for file in archive.files() if file in wanted), None)
    if file is None:
        raise UsageError(
            f"{archive.name} has no file {wanted[0]}.",
            f"`cdo show {session}` lists its calls; with --json you see what was recorded of one.",
        )
    require_heard(archive, file, file=file)
    print_text(archive.text(file) or "")


@click.command()
@SESSION
@OUT
@click.option("--raw", is_flag=True, help="Print the file as it is, as in a pipe.")
@VERBOSE
def final(session: str | None, out: str | None, raw: bool) -> None:
    """Show the decision (FINAL.md) of a session.

    Without a name it is the newest session. A terminal gets rendered Markdown, a pipe the file as it is.
    """
    from cdo.formats.markdown import split_front_matter
    from cdo.terminal.capability import can_draw

    archive = session_archive(session, out)
    text = archive.text("FINAL.md")
    if text is None:
        raise SessionError(f"{archive.place} has no FINAL.md yet.", f"`cdo resume {archive.name}` goes on with it.")
    if raw or not can_draw(sys.stdout):
        print_text(text)
        return
    from cdo.terminal.markdown_view import show_markdown

    show_markdown(split_front_matter(text)[1], sys.stdout, text_width())
