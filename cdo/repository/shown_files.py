"""Lists the files that a context shows, from the text of `00-context.md` itself: what is listed is what is sent."""

from __future__ import annotations

import re

from msgspec import Struct

from cdo.core.usage import estimate_tokens

NO_CONTEXT = "# Context\n\nNo context was given.\n"  # the text of a context without files
_HEADING = re.compile(r"## (\S.*)")
_FENCE = re.compile(r"(`{3,})[a-z0-9]*")
_NUMBERED = re.compile(r"^\d+\| ", re.MULTILINE)  # lines of files are numbered, those of an outline are not

_LEFT_OUT = re.compile(r"^\s*\[…", re.MULTILINE)  # marks lines left out; a line of a file begins with a number


class ShownFile(Struct, frozen=True):
    """One file of a context: its path, the estimated tokens of its text as it is shown, and whether it was cut."""

    path: str
    tokens: int
    cut: bool = False


def shown_files(context: str) -> tuple[ShownFile, ...]:
    """Return the files of a context, in its order: sections whose fenced text has numbered lines."""
    found: list[ShownFile] = []
    lines = context.splitlines(keepends=True)
    at, heading = 0, ""
    while at < len(lines):
        line = lines[at].rstrip("\n")
        fence = _FENCE.fullmatch(line)
        if title := _HEADING.fullmatch(line):
            heading = title[1]
        elif fence:
            end = next((row for row in range(at + 1, len(lines)) if lines[row].rstrip("\n") == fence[1]), len(lines))
            text = "".join(lines[at + 1 : end])
            if heading and _NUMBERED.search(text):
                found.append(ShownFile(heading, estimate_tokens(text), _LEFT_OUT.search(text) is not None))
            at, heading = end, ""
        at += 1
    return tuple(found)
