"""Keeps the roster of persistent teammates, their states and their messages. Pure.

A teammate is a voice that lasts from turn to turn and is woken with its own memory. It gets messages only between
turns, and only from the lead (the directive or the human), never from another teammate. The roster is a fold of what
the program decided, so that a resume restores it exactly. The files under `team/` are projections of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.fields import load, too_long
from cdo.formats.markdown import MAX_FRONT_MATTER, split_front_matter

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import Note

State = Literal["spawned", "working", "idle", "woken", "stopped", "failed"]
INBOX, FOLDER = "team/inbox", "team"
ALL = "all"  # the recipient of a message to every teammate
MEMORIES = 3  # earlier turns that a teammate is reminded of, one line each
SENDINGS = 2  # most briefs that contain a message which is not acknowledged


class NoteFormat(Struct, frozen=True):
    """A file in `team/inbox/`: front matter with `to`, then the message."""

    def parse(self, text: str) -> Note:
        """Return the message; raise `InvalidReply` saying what is wrong with the file."""
        from cdo.formats.blocks import validate
        from cdo.formats.voice_blocks import Note

        too_long(text)
        block, body = split_front_matter(text.lstrip("\ufeff \n"))
        if block is None:
            raise InvalidReply(["The file must start with front matter: a line `---`, `to: NAME`, a line `---`."])
        keys = load(block, 0, "The front matter", MAX_FRONT_MATTER)
        data = {**keys, "text": body.strip()} if isinstance(keys, dict) else keys
        return validate(Note, data, "The message")


class Memory(Struct, frozen=True):
    """What a teammate remembers of one of its turns: what it was told to do, and what it answered."""

    turn: int
    charge: str
    focus: str
    position: str
    confidence: float


class Mate(Struct, frozen=True):
    """One teammate. `history` are its changes of state as (turn, state); `memory` its answered turns."""

    name: str
    role: str
    state: State = "spawned"
    history: tuple[tuple[int, State], ...] = ()
    memory: tuple[Memory, ...] = ()

    def to(self, turn: int, *states: State) -> Mate:
        """Return the mate after it went through `states` in `turn`."""
        return replace(self, state=states[-1], history=(*self.history, *((turn, state) for state in states)))


class TeamMessage(Struct, frozen=True):
    """One message. `sent` are the turns whose briefs contained it, `acknowledged` the turn that acknowledged it."""

    id: str
    to: str
    sender: Literal["lead", "human"]
    text: str
    written: int
    sent: tuple[int, ...] = ()
    acknowledged: int | None = None

    @property
    def waiting(self) -> bool:
        """True if it still has to be put into a brief of its mate."""
        return self.acknowledged is None and len(self.sent) < SENDINGS

    @property
    def state(self) -> str:
        """The state of the message, in a word."""
        if self.acknowledged is not None:
            return "acknowledged"
        return "queued" if not self.sent else "delivered" if self.waiting else "unanswered"


class Team(Struct, frozen=True):
    """The roster and the messages of a run."""

    mates: Mapping[str, Mate] = field(default_factory=dict)
    messages: tuple[TeamMessage, ...] = ()

    def told(
        self, turn: int, sender: Literal["lead", "human"], notes: Sequence[Note], joining: Sequence[str] = ()
    ) -> Team:
        """Return the team with messages written after turn `turn - 1`.

        They may be for mates and for voices `joining` in this turn; messages to others are left out.
        """
        names = self.names(joining)
        each = [note.model_copy(update={"to": name}) for note in notes if note.to == ALL for name in names]
        known = [*(note for note in notes if note.to in names), *each]
        start = len(self.messages) + 1
        fresh = [TeamMessage(f"m{start + n}", note.to, sender, note.text, turn) for n, note in enumerate(known)]
        return replace(self, messages=(*self.messages, *fresh))

    def names(self, joining: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the possible recipients of a message: the mates, and the voices `joining` in this turn."""
        return tuple(dict.fromkeys((*self.mates, *joining)))

    def strangers(self, notes: Sequence[Note], joining: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the recipients of messages that are not possible recipients."""
        return tuple(dict.fromkeys(note.to for note in notes if note.to not in (*self.names(joining), ALL)))

    def unknown(self, joining: Sequence[str], note: Note) -> str:
        """Return why a letter cannot be delivered; "" if it is for a mate or for a voice `joining` in this turn."""
        if not self.strangers([note], joining):
            return ""
        return (
            f"There is no teammate called {note.to}; the team is {', '.join(self.names(joining))} ({ALL}: everybody)."
        )

    def called(self) -> tuple[str, ...]:
        """Return the names for which a message waits. A name may be no mate if its voice did not join after all."""
        return tuple(dict.fromkeys(message.to for message in self.messages if message.waiting))

    def begin(self, turn: int, voices: Mapping[str, str], *, retire: bool) -> Team:
        """Return the team at the start of turn `turn`, with `voices` (name → role) spawned or woken.

        With `retire` (adaptive), mates that are not needed are stopped; otherwise they stay as they are.
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
        """Return the team after waiting messages to `names` were put into their briefs of `turn`."""
        messages = tuple(
            replace(message, sent=(*message.sent, turn)) if message.waiting and message.to in names else message
            for message in self.messages
        )
        return replace(self, messages=messages)

    def end(self, turn: int, answers: Mapping[str, Memory | None], acknowledged: Mapping[str, Sequence[str]]) -> Team:
        """Return the team after turn `turn`, given the answers by mate (None: none) and the acknowledged messages."""
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
        """Return the team with every mate stopped, as the run is over."""
        mates = {
            name: mate if mate.state == "stopped" else mate.to(turn, "stopped") for name, mate in self.mates.items()
        }
        return replace(self, mates=mates)

    def brief(self, name: str, turn: int) -> dict[str, Any]:
        """Return the memory and the messages for a mate's brief of `turn`, as JSON."""
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
        """Return the stem of the mate's newest artifact; "" if it has none."""
        memory = self.mates[name].memory if name in self.mates else ()
        return f"t{memory[-1].turn}-{name}" if memory else ""

    def files(self) -> dict[str, str]:
        """Return the roster and each message, as files of the session."""
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
