"""Implements the commands that test a run: `replay`, `audit` with another chair, `verify` for a certificate."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from cdo.cli.common import (
    JSON,
    OUT,
    SESSION,
    VERBOSE,
    all_sessions,
    dumps,
    exit_now,
    library_here,
    print_text,
    require_allowed_weights,
    session_archive,
)  # fmt: skip
from cdo.cli.options import BRANCH, CONSENT, LIMITS, NO_GIT, OUTPUT, TRUST, model_option, preview, resolve
from cdo.core.errors import SessionError

if TYPE_CHECKING:
    from cdo.app.replay_diff import ReplayReport
    from cdo.planning.estimate import Range
    from cdo.planning.plan import Plan
    from cdo.programs.audit.program import AuditBrief
    from cdo.session.reader import SessionReader

EXIT_STRICT = 3
SHOWN = 12  # lines of a difference shown without -v
MOST = 8  # most orders of one audit
ORDERS = 2  # default number of orders, unless there are more models


# -- replay ----------------------------------------------------------------------------------------


@click.command()
@SESSION
@OUT
@click.option("--strict", is_flag=True, help="Exit with code 3 if anything differs.")
@JSON
@click.option("-v", "--verbose", is_flag=True, help="Show complete differences, and tracebacks of errors.")
def replay(session: str | None, out: str | None, strict: bool, as_json: bool, verbose: bool) -> None:
    """Run a session again from its record, with the code of today.

    Prints where the result would differ. No model is asked and nothing is sent. The session is not changed; it may
    still be running.
    """
    from cdo.app import replay as rehearsal
    from cdo.app import replay_diff

    archive = session_archive(session, out)
    found = replay_diff.compare(asyncio.run(rehearsal.rehearse(archive, library_here())))
    if as_json:
        click.echo(dumps(found.json()))
    else:
        for line in _told(found, None if verbose else SHOWN):
            print_text(line)
    if strict and found.differs:
        exit_now(EXIT_STRICT)


def _told(found: ReplayReport, most: int | None) -> Iterator[str]:
    """Yield the lines of a replay's report, with at most `most` lines of each difference."""
    from cdo.core.formatting import pluralise

    calls = pluralise(found.calls, "call")
    yield f"The same: {pluralise(len(found.same), 'file')}, byte for byte ({calls}, none sent)"
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
                yield f"  … {pluralise(len(item.diff) - most, 'more line')} (-v shows all)"
    if found.differences:
        yield ""
    yield from _ended(found)


def _ended(found: ReplayReport) -> Iterator[str]:
    """Yield the lines that compare the replayed ending with the recorded one."""
    from cdo.core.formatting import one_line, pluralise

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
        held = f", {pluralise(then.turns, then.unit)}" if then.turns else ""
        yield f"Ends the same: {then.status}{sure}{held}"
    else:
        for key, (before, after) in found.changed.items():
            yield f"Ends otherwise: {key}: {one_line(_shown(before), 200)} → {one_line(_shown(after), 200)}"


def _shown(value: Any) -> str:
    """Format one value of an ending."""
    return ", ".join(" ".join(pair) for pair in value) if isinstance(value, tuple | list) else str(value)


# -- audit -----------------------------------------------------------------------------------------


@click.command()
@SESSION
@model_option("Model that sums up. Repeat to use several, one for each order.")
@click.option(
    "--orders",
    type=click.IntRange(1, MOST),
    metavar="N",
    help="Number of other orders in which the replies are read (default: 2).",
)
@LIMITS
@click.option("--strict", is_flag=True, help="Exit with code 3 unless the decision survives.")
@NO_GIT
@BRANCH
@OUT
@click.option("--session", "name", metavar="NAME", help="Name of the audit's session (default: SESSION-audit).")
@TRUST
@click.option("--dry-run", is_flag=True, help="Print the calls and what they cost. Send nothing.")
@CONSENT
@OUTPUT
def audit(session: str | None, **options: Any) -> None:
    """Let another model sum up: does the decision survive?

    It reads the voices' last replies in other orders. The audit is a session of its own, so `cdo resume` works
    on it. Without a name, audit the newest finished run.
    """
    from cdo.app import audit as auditing
    from cdo.app import replay as rehearsal
    from cdo.app import seats
    from cdo.cli.consent import agree
    from cdo.cli.run_session import run_and_report
    from cdo.core.formatting import pluralise
    from cdo.programs.audit.program import SURVIVES
    from cdo.session import records, session_file

    if options["name"] is not None:
        records.session_path(Path(), options["name"])
    library = library_here(trust_now=options["trust"])
    resolved = resolve(options, library).sure(library)
    archive = session_archive(session or _newest(options["out"]), options["out"])
    begun = session_file.read_frozen(archive.text("session.yaml"), Path(archive.place))
    source = begun.plan
    if source.crew:
        raise SessionError(
            f"{archive.place} cannot be audited: an audit repeats the last synthesis, and a mission has none.",
            f"`cdo verify {archive.name}` proves that; `cdo replay {archive.name}` runs its record again.",
        )
    auditing.refuse(archive, source)
    rehearsed = asyncio.run(rehearsal.rehearse(archive, library))
    names = (resolved.values.model if options["model"] else ()) or (
        auditing.another(_asked(archive), source, resolved.values, library, seats.first_of_ollama),
    )
    brief = auditing.begin(rehearsed, options["orders"] or max(ORDERS, len(names)))
    specs = seats.specs(names, library, resolved.values, os.environ)
    require_allowed_weights(specs, str(archive.place), resolved, options)
    plan, files = auditing.plan(source, brief, specs), auditing.files(rehearsed, brief)
    remarks = auditing.remarks(brief, specs, source.vendors, rehearsed)
    span = auditing.estimate(brief, files, specs)
    if options["dry_run"]:
        return _dry_run(brief, plan, span, remarks, options["as_json"])
    material = "\n".join(text for text in files.values() if isinstance(text, str))
    asked = preview(plan, specs, "", material, library, "", whole=options["verbose"])
    asked = replace(asked, span=span)
    rows = _rows(brief, plan, span, remarks)
    agree(asked, resolved.values, resolved.sources, options, to=pluralise(len(brief.orders), "order"), plan=rows)
    # Do not inherit `strict`: an audit never converges. Inherit `no_git`: what was kept off git stays off it.
    off = resolved.values.no_git or begun.settings.no_git
    kept = replace(resolved.values, strict=False, no_git=off)
    out, stem = Path(resolved.values.out), f"{archive.name[:50]}-audit"
    born = session_file.create_session(
        session_file.new_session_file(plan, kept, resolved.sources),
        files,
        out,
        options["name"],
        (stem, *(f"{stem}-{number}" for number in range(2, 100))),
    )
    shown = preview(plan, specs, rehearsed.then.text("00-input.md") or "", "", library, born.name)
    run_and_report(born, plan, shown, kept, options, resumed=False, notes=remarks)
    if resolved.values.strict and _status(born.path) != SURVIVES:
        exit_now(EXIT_STRICT)
    return None


