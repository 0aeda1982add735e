"""Runs one item of a batch: opens its session, or makes it, and drives that to its end.

An item whose session is there goes on from its record. What an item costs is written down in its session before it is
used, so an item that was stopped at any point repeats nothing that was paid.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field

from cdo.app import run
from cdo.app.batch.folder import FAILED, ItemResult, labels_of
from cdo.app.batch.items import BatchItem
from cdo.app.batch.plans import files_of
from cdo.app.batch.session_maker import SessionMaker
from cdo.content.library import Library
from cdo.core.errors import BudgetReached, CdoError, DiskFailed, Interrupted, SessionError, WaitsForBatch
from cdo.core.events import Event, ExchangeRecorded
from cdo.core.result import Result
from cdo.core.usage import TotalUsage, totals
from cdo.history.index_writer import IndexWriter
from cdo.planning.plan import Plan
from cdo.planning.settings import Resolved
from cdo.providers.models import ModelSpec
from cdo.runner.endpoint_batches.submissions import open_submissions
from cdo.security.secrets import redactor
from cdo.session.records import session_path
from cdo.session.session_file import NewSession, load, new_session_file
from cdo.session.store import Session


class EndedItem(Struct, frozen=True):
    """How an item ended, and the error if it failed."""

    result: ItemResult
    error: CdoError | None = None


class NotCollected(Exception):
    """Calls of an item wait at a provider, and `error` keeps it from their answers: the item has not failed."""

    def __init__(self, error: CdoError) -> None:
        super().__init__(error.message)
        self.error = error


class ItemRunner(Struct):
    """Runs items whose sessions are in `folder`, with what all of them share.

    `plan_of` makes the plan of an item that has not begun. `answered` is called whenever a response is on record.
    `index` takes in the sessions that have ended, None where nobody writes them into the index.
    """

    folder: Path
    plan_of: Callable[[BatchItem], Plan]
    specs: Mapping[str, ModelSpec]
    resolved: Resolved
    library: Library
    shared: run.SharedByRuns
    answered: Callable[[], None]
    index: IndexWriter | None = None
    _maker: SessionMaker = field(default_factory=SessionMaker)

    async def run(self, item: BatchItem) -> EndedItem:
        """Return how an item ended; raise `BudgetReached` if a cap keeps it from that, `DiskFailed` if the disk does,
        `WaitsForBatch` if calls wait at a provider, `NotCollected` if their answers cannot be had, or `Interrupted`.
        """
        began = time.monotonic()
        used, session = TotalUsage(), None
        try:
            session, plan = await self.opened(item)
            try:
                return EndedItem(_done(item, await self._driven(item, session, plan), time.monotonic() - began))
            finally:
                used = totals(session.records)
        except (BudgetReached, DiskFailed, Interrupted, WaitsForBatch):
            raise
        except CdoError as error:
            if session and open_submissions(session.records):
                raise NotCollected(error) from None
            return failed(item, used, error, time.monotonic() - began)
        except Exception as error:
            wrong = CdoError(f"Internal error: {type(error).__name__}: {error}", "Please report it.")
            return failed(item, used, wrong, time.monotonic() - began)

    async def _driven(self, item: BatchItem, session: Session, plan: Plan) -> Result:
        def observe(event: Event) -> None:
            if isinstance(event, ExchangeRecorded):
                self.answered()

        specs, index = [self.specs[name] for name in plan.named], self.index
        labels = labels_of(self.folder, item.id)
        ended = index.take if index else None
        hooks = run.RunHooks(specs, observe, shared=self.shared, ended=ended, labels=labels)
        result = await run.run(session, plan, self.resolved.values, self.library, hooks)
        if index:
            index.closed(session.path)
        return result

    async def opened(self, item: BatchItem) -> tuple[Session, Plan]:
        """Return the session of an item and its plan: the one already begun, else a new one.

        It waits for the disk in a thread, so that the other items go on meanwhile.
        """
        if found := self._begun(item):
            return found
        plan, now = self.plan_of(item), self.resolved
        head = new_session_file(plan, now.values, now.sources)
        new = NewSession(head, files_of(item), session_path(self.folder, item.session))
        return await self._maker.create(new), plan

    def _begun(self, item: BatchItem) -> tuple[Session, Plan] | None:
        """Return the session of an item and its plan if it was begun."""
        path = session_path(self.folder, item.session)
        if not os.path.lexists(path):
            return None
        redact = redactor(os.environ)
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


def failed(item: BatchItem, used: TotalUsage, error: CdoError, seconds: float) -> EndedItem:
    """Return the end of an item that failed by `error`, for which so much had been `used`."""
    result = ItemResult(
        item.id, item.session, FAILED, cost=used.known_cost, calls=used.calls, tokens=used.tokens,
        seconds=round(seconds, 3), path=f"cdo-{item.session}", error=error.message, ended=_now(),
    )  # fmt: skip
    return EndedItem(result, error)


def _done(item: BatchItem, result: Result, seconds: float) -> ItemResult:
    return ItemResult(
        item.id, item.session, result.status, result.decision, result.confidence, result.cost, result.calls,
        result.tokens, round(seconds, 3), Path(result.path).name, "", _now(),
    )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
