"""What this process does to the world, as Python itself tells it: files opened, processes begun, sockets used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Events of `sys.addaudithook` by what they mean.
PROCESSES = (
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.",
)
SOCKETS = ("socket.",)
FILES = (
    "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.listdir", "os.scandir",
    "os.truncate", "os.chmod", "os.chown", "os.utime", "shutil.", "tempfile.",
)  # fmt: skip

_seen: list[tuple[str, tuple[Any, ...]]] | None = None
_installed = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _seen is not None:
        _seen.append((event, args))


@contextmanager
def watched() -> Iterator[list[tuple[str, tuple[Any, ...]]]]:
    """The events of the block, each with its arguments, as they come."""
    global _seen, _installed
    if not _installed:  # a hook cannot be taken away again
        sys.addaudithook(_hook)
        _installed = True
    seen: list[tuple[str, tuple[Any, ...]]] = []
    _seen = seen
    try:
        yield seen
    finally:
        _seen = None


def of(seen: list[tuple[str, tuple[Any, ...]]], kinds: tuple[str, ...]) -> list[tuple[str, tuple[Any, ...]]]:
    """The events of some kinds; a kind that ends with a dot stands for all that begin so."""
    return [
        (event, args)
        for event, args in seen
        if any(event == kind or (kind[-1] == "." and event.startswith(kind)) for kind in kinds)
    ]
