"""Tracking in bd: what a run writes there, that a resume writes it once, and that no fault of bd's costs the run.

`bd` is a real program here, run as a process: `tests/support/beads/bd.py`. It keeps to what is documented of the
real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdo.content.library import PACKAGED, Library
from cdo.core.errors import ContentError, SessionError
from cdo.core.events import Event
from cdo.core.formatting import visible
from cdo.observers.beads_client import complaint, issues
from cdo.observers.beads_tracker import Beads, BeadsTask, in_order
from tests.support.effort import at_most
from tests.support.events import happened
from tests.support.harness import ROOT, wait_for

quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LIBRARY = Library((("packaged", PACKAGED),))
FAKE = f"""#!{sys.executable} -IS
import sys
sys.path.insert(0, {str(ROOT / "tests/support/beads")!r})
import bd
bd.main()
"""
PROBLEM = "Should we split the service?"
RESULT = {"status": "converged", "why": "two quiet turns", "confidence": 0.82, "decision": "Split it.\nIn May."}
Kill = tuple[int, str]


def turn(number: int, confidence: float = 0.5, *, roles: Sequence[str] = ("critic",), how: str = "") -> list[Event]:
    """What is told of one turn."""
    directive = {
        "width": 3, "roles": [{"name": name, "charge": ""} for name in roles], "skills": [], "tensions": [],
        "focus": f"What about\n{number}?", "confidence": confidence, "exit_ready": number > 1, "agreement": None,
        "gaps": [],
    }  # fmt: skip
    head = {"confidence": confidence, "focus": directive["focus"], "exit_ready": number > 1, "directive": directive}
    return [
        happened("batch", "", {"calls": [[f"t{number}-architect", "agent"], [f"t{number}-critic", "agent"]]}),
        happened("progress", f"t{number}-critic", {"characters": 9}),
        happened("reply", f"t{number}-critic", {"position": "No.", "confidence": 0.9}),
        happened("batch", "", {"calls": [[f"t{number}-synthesis", "synthesis"]]}),
        happened("reply", f"t{number}-synthesis", {**head, **({"how": how} if how else {})}),
    ]


RUN = [
    happened("run", "a", {"preset": "deep"}),
    *turn(1),
    *turn(2, 0.82),
    happened("batch", "", {"calls": [["final", "final"]]}),
    happened("reply", "final", {}),
    happened("done", "", RESULT),
]
COMMITS = 12  # of a whole run
WHEN = ["before", pytest.param("after", marks=pytest.mark.slow)]  # a death, as seen from the record being written


@dataclass
class Repository:
    """A folder with a database of the fake bd, and the session of one run in it."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    problem: str = PROBLEM
    seconds: float = 20.0
    redact: Callable[[str], str] = str
    library: Library = field(default_factory=lambda: LIBRARY)

    def fault(self, **faults: str) -> None:
        """From now on bd goes wrong like this."""
        (self.path / ".beads" / "faults.json").write_text(json.dumps(faults))

    @property
    def state(self) -> dict[str, Any]:
        """What is in bd, and all that was run."""
        path = self.path / ".beads" / "state.json"
        state = {"issues": {}, "deps": [], "log": []} | (json.loads(path.read_text()) if path.exists() else {})
        assert "misuse" not in state, state["misuse"]
        return state

    @property
    def issues(self) -> dict[str, dict[str, Any]]:
        """The issues by title."""
        found = self.state["issues"].values()
        titles = {issue["title"]: issue for issue in found}
        assert len(titles) == len(found), "an issue is there twice"
        return titles

    @property
    def outcome(self) -> Any:
        """What is in bd, apart from what differs from run to run."""
        state = json.loads(json.dumps([self.state["issues"], self.state["deps"]]))
        for issue in state[0].values():
            issue["metadata"].pop("cdo_run")
        return state

    def follow(
        self,
        events: Sequence[Event] = RUN,
        *,
        kill: Kill | None = None,
        then: Callable[[Beads], Awaitable[Any]] | None = None,
        patience: float = 30.0,
    ) -> Any:
        """One process of the run: all of `events`; `kill` ends it dead before or after a record is written."""

        async def main() -> Any:
            dead = asyncio.Event()

            async def die(when: str) -> None:
                if kill == (len(self.records) + (when == "before"), when):
                    dead.set()
                    await asyncio.Event().wait()

            async def commit(record: dict[str, Any]) -> Mapping[str, Any]:
                await die("before")  # the record numbered so, from 1
                self.records.append(json.loads(json.dumps(record)))
                await asyncio.sleep(0)
                await die("after")
                return record

            beads = Beads(
                "a", self.problem, self.path, self.records, commit, self.said.append, self.library,
                redact=self.redact, seconds=self.seconds,
            )  # fmt: skip
            for event in events:
                beads(event)
            got = await then(beads) if then else None
            ends = [asyncio.create_task(beads.close(patience)), asyncio.create_task(dead.wait())]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return got

        return asyncio.run(main())

    def commands(self) -> list[str]:
        """The commands that were run, by name."""
        return [words[0] for words in self.state["log"]]


