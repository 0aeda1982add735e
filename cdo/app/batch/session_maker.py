"""Creates the sessions of a batch in a thread: those that are wanted while it is busy are made together."""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from cdo.core.errors import SessionError
from cdo.session.session_file import NewSession, create_sessions
from cdo.session.store import Session

MOST = 32  # sessions that are made at once: each holds five file descriptors until it is durable

_Wanted = tuple[NewSession, asyncio.Future[Session]]


class SessionMaker(Struct):
    """Makes sessions in one thread at a time, so that many wait for the disk hardly more often than one."""

    _wanted: list[_Wanted] = field(default_factory=list)
    _working: asyncio.Task[None] | None = None

    async def create(self, new: NewSession) -> Session:
        """Return a new session; raise `Taken` if there is one of its name, `SessionError` if it cannot be made."""
        made: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._wanted.append((new, made))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await made

    async def _work(self) -> None:
        try:
            while self._wanted:
                group, self._wanted = self._wanted[:MOST], self._wanted[MOST:]
                await _make(group)
        finally:
            self._working = None


async def _make(group: list[_Wanted]) -> None:
    """Make sessions, and give each to whoever waits for it; one for whom nobody waits any more is closed."""
    try:
        found = await asyncio.to_thread(create_sessions, [new for new, _ in group])
    except BaseException as error:
        for _, made in group:
            if not made.done():
                made.set_exception(error) if isinstance(error, Exception) else made.cancel()
        if not isinstance(error, Exception):
            raise
        return
    for (_, made), session in zip(group, found, strict=True):
        if made.done():
            if isinstance(session, Session):
                session.close()
        elif isinstance(session, SessionError):
            made.set_exception(session)
        else:
            made.set_result(session)
