"""Time that passes only when everybody waits: hours of back-off in milliseconds, and the same in every run."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
START = 1000.0


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: where the loop would sleep, its clock is put forward."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everybody waits for somebody else: a deadlock")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is `now`."""

    def __init__(self) -> None:
        self.now = START
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run `main` in virtual time; `time.monotonic` is the loop's clock meanwhile. Fails on a deadlock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, monkeypatch.context() as patch:
        loop = runner.get_loop()
        patch.setattr(time, "monotonic", loop.time)
        return runner.run(main)
