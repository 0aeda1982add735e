"""What this process does to the world, as Python itself tells it: files opened, processes begun, sockets used."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Events of `sys.addaudithook`, by how they begin.
PROCESSES = ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "pty.")
SOCKETS = ("socket.connect", "socket.bind", "socket.send", "socket.getaddrinfo", "socket.gethost")
FILES = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.listdir",
    "os.scandir",
)
CHANGES = ("os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", "shutil.")
_FOLDERS = {
    "os.mkdir": (2,),
    "os.rename": (2, 3),
    "os.remove": (1,),
    "os.rmdir": (1,),
    "os.link": (2, 3),
    "os.symlink": (2,),
}
_ALL = (*PROCESSES, *SOCKETS, *FILES, *CHANGES)

Seen = list[tuple[str, tuple[Any, ...]]]
_seen: Seen | None = None
_installed = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _seen is not None and event.startswith(_ALL):
        _seen.append((event, _placed(event, args)))


def _placed(event: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with paths that start at an open folder made whole (where the system tells which it is)."""
    paths = list(args)
    for place, number in enumerate(_FOLDERS.get(event, ())):
        if args[number] != -1:
            with contextlib.suppress(OSError):
                paths[place] = f"{Path(f'/proc/self/fd/{args[number]}').readlink()}/{os.fsdecode(args[place])}"
    return tuple(paths)


@contextlib.contextmanager
def watched() -> Iterator[Seen]:
    """The events of the block, each with its arguments, as they come.

    Python writes no compiled modules meanwhile: such files are Python's, not those of the code that is watched.
    """
    global _seen, _installed
    if not _installed:  # a hook cannot be taken away again
        sys.addaudithook(_hook)
        _installed = True
    seen: Seen = []
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _seen = seen
    try:
        yield seen
    finally:
        _seen = None
        sys.dont_write_bytecode = compiles


def of(seen: Seen, kinds: tuple[str, ...]) -> Seen:
    """The events of some kinds."""
    return [item for item in seen if item[0].startswith(kinds)]
