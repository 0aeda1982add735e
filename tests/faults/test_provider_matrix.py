"""What can go wrong at a provider, through every way of asking one: the same outcome, and one request for each try.

The first table says what one request comes to; the second that a run then asks as often as the policy says, and no
more. A row that a way of asking cannot meet (an agent has no HTTP status) is left out there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cdo.core.errors import CdoError, ModelsFailed
from cdo.core.exchange import Backend, BackendError, Fault, Finish, OnText, Request, Response
from cdo.providers.command_agent_process import CommandBackend
from cdo.providers.embedded import LocalBackend
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.http.messages import MessagesBackend
from cdo.providers.http.responses import ResponsesBackend
from cdo.providers.litellm_backend import LiteLLMBackend
from cdo.runner import retry
from cdo.runner.attempts import Deadlines
from tests.support.agents import StandIn, agent
from tests.support.agents import backend as agent_backend
from tests.support.answers import agent_text
from tests.support.backends import attempt, reach_by_litellm, request, using
from tests.support.embedded import stand_in
from tests.support.provider import HTML_PAGE, OVERFLOW_BODIES, Answer, Provider
from tests.support.provider import Fault as Trouble
from tests.unit.providers.test_command_agent_process import claude, claude_error, codex, turn_failed
from tests.unit.runner.test_runner import bench, once, voice

pytestmark = pytest.mark.filterwarnings("ignore:::pydantic", "ignore:::litellm", "ignore:Sending a large body")
GOOD = agent_text("Stage it.")
Outcome = Fault | Finish
Steps = Sequence[tuple[str, Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as p, pytest.MonkeyPatch.context() as patch:
        reach_by_litellm(p, patch)
        yield p


@pytest.fixture
def p(server: Provider, monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(retry, "LONGEST_DELAY", 0.05)
    server.script, server.faults = (lambda _: Answer(GOOD)), ()
    server.reset()
    return server


@dataclass
class Named:
    """A backend that is asked for `model`, whatever a run calls it."""

    inner: Backend
    model: str
    streams: bool = False

    async def complete(self, request: Request, on_text: OnText) -> Response:
        return await self.inner.complete(replace(request, model=self.model), on_text)

    async def close(self) -> None:
        await self.inner.close()


HTTP: dict[str, Callable[[Provider], Backend]] = {
    "streamed": lambda p: ChatBackend(f"{p.url}/v1"),
    "whole": lambda p: ChatBackend(f"{p.url}/v1", extra={"stream": False}),
    "messages": lambda p: MessagesBackend(p.url),
    "responses": lambda p: ResponsesBackend(f"{p.url}/v1"),
    "litellm-openai": lambda _: Named(LiteLLMBackend(), "openai/x"),
    "litellm-anthropic": lambda _: Named(LiteLLMBackend(), "anthropic/claude-x"),
}


# -- one request -----------------------------------------------------------------------------------

STATUSES = {
    400: Fault.REJECTED, 401: Fault.DENIED, 402: Fault.USED_UP, 403: Fault.DENIED, 404: Fault.REJECTED,
    408: Fault.OVERLOADED, 409: Fault.OVERLOADED, 413: Fault.OVERFLOW, 422: Fault.REJECTED, 429: Fault.RATE_LIMITED,
    500: Fault.OVERLOADED, 502: Fault.OVERLOADED, 503: Fault.OVERLOADED, 504: Fault.OVERLOADED,
    529: Fault.OVERLOADED,
}  # fmt: skip
ALTERNATE = {"error": {"message": "Conversation roles must alternate user/assistant", "type": "bad_request"}}
ELSEWHERE = {"Location": "http://127.0.0.1:9/"}  # where nobody is: to follow would be a fault of the network
CUT: dict[str, Outcome] = dict.fromkeys(("streamed", "messages", "responses"), Fault.TRUNCATED)
# What happens, and what comes of it: everywhere, or where a way of asking is named, there.
ROWS: dict[str, tuple[Trouble, Outcome, dict[str, Outcome]]] = {
    **{f"HTTP {status}": (Trouble(status=status), fault, {}) for status, fault in STATUSES.items()},
    **{
        f"overflow, {said.provider}": (Trouble(status=said.status, body=said.body), Fault.OVERFLOW, {})
        for said in OVERFLOW_BODIES
    },
    "a quota that is used up": (
        Trouble(status=429, body={"error": {"message": "m", "code": "insufficient_quota", "type": "t"}}),
        Fault.USED_UP,
        {},
    ),
    "roles that must alternate": (Trouble(status=400, body=ALTERNATE), Fault.REJECTED, {}),
    "a filtered prompt": (
        Trouble(status=400, body={"error": {"message": "blocked", "code": "content_filter", "type": "t"}}),
        Fault.REFUSED,
        {},
    ),
    **{
        f"a redirection by {status}": (
            Trouble(status=status, headers=ELSEWHERE),
            Fault.REJECTED,
            {"litellm-anthropic": Fault.OVERLOADED},  # which litellm makes of it: followed it is not
        )
        for status in (302, 307, 308)
    },
    "overloaded inside a 200": (Trouble(stream_error="overloaded_error"), Fault.OVERLOADED, {}),
    "rate limit inside a 200": (Trouble(stream_error="rate_limit_error"), Fault.RATE_LIMITED, {}),
    "error inside a 200": (Trouble(stream_error="server_error"), Fault.OVERLOADED, {}),
    "dropped": (Trouble(drop=True), Fault.NETWORK, {}),
    "reset": (Trouble(drop=True, how="rst"), Fault.NETWORK, {}),
    "cut": (Trouble(cut=100), Fault.TRUNCATED, {"litellm-openai": Fault.NETWORK}),
    "cut before the first byte": (Trouble(cut=0), Fault.TRUNCATED, {"litellm-openai": Fault.NETWORK}),
    "cut as if whole": (Trouble(cut=100, how="end"), Fault.MALFORMED, CUT),
    "nothing as if whole": (Trouble(cut=0, how="end"), Fault.MALFORMED, CUT),
    "empty": (Trouble(shape="empty"), Finish.STOP, {}),
    "no choices": (
        Trouble(shape="no-choices"),
        Fault.EMPTY,
        # its end was seen, and it holds nothing
        dict.fromkeys(("messages", "responses", "litellm-anthropic"), Finish.STOP),
    ),
    "only reasoning": (Trouble(shape="reasoning-only"), Finish.STOP, {}),
    "length": (Trouble(shape="length"), Finish.LENGTH, {}),
    "content filter": (Trouble(shape="content-filter"), Finish.REFUSAL, {}),
    "refusal": (Trouble(shape="refusal"), Finish.REFUSAL, {}),
    "malformed": (Trouble(shape="malformed"), Fault.MALFORMED, {}),
    "a page": (Trouble(shape="html"), Fault.MALFORMED, {}),
    "no reason for the end": (Trouble(shape="no-finish"), Fault.TRUNCATED, {}),
    "no end mark": (Trouble(shape="no-done"), Finish.STOP, {}),
    "no usage": (Trouble(usage="none"), Finish.STOP, {"litellm-anthropic": Fault.MALFORMED}),
    "usage of nothing": (Trouble(usage="zero"), Finish.STOP, {}),
}


def outcome(found: Response | BackendError) -> Outcome:
    return found.fault if isinstance(found, BackendError) else found.finish


def asked(p: Provider, backend: Backend, rows: Sequence[str]) -> dict[str, tuple[Outcome, int]]:
    """What one request comes to in each row, and how many arrived."""

    async def each(backend: Backend) -> dict[str, tuple[Outcome, int]]:
        found = {}
        for name in rows:
            p.reset()
            p.faults = [ROWS[name][0]]
            got = outcome(await attempt(backend, request()))
            found[name] = got, len(p.requests)
        return found

    return using(backend, each)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", HTTP)
def test_each_fault_has_one_name_and_costs_one_request(p: Provider, way: str) -> None:
    expected = {name: (more.get(way, usual), 1) for name, (_, usual, more) in ROWS.items()}
    assert asked(p, HTTP[way](p), list(ROWS)) == expected


def test_the_embedded_model_fails_as_any_provider_does(
    p: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a real child. Of what may be its death, for which it is watched a second, there are a few rows."""
    watched = {Fault.NETWORK, Fault.TRUNCATED, Fault.MALFORMED, Fault.EMPTY}
    dying = {"reset", "cut", "malformed", "no reason for the end"}
    rows = [name for name, (_, usual, _) in ROWS.items() if usual not in watched or name in dying]
    backend = LocalBackend(stand_in(tmp_path / "fake", monkeypatch, url=p.url), lambda _: None)
    assert asked(p, backend, rows) == {name: (ROWS[name][2].get("streamed", ROWS[name][1]), 1) for name in rows}


