"""The messages of the commits that keep a run: made for people who read `git log`, with trailers for machines.

The wording is `templates/commits.md`. What models and people wrote enters it as single visible lines, which it shows
behind a label, so that none can pass for a trailer.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from cdo import __version__
from cdo.content.library import Library
from cdo.core.events import (
    BatchBegan,
    DirectiveData,
    Event,
    ReplyAccepted,
    ReplyMissing,
    RoundEnded,
    RunEnded,
    RunStopped,
    TensionData,
)
from cdo.core.formatting import money, one_line, pluralise
from cdo.core.mission_names import came, round_of
from cdo.core.result import Result
from cdo.core.usage import totals
from cdo.formats.sections import ADDED

WORDING = "templates/commits"
SUBJECT = 72  # characters
LINE = 120  # of what somebody wrote, in one line of the message
SYNTHESIS = "synthesis"
BRIEF = "audit"  # the collection that an audit begins with

_CALL = re.compile(r"t([0-9]+)-([a-z0-9-]+)")
# Emphasis around words; a single sign, or one inside of a word, is none.
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3})(?=\S)([^*_]+)(?<=\S)\1(?![\w*])")
_STOPPED = {
    "BudgetReached": "budget",
    "NeedsHuman": "paused",
    "WaitsForBatch": "waiting",
    "Interrupted": "interrupted",
}


class _VisibleLine(str):
    """A text that is one visible line without secrets, of the length that the message gives it."""


class _ToldTurn(Struct):
    """One turn as far as it was told: what each voice said (position, confidence), and why others are missing."""

    said: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


class PendingCommit(Struct, frozen=True):
    """A commit to be made: `text` words it as far as the run knows it; `replayed` of a turn from an earlier process.

    `calls` are the names of the groups of records that there were by then. `about` are the trailers that tell whose
    commit it is, which may become known only later. `proof` is how the files begin that hold what was said in it.
    """

    event: str
    turn: int
    text: Callable[[], str]
    replayed: bool = False
    calls: frozenset[str] = frozenset()
    about: Mapping[str, str] = field(default_factory=dict)
    proof: str = ""

    @property
    def message(self) -> str:
        """The whole message. Raises `ContentError` if the wording is broken."""
        return self.text() + _trailers(self.about)


class CommitMessageBuilder(Struct):
    """Puts what a run tells into messages. `redact` takes secrets out of what goes into them, `library` words them.

    `about` are trailers of every commit; `audits` the session that this one audits, "" where it is no audit; `unit`
    is what its turns are called: a mission has rounds.
    """

    session: str
    problem: str
    records: Sequence[Mapping[str, Any]]
    redact: Callable[[str], str]
    library: Library
    turns: dict[int, _ToldTurn] = field(default_factory=dict)
    tensions: dict[str, tuple[str, str]] = field(default_factory=dict)
    focus: str = ""
    last: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    unit: str = "turn"
    audits: str = ""
    _before: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        self._before = tuple(self.records)
        self.audits = _audited(self.records)
        self.about |= {"Cdo-Audits": self.audits} if self.audits else {}

    def identify(self, preset: str, mode: str | None, created: str, forked: str) -> None:
        """Take in what every commit says of its session; `forked` is the source and the turn, "" for no fork."""
        kind = preset if mode in (None, preset) else f"{preset},{mode}"
        self.about |= {"Cdo-Preset": kind, "Cdo-Created": created, **({"Cdo-Fork": forked} if forked else {})}

    def take(self, event: Event) -> PendingCommit | None:
        """Take in what happened; returns the commit that is due now, if one is."""
        match event:
            case BatchBegan():
                for name, kind in event.calls:
                    self.unit = self.unit if round_of(name) is None else "round"
                    if kind == "agent" and (match := _CALL.fullmatch(name)):
                        self.turns.setdefault(int(match[1]), _ToldTurn()).said.setdefault(match[2], ("", None))
            case ReplyAccepted() | ReplyMissing() if match := _CALL.fullmatch(event.name):
                return self._reply(int(match[1]), match[2], event)
            case RoundEnded():
                return self._round(event)
            case RunEnded():
                return self._final(event.result)
            case RunStopped():
                return self._stopped(event)
        return None

    def _reply(self, turn: int, voice: str, event: ReplyAccepted | ReplyMissing) -> PendingCommit | None:
        """Take in what a voice of a turn said, or why it is missing; the synthesis ends the turn."""
        held = self.turns.setdefault(turn, _ToldTurn())
        if isinstance(event, ReplyMissing):
            if voice in held.said:
                held.missing[voice] = event.reason
        elif voice == SYNTHESIS and event.directive is not None:
            return self._turn(turn, held, event.directive, replayed=event.how is not None)
        elif voice in held.said:
            held.missing.pop(voice, None)
            held.said[voice] = event.position or "", event.confidence
        return None

    def begin(self, forked: tuple[str, int] | None = None, turn: int = 0) -> str:
        """The message of the first commit, also of a fork (session, turn); `turn` is the last that its files hold."""
        last = {"Cdo-Turn": str(turn)} if turn else {}
        source, after = forked or ("", 0)
        values = {"title": self._subject(self.problem), "place": "", "source": source, "turn": after}
        return self._told_now("begin", values, last)

    def again(self, place: str, last: Mapping[str, str]) -> str:
        """The message of the first commit on top of what `place`, a branch of a remote, keeps of this session.

        `last` are the trailers there.
        """
        return self._told_now("begin", {"title": self._subject(self.problem), "place": place}, last)

    def edited(self, names: Sequence[str], removed: Sequence[str], last: Mapping[str, str]) -> str:
        """The message of a commit of what a person changed; `last` are the trailers of the one before."""
        told = [*((name, False) for name in names), *((name, True) for name in removed)]
        return self._told_now("edited", {"files": [{"name": name, "removed": gone} for name, gone in told]}, last)

    def _turn(self, turn: int, held: _ToldTurn, directive: DirectiveData, *, replayed: bool) -> PendingCommit:
        heard = {name: said for name, said in held.said.items() if name not in held.missing}
        tensions, still_open = self._ledger(directive["tensions"])
        confidence, agreement = directive["confidence"], directive.get("agreement")
        focus, self.focus = self.focus, str(directive.get("focus") or "")
        self.last = {
            "Cdo-Turn": str(turn),
            "Cdo-Voices": str(len(heard)),
            "Cdo-Confidence": f"{confidence:.2f}",
            **({} if agreement is None else {"Cdo-Agreement": f"{agreement:.2f}"}),
            "Cdo-Open-Tensions": str(still_open),
        }
        values = {
            "turn": turn,
            "model": self._asked(f"t{turn}-{SYNTHESIS}"),
            "confidence": confidence,
            "still_open": still_open,
            "focus": focus or None,
            "voices": [
                {"name": name, "position": position, "confidence": sure} for name, (position, sure) in heard.items()
            ],
            "missing": [{"name": name, "reason": reason} for name, reason in held.missing.items()],
            "tensions": tensions,
            "next_focus": self.focus or None,
            "part": self._spent_on(f"t{turn}-"),
        }
        message = self._message("turn", values, "turn", "running")
        return PendingCommit("turn", turn, message, replayed, about=self.about, proof=f"t{turn}-{SYNTHESIS}.md")

    def _round(self, ended: RoundEnded) -> PendingCommit:
        """The commit of a mission's round."""
        number = ended.round
        self.last = {
            "Cdo-Turn": str(number),
            "Cdo-Accepted": str(ended.accepted),
            "Cdo-Live": str(ended.live),
            "Cdo-Blockers": str(ended.blockers),
        }
        values = {
            "round": number,
            "came": came(ended),
            "versions": ended.versions,
            "verdicts": ended.verdicts,
            "taken": ended.taken,
            "edited": ended.edited,
            "blocked": [{**item, "by": self._line("; ".join(item["by"]), 300)} for item in ended.blocked],
            "accepted": ended.accepted,
            "live": ended.live,
            "halt": ended.halt,
            "why": self._line(ended.why, 300),
            "part": self._spent_on(f"r{number}-"),
        }
        message = self._message("round", values, "turn", "running")
        recorded = ended.how is not None
        return PendingCommit("turn", number, message, recorded, about=self.about, proof=f"r{number}-")

    def _asked(self, call: str) -> str:
        """The model that answered a call; "" if it is not on record."""
        names = [str(record["model"]) for record in self.records if record.get("call") == call and "model" in record]
        return one_line(names[-1], 60) if names else ""

    def _ledger(self, wishes: Sequence[TensionData]) -> tuple[list[dict[str, Any]], int]:
        """The tensions that are open, and those that this turn opened or settled; and how many are open."""
        before = dict(self.tensions)
        for wish in wishes:
            self.tensions[wish["id"]] = wish["status"], wish["title"]
        told = []
        for name, (status, title) in self.tensions.items():
            old = before.get(name, ("", ""))[0]
            if status == "open" or old != status:
                told.append({"id": name, "title": title, "status": status, "changed": old != status})
        return told, sum(status == "open" for status, _ in self.tensions.values())

    def _final(self, result: Result) -> PendingCommit:
        decision, confidence = result.decision, result.confidence
        first = next((line for line in decision.splitlines() if line.strip()), None)
        values = {
            "title": None if first is None else self._subject(first),
            "unit": self.unit,
            "decision": self._line(decision, 600),
            "status": result.status,
            "why": result.why,
            "confidence": confidence,
            "missing": result.missing_voices,
            "unaccepted": [self._line(name, 300) for name in result.unaccepted],
            "flags": result.flags,
        }
        if confidence is not None:
            self.last["Cdo-Confidence"] = f"{confidence:.2f}"
        message = self._message("final", values, "final", result.status)
        return PendingCommit("final", result.turns, message, about=self.about)

    def _stopped(self, stopped: RunStopped) -> PendingCommit:
        status = _STOPPED.get(stopped.status, "failed")
        turn = int(self.last.get("Cdo-Turn", 0))
        why = {"why": self._line(stopped.why, 600), "why_in_short": stopped.why}
        message = self._message(
            "stopped", {"status": status, "unit": self.unit, "turn": turn, **why}, "stopped", status
        )
        return PendingCommit("stopped", turn, message, about=self.about)

    def _told_now(self, event: str, values: Mapping[str, Any], last: Mapping[str, str]) -> str:
        """Build the message of a commit that is made immediately; its totals exclude this process."""
        return self._message(event, values, event, "running", last)() + _trailers(self.about)

    def _message(
        self, block: str, values: Mapping[str, Any], event: str, status: str, last: Mapping[str, str] | None = None
    ) -> Callable[[], str]:
        """What makes a message of a block of the wording and of trailers, to which the commit's own are added.

        The values are those of now. The wording is read when the message is made, by the thread that makes commits.
        With `last`, the trailers of a turn from an earlier process, it tells of the time before this one.
        """
        records = self.records if last is None else self._before
        used = totals([record for record in records if not record.get("from")])
        said = {
            "Cdo-Session": self.session,
            "Cdo-Turn": "0",
            "Cdo-Event": event,
            "Cdo-Status": status,
            **(self.last if last is None else last),
            "Cdo-Calls": str(used.calls),
            "Cdo-Tokens": str(used.tokens),
            "Cdo-Cost": "unknown" if used.known_cost is None else f"{used.known_cost:.6f}",
            "Cdo-Version": __version__,
        }
        common = {"question": self._line(self.problem, 600), "audits": self.audits, "whole": self._spent()}
        return partial(self._rendered, block, {**common, **values}, _trailers(said))

    def _rendered(self, block: str, values: Mapping[str, Any], trailers: str) -> str:
        """A block of the wording, its first line as the subject, and the trailers."""
        subject, _, body = self._worded(block, values).partition("\n")
        return "\n\n".join([one_line(subject, SUBJECT), body.strip("\n"), trailers])

    def _worded(self, block: str, values: Mapping[str, Any]) -> _VisibleLine:
        """Render a block of the wording. Every text that it is given is a visible line without secrets."""
        lines = {key: self._lines(value) for key, value in values.items()}
        return _VisibleLine(self.library.render(WORDING, {**lines, "counted": pluralise, "money": money}, block))

    def _lines(self, value: Any) -> Any:
        """Return a value with each text in it as one line; render what is itself a block of the wording."""
        if isinstance(value, partial):
            return value()
        if isinstance(value, Mapping):
            return {key: self._lines(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._lines(item) for item in value]
        return self._line(value) if isinstance(value, str) and not isinstance(value, _VisibleLine) else value

    def _subject(self, text: object) -> str:
        """What somebody wrote, for a subject: without the signs of Markdown, which git shows as they are."""
        return _EMPHASIS.sub(r"\2", self._line(str(text).replace(ADDED, "").lstrip("#>- ")))

    def _line(self, text: object, limit: int = LINE) -> _VisibleLine:
        """What somebody wrote, as one line without secrets that can be taken for nothing else."""
        return _VisibleLine(one_line(self.redact(str(text)), limit))

    def _spent_on(self, calls: str) -> partial[_VisibleLine]:
        """What the calls that begin so took, nested ones too; those that a fork took over, from whom."""
        known = [
            record
            for record in self.records
            if str(record.get("name" if record.get("kind") == "nested" else "call", "")).startswith(calls)
        ]
        sources = dict.fromkeys(str(record["from"]) for record in known if record.get("from"))
        return partial(self._worded, "part", {"used": totals(known), "sources": ", ".join(sources)})

    def _spent(self) -> partial[_VisibleLine]:
        """What all calls took; those of a fork's past apart."""
        past = totals([{**record, "from": ""} for record in self.records if record.get("from")])
        before = partial(self._worded, "price", {"used": past}) if past.calls else ""
        return partial(self._worded, "whole", {"used": totals(self.records), "before": before})


def _trailers(said: Mapping[str, str]) -> str:
    return "".join(f"{key}: {one_line(value, 80)}\n" for key, value in said.items())


def _audited(records: Iterable[Mapping[str, Any]]) -> str:
    """The session that is audited, by the brief on record; "" where there is none."""
    for record in records:
        if record.get("kind") == "collected" and record.get("name") == BRIEF:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                return one_line(json.loads(record["items"][0]["text"])["source"], 80)
    return ""
