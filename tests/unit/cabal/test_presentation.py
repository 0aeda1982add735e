"""Which messages of the envoy contradict the facts."""

from __future__ import annotations

from typing import Any

import pytest

from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import PresentReply
from cdo.cabal.rules.presentation import presented
from cdo.core.mission_names import CHAIR
from tests.support.missions import todo

OPEN, DONE = todo(1), todo(3)  # nothing is accepted; everything is


def wrong(state: MissionState, text: str, kind: str = "", **counts: Any) -> str:
    """The problems with a message that cites the newest event of a kind, "" for the newest of all."""
    event = next(item.id for item in reversed(state.events) if kind in ("", item.kind))
    message = {"content": text, "as_agent": CHAIR, "events": [event]}
    reply = PresentReply.model_validate({"response_type": "final_output", "messages": [message], **counts})
    after, problems = presented(state, reply, [item.id for item in state.events])
    assert (after is state) is bool(problems)
    return " ".join(problems)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Everything is finished, accepted and shipped to production.", "“finished” of the whole, and 0 of 3"),
        ("The app was shipped to production.", "“shipped”"),
        ("The features went live today.", "“went live”"),
        ("The features are done.", "“done” and cites no acceptance"),
        ("No flaw remains and the work is complete.", "“complete” of the whole"),
        ("All three products were delivered.", "“delivered” of the whole"),
    ],
)
def test_claims_without_facts_are_refused(text: str, why: str) -> None:
    assert why in wrong(OPEN, text, "version")


@pytest.mark.parametrize(
    "text",
    [
        "Nothing is accepted yet.",
        "The login is not done, and its definition of done has one open point.",
        "None of the three products is accepted.",
        "The features will be finished next round.",
        "Who may log in must be decided before the features can be accepted.",
        "The architecture got its first draft.",
        "The guide says how the app is deployed.",
    ],
)
def test_denials_and_plans_are_no_claims(text: str) -> None:
    assert wrong(OPEN, text, "version") == ""


def test_claims_with_facts_are_told() -> None:
    assert wrong(DONE, "Everything is accepted. The mission is done.", "halt") == ""
    assert wrong(DONE, "The error handling is done.", "accepted") == ""
    assert "cites no acceptance" in wrong(DONE, "The error handling is done.", "version")
    assert "shipped" in wrong(DONE, "Everything was shipped.", "halt")


def test_the_stated_numbers_must_be_the_facts() -> None:
    assert wrong(OPEN, "The draft is there.", accepted=0, of=3) == ""
    assert "states 3 of 3 products accepted; in fact it is 0 of 3" in wrong(OPEN, "Listo.", accepted=3, of=3)
    assert "in fact it is 4 of 4" in wrong(DONE, "The draft is there.", of=5)
