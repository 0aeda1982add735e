"""Measure how fast a library of many runs answers, and print a Markdown table.

One real run is made against a provider on loopback, then copied with another question, decision and record for each
session. Every figure is a whole process from start to exit; the index is removed before each cold one.

    python benchmarks/library.py             # 1,000 sessions, five processes a figure
    python benchmarks/library.py -n 200 -k 3
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from processes import ROOT, cdo

sys.path.insert(0, str(ROOT))

CACHE = ".cache"  # where cdo keeps its index, below the home
WARM_LIMIT = 0.5  # seconds that a warm `cdo list` may take
SUBJECTS = ("the queue", "billing", "the importer", "search", "the cache", "logins", "exports", "the scheduler")
VERBS = ("replace", "split", "rewrite", "drop", "cache", "move", "shard", "merge")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("list",),
    ("list", "--json"),
    ("list", "--status", "max_turns", "billing"),
    ("search", "importer", "shard"),
    ("cost",),
    ("cost", "--by", "model"),
)


def fill(folder: Path, number: int) -> None:
    """Make `number` sessions in `folder/tmp`."""
    from cdo.session.records import group_file, group_number, group_records
    from tests.support.provider import Provider

    with Provider() as provider:
        cdo(folder, "think", "--session", "0000", "-q", "Should we split the service?", url=provider.url)
    first = folder / "tmp" / "cdo-0000"
    groups = {
        group_number(f"calls/{file.name}"): group_records(file.read_bytes(), file.name)
        for file in (first / "calls").iterdir()
    }
    for index in range(1, number):
        path = folder / "tmp" / f"cdo-{index:04d}"
        shutil.copytree(first, path)
        subject = SUBJECTS[index % len(SUBJECTS)]
        verb = VERBS[index // len(SUBJECTS) % len(VERBS)]
        (path / "00-input.md").write_text(f"Should we {verb} {subject} in quarter {index}?\n", encoding="utf-8")
        final = (path / "FINAL.md").read_text(encoding="utf-8")
        decided = f"## Decision\n\nDo not {verb} {subject} before release {index}. "
        (path / "FINAL.md").write_text(final.replace("## Decision\n\n", decided), encoding="utf-8")
        for place, records in groups.items():
            priced = [{**record, "cost": index / 1e6} if "cost" in record else record for record in records]
            file, data = group_file(place, priced)
            (path / "calls" / file).write_bytes(data)


def measured(folder: Path, args: Sequence[str], times: int, *, cold: bool) -> float:
    """The median of a command's seconds."""
    found = []
    for _ in range(times):
        if cold:
            shutil.rmtree(folder / CACHE, ignore_errors=True)
        found.append(cdo(folder, *args).seconds)
    return statistics.median(found)


def main() -> int:
    """Print the table; returns 1 where a warm list takes too long."""
    parser = argparse.ArgumentParser(description="Measure a library of many runs.")
    parser.add_argument("-n", type=int, default=1000, help="sessions")
    parser.add_argument("-k", type=int, default=5, help="processes a figure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, options.n)
        time.sleep(2.5)  # what changed a moment ago is read again
        start = measured(folder, ("--version",), options.k, cold=False)
        print(f"{options.n:,} sessions; a process that only starts takes {start:.2f} s\n")
        print("| command | cold index, s | warm index, s |\n|---|---:|---:|")
        slow = False
        for args in COMMANDS:
            cold = measured(folder, args, min(2, options.k), cold=True)
            warm = measured(folder, args, options.k, cold=False)
            slow |= args == ("list",) and warm > WARM_LIMIT
            print(f"| `cdo {' '.join(args)}` | {cold:.2f} | {warm:.2f} |", flush=True)
        size = sum(file.stat().st_size for file in (folder / CACHE).rglob("*") if file.is_file())
        print(f"\nThe index takes {size / 1e6:.1f} MB.")
    if slow:
        print(f"A warm `cdo list` takes longer than {WARM_LIMIT} s.", file=sys.stderr)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
