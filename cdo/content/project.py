"""Reads a project's `.cdo` folder: its configuration and content files, and whether a person trusts them.

Anyone who can write to a repository can place files there, and these could multiply the cost of a run, start programs
and send keys elsewhere. So trust is one decision for the whole folder, pinned by one hash of all files in it. It ends
when any of them changes. Skills are trusted one by one as well (`content/skill_files.py`).
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from cdo.core.errors import ConfigError
from cdo.core.formatting import pluralise
from cdo.security.safe_open import read_regular

FOLDERS = ("presets", "domains", "templates", "engine", "dispatch", "modes")
SUFFIXES = (".yaml", ".md")
CONFIG = "config.yaml"
PROVIDERS = "dispatch/providers"  # the table of where keys are sent
KIND = "project"  # the kind of the pin in the file of trust
MAX_BYTES = 1_000_000  # of one file
MAX_FILES, MAX_TOTAL, MAX_DEPTH = 1000, 20_000_000, 4
_NAMED = 6  # files that the remark about an untrusted project lists


class ProjectFolder(Struct, frozen=True):
    """The files of a project's `.cdo` that cdo would use, as they were when they were read.

    `files` maps a path below `folder`, such as "presets/think.yaml", to its bytes. `unread` maps the others to the
    reason why they cannot be read. `sha256` is one hash of all of it.
    """

    folder: Path
    files: Mapping[str, bytes] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""
    trusted: bool = False

    def names(self) -> list[str]:
        """The full names of its content files, such as "presets/think"."""
        return sorted(self.paths())

    def paths(self) -> dict[str, Path]:
        """Its content files by their full names."""
        found = (path for path in (*self.files, *self.unread) if path != CONFIG)
        return {path.rpartition(".")[0]: self.folder / path for path in found}


def project_folder(start: Path) -> Path | None:
    """The nearest `.cdo` folder at or above `start`, or None."""
    start = start.absolute()
    return next((up / ".cdo" for up in (start, *start.parents) if is_there(up / ".cdo", Path.is_dir)), None)


def is_there(path: Path, test: Callable[[Path], bool]) -> bool:
    """True if `path` passes `test`. A path that may not be looked at does not."""
    try:
        return test(path)
    except OSError:
        return False


def read_content(path: Path, project: Path | None = None) -> bytes:
    """Return the bytes of a content or configuration file, at most `MAX_BYTES`. Raises `OSError`.

    A file of a `project` must lie inside it after all symlinks are resolved.
    """
    real = os.path.realpath(path)
    if project and not _within(real, os.path.realpath(project)):
        raise OSError(errno.EPERM, "it is a link that leads out of the project")
    data = read_regular(real, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES:,} bytes")
    return data


def read_project(directory: Path, *, trust_now: bool = False) -> ProjectFolder | None:
    """Read the `.cdo` folder that holds for `directory`; None if there is none.

    With `trust_now` its files are trusted from now on. Raises `ConfigError` if the file of trust cannot be read or
    written, or if a folder that shall be trusted is too large.
    """
    folder = project_folder(directory)
    if folder is None:
        return None
    files, unread = dict[str, bytes](), dict[str, str]()
    total = 0
    for path in _paths(folder):
        try:
            files[path] = read_content(folder / path, folder.parent)
            total += len(files[path])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unread[path] = error.strerror or "it cannot be read"
        if total > MAX_TOTAL or len(files) + len(unread) > MAX_FILES:
            if trust_now:
                raise ConfigError(
                    f"{folder} cannot be trusted: it has over {MAX_FILES:,} content files, or {MAX_TOTAL:,} bytes.",
                    "Remove the files that cdo does not need.",
                )
            return ProjectFolder(folder, files, unread)
    if not files and not unread:  # nothing needs trust
        return ProjectFolder(folder, trusted=True)
    from cdo.security.trust import Trust

    sha256 = _hash(files, unread)
    trust = Trust.load()
    if trust_now:
        trust.pin(KIND, [(folder, sha256)])
    return ProjectFolder(folder, files, unread, sha256, trust.holds(KIND, folder, sha256))


def unused(project: ProjectFolder, settings: Mapping[str, str], others: Callable[[str], bool]) -> str:
    """Tell in one line what an untrusted project would change; "" if nothing of it waits for trust.

    `settings` are the keys of its configuration that wait for trust. `others` tells whether cdo has a content file
    of a name without the project.
    """
    parts = [f"{CONFIG} ({', '.join(settings)})"] if settings else []
    parts += [f"{name} ({'replaces another one' if others(name) else 'new'})" for name in project.names()]
    if not parts:
        return ""
    more = [f"{pluralise(len(parts) - _NAMED, 'more file')}"] if len(parts) > _NAMED else []
    return (
        f"Not used, because you do not trust {project.folder} as it is now: {', '.join([*parts[:_NAMED], *more])}. "
        "Read the files there, then pass --trust."
    )


def _paths(folder: Path) -> Iterator[str]:
    """The paths of the files below `.cdo` that cdo reads, sorted, without links out of the project."""
    top = os.path.realpath(folder.parent)
    if os.path.lexists(folder / CONFIG):
        yield CONFIG
    for name in FOLDERS:
        yield from _below(folder, name, top, MAX_DEPTH)


def _below(folder: Path, place: str, top: str, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder / place), key=lambda entry: entry.name)
    except OSError:
        return
    if not _within(os.path.realpath(folder / place), top):
        return
    for entry in entries:
        path = f"{place}/{entry.name}"
        if entry.name.startswith("."):
            continue
        if is_there(Path(entry.path), Path.is_dir):
            if depth:
                yield from _below(folder, path, top, depth - 1)
        elif entry.name.endswith(SUFFIXES):
            yield path


def _within(real: str, top: str) -> bool:
    return real.startswith(top.rstrip("/") + "/")


def _hash(files: Mapping[str, bytes], unread: Mapping[str, str]) -> str:
    """One hash of paths and contents, which no other set of files has."""
    whole = hashlib.sha256()
    for path in sorted({*files, *unread}):
        data = files.get(path)
        state = "unread" if data is None else hashlib.sha256(data).hexdigest()
        name = path.encode("utf-8", "surrogateescape")
        whole.update(b"%d %s %s\n" % (len(name), name, state.encode()))
    return whole.hexdigest()
