"""Reads a session that this process runs, by what it holds of it in memory."""

from __future__ import annotations

from typing import Any

from cdo.session.artifact import Artifact
from cdo.session.reader import SessionReader
from cdo.session.store import Session


class LiveSessionReader(SessionReader):
    """A reader of the session that this process runs. It uses the store's parsed artifacts and records."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.name, str(session.path))
        self._session = session

    def files(self) -> tuple[str, ...]:
        """Return the names of the artifacts, in their order."""
        return tuple(f"{name}.md" for name in self._session.artifact_names())

    def data(self, file: str) -> bytes | None:
        """Return the current content of a file without secrets, or None; raise `SessionError`."""
        text = self._session.read(file)
        return None if text is None else text.encode()

    def text(self, file: str) -> str | None:
        """Return the text of a file without secrets, or None if it does not exist; raise `SessionError`."""
        return self._session.read(file)

    def artifact(self, stem: str) -> Artifact | None:
        """Return the artifact as the session holds it, or None; raise `SessionError`."""
        return self._session.artifact(stem)

    def records(self) -> list[dict[str, Any]]:
        """Return what is recorded so far."""
        return self._session.records
