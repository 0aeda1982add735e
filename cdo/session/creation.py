"""Creates a session directory atomically: it appears whole under its name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from cdo.core.errors import SessionError
from cdo.files import grouped_writes, locks
from cdo.files.atomic_files import (
    closing,
    encodable,
    fill,
    identity,
    kind_of,
    note_durable,
    open_below,
    open_directory,
    open_path,
    signature,
    sync,
    unwritable,
    write_file,
)
from cdo.repository.git import marked_root

_BIRTH = re.compile(r"\.cdo-.+\.[0-9a-f]{8}\.tmp")
_OWN = re.compile(rf"{_BIRTH.pattern}|\.\.gitignore\.[0-9]+\.tmp")  # what a process that was killed may leave
_prepared: set[tuple[int, int]] = set()  # folders (device, inode) that this process has prepared
_STALE = 60.0  # seconds after which an unlocked half-made session is nobody's


class Taken(SessionError):
    """There is a session of this name already."""


class NewFolder(Struct, frozen=True):
    """A session's folder to create at `path` with its first `files`, whose names may have a folder in front.

    Texts are redacted; bytes were before, and are taken as they are.
    """

    path: Path
    files: Mapping[str, str | bytes]
    redact: Callable[[str], str]


class MadeFolder(Struct, frozen=True):
    """A session's folder, open and locked, and the signatures of the files in it."""

    fd: int
    written: dict[str, tuple[int, ...]]


class _Birth(Struct):
    """A folder on its way: open and locked under a name that nobody looks for, below the open folder `out`.

    `unsynced` are open files and folders in it, in the order in which they become durable.
    """

    new: NewFolder
    out: int = -1  # closed by whoever has opened it
    name: str = ""
    fd: int = -1
    unsynced: list[int] = field(default_factory=list)
    written: dict[str, tuple[int, ...]] = field(default_factory=dict)
    failure: SessionError | None = None

    def fill(self, opened: dict[Path, int]) -> None:
        """Make the folder, with `calls/` and the files in it; raise `OSError`.

        `opened` takes in the folder around it, unless that is there.
        """
        path = self.new.path
        if path.parent not in opened:
            opened[path.parent] = open_path(path.parent, make=True)
        self.out = opened[path.parent]
        _prepare(path.parent, self.out)
        if (there := kind_of(path.name, self.out)) is not None:
            raise OSError(errno.ELOOP if there == stat.S_IFLNK else errno.EEXIST, "it exists", path.name)
        name = f".{path.name}.{os.urandom(4).hex()}.tmp"
        os.mkdir(name, dir_fd=self.out)
        self.name = name
        self.fd = open_directory(name, self.out)
        locks.take(self.fd)  # nobody else knows of it yet
        os.mkdir("calls", dir_fd=self.fd)
        for file, content in self.new.files.items():
            data = content if isinstance(content, bytes) else encodable(self.new.redact(content)).encode()
            inside, _, last = file.rpartition("/")
            with open_below(self.fd, inside, make=True) as place:
                self.unsynced.append(fill(place, last, data))
                self.written[file] = signature(os.fstat(self.unsynced[-1]))
                if inside:
                    self.unsynced.append(os.dup(place))

    def sync(self) -> None:
        """Make what is in the folder durable; raise `OSError`."""
        for fd in (*self.unsynced, self.fd):
            sync(fd)

    def take_name(self) -> None:
        """Give the folder, whose content is durable, its name; raise `OSError`."""
        note_durable("calls", self.fd)
        # A directory is never renamed over one that holds something: of two that race one wins.
        os.rename(self.name, self.new.path.name, src_dir_fd=self.out, dst_dir_fd=self.out)
        self.name = ""

    def fail(self, error: OSError) -> None:
        """Note why there is no session, and give up what there is of it."""
        path = self.new.path
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            name = path.name.removeprefix("cdo-")
            self.failure = Taken(f"There is a session {path} already.", f"`cdo resume {name}` goes on with it.")
        else:
            self.failure = unwritable(error, path if error.filename == path.name else path.parent)
        self.give_up()

    def give_up(self) -> None:
        """Remove the folder unless it has its name, and close it."""
        if self.name:
            _remove(self.name, self.out)
        if self.fd >= 0:
            locks.release(self.fd)
            os.close(self.fd)
        self.name, self.fd = "", -1

    def close(self) -> None:
        """Close the files of the folder."""
        for fd in self.unsynced:
            os.close(fd)


def create_session_dir(new: NewFolder) -> MadeFolder:
    """Make the folder of a session. Raise `Taken` when it exists already, `SessionError` when it cannot be made."""
    (made,) = create_session_dirs([new])
    if isinstance(made, SessionError):
        raise made
    return made


def create_session_dirs(wanted: Sequence[NewFolder]) -> list[MadeFolder | SessionError]:
    """Make folders as `create_session_dir` does, or return why not, in their order.

    They become durable together, so that many wait for the disk hardly more often than one. An error of the disk then
    concerns all of them, because whose file it was cannot be told.
    """
    births, opened = [_Birth(new) for new in wanted], dict[Path, int]()
    try:
        for birth in births:
            _try([birth], partial(birth.fill, opened))
        _together(births, _Birth.sync)
        for birth in births:
            _try([birth], birth.take_name)
        _together(births, lambda birth: sync(birth.out))
    except BaseException:
        for birth in births:
            birth.give_up()
        raise
    finally:
        for birth in births:
            birth.close()
        for out in opened.values():
            os.close(out)
    return [birth.failure or MadeFolder(birth.fd, birth.written) for birth in births]


def _together(births: Sequence[_Birth], sync_one: Callable[[_Birth], None]) -> None:
    """Make what was done for these births durable: as a whole if they are many, on one disk that can do that."""
    live = [birth for birth in births if birth.failure is None]
    if (
        len(live) > 1
        and len({os.fstat(out).st_dev for out in {birth.out for birth in live}}) == 1
        and grouped_writes.syncs_whole(live[0].fd)
    ):
        _try(live, lambda: grouped_writes.sync_file_system(live[0].fd))
        return
    for birth in live:
        _try([birth], partial(sync_one, birth))


def _try(births: Sequence[_Birth], action: Callable[[], None]) -> None:
    """Do something for births that have not failed; an `OSError` is the failure of all of them."""
    live = [birth for birth in births if birth.failure is None]
    try:
        if live:
            action()
    except OSError as error:
        for birth in live:
            birth.fail(error)


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
