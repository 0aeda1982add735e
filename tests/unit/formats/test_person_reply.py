"""What a person's form says: read where it is certain, asked about where it is not, and never dropped."""

from __future__ import annotations

import pytest

from cdo.core.steps import InvalidReply
from cdo.formats.person_reply import DELETE, FORM, PersonFormat, filled_in, own_words, unfinished, worded
from cdo.formats.voice_blocks import VoiceData


def data(text: str) -> VoiceData:
    reply = worded(text)
    assert reply is not None
    return PersonFormat().parse(reply)


@pytest.mark.parametrize(
    ("text", "position", "kept"),
    [
        ("Keep it.\n\nBecause.", "Keep it.", ["Because."]),
        ("Keep it.\n\n## Your answer\n\n## Reasons\n- four people", "Keep it.", []),
        ("A word before.\n## Your answer\nKeep it.", "Keep it.", ["A word before."]),
        ("## Your answer\nKeep it.\n### Costs\nNone.", "Keep it.", ["### Costs\nNone."]),
        ("## Your answer\nKeep it.\n# Costs\nNone.\n# End\nMore.", "Keep it.", ["# Costs\nNone.\n# End\nMore."]),
        ("\ufeff## Your answer\r\nKeep it.\r\n", "Keep it.", []),
        (f"FINISHED: {DELETE}, and save.\n## Your answer\nKeep it.", "Keep it.", []),
    ],
)  # fmt: skip
def test_nothing_that_a_person_wrote_is_dropped(text: str, position: str, kept: list[str]) -> None:
    assert data(text).position == position
    reply = worded(text) or ""
    assert all(words in reply for words in kept)
    assert "FINISHED" not in reply


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("## Your answer\nKeep it.\n## Objectons\n- [9] no way back", "“## Objectons” is no heading of the form"),
        ("## Your anser\nKeep it.", "is it “Your answer”?"),
        ("## Your answer\nKeep it.\n<!-- half a comment\n## Reasons\n- four people", "has no end"),
        ("## Your answer\n\n## Reasons\n- four people", "Nothing stands under “Your answer”"),
        ("## Your answer\n\n## Costs\nNone.", "Nothing stands under “Your answer”"),
        ("## Your answer\nKeep it.\n## Objections\n- [12] no way back", "not from 1 to 10"),
    ],
)
def test_what_could_be_read_in_two_ways_is_asked_about(text: str, problem: str) -> None:
    with pytest.raises(InvalidReply) as asked:
        worded(text)
    assert problem in " ".join(asked.value.problems)
    assert own_words(text) == text, "what was written stays in the form"


def test_a_form_filled_in_elsewhere_reads_as_one_written_by_hand() -> None:
    said = {
        "answer": "Keep it.",
        "sure": "80 %",
        "reasons": "- four people",
        "objections": "- [7] nights",
        "change": " ",
    }
    found = data(filled_in(said))
    assert (found.position, found.confidence) == ("Keep it.", 0.8)
    assert [item.text for item in found.claims] == ["four people"] and found.objections[0].severity == 7
    assert {part.name for part in FORM} >= set(said) and not filled_in({"reasons": "- four people"})


def test_a_mark_behind_a_byte_order_mark_still_says_that_the_answer_is_not_finished() -> None:
    assert unfinished("\ufeffNOT FINISHED: half a thought\nKeep") and not unfinished("Keep it, we are NOT FINISHED")
