"""Brings the session of an item to the coordinator, from a worker whose disk is its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cdo.core.errors import SessionError
from cdo.security.secrets import redactor
from cdo.session.store import Session

MOST = 32 * 2**20  # bytes of a session that are sent; one that is larger stays with its worker


def packed(path: Path) -> dict[str, str] | None:
    """Return the files of a session by their names below its folder; None if they are too many or cannot be read.

    Bytes that are no UTF-8 become surrogates. What begins with a dot is the process's own, and stays.
    """
    found, size = dict[str, str](), 0
    try:
        for folder, _, names in os.walk(path):
            for file in (Path(folder, name) for name in names if not name.startswith(".")):
                if file.is_symlink() or not file.is_file():
                    continue
                if (size := size + file.stat().st_size) > MOST:
                    return None
                found[file.relative_to(path).as_posix()] = file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return None
    return found


def unpacked(path: Path, files: Mapping[str, str]) -> None:
    """Write a session that was `packed`, whole or not at all; raise `SessionError`, also if there is one already."""
    try:
        data = {name: text.encode("utf-8", "surrogateescape") for name, text in files.items()}
        Session.create(path, data, redactor(os.environ)).close()
    except ValueError as error:  # a folder that no session has
        raise SessionError(f"The worker sent data that is not a session: {error}.", "Look at its disk.") from None
