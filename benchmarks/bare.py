"""The calls of a cdo run and nothing else: what the same job costs a bare aiohttp script.

Each turn asks `width` agents at the same time with a prompt of about 2 KB, then one synthesis that reads
them; the last call writes the final answer. Nothing is streamed, checked, retried or stored. `--count N` makes
the calls of N such runs, `--live` of them at a time: those of a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

Ask = Callable[[str, str, str], Awaitable[str]]  # (kind, call, prompt) -> text

PROMPT = "Should the engine be rewritten, or staged behind a switch? Weigh cost, risk and the way back.\n" * 21


async def deliberate(ask: Ask, turns: int, width: int) -> dict[str, float]:
    """Make the calls of one run; return their number and the time from the first to the last."""
    start = time.perf_counter()
    synthesis = ""
    for turn in range(1, turns + 1):
        prompt = f"{PROMPT}\n{synthesis}"
        answers = await asyncio.gather(
            *(ask("agent", f"t{turn}-voice-{seat}", prompt) for seat in range(1, width + 1))
        )
        synthesis = await ask("synthesis", f"t{turn}-synthesis", "\n\n".join([PROMPT, *answers]))
    await ask("final", "final", f"{PROMPT}\n{synthesis}")
    return {"wall": time.perf_counter() - start, "calls": turns * (width + 1) + 1}


async def deliberate_many(ask: Ask, options: argparse.Namespace) -> dict[str, float]:
    """Make the calls of all runs that `options` ask for, and say what those of the last one came to."""
    gate = asyncio.Semaphore(options.live)

    async def one() -> dict[str, float]:
        async with gate:
            return await deliberate(ask, options.turns, options.width)

    return (await asyncio.gather(*(one() for _ in range(options.count))))[-1]


def arguments(description: str) -> argparse.Namespace:
    """Parse `URL --turns T --width W --count N --live L`; the URL is the provider's root, without /v1."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("url")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--count", type=int, default=1, help="runs (1)")
    parser.add_argument("--live", type=int, default=100, help="runs at a time (100)")
    return parser.parse_args()


def asking(session: aiohttp.ClientSession, url: str) -> Ask:
    """Return what sends a prompt to the provider at `url` and returns the text of its answer."""

    async def ask(kind: str, call: str, prompt: str) -> str:
        body = {"model": "bench", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4096}
        headers = {"X-Cdo-Kind": kind, "X-Cdo-Call": call, "Authorization": "Bearer x"}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            response.raise_for_status()
            return str((await response.json())["choices"][0]["message"]["content"])

    return ask


async def run(options: argparse.Namespace) -> dict[str, float]:
    """The job through one aiohttp session."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await deliberate_many(asking(session, options.url), options)


if __name__ == "__main__":
    options = arguments("A bare aiohttp script making the calls of a cdo run.")
    print(json.dumps(asyncio.run(run(options))))
