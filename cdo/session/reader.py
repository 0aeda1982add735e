"""Reads sessions from a folder, from memory or from a git branch, without locking or changing them.

Reports, comparisons, searches and forks all read through this interface, so that they work wherever a session is
kept.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdo.core.errors import SessionError
from cdo.core.file_paths import delivered
from cdo.core.steps import CitationCheck
from cdo.files.atomic_files import TEMPORARY, closing, explain, open_directory, read_file
from cdo.security.secrets import redactor
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.records import PREFIX, group_number, group_records, read_session

if TYPE_CHECKING:
    from cdo.session.session_file import Frozen

_FOLDER = re.compile(r"[a-z0-9][a-z0-9-]*")
_DEPTH = 10  # levels of nested folders in a session
# Folders that tools leave beside delivered files when a person runs them there.
_CACHES = frozenset(("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules"))


class SessionReader(ABC):
    """Read access to one session. `name` is its name; `place` says in messages where it is kept."""

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place
        self._artifacts: dict[str, Artifact | None] = {}
        self._plan: tuple[str | None, Frozen] | None = None

    @cached_property
    def _redact(self) -> Callable[[str], str]:
        return redactor(os.environ)

    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Return the names of all files, with their folder (`calls/0001.jsonl`), sorted; raise `SessionError`."""

    @abstractmethod
    def data(self, file: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist; raise `SessionError`."""

    def text(self, file: str) -> str | None:
        """Return the text of a file, or None if it does not exist; raise `SessionError` if it is not UTF-8.

        Values of secret environment variables in it are redacted.
        """
        data = self.data(file)
        try:
            return None if data is None else self._redact(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise SessionError(f"{self.place}/{file} is not UTF-8 text.", "Fix or remove it.") from None

    def artifact(self, stem: str) -> Artifact | None:
        """Return the artifact `stem` (`t1-critic`), or None; raise `SessionError` if its keys are invalid."""
        if stem not in self._artifacts:
            self._artifacts[stem] = artifacts.parse(stem, self.text, self.name)
        return self._artifacts[stem]

    def frozen(self) -> Frozen:
        """Return the content of session.yaml; raise `SessionError` if it is missing or broken."""
        from cdo.session.session_file import read_frozen

        text = self.text("session.yaml")
        if self._plan is None or self._plan[0] != text:
            self._plan = text, read_frozen(text, Path(self.place))
        return self._plan[1]

    def records(self) -> list[dict[str, Any]]:
        """Return all records, in order; raise `SessionError` if a group of records is damaged."""
        groups = sorted((number, file) for file in self.files() if (number := group_number(file)))
        found: list[dict[str, Any]] = []
        for _, file in groups:
            found += group_records(self.data(file) or b"", f"{self.name}/{file}")
        return found


class SessionFolder(SessionReader):
    """A session in its folder. Symlinks are never followed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.resolve().name.removeprefix(PREFIX), str(path))
        self.path = path

    def files(self) -> tuple[str, ...]:
        """Return the current files, without symlinks, hidden files other than deliverables, and caches of tools."""
        found: list[str] = []

        def walk(folder: Path, below: str, depth: int) -> None:
            for entry in os.scandir(folder):
                name = below + entry.name
                given = delivered(name) and not TEMPORARY.fullmatch(entry.name)
                if entry.is_symlink() or entry.name in _CACHES or not (given or not entry.name.startswith(".")):
                    continue
                if entry.is_file(follow_symlinks=False):
                    found.append(name)
                elif entry.is_dir(follow_symlinks=False) and (
                    given or (depth < _DEPTH and _FOLDER.fullmatch(entry.name))
                ):
                    walk(Path(entry.path), f"{name}/", depth + 1)

        try:
            walk(self.path, "", 0)
        except FileNotFoundError:
            raise SessionError(f"There is no session {self.path}.", "`cdo list` shows what there is.") from None
        except OSError as error:
            raise explain(error, self.path) from None
        return tuple(sorted(found))

    def data(self, file: str) -> bytes | None:
        """Return the current content of a file, or None."""
        folder, _, name = file.rpartition("/")
        try:
            with closing(open_directory(self.path / folder)) as place:
                return read_file(place, name)[0]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, self.path / file) from None

    def records(self) -> list[dict[str, Any]]:
        """Return the current records; a group that is not a regular file is reported as damage."""
        return read_session(self.path)


class InMemorySession(SessionReader):
    """A session whose files are held in memory, by name."""

    def __init__(self, name: str, place: str, files: Mapping[str, bytes]) -> None:
        super().__init__(name, place)
        self._files = dict(files)

    def files(self) -> tuple[str, ...]:
        return tuple(sorted(self._files))

    def data(self, file: str) -> bytes | None:
        return self._files.get(file)


# -- what a reader is given ------------------------------------------------------------------------


def checked_in(records: Iterable[Mapping[str, Any]]) -> dict[str, tuple[CitationCheck, ...]]:
    """Return the recorded citation checks, by the artifact's `sha`."""
    return {
        str(record["sha"]): tuple(CitationCheck(**item) for item in record["findings"])
        for record in records
        if record["kind"] == "checked"
    }


def as_read(artifact: Artifact, checked: Mapping[str, Sequence[CitationCheck]]) -> tuple[str, str]:
    """Return the text of an artifact as calls read it, with its citations marked, and the text's hash."""
    found = checked.get(artifact.sha)
    if not found:
        return artifact.reply, artifact.sha[:16]
    from cdo.repository.citation_marks import marked

    text = marked(artifact.reply, found)
    return text, artifacts.digest(text)[:16]
