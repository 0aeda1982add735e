"""Keeps which runs other programs began for the sessions of a folder: which process runs each, and what it may cost.

A record is one file in the user's data folder, so that a client, which can read neither it nor its name, cannot guess
the id of a task, and so that a server finds its runs again after a restart. Everything else about a run is in its
session.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from cdo.core.errors import ConfigError
from cdo.core.schema import Schema
from cdo.files import locks
from cdo.files.atomic_files import closing, explain, open_directory, write_file
from cdo.security.safe_open import read_regular
from cdo.security.trust import data_folder
from cdo.session.records import session_path

WINDOW = timedelta(hours=24)  # how long a run counts for what all runs may cost
_ID = re.compile(r"[A-Za-z0-9_-]{32}")
_MAX_BYTES = 65_536


class RunRecord(Schema, frozen=True, kw_only=True):
    """One run that another program began.

    `id` is the task that a client may hold, `tool` the one that began it. `pid` and `birth` tell its process from
    others (0 before it has one). `reserved` is what it may still cost, in dollars. `answers` counts what was answered
    to it; `cancelled` says why a client gave it up, "" if none did.
    """

    id: str
    session: str
    tool: str
    created: str
    pid: int = 0
    birth: str = ""
    reserved: Annotated[float, Meta(ge=0)] = 0.0
    answers: int = 0
    cancelled: str = ""

    @property
    def began(self) -> datetime:
        return datetime.fromisoformat(self.created)

    @property
    def alive(self) -> bool:
        """True while its process runs."""
        return bool(self.pid and self.birth and locks.process_start(self.pid) == self.birth)


class RunRecords:
    """The records of the runs in one folder of sessions. Each change is durable before it is returned."""

    def __init__(self, out: Path) -> None:
        place = sha256(os.fsencode(os.path.realpath(out))).hexdigest()[:16]
        self.out = out
        self.folder = data_folder() / "client-runs" / place
        self._ids: dict[str, str] = {}  # of the runs that were asked for, by session

    def new(self, session: str, tool: str, reserved: float) -> RunRecord:
        """Record a run that is about to begin."""
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        return self._keep(
            RunRecord(
                id=secrets.token_urlsafe(24), session=session, tool=tool, created=created, reserved=round(reserved, 6)
            )
        )

    def of_task(self, id: str) -> RunRecord | None:
        """Return the record of a task by the id that a client gave."""
        return self._read(f"{id}.json") if _ID.fullmatch(id) else None

    def of_session(self, session: str) -> RunRecord | None:
        """Return the record of the run of a session; None if no program began it."""
        known = self.of_task(self._ids.get(session, ""))  # a poll must not read the records of all runs
        found = known or next((record for record in self.all() if record.session == session), None)
        if found:
            self._ids[session] = found.id
        return found

    def all(self) -> list[RunRecord]:
        """Return all records."""
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            return []
        return [record for name in names if name.endswith(".json") and (record := self._read(name))]

    def begun(self, record: RunRecord, pid: int) -> RunRecord:
        """Record which process runs it."""
        return self._keep(replace(record, pid=pid, birth=locks.process_start(pid) or ""))

    def answered(self, record: RunRecord) -> RunRecord:
        """Record that something was answered to it."""
        return self._keep(replace(record, answers=record.answers + 1))

    def cancel(self, record: RunRecord, why: str) -> RunRecord:
        """Record that a client gave it up, and stop its process, which keeps all that was answered."""
        kept = self._keep(replace(record, cancelled=why))
        if kept.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(kept.pid, signal.SIGTERM)
        return kept

    def forget(self, record: RunRecord) -> None:
        """Remove the record of a run that never began, and what its process said."""
        for name in (f"{record.id}.json", f"{record.id}.log"):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def prune(self) -> None:
        """Forget the runs whose sessions are gone, once they count for nothing any more."""
        oldest = datetime.now(UTC) - WINDOW
        for record in self.all():
            if record.began < oldest and not session_path(self.out, record.session).is_dir():
                self.forget(record)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other servers from beginning or answering runs of this folder meanwhile."""
        try:
            with closing(self._made()) as folder:
                locks.take(folder, math.inf)
                try:
                    yield
                finally:
                    locks.release(folder)
        except OSError as error:
            raise explain(error, self.folder) from None

    def log(self, record: RunRecord) -> int:
        """Open the file that takes what the process of a run says on stderr, for its owner alone."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with closing(self._made()) as folder:
            return os.open(f"{record.id}.log", flags, 0o600, dir_fd=folder)

    def said(self, record: RunRecord) -> str:
        """Return what the process of a run said on stderr."""
        try:
            return read_regular(self.folder / f"{record.id}.log", _MAX_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _made(self) -> int:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open_directory(self.folder)

    def _keep(self, record: RunRecord) -> RunRecord:
        try:
            with closing(self._made()) as folder:
                write_file(folder, f"{record.id}.json", msgspec.json.encode(record), mode=0o600)
        except OSError as error:
            raise ConfigError(
                f"Runs cannot be recorded in {self.folder}: {error.strerror}.", "CDO_DATA_DIR names another folder."
            ) from None
        return record

    def _read(self, name: str) -> RunRecord | None:
        try:
            return msgspec.json.decode(read_regular(self.folder / name, _MAX_BYTES), type=RunRecord)
        except (OSError, msgspec.DecodeError):
            return None
