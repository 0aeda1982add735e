"""Connects to a Dask cluster: workers on this machine, or a scheduler at an address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdo.app.cluster import local_worker
from cdo.core.errors import CdoError, UsageError
from cdo.core.formatting import one_line

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
THREADS = 4  # chunks that a worker on this machine has at the same time
_CONNECT = 15.0  # seconds to reach a scheduler


class ClusterLost(CdoError):
    """The scheduler of a cluster, or all its workers, cannot be reached."""

    exit_code = 10


class ClusterOrder(Struct, frozen=True):
    """Which cluster a person asks for: `LOCAL` with so many workers, or the address of a scheduler."""

    address: str
    workers: int = 0

    @classmethod
    def of(cls, address: str, workers: int | None) -> ClusterOrder:
        """Return what `--cluster` and `--workers` say; raise `UsageError`."""
        if address == LOCAL:
            return cls(address, workers or os.cpu_count() or 1)
        named = re.fullmatch(r"[a-z]+://[^\s/]+:([0-9]{1,5})", address)
        if named is None or not 0 < int(named[1]) < 2**16:
            raise UsageError(
                f"--cluster cannot be `{one_line(address, 60)}`.",
                "Write local, or the address of a Dask scheduler, as in tcp://10.0.0.5:8786.",
            )
        if workers:
            raise UsageError("--workers N goes with --cluster local.", "A scheduler has its workers already.")
        return cls(address)

    @property
    def local(self) -> bool:
        """True for workers on this machine."""
        return self.address == LOCAL


def require_dask() -> None:
    """Raise `UsageError` if Dask is not installed."""
    try:
        import cryptography  # noqa: F401
        import distributed  # noqa: F401
    except ImportError:
        raise UsageError(
            "--cluster needs Dask, which is not installed.", "Install it: pip install 'cdo-deliberate[dask]'."
        ) from None


@contextlib.asynccontextmanager
async def connected(order: ClusterOrder) -> AsyncIterator[Client]:
    """Yield a client of the cluster, which is closed afterwards; raise `ClusterLost` if it cannot be reached."""
    import dask
    import distributed

    for name in logging.root.manager.loggerDict:  # what they warn of is told in cdo's own words
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    async with contextlib.AsyncExitStack() as stack:
        target: Any = order.address
        if order.local:
            dask.config.set({"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []})
            with _without_ctrl_c():
                target = await stack.enter_async_context(_local(order.workers))
        try:
            if not order.local:
                await _knock(order.address)
            client = await stack.enter_async_context(
                _untyped(distributed).Client(target, asynchronous=True, timeout=_CONNECT)
            )
        except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
            raise unreachable(order.address, error) from None
        yield client


async def _knock(address: str) -> None:
    """Raise `OSError` if nothing listens at an address. Dask itself tries for long, and then names no reason."""
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme in ("tcp", "tls", "ws", "wss"):
        async with asyncio.timeout(_CONNECT):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()


def _local(workers: int) -> Any:
    """Return workers on this machine. Only this process and they have the keys to its scheduler."""
    import distributed

    return _untyped(distributed).LocalCluster(
        n_workers=workers, threads_per_worker=THREADS, processes=True, host="127.0.0.1", protocol="tls://",
        security=_untyped(distributed).Security.temporary(), dashboard_address="127.0.0.1:0", memory_limit=0,
        silence_logs=logging.CRITICAL + 1, asynchronous=True, preload=[local_worker.__name__],
    )  # fmt: skip


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: this one tells them to stop. Here it is heard afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _untyped(module: Any) -> Any:
    """Return a module of Dask, whose constructors have no types."""
    return module


def unreachable(address: str, error: BaseException) -> ClusterLost:
    """Return the error for a scheduler that cannot be reached."""
    late = isinstance(error, TimeoutError) and f"no answer within {_CONNECT:.0f} s"
    why = one_line(late or str(error) or type(error).__name__, 200)
    return ClusterLost(
        f"The Dask scheduler at {one_line(address, 100)} cannot be reached: {why}",
        "Start it (`dask scheduler`), check the address, and set TLS in Dask's own configuration. Nothing was sent.",
    )


async def members(client: Client) -> dict[str, int]:
    """Return the addresses of a cluster's workers with their numbers of threads; raise `OSError`."""
    if client.status != "running" or client.scheduler is None:
        raise OSError("the connection to the scheduler is closed")
    async with asyncio.timeout(_CONNECT):
        found = (await client.scheduler.identity())["workers"]
    return {address: int(told["nthreads"]) for address, told in found.items() if told["status"] == "running"}
