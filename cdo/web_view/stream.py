"""Follows sessions for the windows of browsers: one thread for each session, however many windows show it.

A window is sent the newest state, never a backlog. So a slow browser gets fewer pieces, and a reload or a reconnect
needs nothing that was kept.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core import events
from cdo.core.errors import CdoError, SessionError
from cdo.core.events import Event
from cdo.core.formatting import one_line
from cdo.history.journal_follower import Follower, Fresh, JournalUpdate, SessionPhase
from cdo.history.watching import ProductTree, opening, standing
from cdo.terminal.run_state import LiveRun
from cdo.terminal.run_words import line

MOST_FEEDS = 24  # sessions that are followed at a time
MOST_WINDOWS = 48  # streams that are open at a time
PACE = 0.3  # seconds between two pieces of a stream, at least
ALIVE = 15.0  # seconds after which a stream without news says that it lives
LINGER = 20.0  # seconds that a session is followed for after its last window
LOG = 150  # events that are kept, the newest ones
_BEGIN = 10.0  # seconds that the first look at a session may take

_LOGGED = (
    events.PlanShown, events.BatchBegan, events.ToolUsed, events.RetryPlanned, events.ReplyRefused,
    events.ReplyAccepted, events.ReplyCorrected, events.ReplyMissing, events.QuestionAsked, events.MessageTold,
    events.ReviewBegan, events.RoundEnded, events.FilesStale, events.NoteTold,
)  # fmt: skip
_NOTED = (events.ReplyMissing, events.FilesStale, events.NoteTold)


class LogLine(Struct, frozen=True):
    """An event as one line; `at` is in seconds since 1970, `problem` is True where a person should look."""

    at: float
    kind: str
    text: str
    problem: bool = False


class LiveSession(Struct, frozen=True):
    """A session as a window shows it. `standing` says why nobody runs it, "" while somebody does.

    `heard` is the time of the last event, in seconds since 1970. `problem` is why the session cannot be read, "" if
    it can be.
    """

    folder: Path
    is_mission: bool = False
    board: LiveRun = field(default_factory=LiveRun)
    phase: SessionPhase = SessionPhase.RUNNING
    last: Event | None = None
    log: tuple[LogLine, ...] = ()
    heard: float = 0.0
    standing: str = ""
    problem: str = ""

    @property
    def running(self) -> bool:
        return self.phase is SessionPhase.RUNNING

    def told(self, fresh: Fresh) -> LiveSession:
        """Return the session after what its journal says in addition."""
        board, log = self.board, list(self.log)
        if fresh.anew:
            board, log = LiveRun(board.session, board.preset, board.question), []
        for at, event in fresh.events:
            board = board.apply(event, at)
            if isinstance(event, _LOGGED):
                text = re.sub(r"\s{2,}|\n", " · ", line(event, board).strip())
                log.append(LogLine(at, event.kind, text, isinstance(event, _NOTED)))
        heard = fresh.events[-1][0] if fresh.events else self.heard
        return replace(self, board=board, log=tuple(log[-LOG:]), heard=heard)


Render = Callable[[LiveSession], Mapping[str, str]]


class Feed:
    """One followed session. Its thread reads, its event loop tells the windows."""

    def __init__(self, folder: Path, render: Render, loop: asyncio.AbstractEventLoop) -> None:
        self.epoch = secrets.token_hex(4)  # versions of another feed mean nothing to this one
        self.version = 0
        self.windows = 0
        self.state = LiveSession(folder)
        self.ended = False
        self._render, self._loop = render, loop
        self._asked = time.monotonic()
        self._stop = threading.Event()
        self._news = asyncio.Event()
        self._rendering = asyncio.Lock()
        self._rendered = 0  # the version that the parts show
        self._parts: dict[str, tuple[str, int]] = {}  # by name: the HTML, and the version since which it is so
        self.thread = threading.Thread(target=self._follow, name=f"follow-{folder.name}", daemon=True)
        self.thread.start()

    # -- in its thread -----------------------------------------------------------------------------

    def _follow(self) -> None:
        state = self.state
        try:
            told, is_mission, problem = opening(state.folder)
            state = replace(state, board=state.board.apply(told, 0.0), is_mission=is_mission, problem=problem)
            tree = ProductTree(state.folder) if is_mission else None
            shown: LiveSession | None = None
            for update in Follower(state.folder).news():
                state = self._after(state, update, tree)
                whole = update.fresh == Fresh()  # the end of a look
                if whole and state != shown:
                    shown = state
                    self._publish(state)
                if state.phase is SessionPhase.DONE or self._stop.is_set() or (whole and self._forgotten()):
                    break
        except CdoError as error:
            state = replace(state, problem=error.message, phase=SessionPhase.LEFT)
        except Exception as error:  # a window that waits for ever would say nothing
            state = replace(state, problem=f"Following it failed: {type(error).__name__}: {one_line(error, 300)}")
        self._publish(state, ended=True)

    def _after(self, state: LiveSession, update: JournalUpdate, tree: ProductTree | None) -> LiveSession:
        state = state.told(update.fresh)
        over = update.phase is not SessionPhase.RUNNING
        said = standing(state.folder, update) if over and update.phase is not SessionPhase.DONE else ""
        board = state.board
        if tree and (event := tree.news(last=over and update.phase is not state.phase)):
            board = board.apply(event, time.time())
        if over and not board.over and update.phase is not state.phase:
            board = board.left("nobody runs it")
        return replace(state, board=board, phase=update.phase, last=update.last, standing=said)

    def _forgotten(self) -> bool:
        return not self.windows and time.monotonic() - self._asked > LINGER

    def _publish(self, state: LiveSession, *, ended: bool = False) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take, state, ended)
        except RuntimeError:  # the server has ended
            self._stop.set()

    # -- in the event loop -------------------------------------------------------------------------

    def _take(self, state: LiveSession, ended: bool) -> None:
        self.state, self.ended = state, ended
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    def wanted(self, *, changed: bool = False) -> None:
        """Go on following; `changed` says that the person changed something, so that all is rendered again."""
        self._asked = time.monotonic()
        if changed:
            self._take(self.state, self.ended)

    async def news(self, after: int, seconds: float) -> bool:
        """Wait until there is a newer version than `after`, for at most so many seconds; tell whether there is."""
        if self.version <= after:
            try:
                await asyncio.wait_for(self._news.wait(), seconds)
            except TimeoutError:
                return False
        return True

    async def parts(self) -> tuple[int, dict[str, tuple[str, int]]]:
        """Return a version, and the parts of the page in it, each with the version since which it is so."""
        async with self._rendering:
            if self._rendered != self.version:
                version = self.version
                fresh = await asyncio.to_thread(self._render, self.state)
                for name, html in fresh.items():
                    if self._parts.get(name, ("", -1))[0] != html or name not in self._parts:
                        self._parts[name] = html, version
                self._rendered = version
            return self._rendered, dict(self._parts)

    def stop(self) -> None:
        """Let the thread end at its next look."""
        self._stop.set()


class NoWindow(CdoError):
    """Too many sessions are followed, or too many windows are open."""


class Feeds:
    """The sessions that are followed now, each once."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._feeds: dict[Path, Feed] = {}
        self._windows = 0

    async def feed(self, folder: Path) -> Feed:
        """Return the feed of a session after its first look; raise `NoWindow` and `SessionError`."""
        self._feeds = {path: feed for path, feed in self._feeds.items() if feed.thread.is_alive()}
        found = self._feeds.get(folder)
        if found is None or found.ended:
            self._make_room()
            found = self._feeds[folder] = Feed(folder, self._render, asyncio.get_running_loop())
        found.wanted()
        if not await found.news(0, _BEGIN):
            raise SessionError(f"Reading {folder} takes too long.", "Load the page again.")
        return found

    def _make_room(self) -> None:
        """Drop the feed that was made first and has no window, where there are too many."""
        if len(self._feeds) < MOST_FEEDS:
            return
        idle = next((path for path, feed in self._feeds.items() if not feed.windows), None)
        if idle is None:
            raise NoWindow(f"{MOST_FEEDS} sessions are shown already.", "Close a window, then load this page again.")
        self._feeds.pop(idle).stop()

    async def pieces(self, feed: Feed, known: str, filled: Callable[[str], str]) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events for a window that has shown the version `known`; raise `NoWindow`.

        `filled` makes a part what this window's browser gets.
        """
        if self._windows >= MOST_WINDOWS:
            raise NoWindow(f"{MOST_WINDOWS} windows are open already.", "Close one.")
        self._windows += 1
        feed.windows += 1
        try:
            epoch, _, number = known.partition("-")
            seen = int(number) if epoch == feed.epoch and number.isdecimal() else -1
            yield b"retry: 2000\n\n"
            while True:
                version, parts = await feed.parts()
                fresh = {name: filled(html) for name, (html, since) in parts.items() if since > seen}
                seen = version
                if fresh:
                    yield piece(f"{feed.epoch}-{version}", "parts", fresh)
                if feed.ended and feed.version == version:
                    yield piece(f"{feed.epoch}-{version}", "end", {})
                    return
                if await feed.news(version, ALIVE):
                    await asyncio.sleep(PACE)
                else:
                    yield b": alive\n\n"
        finally:
            self._windows -= 1
            feed.windows -= 1
            feed.wanted()

    def changed(self, folder: Path) -> None:
        """Take note that the person changed a session."""
        if feed := self._feeds.get(folder):
            feed.wanted(changed=True)

    def stop(self) -> None:
        """Let all threads end."""
        for feed in self._feeds.values():
            feed.stop()


def piece(id: str, kind: str, data: Mapping[str, str]) -> bytes:
    """Return one server-sent event."""
    return f"id: {id}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
