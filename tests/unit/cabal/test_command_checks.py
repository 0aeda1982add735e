"""Commands of definitions of done: when they run, and what their results change."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cdo.cabal.model.entities import Check, Criterion, CriterionResult, MissionStep, Version
from cdo.cabal.model.product_files import COMMANDS
from cdo.cabal.model.state import MissionState
from cdo.cabal.replies.fields import CheckItem, CriterionItem
from cdo.cabal.rules import acceptance, criteria
from cdo.cabal.rules.command_checks import OUTPUT, due, ran
from cdo.cabal.rules.versions import versioned
from cdo.core.steps import CheckRun
from tests.support.missions import ALEX, todo

COMMAND = "pytest -q"
PASSED = CheckRun(COMMAND, 0, 1.0, 60.0, "2 passed", "")
FAILED = CheckRun(COMMAND, 1, 1.0, 60.0, "x" * 2 * OUTPUT + "\n1 failed\n", "")


def accepted_file(passed: bool = True) -> MissionState:
    """The accepted TODO list in which p4 is a file, accepted for a command that came to this; p5 is another file."""
    state = replace(todo(3), exec=True, halt="")
    dod = (Criterion("d1", "The tests pass", Check("command", COMMAND)),)
    product = replace(state.products["p4"], path="app.py", dod=dod)
    other = replace(state.products["p5"], path="lib.py")
    old = state.inspection("p4")
    assert old
    result = CriterionResult("d1", passed, "", "exit code 0", "code")
    inspection = replace(old, dod=product.dod_sha, results=(result,))
    pinned = replace(state.acceptances["p4"], dod=product.dod_sha)
    return replace(
        state,
        products={**state.products, "p4": product, "p5": other},
        inspections={**state.inspections, old.id: inspection},
        acceptances={**state.acceptances, "p4": pinned},
    )


def changed(state: MissionState, content: str) -> MissionState:
    """The mission after another version of the other file."""
    return versioned(state, MissionStep.WRITE, ALEX, "p5", "lib", content, "Changed")


def test_a_command_runs_once_on_each_state_of_the_files() -> None:
    state = accepted_file()
    assert due(state) == (COMMAND,)
    state = ran(state, PASSED)
    assert due(state) == ()
    assert due(changed(state, "x = 2")) == (COMMAND,)
    assert due(replace(state, exec=False, runs={})) == ()
    bare = {id: replace(item, path="") for id, item in state.products.items()}
    assert due(replace(state, products=bare, runs={})) == (), "without files there is nothing to run on"
    many = tuple(Criterion(f"d{n}", f"t{n}", Check("command", f"pytest {n}")) for n in range(1, COMMANDS + 5))
    crowded = {**state.products, "p4": replace(state.products["p4"], dod=many)}
    assert len(due(full := replace(state, products=crowded))) == COMMANDS
    item = CriterionItem(text="One more", check=CheckItem(kind="command", value="pytest 99"))
    assert criteria.problems([item], full) == [
        "criterion 1 (command): there are 12 commands already; use one of them."
    ]


def test_what_passed_and_now_fails_takes_its_acceptance_back() -> None:
    state = ran(accepted_file(), PASSED)
    assert acceptance.holds(state, "p4")
    after = ran(changed(state, "x = 2"), FAILED)
    assert not acceptance.holds(after, "p4") and "p4" not in after.acceptances
    assert "p4" in acceptance.due(after)
    assert after.products["p4"].stale_why == f"`{COMMAND}` no longer passes"
    told = [event.text for event in after.events if event.kind == "command"]
    assert told == [
        f"`{COMMAND}` passed on the files of all products: exit code 0 after 1.0 s",
        f"`{COMMAND}` failed on the files of all products: exit code 1 after 1.0 s",
    ]
    same = ran(changed(state, "x = 2"), PASSED)
    assert acceptance.current(same, "p4") == acceptance.current(state, "p4"), "the same result leaves it valid"


def test_what_failed_and_now_passes_is_inspected_again() -> None:
    state = ran(accepted_file(passed=False), PASSED)
    assert acceptance.current(state, "p4") is None
    assert state.products["p4"].stale_why == f"`{COMMAND}` passes now"


@pytest.mark.parametrize(
    ("run", "passed", "note"),
    [
        (PASSED, True, "exit code 0 after 1.0 s"),
        (FAILED, False, "exit code 1 after 1.0 s: 1 failed"),
        (replace(PASSED, code=None, out=""), False, "did not end within 60 s"),
        (
            replace(PASSED, refused="app.py cannot stand there (Is a directory)"),
            False,
            "not run: app.py cannot stand",
        ),
    ],
)
def test_a_criterion_is_met_by_the_run_on_the_newest_files_alone(run: CheckRun, passed: bool, note: str) -> None:
    state = ran(accepted_file(), run)
    criterion, version = state.products["p4"].dod[0], state.latest("p4")
    assert isinstance(version, Version)
    found = criteria.tested(criterion, version, state)
    assert found and found.passed is passed and found.note.startswith(note)
    assert len(state.runs[COMMAND].output) <= OUTPUT + 10
    later = criteria.tested(criterion, version, changed(state, "x = 3"))
    assert later and not later.passed and later.note == "it has not run on the newest files"
