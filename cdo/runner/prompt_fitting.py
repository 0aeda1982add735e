"""Decides what a prompt that does not fit a model's window leaves out: the oldest and least cited first. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.core.exchange import Message
from cdo.core.steps import CONTEXT, INPUT

SHORT = (2000, 400, 1)  # characters: every text is shortened to the first of these before any goes down to the next
NOTE = 150  # characters that the note on what was left out may take
_OF_TURN = re.compile(r"[tr](\d+)-")


class TextLimits(Struct):
    """The most characters that each of a call's texts may have, by name; a text without a limit is shown whole.

    The question has no limit.
    """

    texts: Mapping[str, str]
    limits: dict[str, int] = field(default_factory=dict)

    def lower(self, characters: int) -> bool:
        """Shorten the first text that can be shortened by so many characters; return False if none can be.

        What is to be read first of all, the newest texts, comes last. The context is one text, however many files
        it holds, so half of it stays until the others are short.
        """
        for floor in SHORT:
            for name in sorted((name for name in self.texts if name != INPUT), key=self._worth):
                size = self.limits.get(name) or len(self.texts[name])
                least = max(floor, len(self.texts[name]) // 2 if name == CONTEXT and floor == SHORT[0] else 0)
                if size > least:
                    self.limits[name] = max(least, size - characters - NOTE)
                    return True
        return False

    def size(self) -> int:
        """Return the characters that can still be left out."""
        return sum(self.limits.get(name) or len(text) for name, text in self.texts.items() if name != INPUT)

    def _worth(self, name: str) -> tuple[bool, int, int, str]:
        """Order names by worth: the texts of the newest turn last; of one turn, those that others cite last."""
        turn = _turn(name)
        newest = max(map(_turn, self.texts), default=0)
        cited = sum(text.count(name) for other, text in self.texts.items() if other != name)
        return turn == newest > 0 or name == CONTEXT, turn, cited, name


def _turn(name: str) -> int:
    found = _OF_TURN.match(name)
    return int(found[1]) if found else 0


def without_oldest(looks: Sequence[Message], room: int, told: str) -> list[Message]:
    """Return the messages of tool use with at most `room` characters of results (0: all), those of the newest.

    `told` stands for a result that was left out. Only a newest result that is too long alone is cut, at its end.
    """
    if not room:
        return list(looks)
    kept: list[Message] = []
    newest = True
    for message in reversed(looks):
        if message.role == "tool":
            text = message.text
            if newest and len(text) > room:
                text = f"{text[: max(0, room - len(told))]}\n{told}"
            elif len(text) > max(room, len(told)):
                text = told
            newest, room = False, max(0, room - len(text))
            message = replace(message, text=text)
        kept.append(message)
    return kept[::-1]
