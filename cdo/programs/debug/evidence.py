"""Rates the evidence in a root-cause analysis. Pure.

Code looks up what it can: places (`path:line`) in the repository, and quoted words and observations in the material
of the run. Evidence that was looked up and not found is kept and shown, but carries no status: it cannot make a
hypothesis supported or ruled out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

from msgspec import Struct

from cdo.repository.citation_syntax import Citation, find
from cdo.repository.quotes import CHECK, REPOSITORY, enough

Kind = Literal["checked ✓", "cited ✓", "cited ○", "cited", "quoted", "reported", "not found", "refuted", "opinion"]
WORTH: tuple[Kind, ...] = (
    "checked ✓",
    "cited ✓",
    "cited ○",
    "cited",
    "quoted",
    "reported",
)  # the kinds that can carry a status, best first
OWED = (
    'a place (`path:line "words there"`), a quote of what was read, or `observed: "…"` with words from the question, '
    "the context or the record of a command"
)
FRAME = 3  # words beside the quotes of an observation that are not looked up ("the question says")

_PLACE = re.compile(r"(?:[\w.@~-]+/[\w./@~-]*\w|\b[\w-]+\.[A-Za-z]\w{0,9}|\b(?:Makefile|Dockerfile)):[1-9]\d*\b")
_LINK = re.compile(r"https?://[\w-]+(?:\.[\w-]+)+\S*")
_QUOTE = re.compile(r'"[^"\n]{12,}"|\u201c[^\u201d\n]{12,}\u201d|`[^`\n]{12,}`')
_ANY_QUOTE = re.compile(r'"[^"\n]+"|\u201c[^\u201d\n]+\u201d|`[^`\n]+`')
_OBSERVED = re.compile(r"\s*(?:observed|measured|result|output)\s*:\s*(\S.{7,})", re.IGNORECASE | re.DOTALL)
_OPINION = re.compile(
    r"(?:i|we|one|they)\s+(?:think|believe|feel|guess|suspect|assume|expect)\b"
    r"|(?:probably|presumably|likely|maybe|perhaps|possibly|obviously|clearly|apparently)\b"
    r"|(?:it|this|that)\s+(?:seems|looks|appears|feels|must|should)\b",
    re.IGNORECASE,
)
# Matches `str(citation)`; its quote may contain quotation marks.
_CHECKED = re.compile(
    r'(?P<path>.+?):(?P<first>\d+)(?:-(?P<last>\d+))?(?: "(?P<quoted>.*)"|: (?P<words>.*))?', re.DOTALL
)
_Place = tuple[str, int, int]  # path, first and last line


def is_evidence(text: str) -> bool:
    """True if `text` is more than opinion: it names a place or a link, quotes, or says what was observed."""
    if _cites(text) or _QUOTE.search(text):
        return True
    seen = _OBSERVED.match(text)
    return bool(seen and not _OPINION.match(seen[1]))


def _cites(text: str) -> bool:
    return bool(_PLACE.search(text) or _LINK.search(text) or any(citation.first for citation in find(text)))


def looked_up(text: str) -> tuple[str, ...]:
    """Return the words in a piece of evidence that code has to find for it to count.

    For an observation, these are its quotes and every other part of more than `FRAME` words, or its whole text if it
    has no quote that is long enough. For other evidence, these are its quotes and links.
    """
    if not is_evidence(text):
        return ()
    if not (seen := _OBSERVED.match(text)):
        return tuple(dict.fromkeys([quote[1:-1] for quote in _QUOTE.findall(text)] + _LINK.findall(text)))
    quotes = [quote[1:-1] for quote in _ANY_QUOTE.findall(seen[1])]
    if not any(map(enough, quotes)):
        return (seen[1],)
    beside = _ANY_QUOTE.sub("\n", seen[1]).split("\n")
    return tuple(dict.fromkeys([*quotes, *(part for part in beside if len(re.findall(r"\w+", part)) > FRAME)]))


class Checks(Struct, frozen=True, dict=True):
    """What code found out about evidence.

    `verified`, `existing` and `refuted` are citations, each as `str(citation)`. For `existing` citations, code found
    the lines, but there were no words to compare. `places` says where words were found (see `quotes`), "" for
    nowhere. It is None if words were not looked up; they then count as stated.
    """

    verified: frozenset[str] = frozenset()
    refuted: frozenset[str] = frozenset()
    existing: frozenset[str] = frozenset()
    places: Mapping[str, str] | None = None

    def kind(self, text: str) -> Kind:
        """Return what a piece of evidence is worth.

        "checked ✓": its words are in the record of the command that cdo ran. "cited ✓": code found every place in it,
        with the words quoted from there. "cited ○": code found every place in it, but no words are quoted from some.
        "quoted": its words are in the question, the context or the repository. "reported": it is an observation in
        words of the question or the context. "cited": it names a link, or a place that code did not confirm.
        "not found": its words were found nowhere. "refuted": a citation in it is wrong. "opinion": none of these.
        """
        cited = [self._as_checked(citation) for citation in find(text)]
        if any(self._fails(citation) for citation in cited):
            return "refuted"
        if not is_evidence(text):
            return "opinion"
        observed = bool(_OBSERVED.match(text))
        holds = bool(cited) and all(_among(citation, self._holding) for citation in cited)
        # That a line exists does not prove what is claimed about it.
        if holds and (self.places is None or any(citation.quoted and citation.quote for citation in cited)):
            return "cited ✓"
        if cited and all(_among(item, self._holding) or _among(item, self._there) for item in cited):
            return "cited ○"
        if self.places is not None and (kind := _found(looked_up(text), self.places, observed=observed)):
            return kind
        if _cites(text):
            return "cited"
        if self.places is not None:
            return "not found"
        return "reported" if observed else "quoted"

    def carries(self, text: str) -> bool:
        """True if a piece of evidence can carry a status: it is good enough to change a hypothesis's status."""
        kind = self.kind(text)
        return kind in WORTH and (kind not in ("cited", "cited ○") or self.places is None)

    def best(self, evidence: Iterable[str]) -> Kind | None:
        """Return the kind of the best piece of evidence that carries a status; None if none does."""
        kinds = {self.kind(item) for item in evidence if self.carries(item)}
        return next((kind for kind in WORTH if kind in kinds), None)

    def sound(self, evidence: Iterable[str]) -> tuple[str, ...]:
        """Return the evidence without the refuted pieces."""
        return tuple(item for item in evidence if self.kind(item) != "refuted")

    def _as_checked(self, citation: Citation) -> Citation:
        """Return the reading of a citation that was checked, the longest one of several."""
        for reading in citation.readings:
            if any(_among(reading, known) for known in (self._holding, self._there, self._failing)):
                return reading
        return citation

    def _fails(self, citation: Citation) -> bool:
        """True if a citation was refuted, whatever punctuation its quote has.

        A place without a quote fails if a quote from it was refuted: leaving out the false words does not help.
        """
        if _among(citation, self._holding) or _among(citation, self._there):
            return False
        place = _place(citation)
        quotes = self._failing.get(place, ())
        bare = not citation.quote and place not in self._holding
        return bool(quotes) and (bare or "" in quotes or _among(citation, self._failing))

    @cached_property
    def _holding(self) -> Mapping[_Place, list[str]]:
        return _by_place(self.verified)

    @cached_property
    def _there(self) -> Mapping[_Place, list[str]]:
        return _by_place(self.existing)

    @cached_property
    def _failing(self) -> Mapping[_Place, list[str]]:
        return _by_place(self.refuted)


