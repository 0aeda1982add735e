"""The files below a folder, judged: which of them may be shown to a model, why the others not, and their text.

Version control data, sessions of cdo and what looks like a secret are never shown; ignored and binary files are not
either. No symbolic link is followed out of a root. Paths are relative, with `/`, and printable whatever bytes a
name has.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdo.repository.gitignore import Rules, rules_above
from cdo.security.safe_open import DirectoryCache, present
from cdo.security.secrets import SECRET_FOLDERS, called, secret_in, secret_name

MAX_BYTES = 1_000_000  # a larger file that nobody named is data, not reading matter

IGNORED = "ignored by git"
VERSION_CONTROL = "version control data"
SECRET_NAME = "may hold secrets, by its name"
GENERATED = "lock file, minified or generated"
DEPENDENCIES = "dependencies or a cache"
SESSION = "an earlier session of cdo"
BINARY = "binary"
LINK = "symbolic link"
TOO_DEEP = "too deep to be opened"
OUTSIDE = "outside the repository"

# Names, as globs that ignore case.
_VCS = ".git .hg .svn .bzr .jj .pijul _darcs CVS"
_DERIVED_FOLDERS = (
    "node_modules bower_components __pycache__ venv .venv .tox .nox .*_cache .hypothesis .gradle .terraform"
)
_DERIVED_NAMES = (
    "*.lock *.lockb *.lockfile *-lock.json *.lock.json *.lock.hcl npm-shrinkwrap.json pnpm-lock.yaml go.sum "
    ".pnp.* *.min.js *.min.mjs *.min.cjs *.min.css *.bundle.js *.js.map *.mjs.map *.cjs.map *.css.map "
    "*_pb2.py *_pb2.pyi *_pb2_grpc.py *.pb.go *.generated.* *.g.dart"
)
_DERIVED_MARK = re.compile(r"^\W{0,8}(?:Code generated .*DO NOT EDIT|@generated\b)", re.MULTILINE)
_SESSION_MARKS = ("calls", "journal.jsonl")  # one of them, beside session.yaml
_LINKS = 16  # symbolic links on the way to one file

# Control characters, and those that reorder or hide text (bidi marks, tags): what a reader would not see.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True)
class Skipped:
    """One file, or folder (its path ends with "/"), that was left out, and why, as a phrase."""

    path: str
    why: str


@dataclass(frozen=True)
class VisibleFile:
    """A regular file that may be shown: its name, the way to it (see `DirectoryCache`), its size in bytes."""

    path: str
    way: tuple[str, ...]
    size: int = 0
    named: bool = False

    @property
    def real(self) -> str:
        """Its real path."""
        return _joined(self.way)


@dataclass(frozen=True)
class VisibleFolder:
    """A folder to walk: the way to it, what shown paths in it start with, and the rules that hold around it."""

    way: tuple[str, ...]
    prefix: str
    rules: Rules


class NotShowable(Exception):
    """A file must not be shown: why, as a phrase, and what whoever named it can do, as a sentence or ""."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


# -- by name --------------------------------------------------------------------------------------


def forbidden(name: str, *, folder: bool) -> str:
    """Why an entry called `name` is never shown to a model; "" where its name says nothing against it."""
    if called(name, _VCS) and (folder or name == ".git"):
        return VERSION_CONTROL
    return SECRET_NAME if (called(name, SECRET_FOLDERS) if folder else secret_name(name)) else ""


def derived(name: str, *, folder: bool) -> str:
    """Return why a name looks generated or vendored (shown only when named explicitly); "" otherwise."""
    if folder:
        return DEPENDENCIES if called(name, _DERIVED_FOLDERS) else ""
    return GENERATED if called(name, _DERIVED_NAMES) else ""


def generated(text: str) -> bool:
    """Whether a file says at its start that a program wrote it."""
    return _DERIVED_MARK.search(text, 0, 1000) is not None


def is_session(folder: str, at: int | None = None) -> bool:
    """Whether a folder holds a session of cdo, by its marks: voices must not be fed what voices said.

    A relative path starts at the open directory `at`, if there is one.
    """
    base = folder.rstrip("/")
    return present(f"{base}/session.yaml", at) and any(present(f"{base}/{mark}", at) for mark in _SESSION_MARKS)