def install(folder: Path, text: str = FAKE) -> Path:
    """A program called bd in a folder of its own."""
    folder.mkdir(exist_ok=True)
    program = folder / "bd"
    program.write_text(text, "utf-8")
    program.chmod(0o755)
    return folder


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository where the fake bd is installed and has a database."""
    monkeypatch.setenv("PATH", str(install(tmp_path / "bin")))
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-that-stays-here")
    (tmp_path / "work" / ".beads").mkdir(parents=True)
    return Repository(tmp_path / "work")


# -- a run -----------------------------------------------------------------------------------------


@pytest.mark.wide
def test_a_run_becomes_an_epic_with_a_task_for_each_turn(repository: Repository) -> None:
    repository.follow()
    assert repository.said == []
    epic, first, second = repository.state["issues"].values()
    assert (epic["title"], epic["issue_type"], epic["status"]) == (f"CDO: {PROBLEM}", "epic", "closed")
    assert epic["close_reason"] == "converged: two quiet turns; confidence 0.82. Decision: Split it. In May."
    assert [first["title"], second["title"]] == ["Turn 1 of a", "Turn 2 of a"]
    for task in (first, second):
        assert (task["parent"], task["status"], task["assignee"]) == (epic["id"], "closed", "cdo")
    assert repository.state["deps"] == [[second["id"], first["id"]]]
    assert first["notes"] == (
        "Confidence 0.50, exit ready: no.\nNext turn: 3 wide, roles critic.\nFocus: What about 1?"
    )
    assert second["close_reason"] == "Synthesis written: confidence 0.82, exit ready: yes."


@pytest.mark.wide
def test_commands_come_in_the_order_of_the_run(repository: Repository) -> None:
    repository.follow()
    one, two = ["create", "update", "update", "close"], ["create", "dep", "update", "update", "close"]
    assert repository.commands() == ["create", *one, *two, "list", "close"]


def test_a_task_is_in_progress_while_its_turn_goes_on(repository: Repository) -> None:
    repository.follow(RUN[:3])
    assert {title: issue["status"] for title, issue in repository.issues.items()} == {
        f"CDO: {PROBLEM}": "open",
        "Turn 1 of a": "in_progress",
    }


def test_nothing_is_created_before_the_first_turn(repository: Repository) -> None:
    repository.follow([RUN[0], happened("stopped", "", {"status": "failed", "why": "There is no key."})])
    assert repository.state["log"] == []


@pytest.mark.wide
@pytest.mark.parametrize("shape", ["", "bare", "list", "items"])
def test_all_shapes_of_answers_are_understood(repository: Repository, shape: str) -> None:
    repository.fault(shape=shape)
    repository.follow()
    assert repository.said == []
    assert [issue["status"] for issue in repository.issues.values()] == ["closed"] * 3


@pytest.mark.parametrize("beside", ["then-chat", "then-orphan"])
def test_what_bd_does_beside_its_answer_does_not_matter(repository: Repository, beside: str) -> None:
    repository.fault(create=beside)
    began = time.monotonic()
    repository.follow(RUN[:6])
    assert repository.said == []
    assert repository.issues["Turn 1 of a"]["status"] == "closed"
    assert repository.commands().count("create") == 2
    assert time.monotonic() - began < 9  # the orphan of each holds its pipes for five seconds


@pytest.mark.wide
def test_a_run_that_stops_leaves_its_epic_open_with_a_note(repository: Repository) -> None:
    stopped = happened("stopped", "", {"status": "budget", "why": "The cap of\n$1 is reached."})
    asked = happened("pause", "t1-conflict", {"question": "Turn 1 ended in a conflict.", "options": ["x"]})
    repository.follow([*RUN[:6], asked, stopped])
    repository.follow([*RUN[:6], asked, stopped])
    epic = repository.issues[f"CDO: {PROBLEM}"]
    assert epic["status"] == "open"
    assert epic["notes"].splitlines() == [
        "Waits for a decision: Turn 1 ended in a conflict.",
        "Stopped without a result (budget): The cap of $1 is reached.",
    ]
    repository.follow()
    assert repository.issues[f"CDO: {PROBLEM}"]["status"] == "closed"


@pytest.mark.wide
def test_an_epic_with_work_that_is_open_stays_open(repository: Repository) -> None:
    repository.follow(RUN[:6])
    state = repository.state
    state["issues"]["fake-1.9"] = state["issues"]["fake-1.1"] | {"id": "fake-1.9", "status": "open", "title": "Mine"}
    (repository.path / ".beads" / "state.json").write_text(json.dumps(state))
    repository.follow()
    assert repository.said == []
    epic = repository.issues[f"CDO: {PROBLEM}"]
    assert epic["status"] == "open"
    assert epic["notes"] == "converged: two quiet turns; confidence 0.82. Decision: Split it. In May."


def test_a_turn_that_the_run_ended_without_is_closed(repository: Repository) -> None:
    repository.follow([*turn(1), *turn(2)[:1], happened("done", "", RESULT)])
    assert repository.issues["Turn 2 of a"]["close_reason"] == "The run ended without it."
    assert repository.issues[f"CDO: {PROBLEM}"]["status"] == "closed"


@pytest.mark.wide
def test_an_edited_synthesis_is_noted_once_more(repository: Repository) -> None:
    repository.follow(turn(1))
    for _ in range(2):
        repository.follow(turn(1, 0.9, roles=("refuter", "critic"), how="edited"))
    notes = repository.issues["Turn 1 of a"]["notes"]
    assert notes.count("Confidence") == 2
    assert "Confidence 0.90" in notes and "roles refuter, critic" in notes


def test_a_synthesis_without_its_directive_is_noted_all_the_same(repository: Repository) -> None:
    events = turn(1)
    events[-1] = happened("reply", events[-1].name, {"confidence": 0.25, "exit_ready": False, "agreement": 0.4})
    repository.follow(events)
    assert repository.issues["Turn 1 of a"]["notes"] == "Confidence 0.25, agreement 0.40, exit ready: no."


# -- hostile texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    ["--force", "-", "@/etc/passwd", "a\nb", "\x1b[31mred\x00", "x" * 200_000, "ü" * 9000, "\ud800", "$(id) `id`"],
)
def test_a_problem_is_text_and_nothing_else(repository: Repository, problem: str) -> None:
    repository.problem = problem
    repository.follow(RUN[:6])
    assert repository.said == []
    epic = next(iter(repository.state["issues"].values()))
    assert epic["title"].startswith("CDO: ")
    assert len(epic["title"]) <= 130
    assert epic["title"].isprintable()
    assert len(epic["description"]) < 3000
    assert not set(epic["description"]) & {"\x1b", "\x00"}


@pytest.mark.wide
@pytest.mark.parametrize("before", [0, 90])
def test_secrets_do_not_reach_bd(repository: Repository, before: int) -> None:
    repository.problem = "x" * before + " hunter22222 hunter22222 hunter22222"  # where the title is cut, too
    repository.redact = lambda text: text.replace("hunter22222", "[it]")
    repository.follow()
    assert "hunt" not in json.dumps(repository.state)
    assert f"CDO: {'x' * before} [it] [it] [it]".replace("  ", " ") in repository.issues


@pytest.mark.wide
def test_a_description_is_never_the_name_of_a_file(repository: Repository) -> None:
    made = repository.follow(RUN[:6], then=take_in([BeadsTask("a", "-", "-"), BeadsTask("b", "@x", "@x")]))
    texts = [repository.state["issues"][made[name]]["description"] for name in ("a", "b")]
    assert texts == [f"{text}\n\nFrom the work breakdown of a." for text in ("-", "@x")]


def test_wording_that_is_broken_costs_the_tracking(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "own" / "dispatch").mkdir(parents=True)
    (tmp_path / "own" / "dispatch" / "beads.md").write_text("---\npurpose: x\nload_when: y\n---\n{{ nothing }}")
    repository.library = Library((("project", tmp_path / "own"), ("packaged", PACKAGED)))
    repository.follow()
    (said,) = repository.said
    assert "beads.md has no block called epic_title. Fix the file" in said
    assert repository.state["log"] == []


# -- once, whatever happens ------------------------------------------------------------------------


@pytest.mark.wide
def test_a_whole_run_is_twelve_records(repository: Repository) -> None:
    repository.follow()
    assert len(repository.records) == COMMITS
    assert all(record["kind"] == "bd" for record in repository.records)


def test_what_is_recorded_is_not_done_again(repository: Repository) -> None:
    repository.follow()
    before, records = repository.state, list(repository.records)
    repository.follow()
    assert repository.state == before  # not even asked
    assert repository.records == records


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run leaves in bd when nothing goes wrong."""
    base = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(install(base / "bin")))
        (base / "work" / ".beads").mkdir(parents=True)
        repository = Repository(base / "work")
        repository.follow()
        return repository.outcome


