"""Gemini's batches as the loopback provider writes and reads them: `batchGenerateContent` and operations.

The shapes are those of the vendor's reference; tests/runs/test_batch_api.py reads them with the vendor's own client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.answers import RequestInfo
    from tests.support.batches import HeldBatch

PATH = "/v1beta/models"  # of a batch of these
_MAKE = re.compile(r"/v1beta/models/([^/:]+):batchGenerateContent")
_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch"
_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATES = {"": "RUNNING", "completed": "SUCCEEDED"}


def is_theirs(info: RequestInfo) -> bool:
    """Whether a request is one of these endpoints'. It has to bring its key as they want it."""
    theirs = bool(_MAKE.fullmatch(info.path)) or info.path.startswith("/v1beta/batches")
    if theirs:
        assert info.headers.get("x-goog-api-key") and "Authorization" not in info.headers
    return theirs


def made(info: RequestInfo) -> tuple[str, str, dict[str, dict[str, Any]]]:
    """The model, the display name and the requests by their keys, of a request that makes a batch."""
    found = _MAKE.fullmatch(info.path)
    assert found and info.method == "POST"
    batch = info.body["batch"]
    assert set(batch) == {"displayName", "inputConfig"} and set(batch["inputConfig"]) == {"requests"}
    listed = batch["inputConfig"]["requests"]["requests"]
    requests = {item["metadata"]["key"]: item["request"] for item in listed}
    assert len(requests) == len(listed)
    return found[1], batch["displayName"], requests


def as_chat(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request as one of Chat Completions, so that the provider's script answers it as any other."""
    assert set(request) <= {"contents", "systemInstruction", "generationConfig", "model"}
    messages = [
        {"role": "system", "content": part["text"]} for part in request.get("systemInstruction", {}).get("parts", ())
    ]
    for content in request["contents"]:
        role = {"user": "user", "model": "assistant"}[content["role"]]
        assert all(part["text"].strip() for part in content["parts"])
        messages.append({"role": role, "content": "".join(part["text"] for part in content["parts"])})
    return {"model": "gemini", "messages": messages}


def answered(chat: Mapping[str, Any]) -> dict[str, Any]:
    """An answer of Chat Completions as a `GenerateContentResponse` that was thought over."""
    choice, usage = chat["choices"][0], chat["usage"]
    parts = [{"text": "Let me see.", "thought": True}, {"text": choice["message"]["content"]}]
    thoughts = min(1, usage["completion_tokens"] - 1)
    content, finish = {"role": "model", "parts": parts}, _FINISH[choice["finish_reason"]]
    return {
        "candidates": [{"content": content, "finishReason": finish, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": usage["prompt_tokens"],
            "candidatesTokenCount": usage["completion_tokens"] - thoughts,
            "thoughtsTokenCount": thoughts,
            "totalTokenCount": usage["prompt_tokens"] + usage["completion_tokens"],
        },
        "modelVersion": "gemini",
    }  # fmt: skip


def left(why: str) -> dict[str, Any]:
    """The error of a request that its batch did not come to."""
    return {"code": 1, "message": f"The batch was {why}."}


def described(batch: HeldBatch, *, whole: bool, extra: Sequence[Any] = ()) -> dict[str, Any]:
    """A batch as an operation. A list shows it without its results; one that expired has none.

    `extra` stands among the results, which come in another order than their requests.
    """
    failed = sum("error" in item for item in batch.results)
    stats = {
        "requestCount": len(batch.requests), "successfulRequestCount": len(batch.results) - failed,
        "failedRequestCount": failed, "pendingRequestCount": len(batch.requests) - len(batch.results),
    }  # fmt: skip
    when = datetime.fromtimestamp(batch.at, UTC).isoformat().replace("+00:00", "Z")
    told: dict[str, Any] = {
        "@type": _TYPE, "name": batch.id, "displayName": batch.metadata["displayName"], "createTime": when,
        "model": batch.metadata["model"], "updateTime": when,
        "state": f"BATCH_STATE_{_STATES.get(batch.status, batch.status.upper())}",
        "batchStats": {name: str(count) for name, count in stats.items() if count},
    }  # fmt: skip
    operation: dict[str, Any] = {"name": batch.id, "metadata": told}
    if not batch.status:
        return operation
    told["endTime"] = when
    operation["done"] = True
    if batch.status == "failed":
        operation["error"] = {"code": 5, "message": "The model cannot be batched."}
    elif whole and batch.status != "expired":
        output = {"inlinedResponses": {"inlinedResponses": [*batch.results[::-1], *extra]}}
        told["output"] = output
        operation["response"] = {"@type": f"{_TYPE}Output", **output}
    return operation
