"""Running a program by hand: a test answers what it asks for, without a runner, a session or a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdo.core.steps import Batch, Call, Pause, Program, Reply, Step
from cdo.programs.deliberation.conclusion import Outcome


def driven(
    program: Program[Outcome], reply: Callable[[Call], Reply], other: Callable[[Step], Any]
) -> tuple[Outcome, list[Step]]:
    """Run a program to its end: `reply` answers each call, `other` each step that is no batch of calls."""
    steps: list[Step] = []
    answer: Any = None
    while True:
        try:
            step = program.send(answer)
        except StopIteration as stop:
            return stop.value, steps
        steps.append(step)
        answer = tuple(map(reply, step.calls)) if isinstance(step, Batch) else other(step)


@dataclass
class Run:
    """How a program ended, and what it asked for until then: voices and a synthesis each turn, then the final."""

    outcome: Outcome
    steps: list[Step]

    @property
    def batches(self) -> list[Batch]:
        return [step for step in self.steps if isinstance(step, Batch)]

    @property
    def pauses(self) -> list[Pause]:
        return [step for step in self.steps if isinstance(step, Pause)]

    def turn(self, number: int) -> tuple[Call, ...]:
        """The voices' calls of a turn."""
        return self.batches[2 * (number - 1)].calls

    def synthesis(self, number: int) -> Call:
        (call,) = self.batches[2 * number - 1].calls
        return call

    @property
    def final(self) -> Call:
        (call,) = self.batches[-1].calls
        return call

    @property
    def calls(self) -> dict[str, Call]:
        """Every call of the run, by its name."""
        return {call.name: call for batch in self.batches for call in batch.calls}
