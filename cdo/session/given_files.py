"""Keeps the texts that a run begins with (`00-input.md`, `00-context.md`, …) on record, and restores them from there.

Every call reads them. A run whose question was deleted or emptied must not go on without it, and pay for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from cdo.core.errors import SessionError
from cdo.session.store import Session

QUESTION_FILE = "00-input.md"
_GIVEN = re.compile(r"00-[a-z0-9-]+\.md")
_MADE = "00-plan.md"  # shown to the person, and read by no call


def keep_or_restore(session: Session) -> list[str]:
    """Record the initial files as they are now; write again from the record any that is gone or empty.

    Returns a note for each file that was written again. Raises `SessionError` if the question is gone or empty and no
    record holds it.
    """
    recorded = recorded_files(session.records)
    last: Mapping[str, str] = next(
        (record["files"] for record in reversed(session.records) if record["kind"] == "given"), {}
    )
    names = sorted({*filter(_is_given, session.top_files()), *recorded})
    now, notes = {}, []
    for name in names:
        text = session.read(name)
        if text and text.strip():
            now[name] = text
        elif name in recorded:
            now[name] = recorded[name]
            session.put_now(name, recorded[name])
            what = "empty" if text is not None else "gone"
            notes.append(f"{name} was {what}; it is written again as it was recorded")
        elif name == QUESTION_FILE:
            raise SessionError(
                f"{session.path / name} is empty, and no record holds the question.",
                "Write the question into that file, then resume.",
            )
    files = {name: session.shared_text(text) for name, text in now.items()}
    if files != last:
        session.note({"kind": "given", "files": files}, soon=False)
    return notes


def recorded_files(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the texts of the initial files as they were last recorded, by file name; {} if they never were."""
    texts: dict[str, str] = {}
    files: Mapping[str, str] = {}
    for record in records:
        if record["kind"] == "text":
            texts[str(record["sha256"])] = str(record["text"])
        elif record["kind"] == "given":
            files = record["files"]
    found = {name: texts[sha] for name, sha in files.items() if _is_given(name) and sha in texts}
    return {name: text for name, text in found.items() if sha256(text.encode()).hexdigest() == files[name]}


def _is_given(name: str) -> bool:
    return name != _MADE and _GIVEN.fullmatch(name) is not None
