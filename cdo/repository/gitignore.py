"""Evaluates git's ignore rules without running git.

The rules are those of nested `.gitignore` files and `.git/info/exclude`.
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
_MAX_STARS = 4  # most `**` in a pattern: each one nests another loop in matching


@dataclass(frozen=True)
class Rules:
    """The ignore patterns that apply in a folder, weakest first: base folder, regex, and whether it ignores."""

    patterns: tuple[tuple[str, re.Pattern[str], bool], ...] = ()

    def enter(self, folder: str, at: int | None = None) -> Rules:
        """Return the rules inside `folder`, open at `at` if given. The top of a repository drops outer rules."""
        patterns, base = self.patterns, folder.rstrip("/") + "/"
        here = base if at is None else ""
        if present(f"{here}.git", at):
            patterns = _patterns(base, _exclude(base, here, at), at)
        return Rules(patterns + _patterns(base, f"{here}.gitignore", at))

    def ignored(self, path: str, *, folder: bool) -> bool:
        """True if the last pattern that matches `path` ignores it. Its parents must not be ignored."""
        path += "/" * folder
        for base, regex, verdict in reversed(self.patterns):
            match = regex.search(path[len(base) :])
            # pathspec also matches paths below a folder, marked by this group. Such a match is skipped: otherwise
            # "!folder/" would undo what another ignore file ignores inside that folder.
            if match and (not match.groupdict().get("ps_d") or match.end("ps_d") == len(path) - len(base)):
                return verdict
        return False


def rules_above(folder: Path, root: Path) -> Rules:
    """Return the rules that apply around `folder`: from its git root, or else from `root`, down to its parent.

    Returns no rules if they ignore the folder itself, because a person who names it wants its files.
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
    """Return the exclude file of the repository at `base`; in a worktree or submodule, its `.git` file says where."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.stat(f"{here}.git", dir_fd=at).st_mode):
            return f"{here}.git/info/exclude"
    place = Path(base, _lines(f"{here}.git", at)[0].removeprefix("gitdir:").strip())
    return place / _lines(place / "commondir")[0].strip() / "info/exclude"


def _patterns(base: str, path: str | Path, at: int | None) -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """Return the patterns of one ignore file, to be matched relative to `base`; () if there are none."""
    lines = [line for line in _lines(path, at) if line.strip("!/ ") and not line.startswith("#")]
    lines = [line for line in lines if line.count("**") <= _MAX_STARS]
    if not lines:
        return ()
    from pathspec import GitIgnoreSpec  # imported here because most runs find no ignore file

    patterns: list[tuple[str, re.Pattern[str], bool]] = []
    with warnings.catch_warnings(action="ignore"):  # `re` warns about odd brackets
        for line in lines:
            # Rewrite the pattern so that pathspec matches the entry itself rather than a parent folder.
            line = re.sub(r"/\*\*(?=\s*$)", "/**/*", re.sub(r"^(!?)\*\*?/(?=\s*$)", r"\1?*/", line))
            with contextlib.suppress(ValueError, re.error):  # git skips an invalid line too
                pattern = GitIgnoreSpec.from_lines([line]).patterns[0]
                if pattern.regex and pattern.include is not None:
                    patterns.append((base, _swift(pattern.regex), pattern.include))
    return tuple(patterns)


def _swift(regex: re.Pattern[str]) -> re.Pattern[str]:
    """Return an equivalent pattern that does not backtrack between its stars.

    The text between two stars is matched at its first occurrence only, which gives the same result. So a file name in
    a hostile repository cannot make matching slow.
    """
    text = re.sub(r"(?:\[\^/\]\*)+", "[^/]*", regex.pattern)
    part = r"\\.|\[(?!\^/\]\*)(?:\\.|[^\]\\])+\]|[^\\\[\]/(){}*+?|^$]"
    return re.compile(re.sub(rf"\[\^/\]\*((?:{part})+)(?=\[\^/\]\*)", r"(?>[^/]*?\1)", text), regex.flags)


def _lines(path: str | Path, at: int | None = None) -> list[str]:
    """Return the lines of a small git file; [""] if it cannot be read."""
    try:
        text = read_regular(path, MAX_BYTES, at).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return [""]
    return text.removeprefix("\ufeff").split("\n")
