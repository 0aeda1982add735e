"""Ranks skills and chooses which skills each voice gets, never the same set for all voices. Pure.

Ranking runs on this machine alone: SQLite's full-text search in memory, or a plain count of words if SQLite was built
without it. The same cards and words always give the same order.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeVar

from msgspec import Meta, Struct

from cdo.content.schemas import Band, ascending
from cdo.core.schema import Schema
from cdo.core.words import FUNCTION_WORDS, words

if TYPE_CHECKING:
    import sqlite3

NAME = r"[a-z0-9]+(?:-[a-z0-9]+)*"
MAX_NAME = 64
# A match in the name or a tag counts more than one in the description.
WEIGHTS = {"name": 6.0, "tags": 4.0, "description": 1.0}
MAX_QUERY = 20_000  # characters
MAX_WORDS = 200
# Lowest share of the best score with which a skill fits a voice, and with which it deserves a further place.
FITS, STRONG = 0.2, 0.5
# Words that most descriptions of skills contain do not distinguish one either.
_STOP = FUNCTION_WORDS | words(
    "against ask asks help helps i like make makes me need needs new skill skills task tasks user users "
    "uses without work works"
)
MOST_INDEXES = 16  # of sets of cards, each a database in memory
_INDEXES: dict[tuple[tuple[str, str, str], ...], sqlite3.Connection] = {}
_ONE_AT_A_TIME = threading.Lock()  # over these
_REFERENCE = re.compile(r"skill://([A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*)")


class Card(Protocol):
    """An item that can be ranked: a skill or a role."""

    @property
    def name(self) -> str:
        """Its name, unique among the items it is ranked with."""
        ...

    @property
    def description(self) -> str:
        """What it does and when it is useful."""
        ...

    @property
    def tags(self) -> Sequence[str]:
        """The words it is filed under."""
        ...


CARD = TypeVar("CARD", bound=Card)


Place = Literal["given", "project", "user", "built in"]


class SkillCard(Schema, frozen=True, kw_only=True):
    """The catalogue entry of a skill, which a session freezes: enough to choose it and to detect changes.

    `path` is that of its SKILL.md, with symlinks resolved. `sha256` is the hash of that whole file. `place` says
    where it was found.
    """

    name: Annotated[str, Meta(pattern=rf"^{NAME}\Z", max_length=MAX_NAME)]
    description: Annotated[str, Meta(min_length=1)]
    tags: tuple[str, ...] = ()
    place: Place
    path: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class SkillInjection(Schema, frozen=True, kw_only=True):
    """`dispatch/skill-injection.md`: how many skills a voice gets ([fewest, most]), and how much of each.

    `max_chars` limits the body of one skill in a brief; the file's body is the template for the chosen skills.
    """

    purpose: str
    load_when: str
    per_agent: Band
    max_chars: Annotated[int, Meta(ge=200)]

    def require_sound(self) -> None:
        ascending(per_agent=self.per_agent)


class SkillQuery(Struct, frozen=True):
    """The needs of a voice: its name, the words of its work (role, charge, focus, question), and its wishes.

    A wish is the name of a skill, `skill://NAME`, or free words, for which the best match is taken.
    """

    name: str
    query: str
    wishes: Sequence[str] = ()


def query(role: str, charge: str, focus: str, topic: str) -> str:
    """Return the words of a voice's work, by which skills are ranked for it."""
    return " ".join(filter(None, (role.replace("-", " "), charge, focus, topic)))


