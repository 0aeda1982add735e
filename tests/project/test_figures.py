"""SECURITY.md: every promise names what shows it, and the table of figures counts the tests that were really run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project import figures
from tests.project.figures import PAGE, cases, main, placed, promises, shows
from tests.support.harness import ROOT

TESTS = re.compile(r"(?m)^(?:async )?def (test_\w+)")
FILES = sorted((ROOT / "tests").rglob("test_*.py"))
NAMES = [f"{path.stem}::{name}" for path in FILES for name in TESTS.findall(path.read_text("utf-8"))]
REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.faults.test_power" name="test_states[a]" time="2.5">
<properties><property name="states" value="1200"/><property name="note" value="x"/></properties></testcase>
<testcase classname="tests.faults.test_power" name="test_states[b]" time="0.5">
<properties><property name="states" value="34"/></properties></testcase>
<testcase classname="tests.faults.test_power" name="test_two" time="1"><skipped message="no"/></testcase>
<testcase classname="tests.test_other" name="test_x" time="1"><failure message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize("what", promises())
def test_every_promise_has_tests(what: str) -> None:
    patterns = promises()[what]
    assert any(shows(pattern, name) for pattern in patterns for name in NAMES)
    stems = {path.stem for path in FILES}
    there = [pattern for pattern in patterns if pattern.partition("::")[0] in stems]
    assert not [pattern for pattern in there if not any(shows(pattern, name) for name in NAMES)]


def test_the_page_names_what_shows_each_promise() -> None:
    promised, _, rest = PAGE.read_text("utf-8").partition("## What is not promised")
    assert rest
    promised = re.sub(r"\s+", " ", re.sub(r"(?s)\*\*.+?\*\*", "", promised))
    named = re.findall(r"\*([^*]+)\*", promised)
    assert set(named) == set(promises())
    for item in re.split(r" \d+\. ", promised)[1:]:
        assert re.search(r"\*[^*]+\*", item), item


def test_the_table_of_the_page_is_of_these_promises() -> None:
    page = PAGE.read_text("utf-8")
    table = page.partition(figures.BEGIN)[2].partition(figures.END)[0]
    rows = re.findall(r"(?m)^\| (.+?) \| [\d,]+ tests", table)
    assert rows == list(promises()), "run `python tests/project/figures.py`"
    assert "no test" not in table and "failed |" not in table
    assert placed(page, table) == page
    with pytest.raises(ValueError, match="no place for the figures"):
        placed("# Security\n", table)


def test_tests_are_counted_with_what_they_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, page, listed = tmp_path / "report.xml", tmp_path / "SECURITY.md", tmp_path / "figures.toml"
    report.write_text(REPORT)
    listed.write_text(
        '"power" = ["test_power"]\n"x" = ["test_other::x", "test_gone"]\n"nothing" = ["test_power::thr"]\n'
    )
    page.write_text(f"# Security\n{figures.BEGIN}old{figures.END}rest\n")
    monkeypatch.setattr(figures, "PAGE", page)
    monkeypatch.setattr(figures, "LIST", listed)
    assert main([str(report)]) == 1
    lines = page.read_text().splitlines()
    assert "| power | 3 tests, 1,234 states | 1 skipped, 2 passed | 4 | `test_power` |" in lines
    assert "| x | 1 tests | 1 failed | 1 | `test_other` |" in lines
    assert "| nothing | 0 tests | no test | 0 |  |" in lines
    assert "4 tests, 1 failed, 5 s of tests." in page.read_text()
    assert (lines[0], lines[-1]) == ("# Security", "rest") and "old" not in page.read_text()
    assert len(cases(report)) == 4


def test_a_pattern_means_a_file_or_a_part_of_a_name() -> None:
    assert shows("test_a", "test_a::test_b[c]") and shows("test_a::b", "test_a::test_b[c]")
    assert not shows("test_a", "test_ab::test_b") and not shows("test_a::c", "test_a::test_b[c]")
