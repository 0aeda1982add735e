"""The messages of the commits that keep a run: made for people who read `git log`, with trailers for machines.

What models and people wrote enters them as single visible lines behind a label, so that none can pass for a trailer.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdo import __version__
from cdo.core.events import Event
from cdo.core.formatting import money, one_line, pluralise
from cdo.core.mission_names import came, round_of
from cdo.core.usage import TotalUsage, totals
from cdo.formats.sections import ADDED

SUBJECT = 72  # characters
LINE = 120  # of what somebody wrote, in one line of the message
SYNTHESIS = "synthesis"
BRIEF = "audit"  # the collection that an audit begins with

_CALL = re.compile(r"t([0-9]+)-([a-z0-9-]+)")
# Emphasis around words; a single sign, or one inside of a word, is none.
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3})(?=\S)([^*_]+)(?<=\S)\1(?![\w*])")
_STOPPED = {"BudgetReached": "budget", "NeedsHuman": "paused", "Interrupted": "interrupted"}


@dataclass
class _ToldTurn:
    """One turn as far as it was told: what each voice said (position, confidence), and why others are missing."""

    said: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PendingCommit:
    """A commit to be made: its `text` as far as the run knows it; `replayed` of a turn from an earlier process.

    `calls` are the names of the groups of records that there were by then. `about` are the trailers that tell whose
    commit it is, which may become known only later. `proof` is how the files begin that hold what was said in it.
    """

    event: str
    turn: int
    text: str
    replayed: bool = False
    calls: frozenset[str] = frozenset()
    about: Mapping[str, str] = field(default_factory=dict)
    proof: str = ""

    @property
    def message(self) -> str:
        """The whole message."""
        return self.text + _trailers(self.about)


@dataclass
class CommitMessageBuilder:
    """Puts what a run tells into messages. `redact` takes secrets out of what goes into them.

    `about` are trailers of every commit; `audits` the session that this one audits, "" where it is no audit; `unit`
    is what its turns are called: a mission has rounds.
    """

    session: str
    problem: str
    records: Sequence[Mapping[str, Any]]
    redact: Callable[[str], str]
    turns: dict[int, _ToldTurn] = field(default_factory=dict)
    tensions: dict[str, tuple[str, str]] = field(default_factory=dict)
    focus: str = ""
    last: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    unit: str = "turn"
    audits: str = field(init=False)
    _before: tuple[Mapping[str, Any], ...] = field(init=False)

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
        if event.kind == "batch":
            for name, kind in event.data["calls"]:
                self.unit = self.unit if round_of(name) is None else "round"
                if kind == "agent" and (match := _CALL.fullmatch(name)):
                    self.turns.setdefault(int(match[1]), _ToldTurn()).said.setdefault(match[2], ("", None))
        elif event.kind in ("reply", "missing") and (match := _CALL.fullmatch(event.name)):
            turn, voice = int(match[1]), match[2]
            held = self.turns.setdefault(turn, _ToldTurn())
            if event.kind == "reply" and voice == SYNTHESIS and "directive" in event.data:
                return self._turn(turn, held, event.data["directive"], replayed="how" in event.data)
            if voice in held.said and event.kind == "missing":
                held.missing[voice] = str(event.data.get("reason", ""))
            elif voice in held.said:
                held.missing.pop(voice, None)
                held.said[voice] = str(event.data.get("position", "")), event.data.get("confidence")
        elif event.kind == "round":
            return self._round(event.data, replayed="how" in event.data)
        elif event.kind == "done":
            return self._final(event.data)
        elif event.kind == "stopped":
            return self._stopped(event.data)
        return None

    def begin(self, forked: tuple[str, int] | None = None, turn: int = 0) -> str:
        """The message of the first commit, also of a fork (session, turn); `turn` is the last that its files hold."""
        last = {"Cdo-Turn": str(turn)} if turn else {}
        subject = f"Begin: fork of {forked[0]} after turn {forked[1]}: " if forked else "Begin: "
        subject = f"Begin: audit of {self.audits}" if self.audits else f"{subject}{self._subject(self.problem)}"
        return self._told_now(subject, [], "begin", last)

    def again(self, place: str, last: Mapping[str, str]) -> str:
        """The message of the first commit on top of what `place`, a branch of a remote, keeps of this session.

        `last` are the trailers there.
        """
        return self._told_now(f"Begin: go on from {place}: {self._subject(self.problem)}", [], "begin", last)

    def edited(self, names: Sequence[str], removed: Sequence[str], last: Mapping[str, str]) -> str:
        """The message of a commit of what a person changed; `last` are the trailers of the one before."""
        told = [*names, *(f"{name} (removed)" for name in removed)]
        body = ["", "A person changed:", *(f"- {one_line(name)}" for name in told)]
        return self._told_now(f"Edited: {', '.join(told)}", body, "edited", last)

    def _turn(self, turn: int, held: _ToldTurn, directive: Mapping[str, Any], *, replayed: bool) -> PendingCommit:
        heard = {name: said for name, said in held.said.items() if name not in held.missing}
        ledger, still_open = self._ledger(directive["tensions"])
        confidence, agreement = directive["confidence"], directive.get("agreement")
        subject = (
            f"Turn {turn}: {pluralise(len(heard), 'voice')}, confidence {confidence:.2f}, "
            f"{pluralise(still_open, 'open tension')}"
        )
        if self.audits:
            subject = f"Order {turn}: {self._asked(f't{turn}-{SYNTHESIS}')}, confidence {confidence:.2f}"
        voices = [
            f"- {name}{'' if sure is None else f' ({sure:.2f})'}: {self._line(position)}"
            for name, (position, sure) in heard.items()
        ]
        voices += [f"- {name}: missing ({self._line(reason)})" for name, reason in held.missing.items()]
        body = [f"Focus: {self._line(self.focus)}"] if self.focus else []
        body += ["\n".join(["", "Voices:", *voices])] if voices else []
        body += ["\n".join(["", "Tensions:", *ledger])] if ledger else []
        self.focus = str(directive.get("focus") or "")
        body += [f"\nNext: {self._line(self.focus)}"] if self.focus else []
        what = "This order" if self.audits else "This turn"
        body += [f"\n{what}: {self._spent_on(f't{turn}-')}.", f"In all: {self._spent()}."]
        self.last = {
            "Cdo-Turn": str(turn),
            "Cdo-Voices": str(len(heard)),
            "Cdo-Confidence": f"{confidence:.2f}",
            **({} if agreement is None else {"Cdo-Agreement": f"{agreement:.2f}"}),
            "Cdo-Open-Tensions": str(still_open),
        }
        message = self._message(subject, body, "turn", "running")
        return PendingCommit("turn", turn, message, replayed, about=self.about, proof=f"t{turn}-{SYNTHESIS}.md")

    def _round(self, data: Mapping[str, Any], *, replayed: bool) -> PendingCommit:
        """The commit of a mission's round."""
        number = int(data["round"])
        told = {
            "Versions": [
                f"{self._line(item['product'])}, version {item['number']} by {self._line(item['author'])}: "
                + self._line(item["summary"])
                for item in data["versions"]
            ],
            "Verdicts": [
                f"{self._line(item['product'])}: {self._line(item['verdict'].replace('_', ' '))}"
                for item in data["verdicts"]
            ],
            "Accepted": [self._line(product) for product in data["taken"]],
            "Blocked": [
                f"{self._line(item['product'])} by: {self._line('; '.join(item['by']), 300)}"
                for item in data["blocked"]
            ],
        }
        listed = {name: "\n".join(f"- {line}" for line in lines) for name, lines in told.items()}
        body = [f"\n{name}:\n{lines}" for name, lines in listed.items() if lines]
        body += [f"\nAccepted in all: {data['accepted']} of {data['live']}"]
        body += [f"Halt: {self._line(data['halt'])}: {self._line(data['why'], 300)}"] if data["halt"] else []
        body += [f"\nThis round: {self._spent_on(f'r{number}-')}.", f"In all: {self._spent()}."]
        self.last = {
            "Cdo-Turn": str(number),
            "Cdo-Accepted": str(data["accepted"]),
            "Cdo-Live": str(data["live"]),
            "Cdo-Blockers": str(data["blockers"]),
        }
        message = self._message(f"Round {number}: {came(data)}", body, "turn", "running")
        return PendingCommit("turn", number, message, replayed, about=self.about, proof=f"r{number}-")

    def _asked(self, call: str) -> str:
        """The model that answered a call."""
        names = [str(record["model"]) for record in self.records if record.get("call") == call and "model" in record]
        return one_line(names[-1], 60) if names else "unknown model"

    def _ledger(self, wishes: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
        """What is open, and what this turn opened or settled, each in a line; and how many are open."""
        before = dict(self.tensions)
        for wish in wishes:
            self.tensions[str(wish["id"])] = str(wish["status"]), str(wish["title"])
        lines = []
        for name, (status, title) in self.tensions.items():
            old = before.get(name, ("", ""))[0]
            if old == status != "open":
                continue
            words = {"open": "opened", "outside": "left to a fact from outside"}
            stands = "open" if old == status else f"{words.get(status, status)} this turn"
            lines.append(f"- {self._line(name)} {stands}: {self._line(title)}")
        return lines, sum(status == "open" for status, _ in self.tensions.values())

    def _final(self, data: Mapping[str, Any]) -> PendingCommit:
        decision = str(data.get("decision") or "")
        first = next((line for line in decision.splitlines() if line.strip()), "no decision")
        confidence = data.get("confidence")
        sure = "" if confidence is None else f", confidence {confidence:.2f}"
        ended = f"{data['status']} ({self._line(data['why'])}){sure}"
        label = "Decision" if self.unit == "turn" else "Result"
        body = [f"Verdict: {ended}"] if self.audits else [f"{label}: {self._line(decision, 600)}", f"Ended: {ended}"]
        body += [f"Missing: {', '.join(data['missing_voices'])}"] if data.get("missing_voices") else []
        body += [f"Missing: {self._line(name, 300)}" for name in data.get("unaccepted") or ()]
        body += (
            ["\n".join(["", "Flags:", *(f"- {self._line(flag)}" for flag in data["flags"])])] if data["flags"] else []
        )
        body += [f"\nIn all: {self._spent()}."]
        if confidence is not None:
            self.last["Cdo-Confidence"] = f"{confidence:.2f}"
        subject = f"FINAL: {self._subject(first)}"
        if self.audits:
            subject = f"Audit of {self.audits}: {self._line(data['why']).removeprefix('it ')}"
        message = self._message(subject, body, "final", str(data["status"]))
        return PendingCommit("final", int(data["turns"]), message, about=self.about)

    def _stopped(self, data: Mapping[str, Any]) -> PendingCommit:
        status = _STOPPED.get(str(data["status"]), "failed")
        body = [f"Why: {self._line(data['why'], 600)}", f"In all: {self._spent()}."]
        turn = int(self.last.get("Cdo-Turn", 0))
        after = "" if self.audits else f" after {self.unit} {turn}"
        subject = f"Stopped ({status}){after}: {self._line(data['why'])}"
        return PendingCommit("stopped", turn, self._message(subject, body, "stopped", status), about=self.about)

    def _told_now(self, subject: str, body: Sequence[str], event: str, last: Mapping[str, str]) -> str:
        """Build the message of a commit that is made immediately; its totals exclude this process."""
        return self._message(subject, body, event, "running", last) + _trailers(self.about)

    def _message(
        self, subject: str, body: Sequence[str], event: str, status: str, last: Mapping[str, str] | None = None
    ) -> str:
        """Subject, question, body, and the trailers, to which the commit's own are added.

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
        question = f"Question: {self._line(self.problem, 600)}"
        return "\n\n".join([one_line(subject, SUBJECT), "\n".join([question, *body]), _trailers(said)])

    def _subject(self, text: object) -> str:
        """What somebody wrote, for a subject: without the signs of Markdown, which git shows as they are."""
        return _EMPHASIS.sub(r"\2", self._line(str(text).replace(ADDED, "").lstrip("#>- ")))

    def _line(self, text: object, limit: int = LINE) -> str:
        """What somebody wrote, as one line without secrets that can be taken for nothing else."""
        return one_line(self.redact(str(text)), limit)

    def _spent_on(self, calls: str) -> str:
        """What the calls that begin so took, nested ones too; those that a fork took over, from whom."""
        known = [
            record
            for record in self.records
            if str(record.get("name" if record.get("kind") == "nested" else "call", "")).startswith(calls)
        ]
        taken = dict.fromkeys(str(record["from"]) for record in known if record.get("from"))
        over = [f"taken over from {one_line(', '.join(taken), LINE)}"] if taken else []
        used = totals(known)
        return "; ".join([_words(used), *over] if used.calls or not over else over)

    def _spent(self) -> str:
        """What all calls took; those of a fork's past apart."""
        past = totals([{**record, "from": ""} for record in self.records if record.get("from")])
        before = "" if not past.calls else f", and {_price(past)} before the fork"
        return _words(totals(self.records)) + before


def _words(used: TotalUsage) -> str:
    at = "at " if used.known_cost is None else ""
    return f"{pluralise(used.calls, 'call')}, {pluralise(used.tokens, 'token')}, {at}{_price(used)}"


def _price(used: TotalUsage) -> str:
    return "an unknown price" if used.known_cost is None else money(used.known_cost)


def _trailers(said: Mapping[str, str]) -> str:
    return "".join(f"{key}: {one_line(value, 80)}\n" for key, value in said.items())


def _audited(records: Iterable[Mapping[str, Any]]) -> str:
    """The session that is audited, by the brief on record; "" where there is none."""
    for record in records:
        if record.get("kind") == "collected" and record.get("name") == BRIEF:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                return one_line(json.loads(record["items"][0]["text"])["source"], 80)
    return ""
