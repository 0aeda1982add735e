"""Many calls in one process: each adapter gives back what it took, whether calls succeed, fail or are given up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdo.core.errors import CdoError
from cdo.core.exchange import Backend, BackendError
from cdo.core.exchange import Fault as Trouble
from cdo.providers import litellm_backend
from cdo.providers.http.chat_completions import ChatBackend
from cdo.providers.litellm_backend import LiteLLMBackend
from tests.support import agents
from tests.support.answers import RequestInfo
from tests.support.backends import request
from tests.support.faults import Fault
from tests.support.harness import sampled
from tests.support.provider import Provider
from tests.unit.providers.test_command_agent_process import claude
from tests.unit.runner.test_runner import VOICES, bench, hang, once, until

# litellm's own warnings are not ours to fix
pytestmark = pytest.mark.filterwarnings("ignore:::pydantic", "ignore:::litellm", "ignore:Sending a large body")
AT_ONCE = 10
HANGS = (Fault(hang="headers"), Fault(hang="middle"))
TROUBLES = (
    Fault(status=429),
    Fault(status=500),
    Fault(cut=200),
    Fault(drop=True, how="rst"),
    Fault(shape="malformed"),
    Fault(shape="empty"),
    *HANGS,
)
PERIOD = 2 * len(TROUBLES)  # every other call succeeds


def trouble(number: int) -> Fault | None:
    """What the call of this number meets."""
    return None if number % 2 else TROUBLES[number // 2 % len(TROUBLES)]


@dataclass(frozen=True)
class Adapter:
    """How to get a backend and the model to ask; `reached` tells whether the call of a number has come to a halt."""

    make: Callable[[], Backend]
    model: str
    reached: Callable[[int], bool]


# -- what is counted -----------------------------------------------------------------------------------------


def held() -> Counter[str]:
    """What this process holds, by kind; connections are among the descriptors."""
    gc.collect()
    return Counter(
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        children=len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    )


def resident() -> float:
    """Its memory in megabytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def made(adapter: Adapter, calls: int) -> Counter[str]:
    """Make so many calls with one backend, some at a time, and close it; returns how they ended.

    A call that hangs is given up as soon as it has come so far. No task outlives its call.
    """

    async def one(backend: Backend, number: int) -> str:
        asked = request(f"call {number}.", model=adapter.model, call=f"t1-{number}")
        call = asyncio.create_task(backend.complete(asked, lambda _: None))
        if trouble(number) in HANGS:
            while not (call.done() or adapter.reached(number)):  # noqa: ASYNC110 (another thread sees it)
                await asyncio.sleep(0.002)
            call.cancel()
        try:
            await call
        except BackendError as error:
            return error.fault.value
        except asyncio.CancelledError:
            return "given up"
        return "answered"

    async def many() -> Counter[str]:
        ends: Counter[str] = Counter()
        backend = adapter.make()
        for start in range(0, calls, AT_ONCE):
            ends.update(await asyncio.gather(*(one(backend, start + place) for place in range(AT_ONCE))))
        await backend.close()
        async with asyncio.timeout(30):
            while len(asyncio.all_tasks()) > 2:  # this one, and litellm's one for its log  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return ends

    return asyncio.run(many())


