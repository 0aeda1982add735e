"""Creates a session directory atomically: it appears whole under its name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cdo.core.errors import SessionError
from cdo.files import locks
from cdo.files.atomic_files import (
    closing,
    encodable,
    explain,
    fill,
    identity,
    kind_of,
    note_durable,
    open_below,
    open_directory,
    open_path,
    signature,
    sync,
    write_file,
)
from cdo.repository.git import marked_root

_BIRTH = re.compile(r"\.cdo-.+\.[0-9a-f]{8}\.tmp")
_OWN = re.compile(rf"{_BIRTH.pattern}|\.\.gitignore\.[0-9]+\.tmp")  # what a process that was killed may leave
_prepared: set[tuple[int, int]] = set()  # folders (device, inode) that this process has prepared
_STALE = 60.0  # seconds after which an unlocked half-made session is nobody's


class Taken(SessionError):
    """There is a session of this name already."""


def create_session_dir(
    path: Path, files: Mapping[str, str | bytes], redact: Callable[[str], str]
) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Make a new session at `path` with its first `files`; returns it, open and locked, and the files' signatures.

    A file's name may have a folder in front (`calls/0001.jsonl`). Texts are redacted; bytes were before, and are
    taken as they are. Raises `Taken` when it exists already, `SessionError` when it cannot be made.
    """
    out = fd = -1
    try:
        out = open_path(path.parent, make=True)
        _prepare(path.parent, out)
        if (there := kind_of(path.name, out)) is not None:
            raise OSError(errno.ELOOP if there == stat.S_IFLNK else errno.EEXIST, "it exists", path.name)
        birth = f".{path.name}.{os.urandom(4).hex()}.tmp"
        os.mkdir(birth, dir_fd=out)
        try:
            fd = open_directory(birth, out)
            locks.take(fd)  # nobody else knows of it yet
            written = _fill(fd, files, redact)
            # A directory is never renamed over one that holds something: of two that race one wins.
            os.rename(birth, path.name, src_dir_fd=out, dst_dir_fd=out)
        except BaseException:
            _remove(birth, out)
            raise
        sync(out)
    except OSError as error:
        if fd >= 0:
            locks.release(fd)
            os.close(fd)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise Taken(f"There is a session {path} already.", f"`cdo resume {path.name}` goes on with it.") from None
        raise explain(error, path if error.filename == path.name else path.parent) from None
    finally:
        if out >= 0:
            os.close(out)
    return fd, written


def _fill(folder: int, files: Mapping[str, str | bytes], redact: Callable[[str], str]) -> dict[str, tuple[int, ...]]:
    """Make a folder that nobody else knows of hold `calls/` and the files, durably; return the files' signatures."""
    os.mkdir("calls", dir_fd=folder)
    written: dict[str, tuple[int, ...]] = {}
    for name, content in files.items():
        data = content if isinstance(content, bytes) else encodable(redact(content)).encode()
        inside, _, file = name.rpartition("/")
        with open_below(folder, inside, make=True) as place, closing(fill(place, file, data)) as fd:
            sync(fd)
            written[name] = signature(os.fstat(fd))
            if inside:
                sync(place)
    sync(folder)
    with open_below(folder, "calls") as calls:
        note_durable(calls)
    return written


def _prepare(folder: Path, out: int) -> None:
    """Hide the folder of the sessions from git, and sweep it: once in each process, since it may hold thousands."""
    if (place := identity(out)) not in _prepared:
        _sweep(out)
        hide(folder, out)
        _prepared.add(place)


def hide(folder: Path, out: int) -> None:
    """Hide the folder of the first session from git, where a repository is around it and nothing else is in it.

    A failure costs only that: sessions are then shown as untracked.
    """
    if marked_root(folder) and all(_OWN.fullmatch(name) for name in os.listdir(out)):
        with contextlib.suppress(OSError):  # another run was quicker
            write_file(out, ".gitignore", b"*\n", new=True)


def _sweep(out: int) -> None:
    """Remove half-made sessions whose maker was killed: old, and locked by nobody."""
    for name in os.listdir(out):
        if not _BIRTH.fullmatch(name):
            continue
        with contextlib.suppress(OSError), closing(open_directory(name, out)) as birth:
            if time.time() - os.fstat(birth).st_mtime > _STALE and locks.take(birth):
                _remove(name, out)


def _remove(birth: str, out: int) -> None:
    """Remove the half-made folder of a session that was never born."""
    shutil.rmtree(birth, ignore_errors=True, dir_fd=out)
