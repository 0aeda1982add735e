"""Locks open folders against other processes.

The kernel frees a lock (`flock`) when its holder closes the folder or ends, also when it is killed. Some network and
FUSE file systems have no such locks. There a file in the folder names the process that holds the lock: `release`
removes the file, and the lock of a process that has ended on this machine is taken over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from msgspec import Struct

FILE = ".cdo-lock"  # stands for the lock where the file system has none
_BREAKING = ".cdo-lock-breaking"  # held for a moment by whoever removes the lock of a process that has ended
_PAUSE = 0.01  # seconds between two tries
_YOUNG = 60.0  # seconds for which a lock file that names no process may still be about to be written
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class _LockFile(Struct, frozen=True):
    """A lock file as it was read: which file it is, its age in seconds, and its content."""

    inode: int
    age: float
    content: bytes


class _Held(Struct, frozen=True):
    """A lock file of this process, and whose lock it took over ("" for nobody's)."""

    inode: int
    broken: str


_held: dict[int, _Held] = {}  # by the open folder


def take(fd: int, patience: float = 0.0, *, shared: bool = False) -> bool:
    """Lock the open folder `fd` until it is released and closed; False if another keeps it for `patience` seconds.

    A `shared` lock goes together with other shared ones. Raises `OSError`.
    """
    limit = time.monotonic() + patience
    while not _taken(fd, shared):
        if time.monotonic() >= limit:
            return False
        time.sleep(_PAUSE)
    return True


def release(fd: int) -> None:
    """Give up the lock of an open folder. Closing the folder is enough where the file system has locks."""
    if held := _held.pop(fd, None):
        with contextlib.suppress(OSError):
            if (there := _read(fd)) and there.inode == held.inode:
                os.unlink(FILE, dir_fd=fd)


def broken(fd: int) -> str:
    """Whose lock `take` had to break for this folder: a process that ended without releasing it; "" for nobody's."""
    held = _held.get(fd)
    return held.broken if held else ""


def _taken(fd: int, shared: bool) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS or not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise
        return _file_taken(fd, shared)
    return True


# -- where the file system has no locks ------------------------------------------------------------


def _file_taken(fd: int, shared: bool) -> bool:
    """Take the lock by its file. A shared lock leaves no file: it only sees that no process holds the whole one."""
    whose, there = "", _read(fd)
    if there:
        if not _abandoned(fd, there):
            return False
        if not shared and not _removed(fd, there):
            return False
        whose = there.content.decode("utf-8", "replace")
    if shared:
        return True
    try:
        lock = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=fd)
    except FileExistsError:
        return False
    try:
        _held[fd] = _Held(os.fstat(lock).st_ino, whose)
        os.write(
            lock, json.dumps({"host": _host(), "pid": os.getpid(), "start": process_start(os.getpid())}).encode()
        )
    except OSError:
        release(fd)
        raise
    finally:
        os.close(lock)
    return True


def _read(fd: int) -> _LockFile | None:
    """Return the lock file of a folder, None if there is none."""
    try:
        lock = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(lock)
        return _LockFile(status.st_ino, time.time() - status.st_mtime, os.read(lock, 4096))
    finally:
        os.close(lock)


def _abandoned(fd: int, lock: _LockFile) -> bool:
    """True if the process that a lock file names has ended. Nothing is known of those of other machines."""
    try:
        told = json.loads(lock.content)
        host, pid, start = told["host"], int(told["pid"]), told["start"]
    except (ValueError, LookupError, TypeError):
        return lock.age > _YOUNG
    if host != _host():
        return False
    if pid == os.getpid() and start == process_start(pid):
        return not any(held.inode == lock.inode and other != fd and _same(other, fd) for other, held in _held.items())
    began = process_start(pid)
    return began is not None and began != start


def _same(other: int, fd: int) -> bool:
    """True if both are open, and the same folder."""
    try:
        return os.path.samestat(os.fstat(other), os.fstat(fd))
    except OSError:
        return False


def _removed(fd: int, lock: _LockFile) -> bool:
    """Remove an abandoned lock file, unless another process is just doing so or has taken the lock since."""
    try:
        os.close(os.open(_BREAKING, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=fd))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):  # whoever made it may have been killed
            if time.time() - os.stat(_BREAKING, dir_fd=fd, follow_symlinks=False).st_mtime > _YOUNG:
                os.unlink(_BREAKING, dir_fd=fd)
        return False
    try:
        there = _read(fd)
        if there is None or (there.inode, there.content) != (lock.inode, lock.content):
            return False
        os.unlink(FILE, dir_fd=fd)
        return True
    finally:
        os.unlink(_BREAKING, dir_fd=fd)


@cache
def _host() -> str:
    """Return what tells this machine, and the part of it that sees the same processes, from others."""
    machine = processes = ""
    with contextlib.suppress(OSError, ValueError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii")
    with contextlib.suppress(OSError):
        processes = str(Path("/proc/self/ns/pid").readlink())
    return f"{os.uname().nodename} {hashlib.sha256(f'{machine} {processes}'.encode()).hexdigest()[:16]}"


def process_start(pid: int) -> str | None:
    """Return when a process of this machine began, "" if it has ended, None if that cannot be seen.

    A process that got the id of one that ended began at another time.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return ""
    except PermissionError:  # another user's
        pass
    if sys.platform == "linux":
        try:
            state, *numbers = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        return "" if state == "Z" else f"{boot} {numbers[18]}"
    command = ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    state, _, began = said.strip().partition(" ")
    return "" if state.startswith("Z") else began.strip() or None
