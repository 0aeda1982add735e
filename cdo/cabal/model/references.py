"""Finds ids in the texts of agents (references like `[[p:p4]]`, recipients of remarks) and words errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from cdo.cabal.model.entities import Status
from cdo.cabal.model.state import MissionState
from cdo.core.mission_names import USER
from cdo.formats.strict_yaml import shown

REFERENCE = re.compile(r"\[\[[ \t]{0,4}([pvcau])[ \t]{0,4}:[ \t]{0,4}([^\[\]\s]{1,80})[ \t]{0,4}\]\]")
SHOWN = 24  # most existing ids that an error message lists
MOST = 8  # most unresolved references that are reported one by one
_NOUNS = {"p": "product", "v": "version", "c": "collab", "a": "agent", "u": "user"}
_PEOPLE = ("user-1", "all")


def cited(text: str) -> tuple[tuple[str, str], ...]:
    """Return the references in a text as (kind, id), each once, in order, whether or not they resolve."""
    return tuple(dict.fromkeys((match[1], match[2]) for match in REFERENCE.finditer(text)))


def problems(texts: Iterable[str], state: MissionState, what: str) -> list[str]:
    """Return a sentence for each reference that does not resolve; `what` names the place of the texts.

    References to archived products resolve.
    """
    wrong = dict.fromkeys((kind, id) for text in texts for kind, id in cited(text) if id not in _known(kind, state))
    found = [
        f"{what}: [[{kind}:{shown(id)}]] is not {'an' if kind == 'a' else 'a'} {_NOUNS[kind]}; {there(state, kind)}."
        for kind, id in list(wrong)[:MOST]
    ]
    return [*found, f"{what}: {len(wrong) - MOST} more references do not resolve."] if len(wrong) > MOST else found


def _known(kind: str, state: MissionState) -> Collection[str]:
    if kind in ("p", "v", "c"):
        return {"p": state.products, "v": state.versions, "c": state.collabs}[kind]
    return state.agents if kind == "a" else _PEOPLE


def recipients(names: Sequence[str], state: MissionState, author: str) -> tuple[tuple[str, ...], list[str]]:
    """Return a remark's recipients, each once, as agent ids and `u:user-1`; and a sentence for each unknown name.

    `author` is the agent that makes the remark.
    """
    found: dict[str, None] = {}
    wrong: list[str] = []
    for name in names:
        plain = name.strip().removeprefix("[[").removesuffix("]]").strip().lower().removeprefix("a:")
        if plain == "team":
            found |= dict.fromkeys(agent for agent in state.agents if agent != author)
        elif plain == "self":
            found[author] = None
        elif plain in state.agents:
            found[plain] = None
        elif plain in (USER, "user-1", "u:all"):
            found[USER] = None
        else:
            wrong.append(
                f"{shown(name)} is nobody; a remark goes to {', '.join(state.agents)}, team, self or {USER}."
            )
    return tuple(found), wrong


# -- what a model is told --------------------------------------------------------------------------


def listed(items: Iterable[str], most: int = 20) -> str:
    """Return ids or words as part of a sentence: "a", "a and b", "a, b and c", "none".

    Only the first `most` items are named; the others are counted.
    """
    found = list(items)
    if len(found) > most:
        found = [*found[:most], f"{len(found) - most} more"]
    *first, last = found or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def there(state: MissionState, kind: str = "p") -> str:
    """Return a clause for error messages, such as "the products are p1, p4": the newest ids, no archived products."""
    gone = {id for id, item in state.products.items() if item.status is Status.ARCHIVED} if kind == "p" else ()
    known = [id for id in _known(kind, state) if id not in gone]
    if not known:
        return f"there are no {_NOUNS[kind]}s yet"
    older = [f"{len(known) - SHOWN} older ones"] if len(known) > SHOWN else []
    return f"the {_NOUNS[kind]}s are {listed([*known[-SHOWN:], *older], SHOWN + 1)}"


def absent(state: MissionState, id: str) -> str:
    """Return a clause why the product with an id cannot be used (unknown or archived); "" if it can."""
    product = state.products.get(id)
    if product is None:
        return f"{id} is not a product; {there(state)}"
    return f"{id} ({product.name}) is archived; {there(state)}" if product.status is Status.ARCHIVED else ""
