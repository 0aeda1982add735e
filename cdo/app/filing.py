"""Takes the documents of a finished run to where they belong: the folder of decision records, the tracker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

from cdo.core.errors import CdoError, SessionError
from cdo.files.atomic_files import file_new, names_in
from cdo.formats.documents.document import adr_file_name, stamped
from cdo.formats.documents.worksheets import WorkBreakdown
from cdo.observers.beads_tracker import Beads, BeadsTask
from cdo.planning.plan import Plan
from cdo.planning.settings import Settings
from cdo.programs.deliberation.conclusion import Outcome
from cdo.session.store import Session


async def file_documents(
    session: Session,
    plan: Plan,
    outcome: Outcome,
    settings: Settings,
    tracker: Beads | None,
    say: Callable[[str], None],
) -> None:
    """Take what a domain's documents hold to where it belongs: the decision record, the tracker."""
    try:
        _file_decision(session, plan, outcome, settings, say)
    except SessionError as error:  # what was paid for is told all the same
        say(f"{error.message} The decision record is {session.path / 'ADR.md'}.")
    if tracker:
        await _into_tracker(tracker, outcome, say)


async def _into_tracker(tracker: Beads, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Take a work breakdown into bd, as tasks under the run's epic."""
    for document in outcome.documents.values():
        for block in document.blocks:
            if isinstance(block, WorkBreakdown):
                tasks = [
                    BeadsTask(
                        task.id,
                        task.title,
                        f"{task.description}\n\nDone when: {'; '.join(task.acceptance)}",
                        task.depends_on,
                        task.minutes,
                    )
                    for task in block.tasks
                ]
                try:
                    await tracker.breakdown(tasks)
                except CdoError as error:
                    say(f"bd: {error.message}")


def _file_decision(
    session: Session, plan: Plan, outcome: Outcome, settings: Settings, say: Callable[[str], None]
) -> None:
    """Copy the decision record to `--adr-dir`, once, under the next number."""
    prompt = next((prompt for prompt in plan.documents.values() if prompt.target), None)
    if not settings.adr_dir or prompt is None or prompt.file not in outcome.documents:
        return

    session.flush()
    text = session.read(f"{prompt.file}.md") or ""
    folder = Path(settings.adr_dir)
    record = next((record for record in reversed(session.records) if record["kind"] == "filed"), None)
    if record and record["name"] in names_in(folder):
        return
    while True:
        if record is None:
            name = adr_file_name(names_in(folder), outcome.documents[prompt.file].title, prompt.target)
            record = {"kind": "filed", "name": name, "date": date.today().isoformat()}
            session.note(record)
            session.flush()
        try:
            path = file_new(folder, str(record["name"]), stamped(text, str(record["date"])))
        except FileExistsError:
            record = None  # another run was quicker: then under the next number
        else:
            break
    say(f"the decision record was copied to {path}")
