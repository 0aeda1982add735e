"""Implements `cdo batch`: many questions of one file, each deliberated in its own session, under common caps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdo.cli.batch_results import batch_merge, batch_place, batch_report, batch_status
from cdo.cli.common import OUT, dumps, library_here, out_folder
from cdo.cli.options import BATCH_API, CONSENT, LIMITS, OTLP, OUTPUT, REVIEW, TRUST, model_option, resolve
from cdo.core.errors import CdoError, DiskFailed, ItemsFailed, NeedsHuman, SessionError, UsageError

if TYPE_CHECKING:
    from cdo.app.batch.folder import BatchFile, BatchFolder, ItemResult
    from cdo.app.batch.opening import BatchOrder, PreparedBatch
    from cdo.app.batch.running import BatchStanding
    from cdo.app.cluster.connection import ClusterOrder
    from cdo.core.usage import TotalUsage

LIVE = 100  # deliberations at the same time, unless --live says otherwise
EPILOG = """\b
Examples:
  cdo batch questions.csv --column question=title --budget 20
  cdo batch questions.jsonl --preset think --live 200 --table answers.csv
  cdo batch resume questions --retry-failed

\b
Exit codes are those of a run, 9 if the batch came to its end and some items failed, and 10 if its Dask
cluster is lost."""


class BatchGroup(click.Group):
    """A group whose default command is `run`: `cdo batch FILE` is `cdo batch run FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            self._require_file(args[0])
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def _require_file(self, word: str) -> None:
        """Raise `UsageError` if a word is nearly a command and no file."""
        import difflib

        near = difflib.get_close_matches(word.lower(), self.commands, n=1)
        if near and not Path(word).suffix and not os.path.lexists(word):
            raise UsageError(
                f"`{word}` is not a command of `cdo batch`, and no file.", f"Did you mean `cdo batch {near[0]}`?"
            )


@click.group(cls=BatchGroup, subcommand_metavar="FILE | COMMAND …", epilog=EPILOG)
def batch() -> None:
    """Deliberate every question of a file.

    `cdo batch FILE` is short for `cdo batch run FILE`. FILE has a row for each question: JSON lines, CSV,
    tab-separated values or Parquet. The batch gets the folder tmp/batch-NAME/ with its items, their results and
    their sessions; every command takes those with --out tmp/batch-NAME.
    """


def _how(function: Any) -> Any:
    """Add the options that `run` and `resume` share."""
    for option in reversed(
        (
            click.option(
                "--live", type=click.IntRange(1, 1000), default=LIVE, metavar="N",
                help=f"Number of deliberations at the same time (default: {LIVE}).",
            ),
            click.option("--fail-fast", is_flag=True, help="Begin no further item after one has failed."),
            click.option("--retry-failed", is_flag=True, help="Ask the items again that failed."),
            click.option(
                "--table", metavar="FILE", help="Write the table also to this file: .jsonl, .csv or .parquet."
            ),
            click.option("--take-over", is_flag=True, help="Go on with a batch that another machine ran last."),
            click.option(
                "--cluster", metavar="local|ADDRESS",
                help="Run the items on Dask workers: on this machine, or of the scheduler at this address.",
            ),
            click.option(
                "--workers", type=click.IntRange(1, 1000), metavar="N",
                help="Number of workers of --cluster local (default: as many as there are processors).",
            ),
            LIMITS, BATCH_API, OUT, OTLP, TRUST, CONSENT, OUTPUT,
        )
    ):  # fmt: skip
        function = option(function)
    return function


@batch.command("run")
@click.argument("file", metavar="FILE")
@click.option("--name", metavar="NAME", help="Name of the batch (default: that of the file, without its ending).")
@click.option(
    "--column", multiple=True, metavar="NAME=COLUMN",
    help="The column of the file that holds NAME: question, context, preset, models, session or id.",
)  # fmt: skip
@click.option("--preset", metavar="NAME", help="Preset of items that name none (default: the question decides).")
@model_option("Model of items that name none. Repeat to spread the voices over several models.")
@click.option("--width", metavar="N|A-B", help="Number of voices in a turn.")
@click.option("--turns", metavar="N", help="Maximum number of turns.")
@REVIEW
@click.option("--shard", metavar="K/N", help="Take part K of N; auto: the part of this array job's task.")
@click.option("--dry-run", is_flag=True, help="Print the items and the range of calls and cost. Send nothing.")
@_how
def batch_run(
    file: str, name: str | None, column: tuple[str, ...], preset: str | None, shard: str | None, **options: Any
) -> None:
    """Deliberate every question of a file, or go on with that.

    The same command again goes on where the batch was stopped, and asks what was added to the file.
    """
    from cdo.app.batch.folder import batch_path
    from cdo.app.batch.items import mapped
    from cdo.app.batch.opening import BatchOrder
    from cdo.app.batch.shards import shard_of

    part = shard_of(shard, os.environ)
    called = (name or _named_after(file)) + (part.suffix if part and part.of > 1 else "")
    path, columns = batch_path(out_folder(options["out"]), called), mapped(column)
    redo, force = options["retry_failed"], options["take_over"]
    _run(BatchOrder(path, Path(file), columns, preset or "", redo, part, force), options)


@batch.command("resume")
@click.argument("name")
@_how
def batch_resume(name: str, **options: Any) -> None:
    """Go on with a batch as it was begun, without its file. Nothing that was paid is asked again."""
    from cdo.app.batch.opening import BatchOrder

    path, redo = batch_place(name, options["out"]), options["retry_failed"]
    _run(BatchOrder(path, None, {}, "", redo, take_over=options["take_over"]), options)


def _named_after(file: str) -> str:
    """Return the name of a batch for the name of its file; raise `UsageError` if there is none."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-._")[:60].rstrip("-._")
    if not name:
        raise UsageError(f"No batch can be named after {file}.", "Name it with --name NAME.")
    return name


batch.add_command(batch_status)
batch.add_command(batch_report)
batch.add_command(batch_merge)


# -- running ---------------------------------------------------------------------------------------


def _run(order: BatchOrder, options: Mapping[str, Any]) -> None:
    """Run a batch to its end; raise `CdoError`."""
    from cdo.app.batch import table
    from cdo.app.batch.folder import HEAD, BatchFolder
    from cdo.app.batch.opening import prepare
    from cdo.security.secrets import redactor

    library = library_here(trust_now=options["trust"])
    resolved = resolve(options, library).sure(library)
    _require_alone(options, resolved.values.batch_api)
    _cluster(options)
    target = Path(options["table"]) if options["table"] else None
    if target:
        table.require_writable(target)
    begun = (order.path / HEAD).is_file() or order.file is None
    if options.get("dry_run"):
        prepared = prepare(order, resolved, library, trust=options["trust"], begun=begun)
        return _print_plan(prepared, as_json=options["as_json"])
    folder = BatchFolder.take(order.path, redactor(os.environ), make=False) if begun else None
    try:
        prepared = prepare(order, resolved, library, trust=options["trust"], begun=begun)
        _agree(prepared, options)
        folder = folder or _new_folder(order)
        head = prepared.settled(folder)
        standing = _standing(prepared, head)
        expected: tuple[type[CdoError], ...] = ()
        try:
            if prepared.open:
                _hold(prepared, head, folder, standing, options)
        except CdoError as error:
            expected = (SessionError,) if isinstance(error, DiskFailed) else ()
            if options["as_json"]:
                click.echo(dumps(_summary(prepared, standing, error)))
            raise
        finally:
            with contextlib.suppress(*expected):  # on a full disk what the person is told is that
                folder.write(table.NAME, table.as_json_lines(order.path, head))
                if target:
                    table.write_table(table.table_rows(order.path, head), target)
    finally:
        if folder:
            folder.close()
    return _report(prepared, standing, options)


def _cluster(options: Mapping[str, Any]) -> ClusterOrder | None:
    """Return which Dask cluster runs the items, None for this process; raise `UsageError`."""
    if not options["cluster"]:
        if options["workers"]:
            raise UsageError("--workers N has no meaning without --cluster local.", "Add that, or leave it out.")
        return None
    if options["otlp"]:
        raise UsageError(
            "Workers send no spans: --otlp and --cluster exclude each other.",
            "Leave one out; `cdo trace SESSION --otlp URL` sends a session that has ended.",
        )
    from cdo.app.cluster.connection import ClusterOrder, require_dask

    require_dask()
    return ClusterOrder.of(options["cluster"], options["workers"])


def _new_folder(order: BatchOrder) -> BatchFolder:
    """Make the folder of a new batch and own it; raise `SessionError` if another process has just begun it."""
    from cdo.app.batch.folder import BatchFolder
    from cdo.core.errors import SessionError
    from cdo.security.secrets import redactor

    folder = BatchFolder.take(order.path, redactor(os.environ), make=True)
    if folder.begun:
        folder.close()
        raise SessionError(f"The batch {order.name} has just been begun by another process.", "Run it again.")
    return folder


def _standing(prepared: PreparedBatch, head: BatchFile) -> BatchStanding:
    """Return how a batch stands before its open items are run."""
    from cdo.app.batch.running import BatchStanding, used_so_far

    failed = sum(ended.failed and not prepared.order.retry_failed for ended in prepared.results.values())
    used = used_so_far(prepared.order.path, prepared.results, prepared.todo(head))
    return BatchStanding(head.count, head.count - prepared.open - failed, failed, 0, used)


def _hold(
    prepared: PreparedBatch, head: BatchFile, folder: BatchFolder, standing: BatchStanding, options: Mapping[str, Any]
) -> None:
    """Run the open items of a batch, with progress on stderr; raise `CdoError`."""
    from cdo.app import seats
    from cdo.app.batch.running import BatchRun, BatchTally, counted, shared_by
    from cdo.app.batch.submitted import SubmittedBatches, away_so_far
    from cdo.cli.models import require_demo_model
    from cdo.runner.endpoint_batches.depot import BatchDepot
    from cdo.terminal.batch_progress import BatchProgress

    specs, settings = list(prepared.plans.specs.values()), prepared.resolved.values
    seats.allow_weights(specs)
    require_demo_model(specs, quiet=options["quiet"])
    progress = BatchProgress(sys.stderr, quiet=options["quiet"], each=options["verbose"])

    def tell(ended: ItemResult | None) -> None:
        if ended:
            progress.ended(ended.id, ended.status, ended.error)
        progress.show(standing)

    again = _again(prepared.order, options, failed=prepared.order.retry_failed)
    depot = BatchDepot(folder.name, SubmittedBatches(folder), again)
    shared = shared_by(specs, settings, prepared.plans.library, standing.used, progress.say, depot, options["otlp"])
    away = away_so_far(folder.path, prepared.todo(head), prepared.plans.specs)
    shared.budget.count_all_away(away)
    tally = BatchTally(folder, standing, tell, options["fail_fast"], again)
    _require_alone(options, settings.batch_api or bool(away.calls))
    live, cluster = min(options["live"], prepared.open), _cluster(options)
    try:
        if cluster:
            from cdo.app.cluster.coordinator import ClusterRun

            def recount() -> tuple[TotalUsage, dict[str, TotalUsage]]:
                return counted(folder.path, prepared.results, prepared.todo(head))

            spread = ClusterRun(tally, prepared.plans, shared, live, cluster, progress.say, recount)
            asyncio.run(spread.go(prepared.todo(head)))
        else:
            running = BatchRun(tally, prepared.plans, shared, live, progress.say, options["wait"])
            asyncio.run(running.go(lambda: prepared.todo(head)))
    finally:
        progress.close()


# -- what is told ----------------------------------------------------------------------------------


def _require_alone(options: Mapping[str, Any], through_batches: bool) -> None:
    """Raise `UsageError` if calls that go through batch endpoints are to be spread over workers."""
    if options["cluster"] and through_batches:
        raise UsageError(
            "Calls that go through batch endpoints need no workers: --batch-api and --cluster exclude each other.",
            "Leave --cluster out.",
        )


def _agree(prepared: PreparedBatch, options: Mapping[str, Any]) -> None:
    """Say what will be sent, and have the person agree to the money if needed; raise `NeedsHuman`.

    What was agreed to when the batch began goes on; items that its file has gained since are new.
    """
    from cdo.app.batch.folder import SUBMISSIONS
    from cdo.core.formatting import visible
    from cdo.planning.spending import doubt

    if not options["quiet"]:
        for note in prepared.notes:
            click.echo(visible(note), err=True)
    begun = prepared.results or (prepared.order.path / SUBMISSIONS).is_file()
    if not prepared.open or (prepared.head and begun and not prepared.new):
        return
    span, settings = prepared.plans.span(), prepared.resolved.values
    specs = list(prepared.plans.specs.values())
    found = None if options["yes"] else doubt(specs, span, settings, prepared.resolved.sources, "batch")
    terminal = sys.stdin.isatty() and sys.stderr.isatty() and not options["no_input"]
    if not options["quiet"] or (found and terminal):
        click.echo(visible(f"Sending {_sent(prepared)}"), err=True)
    if not found:
        return
    if not terminal:
        raise NeedsHuman(f"{found.reason}. Nothing was sent.", found.hint)
    if not click.confirm(visible(f"{found.reason}. Go on?"), default=False, err=True):
        raise NeedsHuman("You did not agree. Nothing was sent.", "--budget USD caps the cost of a batch.")


def _sent(prepared: PreparedBatch) -> str:
    """Return how many questions go to which models, and what that may take."""
    from cdo.core.formatting import about, one_line, pluralise
    from cdo.terminal.sending import calls, cost

    plans, span = prepared.plans, prepared.plans.span()
    specs = list(plans.specs.values())
    presets: dict[str, int] = {}
    for preset, _, count in plans.kinds():
        presets[preset] = presets.get(preset, 0) + count
    kinds = ", ".join(f"{count:,} {preset}" for preset, count in sorted(presets.items()))
    tokens = " to ".join(about(number) for number in dict.fromkeys(span.tokens))
    return (
        f"{pluralise(prepared.open, 'question')} ({kinds}) to {one_line(', '.join(plans.specs), 200)}: "
        f"{calls(span)}, about {tokens} tokens, {cost(specs, span)}"
    )


def _print_plan(prepared: PreparedBatch, *, as_json: bool) -> None:
    """Print what a batch would send."""
    from cdo.cli.common import print_text

    if as_json:
        span = prepared.plans.span()
        kinds = [
            {"preset": preset, "models": models, "items": count} for preset, models, count in prepared.plans.kinds()
        ]
        told = {"batch": prepared.order.name, "path": str(prepared.order.path), "items": prepared.count}
        told |= {"new": prepared.new, "open": prepared.open, "kinds": kinds, "calls": span.calls}
        told |= {"tokens": span.tokens, "cost": span.cost, "remarks": prepared.notes}
        click.echo(dumps(told))
        return
    for note in prepared.notes:
        print_text(note)
    print_text(f"Would send {_sent(prepared)}" if prepared.open else "Every item of the batch has ended.")
    print_text("Nothing was sent.")


def _summary(prepared: PreparedBatch, standing: BatchStanding, error: CdoError | None = None) -> dict[str, Any]:
    """Return what `--json` prints of a batch that has ended, or that `error` stopped."""
    from cdo.app.batch import table

    path = prepared.order.path
    return {
        "batch": prepared.order.name, "path": str(path), "items": standing.count, "done": standing.done,
        "failed": standing.failed, "open": standing.open, "calls": standing.used.calls,
        "tokens": standing.used.tokens, "cost": standing.cost, "table": str(path / table.NAME),
        "why": error.message if error else "",
    }  # fmt: skip


def _again(order: BatchOrder, options: Mapping[str, Any], *, failed: bool) -> str:
    """Return the command that goes on with a batch, with its failed items too."""
    place = f" --out {shlex.quote(options['out'])}" if options["out"] else ""
    cluster = f" --cluster {shlex.quote(options['cluster'])}" if options["cluster"] else ""
    return f"cdo batch resume {order.name}{place}{cluster}{' --retry-failed' * failed}"


def _report(prepared: PreparedBatch, standing: BatchStanding, options: Mapping[str, Any]) -> None:
    """Print how a batch ended; raise `ItemsFailed` if items failed."""
    from cdo.cli.common import print_text
    from cdo.core.formatting import paid, pluralise

    told = _summary(prepared, standing)
    also = f" and {options['table']}" if options["table"] else ""
    if options["as_json"]:
        click.echo(dumps(told))
    else:
        print_text(
            f"{standing.done:,} of {pluralise(standing.count, 'item')} done, "
            f"{paid(standing.cost, pluralise(standing.used.calls, 'call'))}\nTable: {told['table']}{also}"
        )
    if standing.failed:
        left = f", and {standing.open:,} have not begun (--fail-fast)" if standing.open else ""
        raise ItemsFailed(
            f"{standing.failed:,} of {pluralise(standing.count, 'item')} failed{left}.",
            f"The table says why; `{_again(prepared.order, options, failed=True)}` asks them again.",
        )
