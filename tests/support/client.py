"""A plain aiohttp client of the provider, for its own tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp

from tests.support.provider import Provider

T = TypeVar("T")
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def run(client: Callable[[aiohttp.ClientSession], Awaitable[T]]) -> T:
    """Run `client` with a session of its own."""

    async def main() -> T:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(5)) as session:
            return await client(session)

    return asyncio.run(main())


def headers(kind: str = "agent", call: str = "t1-architect", attempt: int = 1) -> dict[str, str]:
    return {"X-Cdo-Kind": kind, "X-Cdo-Call": call, "X-Cdo-Attempt": str(attempt)}


def ask(p: Provider, path: str = CHAT, stream: bool = False, prompt: str = "why?", **names: Any) -> tuple[int, bytes]:
    """Make one call and return its status and body; raises what aiohttp raises."""
    body: dict[str, Any] = {"model": "bench", "messages": [{"role": "user", "content": prompt}]}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}

    async def client(session: aiohttp.ClientSession) -> tuple[int, bytes]:
        async with session.post(p.url + path, json=body, headers=headers(**names)) as response:
            return response.status, await response.read()

    return run(client)


def data(p: Provider, path: str = CHAT, **names: Any) -> Any:
    """The JSON of one call that is not streamed."""
    return json.loads(ask(p, path, **names)[1])


def events(p: Provider, path: str = CHAT, **names: Any) -> list[Any]:
    """The data of each event of a streamed call; the end mark as it is."""
    blocks = ask(p, path, stream=True, **names)[1].decode().split("\n\n")
    lines = [line[6:] for block in blocks for line in block.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def deltas(found: list[Any], key: str) -> str:
    """The pieces of one delta field of a Chat Completions stream, joined."""
    return "".join(
        choice["delta"].get(key) or "" for event in found if event != "[DONE]" for choice in event.get("choices", [])
    )


def text(found: list[Any]) -> str:
    """The text of a stream of either protocol."""
    if any("type" in event for event in found if event != "[DONE]"):
        return "".join(event["delta"].get("text", "") for event in found if "delta" in event)
    return deltas(found, "content")
