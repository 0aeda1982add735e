"""Runs git commands without executing any program that the repository configures.

`Git` queries a work tree. `Repository` reads and adds commits in any repository, without touching HEAD, the index or
the work tree. No hook, filter, signing program, alias, pager or remote is ever started: the configuration that could
name one is turned off, and only plumbing commands that need none are used.

`git_process` runs each command.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha1, sha256
from pathlib import Path

from msgspec import Struct

from cdo.repository.git_process import Refused, TooSlow, answer
from cdo.repository.work_tree import is_git_directory

SECONDS = 5.0  # time limit of one query
COMMIT_SECONDS = 20.0
PATCH = 256 * 2**20  # most bytes of a patch
OUTPUT = 16 * 2**20  # most bytes read of one command's output

# Turns off the programs that a repository's configuration could make git run for the commands used here.
_HARMLESS = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false"),
    *("-c", "log.showSignature=false", "-c", "protocol.allow=never", "-c", "credential.helper="),
    *("-c", "core.sshCommand=false", "-c", "i18n.logOutputEncoding=UTF-8", "--no-pager", "--literal-pathspecs"),
)
_COMMITTING = (
    *(
        "-c",
        "gc.auto=0",
        "-c",
        "maintenance.auto=false",
        "-c",
        "commit.gpgSign=false",
        "-c",
        "core.sharedRepository=",
    ),
    *("-c", "i18n.commitEncoding=UTF-8", "-c", "fastimport.unpackLimit=100"),
)
_AUTHOR = "cdo <cdo@localhost>"


class Git:
    """Queries about one work tree. After a query fails, every later one returns None."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._program = program("git", root)

    def ask(self, *args: str) -> list[str] | None:
        """Return git's output, split at NUL bytes; None if git fails, is missing, or takes too long."""
        if not self._program:
            return None
        # Set explicitly, because the configuration may claim another work tree.
        env = {**_environment(), "GIT_DIR": f"{self._root}/.git", "GIT_WORK_TREE": self._root}
        until = time.monotonic() + SECONDS
        try:
            out = answer([self._program, *_HARMLESS, *args], Path(self._root), env, b"", lambda: until, OUTPUT)
        except Refused:
            self._program = None
            return None
        return [os.fsdecode(item) for item in out.split(b"\0") if item]


# -- a repository of any kind ----------------------------------------------------------------------


class Branch(Struct, frozen=True):
    """A branch: its full `ref`, the commit at its `tip`, that commit's `message` and `date` (seconds since 1970).

    `symbolic` is true for a symbolic ref. `worktree` is the work tree in which it is checked out, "" for none.
    """

    ref: str
    tip: str
    symbolic: bool
    worktree: str
    date: int
    message: str


class TreeEntry(Struct, frozen=True):
    """One entry of a commit's tree; `size` in bytes, 0 if it is not a file."""

    path: str
    mode: str
    object: str
    size: int


