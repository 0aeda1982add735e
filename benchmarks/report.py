"""Measure `cdo report` as a whole process on a long and wide session, and print a Markdown table.

The session is made by a real run against the provider of the tests; the page is then written by cold processes with a
clean environment, one of which is not counted.

    python benchmarks/report.py                       # 10 turns of 20 voices, five processes
    python benchmarks/report.py --turns 3 --width 5
    python benchmarks/report.py --session tmp/cdo-NAME
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import ROOT, cdo

SECONDS, MEGABYTES = 2.0, 3.0  # what the page of 10 turns of 20 voices may take, and how large it may be


def make(home: Path, turns: int, width: int) -> Path:
    """Run a session of `turns` with `width` voices each; its folder."""
    provider = [sys.executable, "-m", "tests.support.provider", "--latency", "0", "--width", str(width)]
    with subprocess.Popen(provider, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url.startswith("http://127.0.0.1:"):
                raise SystemExit("The provider did not start.")
            size = ("--width", str(width), "--turns", str(turns))
            cdo(home, "full", *size, "--no-context", "--session", "bench", "-q", "Stage it?", url=url)
        finally:
            process.terminate()
    return home / "tmp" / "cdo-bench"


def report(session: Path, target: Path) -> float:
    """Write the page of a session in a process of its own; wall seconds from start to exit."""
    return cdo(target.parent, "report", str(session), "-o", str(target)).seconds


def main() -> int:
    """Measure and print; 1 where the page takes longer or is larger than it may be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=5, help="processes (5)")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--width", type=int, default=20, help="voices a turn (20)")
    parser.add_argument("--session", type=Path, help="a session that is there, instead of one made for this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdo-bench-") as place:
        home = Path(place)
        session = options.session.resolve() if options.session else make(home, options.turns, options.width)
        target = home / "report.html"
        walls = [report(session, target) for _ in range(options.n + 1)][1:]
        voices = sum(path.name[-13:] != "-synthesis.md" for path in session.glob("t*-*.md"))
        size = target.stat().st_size / 1e6
    print("| session | answers | median s | range s | page MB |\n|---|---|---|---|---|")
    middle = statistics.median(walls)
    print(f"| {session.name} | {voices} | {middle:.2f} | {min(walls):.2f}–{max(walls):.2f} | {size:.2f} |")
    return int(middle > SECONDS or size > MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
