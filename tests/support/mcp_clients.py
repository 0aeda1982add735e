"""Clients of `cdo mcp`: the SDK's own over stdio against the real server process, with and without tasks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from tests.conftest import Desk

TASKS = "io.modelcontextprotocol/tasks"


class Created(types.Result):
    """The answer to a call that became a task."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class Answered(types.Result):
    """Any result, with all that it holds."""

    model_config = ConfigDict(extra="allow")


class TaskRequest(types.Request[dict[str, Any], str]):
    """A request about a task."""

    params: dict[str, Any]


class KnowsTasks(ClientExtension):
    """Declares tasks; the test looks at each one itself."""

    identifier = TASKS

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._never)]

    async def _never(self, created: Created, context: ClaimContext) -> types.CallToolResult:
        raise AssertionError("the test asked for the task itself")


class Agent:
    """A program that uses the server: calls tools, and follows tasks where it knows them."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return its text; fail the test if it went wrong."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result
        return text_of(result)

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must refuse, and return what it says."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result
        said = text_of(result)
        assert said != f"Error executing tool {tool}", "it says nothing where it crashed"
        return said

    async def begin(self, question: str, **arguments: Any) -> dict[str, Any]:
        """Begin a deliberation without tasks, and return how it stands."""
        found: dict[str, Any] = json.loads(await self.call("deliberate", question=question, **arguments))
        return found

    async def settled(self, session: str) -> dict[str, Any]:
        """Wait until a run no longer works, and return how it stands."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            found: dict[str, Any] = json.loads(await self.call("status", session=session, wait_seconds=20))
            if found["status"] != "working":
                return found
        pytest.fail("the run goes on and on")

    async def task(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that becomes a task, and return the task."""
        result = await self.client.session.call_tool(tool, arguments, allow_claimed=True)
        assert isinstance(result, Created), result
        return result.model_dump(by_alias=True)

    async def ask(self, method: str, task: str, **more: Any) -> dict[str, Any]:
        """Send a request about a task."""
        request = TaskRequest(method=method, params={"taskId": task, **more})
        result = await self.client.session.send_request(request, Answered)
        return result.model_dump(by_alias=True)

    async def followed(self, task: str, *until: str) -> dict[str, Any]:
        """Follow a task until it has one of these statuses."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            found = await self.ask("tasks/get", task)
            if found["status"] in until:
                return found
            assert found["status"] in ("working", "input_required"), found
            await asyncio.sleep(0.1)
        pytest.fail(f"no {until} came of the task")

    async def error(self, method: str, task: str, **more: Any) -> MCPError:
        """Send a request about a task that must fail, and return the error."""
        with pytest.raises(MCPError) as caught:
            await self.ask(method, task, **more)
        return caught.value


def text_of(result: Any) -> str:
    """Return the text of a tool's result."""
    (part,) = result.content
    assert isinstance(part, types.TextContent)
    return part.text


@contextlib.asynccontextmanager
async def connected(
    desk: Desk, *options: str, tasks: bool = False, forms: bool = True, env: Mapping[str, str] | None = None
) -> AsyncIterator[Agent]:
    """Start `cdo mcp` at a desk and connect to it; with `tasks`, as a client that declares them."""

    async def form(context: Any, params: Any) -> types.ElicitResult:
        raise AssertionError("the server asks through the task")

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "cdo", "mcp", *options],
        cwd=str(desk.path),
        env={**desk.environment(env), "CDO_DATA_DIR": str(desk.path.parent / "data")},
    )
    client = Client(
        server, extensions=[KnowsTasks()] if tasks else None, elicitation_callback=form if tasks and forms else None
    )
    async with client:
        yield Agent(client)
