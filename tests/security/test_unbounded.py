"""Models that never want to stop, in every mode and under every cap: the run ends, and no cap is passed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from cdo.app.finish import finish
from cdo.content.library import Library
from cdo.content.schemas import Price
from cdo.core.errors import BudgetReached, CdoError, ModelsFailed, SessionError
from cdo.core.events import Event
from cdo.core.exchange import OnText, Request, Response, ToolCall, Usage
from cdo.core.usage import estimate_tokens, totals
from cdo.planning.arguments import parse, vocabulary
from cdo.planning.estimate import estimate
from cdo.planning.mission_plan import estimate as mission
from cdo.planning.mission_plan import plan as crewed
from cdo.planning.plan import Plan
from cdo.planning.plan_builder import PlanEnvironment, make
from cdo.planning.settings import resolve
from cdo.programs import registry
from cdo.providers.models import ModelSpec
from cdo.providers.price_table import LEAST_REPLY_TOKENS
from cdo.repository.tools import Tools
from cdo.runner.attempts import Deadlines
from cdo.runner.budget import Budget, Limits, held_back
from cdo.runner.model_seat import ModelSeat
from cdo.runner.retry import CircuitBreaker
from cdo.runner.runner import Runner
from cdo.session.session_file import create_session, new_session_file
from cdo.session.store import Session
from tests.runs.test_modes_run import case, house
from tests.support.answers import Answer, RequestInfo, default_answer, synthesis_text, voices_in
from tests.support.cabal_team import busy_script
from tests.support.harness import sampled
from tests.unit.cabal.test_mission_program import crew

LIBRARY = Library.at(Path("/"))
SPEC = ModelSpec(name="m", route="scripted", model="m", price=Price(input=1.0, output=10.0), tools=True)
QUESTION = "Should we split the service?"
LATENCY = 20.0  # seconds that each answer takes
MODES: dict[str, Sequence[str]] = {
    "think": ("think",), "quick": ("quick",), "deep": ("deep",), "full": ("full",), "adaptive": ("adaptive,full",),
    "team": ("team,full",), "debug": ("debug",), "parliament": ("full,parliament",), "dev": ("exec", "dev"),
    "arch": ("exec", "arch"), "mission": (),
}  # fmt: skip
TURNS = {mode: {"turns": 4} for mode in ("full", "adaptive", "team")}  # as many as show it
LOOKING = PlanEnvironment(looks=(5, 3), root=".")
Says = Callable[[str, RequestInfo], Answer]


def plan_of(mode: str) -> Plan:
    if mode == "mission":
        return crewed(QUESTION, crew(3, rounds=3), [SPEC], LIBRARY)
    words = parse([*MODES[mode], QUESTION], vocabulary(LIBRARY.names("presets"), LIBRARY.names("modes")))
    return make(
        words, QUESTION, resolve({"model": ("m",), **TURNS.get(mode, {})}, LIBRARY, {}), LIBRARY, ["m"], LOOKING
    )


class Clock:
    """A clock that answers put forward; it shows the seconds since it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, self._real = 0.0, time.monotonic
        self._start = self._real()
        monkeypatch.setattr(time, "monotonic", lambda: self._real() + self.ahead)

    def now(self) -> float:
        return time.monotonic() - self._start


