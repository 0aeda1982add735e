"""Schemas to which the corrections of a mission's replies are held, and which drafts need the whole prompt again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from cdo.cabal.model.entities import MissionStep
from cdo.cabal.replies.fields import CheckItem
from cdo.cabal.replies.schemas import REPLIES
from cdo.cabal.reply_format import StepFormat
from cdo.content.library import PACKAGED, Library
from cdo.core.mission_names import CHAIR, WATCHDOG
from cdo.core.steps import InvalidReply
from cdo.formats.document_blocks import joined, with_documents
from cdo.formats.lenient.reading import read
from cdo.formats.reply_schema import recast, reply_schema
from tests.support import cabal_team as team
from tests.support.answers import filled
from tests.support.missions import JORDAN
from tests.unit.cabal.test_reply_format import form, playing, prompt
from tests.unit.formats.test_reply_schema import nodes

LIBRARY = Library((("packaged", PACKAGED),))
HELD = (MissionStep.REFLECT, MissionStep.REVIEW, MissionStep.INSPECT, MissionStep.PRESENT)


def schema(step: MissionStep) -> dict[str, Any]:
    found = reply_schema(form(step), alone=True)
    assert found
    return found


# A key that only entries of one list have, and that list.
LISTS = {"dod_status": "reflections", "comment": "collabs", "recipients": "remarks", "as_agent": "messages"}


def examples(step: MissionStep) -> list[dict[str, Any]]:
    """The examples that a step's prompt shows of its reply, each as a whole reply."""
    said = LIBRARY.render(f"templates/cabal/{step}", {}, "format")
    said += LIBRARY.render("engine/cabal-kernel", {"step": step.value}, "format").replace("\n", " ")
    found: list[dict[str, Any]] = []
    while (start := said.find('{"')) >= 0:
        example, end = json.JSONDecoder().raw_decode(said[start:])
        said = said[start + end :]
        lists = [name for key, name in LISTS.items() if key in example]
        found.append({**found[0], lists[0]: [example]} if lists else example)
    return found


def holds(whole: Any, part: Any) -> bool:
    """Whether data says all that other data says."""
    if isinstance(part, dict):
        return all(holds(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize("step", HELD)
def test_the_examples_of_a_prompt_follow_the_schema_with_every_key_filled_in(step: MissionStep) -> None:
    found = examples(step)
    assert len(found) >= 2
    for example in found:
        reply = REPLIES[step].model_validate(example)
        whole = reply.model_dump(mode="json")
        jsonschema.validate(whole, schema(step))
        assert holds(whole, example) and REPLIES[step].model_validate(whole) == reply


def test_an_answer_by_the_schema_is_read_as_the_reply_that_it_stands_for() -> None:
    met = set[MissionStep]()

    def said(call: str, format: StepFormat) -> str:
        text = team.todo(call, team.newest_events(prompt(format)))
        held = reply_schema(format, alone=True)
        assert held
        alone, documents = team.beside(text, {"write": "versions", "plan": "chair_versions"}.get(format.step, ""))
        jsonschema.validate(whole := filled(held, json.loads(alone)), held)
        found = read(format, with_documents(json.dumps(whole), documents))
        assert found.data == format.parse(text) and not found.notes
        met.add(format.step)
        return text

    playing(said, 2, 9)
    assert met == set(MissionStep)


@pytest.mark.parametrize("step", MissionStep)
def test_schemas_of_a_mission_are_strict(step: MissionStep) -> None:
    for node in nodes(schema(step)):
        assert node.keys() <= {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum"}
        if node.get("type") == "object":
            assert node["required"] == list(node["properties"]) and node["additionalProperties"] is False
    halts = ["halt"] if step in (MissionStep.BOOTSTRAP, MissionStep.PLAN) else []
    assert schema(step)["properties"]["response_type"]["enum"] == ["final_output", *halts]
    assert not recast(form(step)), "the form in the prompt is the object itself"


@pytest.mark.parametrize("step", (MissionStep.PLAN, MissionStep.WRITE))
def test_replies_with_documents_are_held_to_a_schema_without_these_alone(step: MissionStep) -> None:
    assert reply_schema(form(step)) is None
    entries = schema(step)["properties"]["versions" if step is MissionStep.WRITE else "chair_versions"]
    assert {"title", "change_summary"} <= set(entries["items"]["properties"]) and "content" not in json.dumps(entries)


def test_a_schema_as_a_test_of_a_criterion_may_be_given_as_text() -> None:
    check = {"kind": "json_schema", "value": '{"type": "object"}'}
    assert CheckItem.model_validate(check).value == {"type": "object"}
    assert CheckItem.model_validate({**check, "value": "{"}).value == "{"
    assert CheckItem.model_validate({**check, "kind": "contains"}).value == '{"type": "object"}'


ENTRY = {"product_id": "p3", "title": "Features", "change_summary": "First"}
DOCUMENT = joined([("p3", "# Features\n\nAll.")])
WHOLE = {
    "a broken object": (f"{team.write(ENTRY)[:-2]}\n\n{DOCUMENT}", True),
    "no document and no version": (team.write(collabs=[team.collab("p3", "Say more")])[:-1], True),
    "a document without its end": (f"{team.write(ENTRY)[:-2]}\n\n{DOCUMENT.rpartition('=====END')[0]}", False),
    "a document that is missing": (team.write(ENTRY)[:-1], False),
    "a document in the object": (f"{team.write(ENTRY, {**ENTRY, 'content': 'x'})[:-2]}\n\n{DOCUMENT}", False),
    "a document of no product": (f"{team.write(ENTRY)[:-2]}\n\n{DOCUMENT}\n{joined([('x', 'y')])}", False),
    "no object": (DOCUMENT, False),
}


@pytest.mark.parametrize("why", WHOLE)
def test_an_object_is_corrected_alone_if_nothing_is_wrong_with_its_documents(why: str) -> None:
    text, alone = WHOLE[why]
    found = form(MissionStep.WRITE, JORDAN, "p3").object_alone(text)
    assert found == (text.partition("\n\n=====")[0] if alone else None)


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
