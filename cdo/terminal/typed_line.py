"""Reads what a person types at the terminal while the event loop goes on."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from cdo.core.formatting import visible


class TypedText:
    """Hands what is typed to `take`, a line or several at once with their ends; "" is the end of the input."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take

    def listen(self) -> None:
        """Read the keyboard from now on, until the end of the input or `stop`."""
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def stop(self) -> None:
        """Leave the keyboard to others."""
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _read(self) -> None:
        try:
            typed = os.read(sys.stdin.fileno(), 65_536)
        except OSError:
            typed = b""
        if not typed:
            self.stop()
        self._take(typed.decode("utf-8", "replace"))


async def typed_line(prompt: str) -> str:
    """Print `prompt` on stderr, and return the line that is typed; raise `EOFError` at the end of the input.

    A wait that is cancelled ends the line of the prompt, and takes nothing from the input.
    """
    said: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def take(text: str) -> None:
        typing.stop()
        said.set_result(text)

    typing = TypedText(take)
    print(visible(prompt), end="", file=sys.stderr, flush=True)
    typing.listen()
    try:
        typed = await said
    except asyncio.CancelledError:
        print(file=sys.stderr)
        raise
    finally:
        typing.stop()
    if not typed:
        print(file=sys.stderr)
        raise EOFError
    return typed.rstrip("\r\n")