def leaks_nothing(adapter: Adapter, calls: int) -> None:
    """After some calls to get warm, so many more leave the process with what it held, and with little more memory."""
    made(adapter, max(2 * PERIOD // AT_ONCE, 1) * AT_ONCE)
    before, memory = held(), resident()
    ends = made(adapter, calls)
    assert ends["answered"] >= calls // 2 and ends["given up"] >= calls // 10, ends
    assert len(ends) >= 4, ends
    limit = time.monotonic() + 30
    while (more := held() - before) and time.monotonic() < limit:  # the provider, in this process, has ends to close
        time.sleep(0.01)
    assert not more
    assert resident() - memory <= 10


# -- adapters ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halted() -> set[str]:
    """The calls that hang by now."""
    return set()


@pytest.fixture(scope="module")
def server(halted: set[str]) -> Iterator[Provider]:
    """A provider where calls meet their trouble by number, and litellm told to ask it."""

    def script(info: RequestInfo) -> Fault | None:
        p.requests.clear()  # a log would look like a leak
        found = trouble(int(info.call.removeprefix("t1-")))
        if found in HANGS:
            halted.add(info.call)
        return found

    with Provider(script=script) as p, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", "x-test-key-654321")
        patch.setenv("ANTHROPIC_API_BASE", p.url)
        patch.setenv("HOSTED_VLLM_API_BASE", f"{p.url}/v1")
        patch.setenv("OPENAI_API_KEY", "x-test-key-123456")
        patch.setenv("OPENAI_API_BASE", f"{p.url}/v1")
        patch.delenv("OPENAI_BASE_URL", raising=False)
        yield p


@pytest.fixture
def adapter(name: str, server: Provider, halted: set[str], tmp_path: Path) -> Adapter:
    halted.clear()

    def hangs(number: int) -> bool:
        return f"t1-{number}" in halted

    match name.split():
        case "chat", how:
            extra = {} if how == "streamed" else {"stream": False}
            return Adapter(lambda: ChatBackend(f"{server.url}/v1", extra=extra), "bench", hangs)
        case "litellm", model:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                litellm_backend.preload()
                assert litellm_backend._module is not None
                litellm_backend._module.result(60)
            return Adapter(LiteLLMBackend, model, hangs)
    return _command(tmp_path)


# What an agent does by the number of the call, as the provider does it to others.
AGENT = f"""#!/bin/sh
prompt=$(cat)
number=${{prompt##*call }}
number=${{number%%.*}}
cd "${{0%/*}}"
case $((number % {PERIOD})) in
0) echo "429 Too Many Requests" >&2; exit 1 ;;
2) exit 3 ;;
4) head -c 99 answer ;;
6) kill -9 $$ ;;
8) echo nonsense ;;
10) ;;
12) touch "halted-$number"; exec sleep 60 ;;
14) sleep 60 & touch "halted-$number"; wait ;;
*) cat answer ;;
esac
"""


def _command(place: Path) -> Adapter:
    """A command-line agent whose program is a script."""
    program = place / "bin/claude"
    program.parent.mkdir()
    program.write_text(AGENT)
    program.chmod(0o755)
    (program.parent / "answer").write_text(claude())
    env = {"PATH": os.environ["PATH"], "HOME": str(place)}
    return Adapter(
        lambda: agents.backend(agents.agent("claude"), str(program), env, place / "folder"),
        "m1",
        lambda number: (program.parent / f"halted-{number}").exists(),
    )


@pytest.mark.slow
def test_an_agent_that_is_given_up_at_any_step_leaves_nothing_behind(tmp_path: Path) -> None:
    adapter = _command(tmp_path)

    async def given_up(steps: int) -> None:
        call = asyncio.create_task(adapter.make().complete(request("call 1."), lambda _: None))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

    before = held()
    for steps in range(12):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            asyncio.run(given_up(steps))
            assert held() <= before, steps
        assert not told, (steps, *map(str, told))
    assert not list(tmp_path.glob("folder/call-*"))


CHEAP = ("chat streamed", "chat whole", "litellm anthropic/claude-x", "litellm openai/x", "command")


@pytest.mark.parametrize("name", sampled(CHEAP, CHEAP[:1]))
def test_a_hundred_calls_leave_nothing_behind(adapter: Adapter) -> None:
    leaks_nothing(adapter, 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CHEAP, "litellm hosted_vllm/x"])
def test_a_thousand_calls_leave_nothing_behind(adapter: Adapter, tmp_path: Path) -> None:
    leaks_nothing(adapter, 1000)
    assert not list(tmp_path.glob("folder/call-*"))


# -- runs ----------------------------------------------------------------------------------------------------


def hold_a_run(folder: Path, number: int) -> str:
    """One run in a session of its own: it goes well, asks again, fails or is given up; returns how it ended."""
    said: dict[str, list[Any]] = {
        "well": [],
        "again": ["No form at all.", BackendError(Trouble.MALFORMED, "nonsense")],
        "failed": [BackendError(Trouble.DENIED, "no")] * 3,
        "given up": [hang],
    }
    how = list(said)[number % 4]
    with bench(folder / str(number), {"agent": said[how]}) as b:
        program = once(*VOICES, quorum=3)
        if how != "given up":
            try:
                b.run(program)
            except CdoError:
                return "failed"
            return how

        async def given_up() -> None:
            run = asyncio.create_task(b.runner().drive(program))
            await until(lambda: len(b.model.requests) == 3)
            run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await run
            assert len(asyncio.all_tasks()) == 1

        asyncio.run(given_up())
        return how


def runs_leave_nothing(folder: Path, number: int) -> None:
    """After some runs to get warm, so many more leave the process with what it held.

    Of memory that is what Python holds: what the allocator keeps for later is told by no run, and bounded roughly.
    """
    for at in range(24):
        hold_a_run(folder / "warm", at)
    before, memory = held(), resident()
    tracemalloc.start(1)
    try:
        hold_runs(folder, number, before)
    finally:
        tracemalloc.stop()
    assert resident() - memory <= 10 + number / 25
    assert not list(folder.rglob(".*"))


def hold_runs(folder: Path, number: int, before: Counter[str]) -> None:
    """Hold so many runs, each way of ending a quarter of them, after which nothing more is held."""
    for at in range(24):
        hold_a_run(folder / "traced", at)
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0]
    ends = Counter(hold_a_run(folder / "many", at) for at in range(number))
    assert min(ends[how] for how in ("well", "again", "failed", "given up")) == number // 4, ends
    assert held() <= before
    gc.collect()
    # What a run records is ten times that and more.
    assert tracemalloc.get_traced_memory()[0] - traced <= 100_000 + number * 5000


def test_forty_runs_in_one_process_leave_nothing_behind(tmp_path: Path) -> None:
    runs_leave_nothing(tmp_path, 40)


@pytest.mark.slow
@pytest.mark.long
def test_a_thousand_runs_in_one_process_leave_nothing_behind(tmp_path: Path) -> None:
    runs_leave_nothing(tmp_path, 1000)
