"""Decides which commands of definitions of done have to run, and applies their results. Pure.

A command runs once on each state of the files. If it comes to another result than an inspection was based on, that
inspection is stale, and so is the acceptance that rests on it.
"""

from __future__ import annotations

from msgspec.structs import replace

from cdo.cabal.model.entities import CommandRun, MissionStep
from cdo.cabal.model.events import recorded
from cdo.cabal.model.product_files import commands, files_digest, staged, staged_digest
from cdo.cabal.model.state import MissionState
from cdo.cabal.rules.acceptance import current
from cdo.cabal.rules.versions import staled
from cdo.core.formatting import one_line
from cdo.core.steps import CheckRun

OUTPUT = 4000  # characters of a run's output that are kept: the last ones


def due(state: MissionState) -> tuple[str, ...]:
    """Return the commands that have to run now: those without a run on the present files."""
    if not state.exec or not (wanted := commands(state)):
        return ()
    files = staged(state)
    now = files_digest(files)
    return tuple(item for item in wanted if item not in state.runs or state.runs[item].files != now) if files else ()


def ran(state: MissionState, found: CheckRun) -> MissionState:
    """Return the state with the run of a command on the present files, and inspections stale that it contradicts."""
    text = "\n".join(part.strip("\n") for part in (found.out, found.err) if part.strip())
    output = text if len(text) <= OUTPUT else f"[…]\n{text[-OUTPUT:]}"
    code = None if found.refused else found.code
    run = CommandRun(found.command, staged_digest(state), code, found.outcome, output, state.round)
    word = "passed" if run.passed else "failed"
    said = f"`{one_line(run.command, 120)}` {word} on the files of all products: {run.outcome}"
    after = recorded(
        replace(state, runs={**state.runs, run.command: run}), MissionStep.INSPECT, "command", "code", said
    )
    for item in after.live():
        ids = {each.id for each in item.dod if (each.check.kind, each.check.value) == ("command", run.command)}
        inspection = current(after, item.id) if ids else None
        if inspection and any(each.criterion in ids and each.passed != run.passed for each in inspection.results):
            why = f"`{one_line(run.command, 120)}` {'passes now' if run.passed else 'no longer passes'}"
            after = staled(after, MissionStep.INSPECT, "code", item.id, why, delivered=True)
    return after
