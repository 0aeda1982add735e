"""Lets the person sign a mission off before it ends as done. Pure.

A refusal is a blocking concern by the person on the root: the mission is not done before a newer version resolves it,
or the person withdraws it.
"""

from __future__ import annotations

from msgspec.structs import replace

from cdo.cabal.model.entities import BLOCKING, MissionStep, Question
from cdo.cabal.model.events import recorded
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules import acceptance, person
from cdo.core.formatting import pluralise
from cdo.core.mission_names import ROOT, USER

ACCEPT = "accept"  # the answer that ends the mission


def due(state: MissionState) -> bool:
    """True if the mission would end as done now, and the person has to sign it off first."""
    return state.sign_off and state.halt == "done" and bool(state.live()) and not acceptance.unaccepted(state)


def asked(state: MissionState) -> tuple[MissionState, Question]:
    """Ask the person for the sign-off. Until the answer, the mission has not ended."""
    text = (
        f"The work is done, with {pluralise(len(state.live()), 'product')} accepted; the files are in deliverables/. "
        f"Say “{ACCEPT}” if this is what you asked for, else what has to change."
    )
    item = Question(f"r{state.round}-sign-off", text, (ACCEPT,), "", state.round, sign_off=True)
    state = replace(state, halt="", questions=(*state.questions, item))
    return recorded(
        state, MissionStep.PRESENT, "question", "code", "The user is asked for the sign-off", "", item.name
    ), item


def accepts(answer: str) -> bool:
    """True if an answer signs the mission off."""
    return answer.strip(" .!\n").casefold() == ACCEPT


def answered(state: MissionState, name: str, answer: str) -> MissionState:
    """Apply the person's answer to the request for a sign-off in the call `name`."""
    if accepts(answer):
        state = person.answered(state, name, ACCEPT)
        why = f"{state.why.rstrip(' .')}. The user signed it off in round {state.round}."
        state = replace(state, halt="done", why=why)
        return recorded(state, MissionStep.PRESENT, "halt", USER, "The user signed the mission off")
    state = replace(person.answered(state, name, answer), why="")
    return person.user_said(state, answer, ROOT, "concern", BLOCKING)
