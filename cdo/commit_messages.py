"""The messages of the commits that keep a run: made for people who read `git log`, with trailers for machines.

What models and people wrote enters them as single visible lines behind a label, so that none can pass for a trailer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cdo import __version__
from cdo.runner import totals
from cdo.types import Event
from cdo.wording import counted, flat, money

SUBJECT = 72  # characters
LINE = 120  # of what somebody wrote, in one line of the message
SYNTHESIS = "synthesis"

_CALL = re.compile(r"t([0-9]+)-([a-z0-9-]+)")
_STOPPED = {"BudgetReached": "budget", "NeedsHuman": "paused", "Interrupted": "interrupted"}


@dataclass
class _Turn:
    """One turn as far as it was told: what each voice said (position, confidence), and why others are missing."""

    said: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A commit to be made: its message as far as the run knows it; `replayed` of a turn from an earlier process.

    `calls` are the names of the groups of records that there were by then.
    """

    event: str
    turn: int
    message: str
    replayed: bool = False
    calls: frozenset[str] = frozenset()


@dataclass
class Told:
    """Puts what a run tells into messages. `redact` takes secrets out of what goes into them."""

    session: str
    problem: str
    records: Sequence[Mapping[str, Any]]
    redact: Callable[[str], str]
    turns: dict[int, _Turn] = field(default_factory=dict)
    tensions: dict[str, tuple[str, str]] = field(default_factory=dict)
    focus: str = ""
    last: dict[str, str] = field(default_factory=dict)
    _before: tuple[Mapping[str, Any], ...] = field(init=False)

    def __post_init__(self) -> None:
        self._before = tuple(self.records)

    def take(self, event: Event) -> Job | None:
        """Take in what happened; returns the commit that is due now, if one is."""
        if event.kind == "batch":
            for name, kind in event.data["calls"]:
                if kind == "agent" and (match := _CALL.fullmatch(name)):
                    self.turns.setdefault(int(match[1]), _Turn()).said.setdefault(match[2], ("", None))
        elif event.kind in ("reply", "missing") and (match := _CALL.fullmatch(event.name)):
            turn, voice = int(match[1]), match[2]
            held = self.turns.setdefault(turn, _Turn())
            if event.kind == "reply" and voice == SYNTHESIS and "directive" in event.data:
                return self._turn(turn, held, event.data["directive"], replayed="how" in event.data)
            if voice in held.said and event.kind == "missing":
                held.missing[voice] = str(event.data.get("reason", ""))
            elif voice in held.said:
                held.missing.pop(voice, None)
                held.said[voice] = str(event.data.get("position", "")), event.data.get("confidence")
        elif event.kind == "done":
            return self._final(event.data)
        elif event.kind == "stopped":
            return self._stopped(event.data)
        return None

    def begin(self, forked: tuple[str, int] | None = None) -> str:
        """The message of the first commit; of a fork (session, turn) too."""
        last = {"Cdo-Turn": str(forked[1])} if forked else {}
        subject = f"Begin: fork of {forked[0]} after turn {forked[1]}: " if forked else "Begin: "
        return self._message(f"{subject}{self._line(self.problem)}", [], "begin", "running", last)

    def edited(self, names: Sequence[str], removed: Sequence[str], last: Mapping[str, str]) -> str:
        """The message of a commit of what a person changed; `last` are the trailers of the one before."""
        told = [*names, *(f"{name} (removed)" for name in removed)]
        body = ["", "A person changed:", *(f"- {flat(name)}" for name in told)]
        return self._message(f"Edited: {', '.join(told)}", body, "edited", "running", last)

    def _turn(self, turn: int, held: _Turn, directive: Mapping[str, Any], *, replayed: bool) -> Job:
        heard = {name: said for name, said in held.said.items() if name not in held.missing}
        ledger, still_open = self._ledger(directive["tensions"])
        confidence, agreement = directive["confidence"], directive.get("agreement")
        subject = (
            f"Turn {turn}: {counted(len(heard), 'voice')}, confidence {confidence:.2f}, "
            f"{counted(still_open, 'open tension')}"
        )
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
        body += [f"\nThis turn: {self._spent(f't{turn}-')}.", f"In all: {self._spent()}."]
        self.last = {
            "Cdo-Turn": str(turn),
            "Cdo-Voices": str(len(heard)),
            "Cdo-Confidence": f"{confidence:.2f}",
            **({} if agreement is None else {"Cdo-Agreement": f"{agreement:.2f}"}),
            "Cdo-Open-Tensions": str(still_open),
        }
        return Job("turn", turn, self._message(subject, body, "turn", "running"), replayed)

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
            stands = "open" if old == status else f"{'opened' if status == 'open' else status} this turn"
            lines.append(f"- {self._line(name)} {stands}: {self._line(title)}")
        return lines, sum(status == "open" for status, _ in self.tensions.values())

    def _final(self, data: Mapping[str, Any]) -> Job:
        decision = str(data.get("decision") or "")
        first = next((line for line in decision.splitlines() if line.strip()), "no decision")
        confidence = data.get("confidence")
        sure = "" if confidence is None else f", confidence {confidence:.2f}"
        body = [
            f"Decision: {self._line(decision, 600)}",
            f"Ended: {data['status']} ({self._line(data['why'])}){sure}",
        ]
        body += [f"Missing: {', '.join(data['missing_voices'])}"] if data.get("missing_voices") else []
        body += (
            ["\n".join(["", "Flags:", *(f"- {self._line(flag)}" for flag in data["flags"])])] if data["flags"] else []
        )
        body += [f"\nIn all: {self._spent()}."]
        if confidence is not None:
            self.last["Cdo-Confidence"] = f"{confidence:.2f}"
        message = self._message(f"FINAL: {self._line(first)}", body, "final", str(data["status"]))
        return Job("final", int(data["turns"]), message)

    def _stopped(self, data: Mapping[str, Any]) -> Job:
        status = _STOPPED.get(str(data["status"]), "failed")
        body = [f"Why: {self._line(data['why'], 600)}", f"In all: {self._spent()}."]
        turn = int(self.last.get("Cdo-Turn", 0))
        subject = f"Stopped ({status}) after turn {turn}: {self._line(data['why'])}"
        return Job("stopped", turn, self._message(subject, body, "stopped", status))

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
        trailers = "".join(f"{key}: {flat(value, 80)}\n" for key, value in said.items())
        question = f"Question: {self._line(self.problem, 600)}"
        return "\n\n".join([flat(subject, SUBJECT), "\n".join([question, *body]), trailers])

    def _line(self, text: object, limit: int = LINE) -> str:
        """What somebody wrote, as one line without secrets that can be taken for nothing else."""
        return flat(self.redact(str(text)), limit)

    def _spent(self, calls: str = "") -> str:
        own = [record for record in self.records if not record.get("from")]
        used = totals([record for record in own if str(record.get("call", "")).startswith(calls)])
        cost = "at an unknown price" if used.known_cost is None else money(used.known_cost)
        return f"{counted(used.calls, 'call')}, {counted(used.tokens, 'token')}, {cost}"
