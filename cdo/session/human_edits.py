"""Detects edits by people: tells cdo's own writes, finished edits and saves in progress apart.

A person may edit any file of a running session. An edit is taken once the file has stopped changing; until then the
run waits. The run never waits for a file that is unchanged since cdo wrote it.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from cdo.core.errors import SessionError
from cdo.files.atomic_files import signature, status_of
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.session_files import SessionFiles

ARTIFACT = re.compile(r"([tr][0-9]+-[a-z0-9-]+|[A-Z][A-Z0-9]{1,15})\.md")  # of turns, rounds, FINAL.md, ADR.md, …
QUIET = 0.5  # seconds without a change after which an edit counts as finished
RESTLESS = 30.0  # seconds to wait for a file that keeps changing
_EMPTY = 0.5  # seconds to wait for a file that is empty or gone when it is read
EMPTIED = 2.0  # seconds after which an empty file counts as emptied, and not as about to be saved
_GIVEN = re.compile(r"00-[a-z0-9-]+\.md")  # the initial files of a run
_GONE = (0,)

Signature = tuple[int, ...]  # from `atomic_files.signature`; () if it does not matter
Looked = Mapping[str, os.stat_result | None]  # the status of files by name, None for one that is missing


class HumanEdits:
    """The state of an open session's files as this process last saw them."""

    def __init__(self, files: SessionFiles) -> None:
        self._files = files
        self._path = files.path
        self._fd = files.directory
        self._known: dict[str, tuple[Artifact, Signature | None]] = {}  # signature None: about to be written

    def opened(self) -> None:
        """Note the session's initial files: unchanged since its creation, or possibly being edited right now."""
        born = os.stat("session.yaml", dir_fd=self._fd, follow_symlinks=False).st_ctime_ns
        for name in filter(_GIVEN.fullmatch, os.listdir(self._fd)):
            if status := status_of(name, self._fd):
                self._files.written[name] = signature(status) if status.st_ctime_ns <= born else ()

    # -- artifacts ----------------------------------------------------------------------------

    def artifact(self, name: str) -> Artifact | None:
        """Return the current artifact `name` (without .md), None if missing; raise `SessionError` if unreadable."""
        known = self._known.get(name)
        if known and known[1] is None:
            return known[0]
        return self._found(name, self._files.status(f"{name}.md"))

    def _found(self, name: str, status: os.stat_result | None) -> Artifact | None:
        """Return the artifact `name`, whose file has this status, as `artifact` does."""
        known = self._known.get(name)
        if status is None:
            return None
        if known and known[1] == signature(status):
            return known[0]
        text, limit = self._files.read(f"{name}.md"), time.monotonic() + _EMPTY
        while not text and time.monotonic() < limit:
            time.sleep(0.005)  # an editor may be saving it in place
            text = self._files.read(f"{name}.md")
        if text is None:
            return None
        read = {f"{name}.md": text}
        artifact = artifacts.parse(name, lambda file: read.get(file) or self._files.read(file), self._path.name)
        if artifact is None:
            return None
        self._known[name] = (artifact, signature(status))
        return artifact

    def put(self, name: str, artifact: Artifact) -> Callable[[os.stat_result], None]:
        """Register an artifact that is about to be written; return a callback for when it is written."""
        known = self._known[name] = (artifact, None)

        def done(status: os.stat_result) -> None:
            if self._known.get(name) is known:  # unless another artifact was put since
                self._known[name] = (artifact, signature(status))

        return done

    def forget(self, name: str) -> None:
        """Forget an artifact that was moved away."""
        self._known.pop(name, None)

    def last_seen(self, name: str) -> Artifact | None:
        """Return the artifact as this process last saw it, even if its file is gone; None if it never saw it."""
        known = self._known.get(name)
        return known[0] if known else None

    # -- at rest ------------------------------------------------------------------------------

    def look(self, names: Iterable[str]) -> Looked:
        """Return the status of files of the session's top folder, without those that are about to be written."""
        return {name: status_of(name, self._fd) for name in names if not self._comes(name)}

    def _comes(self, name: str) -> bool:
        """True if a file is about to be written: what it will hold is known."""
        known = self._known.get(name.removesuffix(".md"))
        return known is not None and known[1] is None

    def signatures(self, looked: Looked) -> dict[str, Signature]:
        """Return what differs once a person changed or removed one of these files, by name: of any other nothing."""
        found = {name: self._signature(name, status) for name, status in looked.items()}
        return {name: signature for name, signature in found.items() if signature}

    def as_left(self, looked: Looked) -> bool:
        """True if this process knows what these files hold: they are as it left or last read them, or never were."""
        for name, status in looked.items():
            written, known = self._files.written.get(name), self._known.get(name.removesuffix(".md"))
            if status is None:
                if written is not None or known:
                    return False
            elif signature(status) not in (written, known and known[1]):
                return False
        return True

    def _signature(self, name: str, status: os.stat_result | None) -> Signature:
        if status is None:
            return _GONE
        known, held = self._known.get(name.removesuffix(".md")), signature(status)
        return () if known and known[1] == held and not known[0].edited else held

    async def settle(self, names: Collection[str]) -> Looked:
        """Wait until no person is saving any of these files; return what `look` returns of them then.

        `names` are files of the session's top folder. Files unchanged since cdo wrote them need no wait, nor do files
        that never existed. A deleted file does, because an editor may be replacing it. Raise `SessionError` if a file
        keeps changing for `RESTLESS` seconds.
        """
        seen: dict[str, tuple[Signature, float]] = {}
        limit = time.monotonic() + RESTLESS
        while True:
            looked = self.look(names)
            restless = [name for name, status in looked.items() if not self._rests(name, status, seen)]
            if not restless:
                return looked
            if time.monotonic() > limit:
                raise SessionError(
                    f"{self._path / restless[0]} has been changing for {RESTLESS:g} seconds.",
                    "When whatever writes it has ended, `cdo resume`.",
                )
            await asyncio.sleep(0.02)

    def _rests(self, name: str, status: os.stat_result | None, seen: dict[str, tuple[Signature, float]]) -> bool:
        """True if a file is unchanged since cdo wrote it, never existed, or has not changed for a while."""
        if status is None and name not in self._files.written and name.removesuffix(".md") not in self._known:
            return True  # it never existed
        now, held = time.monotonic(), signature(status) if status else ()
        filled = status is not None and status.st_size > 0
        if filled and (held == self._files.written.get(name) or self._untouched(name, status)):
            return True
        if seen.setdefault(name, (held, now))[0] != held:
            seen[name] = held, now
        # The clock may have been set back, so a file also rests if this process saw no change for `QUIET` seconds.
        quiet = QUIET if filled or status is None else EMPTIED
        old = status is not None and time.time_ns() - status.st_ctime_ns >= quiet * 1e9
        return old or now - seen[name][1] >= quiet

    def _untouched(self, name: str, status: os.stat_result | None) -> bool:
        """True if a file of this status is a complete artifact as cdo wrote it, by its checksum."""
        try:
            artifact = self._found(name.removesuffix(".md"), status) if ARTIFACT.fullmatch(name) else None
        except SessionError:  # half a file or a mistake; the error is reported when the file is read
            return False
        return artifact is not None and not artifact.edited
