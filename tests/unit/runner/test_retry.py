"""What is tried again, how often and when: tries of a call, the run's allowance, the provider's gate."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.core.exchange import BackendError, Fault
from cdo.providers.http.headers import retry_after
from cdo.runner import retry
from cdo.runner.retry import CHANGED, PASSING, PROVIDER_WIDE, AttemptCounter, CircuitBreaker, RetryBudget
from tests.support import clock

# -- tries of one call -----------------------------------------------------------------------------

# How often a call is sent at most when it meets nothing but this fault.
ATTEMPTS = {
    Fault.RATE_LIMITED: 4,
    Fault.OVERLOADED: 4,
    Fault.NETWORK: 4,
    Fault.TIMEOUT: 4,
    Fault.TRUNCATED: 4,
    Fault.CRASHED: 4,
    Fault.LENGTH: 2,
    Fault.EMPTY: 2,
    Fault.OVERFLOW: 2,
    Fault.MALFORMED: 2,
    Fault.INVALID: 3,
    Fault.REFUSED: 1,
    Fault.REJECTED: 1,
    Fault.DENIED: 1,
    Fault.USED_UP: 1,
}


def attempts(faults: list[Fault]) -> int:
    """How many of these faults, one after the other, a call meets before it is given up (or all are through)."""
    tries = AttemptCounter()
    for number, fault in enumerate(faults, 1):
        tries.note(fault)
        if not tries.retry(fault):
            return number
    return len(faults)


def test_every_fault_has_a_policy() -> None:
    assert set(ATTEMPTS) == set(Fault)


@pytest.mark.parametrize(("fault", "expected"), ATTEMPTS.items())
def test_attempts_of_a_call_that_meets_one_fault(fault: Fault, expected: int) -> None:
    assert attempts([fault] * 9) == expected


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (
            [Fault.RATE_LIMITED, Fault.NETWORK, Fault.TIMEOUT, Fault.TRUNCATED, Fault.NETWORK],
            4,
        ),  # passing ones add up
        ([Fault.OVERFLOW, Fault.RATE_LIMITED, Fault.OVERFLOW], 3),
        ([Fault.LENGTH, Fault.OVERFLOW, Fault.LENGTH], 3),  # each change may be tried once
        ([Fault.INVALID, Fault.OVERLOADED, Fault.INVALID, Fault.OVERLOADED, Fault.INVALID], 5),
        ([Fault.NETWORK, Fault.DENIED, Fault.NETWORK], 2),
        ([Fault.INVALID, Fault.REFUSED], 2),
    ],
)
def test_attempts_of_a_call_that_meets_several_faults(faults: list[Fault], expected: int) -> None:
    assert attempts([*faults, *faults]) == expected


@given(st.lists(st.sampled_from(Fault), max_size=60))
def test_whatever_comes_a_call_ends(faults: list[Fault]) -> None:
    bound = retry.MAX_ATTEMPTS - 1 + len(CHANGED) + retry.MAX_REPLIES - 1 + 1
    assert attempts(faults) <= bound == 10


@pytest.mark.parametrize(("failures", "most"), [(0, 0.5), (1, 0.5), (2, 2.0), (3, 8.0), (4, 30.0), (9999, 30.0)])
def test_delays_grow_up_to_a_bound_and_differ_between_calls(failures: int, most: float) -> None:
    tries = AttemptCounter({Fault.OVERLOADED: failures})
    delays = [tries.delay() for _ in range(300)]
    assert 0.6 * most <= min(delays) and max(delays) <= most
    assert len(set(delays)) > 250


def test_faults_that_do_not_pass_do_not_lengthen_the_delay() -> None:
    tries = AttemptCounter({Fault.INVALID: 3, Fault.LENGTH: 1, Fault.OVERLOADED: 1})
    assert tries.delay() <= retry.FIRST_DELAY


# -- the run's allowance ---------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [0, 1, 12, 300])
def test_a_run_has_as_many_retries_as_calls_and_a_few(calls: int) -> None:
    allowance = RetryBudget()
    for _ in range(calls):
        allowance.call()
    assert [allowance.take() for _ in range(calls + 14)] == [True] * (calls + 12) + [False, False]
    allowance.call()
    assert [allowance.take(), allowance.take()] == [True, False]


# -- the gate --------------------------------------------------------------------------------------


@dataclass
class Outage:
    """A provider that fails from 0 to `heals`, and callers that treat it as the runner does.

    `wait` is the Retry-After it states, from when it fails to the end of the outage if negative.
    """

    heals: float
    latency: float = 0.01
    wait: float | None = None
    fault: Fault = Fault.OVERLOADED
    gate: CircuitBreaker = field(default_factory=CircuitBreaker)
    allowance: RetryBudget = field(default_factory=RetryBudget)
    sent: list[float] = field(default_factory=list)
    asked: list[tuple[float, float]] = field(default_factory=list)  # when a wait was asked for, and until when
    probes: int = 0
    most_probes: int = 0
    done: dict[int, float] = field(default_factory=dict)

    def now(self) -> float:
        return asyncio.get_running_loop().time() - clock.START

    async def send(self) -> None:
        """One request."""
        self.sent.append(self.now())
        down = self.now() < self.heals
        await asyncio.sleep(self.latency)
        if down:
            wait = self.wait if self.wait is None or self.wait >= 0 else max(0.0, self.heals - self.now())
            if wait is not None:
                self.asked.append((self.now(), self.now() + wait))
            raise BackendError(self.fault, "down", retry_after=wait)

    async def call(self, number: int) -> bool:
        """One call with its retries; whether it was answered."""
        tries = AttemptCounter()
        self.allowance.call()
        while True:
            error: BackendError | None = None
            try:
                probe = await self.gate.enter()
            except BackendError:
                return False
            started = asyncio.get_running_loop().time()
            self.probes += probe
            self.most_probes = max(self.probes, self.most_probes)
            try:
                await self.send()
            except BackendError as caught:
                error = caught
            self.probes -= probe
            self.gate.leave(probe, started, error.fault if error else None, error.retry_after if error else None)
            if error is None:
                self.done[number] = self.now()
                return True
            tries.note(error.fault)
            if not tries.retry(error.fault) or not self.allowance.take():
                return False
            delay = max(tries.delay(), error.retry_after or 0.0)
            if delay > retry.MAX_WAIT:
                return False
            await asyncio.sleep(delay)

    async def calls(self, width: int) -> list[bool]:
        return await asyncio.gather(*(self.call(number) for number in range(width)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", sorted(PROVIDER_WIDE))
@pytest.mark.parametrize(
    ("width", "heals"),
    [(1, 6.0), (3, 0.2), (3, 20.0), (5, 20.0), (8, 60.0), (32, 0.2), (32, 5.0), (32, 60.0), (200, 60.0)],
)
def test_an_outage_costs_no_call_and_no_storm(
    width: int, heals: float, fault: Fault, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(seed)
    outage = Outage(heals, fault=fault)
    assert all(clock.run(outage.calls(width), monkeypatch))
    during = [moment for moment in outage.sent if moment < heals]
    assert len(during) <= width + 12  # one wave, then one probe at a time
    assert outage.most_probes <= 1
    assert len(outage.sent) <= 2 * width + 12
    assert max(outage.done.values()) <= heals + retry.LONGEST_DELAY + 1  # all are woken after the healing


@pytest.mark.parametrize("width", [1, 32])
def test_an_outage_without_end_ends_the_calls(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(1e9)

    async def main() -> list[bool]:
        return await outage.calls(width)

    assert not any(clock.run(main(), monkeypatch))
    assert len(outage.sent) <= 2 * width + 12
    assert outage.sent[-1] < 3600


@pytest.mark.parametrize("wait", [0.0, 0.3, 7.0, 120.0, 599.0, -1.0])
def test_nobody_comes_before_the_provider_asked_to(wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(60.0, wait=wait)
    answers = clock.run(outage.calls(32), monkeypatch)
    for moment, until in outage.asked:
        early = [sent for sent in outage.sent if moment < sent < until - 1e-6]
        assert not early
    assert all(answers)


@dataclass
class Moody(Outage):
    """A provider that turns away as many requests as there are `waits`, and asks each for another one."""

    waits: list[float] = field(default_factory=list)

    async def send(self) -> None:
        self.sent.append(self.now())
        wait = self.waits.pop(0) if self.waits else None
        await asyncio.sleep(self.latency)
        if wait is not None:
            self.asked.append((self.now(), self.now() + wait))
            raise BackendError(Fault.RATE_LIMITED, "slower", retry_after=wait)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "waits", [[2.0, 9.0, 107.0, 1.0], [107.0, 9.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0, 30.0, 2.0], [9.0, 0.0, 0.0, 9.0]]
)
def test_the_longest_wait_that_was_asked_for_counts(
    waits: list[float], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(seed)
    provider = Moody(0.0, waits=list(waits))
    assert all(clock.run(provider.calls(4), monkeypatch))
    assert len(provider.asked) == len(waits) and len(provider.sent) == len(waits) + 4
    for moment, until in provider.asked:
        assert not [sent for sent in provider.sent if moment < sent < until - 1e-6]


def test_providers_that_fail_at_once_are_not_looked_at_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[float]:
        waits = []
        for _ in range(50):
            gate, began = await closed(), asyncio.get_running_loop().time()
            assert await gate.enter()
            waits.append(asyncio.get_running_loop().time() - began)
        return waits

    assert len({round(wait, 6) for wait in clock.run(main(), monkeypatch)}) > 40


def test_a_provider_that_asks_for_hours_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(1e9, wait=86_400.0)

    async def main() -> tuple[list[bool], float]:
        first = await outage.calls(8)
        late = await outage.calls(8)
        return [*first, *late], outage.now()

    answers, took = clock.run(main(), monkeypatch)
    assert not any(answers) and len(outage.sent) == 8
    assert took < 5
    with pytest.raises(BackendError) as caught:
        clock.run(_entered_after(86_400.0), monkeypatch)
    assert caught.value.fault is Fault.RATE_LIMITED and caught.value.retry_after == 86_400.0


async def _entered_after(wait: float) -> bool:
    gate = CircuitBreaker()
    gate.leave(await gate.enter(), asyncio.get_running_loop().time(), Fault.RATE_LIMITED, wait)
    return await gate.enter()


def test_an_open_gate_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[list[bool], float]:
        gate = CircuitBreaker()
        entered = [await gate.enter() for _ in range(100)]
        return entered, asyncio.get_running_loop().time() - clock.START

    assert clock.run(main(), monkeypatch) == ([False] * 100, 0.0)


async def closed() -> CircuitBreaker:
    """A gate after one failure."""
    gate, now = CircuitBreaker(), asyncio.get_running_loop().time()
    assert not await gate.enter()
    gate.leave(False, now, Fault.OVERLOADED, None)
    return gate


@pytest.mark.parametrize("fault", [None, *Fault])
def test_what_a_probe_finds_opens_the_gate_unless_the_provider_is_still_down(
    fault: Fault | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[bool]:
        gate = await closed()
        assert await gate.enter()
        waiting = [asyncio.create_task(gate.enter()) for _ in range(5)]
        await asyncio.sleep(100)
        assert not any(task.done() for task in waiting)
        gate.leave(True, asyncio.get_running_loop().time(), fault, None)
        await asyncio.sleep(100)
        found = [task.result() for task in waiting if task.done()]
        for task in waiting:
            task.cancel()
        return found

    assert clock.run(main(), monkeypatch) == ([True] if fault in PROVIDER_WIDE else [False] * 5)


@pytest.mark.parametrize("fault", [None, *Fault])
def test_what_an_older_attempt_finds(fault: Fault | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> bool:
        gate, start = CircuitBreaker(), asyncio.get_running_loop().time()
        assert not await gate.enter()
        assert not await gate.enter()
        await asyncio.sleep(5)
        gate.leave(False, start, Fault.OVERLOADED, None)
        gate.leave(False, start, fault, None)
        await asyncio.sleep(100)
        return await gate.enter()

    # An answer is an answer; our own deadline or a broken stream says nothing about the provider.
    unclear = PASSING | {Fault.MALFORMED}
    assert clock.run(main(), monkeypatch) is (fault in unclear)


def test_one_wave_of_failures_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> float:
        gate, start = CircuitBreaker(), asyncio.get_running_loop().time()
        for _ in range(100):
            await gate.enter()
        await asyncio.sleep(1)
        for _ in range(100):
            gate.leave(False, start, Fault.OVERLOADED, None)
        before = asyncio.get_running_loop().time()
        assert await gate.enter()
        return asyncio.get_running_loop().time() - before

    assert 0.6 * retry.FIRST_DELAY <= clock.run(main(), monkeypatch) <= retry.FIRST_DELAY


def test_the_gate_waits_longer_after_each_probe_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[float]:
        gate, waits = await closed(), []
        for _ in range(2000):  # more than a power of two can be a float
            before = asyncio.get_running_loop().time()
            probe, now = await gate.enter(), asyncio.get_running_loop().time()
            waits.append(now - before)
            gate.leave(probe, now, Fault.OVERLOADED, None)
        return waits

    waits = clock.run(main(), monkeypatch)
    for number, wait in enumerate(waits):
        most = min(retry.LONGEST_DELAY, retry.FIRST_DELAY * 2.0 ** min(number, 20))
        assert 0.59 * most <= wait <= most + 1e-6


def test_runs_that_wait_for_one_provider_do_not_come_at_one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[float]:
        waits = []
        for _ in range(20):
            gate, began = await closed(), asyncio.get_running_loop().time()
            await gate.enter()
            waits.append(asyncio.get_running_loop().time() - began)
        return waits

    waits = clock.run(main(), monkeypatch)
    assert len(set(waits)) > 10 and max(waits) - min(waits) > 0.05 * retry.FIRST_DELAY


def test_probing_goes_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[int]:
        gate, order = await closed(), list[int]()

        async def caller(number: int) -> None:
            for _ in range(3):
                assert await gate.enter()
                order.append(number)
                gate.leave(True, asyncio.get_running_loop().time(), Fault.OVERLOADED, None)

        await asyncio.gather(*(caller(number) for number in range(4)))
        return order

    assert clock.run(main(), monkeypatch) == [0, 1, 2, 3] * 3


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_waiters_and_probes_leave_the_gate_usable(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)

    async def caller(gate: CircuitBreaker, down: float) -> None:
        while True:
            probe = await gate.enter()
            now = asyncio.get_running_loop().time()
            fault: Fault | None = Fault.TIMEOUT
            try:
                await asyncio.sleep(dice.uniform(0, 2))
                fault = Fault.OVERLOADED if asyncio.get_running_loop().time() < down else None
            finally:
                gate.leave(probe, now, fault, None)
            if fault is None:
                return

    async def main() -> None:
        gate, down = CircuitBreaker(), clock.START + 40
        tasks = [asyncio.create_task(caller(gate, down)) for _ in range(32)]
        for task in dice.sample(tasks, 24):
            await asyncio.sleep(dice.uniform(0, 2))
            task.cancel()
        async with asyncio.timeout(200):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(item) for item in found} <= {type(None), asyncio.CancelledError}
        assert found.count(None) >= 8
        assert not await gate.enter()

    clock.run(main(), monkeypatch)


def test_an_older_failure_does_not_let_a_second_probe_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        gate, start = CircuitBreaker(), asyncio.get_running_loop().time()
        for _ in range(3):
            assert not await gate.enter()
        await asyncio.sleep(1)
        gate.leave(False, start, Fault.OVERLOADED, None)
        assert await gate.enter()
        second = asyncio.create_task(gate.enter())
        for fault in (Fault.OVERLOADED, Fault.TIMEOUT):
            gate.leave(False, start, fault, None)
            await asyncio.sleep(100)
            assert not second.done()
        second.cancel()

    clock.run(main(), monkeypatch)


def test_the_next_in_the_queue_takes_the_turn_of_one_that_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep

    async def main() -> None:
        gate, late = await closed(), [10.0]

        async def oversleep(delay: float) -> None:
            await sleep(delay + (late.pop() if late else 0.0))

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", oversleep)
            first, second = asyncio.create_task(gate.enter()), asyncio.create_task(gate.enter())
            await sleep(5)
            assert not second.done()  # it is the first one's turn, who still sleeps
            first.cancel()
            await sleep(0.1)
            assert second.done() and second.result()

    clock.run(main(), monkeypatch)


def test_gates_know_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> float:
        await closed()
        await CircuitBreaker().enter()
        return asyncio.get_running_loop().time() - clock.START

    assert clock.run(main(), monkeypatch) == 0.0


# -- Retry-After -----------------------------------------------------------------------------------

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"RETRY-AFTER": " 7 "}, 7.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"Retry-After": "-7"}, 0.0),
        ({"Retry-After": "1e9"}, 1e9),
        ({"Retry-After": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"Retry-After": formatdate(NOW + 30)}, 30.0),
        ({"Retry-After": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:14:00 -0000"}, 40.0),
        ({"Retry-After": "Tue, 99 Nov 2023 22:14:00 GMT"}, None),
        ({"Retry-After": "Tue, 14 Nov 99999 22:14:00 GMT"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "7s"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-inf"}, None),
        ({"Retry-After": "1" * 400}, None),
        ({"Retry-After": "\x00"}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "-1"}, 0.0),
    ],
)
def test_how_long_a_provider_asks_to_wait(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers, NOW) == expected


@given(st.text(max_size=40) | st.from_regex(r"[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} -?\d+ [\d:]+ ?\S*", fullmatch=True))
def test_no_header_breaks_the_reading(value: str) -> None:
    for name in ("retry-after", "retry-after-ms"):
        wait = retry_after({name: value}, NOW)
        assert wait is None or 0 <= wait < float("inf")


def test_the_sets_of_faults_do_not_overlap() -> None:
    for one, other in itertools.combinations((PASSING, CHANGED, {Fault.INVALID}, {Fault.REFUSED}), 2):
        assert not one & other
    assert PROVIDER_WIDE <= PASSING and not retry.ANSWERED & PASSING
