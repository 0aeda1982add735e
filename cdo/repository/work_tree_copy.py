"""Copies a git work tree without its ignored files, so that a command can be run on the copy.

Only tracked files and files that git does not ignore are copied, with their modes and times. Symlinks are copied as
symlinks if their target is inside the work tree. `.git`, submodules, cdo sessions and other symlinks are left out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

from msgspec import Struct, field

from cdo.core.errors import ConfigError
from cdo.repository.git import Git
from cdo.repository.visible_files import is_session
from cdo.security.safe_open import DirectoryCache

MAX_FILES = 200_000
MAX_BYTES = 4 * 2**30  # of all files together


class Copied(Struct):
    """The result of a copy: number of files, total bytes, and the paths left out."""

    files: int = 0
    size: int = 0
    left_out: list[str] = field(default_factory=list)


def copy(root: Path, target: Path, without: Path) -> Copied:
    """Copy the work tree at `root` into the empty folder `target`, without the folder `without`.

    Raises `ConfigError` if git cannot list the files or they are too many or too large, and `OSError` if they cannot
    be written.
    """
    names = Git(str(root)).ask("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if names is None:
        raise ConfigError(
            f"git cannot list the files of {root}, so they cannot be copied for --check.",
            "`git ls-files` shows why; a lock or a slow disk passes.",
        )
    done, sessions = Copied(), {f"{os.path.relpath(os.path.realpath(without), root)}/": True}
    with DirectoryCache() as descent:
        for name in sorted(set(names)):
            if name.endswith("/") or _of_a_session(root, name, sessions):
                done.left_out.append(name)
                continue
            try:
                _copy_one(root, target, name, descent, done)
            except FileNotFoundError:
                continue  # deleted, and not committed yet
            except OSError as error:
                # A symlink in the path, a submodule, a socket …: not a file of this work tree.
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.EACCES, errno.ENXIO):
                    raise
                done.left_out.append(name)
            if done.files > MAX_FILES or done.size > MAX_BYTES:
                raise ConfigError(
                    f"The work tree {root} is too large to be copied for --check: more than {MAX_FILES:,} files or "
                    f"{MAX_BYTES >> 30} GB.",
                    "Let git ignore the files that the command does not need, or leave --check out.",
                )
    return done


def _copy_one(root: Path, target: Path, name: str, descent: DirectoryCache, done: Copied) -> None:
    *folders, last = name.split("/")
    above = descent.folder((str(root), *folders))
    status = os.stat(last, dir_fd=above, follow_symlinks=False)
    place = target / name
    if stat.S_ISLNK(status.st_mode):
        leads = os.readlink(last, dir_fd=above)
        inside = os.path.normpath("/".join([*folders, leads]))
        if leads.startswith("/") or inside.split("/")[0] == "..":
            raise OSError(errno.ELOOP, "the link leads out of the work tree")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(leads)
        done.files += 1
        return
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    place.parent.mkdir(parents=True, exist_ok=True)
    source = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
    with os.fdopen(source, "rb") as there, place.open("xb") as here:
        shutil.copyfileobj(there, here, 1 << 20)
        os.fchmod(here.fileno(), stat.S_IMODE(status.st_mode) & 0o777 | 0o200)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    done.files += 1
    done.size += status.st_size


def _of_a_session(root: Path, name: str, known: dict[str, bool]) -> bool:
    """True if a file belongs to a cdo session; `known` caches the result by folder."""
    folder = ""
    for part in name.split("/")[:-1]:
        folder += f"{part}/"
        if folder not in known:
            with contextlib.suppress(OSError):
                known[folder] = is_session(f"{root}/{folder}")
        if known.get(folder):
            return True
    return False
