"""Speaks OpenRouter's batches: requests to one model in one body, and results inside the description of the batch."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Set
from typing import Any, BinaryIO
from urllib.parse import quote

from cdo.providers.http.batch_client import DOWNLOAD, MOST, ProviderBatch
from cdo.providers.http.openai_batches import OpenAIBatches, state_of


class OpenRouterBatches(OpenAIBatches):
    """OpenRouter's batches, which hold no data of ours but the ids of the requests.

    It would take 5,000 requests; but results come in one body, which has to fit into the memory.
    """

    most_requests, most_bytes = 1000, 64 * 10**6

    def line(self, ident: str, body: Mapping[str, Any]) -> bytes:
        """Return one request of a batch, as `BatchClient.line` says."""
        return json.dumps({"custom_id": ident, "body": body}, ensure_ascii=False).encode("utf-8", "replace")

    async def submit(self, marker: str, lines: BinaryIO, size: int, model: str) -> ProviderBatch:
        """Submit the requests, as `BatchClient.submit` says."""
        told = {"endpoint": f"/v1{self.backend.path}", "model": model}  # it must know both before the requests
        return state_of(await self._inline("/batches", f'{json.dumps(told)[:-1]}, "requests": [', lines, size))

    async def look(self, ident: str) -> ProviderBatch:
        """Return how a batch stands."""
        return state_of(await self._whole(ident))

    async def found(self, marker: str, since: float, count: int, known: Set[str]) -> ProviderBatch | None:
        """Return the batch with this marker, as `BatchClient.found` says."""
        return await self.lost(marker, since, count, known, "/batches", "after")

    def state(self, batch: Mapping[str, Any]) -> ProviderBatch:
        """Return how a batch stands, from the provider's description of it."""
        return state_of(batch)

    async def results(self, state: ProviderBatch) -> AsyncIterator[bytes]:
        """Yield the lines of the results."""
        results = (await self._whole(state.id)).get("results")
        for result in results if isinstance(results, list) else ():
            yield json.dumps(result).encode()

    async def _whole(self, ident: str) -> Mapping[str, Any]:
        return await self._json("GET", f"/batches/{quote(ident, safe='')}", patience=DOWNLOAD, most=MOST)
