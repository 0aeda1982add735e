"""Somebody changes the repository while a model looks into it: nothing from outside of it is ever shown.

A folder or file is replaced by a link before each call to the file system that a use makes, and put back before each
later one: every moment at which it could happen, not the few that a race happens to meet.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdo.content.library import Library
from cdo.core.errors import UsageError
from cdo.repository.context import gather
from cdo.repository.survey import survey
from cdo.repository.tools import Tools
from tests.support.watched import CHANGES, FILES, PROCESSES, SOCKETS, of, watched
from tests.unit.repository.test_context import git, write

LIBRARY = Library.at(Path("/"))
OPENING = ("open", "scandir", "listdir")  # of `os`, before which something may happen
LOOKING = ("stat", "lstat", "readlink")
Use = Callable[[Path], str]


def tool(name: str, **arguments: Any) -> Use:
    return lambda root: Tools(root, LIBRARY).run(name, json.dumps(arguments))


def given(*paths: str) -> Use:
    def use(root: Path) -> str:
        try:
            return gather([Path(path) for path in paths], root, 100_000).markdown()
        except UsageError as error:
            return f"{error.message} {error.hint}"

    return use


USES: dict[str, Use] = {
    "list": tool("list", depth=8),
    "list a folder": tool("list", path="src/in", depth=8),
    "read": tool("read", path="src/in/a.py"),
    "read what is not there": tool("read", path="src/in/MARKED.py"),
    "read through a link": tool("read", path="link/a.py"),
    "search": tool("search", pattern="value"),
    "search a folder": tool("search", pattern="value", path="src"),
    "search a file": tool("search", pattern="value", path="src/in/a.py"),
    "context of all": given("."),
    "context of a folder": given("src"),
    "context of a file": given("src/in/a.py"),
    "survey": lambda root: survey(root, "What is the value in this code?", 4000),
}
# A link that a person names is followed: what counts is what happens to it after that.
NAMED = ("context of a folder", "context of a file")
SWAPPED = ("src", "src/in", "src/in/a.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository, and outside of it what would be found in the places of its folders."""
    top = tmp_path / "top"
    for place in ("in", "in/in", "in/in/in"):
        write(tmp_path / "outside" / place, {"a.py": "value = 'MARKER'\n", "MARKER.py": "value = 'MARKER'\n"})
    write(top, {"src/in/a.py": "value = 1\n", "src/c.py": "value = 2\n", "README.md": "# Top\n"})
    (top / "link").symlink_to("src/in")
    return top


class Swaps:
    """Before the call number `at` an entry becomes a link to the outside; `length` calls later it is itself again."""

    def __init__(self, victim: Path, outside: Path, calls: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.victim, self.target = victim, outside / "in/a.py" if victim.suffix else outside / "in"
        self.aside = victim.with_name("aside.tmp")
        self.calls, self.at, self.back, self._quiet = 0, -1, -1, True
        for name in calls:
            monkeypatch.setattr(os, name, self._before(getattr(os, name)))

    def _before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if not self._quiet:
                self._quiet = True  # what is done here is no call of a use
                self.step()
                self._quiet = False
            return real(*args, **more)

        return call

    def step(self) -> None:
        """One call is about to be made."""
        if self.calls == self.at:
            self.victim.rename(self.aside)
            self.victim.symlink_to(self.target)
        if self.calls == self.back:
            self.restore()
        self.calls += 1

    def restore(self) -> None:
        if os.path.lexists(self.aside):
            self.victim.unlink()
            self.aside.rename(self.victim)

    @contextlib.contextmanager
    def during(self, at: int, length: int) -> Iterator[None]:
        """Count and swap in the block; `length` 0 stands for good."""
        self.calls, self.at, self.back, self._quiet = 0, at, at + length if length else -1, False
        try:
            yield
        finally:
            self._quiet = True
            self.restore()


@pytest.mark.parametrize("name", USES)
def test_nothing_outside_is_shown_whenever_a_link_is_put_in_place(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # the survey asks no git, and walks
    swaps = 0
    for victim in SWAPPED:
        with monkeypatch.context() as patch:
            world = Swaps(
                root / victim, root.parent / "outside", OPENING if name in NAMED else (*OPENING, *LOOKING), patch
            )
            with world.during(-1, 0):
                usual = USES[name](root)
            calls = world.calls
            assert calls > 2 and "MARKER" not in usual
            for length in (0, 1, 3):
                for at in range(calls):
                    with world.during(at, length):
                        shown = USES[name](root)
                    assert shown and "MARKER" not in shown, (victim, at, length, shown)
                    swaps += 1
            assert USES[name](root) == usual
    assert swaps >= 30, swaps


def test_looking_into_a_repository_starts_nothing_reaches_nobody_and_changes_nothing(root: Path) -> None:
    git(root, "init", "-q", "--template=")
    before = {path: path.lstat() for path in root.rglob("*")}
    box = Tools(root, LIBRARY)
    wishes = [
        *(("read", {"path": path}) for path in ("README.md", "link/a.py", "../outside", "/etc/passwd")),
        *(("search", {"pattern": word}) for word in ("value", "a|b", "$(id)", "`id`", "; id", "--help", ".*(a+)+$")),
        *(("list", {"path": path}) for path in ("", "src", "http://127.0.0.1:1/", "|id", "-x")),
    ]
    with watched() as seen:
        answers = [box.run(name, json.dumps(wish)) for _ in range(13) for name, wish in wishes]
    assert len(answers) > 200 and any("value" in answer for answer in answers)
    assert not of(seen, PROCESSES + SOCKETS + CHANGES)
    assert of(seen, FILES), "the hook saw nothing at all"
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    assert {event for event, _ in of(seen, FILES)} <= {"open", "os.listdir", "os.scandir"}
    assert not [args for event, args in of(seen, ("open",)) if args[2] & writing]
    assert {path: path.lstat()[:9] for path in root.rglob("*")} == {path: state[:9] for path, state in before.items()}
