"""Folds the events of a running run into its present state. Pure; the views draw it."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core.events import (
    BatchBegan,
    CallSent,
    DirectiveData,
    Event,
    ExchangeRecorded,
    ProductData,
    QuestionAsked,
    ReplyAccepted,
    ReplyMissing,
    ReplyRefused,
    RetryPlanned,
    ReviewBegan,
    RoundEnded,
    RunBegan,
    RunEnded,
    RunStopped,
    TextReceived,
    ToolUsed,
    TreeChanged,
)
from cdo.core.formatting import columns, duration, one_line, pluralise, rounded
from cdo.core.mission_names import OWN, came
from cdo.core.usage import NOTHING, TotalUsage

_TURN = re.compile(r"^([tr])([0-9]+)-")


class CallState(enum.StrEnum):
    """The state of a call. If not all calls can be shown, those with the first states are shown."""

    WRITING = "writing"
    THINKING = "thinking"
    RETRYING = "retrying"
    WAITING = "waiting"
    ANSWERED = "answered"  # what came is not judged yet, or is not shown before a person has answered
    MISSING = "missing"
    STOPPED = "stopped"
    EDITED = "edited"
    DONE = "done"
    RECORDED = "from record"


def _after(spent: TotalUsage, event: Event) -> TotalUsage:
    """Return the usage after an event. An `exchange` counts as a call, as in the result, and carries its usage."""
    if isinstance(event, ExchangeRecorded):
        return spent + TotalUsage.of({"model": event.model, "usage": event.usage, "cost": event.cost})
    return spent


class CallProgress(Struct, frozen=True):
    """The progress of one call. `text` is the position in its reply, or its problem; before there is one, what the
    model looks at with a tool, or the end of what it has written. `model` is the model that is asked.

    `written` counts the characters of the answer received so far. Times come from the clock that is passed to the
    fold.
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
    model: str = ""

    def after(self, event: Event, now: float) -> CallProgress:
        """Return the call after an event about it."""
        spent = _after(self.spent, event)
        match event:
            case CallSent():
                since = now if self.started is None else self.started
                return replace(
                    self, state=CallState.THINKING, started=since, written=0, spent=spent, model=event.model
                )
            case TextReceived() if event.characters:
                return replace(self, state=CallState.WRITING, written=event.characters, text=event.tail)
            case ToolUsed():
                return replace(self, text=f"looks: {event.tool} {_values(event.arguments)}")
            case ExchangeRecorded():
                state = CallState.WAITING if event.fault else CallState.ANSWERED
                return replace(self, state=state, written=0, spent=spent)
            case RetryPlanned():
                why = f"{event.fault}: {event.message}"
                return replace(self, state=CallState.RETRYING, retry_at=now + event.wait, text=why)
            case ReplyRefused():
                return replace(self, state=CallState.WAITING, text=f"invalid: {' '.join(event.problems)}")
            case ReplyMissing():
                return replace(self, state=CallState.MISSING, ended=now, text=event.reason)
            case ReplyAccepted():
                # A reply made from recorded exchanges has no `how`, but no model was asked for it either.
                how = CallState.DONE if self.started is not None else CallState.RECORDED
                how = CallState.EDITED if event.how == "edited" else how
                text = event.position or (f"focus: {event.focus}" if event.focus else "")
                return replace(self, state=how, ended=now, confidence=event.confidence, text=text)
        return self

    @property
    def label(self) -> str:
        """The name without its turn."""
        return _TURN.sub("", self.name)

    def cells(self, now: float) -> tuple[str, ...]:
        """Return state, time, tokens, cost, confidence and text, for display at time `now`."""
        left = max(0.0, self.retry_at - now)
        ended = now if self.ended is None else self.ended
        seconds = None if self.started is None else max(0.0, ended - self.started)
        tokens = self.spent.tokens - (-self.written // 4)
        return (
            f"retrying in {left:.0f} s" if self.state is CallState.RETRYING else self.state.value,
            duration(seconds),
            f"{'~' if self.written else ''}{rounded(tokens)}" if tokens else "",
            self.spent.price,
            "" if self.confidence is None else f"{self.confidence:.2f}",
            one_line(self.text),
        )


class TensionProgress(Struct, frozen=True):
    """A tension as told by the syntheses: first named in turn `since`; its status changed last in turn `changed`."""

    id: str
    title: str
    status: str
    since: int
    changed: int

    def told(self, turn: int) -> str:
        """Return its state with the turn of its last change; `turn` is as in `state`."""
        state = self.state(turn)
        return f"{state} {'since' if state == 'open' else 'in'} turn {self.changed}"

    def state(self, turn: int) -> str:
        """Return its status in a word; "opened" or "reopened" if it became open in `turn`."""
        if self.status != "open" or self.changed != turn:
            return one_line(self.status, 12)
        return "opened" if self.since == turn else "reopened"


class ProductProgress(Struct, frozen=True):
    """A product of a mission, as reported after each round: its newest `version`, its owner, and what blocks it.

    `depth` and `status` are known only if the session's files were read. Until then, `owner` is the author of a
    version.
    """

    name: str
    depth: int = 0
    status: str = ""
    owner: str = ""
    version: int = 0
    verdict: str = ""
    blocked: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: ProductData) -> ProductProgress:
        """Return the product that a row of the tree tells of."""
        name, depth, version, blocked = row["name"], row["depth"], row["version"], tuple(row["blocked"])
        return cls(name, depth, row["status"], row["owner"], version, row["verdict"], blocked)