UNCHECKED = Checks()


def _found(words: Iterable[str], places: Mapping[str, str], *, observed: bool) -> Kind | None:
    """Return what words are worth after the lookup; None if not all of them were found.

    The repository does not back an observation: its files must be cited by path and line.
    """
    where = {places.get(item, "") for item in words}
    if not where or "" in where or (observed and REPOSITORY in where):
        return None
    if where == {CHECK}:
        return "checked ✓"
    return "reported" if observed else "quoted"


def _by_place(citations: Iterable[str]) -> dict[_Place, list[str]]:
    """Return the quotes that were checked, by the place that each was cited from."""
    found: dict[_Place, list[str]] = {}
    for parts in filter(None, map(_CHECKED.fullmatch, citations)):
        place = parts["path"], int(parts["first"]), int(parts["last"] or parts["first"])
        found.setdefault(place, []).append(_key(parts["quoted"] or parts["words"] or ""))
    return found


def _place(citation: Citation) -> _Place:
    return citation.path, citation.first, citation.last


def _among(citation: Citation, checked: Mapping[_Place, list[str]]) -> bool:
    """True if a citation is one of the `checked` ones.

    The checked ones were found in the text of a reply, where YAML escapes quotation marks, and words without
    quotation marks run on to the end of the line.
    """
    quotes, own = checked.get(_place(citation), ()), _key(citation.quote)
    return own in quotes or (bool(own) and not citation.quoted and any(quote.startswith(own) for quote in quotes))


def _key(quote: str) -> str:
    """Return a quote in the form used for comparison: its letters and digits, or its other signs if it has none."""
    return "".join(re.findall(r"\w+", quote)) or "".join(quote.split())
