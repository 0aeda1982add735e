"""Lists the sessions in a folder and reads their records, without owning them.

A session is a folder `cdo-NAME` with a `session.yaml`. Its records are in `calls/NNNN.jsonl`, one file for each group
of records that became durable together. The first line of a file holds its checksum; each other line is one record.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import json_line
from cdo.files import locks
from cdo.files.atomic_files import closing, explain, open_directory, read_file

PREFIX = "cdo-"
GROUP_BYTES = 64 * 2**20  # of one group of records: more is neither written nor read
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_GROUP = re.compile(r"([0-9]{4,})\.jsonl")


def session_path(out: Path, name: str) -> Path:
    """Return the directory of the session called `name`; raise `UsageError` if that cannot be a name."""
    name = name.removeprefix(PREFIX)
    # The name must also be valid as the name of a git branch.
    if not _NAME.fullmatch(name) or ".." in name or name.endswith((".", ".lock")) or name.startswith(PREFIX):
        raise UsageError(
            f"`{name[:60]}` cannot be the name of a session.",
            "Use letters, digits, dots, - and _; a letter or digit first; at most 64; not ending in .lock.",
        )
    return out / f"{PREFIX}{name}"


def sessions(out: Path) -> list[Path]:
    """Return all session directories in `out`, newest first."""
    return newest_first(out / name for name in session_folders(out))


def session_folders(out: Path) -> list[str]:
    """Return the names of the folders in `out` that are called like sessions; [] if `out` cannot be read."""
    try:
        with os.scandir(out) as entries:
            return [
                entry.name
                for entry in entries
                if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def newest_first(paths: Iterable[Path]) -> list[Path]:
    """Return the directories that hold a session, newest first."""
    plans = [(_mtime(path / "session.yaml"), path) for path in paths]
    return [path for mtime, path in sorted(plans, reverse=True) if mtime]


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def locked(path: Path) -> bool:
    """True if another process owns the session now."""
    try:
        fd = open_directory(path)
    except OSError:
        return False
    try:
        return not locks.take(fd, shared=True)  # shared: two that look do not take each other for owners
    except OSError:
        return True
    finally:
        os.close(fd)


def read_session(path: Path) -> list[dict[str, Any]]:
    """Return all records of a session without owning it (for list, show and reports)."""
    try:
        with closing(open_directory(path)) as fd:
            return read_groups(fd, path.name)[0]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, subject(path, error)) from None


def read_groups(session: int, name: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Return all records of an open session directory in order, and the numbers of its groups."""
    records: list[dict[str, Any]] = []
    try:
        calls = open_directory("calls", session)
    except FileNotFoundError:
        return records, []
    with closing(calls):
        groups = sorted((int(match[1]), match[0]) for match in map(_GROUP.fullmatch, os.listdir(calls)) if match)
        for _, entry in groups:
            try:
                data, _ = read_file(calls, entry, GROUP_BYTES)
            except OSError as error:
                raise explain(error, f"{name}/calls/{entry}") from None
            records += group_records(data, f"{name}/calls/{entry}")
    return records, [number for number, _ in groups]


def group_number(file: str) -> int:
    """Return the number of a group of records from the name of its file; 0 for any other file."""
    match = _GROUP.fullmatch(file.removeprefix("calls/")) if file.startswith("calls/") else None
    return int(match[1]) if match else 0


def group_file(number: int, records: Sequence[Mapping[str, Any]]) -> tuple[str, bytes]:
    """Return the file name of the group `number` (from 1) in `calls/`, and its content."""
    body = "".join(json_line(record) + "\n" for record in records).encode("utf-8", "replace")
    head = json.dumps({"kind": "group", "records": len(records), "sha256": sha256(body).hexdigest()})
    return f"{number:04d}.jsonl", head.encode() + b"\n" + body


def group_files(number: int, records: Sequence[Mapping[str, Any]]) -> list[tuple[str, bytes]]:
    """Return the files of `records`, split into groups from `number` on so that each is small enough to be read.

    Raises `SessionError` for a record that is too large for any group.
    """
    found = [group_file(number, records)]
    if len(found[0][1]) <= GROUP_BYTES:
        return found
    if len(records) < 2:
        raise SessionError(
            f"A record of {len(found[0][1]):,} bytes is too large to be kept.", "Please report which command made it."
        )
    half = len(records) // 2
    found = group_files(number, records[:half])
    return found + group_files(number + len(found), records[half:])


def group_records(data: bytes, name: str) -> list[dict[str, Any]]:
    """Return the records of one group file; raise `SessionError` if it is not what cdo writes."""
    head, _, body = data.partition(b"\n")
    try:
        group = json.loads(head)
        if group["sha256"] != sha256(body).hexdigest():
            raise ValueError("its checksum does not match")
        records = [json.loads(line) for line in body.splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        why = str(error) if "checksum" in str(error) else "it is not a group of records"
        raise _damaged(name, why) from None
    from cdo.session.record_schemas import problem  # a new run has no records yet

    for number, record in enumerate(records, 1):
        if why := problem(record):
            raise _damaged(f"{name}, record {number},", why)
    return records


def _damaged(what: str, why: str) -> SessionError:
    return SessionError(
        f"{what} is damaged: {why}.",
        "Restore it from a copy; or remove the file, and what it recorded is asked and paid again.",
    )


def subject(path: Path, error: OSError) -> Path:
    """Return the path that an error of the session `path` is about: the entry it names, else the session."""
    return path / error.filename if error.filename in ("calls", "journal.jsonl") else path
