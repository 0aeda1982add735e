"""What a small model is held to in a cabal: whatever the grammars allow passes, and a real model keeps to it."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.cabal.model.entities import Criterion, Kind, MissionStep, Status
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.schemas import InspectReply, PlanReply
from cdo.cabal.reply_format import StepFormat, load
from cdo.cabal.rules import acceptance, rounds
from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG
from cdo.providers import demo_model_file, embedded
from cdo.providers.models import LOCAL_REPLY_TOKENS
from tests.support import cabal_team as team
from tests.support.missions import ALEX, JORDAN, todo
from tests.unit.cabal.test_feedback import reduced
from tests.unit.cabal.test_reply_format import playing
from tests.unit.formats.test_gbnf import _walk, as_regex


@functools.lru_cache(maxsize=64)
def tree(grammar: str) -> Any:
    """A grammar, parsed for sampling."""
    return re._parser.parse(as_regex(grammar))  # type: ignore[attr-defined]


def sample(format: StepFormat, seed: int) -> str:
    """A reply that the format's grammar allows."""
    return _walk(tree(format.grammar()), random.Random(seed))


def formats(state: MissionState) -> Iterator[StepFormat]:
    """The formats of all calls of the round that follows, were every step to come now."""
    state = rounds.open_round(state)
    for agent in state.team:
        yield StepFormat(MissionStep.REFLECT, agent, state, tuple(item.id for item in state.owned(agent)))
        yield StepFormat(
            MissionStep.REVIEW, agent, state, tuple(item.id for item in state.live() if not item.container)
        )
    yield StepFormat(MissionStep.PLAN, CHAIR, state)
    yield StepFormat(MissionStep.INSPECT, WATCHDOG, state, acceptance.due(state)[:1])


MISSIONS = [todo(rounds) for rounds in range(4)]
ROOM = 3 * LOCAL_REPLY_TOKENS  # characters; a token of English JSON has more of them
SEEDS = st.integers(0, 2**32)
SOME = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("ended", range(4))
@SOME
@given(seed=SEEDS)
def test_what_a_grammar_allows_passes_the_rules(ended: int, seed: int) -> None:
    for format in formats(MISSIONS[ended]):
        assert format.parse(sample(format, seed))


@pytest.mark.wide
@settings(SOME, max_examples=12)
@given(SEEDS, st.integers(1, 5))
def test_a_mission_can_be_played_by_grammars_alone(seed: int, size: int) -> None:
    calls: list[str] = []

    def said(call: str, format: StepFormat) -> str:
        calls.append(call)
        text = sample(format, seed + len(calls))
        assert text.isascii()
        return text

    states = playing(said, size, 5)
    last = states[-1]
    assert last.halt == "done" or len(states) == 6
    assert all(
        item.status is not Status.ACCEPTED or not acceptance.missing_for_acceptance(last, item.id)
        for item in last.live()
    )
    assert any(version.author in last.team for version in last.versions.values())


# -- what each one offers --------------------------------------------------------------------------


def plan(state: MissionState, seed: int = 1) -> PlanReply:
    """A plan that the grammar allows."""
    reply = StepFormat(MissionStep.PLAN, CHAIR, state).parse(sample(StepFormat(MissionStep.PLAN, CHAIR, state), seed))
    assert isinstance(reply, PlanReply)
    return reply


def test_a_plan_assigns_what_nobody_wrote_and_ends_what_is_done() -> None:
    born, blocked, approved = (rounds.open_round(state) for state in MISSIONS[:3])
    first = plan(born)
    assert [item.product_id for item in first.assignments] == ["p3", "p4"]
    assert all(set(item.assignee_ids) <= {ALEX, JORDAN} for item in first.assignments)

    second = plan(blocked)  # p4 was approved, p3 is blocked and stays with its owner
    assert [(item.product_id, item.assignee_ids, item.address) for item in second.assignments] == [
        ("p3", (JORDAN,), ("c2",))
    ]

    third = plan(approved)
    assert third.halt and third.halt.type == "done" and not third.assignments


def test_a_plan_goes_back_to_the_parts_of_a_whole_that_did_not_pass() -> None:
    state = MISSIONS[2]
    odd = replace(state.inspections["i6"], verdict=acceptance.verdict([6]))
    state = rounds.open_round(replace(state, inspections={**state.inspections, "i6": odd}))
    reply = plan(state)
    assert [item.product_id for item in reply.assignments] == ["p3", "p4", "p5"] and reply.halt is None


def test_an_inspection_quotes_what_stands_there() -> None:
    state = MISSIONS[1]
    content = '# Ünïcode\n\nOk\n\n---\n\n“Naïve” quotes "and" back\\slashes `here` are évidence enough for anybody'
    version = replace(state.versions["v1"], content=content, outcome="")
    state = rounds.open_round(replace(state, versions={**state.versions, "v1": version}, inspections={}))
    format = StepFormat(MissionStep.INSPECT, WATCHDOG, state, ("p3",))
    quotes = set()
    for seed in range(40):
        reply = format.parse(sample(format, seed))
        assert isinstance(reply, InspectReply)
        quotes |= {item.quote for item in reply.inspections[0].criteria if item.passed}
    assert quotes == {"Ok", 'quotes "and" back\\slashes `here` are'}


def test_what_nobody_can_quote_is_not_met() -> None:
    state = MISSIONS[1]
    version = replace(state.versions["v1"], content="Ничего по-английски", outcome="")
    state = rounds.open_round(replace(state, versions={**state.versions, "v1": version}, inspections={}))
    format = StepFormat(MissionStep.INSPECT, WATCHDOG, state, ("p3",))
    for seed in range(10):
        reply = format.parse(sample(format, seed))
        assert isinstance(reply, InspectReply) and not any(item.passed for item in reply.inspections[0].criteria)


