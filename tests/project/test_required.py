"""A test that is never run proves nothing: tests skip in one way only, and CDO_TEST_REQUIRE makes of it a failure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import harness
from tests.support.harness import OPTIONAL, ROOT, lacking, needs, needs_module, required

TESTS = sorted((ROOT / "tests").rglob("*.py"))
SKIPS = ("skip", "skipif", "importorskip", "xfail", "skipTest", "SkipTest")


def skips(path: Path) -> list[str]:
    """Where a file skips a test by itself."""
    text = path.read_text("utf-8")
    tree = ast.parse(text if any(word in text for word in SKIPS) else "")
    return [
        f"{path.name}:{node.lineno} {node.attr if isinstance(node, ast.Attribute) else node.name}"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in SKIPS)
        or (isinstance(node, ast.alias) and node.name in SKIPS)
    ]


@pytest.mark.wide
def test_tests_skip_only_by_the_harness() -> None:
    assert len(skips(Path(harness.__file__))) == 2  # this check sees what it is about
    others = [path for path in TESTS if path.name not in ("harness.py", Path(__file__).name)]
    assert not [place for path in others for place in skips(path)]


def test_what_is_required_fails_instead_of_being_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDO_TEST_REQUIRE", "strace, xllamacpp")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for check in (harness.needs_strace, lambda: needs_module("xllamacpp")):
        with pytest.raises(pytest.fail.Exception, match=r"is required here: .* is not installed"):
            check()
    with pytest.raises(pytest.skip.Exception, match="no tmpfs"):
        lacking("mounts", "no tmpfs")


@pytest.mark.parametrize(("words", "skipped"), [("", True), ("bd", False), ("mounts", True)])
def test_a_mark_skips_only_what_is_not_required(words: str, skipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDO_TEST_REQUIRE", words)
    assert needs("bd", False, "bd is not there").mark.args == (skipped,)
    assert needs("bd", True, "bd is not there").mark.args == (False,)


def test_a_word_that_means_nothing_is_refused() -> None:
    assert required(", ".join(OPTIONAL)) == set(OPTIONAL) and required(" ") == set()
    with pytest.raises(ValueError, match="stracee is none of"):
        required("strace stracee")


def test_ci_requires_only_what_there_is_to_require() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    named = {line.split()[1] for line in lines if line.startswith("here ")}
    always = next(line for line in lines if line.startswith("require=")).partition("=")[2].strip('"').split()
    # What a user other than root may not do is for others to see.
    assert named | set(always) == set(OPTIONAL) - {"user"}
