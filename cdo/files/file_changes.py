"""Watches a file that somebody else may write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path


async def changes(path: Path, stop: asyncio.Event) -> AsyncIterator[None]:
    """Yield when the file may have changed: at once if the system reports changes, else within a second."""
    from watchfiles import awatch

    # Watch the folder, not the file: editors replace the file with a new one.
    async for _ in awatch(
        path.parent,
        watch_filter=lambda _, name: Path(name).name == path.name,
        stop_event=stop,
        recursive=False,
        rust_timeout=1000,
        yield_on_timeout=True,
        debounce=200,
    ):
        yield