def walk(start: VisibleFolder, depth: int = 0) -> Iterator[VisibleFile | Skipped]:
    """What is below a folder, in order: its files, then its subfolders, each by name.

    Folders below `depth` levels (0: any number) are skipped. Symbolic links are not followed, also where one takes
    the place of a folder meanwhile, so this ends and stays inside. Raises `OSError` where `start` cannot be read.
    """
    stack, last = [start], len(start.way) + depth - 1
    with DirectoryCache() as descent:
        while stack:
            here = stack.pop()
            try:
                at = descent.folder(here.way)
                with os.scandir(at) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except OSError as error:
                if here is start:
                    raise
                yield Skipped(here.prefix, unreadable(error))
                continue
            real, below = _joined(here.way), list[VisibleFolder]()
            rules = here.rules.enter(real, at)
            for entry in entries:
                path = here.prefix + printable(entry.name)
                try:
                    item = _look(entry, path, real, rules, at)
                except OSError as error:
                    item = Skipped(path, unreadable(error))
                if isinstance(item, Skipped):
                    yield item
                elif item is None:
                    below.append(VisibleFolder((*here.way, entry.name), f"{path}/", rules))
                else:
                    yield VisibleFile(path, (*here.way, entry.name), item)
            if depth and len(here.way) == last:
                yield from (Skipped(folder.prefix, TOO_DEEP) for folder in below)
            else:
                stack += reversed(below)


def _look(entry: os.DirEntry[str], path: str, above: str, rules: Rules, at: int) -> int | Skipped | None:
    """Judge an entry of the folder `above`, open `at`, by what it is and how it is called.

    Returns the size of a file, None for a folder to walk.
    """
    if entry.is_symlink():
        return Skipped(path, LINK)
    folder = entry.is_dir(follow_symlinks=False)
    path += "/" * folder
    why = forbidden(entry.name, folder=folder)
    if why != VERSION_CONTROL and rules.ignored(f"{above}/{entry.name}", folder=folder):
        why = IGNORED
    if why:
        return Skipped(path, why)
    if folder and is_session(entry.name, at):
        return Skipped(path, SESSION)
    if not folder and not entry.is_file(follow_symlinks=False):
        return Skipped(path, "not a regular file")
    if why := derived(entry.name, folder=folder):
        return Skipped(path, why)
    if folder:
        return None
    size = entry.stat(follow_symlinks=False).st_size
    return Skipped(path, "over 1 MB") if size > MAX_BYTES else size


# -- by content -----------------------------------------------------------------------------------


def load(file: VisibleFile, limit: int, descent: DirectoryCache) -> str:
    """The text of a file of at most `limit` bytes, fit to be shown; raises `Unfit`."""
    try:
        data = descent.read(file.way, limit + 1)
    except OSError as error:
        raise NotShowable(unreadable(error), "Check its permissions, or leave it out.") from error
    return readable(data, limit)


