"""Reads the rows of a table in a file: JSON lines, CSV, tab-separated values, or Parquet."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from cdo.core.errors import UsageError
from cdo.core.formatting import one_line

MAX_LINE = 2**23  # bytes of one row
ONE_EACH = "Write one object on each line."
UTF8 = "Save it as UTF-8, then run again."


class Row(Struct, frozen=True):
    """One row: its cells by column, the line on which it ends (of Parquet: its number), and the file's name."""

    cells: Mapping[str, object]
    line: int
    file: str


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, whose ending says what it is; raise `UsageError`."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        ending = f"its name ends in `{one_line(path.suffix, 20)}`" if path.suffix else "its name has no ending"
        raise UsageError(
            f"{path} is not a table that cdo reads: {ending}.",
            f"Give a file whose name ends in one of {', '.join(READERS)}.",
        )
    with _opened(path) as stream:
        yield from reader(stream, path.name)


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file; raise `UsageError`."""
    found = sha256()
    with _opened(path) as stream:
        while part := stream.read(2**20):
            found.update(part)
    return found.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            yield stream
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.", UTF8) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from None


def _json_lines(stream: BinaryIO, name: str) -> Iterator[Row]:
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise UsageError(f"{name}, line {number}: it has more than {MAX_LINE:,} bytes.", "Shorten it.")
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        if not text:
            continue
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            why = getattr(error, "msg", "it is nested too deep")
            raise UsageError(f"{name}, line {number}: it is not JSON: {why}.", ONE_EACH) from None
        if not isinstance(data, dict):
            raise UsageError(f"{name}, line {number}: it is not a JSON object.", ONE_EACH)
        yield Row(data, number, name)


def _separated(by: str) -> Callable[[BinaryIO, str], Iterator[Row]]:
    def read(stream: BinaryIO, name: str) -> Iterator[Row]:
        csv.field_size_limit(MAX_LINE)
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=by, strict=True)
        ended = 0
        try:
            header = [cell.strip() for cell in next(reader, [])]
            if len(set(header)) < len(header):
                raise UsageError(f"{name}, line 1: two columns have the same name.", "Give each a name of its own.")
            ended = reader.line_num
            for cells in reader:
                ended = reader.line_num
                if not any(cell.strip() for cell in cells):  # spreadsheets write rows of empty cells at the end
                    continue
                if len(cells) != len(header):
                    raise UsageError(
                        f"{name}, line {reader.line_num}: it has {len(cells)} cells, the first line {len(header)}.",
                        f"Put cells with line breaks, quotation marks or `{by}` in quotation marks.",
                    )
                yield Row(dict(zip(header, cells, strict=True)), reader.line_num, name)
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                why = f"{name}, line {ended + 1}: a quotation mark opens in this row and is never closed."
                raise UsageError(why, "Close it; a quotation mark inside of a cell is written twice.") from None
            raise UsageError(f"{name}, line {reader.line_num}: {error}.", "Fix the line, then run again.") from None
        finally:
            text.detach()

    return read


def _parquet(stream: BinaryIO, name: str) -> Iterator[Row]:
    parquet = pyarrow_parquet(name)
    number = 0
    try:
        for part in parquet.ParquetFile(stream).iter_batches(batch_size=1024):
            for cells in part.to_pylist():
                number += 1
                yield Row(cells, number, name)
    except (ValueError, NotImplementedError, OSError) as error:  # pyarrow's own errors are of these kinds
        why = one_line(error, 200).rstrip(".")
        raise UsageError(f"{name} cannot be read as Parquet: {why}.", "Check the file.") from None


def pyarrow_parquet(name: str) -> Any:
    """Return the module that reads and writes Parquet; raise `UsageError` where the extra is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            f"{name} needs a package that reads and writes Parquet, which is not installed.",
            "Run `pip install 'cdo-deliberate[parquet]'`, or use JSON lines or CSV.",
        ) from None
    return pyarrow.parquet


READERS: Mapping[str, Callable[[BinaryIO, str], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".parquet": _parquet,
}
