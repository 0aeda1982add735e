"""Evaluates git's ignore rules without running git.

The rules are those of nested `.gitignore` files and `.git/info/exclude`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from cdo.security.safe_open import present, read_regular

MAX_BYTES = 1_000_000  # of an ignore file
_MAX_STARS = 4  # most `**` in a pattern: each one nests another loop in matching


class IgnoreFile:
    """The patterns of one ignore file, for paths that start with `base`.

    A pattern is compiled and tried only where the last part of a path has the pattern's literal beginning or ending.
    So tens of thousands of patterns cost little more than a few.
    """

    def __init__(self, base: str, lines: Sequence[str]) -> None:
        self._base, self._lines = base, lines
        self._compiled: dict[int, tuple[re.Pattern[str], bool] | None] = {}
        self._exact: dict[str, list[int]] = {}
        self._ending: dict[str, list[int]] = {}
        self._beginning: dict[str, list[int]] = {}
        self._others: list[int] = []
        for number, line in enumerate(lines):
            begins, ends = _literals(line)
            if begins == ends != "":
                self._exact.setdefault(begins, []).append(number)
            elif ends:
                self._ending.setdefault(ends, []).append(number)
            elif begins:
                self._beginning.setdefault(begins, []).append(number)
            else:
                self._others.append(number)

    def verdict(self, path: str) -> bool | None:
        """Return whether the last pattern that matches `path` ignores it; None if none does. Folders end in `/`."""
        rest = path[len(self._base) :]
        for number in sorted(self._candidates(rest.rstrip("/").rpartition("/")[2]), reverse=True):
            if number not in self._compiled:
                self._compiled[number] = _compiled(self._lines[number])
            if not (pattern := self._compiled[number]):
                continue
            match = pattern[0].search(rest)
            # pathspec also matches paths below a folder, marked by this group. Such a match is skipped: otherwise
            # "!folder/" would undo what another ignore file ignores inside that folder.
            if match and (not match.groupdict().get("ps_d") or match.end("ps_d") == len(rest)):
                return pattern[1]
        return None

    def _candidates(self, name: str) -> Iterator[int]:
        """Yield the numbers of the patterns that can match an entry called `name`."""
        yield from self._others
        yield from self._exact.get(name, ())
        for at in range(len(name) * bool(self._ending)):
            yield from self._ending.get(name[at:], ())
        for at in range(len(name) * bool(self._beginning)):
            yield from self._beginning.get(name[: at + 1], ())


class Rules(Struct, frozen=True):
    """The ignore files that apply in a folder, weakest first."""

    files: tuple[IgnoreFile, ...] = ()

    def enter(self, folder: str, at: int | None = None) -> Rules:
        """Return the rules inside `folder`, open at `at` if given. The top of a repository drops outer rules."""
        files, base = self.files, folder.rstrip("/") + "/"
        here = base if at is None else ""
        if present(f"{here}.git", at):
            files = _ignore_file(base, _exclude(base, here, at), at)
        return Rules(files + _ignore_file(base, f"{here}.gitignore", at))

    def ignored(self, path: str, *, folder: bool) -> bool:
        """True if the last pattern that matches `path` ignores it. Its parents must not be ignored."""
        path += "/" * folder
        verdicts = (file.verdict(path) for file in reversed(self.files))
        return next((verdict for verdict in verdicts if verdict is not None), False)


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


def _ignore_file(base: str, path: str | Path, at: int | None) -> tuple[IgnoreFile, ...]:
    """Return an ignore file whose patterns are matched relative to `base`; () if it has none."""
    lines = [line for line in _lines(path, at) if line.strip("!/ ") and not line.startswith("#")]
    lines = [line for line in lines if line.count("**") <= _MAX_STARS]
    return (IgnoreFile(base, lines),) if lines else ()


def _literals(line: str) -> tuple[str, str]:
    """Return the literal beginning and ending of the last part of a pattern; both are that part if it is literal.

    Return two empty texts where neither is certain.
    """
    last = line.removeprefix("!").removesuffix("/").rpartition("/")[2]
    if not last or "\\" in last or last != last.strip() or line != line.rstrip():
        return "", ""
    special = [at for at, char in enumerate(last) if char in "*?[]"]
    return (last[: special[0]], last[special[-1] + 1 :]) if special else (last, last)


def _compiled(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Return the regex of a pattern and whether it ignores; None if git skips the line as invalid."""
    from pathspec import GitIgnoreSpec  # imported here because most runs find no ignore file

    # Rewrite the pattern so that pathspec matches the entry itself rather than a parent folder.
    line = re.sub(r"/\*\*(?=\s*$)", "/**/*", re.sub(r"^(!?)\*\*?/(?=\s*$)", r"\1?*/", line))
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(ValueError, re.error):  # odd brackets
        pattern = GitIgnoreSpec.from_lines([line]).patterns[0]
        if pattern.regex and pattern.include is not None:
            return _swift(pattern.regex), pattern.include
    return None


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
