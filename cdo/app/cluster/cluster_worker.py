"""A worker of a cluster as the coordinator knows it: called all the time, so that news go both ways at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from cdo.app.batch.items import BatchItem
from cdo.app.cluster import worker as remote
from cdo.app.cluster.leasing import LeaseHolder
from cdo.app.cluster.line import LOST, Inbox, Message, Outbox

AGAIN = 0.5  # seconds from a call that was not answered to the next one


class ClusterWorker(Struct, dict=True):
    """A worker that has said hello: what it was told and has told, what it holds, and the items given to it.

    `state` makes what it is told with every call. `hear` takes what it says.
    """

    client: Any
    address: str
    host: str
    run: str
    shared: bool
    state: Callable[..., Message]
    hear: Callable[[ClusterWorker, list[Message]], None]
    items: dict[str, BatchItem] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)  # those of the items that have begun
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    answered: float = field(default_factory=time.monotonic)  # when it last answered
    _out: Outbox = field(default_factory=Outbox)
    _heard: Inbox = field(default_factory=Inbox)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: bool = False

    def __post_init__(self) -> None:
        self.holder = LeaseHolder(self._send)

    @property
    def name(self) -> str:
        """The worker as a person is told of it."""
        return f"{self.address} ({self.host})"

    def _send(self, message: Message) -> None:
        self._out.add(message)
        self._news.set()

    async def talk(self) -> None:
        """Call the worker all the time; call it a second time at once when there is something new to say."""
        calls: set[asyncio.Task[bool]] = set()
        while True:
            self._news.clear()
            calls.add(asyncio.create_task(self._exchange()))
            news = asyncio.create_task(self._news.wait())
            try:
                while calls and not (news.done() and len(calls) < 2):
                    waiting = {*calls, news} if len(calls) < 2 else calls
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    ended, calls = calls & done, calls - done
                    if not all(call.result() for call in ended):
                        await asyncio.sleep(AGAIN)
            finally:
                news.cancel()

    async def _exchange(self) -> bool:
        """Call the worker once and take what it says; return whether it answered."""
        answer = await called(self.client, self.address, remote.exchange, self.run, self._told(stop=False))
        if self._lost or not isinstance(answer, str):
            return False
        if not answer:  # another process has the address now
            self.answered = float("-inf")
            return False
        self.answered = time.monotonic()
        said = json.loads(answer)
        self._out.confirmed(said["heard"])
        self.hear(self, list(self._heard.new(said)))
        return True

    def _told(self, *, stop: bool) -> str:
        return json.dumps({**self._out.told(), "heard": self._heard.heard, "state": self.state(stop=stop)})

    def give_up(self) -> None:
        """Call the worker no more, and take nothing that it still says."""
        self._lost = True
        for task in self.tasks:
            task.cancel()

    async def dismiss(self) -> None:
        """Tell the worker to stop."""
        for task in self.tasks:
            task.cancel()
        await called(self.client, self.address, remote.exchange, self.run, self._told(stop=True))


async def called(client: Any, address: str, function: Callable[..., Any], *args: str) -> str | BaseException:
    """Call a function in a worker; return its result, or the error."""
    try:
        async with asyncio.timeout(LOST):
            found = await client.run(function, *args, workers=[address], on_error="return")
        return found.get(address, OSError("no answer"))  # type: ignore[no-any-return]
    except Exception as error:  # Dask and tornado raise many kinds
        return error
