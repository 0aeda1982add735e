"""Measure `cdo replay` of a large session, and print a row of a Markdown table.

One real run of 20 voices and 10 turns is made against a provider on loopback. Every figure is a whole process from
start to exit, without key and network; the provider counts what reaches it meanwhile.

    python benchmarks/replay.py             # 20 voices x 10 turns, five processes
    python benchmarks/replay.py --width 5 --turns 3 -n 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import ROOT, cdo

sys.path.insert(0, str(ROOT))

PROBLEM = "Should the engine be rewritten, or staged behind a switch?"


def measure(width: int, turns: int, count: int) -> dict[str, Any]:
    """Make a run, replay it `count` times: seconds of each, requests sent, files compared."""
    from tests.support.provider import Provider

    with tempfile.TemporaryDirectory(prefix="cdo-bench-") as place, Provider(width=width) as provider:
        folder = Path(place)
        size = ("--width", str(width), "--turns", str(turns), "--no-context")
        cdo(folder, "full", *size, "--session", "big", "-q", "-m", "openai/bench", PROBLEM, url=provider.url)
        provider.reset()
        cdo(folder, "replay", "big")  # not counted: it may compile
        runs = [cdo(folder, "replay", "big", "--json") for _ in range(count)]
        found = json.loads(runs[0].out)
        return {
            "seconds": [run.seconds for run in runs],
            "requests": len(provider.calls),
            "calls": found["calls"],
            "files": len(found["same"]),
            "differs": found["differs"],
        }


def main() -> None:
    """Print the row, and end with 1 where a replay sent something or found a difference."""
    parser = argparse.ArgumentParser(description="Measure cdo replay.")
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("-n", type=int, default=5, help="processes")
    options = parser.parse_args()
    found = measure(options.width, options.turns, options.n)
    seconds = found["seconds"]
    print("| `cdo replay` | calls | files, byte for byte | requests | median s | min | max |")
    print("|---|---|---|---|---|---|---|")
    print(
        f"| {options.width} voices x {options.turns} turns | {found['calls']} | {found['files']} | "
        f"{found['requests']} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |"
    )
    sys.exit(1 if found["requests"] or found["differs"] else 0)


if __name__ == "__main__":
    main()