@pytest.mark.wide
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(
    repository: Repository, undisturbed: Any, at: int, when: str
) -> None:
    """The process dies as bd has done something, before or after that is on record; then the run is resumed."""
    repository.follow(kill=(at, when))
    assert len(repository.records) == at - (when == "before")
    repository.follow()
    assert repository.said == []
    assert repository.outcome == undisturbed
    assert len(repository.records) == COMMITS


@pytest.mark.wide
@pytest.mark.parametrize(
    ("command", "fault"),
    [("create", "hang"), ("create", "cut"), ("dep", "nothing"), ("update", "killed"), ("close", "silent-failure")],
)
def test_what_bd_did_without_saying_so_is_found_again(
    repository: Repository, undisturbed: Any, command: str, fault: str
) -> None:
    repository.seconds = 2.0 if fault == "hang" else 20.0  # so long may an answer take that does come
    repository.fault(**{command: f"after-{fault}"})
    repository.follow()
    repository.follow()  # no better the second time, and further for it: what was done is not done again
    assert len(repository.said) == 2
    repository.seconds = 20.0
    repository.fault()
    repository.follow()
    assert repository.outcome == undisturbed


# -- whatever bd does, the run goes on -------------------------------------------------------------

ANSWERS = ("garbage", "nothing", "numbers", "deep", "no-id", "bad-id", "an-error", "cut")
FAILURES = ("error-on-stdout", "error-in-envelope", "error-on-stderr", "error-in-words", "silent-failure", "killed")


