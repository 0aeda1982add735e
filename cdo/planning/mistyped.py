"""Refuses a mistyped command, preset, modifier or mode, which would otherwise be sent to models as a question. Pure.

Only the first word that is no args word is judged, and never one with whitespace in it: a quoted sentence is a
question whatever it says. `--` before the question turns the judgement off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from cdo.content.schemas import CommandWords
from cdo.core.errors import UsageError
from cdo.core.formatting import one_line, unspaced
from cdo.planning.arguments import EXEC, Vocabulary

TABLE = "engine/command-words"  # the content file
SHOWN = 40  # characters of a word that an error repeats
_STAMP = re.compile(r"(?:cdo-)?\d{8}-\d{6}(?:-\d+)?")  # the name that cdo gives a session
_FILE = re.compile(r"t\d+-|[A-Z]+(?:\.md)?$")  # how the name of a file in a session begins
_ENDS = ("?", "？", "؟", "!")  # a word that ends so is a sentence: "Kubernetes?"
MANY = 8  # letters from which on a word may differ by two


class KnownWords:
    """What the first word of a question is compared with.

    `is_session` tells if a session has this name. `program` is how the command is called in hints.
    """

    def __init__(
        self,
        commands: Sequence[str],
        vocabulary: Vocabulary,
        table: CommandWords,
        is_session: Callable[[str], bool],
        program: str = "cdo",
    ) -> None:
        self._commands, self._vocabulary, self._table = frozenset(commands), vocabulary, table
        self._is_session, self._program = is_session, program
        self._ordinary = frozenset(table.ordinary.split())

    def require_question(self, words: Sequence[str], after: Sequence[str] | None = None) -> None:
        """Raise `UsageError` if what should be the question is more likely a typing error.

        `words` are the words of the command line before a `--`; `after` are those after it (None: there is no `--`).
        """
        start = self._args(words)
        first = words[start] if start < len(words) else ""
        tokens = first.split(",")
        known = any(self._vocabulary.kind(token) for token in tokens)  # the parser explains `deep,adaptve`
        if known or first == "-" or first.startswith("@") or not first.strip() or _is_text(first):
            return
        rest = [*words[start + 1 :], *(after or ())]
        if start == 0:
            self._require_no_command(first, rest)
        self._require_far(first, tokens, rest, explicit=start > 0)
        if start == 0 and len(words) == 1 and after is None and not _is_sentence(first):
            raise self._lone(first)

    def _args(self, words: Sequence[str]) -> int:
        """Return how many words in front are args words, the tag after `exec` included."""
        at = 0
        while at < len(words) and all(self._vocabulary.kind(token) for token in words[at].split(",")):
            at += 2 if EXEC in words[at].split(",") else 1
        return at

    def _require_no_command(self, first: str, rest: Sequence[str]) -> None:
        """Raise `UsageError` if `first` is a command, or what follows it belongs to one."""
        if first in self._commands:
            raise UsageError(f"`{first}` is a command.", f"Put it first: cdo {first} …; or quote the whole question.")
        session = rest[0] if rest else ""
        stamped = bool(_STAMP.fullmatch(session))
        alone = len(rest) == 1 or (len(rest) == 2 and bool(_FILE.match(rest[1])))
        if stamped or (alone and not _is_text(session) and self._is_session(session)):
            near = self._near(first) or ("show", "resume")
            raise UsageError(
                f"`{_cut(first)}` is not a command, and `{_cut(session)}` is the name of a session.",
                f"Did you mean {_either(f'cdo {name} {_cut(session)}' for name in near)}? {self._quote()}",
            )
        if len(rest) == 1 and (rest[0] == "-" or (rest[0].startswith("@") and not _is_text(rest[0]))):
            raise UsageError(
                f"`{_cut(first)}` is not a preset, modifier, mode or command.",
                f"Write one before `{_cut(rest[0])}`, or nothing; `cdo --help` lists them.",
            )

    def _require_far(self, first: str, tokens: Sequence[str], rest: Sequence[str], *, explicit: bool) -> None:
        """Raise `UsageError` if each token is nearly a command or an args word; after args words only the latter."""
        names = {*self._vocabulary.words(), *(() if explicit else self._commands)}
        quoted = bool(rest) and _is_text(rest[0])
        found = [self._meant(token, names, quoted, alone=not rest) for token in tokens]
        if not all(found):
            return
        meant = ",".join(found)
        if meant == first.lower():
            raise UsageError(f"`{_cut(first)}` is written in lower case.", f"Write `{meant}`. {self._quote()}")
        way = f"cdo {meant}" if not explicit else meant
        raise UsageError(
            f"`{_cut(first)}` is not a command, preset, modifier or mode."
            if not explicit
            else f"`{_cut(first)}` is not a preset, modifier or mode.",
            f"Did you mean `{way}`? {self._quote()}",
        )

    def _meant(self, token: str, names: set[str], quoted: bool, alone: bool) -> str:
        """Return the name that a token is in another case, or nearly is; "" if there is none."""
        word = token.lower()
        if word in names:
            return word
        if word in self._ordinary or len(word) > SHOWN:
            return ""

        def most(name: str) -> int:
            if quoted:
                return 2 if len(name) >= 5 else 1
            return 2 if len(name) >= MANY else 1 if len(name) >= 4 or (alone and len(name) >= 3) else 0

        near = [(distance(word, name), name) for name in sorted(names) if abs(len(name) - len(word)) <= most(name)]
        return min(((far, name) for far, name in near if far <= most(name)), default=(0, ""))[1]

    def _lone(self, word: str) -> UsageError:
        near = self._near(word)
        if self._is_session(word) or _STAMP.fullmatch(word):
            near = tuple(f"{name} {word}" for name in ("show", "resume", "final"))
        meant = (
            f"Did you mean {_either(f'cdo {name}' for name in near)}? " if near else "`cdo --help` lists commands. "
        )
        ask = f"cdo think {word}" if self._program == "cdo" else f"{self._program} -- {word}"
        return UsageError(
            f"`{_cut(word)}` is not a command, and one word is not a question.",
            f"{meant}To ask it all the same: `{_cut(ask, 80)}`.",
        )

    def _near(self, word: str) -> tuple[str, ...]:
        """Return the commands that a word may stand for, the nearest first."""
        import difflib  # lazily: needed only to explain an error

        word = word.lower()[:SHOWN]
        meant = [name.strip() for name in self._table.meant.get(word, "").split(",") if name.strip()]
        if meant:
            return tuple(meant)
        near = [name for name in sorted(self._commands) if distance(word, name) <= (1 if len(name) < 5 else 2)]
        near = sorted(near, key=lambda name: distance(word, name))
        return tuple(near[:2] or difflib.get_close_matches(word, sorted(self._commands), n=2, cutoff=0.65))

    def _quote(self) -> str:
        return "If it belongs to the question, quote the whole question."


def distance(one: str, other: str) -> int:
    """Return how many letters to insert, delete, replace or swap with a neighbour make `other` of `one`."""
    before, last = [0] * (len(other) + 1), list(range(len(other) + 1))
    for row, left in enumerate(one, 1):
        now = [row]
        for column, right in enumerate(other, 1):
            cost = min(last[column] + 1, now[-1] + 1, last[column - 1] + (left != right))
            if row > 1 and column > 1 and left == other[column - 2] and right == one[row - 2]:
                cost = min(cost, before[column - 2] + 1)
            now.append(cost)
        before, last = last, now
    return last[-1]


def _is_text(word: str) -> bool:
    return any(character.isspace() for character in word)


def _is_sentence(word: str) -> bool:
    """True if a single word may be a whole question."""
    return word.endswith(_ENDS) or bool(unspaced(word))


def _either(names: Iterable[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)


def _cut(word: str, most: int = SHOWN) -> str:
    return one_line(word, most).replace("`", "'")
