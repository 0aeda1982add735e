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


def called(agent: str) -> str:
    """Return an agent's name for texts without ids, such as "the chair" or "operative 2"; "nobody" for ""."""
    return ROLES.get(agent) or agent.replace("-", " ") or "nobody"


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
