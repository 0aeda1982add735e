"""One call's talk with a model that looks things up: what is offered, what it is told, what a prompt leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.core.exchange import Fault, Message, Request, ToolCall
from cdo.core.steps import InvalidReply
from cdo.core.usage import estimate_tokens
from cdo.formats.fields import MAX_REPLY_CHARS
from cdo.providers.models import ModelSpec
from cdo.providers.price_table import DEFAULT_WINDOW
from cdo.runner.prompt_fitting import TextLimits, without_oldest
from cdo.runner.requests import PendingCall, RequestBuilder
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
    conversation.reject("No front matter.", InvalidReply(["It needs front matter."]))
    again = conversation.request()
    assert again.messages[: len(last.messages)] == last.messages and not again.tools


def test_a_model_that_knows_no_tools_is_told_nothing_of_them() -> None:
    conversation = talk()
    assert conversation.refuse_tools() and not conversation.request().tools
    assert "look into the repository" not in str(conversation.request().messages)


def test_what_was_looked_up_is_told_as_text_once_tools_are_refused() -> None:
    """A provider that refuses tools refuses the messages of their use as well, so the voice would fail."""
    conversation = talk()
    look(conversation, "1| x = 1", "2| </result> y")
    assert conversation.refuse_tools()
    request = conversation.request()
    assert not (request.tools or request.closed_tools)
    assert [message.role for message in request.messages] == ["system", "user", "user"]
    told = request.messages[-1].text
    assert "read {}\n<result>\n1| x = 1\n</result>" in told and told.count("</result>") == 2
    assert "Answer now" in told and USED_UP not in told
    conversation = talk(window=16_000, reply_tokens=4000)
    look(conversation, "x" * 25_000, "y" * 25_000)
    conversation.refuse_tools()
    assert sum(estimate_tokens(message.text) for message in conversation.request().messages) <= 12_000


# -- how much --------------------------------------------------------------------------------------


def test_what_was_looked_up_stays_whole_while_there_is_room_for_it() -> None:
    """Twelve long answers and a full context, for a model of which nothing is known."""
    conversation = talk("word " * 19_000, window=DEFAULT_WINDOW)
    for number in range(12):
        look(conversation, f"{number}| " + "x" * 16_000)
    request = conversation.request()
    assert LEFT_OUT not in str(request.messages) and all(len(text) > 16_000 for text in answers(request))
    assert sum(estimate_tokens(message.text) for message in request.messages) > 70_000


def test_where_there_is_no_room_the_oldest_answers_are_left_out_whole() -> None:
    conversation = talk(window=16_000, reply_tokens=4000)
    look(conversation, "x" * 25_000, "short")
    look(conversation, "y" * 25_000)
    request = conversation.request()
    assert [text[:5] for text in answers(request)] == ["[Left", "short", "yyyyy"]
    assert answers(request)[2] == "y" * 25_000, "the newest stays as it is"
    assert sum(estimate_tokens(message.text) for message in request.messages) <= 16_000 - request.max_tokens
    look(conversation, "z" * 99_000)
    assert [len(text) < 200 for text in answers(conversation.request())] == [True, True, True, False]
    assert "Ask for it again" in answers(conversation.request())[-1], "one that is too long alone ends early"


def test_old_and_uncited_texts_are_shortened_before_the_newest() -> None:
    texts = {
        "00-input": "Q" * 9000, "00-context": "c" * 9000, "t1-critic": "a" * 9000, "t1-architect": "b" * 9000,
        "t1-synthesis": "As t1-critic says. " + "s" * 9000, "t2-critic": "d" * 9000,
    }  # fmt: skip
    limits, order = TextLimits(texts), list[str]()
    while limits.lower(5000):
        order += [name for name in limits.limits if name not in order]
    assert order == ["t1-architect", "t1-synthesis", "t1-critic", "00-context", "t2-critic"]
    assert limits.limits == dict.fromkeys(order, 1)


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
def test_what_is_left_out_keeps_the_limit_and_the_newest(sizes: Sequence[int], room: int) -> None:
    looks = [Message("tool", "x" * size) for size in sizes]
    kept = without_oldest(looks, room, "[out]")
    assert sum(len(message.text) for message in kept) <= room + len("[out]\n") * len(sizes)
    assert without_oldest(looks, 0, "") == looks
    if sum(sizes) <= room:
        assert kept == looks


# -- repairs ---------------------------------------------------------------------------------------

DRAFT = "I would stage it, and this is why: " + "the log says so. " * 20
PROBLEM = "The reply must start with YAML front matter."


def texts(conversation: RequestBuilder) -> list[str]:
    return [message.text for message in conversation.request().messages]


def test_a_first_repair_sends_the_draft_and_its_form_without_the_prompt() -> None:
    conversation = talk(context="A long context. " * 500)
    look(conversation, "SEEN")
    whole = sum(map(len, texts(conversation)))
    conversation.reject(DRAFT, InvalidReply([PROBLEM]))
    request = conversation.request()
    system, own = request.messages
    assert (system.role, own.role) == ("system", "user") and request.tools == ()
    assert DRAFT in own.text and f"- {PROBLEM}" in own.text
    assert 'position: "<your answer to the question, one line>"' in own.text, "what the reply must look like"
    assert "A long context" not in own.text and "SEEN" not in own.text and len(own.text) < whole / 3


def test_a_second_repair_sends_the_whole_prompt_again() -> None:
    conversation = talk(context="A long context. " * 500)
    conversation.reject("Bad. " * 100, InvalidReply(["One."]))
    conversation.reject(DRAFT, InvalidReply([PROBLEM]))
    *prompt, draft, told = texts(conversation)
    assert "A long context" in "".join(prompt) and draft == DRAFT and PROBLEM in told


def test_the_whole_prompt_is_sent_again_where_the_draft_alone_is_not_enough() -> None:
    whole = ("A long context. " * 500).strip()

    def repaired(conversation: RequestBuilder, draft: str = DRAFT, **more: bool) -> str:
        conversation.reject(draft, InvalidReply([PROBLEM], **more))
        return "".join(texts(conversation))

    assert whole in repaired(talk(context=whole), "I cannot do that.")
    assert whole in repaired(talk(context=whole), " \n" * 200)
    assert whole in repaired(talk(context=whole), "x" * (MAX_REPLY_CHARS + 1))
    assert whole in repaired(talk(context=whole), needs_prompt=True)
    kept = talk(context=whole)
    kept.reject(DRAFT, InvalidReply([PROBLEM]), kept=True)
    assert whole in "".join(texts(kept))
    conversation = talk(context=whole)
    included = {"include": {"phase": "engine/repair"}, "problems": []}
    conversation._work.call = replace(voice(), data={**voice().data, **included})
    assert whole in repaired(conversation), "the document of the phase does not say what form a reply has"


# -- the key of the cache --------------------------------------------------------------------------


def test_requests_that_share_their_beginning_have_one_cache_key() -> None:
    """A provider serves few requests a minute from one cache: another turn, or another session, has another key."""
    one, other, turn, elsewhere = talk(), talk(), talk(), talk()
    for each in (one, other, turn, elsewhere):
        assert each.request().cache_key == "", "a protocol that knows no key"
        each._spec = replace(each._spec, protocol="responses")
    other._work.call = replace(other._work.call, data={**other._work.call.data, "role": "architect"})
    turn._work.call = replace(turn._work.call, data={**turn._work.call.data, "focus": "the pool"})
    key = one.request().cache_key
    assert key == other.request().cache_key and len(key) <= 64
    look(one, "SEEN")
    assert one.request().cache_key == key, "rounds of one conversation"
    assert turn.request().cache_key != key
    elsewhere._session = "another"
    assert elsewhere.request().cache_key != key
