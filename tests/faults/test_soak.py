"""Runs whose calls fail and whose processes die end as promised; and what watches them sees when they do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from tests.faults.soak import KNOWN, Broken, Ended, Result, Run, at_home, soak, table
from tests.support.harness import Place
from tests.support.mishaps import CYCLE, SCENES, Death, planned
from tests.support.provider import Provider

# Cheap ones, by number, and the signal that each gets at its second request.
FEW = {0: SIGKILL, 1: SIGTERM, 3: SIGKILL, 5: SIGKILL, 8: SIGINT, 9: SIGKILL}


def undisturbed(results: list[Result]) -> None:
    """No promise was broken; prints what happened."""
    print(table(results))
    assert not [(result.plan.name, result.broken) for result in results if result.broken]
    assert all(result.end for result in results)


def test_a_few_runs_that_die_under_faults_end_as_promised(tmp_path: Path) -> None:
    plans = [
        replace(planned(2, number, 0.2), deaths=(Death(told, 2, 0.0, group=False),), latency=0.1, caps=(), fork=False)
        for number, told in FEW.items()
    ]
    results = soak(plans, tmp_path, 2, lambda _: None)
    undisturbed(results)
    assert sum(result.counts["SIGKILL"] for result in results) == 4
    assert sum(result.counts["faulty"] for result in results) >= 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.long
def test_two_hundred_runs_that_die_under_faults_end_as_promised(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    results = soak([planned(0, number, 0.2) for number in range(200)], tmp_path, 4, lambda _: None)
    undisturbed(results)
    sums = {what: sum(result.counts[what] for result in results) for what in ("SIGKILL", "SIGINT", "SIGTERM")}
    assert min(sums.values()) >= 30, sums
    record_property("runs", len(results))
    record_property("signals", sum(sums.values()))
    faulty, requests = (sum(result.counts[what] for result in results) for what in ("faulty", "requests"))
    assert faulty / requests > 0.15


# -- what watches them ---------------------------------------------------------------------------------------


def test_a_plan_is_made_again_by_its_seed_and_number() -> None:
    plans = [planned(7, number, 0.2) for number in range(len(CYCLE))]
    assert plans == [planned(7, number, 0.2) for number in range(len(CYCLE))]
    assert plans != [planned(8, number, 0.2) for number in range(len(CYCLE))]
    assert {plan.scene.name for plan in plans} == {scene.name for scene in SCENES}


@pytest.mark.parametrize(
    "name", ["tmp/cdo-a/.t1-critic.md.77.tmp", "t/tmpx1", "tmp/.cdo-a.0a.tmp/x.md", "core", "tmp/x"]
)
def test_what_is_left_on_disk_has_a_known_name(name: str) -> None:
    assert not KNOWN.fullmatch(name)
    assert KNOWN.fullmatch("tmp/cdo-a/superseded/1/t1-critic.md") and KNOWN.fullmatch("tmp/cdo-a/calls/0001.jsonl")


@pytest.fixture
def over(tmp_path: Path) -> Iterator[tuple[Run, Provider]]:
    """A run that is over, and was as it should be."""
    plan = replace(planned(0, 0, 0.0), deaths=(), caps=(), beside=(), git=False, fork=False, latency=0.0)
    with Provider() as provider:
        run = Run(plan, Place(tmp_path, provider.url), provider, Result(plan))
        run.live()
        run.record_holds(QUIET)
        yield run, provider


QUIET = Ended(0, "", "", killed=False)


def test_a_record_that_loses_something_is_noticed(over: tuple[Run, Provider]) -> None:
    run, provider = over
    again = provider.calls[0]
    provider.requests.append(again)
    with pytest.raises(Broken, match="was asked again"):
        run.record_holds(QUIET)
    provider.requests.pop()
    (stray := run.place.session() / ".t1-critic.md.5.tmp").touch()
    with pytest.raises(Broken, match="left on disk"):
        run.clean()
    stray.unlink()
    (run.place.path / "tmp/.cdo-a.0a0a0a0a.tmp").mkdir()
    with pytest.raises(Broken, match="half-made"):
        run.clean()
    for group in run.place.session().glob("calls/*.jsonl"):
        group.unlink()
    with pytest.raises(Broken, match="the record lost"):
        run.record_holds(QUIET)


@pytest.mark.parametrize(
    "ended",
    [
        Ended(0, "", "Traceback (most recent call last):\n", killed=True),
        Ended(0, "", "Exception ignored in: <x>\n", killed=False),
        Ended(1, "", "cdo: Internal error: ValueError: x.\n     Nothing is lost.\n", killed=False),
        Ended(7, "", "cdo: It failed\n", killed=False),
        Ended(-11, "", "", killed=True),
    ],
)
def test_an_end_that_is_not_as_promised_is_noticed(tmp_path: Path, ended: Ended) -> None:
    plan = planned(0, 0, 0.0)
    with pytest.raises(Broken):
        Run(plan, Place(tmp_path), Provider(), Result(plan)).sound(ended)


def test_a_process_that_lives_on_is_noticed(tmp_path: Path) -> None:
    for env, cwd in (({"HOME": str(tmp_path)}, "/"), ({}, str(tmp_path))):
        command = [sys.executable, "-c", "print(flush=True); input()"]
        with subprocess.Popen(command, cwd=cwd, env=env, stdin=-1, stdout=-1) as process:
            assert process.stdin and process.stdout and process.stdout.readline()
            assert at_home(tmp_path) == [process.pid]
            process.stdin.write(b"\n")
            process.stdin.close()
    assert at_home(tmp_path) == []