class LiveRun(Struct, frozen=True):
    """The state of a run that a view shows, as a fold of events.

    `title` names the current turn ("turn 2", or the purpose of its calls); `voices` are its calls by name; `finished`
    has one line for each earlier turn. `status` is how the run ended or what it waits for; while it is "", `going` is
    shown instead. `asks` is the open question to the person. `confidences` are by synthesis; `turn` is the turn of
    the last synthesis.

    For a mission, `came` is the result of the current round, `products` are the known products by name, and
    `accepted` counts products as (accepted, live).

    A run that begins again repeats its turns from its record, and the repeated events replace the earlier ones.
    `paid` keeps the earlier usage of each call.
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
        """Return the state after `event`, which happened at `now`. Reads no clock, changes nothing."""
        match event:
            case RunBegan():
                began = replace(self, session=event.name, preset=event.preset, question=event.question)
                return replace(began, resumed=event.resumed)
            case BatchBegan():
                return self._batch(event.calls)
            case RunEnded() if self.mission and event.result.session != self.session:
                return replace(self._left(False), confidences={}, tensions={}, turn=0)  # a nested deliberation
            case RunEnded():
                return replace(self, status=event.result.status, over=True)
            case RunStopped():
                return replace(self.left("stopped"), over=True)
            case QuestionAsked():
                return replace(self, status="waits for an answer", asks=asking(event))
            case ReviewBegan():
                return replace(self, status="waits for an answer")
            case RoundEnded():
                return self._round(event)
            case TreeChanged():
                listed = [ProductProgress.of(item) for item in event.products]
                live = [item for item in listed if item.status != OWN]
                counts = (sum(item.status == "accepted" for item in live), len(live))
                return replace(self, products={item.name: item for item in listed}, accepted=counts)
        if not (voice := self.voices.get(event.name)):
            return self
        after = voice.after(event, now)
        board = replace(self, voices={**self.voices, voice.name: after}, spent=_after(self.spent, event))
        if isinstance(event, ReplyAccepted) and voice.kind == "synthesis":
            return board._synthesis(after, event.directive)
        return board

    def left(self, status: str) -> LiveRun:
        """Mark the run as not running: every call without an answer becomes STOPPED."""
        voices = {
            name: voice
            if voice.ended is not None or voice.state is CallState.ANSWERED
            else replace(voice, state=CallState.STOPPED, written=0)
            for name, voice in self.voices.items()
        }
        return replace(self, status=status, voices=voices)

    def _round(self, ended: RoundEnded) -> LiveRun:
        """Return the state after a round of a mission: its new versions, their verdicts, and what is blocked now."""
        found = {name: replace(product, blocked=()) for name, product in self.products.items()}
        for version in ended.versions:
            old = found.get(version["product"], ProductProgress(version["product"]))
            owner = old.owner or version["author"]
            found[old.name] = replace(old, version=version["number"], owner=owner, verdict="")
        for verdict in ended.verdicts:
            old = found.get(verdict["product"], ProductProgress(verdict["product"]))
            found[old.name] = replace(old, verdict=verdict["verdict"].replace("_", " "))
        for blocked in ended.blocked:
            old = found.get(blocked["product"], ProductProgress(blocked["product"]))
            found[old.name] = replace(old, blocked=tuple(blocked["by"]))
        return replace(self, came=came(ended), products=found, accepted=(ended.accepted, ended.live))

    @property
    def mission(self) -> bool:
        """True if the events so far show that this is a mission, which has rounds and products."""
        return bool(self.accepted[1] or self.title.startswith("round "))

    def _synthesis(self, voice: CallProgress, directive: DirectiveData | None) -> LiveRun:
        """Return the state after a synthesis: its confidence and, in a turn, its tensions.

        A tension that the synthesis does not name stays as it was.
        """
        sure = {} if voice.confidence is None else {voice.name: voice.confidence}
        board = replace(self, confidences={**self.confidences, **sure})
        match = _TURN.match(voice.name)
        if not match or not self.title.startswith("turn "):  # several at once belong to an audit
            return board
        turn, known = int(match[2][-9:]), dict(self.tensions)
        for told in directive.get("tensions", ()) if directive else ():
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
        """Return the state after a batch begins, which continues a turn, begins a new turn, or restarts the run."""
        names = [name for name, _ in calls]
        again = self.over or not self.asked.isdisjoint(names)
        title = _title(calls)
        board = self if title == self.title and not again else self._left(again)
        voices = {name: CallProgress(name, kind, spent=board.paid.get(name, TotalUsage())) for name, kind in calls}
        voices = {**board.voices, **voices}
        return replace(board, title=title, voices=voices, asked=board.asked.union(names), status="", asks="")

    def _left(self, again: bool) -> LiveRun:
        """Return the state after leaving the current turn, whose line is added unless it was added before.

        `again`: the run begins again.
        """
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
        """True if all calls of the current turn have ended."""
        return all(voice.ended is not None for voice in self.voices.values())

    def outcome(self) -> str:
        """Return the current turn as one line, for the list of finished turns."""
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
            f"{rounded(spent.tokens):>6} tok" if spent.tokens else "",
            self.news if any(voice.confidence is not None for voice in sums) else "",
            *(one_line(voice.text) for voice in sums),
        )

    def header(self) -> list[str]:
        """Return the parts of the live view's head, the most important first."""
        steps = [f"{confidence:.2f}" for confidence in self.confidences.values()]
        if len(steps) > 4:
            steps[1:-2] = ["…"]
        parts = (
            one_line(self.session, 32),
            one_line(self.preset, 32) + (" (resumed)" if self.resumed else ""),
            one_line(self.status, 32) or self.going,
            "" if self.over and self.settled else self.title,
            pluralise(self.spent.calls, "call") if self.spent.calls else "",
            f"{rounded(self.spent.tokens)} tok" if self.spent.tokens else "",
            self.spent.price,
            f"confidence {' → '.join(steps)}" if steps else "",
            "{} of {} accepted".format(*self.accepted) if self.accepted[1] and not self.products else "",
        )
        return [part for part in parts if part]


def _values(arguments: str) -> str:
    """Return the values of a tool's arguments, which are JSON, else the text as it is."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return " ".join(str(value) for value in found.values()) if isinstance(found, dict) else arguments


def asking(asked: QuestionAsked) -> str:
    """Return a question to a person with its options, in one line."""
    options = " / ".join(one_line(option) for option in asked.options)
    return one_line(asked.question) + (f" ({options})" if options else "")


def _title(calls: Sequence[Sequence[str]]) -> str:
    """Return the title of a batch: the turn or round of all its calls, else the kinds of its calls."""
    matches = [_TURN.match(name) for name, _ in calls]
    numbers = {match[0] if match else "" for match in matches}
    if len(numbers) == 1 and matches[0]:
        return f"{'turn' if matches[0][1] == 't' else 'round'} {matches[0][2]}"
    return one_line(", ".join(dict.fromkeys(kind for _, kind in calls)), 40)
