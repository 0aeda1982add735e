"""Runs the open items of a batch in one process: several at a time, each in its own session, under common caps.

An item whose session is there goes on from its record. What an item costs is written down in its session before it is
used, so a batch that was stopped at any point repeats nothing that was paid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cdo.app import run
from cdo.app import seats as seating
from cdo.app.batch.folder import FAILED, BatchFolder, ItemResult
from cdo.app.batch.items import BatchItem
from cdo.app.batch.plans import ItemPlans, files_of
from cdo.content.library import Library
from cdo.core.errors import BudgetReached, CdoError, ConfigError, Interrupted, ModelsFailed, SessionError
from cdo.core.events import Event, ExchangeRecorded
from cdo.core.result import Result
from cdo.core.signals import interruptible
from cdo.core.usage import TotalUsage, totals
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.providers.models import ModelSpec
from cdo.runner.budget import Budget
from cdo.runner.retry import RetryBudget
from cdo.security.secrets import redactor
from cdo.session.records import read_session, session_path
from cdo.session.session_file import create_session, load, new_session_file
from cdo.session.store import Session

# So many items that fail one after the other, whatever their questions, have a cause in common: a refused key, a
# provider that is down, a full disk. The batch then stops, instead of failing thousands of items.
IN_A_ROW = 20
AHEAD = 5.0  # seconds that the first item goes ahead at most: its first answer states the provider's rate limits
AT_STOP = 1.5  # seconds to close connections when somebody wants the batch to end


@dataclass
class BatchStanding:
    """How far a batch is: items by their state, and what all of them have used."""

    count: int
    done: int = 0
    failed: int = 0
    live: int = 0
    used: TotalUsage = field(default_factory=TotalUsage)

    @property
    def open(self) -> int:
        """The items that have not ended."""
        return self.count - self.done - self.failed

    @property
    def cost(self) -> float | None:
        """Dollars, None where a price is unknown."""
        return self.used.known_cost


@dataclass
class BatchRun:
    """Runs the items that `todo` yields, `live` at a time.

    `tell` is called whenever an item begins or ends, with its result if it has ended. With `fail_fast` no item
    begins after one has failed; those that are under way come to their end.
    """

    folder: BatchFolder
    plans: ItemPlans
    shared: run.SharedByRuns
    standing: BatchStanding
    live: int
    tell: Callable[[ItemResult | None], None]
    fail_fast: bool = False
    again: str = ""  # the command that goes on
    _stop: CdoError | None = None
    _row: int = 0  # items that failed one after the other
    _answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def go(self, todo: Iterator[BatchItem]) -> None:
        """Run the items; raise `BudgetReached` or another `CdoError` that ends the batch early."""
        until = float("inf")
        try:
            with interruptible(self.folder.name, self.again):
                await self._all(todo)
        except (Interrupted, asyncio.CancelledError):
            until = time.monotonic() + AT_STOP
            raise
        finally:
            await run.close_all(self.shared.seats, until)
        if self._stop and not isinstance(self._stop, _FailedFast):
            raise self._stop

    async def _all(self, todo: Iterator[BatchItem]) -> None:
        tasks = [asyncio.create_task(self._work(todo, first=not number)) for number in range(self.live)]
        try:
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
                if any(task.exception() for task in done):
                    break
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _work(self, todo: Iterator[BatchItem], *, first: bool) -> None:
        """Run one item after the other until none is left or the batch stops; all but the `first` begin later."""
        if not first:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), AHEAD)
        while self._stop is None and (item := next(todo, None)) is not None:
            self.standing.live += 1
            self.tell(None)
            try:
                result = await self._ended(item)
            finally:
                self.standing.live -= 1
                self.standing.used = self.shared.budget.totals
                self._answered.set()
            if result is not None:
                await self.folder.add(result)
                self._count(result)
                self.tell(result)
            if self._row >= IN_A_ROW and self._stop:
                raise self._stop

    def _count(self, result: ItemResult) -> None:
        if result.failed:
            self.standing.failed += 1
        else:
            self.standing.done += 1
            self._row = 0

    async def _ended(self, item: BatchItem) -> ItemResult | None:
        """Return how an item ended; None if a cap keeps it from coming to its end."""
        began = time.monotonic()
        used = TotalUsage()
        try:
            session, plan = await self._opened(item)
            try:
                result = await self._run(session, plan)
                return _done(item, result, time.monotonic() - began)
            finally:
                used = totals(session.records)
        except BudgetReached as error:
            hint = f"`{self.again}` goes on under a higher cap; nothing is paid twice."
            self._stop = self._stop or BudgetReached(error.message, hint)
            return None
        except Interrupted:
            raise
        except CdoError as error:
            return self._failed(item, used, error, time.monotonic() - began)
        except Exception as error:
            wrong = CdoError(f"Internal error: {type(error).__name__}: {error}", "Please report it.")
            return self._failed(item, used, wrong, time.monotonic() - began)

    async def _run(self, session: Session, plan: Plan) -> Result:
        def observe(event: Event) -> None:
            if isinstance(event, ExchangeRecorded):
                self._answered.set()

        hooks = run.RunHooks([self.plans.specs[name] for name in plan.named], observe, shared=self.shared)
        return await run.run(session, plan, self.plans.resolved.values, self.plans.library, hooks)

    async def _opened(self, item: BatchItem) -> tuple[Session, Plan]:
        """Return the session of an item and its plan: the one already begun, else a new one.

        It waits for the disk in a thread, so that the other items go on meanwhile.
        """
        if found := self._begun(item):
            return found
        plan, now = self.plans.plan(item), self.plans.resolved
        head = new_session_file(plan, now.values, now.sources)
        made = asyncio.to_thread(create_session, head, files_of(item), self.folder.path, item.session, ())
        return await made, plan

    def _begun(self, item: BatchItem) -> tuple[Session, Plan] | None:
        """Return the session of an item and its plan if it was begun."""
        path = session_path(self.folder.path, item.session)
        redact = redactor(os.environ)
        if not os.path.lexists(path):
            return None
        session = Session.open(path, redact)
        try:
            if (session.read("00-input.md") or "").strip() != redact(item.question).strip():
                raise SessionError(
                    f"{path} holds another question than the item {item.id}.", "Move that folder, then run again."
                )
            plan = load(session).plan
            if unknown := [name for name in plan.named if name not in self.shared.seats]:
                raise SessionError(
                    f"{path} asks models that the batch does not have: {', '.join(unknown)}.", "Resume it by itself."
                )
        except BaseException:
            session.close()
            raise
        return session, plan

    def _failed(self, item: BatchItem, used: TotalUsage, error: CdoError, seconds: float) -> ItemResult:
        self._row += 1
        if self._row >= IN_A_ROW:
            self._stop = self._stop or _stopped(error)
        elif self.fail_fast:
            self._stop = self._stop or _FailedFast(error.message)
        return ItemResult(
            item.id, item.session, FAILED, cost=used.known_cost, calls=used.calls, tokens=used.tokens,
            seconds=round(seconds, 3), path=f"cdo-{item.session}", error=error.message, ended=_now(),
        )  # fmt: skip


class _FailedFast(CdoError):
    """The reason to begin no further item: one has failed."""


def _stopped(error: CdoError) -> CdoError:
    """Return the error that ends a batch of which so many items failed in a row."""
    kind = type(error) if isinstance(error, (ConfigError, SessionError)) else ModelsFailed
    return kind(
        f"{IN_A_ROW} items in a row failed, so the batch stops. The last one: {error.message}",
        "Remove the cause, then run again with --retry-failed; nothing is paid twice.",
    )


def _done(item: BatchItem, result: Result, seconds: float) -> ItemResult:
    return ItemResult(
        item.id, item.session, result.status, result.decision, result.confidence, result.cost, result.calls,
        result.tokens, round(seconds, 3), Path(result.path).name, "", _now(),
    )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def shared_by(
    specs: Sequence[ModelSpec], settings: Settings, library: Library, used: TotalUsage, say: Callable[[str], None]
) -> run.SharedByRuns:
    """Return what the items of a batch have in common, which has `used` so much; `say` tells the person.

    The embedded model answers one at a time: more in flight would only let deadlines run.
    """
    slots = 1 if any(spec.route == "local" for spec in specs) else settings.concurrency
    return run.SharedByRuns(
        seating.seats(specs, settings, library, say), Budget(run.limits_of(settings), used), RetryBudget(),
        asyncio.Semaphore(slots),
    )  # fmt: skip


def used_so_far(folder: Path, results: Mapping[str, ItemResult], todo: Iterator[BatchItem]) -> TotalUsage:
    """Return what a batch has used: by the records of the items in `todo`, and by the results of all others."""
    found, again = TotalUsage(), set[str]()
    for item in todo:
        again.add(item.id)
        path = session_path(folder, item.session)
        if path.is_dir():
            with contextlib.suppress(SessionError):  # told when the item is run
                found += totals(read_session(path))
    for result in results.values():
        if result.id not in again:
            unpriced = int(result.cost is None)
            found += TotalUsage(result.calls, result.tokens, 0, result.cost or 0.0, unpriced)
    return found
