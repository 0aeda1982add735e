"""Moves files whose inputs have changed (stale files) to superseded/, after asking the person."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cdo.core.errors import NeedsHuman
from cdo.core.events import FilesStale, Observe
from cdo.runner.people.human_steps import Human
from cdo.runner.requests import PendingCall
from cdo.session.store import Session


async def settle(
    session: Session,
    works: Sequence[PendingCall],
    visited: Collection[str],
    is_open: Callable[[PendingCall], bool],
    human: Human,
    observe: Observe,
    *,
    reopened: bool,
) -> None:
    """Supersede the stale files of `works`, and of calls that are no longer made; raise `NeedsHuman` without consent.

    `visited` are the artifacts of this run so far; `is_open` tells whether a model must be asked. If a cap was lifted
    (`reopened`), no consent is needed unless a person edited one of the files.
    """
    here = {work.call.artifact for work in works}
    peers = {(work.call.kind, work.call.data.get("turn")) for work in works}
    stale = [work.call.artifact for work in works if work.stale]
    if not stale and not any(map(is_open, works)):
        return
    edited: list[str] = []
    outdated, replaced = bool(stale), False
    for name in session.artifact_names():
        if name not in {*visited, *here} and (artifact := session.artifact(name)):
            (edited if artifact.edited else stale).append(name)
            # It answers a call of the same kind and turn that is no longer made: the new calls replace it.
            replaced |= (artifact.own.get("kind"), artifact.own.get("turn")) in peers
    if not outdated and not (replaced and any(map(is_open, works))):
        return
    if edited or not reopened:
        await _consent(session.name, human, stale, edited)
    place = session.supersede(stale)
    observe(FilesStale(superseded=stale, kept=edited, place=place.name))
    for work in works:
        if work.call.artifact in stale:
            work.artifact = None


async def _consent(session: str, human: Human, stale: Sequence[str], edited: Sequence[str]) -> None:
    """Ask the person whether stale files may be requested again; raise `NeedsHuman` if not."""
    if human.consent is None:
        raise NeedsHuman(
            f"Edited files make these stale: {', '.join(f'{name}.md' for name in stale)}.",
            f"`cdo resume {session} --yes` asks for them again and keeps the old ones in superseded/.",
        )
    if not await human.consent(stale, edited):
        raise NeedsHuman("Nothing was changed; the stale files were left as they are.", "`cdo resume` asks again.")