def test_a_later_version_has_a_section_that_was_not_there() -> None:
    state = rounds.open_round(MISSIONS[1])
    for address, heading in ((["c2"], "## JWT in localStorage is open to XSS\n"), ([], "## Move to cookies\n")):
        order = team.assignment("p3", JORDAN, objective="Move to cookies", address=address)
        reply = StepFormat(MissionStep.PLAN, CHAIR, state).parse(team.plan(order))
        assert isinstance(reply, PlanReply)
        after = reduced(state, MissionStep.PLAN, CHAIR, reply)
        said = load(sample(StepFormat(MissionStep.WRITE, JORDAN, after, ("p3",)), 1))["versions"][0]
        assert heading in said["content"] and said["addresses"] == address


@SOME
@given(st.text(min_size=1, max_size=80).filter(str.strip), st.text(min_size=1, max_size=600), SEEDS)
def test_names_and_criteria_can_say_anything(name: str, criterion: str, seed: int) -> None:
    state = MISSIONS[0]
    odd = replace(state.products["p3"], name=name, dod=tuple(Criterion(f"d{n}", criterion) for n in range(1, 7)))
    assert odd.kind is Kind.DECISION
    state = rounds.open_round(replace(state, products={**state.products, "p3": odd}))
    reply = plan(state, seed)
    state = reduced(state, MissionStep.PLAN, CHAIR, reply)
    writer = state.assignments["p3"].writer
    format = StepFormat(MissionStep.WRITE, writer, state, ("p3",))
    said = load(sample(format, seed))["versions"][0]
    assert said["product_id"] == "p3" and said["content"].startswith("# ") and said["outcome"]


def test_a_small_model_takes_the_mission_in_the_users_words() -> None:
    asked = 'Réservez “p2” [[p:p9]]\x07 for "us"'
    state = rounds.begin(asked, 2)
    for seed in range(5):
        reply: Any = StepFormat(MissionStep.BOOTSTRAP, CHAIR, state).parse(
            sample(StepFormat(MissionStep.BOOTSTRAP, CHAIR, state), seed)
        )
        assert reply.mission.startswith("Réservez “p2” p9") and reply.mission.endswith('for "us"')


@pytest.mark.parametrize("ended", range(1, 4))
def test_what_a_small_models_envoy_tells_is_what_happened(ended: int) -> None:
    state = MISSIONS[ended]
    format = StepFormat(MissionStep.PRESENT, ENVOY, state)
    texts = {item.id: item.text for item in state.events}
    for seed in range(20):
        reply: Any = format.parse(sample(format, seed))
        assert all(texts[item.events[0]] == item.content for item in reply.messages)


def test_the_envoy_cites_events_of_the_round_in_a_voice_of_the_team() -> None:
    state = MISSIONS[2]
    format = StepFormat(MissionStep.PRESENT, ENVOY, state)
    there = {item.id for item in state.events if item.round == 2}
    for seed in range(10):
        reply: Any = format.parse(sample(format, seed))
        assert all(set(item.events) <= there and item.as_agent in (CHAIR, ALEX, JORDAN) for item in reply.messages)


def longest(format: StepFormat) -> int:
    """Characters of the longest of some replies, in texts that have no gaps between words."""
    plain = tree(re.sub(r"(?m)^letter ::= .*$", "letter ::= [a-z]", format.grammar()))
    return max(len(_walk(plain, random.Random(seed))) for seed in range(20))


@pytest.mark.parametrize("ended", range(4))
def test_a_reply_has_room_in_what_the_model_may_say(ended: int) -> None:
    assert longest(StepFormat(MissionStep.BOOTSTRAP, CHAIR, rounds.begin(team.REQUEST, 16))) < ROOM
    assert longest(StepFormat(MissionStep.PRESENT, ENVOY, MISSIONS[ended])) < ROOM
    for format in formats(MISSIONS[ended]):
        assert longest(format) < ROOM, format


def test_many_products_still_leave_room_for_the_reply() -> None:
    script = team.busy_script(50, 20)
    [state] = playing(lambda call, format: script.reply(call, ""), 4, 0)
    state = rounds.open_round(state)
    reply = plan(state)
    assert len(reply.assignments) == 6
    assert longest(StepFormat(MissionStep.PLAN, CHAIR, state)) < ROOM
    state = reduced(state, MissionStep.PLAN, CHAIR, reply)
    first = next(iter(state.assignments.values())).writer
    assert longest(StepFormat(MissionStep.WRITE, first, state)) < ROOM


# -- the real model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str, str], str]]:
    """Ask the real model something, with a grammar and the tokens of one reply."""
    server = embedded.LocalServer(demo_model_file.pull(print))
    url = asyncio.run(server.start())

    def asked(question: str, grammar: str) -> str:
        body = {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": LOCAL_REPLY_TOKENS,
            "grammar": grammar,
            **embedded.SAMPLING,
        }
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=300) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])

    yield asked
    asyncio.run(server.close())


@pytest.mark.slow
@pytest.mark.model
def test_the_embedded_model_plays_a_mission(ask: Callable[[str, str], str]) -> None:
    def said(call: str, format: StepFormat) -> str:
        task = f"{team.REQUEST}. You are {format.agent}. This is the step {format.step}: answer in JSON."
        return ask(task, format.grammar())

    last = playing(said, 2, 2)[-1]
    assert last.mission and len(last.products) > 1
    assert any(version.author in last.team for version in last.versions.values())
    assert last.inspections and last.messages
