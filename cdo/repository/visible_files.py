"""Decides which files below a folder may be shown to a model, and reads their text.

Version control data, cdo sessions and likely secrets are never shown. Ignored and binary files are not shown either.
No symlink is followed out of the root. Paths are relative, use `/`, and are printable whatever bytes a name has.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from cdo.repository.gitignore import Rules, rules_above
from cdo.security.safe_open import DirectoryCache, present
from cdo.security.secrets import SECRET_FOLDERS, called, likely_secret_name, secret_in, secret_name

MAX_BYTES = 1_000_000  # a larger file is treated as data and skipped, unless a person named it

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
_SESSION_MARKS = ("calls", "journal.jsonl")  # a session has session.yaml and one of these
_LINKS = 16  # most symlinks resolved for one path

# Control characters, and characters that reorder or hide text (bidi marks, tags): invisible to a reader.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


class Skipped(Struct, frozen=True):
    """A file or folder (its path ends with "/") that was left out, and the reason as a phrase."""

    path: str
    why: str


class VisibleFile(Struct, frozen=True):
    """A regular file that may be shown: its path, its way (see `DirectoryCache`), and its size in bytes.

    `named` is true if a person named it.
    """

    path: str
    way: tuple[str, ...]
    size: int = 0
    named: bool = False

    @property
    def real(self) -> str:
        """The real path."""
        return _joined(self.way)


class VisibleFolder(Struct, frozen=True):
    """A folder to walk: its way, the prefix of the paths shown in it, and the ignore rules that apply around it."""

    way: tuple[str, ...]
    prefix: str
    rules: Rules


class NotShowable(Exception):
    """Raised if a file must not be shown: `why` is a phrase; `hint` is a sentence for the caller, or ""."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


# -- by name --------------------------------------------------------------------------------------


def forbidden(name: str, *, folder: bool, above: str = "") -> str:
    """Return why an entry called `name` is not shown to a model; "" if its name does not forbid it.

    `above` is the name of the folder that holds it.
    """
    if called(name, _VCS) and (folder or name == ".git"):
        return VERSION_CONTROL
    secret = called(name, SECRET_FOLDERS) if folder else secret_name(name) or likely_secret_name(name, above)
    return SECRET_NAME if secret else ""


def derived(name: str, *, folder: bool) -> str:
    """Return why a name looks generated or vendored (shown only when named explicitly); "" otherwise."""
    if folder:
        return DEPENDENCIES if called(name, _DERIVED_FOLDERS) else ""
    return GENERATED if called(name, _DERIVED_NAMES) else ""


def generated(text: str) -> bool:
    """True if a marker in the first 1,000 characters says that the file is generated."""
    return _DERIVED_MARK.search(text, 0, 1000) is not None


def is_session(folder: str, at: int | None = None) -> bool:
    """True if a folder holds a cdo session, by its marker files. Voices must not be shown the replies of other runs.

    A relative path starts at the open directory `at`, if there is one.
    """
    base = folder.rstrip("/")
    return present(f"{base}/session.yaml", at) and any(present(f"{base}/{mark}", at) for mark in _SESSION_MARKS)


def walk(start: VisibleFolder, depth: int = 0) -> Iterator[VisibleFile | Skipped]:
    """Yield everything below a folder, in order: its files, then its subfolders, each by name.

    Folders below `depth` levels (0: no limit) are skipped. Symlinks are not followed, even if one replaces a folder
    during the walk. So the walk ends and stays inside the folder. Raises `OSError` if `start` cannot be read.
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
    """Judge an entry of the folder `above`, open `at`, by its type and name.

    Return the size of a file, None for a folder to walk, or a `Skipped`.
    """
    if entry.is_symlink():
        return Skipped(path, LINK)
    folder = entry.is_dir(follow_symlinks=False)
    path += "/" * folder
    why = forbidden(entry.name, folder=folder, above=above.rpartition("/")[2])
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
    """Return the text of a file of at most `limit` bytes, safe to show; raise `NotShowable`."""
    try:
        data = descent.read(file.way, limit + 1)
    except OSError as error:
        raise NotShowable(unreadable(error), "Check its permissions, or leave it out.") from error
    return readable(data, limit)


def readable(data: bytes, limit: int) -> str:
    """Decode a file with control and hidden characters made visible; raise `NotShowable` if it must not be shown."""
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
    """Split a file's text into lines, as line numbers count them everywhere: the first item is line 1."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def numbered(lines: Sequence[str], first: int = 1) -> str:
    """Prefix lines with their numbers ("12| code"), so that they can be cited."""
    return "".join([f"{number}| {line}\n" for number, line in enumerate(lines, first)])


def visible(text: str) -> str:
    """Replace control and hidden characters by visible ones: ␛ for escape, <U+202E> for a direction mark."""
    return _HIDDEN.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"<U+{code:04X}>"