class Greedy:
    """A model that takes all the tokens it may have, and `says` whatever keeps a run of this mode going."""

    streams = False

    def __init__(self, mode: str, says: Says, clock: Clock) -> None:
        self._mode, self._says, self._clock = mode, says, clock
        self.began: list[float] = []

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Answer when everybody has asked, `LATENCY` later."""
        self.began.append(self._clock.now())
        for _ in range(5):
            await asyncio.sleep(0)
        self._clock.ahead += LATENCY
        body = {"messages": [{"content": message.text} for message in request.messages]}
        headers = CIMultiDictProxy(CIMultiDict(request.headers))
        answer = self._says(self._mode, RequestInfo("POST", "/v1/chat/completions", headers, body, 0.0))
        used = Usage(sum(estimate_tokens(message.text) for message in request.messages), request.max_tokens)
        return Response(answer.text, tool_calls=answer.tool_calls if request.tools else (), usage=used)

    async def close(self) -> None:
        """Nothing to close."""


def more(mode: str, info: RequestInfo) -> Answer:
    """Valid replies by which nothing is ever settled, and every turn needs everybody there is."""
    found: Answer | None = None
    if mode == "mission":
        found = Answer(busy_script(8, 9).reply(info.call, info.prompt))
    elif mode == "debug":
        found = case(info)
    elif mode == "parliament":
        found = house(info)
    elif info.kind == "synthesis":
        tensions = [f"a new one after {info.call} {number}" for number in range(20)]
        found = Answer(synthesis_text(width=64, confidence=0.01, tensions=tensions, gaps=[f"after {info.call}"]))
    return found or default_answer(info)


def looks(mode: str, info: RequestInfo) -> Answer:
    """A model that would look into the repository for ever."""
    calls = tuple(ToolCall(f"c{number}", "search", json.dumps({"pattern": "def"})) for number in range(30))
    return replace(more(mode, info), tool_calls=calls)


def rubbish(mode: str, info: RequestInfo) -> Answer:
    """A model that follows no format."""
    return Answer("Go on! " * 20)


MODELS: dict[str, Says] = {"more": more, "looks": looks, "rubbish": rubbish}


class Run:
    """A run in `path`, begun or gone on with, to its end.

    `used` is what it used, `began` when each request did, `seconds` how long all took, `ended` the error at its end.
    """

    def __init__(self, path: Path, mode: str, says: Says, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan = plan = plan_of(mode)
        resolved = resolve({"model": ("m",)}, LIBRARY, {})
        head = new_session_file(plan, resolved.values, resolved.sources)
        files = {"00-input.md": QUESTION, "00-context.md": "# Context\n\nNothing.\n"}
        self.ended: CdoError | None = None

        async def main() -> None:
            budget = Budget(limits, totals(session.records), held_back(limits) if plan.crew else Limits())
            seats = {"m": ModelSeat(SPEC, greedy, CircuitBreaker())}
            box = Tools(path, LIBRARY, plan.tools)
            runner = Runner(session, LIBRARY, seats, budget, self._observe, toolbox=box, deadlines=LONG)
            try:
                finish(session, plan, await runner.drive(registry.program(plan, LIBRARY)), runner)
                session.flush()
            except (BudgetReached, ModelsFailed, SessionError) as error:
                self.ended = error

        folder = path / f"cdo-{mode}"
        opened = Session.open(folder) if folder.exists() else create_session(head, files, path, mode, ())
        with closing(opened) as session, monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda fd: None)  # nothing is killed here
            clock = Clock(patch)
            greedy = Greedy(mode, says, clock)
            asyncio.run(main())
            self.seconds, self.began = clock.now(), greedy.began
            self.used = totals(session.records)
            self.looked = Counter[str]()
            for record in session.records:
                if record["kind"] == "tools":
                    self.looked[record["call"]] += sum("Refused" not in result for result in record["results"])
            self.records = [record for record in session.records if record["kind"] == "exchange"]

    def _observe(self, event: Event) -> None:
        pass


LONG = Deadlines(first_byte=3600.0, idle=3600.0, total=3600.0)


def told(mode: str) -> int:
    """The most calls that a run may need, as a person is told before it."""
    plan = plan_of(mode)
    return (mission(plan.crew, [SPEC], 100) if plan.crew else estimate(plan, [SPEC], 100)).calls[1]


def kept(run: Run, limits: Limits) -> None:
    """No cap is passed, and one that would have been ends the run with the error for it."""
    used = run.used
    assert limits.calls is None or used.calls <= limits.calls
    assert limits.tokens is None or used.tokens <= limits.tokens
    assert limits.cost is None or used.cost <= limits.cost + 1e-9
    # A request that has begun when the time is up may still be answered.
    assert limits.seconds is None or max(run.began, default=0.0) <= limits.seconds + LATENCY


TOGETHER = [(mode, "more") for mode in MODES] + [
    (mode, says)
    for mode in MODES
    for says in ("looks", "rubbish")
    if mode not in ("full", "adaptive") and (mode, says) != ("mission", "looks")  # a mission looks into nothing
]


@pytest.mark.parametrize("case", sampled(TOGETHER, TOGETHER[::2]), ids="-".join)
def test_a_run_ends_by_itself_and_under_every_cap(
    tmp_path: Path, case: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mode, says = case
    whole = Run(tmp_path / "whole", mode, MODELS[says], Limits(), monkeypatch)
    tries = Counter(record["call"] for record in whole.records)
    assert len(tries) <= told(mode), "no call but those that a person was told of"
    requests, rounds = whole.plan.tools or (0, 0)
    assert max(tries.values()) <= 3 + rounds, "none is asked more often than three times and its looks"
    assert (says == "rubbish") == isinstance(whole.ended, ModelsFailed)
    assert (says == "looks") == bool(whole.looked) and max(whole.looked.values(), default=0) <= requests
    assert whole.used.calls == len(whole.records) == len(whole.began) > 2
    used = whole.used
    caps = [Limits(calls=used.calls // 2)]
    if says == "more" and mode not in ("full", "adaptive"):  # which are long, and like a team's
        # Under a cap replies get shorter, down to the least: half of what these need is not enough for the run.
        least = Usage(used.input_tokens, used.calls * LEAST_REPLY_TOKENS)
        tokens = least.input_tokens + least.output_tokens
        caps += [Limits(tokens=tokens // 2), Limits(cost=(SPEC.cost(least) or 0) / 2)]
        caps += [Limits(seconds=whole.seconds / 2)]
        shorter = Run(tmp_path / "shorter", mode, MODELS[says], half := Limits(tokens=used.tokens // 2), monkeypatch)
        kept(shorter, half)
        caps += [Limits(calls=1), Limits(tokens=0)]
    for number, limits in enumerate(caps):
        run = Run(tmp_path / str(number), mode, MODELS[says], limits, monkeypatch)
        kept(run, limits)
        # A mission ends within its caps and says so; whatever else is ended by one.
        assert isinstance(run.ended, BudgetReached | ModelsFailed) or mode == "mission"


def any_reply(seed: int) -> Says:
    """A model that says anything at all, each time something else."""
    pick = random.Random(seed)

    def says(mode: str, info: RequestInfo) -> Answer:
        if pick.random() < 0.1:
            return rubbish(mode, info)
        if info.kind != "synthesis":
            return default_answer(info)
        return Answer(
            synthesis_text(
                width=pick.choice([0, 1, 3, 5, 64, 10**9]),
                roles=pick.sample(["critic", "tester", "economist", "../x", "", "refuter", "operator"], k=3),
                confidence=round(pick.random(), 2),
                voices=voices_in(info.prompt),
                agreement=round(pick.random(), 2),
                exit_ready=pick.random() < 0.3,
                gaps=[f"gap {pick.randrange(3)}"],
                tensions=[f"tension {pick.randrange(4)}"],
            )
        )

    return says


def runs(path: Path, seeds: range, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """One run for each seed, of any mode, under caps of its own; how they ended."""
    ends = Counter[str]()
    for seed in seeds:
        pick = random.Random(seed)
        mode = pick.choice(["think", "quick", "deep", "dev"])
        most = told(mode)
        caps = {
            "calls": pick.randrange(most + 3),
            "tokens": pick.randrange(most * 6000),
            "cost": pick.random() * most / 20,
            "seconds": pick.random() * most * LATENCY,
        }
        limits = Limits(**{key: value for key, value in caps.items() if pick.random() < 0.4})  # type: ignore[arg-type]
        run = Run(path / str(seed), mode, any_reply(seed), limits, monkeypatch)
        kept(run, limits)
        assert run.used.calls <= most * 3
        ends[type(run.ended).__name__] += 1
    return ends


def test_whatever_a_model_says_no_cap_is_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(runs(tmp_path, range(20), monkeypatch)) >= 2


@pytest.mark.slow
def test_nor_in_a_thousand_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(runs(tmp_path, range(1000), monkeypatch)) == {"NoneType", "BudgetReached", "ModelsFailed"}