def http_error(status: int) -> Steps:
    """What codex says after a status."""
    return turn_failed(f"unexpected status {status}: said by the provider")


AGENTS: dict[str, tuple[str, Steps, Outcome]] = {
    **{f"HTTP {status}": ("codex", http_error(status), STATUSES[status]) for status in (401, 429, 500, 503, 529)},
    **{
        f"overflow, {said.provider}": (
            "claude",
            claude_error(400, json.dumps(said.body)),
            Fault.OVERFLOW,
        )
        for said in OVERFLOW_BODIES[:2]
    },
    "cut": ("codex", [("out", codex()[:250])], Fault.MALFORMED),
    "cut, and killed": ("codex", [("out", codex()[:250]), ("signal", signal.SIGKILL)], Fault.CRASHED),
    "cut between two lines": ("codex", [("out", codex().rpartition('{"type": "turn.c')[0])], Fault.TRUNCATED),
    "nothing": ("codex", [], Fault.EMPTY),
    "empty": ("codex", [("out", codex(" "))], Fault.EMPTY),
    "length": ("claude", [("out", claude("I", stop_reason="max_tokens"))], Finish.LENGTH),
    "refusal": ("claude", [("out", claude("I", stop_reason="refusal"))], Finish.REFUSAL),
    "a page": ("claude", [("out", HTML_PAGE)], Fault.MALFORMED),
    "malformed": ("claude", [("out", claude()[:150])], Fault.MALFORMED),
    "dead": ("codex", [("exit", 1)], Fault.CRASHED),
    "usage of nothing": ("claude", [("out", claude(modelUsage={}, usage={}))], Finish.STOP),
}


