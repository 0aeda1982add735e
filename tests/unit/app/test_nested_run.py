"""Deliberations of missions: each has a session of its own, which no other question and no other mission is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdo.app import nested_run
from cdo.app.run import RunHooks
from cdo.content.library import PACKAGED, Library
from cdo.core.errors import SessionError
from cdo.core.steps import Nest, Nested
from cdo.core.usage import TotalUsage
from cdo.runner.budget import Limits
from cdo.session.reader import SessionFolder
from cdo.session.records import session_path
from cdo.session.session_file import read_frozen
from cdo.session.store import Session
from tests.conftest import Desk
from tests.support.records import EXCHANGE

LIBRARY = Library((("packaged", PACKAGED),))
NEST = Nest("r1-p3", "Which stack?", "A context", "think")
NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,63}", fullmatch=True).filter(
    lambda name: ".." not in name and not name.endswith((".", ".lock")) and not name.startswith("cdo-")
)


class Mission:
    """Sessions of missions in one folder, and the deliberations that are begun for them."""

    def __init__(self, out: Path, like: Path) -> None:
        self.out = out
        self.frozen = read_frozen((like / "session.yaml").read_text(), like)

    def parent(self, name: str) -> Session:
        """The open session of a mission."""
        path = session_path(self.out, name)
        return Session.open(path) if path.exists() else Session.create(path, {"session.yaml": "", "00-input.md": "x"})

    def begin(self, name: str, nest: Nest = NEST) -> Path:
        """Begin, or take up again, a deliberation; where its session lies."""
        parent = self.parent(name)
        try:
            session, _ = nested_run._opened(parent, nest, self.frozen.settings, self.frozen.plan, LIBRARY)
            session.close()
            return session.path
        finally:
            parent.close()

    def spent(self, name: str, nest: Nest = NEST) -> TotalUsage:
        """What a deliberation has taken, by what is told where no call is left."""
        parent = self.parent(name)
        try:
            hold = nested_run.holder(
                parent, self.frozen.plan, self.frozen.settings, LIBRARY, RunHooks((), lambda _: None)
            )

            async def told() -> tuple[Nested | None, TotalUsage]:
                return await hold(nest, Limits(calls=0))

            nested, used = asyncio.run(told())
            assert nested is None
            return used
        finally:
            parent.close()


@pytest.fixture
def missions(tmp_path: Path, finished: Desk) -> Iterator[Mission]:
    """A folder where missions lie."""
    yield Mission(tmp_path, finished.session())


@pytest.mark.wide
def test_a_deliberation_that_was_begun_is_gone_on_with(missions: Mission) -> None:
    first = missions.begin("a")
    assert first.name == "cdo-a-r1-p3" and SessionFolder(first).text("00-input.md") == "Which stack?\n"
    assert missions.begin("a") == first
    assert missions.begin("a", replace(NEST, question="  Which stack?\n")) == first


def test_missions_whose_long_names_begin_alike_never_share_one(missions: Mission) -> None:
    names = ["a" * 62 + "x", "a" * 62 + "y", "a" * 56, "a" * 57, "a" * 58]
    found = [missions.begin(name) for name in names]
    assert len(set(found)) == len(names)
    assert [missions.begin(name) for name in names] == found


@given(NAMES, NAMES)
@example("a" * 63, "a" * 64)
@example("a" * 56, "a" * 57)
def test_names_of_nested_sessions_are_names_and_tell_missions_apart(one: str, other: str) -> None:
    for nest in ("r1-p1", "r999999-p999999"):
        made = [nested_run._name(name, nest, number) for name in (one, other) for number in (1, 2, 99)]
        for name in made:
            assert session_path(Path(), name).name == f"cdo-{name}" and name.rpartition("-p")[0]
        assert len(set(made)) == (6 if one != other else 3)


def test_a_session_that_asks_something_else_is_not_adopted(missions: Mission) -> None:
    first = missions.begin("a")
    other = missions.begin("a", replace(NEST, question="Which database?"))
    assert other.name == "cdo-a-r1-p3-2" and SessionFolder(first).text("00-input.md") == "Which stack?\n"
    assert missions.begin("a") == first


def test_a_session_of_somebody_else_is_not_adopted(missions: Mission) -> None:
    # A mission called a-r1, and a person's own run: neither was begun by the mission a.
    taken = missions.begin("a-r1", replace(NEST, name="p3"))
    assert taken.name == "cdo-a-r1-p3"
    (missions.out / "cdo-a-r1-p3-2").write_text("a file")
    (missions.out / "cdo-a-r1-p3-3").symlink_to(missions.out / "nowhere")
    assert missions.begin("a").name == "cdo-a-r1-p3-4"
    assert missions.begin("a-r1", replace(NEST, name="p3")) == taken


def test_what_was_spent_is_asked_of_the_same_session(missions: Mission) -> None:
    path = missions.begin("a")
    other = replace(NEST, question="Which database?")
    session = Session.open(path)
    usage = {"input_tokens": 5, "output_tokens": 5}
    asyncio.run(session.commit({**EXCHANGE, "usage": usage, "cost": None}))
    session.close()
    assert missions.spent("a").calls == 1
    assert missions.spent("a", other).calls == 0


def test_a_question_that_holds_a_secret_is_known_again(missions: Mission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "a-canary-of-1-run")
    nest = replace(NEST, question="Is a-canary-of-1-run well kept \udce4?")
    first = missions.begin("a", nest)
    assert "canary" not in (first / "00-input.md").read_text()
    assert missions.begin("a", nest) == first


def test_where_no_session_can_be_told_it_is_said(missions: Mission) -> None:
    (missions.out / "cdo-a-r1-p3").mkdir()
    with pytest.raises(SessionError, match=r"no session\.yaml"):
        missions.begin("a")
