"""Takes in what the person does: versions and comments of theirs, questions to them and their answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cdo.cabal.model.entities import FIRST, Kind, MissionStep, Question, Remark, Status
from cdo.cabal.model.events import recorded, told
from cdo.cabal.model.product_files import folder_problems
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules.feedback import closed, raised
from cdo.cabal.rules.reopening import objected
from cdo.cabal.rules.versions import versioned
from cdo.core import file_paths
from cdo.core.mission_names import CHAIR, USER

_SUMMARY = 120  # most characters of the summary of a person's comment


def user_version(
    state: MissionState, product: str, title: str, content: str, summary: str, outcome: str = ""
) -> MissionState:
    """Add a version by the person. A Decision without an `outcome` keeps its last one, or else takes its title.

    No version is added to an archived product or a container, or if the text equals the last version. Raises
    `ValueError` for an unknown product.
    """
    item = state.products.get(product)
    if item is None:
        raise ValueError(f"{product} is not a product")
    last = state.latest(product)
    decided = outcome.strip() or (last.outcome if last else title)
    outcome = decided if item.kind is Kind.DECISION else ""
    if last and (last.content.strip(), last.outcome) == (content.strip(), outcome):
        return state
    if item.container or item.status is Status.ARCHIVED:
        why = "it is archived" if item.status is Status.ARCHIVED else "it only holds others"
        text = f"What the user wrote for {item.name} was not taken: {why}"
        return recorded(state, FIRST, "user", USER, text, product)
    if file_paths.is_folder(item.path) and (wrong := folder_problems(item.path, content)):
        text = f"What the user wrote for {item.name} was not taken: {'; '.join(wrong)}"
        return recorded(state, FIRST, "user", USER, text, product)
    return versioned(state, FIRST, USER, product, title, content, summary, outcome=outcome)


def user_said(
    state: MissionState, text: str, product: str = "", kind: str = "feedback", importance: int = 7
) -> MissionState:
    """Add the person's comment: a collab if `product` exists and is not archived, else a remark to the whole team.

    A remark about an archived product begins with the product's name, the kind and the importance.
    """
    item = state.products.get(product)
    if item is None or item.status is Status.ARCHIVED:
        if item is not None:
            text = f"About {item.name}, which is archived ({kind}, importance {importance}): {text}"
        remark = Remark(USER, state.agents, "note", text, state.round, state.at)
        state = replace(state, remarks=(*state.remarks, remark))
        return recorded(state, FIRST, "user", USER, f"The user said: {told(state, text)}")
    summary = told(state, text, _SUMMARY)
    state, collab = raised(state, FIRST, USER, product, kind, importance, text, summary)
    if collab.blocking:
        state = objected(state, collab, FIRST, USER, f"the user raised a blocking {kind}")
    return state


def user_withdrew(state: MissionState, id: str, why: str) -> MissionState:
    """Close a collab by the person that no longer holds; if there is none of this id, record that."""
    collab = state.collabs.get(id)
    if collab is None or collab.author != USER or not collab.open:
        text = "The user withdrew a note that is not open, or not by the user: nothing changed"
        return recorded(state, FIRST, "user", USER, text, collab.product if collab else "")
    return closed(state, FIRST, id, USER, "withdrawn", why)


def asked(state: MissionState, name: str, question: str, options: Sequence[str]) -> MissionState:
    """Record a question to the person, asked in the call `name`."""
    item = Question(name, question, tuple(options), "", state.round)
    state = replace(state, questions=(*state.questions, item))
    return recorded(state, _asking(state), "question", CHAIR, f"The chair asks: {told(state, question)}", "", name)


def answered(state: MissionState, name: str, answer: str) -> MissionState:
    """Record the person's answer to the question asked in the call `name`; raise `ValueError` if there is none."""
    place = next((at for at in reversed(range(len(state.questions))) if state.questions[at].name == name), None)
    if place is None:
        raise ValueError(f"nothing was asked in {name}")
    given = replace(state.questions[place], answer=answer)
    state = replace(state, questions=(*state.questions[:place], given, *state.questions[place + 1 :]))
    return recorded(state, _asking(state), "answer", USER, f"The user answers: {told(state, answer)}", "", name)


def _asking(state: MissionState) -> MissionStep:
    return MissionStep.PLAN if state.round else MissionStep.BOOTSTRAP
