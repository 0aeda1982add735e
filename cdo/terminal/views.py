"""Shows a run to a person: progress on stderr while it goes on, as lines or as a region that is drawn again.

The views put text (`run_words`) and the live region on a stream. Nothing here decides anything.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol, TextIO, TypeAlias

from cdo.core.events import (
    AnswerAwaited,
    BatchBegan,
    CallSent,
    Event,
    FilesStale,
    MessageTold,
    NoteTold,
    PlanShown,
    QuestionAsked,
    ReplyAccepted,
    ReplyCorrected,
    ReplyMissing,
    ReplyRefused,
    RetryPlanned,
    ReviewBegan,
    RoundEnded,
    RunBegan,
    ToolUsed,
)
from cdo.core.formatting import one_line
from cdo.terminal.capability import can_draw
from cdo.terminal.live_screen import frame
from cdo.terminal.pulse import Pulse, beat, slow
from cdo.terminal.run_state import LiveRun
from cdo.terminal.run_words import line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

Clock: TypeAlias = Callable[[], float]

_PROBLEMS = (ReplyMissing, FilesStale, NoteTold)
_LINES = (
    *_PROBLEMS,
    RunBegan,
    PlanShown,
    BatchBegan,
    ReplyAccepted,
    RetryPlanned,
    RoundEnded,
    QuestionAsked,
    MessageTold,
)
_ASKED = (QuestionAsked, ReviewBegan)
_ENDLESS = 100_000  # rows of a frame that is printed once and may scroll
# A broken stream must not end a run that is being paid for.
_BROKEN = (OSError, ValueError)


def _said_before(event: Event) -> bool:
    """True for a message that an earlier process has shown."""
    return isinstance(event, MessageTold) and event.how is not None


def _asked_in(event: Event) -> str:
    """Return what an event asks of the person; "" for other events."""
    if isinstance(event, QuestionAsked):
        return one_line(event.question)
    return one_line(event.text) if isinstance(event, AnswerAwaited) else ""


def _among(shown: Iterable[str], text: str) -> bool:
    """True if a sentence is among those that were `shown`, in whatever case it begins."""

    def plain(told: str) -> str:
        return f"{told[:1].lower()}{told[1:]}".rstrip(".")

    return bool(text) and plain(one_line(text)) in map(plain, shown)


class RunView(Protocol):
    """A receiver of events. `suspend` keeps the terminal free while a person is asked.

    `has_asked` is true for what it has shown as a question to the person.
    """

    def __call__(self, event: Event) -> None: ...
    def close(self) -> None: ...
    def has_asked(self, text: str) -> bool: ...
    def suspend(self) -> AbstractContextManager[None]: ...


class PlainView:
    """A view with one line for each event except progress, for logs, pipes and simple terminals."""

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        verbose: bool = False,
        watching: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.board = LiveRun()
        self._asked: set[str] = set()
        self._stream, self._clock = stream, clock
        more = (CallSent, ReplyRefused, ReplyCorrected, ToolUsed) if verbose else ()
        self._told: tuple[type[Event], ...] = _PROBLEMS if quiet else (*_LINES, *more)
        self._told += _ASKED if watching else ()
        self._harmless = () if watching else _BROKEN
        self._pulse = None if quiet or watching else Pulse(self._beat)

    def __call__(self, event: Event) -> None:
        self.tell([(self._clock(), event)])
        if self._pulse and isinstance(event, RunBegan) and slow(event.models):
            self._pulse.start()

    def tell(self, events: Iterable[tuple[float, Event]]) -> None:
        """Apply events, each at its time, and print their lines.

        Only a `watching` view raises `OSError` for a broken stream; otherwise the run that is being paid for must go
        on.
        """
        for now, event in events:
            self.board = self.board.apply(event, now)
            if isinstance(event, self._told) and not _said_before(event):
                with suppress(*self._harmless):
                    self._write(line(event, self.board))
                self._asked.add(_asked_in(event))
                if self._pulse:
                    self._pulse.heard()

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def _beat(self) -> None:
        """Say what is going on, since nothing was printed for a while."""
        if text := beat(self.board.voices.values(), self._clock()):
            with suppress(*_BROKEN):
                self._write(text)

    def mark(self, status: str) -> None:
        """Mark the run as not running, as the caller found out."""
        self.board = self.board.left(status)

    def has_asked(self, text: str) -> bool:
        """True if a line has asked this of the person."""
        return _among(self._asked, text)

    def close(self) -> None:
        """Say no more that something is going on."""
        if self._pulse:
            self._pulse.stop()

    def suspend(self) -> AbstractContextManager[None]:
        """Do nothing: there is nothing to hide."""
        return nullcontext()


class LiveView:
    """A view that redraws the current turn as a table in place; finished turns and problems scroll up above it.

    A thread of rich redraws at a fixed rate, independently of events. It reads `board` once for each frame. Boards
    are immutable, so no lock is needed. A `watching` view has no such thread: it draws when it gets events, and it
    also shows the questions to the person at the run.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        verbose: bool = False,
        watching: bool = False,
        clock: Clock = time.monotonic,
        console: Console | None = None,
    ) -> None:
        from rich.console import Console

        self.board = LiveRun()
        self._asked: set[str] = set()
        self._stream, self._clock, self._watching = stream, clock, watching
        self._told: tuple[type[Event], ...] = (*_PROBLEMS, RunBegan, MessageTold)
        self._told += (RetryPlanned, ReplyRefused, ReplyCorrected, ToolUsed) if verbose else ()
        self._told += _ASKED if watching else ()
        plain = bool(os.environ.get("NO_COLOR"))
        self._console = console or Console(file=stream, force_terminal=True, force_interactive=True, no_color=plain)
        self._live: Live | None = None
        self._suspended = self._folded = self._drawn = False

    def __call__(self, event: Event) -> None:
        self.tell([(self._clock(), event)])

    def tell(self, events: Iterable[tuple[float, Event]]) -> None:
        """Apply events, each at its time, and show them at once. A `watching` view also redraws without events."""
        said, begun = [], False
        for now, event in events:
            before, self.board = self.board, self.board.apply(event, now)
            begun = begun or isinstance(event, BatchBegan | CallSent)
            if len(self.board.finished) > len(before.finished):
                said.append(self._text(self.board.finished[-1], wrap=False))
            if isinstance(event, PlanShown):
                said.append(self._text(line(event, self.board), "dim"))
            if isinstance(event, self._told) and not _said_before(event):
                said.append(
                    self._text(one_line(line(event, self.board)), "yellow" if isinstance(event, _PROBLEMS) else "")
                )
                self._asked.add(_asked_in(event))
        self._say(*said)
        if begun and not (self.board.over or self._live or self._suspended):
            self._start()
        elif self._watching and not said:
            self._redraw()

    def mark(self, status: str) -> None:
        """Mark the run as not running, as the caller found out, and show it."""
        self.board = self.board.left(status)
        if not self._live and self.board.title:
            self._start()
        self._redraw()

    def has_asked(self, text: str) -> bool:
        """True if a line has asked this of the person."""
        return _among(self._asked, text)

    def close(self) -> None:
        """Leave the last state on the screen and restore the terminal."""
        if self.board.settled and (self._live or not self._drawn):
            if self.board.title:
                self._say(self._text(self.board.outcome(), wrap=False))
            self._folded = True
        if not self._drawn and self.board.title:
            with suppress(*_BROKEN):
                self._console.print(self._frame(_ENDLESS))
        self._drawn = True
        self._stop()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Leave the frame on the screen and draw nothing more until the person has answered."""
        self._suspended = True
        self._stop()
        try:
            yield
        finally:
            self._suspended = False

    def _start(self) -> None:
        from rich.live import Live

        # stdout may be a pipe for the result, so it is never redirected.
        own = self._stream is sys.stderr
        self._drawn = True
        self._live = Live(
            console=self._console,
            get_renderable=self._frame,
            auto_refresh=not self._watching,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=own,
        )
        with suppress(*_BROKEN):
            self._live.start()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live:
            with suppress(*_BROKEN):
                live.stop()

    def _redraw(self) -> None:
        if self._live:
            with suppress(*_BROKEN):
                self._live.refresh()

    def _text(self, text: str, style: str = "", *, wrap: bool = True) -> Text:
        from rich.text import Text

        text = text if self._console.width >= 60 else one_line(text)
        return Text(text, style, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")

    def _say(self, *texts: Text) -> None:
        """Print texts above the live region, which is drawn only once for all of them."""
        from rich.console import Group

        if texts:
            with suppress(*_BROKEN):
                self._console.print(Group(*texts))

    def _frame(self, room: int = 0) -> RenderableType:
        """Return the frame for the present size of the terminal, or for `room` rows."""
        width, height = self._console.size
        return frame(self.board, self._clock(), width, room or height, folded=self._folded)


def make_view(
    stream: TextIO,
    *,
    quiet: bool,
    verbose: bool,
    json: bool,
    watching: bool = False,
    clock: Clock = time.monotonic,
) -> PlainView | LiveView:
    """Return the view for `stream`: live at a capable terminal, plain lines elsewhere.

    `json` has no effect: it is about stdout, and a person who pipes stdout may still watch stderr. `watching`: the
    view follows a run of another process. `clock` gives the time of its events.
    """
    if quiet or not can_draw(stream):
        return PlainView(stream, quiet=quiet, verbose=verbose, watching=watching, clock=clock)
    return LiveView(stream, verbose=verbose, watching=watching, clock=clock)
