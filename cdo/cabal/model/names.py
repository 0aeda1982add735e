"""Names the people and programs of a mission in words: by persona or by role. Pure."""

from __future__ import annotations

import re

from cdo.cabal.model.state import MissionState
from cdo.core.mission_names import CHAIR, ENVOY, USER, WATCHDOG

ROLES = {
    CHAIR: "the chair",
    WATCHDOG: "the watchdog",
    ENVOY: "the envoy",
    "code": "the program",
    **dict.fromkeys((USER, "u:all", "user-1", "all"), "the user"),
}
_NAME = r"([^\W\d_][\w'’-]{0,39}(?: [^\W\d_][\w'’-]{0,39})?)"
_PERSONA = re.compile(rf"\s*You are {_NAME}[,.]")
_NAMED = re.compile(rf"\s*(?!(?:An?|The|Your) ){_NAME},")  # "Richard, Full-Stack Developer leading this MVP."
_TAKEN = re.compile(r"\b(?:chair|watchdog|envoy|operative|user|program|team|you|nobody|all)\b", re.IGNORECASE)


def role(agent: str) -> str:
    """Return an agent's role in words, such as "the chair" or "operative 2"; "nobody" for ""."""
    return ROLES.get(agent) or agent.replace("-", " ") or "nobody"


def called(state: MissionState, agent: str) -> str:
    """Return an agent's name for texts without ids: its role, or the name of an operative's persona (rules since 5).

    A name that could also mean another agent is not used.
    """
    plain = role(agent)
    name = speaker(state, agent) if state.rules >= 5 and agent in state.team else agent
    alike = [other for other in state.agents if speaker(state, other).casefold() == name.casefold()]
    return name if name != agent and alike == [agent] and not _TAKEN.search(name) else plain


def speaker(state: MissionState, agent: str) -> str:
    """Return the name in an agent's persona ("You are Alex, …"), else the agent's id; "You" for the user.

    A persona may begin with the name too ("Alex, …"); then each of its words has a capital letter.
    """
    if agent == USER:
        return "You"
    persona = state.mission.personas.get(agent, "") if state.mission else ""
    if match := _PERSONA.match(persona):
        return match[1] if match[1][0].isupper() else agent
    short = _NAMED.match(persona) if state.rules >= 4 else None
    return short[1] if short and all(word[0].isupper() for word in short[1].split()) else agent
