"""Opens untrusted files: regular files only, never through a symlink."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_MAX_DEEP = 200  # folders on the way to a file
_MAX_OPEN = 64  # folders held open at once


def read_regular(path: str | Path, limit: int, folder: int | None = None) -> bytes:
    """Read at most `limit` bytes of a regular file; never wait for a FIFO or follow a symlink. Raise `OSError`.

    A relative path starts at the open directory `folder`, if there is one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def present(path: str, folder: int | None = None) -> bool:
    """True if `path` exists, even as a dangling symlink; a relative path starts at the open directory `folder`."""
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    return True


class DirectoryCache:
    """A cache of open folders, each opened from its parent and never through a symlink.

    A way is a tuple: a real path to start from, then the names below it. If a folder is replaced by a symlink, at any
    time, opening fails instead of leaving the tree. The most recently used folders stay open, which makes access near
    them cheap. Use it as a context manager, which closes them.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, ...], int] = {}  # most recently used last

    def __enter__(self) -> DirectoryCache:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def folder(self, way: tuple[str, ...]) -> int:
        """Return a descriptor of the folder at `way`, open at least until the next call. Raise `OSError`."""
        found = self._open.pop(way, None)
        if found is None:
            if len(way) > _MAX_DEEP:
                raise OSError(errno.ENAMETOOLONG, "too many folders deep")
            above = self.folder(way[:-1]) if len(way) > 1 else None
            found = os.open(way[-1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
            if len(self._open) >= _MAX_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
        self._open[way] = found
        return found

    def read(self, way: tuple[str, ...], limit: int) -> bytes:
        """Read at most `limit` bytes of the regular file at `way`. Raise `OSError`."""
        return read_regular(way[-1], limit, self.folder(way[:-1]))
