"""Schemas of replies: strict ones, and an answer that follows one is read as the reply that it stands for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from cdo.core.steps import ReplyFormat
from cdo.formats.final_answer import FinalFormat
from cdo.formats.lenient.layout import AS_JSON
from cdo.formats.lenient.reading import read
from cdo.formats.reply_schema import reply_schema
from cdo.formats.voice import AgentFormat, SynthesisFormat
from cdo.programs.audit.program import ComparisonFormat
from cdo.programs.debug.hypotheses import Hypotheses
from cdo.programs.debug.reply_formats import CaseFormat, CaseSynthesis
from cdo.programs.deliberation.draft_review import ReviewFormat
from cdo.programs.deliberation.findings import FindingsFormat
from cdo.programs.parliament.minutes import SpeechFormat
from cdo.programs.parliament.motions import House

VOICE: dict[str, Any] = {
    "position": 'Stage it: say "no" first',
    "confidence": 0.7,
    "claims": [{"id": "c1", "text": "a: b", "evidence": ['queue.py:3 "heap"']}],
    "objections": [],
    "changed_because": None,
    "acknowledged": [],
    "withdraws": [],
    "body": "Because.\n\n## A heading\n\n```diff\n---\n```",
}
SECTIONS = {
    "common_ground": "All stage it.",
    "tensions": "## Tensions\n\n- T1: pace",
    "gaps": "None.",
    "surprises": "None.",
    "anti_groupthink": "None.",
}
DIRECTIVE: dict[str, Any] = {
    "width": 2, "roles": [{"name": "critic", "charge": "", "skills": []}], "skills": [], "focus": "pace",
    "decides": "", "settle_with": "text", "alternative": "", "answer_changed": None, "confidence": 0.6,
    "exit_ready": False,
    "tensions": [{"id": "T1", "title": "pace", "status": "open", "settled_by": ""}], "gaps": [],
    "camps": [{"position": "Stage it", "voices": ["critic", "tester"]}], "messages": [], "objections": [],
    "sections": SECTIONS,
}  # fmt: skip
WISH = {
    "id": "H1", "text": "The pool starves.", "prediction": "More cure it.", "status": "open", "evidence": [],
    "merges": [],
}  # fmt: skip
CASE = CaseFormat(Hypotheses(), ("hypothesis", "fix"))
SPEECH = {
    **VOICE, "stance": "what works", "motions": [{"text": "Split it.", "reason": None}], "seconds": [],
    "amendments": [], "accepts": [], "ballot": [],
}  # fmt: skip
DIFF = "```diff\n--- a/x.py\n+++ b/x.py\n@@ -1,1 +1,1 @@\n-a\n+b\n```"
FINAL = {
    "decision": "**Yes.**\n\n| a | b |\n|---|---|\n| 1 | 2 |", "confidence": "Fairly.", "key_tensions": "None.",
    "minority_reports": "None.", "action_items": "1. Do it.",
}  # fmt: skip
REVIEW = {"errors": ["x: y"], "refuted": [], "missing": [], "numbers": [], "unclear": [], "cut": []}
REPLIES: list[tuple[ReplyFormat, dict[str, Any]]] = [
    (AgentFormat(), VOICE),
    (SynthesisFormat(), DIRECTIVE),
    (FinalFormat(), {"sections": FINAL}),
    (FindingsFormat(), {"findings": [{"id": "F1", "rank": 1, "text": "It is slow.", "sources": []}]}),
    (ReviewFormat(), REVIEW),
    (ComparisonFormat(), {"same": "partly", "differences": ["pace"], "why": "One waits.", "body": "Both stage it."}),
    (CASE, {**VOICE, "hypotheses": [WISH], "no_fix": None, "body": DIFF}),
    (CaseSynthesis(SynthesisFormat()), {**DIRECTIVE, "hypotheses": [WISH]}),
    (SpeechFormat("opening", House()), SPEECH),
]


@pytest.mark.parametrize(("form", "said"), REPLIES, ids=lambda value: type(value).__name__)
def test_an_answer_by_the_schema_is_read_as_the_reply(form: ReplyFormat, said: dict[str, Any]) -> None:
    schema = reply_schema(form)
    assert schema
    jsonschema.validate(said, schema)
    found = read(form, json.dumps(said))
    assert found.notes == (AS_JSON,)
    again = form.parse(found.text)  # what is stored is in the strict layout
    assert again == found.data
    given = getattr(found.data, "model_fields_set", ())  # a FINAL.md has its sections alone
    for key, value in said.items():
        if key in given and isinstance(value, (str, float)):
            assert getattr(found.data, key) == value
    texts = [said.get("body"), *said.get("sections", {}).values()]
    assert all(text.removeprefix("## Tensions\n\n") in found.text for text in texts if text)


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        inner = (*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items"))
        for part in inner:
            yield from nodes(part)


@pytest.mark.parametrize("form", [form for form, _ in REPLIES], ids=lambda form: type(form).__name__)
def test_schemas_use_only_what_strict_modes_take(form: ReplyFormat) -> None:
    schema = reply_schema(form)
    for node in nodes(schema):
        assert node.keys() <= {
            "type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "description",
        }  # fmt: skip
        if node.get("type") == "object":
            assert node["required"] == list(node["properties"]) and node["additionalProperties"] is False
    assert "agreement" not in str(schema) and "'fix'" not in str(schema), "code sets them"
