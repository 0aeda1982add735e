"""Encodes spans as OTLP/JSON: export requests, each of which can be a line of an OTLP file too. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cdo import __version__
from cdo.files.atomic_files import encodable
from cdo.tracing.spans import SpanLink, TraceSpan

MOST_BYTES = 2 * 2**20  # of one request, unless a single span has more
MOST_SPANS = 512  # of one request
_FAILED = 2  # STATUS_CODE_ERROR


def batches(spans: Iterable[TraceSpan], redact: Callable[[str], str]) -> Iterator[tuple[int, bytes]]:
    """Yield requests, each as (number of spans, body), without secrets and small enough for a collector."""
    waiting: list[str] = []
    size = 0
    for span in spans:
        text = json.dumps(_span(span, redact))
        if waiting and (size + len(text) > MOST_BYTES or len(waiting) >= MOST_SPANS):
            yield len(waiting), _body(waiting)
            waiting, size = [], 0
        waiting.append(text)
        size += len(text)
    if waiting:
        yield len(waiting), _body(waiting)


def _body(spans: list[str]) -> bytes:
    service = {"service.name": "cdo", "service.version": __version__}
    resource = json.dumps({"attributes": _attributes(service, str)})
    scope = json.dumps({"name": "cdo", "version": __version__})
    scoped = f'{{"scope":{scope},"spans":[{",".join(spans)}]}}'
    return f'{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{scoped}]}}]}}'.encode()


def _span(span: TraceSpan, redact: Callable[[str], str]) -> dict[str, Any]:
    status: dict[str, Any] = {"code": _FAILED} if span.error else {}
    if span.message:
        status["message"] = _text(span.message, redact)
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": _text(span.name, redact),
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes, redact),
        **({"links": [_link(link, redact) for link in span.links]} if span.links else {}),
        **({"status": status} if status else {}),
    }


def _link(link: SpanLink, redact: Callable[[str], str]) -> dict[str, Any]:
    attributes = _attributes(link.attributes, redact)
    return {"traceId": link.trace_id, "spanId": link.span_id, "attributes": attributes}


def _attributes(values: Mapping[str, Any], redact: Callable[[str], str]) -> list[dict[str, Any]]:
    return [{"key": _text(key, redact), "value": _value(value, redact)} for key, value in values.items()]


def _value(value: Any, redact: Callable[[str], str]) -> dict[str, Any]:
    """Return a value as OTLP has it: 64-bit integers are strings."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _attributes(value, redact)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(item, redact) for item in value]}}
    return {"stringValue": _text(str(value), redact)}


def _text(text: str, redact: Callable[[str], str]) -> str:
    return encodable(redact(text))
