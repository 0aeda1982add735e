"""Writes the result of a batch as a table, one row for each item in the order of its file: JSON lines, CSV, Parquet.

Texts that a model wrote are data: a cell of CSV that a spreadsheet would take for a formula gets an apostrophe in
front.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cdo.app.batch.folder import BatchFile, ItemResult, read_items, read_results
from cdo.app.batch.rows import pyarrow_parquet
from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import json_line, one_line
from cdo.files.atomic_files import closing, encodable, explain, open_path, write_file

NAME = "table.jsonl"  # in the folder of the batch
OPEN = "open"  # the status of an item that has not ended
FIELDS = (
    "id", "question", "status", "decision", "confidence", "cost", "calls", "tokens", "seconds", "path", "error",
)  # fmt: skip
NUMBERS = ("confidence", "cost", "seconds")
COUNTS = ("calls", "tokens")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def table_rows(path: Path, head: BatchFile) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of the batch at `path`; raise `SessionError`."""
    results = read_results(path)
    for item in read_items(path, head):
        ended = results.get(item.id) or ItemResult(item.id, item.session, OPEN)
        row: dict[str, Any] = {name: getattr(ended, name, None) for name in FIELDS}
        if ended.status == OPEN:
            row |= dict.fromkeys((*NUMBERS, *COUNTS))
        yield row | {"question": item.question, "path": str(path / ended.path) if ended.path else ""}


def as_json_lines(path: Path, head: BatchFile) -> bytes:
    """Return the table of a batch as its folder holds it; raise `SessionError`."""
    return _json(table_rows(path, head))


def require_writable(target: Path) -> None:
    """Raise `UsageError` if a table cannot be written to `target`, before anything is paid for."""
    if target.suffix.lower() not in WRITERS:
        raise UsageError(
            f"The table cannot be written to {target}: its name ends in `{one_line(target.suffix, 20)}`.",
            f"Give a file whose name ends in one of {', '.join(WRITERS)}.",
        )
    if target.suffix.lower() == ".parquet":
        pyarrow_parquet(target.name)
    if target.is_dir():
        raise UsageError(f"{target} is a folder.", "Give a file.")


def write_table(rows: Iterable[Mapping[str, Any]], target: Path) -> None:
    """Write a table into a file, whose ending says how; raise `SessionError`."""
    data = WRITERS[target.suffix.lower()](rows)
    try:
        with closing(open_path(target.parent, make=True)) as folder:
            write_file(folder, target.name, data)
    except OSError as error:
        found = explain(error, target)
        raise SessionError(found.message, "Give another file with --table; nothing is lost.") from None


def _json(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json_line(row)}\n" for row in rows).encode("utf-8", "replace")


def _csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in FIELDS])
    return encodable(text.getvalue()).encode()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _parquet(rows: Iterable[Mapping[str, Any]]) -> bytes:
    parquet = pyarrow_parquet("The table")
    import pyarrow

    kinds = {**dict.fromkeys(NUMBERS, pyarrow.float64()), **dict.fromkeys(COUNTS, pyarrow.int64())}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in FIELDS])
    clean = [{name: encodable(v) if isinstance(v := row[name], str) else v for name in FIELDS} for row in rows]
    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(clean, schema=schema), stream)
    return stream.getvalue()


WRITERS: Mapping[str, Callable[[Iterable[Mapping[str, Any]]], bytes]] = {
    ".jsonl": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
