"""What a live view of a session shows beside the events of its journal. Changes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace

from cdo.core.errors import SessionError
from cdo.core.events import ProductData, RunBegan, RunStopped, TreeChanged
from cdo.core.formatting import one_line
from cdo.history.journal_follower import JournalUpdate, SessionPhase
from cdo.session.reader import SessionFolder
from cdo.session.records import PREFIX

_RARELY = 50  # a mission's products are read again after this many times the duration of the last read


class ProductTree:
    """The products of the mission in `folder`, read again when they change. Slow reads are repeated less often."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: object = None
        self._after = 0.0
        self._told: list[ProductData] = []

    def news(self, *, last: bool = False) -> TreeChanged | None:
        """Return the tree as an event if it has changed, else None; `last` ignores the limit on repeated reads."""
        from cdo.cabal.files.status import products

        began = time.monotonic()
        if began < self._after and not last:
            return None
        try:
            seen = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(self._folder / "products"))
            found = self._told if seen == self._seen else products(SessionFolder(self._folder))
        except (OSError, SessionError):  # not created yet, or deleted
            return None
        self._seen, self._after = seen, began + _RARELY * (time.monotonic() - began)
        if found == self._told:
            return None
        self._told = found
        return TreeChanged(products=found)


def opening(folder: Path) -> tuple[RunBegan, bool, str]:
    """Return what a session is, as its first event; whether it is a mission; and why its plan cannot be read."""
    from cdo.session.session_file import read_frozen

    told, is_mission = RunBegan(name=session_name(folder), preset="", path=str(folder)), False
    try:
        plan = read_frozen(SessionFolder(folder).text("session.yaml"), folder).plan
        told = replace(told, preset=plan.preset, why=plan.why, models=plan.models)
        is_mission = bool(plan.crew)
        told = replace(told, question=SessionFolder(folder).text("00-input.md") or "")
    except SessionError as error:
        return told, is_mission, error.message
    return told, is_mission, ""


def session_name(folder: Path) -> str:
    """Return the name of the session in a folder."""
    return folder.name.removeprefix(PREFIX)


def left_finished(folder: Path, news: JournalUpdate) -> bool:
    """Return True if no process runs the session and it has a FINAL.md, so that no run is expected."""
    return news.phase is SessionPhase.LEFT and (folder / "FINAL.md").is_file()


def standing(folder: Path, news: JournalUpdate) -> str:
    """Say in up to two sentences why the session is not running, and what to do."""
    name = session_name(folder)
    resume = f"`cdo resume {name}` goes on with it."
    if news.phase is SessionPhase.GONE:
        return f"There is no session {folder}."
    if news.phase is SessionPhase.STOPPED and isinstance(news.last, RunStopped):
        why = one_line(news.last.why)
        return f"{why if why.endswith(('.', '?', '!', '…')) else f'{why}.'} {resume}"
    if left_finished(folder, news):
        return f"Nobody runs it, and it has a FINAL.md: `cdo final {name}` prints it."
    return f"Nobody runs it. {resume}"
