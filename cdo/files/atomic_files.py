"""Writes files that survive a crash: whole or not at all, in folders that are reached through no symlink.

A file is written as a temporary file, synced and renamed, then its directory is synced. Directories are passed on
open (as file descriptors), so that no symlink can take their place in between. Functions raise `OSError` unless they
say otherwise; `explain` puts one into words, `unwritable` one that came of writing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from cdo.core.errors import DiskFailed, SessionError
from cdo.core.file_paths import delivered

_FOLDERS = re.compile(r"[a-z][a-z0-9-]*(/[a-z0-9][a-z0-9-]*){0,9}")  # of cdo's own files in a session
TEMPORARY = re.compile(r"\..+\.[0-9]+\.tmp")  # names of files that are being written
_JUST_NOW = 20_000_000  # nanoseconds since a change after which a save may still be under way
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that cannot sync this kind of file
_synced: set[tuple[int, int]] = set()  # folders (device, inode) whose names this process knows to be durable


def write_file(directory: int, name: str, data: bytes, *, new: bool = False, mode: int = 0o644) -> os.stat_result:
    """Make the file `name` in an open directory hold `data`: whole or not at all, also after a power loss.

    A `new` one never takes the place of another: then `FileExistsError` is raised.
    """
    temporary = temporary_name(name)
    fd = fill(directory, temporary, data, mode)
    try:
        sync(fd)
        if new:
            _take_name(temporary, name, directory)
        else:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        result = os.fstat(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(fd)
    sync(directory)
    return result


def temporary_name(name: str) -> str:
    """The name that a file has while this process writes it."""
    return f".{name}.{os.getpid()}.tmp"


def fill(directory: int, temporary: str, data: bytes, mode: int = 0o644) -> int:
    """Make a file with these bytes in an open directory, and return it open. One of this name is replaced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        fd = os.open(temporary, flags, mode, dir_fd=directory)
    except FileExistsError:  # left by a process of the same number that was killed
        os.unlink(temporary, dir_fd=directory)
        fd = os.open(temporary, flags, mode, dir_fd=directory)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    return fd


def sync(fd: int) -> None:
    """Make an open file or directory durable, if its file system can do that.

    Some network and FUSE file systems refuse `fsync`, most of them for directories. Nothing more can be done there.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _take_name(temporary: str, name: str, directory: int) -> None:
    """Give a file its name, of which there must be none yet; raise `FileExistsError` where there is one."""
    try:
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system that knows no second name: then an empty file holds it for a moment.
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory))
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    else:
        os.unlink(temporary, dir_fd=directory)


def identity(fd: int) -> tuple[int, int]:
    """What tells an open file or directory from all others: its device and inode."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def note_durable(name: str, parent: int) -> None:
    """Note that the name of a folder is durable: its parent, an open directory, was synced since it was made."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    _synced.add((status.st_dev, status.st_ino))


def read_file(
    directory: int, name: str, limit: int = 64 * 2**20, *, written: tuple[int, ...] = ()
) -> tuple[bytes, os.stat_result]:
    """Read a regular file of an open directory, never through a link; raise `OSError`.

    A file that is being saved in place meanwhile is read again, so that no half of it counts. One that changed just
    now has to read the same twice: in the middle of a save it may look whole. That does not hold for a file whose
    signature is `written`, the one that this process left it with.
    """
    last: bytes | None = None
    for _ in range(20):
        data, before, after = _read_once(directory, name, limit)
        whole = signature(before) == signature(after) and len(data) == after.st_size
        rests = signature(after) == written or not 0 <= time.time_ns() - after.st_mtime_ns < _JUST_NOW
        if whole and (rests or data == last):
            break
        last = data if whole else None
        time.sleep(0.005)
    return data, after


def read_end(directory: int, name: str, size: int) -> bytes:
    """The last `size` bytes of a regular file of an open directory, however long it is; raise `OSError`."""
    with closing(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)) as fd:
        return os.pread(fd, size, max(0, os.fstat(fd).st_size - size))


def _read_once(directory: int, name: str, limit: int) -> tuple[bytes, os.stat_result, os.stat_result]:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", name)
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts), status, os.fstat(fd)
    finally:
        os.close(fd)


def open_directory(path: str | Path, parent: int | None = None) -> int:
    """Open a directory, never through a link at its end."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(path, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
        raise


