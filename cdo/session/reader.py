"""A session as anybody can read it: from its folder, from memory, from a branch of git. Owns and changes nothing.

Everything that looks back on runs (reports, comparisons, searches, forks) reads through this one door, so that it
does not matter where a session is kept.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cdo.core.errors import SessionError
from cdo.core.steps import CitationCheck
from cdo.security.secrets import redactor
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.atomic_files import closing, explain, open_directory, read_file
from cdo.session.records import PREFIX, group_number, group_records, read_session

_FOLDER = re.compile(r"[a-z0-9][a-z0-9-]*")
_DEPTH = 10  # folders of a session, one in another


class SessionReader(ABC):
    """One session, whole. `name` is the session's, `place` says where it is kept, for people."""

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place
        self._artifacts: dict[str, Artifact | None] = {}

    @cached_property
    def _redact(self) -> Callable[[str], str]:
        return redactor(os.environ)

    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """The names of all files, with their folder (`calls/0001.jsonl`), sorted; raises `SessionError`."""

    @abstractmethod
    def data(self, file: str) -> bytes | None:
        """The content of a file, or None when there is none; raises `SessionError`."""

    def text(self, file: str) -> str | None:
        """The text of a file, or None when there is none; raises `SessionError` where it is not UTF-8.

        Values of secret variables that a person typed there get no further: they are taken out.
        """
        data = self.data(file)
        try:
            return None if data is None else self._redact(data.decode("utf-8"))
        except UnicodeDecodeError:
            raise SessionError(f"{self.place}/{file} is not UTF-8 text.", "Fix or remove it.") from None

    def artifact(self, stem: str) -> Artifact | None:
        """The artifact `stem` (`t1-critic`), or None; raises `SessionError` when its head cannot be read."""
        if stem not in self._artifacts:
            text = self.text(f"{stem}.md")
            self._artifacts[stem] = None if text is None else artifacts.from_file(text, f"{self.name}/{stem}.md")
        return self._artifacts[stem]

    def records(self) -> list[dict[str, Any]]:
        """Everything that is recorded, in order; raises `SessionError` when a group of records is damaged."""
        groups = sorted((number, file) for file in self.files() if (number := group_number(file)))
        found: list[dict[str, Any]] = []
        for _, file in groups:
            found += group_records(self.data(file) or b"", f"{self.name}/{file}")
        return found


class SessionFolder(SessionReader):
    """A session in its folder. Links are never followed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.resolve().name.removeprefix(PREFIX), str(path))
        self.path = path

    def files(self) -> tuple[str, ...]:
        """As they are now; hidden files and links are left out."""
        found: list[str] = []

        def walk(folder: Path, below: str, depth: int) -> None:
            for entry in os.scandir(folder):
                if entry.name.startswith(".") or entry.is_symlink():
                    continue
                if entry.is_file(follow_symlinks=False):
                    found.append(below + entry.name)
                elif depth < _DEPTH and entry.is_dir(follow_symlinks=False) and _FOLDER.fullmatch(entry.name):
                    walk(Path(entry.path), f"{below}{entry.name}/", depth + 1)

        try:
            walk(self.path, "", 0)
        except FileNotFoundError:
            raise SessionError(f"There is no session {self.path}.", "`cdo list` shows what there is.") from None
        except OSError as error:
            raise explain(error, self.path) from None
        return tuple(sorted(found))

    def data(self, file: str) -> bytes | None:
        """What the file holds now."""
        folder, _, name = file.rpartition("/")
        try:
            with closing(open_directory(self.path / folder)) as place:
                return read_file(place, name)[0]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, self.path / file) from None

    def records(self) -> list[dict[str, Any]]:
        """As they are now; a group that is no file is damage, and said."""
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
    """What the citations of artifacts were worth when they were checked, by the artifact's `sha`."""
    return {
        str(record["sha"]): tuple(CitationCheck(**item) for item in record["findings"])
        for record in records
        if record["kind"] == "checked"
    }


def as_read(artifact: Artifact, checked: Mapping[str, Sequence[CitationCheck]]) -> tuple[str, str]:
    """What a call that reads an artifact is given of it, with its citations marked, and the identity of that."""
    found = checked.get(artifact.sha)
    if not found:
        return artifact.reply, artifact.sha[:16]
    from cdo.repository.citations import marked

    text = marked(artifact.reply, found)
    return text, artifacts.digest(text)[:16]
