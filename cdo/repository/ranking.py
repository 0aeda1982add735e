"""Ranks the files of a repository by their relevance to a question. Pure.

The score combines two measures. BM25 over paths and contents finds the files that contain the question's words. The
import graph finds the files that the repository depends on, starting from the question's subject. Their weights
depend on how specific the question is: BM25 dominates if the question names something that few files are about; the
import graph dominates if its words occur everywhere or nowhere, or refer to the repository as a whole.

Words are cut to stems and counted as substrings, so that "caching" also finds `CacheStore` and `arch_rules` is found
by "arch". A short stem counts only at the start of a word: "ray" is not found in "array".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache

from msgspec import Struct

from cdo.core.words import FUNCTION_WORDS, words
from cdo.repository.import_graph import Imports, family_of, page_rank, two_ways

MAX_CHARS = 65_536  # bytes of each file that are counted
_TERMS = 24  # stems of a question that are searched for
_SHORT = 4  # a stem of at most this many letters counts only at the start of a word
_HEAD = 500  # bytes at the top of a file, where its description stands
_K1, _B = 1.2, 0.75  # the usual constants of BM25
_IN_PATH = 12  # a word in a path counts as much as this many occurrences in the text
_NAMED = 1_000.0  # score added to a file whose path the question contains

_MANY = 20  # files; among fewer, no word is too common to count
_EVERYWHERE = 0.5  # share of files; a stem in more of them has no weight
_COMMON_NAME = 0.25  # the same for the names of files and definitions, and for the tops of files
_SINGLED_OUT = 0.06  # share of files; a stem in the names of at most this many files identifies them
# Weights of a stem in a file's name, in the names of its definitions, and at its top.
_FIELDS = (3.0, 2.0, 1.0)
# The import graph's share of the score is _SECOND at specificity _SPECIFIC or more, _FIRST at _GENERAL or less.
_SPECIFIC, _GENERAL = 0.6, 0.35
_SECOND, _FIRST = 0.2, 0.9
_ABSENT = 0.5  # weight of a word found in no file, relative to a word that is found, when specificity is computed
_WHOLE = 0.25  # subtracted from specificity if the question refers to the repository as a whole
# Weights of a file's importance: question words in its names, closeness to the subject, role in the repository.
_ABOUT, _NEAR, _CENTRAL = 0.1, 0.5, 0.4
_SUBJECT = 3  # words found in names of files or definitions that are enough to identify a question's subject
_FROM_TEST = 0.2  # an import by a test, compared with an import by other code


_STOP = FUNCTION_WORDS | words(
    "assess best better compare consider decide describe evaluate evaluates explain make need needs "
    "propose review suggest want"
)
# Words for a repository as a whole. They are not searched for.
_FRAME = words(
    "application applications approach architecture architectures architectural code codebase design entire "
    "everything everywhere framework overall project projects refactor repo repos repository repositories rewrite "
    "roadmap software structure system whole"
)
# Phrases in which people ask about a repository as a whole.
_OURS = re.compile(
    r"\b(?:(?:this|our)\s+(?:library|package|tool|program|service|product|module)"
    r"|(?:should|shall|can|could|would)\s+(?:we|i|this|it))\b",
    re.IGNORECASE,
)
# A name from code: with an underscore, a hump or a dot inside, or between backticks.
_IDENTIFIER = re.compile(r"`[^`\n]{2,80}`|\b[A-Za-z]\w*(?:_\w+|[a-z0-9][A-Z]\w+|\.[a-z]\w+)")
# Endings that are cut off: long ones from longer stems, short ones also from shorter stems.
_LONG_ENDING = re.compile(
    r"(?:ization|isation|ations|ation|ments|ment|ities|ity|tures|ture|tural|ures|ure|ers|er|ors|or|ions|ion|ly)$"
)
_SHORT_ENDING = re.compile(r"(?:ings|ing|ed|es|(?<!s)s)$")
_MODIFIED = rb"\n[ \t]*(?:(?:%b)[ \t]+){0,5}(?:%b)[ \t]+(\w{1,80})"  # filled in with modifiers and defining keywords
_DEFINITIONS = {
    "python": re.compile(_MODIFIED % (b"async", b"def|class")),
    "script": re.compile(
        _MODIFIED % (b"export|default|async|abstract|declare", b"function|class|interface|type|enum|const|let")
    ),
    "go": re.compile(rb"\n(?:func[ \t]+(?:\([^)\n]{0,80}\)[ \t]*)?|type[ \t]+)(\w{1,80})"),
    "rust": re.compile(
        _MODIFIED % (rb"pub(?:\([a-z]{1,9}\))?|async|unsafe|const", b"fn|struct|enum|trait|type|impl|mod")
    ),
    "": re.compile(
        _MODIFIED
        % (
            b"export|public|private|protected|internal|static|abstract|final|data|sealed|open",
            b"def|class|func|fn|fun|function|interface|struct|enum|trait|type|module|object|record|defmodule",
        )
    ),
}
_HUMP = re.compile(rb"(?<=[a-z0-9])(?=[A-Z])")
_LETTERS = bytes(sign if chr(sign) in "abcdefghijklmnopqrstuvwxyz" or sign >= 0x80 else 0x20 for sign in range(256))

_CODE = words(
    "py pyi js mjs cjs jsx ts tsx go rs rb java kt kts scala c h cc cpp hpp cs swift m mm php ex exs erl hs ml lua "
    "jl pl sh bash zsh ps1 sql proto graphql vue svelte clj dart zig nim r sol tf"
)
_PROSE = words("md rst adoc txt org tex")
_SETTINGS = words("toml yaml yml json ini cfg xml gradle cmake mk nix")
_TEST = re.compile(
    r"(?:^|/)(?:tests?|specs?|__tests__|testdata|fixtures?|examples?|demos?|bench|benches|benchmarks?)/"
    r"|(?:^|[/._-])test[._-]|[._-](?:test|spec)\."
)
_START = words("main app cli index server lib core __main__")
_OVERVIEWS = words("architecture design overview contributing")
_HEADINGS = re.compile(rb"^#{1,4} (.{1,200})", re.MULTILINE)
_SHOWN = 0.8  # least weight of a kind of file whose text says what a repository is about
_FOLDER_FILES = words("__init__ index mod main lib")


class Ranked(Struct, frozen=True):
    """One file with its score, the question's stems that it contains, and how many files import it."""

    path: str
    score: float
    matches: tuple[str, ...]
    importers: int = 0


