"""What happens in a mission, told: events in plain words that name no id, whatever agents wrote. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from cdo.cabal.model.entities import MissionEvent, MissionStep
from cdo.cabal.model.references import REFERENCE
from cdo.cabal.model.state import MissionState
from cdo.core.formatting import one_line
from cdo.core.mission_names import CHAIR, ENVOY, USER, WATCHDOG

_TOLD = 200  # characters of what somebody said that an event repeats
_CALLED = {
    CHAIR: "the chair",
    WATCHDOG: "the watchdog",
    ENVOY: "the envoy",
    "code": "the program",
    **dict.fromkeys((USER, "u:all", "user-1", "all"), "the user"),
}
_CITED = re.compile(r"\[\[[^\[\]]*\]\]")
_AGENT = re.compile(r"(?:new|operative|chair|watchdog|envoy)-[0-9]+|u:[a-z0-9-]+")
# Of a version people also speak without meaning an id ("the v1 API"): it is one in a reference only.
_ID = re.compile(rf"(?<![\w-])(?:[pcied][1-9][0-9]{{0,6}}|{_AGENT.pattern})(?![\w-])")


def recorded(
    state: MissionState, step: MissionStep, kind: str, actor: str, text: str, product: str = "", ref: str = ""
) -> MissionState:
    """The state with one more event, which has the next id; the other arguments are those of `MissionEvent`.

    `text` names no ids (`told` takes them out of what agents wrote); it becomes one visible line.
    """
    item = MissionEvent(f"e{len(state.events) + 1}", state.round, step, kind, actor, one_line(text), product, ref)
    return replace(state, events=(*state.events, item))


def called(agent: str) -> str:
    """What an agent is called where no id is to be seen: "the chair", "operative 2"; "nobody" for ""."""
    return _CALLED.get(agent) or agent.replace("-", " ") or "nobody"


def told(state: MissionState, text: str, limit: int = _TOLD) -> str:
    """What somebody wrote as one line of at most `limit` characters without ids: what they name stands for them."""
    plain = REFERENCE.sub(lambda match: _named(state, match[2]) or match[2], text[: 4 * limit])
    return one_line(_ID.sub(lambda match: _named(state, match[0]) or match[0], plain), limit)


def identifiers(state: MissionState, text: str) -> tuple[str, ...]:
    """The ids that a text names: references whatever they say, agents, and words that are ids of this mission."""
    found = _CITED.findall(text)
    rest = _CITED.sub(" ", text)
    found += [id for id in _ID.findall(rest) if _AGENT.match(id) or _named(state, id)]
    return tuple(dict.fromkeys(found))


def _named(state: MissionState, id: str) -> str:
    """What the thing or agent with an id is called; "" where there is none."""
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
    return called(id) if id in _CALLED or id in state.agents else ""
