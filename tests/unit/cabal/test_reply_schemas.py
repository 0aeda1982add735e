"""Schemas to which the corrections of a mission's replies are held, and which drafts need the whole prompt again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from cdo.cabal.model.entities import MissionStep
from cdo.cabal.replies.schemas import REPLIES
from cdo.cabal.reply_format import StepFormat
from cdo.content.library import PACKAGED, Library
from cdo.core.mission_names import CHAIR, WATCHDOG
from cdo.core.steps import InvalidReply
from cdo.formats.lenient.reading import read
from cdo.formats.reply_schema import recast, reply_schema
from tests.support import cabal_team as team
from tests.support.missions import JORDAN
from tests.unit.cabal.test_reply_format import form, playing, prompt
from tests.unit.formats.test_reply_schema import nodes

LIBRARY = Library((("packaged", PACKAGED),))
HELD = (MissionStep.REFLECT, MissionStep.REVIEW, MissionStep.INSPECT, MissionStep.PRESENT)


def schema(step: MissionStep) -> dict[str, Any]:
    found = reply_schema(form(step))
    assert found
    return found


def object_in(text: str) -> Any:
    return json.JSONDecoder().raw_decode(text[text.index('{"') :])[0]


@pytest.mark.parametrize("step", HELD)
def test_the_example_of_a_prompt_follows_the_schema_of_its_reply(step: MissionStep) -> None:
    example = object_in(LIBRARY.render(f"templates/cabal/{step}", {}, "format"))
    jsonschema.validate(example, schema(step))
    assert REPLIES[step].model_validate(example).model_dump(mode="json") == example


@pytest.mark.parametrize("key", ["collabs", "remarks"])
def test_the_examples_of_what_is_said_beside_the_work_follow_the_schema(key: str) -> None:
    shown = LIBRARY.render("engine/cabal-kernel", {"step": "review"}, "format").replace("\n", " ")
    examples = [json.loads(found) for found in re.findall(r'{"(?:refersToProduct|recipients)".*?}', shown)]
    (example,) = [item for item in examples if ("recipients" in item) is (key == "remarks")]
    said = json.loads(team.review(confirms=[], withdraws=[], rationale="", remarks=[], collabs=[]))
    said[key] = [example]
    jsonschema.validate(said, schema(MissionStep.REVIEW))
    assert REPLIES[MissionStep.REVIEW].model_validate(said).model_dump(mode="json") == said


def test_an_answer_by_the_schema_is_read_as_the_reply_that_it_stands_for() -> None:
    met = set[MissionStep]()

    def said(call: str, format: StepFormat) -> str:
        text = team.todo(call, team.newest_events(prompt(format)))
        if held := reply_schema(format):
            reply = format.parse(text)
            whole = reply.model_dump(mode="json")
            jsonschema.validate(whole, held)
            found = read(format, json.dumps(whole))
            assert found.data == reply and not found.notes
            met.add(format.step)
        return text

    playing(said, 2, 9)
    assert met == set(HELD)


@pytest.mark.parametrize("step", HELD)
def test_schemas_of_a_mission_are_strict(step: MissionStep) -> None:
    for node in nodes(schema(step)):
        assert node.keys() <= {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum"}
        if node.get("type") == "object":
            assert node["required"] == list(node["properties"]) and node["additionalProperties"] is False
    assert schema(step)["properties"]["response_type"]["enum"] == ["final_output"]
    assert not recast(form(step)), "the form in the prompt is the object itself"


@pytest.mark.parametrize("step", [step for step in MissionStep if step not in HELD])
def test_replies_with_documents_or_free_keys_are_held_to_no_schema(step: MissionStep) -> None:
    assert reply_schema(form(step)) is None


ASKED = team.asking(("p3", "full_content"))
NO_ANSWERS = {
    "it lacks a bracket": ASKED[:-1],
    "it lacks a quote": ASKED.replace('"request_context"', '"request_context'),
    "its type has no quotes": ASKED.replace('"request_context"', "request_context"),
    "it has no type": ASKED.replace('"response_type": "request_context", ', ""),
    "its need is not known": ASKED.replace("full_content", "everything"),
    "its key is not known": ASKED.replace('"need"', '"wish"'),
    "it asks in words": "I cannot review p3 before I have seen all of p4 and its history.",
    "it halts": team.done(),
    "it halts, broken": team.done()[:-1],
}


def needs_prompt(format: StepFormat, text: str) -> bool:
    with pytest.raises(InvalidReply) as caught:
        read(format, text)
    return caught.value.needs_prompt


@pytest.mark.parametrize("why", NO_ANSWERS)
def test_what_is_no_answer_is_not_forced_into_one(why: str) -> None:
    review = form(MissionStep.REVIEW, JORDAN, "p3")
    assert needs_prompt(review, NO_ANSWERS[why])
    if why != "it asks in words":
        assert needs_prompt(replace(review, last=True), NO_ANSWERS[why])


def test_enough_was_asked_for() -> None:
    assert needs_prompt(form(MissionStep.INSPECT, WATCHDOG, "p3", last=True), ASKED)


ANSWERS = {
    "review": (form(), team.review(team.collab("p3", 'The reply to "requests": is late'))[:-1] + ",,"),
    "a key is missing": (form(), team.review({"refersToProduct": "p3", "type": "concern", "importance": 7})),
    "words, when nothing more can be asked for": (form(last=True), "I have nothing to say against p3."),
    "write": (
        form(MissionStep.WRITE),
        '{"response_type":"final_output","versions":[{\n=====BEGIN p3=====\n{"requests": 1}\n=====END p3=====',
    ),
    "halt": (form(MissionStep.PLAN, CHAIR), team.done()[:-1]),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_broken_does_not_need_the_prompt(name: str) -> None:
    assert not needs_prompt(*ANSWERS[name])
