"""Opens a batch: a new one from a file, or one that was begun, with what its file has gained since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from cdo import __version__
from cdo.app.batch.folder import (
    PREFIX,
    BatchFile,
    BatchFolder,
    ItemResult,
    read_head,
    read_items,
    read_results,
)
from cdo.app.batch.items import BatchItem, ItemRegister, items
from cdo.app.batch.plans import ItemPlans
from cdo.app.batch.rows import fingerprint, rows
from cdo.app.batch.shards import Shard, owner_here
from cdo.content.library import Library
from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import one_line, pluralise
from cdo.planning.settings import Resolved
from cdo.session.session_file import with_overrides

# Settings that decide what is asked. They are those of the batch: a resume cannot change them.
CONTENT = ("model", "width", "turns", "review")


class BatchOrder(Struct, frozen=True):
    """What a person asks for: the folder of the batch, its file (None: as it was begun), and how to read that."""

    path: Path
    file: Path | None
    columns: Mapping[str, str] = msgspec.field(default_factory=dict)
    preset: str = ""
    retry_failed: bool = False
    shard: Shard | None = None
    take_over: bool = False

    @property
    def name(self) -> str:
        """The name of the batch."""
        return self.path.name.removeprefix(PREFIX)


class PreparedBatch(Struct):
    """A batch as it can be run: `head` is None for one that is not begun. `new` items are not in it yet.

    `count` items are in it with these, and `open` of them are to be run. `resolved` are the settings they run under.
    `notes` are what a person should know.
    """

    order: BatchOrder
    head: BatchFile | None
    resolved: Resolved
    plans: ItemPlans
    results: dict[str, ItemResult]
    sha256: str = ""
    new: int = 0
    count: int = 0
    open: int = 0
    notes: list[str] = field(default_factory=list)

    def wanted(self, item: BatchItem) -> bool:
        """True if an item is to be run: it has not ended, or failed and failed ones are to be asked again."""
        ended = self.results.get(item.id)
        return ended is None or (ended.failed and self.order.retry_failed)

    def todo(self, head: BatchFile) -> Iterator[BatchItem]:
        """Yield the items that are to be run, in order."""
        return (item for item in read_items(self.order.path, head) if self.wanted(item))

    def settled(self, folder: BatchFolder) -> BatchFile:
        """Write down what the batch is from now on, with the new items; raise `SessionError`."""
        head = replace(self.head or self._first(), owner=owner_here())
        file = self.order.file
        if file is None or (self.head and self.sha256 == head.sha256):
            return folder.settle(head, ())
        known = read_items(self.order.path, head) if self.head else ()
        register = ItemRegister(self.order.name, known)
        update = {"sha256": self.sha256, "file": str(file), "models": self.plans.chosen}
        new = _new(file, register, replace(self.order, columns=head.columns), set())
        settled = folder.settle(replace(head, **update), new)
        if settled.count != self.count or fingerprint(file) != self.sha256:
            raise SessionError(f"{file} changed while it was read.", "Run the same command again.")
        return settled

    def _first(self) -> BatchFile:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return BatchFile(
            cdo=__version__, created=now, file="", sha256="", columns=dict(self.order.columns),
            preset=self.order.preset, shard=self.order.shard, settings=self.resolved.values,
            sources=dict(self.resolved.sources), count=0, size=0,
        )  # fmt: skip


def prepare(order: BatchOrder, resolved: Resolved, library: Library, *, trust: bool, begun: bool) -> PreparedBatch:
    """Read what a batch is made of, and plan what is to be run; write nothing. Raises `CdoError`.

    `begun`: the batch is there, and goes on under its own settings apart from the caps that are given now.
    """
    head = read_head(order.path) if begun else None
    if head:
        _require_same(order, head, resolved)
        order = replace(order, columns=head.columns, preset=head.preset, shard=head.shard)
        values = replace(with_overrides(head.settings, resolved), out=str(order.path))
        resolved = Resolved(values, {**resolved.sources, "model": head.sources["model"]})
    else:
        values = replace(resolved.values, out=str(order.path), no_git=True, strict=False)
        resolved = replace(resolved, values=values)
    plans = ItemPlans(resolved, library, order.preset, dict(head.models) if head else {})
    batch = PreparedBatch(order, head, resolved, plans, read_results(order.path) if head else {})
    _count(batch)
    if head and batch.open and not order.take_over:
        _require_own(order, head)
    if batch.open:
        plans.look_around(trust=trust)
        batch.notes += plans.notes
    return batch


def _count(batch: PreparedBatch) -> None:
    """Count the items of a batch, those that it has and those that its file adds."""
    order, head = batch.order, batch.head

    def counted(found: Iterator[BatchItem]) -> Iterator[BatchItem]:
        for item in found:
            batch.count += 1
            if batch.wanted(item):
                batch.open += 1
                batch.plans.count(item)
            yield item

    register = ItemRegister(order.name, counted(read_items(order.path, head)) if head else ())
    if order.file is None:
        return
    batch.sha256 = fingerprint(order.file)
    if head and batch.sha256 == head.sha256:
        return
    unused: set[str] = set()
    for _ in counted(_new(order.file, register, order, unused)):
        batch.new += 1
    if not (batch.count or register.seen):
        raise UsageError(f"{order.file} has no items.", "Give it a row for each question.")
    batch.notes += _remarks(register, unused)


def _new(file: Path, register: ItemRegister, order: BatchOrder, unused: set[str]) -> Iterator[BatchItem]:
    """Yield the items of a file that a batch does not have yet: of a shard only its own, though all are checked."""
    for item in items(rows(file), order.columns, unused):
        new = register.take(item)
        if new and (order.shard is None or order.shard.has(new.id)):
            yield new


def _remarks(register: ItemRegister, unused: set[str]) -> Iterator[str]:
    if unused:
        names = sorted(unused)
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        yield f"columns that are not used: {one_line(', '.join(names[:8]), 300)}{more}"
    if register.repeated:
        line, before = register.repeated[0]
        more = f", and so on: {pluralise(len(register.repeated), 'row')}" if len(register.repeated) > 1 else ""
        yield f"line {line} repeats line {before}{more}; each question is asked once"
    if register.alike:
        yield f"items that ask what another one asks, under an id of their own: {register.alike:,}; all are asked"
    if gone := register.gone():
        yield f"items of the batch that the file does not have any more: {gone:,}; they stay in the batch"


def _require_own(order: BatchOrder, head: BatchFile) -> None:
    """Raise `SessionError` if another machine ran a batch last: a process there may still pay for its items."""
    if head.owner.host and head.owner.host != owner_here().host:
        raise SessionError(
            f"The batch {order.name} was run by another machine last: {one_line(head.owner.host, 100)}.",
            "If no process there goes on with it, pass --take-over.",
        )


def _require_same(order: BatchOrder, head: BatchFile, resolved: Resolved) -> None:
    """Raise `UsageError` where a batch that was begun is to ask in another way."""
    given = [key for key in CONTENT if resolved.sources[key].startswith("--")]
    other = [f"--{key}" for key in given if getattr(resolved.values, key) != getattr(head.settings, key)]
    if order.preset and order.preset != head.preset:
        other.append("--preset")
    if order.columns and order.columns != head.columns:
        other.append("--column")
    if other:
        raise UsageError(
            f"The batch {order.name} was begun with another {' and '.join(other)}.",
            "Leave that out to go on; begin a new batch with --name NAME.",
        )
