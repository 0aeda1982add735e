"""Answers that are held to a schema, in each protocol: how it is asked for, and what becomes of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anthropic.types import JSONOutputFormatParam
from openai.types.responses import ResponseTextConfigParam
from openai.types.shared_params import ResponseFormatJSONSchema
from pydantic import TypeAdapter

from cdo.core.exchange import Backend, BackendError, Effort, Fault
from cdo.formats.reply_schema import reply_schema
from cdo.formats.voice import AgentFormat
from tests.support.backends import PROTOCOLS, answered, ask, attempt, request, using
from tests.support.provider import Fault as Trouble
from tests.support.provider import Provider

SCHEMA = reply_schema(AgentFormat())
ASKED = request(model="m", schema=SCHEMA, effort=Effort.LOW)
# Where each protocol has the schema, and the vendor's type of that place.
PLACES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "chat": (lambda body: body.get("response_format"), ResponseFormatJSONSchema),
    "responses": (lambda body: body.get("text"), ResponseTextConfigParam),
    "messages": (lambda body: body.get("output_config", {}).get("format"), JSONOutputFormatParam),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with Provider() as p:
        yield p


@pytest.fixture
def p(server: Provider) -> Provider:
    server.script, server.faults = None, ()
    server.reset()
    return server


def places(p: Provider, protocol: str) -> list[Any]:
    """What each request held of a schema."""
    return [PLACES[protocol][0](seen.body) for seen in p.requests]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_protocol_asks_for_the_schema_as_its_vendor_defines_it(p: Provider, protocol: str) -> None:
    answered(ask(p, ASKED, protocol=protocol))
    answered(ask(p, request(effort=Effort.LOW), protocol=protocol))
    asked, plain = places(p, protocol)
    TypeAdapter(PLACES[protocol][1]).validate_python(asked)
    assert str(SCHEMA) in str(asked) and plain is None
    assert "'strict': True" in str(asked) or protocol == "messages", "which knows no other way"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "words",
    [
        "Invalid schema for response_format 'reply'",
        "output_config.format: Extra inputs are not permitted",
        "This model does not support structured outputs.",
        "No endpoint is available for this request.",
    ],
)
def test_a_schema_that_is_refused_is_left_out_and_nothing_else(p: Provider, protocol: str, words: str) -> None:
    refused = Trouble(status=400, body={"error": {"message": words, "type": "invalid_request_error"}})
    p.script = lambda info: refused if PLACES[protocol][0](info.body) else None

    async def thrice(backend: Backend) -> list[Any]:
        return [await attempt(backend, ASKED) for _ in range(2)]

    first, second = using(PROTOCOLS[protocol](p.url + "/v1"), thrice)
    assert isinstance(first, BackendError) and first.fault is Fault.REJECTED
    answered(second)
    assert [place is None for place in places(p, protocol)] == [False, True]
    assert "low" in str(p.requests[1].body), "the effort stays"
