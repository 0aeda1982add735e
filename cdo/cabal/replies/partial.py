"""Keeps the valid entries of a reply of which others break a rule, so that only those go back. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from cdo.cabal.model.entities import MissionStep
from cdo.cabal.replies.fields import bracketed

_TALK = ("collabs", "remarks", "confirms", "withdraws")
# The lists of a reply whose entries stand for themselves. What else a plan holds is one transaction.
PARTS: Mapping[MissionStep, tuple[str, ...]] = {
    MissionStep.REFLECT: ("reflections", *_TALK),
    MissionStep.PLAN: ("assignments", "chair_versions", "collabs", "remarks"),
    MissionStep.WRITE: ("versions", *_TALK),
    MissionStep.REVIEW: _TALK,
    MissionStep.INSPECT: ("inspections", *_TALK),
}
SAID = 4000  # most characters of a refused entry that its author is shown again


class RefusedPart(Struct, frozen=True):
    """An entry that was not taken: its list `key`, its `product` ("" for none), the problems, the entry as sent."""

    key: str
    product: str
    problems: tuple[str, ...]
    said: str = ""


Check = Callable[[Mapping[str, Any]], Sequence[str]]


def valid_part(
    step: MissionStep, data: Mapping[str, Any], check: Check
) -> tuple[dict[str, Any], tuple[RefusedPart, ...]] | None:
    """Return the data with its valid entries only, and the others; None if nothing can be kept.

    `check` returns the problems with such data. What is not in a list of `PARTS` has to be valid.
    """
    given = {key: bracketed(data.get(key)) for key in PARTS.get(step, ()) if key in data}
    lists = {key: entries for key, entries in given.items() if isinstance(entries, list)}
    bare = {**data, **{key: [] for key in lists}}
    if check(bare):
        return None
    kept: dict[str, list[Any]] = {key: [] for key in lists}
    refused: list[RefusedPart] = []
    for key, entries in lists.items():
        for entry in entries:
            if problems := check({**bare, key: [entry]}) or check({**bare, **kept, key: [*kept[key], entry]}):
                refused.append(RefusedPart(key, product_of(entry), tuple(problems), shown(entry)))
            else:
                kept[key].append(entry)
    return ({**data, **kept}, tuple(refused)) if any(kept.values()) else None


def product_of(entry: Any) -> str:
    """Return the product that an entry names, as written; "" if it names none."""
    said = (entry.get("product_id") or entry.get("refersToProduct")) if isinstance(entry, dict) else None
    return said.strip() if isinstance(said, str) else ""


def shown(entry: Any) -> str:
    """Return an entry as its author is shown it again."""
    return json.dumps(entry, ensure_ascii=False)[:SAID]
