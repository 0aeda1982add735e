"""One call's talk with a model that looks things up: what is offered, what it is told, what a prompt leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.content.library import Library
from cdo.core.exchange import Fault, Request, ToolCall
from cdo.providers.models import DEFAULT_WINDOW, ModelSpec
from cdo.repository.context import estimate_tokens
from cdo.runner.requests import PendingCall, RequestBuilder, _most
from tests.unit.runner.test_runner import voice

LIBRARY = Library.at(Path("/"))
LEFT_OUT = "characters left out: the prompt did not fit"
USED_UP = "Your looks into the repository are used up"


class Box:
    def __init__(self, requests: int, rounds: int) -> None:
        self.max_requests, self.max_rounds = requests, rounds

    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        return ({"name": "read", "description": "d", "parameters": {"type": "object"}},)

    def run(self, name: str, arguments: str) -> str:
        raise AssertionError("nothing is looked up here")


def talk(context: str = "Little.\n", requests: int = 12, rounds: int = 6, **spec: Any) -> RequestBuilder:
    call = voice()
    call = replace(call, data={**call.data, "tools": {"requests": requests, "rounds": rounds}})
    work = PendingCall(call, "key", {}, {"00-input": "Should we?\n", "00-context": context}, None)
    model = ModelSpec("m", "scripted", "m", tools=True, **spec)
    return RequestBuilder(LIBRARY, "s", work, model, None, Box(requests, rounds))


def look(conversation: RequestBuilder, *answers: str) -> None:
    wishes = [ToolCall(f"w{number}", "read", "{}") for number in range(len(answers))]
    conversation.looked("", wishes, answers)


def answers(request: Request) -> list[str]:
    return [message.text for message in request.messages if message.role == "tool"]


# -- how often -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "each", "told"), [(6, 1, "6 of 12"), (3, 4, "12 of 12"), (2, 9, "12 of 12")])
def test_when_looks_are_used_up_the_model_is_told_in_words_to_answer(rounds: int, each: int, told: str) -> None:
    conversation = talk()
    for number in range(rounds):
        request = conversation.request()
        assert request.tools and USED_UP not in str(request.messages), number
        assert "at most 12 requests in\n6 rounds" in request.messages[1].text
        look(conversation, *["1| x = 1"] * each)
    last = conversation.request()
    assert not last.tools and last.messages[-1].role == "tool"
    assert last.messages[-1].text.startswith(f"1| x = 1\n\n{USED_UP}: {told} requests, in {rounds} rounds.")
    assert "Answer now" in last.messages[-1].text
    assert sum(USED_UP in text for text in answers(last)) == 1
    # A reply that is sent back does not change what came before it.
    conversation.reject("No front matter.", ["It needs front matter."])
    again = conversation.request()
    assert again.messages[: len(last.messages)] == last.messages and not again.tools


def test_a_model_that_knows_no_tools_is_told_nothing_of_them() -> None:
    conversation = talk()
    assert conversation.refuse_tools() and not conversation.request().tools
    assert "look into the repository" not in str(conversation.request().messages)


# -- how much --------------------------------------------------------------------------------------


def test_what_was_looked_up_stays_whole_while_there_is_room_for_it() -> None:
    """Twelve long answers and a full context, for a model of which nothing is known."""
    conversation = talk("word " * 19_000, window=DEFAULT_WINDOW)
    for number in range(12):
        look(conversation, f"{number}| " + "x" * 16_000)
    request = conversation.request()
    assert LEFT_OUT not in str(request.messages) and all(len(text) > 16_000 for text in answers(request))
    assert sum(estimate_tokens(message.text) for message in request.messages) > 70_000


def test_where_there_is_no_room_short_answers_stay_whole_and_long_ones_share_it() -> None:
    conversation = talk(window=16_000)
    look(conversation, "x" * 40_000, "short", "y" * 40_000)
    request = conversation.request()
    long, short, last = answers(request)
    assert short == "short" and LEFT_OUT in long and LEFT_OUT in last and abs(len(long) - len(last)) < 300
    assert sum(estimate_tokens(message.text) for message in request.messages) <= 16_000 - request.max_tokens


def test_after_an_overflow_what_was_looked_up_is_shortened_as_well() -> None:
    conversation = talk("word " * 4_000, window=DEFAULT_WINDOW)
    look(conversation, "x" * 60_000)
    first = conversation.request()
    assert conversation.change(Fault.OVERFLOW)
    second = conversation.request()
    sizes = [sum(len(message.text) for message in request.messages) for request in (first, second)]
    assert sizes[1] < sizes[0] * 0.6 and len(answers(second)[0]) < 31_000
    assert "Should we?" in second.messages[1].text


def test_an_overflow_of_answers_alone_is_met_by_shorter_answers() -> None:
    conversation = talk("", window=DEFAULT_WINDOW)
    look(conversation, "x" * 60_000)
    assert conversation.change(Fault.OVERFLOW) and conversation.change(Fault.OVERFLOW)
    assert len(answers(conversation.request())[0]) < 16_000


@given(st.lists(st.integers(0, 500), max_size=12), st.integers(1, 2000))
def test_shares_keep_their_limit_and_cut_no_more_than_they_must(sizes: Sequence[int], limit: int) -> None:
    most = _most(list(sizes), limit)
    kept = [min(size, most) if most else size for size in sizes]
    assert sum(kept) <= max(limit, len(sizes))
    assert most or sum(sizes) <= limit
    assert not most or sum(kept) + len(sizes) >= min(limit, sum(sizes)), "no room is wasted"