class Repository:
    """The git directory of a repository, wherever its work tree is, if it has one.

    Every method raises `Refused` if git fails, prints too much, or times out: after `SECONDS` (`COMMIT_SECONDS` for
    `blobs` and `commit`), or sooner when the monotonic clock reaches `until`.
    """

    def __init__(self, directory: Path, program: str) -> None:
        self.directory = directory
        self.until = float("inf")
        self._program = program

    def branches(self, *patterns: str) -> list[Branch]:
        """Return the branches whose refs begin with, or match, one of the patterns."""
        fields = "refname", "objectname", "objecttype", "symref", "worktreepath", "committerdate:unix", "contents"
        out = self._run("for-each-ref", f"--format={''.join(f'%({field})%00' for field in fields)}", *patterns)
        parts = out.decode("utf-8", "replace").split("\0")
        found = []
        for at in range(0, len(parts) - len(fields), len(fields)):
            ref, tip, kind, symref, worktree, date, message = parts[at : at + len(fields)]
            if kind == "commit":
                when = int(date) if date.isdecimal() else 0
                found.append(Branch(ref.lstrip("\n"), tip, bool(symref), worktree, when, message))
        return found

    def has(self, ref: str) -> bool:
        """True if exactly this ref exists."""
        return f"{ref}\n" in self._run("for-each-ref", "--format=%(refname)", ref).decode("utf-8", "replace")

    def head(self) -> str:
        """Return the commit that HEAD points to, "" if there is none yet."""
        try:
            return self._run("rev-parse", "--quiet", "--verify", "HEAD^{commit}").decode().strip()
        except TooSlow:
            raise
        except Refused:
            return ""

    def unborn(self) -> list[str]:
        """Return the refs checked out in any of the work trees, including those without a commit yet."""
        told = self._run("worktree", "list", "--porcelain").decode("utf-8", "replace").splitlines()
        return [line.removeprefix("branch ") for line in told if line.startswith("branch ")]

    def log(self, tip: str, most: int = 2000) -> list[tuple[str, str]]:
        """Return the newest `most` commits from `tip` back along first parents, as (id, message)."""
        out = self._run("log", "-z", "--first-parent", "--no-color", f"-n{most}", "--format=%H%n%B", tip)
        messages = [item.partition("\n") for item in out.decode("utf-8", "replace").split("\0") if item]
        return [(identity, message) for identity, _, message in messages]

    def tree(self, commit: str) -> list[TreeEntry]:
        """Return all entries in the tree of a commit, recursively."""
        found = []
        for line in self._run("ls-tree", "-r", "-z", "-l", "--full-tree", commit).split(b"\0"):
            head, tab, path = line.partition(b"\t")
            fields = head.decode("ascii", "replace").split()
            if tab and len(fields) == 4:
                size = int(fields[3]) if fields[3].isdecimal() else 0
                found.append(TreeEntry(path.decode("utf-8", "surrogateescape"), fields[0], fields[2], size))
        return found

    def blobs(self, entries: Sequence[TreeEntry]) -> list[bytes]:
        """Return the contents of files, read with one git command."""
        asked = "".join(f"{entry.object}\n" for entry in entries).encode()
        most = sum(entry.size for entry in entries) + 200 * len(entries)
        out = self._run("cat-file", "--batch", data=asked, seconds=COMMIT_SECONDS, limit=most)
        found, at = [], 0
        for entry in entries:
            end = out.find(b"\n", at)
            if end < 0 or out[at:end] != f"{entry.object} blob {entry.size}".encode():
                raise Refused(f"{entry.path} is missing from the repository")
            found.append(out[end + 1 : end + 1 + entry.size])
            at = end + entry.size + 2
        return found

    def commit(
        self,
        ref: str,
        parent: str,
        message: str,
        when: tuple[int, str],
        changes: Mapping[str, bytes | None],
        modes: Mapping[str, str] | None = None,
    ) -> str:
        """Add a commit to `ref` on top of `parent` ("" for none) and return its id.

        `changes` are contents by path, None to delete a file; `when` is seconds since 1970 and an offset ("+0100").
        `modes` are those of files that are not plain ones ("100755"). Also raises `Refused` if `ref` no longer points
        to `parent`.
        """
        stamp = f"{_AUTHOR} {when[0]} {when[1]}"
        parts = [f"commit {ref}\nmark :1\nauthor {stamp}\ncommitter {stamp}\n".encode(), _counted(message.encode())]
        parts += [f"from {parent}^0\n".encode()] if parent else []
        parts += [f"D {_quoted(path)}\n".encode() for path, data in changes.items() if data is None]
        for path, data in changes.items():
            if data is not None:
                mode = (modes or {}).get(path, "100644")
                parts += [f"M {mode} inline {_quoted(path)}\n".encode(), _counted(data)]
        stream = b"".join((*parts, b"\nget-mark :1\ndone\n"))
        words = "fast-import", "--quiet", "--done", "--date-format=raw"
        try:
            told = self._run(*_COMMITTING, *words, data=stream, seconds=COMMIT_SECONDS).decode("ascii", "replace")
        except Refused as refused:
            with contextlib.suppress(OSError):  # the crash report that fast-import leaves
                (self.directory / f"fast_import_crash_{refused.process}").unlink()
            raise
        if not re.fullmatch(r"[0-9a-f]{40,64}\n", told):
            raise Refused("git named no commit")
        return told.strip()

    def patch(self, commit: str) -> bytes:
        """Return what a commit changes, as a patch that `git apply` takes."""
        words = "--root", "--no-commit-id", "-p", "--binary", "--full-index", "--no-renames", "--no-color"
        return self._run(
            "diff-tree", *words, "--no-ext-diff", "--no-textconv", commit, seconds=COMMIT_SECONDS, limit=PATCH
        )

    def drop(self, ref: str, tip: str) -> None:
        """Delete a ref that points to the commit `tip`."""
        self._run("update-ref", "-d", ref, tip)

    def _run(self, *args: str, data: bytes = b"", seconds: float = SECONDS, limit: int = OUTPUT) -> bytes:
        env = {**_environment(), "GIT_DIR": str(self.directory)}
        until = time.monotonic() + seconds
        return answer(
            [self._program, *_HARMLESS, *args], self.directory, env, data, lambda: min(until, self.until), limit
        )