@pytest.mark.parametrize("fault", [*ANSWERS, *FAILURES])
def test_a_bd_that_fails_costs_one_warning_and_the_tracking(repository: Repository, fault: str) -> None:
    repository.fault(create=fault)
    repository.follow()
    assert repository.commands() == ["create"]
    (said,) = repository.said
    assert said.startswith("Not tracked in bd from here on: `bd create` ")
    assert said.endswith("`cdo resume a` then catches up.")
    assert said.isprintable()
    assert len(said) < 500
    if fault in FAILURES[:4]:
        assert "disk is sad" in said


@pytest.mark.wide
@pytest.mark.parametrize("fault", ["hang", "hang-with-child", "flood"])
def test_a_bd_that_does_not_end_is_ended(repository: Repository, fault: str) -> None:
    repository.seconds = 0.6
    repository.fault(create=fault)
    began = time.monotonic()
    repository.follow()
    assert time.monotonic() - began < 60  # it hangs for ten minutes
    assert "did not end within 0.6 s" in "".join(repository.said)
    wait_for(lambda: not processes(repository.path))


def test_a_child_that_bd_leaves_running_is_ended(repository: Repository) -> None:
    repository.fault(create="then-child")
    repository.follow()
    assert repository.said == []
    wait_for(lambda: not processes(repository.path))  # it sleeps for ten minutes


