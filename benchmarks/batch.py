"""Measure `cdo batch` beside the same calls made bare and by frameworks, and print a Markdown table.

A provider on loopback answers at once, so the figures are what each side adds. Every side is a whole process from
start to exit; the sides run in turn. Compare ratios within one table: seconds drift from machine to machine.

    python benchmarks/batch.py                 # 1,000 deliberations of five calls, 100 live, three times a side
    python benchmarks/batch.py -n 200 -k 1 --langgraph /tmp/venv/bin/python   # and a framework, as this Python has it
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import bare
import frameworks
from processes import Ended, cdo, python
from run import provider

WIDTH = 3
CALLS = WIDTH + 2
Side = Callable[[Path, str, int, int], Ended]


def by_cdo(folder: Path, url: str, count: int, live: int) -> Ended:
    """Run `cdo batch` over so many questions; raise `SystemExit` unless all of them are done."""
    lines = (json.dumps({"question": f"Question {number}: {bare.PROMPT}"}) for number in range(count))
    (folder / "items.jsonl").write_text("\n".join(lines))
    ended = cdo(
        folder, "batch", "items.jsonl", "--preset", "think", "--width", str(WIDTH), "--turns", "1", "--no-review",
        "--live", str(live), "-m", "openai/bench", "--yes", "--json", url=url,
    )  # fmt: skip
    if json.loads(ended.out)["done"] != count:
        raise SystemExit(f"cdo batch: {ended.out}")
    return ended


def by_script(script: str, python_of_it: str = sys.executable) -> Side:
    """Return the side that makes the same calls with a script, and keeps nothing."""

    def side(folder: Path, url: str, count: int, live: int) -> Ended:
        size = ("--turns", "1", "--width", str(WIDTH), "--count", str(count), "--live", str(live))
        return python(folder, script, url, *size, url=url, with_python=python_of_it)

    return side


def table(found: dict[str, list[Ended]], count: int) -> str:
    """Return a row for each side, with medians: the processor time holds on a busy machine too."""
    rows = ["| side | seconds | processor s | processor ms each | peak MB | × bare |", "|---|---|---|---|---|---|"]
    base = statistics.median(one.processor for one in found["bare"])
    for name, ended in found.items():
        seconds = statistics.median(one.seconds for one in ended)
        used = statistics.median(one.processor for one in ended)
        most = max(one.megabytes for one in ended)
        each = f"{1000 * used / count:.1f} | {most:.0f} | {used / base:.2f}"
        rows.append(f"| {name} | {seconds:.1f} | {used:.1f} | {each} |")
    return "\n".join(rows)


def main() -> None:
    """Measure the sides in turn."""
    parser = argparse.ArgumentParser(description="cdo batch beside bare calls and frameworks.")
    parser.add_argument("-n", type=int, default=1000, help="deliberations")
    parser.add_argument("-k", type=int, default=3, help="processes of each side")
    parser.add_argument("--live", type=int, default=100, help="deliberations at a time")
    frameworks.add_options(parser)
    options = parser.parse_args()
    sides: dict[str, Side] = {"bare": by_script(str(Path(bare.__file__))), "cdo batch": by_cdo}
    for name, python_of_it in frameworks.chosen(options).items():
        sides[frameworks.NAMES[name]] = by_script(frameworks.script(name), python_of_it)
    found: dict[str, list[Ended]] = {name: [] for name in sides}
    with provider(WIDTH, latency=0.0) as url, tempfile.TemporaryDirectory() as home:
        for number in range(options.k):
            for name, side in sides.items():
                folder = Path(home) / f"{name.replace(' ', '-')}-{number}"
                folder.mkdir()
                found[name].append(side(folder, url, options.n, options.live))
                print(f"{name}: {found[name][-1].seconds:.1f} s", file=sys.stderr)
    print(f"{options.n} deliberations of {CALLS} calls, {options.live} live\n\n{table(found, options.n)}")


if __name__ == "__main__":
    main()
