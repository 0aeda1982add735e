"""Which skills each voice gets: cards, local ranking, and a choice that never gives all voices the same. Pure.

Ranking runs on this machine alone: SQLite's full-text search in memory, or a plain count of words where SQLite
was built without it. The same cards and words always give the same order.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, TypeVar

from pydantic import Field

from cdo.content.schemas import Band
from cdo.core.schema import Schema
from cdo.core.words import FUNCTION_WORDS, words

NAME = r"[a-z0-9]+(?:-[a-z0-9]+)*"
MAX_NAME = 64
# A match in the name or a tag says more than one in the description.
WEIGHTS = {"name": 6.0, "tags": 4.0, "description": 1.0}
MAX_QUERY = 20_000  # characters
MAX_WORDS = 200
# Share of the best score from which on a skill fits a voice, and from which on it is worth a further place.
FITS, STRONG = 0.2, 0.5
# What most descriptions of skills hold says nothing about one either.
_STOP = FUNCTION_WORDS | words(
    "against ask asks help helps i like make makes me need needs new skill skills task tasks user users "
    "uses without work works"
)
_REFERENCE = re.compile(r"skill://([A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*)")


class Card(Protocol):
    """What can be ranked: a skill, or a role."""

    @property
    def name(self) -> str:
        """Its name, unique among those it is ranked with."""
        ...

    @property
    def description(self) -> str:
        """What it does and when it is of use."""
        ...

    @property
    def tags(self) -> Sequence[str]:
        """The words it is filed under."""
        ...


CARD = TypeVar("CARD", bound=Card)


Place = Literal["given", "project", "user", "built in"]


class SkillCard(Schema):
    """What the catalogue holds of a skill, and what a session freezes: enough to choose it and to find it unchanged.

    `path` is that of its SKILL.md, links resolved; `sha256` is of all bytes of that file; `place` says whose it is.
    """

    name: Annotated[str, Field(pattern=f"^{NAME}$", max_length=MAX_NAME)]
    description: Annotated[str, Field(min_length=1)]
    tags: tuple[str, ...] = ()
    place: Place
    path: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class SkillInjection(Schema):
    """`dispatch/skill-injection.md`: how many skills a voice gets ([fewest, most]), and how much of each.

    `max_chars` bounds the body of one skill in a brief; the file's body words the chosen ones.
    """

    purpose: str
    load_when: str
    per_agent: Band
    max_chars: Annotated[int, Field(ge=200)]


@dataclass(frozen=True)
class SkillQuery:
    """What a voice could use: its name, the words of its work (role, charge, focus, question), and its wishes.

    A wish is the name of a skill, `skill://NAME`, or free words, for which the best match is taken.
    """

    name: str
    query: str
    wishes: Sequence[str] = ()


def query(role: str, charge: str, focus: str, topic: str) -> str:
    """The words of a voice's work, by which skills are ranked for it."""
    return " ".join(filter(None, (role.replace("-", " "), charge, focus, topic)))


def slug(text: str) -> str:
    """`text` as the name of a skill: a-z, 0-9 and single hyphens, at most 64 characters; "" where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MAX_NAME].strip("-")


def references(text: str) -> list[str]:
    """The names that `text` refers to as `skill://NAME`, each once, in order."""
    return list(dict.fromkeys(slug(name) for name in _REFERENCE.findall(text)))


def resolve(name: str, skills: Iterable[SkillCard]) -> SkillCard | None:
    """The skill that is called `name` (also written `skill://NAME`), or None."""
    wanted = slug(name.strip().removeprefix("skill://"))
    return next((card for card in skills if card.name == wanted), None)


# -- ranking ---------------------------------------------------------------------------------------


def rank(skills: Sequence[CARD], query: str, tags: Iterable[str] = ()) -> list[CARD]:
    """The cards that match, best first: those that carry more of `tags`, then by the words of `query`.

    The words of `tags` count as words of the query too. `query` may be any text; nothing in it is an operator.
    """
    wanted = {tag.lower() for tag in tags}
    (scores,) = _scores(skills, [f"{' '.join(sorted(wanted))} {query}"])
    carried = {place: len(wanted & set(card.tags)) for place, card in enumerate(skills)}
    found = [place for place in range(len(skills)) if place in scores or carried[place]]
    found.sort(key=lambda place: (-carried[place], -scores.get(place, 0.0), skills[place].name, place))
    return [skills[place] for place in found]


_Scores = Mapping[int, float]  # of the skills that match at all, by their place in the sequence; more is better


def _scores(skills: Sequence[Card], queries: Sequence[str]) -> list[_Scores]:
    """How well each skill matches each query."""
    wanted = [_words(query) for query in queries]
    try:
        return _by_search(skills, wanted)
    except sqlite3.Error:  # built without full-text search
        return [_by_count(skills, words) for words in wanted]


def _words(text: str) -> list[str]:
    """The telling words of a text, each once: letters and digits only, so that no query language gets through."""
    found = dict.fromkeys(re.findall(r"[^\W_]+", text[:MAX_QUERY].lower()))
    return [word for word in found if word not in _STOP and (len(word) > 1 or not word.isascii())][:MAX_WORDS]


def _by_search(skills: Sequence[Card], queries: Sequence[Sequence[str]]) -> list[_Scores]:
    """Scores by BM25 over word stems; raises `sqlite3.Error` where full-text search is missing."""
    columns, weights = ", ".join(WEIGHTS), ", ".join(map(str, WEIGHTS.values()))
    with closing(sqlite3.connect(":memory:")) as base:
        base.execute(f"CREATE VIRTUAL TABLE skill USING fts5({columns}, tokenize = 'porter unicode61')")
        base.executemany(
            f"INSERT INTO skill (rowid, {columns}) VALUES (?, ?, ?, ?)",
            ((place, card.name, " ".join(card.tags), card.description) for place, card in enumerate(skills)),
        )
        best_last = f"SELECT rowid, bm25(skill, {weights}) FROM skill WHERE skill MATCH ?"
        return [
            {place: -score for place, score in base.execute(best_last, (" OR ".join(f'"{word}"' for word in words),))}
            if words
            else {}
            for words in queries
        ]


def _by_count(skills: Sequence[Card], words: Sequence[str]) -> _Scores:
    """Scores by which of the words a skill has, rarer ones above those that many have."""
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

    A voice gets its wishes, then what is `shared` (names or free words, in turn where there are more than fit beside
    one of its own), then what ranks best for its query and others have less often: up to the fewest whatever matches
    at all (first what scores at least `FITS` of its best match), up to the most only what scores at least `STRONG`
    of it. What matches none of its words is never added to reach a number: with few skills that match, a voice has
    few.

    Two or more voices never all get the same set, save none at all. Where they would, it is one voice that differs:
    the one with the fewest wishes and shared skills, of these the one whom the set fits least, of equals the last.
    It gets its next match beside the set if there is room, else in the place of the set's last, and where nothing
    else matches, one less. So a single skill goes to all whom it matches but one.
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
    """The skills that names or free words stand for; what `skill://` names and is not there stands for none."""
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
    """Add to `mine` what matches: up to the fewest what fits before what does not, up to the most what fits well."""
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
    """Where all voices have the same set, give the one that needs it least another skill, or one less."""
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
