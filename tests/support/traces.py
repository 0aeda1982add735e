"""Traces as a collector reads them: parsed with the definitions of the protocol; and a collector on loopback."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_IDS = ("traceId", "spanId", "parentSpanId")
CLIENT, INTERNAL = Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL


def spans_of(text: str | bytes) -> list[Span]:
    """The spans of an export request in JSON; raises an error for what the protocol does not have."""
    request = ParseDict(_ids(json.loads(text)), ExportTraceServiceRequest())
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def _ids(value: Any) -> Any:
    """The same with ids in Base64: OTLP writes them in hexadecimal digits, unlike other messages in JSON."""
    if isinstance(value, list):
        return [_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = {key: b64encode(bytes.fromhex(value[key])).decode() for key in _IDS if key in value}
    return {key: _ids(item) for key, item in value.items()} | ids


def attributes(span: Span) -> dict[str, Any]:
    """The attributes of a span as plain values."""
    assert len({item.key for item in span.attributes}) == len(span.attributes)
    return {item.key: plain(item.value) for item in span.attributes}


def plain(value: Any) -> Any:
    """A value of an attribute as Python has it."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: plain(item.value) for item in value.kvlist_value.values}
    return getattr(value, kind)


def children(spans: Iterable[Span], parent: Span) -> list[Span]:
    """The spans directly below a span."""
    return [span for span in spans if span.parent_span_id == parent.span_id]


def whole(spans: list[Span]) -> Span:
    """The root of a trace, in which every other span has its parent and lies within the time of the root."""
    (root,) = [span for span in spans if not span.parent_span_id]
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    for span in spans:
        assert span.trace_id == root.trace_id and len(span.trace_id) == 16 and len(span.span_id) == 8
        assert span is root or span.parent_span_id in ids
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    return root


@dataclass
class LoopbackCollector:
    """A collector that keeps what it gets. `answer` makes (status, headers, body) of the number of the request."""

    answer: Callable[[int], tuple[int, dict[str, str], str]] = lambda number: (200, {}, "{}")
    hang: float = 0.0
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    url: str = ""
    most_at_once: int = 0  # requests
    _under_way: int = 0

    @property
    def spans(self) -> dict[bytes, Span]:
        """The newest of each span that was sent, by its id."""
        return {span.span_id: span for body in self.bodies for span in spans_of(body)}

    @contextmanager
    def running(self) -> Iterator[LoopbackCollector]:
        """Serve until the end of the block."""
        collector, stop, lock = self, threading.Event(), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                with lock:
                    collector._under_way += 1
                    collector.most_at_once = max(collector.most_at_once, collector._under_way)
                try:
                    self._answer()
                finally:
                    with lock:
                        collector._under_way -= 1

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.times.append(time.monotonic())
                collector.headers.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
                collector.bodies.append(body)
                stop.wait(collector.hang)
                status, headers, text = collector.answer(len(collector.bodies))
                with suppress(ConnectionError):  # a client that did not wait
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(text))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            stop.set()
            server.shutdown()
            server.server_close()
            thread.join()


def partial(count: int, message: str) -> str:
    """The answer of a collector that left out some spans."""
    return json.dumps({"partialSuccess": {"rejectedSpans": str(count), "errorMessage": message}})