def readable(data: bytes, limit: int) -> str:
    """The bytes of a file as text in which nothing acts or hides; raises `Unfit` for what must not be shown."""
    if len(data) > limit:
        raise NotShowable(f"over {limit // 1_000_000} MB", "Copy what matters into a smaller file.")
    if b"\0" in data:
        raise NotShowable(BINARY, "Convert it to text first.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotShowable("not UTF-8 text", "Convert it to UTF-8 first.") from error
    if what := secret_in(text):
        raise NotShowable(f"seems to hold {what}", "Take the secret out, or copy what matters into another file.")
    return visible(text.replace("\r\n", "\n"))


def lines_of(text: str) -> list[str]:
    """The lines of a file's text, as they are numbered everywhere: line 1 is the first of them."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def numbered(lines: Sequence[str], first: int = 1) -> str:
    """Lines with their numbers before them ("12| code"), so that they can be cited."""
    return "".join([f"{number}| {line}\n" for number, line in enumerate(lines, first)])


def visible(text: str) -> str:
    """`text` with what would act or hide shown instead: ␛ for escape, <U+202E> for a mark of direction."""
    return _HIDDEN.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"<U+{code:04X}>"


def printable(name: str) -> str:
    """A file name on one line: bytes that are not UTF-8 as `\\xNN`, control characters visible."""
    if name.isascii() and name.isprintable():
        return name
    name = os.fsencode(name).decode("utf-8", "backslashreplace")
    return visible(name).replace("\n", "␊").replace("\t", "␉")


def unreadable(error: OSError) -> str:
    """Why something cannot be read, as a phrase."""
    return f"cannot be read ({(error.strerror or 'unknown error').lower()})"


# -- a path that somebody wrote -------------------------------------------------------------------


class Tree:
    """The files below `root`, found by paths that a model wrote: whatever they are, nothing outside is touched."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._given = str(root.absolute())
        self._rules = rules_above(Path(self.root), Path(self.root))

    def find(self, path: str) -> VisibleFile | None:
        """The regular file at `path`, None for a folder.

        Raises `Unfit` for what is not there, leads outside, or must not be shown.
        """
        return self._find(path)[1]

    def folder(self, path: str) -> VisibleFolder:
        """The folder at `path`; raises `Unfit`."""
        parts, file, rules = self._find(path)
        if file:
            raise NotShowable("a file, not a folder", "Read it instead.")
        prefix = "".join(f"{printable(part)}/" for part in parts)
        return VisibleFolder((self.root, *parts), prefix, rules)

    def text(self, path: str) -> str:
        """The text of the file at `path`, fit to be shown; raises `Unfit`."""
        parts, file, _ = self._find(path)
        if not file:
            raise NotShowable("a folder, not a file", "Name a file in it.")
        return readable(self._bytes(parts), MAX_BYTES)

    def bytes_at(self, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a file whose path is known to be plain: relative, without `..`, in raw names.

        No component may be a symbolic link. Raises `OSError`.
        """
        return self._bytes(path.split("/"), limit)

    def _bytes(self, parts: Sequence[str], limit: int = MAX_BYTES + 1) -> bytes:
        with DirectoryCache() as descent:
            return descent.read((self.root, *parts), limit)

    def _find(self, path: str) -> tuple[list[str], VisibleFile | None, Rules]:
        """(names from the root down, the file if it is one, the rules around it); no name is a symbolic link."""
        todo = self._parts(path)
        if not todo:
            return [], None, self._rules
        try:
            with DirectoryCache() as descent:
                return self._step_down(todo, descent)
        except OSError as error:
            raise NotShowable(unreadable(error)) from error

    def _step_down(self, todo: list[str], descent: DirectoryCache) -> tuple[list[str], VisibleFile | None, Rules]:
        """`_find` for the names in `todo`; raises `OSError` too."""
        done, links = list[str](), 0
        rules, file = self._rules, None
        while todo:
            if file:
                raise NotShowable("not there", "A file has nothing below it.")
            if not done:
                rules = self._rules.enter(self.root, descent.folder((self.root,)))
            at = descent.folder((self.root, *done))
            name = _entry(at, todo.pop(0))
            here = _joined((self.root, *done, name))
            mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                todo, done = [*self._behind(here, name, links), *todo], []
                continue
            folder = stat.S_ISDIR(mode)
            why = forbidden(name, folder=folder) or IGNORED * rules.ignored(here, folder=folder)
            if why or (folder and is_session(name, at)):
                raise NotShowable(why or SESSION, "It is not shown to models.")
            if not folder and not stat.S_ISREG(mode):
                raise NotShowable("not a regular file")
            done.append(name)
            if folder and todo:
                rules = rules.enter(here, descent.folder((self.root, *done)))
            file = None if folder else VisibleFile("/".join(map(printable, done)), (self.root, *done))
        return done, file, rules

    def _parts(self, path: str) -> list[str]:
        """The names in a path, from the root down; an absolute one must say that it is below the root."""
        for root in (self.root, self._given):
            if path == root or path.startswith(root.rstrip("/") + "/"):
                path = path[len(root) :].lstrip("/")
                break
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith(("/", "~")) or ".." in parts:
            raise NotShowable(OUTSIDE, "Give a path from the top of the repository, without `..`.")
        return parts

    def _behind(self, here: str, name: str, links: int) -> list[str]:
        """Where a symbolic link leads, as names from the root down; raises `Unfit` if not inside."""
        if why := forbidden(name, folder=False) or forbidden(name, folder=True):
            raise NotShowable(why, "It is not shown to models.")
        real = os.path.realpath(here)
        if links > _LINKS or not real.startswith(self.root.rstrip("/") + "/"):
            raise NotShowable("a symbolic link that leads nowhere inside the repository")
        return os.path.relpath(real, self.root).split("/")


def _entry(folder: int, part: str) -> str:
    """The entry of an open folder that is written `part`, byte for byte or as `printable` shows it; raises `Unfit`.

    Asking the folder rather than the file system: `.GIT` or `.g\u200cit` is `.git` to some of them.
    """
    names = os.listdir(folder)
    found = part if part in names else next((name for name in sorted(names) if printable(name) == part), None)
    if found is None:
        import difflib

        seen = [shown for name in sorted(names) if not forbidden(name, folder=True) for shown in [printable(name)]]
        near = difflib.get_close_matches(part[:200], seen, n=3)
        raise NotShowable(
            "not there", f"There is {' and '.join(near)}." if near else "List the folder to see what is."
        )
    return found


def _joined(way: tuple[str, ...]) -> str:
    return "/".join([way[0].rstrip("/"), *way[1:]]) or "/"
