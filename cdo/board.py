"""What is known of a run while it goes on: a fold of its events. Pure; drawing is the view's."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

from cdo.types import Event
from cdo.wording import columns, counted, duration, flat, money


class State(enum.StrEnum):
    """What a voice is doing; in this order where not all can be shown."""

    WRITING = "writing"
    THINKING = "thinking"
    RETRYING = "retrying"
    WAITING = "waiting"
    MISSING = "missing"
    EDITED = "edited"
    DONE = "done"
    RECORDED = "from record"


@dataclass(frozen=True)
class Spent:
    """What requests took: how many, tokens in and out, dollars, and how many have no known price."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def after(self, event: Event) -> Spent:
        """Count what one event tells: `call` a request, `exchange` what it took (no usage: no charge)."""
        if event.kind == "call":
            return self + Spent(calls=1)
        if event.kind != "exchange" or not (usage := event.data.get("usage")):
            return self
        cost = event.data.get("cost")
        return self + Spent(0, usage["input_tokens"] + usage["output_tokens"], cost or 0.0, int(cost is None))

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def price(self) -> str:
        """The cost in words, "" where nothing was charged for."""
        if self.unpriced:
            return f"{money(self.cost)} + ?" if self.cost else money(None)
        return money(self.cost) if self.tokens or self.cost else ""


@dataclass(frozen=True)
class Voice:
    """One call, as far as it has come. `text` is its position, or what is wrong.

    `written` counts the characters of the answer coming in; the times are those of the fold.
    """

    name: str
    kind: str
    state: State = State.WAITING
    started: float | None = None
    ended: float | None = None
    retry_at: float = 0.0
    written: int = 0
    spent: Spent = Spent()
    confidence: float | None = None
    text: str = ""

    def after(self, event: Event, now: float) -> Voice:
        """The voice after an event about it."""
        data, spent = event.data, self.spent.after(event)
        match event.kind:
            case "call":
                since = now if self.started is None else self.started
                return replace(self, state=State.THINKING, started=since, written=0, spent=spent)
            case "progress" if data["characters"]:
                return replace(self, state=State.WRITING, written=data["characters"])
            case "exchange":
                state = State.WAITING if data.get("fault") else self.state
                return replace(self, state=state, written=0, spent=spent)
            case "retry":
                why = f"{data['fault']}: {data['message']}"
                return replace(self, state=State.RETRYING, retry_at=now + data["wait"], text=why)
            case "invalid":
                return replace(self, state=State.WAITING, text=f"invalid: {' '.join(data['problems'])}")
            case "missing":
                return replace(self, state=State.MISSING, ended=now, text=str(data["reason"]))
            case "reply":
                # A reply made from recorded exchanges has no `how`, but nobody was asked for it either.
                how = State.DONE if self.started is not None else State.RECORDED
                how = State.EDITED if data.get("how") == "edited" else how
                focus = f"focus: {data['focus']}" if data.get("focus") else ""
                text = str(data.get("position") or focus)
                return replace(self, state=how, ended=now, confidence=data.get("confidence"), text=text)
        return self

    @property
    def label(self) -> str:
        """The name without its turn."""
        return re.sub(r"^[tr]\d+-", "", self.name)

    def cells(self, now: float) -> tuple[str, ...]:
        """State, time, tokens, cost, confidence and text as a person reads them at `now`."""
        left = max(0.0, self.retry_at - now)
        seconds = None if self.started is None else (now if self.ended is None else self.ended) - self.started
        tokens = self.spent.tokens - (-self.written // 4)
        return (
            f"retrying in {left:.0f} s" if self.state is State.RETRYING else self.state.value,
            duration(seconds),
            f"{'~' if self.written else ''}{tokens:,}" if tokens else "",
            self.spent.price,
            "" if self.confidence is None else f"{self.confidence:.2f}",
            flat(self.text),
        )


@dataclass(frozen=True)
class Board:
    """Everything a view knows. `spent` and times are of this process: what a resumed run replays is free.

    `title` names the turn under way ("turn 2", or what its calls are for), `voices` are its calls by name,
    `finished` has one line for each turn before.
    """

    session: str = ""
    preset: str = ""
    resumed: bool = False
    title: str = ""
    voices: Mapping[str, Voice] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    confidences: tuple[float, ...] = ()
    spent: Spent = Spent()

    def apply(self, event: Event, now: float) -> Board:
        """The board after `event`, which happened at `now`. Reads no clock, changes nothing."""
        if event.kind == "run":
            preset, resumed = str(event.data["preset"]), bool(event.data.get("resumed"))
            return replace(self, session=event.name, preset=preset, resumed=resumed)
        if event.kind == "batch":
            return self._batch([Voice(name, kind) for name, kind in event.data["calls"]])
        if not (voice := self.voices.get(event.name)):
            return self
        after = voice.after(event, now)
        board = replace(self, voices={**self.voices, voice.name: after}, spent=self.spent.after(event))
        if event.kind == "reply" and voice.kind == "synthesis" and after.confidence is not None:
            return replace(board, confidences=(*self.confidences, after.confidence))
        return board

    def _batch(self, voices: Sequence[Voice]) -> Board:
        """The next batch goes on with the turn that its names tell, or begins a new one."""
        numbers = {voice.name.removesuffix(voice.label).removesuffix("-") for voice in voices}
        number = numbers.pop() if len(numbers) == 1 else ""
        word = {"t": "turn ", "r": "round "}.get(number[:1], "")
        title = word + (number[1:] or ", ".join(dict.fromkeys(voice.kind for voice in voices)))
        fresh = {voice.name: voice for voice in voices}
        if title == self.title:
            return replace(self, voices={**self.voices, **fresh})
        finished = (*self.finished, self.outcome()) if self.title else ()
        return replace(self, title=title, voices=fresh, finished=finished)

    @property
    def settled(self) -> bool:
        """Whether the turn under way has nothing left to wait for."""
        return all(voice.ended is not None for voice in self.voices.values())

    def outcome(self) -> str:
        """The turn under way in one line, for when it is finished."""
        voices = self.voices.values()
        there = [voice.state is not State.MISSING for voice in voices if voice.kind == "agent"]
        sums = [voice for voice in voices if voice.kind == "synthesis"]
        spent = sum((voice.spent for voice in voices), Spent())
        starts = [voice.started for voice in voices if voice.started is not None]
        took = max(voice.ended or 0.0 for voice in voices) - min(starts) if starts else None
        share = "" if all(there) else f"{sum(there)}/"
        return columns(
            f"{self.title:<6}",
            f"{share + counted(len(there), 'voice'):<10}" if there else "",
            *(f"{voice.confidence:.2f}" for voice in sums if voice.confidence is not None),
            f"{duration(max(0.0, took)):>6}" if took is not None else State.RECORDED.value,
            f"{spent.price:>7}" if spent.price else "",
            f"{spent.tokens:>6,} tok" if spent.tokens else "",
            *(flat(voice.text) for voice in sums),
        )

    def header(self) -> list[str]:
        """What the head of a live view says, most important first."""
        steps = [f"{confidence:.2f}" for confidence in self.confidences]
        if len(steps) > 4:
            steps[1:-2] = ["…"]
        parts = (
            flat(self.session, 32),
            flat(self.preset, 32) + (" (resumed)" if self.resumed else ""),
            self.title,
            counted(self.spent.calls, "call") if self.spent.calls else "",
            f"{self.spent.tokens:,} tok" if self.spent.tokens else "",
            self.spent.price,
            f"confidence {' → '.join(steps)}" if steps else "",
        )
        return [part for part in parts if part]
