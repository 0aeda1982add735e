"""Writes the commits of a run onto its ref, without index, HEAD, work tree or hooks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from cdo.cabal.files import given_files
from cdo.core.errors import SessionError
from cdo.files.atomic_files import signature
from cdo.observers.commit_messages import CommitMessageBuilder, PendingCommit
from cdo.repository import git
from cdo.repository.git import Branch, Repository
from cdo.repository.git_process import Refused
from cdo.security.secrets import secret_of
from cdo.session import artifact, branch_reader
from cdo.session.branch_reader import BRANCH, HEADS, LOCAL, REFS
from cdo.session.reader import SessionFolder
from cdo.session.session_file import read_frozen
from cdo.session.store import Session

_PAGE = "report.html"  # can be made from the other files at any time
_TURN = re.compile(r"[tr]([0-9]+)-")
# FINAL.md and files written with it: documents, certificate, deliverables. A mission's tree and log come earlier.
_LATE = re.compile(r"(?!(?:TREE|CHAT)\.md)[A-Z][A-Z0-9]{1,15}\.(?:md|yaml)|deliverables/.*")
_INPUT = re.compile(r"00-(input|context)\.md|session\.yaml|t[0-9]+-plan\.yaml")
_ARTIFACT = re.compile(r"[tr][0-9]+-[a-z0-9-]+\.md|(?:FINDINGS|DRAFT|REVIEW|FINAL)\.md")
# What git reports (as a pattern), and what to do about it.
ADVICE = (
    (r"\.lock'", "If no other git is at work there, remove that lock."),
    (r"dubious ownership", "It belongs to another user, so cdo leaves it alone."),
    (r"'refs/heads/cdo' exists", "Rename that branch: `git branch -m cdo cdo-old`."),
    (r"'refs/cdo' exists", "Remove that ref: `git update-ref -d refs/cdo`."),
    (r"(?i)permission|read-only", "Fix the permissions of the repository."),
    (r"is checked out", "Check out another branch there."),
    (r"no git program", "Install git."),
)


class NoBranch(Exception):
    """There is no repository to keep the run in."""


class BranchWriter:
    """The ref of one session: chooses it, and makes commits on it. Raises `Refused`, `CdoError`, `OSError`.

    A new one is `refs/cdo/NAME`, or the branch `refs/heads/cdo/NAME` where `heads` asks for it.
    """

    def __init__(
        self,
        session: Session,
        told: CommitMessageBuilder,
        folder: Path,
        redact: Callable[[str], str],
        heads: bool = False,
    ) -> None:
        self.repository: Repository | None = None
        self.branch = self.foreign = ""  # the short name of the ref; a commit there that is not cdo's
        self._place = HEADS if heads else REFS
        self.held: dict[str, str] = {}  # files kept off the branch, and what secret each seems to hold
        self.until = float("inf")  # on the monotonic clock: the deadline of git
        self._redact = redact
        self._session = session
        self._told = told
        self._folder = folder
        self._tip = self._event = ""
        self._tree: dict[str, str] = {}
        self._seen: dict[str, tuple[tuple[int, ...], str]] = {}
        self._last: dict[str, str] = {}
        self._turns: tuple[str, frozenset[int]] = "", frozenset()  # the tip, and the turns on the branch
        # Read before the run moves anything, to tell a person's changes from what cdo does from here on.
        self._found: dict[str, bytes] | None = None
        if any(record["kind"] == "trail" for record in session.records):
            with contextlib.suppress(SessionError):  # the run itself reports it
                self._found = _readable(session)

    def keep(self, job: PendingCommit) -> None:
        """Make the commit of a job, unless an earlier process made it."""
        if not self.branch:
            self._start()
        if job.event == "begin":
            return
        self._look()
        if job.event == "turn" and job.replayed and self._holds(job):
            return
        changes = self._changes(lambda name: job.event != "turn" or _by_then(name, job))
        if job.event == self._event and job.event in ("final", "stopped") and set(changes) <= {"journal.jsonl"}:
            return
        self._commit(job.event, job.message, changes)

    def end(self, until: float) -> None:
        """Set the deadline on the monotonic clock for the git command that runs now and for later ones."""
        self.until = until
        if self.repository:
            self.repository.until = until

    def _find(self, folder: Path) -> Repository | None:
        return git.find(folder, lambda: self.until)

    @property
    def _ref(self) -> str:
        return f"{self._place}{self.branch}"

    def _start(self) -> None:
        """Find the repository and the session's branch in it; begin the branch, or commit a person's changes."""
        repository = self.repository = self._find(self._session.path) or self._find(self._folder)
        if repository is None:
            raise NoBranch
        repository.until = self.until
        place, branch = self._choose(repository)
        if repository.has(f"{place}cdo"):
            raise Refused(f"'{place}cdo' exists, so that no ref can be called {place}cdo/…")
        self._place, self.branch = place, branch
        try:
            self._look()
            if not self._tip:
                self._begin(repository)
            elif self._found is not None:
                self._edits(self._found)
        except BaseException:
            self.branch = ""  # try again from the start
            raise

    def _choose(self, repository: Repository) -> tuple[str, str]:
        """Return place and name of the ref on record, else of the first name that is free or holds this session.

        A name is free if no place has it, so that git never finds two histories under one name.
        """
        name = f"{BRANCH}{self._session.name}"
        refs = (f"{place}{name}{more}" for place in LOCAL for more in ("", "-*"))
        there = {found.ref: found for found in repository.branches(*refs)}
        taken = set(repository.unborn()) - set(there)
        frozen = read_frozen(self._session.read("session.yaml"), self._session.path)
        forked = frozen.forked and f"{frozen.forked.session}@{frozen.forked.turn}"
        self._told.identify(frozen.plan.preset, frozen.plan.mode, frozen.created, forked or "")
        recorded = [str(item["branch"]) for item in self._session.records if item["kind"] == "trail"]
        mine = [item for item in reversed(recorded) if re.fullmatch(rf"{re.escape(name)}(-[0-9]+)?", item)]
        for branch in (*mine[:1], name, *(f"{name}-{number}" for number in range(2, 100))):
            found = [(place, there[ref]) for place in LOCAL if (ref := f"{place}{branch}") in there]
            place = next((place for place, ref in found if _continues(repository, ref, frozen.created)), "")
            if not found and f"{HEADS}{branch}" not in taken:
                place = self._place
            if place:
                if branch not in mine[:1]:
                    self._session.note({"kind": "trail", "branch": branch})
                return place, branch
        raise Refused(f"all refs called {name} hold other sessions")

    def _look(self) -> None:
        """Read the current tip of the branch; raise `Refused` if it is symbolic or checked out."""
        repository = self._there()
        found = next((branch for branch in repository.branches(self._ref) if branch.ref == self._ref), None)
        if found and found.symbolic:
            raise Refused(f"{self.branch} is only another name of a ref")
        if found and found.worktree:
            raise Refused(f"{self.branch} is checked out in {found.worktree}")
        tip = found.tip if found else ""
        if tip != self._tip:
            self._tip = tip
            self._tree = {entry.path: entry.object for entry in repository.tree(tip)} if tip else {}
            self._last = branch_reader.trailers(found.message) if found else {}
            if tip and not self._last and not self.foreign:
                self.foreign = tip[:12]
            self._event = self._last.get("Cdo-Event", "")

    def _there(self) -> Repository:
        if self.repository is None:
            raise NoBranch
        return self.repository

    def _begin(self, repository: Repository) -> None:
        """Make the first commit: the question and the plan. A fork adds what it took over, on top of its source.

        If a remote keeps this very session, continue its branch.
        """
        frozen = read_frozen(self._session.read("session.yaml"), self._session.path)
        forked = frozen.forked
        if there := branch_reader.elsewhere(repository, self._session.name, frozen.created):
            last = branch_reader.trailers(there.message)
            carried = {key: value for key, value in last.items() if key in _CARRIED}
            message = self._told.again(branch_reader.short_name(there), carried)
            self._tip, self._tree = there.tip, {entry.path: entry.object for entry in repository.tree(there.tip)}
            self._commit("begin", message, {})
            if self._found is not None:
                self._edits(self._found)
            return
        base = branch_reader.commit_after(repository, forked.session, forked.created, forked.turn) if forked else ""
        if forked is None or not base:
            changes = self._changes(lambda name: name.startswith("00-") or name == "session.yaml")
            self._commit("begin", self._told.begin((forked.session, forked.turn) if forked else None), changes)
            return
        self._tip, self._tree = base, {entry.path: entry.object for entry in repository.tree(base)}
        changes = self._changes(lambda name: _within(name, forked.turn))
        self._commit("begin", self._told.begin((forked.session, forked.turn), forked.turn), changes)

    def _holds(self, job: PendingCommit) -> bool:
        """True if the branch has this turn, with the same files as the folder (which may be none)."""
        folder = SessionFolder(self._session.path)
        lying = {name: folder.data(name) or b"" for name in folder.files() if name.startswith(job.proof)}
        clean = self._clean(lying)
        there = {name: git.blob_id(data or b"", len(self._tip)) for name, data in clean.items()}
        off = lying.keys() - clean.keys()
        same = there == {
            name: identity for name, identity in self._tree.items() if name.startswith(job.proof) and name not in off
        }
        if same and self._turns[0] != self._tip:
            self._turns = self._tip, frozenset(branch_reader.turns(self._there().log(self._tip)))
        return same and job.turn in self._turns[1]

    def _edits(self, found: Mapping[str, bytes]) -> None:
        """Commit what a person changed since the last commit, if anything."""
        changed: dict[str, bytes | None] = {
            name: data
            for name, data in found.items()
            if git.blob_id(data, len(self._tip)) != self._tree.get(name) and _by_hand(name, found, name in self._tree)
        }
        changed = self._clean(changed)
        gone = [
            name
            for name in self._tree
            if (_ARTIFACT.fullmatch(name) or given_files.is_version(name)) and name not in found
        ]
        if changed or gone:
            carried = {key: value for key, value in self._last.items() if key in _CARRIED}
            message = self._told.edited(sorted(changed), gone, carried)
            self._commit("edited", message, {**changed, **dict.fromkeys(gone)})

    def _changes(self, wanted: Callable[[str], bool]) -> dict[str, bytes | None]:
        """Return the wanted files of the folder that differ from the branch, and None for files to remove there."""
        folder, length = SessionFolder(self._session.path), len(self._tip)
        found: dict[str, bytes | None] = {}
        names = [name for name in folder.files() if branch_reader.acceptable(name) and wanted(name) and name != _PAGE]
        for name in names:
            try:
                status = signature((folder.path / name).stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            if name in self._seen and self._seen[name] == (status, self._tree.get(name)):
                continue
            data = folder.data(name)
            if data is not None:
                identity = git.blob_id(data, length or 40)
                self._seen[name] = status, identity
                if identity != self._tree.get(name):
                    found[name] = data
        gone = set(self._tree) - set(names)
        return {**self._clean(found), **dict.fromkeys(sorted(gone))}

    def _clean(self, found: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
        """Return the files without those that hold a secret: these stay unchanged on the branch until they are clean.

        Secrets in the replies of models are removed before they get into the folder; the text of a person is stored
        as it is.
        """
        clean = {}
        for name, data in found.items():
            if what := secret_of(name, data or b"", self._redact):
                if name == "session.yaml":  # without it there is no session on the branch
                    raise Refused(f"session.yaml holds {what}")
                self.held[name] = what
            else:
                self.held.pop(name, None)
                clean[name] = data
        return clean

    def _commit(self, event: str, message: str, changes: Mapping[str, bytes | None]) -> None:
        repository, now = self._there(), datetime.now().astimezone()
        if head := repository.head():
            message += f"Cdo-Head: {head}\n"
        tip = repository.commit(self._ref, self._tip, message, (int(now.timestamp()), f"{now:%z}"[:5]), changes)
        for name, data in changes.items():
            if data is None:
                self._tree.pop(name, None)
            else:
                self._tree[name] = git.blob_id(data, len(tip))
        self._tip, self._event, self._last = tip, event, branch_reader.trailers(message)


def _continues(repository: Repository, ref: Branch, created: str) -> bool:
    """True if a ref holds the session created at `created`, and commits can be added to it."""
    return not ref.symbolic and branch_reader.holds(repository, ref.tip, created)


_CARRIED = (
    "Cdo-Turn", "Cdo-Voices", "Cdo-Confidence", "Cdo-Agreement", "Cdo-Open-Tensions", "Cdo-Accepted", "Cdo-Live",
    "Cdo-Blockers",
)  # fmt: skip


def _readable(session: Session) -> dict[str, bytes]:
    """Return the files of a session that a person may have changed, with their content."""
    folder = SessionFolder(session.path)
    files = filter(branch_reader.acceptable, folder.files())
    names = [name for name in files if _read_again(name) or _is_sidecar(name)]
    return {name: data for name in names if (data := folder.data(name)) is not None}


def _is_sidecar(name: str) -> bool:
    return name in artifact.SIDECARS.values()


def _read_again(name: str) -> bool:
    """True if a person's changes to this file are used when the run goes on."""
    return bool(_INPUT.fullmatch(name) or _ARTIFACT.fullmatch(name) or given_files.may_be_given(name))


def _by_hand(name: str, found: Mapping[str, bytes], known: bool) -> bool:
    """True if a person made a file differ from the branch; False if cdo wrote it after the commit.

    `found` is the content of the files by name. A sidecar says something about its artifact and is never an edit.
    """
    data = found[name]
    if _is_sidecar(name):
        return False
    if given_files.may_be_given(name):
        return given_files.given(name, data)
    if not _ARTIFACT.fullmatch(name):
        return known
    try:
        kept = artifact.parse(name.removesuffix(".md"), lambda file: found.get(file, b"").decode("utf-8", "replace"))
        return kept is None or kept.edited
    except SessionError:
        return True


def _by_then(name: str, job: PendingCommit) -> bool:
    """True if a file existed when a turn ended: the thread may run later, when there are more files."""
    return name.removeprefix("calls/") in job.calls if name.startswith("calls/") else _within(name, job.turn)


def _within(name: str, turn: int) -> bool:
    """True if a file can exist at the end of a turn."""
    match = _TURN.match(name)
    return int(match[1]) <= turn if match else not _LATE.fullmatch(name)
