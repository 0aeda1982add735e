"""Finds the git work tree around a folder, without running git."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def root_of(start: Path) -> Path | None:
    """Return the top of the git work tree that contains `start`, or None. Does not run git."""
    start = Path(os.path.realpath(start))
    return next((place for place in (start, *start.parents) if _is_work_tree(place)), None)


def is_git_directory(folder: Path) -> bool:
    """Return whether a folder has what a `.git` and the top of a bare repository must have."""
    return all(os.access(folder / name, os.F_OK) for name in ("HEAD", "objects", "refs"))


def _is_work_tree(place: Path) -> bool:
    """True if a folder has a valid `.git`: a folder with repository data, or a file that points to one."""
    data = place / ".git"
    try:
        if data.is_dir():
            return is_git_directory(data)
        with data.open("rb") as file:
            line = file.read(4096) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        target = os.fsdecode(line.partition(b"\n")[0].removeprefix(b"gitdir:").strip())
        return line.startswith(b"gitdir:") and (place / target / "HEAD").exists()
    except (OSError, ValueError):
        return False
