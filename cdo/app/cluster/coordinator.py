"""Runs the open items of a batch on a Dask cluster. This process holds the batch: its table, its caps, its leases.

Chunks of items are tasks of Dask, each for one worker. The coordinator calls every worker all the time
(`cluster_worker`), so it learns at once when one is lost. The chunk of a lost worker goes to another one, which goes
on from the record of its sessions where the folder is shared.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

from cdo import __version__
from cdo.app.batch.folder import BatchFolder, ItemResult
from cdo.app.batch.item_runner import EndedItem, failed
from cdo.app.batch.items import BatchItem
from cdo.app.batch.plans import ItemPlans
from cdo.app.batch.running import AHEAD, AT_STOP, BatchTally
from cdo.app.cluster import worker as remote
from cdo.app.cluster.cluster_worker import ClusterWorker, called
from cdo.app.cluster.connection import ClusterLost, ClusterOrder, connected, members
from cdo.app.cluster.leasing import LeaseDesk
from cdo.app.cluster.line import LOST, Message, error_of
from cdo.app.cluster.session_copy import unpacked
from cdo.app.run import SharedByRuns
from cdo.core.errors import BudgetReached, CdoError, ConfigError, DiskFailed, SessionError
from cdo.core.formatting import one_line, pluralise
from cdo.core.signals import interruptible
from cdo.core.usage import TotalUsage, totals
from cdo.session.records import read_session, session_path

LOOK = 1.0  # seconds between two looks at which workers there are
GRACE = 30.0  # seconds without any worker after which the cluster counts as lost
CHUNKS = 4  # chunks of one worker at the same time
DEATHS = 3  # workers that may be lost with one item before that fails


class ClusterRun(Struct, dict=True):  # `go` sets what only a running batch has
    """Runs the items that `todo` yields, `live` at a time over all workers.

    `say` tells the person. `recount` returns what the batch has used by the records on disk: in all, and of each item
    that has not ended.
    """

    tally: BatchTally
    plans: ItemPlans
    shared: SharedByRuns
    live: int
    order: ClusterOrder
    say: Callable[[str], None]
    recount: Callable[[], tuple[TotalUsage, dict[str, TotalUsage]]]
    _workers: dict[str, ClusterWorker] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _given_back: deque[BatchItem] = field(default_factory=deque)
    _deaths: Counter[str] = field(default_factory=Counter)
    _ending: set[asyncio.Task[None]] = field(default_factory=set)
    _fatal: CdoError | None = None
    _counted: bool = False  # what the batch has used, after which items are given out
    _chunks: int = 0
    _given_out: int = 0  # chunks that workers have not ended; at the end of one they write the index of runs
    _ahead: float = float("inf")  # until when the first item goes ahead alone (monotonic)

    async def go(self, todo: Iterator[BatchItem]) -> None:
        """Run the items; raise `BudgetReached` or another `CdoError` that ends the batch early."""
        self._todo, self._exhausted = todo, False
        self._desk = LeaseDesk(self.shared)
        self._news = asyncio.Event()
        with interruptible(self.tally.folder.name, self.tally.again):
            if self.order.local:
                self.say(f"starting {pluralise(self.order.workers, 'worker')} on this machine")
            async with connected(self.order) as client:
                self._client = client
                with _probe(self.tally.folder) as self._probe:
                    await self._all()
        self.tally.raise_stop()

    async def _all(self) -> None:
        try:
            await self._look()
            count = pluralise(len(self._workers), "worker")
            self.say(f"{count} ready" if self._workers else "no worker can be used yet; waiting for one")
            # Workers of an earlier coordinator may have recorded more since the batch was opened. Hello stopped them,
            # but what they have in flight is recorded later: it is counted when its item begins.
            self.shared.budget.totals, self._desk.accounts = await asyncio.to_thread(self.recount)
            self._counted = True
            self._tell()
            looked = seen = time.monotonic()
            while not self._finished():
                await self._pause()
                if self._fatal:
                    raise self._fatal
                if self.tally.hopeless and self.tally.stop:
                    raise self.tally.stop
                if time.monotonic() - looked >= LOOK:
                    self.tally.refresh(self.shared.budget.totals)
                    await self._look()
                    looked = time.monotonic()
                seen = time.monotonic() if self._workers else seen
                if time.monotonic() - seen > GRACE:
                    raise self._lost("no worker of it can be used any more")
        finally:
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(AT_STOP):
                    await asyncio.gather(*(worker.dismiss() for worker in list(self._workers.values())))

    def _finished(self) -> bool:
        under_way = self._ending or self._given_out or any(worker.items for worker in self._workers.values())
        if self.tally.stop:
            return not under_way
        return self._exhausted and not self._given_back and not under_way

    def _lost(self, why: str) -> ClusterLost:
        return ClusterLost(
            f"The Dask cluster at {one_line(self.order.address, 100)} is lost: {one_line(why, 200)}. "
            "Everything that was answered is recorded.",
            f"`{self.tally.again}` goes on when the cluster is there again; without --cluster it goes on here.",
        )

    # -- which workers there are --

    async def _look(self) -> None:
        """Welcome new workers, and give up those that are gone; raise `ClusterLost`."""
        try:
            found = await members(self._client)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise self._lost(f"its scheduler is gone ({one_line(str(error) or type(error).__name__, 100)})") from None
        for address, worker in list(self._workers.items()):
            if address not in found:
                await self._lose(worker, "is gone")
            elif time.monotonic() - worker.answered > LOST:
                await self._lose(worker, f"has not answered for {LOST:.0f} s")
        new = [address for address in found if address not in self._workers and address not in self._refused]
        await asyncio.gather(*(self._welcome(address, found[address]) for address in new))
        if found and len(self._refused) >= len(found) and not self._workers:
            raise ConfigError(
                f"No worker of the cluster can be used. {next(iter(self._refused.values()))}",
                "Give every worker the same version of cdo and, in its own environment, the keys.",
            )

    async def _welcome(self, address: str, threads: int) -> None:
        """Say hello to a worker, and give it items unless it cannot help."""
        run = secrets.token_hex(8)
        told = json.dumps({**self._hello(), "run": run})
        answer = await called(self._client, address, remote.hello, told)
        if isinstance(answer, BaseException):
            if isinstance(answer, (ImportError, AttributeError)):
                self._refuse(address, "it has no cdo, or another version of it")
            elif not isinstance(answer, (OSError, TimeoutError)):  # one that is gone is asked no more
                self._refuse(address, one_line(f"{type(answer).__name__}: {answer}", 200))
            return None
        said = json.loads(answer)
        if said["refused"]:
            return self._refuse(f"{address}", said["refused"], said["host"])
        worker = ClusterWorker(self._client, address, said["host"], run, said["shared"], self._desk.state, self._hear)
        self._workers[address] = worker
        if not worker.shared:
            self.say(
                f"worker {worker.name} does not share {self.tally.folder.path}: a session comes here when its item "
                "has an answer. If the worker is lost, its other items are asked anew, and what it had reserved "
                "counts as spent"
            )
        feeders = [self._feed(worker) for _ in range(max(1, min(threads, CHUNKS)))]
        worker.tasks = [asyncio.create_task(work) for work in (worker.talk(), *feeders)]
        for task in worker.tasks:
            task.add_done_callback(self._over)
        return None

    def _hello(self) -> Message:
        settings, plans = self.plans.resolved, self.plans
        return {
            "cdo": __version__, "folder": str(self.tally.folder.path.absolute()), "here": str(Path.cwd()),
            "probe": self._probe, "content": remote.content_digest(plans.library), "models": list(plans.specs),
            "settings": to_builtins(settings.values), "sources": dict(settings.sources),
        }  # fmt: skip

    def _refuse(self, address: str, why: str, host: str = "") -> None:
        name = f"{address} ({host})" if host else address
        self._refused[address] = f"Worker {name}: {why}".rstrip(".") + "."
        self.say(f"worker {name} is not used: {why}")

    async def _lose(self, worker: ClusterWorker, why: str) -> None:
        """Give up a worker: take back its leases, count what it has recorded, and give its items to others."""
        del self._workers[worker.address]
        worker.give_up()
        self._desk.take_back(worker.holder, spent=not worker.shared)
        if worker.shared:
            for identity in worker.live:
                path = session_path(self.tally.folder.path, worker.items[identity].session)
                self._desk.reconcile(identity, await asyncio.to_thread(_recorded, path))
        where = "which goes on from their record" if worker.shared else "and are asked anew: its disk is not shared"
        self.say(f"worker {worker.name} {why}: its {len(worker.items)} items go to another one, {where}")
        self._forget(worker, list(worker.live))
        items, worker.items = list(worker.items.values()), {}
        for item in items:
            await self._give_back(item)

    async def _give_back(self, item: BatchItem) -> None:
        """Let another worker have an item, unless too many were lost with it."""
        self._deaths[item.id] += 1
        if self._deaths[item.id] < DEATHS:
            self._given_back.append(item)
            return self._tell()
        error = CdoError(f"{DEATHS} workers were lost while they ran it.", "Look at the logs of the workers.")
        return await self.tally.ended(failed(item, TotalUsage(), error, 0.0))

    def _over(self, task: asyncio.Task[None]) -> None:
        """End the batch where a task of a worker ended by an error that it does not expect."""
        if not task.cancelled() and (error := task.exception()):
            wrong = CdoError(f"Internal error: {type(error).__name__}: {error}", "Please report it.")
            self._fatal = self._fatal or (error if isinstance(error, CdoError) else wrong)
            self._tell()

    def _forget(self, worker: ClusterWorker, ids: list[str]) -> None:
        """Count items no longer as live at a worker."""
        for identity in ids:
            if identity in worker.live:
                worker.live.remove(identity)
                self.tally.standing.live -= 1
                if not worker.shared:
                    self._desk.accounts.pop(identity, None)

    def _tell(self) -> None:
        """Wake those that wait for a change."""
        self._news.set()
        self._news = asyncio.Event()

    async def _pause(self) -> None:
        """Wait for a change, at most until the next look."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), LOOK)

    # -- giving out chunks --

    async def _feed(self, worker: ClusterWorker) -> None:
        """Give a worker one chunk after the other."""
        while chunk := await self._next(worker):
            self._chunks += 1
            entries = [{"item": item.json(), "plan": self._plan(item)} for item in chunk]
            future = self._client.submit(
                remote.run_chunk, json.dumps({"run": worker.run, "items": entries}), workers=[worker.address],
                allow_other_workers=False, pure=False, retries=0, key=f"cdo-{self.tally.folder.name}-{self._chunks}",
            )  # fmt: skip
            self._given_out += 1
            try:
                await future
            except Exception as error:  # whatever Dask raises: the items are still there
                if self._client.status == "running":
                    self.say(f"worker {worker.name}: {one_line(str(error) or type(error).__name__, 200)}")
            finally:
                self._given_out -= 1
            for item in chunk:
                if worker.items.pop(item.id, None):
                    self._forget(worker, [item.id])
                    if not self.tally.stop:
                        await self._give_back(item)
            self._tell()

    async def _next(self, worker: ClusterWorker) -> list[BatchItem]:
        """Return the next items for a worker, [] if there are none; wait while others may still come back."""
        while not self.tally.stop:
            ahead = not self._desk.answered.is_set() and time.monotonic() < self._ahead
            count = sum(len(other.items) for other in self._workers.values())
            room = self.live - count if self._counted else 0
            if room > 0 and not (ahead and count):
                size = 1 if ahead else min(room, self._size())
                items = [self._given_back.popleft() for _ in range(min(size, len(self._given_back)))]
                items += islice(self._todo, size - len(items))
                self._exhausted = len(items) < size
                if items:
                    self._ahead = min(self._ahead, time.monotonic() + AHEAD)
                    worker.items |= {item.id: item for item in items}
                    return items
                if self._finished():
                    break
            await self._pause()
        return []

    def _size(self) -> int:
        """Return how many items a chunk has, so that all workers together have `live` of them under way."""
        chunks = sum(len(worker.tasks) - 1 for worker in self._workers.values()) or CHUNKS
        open_items = max(1, self.tally.standing.open)
        return max(1, min(-(-self.live // chunks), -(-open_items // chunks)))

    def _plan(self, item: BatchItem) -> Message:
        plan: Message = to_builtins(self.plans.plan(item))
        return plan

    # -- what workers say --

    def _hear(self, worker: ClusterWorker, messages: list[Message]) -> None:
        """Take what a worker says."""
        ahead = not self._desk.answered.is_set()
        for message in messages:
            self._take(worker, message)
        if ahead and self._desk.answered.is_set():
            self._tell()
        self.tally.standing.used = self.shared.budget.totals

    def _take(self, worker: ClusterWorker, message: Message) -> None:
        """Take a message of a worker. What comes late from one that lost an item is left out."""
        what, item = message["what"], worker.items.get(message.get("item", ""))
        if what == "begin":
            worker.holder.send({"n": message["n"], "begins": self._begins(worker, item, message["used"])})
        elif what == "say":
            self.say(f"{message['text']} (worker {worker.name})")
        elif what == "capped":
            told = error_of(message["error"])
            self.tally.capped(told if isinstance(told, BudgetReached) else BudgetReached(str(told)))
        elif what == "disk":
            where = "" if worker.shared else f"Worker {worker.name}: "
            error = DiskFailed(where + message["message"], remedy=message["remedy"])
            self._fatal = self._fatal or self.tally.disk_failed(error)
        elif what == "ended" and item:
            failure = _failure(message["error"]) if message["error"] else None
            ended = EndedItem(ItemResult(**message["result"]), failure)
            task = asyncio.create_task(self._end(worker, ended, message["session"]))
            self._ending.add(task)
        else:
            self._desk.serve(worker.holder, message)
        if what in ("capped", "disk", "ended") and item:
            del worker.items[item.id]
            self._forget(worker, [item.id])
            self._desk.accounts.pop(item.id, None)
            self._tell()

    def _begins(self, worker: ClusterWorker, item: BatchItem | None, used: dict[str, Any]) -> bool:
        """Return whether an item may begin, of which so much is on record where its worker looks."""
        if item is None or self.tally.stop:
            return False
        recorded = TotalUsage(**used)
        if not worker.shared:  # nothing is counted yet of what stands on its disk
            self._desk.accounts.pop(item.id, None)
        self._desk.reconcile(item.id, recorded)
        worker.live.add(item.id)
        self.tally.begins()
        return True

    async def _end(self, worker: ClusterWorker, ended: EndedItem, session: dict[str, str] | None) -> None:
        try:
            if not worker.shared and not ended.result.failed:
                await self._bring(worker, ended.result.session, session)
            await self.tally.ended(ended)
        except CdoError as error:
            self._fatal = self.tally.disk_failed(error) if isinstance(error, DiskFailed) else error
        finally:
            self._ending.discard(asyncio.current_task())
            self._tell()

    async def _bring(self, worker: ClusterWorker, name: str, session: dict[str, str] | None) -> None:
        """Write the session that a worker has sent, or tell the person why it stays there."""
        path, why = session_path(self.tally.folder.path, name), "it is too large to be sent, or cannot be read"
        if session is not None:
            try:
                return await asyncio.to_thread(unpacked, path, session)
            except DiskFailed:
                raise
            except SessionError as error:
                why = error.message
        return self.say(f"the session {path.name} stays at worker {worker.name}: {why}")


def _failure(told: Message) -> CdoError:
    """Return the error by which an item failed."""
    kinds = {kind.__name__: kind for kind in (ConfigError, SessionError)}
    return kinds.get(told["kind"], CdoError)(told["message"], told.get("hint", ""))


def _recorded(path: Path) -> TotalUsage:
    """Return what is on record of a session; nothing where it cannot be read."""
    with contextlib.suppress(CdoError):
        return totals(read_session(path)) if path.is_dir() else TotalUsage()
    return TotalUsage()


@contextlib.contextmanager
def _probe(folder: BatchFolder) -> Iterator[list[str]]:
    """Write a file by which a worker sees whether it shares the folder; yield its name and its text."""
    name, text = f"probe-{secrets.token_hex(4)}", secrets.token_hex(16)
    folder.write(name, text.encode())
    try:
        yield [name, text]
    finally:
        folder.remove(name)
