"""Speaks OpenAI's Batch API: a file of requests, a batch of that file, and files of results."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Set
from typing import Any, BinaryIO
from urllib.parse import quote

from cdo.core.exchange import BackendError, Fault, Response
from cdo.providers.http.batch_client import (
    PAGES,
    SKEW,
    UPLOAD,
    BatchClient,
    ProviderBatch,
    at_whole,
    counted,
    failed_inside,
    not_done,
    unix,
)
from cdo.providers.http.faults import said

KEY = "cdo"  # under which the metadata of a batch hold the marker
_ENDED = ("completed", "failed", "expired", "cancelled")
_NOT_DONE = ("batch_expired", "batch_cancelled", "request_timeout")


class OpenAIBatches(BatchClient):
    """OpenAI's Batch API, for the bodies of Chat Completions or of Responses, as the backend speaks them."""

    most_requests, most_bytes = 50_000, 200 * 10**6

    def line(self, ident: str, body: Mapping[str, Any]) -> bytes:
        """Return one request of a batch, as `BatchClient.line` says."""
        told = {"custom_id": ident, "method": "POST", "url": f"/v1{self.backend.path}", "body": body}
        return json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")

    async def submit(self, marker: str, lines: BinaryIO, size: int, model: str) -> ProviderBatch:
        """Submit the requests, as `BatchClient.submit` says."""
        told = {
            "input_file_id": await self._uploaded(marker, lines, size),
            "endpoint": f"/v1{self.backend.path}",
            "completion_window": "24h",
            "metadata": {KEY: marker},
        }
        return state_of(await self._json("POST", "/batches", told))

    async def _uploaded(self, marker: str, lines: BinaryIO, size: int) -> str:
        """Return the id of a new file with the requests."""
        import aiohttp

        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", lines, filename=f"{marker}.jsonl", content_type="application/jsonl")
        return _ident(await self._json("POST", "/files", form, UPLOAD))

    async def look(self, ident: str) -> ProviderBatch:
        """Return how a batch stands."""
        return state_of(await self._json("GET", f"/batches/{quote(ident, safe='')}"))

    async def found(self, marker: str, since: float, count: int, known: Set[str]) -> ProviderBatch | None:
        """Return the batch with this marker, as `BatchClient.found` says."""
        after = ""
        for _ in range(PAGES):
            page = await self._json("GET", f"/batches?limit=100{after}")
            batches = [batch for batch in page.get("data") or () if isinstance(batch, dict)]
            for batch in batches:
                if self._ours(batch, marker):
                    return state_of(batch)
            if not page.get("has_more") or not batches or unix(batches[-1].get("created_at")) < since - SKEW:
                return None
            after = f"&after={quote(_ident(batches[-1]), safe='')}"
        return None

    def _ours(self, batch: Mapping[str, Any], marker: str) -> bool:
        metadata = batch.get("metadata")
        return isinstance(metadata, dict) and metadata.get(KEY) == marker

    async def results(self, state: ProviderBatch) -> AsyncIterator[bytes]:
        """Yield the lines of the results."""
        for file in state.files:
            async for line in self._lines(self._content(file)):
                yield line

    def _content(self, file: str) -> str:
        return f"/files/{quote(file, safe='')}/content"

    def read(self, result: Mapping[str, Any]) -> Response:
        """Return the answer in one result; raise `BackendError`."""
        error = result.get("error")
        if error and not result.get("response"):
            if isinstance(error, dict) and error.get("code") in _NOT_DONE:
                raise not_done(said(error) or str(error["code"]))
            raise failed_inside(error)
        return at_whole(self.backend, result.get("response"))


def state_of(batch: Mapping[str, Any]) -> ProviderBatch:
    """Return how a batch stands, from the provider's description of it."""
    counts = batch.get("request_counts")
    counts = counts if isinstance(counts, dict) else {}
    status, errors = str(batch.get("status") or "unknown"), batch.get("errors")
    listed = errors.get("data") if isinstance(errors, dict) else None
    files = (batch.get("output_file_id"), batch.get("error_file_id"))
    return ProviderBatch(
        _ident(batch),
        status[:40],
        status in _ENDED,
        counted(counts.get("completed")) + counted(counts.get("failed")),
        counted(counts.get("total")),
        said(listed)[:300] if listed else said(batch.get("error"))[:300],
        tuple(str(file) for file in files if file),
    )


def _ident(data: Mapping[str, Any]) -> str:
    ident = data.get("id")
    if not isinstance(ident, str) or not 0 < len(ident) <= 200:
        raise BackendError(Fault.MALFORMED, "the provider names no id")
    return ident
