"""Measure cdo beside the same work done bare, and print a Markdown table.

A provider on loopback answers every call after a fixed time. Cold processes of cdo and of its yardstick run
in turn (A B A B …) with a clean environment and an empty working directory each; one round before is not
counted. Compare ratios within one table: seconds drift from machine to machine.

    python benchmarks/run.py            # everything, five processes a side
    python benchmarks/run.py --only full-20 -n 11
    python benchmarks/run.py --langgraph /tmp/venv/bin/python   # and a framework, as a Python that has it runs it
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frameworks

ROOT = Path(__file__).resolve().parent.parent
PROBLEM = "Should the engine be rewritten, or staged behind a switch?"
LATENCY = 0.2
TIMEOUT = 180.0
CDO, BARE = "cdo", "bare"


@dataclass(frozen=True)
class Case:
    """A job: cdo's arguments, and the yardstick's name and arguments (for Python)."""

    name: str
    title: str
    cdo: tuple[str, ...]
    yardstick: str
    bare: tuple[str, ...]
    turns: int = 0
    width: int = 0

    @property
    def calls(self) -> int:
        return self.turns * (self.width + 1) + 1 if self.turns else 0

    @property
    def floor(self) -> float:
        """The provider's own time: two calls after each other in every turn, and the last one."""
        return (2 * self.turns + 1) * LATENCY if self.turns else 0.0


def _job(name: str, preset: str, turns: int, width: int, model: str, script: str) -> Case:
    size = ("--width", str(width), "--turns", str(turns))
    return Case(
        name,
        f"`cdo {preset}`, {width} agents × {turns} turn{'s' * (turns > 1)}, `{model}`",
        (preset, *size, "--no-context", "--no-review", "-m", model, PROBLEM),
        script,
        (str(ROOT / "benchmarks" / script), "{url}", *size),
        turns,
        width,
    )


CASES = (
    Case("help", "`cdo --help`", ("--help",), "python -c pass", ("-c", "pass")),
    _job("full-20", "full", 3, 20, "openai/bench", "bare.py"),
    _job("quick-200", "quick", 1, 200, "openai/bench", "bare.py"),
    _job("litellm-20", "full", 3, 20, "hosted_vllm/bench", "litellm_bare.py"),
)


@dataclass(frozen=True)
class Sample:
    """One process: wall seconds from start to exit, peak memory, and what the provider saw of it."""

    wall: float
    peak_mb: float
    span: float
    in_flight: int
    calls: int
    error: str = ""


