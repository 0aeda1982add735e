"""Opens untrusted files: regular files only, never through a symlink."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_MAX_DEEP = 200  # folders on the way to a file
_MAX_OPEN = 64  # folders held open at once


def read_regular(path: str | Path, limit: int, folder: int | None = None) -> bytes:
    """At most `limit` bytes of a regular file; never waits for a FIFO or follows a link. Raises `OSError`.

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
    """Whether there is anything at `path`, a dangling link included; relative ones as in `read_regular`."""
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return False
    return True


class DirectoryCache:
    """Folders, each opened from the one above it and never through a symbolic link.

    A way there is a real path to start from, then the names from there on. Whoever puts a link in the place of a
    folder, at whatever moment, causes an error and shows no way out. The folders that were used last stay open: what
    is near them is cheap. A context manager closes them.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, ...], int] = {}  # the one that was used last at the end

    def __enter__(self) -> DirectoryCache:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def folder(self, way: tuple[str, ...]) -> int:
        """The folder at the end of `way`, open at least until the next call. Raises `OSError`."""
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
        """At most `limit` bytes of the regular file at the end of `way`. Raises `OSError`."""
        return read_regular(way[-1], limit, self.folder(way[:-1]))
