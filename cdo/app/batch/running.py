"""Runs the open items of a batch in one process: several at a time, each in its own session, under common caps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cdo.app import run
from cdo.app import seats as seating
from cdo.app.batch.folder import BatchFolder, ItemResult
from cdo.app.batch.item_runner import EndedItem, ItemRunner, NotCollected
from cdo.app.batch.items import BatchItem
from cdo.app.batch.plans import ItemPlans
from cdo.content.library import Library
from cdo.core.errors import (
    BudgetReached,
    CdoError,
    ConfigError,
    DiskFailed,
    Interrupted,
    ModelsFailed,
    SessionError,
    WaitsForBatch,
)
from cdo.core.formatting import pluralise
from cdo.core.signals import interruptible
from cdo.core.usage import TotalUsage, totals
from cdo.history.index_writer import IndexWriter
from cdo.planning.settings import Settings
from cdo.providers.models import ModelSpec
from cdo.runner.budget import Budget
from cdo.runner.endpoint_batches.depot import LATEST, SOONEST, BatchDepot
from cdo.runner.retry import RetryBudget
from cdo.security.secrets import redactor
from cdo.session.records import read_session, session_path

if TYPE_CHECKING:
    from cdo.tracing.collector import Collector

# So many items that fail one after the other, whatever their questions, have a cause in common: a refused key, a
# provider that is down. The batch then stops, instead of failing thousands of items.
IN_A_ROW = 20
AHEAD = 5.0  # seconds that the first item goes ahead at most: its first answer states the provider's rate limits
REFRESHED = 1.0  # seconds between two looks at what the items under way have used
AT_STOP = 1.5  # seconds to close connections when somebody wants the batch to end


@dataclass
class BatchStanding:
    """How far a batch is: items by their state, and what all of them have used."""

    count: int
    done: int = 0
    failed: int = 0
    live: int = 0
    used: TotalUsage = field(default_factory=TotalUsage)
    waiting: int = 0  # those among the open ones whose calls wait at a provider

    @property
    def open(self) -> int:
        """The items that have not ended."""
        return self.count - self.done - self.failed

    @property
    def calls(self) -> int:
        """The calls that were answered, those of items under way too."""
        return self.used.calls

    @property
    def cost(self) -> float | None:
        """Dollars, None where a price is unknown."""
        return self.used.known_cost


@dataclass
class BatchTally:
    """Takes in how items end, and decides when no further item begins.

    `tell` is called whenever an item begins or ends, with its result if it has ended. With `fail_fast` no item
    begins after one has failed; those that are under way come to their end. `again` is the command that goes on.
    """

    folder: BatchFolder
    standing: BatchStanding
    tell: Callable[[ItemResult | None], None]
    fail_fast: bool = False
    again: str = ""
    stop: CdoError | None = None  # why no further item begins
    uncollected: CdoError | None = None  # what keeps items from answers that are at a provider
    _row: int = 0  # items that failed one after the other

    @property
    def hopeless(self) -> bool:
        """True if items under way need not come to their end either: so many have failed in a row."""
        return self._row >= IN_A_ROW

    def begins(self) -> None:
        """Count an item that begins."""
        self.standing.live += 1
        self.tell(None)

    def refresh(self, used: TotalUsage) -> None:
        """Tell what all items have used so far, those under way too."""
        self.standing.used = used
        self.tell(None)

    def capped(self, error: BudgetReached) -> None:
        """Begin no further item, since a cap is reached."""
        hint = f"`{self.again}` goes on under a higher cap; nothing is paid twice."
        self.stop = self.stop or BudgetReached(error.message, hint)

    def disk_failed(self, error: DiskFailed) -> CdoError:
        """Begin no further item, and return the error that ends the batch: nothing more can be kept on this disk."""
        if not isinstance(self.stop, DiskFailed):
            hint = f"{error.remedy}, then `{self.again}` goes on; nothing recorded is lost or paid twice."
            self.stop = DiskFailed(error.message, hint, error.remedy)
        return self.stop

    def not_collected(self, error: CdoError) -> None:
        """Begin no further item, since the answers that items wait for cannot be had."""
        self.stop = self.uncollected = self.uncollected or error
        self.waits()

    def waits(self) -> None:
        """Count an item whose calls wait at a provider."""
        self.standing.waiting += 1
        self.tell(None)

    async def ended(self, ended: EndedItem) -> None:
        """Record how an item ended; return when that is durable."""
        if ended.error:
            self._row += 1
            if self.hopeless:
                self.stop = self.stop or _stopped(ended.error)
            elif self.fail_fast:
                self.stop = self.stop or _FailedFast(ended.error.message)
        await self.folder.add(ended.result)
        if ended.result.failed:
            self.standing.failed += 1
        else:
            self.standing.done += 1
            self._row = 0
        self.tell(ended.result)

    def raise_stop(self) -> None:
        """Raise what stopped the batch, unless that was `--fail-fast`."""
        if self.stop and not isinstance(self.stop, _FailedFast):
            raise self.stop


@dataclass
class BatchRun:
    """Runs the items that `todo` yields, `live` at a time.

    Calls that go through batch endpoints leave together when no item can go on without them. Then the batch ends
    with `WaitsForBatch`, or with `wait` stays and runs the items again once answers are there.
    """

    tally: BatchTally
    plans: ItemPlans
    shared: run.SharedByRuns
    live: int
    say: Callable[[str], None]
    wait: bool = False
    _answered: asyncio.Event = field(default_factory=asyncio.Event)
    _index: IndexWriter = field(init=False)

    def __post_init__(self) -> None:
        self._index = IndexWriter(self.tally.folder.path)

    async def go(self, todo: Callable[[], Iterator[BatchItem]]) -> None:
        """Run the items; raise `BudgetReached` or another `CdoError` that ends the batch early."""
        until = float("inf")
        try:
            with interruptible(self.tally.folder.name, self.tally.again):
                while await self._passed(todo()):
                    self.tally.standing.waiting = 0
        except DiskFailed as error:
            until = time.monotonic() + AT_STOP
            raise self.tally.disk_failed(error) from None
        except (Interrupted, asyncio.CancelledError):
            until = time.monotonic() + AT_STOP
            raise
        finally:
            self.shared.depot.close()
            await run.close_all(self.shared.seats, until)
            if self.shared.sender:
                self.shared.sender.close(until)
                self._tell_of_trace()
            if until == float("inf"):  # nobody waits to stop, and the disk can be written to
                await asyncio.to_thread(self._index.write)
        self.tally.raise_stop()

    async def _passed(self, todo: Iterator[BatchItem]) -> bool:
        """Run the items as far as they come, and submit what they wait for; return whether to run them again.

        Raises `WaitsForBatch` if items wait and the batch is not to stay.
        """
        depot, standing = self.shared.depot, self.tally.standing
        try:
            await self._all(todo)
        finally:
            for told in depot.found_again():
                self.say(told)
        for told in depot.shortcomings() if self.tally.stop is None else ():
            self.say(told)
        for parcel in list(depot.parcels):
            await depot.send_on_record(parcel)
        if self.tally.uncollected:
            raise self.tally.uncollected
        if not standing.waiting:
            return False
        delay = SOONEST
        while self.wait and self.shared.budget.remaining_seconds() > delay:
            self.say(f"{self._told()[:-1]}; asked again in {delay:.0f} s")
            await asyncio.sleep(delay)
            delay = min(LATEST, delay * 2)
            if await depot.some_ended():
                depot.look_again()
                return True
        hint = f"`{self.tally.again}` collects the answers that are there, and --wait stays until they are."
        raise WaitsForBatch(self._told(), hint)

    def _told(self) -> str:
        waiting, batches = self.tally.standing.waiting, self.shared.depot.under_way()
        verb = "waits" if waiting == 1 else "wait"
        return f"{pluralise(waiting, 'item')} {verb} for {'; '.join(batches) or 'a batch'}."

    async def _all(self, todo: Iterator[BatchItem]) -> None:
        plans = self.plans
        runner = ItemRunner(
            self.tally.folder.path, plans.plan, plans.specs, plans.resolved, plans.library, self.shared,
            self._answered.set, self._index,
        )  # fmt: skip
        ticking = asyncio.create_task(self._tick())
        tasks = [asyncio.create_task(self._work(runner, todo, first=not number)) for number in range(self.live)]
        try:
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
                if any(task.exception() for task in done):
                    break
        finally:
            for task in (*tasks, ticking):
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(REFRESHED)
            self._tell_of_trace()
            self.tally.refresh(self.shared.budget.totals)

    def _tell_of_trace(self) -> None:
        for note in self.shared.sender.told() if self.shared.sender else ():
            self.say(note)

    async def _work(self, runner: ItemRunner, todo: Iterator[BatchItem], *, first: bool) -> None:
        """Run one item after the other until none is left or the batch stops; all but the `first` begin later."""
        tally = self.tally
        if not first:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), AHEAD)
        while tally.stop is None and (item := next(todo, None)) is not None:
            tally.begins()
            ended = None
            try:
                ended = await runner.run(item)
            except BudgetReached as error:
                tally.capped(error)
            except DiskFailed as error:
                raise tally.disk_failed(error) from None
            except WaitsForBatch:
                tally.waits()
            except NotCollected as found:
                tally.not_collected(found.error)
            finally:
                tally.standing.live -= 1
                tally.standing.used = self.shared.budget.totals
                self._answered.set()
            if ended:
                await tally.ended(ended)
            if self._index.full:
                await asyncio.to_thread(self._index.write)
            if tally.hopeless and tally.stop:
                raise tally.stop


class _FailedFast(CdoError):
    """The reason to begin no further item: one has failed."""


def _stopped(error: CdoError) -> CdoError:
    """Return the error that ends a batch of which so many items failed in a row."""
    kind = type(error) if isinstance(error, (ConfigError, SessionError)) else ModelsFailed
    return kind(
        f"{IN_A_ROW} items in a row failed, so the batch stops. The last one: {error.message}",
        "Remove the cause, then run again with --retry-failed; nothing is paid twice.",
    )


def shared_by(
    specs: Sequence[ModelSpec],
    settings: Settings,
    library: Library,
    used: TotalUsage,
    say: Callable[[str], None],
    depot: BatchDepot,
    collector: Collector | None = None,
) -> run.SharedByRuns:
    """Return what the items of a batch have in common, which has `used` so much; `say` tells the person.

    The spans of all items go to the `collector`.

    The embedded model answers one at a time: more in flight would only let deadlines run.
    """
    sender = None
    if collector:
        from cdo.observers.live_trace import SpanSender

        sender = SpanSender(collector, redactor(os.environ))
    slots = 1 if any(spec.route == "local" for spec in specs) else settings.concurrency
    return run.SharedByRuns(
        seating.seats(specs, settings, library, say), Budget(run.limits_of(settings), used), RetryBudget(),
        asyncio.Semaphore(slots), depot, sender,
    )  # fmt: skip


def used_so_far(folder: Path, results: Mapping[str, ItemResult], todo: Iterator[BatchItem]) -> TotalUsage:
    """Return what a batch has used: by the records of the items in `todo`, and by the results of all others."""
    return counted(folder, results, todo)[0]


def counted(
    folder: Path, results: Mapping[str, ItemResult], todo: Iterator[BatchItem]
) -> tuple[TotalUsage, dict[str, TotalUsage]]:
    """Return what a batch has used, as `used_so_far` does, and what is on record of each item in `todo`."""
    found, again, recorded = TotalUsage(), set[str](), dict[str, TotalUsage]()
    for item in todo:
        again.add(item.id)
        path = session_path(folder, item.session)
        if path.is_dir():
            with contextlib.suppress(SessionError):  # told when the item is run
                recorded[item.id] = totals(read_session(path))
                found += recorded[item.id]
    for result in results.values():
        if result.id not in again:
            unpriced = int(result.cost is None)
            found += TotalUsage(result.calls, result.tokens, 0, result.cost or 0.0, unpriced)
    return found, recorded
