"""What the batch endpoints of providers have in common: requests that are answered later, at a lower price.

A client puts requests into the form of a provider's batch, submits them, asks how they stand and reads the results.
It uses the body builder and the reply parser of the backend that sends such requests one at a time.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Set
from datetime import datetime
from typing import Any, BinaryIO, ClassVar
from urllib.parse import quote

from msgspec import Struct

from cdo.core.exchange import BackendError, Fault, Request, Response
from cdo.providers.http.backend import HttpBackend
from cdo.providers.http.faults import classify, inside, said
from cdo.providers.http.reply import joined
from cdo.providers.http.transport import MAX_BODY

MAX_LINE = 64 * 2**20  # bytes of one result; more than any answer
MOST = 256 * 2**20  # bytes of a batch that comes with its results in one body
_PIECE = 2**18
UPLOAD, DOWNLOAD = 1800.0, 3600.0  # seconds for the requests and for the results of a whole batch
PAGES = 100  # pages of a list of batches that are looked through
SKEW = 600.0  # seconds that the clocks of a provider and of this machine may differ
LATE = 3600.0  # seconds after which a submission that was begun cannot arrive any more


class StillUnclear(Exception):
    """It cannot be told yet whether a batch was submitted. The message says why, for people."""


class ProviderBatch(Struct, frozen=True):
    """How a batch stands: the provider's own word for it, and how many of its requests are done.

    `ended` is true once nothing changes any more. `why` is what the provider says of a batch that failed as a whole.
    `files` name where its results are, for providers that keep them in files.
    """

    id: str
    status: str
    ended: bool
    done: int = 0
    count: int = 0
    why: str = ""
    files: tuple[str, ...] = ()


class BatchClient(ABC):
    """The batch endpoint of one provider. All of its methods that ask the provider raise `BackendError`."""

    most_requests: ClassVar[int]
    most_bytes: ClassVar[int]
    one_model: ClassVar[bool] = True  # all requests of a batch go to one model

    def __init__(self, backend: HttpBackend) -> None:
        self.backend = backend

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request, as `line` takes it and as it is recorded."""
        return self.backend.body_at_once(request)

    def headers(self) -> dict[str, str]:
        """Return the headers of each request, with the key."""
        return self.backend.own_headers()

    @abstractmethod
    def line(self, ident: str, body: Mapping[str, Any]) -> bytes:
        """Return one request of a batch, as one line of JSON without its end."""

    @abstractmethod
    async def submit(self, marker: str, lines: BinaryIO, size: int, model: str) -> ProviderBatch:
        """Submit the requests in `lines`, which has `size` bytes; `marker` names the batch as ours."""

    @abstractmethod
    async def look(self, ident: str) -> ProviderBatch:
        """Return how a batch stands."""

    @abstractmethod
    async def found(self, marker: str, since: float, count: int, known: Set[str]) -> ProviderBatch | None:
        """Return the batch with this marker that was submitted about `since` (Unix time); None if there is none.

        `count` is the number of its requests, `known` are the ids of other batches of ours. Raises `StillUnclear`.
        """

    @abstractmethod
    def results(self, state: ProviderBatch) -> AsyncIterator[bytes]:
        """Yield the lines of the results of a batch that has ended, in any order."""

    @abstractmethod
    def read(self, result: Mapping[str, Any]) -> Response:
        """Return the answer in one result; raise `BackendError` for a request that failed."""

    def state(self, batch: Mapping[str, Any]) -> ProviderBatch:
        """Return how a batch stands, from the provider's description of it."""
        raise NotImplementedError

    async def lost(
        self, marker: str, since: float, count: int, known: Set[str], path: str, cursor: str
    ) -> ProviderBatch | None:
        """Do what `found` says where only the ids of requests tell a batch, which can be read when it has ended."""
        after, unclear = "", ""
        for _ in range(PAGES):
            page = await self._json("GET", f"{path}?limit=100{after}")
            batches = [batch for batch in page.get("data") or () if isinstance(batch, dict)]
            for batch in batches:
                state, at = self.state(batch), unix(batch.get("created_at"))
                if state.id in known or state.count != count or not since - SKEW < at < since + LATE:
                    continue
                if not state.ended:
                    unclear = state.id
                elif not batch.get("archived_at") and await self._holds(state, marker):
                    return state
            if not page.get("has_more") or not batches or unix(batches[-1].get("created_at")) < since - SKEW:
                break
            after = f"&{cursor}={quote(self.state(batches[-1]).id, safe='')}"
        if unclear:
            raise StillUnclear(f"the batch {unclear} may be it, which can be told once that has ended")
        return None

    async def _holds(self, state: ProviderBatch, marker: str) -> bool:
        """Return whether the requests of a batch that has ended have ids that begin with our marker."""
        async for line in self.results(state):
            return first_id(line).startswith(f"{marker}-")
        return False

    async def _inline(self, path: str, head: str, lines: BinaryIO, size: int, tail: str = "]}") -> Mapping[str, Any]:
        """Post requests in one body that begins with `head`; `tail` ends their list and the body."""
        start, end = head.encode(), tail.encode()
        length = len(start) + size - 1 + len(end)  # the last line break is left out
        headers = {"Content-Type": "application/json", "Content-Length": str(length)}
        return await self._json("POST", path, _body(start, lines, end), UPLOAD, headers=headers)

    async def _json(
        self,
        method: str,
        path: str,
        data: Any = None,
        patience: float = 60.0,
        *,
        most: int = MAX_BODY,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Send one request; a mapping is sent as JSON. The answer may have `most` bytes."""
        told = {**self.headers(), **(headers or {})}
        if isinstance(data, Mapping):
            data, told["Content-Type"] = json.dumps(data).encode(), "application/json"
        return await self.backend.transport.json(method, path, told, data, patience, most)

    async def _lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of an answer as they come; raise `BackendError` if one is too long."""
        rest = b""
        pieces = self.backend.transport.pieces("GET", path, self.headers(), None, DOWNLOAD)
        async with contextlib.aclosing(pieces):  # type: ignore[type-var]
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n") if b"\n" in piece else [rest + piece]
                for line in filter(bytes.strip, lines):
                    yield line
                if len(rest) > MAX_LINE:
                    raise BackendError(Fault.MALFORMED, f"a result is larger than {MAX_LINE:,} bytes")
        if rest.strip():
            yield rest


async def _body(start: bytes, lines: BinaryIO, end: bytes) -> AsyncIterator[bytes]:
    """Yield a body with the requests of a file, whose last line ends with a line break too."""
    yield start
    left = b""
    while piece := lines.read(_PIECE):
        whole = left + piece.replace(b"\n", b",")
        left = whole[-1:]
        yield whole[:-1]
    yield end


def at_whole(backend: HttpBackend, response: Any) -> Response:
    """Return the answer in a result that states the status and the body of an HTTP response."""
    status, body = (response.get("status_code"), response.get("body")) if isinstance(response, dict) else (None, None)
    if not isinstance(body, dict):
        raise BackendError(Fault.MALFORMED, "the result has no answer")
    text = json.dumps(body, ensure_ascii=False)
    if status in (None, 200):
        return backend.read_at_once(text)
    number = status if isinstance(status, int) and 400 <= status <= 599 else 500
    shown = joined([" ".join((said(body) or text).split())])[:300]
    raise BackendError(classify(number, text), f"HTTP {number}: {shown}")


def not_done(why: str) -> BackendError:
    """Return the error for a request that its batch never came to: it may be asked again, and was not charged."""
    return BackendError(Fault.OVERLOADED, f"the batch ended without this request: {joined([why])[:200]}")


def failed_inside(error: Any) -> BackendError:
    """Return the error that a result states, with a status in its message as a refused request has it."""
    fault, message = inside(error)
    status = "HTTP 400: " if fault is Fault.REJECTED else ""
    return BackendError(fault, joined([f"{status}{message}"])[:300])


def unix(text: Any) -> float:
    """Return the Unix time that a date or a number states; 0 if it states none."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def counted(value: Any) -> int:
    """Return a count of a provider; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else 0


def first_id(line: bytes) -> str:
    """Return the custom id in a line of results; "" if there is none."""
    with contextlib.suppress(ValueError, RecursionError):
        data = json.loads(line)
        if isinstance(data, dict):
            return str(data.get("custom_id") or "")
    return ""
