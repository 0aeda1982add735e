"""Reads the key data of a session from its files: its row in lists, and its recorded exchanges for costs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from cdo.core.errors import CdoError, SessionError
from cdo.core.mission_names import CHAIR, ENVOY, MODE, WATCHDOG, round_of
from cdo.core.people import person_of
from cdo.core.usage import TotalUsage
from cdo.files.atomic_files import closing, open_directory
from cdo.session.records import PREFIX, locked

if TYPE_CHECKING:
    from cdo.session.reader import SessionReader

_TAIL = 2**15  # bytes at the end of a journal that hold its last event
_AFTERWARDS = ("content", "note")  # events that say nothing about the state of a run
_OF_ROUND = re.compile(r"r([0-9]{1,6})-([a-z]+)(?:-(operative-[0-9]+))?(?:-.*)?")
_AGENTS = {"bootstrap": CHAIR, "plan": CHAIR, "inspect": WATCHDOG, "present": ENVOY}


class Paid(NamedTuple):
    """One recorded exchange as costs are summed. `cost` is in dollars; `unpriced` is 1 if its price is unknown.

    `turn` is None outside of turns. The turns of a mission are its rounds, and its roles are its agents. `shared`: a
    fork took the exchange over from the session that paid for it.
    """

    call: str
    kind: str
    role: str
    turn: int | None
    model: str
    started: str
    shared: bool
    tokens: int
    cost: float
    unpriced: int


class IndexEntry(Struct, frozen=True):
    """The data of one session: its row as `rows` returns it, and its recorded exchanges."""

    row: dict[str, Any]
    paid: tuple[Paid, ...] = ()


def entry(path: Path) -> IndexEntry:
    """Read the entry of one session from its files; a damaged session gets a row as in `rows`."""
    return _entry(unplaced(path), path)


def look(archive: SessionReader) -> IndexEntry:
    """Read the entry of a session wherever it is kept; raise `SessionError` if it is damaged."""
    from cdo.session.reader import SessionFolder

    found = read(archive)
    if isinstance(archive, SessionFolder):
        return _entry(found, archive.path)
    return IndexEntry({"session": archive.name, "path": archive.place, **found.row}, found.paid)


def unplaced(path: Path) -> IndexEntry:
    """Read what the index holds of the session in a folder; a damaged session has its error under `problem`."""
    from cdo.session.reader import SessionFolder

    try:
        return read(SessionFolder(path))
    except CdoError as error:
        return IndexEntry({"status": "damaged", "problem": error.message})


def read(archive: SessionReader) -> IndexEntry:
    """Read what the index holds of a session wherever it is kept; raise `SessionError` if it is damaged."""
    try:
        return _read(archive)
    except (KeyError, TypeError, ValueError, AttributeError):
        why = f"{archive.place} holds records that this version of cdo cannot read."
        raise SessionError(why, "Update cdo.") from None


def _read(archive: SessionReader) -> IndexEntry:
    from cdo.history.history import spent_by
    from cdo.runner.endpoint_batches.submissions import open_submissions

    frozen = archive.frozen()
    records = archive.records()
    used = sum(spent_by(records)[0].values(), TotalUsage())
    plan = frozen.plan
    row: dict[str, Any] = {"created": frozen.created, "preset": plan.preset, "mode": plan.mode}
    row |= {"modifiers": list(plan.modifiers), "domain": plan.domain, "models": list(plan.named)}
    row |= {"calls": used.calls, "tokens": used.tokens, "cost": used.known_cost, "status": "unfinished"}
    final = archive.artifact("FINAL")
    if final is not None:
        row["status"] = str(final.own.get("status") or "finished")
        row["confidence"] = final.meta.get("confidence")
    elif waiting := open_submissions(records):
        row["status"], row["waits"] = "waiting", "; ".join(submission.told() for submission in waiting)
    if frozen.forked:
        row["forked"] = f"from {frozen.forked.session} after turn {frozen.forked.turn}"
    if plan.mode == MODE:
        row["rounds"] = max((number for file in archive.files() if (number := round_of(file)) is not None), default=0)
        row["deliberations"] = [_nested(record) for record in records if record["kind"] == "nested"]
    row["problem"] = _flat(archive.text("00-input.md"))
    if final is not None:
        row["decision"] = _flat(decided(final.body))
        tensions = final.own.get("open_tensions")
        row["open_tensions"] = list(map(str, tensions)) if isinstance(tensions, list) else []
    asked = [record for record in records if record["kind"] == "exchange" and not person_of(str(record["model"]))]
    return IndexEntry(row, tuple(_paid(record, plan.known_roles) for record in asked))


def decided(body: str) -> str:
    """Return the decision in the body of a FINAL.md; for a mission, its result and the outcomes it accepted."""
    from cdo.formats.final_answer import final_section
    from cdo.formats.markdown import sections

    if decision := final_section(body, "Decision"):
        return decision.strip()
    found = sections(body)
    return "\n\n".join(filter(None, (found.get(key, "").strip() for key in ("result", "decisions"))))


def _nested(record: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a mission's deliberation: its session, which paid for it, its calls and its cost."""
    used = record["used"]
    return {
        "session": str(record["result"]["session"]),
        "calls": int(used["calls"]),
        "cost": None if used["unpriced"] else float(used["cost"]),
    }


