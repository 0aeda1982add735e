"""The HTTP server of `cdo serve`: on this machine alone, with a key, for as long as its process runs.

Each request is a run of its own, in a process of its own, within what the person allows all runs of other programs.
A client that goes away stops its run, whose session can be resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from cdo.chat_server import conversation
from cdo.chat_server.conversation import ChatAnswer, ChatRequest, NoSuchModel
from cdo.client_runs.progress import RunStatus, final_text, spent
from cdo.client_runs.records import RunRecord
from cdo.client_runs.requests import RunRequest
from cdo.client_runs.service import NoRoom, RunService
from cdo.content.library import Library
from cdo.core.errors import CdoError, ConfigError, UsageError
from cdo.core.usage import TotalUsage, totals
from cdo.security.loopback import LOOPBACK, listening_socket
from cdo.session.records import read_session

HOSTS = (LOOPBACK, "localhost", "::1")
MAX_BODY = 2 * 2**20  # bytes
PACE = 0.5  # seconds between two looks at a run
_ALIVE = 10.0  # seconds after which a comment is sent though nothing has changed
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ChatEndpoint:
    """Answers requests that have the `key`, at the address with `port`."""

    def __init__(self, runs: RunService, library: Library, key: str, port: int) -> None:
        self._runs = runs
        self._presets = library.names("presets")
        self._key, self._port = key, port

    def application(self) -> web.Application:
        """Return the application, for one event loop."""
        made = web.Application(middlewares=[self._guarded], client_max_size=MAX_BODY)
        made.router.add_get("/v1/models", self._models)
        made.router.add_get("/v1/models/{name:.+}", self._model)
        made.router.add_post("/v1/chat/completions", self._chat)
        return made

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse whoever has no key, comes by another name of this machine, or from a page of another origin."""
        if not self._is_here(f"//{request.host}") or any(
            not self._is_here(origin) for origin in request.headers.getall("Origin", ())
        ):
            return _refused(403, "This server answers at its own address alone.", "permission_error")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._key.encode()):
            return _refused(401, "The key is missing or wrong. `cdo serve` prints it.", "authentication_error")
        try:
            return await handler(request)
        except web.HTTPNotFound:
            told = "This server has /v1/models and /v1/chat/completions, and nothing else."
            return _refused(404, told, "invalid_request_error")
        except web.HTTPException as error:
            return _refused(error.status, error.reason, "invalid_request_error")
        except NoRoom as error:
            return _refused(429, _told(error), "rate_limit_error")
        except NoSuchModel as error:
            return _refused(404, _told(error), "invalid_request_error", "model_not_found")
        except UsageError as error:
            return _refused(400, _told(error), "invalid_request_error")
        except CdoError as error:
            answer = _refused(500, _told(error), "api_error")
            answer.headers["X-Should-Retry"] = "false"  # clients of OpenAI would begin, and pay for, another run
            return answer

    def _is_here(self, address: str) -> bool:
        with contextlib.suppress(ValueError):
            place = urlsplit(address)
            return place.hostname in HOSTS and place.port == self._port
        return False

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [conversation.listed(name) for name in self._presets]})

    async def _model(self, request: web.Request) -> web.Response:
        preset = conversation.preset_of(request.match_info["name"], self._presets)
        return web.json_response(conversation.listed(preset))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            data = json.loads(await request.read())
        except (ValueError, RecursionError):
            raise UsageError("The body is not JSON.") from None
        asked = conversation.read(data, self._presets)
        wanted = RunRequest(asked.question, asked.preset)
        record = await asyncio.to_thread(self._runs.begin, wanted, "serve")
        try:
            if asked.stream:
                return await self._streamed(request, asked, record)
            async for _ in self._followed(record):
                pass
            return web.json_response(_answer(asked, record).whole(*await asyncio.to_thread(self._result, record)))
        finally:
            await asyncio.shield(asyncio.to_thread(self._runs.cancel, record, "Its client went away."))

    async def _streamed(self, request: web.Request, asked: ChatRequest, record: RunRecord) -> web.StreamResponse:
        """Send progress as comments, which keep the connection open, then FINAL.md."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        answer = _answer(asked, record)
        try:
            async for line in self._followed(record):
                await response.write(conversation.comment(line))
            text, used, about = await asyncio.to_thread(self._result, record)
        except CdoError as error:
            await response.write(conversation.event(conversation.error(_told(error), "api_error")))
        else:
            for piece in answer.pieces(text):
                await response.write(conversation.event(piece))
            if asked.usage_wanted:
                await response.write(conversation.event(answer.count(used, about)))
            await response.write(conversation.event("[DONE]"))
        await response.write_eof()
        return response

    async def _followed(self, record: RunRecord) -> AsyncIterator[str]:
        """Yield how a run stands whenever that has changed, and now and then, until it is over."""
        last, told = "", 0.0
        while True:
            stands: RunStatus = await asyncio.to_thread(self._runs.status_of, record)
            if stands.standing != "working":
                return
            line = f"{record.session}: {stands.message}"
            if line != last or time.monotonic() - told > _ALIVE:
                last, told = line, time.monotonic()
                yield line
            await asyncio.sleep(PACE)

    def _result(self, record: RunRecord) -> tuple[str, TotalUsage, dict[str, object]]:
        """Return FINAL.md of a run, its usage, and what else a client may want to know; raise `CdoError`."""
        stands, path = self._runs.status_of(record), self._runs.path(record)
        if stands.standing != "completed":
            raise ConfigError(stands.message)
        about: dict[str, object] = {"session": record.session, "path": str(path), "cost": spent(path)}
        return final_text(path), totals(read_session(path)), about


def _answer(asked: ChatRequest, record: RunRecord) -> ChatAnswer:
    return ChatAnswer(f"chatcmpl-{record.session}", asked.model, int(record.began.timestamp()))


def _told(error: CdoError) -> str:
    return f"{error.message} {error.hint}".strip()


def _refused(status: int, message: str, kind: str, code: str | None = None) -> web.Response:
    return web.json_response(conversation.error(message, kind, code), status=status)


async def serve(
    out: Path, root: Path, max_budget: float | None, key: str, port: int, listening: Callable[[int], None]
) -> None:
    """Serve until the task is cancelled; `listening` is called with the port. Raises `ConfigError`."""
    library = Library.at(Path.cwd())
    runs = RunService(out, root, max_budget, "cdo serve")
    with listening_socket(port) as place:
        port = place.getsockname()[1]
        endpoint = ChatEndpoint(runs, library, key, port)
        # A handler whose client goes away is cancelled, and stops its run.
        runner = web.AppRunner(endpoint.application(), handler_cancellation=True, access_log=None)
        await runner.setup()
        try:
            await web.SockSite(runner, place, shutdown_timeout=1.0).start()
            listening(port)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
