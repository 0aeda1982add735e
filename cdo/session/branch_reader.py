"""Reads sessions from git: names of refs, commit trailers, and the session files.

Every turn of a run is a commit on `refs/cdo/NAME`, whose tree is the session's folder. A run with `--branch`, or of
an older version, is on the branch `refs/heads/cdo/NAME` instead. git calls both `cdo/NAME`. Where both exist,
`refs/cdo/NAME` counts, as it does for git. Such a ref is untrusted: its content is validated, and anything that a
session cannot contain is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from cdo.core.errors import SessionError, UsageError
from cdo.core.file_paths import delivered
from cdo.core.formatting import one_line
from cdo.repository import git
from cdo.repository.git import Branch, Repository, TreeEntry
from cdo.repository.git_process import Refused
from cdo.session.reader import InMemorySession, SessionReader
from cdo.session.records import session_path

BRANCH = "cdo/"
HEADS = "refs/heads/"
REFS = "refs/"
LOCAL = (REFS, HEADS)  # where a run is kept, what counts first
FILE_BYTES = 64 * 2**20
ALL_BYTES = 512 * 2**20
FILES = 50_000

_FOLDER = r"[a-z][a-z0-9-]*/(?:[a-z0-9][a-z0-9-]*/){0,9}"
_FILE = re.compile(rf"(?:{_FOLDER})?[^./\\\s][^/\\\n\t]{{0,199}}")
_TRAILER = re.compile(r"(Cdo-[A-Z][A-Za-z-]*): (.*)")
_FULL = ("100644", "100755")


class BranchSession(Struct, frozen=True):
    """A session on a branch, as described by its newest commit.

    `name` opens it (`origin/NAME` if only a remote has it); `date` is its last commit (ISO 8601, UTC); `status` is
    how the run ended, or "unfinished". `confidence` and `cost` are None if unknown. `preset` includes the mode, if
    any ("full,parliament"); `created` is when the session was created. Both are "" if the commit does not say.
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
    """True if `file` is a valid name, folder included, for a session file on a branch."""
    return delivered(file) or (bool(_FILE.fullmatch(file)) and file.isprintable())


def trailers(message: str) -> dict[str, str]:
    """Return the `Cdo-…` trailers in the last paragraph of a commit message; {} if it contains other lines."""
    last = message.rstrip("\n").rpartition("\n\n")[2].split("\n")
    found = [_TRAILER.fullmatch(line) for line in last]
    return {match[1]: match[2] for match in found if match} if all(found) else {}


def turns(commits: Sequence[tuple[str, str]]) -> dict[int, str]:
    """Return the commit id of each turn by number, from a branch's commits, newest first.

    If a turn was repeated, the later turns of its first run are left out.
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
    """True if a commit contains the session created at `created`; raise `Refused`."""
    files = [entry for entry in repository.tree(tip) if entry.path == "session.yaml" and entry.size < 1 << 20]
    text = repository.blobs(files)[0].decode("utf-8", "replace") if files else ""
    return bool(created) and created_in(text) == created


def created_in(text: str) -> str:
    """Return the creation time in the text of a session.yaml; "" if it has none."""
    match = re.search(r"(?m)^created: ['\"]?([^'\"\n]+)", text)
    return match[1] if match else ""


def commit_after(repository: Repository, session: str, created: str, turn: int) -> str:
    """Return the commit of a turn that the repository or a remote branch keeps of a session; "" if there is none.

    Raises `Refused`.
    """
    if not _is_session(session):
        return ""
    refs = [f"{place}{BRANCH}{session}{more}" for place in LOCAL for more in ("", "-*")]
    here = sorted(repository.branches(*refs), key=lambda branch: branch.ref.startswith(HEADS))
    for branch in (*here, *_of_remotes(repository, session)):
        mine = not branch.symbolic and holds(repository, branch.tip, created)
        if mine and (found := turns(repository.log(branch.tip)).get(turn)):
            return found
    return ""


def elsewhere(repository: Repository, session: str, created: str) -> Branch | None:
    """Return the newest remote branch with the session created at `created`, or None; raise `Refused`."""
    found = (branch for branch in _of_remotes(repository, session) if not branch.symbolic)
    return next((branch for branch in found if holds(repository, branch.tip, created)), None)


def _of_remotes(repository: Repository, session: str) -> list[Branch]:
    """Return the remote branches that have a session's branch name, newest first."""
    ref = f"refs/remotes/*/{BRANCH}{session}"
    return sorted(repository.branches(ref, f"{ref}-*"), key=lambda branch: -branch.date)


# -- reading ---------------------------------------------------------------------------------------


def kept(folder: Path) -> tuple[BranchSession, ...]:
    """Return the sessions in git, in the repository around `folder`, newest first; () if there is none.

    Remote branches are included if nothing local has the same name. Raises `SessionError` if git cannot read the
    repository.
    """
    repository = _repository(folder)
    if repository is None:
        return ()
    try:
        found = _named(repository.branches(*(f"{place}{BRANCH}" for place in LOCAL), "refs/remotes/*/cdo/*"))
    except Refused as refused:
        raise _unreadable(folder, refused) from None
    rows = [_row(name, branch) for name, branch in found.items()]
    return tuple(sorted((row for row in rows if row), key=lambda row: (row.date, row.name), reverse=True))


def open_branch(folder: Path, name: str) -> SessionReader | None:
    """Return the session `name` (or `origin/NAME`) from its branch.

    None if there is no repository or no such branch. Raises `SessionError` if the branch has files that a session
    cannot have.
    """
    name = name.removeprefix(f"{REFS}{BRANCH}").removeprefix(BRANCH)
    short = name.rpartition("/")[2]
    repository = _repository(folder) if _is_session(short) else None
    if repository is None:
        return None
    try:
        places = (*LOCAL, "refs/remotes/*/")
        found = _named(repository.branches(*(f"{place}{BRANCH}{short}" for place in places)))
        if name not in found and len(found) == 1 and "/" not in name:
            name = next(iter(found))  # only one remote has it
        if name not in found:
            return None
        kind = "git ref" if found[name].ref.startswith(f"{REFS}{BRANCH}") else "branch"
        place = f"{kind} {short_name(found[name])}"
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
    """Return the branches with valid session names, by the name that opens them."""
    found: dict[str, Branch] = {}
    for branch in sorted(branches, key=_rank):
        name = short_name(branch).replace(BRANCH, "", 1)
        short = name.rpartition("/")[2]
        here = _rank(branch) < len(LOCAL)
        if branch.symbolic or not _is_session(short) or short in found or (here and name != short):
            continue
        found[name] = branch
    return found


def _rank(branch: Branch) -> int:
    """Return what counts first: 0 for `refs/cdo`, 1 for a local branch, 2 for one of a remote."""
    return next((rank for rank, place in enumerate(LOCAL) if branch.ref.startswith(f"{place}{BRANCH}")), len(LOCAL))


def short_name(branch: Branch) -> str:
    """Return the ref's short name: `cdo/NAME`, `origin/cdo/NAME`."""
    return branch.ref.removeprefix(HEADS).removeprefix("refs/remotes/").removeprefix(REFS)


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
            f"{place} is not a session: it has no session.yaml.", "`cdo list --git` shows all sessions."
        )
    return {entry.path: data for entry, data in zip(entries, repository.blobs(entries), strict=True)}


def _problem(entry: TreeEntry) -> str:
    """Return why an entry cannot be a session file; "" if it can."""
    if entry.mode not in _FULL:
        return "is not a regular file"
    if not acceptable(entry.path):
        return "has a name that no file of a session has"
    return "is too large" if entry.size > FILE_BYTES else ""
