"""Measure `cdo replay` of a large session, and print a row of a Markdown table.

One real run of 20 voices and 10 turns is made against a provider on loopback. Every figure is a whole process from
start to exit, without key and network; the provider counts what reaches it meanwhile.

    python benchmarks/replay.py             # 20 voices x 10 turns, five processes
    python benchmarks/replay.py --width 5 --turns 3 -n 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PROBLEM = "Should the engine be rewritten, or staged behind a switch?"


def cdo(folder: Path, *args: str, url: str = "") -> tuple[float, str]:
    """Run `cdo args` in a folder; returns its seconds and what it printed."""
    keys = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "x-bench-key-123456"} if url else {}
    places = {"HOME": str(folder), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cdo", *args],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **places, **keys},
        check=True,
        capture_output=True,
        text=True,
    )
    return time.perf_counter() - began, done.stdout


def measure(width: int, turns: int, count: int) -> dict[str, Any]:
    """Make a run, replay it `count` times: seconds of each, requests sent, files compared."""
    from tests.provider import Provider

    with tempfile.TemporaryDirectory(prefix="cdo-bench-") as place, Provider(width=width) as provider:
        folder = Path(place)
        size = ("--width", str(width), "--turns", str(turns), "--no-context")
        cdo(folder, "full", *size, "--session", "big", "-q", "-m", "openai/bench", PROBLEM, url=provider.url)
        provider.reset()
        cdo(folder, "replay", "big")  # not counted: it may compile
        runs = [cdo(folder, "replay", "big", "--json") for _ in range(count)]
        found = json.loads(runs[0][1])
        return {
            "seconds": [seconds for seconds, _ in runs],
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
