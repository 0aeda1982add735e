"""Lists the files of a repository that may be shown, with its recent history. Git tells names and history only.

Git runs no program that the repository configures; without git the tree is walked.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from cdo.repository.git import Git
from cdo.repository.visible_files import (
    LINK,
    MAX_BYTES,
    SESSION,
    NotShowable,
    Skipped,
    Tree,
    derived,
    forbidden,
    is_session,
    printable,
    unreadable,
    walk,
)

COMMITS = 15  # commit subjects shown
CHANGES = 100  # commits over which changes of a file are counted
NESTED = "another repository"


class RepositoryFiles(Struct):
    """The contents of a repository: the raw paths of its files, the skipped files, commits, changes by path."""

    files: list[str]
    skipped: list[Skipped]
    commits: list[str] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)


def look_around(tree: Tree) -> RepositoryFiles:
    """Return the files of a work tree, with its history if git can tell it."""
    git = Git(tree.root)
    names = git.ask("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if names is None:
        return _walked(tree)
    found = _judged(tree, sorted(set(names)))
    plain = ("--no-color", "--no-decorate", "--no-renames", "--no-ext-diff", "--no-textconv")
    commits = git.ask("log", f"-n{COMMITS}", "-z", *plain, "--date=short", "--format=%ad %s")
    found.commits = [printable(commit)[:160].rstrip() for commit in commits or []]
    changed = git.ask("log", f"-n{CHANGES}", "-z", *plain, "--name-only", "--format=") or []
    here = set(found.files)
    found.changed = Counter(name for name in (item.strip("\n") for item in changed) if name in here)
    return found


def _walked(tree: Tree) -> RepositoryFiles:
    """Survey the tree without git: no history, and only files that are not ignored."""
    found = RepositoryFiles([], [])
    try:
        for item in walk(tree.folder("")):
            if isinstance(item, Skipped):
                found.skipped.append(item)
            else:
                found.files.append("/".join(item.way[1:]))
    except (OSError, NotShowable):
        found.skipped.append(Skipped("./", "cannot be read"))
    return found


def _judged(tree: Tree, names: Sequence[str]) -> RepositoryFiles:
    """Split the paths that git lists into visible and skipped, by file type and by the names of files and folders."""
    found, folders = RepositoryFiles([], []), dict[str, str]()
    for name in names:
        folder, barred = "", False
        for part in name.rstrip("/").split("/")[:-1]:
            folder += f"{part}/"
            if folder not in folders:
                folders[folder] = _folder_why(tree, folder, part)
                if folders[folder]:
                    found.skipped.append(Skipped(printable(folder), folders[folder]))
            if barred := bool(folders[folder]):
                break
        why = None if barred else _file_why(tree, name)
        if why:
            found.skipped.append(Skipped(printable(name), why))
        elif why is not None:
            found.files.append(name)
    return found


def _folder_why(tree: Tree, folder: str, name: str) -> str:
    here = f"{tree.root}/{folder}"
    if Path(here).is_symlink():
        return LINK
    if is_session(here):
        return SESSION
    return forbidden(name, folder=True) or derived(name, folder=True)


def _file_why(tree: Tree, path: str) -> str | None:
    """Return why a file is skipped, "" if it is not; None if it is missing from the work tree."""
    folder, _, name = path.rstrip("/").rpartition("/")
    try:
        state = os.lstat(f"{tree.root}/{path.rstrip('/')}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return unreadable(error) if isinstance(error, OSError) else "cannot be read"
    if stat.S_ISLNK(state.st_mode):
        return LINK
    if stat.S_ISDIR(state.st_mode):
        return NESTED
    if not stat.S_ISREG(state.st_mode):
        return "not a regular file"
    why = forbidden(name, folder=False, above=folder.rpartition("/")[2]) or derived(name, folder=False)
    return why or ("over 1 MB" if state.st_size > MAX_BYTES else "")
