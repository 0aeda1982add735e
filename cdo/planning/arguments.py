"""Parses the words of a run: `cdo [ARGS] PROBLEM…`.

Words are read left to right. A word is an *args word* if, split at commas, every token is a preset, a
modifier, a mode or `exec`; after `exec` the next word is the domain tag. The first other word starts the
problem, and everything after it belongs to it. Pure: no click, no files, no environment.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from cdo.core.errors import UsageError

EXEC = "exec"
MODIFIERS: tuple[str, ...] = ("hitl", "bd", "team", "adaptive", "lev-exec")

Kind = Literal["preset", "modifier", "mode", "domain"]
Source = Literal["text", "stdin", "file"]

_TAG = re.compile(r"[a-z][a-z0-9-]*")
_LITERALLY = "put `--` before the problem if the word belongs to it"
_SHOWN = 40  # characters of a word that an error repeats; argv may hold megabytes


class NoProblem(UsageError):
    """The command line has args words only. Its own class, because the problem may still come from stdin."""


class Vocabulary(Struct, frozen=True):
    """The words that are args: names from the content folders, and the seed's modifiers."""

    presets: frozenset[str]
    modes: frozenset[str]
    modifiers: ClassVar[tuple[str, ...]] = MODIFIERS

    def kind(self, token: str) -> Kind | None:
        """Return the kind of a token, or None. `debug` is a preset although `modes/debug.md` exists: presets win."""
        if token == EXEC:
            return "domain"
        if token in self.modifiers:
            return "modifier"
        if token in self.presets:
            return "preset"
        return "mode" if token in self.modes else None

    def words(self) -> tuple[str, ...]:
        """Return every word it knows, sorted."""
        return tuple(sorted({EXEC, *self.modifiers, *self.presets, *self.modes}))


class Invocation(Struct, frozen=True):
    """The parsed words of a command line. `preset` is None if gauge has to pick one."""

    preset: str | None
    modifiers: tuple[str, ...]
    mode: str | None
    domain: str | None
    problem: str


def vocabulary(presets: Iterable[str], modes: Iterable[str]) -> Vocabulary:
    """Return the vocabulary for these preset and mode files.

    One word has one meaning: modifiers and `exec` win over presets, presets over modes.
    """
    taken = frozenset({EXEC, *MODIFIERS})
    known_presets = frozenset(presets) - taken
    known_modes = frozenset(modes) - taken - known_presets
    return Vocabulary(presets=known_presets, modes=known_modes)


def parse(words: Sequence[str], vocabulary: Vocabulary, *, after_dashes: Sequence[str] | None = None) -> Invocation:
    """Read the words of a command line.

    `words` are the non-option words before a `--`; `after_dashes` those after it, which belong to the
    problem whatever they look like (None: there was no `--`). Problem words are joined with one space.

    Raises `NoProblem` when no word is left for the problem, and `UsageError` for an unknown token beside
    known ones, a second preset, mode or domain, `exec` without a tag, and a blank problem.
    """
    rest = deque(words)
    chosen: dict[Kind, str] = {}
    modifiers: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    while rest and (tokens := _args_tokens(rest[0], vocabulary)):
        rest.popleft()
        for token, kind in tokens:
            if kind == "modifier":
                modifiers[token] = None
            else:
                _choose(chosen, kind, _take_tag(rest, tokens, vocabulary) if kind == "domain" else token)
    return Invocation(
        preset=chosen.get("preset"),
        modifiers=tuple(modifiers),
        mode=chosen.get("mode"),
        domain=chosen.get("domain"),
        problem=_problem([*rest, *(after_dashes or ())]),
    )


def request(words: Sequence[str], vocabulary: Vocabulary, *, after_dashes: Sequence[str] | None = None) -> str:
    """Return the request of a mission: its words, joined with one space.

    A mission has no args, so an args word in front is a mistake, but not after a `--`. Raises `UsageError` for such a
    word and for a blank request.
    """
    if words and _args_tokens(words[0], vocabulary):
        raise UsageError(
            f"{_quoted(words[0])} is for `cdo` alone, not for `cdo cabal`",
            'Leave it out; if it belongs to the request, quote that as a whole: cdo cabal "Build …"',
        )
    if not (text := " ".join([*words, *(after_dashes or ())])).strip():
        raise UsageError("The request is empty", 'Give one: cdo cabal "Build …"')
    return text


def problem_source(problem: str) -> tuple[Source, str]:
    """Return where the problem is read: `-` is ("stdin", ""), `@FILE` is ("file", "FILE"), else the text.

    Only a problem that is that single word: text with whitespace in it is always text, so a file whose name has a
    space goes through `-`. Raises `UsageError` for a lone `@`.
    """
    if problem == "-":
        return "stdin", ""
    if not problem.startswith("@") or _has_whitespace(problem):
        return "text", problem
    if problem == "@":
        raise UsageError("`@` names no file", "Write the file right after it, as in `@problem.md`")
    return "file", problem[1:]


