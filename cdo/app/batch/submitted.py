"""Writes down which provider batches serve the items of a batch: `submissions.jsonl` in its folder.

A line is written before a provider batch is submitted, and one when the provider has named it. Only the owner of the
folder submits for it, so a batch without the first line was never submitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cdo.app.batch.folder import SUBMISSIONS, BatchFolder, read_lines
from cdo.app.batch.items import BatchItem
from cdo.core.errors import SessionError
from cdo.core.usage import TotalUsage
from cdo.providers.models import ModelSpec
from cdo.runner.endpoint_batches.depot import Parcel
from cdo.runner.endpoint_batches.submissions import Submission, away, now, open_submissions
from cdo.session.records import read_session, session_path


class SubmittedBatches:
    """The provider batches of one batch's folder, as `runner.endpoint_batches.depot` asks for them."""

    def __init__(self, folder: BatchFolder) -> None:
        self._folder = folder
        self._ids, self._counts = _read(folder.path)

    def begun(self, marker: str) -> bool:
        """True if the batch may have been submitted."""
        return marker in self._counts

    def known(self, marker: str) -> str:
        """Return the provider's id of a batch; "" if it is not known."""
        return self._ids.get(marker, "")

    def count(self, marker: str) -> int:
        """Return the number of requests of a batch."""
        return self._counts[marker]

    def begin(self, parcel: Parcel) -> None:
        """Write down, durably, that the batch is submitted now."""
        self._counts[parcel.marker] = parcel.written
        self._folder.note(
            {"marker": parcel.marker, "provider": parcel.provider, "count": parcel.written, "at": now()}
        )

    def refused(self, marker: str) -> None:
        """Write down, durably, that the provider did not take the batch."""
        self._counts.pop(marker, None)
        self._folder.note({"marker": marker, "refused": True, "at": now()})

    def sent(self, marker: str, ident: str) -> None:
        """Write down, durably, what the provider calls the batch."""
        self._ids[marker] = ident
        self._folder.note({"marker": marker, "id": ident, "at": now()})


def _read(folder: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Return, by marker, the provider's ids of the batches and the numbers of their requests."""
    ids, counts = dict[str, str](), dict[str, int]()
    for line in read_lines(folder, SUBMISSIONS):
        try:
            told = json.loads(line)
            marker = str(told["marker"])
            if "id" in told:
                ids[marker] = str(told["id"])
            elif "refused" in told:
                counts.pop(marker, None)
            else:
                counts[marker] = int(told["count"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise SessionError(
                f"{folder / SUBMISSIONS} is damaged.",
                "Restore it from a copy: it lists the submitted requests.",
            ) from None
    return ids, counts


def at_providers(folder: Path, items: Iterable[BatchItem]) -> Iterator[BatchItem]:
    """Yield the items that wait for batches which were submitted; raise `SessionError`."""
    _, counts = _read(folder)
    for item, found in waiting(folder, items):
        if any(submission.marker in counts for submission in found):
            yield item


def waiting(folder: Path, items: Iterable[BatchItem]) -> Iterator[tuple[BatchItem, list[Submission]]]:
    """Yield the items that wait, with what waits at providers for each of them; raise `SessionError`."""
    if not (folder / SUBMISSIONS).is_file():
        return
    for item in items:
        path = session_path(folder, item.session)
        if path.is_dir() and (found := open_submissions(read_session(path))):
            yield item, found


def away_so_far(folder: Path, items: Iterable[BatchItem], specs: Mapping[str, ModelSpec]) -> TotalUsage:
    """Return the most that the requests of items can use which wait at providers."""
    return sum((away(found, specs) for _, found in waiting(folder, items)), TotalUsage())