@pytest.mark.parametrize("command", ["dep", "update", "close", "list"])
def test_a_failure_anywhere_is_a_warning(repository: Repository, command: str) -> None:
    repository.fault(**{command: "error-in-words"})
    repository.follow()
    (said,) = repository.said
    assert f"`bd {command}` failed: the" in said
    assert repository.commands().count(command) == 1


def processes(folder: Path) -> list[str]:
    """The processes that run in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if (entry / "cwd").readlink() == folder:
                    found.append(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.wide
def test_nobody_waits_for_bd(repository: Repository) -> None:
    repository.fault(create="hang-with-child")

    async def look(beads: Beads) -> float:
        began = time.monotonic()
        for event in RUN * 50:
            beads(event)
        return time.monotonic() - began

    began = time.monotonic()
    assert repository.follow(then=look, patience=0.5) < 5
    assert time.monotonic() - began < 60  # it hangs for ten minutes
    assert repository.said == [
        "Not tracked in bd from here on: bd did not finish within 0.5 s. See what `bd doctor` says. "
        "`cdo resume a` then catches up."
    ]
    wait_for(lambda: not processes(repository.path))


def test_what_is_told_after_the_end_is_ignored(repository: Repository) -> None:
    async def late(beads: Beads) -> dict[str, str]:
        await beads.close(30)
        for event in RUN:
            beads(event)
        made = await beads.breakdown([BeadsTask("x", "Build it")])
        await beads.close(30)
        return made

    assert repository.follow([], then=late) == {}
    assert repository.state["log"] == []


def test_no_bd(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    repository.follow()
    (said,) = repository.said
    assert "bd is not installed" in said
    assert "`bd init -p PREFIX --non-interactive --skip-agents --skip-hooks`" in said


def test_a_bd_in_the_repository_is_not_run(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = repository.path
    (work / ".git").mkdir()
    (work / "below").mkdir()
    for folder in (work, work / "bin", work / "below"):
        install(folder, text=f"#!/bin/sh\ntouch {tmp_path}/ran\necho bd version 1.2.3\n")
    (tmp_path / "link").symlink_to(work / "bin")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "bd").symlink_to(work / "bin" / "bd")
    monkeypatch.chdir(work / "below")
    planted = ("", ".", "..", "bin", "../bin", str(work), f"{work}/bin", f"{tmp_path}/link", f"{tmp_path}/linked")
    monkeypatch.setenv("PATH", os.pathsep.join(planted))
    repository.path = work / "below"
    repository.follow()
    (said,) = repository.said
    assert "bd is not installed" in said and not (tmp_path / "ran").exists()
    # One that is installed is found behind those, and is not given the places they lie in.
    monkeypatch.setenv("PATH", os.pathsep.join([*planted, str(tmp_path / "bin"), "."]))
    repository.path = work
    repository.said.clear()
    repository.follow()
    assert repository.said == [] and not (tmp_path / "ran").exists()
    assert len(repository.state["issues"]) == 3


def test_no_database(repository: Repository) -> None:
    repository.path = repository.path.parent
    repository.follow()
    (said,) = repository.said
    assert "this folder has no beads database" in said
    assert "`bd init -p PREFIX" in said
    assert not (repository.path / ".beads").exists()


@pytest.mark.parametrize("text", ["#!/bin/sh\necho usage: bd DIR\n", "#!/bin/sh\nexit 2\n", "#!/no/such/shell\n"])
def test_another_program_of_that_name_is_left_alone(repository: Repository, tmp_path: Path, text: str) -> None:
    install(tmp_path / "bin", text=text)
    repository.follow()
    (said,) = repository.said
    assert "is not beads" in said or "cannot be started" in said


@pytest.mark.parametrize("error", [SessionError("The disk is full.", "Make room."), KeyError("x")])
def test_a_record_that_cannot_be_written_ends_the_tracking(repository: Repository, error: Exception) -> None:
    said: list[str] = []

    async def commit(record: dict[str, Any]) -> None:
        raise error

    async def main() -> None:
        beads = Beads("a", PROBLEM, repository.path, [], commit, said.append, LIBRARY)
        for event in RUN:
            beads(event)
        await beads.close(30)

    asyncio.run(main())
    assert len(said) == 1
    assert said[0].startswith(
        "Not tracked in bd from here on: " + ("The disk is full. Make" if "disk" in str(error) else "KeyError")
    )


def test_events_before_the_loop_runs_are_kept(repository: Repository) -> None:
    records: list[dict[str, Any]] = []

    async def commit(record: dict[str, Any]) -> None:
        records.append(record)

    beads = Beads("a", PROBLEM, repository.path, records, commit, repository.said.append, LIBRARY)
    for event in RUN:
        beads(event)
    asyncio.run(beads.close(30))
    assert repository.issues[f"CDO: {PROBLEM}"]["status"] == "closed"


# -- a work breakdown ------------------------------------------------------------------------------

WORK = [
    BeadsTask("test", "Test it", "With real data.", ("build", "plan")),
    BeadsTask("build", "-- Build it\nwell", "", ("plan",), estimate=90),
    BeadsTask("plan", "Plan it"),
]


def take_in(items: Sequence[BeadsTask]) -> Callable[[Beads], Awaitable[dict[str, str]]]:
    return lambda beads: beads.breakdown(items)


def test_a_breakdown_becomes_tasks_under_the_epic(repository: Repository) -> None:
    made = repository.follow(RUN[:6], then=take_in(WORK))
    assert repository.said == []
    found = repository.issues
    assert made == {task.id: found[" ".join(task.title.split())]["id"] for task in WORK}
    epic = found[f"CDO: {PROBLEM}"]["id"]
    assert {found[title]["parent"] for title in ("Plan it", "-- Build it well", "Test it")} == {epic}
    assert found["-- Build it well"]["estimate"] == 90
    edges = [(made["build"], made["plan"]), (made["test"], made["build"]), (made["test"], made["plan"])]
    assert sorted(map(tuple, repository.state["deps"])) == sorted(edges)
    assert repository.follow(RUN[:6], then=take_in(WORK)) == made
    assert len(repository.issues) == 5


@pytest.mark.wide
def test_a_breakdown_keeps_its_epic_open(repository: Repository) -> None:
    repository.follow(RUN[:-1], then=take_in(WORK))
    repository.follow()
    assert repository.issues[f"CDO: {PROBLEM}"]["status"] == "open"
    assert repository.issues["Plan it"]["status"] == "open"


@pytest.mark.wide
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("at", range(7, 13))
def test_a_breakdown_killed_anywhere_is_there_once(repository: Repository, at: int, when: str) -> None:
    async def start(beads: Beads) -> None:
        asyncio.create_task(beads.breakdown(WORK)).add_done_callback(lambda task: None)
        await asyncio.sleep(0)

    repository.follow(RUN[:6], kill=(at, when), then=start)
    assert len(repository.records) == at - (when == "before")
    made = repository.follow(RUN[:6], then=take_in(WORK))
    assert len(made) == 3
    assert len(repository.issues) == 5
    assert len(repository.state["deps"]) == 3
    assert len(repository.records) == 12


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([BeadsTask("a", "A", depends_on=("b",)), BeadsTask("b", "B", depends_on=("a",))], "is a circle"),
        ([BeadsTask("a", "A", depends_on=("a",))], "a → a is a circle"),
        ([BeadsTask("a", "A", depends_on=("x\x1b[0m",))], "which is not in it"),
        ([BeadsTask("a", "A"), BeadsTask("a", "B")], "used twice"),
        ([BeadsTask("--force", "A")], "cannot be an id"),
        ([BeadsTask("a", " \n")], "has no title"),
        ([BeadsTask("a", "A", estimate=0)], "estimate"),
    ],
)
def test_a_breakdown_that_cannot_be_is_refused_whole(
    repository: Repository, items: list[BeadsTask], why: str
) -> None:
    async def refused(beads: Beads) -> str:
        with pytest.raises(ContentError) as caught:
            await beads.breakdown([BeadsTask("fine", "Fine"), *items])
        assert caught.value.hint
        return caught.value.message

    message = repository.follow([], then=refused)
    assert why in message
    assert message.isprintable()
    assert repository.state["log"] == []


def test_a_breakdown_without_bd_is_no_error(repository: Repository) -> None:
    repository.fault(create="error-in-words")
    assert repository.follow(RUN[:6], then=take_in(WORK)) == {}
    assert len(repository.said) == 1


@quick
@given(st.lists(st.sets(st.integers(0, 9), max_size=4), max_size=10))
def test_an_order_holds_every_task_after_what_it_needs(wishes: list[set[int]]) -> None:
    tasks = [
        BeadsTask(f"n{n}", "x", depends_on=tuple(f"n{other}" for other in sorted(wish) if other < n))
        for n, wish in enumerate(wishes)
    ]
    for items in (tasks, tasks[::-1]):
        place = {task.id: index for index, task in enumerate(in_order(items))}
        assert len(place) == len(tasks)
        assert all(place[on] < place[task.id] for task in tasks for on in task.depends_on)


# -- answers ---------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=9,
)


@quick
@given(
    st.lists(st.dictionaries(st.sampled_from(["id", "title", "notes"]), JSON), max_size=3), st.sampled_from([None, 2])
)
def test_the_same_issues_come_from_every_shape(found: list[dict[str, Any]], indent: int | None) -> None:
    for shape in ({"schema_version": 1, "data": found}, found, {"items": found}, *(found if len(found) == 1 else [])):
        assert issues(f"warning: [x]\n{json.dumps(shape, indent=indent)}\nTip: {{y}}\n") == found


def shown(text: str) -> bool:
    """Whether a terminal shows a text as one line and does nothing else."""
    return "\n" not in text and visible(text) == text


def test_a_hostile_answer_is_read_in_no_time() -> None:
    with at_most(5):
        for text in ("[\n" * 500_000, "{\n" * 500_000, "[1" * 500_000, '[{"id":' * 300_000):
            with pytest.raises(ValueError):
                issues(text)


@quick
@given(st.text() | JSON.map(json.dumps))
def test_any_answer_is_issues_or_a_sentence(text: str) -> None:
    try:
        found = issues(text)
    except ValueError as error:
        assert shown(str(error))
    else:
        assert all(isinstance(issue, dict) for issue in found)
    assert shown(complaint(text, text))
    assert len(complaint(text, text)) <= 300
