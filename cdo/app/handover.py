"""Hands the accepted files of a mission over to its git repository: as a branch, or as a patch in the session.

Neither the work tree nor the index nor HEAD is touched, and no ref that is there is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from cdo.cabal.files.delivered_files import delivered, places
from cdo.cabal.files.ending import HANDED_OVER, handed_over, told_of
from cdo.cabal.files.final_report import Delivery
from cdo.cabal.model.product_files import files_digest
from cdo.cabal.rules import acceptance
from cdo.content.library import Library
from cdo.core.errors import ContentError
from cdo.core.file_paths import DELIVERED
from cdo.core.formatting import one_line, pluralise
from cdo.planning.mission_crew import Crew
from cdo.repository import git
from cdo.repository.git import Repository, TreeEntry
from cdo.repository.git_process import Refused
from cdo.security.secrets import masked
from cdo.session.store import Session

PATCH = "deliverables.patch"
_HEADS, _ASIDE = "refs/heads/", "refs/cdo-patch/"
_SUBJECT, _LINE = 72, 120  # characters of a commit message's lines
_PLAIN = ("100644", "100755")


class _HandedOver(Struct, frozen=True):
    """What was handed over: the branch and the commit ("" for none), and a sentence that tells it."""

    branch: str
    commit: str
    told: str


def hand_over(session: Session, crew: Crew, delivery: Delivery, library: Library) -> str:
    """Hand the accepted files with a path over, once, and record it; return the sentence that tells it.

    Where git refuses, or the wording of the commit is broken, the sentence says why: a mission that has ended never
    fails for that.
    """
    files = accepted(delivery)
    digest = files_digest(files)
    before = handed_over(session.records)
    if before and before["files"] == digest and (before["commit"] or not files):
        return told_of(before)
    try:
        found = _handed_over(session, crew, delivery, files, library)
    except (Refused, ContentError) as error:
        found = _HandedOver("", "", f"The accepted files were not delivered: {one_line(str(error)).rstrip('.')}.")
    record = {
        "kind": HANDED_OVER,
        "files": digest,
        "branch": found.branch,
        "commit": found.commit,
        "told": found.told,
    }
    session.note(record)
    session.flush()
    return found.told


def accepted(delivery: Delivery) -> dict[str, str]:
    """Return the accepted files that have a path, by path."""
    state = delivery.state
    found = places(state)
    return {
        file.removeprefix(DELIVERED): text
        for id in found
        if state.products[id].path and (version := acceptance.delivered_version(state, id))
        for file, text in delivered(state, version, found).items()
    }


def _handed_over(
    session: Session, crew: Crew, delivery: Delivery, files: Mapping[str, str], library: Library
) -> _HandedOver:
    if not files:
        return _HandedOver("", "", "Nothing was delivered to git: no product with a path is accepted.")
    root = Path(os.path.realpath(session.path / crew.root))
    repository = git.find(root)
    if repository is None:
        raise Refused(f"{root} is not a git repository any more")
    head = repository.head()
    there = {entry.path: entry for entry in repository.tree(head)} if head else {}
    if problem := _blocked(files, there):
        raise Refused(problem)
    changes: dict[str, bytes | None] = {
        path: text.encode()
        for path, text in files.items()
        if path not in there or git.blob_id(text.encode(), len(head)) != there[path].object
    }
    if not changes:
        return _HandedOver("", head, "Nothing was delivered to git: HEAD holds all accepted files already.")
    modes = {path: there[path].mode for path in changes if path in there}
    message, now = _message(session, delivery, list(files), library), datetime.now().astimezone()
    when = int(now.timestamp()), f"{now:%z}"[:5]
    rest = f" {pluralise(len(delivery.missing), 'product')} not accepted: not in it." if delivery.missing else ""
    what = pluralise(len(changes), "file")
    if crew.deliver == "patch":
        ref = f"{_ASIDE}{session.name}"
        commit = repository.commit(ref, head, message, when, changes, modes)
        patch = repository.patch(commit)
        repository.drop(ref, commit)
        session.put_now(PATCH, patch.decode("utf-8", "replace"))
        return _HandedOver("", commit, f"{PATCH} changes {what}; `git apply` takes it.{rest}")
    branch, taken = _free(repository, session.name)
    commit = repository.commit(f"{_HEADS}{branch}", head, message, when, changes, modes)
    why = f" {taken} was taken." if taken else ""
    onto = "in one commit on top of HEAD" if head else "in one commit, the first of this repository"
    return _HandedOver(branch, commit, f"The branch {branch} has {what} {onto}.{why}{rest}")


def _blocked(files: Mapping[str, str], there: Mapping[str, TreeEntry]) -> str:
    """Return why a file cannot stand in the repository, "" if all can."""
    folders = {folder for path in there for folder in _folders(path)}
    spelled = {path.casefold(): path for path in (*there, *folders)}
    for path in files:
        for part in (*_folders(path), path):
            if (other := spelled.get(part.casefold(), part)) != part:
                return f"{part} differs only in case from {other} of the repository, which many systems take for one"
        if above := next((folder for folder in _folders(path) if folder in there), ""):
            return f"{path} would lie below {above}, which is a file of the repository"
        if path in folders:
            return f"{path} is a folder of the repository"
        if path in there and there[path].mode not in _PLAIN:
            return f"{path} is a link of the repository"
    return ""


def _folders(path: str) -> list[str]:
    """Return the folders above a path, the outermost first."""
    return [path[:at] for at in range(len(path)) if path[at] == "/"]


def _free(repository: Repository, session: str) -> tuple[str, str]:
    """Return a name of a branch that neither a branch nor a run has, and the first one that was taken.

    The run itself is kept as `cdo/SESSION`, which git would confuse with a branch of that name.
    """
    name = f"cdo/{session}-files"
    free = (f"{name}{more}" for more in ("", *(f"-{number}" for number in range(2, 100))))
    for branch in free:
        if not any(repository.has(f"{place}{branch}") for place in (_HEADS, "refs/")):
            return branch, name if branch != name else ""
    raise Refused(f"all branches called {name} are taken")


def _message(session: Session, delivery: Delivery, files: list[str], library: Library) -> str:
    """Return the commit's message; what models and people wrote is in visible lines without secrets."""

    def line(text: str, most: int = _LINE) -> str:
        return one_line(masked(text), most)

    mission = delivery.state.mission
    values = {
        "title": line(mission.mission if mission else delivery.state.request, _SUBJECT),
        "request": line(delivery.state.request),
        "session": session.name,
        "status": delivery.status,
        "files": list(map(line, files)),
        "missing": list(map(line, delivery.missing)),
    }
    return f"{library.render('templates/delivery', values)}\n"
