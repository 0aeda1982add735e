"""Records the events of a mission, in plain words without ids, also where agents wrote ids. Pure."""

from __future__ import annotations

import re

from msgspec.structs import replace

from cdo.cabal.model.entities import MissionEvent, MissionStep
from cdo.cabal.model.names import ROLES, called
from cdo.cabal.model.references import REFERENCE
from cdo.cabal.model.state import MissionState
from cdo.core.formatting import one_line

_TOLD = 200  # most characters of an agent's text in an event
_CITED = re.compile(r"\[\[[^\[\]]*\]\]")
_AGENT = re.compile(r"(?:new|operative|chair|watchdog|envoy)-[0-9]+|u:[a-z0-9-]+")
# Ids of versions are missing here: "v1" may mean something else ("the v1 API"), so they count only in references.
_ID = re.compile(rf"(?<![\w-])(?:[pcied][1-9][0-9]{{0,6}}|{_AGENT.pattern})(?![\w-])")


def recorded(
    state: MissionState, step: MissionStep, kind: str, actor: str, text: str, product: str = "", ref: str = ""
) -> MissionState:
    """Return the state with one more event, which gets the next id; the other arguments are fields of `MissionEvent`.

    `text` must not contain ids (`told` removes them from texts of agents); it becomes one visible line.
    """
    item = MissionEvent(f"e{len(state.events) + 1}", state.round, step, kind, actor, one_line(text), product, ref)
    return replace(state, events=(*state.events, item))


def told(state: MissionState, text: str, limit: int = _TOLD) -> str:
    """Return an agent's text as one line of at most `limit` characters, with names in place of known ids."""
    plain = REFERENCE.sub(lambda match: _named(state, match[2]) or match[2], text[: 4 * limit])
    return one_line(_ID.sub(lambda match: _named(state, match[0]) or match[0], plain), limit)


def identifiers(state: MissionState, text: str) -> tuple[str, ...]:
    """Return the ids in a text: references (also unresolved ones), agents, and words that are ids of this mission."""
    found = _CITED.findall(text)
    rest = _CITED.sub(" ", text)
    found += [id for id in _ID.findall(rest) if _AGENT.match(id) or _named(state, id)]
    return tuple(dict.fromkeys(found))


def _named(state: MissionState, id: str) -> str:
    """Return the name of the thing or agent with an id; "" if there is none."""
    if product := state.products.get(id):
        return product.name
    if version := state.versions.get(id):
        return f"version {version.number} of {state.products[version.product].name}"
    if collab := state.collabs.get(id):
        return f"the {collab.kind} on {state.products[collab.product].name}"
    if inspection := state.inspections.get(id):
        return f"the inspection of {state.products[inspection.product].name}"
    if id[0] == "e" and id[1:].isdecimal() and int(id[1:]) <= len(state.events):
        return "what happened"
    if id[0] == "d" and any(item.id == id for product in state.products.values() for item in product.dod):
        return "a criterion"
    return called(state, id) if id in ROLES or id in state.agents else ""
