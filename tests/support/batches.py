"""The batch endpoints of a provider on loopback: OpenAI's files and batches, Anthropic's message batches, Gemini's.

A batch ends when it is looked at, unless it is told to go on. Its requests get the answers of the provider's script.
What a test wants to go wrong it says beforehand.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from multidict import CIMultiDict, CIMultiDictProxy

from tests.support import gemini_batches as gemini
from tests.support.answers import RequestInfo
from tests.support.delivery import JSON, Reply

if TYPE_CHECKING:
    from tests.support.provider import Provider

_ANTHROPIC = "/messages/batches"
_NAMED = re.compile(r"cdo-[0-9a-f]{16}-(.+)-[0-9a-f]{16}")
_FILE = re.compile(r'name="file"; filename="([^"]*)".*?\r\n\r\n(.*)\r\n--', re.DOTALL)
# How a batch ends: the words of OpenAI and of Anthropic for requests that it did not come to.
_LEFT = {"expired": ("batch_expired", "expired"), "cancelled": ("batch_cancelled", "canceled")}

Spoil = Callable[[str, dict[str, Any]], dict[str, Any] | None]


@dataclass
class HeldBatch:
    """One batch: its requests by their ids, how it stands, and its results as lines."""

    id: str
    requests: dict[str, dict[str, Any]]
    path: str
    at: float
    metadata: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    status: str = ""  # "" while it goes on
    results: list[dict[str, Any]] = field(default_factory=list)


class LoopbackBatches:
    """The batches of a provider.

    `going` keeps batches from ending. `end` is how they end: completed, expired, cancelled, failed. `answered` is how
    many requests of a batch get an answer before that. `spoil` changes the result of a request, given its call and
    the result; None leaves the result out. `extra` are lines that stand among the results as well. `stall` holds back
    the answer to a request for good: "files" and "before" have done nothing by then, "after" has made the batch.
    `refuse` is the status and message for new batches, `silent` for each question how batches stand.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.batches: list[HeldBatch] = []
        self.files: dict[str, str] = {}
        self.going = False
        self.end = "completed"
        self.answered: int | None = None
        self.spoil: Spoil | None = None
        self.extra: list[str] = []
        self.stall = ""
        self.held = False  # a request has been held back
        self.refuse: tuple[int, str] | None = None
        self.silent: tuple[int, str] | None = None

    @property
    def asked(self) -> list[str]:
        """The names of all calls that were submitted, in order."""
        return [call_of(ident) for batch in self.batches for ident in batch.requests]

    def knows(self, info: RequestInfo) -> bool:
        """Whether a request is one of these endpoints'."""
        if gemini.is_theirs(info):
            return True
        path = _path(info)
        return path.startswith(("/files", "/batches")) or path.startswith(_ANTHROPIC)

    async def reply(self, info: RequestInfo, query: Mapping[str, str]) -> Reply:
        """The answer to a request."""
        if self.silent and info.method == "GET":
            return _json({"error": {"message": self.silent[1]}}, self.silent[0])
        if gemini.is_theirs(info):
            return await self._gemini(info, query)
        path, anthropic = _path(info), _path(info).startswith(_ANTHROPIC)
        if info.method == "POST" and self.stall == ("files" if path == "/files" else "before"):
            await self._hang()
        parts = path.removeprefix(_ANTHROPIC).strip("/").split("/") if anthropic else path.strip("/").split("/")[1:]
        parts = [part for part in parts if part]
        if info.method == "POST" and not parts:
            made = self._made(info, anthropic) if self.refuse is None or path == "/files" else None
            if self.stall == "after" and path != "/files":
                await self._hang()
            if made is None and self.refuse:
                told = {"type": "invalid_request_error", "message": self.refuse[1]}
                return _json({"type": "error", "error": told}, self.refuse[0])
            return _json(made)
        if path.startswith("/files"):
            text = self.files.get(parts[0])
            return (
                _json({"error": {"message": "no such file"}}, 404) if text is None else Reply([text.encode()], JSON)
            )
        return self._told(query, parts, anthropic)

    async def _gemini(self, info: RequestInfo, query: Mapping[str, str]) -> Reply:
        if info.method == "POST":
            if self.stall == "before":
                await self._hang()
            if self.refuse:
                code, message = self.refuse
                return _json({"error": {"code": code, "message": message, "status": "INVALID_ARGUMENT"}}, code)
            model, name, requests = gemini.made(info)
            ident, told = f"batches/{len(self.batches) + 1}", {"displayName": name, "model": f"models/{model}"}
            self.batches.append(HeldBatch(ident, requests, gemini.PATH, time.time(), told))
            if self.stall == "after":
                await self._hang()
            return _json(gemini.described(self.batches[-1], whole=True))
        mine = [batch for batch in self.batches if batch.path == gemini.PATH]
        self._finish_all(mine)
        ident = info.path.removeprefix("/v1beta/")
        if ident == "batches":  # in the order in which they were made, two a page
            start = int(query.get("pageToken", "0"))
            page = [gemini.described(batch, whole=False) for batch in mine[start : start + 2]]
            return _json({"operations": page, **({"nextPageToken": str(start + 2)} if mine[start + 2 :] else {})})
        one = next((batch for batch in mine if batch.id == ident), None)
        if one is None:
            return _json({"error": {"code": 404, "message": "Requested entity was not found."}}, 404)
        return _json(gemini.described(one, whole=True, extra=self._extra()))

    async def _hang(self) -> None:
        self.held = True
        await asyncio.sleep(600)

    def _made(self, info: RequestInfo, anthropic: bool) -> dict[str, Any]:
        number = len(self.batches) + 1
        if anthropic:
            requests = {item["custom_id"]: item["params"] for item in info.body["requests"]}
            assert len(requests) == len(info.body["requests"])
            assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", ident) for ident in requests)
            self.batches.append(HeldBatch(f"msgbatch_{number}", requests, "/v1/messages", time.time()))
            return self._anthropic(self.batches[-1])
        if isinstance(info.body, dict) and "requests" in info.body:  # OpenRouter's
            assert list(info.body)[:2] == ["endpoint", "model"]
            requests = {item["custom_id"]: item["body"] for item in info.body["requests"]}
            assert {body["model"] for body in requests.values()} == {info.body["model"]}
            self.batches.append(HeldBatch(f"or_{number}", requests, info.body["endpoint"], time.time()))
            return self._openai(self.batches[-1])
        if _path(info) == "/files":
            assert 'name="purpose"\r\n\r\nbatch' in info.body.replace(
                "Content-Type: text/plain; charset=utf-8\r\n", ""
            )
            found = _FILE.search(info.body)
            assert found
            ident = f"file-{len(self.files) + 1}"
            self.files[ident] = found[2]
            told = {"object": "file", "bytes": len(found[2]), "created_at": int(time.time()), "status": "processed"}
            return {"id": ident, "filename": found[1], "purpose": "batch", **told}
        assert info.body["completion_window"] == "24h"
        lines = [json.loads(line) for line in self.files[info.body["input_file_id"]].splitlines()]
        assert {(line["method"], line["url"]) for line in lines} == {("POST", info.body["endpoint"])}
        assert len({line["body"]["model"] for line in lines}) == 1
        requests = {line["custom_id"]: line["body"] for line in lines}
        metadata, file = info.body.get("metadata") or {}, info.body["input_file_id"]
        self.batches.append(
            HeldBatch(f"batch_{number}", requests, info.body["endpoint"], time.time(), metadata, file)
        )
        return self._openai(self.batches[-1])

    def _told(self, query: Mapping[str, str], parts: list[str], anthropic: bool) -> Reply:
        shown = self._anthropic if anthropic else self._openai
        mine = [batch for batch in self.batches if batch.path.endswith("/messages") == anthropic]
        self._finish_all(mine)
        if not parts:
            after = query.get("after") or query.get("after_id") or ""
            listed = mine[::-1]
            if after:
                listed = listed[[batch.id for batch in listed].index(after) + 1 :]
            page = listed[:2]
            ends = {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None}
            return _json({"object": "list", "data": [*map(shown, page)], "has_more": len(listed) > 2, **ends})
        one = next((batch for batch in mine if batch.id == parts[0]), None)
        if one is None:
            return _json({"error": {"message": "No batch found"}}, 404)
        if parts[1:] == ["results"]:
            return Reply([self._text(one).encode()], JSON)
        inline = {"results": [*one.results, *self._extra()] or None} if one.id.startswith("or_") else {}
        return _json({**shown(one), **inline})

    # -- results --

    def _finish_all(self, batches: Sequence[HeldBatch]) -> None:
        for batch in batches if not self.going else ():
            if not batch.status:
                self._finish(batch)

    def _finish(self, batch: HeldBatch) -> None:
        batch.status = self.end
        if self.end == "failed":
            return
        for number, (ident, body) in enumerate(batch.requests.items()):
            answered = self.answered is None or number < self.answered
            result = self._answer(ident, batch.path, body) if answered else self._left(ident, batch.path)
            kept = self.spoil(call_of(ident), result) if self.spoil else result
            if kept is not None:
                batch.results.append(kept)
        if batch.file:
            good = [item for item in batch.results if not item["error"]]
            self.files[f"{batch.id}-out"] = self._text(batch, good)
            if bad := [item for item in batch.results if item["error"]]:
                self.files[f"{batch.id}-err"] = "".join(json.dumps(item) + "\n" for item in bad)

    def _text(self, batch: HeldBatch, results: list[dict[str, Any]] | None = None) -> str:
        lines = [json.dumps(item) for item in (batch.results if results is None else results)]
        return "".join(f"{line}\n" for line in [*lines[::-1], *self.extra])

    def _extra(self) -> list[Any]:
        """What stands among results that come in one body, which has to be JSON as a whole."""
        return [json.loads(line) for line in self.extra]

    def _answer(self, ident: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert not body.get("stream")
        call = call_of(ident)
        kind = call
        if found := re.fullmatch(r"t\d+-(.+)", call):
            kind = "synthesis" if found[1] == "synthesis" else "agent"
        native = path == gemini.PATH
        if native:
            path, body = "/v1/chat/completions", gemini.as_chat(body)
        headers = CIMultiDictProxy(CIMultiDict({"X-Cdo-Call": call, "X-Cdo-Kind": kind}))
        info = RequestInfo("POST", path, headers, body, time.monotonic())
        answer = json.loads(self._provider.answered_at_once(info))
        if native:
            return {"metadata": {"key": ident}, "response": gemini.answered(answer)}
        if path.endswith("/messages"):
            return {"custom_id": ident, "result": {"type": "succeeded", "message": answer}}
        response = {"status_code": 200, "request_id": f"req-{ident}", "body": answer}
        return {"id": f"batch_req_{ident}", "custom_id": ident, "response": response, "error": None}

    def _left(self, ident: str, path: str) -> dict[str, Any]:
        openai, anthropic = _LEFT[self.end]
        if path == gemini.PATH:
            return {"metadata": {"key": ident}, "error": gemini.left(openai)}
        if path.endswith("/messages"):
            return {"custom_id": ident, "result": {"type": anthropic}}
        error = {"code": openai, "message": f"This request was not done: {openai}."}
        return {"id": f"batch_req_{ident}", "custom_id": ident, "response": None, "error": error}

    # -- descriptions --

    def _openai(self, batch: HeldBatch) -> dict[str, Any]:
        failed = sum(bool(item["error"]) for item in batch.results)
        errors = {"object": "list", "data": [{"code": "model_not_found", "message": "The model cannot be batched."}]}
        return {
            "id": batch.id, "object": "batch", "endpoint": batch.path, "completion_window": "24h",
            "errors": errors if batch.status == "failed" else None, "input_file_id": batch.file,
            "status": batch.status or "in_progress", "created_at": int(batch.at),
            "output_file_id": f"{batch.id}-out" if f"{batch.id}-out" in self.files else None,
            "error_file_id": f"{batch.id}-err" if f"{batch.id}-err" in self.files else None,
            "request_counts": {
                "total": len(batch.requests), "completed": len(batch.results) - failed, "failed": failed,
            },
            "metadata": dict(batch.metadata),
        }  # fmt: skip

    def _anthropic(self, batch: HeldBatch) -> dict[str, Any]:
        kinds = [item["result"]["type"] for item in batch.results if isinstance(item["result"], dict)]
        names = ("succeeded", "errored", "canceled", "expired")
        counts = {name: kinds.count(name) for name in names}
        missing = len(batch.requests) - sum(counts.values())
        counts |= (
            {"processing": 0, "errored": counts["errored"] + missing} if batch.status else {"processing": missing}
        )
        when = datetime.fromtimestamp(batch.at, UTC).isoformat()
        url = f"{self._provider.url}/v1/messages/batches/{batch.id}/results"
        return {
            "id": batch.id, "type": "message_batch", "processing_status": "ended" if batch.status else "in_progress",
            "request_counts": counts, "created_at": when, "ended_at": when if batch.status else None,
            "expires_at": when, "archived_at": None, "cancel_initiated_at": None,
            "results_url": url if batch.status else None,
        }  # fmt: skip


def call_of(ident: str) -> str:
    """The name of the call in the id of a request."""
    found = _NAMED.fullmatch(ident)
    return found[1] if found else ident


def _path(info: RequestInfo) -> str:
    return info.path.removeprefix("/v1")


def _json(data: Any, status: int = 200) -> Reply:
    return Reply([json.dumps(data).encode()], JSON, status=status)
