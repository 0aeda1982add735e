"""What is known of a run while it goes on: a fold of its events. Pure; drawing is the view's."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from cdo.core.events import Event
from cdo.core.formatting import columns, duration, one_line, pluralise
from cdo.core.mission_names import came
from cdo.core.usage import NOTHING, TotalUsage

_TURN = re.compile(r"^([tr])([0-9]+)-")


class CallState(enum.StrEnum):
    """What a voice is doing; in this order where not all can be shown."""

    WRITING = "writing"
    THINKING = "thinking"
    RETRYING = "retrying"
    WAITING = "waiting"
    MISSING = "missing"
    STOPPED = "stopped"
    EDITED = "edited"
    DONE = "done"
    RECORDED = "from record"


def _after(spent: TotalUsage, event: Event) -> TotalUsage:
    """What was spent after an event: an `exchange` is a call, as it is in the result, and tells what it took."""
    return spent + replace(TotalUsage.of(event.data), seconds=0.0) if event.kind == "exchange" else spent


@dataclass(frozen=True)
class CallProgress:
    """One call, as far as it has come. `text` is its position, or what is wrong.

    `written` counts the characters of the answer coming in; the times are those of the fold.
    """

    name: str
    kind: str
    state: CallState = CallState.WAITING
    started: float | None = None
    ended: float | None = None
    retry_at: float = 0.0
    written: int = 0
    spent: TotalUsage = NOTHING
    confidence: float | None = None
    text: str = ""

    def after(self, event: Event, now: float) -> CallProgress:
        """The voice after an event about it."""
        data, spent = event.data, _after(self.spent, event)
        match event.kind:
            case "call":
                since = now if self.started is None else self.started
                return replace(self, state=CallState.THINKING, started=since, written=0, spent=spent)
            case "progress" if data["characters"]:
                return replace(self, state=CallState.WRITING, written=data["characters"])
            case "exchange":
                state = CallState.WAITING if data.get("fault") else self.state
                return replace(self, state=state, written=0, spent=spent)
            case "retry":
                why = f"{data['fault']}: {data['message']}"
                return replace(self, state=CallState.RETRYING, retry_at=now + data["wait"], text=why)
            case "invalid":
                return replace(self, state=CallState.WAITING, text=f"invalid: {' '.join(data['problems'])}")
            case "missing":
                return replace(self, state=CallState.MISSING, ended=now, text=str(data["reason"]))
            case "reply":
                # A reply made from recorded exchanges has no `how`, but nobody was asked for it either.
                how = CallState.DONE if self.started is not None else CallState.RECORDED
                how = CallState.EDITED if data.get("how") == "edited" else how
                focus = f"focus: {data['focus']}" if data.get("focus") else ""
                text = str(data.get("position") or focus)
                return replace(self, state=how, ended=now, confidence=data.get("confidence"), text=text)
        return self

    @property
    def label(self) -> str:
        """The name without its turn."""
        return _TURN.sub("", self.name)

    def cells(self, now: float) -> tuple[str, ...]:
        """State, time, tokens, cost, confidence and text as a person reads them at `now`."""
        left = max(0.0, self.retry_at - now)
        ended = now if self.ended is None else self.ended
        seconds = None if self.started is None else max(0.0, ended - self.started)
        tokens = self.spent.tokens - (-self.written // 4)
        return (
            f"retrying in {left:.0f} s" if self.state is CallState.RETRYING else self.state.value,
            duration(seconds),
            f"{'~' if self.written else ''}{tokens:,}" if tokens else "",
            self.spent.price,
            "" if self.confidence is None else f"{self.confidence:.2f}",
            one_line(self.text),
        )


@dataclass(frozen=True)
class TensionProgress:
    """A disagreement as the syntheses told it: named first in turn `since`; its status was new in turn `changed`."""

    id: str
    title: str
    status: str
    since: int
    changed: int

    def told(self, turn: int) -> str:
        """Its status, and since or in which turn it has it; of one that changed in `turn` as `state` says it."""
        state = self.state(turn)
        return f"{state} {'since' if state == 'open' else 'in'} turn {self.changed}"

    def state(self, turn: int) -> str:
        """Its status in a word; of one that changed in `turn` the word says how."""
        if self.status != "open" or self.changed != turn:
            return one_line(self.status, 12)
        return "opened" if self.since == turn else "reopened"


@dataclass(frozen=True)
class ProductProgress:
    """A product of a mission, as its rounds told it: its newest `version`, who wrote that, and what blocks it.

    `depth`, `status` and who owns it are known where the session's files were looked at.
    """

    name: str
    depth: int = 0
    status: str = ""
    owner: str = ""
    version: int = 0
    verdict: str = ""
    blocked: tuple[str, ...] = ()


@dataclass(frozen=True)
class LiveRun:
    """Everything a view knows, of the events that it was told.

    `title` names the turn under way ("turn 2", or what its calls are for), `voices` are its calls by name,
    `finished` has one line for each turn before. `status` is how the run ended or what it waits for; while it goes
    on it is "", and `going` is said; `asks` is the question that waits for the person. `confidences` are by
    synthesis, `turn` is the last one's number. Of a mission, `came` is what the round under way came to, `products`
    are those known by name, and `accepted` counts those (accepted, live). A run that begins again tells its turns
    again, from its record: what it says then counts, and `paid` keeps what each call took before.
    """

    session: str = ""
    preset: str = ""
    question: str = ""
    resumed: bool = False
    status: str = ""
    title: str = ""
    voices: Mapping[str, CallProgress] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    confidences: Mapping[str, float] = field(default_factory=dict)
    tensions: Mapping[str, TensionProgress] = field(default_factory=dict)
    turn: int = 0
    spent: TotalUsage = NOTHING
    paid: Mapping[str, TotalUsage] = field(default_factory=dict)
    going: str = ""
    over: bool = False
    asked: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    asks: str = ""
    came: str = ""
    products: Mapping[str, ProductProgress] = field(default_factory=dict)
    accepted: tuple[int, int] = (0, 0)

    def apply(self, event: Event, now: float) -> LiveRun:
        """The board after `event`, which happened at `now`. Reads no clock, changes nothing."""
        match event.kind:
            case "run":
                preset, resumed = str(event.data["preset"]), bool(event.data.get("resumed"))
                question = str(event.data.get("question") or "")
                return replace(self, session=event.name, preset=preset, question=question, resumed=resumed)
            case "batch":
                return self._batch(event.data["calls"])
            case "done" if self.mission and event.data.get("session", self.session) != self.session:
                return replace(self._left(False), confidences={}, tensions={}, turn=0)  # of a deliberation inside
            case "done":
                return replace(self, status=str(event.data["status"]), over=True)
            case "stopped":
                return replace(self.left("stopped"), over=True)
            case "pause":
                return replace(self, status="waits for an answer", asks=asking(event.data))
            case "review":
                return replace(self, status="waits for an answer")
            case "round":
                return self._round(event.data)
            case "tree":
                keys = [item.name for item in fields(ProductProgress)]
                listed = [ProductProgress(**{key: item[key] for key in keys}) for item in event.data["products"]]
                return replace(self, products={item.name: item for item in listed})
        if not (voice := self.voices.get(event.name)):
            return self
        after = voice.after(event, now)
        board = replace(self, voices={**self.voices, voice.name: after}, spent=_after(self.spent, event))
        if event.kind == "reply" and voice.kind == "synthesis":
            return board._synthesis(after, event.data.get("directive"))
        return board

    def left(self, status: str) -> LiveRun:
        """Mark the run as not running: every unfinished call becomes STOPPED."""
        voices = {
            name: voice if voice.ended is not None else replace(voice, state=CallState.STOPPED, written=0)
            for name, voice in self.voices.items()
        }
        return replace(self, status=status, voices=voices)

    def _round(self, data: Mapping[str, Any]) -> LiveRun:
        """The board after a round of a mission: what it made, how that was judged, and what is blocked now."""
        found = {name: replace(product, blocked=()) for name, product in self.products.items()}
        for item in data["versions"]:
            old = found.get(item["product"], ProductProgress(item["product"]))
            owner = old.owner or item["author"]
            found[old.name] = replace(old, version=item["number"], owner=owner, verdict="")
        for item in data["verdicts"]:
            old = found.get(item["product"], ProductProgress(item["product"]))
            found[old.name] = replace(old, verdict=item["verdict"].replace("_", " "))
        for item in data["blocked"]:
            old = found.get(item["product"], ProductProgress(item["product"]))
            found[old.name] = replace(old, blocked=tuple(item["by"]))
        return replace(self, came=came(data), products=found, accepted=(data["accepted"], data["live"]))

    @property
    def mission(self) -> bool:
        """Whether it is a mission, which has rounds and products, as far as it was told."""
        return bool(self.accepted[1] or self.title.startswith("round "))

    def _synthesis(self, voice: CallProgress, directive: Mapping[str, Any] | None) -> LiveRun:
        """What a synthesis says of confidence, and that of a turn of tensions; one it leaves out stays as it was."""
        sure = {} if voice.confidence is None else {voice.name: voice.confidence}
        board = replace(self, confidences={**self.confidences, **sure})
        match = _TURN.match(voice.name)
        if not match or not self.title.startswith("turn "):  # several at once are an audit's, not one course
            return board
        turn, known = int(match[2][-9:]), dict(self.tensions)
        for told in (directive or {}).get("tensions") or ():
            name, title, status = told["id"], told["title"], told["status"]
            old = known.get(name)
            since, changed = (old.since, old.changed) if old else (turn, turn)
            known[name] = TensionProgress(
                name, title, status, since, turn if old and old.status != status else changed
            )
        return replace(board, turn=turn, tensions=known)

    @property
    def news(self) -> str:
        """The tensions that the last synthesis opened or settled, in a few words."""
        found: dict[str, list[str]] = {}
        for tension in self.tensions.values():
            if tension.changed == self.turn:
                found.setdefault(tension.state(self.turn), []).append(one_line(tension.id, 12))
        some = {state: [*names[:4], *(["…"] if len(names) > 4 else [])] for state, names in found.items()}
        return ", ".join(f"{state} {' '.join(names)}" for state, names in some.items())

    def _batch(self, calls: Sequence[Sequence[str]]) -> LiveRun:
        """The next batch goes on with the turn that its names tell, or begins a new one; or the run begins again."""
        names = [name for name, _ in calls]
        again = self.over or not self.asked.isdisjoint(names)
        title = _title(calls)
        board = self if title == self.title and not again else self._left(again)
        voices = {name: CallProgress(name, kind, spent=board.paid.get(name, TotalUsage())) for name, kind in calls}
        voices = {**board.voices, **voices}
        return replace(board, title=title, voices=voices, asked=board.asked.union(names), status="", asks="")

    def _left(self, again: bool) -> LiveRun:
        """The board past the turn under way, which gets its line unless it was told before; `again`: at the start."""
        took = {name: voice.spent for name, voice in self.voices.items() if voice.spent.calls}
        board = replace(self, title="", voices={}, paid={**self.paid, **took})
        repeated = self.title in self.told and all(voice.started is None for voice in self.voices.values())
        if self.title and not repeated and (self.settled or not again):
            board = replace(board, finished=(*self.finished, self.outcome()), told=self.told | {self.title})
        board = replace(board, came="")
        if again:
            return replace(board, resumed=True, over=False, confidences={}, tensions={}, turn=0, asked=frozenset())
        return board

    @property
    def settled(self) -> bool:
        """Whether the turn under way has nothing left to wait for."""
        return all(voice.ended is not None for voice in self.voices.values())

    def outcome(self) -> str:
        """The turn under way in one line, for when it is finished."""
        voices = self.voices.values()
        there = [voice.state is not CallState.MISSING for voice in voices if voice.kind == "agent"]
        sums = [voice for voice in voices if voice.kind == "synthesis"]
        spent = sum((voice.spent for voice in voices), TotalUsage())
        starts = [voice.started for voice in voices if voice.started is not None]
        took = max(voice.ended or 0.0 for voice in voices) - min(starts) if starts else None
        share = "" if all(there) else f"{sum(there)}/"
        return columns(
            f"{self.title:<6}",
            f"{share + pluralise(len(there), 'voice'):<10}" if there else "",
            f"{self.came or pluralise(len(voices), 'call'):<40}" if self.mission and not there else "",
            *(f"{voice.confidence:.2f}" for voice in sums if voice.confidence is not None),
            f"{duration(max(0.0, took)):>6}" if took is not None else CallState.RECORDED.value,
            f"{spent.price:>7}" if spent.price else "",
            f"{spent.tokens:>6,} tok" if spent.tokens else "",
            self.news if any(voice.confidence is not None for voice in sums) else "",
            *(one_line(voice.text) for voice in sums),
        )

    def header(self) -> list[str]:
        """What the head of a live view says, most important first."""
        steps = [f"{confidence:.2f}" for confidence in self.confidences.values()]
        if len(steps) > 4:
            steps[1:-2] = ["…"]
        parts = (
            one_line(self.session, 32),
            one_line(self.preset, 32) + (" (resumed)" if self.resumed else ""),
            one_line(self.status, 32) or self.going,
            "" if self.over and self.settled else self.title,
            pluralise(self.spent.calls, "call") if self.spent.calls else "",
            f"{self.spent.tokens:,} tok" if self.spent.tokens else "",
            self.spent.price,
            f"confidence {' → '.join(steps)}" if steps else "",
            "{} of {} accepted".format(*self.accepted) if self.accepted[1] else "",
        )
        return [part for part in parts if part]


def asking(data: Mapping[str, Any]) -> str:
    """What a person is asked, with what they may choose from, in one line."""
    options = " / ".join(one_line(option) for option in data["options"])
    return one_line(data["question"]) + (f" ({options})" if options else "")


def _title(calls: Sequence[Sequence[str]]) -> str:
    """What a batch is for: the turn or round that all its names tell, else the kinds of its calls."""
    matches = [_TURN.match(name) for name, _ in calls]
    numbers = {match[0] if match else "" for match in matches}
    if len(numbers) == 1 and matches[0]:
        return f"{'turn' if matches[0][1] == 't' else 'round'} {matches[0][2]}"
    return one_line(", ".join(dict.fromkeys(kind for _, kind in calls)), 40)
