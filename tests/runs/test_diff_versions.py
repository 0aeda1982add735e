"""`cdo diff` of versions of a mission's products, and an older version that a person puts back. Real processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import Desk, _desk, explained
from tests.runs.test_mission import TEAM, told
from tests.support.cabal_team import ALEX, DRAFT, JORDAN, LIMITED, REQUEST, inspect, inspection, plan, review, said
from tests.support.provider import Provider


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The TODO list, done, and a deliberation; only to be looked at."""
    with Provider(script=told({})) as provider:
        desk = _desk(tmp_path_factory.mktemp("versions"), provider.url)
        desk(*TEAM, "-q", REQUEST).ok()
        desk("think", "--session", "t", "-q", "--turns", "1", "Should we?").ok()
        yield desk


def test_two_versions_are_compared_line_by_line(ended: Desk) -> None:
    lines = ended("diff", "a:v2", "a:v5").ok().out.splitlines()
    assert lines[:2] == [
        "A a:v2 Technical Architecture, version 1 by operative 1 in round 1: First draft",
        "B a:v5 Technical Architecture, version 2 by operative 1 in round 2: Adds rate limiting",
    ]
    assert [line for line in lines[3:] if not line.startswith((" ", "@@"))] == [
        f"+{line}" for line in LIMITED.removeprefix(f"{DRAFT}\n").splitlines()
    ]
    assert "React in the browser" in "".join(lines[3:]), "lines around the change"
    assert ended("diff", "a:p4").ok().out.splitlines() == lines
    assert ended("diff", "a:v5").ok().out.splitlines() == lines
    assert ended("diff", "a:v5", "a:v2").ok().out.splitlines()[-1].startswith("-Ten logins")
    bare = ended("diff", "a:p4", "--changed", "--strict").failed(3).out.splitlines()
    assert not [line for line in bare if line.startswith(" ")] and bare[-1] == lines[-1]
    assert ended("diff", "a:v2", "a:v2", "--strict").ok().out.splitlines()[2:] == ["Nothing differs."]
    decision = ended("diff", "a:p3", "--json").ok().json
    assert (decision["a"]["version"], decision["b"]["version"], decision["same"]) == ("v3", "v7", False)
    assert "+Outcome: Task CRUD, login by a session in an httpOnly cookie" in decision["diff"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("a:v99",), ("has no version v99", "v1, v2")),
        (("a:v1", "a:v99"), ("has no version v99",)),
        (("a:p1",), ("has no version p1",)),
        (("a:v2",), ("has no version before v2", "cdo diff a:v2")),
        (("a:v2", "a"), ("compared with a version alone",)),
        (("t:v1",), ("t is not a mission",)),
        (("a",), ("git log -p cdo/a", "a:v1 a:v2")),
    ],
)
def test_what_is_no_version_is_explained(args: tuple[str, ...], words: tuple[str, ...], ended: Desk) -> None:
    explained(ended("diff", *args), 2, *words)


def test_an_older_version_that_is_put_back_is_the_newest_one(cdo: Desk, provider: Provider) -> None:
    provider.script = told({})
    cdo(*TEAM, "-q", REQUEST).ok()
    folder = next(cdo.session().glob("products/p4-*"))
    shutil.copy(folder / "v2.md", folder / "back.md")
    old = {"d1": "React in the browser", "d2": "Every request passes one gateway"}
    provider.script = told({
        f"r4-reflect-{ALEX}": said(), f"r4-reflect-{JORDAN}": said(), "r4-plan": plan(),
        f"r4-review-{JORDAN}": review(), "r4-inspect": inspect(inspection("p4", "v9", old), inspection("p1")),
        "r4-present": "{}",
    })  # fmt: skip
    cdo("resume", "a", "-q", "--rounds", "4").ok()
    assert cdo("diff", "a:v2", "a:v9", "--strict").ok().out.splitlines()[1:] == [
        "B a:v9 Technical Architecture, version 3 by the user in round 4: Added by the user", "Nothing differs.",
    ]  # fmt: skip
    delivered = (cdo.session() / "deliverables/technical-architecture.md").read_text()
    assert "one gateway" in delivered and "Rate limiting" not in delivered
    cdo("verify", "a").ok()
