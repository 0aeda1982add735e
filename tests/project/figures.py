"""Makes the table of figures in SECURITY.md: `python tests/project/figures.py [REPORT.xml…]`.

Runs all tests, the slow ones too, or takes the reports of runs (`pytest --junitxml=REPORT.xml`), and counts for
each promise the tests that show it (`figures.toml`). What a test counts itself (`record_property("states", 5000)`) is
added up. The exit code is 1 when a test failed or a promise has no test.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "SECURITY.md"
LIST = Path(__file__).with_name("figures.toml")
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


@dataclass(frozen=True)
class Case:
    """One test that was run: `test_x::test_y[…]`, "passed", "failed" or "skipped", seconds, and what it counted."""

    name: str
    result: str
    seconds: float
    counted: tuple[tuple[str, int], ...] = ()


def promises() -> dict[str, list[str]]:
    """What is promised, and for each promise the patterns of tests (`shows`)."""
    return tomllib.loads(LIST.read_text("utf-8"))


def shows(pattern: str, name: str) -> bool:
    """Whether the test `name` (`test_x::test_y[…]`) is meant by `pattern`: a file, or `file::part of a name`."""
    file, _, part = pattern.partition("::")
    return name.startswith(f"{file}::") and part in name.partition("[")[0]


def cases(report: Path) -> list[Case]:
    """The tests in a report of `pytest --junitxml`."""
    found = []
    for element in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in element}
        result = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        numbers = [
            (entry.get("name", ""), int(entry.get("value", "")))
            for entry in element.iter("property")
            if re.fullmatch(r"\d+", entry.get("value", ""))
        ]
        name = f"{element.get('classname', '').rpartition('.')[2]}::{element.get('name')}"
        found.append(Case(name, result, float(element.get("time", 0)), tuple(numbers)))
    return found


def row(what: str, meant: Sequence[Case]) -> str:
    """One line of the table."""
    results = Counter(case.result for case in meant)
    counted: Counter[str] = Counter()
    for case in meant:
        for name, number in case.counted:
            counted[name] += number
    numbers = [f"{len(meant):,} tests", *(f"{number:,} {name}" for name, number in sorted(counted.items()))]
    result = ", ".join(f"{results[word]:,} {word}" for word in ("failed", "skipped", "passed") if results[word])
    files = " ".join(f"`{file}`" for file in sorted({case.name.partition("::")[0] for case in meant}))
    return (
        f"| {what} | {', '.join(numbers)} | {result or 'no test'} | {sum(c.seconds for c in meant):,.0f} | {files} |"
    )


def table(every: Iterable[Case]) -> str:
    """All figures, with what they were taken on."""
    every = list(every)
    git = subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.split()[-1:]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    programs = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("litellm", "aiohttp", "pydantic"))
    failed = sum(case.result == "failed" for case in every)
    lines = [
        f"{len(every):,} tests, {failed} failed, {sum(case.seconds for case in every):,.0f} s of tests. "
        f"{time.strftime('%Y-%m-%d')}, "
        f"{f'commit {commit.strip()}, ' if commit.strip() else ''}{platform.system()} with "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, git {' '.join(git)}, {programs}.",
        "",
        "| what is shown | cases | result | seconds | tests |",
        "|---|---|---|---|---|",
    ]
    for what, patterns in promises().items():
        lines.append(row(what, [case for case in every if any(shows(p, case.name) for p in patterns)]))
    return "\n".join(lines) + "\n"


def placed(page: str, figures: str) -> str:
    """The page with `figures` between its two marks; raises `ValueError` where these are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError("The page has no place for the figures.")
    return f"{before}{begin}{figures}{end}{after}"


def main(reports: Sequence[str]) -> int:
    """Write the figures of `reports` (or of a run of all tests) into the page and print them."""
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        if not reports:
            for number, more in enumerate(([], ["-m", "wide and not slow"], ["-m", "slow"])):
                report = Path(folder, f"{number}.xml")
                subprocess.run([sys.executable, "-m", "pytest", f"--junitxml={report}", *more], cwd=ROOT)
                reports = [*reports, str(report)]
        every = [case for report in reports for case in cases(Path(report))]
    figures = table(every)
    PAGE.write_text(placed(PAGE.read_text("utf-8"), figures), "utf-8")
    print(figures)
    return int("no test" in figures or any(case.result == "failed" for case in every))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
