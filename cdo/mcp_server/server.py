"""Builds the MCP server, with its tools, resources and prompts, and serves it over stdio."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.mcpserver.prompts import Prompt
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, ToolAnnotations
from msgspec import to_builtins

from cdo import __version__
from cdo.client_runs.progress import as_json
from cdo.client_runs.service import RESOURCE, RunService
from cdo.content.library import Library
from cdo.core.errors import CdoError
from cdo.core.signals import STOPS
from cdo.mcp_server.bounded_input import REFUSED, bounded_streams
from cdo.mcp_server.tasks import TaskExtension
from cdo.mcp_server.tools import RunTools
from cdo.mcp_server.wording import NAME, ServerWording

BUSY = -32000  # the error of a request that is one too many
_AT_ONCE = 64  # requests that are served at the same time
_LISTED = 100  # sessions in the list
_READS = ("status", "result", "list", "search_decisions")  # tools that change nothing
_Context = ServerRequestContext[Any, Any]


def serve(out: Path, root: Path, max_budget: float | None) -> None:
    """Serve on stdin and stdout until the client closes them. Runs that were begun go on."""
    wording = Library.at(Path.cwd()).read(NAME, ServerWording)[0]
    server = build(RunService(out, root, max_budget), wording)
    for number in STOPS:  # nothing is lost: runs are processes of their own
        signal.signal(number, lambda *_: os._exit(0))
    sys.stdin, sys.stdout = bounded_streams()
    server.run("stdio")


def build(service: RunService, wording: ServerWording) -> MCPServer[Any]:
    """Return the server for the runs of one project."""
    server: MCPServer[Any] = MCPServer(
        "cdo",
        title="cdo: deliberation",
        instructions=wording.instructions,
        version=__version__,
        extensions=[TaskExtension(service)],
        middleware=[_limited()],
        subscriptions=False,
        log_level="WARNING",
    )
    tools = RunTools(service)
    for name, about in to_builtins(wording.tools).items():
        hints = ToolAnnotations(
            read_only_hint=name in _READS, destructive_hint=name == "cancel", open_world_hint=name not in _READS
        )
        server.add_tool(
            getattr(tools, name), name=name, description=about, annotations=hints, structured_output=False
        )
    _add_resources(server, service)
    for name, prompt in wording.prompts.items():
        server.add_prompt(Prompt.from_function(_asking(wording, prompt.preset), name=name, description=prompt.about))
    return server


def _add_resources(server: MCPServer[Any], service: RunService) -> None:
    @server.resource(RESOURCE, name="sessions", description="The deliberations of this project, newest first.",
                     mime_type="application/json")  # fmt: skip
    async def sessions() -> str:
        return as_json(await anyio.to_thread.run_sync(service.rows, _LISTED))

    @server.resource(
        f"{RESOURCE}/{{session}}/{{+file}}",
        name="file of a session",
        description="FINAL.md, what voices and syntheses wrote (t1-critic.md), plans, and deliverables.",
        mime_type="text/markdown",
    )
    async def file(session: str, file: str) -> str:
        try:
            return await anyio.to_thread.run_sync(service.file, session, file)
        except CdoError as error:
            raise ResourceNotFoundError(error.message) from None


def _asking(wording: ServerWording, preset: str) -> Callable[[str], str]:
    def prompt(question: str) -> str:
        return wording.filled(preset, question)

    return prompt


def _limited() -> ServerMiddleware[Any]:
    """Refuse requests beyond those that are served at the same time."""
    busy = 0

    async def middleware(ctx: _Context, call_next: CallNext) -> HandlerResult:
        nonlocal busy
        if ctx.method == REFUSED:
            raise MCPError(INVALID_REQUEST, str((ctx.params or {}).get("why", ""))[:300])
        if ctx.request_id is not None and busy >= _AT_ONCE:
            raise MCPError(BUSY, f"{_AT_ONCE} requests are being served. Wait for their answers.")
        busy += 1
        try:
            return await call_next(ctx)
        finally:
            busy -= 1

    return middleware
