"""What a provider has sent of one reply so far, in any protocol. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from cdo.core.exchange import BackendError, Fault, Response, Usage
from cdo.providers.http import faults


class IncomingReply(Struct):
    """One reply as it arrives: a protocol adds the events of its stream with `take`, or a whole body with `whole`.

    `finish` is the provider's own word for why the reply ended, "" until it is known. `done` is true once nothing
    more can follow.
    """

    parts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    finish: str = ""
    usage: Usage | None = None
    done: bool = False

    def take(self, event: str) -> str:
        """Add one event of the stream; return the text in it. Raises `BackendError` for errors and broken JSON."""
        raise NotImplementedError

    def whole(self, body: str) -> str:
        """Add an answer that came in one piece; return its text. Raises `BackendError` as `take` does."""
        raise NotImplementedError

    def response(self) -> Response:
        """Return the complete answer; raise `BackendError` if the provider stated no known reason for its end."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        return joined(self.parts)

    @property
    def begun(self) -> bool:
        """True if the provider has read the prompt and begins to answer it."""
        return True

    @property
    def over(self) -> bool:
        """True if nothing that matters can follow: the finish reason is known, or `done`."""
        return bool(self.finish) or self.done

    @property
    def settled(self) -> bool:
        """True if the provider stated a known reason for the end, so that an error after it changes nothing."""
        raise NotImplementedError

    def error(self, fault: Fault, message: str) -> BackendError:
        """Return an error that carries the text and the usage received so far."""
        return BackendError(fault, joined([message])[:300], usage=self.usage, text=self.text)

    def failed(self, error: Any) -> BackendError:
        """Return the error inside a response of status 200."""
        return self.error(*faults.inside(error))

    def parsed(self, text: str) -> Mapping[str, Any]:
        """Return an event or a body as a JSON object; raise `BackendError` if it is none."""
        try:
            data = _loaded(text)
        except (ValueError, RecursionError):
            raise self.error(Fault.MALFORMED, f"the provider sent text that is not JSON: {text[:80]!r}") from None
        if not isinstance(data, dict):
            raise self.error(Fault.MALFORMED, "the provider sent JSON that is not an object")
        return data


def _loaded(text: str) -> Any:
    """Return the data of a JSON text; raise `ValueError` or `RecursionError`."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # NaN, or half of a character: Python's slower parser takes them
        return json.loads(text)


def joined(parts: Iterable[str]) -> str:
    """Join parts to text that is valid in UTF-8: some providers split one character over two chunks."""
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