class Agent:
    """A way of asking by a program that stands in for an agent's."""

    def __init__(self, place: Path, name: str, steps: Steps) -> None:
        self.program = StandIn.make(place / "bin", name, steps)
        env = {"PATH": os.environ["PATH"], "HOME": str(place)}
        self.backend: CommandBackend = agent_backend(agent(name), str(self.program.path), env, place / "folder")


@pytest.mark.parametrize("row", AGENTS)
def test_an_agent_s_faults_have_the_same_names(tmp_path: Path, row: str) -> None:
    name, steps, expected = AGENTS[row]
    way = Agent(tmp_path, name, steps)
    assert outcome(asyncio.run(attempt(way.backend, request()))) is expected
    assert len(way.program.seen) == 1


# -- a run -----------------------------------------------------------------------------------------

TRIES = {
    **dict.fromkeys(retry.PASSING, retry.MAX_ATTEMPTS),
    **dict.fromkeys(retry.CHANGED, 2),
    Fault.INVALID: retry.MAX_REPLIES,
    **dict.fromkeys((Fault.REFUSED, Fault.REJECTED, Fault.DENIED, Fault.USED_UP), 1),
}
KINDS: dict[Fault, Trouble] = {
    Fault.RATE_LIMITED: Trouble(status=429),
    Fault.OVERLOADED: Trouble(status=529),
    Fault.NETWORK: Trouble(drop=True, how="rst"),
    Fault.TIMEOUT: Trouble(hang="headers"),
    Fault.TRUNCATED: Trouble(shape="no-finish"),
    Fault.OVERFLOW: Trouble(status=400, body=OVERFLOW_BODIES[0].body),
    Fault.EMPTY: Trouble(shape="empty"),
    Fault.LENGTH: Trouble(shape="length"),
    Fault.MALFORMED: Trouble(shape="malformed"),
    Fault.REFUSED: Trouble(shape="content-filter"),
    Fault.REJECTED: Trouble(status=404),
    Fault.DENIED: Trouble(status=401),
    Fault.USED_UP: Trouble(status=402),
}
HASTY, PATIENT = Deadlines(first_byte=0.4, idle=0.4, total=0.4), Deadlines()


