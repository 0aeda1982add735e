"""What a person sees of a run: progress on stderr while it goes on, the result's text at its end.

`line` and `frame` word and draw the board, a view puts that on a stream. Nothing here decides anything. What a
model, a provider or a file name says passes `visible` first.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol, TextIO, TypeAlias

from cdo.board import Board, State, Tension, Voice
from cdo.types import Event
from cdo.wording import columns, counted, flat, money, squeezed, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

Clock: TypeAlias = Callable[[], float]

# -- words ----------------------------------------------------------------------------------------


def line(event: Event, board: Board) -> str:
    """One event in one line; `board` is what is known after it."""
    data, voice = event.data, board.voices.get(event.name)
    head = f"  {flat(event.name):<{max((len(name) for name in board.voices), default=0)}}"
    match event.kind:
        case "run":
            what = f"{'resumed ' if board.resumed else ''}session {event.name}: {data['preset']}"
            why = f" ({data['why']})" if data.get("why") else ""
            rest = (", ".join(data.get("models") or ()), str(data.get("path") or ""))
            return flat(" · ".join((what + why, *filter(None, rest))))
        case "batch":
            labels = [board.voices[name].label for name, _ in data["calls"]]
            return flat(board.title if labels == [board.title] else f"{board.title}: {', '.join(labels)}")
        case "call":
            again = f", attempt {data['attempt']}" if data["attempt"] > 1 else ""
            return f"{head}  asking {flat(data['model'])}{again}"
        case "reply" if voice:
            state, took, tokens, cost, confidence, text = voice.cells(0.0)
            how = "" if voice.state is State.DONE else state
            took, tokens = f"{took:>6}" if took else "", f"{tokens:>6} tok" if tokens else ""
            cost = f"{cost:>7}" if cost else ""
            news = board.news if voice.kind == "synthesis" else ""
            return columns(head, f"{confidence:4}", how, took, tokens, cost, news, flat(text, 100))
        case "retry":
            return f"{head}  {flat(data['fault'])}: {flat(data['message'])}; again in {data['wait']:.1f} s"
        case "invalid":
            return f"{head}  invalid reply: {flat(' '.join(data['problems']))}"
        case "missing":
            how = " (from record)" if data.get("how") else ""
            return f"{head}  missing{how}: {flat(data['reason'])}"
        case "stale":
            kept = f"; kept as edited: {_files(data['kept'])}" if data["kept"] else ""
            return f"stale: {_files(data['superseded'])} moved to superseded/{flat(data['place'])}{kept}"
        case "dashboard":
            return "\n".join(visible(row) for row in data["lines"])
        case "tool":
            return f"{head}  looks: {flat(data['tool'])} {flat(data['arguments'], 100)}"
        case "review":
            return flat(f"a plan waits for its person: {data['path']}")
        case "pause":
            return flat(f"question: {data['question']} ({' / '.join(data['options'])})")
    return flat(data.get("text", ""))


def _files(names: Sequence[str]) -> str:
    return ", ".join(f"{flat(name)}.md" for name in names)


class Result(Protocol):
    """How a run ended. `path` is the session's directory; `decision` is "" where there is no FINAL.md."""

    @property
    def path(self) -> PurePath | str: ...
    @property
    def status(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def decision(self) -> str: ...
    @property
    def confidence(self) -> float | None: ...
    @property
    def turns(self) -> int: ...
    @property
    def calls(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def cost(self) -> float | None: ...
    @property
    def missing_voices(self) -> Sequence[str]: ...
    @property
    def flags(self) -> Sequence[str]: ...


def summary(result: Result) -> str:
    """What stdout says at the end: the decision, how sure it is, what it took, what is missing, and where."""
    # One truth for the words; imported here because a view must not load what reads replies.
    from cdo.artifacts import confidence_word

    sure, decision, path = result.confidence, visible(result.decision).strip(), PurePath(result.path)
    amounts = ((result.turns, "turn"), (result.calls, "call"), (result.tokens, "token"))
    rows = [
        ("Confidence", f"{sure:.2f} ({confidence_word(sure)}, uncalibrated)" if sure is not None else "none"),
        ("Status", f"{flat(result.status)}: {flat(result.why)}".removesuffix(": ")),
        ("Cost", f"{money(result.cost)} ({', '.join(counted(*amount) for amount in amounts)})"),
        *(("Missing", flat(name)) for name in result.missing_voices),
        *(("Note", flat(flag)) for flag in result.flags),
        ("FINAL.md", visible(str(path / "FINAL.md"))) if decision else ("Session", visible(str(path))),
    ]
    return "\n".join([*([decision, ""] if decision else []), *(f"{name:<12}{text}" for name, text in rows)])


# -- drawing --------------------------------------------------------------------------------------

_HEADS = ("voice", "state", "time", "tokens", "cost", "conf", "position")
_LEAST = (9, 8, 6, 6, 7, 4, 12)  # columns keep still while their cells are no wider than this
_NUMBERS = (2, 3, 4, 5)
_DROPPED = (6, 3, 4, 5)  # which columns a narrow terminal goes without, first to last
_COLOURS = ("cyan", "cyan", "yellow", "dim", "red", "magenta", "green", "blue")
_STYLES = dict(zip(State, _COLOURS, strict=True))


def frame(board: Board, now: float, width: int, height: int, *, folded: bool = False) -> RenderableType:
    """The live region: a head, the turn's voices (`folded`: without them) and the tensions, as far as they fit."""
    from rich.console import Group
    from rich.text import Text

    width = max(20, width - 1)  # a sign in the last column makes some terminals wrap
    rows = [Text(row, "bold") for row in _flowed(board.header(), width)]
    voices, tensions = [] if folded else list(board.voices.values()), list(board.tensions.values())
    # Leave one spare row, and a few finished lines above on the screen.
    room = max(2, height - len(rows) - 1 - min(6, 1 + len(board.finished)))
    # Of a screen that is too low for all, tensions get the third that voices need most.
    share = 1 + len(tensions) if tensions else 0
    share = min(share, max(room // 3, room - 1 - len(voices) if voices else room))
    if voices:
        rows += _voices(voices, now, width, max(1, room - share - 1))
    if share:
        rows += _tensions(board, tensions, width, share)
    for row in rows:
        row.truncate(width, overflow="ellipsis")
    return Group(*rows)


def _voices(voices: list[Voice], now: float, width: int, room: int) -> list[Text]:
    """The table of voices on `room` rows below its head; of too many those that do something come first."""
    from rich.text import Text

    rest: list[Voice] = []
    if len(voices) > room:
        order = list(State)
        voices.sort(key=lambda voice: order.index(voice.state))
        voices, rest = voices[: max(1, room - 1)], voices[max(1, room - 1) :]
    rows = _table(voices, now, width)
    if rest:
        counts = Counter(voice.state.value for voice in rest)
        states = ", ".join(f"{number} {state}" for state, number in counts.items())
        rows.append(Text(f"… and {len(rest)} more: {states}", "dim"))
    return rows


def _tensions(board: Board, tensions: list[Tension], width: int, room: int) -> list[Text]:
    """What is disputed, on at most `room` rows: a head that counts; what changed last, what is open, the rest."""
    from rich.text import Text

    counts = Counter(flat(tension.status, 12) for tension in tensions)
    total = ", ".join(f"{number} {status}" for status, number in counts.most_common(4))
    news = f" · turn {board.turn}: {board.news}" if board.news else ""
    rows = [Text(f"tensions: {total}{news}", "dim")]
    tensions.sort(key=lambda tension: (tension.changed != board.turn, tension.status != "open"))
    if len(tensions) > room - 1:
        tensions = tensions[: max(0, room - 2)]
    gap = " " * (2 if width >= 70 else 1)
    cells = [(flat(item.id, 12), f"turn {item.since}", item.state(board.turn)) for item in tensions]
    widths = [max((len(row[index]) for row in cells), default=0) for index in range(3)]
    for tension, texts in zip(tensions, cells, strict=True):
        new, settled = tension.changed == board.turn, tension.status != "open"
        style = ("green" if settled else "yellow") if new else "dim" if settled else ""
        fitted = [_fitted(text, size, right=False) for text, size in zip(texts, widths, strict=True)]
        row = Text(f"{'»' if new else ' '} {gap.join(fitted)}", style)
        rows.append(row.append(gap + flat(tension.title, 200), "dim" if settled else ""))
    if (left := len(board.tensions) - len(tensions)) and room > 1:
        rows.append(Text(f"… and {left} more", "dim"))
    return rows


def _flowed(parts: Sequence[str], width: int) -> list[str]:
    """The parts with dots between them, on as few lines as they need."""
    rows: list[str] = []
    for part in parts:
        if rows and len(rows[-1]) + 3 + len(part) <= width:
            rows[-1] += f" · {part}"
        else:
            rows.append(part)
    return rows


def _table(voices: Sequence[Voice], now: float, width: int) -> list[Text]:
    """A head and one row for each voice. Put together by hand: rich's own table takes many times as long."""
    from rich.text import Text

    gap, cap = 2 if width >= 70 else 1, min(24, max(10, width // 6 + 3))
    cells = [(squeezed(flat(voice.label), cap), *voice.cells(now)) for voice in voices]
    widths = [max(least, *(len(row[index]) for row in cells)) for index, least in enumerate(_LEAST)]
    widths[1] = max(widths[1], 16 if width >= 95 else 0)
    widths[-1] = _LEAST[-1]
    shown = list(range(len(_HEADS)))
    for column in _DROPPED:
        if sum(widths[index] + gap for index in shown) - gap > width:
            shown.remove(column)
    widths[-1] += max(0, width - sum(widths[index] + gap for index in shown) + gap)
    rows = [Text() for _ in range(len(voices) + 1)]
    styles = [("dim",) * 7]
    for voice in voices:
        style = _STYLES[voice.state]
        styles.append(("", style, "", "", "", "bold", style if voice.confidence is None else ""))
    for row, texts, looks in zip(rows, (_HEADS, *cells), styles, strict=True):
        for index in shown:
            row.append(_fitted(texts[index], widths[index], right=index in _NUMBERS) + " " * gap, looks[index])
        row.rstrip()
    return rows


def _fitted(text: str, width: int, *, right: bool) -> str:
    """`text` in exactly `width` columns of a terminal."""
    from rich.cells import cell_len, set_cell_size

    if text.isascii() and len(text) <= width:
        return text.rjust(width) if right else text.ljust(width)
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


# -- views ----------------------------------------------------------------------------------------

_PROBLEMS = frozenset({"missing", "stale", "note"})
_LINES = _PROBLEMS | {"run", "dashboard", "batch", "reply", "retry", "pause"}
_ASKED = frozenset({"pause", "review"})
_ENDLESS = 100_000  # rows of what is printed once and may scroll
# A broken stream must not end a run that is being paid for.
_BROKEN = (OSError, ValueError)


class View(Protocol):
    """What the shell hands events to. `suspend` keeps the terminal free while a person is asked."""

    def __call__(self, event: Event) -> None: ...
    def close(self) -> None: ...
    def suspend(self) -> AbstractContextManager[None]: ...


class PlainView:
    """One line an event, for logs, pipes and simple terminals; nothing for progress."""

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool = False,
        verbose: bool = False,
        watching: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.board = Board()
        self._stream, self._clock = stream, clock
        self._told = _PROBLEMS if quiet else _LINES | {"call", "invalid", "tool"} if verbose else _LINES
        self._told |= _ASKED if watching else frozenset()
        self._harmless = () if watching else _BROKEN

    def __call__(self, event: Event) -> None:
        self.tell([(self._clock(), event)])

    def tell(self, events: Iterable[tuple[float, Event]]) -> None:
        """Take in what happened, each event at its time, and print its line.

        Only who is `watching` is told of a broken stream (`OSError`): nothing that is paid for ends with it.
        """
        for now, event in events:
            self.board = self.board.apply(event, now)
            if event.kind in self._told:
                with suppress(*self._harmless):
                    self._stream.write(line(event, self.board) + "\n")
                    self._stream.flush()

    def mark(self, status: str) -> None:
        """Take in what is known from elsewhere of how the run stands."""
        self.board = replace(self.board, status=status)

    def close(self) -> None:
        """Nothing to restore."""

    def suspend(self) -> AbstractContextManager[None]:
        """Nothing to put away."""
        return nullcontext()


class LiveView:
    """The turn under way as a table redrawn in place; finished turns and problems scroll up above it.

    A thread of rich's redraws at its own pace, however many events come. It reads `board` once a frame, and
    boards never change: no lock is needed. A view that is only `watching` has no such thread: it draws when it is
    told something, and shows what the person at the run is asked.
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

        self.board = Board()
        self._stream, self._clock, self._watching = stream, clock, watching
        self._told = _PROBLEMS | {"run"} | ({"retry", "invalid", "tool"} if verbose else set())
        self._told |= _ASKED if watching else frozenset()
        plain = bool(os.environ.get("NO_COLOR"))
        self._console = console or Console(file=stream, force_terminal=True, force_interactive=True, no_color=plain)
        self._live: Live | None = None
        self._suspended = self._folded = self._drawn = False

    def __call__(self, event: Event) -> None:
        self.tell([(self._clock(), event)])

    def tell(self, events: Iterable[tuple[float, Event]]) -> None:
        """Take in what happened, each event at its time, and show it at once; nothing new draws the time."""
        said, begun = [], False
        for now, event in events:
            before, self.board = self.board, self.board.apply(event, now)
            begun = begun or event.kind in ("batch", "call")
            if len(self.board.finished) > len(before.finished):
                said.append(self._text(self.board.finished[-1], wrap=False))
            if event.kind == "dashboard":
                said.append(self._text(line(event, self.board), "dim"))
            if event.kind in self._told:
                said.append(self._text(flat(line(event, self.board)), "yellow" if event.kind in _PROBLEMS else ""))
        self._say(*said)
        if begun and not (self.board.over or self._live or self._suspended):
            self._start()
        elif self._watching and not said:
            self._redraw()

    def mark(self, status: str) -> None:
        """Take in what is known from elsewhere of how the run stands, and show it."""
        self.board = replace(self.board, status=status)
        if not self._live and self.board.title:
            self._start()
        self._redraw()

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

        # stdout may be a pipe that waits for the result: it is never redirected.
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

        text = text if self._console.width >= 60 else flat(text)
        return Text(text, style, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")

    def _say(self, *texts: Text) -> None:
        """Print above the live region, which is drawn once for all of them."""
        from rich.console import Group

        if texts:
            with suppress(*_BROKEN):
                self._console.print(Group(*texts))

    def _frame(self, room: int = 0) -> RenderableType:
        """The frame for the terminal as it is now, or for `room` rows."""
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
    """The view for `stream`: live at a capable terminal, plain lines elsewhere.

    `json` changes nothing: it speaks of stdout, and a person who pipes that may still watch. `watching` is for who
    follows a run of another process; `clock` tells the time of its events.
    """
    capable = os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
    if quiet or not capable or not stream.isatty():
        return PlainView(stream, quiet=quiet, verbose=verbose, watching=watching, clock=clock)
    return LiveView(stream, verbose=verbose, watching=watching, clock=clock)