def find(folder: Path, until: Callable[[], float] = lambda: float("inf")) -> Repository | None:
    """Return the repository that contains a folder, or its nearest existing parent; None if there is none.

    The time limit is `SECONDS`, or sooner when the monotonic clock reaches `until()`. Raises `TooSlow` after that,
    and `Refused` if there is a repository that cannot be used: damaged, another user's, or no git on this machine.
    """
    folder = Path(os.path.realpath(folder))  # so that `work/..` is not taken to be inside work's repository
    there = next((place for place in (folder, *folder.parents) if place.is_dir()), Path("/"))
    root = marked_root(there)
    if root is None and not any(map(is_git_directory, (there, *there.parents))):
        return None  # without the time that a process of git takes
    found = program("git", str(root or there))
    if found is None:
        if root is None:
            return None
        raise Refused("there is no git program on this machine")
    try:
        limit = time.monotonic() + SECONDS
        words = [found, *_HARMLESS, "rev-parse", "--absolute-git-dir"]
        out = answer(words, there, _environment(), b"", lambda: min(limit, until()), OUTPUT)
    except Refused as refused:
        if "(or any" not in str(refused):  # "not a git repository (or any of the parent directories)"
            raise
        if root is None:
            return None
        raise Refused(f"{root / '.git'} is damaged: git takes it for no repository") from None
    return Repository(Path(os.fsdecode(out.removesuffix(b"\n"))), found)


def blob_id(data: bytes, length: int) -> str:
    """Return the git object id of a file's content; `length` is 40 hex digits for SHA-1, else SHA-256 is used."""
    new = sha1 if length == 40 else sha256
    return new(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def apply(folder: Path, patch: str) -> None:
    """Apply a unified diff to the files of a folder outside any repository, atomically.

    As strict as `git apply`: every context line must match. Raises `Refused` with git's error if the diff does not
    apply.
    """
    found = program("git", str(folder))
    if found is None:
        raise Refused("there is no git program on this machine")
    env = {**_environment(), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    until = time.monotonic() + COMMIT_SECONDS
    words = [found, *_HARMLESS, "apply", "--whitespace=nowarn", "-"]
    answer(words, folder, env, patch.encode("utf-8", "replace"), lambda: until, OUTPUT)


# -- finding it ------------------------------------------------------------------------------------


def program(name: str, root: str) -> str | None:
    """Return the absolute path of a program on PATH, never one in or linked into `root`; None if there is none."""
    for place in places(root):
        path = f"{place}/{name}"
        inside = os.path.realpath(path).startswith(f"{root}/")
        if not inside and Path(path).is_file() and os.access(path, os.X_OK):
            return path
    return None


def places(root: str) -> list[str]:
    """Return the folders of PATH that are absolute and neither at nor below `root`."""
    every = os.environ.get("PATH", "").split(os.pathsep)
    ways = {place: (f"{place}/", f"{os.path.realpath(place)}/") for place in every if place.startswith("/")}
    return [place for place, way in ways.items() if not any(found.startswith(f"{root}/") for found in way)]


def marked_root(folder: Path) -> Path | None:
    """Return the nearest folder with anything called `.git`, also a broken one, from `folder` upwards; or None."""
    folder = Path(os.path.realpath(folder))
    return next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), None)


def _environment() -> dict[str, str]:
    """Return git's whole environment: no configuration but the repository's own, no prompts, no fetching."""
    places = [place for place in os.environ.get("PATH", "").split(os.pathsep) if place.startswith("/")]
    name, address = _AUTHOR.rstrip(">").split(" <")
    return {
        "PATH": os.pathsep.join(places),
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",  # a repository may name a program to fetch with
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_REPLACE_OBJECTS": "1",
        **{f"GIT_{who}_NAME": name for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": address for who in ("AUTHOR", "COMMITTER")},
    }


def _counted(data: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(data), data)


def _quoted(path: str) -> str:
    """Quote a path for fast-import."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