def run(place: Path, backend: Backend, deadlines: Deadlines) -> tuple[str, list[str]]:
    """One voice's run: how it failed ("" if it did not), and the faults on record."""
    with bench(place, backends={"m": backend}) as b:
        try:
            b.run(once(voice()), deadlines=deadlines)
            why = ""
        except CdoError as error:
            why = error.message
        return why, [str(record["fault"]["kind"]) for record in b.records() if "fault" in record]


# How a person is told of a fault, where that is not its name.
IN_WORDS = {
    Fault.NETWORK: "onnection",
    Fault.DENIED: "refuses access",
    Fault.USED_UP: "quota or the credit is used up",
}

# What litellm does before it sends takes longer than a test would like to wait for a deadline, the first time.
ASKED = [(way, kind) for way in HTTP for kind in KINDS if kind is not Fault.TIMEOUT or "litellm" not in way]


@pytest.mark.parametrize(("way", "kind"), ASKED)
def test_a_run_asks_as_often_as_the_policy_says(tmp_path: Path, p: Provider, way: str, kind: Fault) -> None:
    p.faults = [KINDS[kind]]
    why, faults = run(tmp_path, HTTP[way](p), HASTY if kind is Fault.TIMEOUT else PATIENT)
    assert faults == [kind.value] * TRIES[kind]
    assert IN_WORDS.get(kind, kind.value) in why
    arrived = [seen.attempt for seen in p.requests]
    if kind is Fault.TIMEOUT:  # which may also pass before a request has left
        assert arrived == sorted(set(arrived)) and set(arrived) <= set(range(1, TRIES[kind] + 1))
    else:
        assert arrived == list(range(1, TRIES[kind] + 1))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if TRIES[kind] > 1 and kind is not Fault.TIMEOUT])
@pytest.mark.parametrize("way", HTTP)
def test_a_run_recovers_when_the_provider_does(tmp_path: Path, p: Provider, way: str, kind: Fault) -> None:
    p.faults = [dataclasses.replace(KINDS[kind], nth=1)]
    assert run(tmp_path, HTTP[way](p), PATIENT) == ("", [kind.value])
    assert len(p.requests) == 2


@pytest.mark.parametrize("way", HTTP)
def test_a_reply_that_is_no_reply_is_asked_for_three_times(tmp_path: Path, p: Provider, way: str) -> None:
    p.script = lambda _: Answer("nothing of what was asked for")
    why, faults = run(tmp_path, HTTP[way](p), PATIENT)
    assert "invalid" in why and faults == [] and len(p.requests) == retry.MAX_REPLIES


