"""The runner: what it retries, records, charges, bounds and gives up, for any program that yields calls."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.content.schemas import Price
from cdo.core.errors import BudgetReached, CdoError, ConfigError, ModelsFailed, NeedsHuman, SessionError
from cdo.core.events import Event, TextReceived
from cdo.core.exchange import Backend, BackendError, Finish, OnText, Request, Response, ToolCall, Usage
from cdo.core.exchange import Fault as Kind
from cdo.core.steps import Batch, Call, InvalidReply, Pause, Program, Reply, ReplyFormat
from cdo.core.usage import totals
from cdo.formats.final_answer import FinalFormat
from cdo.formats.voice import AgentFormat, SynthesisFormat
from cdo.planning.arguments import parse, vocabulary
from cdo.planning.plan import Plan
from cdo.planning.plan_builder import make
from cdo.planning.settings import resolve
from cdo.programs.deliberation.program import deliberate
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.models import ModelSpec
from cdo.providers.scripted import ScriptedBackend
from cdo.runner import retry
from cdo.runner.attempts import Deadlines
from cdo.runner.budget import Budget, Limits
from cdo.runner.exchange_records import usage_of
from cdo.runner.model_seat import ModelSeat
from cdo.runner.people.human_steps import Human
from cdo.runner.retry import CircuitBreaker, RetryBudget
from cdo.runner.runner import Runner
from cdo.session.records import read_session
from cdo.session.store import Session
from tests.support.answers import agent_text, final_text, synthesis_text
from tests.support.harness import exchanges
from tests.support.provider import Fault, Provider

PASSING = [Kind.RATE_LIMITED, Kind.OVERLOADED, Kind.NETWORK, Kind.TIMEOUT, Kind.TRUNCATED, Kind.CRASHED]
CHANGED = [Kind.LENGTH, Kind.EMPTY, Kind.OVERFLOW, Kind.MALFORMED]
FINAL = [Kind.REFUSED, Kind.REJECTED, Kind.DENIED]
GOOD = agent_text("Stage it.")
Said = str | Response | BackendError | Callable[[Request, OnText], Awaitable[Response]]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off is a matter of hundredths here; the tests of waiting set their own."""
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(retry, "LONGEST_DELAY", 0.05)


class Model:
    """A backend that says what `script` lists for a call's name (else its kind), then what is valid."""

    def __init__(self, script: Mapping[str, Sequence[Said]] | None = None, latency: float = 0.0) -> None:
        self.streams = True
        self.requests: list[Request] = []
        self.times: list[float] = []
        self.peak = self._in_flight = 0
        self._script = {key: list(said) for key, said in (script or {}).items()}
        self._latency = latency
        self._together = 0  # how many requests must have been there at once before any is answered

    def named(self, call: str) -> list[Request]:
        return [request for request in self.requests if request.headers["X-Cdo-Call"] == call]

    async def complete(self, request: Request, on_text: OnText) -> Response:
        self.requests.append(request)
        self.times.append(time.monotonic())
        self._in_flight += 1
        self.peak = max(self.peak, self._in_flight)
        try:
            limit = time.monotonic() + 10
            while self.peak < self._together and time.monotonic() < limit:  # noqa: ASYNC110 (there is no event)
                await asyncio.sleep(0.002)
            await asyncio.sleep(self._latency)
            name, kind = request.headers["X-Cdo-Call"], request.headers["X-Cdo-Kind"]
            said: Said = valid(kind)
            if rest := self._script.get(name) or self._script.get(kind):
                said = rest.pop(0)
            if isinstance(said, BackendError):
                raise said
            if isinstance(said, str):
                said = Response(said, usage=Usage(100, 10))
            return said if isinstance(said, Response) else await said(request, on_text)
        finally:
            self._in_flight -= 1

    async def close(self) -> None:
        """Nothing to close."""


def valid(kind: str) -> str:
    if kind == "synthesis":
        return synthesis_text(exit_ready=True, confidence=0.9)
    return final_text("Stage it.") if kind == "final" else GOOD


async def hang(request: Request, on_text: OnText) -> Response:
    await asyncio.sleep(60)
    raise AssertionError("nobody waited so long")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.002)


def fault(kind: Kind, **more: Any) -> BackendError:
    return BackendError(kind, f"a {kind} of the test", **more)


# -- programs, calls, runners ------------------------------------------------------------------------


@functools.cache
def plan_of(turns: int = 1) -> Plan:
    library = Library.at(Path("/"))
    words = parse(["think", "Should we?"], vocabulary(library.names("presets"), []))
    options = {"turns": turns, "model": ("m",), "review": "false"}
    return make(words, "Should we?", resolve(options, library, {}), library, ["m"])


@functools.cache
def calls() -> tuple[Call, Call, Call]:
    """A voice, a synthesis and an ending as a deliberation of one turn asks for them."""
    program = deliberate(plan_of())
    first = next(program)
    assert isinstance(first, Batch)
    second = program.send(tuple(Reply(call.name, AgentFormat().parse(GOOD)) for call in first.calls))
    assert isinstance(second, Batch)
    third = program.send((Reply("t1-synthesis", SynthesisFormat().parse(valid("synthesis"))),))
    assert isinstance(third, Batch)
    return first.calls[0], second.calls[0], third.calls[0]


def voice(role: str = "critic", shape: ReplyFormat | None = None) -> Call:
    call = calls()[0]
    return replace(call, name=f"t1-{role}", data={**call.data, "role": role}, format=shape or call.format)


def synthesis(models: Sequence[str] = ("m",)) -> Call:
    return replace(calls()[1], models=tuple(models))


def ending(shape: FinalFormat) -> Call:
    return replace(calls()[2], format=shape)


def once(*calls: Call, quorum: int = 1) -> Program[tuple[Reply, ...]]:
    answer = yield Batch(calls, quorum)
    assert isinstance(answer, tuple)
    return answer


VOICES = tuple(voice(role) for role in ("architect", "critic", "pragmatist"))
FILES = {
    "00-input.md": "Should we split the service?\n",
    "00-context.md": "# Context\n\n" + "A long context. " * 300 + "\n",
    "session.yaml": "cdo: x\n",
}


