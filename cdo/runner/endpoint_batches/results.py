"""Holds the results of one batch in a temporary file, looked up by the id of a request.

Results come from outside, in any order. What belongs to no request of ours is counted and told, and answers nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from cdo.core.exchange import BackendError, Fault
from cdo.core.formatting import one_line, pluralise

_SHOWN = 3  # ids that a sentence names
MOST_RESULTS = 1_000_000  # lines that are read of one batch


class BatchResults:
    """The results of a batch whose requests have ids that begin with `marker`."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._file = tempfile.TemporaryFile(prefix="cdo-batch-")  # noqa: SIM115 - see `close`
        self._places: dict[str, tuple[int, int]] = {}
        self._unclaimed: set[str] = set()
        self._twice: set[str] = set()
        self._foreign: list[str] = []
        self._broken = 0

    async def fill(self, lines: AsyncIterator[bytes]) -> None:
        """Take in the lines of the results; raises what the iterator raises."""
        count = 0
        async for line in lines:
            if (count := count + 1) > MOST_RESULTS:
                raise BackendError(Fault.MALFORMED, f"there are more than {MOST_RESULTS:,} results")
            data = _object(line)
            ident = data.get("custom_id") if data else None
            if not isinstance(ident, str):
                self._broken += 1
            elif not ident.startswith(f"{self._marker}-"):
                self._foreign.append(ident[:80])
            elif ident in self._places:
                self._twice.add(ident)
            else:
                self._places[ident] = self._file.tell(), len(line)
                self._unclaimed.add(ident)
                self._file.write(line)

    def claim(self, idents: Iterable[str]) -> None:
        """Say that these requests were made, and that their results are on record."""
        self._unclaimed.difference_update(idents)

    def take(self, ident: str) -> Mapping[str, Any] | None:
        """Return the result of a request; None if there is none. Raises `BackendError` if there are several."""
        self._unclaimed.discard(ident)
        if ident in self._twice:
            raise BackendError(Fault.MALFORMED, "the batch answers this request twice")
        if ident not in self._places:
            return None
        start, size = self._places[ident]
        end = self._file.tell()
        self._file.seek(start)
        line = self._file.read(size)
        self._file.seek(end)
        return _object(line)

    def problems(self, *, unclaimed: bool = True) -> list[str]:
        """Return what is wrong with the results as a whole, once all requests have been looked up.

        Without `unclaimed`, results that nobody looked up are left out: not all requests may be known here.
        """
        unknown = [*self._foreign, *(sorted(self._unclaimed) if unclaimed else ())]
        shown = one_line(", ".join(unknown[:_SHOWN]), 300)
        told = []
        if unknown:
            told.append(f"{pluralise(len(unknown), 'result')} for requests that cdo did not make ({shown})")
        if self._broken:
            told.append(f"{pluralise(self._broken, 'line')} that are no results")
        if self._twice:
            shown = one_line(", ".join(sorted(self._twice)[:_SHOWN]), 300)
            told.append(f"{pluralise(len(self._twice), 'request')} answered more than once ({shown})")
        return told

    def close(self) -> None:
        """Give up the file."""
        self._file.close()


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
