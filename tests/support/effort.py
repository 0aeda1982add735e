"""What code costs, measured so that neither a slow nor a busy machine changes the verdict.

A limit in seconds says as much of the machine as of the code. Here the unit is what a fixed piece of work takes in
the same process just before and just after; it is chosen such that it is about a second of a present core.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ROUNDS = 40  # of the fixed work; some 20 ms
SCALE = 50

_WORD = re.compile(r"[a-z]+\d*")


def spent() -> float:
    """The seconds of CPU that this process took so far, and its children that have ended."""
    return time.process_time() + sum(os.times()[2:4])


def _fixed_work() -> None:
    text = " ".join(f"word{number} = call(value, {number})" for number in range(500))
    for _ in range(ROUNDS):
        counted: dict[str, int] = {}
        for match in _WORD.finditer(text):
            counted[match[0]] = counted.get(match[0], 0) + 1
        assert len(sorted(counted, key=str.casefold)) == 502


def unit() -> float:
    """What a limit counts in, in seconds of CPU: measured now, since a busy machine is slower."""
    began = spent()
    _fixed_work()
    return (spent() - began) * SCALE


@contextmanager
def at_most(units: float) -> Iterator[None]:
    """Fail if the block takes more CPU than `units` (one is about a second), its children's included."""
    before = unit()
    began = spent()
    yield
    took = spent() - began
    one = max(before, unit())
    assert took <= units * one, f"{took:.2f} s of CPU, {took / one:.2f} units of {units}"


def assert_linear(work: Callable[[int], object], size: int, most: float = 8.0) -> None:
    """Fail if `work(2 * size)` takes more than `most` times the CPU of `work(size // 2)`.

    Linear work quadruples, quadratic work grows to 16 times. Both sizes run in turn, three times each, and up to nine
    times while the growth looks too steep. The smallest figure of each counts: what else the machine does adds to a
    figure and never takes from it. Above 2 s, where noise weighs little, each size runs once. Below 50 ms nothing is
    measured: growth cannot be told from noise there.
    """
    small, large = size // 2, 2 * size
    took: dict[int, float] = {}
    for turn in range(9):
        for count in (small, large):
            began = spent()
            work(count)
            took[count] = min(took.get(count, math.inf), spent() - began)
        grew = took[large] / took[small]
        if (turn >= 2 or took[large] > 2.0) and (took[large] < 0.05 or grew <= most):
            return
    raise AssertionError(
        f"four times the size takes {grew:.2f} times as long ({took[small]:.3f} s, then {took[large]:.3f} s)"
    )
