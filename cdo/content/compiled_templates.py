"""Keeps the compiled form of the templates that ship with cdo, so that a run need not compile them again.

Each template has a file in the user's cache folder. Its code is executed, so it is only used if nobody else can have
written it: folder and file belong to the user of this process, and no one else may write to them. The file begins
with a hash of the code and of all that it was compiled from. If the hash differs, or the file cannot be used for any
other reason, the template is compiled, and the file is replaced where that is possible.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import marshal
import os
import stat
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING

import jinja2

from cdo import __version__
from cdo.files.atomic_files import fill, open_directory, temporary_name
from cdo.files.cache_folder import cache_folder
from cdo.security.safe_open import read_regular

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = "templates"  # in the cache folder
MAX_BYTES = 1_000_000
_MADE_BY = (__version__.encode(), jinja2.__version__.encode(), importlib.util.MAGIC_NUMBER)
_HASH = hashlib.sha256().digest_size


def compiled(environment: Environment, name: str, source: str) -> CodeType:
    """Return the code of the template `name`; raises what `environment.compile` raises.

    All environments that are given must have the same options and filters.
    """
    file = f"{name.replace('/', '-')}.bin"
    if (found := _kept(file, source)) is not None:
        return found
    code = environment.compile(source)
    _keep(file, source, marshal.dumps(code))
    return code


def _kept(file: str, source: str) -> CodeType | None:
    """Return the code that was kept for a source, None if there is none that can be used."""
    try:
        with _own_folder() as folder:
            _require_own(os.stat(file, dir_fd=folder, follow_symlinks=False))
            data = read_regular(file, MAX_BYTES, folder)
    except OSError:
        return None
    code = data[_HASH:]
    return marshal.loads(code) if data[:_HASH] == _hash(source, code) else None


def _keep(file: str, source: str, code: bytes) -> None:
    """Write the code of a source to its file. Without a folder for it nothing is kept."""
    with contextlib.suppress(OSError), _own_folder(make=True) as folder:
        temporary = temporary_name(file)
        os.close(fill(folder, temporary, _hash(source, code) + code, 0o600))  # a torn file has another hash
        os.rename(temporary, file, src_dir_fd=folder, dst_dir_fd=folder)


def _hash(source: str, code: bytes) -> bytes:
    parts = (*_MADE_BY, source.encode(), code)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


@contextlib.contextmanager
def _own_folder(*, make: bool = False) -> Iterator[int]:
    """Open the folder of the files. Raises `OSError` if it is missing, or if another user may write to it."""
    place = cache_folder() / FOLDER
    if make:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
    folder = open_directory(place)
    try:
        _require_own(os.fstat(folder))
        yield folder
    finally:
        os.close(folder)


def _require_own(status: os.stat_result) -> None:
    """Raise `PermissionError` if somebody else owns a file or folder, or may write to it."""
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError
