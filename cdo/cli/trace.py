"""Implements `cdo trace`, which writes or sends a session as an OpenTelemetry trace. It asks no model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdo.cli.common import OUT, SESSION, VERBOSE, dumps, print_text, session_archive
from cdo.cli.options import otlp_option
from cdo.core.errors import CdoError, SessionError, UsageError
from cdo.core.formatting import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdo.session.reader import SessionReader
    from cdo.tracing.collector import Collector


@click.command()
@SESSION
@otlp_option(
    "Send the trace to this OpenTelemetry collector, such as http://localhost:4318; headers come from "
    "OTEL_EXPORTER_OTLP_HEADERS."
)
@click.option("-o", "--output", metavar="FILE", help="Write the trace to this file, as lines of OTLP/JSON.")
@click.option("--content", is_flag=True, help="Include prompts, replies, and what tools were asked and answered.")
@OUT
@VERBOSE
def trace(session: str | None, otlp: Collector | None, output: str | None, content: bool, out: str | None) -> None:
    """Write or send a session as an OpenTelemetry trace.

    Without a name, take the newest session; without --otlp and --output, print the trace as JSON. The same session
    gives the same trace, so that it can be sent again.
    """
    from cdo.app.batch.folder import trace_labels
    from cdo.history.pending import require_heard
    from cdo.history.trace import trace as read
    from cdo.security.secrets import redactor
    from cdo.session.reader import SessionFolder
    from cdo.tracing.otlp import batches

    if otlp and output:
        raise UsageError("--otlp sends the trace and --output writes it.", "Give one of the two.")
    if output and Path(output).is_dir():
        raise UsageError(f"{output} is a folder.", "Give a file.")
    archive = session_archive(session, out)
    if content:
        require_heard(archive, "The content")
    labels = trace_labels(archive.path) if isinstance(archive, SessionFolder) else None
    try:
        spans = list(read(archive, lambda name: _neighbour(archive, name, out), content=content, labels=labels))
    except (KeyError, TypeError, ValueError, AttributeError):
        why = f"{archive.place} holds records that this version of cdo cannot read."
        raise SessionError(why, "Update cdo.") from None
    found = batches(spans, redactor(os.environ))
    if otlp:
        return _send(otlp, found, spans[0].trace_id)
    bodies = [body.decode() for _, body in found]
    if output:
        from cdo.cli.report import deliver

        return deliver("".join(f"{body}\n" for body in bodies), Path(output))
    parts = [part for body in bodies for part in json.loads(body)["resourceSpans"]]
    click.echo(dumps({"resourceSpans": parts}))
    return None


def _send(collector: Collector, found: Iterable[tuple[int, bytes]], trace_id: str) -> None:
    """Send the batches one after the other and tell what came of it; raise `CollectorError`."""
    sent, notes = 0, list[str]()
    for count, body in found:
        try:
            notes.append(collector.send(body))
        except CdoError as error:
            if sent:
                error.hint = f"{sent:,} spans were sent before; sending again repeats none. {error.hint}"
            raise
        sent += count
    print_text(f"{sent:,} spans sent to {collector.url}: trace {trace_id}")
    for note in filter(None, notes):
        click.echo(visible(f"cdo: The collector left something out: {note}."), err=True)


def _neighbour(archive: SessionReader, name: str, out: str | None) -> SessionReader | None:
    """Return the session `name` that is kept where `archive` is: beside its folder, else in git."""
    from cdo.session.branch_reader import open_branch
    from cdo.session.reader import SessionFolder
    from cdo.session.records import session_path

    if isinstance(archive, SessionFolder):
        path = session_path(archive.path.parent, name)
        return SessionFolder(path) if path.is_dir() else None
    from cdo.cli.common import out_folder

    places = (place for place in (out_folder(out), Path()) if place.is_dir())
    return next((found for place in places if (found := open_branch(place, name))), None)
