"""Replies that are sent back: what the model is sent again, and what becomes of its second answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import A, Desk
from tests.runs.test_mission import TEAM, told
from tests.runs.test_modes_run import GATEWAY, case, house
from tests.runs.test_protocols import WAYS
from tests.support.answers import Answer, RequestInfo, default_answer, filled
from tests.support.cabal_team import REQUEST, asking, beside, todo_script
from tests.support.harness import exchanges, tree
from tests.support.provider import Fault, Provider, Script

MATERIAL = "\n".join(f"Fact {number}: the gateway answered {number} requests." for number in range(400))
Spoilt = Callable[[str], str]
Says = Callable[[RequestInfo], Answer | str | Fault | None]


def spoiling(script: Says, wrong: Mapping[str, Spoilt]) -> Script:
    """A script whose first answers to these calls are spoilt."""

    def say(info: RequestInfo) -> Answer | str | Fault | None:
        said = script(info) or default_answer(info)
        spoil = wrong.get(info.call)
        if spoil is None or info.attempt > 1 or isinstance(said, Fault):
            return said
        return spoil(said if isinstance(said, str) else said.text)

    return say


def without(title: str) -> Spoilt:
    return lambda text: text.replace(f"## {title}", "")


def unread(text: str) -> str:
    """A reply whose data is cut in the middle of a word."""
    return text.replace('"', "", 1)


REPAIRED: dict[str, tuple[tuple[str, ...], Says, str, Spoilt, str]] = {
    "final": (("quick", GATEWAY), lambda info: None, "final", without("Key Tensions"), "## Key Tensions"),
    "draft": (
        ("quick", "--review", GATEWAY), lambda info: None, "draft", without("Action Items"), "## Action Items",
    ),
    "debug": (("debug", GATEWAY), case, "final", without("Validation"), "- H2 [ruled-out]: Memory leaks."),
    "hypotheses": (
        ("debug", GATEWAY), case, "t3-critic", lambda text: text.replace("hypotheses:", "theories:"),
        "The key `hypotheses`",
    ),
    "minutes": (
        ("parliament,full", "--width", "5", "Who is right?"), house, "final", without("Confidence"),
        "critic voted against M1",
    ),
    "ballot": (
        ("parliament,full", "--width", "5", "Who is right?"), house, "t3-critic",
        lambda text: text.replace("ballot:", "votes:") + "I have weighed it. " * 9, "- M1: Split it in May.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPAIRED)
def test_the_draft_alone_is_sent_back_with_the_form(cdo: Desk, provider: Provider, name: str) -> None:
    words, script, call, spoil, needed = REPAIRED[name]
    provider.script = spoiling(script, {call: spoil})
    cdo.write("facts.md", MATERIAL)
    cdo(*words[:-1], "-c", "facts.md", *A, words[-1]).ok()
    first, second = provider.named(call)[:2]
    shown = "# Last synthesis" if script is case and call == "final" else "Fact 399: the gateway"
    assert shown in first.prompt and shown not in second.prompt
    assert "<draft>" in second.prompt and needed in second.prompt and len(second.prompt) < len(first.prompt) / 2


@pytest.mark.parametrize("call", ["r0-bootstrap", "r1-plan", "r1-write-operative-1", "r1-inspect-p3"])
def test_a_mission_corrects_broken_json_without_its_prompt(cdo: Desk, provider: Provider, call: str) -> None:
    provider.script = spoiling(told({}), {call: unread})
    cdo.write("facts.md", MATERIAL)
    ended = cdo(*TEAM, "-c", "facts.md", "--json", "--ask-above", "10", REQUEST).ok()
    first, second = provider.named(call)
    assert "Fact 399: the gateway" in first.prompt and "Fact 1:" not in second.prompt
    assert '{"response_type":"final_output"' in second.prompt and "is not valid JSON" in second.prompt
    assert len(second.prompt) < len(first.prompt) / 2
    assert ended.json["status"] == "done"


def test_a_mission_shows_the_products_again_where_a_quote_is_not_found(cdo: Desk, provider: Provider) -> None:
    def elsewhere(text: str) -> str:
        data = json.loads(text)
        for item in (item for found in data["inspections"] for item in found["criteria"] if item["quote"]):
            item["quote"] = "words that stand nowhere in it"
        return json.dumps(data)

    provider.script = spoiling(todo_script, {"r1-inspect-p4": elsewhere})
    cdo(*TEAM, "--json", REQUEST).ok()
    first, second = provider.named("r1-inspect-p4")
    assert len(provider.named("r1-inspect-p3")) == 1, "what is valid of others stands"
    assert first.prompt in second.prompt and "words that stand nowhere" in json.dumps(second.body)


# -- answers that are held to a schema -------------------------------------------------------------


def as_it_is(cdo: Desk, provider: Provider) -> Desk:
    return cdo


PATHS: dict[str, tuple[Callable[[Desk, Provider], Desk], tuple[str, ...]]] = {
    "/v1/chat/completions": (as_it_is, ()),
    **WAYS,
}
SPOILT = "I would stage it, and this is why. " * 9


def schema_of(body: Any) -> Any:
    """The schema to which a request holds its answer."""
    places = (
        body.get("response_format", {}).get("json_schema"),
        body.get("text", {}).get("format"),
        body.get("output_config", {}).get("format"),
    )
    return next((place["schema"] for place in places if place), None)


def as_schema(info: RequestInfo) -> str:
    """The usual answer of a voice or a synthesis, as one JSON object that follows the schema of the request."""
    text = default_answer(replace(info, body={})).text
    if info.kind == "synthesis":
        data = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
        known = {"common_ground", "tensions", "gaps", "surprises", "anti_groupthink"}
        data["sections"] = {key: f"What is said of {key}." for key in known}
        data["tensions"] = data.get("tensions") or []
    else:
        _, head, body = text.split("---\n", 2)
        data = {**yaml.safe_load(head), "body": body.strip()}
    return json.dumps({"messages": [], "objections": [], **data})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("call", ["t1-critic", "t1-synthesis"])
def test_a_repair_is_held_to_a_schema_and_kept_as_markdown(
    cdo: Desk, provider: Provider, path: str, call: str
) -> None:
    way, model = PATHS[path]
    provider.script = lambda info: None if info.call != call else SPOILT if info.attempt == 1 else as_schema(info)
    desk = way(cdo, provider)
    desk("quick", *model, *A, GATEWAY).ok()
    first, second = provider.named(call)
    assert {info.path for info in provider.calls} == {path}
    assert schema_of(first.body) is None and "position" in json.dumps(schema_of(second.body))
    text = (desk.session() / f"{call}.md").read_text()
    assert text.startswith("---\n") and '"body"' not in text and "read_leniently" not in text
    assert ("What is said of surprises." if "synthesis" in call else "\n---\n\n") in text
    (record,) = [item for item in exchanges(desk.session()) if item["call"] == call and item["attempt"] == 2]
    assert record["request"]["schema"] is True
    before, calls = tree(desk.session()), len(provider.calls)
    (desk.session() / "FINAL.md").unlink()
    desk("resume", "a").ok()
    assert tree(desk.session()) == before and len(provider.calls) == calls


@pytest.mark.parametrize("path", PATHS)
def test_a_model_that_knows_no_schemas_is_asked_without(cdo: Desk, provider: Provider, path: str) -> None:
    way, model = PATHS[path]
    message = {"error": {"message": "This response_format type is unavailable now", "type": "invalid_request_error"}}

    def script(info: RequestInfo) -> str | Fault | None:
        if schema_of(info.body):
            return Fault(status=400, body=message)
        return SPOILT if info.call.startswith("t1-") and info.attempt == 1 else None

    provider.script = script
    desk = way(cdo, provider)
    desk("quick", *model, *A, GATEWAY).ok()
    third = provider.named("t1-synthesis")[-1]
    assert "<draft>" in third.prompt and GATEWAY not in third.prompt, "the draft alone, all the same"
    assert 1 <= sum(schema_of(info.body) is not None for info in provider.calls) <= 2, "the model is asked once"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("call", ["r1-review-operative-2", "r1-inspect-p3", "r1-present"])
def test_a_mission_holds_the_correction_of_an_object_to_a_schema(
    cdo: Desk, provider: Provider, path: str, call: str
) -> None:
    way, model = PATHS[path]
    said: dict[str, Any] = {}  # the draft alone does not show what the team's script looks at
    provider.script = spoiling(lambda info: said.setdefault(info.call, told({})(info)), {call: unread})
    cdo.write("facts.md", MATERIAL)
    desk = way(cdo, provider)
    desk(*TEAM[:-2], *model, *TEAM[-2:], "-c", "facts.md", "--ask-above", "10", REQUEST).ok()
    first, second = provider.named(call)
    assert schema_of(first.body) is None and "response_type" in schema_of(second.body)["properties"]
    assert "<draft>" in second.prompt and "Fact 399" not in second.prompt and "# Mission" not in second.prompt
    assert "`sections`" not in second.prompt, "the form is the object itself"
    before = tree(desk.session())
    desk("verify", "a").ok()
    desk("replay", "a", "--strict").ok()
    assert tree(desk.session()) == before


def test_a_broken_request_for_context_is_not_forced_into_an_answer(cdo: Desk, provider: Provider) -> None:
    call, asked = "r2-review-operative-2", asking(*[("p4", need) for need in ("full_content", "all_feedback")] * 2)

    def script(info: RequestInfo) -> Answer | str | Fault | None:
        if info.call != call:
            return told({})(info)
        return asked[:-1] if info.attempt == 1 else asked

    provider.script = script
    cdo(*TEAM, REQUEST).ok()
    first, second = provider.named(call)
    assert len(asked) > 200 and schema_of(second.body) is None and first.prompt in second.prompt
    assert provider.named(f"{call}-2"), "it is asked again with what it wanted to see"


# -- a mission's documents beside the object --------------------------------------------------------


WRITTEN = "r1-write-operative-1"
FIRST = "/v1/chat/completions"
BROKEN = {
    "r0-bootstrap": ("", unread),
    "r1-plan": ("chair_versions", unread),
    WRITTEN: ("versions", lambda text: text.replace('"change_summary"', '"summary"')),
}


@pytest.mark.parametrize(
    ("path", "call"), [*((path, WRITTEN) for path in PATHS), (FIRST, "r0-bootstrap"), (FIRST, "r1-plan")]
)
def test_a_mission_keeps_the_documents_of_a_draft_and_corrects_its_object_alone(
    cdo: Desk, provider: Provider, path: str, call: str
) -> None:
    way, model = PATHS[path]
    key, spoil = BROKEN[call]
    said: dict[str, str] = {}

    def script(info: RequestInfo) -> Answer | str | Fault | None:
        if info.call != call:
            return told({})(info)
        if info.attempt == 1:
            said["object"], said["documents"] = beside(str(told({})(info)), key)
            return f"{spoil(said['object'])}\n\n{said['documents']}"
        schema = schema_of(info.body)
        jsonschema.validate(answer := filled(schema, json.loads(said["object"])), schema)
        return json.dumps(answer)

    provider.script = script
    desk = way(cdo, provider)
    desk(*TEAM[:-2], *model, *TEAM[-2:], "--ask-above", "10", REQUEST).ok()
    first, second = provider.named(call)
    assert schema_of(first.body) is None and "content" not in json.dumps(schema_of(second.body).get("versions", ""))
    assert "<draft>" in second.prompt and first.prompt not in second.prompt
    assert bool(said["documents"]) is bool(key) and said["documents"] in (desk.session() / f"{call}.md").read_text()
    assert not key or said["documents"].splitlines()[1] not in second.prompt

    before, calls = tree(desk.session()), len(provider.calls)
    (desk.session() / f"{call}.md").unlink()  # made again from both answers
    (desk.session() / "FINAL.md").unlink()
    desk("resume", "a").ok()
    assert tree(desk.session()) == before and len(provider.calls) == calls
    desk("verify", "a").ok()
    desk("replay", "a", "--strict").ok()


def test_a_draft_whose_document_is_wrong_is_corrected_as_a_whole(cdo: Desk, provider: Provider) -> None:
    call = WRITTEN

    def cut(text: str) -> str:
        entries, documents = beside(text, "versions")
        return f"{unread(entries)}\n\n{documents.rpartition(chr(10))[0]}"

    provider.script = spoiling(told({}), {call: cut})
    cdo(*TEAM, REQUEST).ok()
    _, second = provider.named(call)
    assert "<draft>" in second.prompt and "=====BEGIN p4=====" in second.prompt and schema_of(second.body) is None


def test_a_version_whose_text_stands_in_the_object_is_corrected_as_a_whole(cdo: Desk, provider: Provider) -> None:
    call = WRITTEN
    provider.script = spoiling(told({}), {call: unread})
    cdo(*TEAM, REQUEST).ok()
    _, second = provider.named(call)
    assert "<draft>" in second.prompt and schema_of(second.body) is None
