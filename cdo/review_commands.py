"""The commands that put a finished run to the test: `replay` with its own record, `audit` with another chair."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo.console import JSON, OUT, SESSION, dumps, leave, library_here, out_folder, print_text, session_archive
from cdo.errors import SessionError
from cdo.run_options import LIMITS, NO_GIT, OUTPUT, flags, preview, trusted

if TYPE_CHECKING:
    from cdo.archive import Archive
    from cdo.audit import Brief
    from cdo.estimate import Range
    from cdo.plan import Plan
    from cdo.rehearsal import Replayed

EXIT_STRICT = 3
SHOWN = 12  # lines of a difference that are shown without -v
MOST = 8  # orders of one audit
ORDERS = 2  # unless there are more models


# -- replay ----------------------------------------------------------------------------------------


@click.command()
@SESSION
@OUT
@click.option("--strict", is_flag=True, help="Exit 3 when anything differs.")
@JSON
@click.option("-v", "--verbose", is_flag=True, help="Show whole differences, and tracebacks.")
def replay(session: str | None, out: str | None, strict: bool, as_json: bool, verbose: bool) -> None:
    """Run what a session recorded through today's code.

    It says where that would end otherwise. No model is asked and nothing is sent; the session is only read, also
    while it runs.
    """
    from cdo import rehearsal

    archive = session_archive(session, out)
    found = rehearsal.compare(asyncio.run(rehearsal.rehearse(archive, library_here())))
    if as_json:
        click.echo(dumps(found.json()))
    else:
        for line in _told(found, None if verbose else SHOWN):
            print_text(line)
    if strict and found.differs:
        leave(EXIT_STRICT)


def _told(found: Replayed, most: int | None) -> Iterator[str]:
    """What a replay found, line by line; `most` lines of each difference."""
    from cdo.wording import counted

    yield f"The same: {counted(len(found.same), 'file')}, byte for byte ({counted(found.calls, 'call')}, none sent)"
    if found.edited:
        yield f"Taken as you edited them: {', '.join(found.edited)}"
    for call, reads in found.elsewise.items():
        yield f"Asked with other inputs: {call} ({', '.join(reads)}); its recorded reply was used"
    for note in found.notes:
        yield f"Asked of you otherwise: {note}"
    for item in found.differences:
        yield ""
        yield {"new": f"New: {item.file}", "gone": f"No longer made: {item.file}"}.get(
            item.how, f"Differs: {item.file}"
        )
        if item.how == "differs":
            yield from (f"  {line}" for line in item.diff[:most])
            if most and len(item.diff) > most:
                yield f"  … {counted(len(item.diff) - most, 'more line')} (-v shows all)"
    if found.differences:
        yield ""
    yield from _ended(found)


def _ended(found: Replayed) -> Iterator[str]:
    """How it ends, beside how it ended."""
    from cdo.wording import counted, flat

    then, now = found.then, found.now
    names = ", ".join(found.unknown)
    if then is None:
        waits = f"it would go on with {names}" if names else found.stopped or "it is recorded to its end"
        yield f"Unfinished: {waits}"
        return
    if found.unknown:
        yield f"Not on record: {names}, which today's code asks for"
    if now is None:
        yield f"It would not end as it did: {found.stopped}"
    elif not found.changed:
        sure = "unknown" if then.confidence is None else f"{then.confidence:.2f}"
        sure = f", confidence {sure}" if then.unit == "turn" else ""
        held = f", {counted(then.turns, then.unit)}" if then.turns else ""
        yield f"Ends the same: {then.status}{sure}{held}"
    else:
        for key, (before, after) in found.changed.items():
            yield f"Ends otherwise: {key}: {flat(_shown(before), 200)} → {flat(_shown(after), 200)}"


def _shown(value: Any) -> str:
    """A part of an ending in a few words."""
    return ", ".join(" ".join(pair) for pair in value) if isinstance(value, tuple | list) else str(value)


# -- audit -----------------------------------------------------------------------------------------


@click.command()
@SESSION
@click.option("-m", "--model", multiple=True, metavar="NAME", help="A model for the chair; several sit in turn.")
@click.option("--orders", type=click.IntRange(1, MOST), metavar="N", help="In how many other orders to read (2).")
@LIMITS
@click.option("--strict", is_flag=True, help="Exit 3 unless the decision survives.")
@NO_GIT
@OUT
@click.option("--session", "name", metavar="NAME", help="Name the audit's session (SESSION-audit).")
@click.option("--trust", is_flag=True, help="Trust what this project brings as it is now: command agents, providers.")
@click.option("--dry-run", is_flag=True, help="Print its calls and what they cost; send nothing.")
@OUTPUT
def audit(session: str | None, **options: Any) -> None:
    """Let another chair sum up: does the decision survive?

    From the same last replies of the voices, by another model and in other orders. The audit is a session of its
    own: `cdo resume` goes on with it. With --strict it exits 3 unless the decision survives. Without a name it is the
    newest finished run.
    """
    from cdo import auditing, frozen, rehearsal, seating, sessions, settings
    from cdo.audit import SURVIVES
    from cdo.driving import drive

    if options["name"] is not None:
        sessions.session_path(Path(), options["name"])
    library = library_here()
    resolved = settings.resolve(flags(options), library, trusted=trusted(options)).sure()
    archive = session_archive(session or _newest(options["out"]), options["out"])
    begun = frozen.read_frozen(archive.text("session.yaml"), Path(archive.place))
    source = begun.plan
    if source.crew:
        raise SessionError(
            f"{archive.place} cannot be audited: a mission ends by what was accepted, not by what a chair sums up.",
            f"`cdo verify {archive.name}` proves that; `cdo replay {archive.name}` runs its record again.",
        )
    auditing.refuse(archive, source)
    rehearsed = asyncio.run(rehearsal.rehearse(archive, library))
    holds = trusted(options)
    names = options["model"] or (
        auditing.another(_asked(archive), source, resolved.values, library, holds, seating.first_of_ollama),
    )
    brief = auditing.begin(rehearsed, options["orders"] or max(ORDERS, len(names)))
    specs = seating.specs(names, library, resolved.values, os.environ, holds)
    plan, files = auditing.plan(source, brief, specs), auditing.files(rehearsed, brief)
    remarks = auditing.remarks(brief, specs, source.vendors, rehearsed)
    if options["dry_run"]:
        return _dry_run(brief, plan, auditing.estimate(brief, files, specs), remarks, options["as_json"])
    # A run is strict about converging, which an audit never does. What was kept off git stays off it.
    off = resolved.values.no_git or begun.settings.no_git
    kept = resolved.values.model_copy(update={"strict": False, "no_git": off})
    out, stem = Path(resolved.values.out), f"{archive.name[:50]}-audit"
    born = frozen.born(
        frozen.begun(plan, kept, resolved.sources),
        files,
        out,
        options["name"],
        (stem, *(f"{stem}-{number}" for number in range(2, 100))),
    )
    shown = preview(plan, specs, rehearsed.then.text("00-input.md") or "", "", library, born.name)
    drive(born, plan, shown, kept, options, resumed=False, notes=remarks)
    if resolved.values.strict and _status(born.path) != SURVIVES:
        leave(EXIT_STRICT)
    return None


def _newest(out: str | None) -> str | None:
    """The newest session that can have an audit: a finished deliberation that is none itself."""
    from cdo import frozen, sessions
    from cdo.plan import AUDIT

    for path in sessions.sessions(out_folder(out)):
        if (path / "FINAL.md").exists():
            text = (path / "session.yaml").read_text("utf-8", "replace")
            plan = frozen.read_frozen(text, path).plan
            if plan.mode != AUDIT and not plan.crew:
                return str(path)
    return None


def _asked(archive: Archive) -> list[str]:
    """The models that a session asked, the one that summed up last first."""
    found = [str(record["model"]) for record in archive.records() if record["kind"] == "exchange"]
    return list(dict.fromkeys(reversed(found)))


def _status(path: Path) -> str:
    """How an audit ended."""
    from cdo.archive import Folder

    artifact = Folder(path).artifact("FINAL")
    return str(artifact.own.get("status")) if artifact else ""


def _dry_run(brief: Brief, plan: Plan, span: Range, remarks: Sequence[str], as_json: bool) -> None:
    """Print what an audit would be; nothing is sent."""
    from cdo.wording import counted, money

    if as_json:
        cost = None if span.cost is None else [round(value, 6) for value in span.cost]
        orders = [list(order) for order in brief.orders]
        row = {"source": brief.source, "models": list(plan.models), "first": list(brief.first), "orders": orders}
        found = {**row, "calls": list(span.calls), "tokens": list(span.tokens), "cost": cost, "notes": list(remarks)}
        click.echo(dumps(found))
        return
    print_text(f"Audit of {brief.source}: {counted(len(brief.orders), 'order')}, {', '.join(plan.models)}")
    for number, order in enumerate((brief.first, *brief.orders)):
        print_text(f"  {f'order {number}' if number else 'first'}: {', '.join(order)}")
    low, high = span.tokens
    price = "unknown" if span.cost is None else f"{money(span.cost[0])} to {money(span.cost[1])}"
    print_text(f"{span.calls[0]} calls, {low:,} to {high:,} tokens, cost {price}")
    for remark in remarks:
        print_text(remark)
    click.echo("Nothing was sent.")