class _Seen(Struct, frozen=True):
    """The counts kept of a file: how often each stem occurs in it, and in its name, its definitions and its top."""

    path: str
    size: int
    counts: tuple[int, ...]
    fields: tuple[tuple[int, ...], ...]


class Ranking:
    """Collects files with `add`, one after the other, keeping only counts; `ranked` puts them in order."""

    def __init__(self, problem: str) -> None:
        self.stems = stems(problem)
        self._problem = problem
        self._at_begin = [f" {stem}".encode() for stem in self.stems]
        self._forms = [form if len(form) <= 1 + _SHORT else form[1:] for form in self._at_begin]
        self._identifiers = {
            text.strip("`").lower().encode(): 0 for text in _IDENTIFIER.findall(problem[:20_000])[:8]
        }
        self._seen: list[_Seen] = []
        self._imports = Imports()
        self._is_named = False
        # The stems in the names of files, folders and definitions, and in headings; without tests.
        self.names: set[str] = set()

    def add(self, path: str, data: bytes) -> None:
        """Count a file; `data` are its first bytes, b"" if it was not read."""
        data, name = data[:MAX_CHARS], path.encode("utf-8", "surrogateescape")
        low = data.lower()
        text, place = b" " + low.translate(_LETTERS), b" " + name.lower().translate(_LETTERS)
        counts = tuple(text.count(form) + _IN_PATH * place.count(form) for form in self._forms)
        defined = b""
        if path.rpartition(".")[2].lower() in _CODE:
            pattern = _DEFINITIONS.get(family_of(path)) or _DEFINITIONS[""]
            defined = b" ".join(pattern.findall(b"\n" + data))
        fields = _spaced(_module(path).encode("utf-8", "surrogateescape")), _spaced(defined), text[:_HEAD]
        self._seen.append(
            _Seen(path, len(data), counts, tuple(tuple(map(field.count, self._at_begin)) for field in fields))
        )
        for identifier in self._identifiers:
            self._identifiers[identifier] += identifier in low
        self._imports.add(path, data)
        if not is_test(path):
            self._is_named = self._is_named or any(identifier in low for identifier in self._identifiers)
            heads = b" ".join(_HEADINGS.findall(data)) if path.rpartition(".")[2].lower() in _PROSE else b""
            named = b" ".join((_spaced(name), fields[1], _spaced(heads))).decode("utf-8", "ignore")
            self.names.update(map(stem_of, set(named.split())))

    def ranked(self, changed: Mapping[str, int]) -> list[Ranked]:
        """Return all files, best first, ties by path; `changed` counts recent commits by path."""
        by_words, by_place = _scaled(self._matches), _scaled(self._importance(changed))
        found = []
        for seen in self._seen:
            score = (1 - self.general) * by_words[seen.path] + self.general * by_place[seen.path]
            score += _NAMED * ("/" in seen.path and seen.path in self._problem)
            told = [stem for stem, count, weight in zip(self.stems, seen.counts, self._weights, strict=True)
                    if count and weight]  # fmt: skip
            importers = len(self.importers.get(seen.path, ()))
            found.append(Ranked(seen.path, round(score, 9), tuple(told), importers))
        return sorted(found, key=lambda item: (-item.score, item.path))

    @property
    def terms(self) -> tuple[str, ...]:
        """The question's stems, without those that occur in most files."""
        weighed = zip(self.stems, self._weights, strict=True)
        return tuple(stem for stem, weight in weighed if weight)

    @property
    def is_named(self) -> bool:
        """True if the question names a file with its folder, or an identifier that a file holds."""
        return self._is_named or any("/" in seen.path and seen.path in self._problem for seen in self._seen)

    def held(self, stem: str) -> tuple[int, int]:
        """Return how many files of source and prose hold a stem of the question, and their number; without tests."""
        files = [seen for seen in self._seen if kind(seen.path) >= _SHOWN and not is_test(seen.path)]
        number = self.stems.index(stem) if stem in self.stems else None
        return sum(number is not None and seen.counts[number] > 0 for seen in files), len(files)

    @staticmethod
    def is_frame(word: str) -> bool:
        """True if a word belongs to the way a question is asked, so that no file is searched for it."""
        return word in _STOP | _FRAME

    # -- the words of the question ---------------------------------------------------------------------

    @cached_property
    def _weights(self) -> list[float]:
        """The weight of each stem: higher, the fewer files contain it; 0 if most files do."""
        holders = [sum(seen.counts[number] > 0 for seen in self._seen) for number in range(len(self.stems))]
        return [_telling(held, len(self._seen), _EVERYWHERE) for held in holders]

    @cached_property
    def _matches(self) -> dict[str, float]:
        """The BM25 score of each file, times the weight of its kind."""
        mean = sum(seen.size for seen in self._seen) / max(1, len(self._seen)) + 1
        found = {}
        for seen in self._seen:
            length = _K1 * (1 - _B + _B * seen.size / mean)
            pairs = zip(self._weights, seen.counts, strict=True)
            found[seen.path] = kind(seen.path) * sum(
                weight * count * (_K1 + 1) / (count + length) for weight, count in pairs
            )
        return found

    @cached_property
    def _about(self) -> dict[str, float]:
        """A score by file for question words in its name, definitions and top, times the weight of its kind."""
        found = dict.fromkeys((seen.path for seen in self._seen), 0.0)
        for number in range(len(self.stems)):
            for place, worth in enumerate(_FIELDS):
                holders = [(seen.path, count) for seen in self._seen if (count := seen.fields[place][number])]
                weight = worth * _telling(len(holders), len(self._seen), _COMMON_NAME)
                for path, count in holders:
                    found[path] += weight * count / (count + _K1 / 2)
        return {path: kind(path) * score for path, score in found.items()}

    @cached_property
    def _specificity(self) -> float:
        """How clearly the question's words identify a few files: at most 1, the higher the more specific."""
        names = [number for number, weight in enumerate(self._weights) if weight and self._holders(number)]
        if not names:
            return 0.0
        most = max(3, _SINGLED_OUT * len(self._seen))
        if any(0 < held <= most for held in self._identifiers.values()):
            return 1.0
        absent = [weight for number, weight in enumerate(self._weights) if weight and number not in names]
        could = (_K1 + 1) * (sum(self._weights[number] for number in names) + _ABSENT * sum(absent))
        best = max(self._matches.values()) / could
        named = sum(0 < self._named(number) <= most for number in names) / (len(names) + _ABSENT * len(absent))
        words = re.findall(r"\w+", self._problem.lower())
        whole = any(word in _FRAME for word in words) or _OURS.search(self._problem)
        return (best + named) / 2 - _WHOLE * bool(whole)

    def _holders(self, number: int) -> int:
        return sum(seen.counts[number] > 0 for seen in self._seen)

    def _named(self, number: int) -> int:
        """Count the files, without tests, that have a stem in their name or in the name of a definition."""
        return sum(bool(seen.fields[0][number] or seen.fields[1][number]) for seen in self._seen
                   if not is_test(seen.path))  # fmt: skip

    # -- the place of a file ---------------------------------------------------------------------------

    @cached_property
    def general(self) -> float:
        """The weight of the import graph, between 0 and 1; BM25 has the rest."""
        lead = (_SPECIFIC - self._specificity) / (_SPECIFIC - _GENERAL)
        joined = {path for path, out in self._edges.items() if out or path in self.importers}
        known = 2 * len(joined) / len(self._edges) if self._edges else 0.0  # few known imports say little
        return _SECOND + (_FIRST - _SECOND) * min(1.0, max(0.0, lead)) * min(1.0, known)

    @property
    def is_general(self) -> bool:
        """True if the import graph dominates: the question is about the repository rather than about a few files."""
        return self.general >= 0.5

    @cached_property
    def _edges(self) -> dict[str, dict[str, float]]:
        return self._imports.edges()

    @cached_property
    def importers(self) -> dict[str, tuple[str, ...]]:
        """The importers of each file, without tests. Files without importers have no entry."""
        found: dict[str, list[str]] = {}
        for path, targets in self._edges.items():
            for target in () if is_test(path) else targets:
                found.setdefault(target, []).append(path)
        return {path: tuple(names) for path, names in found.items()}

    def imports(self, path: str) -> tuple[str, ...]:
        """Return the files that a file imports."""
        return tuple(self._edges.get(path, ()))

    def _importance(self, changed: Mapping[str, int]) -> dict[str, float]:
        """Return the importance of each file, the score that is combined with BM25."""
        about, central = _scaled(self._about), _scaled(self._standing(changed))
        subject = {path: 0.0 if is_test(path) else about[path] ** 2 for path in self._edges}
        known = min(1.0, sum(self._named(number) > 0 for number in range(len(self.stems))) / _SUBJECT)
        known *= any(subject.values())
        near = dict.fromkeys(self._edges, 0.0)
        if known > 0:
            near = _scaled(page_rank(two_ways(self._edges, apart=is_test), subject))
        if known < 1:
            rests_on = _scaled(page_rank(self._edges, {path: float(not is_test(path)) for path in self._edges}))
            near = {path: known * near[path] + (1 - known) * rests_on[path] for path in self._edges}
        return {
            path: kind(path) * (_ABOUT * about[path] + _NEAR * near.get(path, 0.0) ** 0.5 + _CENTRAL * central[path])
            + 0.5 * _is_overview(path)
            for path in about
        }

    def _standing(self, changed: Mapping[str, int]) -> dict[str, float]:
        """Score each file's role: imported, importing, often changed, large, an entry point, near the top."""
        incoming: dict[str, float] = {}
        for path, targets in self._edges.items():
            for target in targets:
                incoming[target] = incoming.get(target, 0.0) + (_FROM_TEST if is_test(path) else 1.0)
        found = {}
        for seen in self._seen:
            linked = math.log1p(incoming.get(seen.path, 0.0)) + math.log1p(len(self._edges.get(seen.path, ())))
            seldom = 0.5 * math.log1p(changed.get(seen.path, 0)) + 0.5 * math.log1p(seen.size / 4000)
            start = 0.7 * (seen.path.rpartition("/")[2].partition(".")[0].lower() in _START)
            found[seen.path] = linked + seldom + start + 0.3 / (1 + seen.path.count("/"))
        return found


@lru_cache(65_536)
def kind(path: str) -> float:
    """Return the weight of a file by its path: source 1.0, prose 0.8, settings 0.4, other 0.25; tests times 0.6."""
    suffix = path.rpartition(".")[2].lower()
    weight = 1.0 if suffix in _CODE else 0.8 if suffix in _PROSE else 0.4 if suffix in _SETTINGS else 0.25
    return weight * (0.6 if is_test(path) else 1.0)


@lru_cache(65_536)
def is_test(path: str) -> bool:
    """True if a path looks like a test, an example or a benchmark."""
    return _TEST.search(path.lower()) is not None


def stems(problem: str) -> tuple[str, ...]:
    """Return the question's stems, in order of first use, at most `_TERMS` so that counting stays fast."""
    words = re.findall(r"[^\W\d_]{3,40}", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", problem[:20_000]))
    found = dict.fromkeys(stem_of(word) for word in map(str.lower, words) if word not in _STOP | _FRAME)
    return tuple(found)[:_TERMS]


@lru_cache(65_536)
def stem_of(word: str) -> str:
    """Return a word without its ending, if the rest is long enough to be distinctive."""
    if word.endswith(("ies", "ied")) and len(word) > 5:
        return word[:-3]
    for ending, least in ((_LONG_ENDING, 5), (_SHORT_ENDING, 4)):
        end = ending.search(word)
        if end and end.start() >= least:
            return word[: end.start()]
    return word[:-1] if len(word) > 3 and re.search("[^s]s$", word) else word


def _spaced(data: bytes) -> bytes:
    """Return the words in lower case, each after a space; camelCase and underscores are split."""
    return b" " + _HUMP.sub(b" ", data).lower().translate(_LETTERS)


def _module(path: str) -> str:
    """Return a file's folder and stem; the folder alone if the file represents it (`__init__`, `index`)."""
    *folders, name = path.split("/")
    stem = name.partition(".")[0]
    return " ".join([*folders[-1:], *([] if stem in _FOLDER_FILES and folders else [stem])])


def _is_overview(path: str) -> bool:
    """True if a file is prose about the overall design, in the top folder or in `doc` or `docs`."""
    *folders, name = path.lower().split("/")
    stem, _, suffix = name.partition(".")
    return suffix in _PROSE and stem in _OVERVIEWS and (not folders or folders in (["doc"], ["docs"]))


def _telling(held: int, total: int, share: float) -> float:
    """Return BM25's inverse document frequency; 0 if `held` is more than `share` of at least `_MANY` files."""
    if total >= _MANY and held > share * total:
        return 0.0
    return math.log(1 + (total - held + 0.5) / (held + 0.5))


def _scaled(scores: Mapping[str, float]) -> dict[str, float]:
    """Scale scores to between 0 and 1, the best being 1."""
    best = max(scores.values(), default=0.0)
    return {path: score / best if best else 0.0 for path, score in scores.items()}