def open_path(path: Path, *, make: bool = False) -> int:
    """Open a folder by its path; `make` what is missing of it, durably.

    No part of a relative path may be a link: the repository one stands in could have planted it. An absolute path
    is a person's own word, links and all.
    """
    base, parts = Path(), list(path.parts)
    if path.is_absolute():
        base, parts = path, []
        while make and not base.exists():
            parts.insert(0, base.name)
            base = base.parent
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts:
        try:
            inner = open_or_make(part, fd) if make else open_directory(part, fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def open_or_make(name: str, parent: int) -> int:
    """Open a folder of an open directory; make it, durably, where it is missing.

    One that is there may have been made by a process that was killed before its name was durable: so that is seen
    to once in each process.
    """
    made = False
    try:
        fd = open_directory(name, parent)
    except FileNotFoundError:
        made = True
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        fd = open_directory(name, parent)
    if (folder := identity(fd)) not in _synced or made:
        try:
            sync(parent)
        except BaseException:
            os.close(fd)
            raise
        _synced.add(folder)
    return fd


def is_session_folder(name: str) -> bool:
    """True if a session can have a folder of this name: one of cdo's own, or one of a mission's deliverables."""
    return bool(_FOLDERS.fullmatch(name)) or delivered(name)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close `fd` at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def open_below(directory: int, folder: str, *, make: bool = False) -> Iterator[int]:
    """A folder of a session below an open one, as `is_session_folder` tells; "" is that one itself.

    Raises `FileNotFoundError` where it is missing and not to be made, `ValueError` for a name that is not cdo's own.
    """
    if folder and not is_session_folder(folder):
        raise ValueError(f"{folder!r} is not a folder of a session")
    if not folder:
        yield directory
        return
    fd = directory
    try:
        for part in folder.split("/"):
            inner = open_or_make(part, fd) if make else open_directory(part, fd)
            if fd != directory:
                os.close(fd)
            fd = inner
        yield fd
    finally:
        if fd != directory:
            os.close(fd)


def kind_of(name: str, directory: int) -> int | None:
    """The type bits (`stat.S_IFMT`) of an entry of an open directory, a link's own; None when it is not there."""
    status = status_of(name, directory)
    return stat.S_IFMT(status.st_mode) if status else None


def status_of(name: str, directory: int) -> os.stat_result | None:
    """What is known of an entry of an open directory, a link's own; None when it is not there."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def signature(status: os.stat_result) -> tuple[int, ...]:
    """What of a file differs once it was written to or replaced."""
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def encodable(text: str) -> str:
    """`text` with what UTF-8 cannot hold (lone surrogates) replaced, so that memory and disk agree."""
    if text.isascii():  # which is known of a text without reading it
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def names_in(folder: Path) -> list[str]:
    """The names of what is in a folder that a person named; [] where there is none."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, folder) from None


def file_new(folder: Path, name: str, text: str) -> Path:
    """Write a new file into a folder that a person named; the folder is made.

    Raises `SessionError`, and `FileExistsError` where there is such a file: it is never written over.
    """
    try:
        with closing(open_path(folder, make=True)) as place:
            write_file(place, name, encodable(text).encode(), new=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise explain(error, folder / name) from None
    return folder / name


_FULL = "Make room, then `cdo resume`, or `cdo batch resume NAME`: nothing recorded is lost."


def explain(error: OSError, path: Path | str) -> SessionError:
    """A file system's refusal as a sentence."""
    reasons = {
        errno.ENOSPC: ("the disk is full", _FULL),
        errno.EDQUOT: ("your disk quota is used up", _FULL),
        errno.ENOENT: ("there is no such file or folder", "Check the path, or choose another place with --out."),
        errno.EROFS: ("the file system is read-only", "Choose another place with --out."),
        errno.EACCES: ("permission is denied", "Choose another place with --out, or fix the permissions."),
        errno.EIO: ("the disk reports an input/output error", "Check the disk before you resume."),
        errno.ELOOP: ("it is a symbolic link", "cdo does not follow links; remove it, or give the real path."),
        errno.ENOTDIR: ("a part of the path is not a folder", "Choose another place with --out."),
    }
    why, hint = reasons.get(error.errno or 0, (error.strerror or str(error), "Fix that, then `cdo resume`."))
    return SessionError(f"{path} cannot be used: {why}.", hint)


_REMEDIES = {
    errno.ENOSPC: "Make room",
    errno.EDQUOT: "Make room",
    errno.EROFS: "Make it writable",
    errno.EIO: "Check the disk",
}


def unwritable(error: OSError, path: Path | str) -> SessionError:
    """The refusal of a write as a sentence: `DiskFailed` where no other file could be written either."""
    found = explain(error, path)
    if remedy := _REMEDIES.get(error.errno or 0):
        return DiskFailed(found.message, found.hint, remedy)
    return found
