"""Tracking in the real bd, where it is installed (`tests/support/beads/install.sh`), in a repository of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cdo.observers.beads_tracker import BeadsTask
from tests.support.events import happened
from tests.support.harness import needs
from tests.unit.observers.test_beads_tracker import PROBLEM, RESULT, WORK, Repository, take_in, turn

BD = Path(os.environ.get("CDO_TEST_BD") or "~/.cache/cdo-tests/bin/bd").expanduser()
pytestmark = [
    pytest.mark.slow,
    needs("bd", os.access(BD, os.X_OK), "bd is not there: tests/support/beads/install.sh"),
]


class Real(Repository):
    """A repository with a database of the real bd."""

    def run(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(words, cwd=self.path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def bd(self, *words: str) -> Any:
        """What bd answers."""
        return json.loads(self.run("bd", *words, "--json"))["data"]

    @property
    def issues(self) -> dict[str, dict[str, Any]]:
        """The issues by title, in full."""
        ids = [issue["id"] for issue in self.bd("list", "--all", "-n", "0")]
        found = self.bd("show", *ids)
        titles = {issue["title"]: issue for issue in found}
        assert len(titles) == len(found), "an issue is there twice"
        return titles


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Real:
    """An empty git repository with a fresh database; no settings of this machine, nothing sent anywhere."""
    for name in [name for name in os.environ if name.startswith(("BD_", "BEADS_", "GIT_"))]:
        monkeypatch.delenv(name)
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    settings = {
        "PATH": f"{BD.parent}:{os.environ['PATH']}", "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1",
        "BD_DISABLE_METRICS": "1", "BD_JSON_ENVELOPE": "1", "BD_NON_INTERACTIVE": "1",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    repository = Real(folder)
    repository.run("git", "init", "-q")
    repository.run("git", "config", "user.email", "somebody@example.org")
    repository.run("git", "config", "user.name", "Somebody")
    repository.run("bd", "init", "-p", "x", "--non-interactive", "--skip-agents", "--skip-hooks", "-q")
    return repository


def test_a_run_killed_twice_and_resumed_is_tracked_once(real: Real) -> None:
    """Dead between bd's doing and the record: of the second task, then of its note."""
    real.problem = f"--{PROBLEM}\nReally?\x1b[0m"
    real.follow(kill=(7, "before"))
    real.follow(kill=(10, "before"))
    assert len(real.records) == 9
    real.follow()
    before = real.issues
    real.follow()
    assert real.said == []
    assert real.issues == before
    epic, first, second = (before[f"CDO: --{PROBLEM} Really?␛[0m"], before["Turn 1 of a"], before["Turn 2 of a"])
    assert (epic["issue_type"], epic["status"]) == ("epic", "closed")
    assert epic["close_reason"] == "converged: two quiet turns; confidence 0.82. Decision: Split it. In May."
    for task in (first, second):
        assert (task["status"], task["assignee"]) == ("closed", "cdo")
        assert task["notes"].count("Confidence") == 1
        assert task["id"].startswith(f"{epic['id']}.")
    assert first["notes"].splitlines()[1:] == ["Next turn: 3 wide, roles critic.", "Focus: What about 1?"]
    assert first["id"] in [on["id"] for on in second["dependencies"]]


def test_a_run_that_stops_and_a_breakdown_leave_the_epic_open(real: Real) -> None:
    stopped = {"status": "budget", "why": "The cap is reached."}
    made = real.follow([*turn(1), happened("stopped", "", stopped)], then=take_in(WORK))
    assert real.said == []
    assert len(made) == 3
    found = real.issues
    assert found[f"CDO: {PROBLEM}"]["status"] == "open"
    assert found[f"CDO: {PROBLEM}"]["notes"] == "Stopped without a result (budget): The cap is reached."
    assert found["-- Build it well"]["estimated_minutes"] == 90
    assert [issue["id"] for issue in real.bd("ready") if issue["issue_type"] == "task"] == [made["plan"]]
    assert (
        real.follow(then=take_in([*WORK, BeadsTask("ship", "Ship it", depends_on=("test",))]))["test"] == made["test"]
    )
    epic = real.issues[f"CDO: {PROBLEM}"]
    assert epic["status"] == "open"
    assert RESULT["why"] in epic["notes"]


def test_without_a_database_nothing_is_made(real: Real, tmp_path: Path) -> None:
    elsewhere = Repository(tmp_path)
    elsewhere.follow()
    (said,) = elsewhere.said
    assert "this folder has no beads database. `bd init" in said
    assert not (tmp_path / ".beads").exists()