@pytest.mark.parametrize("kind", [Fault.TRUNCATED, Fault.OVERFLOW, Fault.LENGTH, Fault.REFUSED])
@pytest.mark.slow
def test_a_run_with_the_embedded_model(
    tmp_path: Path, p: Provider, kind: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    p.faults = [KINDS[kind]]
    backend = LocalBackend(stand_in(tmp_path / "fake", monkeypatch, url=p.url), lambda _: None)
    assert run(tmp_path, backend, PATIENT)[1] == [kind.value] * TRIES[kind]
    assert len(p.requests) == TRIES[kind]


@pytest.mark.parametrize("row", ["HTTP 429", "cut", "empty", "length", "refusal", "malformed", "dead", "HTTP 401"])
def test_a_run_with_an_agent(tmp_path: Path, row: str, p: Provider) -> None:
    name, steps, found = AGENTS[row]
    kind = {"length": Fault.LENGTH, "refusal": Fault.REFUSED}.get(row) or Fault(found)
    way = Agent(tmp_path, name, steps)
    assert run(tmp_path, way.backend, PATIENT)[1] == [kind.value] * TRIES[kind]
    assert len(way.program.seen) == TRIES[kind]


@pytest.mark.parametrize("said", OVERFLOW_BODIES, ids=lambda said: said.provider)
def test_after_an_overflow_in_any_words_the_prompt_is_shortened_once(tmp_path: Path, p: Provider, said: Any) -> None:
    p.faults = [Trouble(status=said.status, body=said.body)]
    why, faults = run(tmp_path, HTTP["streamed"](p), PATIENT)
    assert "overflow" in why and faults == ["overflow"] * 2
    first, second = (len(seen.prompt) for seen in p.requests)
    assert second < first


# -- waiting, several at once ----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["streamed", "litellm-openai", "litellm-anthropic"])
def test_of_several_callers_none_comes_before_the_provider_asked_to(tmp_path: Path, p: Provider, way: str) -> None:
    """Eight ask at once and are told to wait; who looks whether it is over is told to wait longer, then less."""
    wave, told = 8, [0.7, 0.2]
    until: list[float] = []

    def script(info: Any) -> Answer | Trouble:
        wait = 0.3 if info.number <= wave else told.pop(0) if told else None
        if wait is None:
            return Answer(GOOD)
        until.append(time.monotonic() + wait)
        return Trouble(status=429, headers={"Retry-After": str(wait)})

    p.script = script
    p.hold()

    async def release_when_all_are_there() -> None:
        async with asyncio.timeout(60):
            while len(until) < wave:  # noqa: ASYNC110 (another thread counts them)
                await asyncio.sleep(0.005)
        until[:] = [time.monotonic() + 0.3] * wave
        p.release()

    with bench(tmp_path, backends={"m": HTTP[way](p)}) as b:

        async def main() -> Any:
            calls = tuple(voice(f"v{number}") for number in range(wave))
            found, _ = await asyncio.gather(b.runner().drive(once(*calls, quorum=wave)), release_when_all_are_there())
            await b.backends["m"].close()
            return found

        assert not any(reply.missing for reply in asyncio.run(main()))
    later = p.requests[wave:]
    assert told == [] and len(until) == wave + 2 and len(later) == wave + 2
    first, second, *rest = [seen.arrived for seen in later]
    assert first >= until[0] and second >= until[wave] and min(rest) >= until[wave + 1]


def test_a_run_of_many_voices_outlives_an_outage_without_a_storm(
    tmp_path: Path, p: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real connections: the provider is down until it was asked so often that each voice was turned away."""
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(retry, "LONGEST_DELAY", 0.2)
    p.faults = [Trouble(status=503, nth=range(1, 40))]
    calls = tuple(voice(f"v{number}") for number in range(32))
    with bench(tmp_path, backends={"m": HTTP["streamed"](p)}) as b:
        replies = b.run(once(*calls, quorum=32))
    assert not any(reply.missing for reply in replies)
    assert len(p.requests) == 39 + 32 <= 2 * 32 + 12
    assert p.peak["all"] <= 32


def test_a_provider_that_is_down_for_good_is_left_in_peace(tmp_path: Path, p: Provider) -> None:
    p.faults = [Trouble(status=503)]
    calls = tuple(voice(f"v{number}") for number in range(32))
    with bench(tmp_path, backends={"m": HTTP["streamed"](p)}) as b, pytest.raises(ModelsFailed):
        b.run(once(*calls, quorum=16))
    assert len(p.requests) <= 2 * 32 + 12
