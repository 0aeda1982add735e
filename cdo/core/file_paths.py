"""Decides which paths of files a model may give: relative, harmless on every system, and without collisions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST = 200  # characters of a path
DELIVERED = "deliverables/"  # the folder of a session that holds what was accepted
_PLACES = (DELIVERED, f"superseded/{DELIVERED}")
DEEPEST = 20  # folders in a path
_FORBIDDEN = frozenset((".git", ".cdo"))
_DEVICES = frozenset(
    (
        "con",
        "prn",
        "aux",
        "nul",
        "conin$",
        "conout$",
        *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)),
    )
)
_WINDOWS = frozenset('<>:"|?*')
_MARKDOWN = (".md", ".markdown")


def is_folder(path: str) -> bool:
    """True if a product's path names a folder: it ends in a slash."""
    return path.endswith("/")


def is_markdown(path: str) -> bool:
    """True if the file at a path is Markdown; a document without a path ("") is."""
    return not path or path.casefold().endswith(_MARKDOWN)


def problem(path: str, *, folder: bool = False) -> str:
    """Return why a path cannot be used, as a clause, "" if it can. With `folder`, it may end in a slash."""
    bare = path[:-1] if folder and path.endswith("/") else path
    if not bare:
        return "it is empty"
    if len(path) > MOST:
        return f"it has {len(path)} characters, and {MOST} is the most"
    if "\\" in path:
        return "it has a backslash; separate folders with /"
    if path.startswith(("/", "~")) or re.match(r"[A-Za-z]:", path):
        return "it must be relative, such as src/app.js"
    if not path.isprintable():
        return "it has a control character or another one that cannot be seen"
    parts = bare.split("/")
    if len(parts) > DEEPEST:
        return f"it has more than {DEEPEST} folders"
    return next((f"its part `{part}` {why}" for part in parts if (why := _unusable(part))), "")


def _unusable(part: str) -> str:
    """Return why one part of a path cannot be the name of a file or folder, "" if it can."""
    name = part.casefold()
    if not part:
        return "is empty: there are two slashes in a row"
    if not part.strip("."):
        return "has only dots"
    if part != part.strip() or part.endswith("."):
        return "begins or ends with a blank, or ends with a dot"
    if name in _FORBIDDEN or re.fullmatch(r"git~\d+", name):
        return "is a folder of git's or cdo's own"
    if name.partition(".")[0].strip() in _DEVICES:
        return "is the name of a device on Windows"
    if bad := next((char for char in part if char in _WINDOWS), ""):
        return f"has the character {bad}"
    return "is longer than 120 characters" if len(part) > 120 else ""


def collision(path: str, others: Iterable[str]) -> str:
    """Return the first of `others` that cannot stand beside a path, "" if all can. Letter case is ignored.

    Two equal paths cannot, and neither can a file, or a folder of its own, that lies in the folder or at the place of
    the other.
    """
    mine = path.casefold()
    for other in others:
        theirs = other.casefold()
        if mine.rstrip("/") == theirs.rstrip("/"):
            return other
        if mine.startswith(f"{theirs.rstrip('/')}/") or theirs.startswith(f"{mine.rstrip('/')}/"):
            return other
    return ""


def delivered(name: str) -> bool:
    """True if a name in a session is that of a file or folder below its deliverables, with a usable path."""
    return any(name.startswith(place) and not problem(name.removeprefix(place)) for place in _PLACES)
