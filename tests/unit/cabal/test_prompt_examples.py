"""The filled-in example in each step's prompt: it passes that step's format and rules, in the mission it is of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cdo.cabal.model.entities import STEPS, Collab, Criterion, MissionEvent, MissionStep, Status, Version
from cdo.cabal.model.state import MissionState
from cdo.cabal.reply_format import StepFormat
from cdo.content.library import Library
from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG
from cdo.core.steps import InvalidReply
from cdo.formats.lenient.reading import read
from tests.support.cabal_team import bootstrap, said
from tests.support.missions import ALEX, JORDAN, todo

LIBRARY = Library.at(Path("/"))
MARK = re.compile(r"of another mission\)?:\s")
KEYS = {
    MissionStep.BOOTSTRAP: "initial_products", MissionStep.REFLECT: "reflections", MissionStep.PLAN: "assignments",
    MissionStep.WRITE: "versions", MissionStep.REVIEW: "collabs", MissionStep.INSPECT: "inspections",
    MissionStep.PRESENT: "messages",
}  # fmt: skip
ACTORS = {
    MissionStep.BOOTSTRAP: CHAIR, MissionStep.PLAN: CHAIR, MissionStep.REVIEW: JORDAN, MissionStep.INSPECT: WATCHDOG,
    MissionStep.PRESENT: ENVOY,
}  # fmt: skip
EVIDENCE = (("quote", "passed"), ("note", "passed"), ("dod_gaps", "dod_status"), ("planned_change", "action"),
            ("issue", "severity"),
            ("criteria", "findings"), ("events", "content"))  # fmt: skip


def example(step: MissionStep) -> tuple[dict[str, Any], str]:
    """The example of a step's prompt, and the documents behind it."""
    body = LIBRARY.load(f"templates/cabal/{step}").body
    found = MARK.search(body)
    assert found, f"{step} has no example"
    rest = body[found.end() :].lstrip()
    item, end = json.JSONDecoder().raw_decode(rest)
    item = item[KEYS[step]][0] if "response_type" in item else item
    return item, rest[end:].partition("{% endblock %}")[0] if step is MissionStep.WRITE else ""


def bakery(step: MissionStep) -> MissionState:
    """A mission in which the examples could have been said: the recipe p4 rests on the Decision p3."""
    state = todo(1)
    before = "Mix 500 g of flour, 350 g of water and the salt. Prove the dough overnight at 24 degrees."
    recipe = Version("v7", 2, "p4", ALEX, "Bread recipe", before, "A draft", int(step is not MissionStep.WRITE))
    open_ = Collab("c6", "p4", "concern", 8, JORDAN, "It overferments at 24 degrees.", "Too warm", 1, "v7")
    dod = (Criterion("d1", "Gives every amount in grams"), Criterion("d2", "Says how long the dough proves"))
    p4 = replace(state.products["p4"], dod=dod, versions=("v2", "v7"), status=Status.IN_PROGRESS)
    told = MissionEvent("e12", state.round, MissionStep.INSPECT, "inspection", WATCHDOG, "It needs a revision", "p4")
    if step is MissionStep.BOOTSTRAP:
        state = replace(state, round=0, mission=None, products={}, versions={}, collabs={}, inspections={}, events=())
        return replace(state, assignments={}, remarks=(), reflections=(), messages=(), seen={})
    return replace(
        state,
        products={**state.products, "p4": p4},
        versions={**state.versions, "v7": recipe},
        collabs={**state.collabs, "c6": open_},
        events=(*state.events, told),
    )


def reply(step: MissionStep, item: dict[str, Any], documents: str) -> str:
    if step is not MissionStep.BOOTSTRAP:
        return said(rationale="It follows.", **{KEYS[step]: [item]}) + documents.removeprefix(" and its text:")
    first = {"new_id": "new-1", "name": "Proving", "type": "Decision", "dod": [{"text": "Says how warm"}]}
    return bootstrap(initial_products=[first, item])


def form(step: MissionStep) -> StepFormat:
    about = () if step in (MissionStep.BOOTSTRAP, MissionStep.PLAN, MissionStep.PRESENT) else ("p4",)
    return StepFormat(step, ACTORS.get(step, ALEX), bakery(step), about)


@pytest.mark.parametrize("step", STEPS)
def test_the_example_of_each_step_is_a_valid_reply(step: MissionStep) -> None:
    item, documents = example(step)
    found: Any = read(form(step), reply(step, item, documents)).data
    assert len(getattr(found, KEYS[step])) == 1 + (step is MissionStep.BOOTSTRAP) and not found.refused
    keys = json.dumps(item)
    for evidence, verdict in EVIDENCE:
        if f'"{verdict}"' in keys and f'"{evidence}"' in keys:
            assert keys.index(f'"{evidence}"') < keys.index(f'"{verdict}"'), "evidence before verdict"


UNFILLED: dict[MissionStep, dict[str, Any]] = {
    MissionStep.BOOTSTRAP: {"dod": [{"text": "..."}]}, MissionStep.REFLECT: {"next_version_delta": "..."},
    MissionStep.WRITE: {"title": "..."}, MissionStep.REVIEW: {"comment": "..."},
    MissionStep.PRESENT: {"content": "..."},
}  # fmt: skip


@pytest.mark.parametrize("step", UNFILLED)
def test_dots_of_the_format_in_place_of_a_value_are_refused(step: MissionStep) -> None:
    item, documents = example(step)
    with pytest.raises(InvalidReply) as caught:
        read(form(step), reply(step, {**item, **UNFILLED[step]}, documents))
    assert "placeholder of the example" in caught.value.problems[0]
