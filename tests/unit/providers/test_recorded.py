"""The backend of a recording: it answers by call and attempt whatever the prompt says, and takes its time."""

from __future__ import annotations

import asyncio

import pytest

from cdo.core.exchange import BackendError, Fault, Message, Request, Response, Usage
from cdo.providers.recorded import RecordedBackend, RecordedReply

REPLIES = {
    "t1-critic": [
        RecordedReply(Response("No. " * 50, usage=Usage(10, 20)), 0.42),
        RecordedReply(Response("Yes.", usage=Usage(11, 2)), 0.0),
    ]
}


def ask(call: str, attempt: int, prompt: str) -> tuple[Response, list[str]]:
    pieces: list[str] = []
    headers = {"X-Cdo-Call": call, "X-Cdo-Attempt": str(attempt)}
    request = Request("recorded:m", (Message("user", prompt),), 100, headers)
    return asyncio.run(RecordedBackend(REPLIES).complete(request, pieces.append)), pieces


def test_a_reply_is_found_by_call_and_attempt_and_arrives_in_pieces() -> None:
    response, pieces = ask("t1-critic", 1, "one prompt")
    assert response.text == "".join(pieces) == "No. " * 50
    assert len(pieces) == 4
    assert response.usage == Usage(10, 20)
    assert ask("t1-critic", 2, "another prompt") == (REPLIES["t1-critic"][1].response, ["Yes."])


@pytest.mark.parametrize(("call", "attempt"), [("t1-critic", 3), ("t1-nobody", 1)])
def test_what_is_not_in_the_recording_is_a_fault_that_is_not_retried(call: str, attempt: int) -> None:
    with pytest.raises(BackendError) as failed:
        ask(call, attempt, "")
    assert failed.value.fault is Fault.REJECTED
    assert f"attempt {attempt} of {call} is not in the recording" in failed.value.message
