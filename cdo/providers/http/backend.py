"""What all HTTP backends have in common: connections, key, and the parameters that a model has refused by name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cdo.core.exchange import BackendError, Fault, OnText, Request, Response
from cdo.core.formatting import json_bytes
from cdo.providers.http.reply import IncomingReply
from cdo.providers.http.transport import HttpTransport

SCHEMA_REFUSED = re.compile(
    r"response_format|output_config\.format|json_schema|structured output|\bschema\b", re.IGNORECASE
)
SCHEMA_NAME = "reply"


@dataclass
class HttpBackend(ABC):
    """Calls one provider in one protocol. `url` is its base address; `key` may be empty.

    `extra` is merged into each request's body. If a model refuses a parameter that not every model takes, the request
    fails, and further requests to that model leave the parameter out: see `left_out`.
    """

    path: ClassVar[str]
    structured: ClassVar[str]  # the part of a body that holds the answer to a schema
    url: str
    key: str = field(default="", repr=False)
    connect_timeout: float = 10.0
    temperature: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = True
    _refused: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.transport = HttpTransport(self.url, self.connect_timeout)

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Send one request and return the complete answer; raises `BackendError`."""
        headers = {**request.headers, **self.own_headers()}
        body = {**self._body(request), **self.extra}
        data = json_bytes(body)
        try:
            return await self.transport.exchange(self.path, data, headers, self._reply(), on_text)
        except BackendError as error:
            self.learn(request.model, error, body, schema=bool(request.schema))
            raise

    def own_headers(self) -> dict[str, str]:
        """Return the protocol's own headers, with the key."""
        return self._headers(self.key.strip())

    def body_at_once(self, request: Request) -> dict[str, Any]:
        """Return the body of a request whose answer comes in one piece."""
        body = {**self._body(request), **self.extra}
        return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}

    def read_at_once(self, body: str) -> Response:
        """Return the answer that came in one piece; raises `BackendError`."""
        reply = self._reply()
        reply.whole(body)
        return reply.response()

    def learn(self, model: str, error: BackendError, body: Mapping[str, Any], *, schema: bool = False) -> None:
        """Leave out of further requests what `model` has refused by name in `body`; `schema`: it was given one."""
        if error.fault is Fault.REJECTED:
            names = self._named(error.message, body)
            if not names and schema:  # the model has answered without one before
                names = {self.structured}
            self.leave_out(model, names)

    def leave_out(self, model: str, names: Iterable[str]) -> None:
        """Leave these parts out of further requests to `model`."""
        self._refused.setdefault(model, set()).update(names)

    async def close(self) -> None:
        await self.transport.close()

    def _schema(self, request: Request) -> Mapping[str, Any] | None:
        """Return the schema to which the answer is held; None if there is none or the model refuses it."""
        return None if self.structured in self.left_out(request.model) else request.schema

    def left_out(self, model: str) -> tuple[str, ...]:
        """Return the parts of a request that `model` refused and that are not sent to it any more.

        A caller whose request was rejected compares this with what it was before the request: if it has grown, the
        same request is sent in another form and is worth another attempt.
        """
        return tuple(sorted(self._refused.get(model, ())))

    def _headers(self, key: str) -> dict[str, str]:
        """Return the protocol's own headers; `key` may be empty."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    @abstractmethod
    def _body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request, without the parts that its model refused."""

    @abstractmethod
    def _reply(self) -> IncomingReply:
        """Return an empty reply of the protocol."""

    @abstractmethod
    def _named(self, message: str, body: Mapping[str, Any]) -> Set[str]:
        """Return the optional parts of `body` that the message of a refusal complains about."""
