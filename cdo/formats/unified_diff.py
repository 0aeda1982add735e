"""Checks whether a unified diff that a model wrote is well formed, so that a person can apply it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@.*")
_GIT = re.compile(
    r"(?:diff --git |index [0-9a-f]+\.\.|(?:new|deleted) file mode |(?:old|new) mode |similarity index |"
    r"rename (?:from|to) )"
)
MAX_LINES = 2000


def diff_problem(text: str) -> str:
    """Return why `text` is no unified diff of files below one folder, and in which line; "" if it is one."""
    lines = text.lstrip("\n").split("\n")
    if len(lines) > MAX_LINES:
        return f"it has {len(lines)} lines, at most {MAX_LINES} are read"
    return next(_problems(lines), "")


def _problems(lines: list[str]) -> Iterator[str]:
    """Yield the problems from first to last; stop at one after which the rest cannot be read."""
    at, files = 0, 0
    while at < len(lines):
        if _GIT.match(lines[at]) or not lines[at].strip():
            at += 1
            continue
        if at + 1 >= len(lines) or not lines[at].startswith("--- ") or not lines[at + 1].startswith("+++ "):
            yield f"line {at + 1}: a file begins with `--- a/path` and, on the next line, `+++ b/path`"
            return
        paths = [_path(lines[at]), _path(lines[at + 1])]
        yield from (f"line {at + 1}: {problem}" for path in paths if (problem := _path_problem(path)))
        if paths == ["/dev/null", "/dev/null"]:
            yield f"line {at + 1}: both sides are /dev/null"
        files, at, hunks = files + 1, at + 2, 0
        while at < len(lines) and (hunk := _HUNK.fullmatch(lines[at])):
            end = _end_of_hunk(lines, at + 1, int(hunk[2] or 1), int(hunk[4] or 1))
            if end is None:
                yield f"line {at + 1}: the lines under this `@@` are not as many as it says"
                return
            at, hunks = end, hunks + 1
        if not hunks:
            yield f"line {at + 1}: a file needs at least one `@@ -line,count +line,count @@`"
            return
    if not files:
        yield "it changes no file"


def _path(head: str) -> str:
    """Return the path in a `---` or `+++` line, without git's prefix and diff's suffix."""
    path = head[4:].partition("\t")[0].strip()
    return path if path == "/dev/null" else re.sub(r"^[ab]/", "", path)


def _path_problem(path: str) -> str:
    if path == "/dev/null":
        return ""
    parts = path.split("/")
    if not path or "\\" in path or re.match(r"[A-Za-z]:", path) or not path.isprintable():
        return "the path is not one that can be read"
    if path.startswith(("/", "~")) or ".." in parts:
        return "the path must be relative and must not leave its folder"
    return "the path must not be inside .git" if ".git" in parts else ""


def _end_of_hunk(lines: list[str], at: int, old: int, new: int) -> int | None:
    """Return the line after a hunk of `old` lines before and `new` after the change; None if the count is wrong."""
    while (old or new) and at < len(lines):
        sign = lines[at][:1]
        if sign not in ("", " ", "-", "+", "\\"):
            return None
        # Editors strip the blank of an empty context line.
        old -= sign in ("", " ", "-")
        new -= sign in ("", " ", "+")
        if old < 0 or new < 0:
            return None
        at += 1
    if old or new:
        return None
    while at < len(lines) and lines[at].startswith("\\"):
        at += 1
    # A changed line beyond the count belongs to this hunk as well: the count is wrong.
    beyond = at < len(lines) and lines[at][:1] in (" ", "-", "+") and not lines[at].startswith("--- ")
    return None if beyond else at
