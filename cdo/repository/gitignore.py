"""What git ignores, read from its files without git.

The rules are those of `.gitignore`, nested, and `.git/info/exclude`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from cdo.security.safe_open import present, read_regular

MAX_BYTES = 1_000_000  # of an ignore file
_MAX_STARS = 4  # times `**` in a pattern: matching takes as many loops


@dataclass(frozen=True)
class Rules:
    """The ignore patterns that hold in a folder, weakest first: where each starts, its regex, its verdict."""

    patterns: tuple[tuple[str, re.Pattern[str], bool], ...] = ()

    def enter(self, folder: str, at: int | None = None) -> Rules:
        """The rules inside `folder`; a repository starts anew, as in git. `at` is that folder, where it is open."""
        patterns, base = self.patterns, folder.rstrip("/") + "/"
        here = base if at is None else ""
        if present(f"{here}.git", at):
            patterns = _patterns(base, _exclude(base, here, at), at)
        return Rules(patterns + _patterns(base, f"{here}.gitignore", at))

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


def _exclude(base: str, here: str, at: int | None) -> str | Path:
    """The exclude file of the repository at `base`; a worktree or submodule has a `.git` file that says where."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.stat(f"{here}.git", dir_fd=at).st_mode):
            return f"{here}.git/info/exclude"
    place = Path(base, _lines(f"{here}.git", at)[0].removeprefix("gitdir:").strip())
    return place / _lines(place / "commondir")[0].strip() / "info/exclude"


def _patterns(base: str, path: str | Path, at: int | None) -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """The patterns of one ignore file, to be matched relative to `base`; () where there are none."""
    lines = [line for line in _lines(path, at) if line.strip("!/ ") and not line.startswith("#")]
    lines = [line for line in lines if line.count("**") <= _MAX_STARS]
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


def _lines(path: str | Path, at: int | None = None) -> list[str]:
    """The lines of a small file of git's; [""] where it cannot be read."""
    try:
        text = read_regular(path, MAX_BYTES, at).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return [""]
    return text.removeprefix("\ufeff").split("\n")
