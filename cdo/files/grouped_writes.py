"""Writes many files with few waits for the disk, each whole or not at all, also after a power loss.

The files of a group get their bytes first, then become durable together, and then get their names. A large group is
made durable with `syncfs` where the system has it: one wait for all files instead of one for each. A small group, or
one in a single folder, is synced file by file, because `syncfs` also writes what other programs have left unwritten.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys

from msgspec import Struct

from cdo.files.atomic_files import fill, open_below, sync, temporary_name

TOGETHER = 4  # files from which on a group is synced as a whole, if they lie in several folders
MOST = 64  # files of one group: each holds a file descriptor until the group is written
# Types of file systems (`statfs`) whose `syncfs` makes files and names durable: ext2 to ext4, XFS, Btrfs, F2FS,
# bcachefs, tmpfs and overlayfs.
_SURE = frozenset((0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0xCA451A4E, 0x01021994, 0x794C7630))


class _Unnamed(Struct, frozen=True):
    """A file that has its bytes and not its name yet; `directory` is an open directory."""

    directory: int
    temporary: str
    name: str
    fd: int


class GroupedWrites:
    """A group of files to write. After `add` for each file, call `commit`; call `close` in any case."""

    def __init__(self) -> None:
        self._files: list[_Unnamed] = []
        self._opened: dict[tuple[int, str], int] = {}
        self._named = 0

    def __len__(self) -> int:
        return len(self._files)

    def add(self, directory: int, name: str, data: bytes, folder: str = "") -> None:
        """Give a file of an open directory, or of a folder in it, its bytes under a temporary name; raise `OSError`.

        A folder that is missing is made. The directory stays open until the group is closed. A group must not have
        two files of one name in one directory.
        """
        place = self._folder(directory, folder) if folder else directory
        temporary = temporary_name(name)
        self._files.append(_Unnamed(place, temporary, name, fill(place, temporary, data)))

    def _folder(self, directory: int, folder: str) -> int:
        """Return a folder of an open directory, which is open until the group is closed."""
        if (found := self._opened.get((directory, folder))) is None:
            with open_below(directory, folder, make=True) as place:
                found = self._opened[directory, folder] = os.dup(place)
        return found

    def commit(self) -> list[os.stat_result]:
        """Make the files durable under their names; return their status in the order of `add`. Raise `OSError`."""
        files, directories = self._files, list(dict.fromkeys(file.directory for file in self._files))
        if not files:
            return []
        many = len(files) >= TOGETHER and len(directories) > 1
        whole = many and len({os.fstat(fd).st_dev for fd in directories}) == 1 and syncs_whole(files[0].fd)
        self._sync([file.fd for file in files], whole=whole)
        for file in files:
            os.rename(file.temporary, file.name, src_dir_fd=file.directory, dst_dir_fd=file.directory)
            self._named += 1
        found = [os.fstat(file.fd) for file in files]
        self._sync(directories, whole=whole)
        return found

    def _sync(self, fds: list[int], *, whole: bool) -> None:
        if whole:
            sync_file_system(fds[0])
        else:
            for fd in fds:
                sync(fd)

    def close(self) -> None:
        """Remove files that did not get their names, and close all; raise nothing."""
        for number, file in enumerate(self._files):
            if number >= self._named:
                with contextlib.suppress(OSError):
                    os.unlink(file.temporary, dir_fd=file.directory)
            os.close(file.fd)
        for place in self._opened.values():
            os.close(place)
        self._files, self._opened = [], {}


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The C library, where its `syncfs` reports failed writes: on Linux from 5.8 on."""
    if not sys.platform.startswith("linux"):
        return None
    version = os.uname().release.split(".")
    try:
        library = ctypes.CDLL(None, use_errno=True)
        recent = (int(version[0]), int(version[1])) >= (5, 8)
        return library if recent and hasattr(library, "syncfs") and hasattr(library, "fstatfs") else None
    except (OSError, ValueError, IndexError):
        return None


def syncs_whole(fd: int) -> bool:
    """True if `sync_file_system` makes the files of this file system durable, and their names."""
    library = _library()
    if library is None:
        return False
    status = ctypes.create_string_buffer(512)  # struct statfs; its first field is the type
    if library.fstatfs(fd, status) != 0:
        return False
    return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF in _SURE


def sync_file_system(fd: int) -> None:
    """Make everything durable that was written to the file system of an open file; raise `OSError`."""
    library = _library()
    assert library is not None
    if library.syncfs(fd) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
