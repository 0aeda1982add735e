"""Speaks Anthropic's Message Batches: requests of any of its models in one body, and one stream of results."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Set
from typing import Any, BinaryIO
from urllib.parse import quote

from cdo.core.exchange import BackendError, Fault, Response
from cdo.providers.http.batch_client import BatchClient, ProviderBatch, counted, failed_inside, not_done

_PATH = "/v1/messages/batches"


class MessageBatches(BatchClient):
    """Anthropic's Message Batches.

    They hold no data of ours but the custom ids of the requests, which can only be read once a batch has ended.
    """

    most_requests, most_bytes = 100_000, 250 * 10**6
    one_model = False

    def line(self, ident: str, body: Mapping[str, Any]) -> bytes:
        """Return one request of a batch, as `BatchClient.line` says."""
        return json.dumps({"custom_id": ident, "params": body}, ensure_ascii=False).encode("utf-8", "replace")

    async def submit(self, marker: str, lines: BinaryIO, size: int, model: str) -> ProviderBatch:
        """Submit the requests, as `BatchClient.submit` says."""
        return _state(await self._inline(_PATH, '{"requests": [', lines, size))

    async def look(self, ident: str) -> ProviderBatch:
        """Return how a batch stands."""
        return _state(await self._json("GET", f"{_PATH}/{quote(ident, safe='')}"))

    async def found(self, marker: str, since: float, count: int, known: Set[str]) -> ProviderBatch | None:
        """Return the batch with this marker, as `BatchClient.found` says."""
        return await self.lost(marker, since, count, known, _PATH, "after_id")

    def state(self, batch: Mapping[str, Any]) -> ProviderBatch:
        """Return how a batch stands, from the provider's description of it."""
        return _state(batch)

    async def results(self, state: ProviderBatch) -> AsyncIterator[bytes]:
        """Yield the lines of the results."""
        async for line in self._lines(f"{_PATH}/{quote(state.id, safe='')}/results"):
            yield line

    def read(self, result: Mapping[str, Any]) -> Response:
        """Return the answer in one result; raise `BackendError`."""
        told = result.get("result")
        inner: Mapping[str, Any] = told if isinstance(told, dict) else {}
        match inner.get("type"):
            case "succeeded":
                return self.backend.read_at_once(json.dumps(inner.get("message"), ensure_ascii=False))
            case "errored":
                error = inner.get("error")
                raise failed_inside(error.get("error") or error if isinstance(error, dict) else error)
            case "canceled" | "expired" as kind:
                raise not_done(kind)
        raise BackendError(Fault.MALFORMED, "the result has no answer")


def _state(batch: Mapping[str, Any]) -> ProviderBatch:
    """Return how a batch stands, from the provider's description of it."""
    ident, counts = batch.get("id"), batch.get("request_counts")
    if not isinstance(ident, str) or not 0 < len(ident) <= 200:
        raise BackendError(Fault.MALFORMED, "the provider names no id")
    known = {key: counted(value) for key, value in counts.items()} if isinstance(counts, dict) else {}
    status = str(batch.get("processing_status") or "unknown")
    count = sum(known.values())
    return ProviderBatch(ident, status[:40], status == "ended", count - known.get("processing", 0), count)
