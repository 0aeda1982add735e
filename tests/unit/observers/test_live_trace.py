"""What waits for a collector is bounded, and what goes wrong there is told once."""

from __future__ import annotations

import threading
import time
from typing import cast

import pytest

from cdo.observers.live_trace import MOST_WAITING, SpanSender
from cdo.tracing.collector import Collector
from cdo.tracing.spans import SpanKind, TraceSpan

SPAN = TraceSpan("0" * 32, "0" * 16, "", "chat m", SpanKind.CLIENT, 1, 2, {})


class _Fake:
    """In place of a collector: holds each request until it may go on, then does what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go_on = threading.Event()
        self.error = error
        self.spans = 0

    def send(self, body: bytes, *args: object, **more: object) -> str:
        self.go_on.wait()
        if self.error:
            raise self.error
        self.spans += body.count(b'"spanId"')
        return ""


def test_what_waits_for_a_slow_collector_is_bounded() -> None:
    fake = _Fake()
    sender = SpanSender(cast(Collector, fake), str)
    for _ in range(3 * MOST_WAITING // 100):
        sender.put([SPAN] * 100)  # none waits, since nothing goes on until all were put
    assert len(sender.notes) == 1 and "too slow" in sender.notes[0]
    fake.go_on.set()
    sender.close()
    assert fake.spans == MOST_WAITING


@pytest.mark.parametrize("until", [0.0, float("inf")])
def test_a_defect_there_ends_with_one_sentence(until: float) -> None:
    fake = _Fake(RuntimeError("\x1b[31mno"))
    sender = SpanSender(cast(Collector, fake), str)
    sender.put([SPAN])
    sender.put([SPAN])
    fake.go_on.set()
    sender.close(time.monotonic() + until)
    assert len(sender.notes) == 1 and "\x1b" not in sender.notes[0]
