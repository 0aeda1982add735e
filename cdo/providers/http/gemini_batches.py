"""Speaks Gemini's batches (`batchGenerateContent`): requests to one model in one body, results in its description.

Read in the vendor's documentation and in its own client of November 2026, and tried with that client against a server
on loopback, never at the vendor.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Set
from typing import Any, BinaryIO
from urllib.parse import quote

from cdo.core.exchange import BackendError, Fault, Response
from cdo.providers.http.backend import HttpBackend
from cdo.providers.http.batch_client import (
    DOWNLOAD,
    MOST,
    PAGES,
    BatchClient,
    ProviderBatch,
    StillUnclear,
    counted,
    failed_inside,
    not_done,
)
from cdo.providers.http.faults import said
from cdo.providers.http.generate_content import content_answer, content_request

_NAME = re.compile(r"batches/[A-Za-z0-9_-]{1,150}")
_STATE = re.compile(r"(?:BATCH|JOB)_STATE_")  # the reference writes the one, the guide the other
_ENDED = ("succeeded", "failed", "cancelled", "expired", "partially_succeeded")
# The codes of gRPC in the errors of single requests, as statuses of HTTP. Those that are not here are 500.
_STATUS = {3: 400, 5: 404, 7: 403, 8: 429, 9: 400, 11: 400, 12: 400, 16: 401}
_CANCELLED, _DEADLINE, _ABORTED = 1, 4, 10
_THINKING = re.compile(r"thinking[_ ]?(config|level|budget)?", re.IGNORECASE)


class GeminiBatches(BatchClient):
    """Gemini's batches, named by their display name, which the list of batches shows.

    It takes 20 MB of requests in one body. Their results come in one body too, which has to fit into the memory.
    """

    most_requests, most_bytes = 500, 19 * 10**6

    def __init__(self, backend: HttpBackend) -> None:
        super().__init__(backend)
        self._base = backend.url.rstrip("/").removesuffix("/openai")

    def headers(self) -> dict[str, str]:
        """Return the headers with the key: here, a bearer would be an account's token and no key."""
        key = self.backend.key.strip()
        return {"x-goog-api-key": key} if key else {}

    def line(self, ident: str, body: Mapping[str, Any]) -> bytes:
        """Return one request of a batch, as `BatchClient.line` says; `body` is one of Chat Completions."""
        told = {"request": content_request(body), "metadata": {"key": ident}}
        return json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")

    async def submit(self, marker: str, lines: BinaryIO, size: int, model: str) -> ProviderBatch:
        """Submit the requests, as `BatchClient.submit` says."""
        path = f"{self._base}/models/{quote(model.removeprefix('models/'), safe='')}:batchGenerateContent"
        head = f'{{"batch": {{"displayName": {json.dumps(marker)}, "inputConfig": {{"requests": {{"requests": ['
        return self.state(await self._inline(path, head, lines, size, "]}}}}"))

    async def look(self, ident: str) -> ProviderBatch:
        """Return how a batch stands."""
        return self.state(await self._whole(ident))

    async def found(self, marker: str, since: float, count: int, known: Set[str]) -> ProviderBatch | None:
        """Return the batch with this marker, as `BatchClient.found` says. The order of the list is not documented."""
        after = ""
        for _ in range(PAGES):
            page = await self._json("GET", f"{self._base}/batches?pageSize=100{after}", most=MOST)
            listed = page.get("operations")
            for batch in map(_object, listed if isinstance(listed, list) else ()):
                if _object(batch.get("metadata")).get("displayName") == marker:
                    return self.state(batch)
            if not (token := page.get("nextPageToken")):
                return None
            after = f"&pageToken={quote(str(token), safe='')}"
        raise StillUnclear("the list of batches there has no end")

    async def results(self, state: ProviderBatch) -> AsyncIterator[bytes]:
        """Yield the results as lines, with the id that each request was given."""
        whole = await self._whole(state.id)
        for output in (whole.get("response"), _object(whole.get("metadata")).get("output")):
            listed = _object(_object(output).get("inlinedResponses")).get("inlinedResponses")
            if isinstance(listed, list):
                for result in map(_object, listed):
                    yield json.dumps({**result, "custom_id": _object(result.get("metadata")).get("key")}).encode()
                return

    def read(self, result: Mapping[str, Any]) -> Response:
        """Return the answer in one result; raise `BackendError`."""
        if error := result.get("error"):
            raise _failed(error)
        if not isinstance(response := result.get("response"), dict):
            raise BackendError(Fault.MALFORMED, "the result has no answer")
        return content_answer(response)

    def state(self, batch: Mapping[str, Any]) -> ProviderBatch:
        """Return how a batch stands, from the operation that describes it."""
        ident, told = batch.get("name"), _object(batch.get("metadata"))
        if not isinstance(ident, str) or not _NAME.fullmatch(ident):
            raise BackendError(Fault.MALFORMED, "the provider names no batch")
        status = _STATE.sub("", str(told.get("state") or "unknown")).lower()
        counts = {key: _number(value) for key, value in _object(told.get("batchStats")).items()}
        done = counts.get("successfulRequestCount", 0) + counts.get("failedRequestCount", 0)
        why = said(batch.get("error"))[:300] if status == "failed" else ""
        return ProviderBatch(ident, status[:40], status in _ENDED, done, counts.get("requestCount", 0), why)

    async def _whole(self, ident: str) -> Mapping[str, Any]:
        return await self._json("GET", f"{self._base}/{ident}", patience=DOWNLOAD, most=MOST)


def _failed(error: Any) -> BackendError:
    """Return the error of one request, whose code is one of gRPC."""
    code = _object(error).get("code")
    if code in (_CANCELLED, _DEADLINE, _ABORTED):
        return not_done(said(error) or "cancelled")
    if isinstance(code, int) and 0 < code < 100:
        error = {**error, "code": _STATUS.get(code, 500)}
    found = failed_inside(error)
    if found.fault is Fault.REJECTED and _THINKING.search(found.message):
        found.message += " (reasoning_effort)"  # the name of that parameter in the body that it was made of
    return found


def _number(value: Any) -> int:
    """Return a count, which is a text there, since JSON's numbers do not hold 64 bits."""
    return counted(int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value, re.ASCII) else value)


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}
