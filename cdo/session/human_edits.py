"""Detects edits by people: tells cdo's own writes, finished edits and saves in progress apart.

A person may open any file of a running session in an editor. What they save counts, whole, once it is at rest;
until then the run waits for it, and for nothing that is as cdo itself wrote it.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from cdo.core.errors import SessionError
from cdo.session import artifact as artifacts
from cdo.session.artifact import Artifact
from cdo.session.atomic_files import signature, status_of

ARTIFACT = re.compile(r"([tr][0-9]+-[a-z0-9-]+|[A-Z][A-Z0-9]{1,15})\.md")  # of turns, rounds, FINAL.md, ADR.md, …
QUIET = 0.5  # seconds without a change after which what a person saved counts
RESTLESS = 30.0  # seconds after which a file that keeps changing is not waited for any longer
_EMPTY = 0.5  # seconds for which a file may be empty or gone while it is read
_GIVEN = re.compile(r"00-[a-z0-9-]+\.md")  # what a run was begun with
_GONE = (0,)

Signature = tuple[int, ...]  # as `atomic_files.signature` makes it; () where it does not matter


class HumanEdits:
    """What this process knows of the files in an open session: `read` gives the text of one, None where it is gone.

    `written` has the signatures of files as this process last wrote or found them.
    """

    def __init__(self, path: Path, directory: int, read: Callable[[str], str | None]) -> None:
        self.written: dict[str, Signature] = {}
        self._path = path
        self._fd = directory
        self._read = read
        self._known: dict[str, tuple[Artifact, Signature | None]] = {}  # without one: about to be written

    def opened(self) -> None:
        """Know what the session was begun with: as it was born, or as a person may be changing it just now."""
        born = os.stat("session.yaml", dir_fd=self._fd, follow_symlinks=False).st_ctime_ns
        for name in filter(_GIVEN.fullmatch, os.listdir(self._fd)):
            if status := status_of(name, self._fd):
                self.written[name] = signature(status) if status.st_ctime_ns <= born else ()

    # -- artifacts ----------------------------------------------------------------------------

    def artifact(self, name: str) -> Artifact | None:
        """The artifact `name` (without .md) as it is now; raises `SessionError` where it cannot be read."""
        known, status = self._known.get(name), status_of(f"{name}.md", self._fd)
        if known and known[1] is None:
            return known[0]
        if status is None:
            return None
        if known and known[1] == signature(status):
            return known[0]
        text, limit = self._read(f"{name}.md"), time.monotonic() + _EMPTY
        while not text and time.monotonic() < limit:
            time.sleep(0.005)  # somebody may be saving it in place
            text = self._read(f"{name}.md")
        if text is None:
            return None
        artifact = artifacts.from_file(text, f"{self._path.name}/{name}.md")
        self._known[name] = (artifact, signature(status))
        return artifact

    def put(self, name: str, artifact: Artifact) -> Callable[[os.stat_result], None]:
        """Take an artifact that is about to be written for what is there; returns what to call when it is."""
        known = self._known[name] = (artifact, None)

        def done(status: os.stat_result) -> None:
            if self._known.get(name) is known:  # and not one that was put after it
                self._known[name] = (artifact, signature(status))

        return done

    def forget(self, name: str) -> None:
        """An artifact was moved away."""
        self._known.pop(name, None)

    def last_seen(self, name: str) -> Artifact | None:
        """The artifact as this process last saw it, though its file may be gone; None where it saw none."""
        known = self._known.get(name)
        return known[0] if known else None

    # -- at rest ------------------------------------------------------------------------------

    def signatures(self, names: Iterable[str]) -> list[Signature]:
        """What of each file of the session's own folder differs once a person changes or removes it."""
        return [self._signature(name) for name in names]

    def _signature(self, name: str) -> Signature:
        status, known = status_of(name, self._fd), self._known.get(name.removesuffix(".md"))
        if known and known[1] is None:
            return ()
        if status is None:
            return _GONE
        held = signature(status)
        return () if known and known[1] == held and not known[0].edited else held

    async def settle(self, names: Collection[str]) -> list[Signature]:
        """Wait until what a person is saving has been left alone for a moment; returns the signatures then.

        `names` are files of the session's own folder. As cdo wrote them they are not waited for, nor what was not
        there before; what has vanished may be about to come back. Raises `SessionError` where one keeps changing.
        """
        seen: dict[str, tuple[Signature, float]] = {}
        limit = time.monotonic() + RESTLESS
        while restless := [name for name in names if not self._rests(name, seen)]:
            if time.monotonic() > limit:
                raise SessionError(
                    f"{self._path / restless[0]} has been changing for {RESTLESS:g} seconds.",
                    "When whatever writes it has ended, `cdo resume`.",
                )
            await asyncio.sleep(0.02)
        return self.signatures(names)

    def _rests(self, name: str, seen: dict[str, tuple[Signature, float]]) -> bool:
        """Whether a file is as cdo wrote it or not there as before, or has not changed for a moment."""
        status, known = status_of(name, self._fd), self._known.get(name.removesuffix(".md"))
        if known and known[1] is None:
            return True
        now, held = time.monotonic(), signature(status) if status and status.st_size else ()
        if not held and name not in self.written and known is None:
            return status is None  # it never was
        if held and (held == self.written.get(name) or self._untouched(name)):
            return True
        if seen.setdefault(name, (held, now))[0] != held:
            seen[name] = held, now
        # A clock that was set back must not make anybody wait: what is seen to rest does so, too.
        old = status is not None and bool(held) and time.time_ns() - status.st_ctime_ns >= QUIET * 1e9
        return old or now - seen[name][1] >= QUIET

    def _untouched(self, name: str) -> bool:
        """Whether a file is an artifact that cdo wrote, whole: its checksum says so."""
        try:
            artifact = self.artifact(name.removesuffix(".md")) if ARTIFACT.fullmatch(name) else None
        except SessionError:  # half a file, or a mistake in one: whoever reads it says so
            return False
        return artifact is not None and not artifact.edited
