"""Sessions on branches of git: what a branch is called, what its commits say, and how a session is read from one.

Every turn of a run is a commit on `cdo/NAME`, whose tree is the session's folder. Such a branch may come from a
stranger: what it holds is believed only where a session can be so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cdo.core.errors import SessionError, UsageError
from cdo.core.formatting import one_line
from cdo.repository import git
from cdo.repository.git import Branch, Repository, TreeEntry
from cdo.repository.git_process import Refused
from cdo.session.reader import InMemorySession, SessionReader
from cdo.session.records import session_path

BRANCH = "cdo/"
HEADS = "refs/heads/"
FILE_BYTES = 64 * 2**20
ALL_BYTES = 512 * 2**20
FILES = 50_000

_FOLDER = r"[a-z][a-z0-9-]*/(?:[a-z0-9][a-z0-9-]*/){0,9}"
_FILE = re.compile(rf"(?:{_FOLDER})?[^./\\\s][^/\\\n\t]{{0,199}}")
_TRAILER = re.compile(r"(Cdo-[A-Z][A-Za-z-]*): (.*)")
_FULL = ("100644", "100755")


@dataclass(frozen=True)
class BranchSession:
    """A session on a branch, by what its newest commit says.

    `name` is what it is opened by (`origin/NAME` where only a remote has it), `date` when it was last committed to
    (ISO 8601, UTC); `status` is how the run ended, or "unfinished"; `confidence` and `cost` are None where unknown.
    `preset` is followed by the mode where it has one ("full,parliament"), `created` is when the session was; both are
    "" where its commits do not say it.
    """

    name: str
    branch: str
    date: str
    status: str
    turn: int
    confidence: float | None
    cost: float | None
    problem: str
    preset: str = ""
    created: str = ""


def acceptable(file: str) -> bool:
    """Whether a file of a session can be called so, with its folder, on a branch too."""
    return bool(_FILE.fullmatch(file)) and file.isprintable()


def trailers(message: str) -> dict[str, str]:
    """What cdo says for machines in the last paragraph of a commit's message; {} where it is not one of cdo's."""
    last = message.rstrip("\n").rpartition("\n\n")[2].split("\n")
    found = [_TRAILER.fullmatch(line) for line in last]
    return {match[1]: match[2] for match in found if match} if all(found) else {}


def turns(commits: Sequence[tuple[str, str]]) -> dict[int, str]:
    """The commits of turns by number, from those of a branch, newest first.

    A turn that was held again after it hides what came after it the first time.
    """
    found: dict[int, str] = {}
    for identity, message in commits:
        said = trailers(message)
        number = said.get("Cdo-Turn", "")
        is_turn = said.get("Cdo-Event") == "turn" and re.fullmatch("[0-9]{1,6}", number)
        if is_turn and int(number) < min(found, default=1 << 30):
            found[int(number)] = identity
    return found


def holds(repository: Repository, tip: str, created: str) -> bool:
    """Whether a commit holds the session that was `created` then; raises `Refused`."""
    files = [entry for entry in repository.tree(tip) if entry.path == "session.yaml" and entry.size < 1 << 20]
    text = repository.blobs(files)[0].decode("utf-8", "replace") if files else ""
    return bool(created) and created_in(text) == created


def created_in(text: str) -> str:
    """When a session was created, by the text of its session.yaml; "" where that does not tell."""
    match = re.search(r"(?m)^created: ['\"]?([^'\"\n]+)", text)
    return match[1] if match else ""


def commit_after(repository: Repository, session: str, created: str, turn: int) -> str:
    """The commit of a turn on the branch of a session, here or of a remote; "" where there is none.

    Raises `Refused`.
    """
    if not _is_session(session):
        return ""
    ref = f"{HEADS}{BRANCH}{session}"
    for branch in (*repository.branches(ref, f"{ref}-*"), *_of_remotes(repository, session)):
        mine = not branch.symbolic and holds(repository, branch.tip, created)
        if mine and (found := turns(repository.log(branch.tip)).get(turn)):
            return found
    return ""


def elsewhere(repository: Repository, session: str, created: str) -> Branch | None:
    """The newest branch of a remote that holds the session that was `created` then; raises `Refused`."""
    found = (branch for branch in _of_remotes(repository, session) if not branch.symbolic)
    return next((branch for branch in found if holds(repository, branch.tip, created)), None)


def _of_remotes(repository: Repository, session: str) -> list[Branch]:
    """The branches of remotes that are called as a session's is, newest first."""
    ref = f"refs/remotes/*/{BRANCH}{session}"
    return sorted(repository.branches(ref, f"{ref}-*"), key=lambda branch: -branch.date)


# -- reading ---------------------------------------------------------------------------------------


