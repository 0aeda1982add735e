"""Traces in a real OpenTelemetry collector, where it is installed (`tests/support/collector/install.sh`)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import A, Desk
from tests.support.faults import Fault
from tests.support.harness import needs, wait_for
from tests.support.provider import Provider
from tests.support.traces import attributes, spans_of

COLLECTOR = Path(os.environ.get("CDO_TEST_COLLECTOR") or "~/.cache/cdo-tests/bin/otelcol").expanduser()
pytestmark = [
    pytest.mark.slow,
    needs("otelcol", os.access(COLLECTOR, os.X_OK), "there is no collector: tests/support/collector/install.sh"),
]
CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service: {{pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}, telemetry: {{metrics: {{level: none}}}}}}
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a collector that prints what it receives, and the file that it prints to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "collector.log"
    with log.open("w") as out:
        command = [str(COLLECTOR), "--config", f"yaml:{CONFIG.format(port=port)}"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            wait_for(lambda: process.poll() is not None or "Everything is ready" in log.read_text(), every=0.05)
            assert process.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}", log
        finally:
            process.kill()
            process.wait()


def test_a_real_collector_takes_what_a_run_and_cdo_trace_send(
    cdo: Desk, provider: Provider, collector: tuple[str, Path]
) -> None:
    url, log = collector
    provider.faults = [Fault(status=429, headers={"Retry-After": "0"}, call="t1-critic", nth=1)]
    live = cdo("think", "--turns", "1", *A, "--otlp", url, "Should we split the service?").ok()
    assert "trace:" not in live.err
    spans = {span.span_id.hex(): span for span in spans_of(cdo("trace", "a").ok().out)}
    found = _received(log, len(spans))
    assert set(found) == set(spans)
    for identity, text in found.items():
        span = spans[identity]
        assert f"Name           : {span.name}\n" in text and f"Trace ID       : {span.trace_id.hex()}\n" in text
        assert ("Status code    : Error" in text) == bool(span.status.code)
        for key, value in attributes(span).items():
            if isinstance(value, str):
                assert f"-> {key}: Str({value})" in text
    assert sum("error.type: Str(rate-limited)" in text for text in found.values()) == 1

    log.write_text("")
    done = cdo("trace", "a", "--content", "--otlp", url).ok()
    assert done.err == "" and f"{len(spans)} spans sent" in done.out
    again = _received(log, len(spans))
    assert set(again) == set(spans) and "gen_ai.input.messages: Slice(" in "".join(again.values())


def _received(log: Path, count: int) -> dict[str, str]:
    """What the collector printed of each span, by id, once these many have arrived."""
    until = time.monotonic() + 30
    while True:
        parts = re.split(r"(?m)^Span #\d+\n", log.read_text())[1:]
        found = {
            identity[1]: part for part in parts if (identity := re.search(r"\n    ID +: ([0-9a-f]{16})\n", part))
        }
        if len(found) >= count or time.monotonic() > until:
            return found
        time.sleep(0.1)