class Bench:
    """A session and what a runner of it needs; `run` drives a program in a loop of its own."""

    def __init__(self, path: Path, backends: Mapping[str, Backend] | None = None, **spec: Any) -> None:
        self.path = path / "cdo-a"
        self.model = Model()
        self.backends: Mapping[str, Backend] = backends or {"m": self.model}
        self.spec = {"price": Price(input=1.0, output=10.0), **spec}
        self.events: list[Event] = []
        self.session = Session.create(self.path, FILES)

    def runner(self, limits: Limits | None = None, **more: Any) -> Runner:
        gate = CircuitBreaker()
        seats = {
            name: ModelSeat(ModelSpec(name=name, route="scripted", model=name, **self.spec), backend, gate)
            for name, backend in self.backends.items()
        }
        budget = Budget(limits or Limits(), totals(self.session.records))
        return Runner(self.session, Library.at(self.path), seats, budget, self.events.append, **more)

    def run(self, program: Program[Any], limits: Limits | None = None, **more: Any) -> Any:
        async def main() -> Any:
            self.last = self.runner(limits, **more)
            try:
                return await self.last.drive(program)
            finally:
                for backend in self.backends.values():
                    await backend.close()

        return asyncio.run(main())

    def reopen(self) -> None:
        """As a later process would find it."""
        self.session.close()
        self.session = Session.open(self.path)
        self.events.clear()

    def told(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def records(self) -> list[dict[str, Any]]:
        return exchanges(self.path)

    def close(self) -> None:
        self.session.close()


def bench(path: Path, script: Mapping[str, Sequence[Said]] | None = None, **more: Any) -> closing[Bench]:
    found = Bench(path, **more)
    if script is not None:
        found.model._script = {key: list(said) for key, said in script.items()}
    return closing(found)


# -- replies that do not follow their format -----------------------------------------------------------


def test_a_malformed_reply_is_sent_back_with_what_is_wrong(tmp_path: Path) -> None:
    bad = ["No front matter.", '---\nposition: "x"\nconfidence: 7\n---\n\nText.']
    with bench(tmp_path, {"agent": [*bad, GOOD]}) as b:
        (reply,) = b.run(once(voice()))
        assert reply.data.position == "Stage it."
        first, second, third = b.model.requests
        told = []
        for text in bad:
            with pytest.raises(InvalidReply) as caught:
                AgentFormat().parse(text)
            told.append(caught.value.problems)
        assert second.messages[:-2] == third.messages[:-2] == first.messages
        for request, text, problems in ((second, bad[0], told[0]), (third, bad[1], told[1])):
            assert (request.messages[-2].role, request.messages[-2].text) == ("assistant", text)
            assert request.messages[-1].role == "user"
            assert all(problem in request.messages[-1].text for problem in problems)
        assert told[0][0] not in third.messages[-1].text, "only the last reply's faults are told"
        assert [request.headers["X-Cdo-Attempt"] for request in b.model.requests] == ["1", "2", "3"]
        assert [event.json()["problems"] for event in b.told("invalid")] == told
        b.session.flush()
        assert [(r["attempt"], r["response"]["text"]) for r in b.records()] == [(1, bad[0]), (2, bad[1]), (3, GOOD)]
        artifact = b.session.artifact("t1-critic")
        assert artifact and artifact.own["attempts"] == 3
        assert artifact.own["usage"] == {"input_tokens": 300, "output_tokens": 30}
        assert artifact.own["cost"] == pytest.approx(300e-6 + 300e-6)


def test_three_malformed_replies_are_enough(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": ["bad"] * 9}) as b:
        replies = b.run(once(*VOICES, quorum=2))
        assert [reply.missing for reply in replies] == [False, True, False]
        assert replies[1].reason.kind == "invalid"
        assert len(b.model.named("t1-critic")) == 3
        assert b.last.budget.totals.calls == 5
        b.session.flush()
        assert not (b.path / "t1-critic.md").exists()


@pytest.mark.wide
def test_a_reply_beyond_all_measure_is_neither_kept_nor_sent_back_whole(tmp_path: Path) -> None:
    """A session must be one that can be opened: nothing that a model says makes a record too large for that."""
    wish = ToolCall("w", "search", "x" * 2**20)
    flood = Response("\0" * 5 * 2**20, usage=Usage(100, 10), reasoning="r" * 5 * 2**20, tool_calls=(wish,) * 999)
    noise = fault(Kind.MALFORMED)
    noise.text, noise.message = "n" * 5 * 2**20, "m" * 5 * 2**20
    with bench(tmp_path, {"t1-critic": [flood, noise, GOOD], "t1-pragmatist": [flood] * 3}) as b:
        replies = b.run(once(*VOICES, quorum=2))
        assert [reply.missing for reply in replies] == [False, False, True]
        second = b.model.named("t1-critic")[1]
        assert sum(len(message.text) for message in second.messages) < 50_000
        b.reopen()
        assert sum(path.stat().st_size for path in (b.path / "calls").iterdir()) < 64 * 2**20
        kept = next(record for record in b.records() if record["call"] == "t1-critic")["response"]
        assert "left out" in kept["text"] and len(kept["text"]) <= len(kept["reasoning"]) + 9 < 1.1 * 2**20
        assert len(kept["tool_calls"]) == 64 and len(kept["tool_calls"][0]["arguments"]) == 65_536


def test_every_attempt_is_recorded_and_charged_before_it_is_judged(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Suspicious(AgentFormat, frozen=True):
        def parse(self, text: str) -> Any:
            on_disk = [r for r in exchanges(b.path) if r.get("response", {}).get("text") == text]
            assert on_disk, "a reply was judged before it was recorded"
            assert on_disk[-1]["usage"]["input_tokens"] == 100 and on_disk[-1]["cost"] is not None
            seen.append((b.last.budget.totals.calls, b.last.budget.totals.input_tokens))
            return super().parse(text)

    with bench(tmp_path, {"agent": ["bad", "worse", GOOD]}) as b:
        b.run(once(voice(shape=Suspicious())))
    assert seen == [(1, 100), (2, 200), (3, 300)]


def test_a_refuted_reply_is_judged_again_but_not_asked_again(tmp_path: Path) -> None:
    """Killed between attempt 1 and 2: attempt 1 is told to the model again, and not paid again."""
    with bench(tmp_path, {"agent": ["bad", hang]}) as b:
        interrupted(b, 2)
        second, b.model.requests = b.model.requests[1], []
        (reply,) = b.run(once(voice()))
        assert not reply.missing
        (request,) = b.model.requests
        assert request.headers["X-Cdo-Attempt"] == "2"
        assert request == second, "the same request as the one that was interrupted"
        assert [record["attempt"] for record in b.records()] == [1, 2]


def test_malformed_attempts_count_across_processes(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": ["bad", "bad", hang]}) as b:
        with pytest.raises(BudgetReached):
            b.run(once(*VOICES, quorum=3), Limits(calls=4))
        assert len(b.model.named("t1-critic")) == 2
        b.reopen()
        b.model._script = {"t1-critic": ["bad"] * 5}
        with pytest.raises(ModelsFailed):
            b.run(once(*VOICES, quorum=3))
        assert len(b.model.named("t1-critic")) == 3, "three malformed replies in all"


# -- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PASSING)
def test_passing_faults_are_tried_four_times(tmp_path: Path, kind: Kind) -> None:
    with bench(tmp_path, {"t1-critic": [fault(kind)] * 9}) as b:
        replies = b.run(once(*VOICES, quorum=2))
        assert str(replies[1].reason) == f"{kind}: a {kind} of the test"
        assert len(b.model.named("t1-critic")) == 4
        faults = [r for r in b.records() if "fault" in r]
        assert [r["fault"]["kind"] for r in faults] == [kind.value] * 4
        assert [r["attempt"] for r in faults] == [1, 2, 3, 4]
        waits = [event.json()["wait"] for event in b.told("retry")]
        assert len(waits) == 3


@pytest.mark.parametrize("kind", PASSING)
def test_passing_faults_pass(tmp_path: Path, kind: Kind) -> None:
    with bench(tmp_path, {"t1-critic": [fault(kind)] * 3}) as b:
        replies = b.run(once(*VOICES, quorum=3))
        assert not any(reply.missing for reply in replies)
        assert b.session.artifact("t1-critic").own["attempts"] == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", CHANGED)
def test_faults_of_the_request_get_one_changed_attempt(tmp_path: Path, kind: Kind) -> None:
    with bench(tmp_path, {"t1-critic": [fault(kind)] * 9}) as b:
        replies = b.run(once(*VOICES, quorum=2))
        assert replies[1].reason.kind == kind
        first, second = b.model.named("t1-critic")
        longer = second.max_tokens == 2 * first.max_tokens
        shorter = sum(len(m.text) for m in second.messages) < sum(len(m.text) for m in first.messages)
        assert (longer, shorter) == (kind in (Kind.LENGTH, Kind.EMPTY), kind is Kind.OVERFLOW)


@pytest.mark.parametrize("kind", FINAL)
def test_final_faults_are_not_tried_again(tmp_path: Path, kind: Kind) -> None:
    with bench(tmp_path, {"t1-critic": [fault(kind, text="half a word")] * 9}) as b:
        replies = b.run(once(*VOICES, quorum=2))
        assert replies[1].missing and replies[1].reason.kind == kind
        assert len(b.model.named("t1-critic")) == 1
        (record,) = [r for r in b.records() if r["call"] == "t1-critic"]
        assert record["fault"] == {"kind": kind.value, "message": f"a {kind} of the test", "text": "half a word"}
        assert ("usage" in record) == (kind is Kind.REFUSED), "a refusal was worked for"
        (missing,) = [r for r in read_session(b.path) if r["kind"] == "missing"]
        assert missing["call"] == "t1-critic" and missing["reason"].startswith(kind.value)


@pytest.mark.parametrize(
    ("response", "kind", "requests"),
    [
        (Response("I can't.", Finish.REFUSAL, Usage(5, 1)), Kind.REFUSED, 1),
        (Response("  \n", usage=Usage(5, 1)), Kind.EMPTY, 2),
        (Response("", reasoning="hmm", usage=Usage(5, 1)), Kind.EMPTY, 2),
        (Response(GOOD[:99], Finish.LENGTH, Usage(5, 1)), Kind.LENGTH, 2),
    ],
)
def test_responses_that_are_no_replies(tmp_path: Path, response: Response, kind: Kind, requests: int) -> None:
    with bench(tmp_path, {"t1-critic": [response] * 9}) as b:
        replies = b.run(once(*VOICES, quorum=2))
        assert replies[1].reason.kind == kind
        assert len(b.model.named("t1-critic")) == requests
        records = [r for r in b.records() if r["call"] == "t1-critic"]
        assert all(r["fault"]["kind"] == kind.value and r["usage"]["input_tokens"] == 5 for r in records)
        assert b.last.budget.totals.input_tokens == 200 + 5 * requests


def test_a_cut_reply_gets_twice_the_room_once_and_never_more_than_the_window(tmp_path: Path) -> None:
    cut = Response(GOOD[:99], Finish.LENGTH, Usage(5, 1))
    with bench(tmp_path, {"agent": [cut]}) as b:
        (reply,) = b.run(once(voice()))
        assert not reply.missing
        assert [request.max_tokens for request in b.model.requests] == [16_384, 32_768]
    (tmp_path / "small").mkdir()
    with bench(tmp_path / "small", {"agent": [cut]}, window=6000) as b:
        with pytest.raises(ModelsFailed, match=r"cut off at the cap of 3,000 tokens \(setting `reply_tokens`\)"):
            b.run(once(voice()))
        assert len(b.model.requests) == 1, "more room is not to be had"


def interrupted(b: Bench, requests: int) -> None:
    """Run a voice until so many requests were made, stop it there, and take the session up again."""

    async def main() -> None:
        task = asyncio.create_task(b.runner().drive(once(voice())))
        await until(lambda: len(b.model.requests) == requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    b.reopen()


def test_a_length_that_was_recorded_is_not_met_again_after_a_resume(tmp_path: Path) -> None:
    cut = Response(GOOD[:99], Finish.LENGTH, Usage(5, 1))
    with bench(tmp_path, {"agent": [cut, hang]}) as b:
        interrupted(b, 2)
        b.run(once(voice()))
        assert [request.max_tokens for request in b.model.requests] == [16_384, 32_768, 32_768]


def test_the_one_changed_attempt_is_one_across_processes(tmp_path: Path) -> None:
    cut = Response(GOOD[:99], Finish.LENGTH, Usage(5, 1))
    with bench(tmp_path, {"agent": [cut, hang, cut, cut, cut]}) as b:
        interrupted(b, 2)
        with pytest.raises(ModelsFailed):
            b.run(once(voice()))
        assert [request.max_tokens for request in b.model.requests] == [16_384, 32_768, 32_768]


def test_an_overflow_is_met_by_a_shorter_prompt_that_says_so(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [fault(Kind.OVERFLOW)]}) as b:
        (reply,) = b.run(once(voice()))
        assert not reply.missing
        first, second = ("".join(message.text for message in request.messages) for request in b.model.requests)
        assert len(second) < len(first) * 3 / 4
        assert "left out: the prompt did not fit" in second and "left out: the prompt did not fit" not in first
        assert "Should we split the service?" in second


def sent(request: Request) -> tuple[str, ...]:
    return tuple(message.text for message in request.messages)


@pytest.mark.parametrize("window", [32_768, 1000])
def test_an_overflow_of_the_question_alone_is_not_paid_for_twice(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to leave out, so that a second request would be the first one over again."""
    monkeypatch.setitem(FILES, "00-context.md", "# Context\n\nNo context was given.\n")
    monkeypatch.setitem(FILES, "00-input.md", "Should we split the service? " * 300 + "\n")
    with bench(tmp_path, {"t1-critic": [fault(Kind.OVERFLOW)] * 9}, window=window) as b:
        replies = b.run(once(*VOICES, quorum=2))
        assert str(replies[1].reason) == "overflow: a overflow of the test"
        assert len(b.model.named("t1-critic")) == 1 and b.told("retry") == []


def test_an_overflow_that_was_recorded_is_not_asked_again_the_same_way_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the overflow was recorded, and before it was known that nothing can be left out."""
    monkeypatch.setitem(FILES, "00-context.md", "# Context\n\nNo context was given.\n")
    with bench(tmp_path, {"t1-critic": [fault(Kind.OVERFLOW)], "t1-architect": [hang]}) as b:

        async def main() -> None:
            task = asyncio.create_task(b.runner().drive(once(*VOICES, quorum=2)))
            await until(lambda: len(exchanges(b.path)) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        b.reopen()
        b.model.requests = []
        replies = b.run(once(*VOICES, quorum=2))
        assert replies[1].reason.kind == "overflow" and not b.model.named("t1-critic")


@pytest.mark.parametrize("size", [1, 40, 5000, 60_000])
@pytest.mark.parametrize("window", [1000, 4000, 32_768])
def test_after_an_overflow_the_next_request_is_shorter_or_there_is_none(
    tmp_path: Path, size: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "00-context.md", "# Context\n\n" + "x" * size + "\n")
    with bench(tmp_path, {"t1-critic": [fault(Kind.OVERFLOW)] * 9}, window=window) as b:
        b.run(once(*VOICES, quorum=2))
        lengths = [len("".join(sent(request))) for request in b.model.named("t1-critic")]
        assert len(lengths) == 1 or (len(lengths) == 2 and lengths[1] < lengths[0]), lengths


def test_retry_after_is_obeyed(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [fault(Kind.RATE_LIMITED, retry_after=0.3)]}) as b:
        b.run(once(voice()))
        assert b.model.times[1] - b.model.times[0] >= 0.3
        assert 0.3 <= b.told("retry")[0].json()["wait"] < 0.8


def test_a_provider_that_asks_for_too_long_is_not_waited_for(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [fault(Kind.RATE_LIMITED, retry_after=601)]}) as b:
        began = time.monotonic()
        with pytest.raises(ModelsFailed):
            b.run(once(voice()))
        assert time.monotonic() - began < 60
        assert len(b.model.requests) == 1


@pytest.mark.wide
def test_the_waits_of_one_call_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait alone would be short enough, and so would be the tries."""
    monkeypatch.setattr(retry, "MAX_WAIT", 0.5)
    with bench(tmp_path, {"agent": [fault(Kind.RATE_LIMITED, retry_after=0.2)] * 9}) as b:
        with pytest.raises(ModelsFailed, match="rate-limited"):
            b.run(once(voice()))
        assert len(b.model.requests) <= 3
        assert sum(event.json()["wait"] for event in b.told("retry")) <= 0.5


def test_waiting_at_the_gate_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_WAIT", 0.5)

    class Slow(CircuitBreaker):
        async def enter(self) -> bool:
            await asyncio.sleep(0.3)
            return await super().enter()

    with bench(tmp_path, {"agent": [fault(Kind.TRUNCATED, retry_after=0.21)] * 9}) as b:
        runner = b.runner()
        runner.seats["m"] = replace(runner.seats["m"], gate=Slow())  # type: ignore[index]
        with pytest.raises(ModelsFailed, match=r"truncated|rate-limited"):
            asyncio.run(runner.drive(once(voice())))
        assert len(b.model.requests) <= 1


@pytest.mark.wide
def test_a_storm_is_bounded_run_wide(tmp_path: Path) -> None:
    """32 voices, a provider that is down: attempts stay within twice the calls, and a dozen."""
    calls = tuple(voice(f"v{number}") for number in range(32))
    with bench(tmp_path, {"agent": [fault(Kind.OVERLOADED)] * 999}) as b:
        with pytest.raises(ModelsFailed) as caught:
            b.run(once(*calls, quorum=16))
        assert caught.value.exit_code == 7
        assert len(b.model.requests) <= 2 * 32 + 12
        assert len(b.records()) == len(b.model.requests)


def test_the_allowance_is_one_for_the_whole_run(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [fault(Kind.TIMEOUT)] * 999}) as b:
        with pytest.raises(ModelsFailed):
            b.run(once(*(voice(f"v{number}") for number in range(8))), allowance=RetryBudget(2))
        assert len(b.model.requests) == 8 + 8 + 2, "eight calls bring eight retries, and two"


def test_one_voice_that_is_down_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [hang]}) as b:
        replies = b.run(once(*VOICES, quorum=2), deadlines=Deadlines(first_byte=0.2, idle=0.2, total=0.4))
        assert not any(reply.missing for reply in replies)
        others = [record for record in b.records() if record["call"] != "t1-critic"]
        assert all(record["seconds"] < 0.2 for record in others)


# -- missing voices, quorum, other models -----------------------------------------------------------------


def test_below_the_quorum_the_run_fails_and_says_why(tmp_path: Path) -> None:
    script = {"t1-critic": [fault(Kind.REJECTED)], "t1-architect": [fault(Kind.OVERFLOW)] * 2}
    with bench(tmp_path, script) as b:
        with pytest.raises(ModelsFailed) as caught:
            b.run(once(*VOICES, quorum=2))
        assert caught.value.exit_code == 7
        for word in ("1 of 3 answered", "2 are needed", "t1-critic: rejected", "t1-architect: overflow"):
            assert word in caught.value.message
        assert not [record for record in read_session(b.path) if record["kind"] == "missing"]
        b.reopen()
        b.model.requests = []
        replies = b.run(once(*VOICES, quorum=2))
        assert not any(reply.missing for reply in replies)
        names = sorted(request.headers["X-Cdo-Call"] for request in b.model.requests)
        assert names == ["t1-architect", "t1-critic"], "only what is missing is asked"


def test_a_voice_that_was_given_up_stays_given_up(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [fault(Kind.REFUSED)]}) as b:
        first = b.run(once(*VOICES, quorum=2))
        b.reopen()
        b.model.requests = []
        assert b.run(once(*VOICES, quorum=2)) == first
        assert b.model.requests == []


def test_replies_that_were_malformed_can_heal_when_the_quorum_had_failed(tmp_path: Path) -> None:
    """The hint says that a resume asks for what is missing: so it must, also after three malformed replies."""
    with bench(tmp_path, {"t1-critic": ["bad"] * 3, "t1-architect": ["bad"] * 3}) as b:
        with pytest.raises(ModelsFailed) as caught:
            b.run(once(*VOICES, quorum=2))
        assert "asks only for what is missing" in caught.value.hint
        assert "did not have the form" in caught.value.message, "not a sentence that was meant for the model"
        b.reopen()
        b.model.requests = []
        replies = b.run(once(*VOICES, quorum=2))
        assert not any(reply.missing for reply in replies)
        names = {request.headers["X-Cdo-Call"] for request in b.model.requests}
        assert names == {"t1-architect", "t1-critic"}


def test_a_key_that_is_refused_everywhere_is_a_matter_of_configuration(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [fault(Kind.DENIED)] * 3}) as b:
        with pytest.raises(ConfigError) as caught:
            b.run(once(*VOICES, quorum=2))
        assert caught.value.exit_code == 4
        assert len(b.model.requests) == 3


@pytest.mark.parametrize("trouble", [[fault(Kind.REJECTED)], ["bad"] * 3, [fault(Kind.TIMEOUT)] * 4])
def test_a_failed_synthesis_is_tried_on_another_seats_model(tmp_path: Path, trouble: list[Said]) -> None:
    one, two = Model({"synthesis": trouble}), Model()
    with bench(tmp_path, backends={"one": one, "two": two}) as b:
        (reply,) = b.run(once(synthesis(("one", "two", "one"))))
        assert reply.data.exit_ready
        assert (len(one.requests), len(two.requests)) == (len(trouble), 1)
        (request,) = two.requests
        assert request.messages == one.requests[0].messages, "the other model starts afresh"
        assert request.headers["X-Cdo-Attempt"] == str(len(trouble) + 1)
        artifact = b.session.artifact("t1-synthesis")
        assert artifact and artifact.own["model"] == "two" and artifact.own["attempts"] == len(trouble) + 1
        b.reopen()
        one.requests, two.requests = [], []
        assert b.run(once(synthesis(("one", "two")))) == (reply,)
        assert one.requests == two.requests == []


def test_a_synthesis_that_fails_on_every_model_fails_the_run(tmp_path: Path) -> None:
    one, two = Model({"synthesis": ["bad"] * 3}), Model({"synthesis": [fault(Kind.REFUSED)]})
    with bench(tmp_path, backends={"one": one, "two": two}) as b:
        with pytest.raises(ModelsFailed) as caught:
            b.run(once(synthesis(("one", "two"))))
        assert "refused" in caught.value.message
        b.session.flush()
        assert not (b.path / "t1-synthesis.md").exists(), "a raw answer is never passed off as a synthesis"


# -- FINAL.md ------------------------------------------------------------------------------------------

MARKED = FinalFormat((("F1", "the way back"), ("F2", "the contract binds")), (("T1", "what the vendor charges"),))


def test_what_a_final_leaves_out_is_asked_for(tmp_path: Path) -> None:
    full = final_text("Stage it. [F1] [F2]", actions=["Ask the vendor. [T1]"])
    with bench(tmp_path, {"final": [final_text("Stage it. [F1] [T1]"), full]}) as b:
        (reply,) = b.run(once(ending(MARKED)))
        assert reply.added == ()
        told = b.model.requests[1].messages[-1].text
        assert "put [F2] behind it: the contract binds" in told and "Action Items needs a step" in told
        assert "with [T1] behind it: what the vendor charges" in told and "the way back" not in told


def test_what_a_final_still_leaves_out_is_added_from_the_record(tmp_path: Path) -> None:
    with bench(tmp_path, {"final": [final_text("Stage it. [F1]")] * 9}) as b:
        (reply,) = b.run(once(ending(MARKED)))
        assert len(b.model.requests) == 3
        assert reply.added == ("finding F2", "step for T1")
        text = b.last.kept.artifacts["final"].reply
        assert "- the contract binds [F2] *(added by cdo)*" in text
        assert "- Find out: what the vendor charges [T1] *(added by cdo)*" in text
        assert b.last.kept.artifacts["final"].own["added"] == list(reply.added)
        b.reopen()
        b.model.requests = []
        assert b.run(once(ending(MARKED))) == (reply,)
        assert b.model.requests == []


def test_a_final_without_a_decision_is_not_repaired(tmp_path: Path) -> None:
    with bench(tmp_path, {"final": ["## Confidence\n\nnone\n"] * 9}) as b, pytest.raises(ModelsFailed):
        b.run(once(ending(FinalFormat())))


# -- budgets -------------------------------------------------------------------------------------------


def budget_reached(b: Bench, limits: Limits, *words: str, **more: Any) -> None:
    with pytest.raises(BudgetReached) as caught:
        b.run(once(*VOICES, quorum=3), limits, **more)
    assert caught.value.exit_code == 5
    for word in words:
        assert word in caught.value.message
    assert "resume" in caught.value.hint


def then_resumes(b: Bench, asked: int) -> None:
    """With more to spend only what is missing is asked for, and every request of both processes is counted."""
    before = len(b.records())
    b.reopen()
    b.model.requests = []
    replies = b.run(once(*VOICES, quorum=3))
    assert not any(reply.missing for reply in replies)
    assert len(b.model.requests) == asked
    assert b.last.budget.totals.calls == before + asked


def test_the_cap_on_calls(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        budget_reached(b, Limits(calls=2), "The cap of 2 calls is reached")
        assert len(b.model.requests) == 2 == len(b.records())
        then_resumes(b, 1)


def test_retries_count_as_calls(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": ["bad", "bad"]}) as b:
        budget_reached(b, Limits(calls=4), "The cap of 4 calls is reached")
        assert len(b.model.requests) == 4
        then_resumes(b, 1)


def test_the_cap_on_tokens_is_held_before_a_call(tmp_path: Path) -> None:
    long = Response(GOOD, usage=Usage(2000, 2000))
    with bench(tmp_path, {"agent": [long] * 3}) as b:
        budget_reached(b, Limits(tokens=12_000), "The cap of 12000 tokens is reached", "8000 are used")
        assert b.last.budget.totals.tokens == 8000
        assert len(b.model.requests) == 2
        then_resumes(b, 1)


def test_the_cap_on_money_is_held_before_a_call(tmp_path: Path) -> None:
    async def dear(request: Request, on_text: OnText) -> Response:
        return Response(GOOD, usage=Usage(1000, 1000, cost=0.03))

    with bench(tmp_path, {"agent": [dear] * 3}) as b:
        budget_reached(b, Limits(cost=0.09), "The budget of $0.09 is reached", "has been spent")
        assert b.last.budget.totals.cost <= 0.09
        assert b.last.budget.totals.cost == pytest.approx(0.03 * len(b.records()))
        then_resumes(b, 3 - len(b.records()))


@pytest.mark.parametrize("stated", [None, 0.0, 1e-9, 0.0109, 0.05])
def test_the_cap_on_money_holds_whatever_a_provider_says_it_costs(tmp_path: Path, stated: float | None) -> None:
    async def cheap(request: Request, on_text: OnText) -> Response:
        return Response(GOOD, usage=Usage(1000, 1000, cost=stated))

    calls = tuple(voice(f"v{number}") for number in range(12))
    with bench(tmp_path, {"agent": [cheap] * 12}) as b:
        with pytest.raises(BudgetReached):
            b.run(once(*calls, quorum=12), Limits(cost=0.12))
        assert b.last.budget.totals.cost <= 0.12
        each = max(stated or 0.0, 0.011)  # a thousand tokens of each kind, by the table
        assert b.last.budget.totals.cost == pytest.approx(each * len(b.model.requests))


def test_an_unknown_price_is_not_zero(tmp_path: Path) -> None:
    with bench(tmp_path, price=None) as b:
        with pytest.raises(ConfigError) as caught:
            b.run(once(voice()), Limits(cost=1.0))
        assert caught.value.exit_code == 4 and "price" in caught.value.message
        assert b.model.requests == []
        b.run(once(voice()))
        assert b.last.budget.totals.known_cost is None
        assert b.records()[0]["cost"] is None


@pytest.mark.wide
def test_the_cap_on_time(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [hang] * 9}) as b:
        began = time.monotonic()
        budget_reached(b, Limits(seconds=1.5), "The time limit of 1.5 s is reached")
        assert time.monotonic() - began < 30  # it hangs for a minute
        b.model._script = {}
        then_resumes(b, 1)


def test_usage_that_is_not_reported_is_estimated_and_never_zero(tmp_path: Path) -> None:
    script: dict[str, list[Said]] = {
        "t1-architect": [Response(GOOD)],
        "t1-critic": [fault(Kind.TRUNCATED, text="x" * 400), GOOD],
        "t1-pragmatist": [fault(Kind.NETWORK), Response(GOOD, usage=Usage(7, unreported="output", cost=0.1))],
    }
    with bench(tmp_path, script) as b:
        b.run(once(*VOICES, quorum=3))
        found = {(r["call"], r["attempt"]): r.get("usage") for r in b.records()}
        for key in (("t1-architect", 1), ("t1-critic", 1)):
            usage = found[key]
            assert usage and not usage["measured"]
            assert usage["input_tokens"] > 500 and usage["output_tokens"] > 50
        assert found["t1-pragmatist", 1] is None, "nothing reached the provider"
        assert found["t1-critic", 2] and found["t1-critic", 2]["measured"]
        half = found["t1-pragmatist", 2]
        assert half and half["input_tokens"] == 7 and half["output_tokens"] > 50 and not half["measured"]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (Response("x" * 400, usage=Usage(9, 3)), (9, 3, True)),
        (Response("x" * 400, usage=Usage(9, 0)), (9, 100, False)),  # zero tokens for a page
        (Response("", usage=Usage(9, 0)), (9, 0, True)),
        (Response("x", usage=Usage(0, 3, 50, unreported="input")), (50, 3, False)),
        (Response("", tool_calls=(ToolCall("c", "look", "{}" * 100),), usage=Usage(9, 0)), (9, 51, False)),
    ],
)
def test_a_count_that_was_left_out_is_estimated(response: Response, expected: tuple[int, int, bool]) -> None:
    usage = usage_of(response, None, 40)
    assert usage and (usage.input_tokens, usage.output_tokens, usage.measured) == expected and not usage.unreported


def test_calls_in_flight_are_finished_and_recorded_when_the_budget_ends(tmp_path: Path) -> None:
    async def slow(request: Request, on_text: OnText) -> Response:
        await asyncio.sleep(0.2)
        return Response(GOOD, usage=Usage(1, 1))

    with bench(tmp_path, {"t1-architect": [slow], "t1-critic": ["bad"]}) as b:
        budget_reached(b, Limits(calls=3), "cap of 3 calls")
        assert {record["call"] for record in b.records() if "response" in record} >= {"t1-architect"}


# -- bounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1, 3])
def test_the_cap_on_concurrency(tmp_path: Path, cap: int) -> None:
    calls = tuple(voice(f"v{number}") for number in range(8))
    with bench(tmp_path) as b:
        b.model._together, b.model._latency = cap, 0.03
        b.run(once(*calls), concurrency=cap)
        assert b.model.peak == cap and len(b.model.requests) == 8


def test_without_a_cap_a_batch_leaves_at_once(tmp_path: Path) -> None:
    calls = tuple(voice(f"v{number}") for number in range(24))
    with bench(tmp_path) as b:
        b.model._together = 24
        b.run(once(*calls))
        assert b.model.peak == 24


LIMITS = Deadlines(first_byte=1.0, idle=1.2, total=2.4)
STAGES = {  # where it hangs, the deadline after which it must be left, and its seconds
    "headers": (Fault(hang="headers", call="t1-critic", nth=1), "no answer began within 1 s", 1.0),
    "first-byte": (Fault(hang="first-byte", call="t1-critic", nth=1), "no answer began within 1 s", 1.0),
    "middle": (Fault(hang="middle", call="t1-critic", nth=1), "the answer stalled for 1.2 s", 1.2),
    "drip": (Fault(drip=0.05, call="t1-critic", nth=1), "no answer began within 1 s", 1.0),
}


@pytest.mark.wide
@pytest.mark.parametrize("stage", STAGES)
def test_deadlines_at_every_stage(tmp_path: Path, stage: str) -> None:
    trouble, deadline, least = STAGES[stage]
    with Provider(faults=[trouble]) as p:
        with bench(tmp_path, backends={"m": ChatBackend(f"{p.url}/v1")}) as b:
            replies = b.run(once(*VOICES, quorum=3), deadlines=LIMITS)
            assert not any(reply.missing for reply in replies)
            records = b.records()
        p.settle()
        hung, again = p.named("t1-critic")
        assert hung.left and hung.ended is not None
        assert hung.ended - hung.arrived >= least - 0.1
    first, second = sorted((r for r in records if r["call"] == "t1-critic"), key=lambda r: int(r["attempt"]))
    assert first["fault"]["kind"] == "timeout" and deadline in first["fault"]["message"]
    assert first["seconds"] >= least - 0.1
    assert "response" in second and again.attempt == 2
    assert all(r["seconds"] < least for r in records if r["call"] != "t1-critic"), "the others are not affected"


async def ponder(request: Request, on_text: OnText) -> Response:
    for _ in range(4):
        on_text("")
        await asyncio.sleep(0.2)
    on_text(GOOD)
    return Response(GOOD, usage=Usage(5, 5))


def test_a_model_that_thinks_before_its_first_word_has_not_stalled(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [ponder]}) as b:
        (reply,) = b.run(once(voice()), deadlines=Deadlines(first_byte=1.0, idle=0.05, total=9.0))
        assert not reply.missing and len(b.model.requests) == 1


async def pour(request: Request, on_text: OnText) -> Response:
    for letter in GOOD:
        on_text(letter)
    await asyncio.sleep(0.15)
    on_text("")
    return Response(GOOD, usage=Usage(5, 5))


def test_observers_see_the_end_of_an_answer_a_few_times_a_second(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [pour]}) as b:
        b.run(once(voice()))
        shown = [event for event in b.events if isinstance(event, TextReceived)]
        assert 2 <= len(shown) < 6  # not one for every letter
        assert (shown[0].characters, shown[0].tail) == (1, GOOD[0])  # at once
        assert shown[-1].characters == len(GOOD) and GOOD.endswith(shown[-1].tail)


async def trickle(request: Request, on_text: OnText) -> Response:
    while True:
        on_text("a")
        await asyncio.sleep(0.05)


@pytest.mark.wide
def test_an_answer_that_never_ends_is_left_at_the_total_deadline(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [trickle]}) as b:
        b.run(once(*VOICES, quorum=3), deadlines=LIMITS)
        (record,) = [record for record in b.records() if "fault" in record]
        assert (
            record["fault"]["kind"] == "timeout" and "no complete answer within 2.4 s" in record["fault"]["message"]
        )
        assert 2.3 <= record["seconds"] < 30


@pytest.mark.wide
def test_a_backend_that_answers_in_one_piece_has_only_the_total_deadline(tmp_path: Path) -> None:
    async def late(request: Request, on_text: OnText) -> Response:
        await asyncio.sleep(1.4)
        return Response(GOOD, usage=Usage(1, 1))

    with bench(tmp_path, {"agent": [late, hang]}) as b:
        b.model.streams = False
        replies = b.run(once(*VOICES[:2], quorum=2), deadlines=LIMITS)
        assert not any(reply.missing for reply in replies)
        (record,) = [record for record in b.records() if "fault" in record]
        assert "no complete answer within 2.4 s" in record["fault"]["message"]
        assert 2.3 <= record["seconds"] < 30  # it hangs for a minute


def test_a_refused_connection_is_a_fault_of_the_network(tmp_path: Path) -> None:
    with bench(tmp_path, backends={"m": ChatBackend("http://127.0.0.1:9/v1")}) as b:
        with pytest.raises(ModelsFailed) as caught:
            b.run(once(voice()))
        assert "no connection to http://127.0.0.1:9" in caught.value.message
        assert [record["fault"]["kind"] for record in b.records()] == ["network"] * 4


@pytest.mark.wide
def test_a_wait_for_a_dead_network_is_neither_a_rate_limit_nor_the_time_limit(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [fault(Kind.NETWORK)] * 99}) as b:
        runner = b.runner()
        runner.budget.limits = replace(runner.budget.limits, seconds=4.0)
        with pytest.raises(ModelsFailed) as caught:
            asyncio.run(runner.drive(once(*VOICES, quorum=3)))
        assert "rate-limited" not in caught.value.message and "time limit" not in caught.value.message


def test_a_disk_that_fails_ends_the_run_at_once_also_while_others_are_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, {"t1-critic": [hang]}) as b:
        real = os.fsync

        def broken(fd: int) -> None:
            if "calls" in str(Path(f"/proc/self/fd/{fd}").readlink()):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        monkeypatch.setattr(os, "fsync", broken)
        began = time.monotonic()
        with pytest.raises(SessionError, match="input/output error"):
            b.run(once(*VOICES, quorum=2), deadlines=Deadlines(first_byte=50, idle=50, total=50))
        assert time.monotonic() - began < 30


def test_a_cancelled_run_keeps_what_was_answered(tmp_path: Path) -> None:
    with bench(tmp_path, {"t1-critic": [hang]}) as b:

        async def main() -> None:
            task = asyncio.create_task(b.runner().drive(once(*VOICES, quorum=3)))
            await until(lambda: len(exchanges(b.path)) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(asyncio.all_tasks()) == 1, "nothing goes on in the background"

        asyncio.run(main())
        then_resumes(b, 1)


# -- what a gateway sees, what a person is asked ----------------------------------------------------------------


def test_every_request_carries_its_headers(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.model._script = {"synthesis": [synthesis_text(), "bad", synthesis_text()]}
        outcome = b.run(deliberate(plan_of(2)))
        assert outcome.turns == 2
        heads = [dict(request.headers) for request in b.model.requests]
        assert {head["X-Cdo-Session"] for head in heads} == {"a"}
        shown = [(head["X-Cdo-Kind"], head["X-Cdo-Call"], head["X-Cdo-Attempt"]) for head in heads]
        assert [(kind, call) for kind, call, _ in shown if kind != "agent"] == [
            ("synthesis", "t1-synthesis"),
            ("synthesis", "t2-synthesis"),
            ("synthesis", "t2-synthesis"),
            ("final", "final"),
        ]
        assert [attempt for _, call, attempt in shown if call == "t2-synthesis"] == ["1", "2"]
        agents = [call for kind, call, _ in shown if kind == "agent"]
        assert len(agents) == len(set(agents)) == 6


def test_the_scripted_backend_drives_a_whole_deliberation(tmp_path: Path) -> None:
    script = {"agent": GOOD, "synthesis": synthesis_text(exit_ready=True, confidence=0.9), "final": valid("final")}
    backend = ScriptedBackend(script)
    with bench(tmp_path, backends={"m": backend}) as b:
        outcome = b.run(deliberate(plan_of(2)))
        assert (outcome.status, outcome.turns) == ("converged", 2) and len(backend.requests) == 9


def asking() -> Program[str]:
    answer = yield Pause("t1-conflict", "Go on?", ("yes", "no"), "yes")
    assert isinstance(answer, str)
    return answer


def test_a_pause_takes_its_default_where_nobody_is_and_records_it(tmp_path: Path) -> None:
    async def never(pause: Pause) -> str:
        raise AssertionError("a recorded answer is not asked for again")

    with bench(tmp_path) as b:
        assert b.run(asking()) == "yes"
        b.reopen()
        assert b.run(asking(), human=Human(never)) == "yes"
        (record,) = read_session(b.path)
        assert (record["answer"], record["by"]) == ("yes", "default")


def test_a_persons_answer_is_recorded_and_replayed(tmp_path: Path) -> None:
    async def no(pause: Pause) -> str:
        return "no"

    with bench(tmp_path) as b:
        assert b.run(asking(), human=Human(no)) == "no"
        b.reopen()
        assert b.run(asking()) == "no"
        assert len(read_session(b.path)) == 1


@pytest.mark.wide
def test_stale_files_wait_for_consent_and_nothing_is_sent(tmp_path: Path) -> None:
    async def no(stale: Sequence[str], kept: Sequence[str]) -> bool:
        return False

    with bench(tmp_path) as b:
        b.run(once(*VOICES))
        b.reopen()
        (b.path / "00-input.md").write_text("Should we merge the services?\n")
        before = {path.name: path.read_bytes() for path in b.path.glob("*.md")}
        b.model.requests = []
        for human in (Human(), Human(None, no)):
            with pytest.raises(NeedsHuman) as caught:
                b.run(once(*VOICES), human=human)
            assert caught.value.exit_code == 6
        assert b.model.requests == []
        assert {path.name: path.read_bytes() for path in b.path.glob("*.md")} == before


def test_errors_of_the_runner_are_sentences(tmp_path: Path) -> None:
    with bench(tmp_path, {"agent": [fault(Kind.REJECTED)] * 3}) as b, pytest.raises(CdoError) as caught:
        b.run(once(*VOICES, quorum=2))
    assert caught.value.message.endswith(".") and caught.value.hint.endswith(".")
    assert "\n" not in caught.value.message + caught.value.hint