def _newest(out: str | None) -> str | None:
    """Return the newest finished session that can be audited, or None."""
    from cdo.session import session_file

    for path in all_sessions(out):
        if (path / "FINAL.md").exists():
            text = (path / "session.yaml").read_text("utf-8", "replace")
            plan = session_file.read_frozen(text, path).plan
            if not plan.mode and not plan.crew:  # a mode, an audit and a mission end by rules of their own
                return str(path)
    return None


def _asked(archive: SessionReader) -> list[str]:
    """Return the models that a session asked, the most recent first."""
    found = [str(record["model"]) for record in archive.records() if record["kind"] == "exchange"]
    return list(dict.fromkeys(reversed(found)))


def _status(path: Path) -> str:
    """Return the status of a finished audit, "" if it has no FINAL.md."""
    from cdo.session.reader import SessionFolder

    artifact = SessionFolder(path).artifact("FINAL")
    return str(artifact.own.get("status")) if artifact else ""


def _dry_run(brief: AuditBrief, plan: Plan, span: Range, remarks: Sequence[str], as_json: bool) -> None:
    """Print the plan of an audit; send nothing."""
    if as_json:
        cost = None if span.cost is None else [round(value, 6) for value in span.cost]
        orders = [list(order) for order in brief.orders]
        row = {"source": brief.source, "models": list(plan.models), "first": list(brief.first), "orders": orders}
        found = {**row, "calls": list(span.calls), "tokens": list(span.tokens), "cost": cost, "notes": list(remarks)}
        click.echo(dumps(found))
        return
    for text in _rows(brief, plan, span, remarks):
        print_text(text)
    click.echo("Nothing was sent.")


def _rows(brief: AuditBrief, plan: Plan, span: Range, remarks: Sequence[str]) -> list[str]:
    """Return the plan of an audit."""
    from cdo.core.formatting import money_range, pluralise, rounded

    low, high = span.tokens
    return [
        f"Audit of {brief.source}: {pluralise(len(brief.orders), 'order')}, {', '.join(plan.models)}",
        *(
            f"  {f'order {number}' if number else 'first'}: {', '.join(order)}"
            for number, order in enumerate((brief.first, *brief.orders))
        ),
        f"{span.calls[0]} calls, {rounded(low)} to {rounded(high)} tokens, cost {money_range(span.cost)}",
        *remarks,
    ]


@click.command("verify")
@SESSION
@OUT
@JSON
@VERBOSE
def verify_command(session: str | None, out: str | None, as_json: bool) -> None:
    """Check the certificate of a mission again.

    Checks every claim against the session's files, offline. Exits with code 8 if a claim does not hold. Without a
    name, check the newest session.
    """
    from cdo.cabal.verification import verified
    from cdo.core.formatting import pluralise

    proof = verified(session_archive(session, out))
    wrong = sum(not claim.holds for claim in proof.claims)
    if as_json:
        claims = [
            {"about": claim.about, "claim": claim.text, "holds": claim.holds, "why": claim.why}
            for claim in proof.claims
        ]
        told = {"session": proof.session, "holds": proof.holds, "claims": claims, "uncovered": list(proof.uncovered)}
        click.echo(dumps(told))
    else:
        print_text("\n".join(claim.line for claim in proof.claims))
        print_text("\n".join(["", "Not proved:", *(f"- {what}" for what in proof.uncovered)]))
    if wrong:
        raise SessionError(
            f"{proof.session} is not as it was certified: {wrong} of {pluralise(len(proof.claims), 'claim')} "
            f"{'does' if wrong == 1 else 'do'} not hold.",
            "Each line with ✗ says what and why; take these files from a copy of the session, or from its branch.",
        )
