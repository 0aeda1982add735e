"""Replies of a mission's steps that deviate from their format: what is read from them, and what stays invalid."""

from __future__ import annotations

import json

import pytest

from cdo.cabal.model.entities import MissionStep
from cdo.core.steps import InvalidReply
from cdo.formats.lenient.reading import read
from cdo.session.artifact import from_file, from_reply
from tests.support import cabal_team as team
from tests.support.missions import JORDAN
from tests.unit.cabal.test_reply_format import form

REVIEW = form(MissionStep.REVIEW, JORDAN, "p4")
PLAIN = team.review(team.collab("p4", "Say what it means"))
DATA = json.loads(PLAIN)
INDENTED = json.dumps(DATA, indent=2)
JSON_COMMA, THOUGHTS = "left out a comma before a closing bracket", "left out the model's thoughts before its reply"
YAML = (
    "response_type: final_output\ncollabs:\n"
    + "\n".join(
        f"{'  - ' if n == 0 else '    '}{k}: {json.dumps(v)}" for n, (k, v) in enumerate(DATA["collabs"][0].items())
    )
    + "\n"
)


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        (PLAIN, ()),
        (f"<think>What of {{p4}}?</think>\n{PLAIN}", (THOUGHTS,)),
        (f"{PLAIN[:-1]},}}", (JSON_COMMA,)),
        (f"Here:\n\n```json\n{INDENTED[:-2]},\n}}\n```\n", (JSON_COMMA,)),
        (INDENTED.replace('"collabs"', "“collabs”"), ("read curly quotes as straight ones",)),
        (INDENTED.replace('"collabs"', '// my review\n"collabs"'), ("left out comments in the JSON",)),
        (json.dumps({"reply": DATA}), ("took the keys out of `reply`",)),
        (PLAIN.replace('"collabs"', '"Collabs"'), ("read the key `Collabs` as `collabs`",)),
        (
            PLAIN.replace("refersToProduct", "refers_to_product"),
            ("read the key `refers_to_product` as `refersToProduct`",),
        ),
        (PLAIN.replace("final_output", "Final-Output"), ("read response_type `Final-Output` as `final_output`",)),
        (
            PLAIN.replace('"importance": 5', '"importance": "5/10"'),
            ("read importance 5/10 as 5",),
        ),
        (f"```yaml\n{YAML}```", ("took the data out of a code fence", "read YAML for JSON")),
    ],
)
def test_a_reply_is_read_where_it_is_certain(text: str, notes: tuple[str, ...]) -> None:
    found = read(REVIEW, text)
    assert (found.data, found.notes) == (REVIEW.parse(PLAIN), notes)
    kept = from_file(from_reply(found.text, {"kind": "review"}).text(), "r1-review-operative-2.md").reply
    assert REVIEW.parse(kept) == found.data, "what a session keeps is read strictly"


def test_a_line_break_inside_a_text_is_read_as_one() -> None:
    found = read(REVIEW, PLAIN.replace("what it means", "what\nit means", 1))
    assert found.data == REVIEW.parse(PLAIN.replace("what it means", r"what\nit means", 1))
    assert found.notes == ("read a line break inside a JSON text",)


EXAMPLE = "is a placeholder of the example"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PLAIN[:-1], "Expecting ',' delimiter"),
        (f"{PLAIN}\n\n{PLAIN.replace('Say what', 'Tell what')}", "something follows the object"),
        (
            f"```json\n{PLAIN}\n```\n\n```json\n{PLAIN.replace('Say what', 'Tell what')}\n```",
            "two answers that differ",
        ),
        (PLAIN.replace('"collabs"', '"colabs"'), "`colabs` is not a key"),
        ('{"collabs": [], "collabs": []}', "given twice"),
        (PLAIN.replace("Say what it means", "..."), EXAMPLE),
        (PLAIN.replace("Say what it means", "<what and why, so that somebody can act on it>"), EXAMPLE),
        (PLAIN.replace("Say what it means.", r"# ...\n\n..."), EXAMPLE),
        (PLAIN.replace("Say what it means.", "You are ..."), EXAMPLE),
    ],
)
def test_what_is_ambiguous_or_an_example_is_sent_back(text: str, problem: str) -> None:
    with pytest.raises(InvalidReply) as caught:
        read(REVIEW, text)
    assert any(problem in item for item in caught.value.problems), caught.value.problems
