"""Starts runs as processes of their own, which outlive the server that began them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdo.client_runs.records import RunRecord, RunRecords
from cdo.core.errors import CdoError, SessionError

_CDO = (sys.executable, "-P", "-m", "cdo")  # -P: a folder `cdo` of the project is not taken for the package
_PLANNING = 120.0  # seconds that a plan may take, which sends nothing
_BIRTH = 45.0  # seconds within which a session is usually there; later it is found all the same
_LOOK = 0.05  # seconds between two looks for it


def planned(words: Sequence[str], question: str) -> dict[str, Any]:
    """Return the plan of a run, which sends nothing; raise `SessionError` with what cdo says against the run."""
    try:
        done = subprocess.run(
            [*_CDO, *words[:-1], "--dry-run", "--json", "-q", "--no-input", words[-1]],
            input=question.encode("utf-8", "replace"),
            capture_output=True,
            timeout=_PLANNING,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SessionError("The plan of this run takes too long.", "Name less evidence.") from None
    if done.returncode:
        raise refused(done.stderr.decode("utf-8", "replace"))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class RunProcesses:
    """The processes that this server began. Those of earlier servers are known by their records alone."""

    def __init__(self, records: RunRecords) -> None:
        self._records = records
        self._own: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, record: RunRecord, words: Sequence[str], question: str | None = None) -> RunRecord:
        """Start `cdo WORDS` for a recorded run, with the question on stdin; return the record with its process."""
        self.reap()
        log = self._records.log(record)
        try:
            with tempfile.TemporaryFile() as given:  # a pipe would be cut off where the server ends meanwhile
                given.write((question or "").encode("utf-8", "replace"))
                given.seek(0)
                process = subprocess.Popen(
                    [*_CDO, *words], stdin=given, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
                )
        finally:
            os.close(log)
        self._own[process.pid] = process
        return self._records.begun(record, process.pid)

    def await_session(self, record: RunRecord, path: Path) -> None:
        """Wait until the session of a run is there; raise `SessionError` where the run ended before that."""
        process, until = self._own.get(record.pid), time.monotonic() + _BIRTH
        while not (path / "session.yaml").is_file() and time.monotonic() < until:
            if process and process.poll() is not None and not (path / "session.yaml").is_file():
                said = self._records.said(record)
                self._records.forget(record)
                raise refused(said)
            time.sleep(_LOOK)

    def reap(self) -> None:
        """Take note of processes that ended, so that the system can forget them."""
        self._own = {pid: process for pid, process in self._own.items() if process.poll() is None}


def refused(said: str) -> CdoError:
    """Return as an error what a process of cdo said against a run, which is the last thing that it said."""
    lines = said.splitlines()
    start = max((at for at, line in enumerate(lines) if line.startswith("cdo: ")), default=0)
    message, *hint = [line.strip().removeprefix("cdo: ") for line in lines[start:]] or ["The run did not begin."]
    return SessionError(message, " ".join(hint))