def _args_tokens(word: str, vocabulary: Vocabulary) -> list[tuple[str, Kind]]:
    """Return the tokens of an args word with their kinds; [] if the word starts the problem.

    Raises `UsageError` for a mix of known and unknown tokens: that is a typing error far more often than a problem,
    and a run with the wrong preset costs money.
    """
    if _has_whitespace(word):
        return []
    tokens = word.split(",")
    known = [(token, kind) for token in tokens if (kind := vocabulary.kind(token))]
    if known and len(known) < len(tokens):
        raise _unknown_beside_known(word, tokens, vocabulary)
    return known


def _unknown_beside_known(word: str, tokens: list[str], vocabulary: Vocabulary) -> UsageError:
    unknown = [token for token in dict.fromkeys(tokens) if not vocabulary.kind(token)]
    if "" in unknown:
        return UsageError(
            f"{_quoted(word)} has nothing before or after a comma",
            f"Write args without blanks, as in `deep,adaptive`, or {_LITERALLY}",
        )
    named = [_quoted(token) for token in unknown[:3]]
    if len(unknown) > len(named):
        named.append(f"{len(unknown) - len(named)} more")
    subject = f"{_listed(named, 'and')} in {_quoted(word)}"
    verb = "is not a preset, modifier or mode" if len(unknown) == 1 else "are not presets, modifiers or modes"
    return UsageError(f"{subject} {verb}", f"{_advice(tokens, unknown, vocabulary)}, or {_LITERALLY}")


def _advice(tokens: list[str], unknown: list[str], vocabulary: Vocabulary) -> str:
    import difflib  # lazily: needed only to explain an error

    after_exec = tokens[tokens.index(EXEC) + 1 :][:1] if EXEC in tokens else []
    if after_exec == unknown and _TAG.fullmatch(unknown[0]):
        return f"Write the tag as its own word at the end: {_in_order(tokens, unknown[0])}"
    near: dict[str, None] = {}
    for token in unknown[:3]:
        near |= dict.fromkeys(difflib.get_close_matches(token[:_SHOWN].lower(), vocabulary.words()))
    return "Write " + _listed([_quoted(word) for word in near or vocabulary.words()], "or")


def _choose(chosen: dict[Kind, str], kind: Kind, token: str) -> None:
    """Record a preset, mode or domain; raise `UsageError` if there is one already."""
    if kind not in chosen:
        chosen[kind] = token
        return
    first, second = _quoted(chosen[kind]), _quoted(token)
    what = f"{first} is given twice" if first == second else f"{first} and {second} are both {kind}s"
    raise UsageError(what, f"Give one {kind} only, or {_LITERALLY}")


def _in_order(tokens: Sequence[str], tag: str) -> str:
    """Return the args that were meant, in an order that can be parsed: `exec` and its tag last."""
    others = [token for token in dict.fromkeys(tokens) if token not in (EXEC, tag)]
    return f"`{','.join([*others, EXEC])[:_SHOWN]} {tag[:_SHOWN]}`"


def _take_tag(rest: deque[str], beside: Sequence[tuple[str, Kind]], vocabulary: Vocabulary) -> str:
    """Remove the word after `exec` from `rest` and return it; raise `UsageError` if it cannot be a tag.

    `beside` are the tokens of the word that contains `exec`.
    """
    hint = f"Write one after it (a-z, 0-9 and -), as in `exec dev`, or {_LITERALLY}"
    if not rest:
        raise UsageError("`exec` has no domain tag after it", hint)
    tag, *more = rest[0].split(",")
    if more and _TAG.fullmatch(tag) and all(vocabulary.kind(token) for token in more):
        meant = _in_order([*(token for token, _ in beside), *more], tag)
        raise UsageError(
            f"{_quoted(rest[0])} after `exec` is not a domain tag alone", f"Write {meant}, or {_LITERALLY}"
        )
    if not _TAG.fullmatch(rest[0]):
        raise UsageError(f"{_quoted(rest[0])} after `exec` is not a domain tag", hint)
    return rest.popleft()


def _problem(words: list[str]) -> str:
    if not words:
        raise NoProblem("There is no problem to work on", 'Write it after the args, as in `cdo deep "…"`')
    problem = " ".join(words)
    # An empty "$VARIABLE" in a script: never fall back to reading stdin for it.
    if not problem.strip():
        raise UsageError("The problem is empty", 'Write it after the args, as in `cdo deep "…"`')
    return problem


def _has_whitespace(word: str) -> bool:
    return any(character.isspace() for character in word)


def _quoted(word: str) -> str:
    """Return a word for an error: short, and without characters that a terminal acts on or cannot encode."""
    cut = word if len(word) <= _SHOWN else word[: _SHOWN - 1] + "…"
    return "`" + "".join(c if c.isprintable() else "�" for c in cut) + "`"


def _listed(words: Sequence[str], last: str) -> str:
    """Return one word, or a list in prose: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
