"""Which files of a repository say most about a question: BM25 over paths and contents, and what a file is. Pure.

Words are cut to stems and counted as substrings, so that "architecture" also finds `ArchitecturalStyle` and
`arch_rules` is found by "arch". Where no word of the question stands in any file, what others import, what changes
often and what a program starts with comes first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

MAX_CHARS = 65_536  # of each file that are counted
_TERMS = 24  # stems of a question that are looked for
_HEAD = 6_000  # bytes in which a file says what it imports
_K1, _B = 1.2, 0.75  # the usual constants of BM25
_IN_PATH = 12  # a word in a path weighs as much as this often in the text
_NAMED = 1_000.0  # a path that the question spells out


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STOP = _words(
    "about above after again all also and any are because been before being below between both but can could did "
    "does doing down during each every few for from further had has have having her here hers him his how into its "
    "itself just many may might more most must not now off once only other our out over own same shall she should "
    "some such than that the their them then there these they this those through too under until use used using "
    "very was way were what when where which while who whom why will with would you your evaluate evaluates "
    "assess review explain describe decide propose compare consider suggest better best need needs want make"
)
# Endings of words that are still told apart by what is left, and of words of which less is left.
_LONG = re.compile(
    r"(?:ization|isation|ations|ation|ments|ment|ities|ity|tures|ture|tural|ures|ure|ers|er|ors|or|ions|ion|ly)$"
)
_SHORT = re.compile(r"(?:ings|ing|ed|es|(?<!s)s)$")
_IMPORT = re.compile(
    rb"^[ \t]*(?:from|import|use|mod|require|require_relative|#include|export)\b([^\n]{1,200})", re.M
)
_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]{2,}")

_CODE = _words(
    "py pyi js mjs cjs jsx ts tsx go rs rb java kt kts scala c h cc cpp hpp cs swift m mm php ex exs erl hs ml lua "
    "jl pl sh bash zsh ps1 sql proto graphql vue svelte clj dart zig nim r sol tf"
)
_PROSE = _words("md rst adoc txt org tex")
_SETTINGS = _words("toml yaml yml json ini cfg xml gradle cmake mk nix")
_TEST = re.compile(
    r"(?:^|/)(?:tests?|specs?|__tests__|testdata|fixtures?|examples?)/|(?:^|[/._-])test[._-]|[._-](?:test|spec)\."
)
_START = _words("main app cli index server lib core __main__ architecture design overview contributing")
_FOLDER_FILES = _words("__init__ index mod main")


@dataclass(frozen=True)
class Ranked:
    """One file with its score, and the stems of the question that its path or text holds."""

    path: str
    score: float
    matches: tuple[str, ...]


@dataclass(frozen=True)
class _Seen:
    path: str
    size: int
    counts: tuple[int, ...]


class Ranking:
    """Collects files with `add`, one after the other, keeping only counts; `ranked` puts them in order."""

    def __init__(self, problem: str) -> None:
        self.terms = stems(problem)
        self._problem = problem
        self._bytes = [term.encode() for term in self.terms]
        self._seen: list[_Seen] = []
        self._imported: Counter[bytes] = Counter()

    def add(self, path: str, data: bytes) -> None:
        """Count a file; `data` are its first bytes, b"" where they are not known."""
        low, name = data[:MAX_CHARS].lower(), path.lower()
        counts = tuple(
            low.count(term) + _IN_PATH * name.count(text) for term, text in zip(self._bytes, self.terms, strict=True)
        )
        self._seen.append(_Seen(path, len(low), counts))
        lines = b" ".join(_IMPORT.findall(data, 0, _HEAD))
        self._imported.update(set(_NAME.findall(lines)))

    def ranked(self, changed: Mapping[str, int]) -> list[Ranked]:
        """All files, best first; `changed` says how often recent commits touched which. Ties go by path."""
        weights = self._weights()
        mean = sum(seen.size for seen in self._seen) / max(1, len(self._seen)) + 1
        found = []
        for seen in self._seen:
            length = _K1 * (1 - _B + _B * seen.size / mean)
            match = sum(
                weight * count * (_K1 + 1) / (count + length)
                for weight, count in zip(weights, seen.counts, strict=True)
            )
            score = kind(seen.path) * (match + self._standing(seen.path, changed.get(seen.path, 0)))
            score += _NAMED * ("/" in seen.path and seen.path in self._problem)
            stems = tuple(term for term, count in zip(self.terms, seen.counts, strict=True) if count)
            found.append(Ranked(seen.path, round(score, 6), stems))
        return sorted(found, key=lambda item: (-item.score, item.path))

    def _weights(self) -> list[float]:
        """How telling each stem is: the fewer files hold it, the more."""
        total = len(self._seen)
        holders = [sum(seen.counts[number] > 0 for seen in self._seen) for number in range(len(self.terms))]
        return [math.log(1 + (total - held + 0.5) / (held + 0.5)) for held in holders]

    def _standing(self, path: str, changes: int) -> float:
        """What a file is worth before any question is asked: imported, changed, a place to start, near the top."""
        *folders, name = path.split("/")
        stem = name.partition(".")[0]
        module = folders[-1] if stem in _FOLDER_FILES and folders else stem
        imported = self._imported[module.encode("utf-8", "surrogateescape")] if len(module) > 2 else 0
        start = 0.5 * (stem.lower() in _START)
        return 0.4 * math.log1p(imported) + 0.3 * math.log1p(changes) + start + 0.3 / (1 + len(folders))


def kind(path: str) -> float:
    """The weight of a file by what its path says it is: source above prose, tests, settings, and data last."""
    suffix = path.rpartition(".")[2].lower()
    weight = 1.0 if suffix in _CODE else 0.8 if suffix in _PROSE else 0.4 if suffix in _SETTINGS else 0.25
    return weight * (0.6 if _TEST.search(path.lower()) else 1.0)


def stems(problem: str) -> tuple[str, ...]:
    """The stems that a question is searched by, in order of their first use: few enough to be counted quickly."""
    words = re.findall(r"[^\W\d_]{3,40}", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", problem[:20_000]))
    found = dict.fromkeys(_stem(word.lower()) for word in words if word.lower() not in _STOP)
    return tuple(found)[:_TERMS]


def _stem(word: str) -> str:
    """A word without its ending, as long as enough of it is left to be told from others."""
    if word.endswith(("ies", "ied")) and len(word) > 5:
        return word[:-3]
    for ending, least in ((_LONG, 5), (_SHORT, 4)):
        end = ending.search(word)
        if end and end.start() >= least:
            return word[: end.start()]
    return word[:-1] if len(word) > 3 and re.search("[^s]s$", word) else word
