"""Reads the inputs of calls as one consistent snapshot: artifacts, the run's initial files, and skills."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from cdo.core.errors import SessionError
from cdo.core.events import NoteTold, Observe
from cdo.core.steps import Call, CitationCheck
from cdo.runner.requests import PendingCall
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.reader import as_read
from cdo.session.store import Session


def unusable(session: Session, name: str, why: str) -> SessionError:
    """Return the error for an artifact that a person emptied or broke; `why` continues a sentence about the file."""
    return SessionError(
        f"{session.path / name}.md {why}", "Fix it and resume, or remove it: cdo then restores what was recorded."
    )


class Inputs(Struct):
    """The texts that calls of one session read, and their hashes.

    `checked` are the results of citation checks by the artifact's hash; `skill` returns the body of a skill by its
    name. `unwritten` holds replies whose files are written later (deferred calls).
    """

    session: Session
    observe: Observe
    checked: Mapping[str, tuple[CitationCheck, ...]]
    skill: Callable[[str], str] | None = None
    unwritten: dict[str, Artifact] = field(default_factory=dict)
    _begun: dict[str, str] = field(default_factory=dict)
    _gone: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> what it is now, what it was
    _read: dict[str, tuple[str, str]] = field(default_factory=dict)
    _hashed: dict[str, tuple[str, str]] = field(default_factory=dict)  # initial files, as they were hashed last
    _copied: dict[str, str] = field(default_factory=dict)  # skills on their way to disk

    async def prepared(self, calls: Sequence[Call], prepare: Callable[[Call], PendingCall]) -> list[PendingCall]:
        """Prepare calls with a consistent snapshot of their inputs, taken while no person is saving a file."""
        stems = dict.fromkeys(stem for call in calls for stem in (call.artifact, *call.reads) if "/" not in stem)
        names, edits, files = [f"{stem}.md" for stem in stems], self.session.edits, self.session.files
        while True:
            looked = await edits.settle(names)
            before, count = edits.signatures(looked), files.count
            self._gone.clear()
            self._read.clear()
            with files.as_looked(looked):
                works = [prepare(call) for call in calls]
            if files.count == count and edits.as_left(looked):  # nothing was read, so nothing can have changed
                break
            if edits.signatures(edits.look(names)) == before:
                break
        if self._copied:  # what a call is asked with is on disk before it is asked
            await self.session.flushed()
            self._copied.clear()
        for name, (what, text) in self._gone.items():
            self.session.write_again(f"{name}.md", text)
            self.observe(NoteTold(text=f"{name}.md was {what}; it is written again as it was"))
        return works

    def read(self, name: str) -> tuple[str, str]:
        """Return the text of a file without cdo's own keys, and its hash; files called 00-* are read unchanged.

        Calls that are prepared together read each file once.
        """
        if name not in self._read:
            self._read[name] = self._as_it_is(name)
        return self._read[name]

    def _as_it_is(self, name: str) -> tuple[str, str]:
        if name.startswith("00-"):
            text = self.given(name)
            if (known := self._hashed.get(name)) is None or known[0] != text:
                known = self._hashed[name] = text, artifacts.digest(text)[:16]
            return known
        if name.startswith("skills/"):
            return self._skill(name)
        artifact = self.unwritten.get(name) or self.session.artifact(name)
        if artifact is None:
            artifact = self.session.edits.last_seen(name)
            if artifact is None:
                return "", ""
            self._gone[name] = "gone", artifact.as_found()
        if not artifact.reply.strip():
            raise unusable(self.session, name, "is empty.")
        return as_read(artifact, self.checked)

    def given(self, name: str) -> str:
        """Return the text of one of the run's initial files; a file deleted or emptied since is restored."""
        text = self.session.read(f"{name}.md")
        if not (text or "").strip() and (begun := self._begun.get(name)):
            self._gone[name] = ("gone" if text is None else "empty"), begun
            text = begun
        self._begun[name] = text or ""
        return text or ""

    def _skill(self, name: str) -> tuple[str, str]:
        """Return a skill's body and hash as of its first use by the session, which keeps a copy."""
        text = self._copied.get(name) or self.session.read(f"{name}.md")
        if text is None:
            text = self._copied[name] = self.skill(name.partition("/")[2]) if self.skill else ""
            self.session.put_text(f"{name}.md", text)
        return text, artifacts.digest(text)[:16]
