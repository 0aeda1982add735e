"""Measure what a large mission takes beside its calls, and print rows of Markdown.

A team of four writes 50 products in 20 rounds against the provider of the tests, which answers every call after a
fixed time. The critical path is, for each step that has to wait for the one before, what its slowest call took as the
provider saw it. Then the finished session is resumed, which runs the whole mission again from its record.

    python benchmarks/mission.py                    # 50 products, 20 rounds, a second a call
    python benchmarks/mission.py --latency 0.2 --rounds 8
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from processes import ROOT, cdo, python

sys.path.insert(0, str(ROOT))

from tests.support.cabal_team import busy_script
from tests.support.provider import Provider

EARLY = 5  # the round that the last one with work is compared with
_NAME = re.compile(r"r(\d+)-([a-z]+(?:-p1$)?)")  # the whole (p1) is inspected after the products in it
_AGENT = re.compile(r"-(?:operative-\d+|p(?!1$)\d+)")
FLOOR = (
    "import cdo.cli.main, cdo.app.run, cdo.app.nested_run, cdo.cli.run_session, aiohttp, rich.live, re2, jsonschema"
)


def sizes(provider: Provider) -> dict[tuple[int, str], list[int]]:
    """Bytes of the prompts of a mission's calls, by round and step."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for info in provider.calls:
        match = _NAME.match(info.headers["X-Cdo-Call"])
        if match:
            found[int(match[1]), match[2]].append(len(json.dumps(info.body["messages"], ensure_ascii=False).encode()))
    return found


def slowest(provider: Provider) -> dict[str, float]:
    """The seconds that the slowest call of each step took, as the provider saw it."""
    found: dict[str, float] = defaultdict(float)
    for info in provider.calls:
        assert info.ended is not None, "every call was answered"
        step = _AGENT.sub("", info.headers["X-Cdo-Call"])
        found[step] = max(found[step], info.ended - info.arrived)
    return found


def measure(place: Path, products: int, rounds: int, latency: float) -> list[str]:
    """The rows."""
    with Provider(latency=latency, script=busy_script(products, rounds)) as provider:
        words = ("-q", "--no-git", "-m", "openai/bench", "--session", "a", "--operatives", "4")
        floor = python(place, "-c", FLOOR)
        mission = cdo(place, "cabal", *words, "--rounds", str(rounds), "Write the handbook.", url=provider.url)
        steps = slowest(provider)
        path = sum(steps.values())
        calls, late = len(provider.calls), rounds - 1
        prompts = sizes(provider)
        again = [cdo(place, "resume", "a", "-q", url=provider.url) for _ in range(3)]
        asked = len(provider.calls) - calls
    session = place / "tmp" / "cdo-a"
    told = {key: statistics.fmean(counts) for key, counts in prompts.items()}
    whole = sum(sum(counts) for counts in prompts.values()) / 1e6
    inspecting = [count for (_, step), counts in prompts.items() if step.startswith("inspect") for count in counts]
    size = sum(file.stat().st_size for file in session.rglob("*") if file.is_file()) / 1e6
    grown = {step: told[late, step] / told[EARLY, step] for at, step in told if at == late and (EARLY, step) in told}
    worst = max(grown, key=lambda step: grown[step])
    over = mission.seconds - path
    return [
        f"| mission of {products} products × {rounds} rounds × 4 operatives: {calls} calls, {size:.1f} MB "
        f"| {mission.seconds:.1f} s | critical path of {len(steps)} steps | {path:.1f} s | {over / path:+.1%} |",
        f"| its memory | {mission.megabytes:.0f} MB | all imported | {floor.megabytes:.0f} MB "
        f"| {mission.megabytes - floor.megabytes:+.0f} MB |",
        f"| all prompts | {whole:.2f} MB | those of {len(inspecting)} inspections | {sum(inspecting) / 1e6:.2f} MB "
        f"| {statistics.fmean(inspecting) / 1000:.1f} kB each |",
        f"| prompt of `{worst}`, round {late} | {told[late, worst] / 1000:.1f} kB | round {EARLY} "
        f"| {told[EARLY, worst] / 1000:.1f} kB | {grown[worst]:.2f} × |",
        f"| `cdo resume` of it | {statistics.median(item.seconds for item in again):.2f} s | all imported "
        f"| {floor.seconds:.2f} s | {asked} requests |",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--products", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds that the provider takes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        for row in measure(Path(home), given.products, given.rounds, given.latency):
            print(row)


if __name__ == "__main__":
    main()