def printable(name: str) -> str:
    """Return a file name on one line: bytes that are not UTF-8 as `\\xNN`, control characters visible."""
    if name.isascii() and name.isprintable():
        return name
    name = os.fsencode(name).decode("utf-8", "backslashreplace")
    return visible(name).replace("\n", "␊").replace("\t", "␉")


def unreadable(error: OSError) -> str:
    """Return a phrase that says why something cannot be read."""
    return f"cannot be read ({(error.strerror or 'unknown error').lower()})"


# -- paths written by a model ---------------------------------------------------------------------


class Tree:
    """The files below `root`, looked up by untrusted paths (written by a model). No path leads outside `root`."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self._given = str(root.absolute())
        self._rules = rules_above(Path(self.root), Path(self.root))

    def find(self, path: str) -> VisibleFile | None:
        """Return the regular file at `path`, None for a folder.

        Raise `NotShowable` if `path` does not exist, leads outside, or must not be shown.
        """
        return self._find(path)[1]

    def folder(self, path: str) -> VisibleFolder:
        """Return the folder at `path`; raise `NotShowable`."""
        parts, file, rules = self._find(path)
        if file:
            raise NotShowable("a file, not a folder", "Read it instead.")
        prefix = "".join(f"{printable(part)}/" for part in parts)
        return VisibleFolder((self.root, *parts), prefix, rules)

    def text(self, path: str) -> str:
        """Return the text of the file at `path`, safe to show; raise `NotShowable`."""
        parts, file, _ = self._find(path)
        if not file:
            raise NotShowable("a folder, not a file", "Name a file in it.")
        return readable(self._bytes(parts), MAX_BYTES)

    def bytes_at(self, path: str, limit: int) -> bytes:
        """Read at most `limit` bytes of a file. `path` must be relative, without `..`, with raw names.

        Raise `OSError` if it cannot be read, or if a component is a symlink.
        """
        return self._bytes(path.split("/"), limit)

    def _bytes(self, parts: Sequence[str], limit: int = MAX_BYTES + 1) -> bytes:
        with DirectoryCache() as descent:
            return descent.read((self.root, *parts), limit)

    def _find(self, path: str) -> tuple[list[str], VisibleFile | None, Rules]:
        """Resolve symlinks; return (names from the root down, the file or None, the ignore rules around it)."""
        todo = self._parts(path)
        if not todo:
            return [], None, self._rules
        try:
            with DirectoryCache() as descent:
                return self._step_down(todo, descent)
        except OSError as error:
            raise NotShowable(unreadable(error)) from error

    def _step_down(self, todo: list[str], descent: DirectoryCache) -> tuple[list[str], VisibleFile | None, Rules]:
        """Do the work of `_find` for the names in `todo`; also raise `OSError`."""
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
            above = done[-1] if done else ""
            why = forbidden(name, folder=folder, above=above) or IGNORED * rules.ignored(here, folder=folder)
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
        """Split a path into names from the root down; an absolute path must be below the root."""
        for root in (self.root, self._given):
            if path == root or path.startswith(root.rstrip("/") + "/"):
                path = path[len(root) :].lstrip("/")
                break
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith(("/", "~")) or ".." in parts:
            raise NotShowable(OUTSIDE, "Give a path from the top of the repository, without `..`.")
        return parts

    def _behind(self, here: str, name: str, links: int) -> list[str]:
        """Return a symlink's target as names from the root down; raise `NotShowable` if it is not inside."""
        if why := forbidden(name, folder=False) or forbidden(name, folder=True):
            raise NotShowable(why, "It is not shown to models.")
        real = os.path.realpath(here)
        if links > _LINKS or not real.startswith(self.root.rstrip("/") + "/"):
            raise NotShowable("a symbolic link that leads nowhere inside the repository")
        return os.path.relpath(real, self.root).split("/")


def has_files(root: Path) -> bool:
    """True if there is a file below `root` that models may be shown."""
    try:
        return any(isinstance(item, VisibleFile) for item in walk(Tree(root).folder("")))
    except (OSError, NotShowable):
        return False


def _entry(folder: int, part: str) -> str:
    """Return the entry of an open folder named `part`, exactly or as `printable` shows it; raise `NotShowable`.

    The folder's listing is compared, because some file systems open `.git` for `.GIT` or `.g\u200cit`.
    """
    names = os.listdir(folder)
    found = part if part in names else next((name for name in sorted(names) if printable(name) == part), None)
    if found is None:
        import difflib

        seen = [shown for name in sorted(names) if not forbidden(name, folder=True) for shown in [printable(name)]]
        near = difflib.get_close_matches(part[:200], seen, n=3)
        raise NotShowable(
            "not there", f"There is {' and '.join(near)}." if near else "List the folder to see its files."
        )
    return found


def _joined(way: tuple[str, ...]) -> str:
    return "/".join([way[0].rstrip("/"), *way[1:]]) or "/"
