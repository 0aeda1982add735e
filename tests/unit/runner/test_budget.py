"""The caps of a run: what is held before a request, what is settled after it, and that no cap is ever passed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.content.schemas import LongPromptPrices, Price
from cdo.core.errors import BudgetReached, ConfigError
from cdo.core.exchange import Usage
from cdo.core.usage import TotalUsage
from cdo.providers.models import ModelSpec
from cdo.runner.budget import Budget, Limits, Reservation
from tests.support import clock

DOLLAR = ModelSpec("m", "direct", "m", price=Price(input=1_000_000, output=1_000_000))  # a dollar a token
SPLIT = ModelSpec("m", "direct", "m", price=Price(input=2, output=8, cached=0.5, cache_write=2.5))
FREE = ModelSpec("m", "local", "", price=Price(input=0, output=0))
UNKNOWN = ModelSpec("m", "direct", "m")
LONG = ModelSpec(
    "m", "direct", "m",
    price=Price(
        input=2, output=10, cached=0.5,
        long_prompts=(
            LongPromptPrices(above=400_000, input=6, output=20),
            LongPromptPrices(above=200_000, input=4, output=15, cached=1),
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "usage", "cost"),
    [
        (SPLIT, Usage(1_000_000, 0), 2.0),
        (SPLIT, Usage(0, 1_000_000), 8.0),
        (SPLIT, Usage(1000, 500), 0.006),
        (SPLIT, Usage(1000, 500, 1000), 0.0045),
        (SPLIT, Usage(1000, 0, 400), 0.0014),
        (SPLIT, Usage(1000, 0, 5000), 0.0005),  # never more cached than there was
        (SPLIT, Usage(1000, 0, 400, cache_write_tokens=500), 0.0002 + 0.0002 + 0.00125),
        (SPLIT, Usage(1000, 0, 400, cache_write_tokens=5000), 0.0002 + 0.0015),  # nor written
        (LONG, Usage(200_000, 1000), 0.4 + 0.01),
        (LONG, Usage(200_001, 1000), 0.800004 + 0.015),  # all of its tokens cost more
        (LONG, Usage(200_001, 1000, 100_000), 0.400004 + 0.1 + 0.015),
        (LONG, Usage(400_001, 1000, 1), 2.400006 + 0.02),
        (DOLLAR, Usage(1000, 0, 400), 1000.0),  # no price for cached tokens: the full one
        (SPLIT, Usage(1000, 500, cost=0.25), 0.25),  # what the provider states wins where it is more
        (SPLIT, Usage(1000, 500, cost=0.0059), 0.006),
        (SPLIT, Usage(1000, 500, cost=0.0), 0.006),
        (FREE, Usage(1000, 500, cost=0.25), 0.25),
        (UNKNOWN, Usage(1000, 500, cost=0.25), 0.25),
        (UNKNOWN, Usage(1000, 500), None),
        (UNKNOWN, Usage(0, 0), None),
        (FREE, Usage(1000, 500), 0.0),
    ],
)
def test_what_an_exchange_costs(spec: ModelSpec, usage: Usage, cost: float | None) -> None:
    assert spec.cost(usage) == (pytest.approx(cost) if cost is not None else None)


def test_totals_count_requests_tokens_and_money() -> None:
    totals = TotalUsage.one(Usage(10, 5), 0.5)
    totals += TotalUsage.one(None, None)  # refused at the door: a request, and nothing else
    assert (totals.calls, totals.tokens, totals.known_cost) == (2, 15, 0.5)
    totals += TotalUsage.one(Usage(1, 1), None)
    assert (totals.calls, totals.tokens, totals.known_cost, totals.cost, totals.unpriced) == (3, 17, None, 0.5, 1)


def spend(limits: Limits, totals: TotalUsage | None = None) -> Budget:
    return Budget(limits, totals or TotalUsage())


@pytest.mark.parametrize(
    ("limits", "totals", "fits"),
    [
        (Limits(), TotalUsage(calls=10**6, input_tokens=10**9, cost=1e6, unpriced=3), True),
        (Limits(calls=3), TotalUsage(calls=2), True),
        (Limits(calls=3), TotalUsage(calls=3), False),
        (Limits(calls=3), TotalUsage(calls=9), False),
        (Limits(tokens=100), TotalUsage(input_tokens=60, output_tokens=25), True),
        (Limits(tokens=100), TotalUsage(input_tokens=60, output_tokens=26), False),
        (Limits(cost=20.0), TotalUsage(cost=5.0), True),
        (Limits(cost=20.0), TotalUsage(cost=5.01), False),
        (Limits(cost=0.3 + 15), TotalUsage(cost=0.1 + 0.2), True),  # not refused for the last bit of a float
        (Limits(seconds=5), TotalUsage(), True),
        (Limits(seconds=0), TotalUsage(), False),
        (Limits(calls=3, tokens=10), TotalUsage(), False),
    ],
)
def test_a_request_of_fifteen_tokens_under_caps(limits: Limits, totals: TotalUsage, fits: bool) -> None:
    budget = spend(limits, totals)
    if fits:
        assert asyncio.run(budget.reserve(DOLLAR, 10, 5)) == Reservation(15, 15.0, 5)
    else:
        with pytest.raises(BudgetReached) as caught:
            asyncio.run(budget.reserve(DOLLAR, 10, 5))
        assert caught.value.exit_code == 5 and "cdo resume" in caught.value.hint


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(calls=2), "cap of 2 calls"),
        (Limits(tokens=20), "cap of 20 tokens is reached: 12 are used and the next call may take 15"),
        (
            Limits(cost=13.5),
            r"budget of \$13.5 is reached: \$12.00 has been spent and the next call may cost \$15.00",
        ),
        (Limits(seconds=1.5), "time limit of 1.5 s"),
    ],
)
def test_the_error_names_the_cap_and_where_it_stands(
    limits: Limits, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        budget = spend(limits, TotalUsage(calls=2, input_tokens=12, cost=12.0))
        await asyncio.sleep(2)
        await budget.reserve(DOLLAR, 10, 5)

    with pytest.raises(BudgetReached, match=words):
        clock.run(main(), monkeypatch)


def test_an_unknown_price_under_a_cap_on_money_is_refused() -> None:
    with pytest.raises(ConfigError, match="price of m is not known") as caught:
        asyncio.run(spend(Limits(cost=1000.0)).reserve(UNKNOWN, 1, 1))
    assert "prices" in caught.value.hint and "--max-calls" in caught.value.hint
    assert asyncio.run(spend(Limits(cost=1e-9)).reserve(FREE, 10**6, 10**6)) == Reservation(2 * 10**6, 0.0, 10**6)
    assert asyncio.run(spend(Limits(tokens=10)).reserve(UNKNOWN, 5, 5)) == Reservation(10, 0.0, 5)


def in_time(main: Callable[[], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    clock.run(main(), monkeypatch)


@pytest.mark.parametrize(
    ("limits", "held", "granted"),
    [
        (Limits(), 0, 30_000),
        (Limits(cost=10.0), 0, 30_000),
        (Limits(cost=0.8), 0, 24_750),  # a quarter of it, less what the prompt may cost
        (Limits(cost=0.8), 1, 18_500),
        (Limits(tokens=80_000), 0, 19_200),
        (Limits(cost=0.1), 0, 4096),
    ],
)
def test_a_reply_may_use_up_a_quarter_of_what_is_left(limits: Limits, held: int, granted: int) -> None:
    async def main() -> int:
        budget = spend(limits)
        for _ in range(held):
            await budget.reserve(SPLIT, 800, 30_000, least=4096)
        return (await budget.reserve(SPLIT, 800, 30_000, least=4096)).reply_tokens

    assert asyncio.run(main()) == granted


def test_a_long_prompt_is_reserved_at_its_own_price() -> None:
    budget = spend(Limits(cost=8.0))
    held = asyncio.run(budget.reserve(LONG, 200_001, 100_000, least=4096))
    # A quarter of 8 dollars less 0.800004 for the prompt, at 15 dollars a million.
    assert (held.tokens, held.reply_tokens) == (200_001 + 79_999, 79_999)
    assert held.cost == pytest.approx(0.800004 + 1.199985)
    assert asyncio.run(budget.reserve(LONG, 200_000, 1000)).cost == pytest.approx(0.41)


def test_a_request_waits_for_what_one_in_flight_may_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(cost=25.0))
        first = await budget.reserve(DOLLAR, 10, 5)
        second = asyncio.create_task(budget.reserve(DOLLAR, 10, 5))
        await asyncio.sleep(60)
        assert not second.done()
        await budget.settle(first, Usage(9, 1), 10.0)  # five dollars less than held
        held = await second
        await budget.settle(held, Usage(10, 5), 15.0)
        assert (budget.totals.calls, budget.totals.cost, budget.totals.tokens) == (2, 25.0, 25)

    in_time(main, monkeypatch)


def test_a_request_that_waited_in_vain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(tokens=25))
        first = await budget.reserve(DOLLAR, 10, 5)
        second = asyncio.create_task(budget.reserve(DOLLAR, 10, 5))
        await asyncio.sleep(1)
        await budget.settle(first, Usage(10, 5), 15.0)
        with pytest.raises(BudgetReached):
            await second

    in_time(main, monkeypatch)


def test_what_can_never_fit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(cost=14.0))
        held = await budget.reserve(DOLLAR, 1, 0)
        with pytest.raises(BudgetReached):  # though something is in flight
            await budget.reserve(DOLLAR, 10, 5)
        await budget.settle(held, None, None)

    in_time(main, monkeypatch)


def test_a_request_that_was_never_sent_gives_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(calls=1))
        held = await budget.reserve(DOLLAR, 10, 5)
        second = asyncio.create_task(budget.reserve(DOLLAR, 10, 5))
        await asyncio.sleep(1)
        await budget.release(held)
        await budget.settle(await second, Usage(10, 5), 15.0)
        assert budget.totals.calls == 1

    in_time(main, monkeypatch)


def test_many_waiters_are_served_one_by_one_and_the_cap_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(cost=100.0))

        async def call() -> bool:
            try:
                held = await budget.reserve(DOLLAR, 10, 5)
            except BudgetReached:
                return False
            await asyncio.sleep(1)
            await budget.settle(held, Usage(2, 2), 4.0)
            return True

        answers = await asyncio.gather(*(call() for _ in range(40)))
        # 4 dollars each, and 15 must be left to begin one: (100 - 15) / 4 + 1.
        assert sum(answers) == 22 and budget.totals.cost == 88.0

    in_time(main, monkeypatch)


def test_a_cancelled_waiter_holds_nothing_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(tokens=30))
        first = await budget.reserve(DOLLAR, 10, 10)
        waiting = [asyncio.create_task(budget.reserve(DOLLAR, 10, 5)) for _ in range(3)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.sleep(1)
        await budget.settle(first, None, None)
        assert (await waiting[2]).tokens == 15
        assert (await budget.reserve(DOLLAR, 10, 5)).tokens == 15

    in_time(main, monkeypatch)


def test_a_settlement_cannot_be_cancelled_halfway(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(calls=2, tokens=30))
        held = await budget.reserve(DOLLAR, 10, 5)

        async def call() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await budget.settle(held, Usage(10, 5), 15.0)

        task = asyncio.create_task(call())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(1)
        assert budget.totals.tokens == 15
        assert await budget.reserve(DOLLAR, 10, 5)

    in_time(main, monkeypatch)


def test_time_runs_out_for_waiters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        budget = spend(Limits(seconds=10, tokens=20))
        assert budget.remaining_seconds() == 10
        first = await budget.reserve(DOLLAR, 10, 5)
        second = asyncio.create_task(budget.reserve(DOLLAR, 10, 5))
        await asyncio.sleep(11)
        assert budget.remaining_seconds() == -1
        await budget.settle(first, None, None)
        with pytest.raises(BudgetReached, match="time limit of 10 s"):
            await second

    in_time(main, monkeypatch)
    assert spend(Limits()).remaining_seconds() == float("inf")


@given(
    limits=st.builds(
        Limits,
        calls=st.none() | st.integers(0, 40),
        tokens=st.none() | st.integers(0, 400),
        cost=st.none() | st.floats(0, 100),
    ),
    before=st.builds(TotalUsage, calls=st.integers(0, 10), input_tokens=st.integers(0, 100), cost=st.floats(0, 30)),
    wishes=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 60), st.sampled_from((DOLLAR, SPLIT, FREE))), max_size=40
    ),
    seed=st.integers(0, 2**32),
)
def test_no_cap_is_ever_passed(
    limits: Limits, before: TotalUsage, wishes: list[tuple[int, int, ModelSpec]], seed: int
) -> None:
    """Whatever is asked in whatever order: what is used and held together stays under every cap."""
    dice = random.Random(seed)
    budget = Budget(limits, before)
    over_from_start = (
        limits.calls is not None and before.calls > limits.calls,
        limits.tokens is not None and before.tokens > limits.tokens,
        limits.cost is not None and before.cost > limits.cost + 1e-12,  # what rounding may leave
    )
    held: list[Reservation] = []

    def check() -> None:
        totals = budget.totals
        sums = (
            (limits.calls, totals.calls + len(held)),
            (limits.tokens, totals.tokens + sum(item.tokens for item in held)),
            (limits.cost, totals.cost + sum(item.cost for item in held)),
        )
        for (cap, used), already in zip(sums, over_from_start, strict=True):
            assert cap is None or already or used <= cap + 1e-9

    async def call(sent: int, got: int, spec: ModelSpec) -> str:
        await asyncio.sleep(dice.uniform(0, 20))
        try:
            mine = await budget.reserve(spec, sent, got)
        except BudgetReached:
            return "refused"
        held.append(mine)
        check()
        await asyncio.sleep(dice.uniform(0, 20))
        held.remove(mine)
        fate = dice.randrange(4)
        if fate == 0:
            await budget.release(mine)
        elif fate == 1:
            await budget.settle(mine, None, None)
        else:
            usage = Usage(dice.randint(0, sent), dice.randint(0, got))
            await budget.settle(mine, usage, spec.cost(usage))
        check()
        return "done"

    async def main() -> list[str]:
        return await asyncio.gather(*(call(*wish) for wish in wishes))

    with pytest.MonkeyPatch.context() as patch:
        answers = clock.run(main(), patch)  # fails where somebody waits for ever
    assert len(answers) == len(wishes)
    if any(over_from_start):
        assert set(answers) <= {"refused"}