def kept(folder: Path) -> tuple[BranchSession, ...]:
    """The sessions on branches of the repository that a folder is in, newest first.

    Those of remotes are among them where there is no branch of their name here. Raises `SessionError` where there is
    a repository that git cannot read; without one there are none.
    """
    repository = _repository(folder)
    if repository is None:
        return ()
    try:
        found = _named(repository.branches(f"{HEADS}{BRANCH}", "refs/remotes/*/cdo/*"))
    except Refused as refused:
        raise _unreadable(folder, refused) from None
    rows = [_row(name, branch) for name, branch in found.items()]
    return tuple(sorted((row for row in rows if row), key=lambda row: (row.date, row.name), reverse=True))


def open_branch(folder: Path, name: str) -> SessionReader | None:
    """The session `name` (or `origin/NAME`) from its branch.

    None where no repository or no branch is there. Raises `SessionError` where the branch holds what a session cannot
    hold.
    """
    name = name.removeprefix(BRANCH)
    short = name.rpartition("/")[2]
    repository = _repository(folder) if _is_session(short) else None
    if repository is None:
        return None
    try:
        patterns = f"{HEADS}{BRANCH}{short}", f"refs/remotes/*/{BRANCH}{short}"
        found = _named(repository.branches(*patterns))
        if name not in found and len(found) == 1 and "/" not in name:
            name = next(iter(found))  # only one remote has it
        if name not in found:
            return None
        place = f"branch {short_name(found[name])}"
        return InMemorySession(short, place, _files(repository, found[name].tip, place))
    except Refused as refused:
        raise _unreadable(folder, refused) from None


def _repository(folder: Path) -> Repository | None:
    try:
        return git.find(folder)
    except Refused as refused:
        raise _unreadable(folder, refused) from None


def _unreadable(folder: Path, refused: Refused) -> SessionError:
    where = folder.absolute()
    return SessionError(f"The git repository of {where} cannot be read: {refused}.", "See what `git fsck` says.")


def _named(branches: Sequence[Branch]) -> dict[str, Branch]:
    """The branches that can be those of sessions, by the names that these are opened by."""
    found: dict[str, Branch] = {}
    for branch in sorted(branches, key=lambda branch: not branch.ref.startswith(HEADS)):
        name = short_name(branch).replace(BRANCH, "", 1)
        short = name.rpartition("/")[2]
        here = branch.ref.startswith(HEADS)
        if branch.symbolic or not _is_session(short) or short in found or (here and name != short):
            continue
        found[name] = branch
    return found


def short_name(branch: Branch) -> str:
    """The branch as git calls it for people: `cdo/NAME`, `origin/cdo/NAME`."""
    return branch.ref.removeprefix(HEADS).removeprefix("refs/remotes/")


def _is_session(name: str) -> bool:
    try:
        return session_path(Path(), name).name == f"cdo-{name}"
    except UsageError:
        return False


def _row(name: str, branch: Branch) -> BranchSession | None:
    said = trailers(branch.message)
    if not said:
        return None
    status, number = said.get("Cdo-Status", ""), said.get("Cdo-Turn", "")
    asked = re.search(r"(?m)^Question: (.*)$", branch.message)
    return BranchSession(
        name,
        short_name(branch),
        datetime.fromtimestamp(min(branch.date, 1 << 33), UTC).isoformat(timespec="seconds"),
        "unfinished" if status in ("", "running") else one_line(status, 20),
        int(number) if re.fullmatch("[0-9]{1,6}", number) else 0,
        _number(said, "Cdo-Confidence"),
        _number(said, "Cdo-Cost"),
        one_line(asked[1]) if asked else "",
        one_line(said.get("Cdo-Preset", ""), 80),
        one_line(said.get("Cdo-Created", ""), 80),
    )


def _number(said: Mapping[str, str], key: str) -> float | None:
    value = said.get(key, "")
    return float(value) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,12})?", value) else None


def _files(repository: Repository, commit: str, place: str) -> dict[str, bytes]:
    entries = repository.tree(commit)
    for entry in entries:
        if problem := _problem(entry):
            raise SessionError(
                f"{place} is not a session: {one_line(entry.path, 80)} {problem}.",
                "Somebody else has changed it: look at it with git.",
            )
    if len(entries) > FILES or sum(entry.size for entry in entries) > ALL_BYTES:
        raise SessionError(f"{place} is too large for a session.", "Look at it with git.")
    if not any(entry.path == "session.yaml" for entry in entries):
        raise SessionError(
            f"{place} is not a session: it has no session.yaml.", "`cdo list --git` shows what is one."
        )
    return {entry.path: data for entry, data in zip(entries, repository.blobs(entries), strict=True)}


def _problem(entry: TreeEntry) -> str:
    """Why an entry cannot be a file of a session; "" where it can."""
    if entry.mode not in _FULL:
        return "is not a regular file"
    if not acceptable(entry.path):
        return "has a name that no file of a session has"
    return "is too large" if entry.size > FILE_BYTES else ""
