"""Measure what it takes to fork a session, and print a row of Markdown.

A run of 10 turns and 20 voices against the provider of the tests is forked after its last turn with `--no-run`, by
cold processes one after the other; one before them is not counted. The provider counts what they ask.

    python benchmarks/fork.py            # five forks
    python benchmarks/fork.py -n 11
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import ROOT, cdo

SIZE = ("--turns", "10", "--width", "20")


def calls(url: str) -> int:
    """How many calls the provider has got."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", "/stats")
        return int(json.loads(connection.getresponse().read())["calls"])
    finally:
        connection.close()


def measure(url: str, place: Path, rounds: int) -> str:
    """The row: seconds of a fork, size of the session, and requests."""
    cdo(place, "full", *SIZE, "--no-context", "--session", "a", "-m", "openai/bench", "Split the engine?", url=url)
    before = calls(url)
    walls = [cdo(place, "fork", "a", "--no-run", "-q", url=url).seconds for _ in range(rounds + 1)][1:]
    source = place / "tmp" / "cdo-a"
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file()) / 1e6
    floor = min(cdo(place, "--version").seconds for _ in range(3))
    return (
        f"| `cdo fork --no-run`, 20 agents × 10 turns ({size:.1f} MB) | {statistics.median(walls):.2f} s "
        f"| `cdo --version` | {floor:.2f} s | {calls(url) - before} requests |"
    )


def main() -> None:
    """Run the provider of the tests as a process, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=5, help="forks that count")
    rounds = parser.parse_args().n
    provider = [sys.executable, "-m", "tests.support.provider", "--width", "20"]
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(provider, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            print(measure(url, Path(home), rounds))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
