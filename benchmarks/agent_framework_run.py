"""The calls of a cdo run, or of a batch, by an agent of the Microsoft Agent Framework, the successor of AutoGen.

The agent is run without a session, so that every call stands alone. The framework has no batch of its own, so
asyncio runs many at once. Nothing is checked or kept. `frameworks.py` says what its Python needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from bare import arguments, deliberate_many


async def run(options: argparse.Namespace) -> dict[str, float]:
    """The job through one agent; its client has the transport that openai recommends for many calls at once."""
    from agent_framework import Agent  # type: ignore[import-not-found, unused-ignore]
    from agent_framework.openai import (  # type: ignore[import-not-found, unused-ignore]
        OpenAIChatCompletionClient,
    )
    from openai import AsyncOpenAI, DefaultAioHttpClient  # type: ignore[import-not-found, unused-ignore]

    async with AsyncOpenAI(
        base_url=f"{options.url}/v1", api_key="x", max_retries=0, http_client=DefaultAioHttpClient()
    ) as client:
        model = OpenAIChatCompletionClient(model="bench", async_client=client)
        agent = Agent(model, default_options={"max_tokens": 4096})

        async def ask(kind: str, call: str, prompt: str) -> str:
            headers = {"X-Cdo-Kind": kind, "X-Cdo-Call": call}
            return str((await agent.run(prompt, client_kwargs={"extra_headers": headers})).text)

        return await deliberate_many(ask, options)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(arguments("The job by an agent of the Microsoft Agent Framework.")))))
