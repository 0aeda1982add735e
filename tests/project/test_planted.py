"""The tests test: defects that are planted are caught (`tests/project/planted.py`), and the list of them is true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project import planted
from tests.project.planted import Defect, defects, survey

EVERY = defects()
LITTLE = Defect("x", "a sum is wrong", "cdo/sum.py", "a + b", "a - b", "test_sum.py::test_sum")


@pytest.mark.parametrize("defect", EVERY, ids=lambda defect: defect.what)
def test_every_defect_can_still_be_planted(defect: Defect) -> None:
    if problem := defect.problem():
        pytest.fail(f"fix tests/project/planted.toml, {defect.what!r}: {problem}", pytrace=False)


def test_they_are_many_and_of_many_kinds() -> None:
    assert len({defect.what for defect in EVERY}) == len(EVERY) >= 40
    assert len({(defect.file, defect.old, defect.new) for defect in EVERY}) == len(EVERY)
    assert len({defect.kind for defect in EVERY}) >= 8 and len({defect.file for defect in EVERY}) >= 20


def test_the_table_tells_of_exactly_these() -> None:
    page = planted.TABLE.read_text("utf-8")
    rows = re.findall(r"(?m)^\| \S+ \| (.+?) \| `.*\| (caught|survives) \|", page)
    assert [what for what, _ in rows] == [defect.what for defect in EVERY], "run `python tests/project/planted.py`"
    assert [what for what, came in rows if came != "caught"] == []
    assert f"**{len(EVERY)} of {len(EVERY)} caught**" in page


# -- the script itself -----------------------------------------------------------------------------


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one function and one test, which the script takes for cdo's."""
    root = tmp_path / "little"
    for name, text in (
        ("cdo/__init__.py", ""),
        ("cdo/sum.py", "def add(a, b):\n    return a + b\n"),
        ("tests/test_sum.py", "from cdo.sum import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"),
        ("pyproject.toml", ""),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(planted, "ROOT", root)
    return root


@pytest.mark.wide
@pytest.mark.parametrize(
    ("old", "new", "caught", "said"),
    [
        ("a + b", "a - b", True, "1 failed"),
        ("a + b", "b + a", False, "1 passed"),
        ("def add(a, b)", "def sum(a, b)", False, "found no collectors"),  # nothing was tested
        ("a + c", "a - c", False, "has this text 0 times"),
        ("a", "b", False, "has this text 3 times"),
        ("a + b", "a +", False, "cannot be parsed"),
    ],
)
def test_what_counts_as_caught(little: Path, old: str, new: str, caught: bool, said: str) -> None:
    before = (little / "cdo" / "sum.py").read_bytes()
    result = planted.plant(Defect("x", "x", "cdo/sum.py", old, new, LITTLE.test), little)
    assert result.caught is caught and said in result.said
    assert (little / "cdo" / "sum.py").read_bytes() == before


@pytest.mark.slow
def test_a_test_that_fails_anyway_catches_nothing(little: Path) -> None:
    assert [result.caught for result in survey([LITTLE])] == [True]
    (little / "tests" / "test_sum.py").write_text("def test_sum():\n    assert False\n")
    with pytest.raises(RuntimeError, match="Without any defect the tests do not pass"):
        survey([LITTLE])


@pytest.mark.wide
def test_a_test_that_hangs_catches_nothing(little: Path) -> None:
    (little / "tests" / "test_sum.py").write_text("import time\n\n\ndef test_sum():\n    time.sleep(600)\n")
    assert planted.tested(little, [LITTLE.test], 0.5) == (None, "it hung for 0 s")


@pytest.mark.parametrize(
    ("defect", "problem"),
    [
        (Defect("x", "x", "cdo/gone.py", "a", "b", LITTLE.test), "cdo/gone.py is gone"),
        (Defect("x", "x", "cdo/sum.py", "a + b", "a", "test_sum.py::test_gone"), "there is no test"),
        (Defect("x", "x", "cdo/sum.py", "a + b", "a", "test_gone.py::test_sum"), "there is no test"),
    ],
)
def test_what_no_longer_applies_is_named(little: Path, defect: Defect, problem: str) -> None:
    assert problem in defect.problem(little)


@pytest.mark.slow
@pytest.mark.long
def test_all_of_them_are_caught(record_property: Callable[[str, object], None]) -> None:
    results = survey(EVERY)
    record_property("defects", len(results))
    assert [f"{r.defect.what}: {r.said}" for r in results if not r.caught] == []
