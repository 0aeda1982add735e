"""Persistent teammates: who is there, in which state, and what was said to whom. Pure (seed 004, "team mode").

A teammate is a voice that lives on between turns: it is woken with its own memory, hears the lead (the directive or
the human) between turns only, and never another mate. The roster is a fold of what the program decided, so that a
resume restores it exactly; the files under `team/` are projections of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.fields import load, too_long, validate
from cdo.formats.markdown import MAX_FRONT_MATTER, split_front_matter
from cdo.formats.voice import Note

State = Literal["spawned", "working", "idle", "woken", "stopped", "failed"]
INBOX, FOLDER = "team/inbox", "team"
ALL = "all"  # whom a message to every mate is for
MEMORIES = 3  # earlier turns that a teammate is reminded of, one line each
SENDINGS = 2  # how often a message is put before a mate that does not acknowledge it


@dataclass(frozen=True)
class NoteFormat:
    """A file in `team/inbox/`: front matter with `to`, then the message."""

    def parse(self, text: str) -> Note:
        """Return the message; raise `InvalidReply` saying what is wrong with the file."""
        too_long(text)
        block, body = split_front_matter(text.lstrip("\ufeff \n"))
        if block is None:
            raise InvalidReply(["The file must start with front matter: a line `---`, `to: NAME`, a line `---`."])
        keys = load(block, 0, "The front matter", MAX_FRONT_MATTER)
        data = {**keys, "text": body.strip()} if isinstance(keys, dict) else keys
        return validate(Note, data, "The message")


@dataclass(frozen=True)
class Memory:
    """What a teammate remembers of one of its turns: what it was told to do, and what it answered."""

    turn: int
    charge: str
    focus: str
    position: str
    confidence: float


@dataclass(frozen=True)
class Mate:
    """One teammate. `history` are its changes of state as (turn, state); `memory` its answered turns."""

    name: str
    role: str
    state: State = "spawned"
    history: tuple[tuple[int, State], ...] = ()
    memory: tuple[Memory, ...] = ()

    def to(self, turn: int, *states: State) -> Mate:
        """The mate after it went through `states` in `turn`."""
        return replace(self, state=states[-1], history=(*self.history, *((turn, state) for state in states)))


@dataclass(frozen=True)
class TeamMessage:
    """One message on its way: `sent` are the turns in whose brief it stood, `acknowledged` the one that answered."""

    id: str
    to: str
    sender: Literal["lead", "human"]
    text: str
    written: int
    sent: tuple[int, ...] = ()
    acknowledged: int | None = None

    @property
    def waiting(self) -> bool:
        """Whether it still has to be put before its mate."""
        return self.acknowledged is None and len(self.sent) < SENDINGS

    @property
    def state(self) -> str:
        """What became of it, in a word."""
        if self.acknowledged is not None:
            return "acknowledged"
        return "queued" if not self.sent else "delivered" if self.waiting else "unanswered"


@dataclass(frozen=True)
class Team:
    """The roster and the messages of a run."""

    mates: Mapping[str, Mate] = field(default_factory=dict)
    messages: tuple[TeamMessage, ...] = ()

    def told(
        self, turn: int, sender: Literal["lead", "human"], notes: Sequence[Note], joining: Sequence[str] = ()
    ) -> Team:
        """The team with messages written after turn `turn - 1`.

        They may be for mates and for those `joining` in this turn; messages to others are left out.
        """
        names = self.names(joining)
        each = [Note(to=name, text=note.text) for note in notes if note.to == ALL for name in names]
        known = [*(note for note in notes if note.to in names), *each]
        start = len(self.messages) + 1
        fresh = [TeamMessage(f"m{start + n}", note.to, sender, note.text, turn) for n, note in enumerate(known)]
        return replace(self, messages=(*self.messages, *fresh))

    def names(self, joining: Sequence[str] = ()) -> tuple[str, ...]:
        """Whom a message can be for: the mates, and those `joining` in this turn."""
        return tuple(dict.fromkeys((*self.mates, *joining)))

    def strangers(self, notes: Sequence[Note], joining: Sequence[str] = ()) -> tuple[str, ...]:
        """Whom messages were written to that they cannot be for."""
        return tuple(dict.fromkeys(note.to for note in notes if note.to not in (*self.names(joining), ALL)))

    def unknown(self, joining: Sequence[str], note: Note) -> str:
        """Why a letter cannot be delivered; "" if it is for a mate or for one of those `joining` in this turn."""
        if not self.strangers([note], joining):
            return ""
        return (
            f"There is no teammate called {note.to}; the team is {', '.join(self.names(joining))} ({ALL}: everybody)."
        )

    def called(self) -> tuple[str, ...]:
        """Whom a message waits for: it wakes a mate. One that was to join may not have."""
        return tuple(dict.fromkeys(message.to for message in self.messages if message.waiting))

    def begin(self, turn: int, voices: Mapping[str, str], *, retire: bool) -> Team:
        """The team when turn `turn` begins with `voices` (name → role): spawned, woken or left alone.

        `retire` stops mates that are not needed (adaptive); else they stay idle.
        """
        mates = dict(self.mates)
        for name, role in voices.items():
            if mate := mates.get(name):
                mates[name] = replace(mate, role=role).to(turn, "woken", "working")
            else:
                mates[name] = Mate(name, role).to(turn, "spawned", "working")
        for name, mate in mates.items():
            if name not in voices and retire and mate.state != "stopped":
                mates[name] = mate.to(turn, "stopped")
        return replace(self, mates=mates)

    def delivered(self, turn: int, names: Collection[str]) -> Team:
        """The team after waiting messages to `names` were put into their briefs of `turn`."""
        messages = tuple(
            replace(message, sent=(*message.sent, turn)) if message.waiting and message.to in names else message
            for message in self.messages
        )
        return replace(self, messages=messages)

    def end(self, turn: int, answers: Mapping[str, Memory | None], acknowledged: Mapping[str, Sequence[str]]) -> Team:
        """The team after turn `turn`: who answered (None: who did not), and which messages they acknowledge."""
        mates = dict(self.mates)
        for name, memory in answers.items():
            mate = mates[name].to(turn, "idle" if memory else "failed")
            mates[name] = replace(mate, memory=(*mate.memory, memory)) if memory else mate
        messages = tuple(
            replace(message, acknowledged=turn)
            if message.acknowledged is None
            and turn in message.sent
            and message.id in acknowledged.get(message.to, ())
            else message
            for message in self.messages
        )
        return Team(mates, messages)

    def stopped(self, turn: int) -> Team:
        """The team when the run is over."""
        mates = {
            name: mate if mate.state == "stopped" else mate.to(turn, "stopped") for name, mate in self.mates.items()
        }
        return replace(self, mates=mates)

    def brief(self, name: str, turn: int) -> dict[str, Any]:
        """What a mate's brief of `turn` says beside the turn itself: its memory and its messages, as JSON."""
        mate = self.mates[name]
        return {
            "memory": [
                {"turn": item.turn, "charge": item.charge, "position": item.position, "confidence": item.confidence}
                for item in mate.memory[-MEMORIES:]
            ],
            "messages": [
                {"id": message.id, "from": message.sender, "text": message.text}
                for message in self.messages
                if message.to == name and turn in message.sent
            ],
        }

    def last(self, name: str) -> str:
        """The stem of the mate's newest artifact; "" when it has none."""
        memory = self.mates[name].memory if name in self.mates else ()
        return f"t{memory[-1].turn}-{name}" if memory else ""

    def files(self) -> dict[str, str]:
        """The roster and each message, as files of the session."""
        roster = {
            "mates": [
                {
                    "name": mate.name,
                    "role": mate.role,
                    "state": mate.state,
                    "turns": [memory.turn for memory in mate.memory],
                    "history": [f"turn {turn}: {state}" for turn, state in mate.history],
                }
                for mate in self.mates.values()
            ]
        }
        found = {f"{FOLDER}/roster.yaml": strict_yaml.dump(roster)}
        for message in self.messages:
            head = {
                "id": message.id,
                "to": message.to,
                "from": message.sender,
                "before_turn": message.written,
                "delivered_in": list(message.sent),
                "state": message.state,
            }
            found[f"{FOLDER}/messages/{message.id}-{message.to}.md"] = (
                f"---\n{strict_yaml.dump(head)}---\n\n{message.text.strip()}\n"
            )
        return found