class Stand:
    """The provider process, and a place to run commands against it."""

    def __init__(self, url: str, home: Path, cdo: str | None, pythons: Mapping[str, str]) -> None:
        self.url, self.home, self.pythons = url, home, pythons
        self.cdo = [cdo] if cdo else [sys.executable, "-m", "cdo"]
        self.environment = {
            "PATH": os.defpath,
            "HOME": str(home),
            "CDO_CONFIG_DIR": str(home / "config"),
            "LANG": "C.UTF-8",
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "x",
            "HOSTED_VLLM_API_BASE": f"{url}/v1",
            "HOSTED_VLLM_API_KEY": "x",
            **({} if cdo else {"PYTHONPATH": str(ROOT)}),
        }
        self._runs = 0

    def measure(self, case: Case, side: str) -> Sample:
        """Run one side of `case` in a process of its own: `CDO`, `BARE`, or a framework."""
        self._ask("POST", "/reset")
        if side == CDO:
            command = [*self.cdo, *case.cdo]
        elif side == BARE:
            command = [sys.executable, *(part.format(url=self.url) for part in case.bare)]
        else:
            size = ("--turns", str(case.turns), "--width", str(case.width))
            command = [self.pythons[side], frameworks.script(side), self.url, *size]
        self._runs += 1
        place = self.home / f"run-{self._runs}"
        place.mkdir()
        if side == CDO and case.yardstick == "litellm_bare.py":
            _only_litellm(self.home / "config")
        code, wall, peak_mb, said = _cold(command, self.environment, place)
        seen = self._ask("GET", "/stats")
        error = ""
        if code:
            error = f"exit {code}: {said}"
        elif seen["calls"] != case.calls:
            error = f"{seen['calls']} calls instead of {case.calls}: {seen['by_kind']}"
        return Sample(wall, peak_mb, seen["span"], seen["peak"], seen["calls"], error)

    def _ask(self, method: str, path: str) -> Any:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        try:
            connection.request(method, path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


def _only_litellm(settings: Path) -> None:
    """Override the provider table in a person's folder, so that cdo takes litellm's route as its yardstick does.

    The calls cost nothing, so nobody is asked to agree to them.
    """
    table = settings / "dispatch" / "providers.yaml"
    table.parent.mkdir(parents=True, exist_ok=True)
    providers = "{openai: {url: 'http://127.0.0.1:9/v1'}, hosted_vllm: {price: {input: 0, output: 0}}}"
    table.write_text(f"purpose: benchmark\nload_when: always\nproviders: {providers}\n")


def _cold(command: list[str], environment: dict[str, str], place: Path) -> tuple[int, float, float, str]:
    """Run a command; return exit code, seconds, peak memory in MB, and the end of what it said on stderr.

    The kernel starts a child's peak at its parent's size, so figures below this process's own (about
    20 MB) cannot be seen.
    """
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        timer = threading.Timer(TIMEOUT, process.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    lines = (place / "stderr").read_text(errors="replace").strip().splitlines()
    unit = 1 if sys.platform == "darwin" else 1024
    return process.returncode, wall, usage.ru_maxrss * unit / 1e6, " / ".join(lines[-2:])


@contextmanager
def provider(width: int, latency: float = LATENCY) -> Iterator[str]:
    """Run the provider of the tests as a process; yield its URL.

    Its directives ask for `width` roles, open a tension and name a gap every turn, and never end the run.
    """
    command = [sys.executable, "-m", "tests.support.provider", "--latency", str(latency), "--width", str(width)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline().strip() if process.stdout else ""
            if not line.startswith("http://127.0.0.1:"):
                raise SystemExit("The provider did not start.")
            yield line
        finally:
            process.terminate()


def run_case(stand: Stand, case: Case, rounds: int, sides: Sequence[str]) -> list[list[Sample]]:
    """Measure the sides of `case` in turn, after one round that is not counted; cdo is the first one."""
    found: list[list[Sample]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side, samples in zip(sides, found, strict=True):
            sample = stand.measure(case, side)
            print(f"{case.name} {number}/{rounds} {side}: {sample}", file=sys.stderr)
            if number or sample.error:
                samples.append(sample)
        if found[0][-1:] and found[0][-1].error:
            break
    return found


def _median(samples: Sequence[Sample], key: str) -> float:
    values: list[float] = [getattr(sample, key) for sample in samples]
    return statistics.median(values)


def row(who: str, samples: Sequence[Sample]) -> str:
    """One line of the table."""
    failed = next((sample.error for sample in samples if sample.error), "")
    if failed:
        return f"| {who} | failed | {failed.replace('|', '/')} | | | | |"
    if not samples:
        return f"| {who} | not measured | | | | | |"

    def middle(key: str) -> float:
        return _median(samples, key)

    walls = [sample.wall for sample in samples]
    return (
        f"| {who} | {middle('wall'):.3f} | {min(walls):.3f}–{max(walls):.3f} | {middle('span'):.3f} "
        f"| {middle('peak_mb'):.0f} | {max(sample.in_flight for sample in samples)} "
        f"| {samples[-1].calls} |"
    )


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample], what: str) -> str:
    """The line of the table that compares the medians with those of `what`."""
    if not ours or not theirs or any(sample.error for sample in (*ours, *theirs)):
        return ""

    def part(key: str) -> str:
        mine, other = _median(ours, key), _median(theirs, key)
        return f"{mine / other:.2f} ×" if other else "–"

    return f"| ratio to {what} | {part('wall')} | | {part('span')} | {part('peak_mb')} | | |\n"


def main() -> int:
    """Run the cases that were asked for; 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=5, help="processes on each side (5)")
    parser.add_argument("--only", action="append", metavar="NAME", choices=[case.name for case in CASES])
    parser.add_argument("--cdo", metavar="PATH", help="a cdo to measure instead of this checkout's")
    frameworks.add_options(parser)
    options = parser.parse_args()
    pythons = frameworks.chosen(options)
    failed = False
    print(f"Provider: {LATENCY * 1000:.0f} ms a call. Medians of {options.n} cold processes a side, in turn.")
    with tempfile.TemporaryDirectory(prefix="cdo-bench-") as place:
        for case in CASES:
            if options.only and case.name not in options.only:
                continue
            home = Path(place) / case.name
            home.mkdir()
            names = {CDO: "cdo", BARE: case.yardstick}
            if case.yardstick == "bare.py":
                names |= {name: frameworks.NAMES[name] for name in pythons}
            with provider(case.width or 3) as url:
                found = run_case(Stand(url, home, options.cdo, pythons), case, options.n, list(names))
            failed = failed or any(sample.error for samples in found for sample in samples)
            floor = f"; floor {case.floor:.2f} s" if case.floor else ""
            print(f"\n**{case.name}**: {case.title}{floor}\n")
            print("| | wall s | min–max | first request to last answer s | peak MB | in flight | calls |")
            print("|---|---|---|---|---|---|---|")
            print(*(row(name, samples) for name, samples in zip(names.values(), found, strict=True)), sep="\n")
            for name, samples in list(zip(names.values(), found, strict=True))[1:]:
                print(ratio(found[0], samples, name), end="", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