def _paid(record: dict[str, Any], roles: Sequence[str]) -> Paid:
    call, spent = str(record["call"]), TotalUsage.of(record)
    head, _, voice = call.partition("-")
    turn = int(head[1:]) if head[:1] == "t" and head[1:].isdecimal() else None
    role = call if turn is None else voice
    if match := _OF_ROUND.fullmatch(call):
        turn, role = int(match[1]), match[3] or _AGENTS.get(match[2], match[2])
    base, _, seat = role.rpartition("-")
    if seat.isdecimal() and base in roles and role not in roles:  # "critic-2" is a critic as well
        role = base
    model, kind, started = (str(record.get(key) or "") for key in ("model", "call_kind", "started"))
    shared = bool(record.get("from"))
    return Paid(call, kind, role, turn, model, started, shared, spent.tokens, spent.cost, spent.unpriced)


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())


def _entry(found: IndexEntry, path: Path) -> IndexEntry:
    return IndexEntry(placed(found.row, str(path)), found.paid)


def placed(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Add the session's name and its path `place` to a row, and whether it runs now or waits for a person."""
    found = {"session": place.rpartition("/")[2].removeprefix(PREFIX), "path": place, **row}
    if found["status"] == "waiting" and locked(Path(place)):
        found["status"] = "running"
    if found["status"] == "unfinished":
        path = Path(place)
        found["status"] = "running" if locked(path) else _stopped(path)
    return found


def _stopped(path: Path) -> str:
    """Return the status of a session that nobody runs: "paused" waits for a person, "answered" for a resume alone.

    It waits for a person if the last event on the state of the run in its journal says so.
    """
    from cdo.history.pending import answered
    from cdo.session.reader import SessionFolder

    event = _last_event(path)
    if event.get("event") != "stopped" or event.get("status") != "NeedsHuman":
        return "unfinished"
    try:
        return "answered" if answered(SessionFolder(path)) else "paused"
    except (CdoError, KeyError, TypeError, ValueError, AttributeError):  # `cdo resume` says what is damaged
        return "paused"


def asks(path: Path) -> bool:
    """Return True if the last event of a session, which runs now, is that it asks a person."""
    return _last_event(path).get("event") in ("pause", "review")


def _last_event(path: Path) -> dict[str, Any]:
    """Return the last event on the state of a run in its journal, {} if there is none that can be read."""
    try:
        with (
            closing(open_directory(path)) as folder,
            closing(os.open("journal.jsonl", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)) as fd,
        ):
            tail = os.pread(fd, _TAIL, max(0, os.fstat(fd).st_size - _TAIL))
        for line in reversed(tail.split(b"\n")[:-1]):
            event: dict[str, Any] = json.loads(line)
            if event["event"] not in _AFTERWARDS:
                return event
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # the journal is only informative, and may hold anything
    return {}
