"""Compares the files made by a replay with the files of the session."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, to_builtins

from cdo.app.replay import KEPT, MADE, ReplayRun, edited, inputs
from cdo.core.mission_names import MODE
from cdo.history import history, pending
from cdo.history.index_entries import decided
from cdo.session.artifact import SIDECARS
from cdo.session.reader import InMemorySession, SessionReader

_CHECKSUM = re.compile(r"^sha256: [0-9a-f]{64}\n", re.MULTILINE)


class Difference(Struct, frozen=True):
    """A file that a replay changes: `how` is "differs", "gone" (no longer made) or "new".

    `diff` are the lines of a unified diff from then to now; none for what a voice says in a turn that a person has
    not answered yet, because they answer without seeing it.
    """

    file: str
    how: str
    diff: tuple[str, ...] = ()


class ReplayOutcome(Struct, frozen=True):
    """The ending of a session, from its FINAL.md and its syntheses; `unit` is "turn", or "round" for a mission."""

    status: str
    why: str
    confidence: float | None
    decision: str
    turns: int
    tensions: tuple[tuple[str, str], ...]
    unit: str = "turn"

    @classmethod
    def of(cls, archive: SessionReader) -> ReplayOutcome | None:
        """Return the ending of a session, or None if there is no FINAL.md; raise `SessionError`."""
        found = history.read(archive)
        if found.final is None:
            return None
        tensions = tuple((life.id, life.status) for life in found.tensions)
        final = found.final
        artifact = archive.artifact("FINAL")
        if found.frozen.plan.mode == MODE and artifact:
            rounds = artifact.own.get("turns")
            held = rounds if isinstance(rounds, int) else 0
            return cls(final.status, final.why, None, decided(artifact.body), held, (), "round")
        return cls(final.status, final.why, final.confidence, final.decision, len(found.turns), tensions)


class ReplayReport(Struct, frozen=True):
    """The comparison of a session with its replay by today's code.

    `same` are the files equal byte for byte, `alike` those with equal content but other inputs, `edited` those taken
    as a person left them. `elsewise`, `unknown`, `notes` and `stopped` are those of the `ReplayRun`. `then` and `now`
    are None if there is no FINAL.md.
    """

    session: str
    calls: int
    same: tuple[str, ...]
    alike: tuple[str, ...]
    edited: tuple[str, ...]
    differences: tuple[Difference, ...]
    elsewise: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]
    stopped: str
    then: ReplayOutcome | None
    now: ReplayOutcome | None

    @property
    def differs(self) -> bool:
        """True if today's code gives another result. Going on past the end of an unfinished record does not count."""
        broken_off = self.then is not None and self.now is None
        lacking = bool(self.then and self.unknown)
        return bool(self.differences or self.elsewise or self.notes or lacking or broken_off)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The differing parts of the ending, as (then, now) by name; {} if one of the endings is missing."""
        if self.then is None or self.now is None:
            return {}
        now = to_builtins(self.now)
        return {key: (value, now[key]) for key, value in to_builtins(self.then).items() if value != now[key]}

    def json(self) -> dict[str, Any]:
        """Return the report as `--json` prints it."""
        return {**to_builtins(self), "differs": self.differs}


def compare(rehearsal: ReplayRun) -> ReplayReport:
    """Compare the replayed files with the session's; raise `SessionError` if a FINAL.md cannot be read."""
    then, made = rehearsal.then, rehearsal.made
    taken = tuple(file for file, _ in inputs(then))
    same, alike, differences = [], [], []
    unheard = pending.unheard(then)
    for file in sorted({*then.files(), *made.files()} - {*taken, "journal.jsonl"}):
        if file in SIDECARS.values():  # compared with its artifact
            continue
        before, after = _whole(then, file), _whole(made, file)
        known = MADE.fullmatch(file) or KEPT.fullmatch(file)
        if file.startswith("calls/") or ((before is None or after is None) and not known):
            continue
        if before == after:
            same.append(file)
        elif file.removesuffix(".md") in _files(rehearsal) and _says(then, file) == _says(made, file):
            alike.append(file)
        else:
            how = "new" if before is None else "gone" if after is None else "differs"
            lines = () if unheard and file.startswith(f"t{unheard}-") else _diff(before or b"", after or b"")
            differences.append(Difference(file, how, lines))
    return ReplayReport(
        then.name,
        len(rehearsal.calls),
        tuple(same),
        tuple(alike),
        edited(then),
        tuple(differences),
        rehearsal.elsewise,
        rehearsal.unknown,
        rehearsal.notes,
        rehearsal.stopped,
        ReplayOutcome.of(then),
        ReplayOutcome.of(made),
    )


def _whole(archive: InMemorySession, file: str) -> bytes | None:
    """Return the content of a file. An artifact with a sidecar comes with its keys, as others have them."""
    data, sidecar = archive.data(file), SIDECARS.get(file.removesuffix(".md"))
    keys = archive.data(sidecar) if sidecar else None
    return data if data is None or keys is None else b"---\n%s---\n\n%s" % (keys, data)


def _files(rehearsal: ReplayRun) -> set[str]:
    """Return the artifacts of the calls whose inputs differ."""
    return {call.artifact for call in rehearsal.calls if call.name in rehearsal.elsewise}


def _says(archive: InMemorySession, file: str) -> Any:
    """Return the content of an artifact without its inputs, for comparison."""
    artifact = archive.artifact(file.removesuffix(".md"))
    own = {key: value for key, value in artifact.own.items() if key != "inputs"} if artifact else {}
    return artifact and (dict(artifact.meta), artifact.body, own)


def _diff(before: bytes, after: bytes) -> tuple[str, ...]:
    """Return a unified diff of two files, ignoring their checksum lines."""
    old, new = (_CHECKSUM.sub("", data.decode("utf-8", "replace"), count=1).splitlines() for data in (before, after))
    return tuple(difflib.unified_diff(old, new, "then", "now", lineterm="", n=1))
