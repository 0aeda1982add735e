"""Remembers what a person has trusted: by kind, path and hash, in one file of the user's data folder.

A project's `.cdo` folder decides what a run costs, which programs it starts and where keys are sent. Its skills steer
the voices. Anyone who can write to a repository can place them there. So none of it is used before a person has
trusted it, and none after it changed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from cdo.core.errors import ConfigError
from cdo.core.schema import Schema
from cdo.files import locks
from cdo.files.atomic_files import closing, open_directory, write_file
from cdo.security.safe_open import read_regular

MAX_BYTES = 4_000_000
_MEND = "Remove the file (you will be asked to trust again), or put its backup back."


class Pin(Schema, frozen=True, kw_only=True):
    """One thing that is trusted as it was: the hash is of the file's bytes."""

    kind: Annotated[str, Meta(min_length=1)]
    path: Annotated[str, Meta(min_length=1)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _TrustFile(Schema, frozen=True, kw_only=True):
    """`trusted.json`."""

    version: Literal[1] = 1
    trusted: tuple[Pin, ...] = ()


def data_folder() -> Path:
    """Where cdo keeps what it remembers for a person (`CDO_DATA_DIR` moves it)."""
    if custom := os.environ.get("CDO_DATA_DIR"):
        return Path(custom).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("cdo"))


class Trust(Struct):
    """What is trusted. `pin` adds to it, in the file too; another process may do so at the same time."""

    file: Path
    _pins: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (kind, path) → sha256

    @classmethod
    def load(cls) -> Trust:
        """Read what was trusted so far; raise `ConfigError` where the file cannot be read or is damaged."""
        file = data_folder() / "trusted.json"
        return cls(file, _read(file))

    def holds(self, kind: str, path: Path | str, sha256: str) -> bool:
        """True if what is at `path`, with this hash, was trusted as a `kind` ("project", "skill", "check")."""
        return self._pins.get((kind, _real(path))) == sha256

    def pin(self, kind: str, items: Iterable[tuple[Path | str, str]]) -> None:
        """Trust each (path, sha256) as a `kind`, in place of what was pinned for the path before.

        Raises `ConfigError` where the file cannot be written or is damaged; then nothing is trusted anew.
        """
        fresh = {(kind, _real(path)): sha256 for path, sha256 in items}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with closing(open_directory(self.file.parent)) as folder:
                locks.take(folder, math.inf)  # two processes do not lose each other's pins
                try:
                    pins = {**_read(self.file), **fresh}
                    write_file(folder, self.file.name, _text(pins), mode=0o600)
                finally:
                    locks.release(folder)
        except OSError as error:
            raise ConfigError(
                f"{self.file} cannot be written: {error.strerror}.",
                "Fix its permissions, or set CDO_DATA_DIR to a folder that can be written.",
            ) from None
        self._pins = pins


def _real(path: Path | str) -> str:
    return os.path.realpath(path)


def _read(file: Path) -> dict[tuple[str, str], str]:
    try:
        data = read_regular(file, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):  # nothing was trusted yet
        return {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", _MEND) from None
    try:
        pins = msgspec.json.decode(data, type=_TrustFile).trusted
    except msgspec.DecodeError:
        raise ConfigError(f"{file} is damaged: it does not say what you have trusted.", _MEND) from None
    return {(pin.kind, pin.path): pin.sha256 for pin in pins}


def _text(pins: Mapping[tuple[str, str], str]) -> bytes:
    rows = [{"kind": kind, "path": path, "sha256": sha256} for (kind, path), sha256 in sorted(pins.items())]
    return (json.dumps({"version": 1, "trusted": rows}, indent=2) + "\n").encode()