def slug(text: str) -> str:
    """Return `text` as a skill's name: a-z, 0-9 and single hyphens, at most 64 characters; "" if nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MAX_NAME].strip("-")


def references(text: str) -> list[str]:
    """Return the names that `text` refers to as `skill://NAME`, each once, in order."""
    return list(dict.fromkeys(slug(name) for name in _REFERENCE.findall(text)))


def resolve(name: str, skills: Iterable[SkillCard]) -> SkillCard | None:
    """Return the skill called `name` (also written `skill://NAME`), or None."""
    wanted = slug(name.strip().removeprefix("skill://"))
    return next((card for card in skills if card.name == wanted), None)


# -- ranking ---------------------------------------------------------------------------------------


def rank(skills: Sequence[CARD], query: str, tags: Iterable[str] = ()) -> list[CARD]:
    """Return the matching cards, best first: by how many of `tags` they carry, then by the words of `query`.

    The words of `tags` count as words of the query too. `query` may be any text; nothing in it is an operator.
    """
    if not skills:
        return []
    wanted = {tag.lower() for tag in tags}
    (scores,) = _scores(skills, [f"{' '.join(sorted(wanted))} {query}"])
    shared = ((place, len(wanted & set(card.tags))) for place, card in enumerate(skills if wanted else ()))
    carried = {place: count for place, count in shared if count}
    found = list({*scores, *carried})
    found.sort(key=lambda place: (-carried.get(place, 0), -scores.get(place, 0.0), skills[place].name, place))
    return [skills[place] for place in found]


_Scores = Mapping[int, float]  # by the index of each skill that matches; higher is better


def _scores(skills: Sequence[Card], queries: Sequence[str]) -> list[_Scores]:
    """Return how well each skill matches each query."""
    import sqlite3

    wanted = [_words(query) for query in queries]
    try:
        return _by_search(skills, wanted)
    except sqlite3.Error:  # built without full-text search
        return [_by_count(skills, words) for words in wanted]


def _words(text: str) -> list[str]:
    """Return the meaningful words of a text, each once: letters and digits only, so that no query syntax gets in."""
    found = dict.fromkeys(re.findall(r"[^\W_]+", text[:MAX_QUERY].lower()))
    return [word for word in found if word not in _STOP and (len(word) > 1 or not word.isascii())][:MAX_WORDS]


def _by_search(skills: Sequence[Card], queries: Sequence[Sequence[str]]) -> list[_Scores]:
    """Score by BM25 over word stems; raise `sqlite3.Error` if full-text search is missing."""
    weights = ", ".join(map(str, WEIGHTS.values()))
    best_last = f"SELECT rowid, bm25(skill, {weights}) FROM skill WHERE skill MATCH ?"
    texts = tuple((card.name, " ".join(card.tags), card.description) for card in skills)
    with _ONE_AT_A_TIME:
        base = _index(texts)
        return [
            {place: -score for place, score in base.execute(best_last, (" OR ".join(f'"{word}"' for word in words),))}
            if words
            else {}
            for words in queries
        ]


def _index(texts: tuple[tuple[str, str, str], ...]) -> sqlite3.Connection:
    """Return the index of cards with these texts; raise `sqlite3.Error`.

    A few are kept: the questions of a batch are all ranked over the same roles.
    """
    import sqlite3

    if (known := _INDEXES.get(texts)) is not None:
        return known
    while len(_INDEXES) >= MOST_INDEXES:
        _INDEXES.pop(next(iter(_INDEXES))).close()
    columns = ", ".join(WEIGHTS)
    base = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        base.execute(f"CREATE VIRTUAL TABLE skill USING fts5({columns}, tokenize = 'porter unicode61')")
        rows = ((place, *text) for place, text in enumerate(texts))
        base.executemany(f"INSERT INTO skill (rowid, {columns}) VALUES (?, ?, ?, ?)", rows)
    except BaseException:
        base.close()
        raise
    _INDEXES[texts] = base
    return base


def _by_count(skills: Sequence[Card], words: Sequence[str]) -> _Scores:
    """Score by the words that a skill contains; words of few skills count more."""
    texts = [
        [
            (WEIGHTS["name"], set(_words(card.name))),
            (WEIGHTS["tags"], set(_words(" ".join(card.tags)))),
            (WEIGHTS["description"], set(_words(card.description))),
        ]
        for card in skills
    ]
    holders = Counter(word for parts in texts for word in set().union(*(has for _, has in parts)))
    scores = [
        sum(weight / holders[word] for word in words for weight, has in parts if word in has) for parts in texts
    ]
    return {place: score for place, score in enumerate(scores) if score}


# -- choosing --------------------------------------------------------------------------------------


def assign(
    skills: Sequence[SkillCard],
    voices: Sequence[SkillQuery],
    shared: Sequence[str] = (),
    per_agent: tuple[int, int] = (2, 3),
) -> dict[str, tuple[SkillCard, ...]]:
    """Choose the skills of each voice, by its name; `per_agent` is [fewest, most].

    A voice gets its wishes first. Then it gets the `shared` skills (names or free words); voices take these in turn
    if there are more than fit beside one skill of their own. Then it gets the best matches for its query, where a
    skill counts less the more voices have it. Up to the fewest, any match is taken, first those that score at least
    `FITS` of its best match. Up to the most, only matches that score at least `STRONG` of it are taken. A skill that
    matches none of its words is never added to reach a number, so a voice may have fewer.

    Two or more voices never all get the same set, unless it is empty. If they would, one voice is changed: the one
    with the fewest wishes and shared skills; for equal numbers the one whose set scores lowest, then the last one. It
    gets its next match in addition if there is room, else in place of the last skill of its set. If nothing else
    matches, it gets one skill less. So a single skill goes to all voices that it matches except one.
    """
    most = per_agent[1]
    texts = list(dict.fromkeys([*(wish for voice in voices for wish in voice.wishes), *shared]))
    every = _scores(skills, [*texts, *(voice.query for voice in voices)])
    named = dict(zip(texts, every, strict=False))
    scores = dict(zip((voice.name for voice in voices), every[len(texts) :], strict=True))
    common = _meant(shared, skills, named)
    room = most if len(voices) < 2 else max(1, most - 1)
    chosen: dict[str, list[int]] = {}
    asked: dict[str, int] = {}
    used: Counter[int] = Counter()
    for number, voice in enumerate(voices):
        turned = [common[(number + step) % len(common)] for step in range(len(common))]
        mine = list(dict.fromkeys([*_meant(voice.wishes, skills, named), *turned[:room]]))[:most]
        asked[voice.name] = len(mine)
        _fill(mine, scores[voice.name], skills, used, per_agent)
        used.update(mine)
        chosen[voice.name] = mine
    _spread(chosen, scores, skills, asked, most)
    return {name: tuple(skills[place] for place in places) for name, places in chosen.items()}


def _meant(texts: Sequence[str], skills: Sequence[SkillCard], scores: Mapping[str, _Scores]) -> list[int]:
    """Return the skills that names or free words stand for; a `skill://` name that does not exist stands for none."""
    places = {card.name: place for place, card in reversed(list(enumerate(skills)))}
    found: list[int] = []
    for text in texts:
        if card := resolve(text, skills):
            found.append(places[card.name])
        elif scores[text] and "skill://" not in text:
            found.append(_best(scores[text], skills)[0])
    return list(dict.fromkeys(found))


def _best(scores: _Scores, skills: Sequence[SkillCard]) -> list[int]:
    return sorted(scores, key=lambda place: (-scores[place], skills[place].name, place))


def _fill(
    mine: list[int], scores: _Scores, skills: Sequence[SkillCard], used: Mapping[int, int], per_agent: tuple[int, int]
) -> None:
    """Add matches to `mine`: up to the fewest, fitting ones before others; up to the most, strong ones only."""
    fewest, most = per_agent
    top = max(scores.values(), default=0.0)
    for share, number in ((FITS, fewest), (0.0, fewest), (STRONG, most)):
        while len(mine) < number:
            left = {
                place: score / (1 + used.get(place, 0))
                for place, score in scores.items()
                if score >= share * top and place not in mine
            }
            if not left:
                break
            mine.append(_best(left, skills)[0])


def _spread(
    chosen: Mapping[str, list[int]],
    scores: Mapping[str, _Scores],
    skills: Sequence[SkillCard],
    asked: Mapping[str, int],
    most: int,
) -> None:
    """If all voices have the same set, give the one that needs it least another skill, or one less."""
    sets = {frozenset(places) for places in chosen.values()}
    if len(chosen) < 2 or len(sets) > 1 or not next(iter(sets)):
        return

    def need(name: str) -> tuple[int, float]:
        return asked[name], sum(scores[name].get(place, 0.0) for place in sorted(chosen[name]))

    name = min(reversed(list(chosen)), key=need)
    mine = chosen[name]
    others = [place for place in _best(scores[name], skills) if place not in mine]
    if len(mine) >= most or not others:
        mine.pop()
    mine.extend(others[:1])
