"""Reads what a person types at the terminal while the event loop goes on."""

from __future__ import annotations

import asyncio
import os
import sys

from cdo.core.formatting import visible


async def typed_line(prompt: str) -> str:
    """Print `prompt` on stderr, and return the line that is typed; raise `EOFError` at the end of the input.

    A wait that is cancelled ends the line of the prompt, and takes nothing from the input.
    """
    loop, source = asyncio.get_running_loop(), sys.stdin.fileno()
    said: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(source)
        try:
            said.set_result(os.read(source, 65_536))
        except OSError:
            said.set_result(b"")

    print(visible(prompt), end="", file=sys.stderr, flush=True)
    loop.add_reader(source, read)
    try:
        typed = await said
    except asyncio.CancelledError:
        print(file=sys.stderr)
        raise
    finally:
        loop.remove_reader(source)
    if not typed:
        print(file=sys.stderr)
        raise EOFError
    return typed.decode("utf-8", "replace").rstrip("\r\n")
