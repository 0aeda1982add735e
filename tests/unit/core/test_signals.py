"""Being told to stop before a run is under way: wherever it hits, the process ends as told, without a traceback.

A signal becomes an exception wherever Python happens to be, and not everything there lets an exception through.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.harness import ROOT, Done, Place, finish, inject, needs_strace

STOPPED = "cdo: Stopped.\n"
TELL = """
import os, signal, sys, time
from cdo.core import signals
tell = lambda: os.kill(os.getpid(), signal.SIGTERM)
"""


def python(source: str) -> Done:
    """Run Python in a process of its own, with a signal to itself as `tell()`."""
    head = "import os, signal, sys, time\nfrom cdo.core import signals\n"
    head += "tell = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
    command = [sys.executable, "-c", head + source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    return Done(done.returncode, done.stdout, done.stderr, 0.0)


DEAF = """
class Deaf:
    def __del__(self):
        tell()
        for _ in range(1000):
            pass
"""


def test_a_stop_that_python_swallows_is_told_again() -> None:
    done = python(f"""{DEAF}
signals.listen()
try:
    Deaf()
    time.sleep(60)
except KeyboardInterrupt:
    print("heard", signals.stopped())
""")
    assert (done.out, done.err) == ("heard True\n", "")


def test_what_else_python_swallows_is_shown_as_ever() -> None:
    done = python("""
signals.listen()
class Broken:
    def __del__(self):
        raise ValueError("not a stop")
Broken()
print(signals.stopped())
""")
    assert done.out == "False\n" and "ValueError: not a stop" in done.err


def test_a_stop_that_was_swallowed_before_a_run_ends_it_at_once() -> None:
    done = python(f"""{DEAF}
import asyncio
from cdo.core.errors import Interrupted
signals.listen()
Deaf()
async def main():
    with signals.interruptible("a"):
        print("it runs")
try:
    asyncio.run(main())
except Interrupted as error:
    print(error.message, error.hint)
    time.sleep(0.2)  # it is not told once more
""")
    assert done.out.startswith("Stopped. ") and "`cdo resume a`" in done.out and not done.err


@pytest.mark.parametrize(
    "made", ["ValueError('of a library')", "cdo.core.errors.ConfigError('It is wrong.', 'Fix it.')"]
)
def test_what_a_library_makes_of_a_stop_counts_as_one(made: str) -> None:
    done = python(f"""
import cdo.cli.main, cdo.core.errors
def interrupted():
    try:
        tell()
        time.sleep(60)
    except KeyboardInterrupt:
        raise {made}
assert cdo.cli.main._fix_streams  # called first
cdo.cli.main._fix_streams = interrupted
signals.listen()
cdo.cli.main.run(["list"])
""")
    assert (done.code, done.out, done.err) == (130, "", STOPPED)


def test_a_stop_while_modules_are_imported_is_quiet(tmp_path: Path) -> None:
    done = python("""
class Finder:
    def find_spec(name, path, target=None):
        if name == "cdo.cli.main":
            try:
                tell()
                time.sleep(60)
            except KeyboardInterrupt:
                raise SystemError("made of it")
sys.meta_path.insert(0, Finder)
from cdo.__main__ import main
main()
""")
    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.slow
def test_a_stop_at_any_file_that_is_opened_before_a_run(tmp_path: Path) -> None:
    """The kernel tells it as a process opens its Nth file; about half of them are those of Python and libraries."""
    strace, chance = needs_strace(), random.Random(5)

    def told(number: int) -> int:
        place = Place(tmp_path / str(number))
        place.path.mkdir()
        words = inject(strace, "openat", f"signal=TERM:when={number}")
        done = finish(place.start("list", prefix=words))
        assert "Traceback" not in done.err and "ignored" not in done.err and "Internal" not in done.err, done
        assert done.code in (0, 130, -signal.SIGTERM, 128 + signal.SIGTERM), done
        assert done.code == 0 or done.err in ("", STOPPED), done
        return done.code

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(told, sorted(chance.sample(range(60, 900), 30))))
    assert codes.count(130) >= 5, codes
