"""What runs in a worker of a Dask cluster: it runs items of a batch with what the coordinator leases it.

`hello`, `exchange` and `run_chunk` are called through Dask, by name; their arguments and results are JSON texts. The
items run in a thread with a loop of its own, so that neither a slow disk nor Dask's loop stops the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from cdo import __version__
from cdo.app import run, seats
from cdo.app.batch.folder import in_use
from cdo.app.batch.item_runner import ItemRunner
from cdo.app.batch.items import BatchItem
from cdo.app.cluster.leased import ITEM, LeasedBudget, LeasedGate, LeasedPacing, LeasedRetries, LeasedSlots
from cdo.app.cluster.line import CoordinatorLine, error_told
from cdo.app.cluster.session_copy import packed
from cdo.app.run import SharedByRuns, limits_of
from cdo.content.library import Library
from cdo.core.errors import BudgetReached, CdoError, ConfigError, DiskFailed, Interrupted, SessionError
from cdo.core.schema import fitted
from cdo.core.usage import TotalUsage, totals
from cdo.files.atomic_files import closing, open_path
from cdo.history.index_writer import IndexWriter
from cdo.planning.plan import Plan
from cdo.planning.settings import Resolved, Settings
from cdo.providers.models import ModelSpec
from cdo.session.records import read_session, session_path

_PATIENCE = 60.0  # seconds to wait for a session that another process still has open
_LOOKING = 0.25  # seconds between two looks whether it is free

_stations: dict[str, WorkerStation] = {}  # by the run of the coordinator


def content_digest(library: Library) -> str:
    """Return a digest of all content files that can be found from a place."""
    found = sha256()
    for name in sorted(set(library.every())):
        found.update(name.encode() + b"\0" + library.find(name)[1].read_bytes() + b"\0")
    return found.hexdigest()


class WorkerStation(Struct, dict=True):
    """Runs items for one coordinator until the line to that is lost; `folder` holds their sessions.

    If the folder is not `shared` with the coordinator, each session is sent to it when its item has an answer.
    """

    folder: Path
    shared: bool
    resolved: Resolved
    library: Library
    specs: Mapping[str, ModelSpec]
    _ready: threading.Event = field(default_factory=threading.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._index = IndexWriter(self.folder)

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=lambda: asyncio.run(self._serve()), name="cdo-items", daemon=True).start()
        self._ready.wait()

    async def exchange(self, told: dict[str, Any]) -> dict[str, Any]:
        """Take what the coordinator says and return what is to be said."""
        return await self._line.exchange(told)

    def run_chunk(self, entries: list[dict[str, Any]]) -> None:
        """Run items side by side; return when the coordinator knows how they ended."""
        asyncio.run_coroutine_threadsafe(self._chunk(entries), self._loop).result()

    def lose(self) -> None:
        """Begin no request any more: another coordinator has come."""
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._line.lose)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        line = self._line = CoordinatorLine(self._stop)
        settings = self.resolved.values
        specs = list(self.specs.values())
        made = seats.seats(specs, settings, self.library, lambda text: line.tell("say", text=text))
        leased = {
            name: replace(seat, gate=LeasedGate(name, line), pace=LeasedPacing(name, line))
            for name, seat in made.items()
        }
        budget = LeasedBudget(limits_of(settings), line)
        self._shared = SharedByRuns(leased, budget, LeasedRetries(line), LeasedSlots(line))
        self._ready.set()
        await line.watch()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await run.close_all(leased, float("inf"))

    async def _chunk(self, entries: list[dict[str, Any]]) -> None:
        tasks = {asyncio.create_task(self._item(entry)) for entry in entries}
        self._tasks |= tasks
        await asyncio.wait(tasks)
        self._tasks -= tasks
        await self._line.flushed()
        await asyncio.to_thread(self._index.write)

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _item(self, entry: dict[str, Any]) -> None:
        item, line = BatchItem.of(entry["item"]), self._line
        ITEM.set(item.id)
        path = session_path(self.folder, item.session)
        used = await asyncio.to_thread(_used, path)
        runner = ItemRunner(
            self.folder, lambda _: fitted(Plan, entry["plan"]), self.specs, self.resolved, self.library,
            self._shared, lambda: None, self._index,
        )  # fmt: skip
        try:
            if not (await line.ask("begin", item=item.id, used=asdict(used)))["begins"]:
                return
            ended = await runner.run(item)
        except DiskFailed as error:
            line.tell("disk", item=item.id, message=error.message, remedy=error.remedy)
        except BudgetReached as error:
            line.tell("capped", item=item.id, error=error_told(error))
        except Interrupted:
            pass  # the line is lost
        else:
            why = error_told(ended.error) if ended.error else None
            sends = not self.shared and not ended.result.failed
            session = await asyncio.to_thread(packed, path) if sends else None
            line.tell("ended", item=item.id, result=asdict(ended.result), error=why, session=session)


def _used(path: Path) -> TotalUsage:
    """Wait until a session is free, and return what is on record of it."""
    waits = int(_PATIENCE / _LOOKING)
    while path.is_dir() and waits and in_use(path):
        waits -= 1
        threading.Event().wait(_LOOKING)
    with suppress(SessionError):  # told when the item is run
        return totals(read_session(path)) if path.is_dir() else TotalUsage()
    return TotalUsage()


# -- what is called through Dask -------------------------------------------------------------------


async def hello(text: str) -> str:
    """Get ready for a coordinator; say who this is, whether its folder is shared, and why it cannot help, if so."""
    told = json.loads(text)
    answer = {"host": os.uname().nodename, "pid": os.getpid(), "refused": "", "shared": False}
    try:
        answer["shared"] = await asyncio.to_thread(_prepare, told)
    except CdoError as error:
        answer["refused"] = error.message
    return json.dumps(answer)


def _prepare(told: dict[str, Any]) -> bool:
    """Start the station of a coordinator; return whether the folder is shared. Raises `CdoError`."""
    if told["cdo"] != __version__:
        raise ConfigError(f"it has cdo {__version__}, and the batch runs with {told['cdo']}")
    folder, here = Path(told["folder"]), Path(told["here"])
    shared = _shared(folder, told["probe"])
    library = Library.at(here if here.is_dir() else Path.cwd())
    if content_digest(library) != told["content"]:
        raise ConfigError("its content files (presets, templates) are not those of the batch")
    resolved = Resolved(fitted(Settings, told["settings"]), told["sources"])
    specs = {spec.name: spec for spec in seats.specs(told["models"], library, resolved.values, os.environ)}
    for run_id, other in list(_stations.items()):
        if other.folder == folder:
            other.lose()
            del _stations[run_id]
    station = WorkerStation(folder, shared, resolved, library, specs)
    station.start()
    _stations[told["run"]] = station
    return shared


def _shared(folder: Path, probe: list[str]) -> bool:
    """True if a file of the coordinator shows that its folder is here too; raise `ConfigError` if it is read-only."""
    name, text = probe
    try:
        shared = (folder / name).read_text() == text
    except OSError:
        shared = False
    with suppress(OSError), closing(open_path(folder, make=True)):
        pass  # its sessions go there
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"it cannot write to {folder}")
    return shared


async def exchange(run_id: str, text: str) -> str:
    """Take what the coordinator says and return what is to be said; "" if this worker does not know the run."""
    station = _stations.get(run_id)
    return json.dumps(await station.exchange(json.loads(text))) if station else ""


def run_chunk(text: str) -> str:
    """Run a chunk of items, as a task of Dask."""
    told = json.loads(text)
    if station := _stations.get(told["run"]):
        station.run_chunk(told["items"])
    return ""
