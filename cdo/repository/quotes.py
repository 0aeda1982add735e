"""Looks up quoted words in texts, word for word. Pure.

Case, white space, Markdown marks, quotation marks and the line numbers of `00-context.md` are ignored. A match begins
and ends between words: "5 of 5 runs" does not stand in "15 of 5 runs". A paraphrase is not found.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

QUESTION, CONTEXT, REPOSITORY, CHECK = "question", "context", "repository", "check"  # places of quoted words
LEAST = 8  # letters and digits that words need to be looked up; fewer occur almost everywhere

_LINE = re.compile(r"^[ \t]*(?:\d+\|[ \t])?(?:[ \t]*(?:>|#{1,6}|[-*+]|\d{1,3}[.)])[ \t]+)*", re.MULTILINE)
_MARKS = re.compile("[*_`~\\\\|\"'“”„‟‘’‚«»‹›]")
_DASHES = re.compile("[‐‑‒–—−]")
_TOKEN = re.compile(r"\w+(?:(?<=\d)[.,:](?=\d)\w+)*|[^\w\s]")  # "1.5" and "12:30" are one token
_LEFT_OUT = re.compile(r"\.{3,}|…|\[\.\.\.\]|\[…\]")


class Text:
    """A text, prepared so that words can be looked up in it."""

    def __init__(self, text: str) -> None:
        tokens = _tokens(text)
        self._text = "".join(tokens)
        self._edges, at = bytearray(len(self._text) + 1), 0
        for token in tokens:
            self._edges[at] = 1
            at += len(token)
        self._edges[at] = 1

    def holds(self, words: str) -> bool:
        """True if the words stand in the text. Dots in the middle ("a … b") stand for words left out."""
        parts = [_joined(part) for part in _LEFT_OUT.split(words)]
        parts = [part for part in parts if part]
        if not parts or not all(map(enough, parts)):
            return False
        at = 0
        for part in parts:
            at = self._find(part, at)
            if at < 0:
                return False
        return True

    def is_all(self, words: str) -> bool:
        """True if the words are the whole text."""
        return _joined(words) == self._text

    def _find(self, part: str, at: int) -> int:
        """Return the end of the first match from `at` on; -1 if there is none."""
        while (begin := self._text.find(part, at)) >= 0:
            end = begin + len(part)
            if self._edges[begin] and self._edges[end]:
                return end
            at = begin + 1
        return -1


class Material:
    """The texts that a run was given, by place. The first place that contains the words counts."""

    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        self._texts = [(place, _prepared(text)) for place, text in texts]

    def place(self, words: str) -> str:
        """Return the place that contains the words, "" if none. A quote of the whole question does not count."""
        for place, text in self._texts:
            if text.holds(words) and not (place == QUESTION and text.is_all(words)):
                return place
        return ""


def standing(words: Iterable[str], files: Iterable[str]) -> frozenset[str]:
    """Return the subset of `words` that occur in at least one of the files' texts."""
    left = {item: _rarest(item) for item in words if enough(_joined(item))}
    found = set()
    for text in files:
        if not left:
            break
        plain = _plain(text)
        near = [item for item, rare in left.items() if rare in plain]
        if near:
            prepared = Text(text)
            for item in near:
                if prepared.holds(item):
                    found.add(item)
                    del left[item]
    return frozenset(found)


def enough(words: str) -> bool:
    """True if the words have enough letters and digits to be looked up."""
    return sum(map(str.isalnum, words)) >= LEAST


@lru_cache(maxsize=16)
def _prepared(text: str) -> Text:
    return Text(text)


def _plain(text: str) -> str:
    text = _DASHES.sub("-", unicodedata.normalize("NFKC", text))
    return _MARKS.sub("", _LINE.sub("", text)).casefold()


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(_plain(text))


def _joined(text: str) -> str:
    return "".join(_tokens(text))


def _rarest(words: str) -> str:
    """Return the longest token: a file without it cannot hold the words."""
    return max(_tokens(words), key=len, default="")
