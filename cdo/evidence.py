"""What counts as evidence in a root-cause analysis, and what it is worth: cited, quoted or only reported. Pure.

A place that code looked up and did not find carries nothing. What a voice says that it observed is worth its word and
no more: voices read, and run nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cdo.citations import Citation, find

Kind = Literal["cited ✓", "cited", "quoted", "reported", "refuted", "opinion"]
WORTH: tuple[Kind, ...] = ("cited ✓", "cited", "quoted", "reported")  # what carries a status, best first
OWED = "a place (`path:line`), a quote of what was read, or `observed: …` with what was seen"

_PLACE = re.compile(r"(?:[\w.@~-]+/[\w./@~-]*\w|\b[\w-]+\.[A-Za-z]\w{0,9}|\b(?:Makefile|Dockerfile)):[1-9]\d*\b")
_LINK = re.compile(r"https?://[\w-]+(?:\.[\w-]+)+\S*")
_QUOTE = re.compile(r'"[^"\n]{12,}"|\u201c[^\u201d\n]{12,}\u201d|`[^`\n]{12,}`')
_OBSERVED = re.compile(r"\s*(?:observed|measured|result|output)\s*:\s*(\S.{7,})", re.IGNORECASE | re.DOTALL)
_OPINION = re.compile(
    r"(?:i|we|one|they)\s+(?:think|believe|feel|guess|suspect|assume|expect)\b"
    r"|(?:probably|presumably|likely|maybe|perhaps|possibly|obviously|clearly|apparently)\b"
    r"|(?:it|this|that)\s+(?:seems|looks|appears|feels|must|should)\b",
    re.IGNORECASE,
)
# `str(citation)`, whose quote may hold quotes of its own.
_CHECKED = re.compile(
    r'(?P<path>.+?):(?P<first>\d+)(?:-(?P<last>\d+))?(?: "(?P<quoted>.*)"|: (?P<words>.*))?', re.DOTALL
)
_Place = tuple[str, int, int]  # path, first and last line


def is_evidence(text: str) -> bool:
    """Whether `text` is more than opinion: it names a place or a link, quotes, or says what was observed."""
    if _cites(text) or _QUOTE.search(text):
        return True
    seen = _OBSERVED.match(text)
    return bool(seen and not _OPINION.match(seen[1]))


def _cites(text: str) -> bool:
    return bool(_PLACE.search(text) or _LINK.search(text) or any(citation.first for citation in find(text)))


@dataclass(frozen=True)
class Checks:
    """What code found out about citations, each as `str(citation)`: those that hold, and those that do not."""

    verified: frozenset[str] = frozenset()
    refuted: frozenset[str] = frozenset()

    def kind(self, text: str) -> Kind:
        """What a piece of evidence is worth.

        "cited ✓": code found every place in it, with the words quoted from there; "cited": a place or link that
        nobody looked up; "quoted": words somebody read, without where; "reported": what a voice says was observed;
        "refuted": a place in it does not hold; "opinion": none of these.
        """
        cited = find(text)
        if any(self._fails(citation) for citation in cited):
            return "refuted"
        if not is_evidence(text):
            return "opinion"
        if cited and all(_among(citation, self._holding) for citation in cited):
            return "cited ✓"
        if _cites(text):
            return "cited"
        return "reported" if _OBSERVED.match(text) else "quoted"

    def best(self, evidence: Iterable[str]) -> Kind | None:
        """The kind of the best piece of evidence that carries anything; None where none does."""
        kinds = {self.kind(item) for item in evidence}
        return next((kind for kind in WORTH if kind in kinds), None)

    def sound(self, evidence: Iterable[str]) -> tuple[str, ...]:
        """The evidence without what rests on a citation that does not hold."""
        return tuple(item for item in evidence if self.kind(item) != "refuted")

    def _fails(self, citation: Citation) -> bool:
        """Whether a citation does not hold, in whatever signs its quote stands.

        A place without a quote fails with every quote from it: taking the false words out does not make it hold.
        """
        if _among(citation, self._holding):
            return False
        place = _place(citation)
        quotes = self._failing.get(place, ())
        bare = not citation.quote and place not in self._holding
        return bool(quotes) and (bare or "" in quotes or _among(citation, self._failing))

    @cached_property
    def _holding(self) -> Mapping[_Place, list[str]]:
        return _by_place(self.verified)

    @cached_property
    def _failing(self) -> Mapping[_Place, list[str]]:
        return _by_place(self.refuted)


UNCHECKED = Checks()


def _by_place(citations: Iterable[str]) -> dict[_Place, list[str]]:
    """The quotes that were checked, by the place they are said to come from."""
    found: dict[_Place, list[str]] = {}
    for parts in filter(None, map(_CHECKED.fullmatch, citations)):
        place = parts["path"], int(parts["first"]), int(parts["last"] or parts["first"])
        found.setdefault(place, []).append(_key(parts["quoted"] or parts["words"] or ""))
    return found


def _place(citation: Citation) -> _Place:
    return citation.path, citation.first, citation.last


def _among(citation: Citation, checked: Mapping[_Place, list[str]]) -> bool:
    """Whether a citation is one of those that were `checked`.

    These were found in the text of a reply, where YAML escapes quotes and words without quotes run on to the end of
    the line.
    """
    quotes, own = checked.get(_place(citation), ()), _key(citation.quote)
    return own in quotes or (bool(own) and not citation.quoted and any(quote.startswith(own) for quote in quotes))


def _key(quote: str) -> str:
    """A quote as it is compared: its letters and digits, or its signs where it has no others."""
    return "".join(re.findall(r"\w+", quote)) or "".join(quote.split())
