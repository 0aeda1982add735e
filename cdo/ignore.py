"""The ignore rules of git, read from their files without git: `.gitignore`, nested, and `.git/info/exclude`."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 1_000_000  # of an ignore file
_MAX_DEEP = 4  # times `**` in a pattern: matching takes as many loops


def read_regular(path: str | Path, limit: int, folder: int | None = None) -> bytes:
    """At most `limit` bytes of a regular file; never waits for a FIFO or follows a link. Raises `OSError`.

    A relative path starts at the open directory `folder`, if there is one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Rules:
    """The ignore patterns that hold in a folder, weakest first: where each starts, its regex, its verdict."""

    patterns: tuple[tuple[str, re.Pattern[str], bool], ...] = ()

    def enter(self, folder: str) -> Rules:
        """The rules inside `folder`; a repository starts anew, as in git."""
        patterns, base = self.patterns, folder.rstrip("/") + "/"
        if os.path.lexists(f"{base}.git"):
            patterns = _patterns(base, _git_folder(base) / "info/exclude")
        return Rules(patterns + _patterns(base, f"{base}.gitignore"))

    def ignored(self, path: str, *, folder: bool) -> bool:
        """Whether the last pattern that matches `path` itself ignores it; its parents are known not to be."""
        path += "/" * folder
        for base, regex, verdict in reversed(self.patterns):
            match = regex.search(path[len(base) :])
            # pathspec also matches what is below a folder and marks that by this group. A "!folder/" taken
            # so would undo what another file ignores inside it.
            if match and (not match.groupdict().get("ps_d") or match.end("ps_d") == len(path) - len(base)):
                return verdict
        return False


def rules_above(folder: Path, root: Path) -> Rules:
    """The rules that hold around `folder`: from its git root, or else from `root`, down to its parent.

    None where they ignore the folder itself: a person who names it wants what is in it.
    """
    chain = [folder, *folder.parents]
    tops = [place for place in chain if os.path.lexists(place / ".git")] or [Path(os.path.realpath(root))]
    if tops[0] not in chain:
        return Rules()
    rules = Rules()
    for number in range(chain.index(tops[0]), 0, -1):
        rules = rules.enter(str(chain[number]))
        if rules.ignored(str(chain[number - 1]), folder=True):
            return Rules()
    return rules


def _git_folder(base: str) -> Path:
    """Where the repository at `base` has its data; a worktree or submodule has a `.git` file that says it."""
    place = Path(base, ".git")
    if not place.is_dir():
        place = Path(base, _lines(place)[0].removeprefix("gitdir:").strip())
        place /= _lines(place / "commondir")[0].strip()
    return place


def _patterns(base: str, path: str | Path) -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """The patterns of one ignore file, to be matched relative to `base`; () where there are none."""
    lines = [line for line in _lines(path) if line.strip("!/ ") and not line.startswith("#")]
    lines = [line for line in lines if line.count("**") <= _MAX_DEEP]
    if not lines:
        return ()
    from pathspec import GitIgnoreSpec  # late: most runs meet no ignore file

    patterns: list[tuple[str, re.Pattern[str], bool]] = []
    with warnings.catch_warnings(action="ignore"):  # `re` warns of odd brackets
        for line in lines:
            # The same patterns, so spelled that pathspec matches the entry itself rather than a folder above.
            line = re.sub(r"/\*\*(?=\s*$)", "/**/*", re.sub(r"^(!?)\*\*?/(?=\s*$)", r"\1?*/", line))
            with contextlib.suppress(ValueError, re.error):  # git passes over a bad line too
                pattern = GitIgnoreSpec.from_lines([line]).patterns[0]
                if pattern.regex and pattern.include is not None:
                    patterns.append((base, _swift(pattern.regex), pattern.include))
    return tuple(patterns)


def _swift(regex: re.Pattern[str]) -> re.Pattern[str]:
    """The same pattern without its freedom to try every way of sharing a name among its stars.

    What stands between two stars may as well be taken where it comes first: no name of a hostile repository keeps
    a search busy.
    """
    text = re.sub(r"(?:\[\^/\]\*)+", "[^/]*", regex.pattern)
    part = r"\\.|\[(?!\^/\]\*)(?:\\.|[^\]\\])+\]|[^\\\[\]/(){}*+?|^$]"
    return re.compile(re.sub(rf"\[\^/\]\*((?:{part})+)(?=\[\^/\]\*)", r"(?>[^/]*?\1)", text), regex.flags)


def _lines(path: str | Path) -> list[str]:
    """The lines of a small file of git's; [""] where it cannot be read."""
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return [""]
    return text.removeprefix("\ufeff").split("\n")
