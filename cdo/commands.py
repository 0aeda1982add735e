"""The commands around a run: list, show, final, and those of the machine and of skills. They send nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cdo import machine_commands, skill_commands
from cdo.console import JSON, OUT, SESSION, VERBOSE, out_folder, print_table, print_text, session_folder
from cdo.console import dumps as dumps  # also for the command line
from cdo.errors import CdoError, SessionError, UsageError


def register(cli: click.Group) -> None:
    """Add these commands to the command line."""
    for command in (list_, show, final, skill_commands.skills, *machine_commands.COMMANDS):
        cli.add_command(command)


def overview(path: Path) -> dict[str, Any]:
    """One session as `list` prints it; a damaged one says so under `status`, and why under `problem`."""
    row: dict[str, Any] = {}
    try:
        _look(path, row)
    except CdoError as error:
        row |= {"status": "damaged", "problem": error.message}
    return row


def _look(path: Path, row: dict[str, Any]) -> None:
    """Fill `row` with what there is to know about a session; raise `SessionError` when it is damaged."""
    from cdo.artifacts import from_file
    from cdo.durable import explain
    from cdo.frozen import read_frozen
    from cdo.runner import totals
    from cdo.sessions import PREFIX, locked, read_session

    row |= {"session": path.name.removeprefix(PREFIX), "path": str(path)}
    try:
        frozen = read_frozen(_text(path / "session.yaml"), path)
        used = totals(read_session(path))
        row |= {"created": frozen.created, "preset": frozen.plan.preset, "models": list(frozen.plan.models)}
        row |= {"calls": used.calls, "tokens": used.tokens, "cost": used.known_cost}
        row["status"] = "running" if locked(path) else "unfinished"
        if (text := _text(path / "FINAL.md")) is not None:
            artifact = from_file(text, f"{path.name}/FINAL.md")
            row["status"] = str(artifact.own.get("status") or "finished")
            row["confidence"] = artifact.meta.get("confidence")
        row["problem"] = " ".join((_text(path / "00-input.md") or "").split())
    except OSError as error:
        raise explain(error, path) from None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise SessionError(f"{path} is not UTF-8 text.", "Mend or remove it.") from None
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}.", "Mend or remove it.") from None


@click.command("list")
@OUT
@JSON
@VERBOSE
def list_(out: str | None, as_json: bool) -> None:
    """List sessions, newest first."""
    from cdo.sessions import sessions
    from cdo.wording import money

    folder = out_folder(out)
    rows = [overview(path) for path in sessions(folder)]
    if as_json:
        click.echo(dumps(rows))
    elif rows:
        print_table([_row(row, money(row["cost"]) if "cost" in row else "") for row in rows])
    else:
        click.echo(f"There is no session in {folder}.", err=True)


def _row(row: dict[str, Any], cost: str) -> list[str]:
    sure = row.get("confidence")
    confidence = f"{sure:.2f}" if isinstance(sure, (int, float)) else ""
    return [row["session"], row.get("preset", ""), row["status"], confidence, cost, row["problem"][:80]]


@click.command()
@SESSION
@click.argument("name", required=False)
@OUT
@JSON
@VERBOSE
def show(session: str | None, name: str | None, out: str | None, as_json: bool) -> None:
    """Show a session, or one file or call of it.

    `cdo show` takes the newest session, `cdo show SESSION t1-critic` shows one file. With --json a call is shown
    with every recorded attempt: request, response, usage, cost, times.
    """
    from cdo.sessions import read_session

    path = session_folder(session, out)
    if session and name:
        return _show_one(path, session, name.removesuffix(".md"), as_json)
    row: dict[str, Any] = {}
    _look(path, row)
    calls = _calls(read_session(path))
    if as_json:
        click.echo(dumps({**row, "ledger": calls}))
        return None
    from cdo.wording import money

    row["cost"] = money(row["cost"])
    for key, value in row.items():
        if value is not None:
            print_text(f"{key + ':':12}{', '.join(value) if isinstance(value, list) else value}")
    if calls:
        click.echo()
        head = ["call", "attempts", "model", "seconds", "tokens", "cost", ""]
        print_table([head, *(_ledger_row(call, money(call["cost"])) for call in calls)], right=(1, 3, 4))
    return None


def _ledger_row(call: dict[str, Any], cost: str) -> list[str]:
    seconds, tokens = f"{call['seconds']:.1f}", f"{call['tokens']:,}"
    return [call["call"], str(call["attempts"]), call["model"], seconds, tokens, cost, call["last_fault"]]


def _calls(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ledger: what each call took over all its attempts."""
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
    return list(found.values())


def _show_one(path: Path, session: str, name: str, as_json: bool) -> None:
    """Print one file of a session, or with `as_json` what is recorded of one call. FINAL.md is the call `final`."""
    from cdo.sessions import read_session

    if as_json:
        records = read_session(path)
        texts = {record["sha256"]: record["text"] for record in records if record["kind"] == "text"}
        call = "final" if name == "FINAL" else name
        exchanges = [record for record in records if record.get("call") == call]
        for record in exchanges:
            for message in record.get("request", {}).get("messages", []):
                if identity := message.pop("shared", None):
                    message["text"] = texts.get(identity, "") + message["text"]
        if not exchanges:
            raise UsageError(f"{path.name} has no recorded call named {name}.", f"`cdo show {session}` lists them.")
        click.echo(dumps(exchanges))
        return
    file = "FINAL.md" if name == "final" else f"{name}.md"
    if "/" in name or name.startswith(".") or (text := _text(path / file)) is None:
        raise UsageError(
            f"{path.name} has no file {file}.",
            f"`cdo show {session}` lists its calls; with --json you see what was recorded of one.",
        )
    print_text(text)


@click.command()
@SESSION
@OUT
@VERBOSE
def final(session: str | None, out: str | None) -> None:
    """Print FINAL.md of a session (the newest without a name)."""
    path = session_folder(session, out)
    text = _text(path / "FINAL.md")
    if text is None:
        raise SessionError(f"{path} has no FINAL.md yet.", f"`cdo resume {path.name}` goes on with it.")
    print_text(text)
