"""The Tasks extension of MCP (2026-07-28): a run is a task, for clients which declare that they know tasks.

The id of a task is that of its run's record, which is on disk before a client gets it. How a task stands is read from
the run's session each time, so that a server which was started again knows its tasks.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import anyio.to_thread
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY, CallToolRequestParams, RequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from cdo.client_runs.progress import RunStatus
from cdo.client_runs.records import RunRecord
from cdo.client_runs.service import RunService
from cdo.mcp_server.forms import elicitation, read
from cdo.mcp_server.tools import BEGUN, told

EXTENSION = "io.modelcontextprotocol/tasks"
_TOOLS = ("deliberate", "decide")
_POLL = 2000  # milliseconds
_MODERN = frozenset(MODERN_PROTOCOL_VERSIONS)
_Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """The parameters of a request about a task."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")

    task_id: Annotated[str, Field(max_length=200)]


class TaskAnswers(TaskParams):
    """The parameters of `tasks/update`: the answers by the keys of what was asked."""

    input_responses: Annotated[dict[str, Any], Field(max_length=16)]


class TaskExtension(Extension):
    """Serves the runs of a project as tasks."""

    identifier = EXTENSION

    def __init__(self, service: RunService) -> None:
        self._service = service

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self.get, _MODERN),
            MethodBinding("tasks/update", TaskAnswers, self.update, _MODERN),
            MethodBinding("tasks/cancel", TaskParams, self.cancel, _MODERN),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: _Context, call_next: CallNext
    ) -> HandlerResult:
        """Return a task in place of a tool's result, to a client which declared tasks on this very request."""
        if params.name not in _TOOLS or ctx.protocol_version not in _MODERN or not _declares(ctx):
            return await call_next(ctx)
        begun: list[RunRecord] = []
        mark = BEGUN.set(begun)
        try:
            result = await call_next(ctx)
        finally:
            BEGUN.reset(mark)
        if not begun:
            return result
        stands = await self._checked(lambda: self._service.status_of(begun[0]))
        return {"resultType": "task", **_task(begun[0], stands, "working")}

    async def get(self, ctx: _Context, params: TaskParams) -> HandlerResult:
        """Return how a task stands: with what it asks, or with its result."""
        record = await self._record(ctx, params)
        stands = await self._checked(lambda: self._service.status_of(record))
        return {"resultType": "complete", **await self._detailed(ctx, record, stands)}

    async def update(self, ctx: _Context, params: TaskAnswers) -> HandlerResult:
        """Take answers. Those to what is not asked now are ignored; one who declines gives the task up."""
        record = await self._record(ctx, params)
        stands = await self._checked(lambda: self._service.status_of(record))
        response = params.input_responses.get(_key(record, stands)) if stands.asks else None
        if stands.asks and isinstance(response, dict):
            asks = stands.asks
            if response.get("action") == "accept":
                said = await self._checked(lambda: read(asks, response.get("content")))
                await self._checked(lambda: self._service.answer(record, said.text, said.note, said.focus))
            elif response.get("action") in ("decline", "cancel"):
                why = f"The person did not answer. `cdo resume {record.session}` goes on."
                await self._checked(lambda: self._service.cancel(record, why))
        return {"resultType": "complete"}

    async def cancel(self, ctx: _Context, params: TaskParams) -> HandlerResult:
        """Stop the run of a task."""
        record = await self._record(ctx, params)
        await self._checked(lambda: self._service.cancel(record, "A client cancelled the run."))
        return {"resultType": "complete"}

    async def _record(self, ctx: _Context, params: TaskParams) -> RunRecord:
        if not _declares(ctx):
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                "Missing required client capability: tasks.",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        record = await anyio.to_thread.run_sync(self._service.records.of_task, params.task_id)
        if record is None:
            raise MCPError(INVALID_PARAMS, "There is no such task.")
        return record

    async def _detailed(self, ctx: _Context, record: RunRecord, stands: RunStatus) -> dict[str, Any]:
        if stands.asks:
            if not _elicits(ctx):
                told_how = f"{stands.message} Pass the person's answer on with the tool `answer`."
                return {**_task(record, stands, "working"), "statusMessage": told_how}
            asked = {_key(record, stands): elicitation(stands.asks)}
            return {**_task(record, stands, "input_required"), "inputRequests": asked}
        if stands.standing not in ("completed", "failed"):
            return _task(record, stands, stands.standing)
        # A run that broke off is a tool that failed, which is no failed task: that stands for errors of the protocol.
        error = stands.standing == "failed"
        plain = record.tool == "decide"
        text = stands.message
        if not error:
            text = await self._checked(lambda: self._service.result(record.session, plain=plain))
        result = {"content": [{"type": "text", "text": text}], "isError": error}
        return {**_task(record, stands, "completed"), "result": result}

    @staticmethod
    async def _checked(work: Any) -> Any:
        """Return what `work` returns; raise `MCPError` for what a person is told."""
        try:
            return await told(work)
        except ToolError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None


def _task(record: RunRecord, stands: RunStatus, status: str) -> dict[str, Any]:
    return {
        "taskId": record.id,
        "status": status,
        "statusMessage": stands.message,
        "createdAt": _time(record.began),
        "lastUpdatedAt": _time(max(stands.changed, record.began)),
        "ttlMs": None,
        "pollIntervalMs": _POLL,
    }


def _key(record: RunRecord, stands: RunStatus) -> str:
    """Return the key of what a run asks now; no two requests of a task have the same one."""
    return f"{stands.asks.name}.{record.answers + 1}" if stands.asks else ""


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _declares(ctx: _Context) -> bool:
    """True if the client declared the extension on this request."""
    capabilities = ctx.session.client_capabilities
    return bool(capabilities and EXTENSION in (capabilities.extensions or {}))


def _elicits(ctx: _Context) -> bool:
    """True if the client can show a form to the person."""
    asks = ctx.session.client_capabilities.elicitation if ctx.session.client_capabilities else None
    return asks is not None and (asks.form is not None or asks.url is None)
