"""Gives models three read-only tools for a repository: list, read, search.

They run in this process, see only the files that `cdo.repository.visible_files` allows, and answer at most
`MAX_ANSWER` bytes. An invalid request gets an error message that the model can act on. The answers are deterministic
while the files stay the same.

A search compares literal text, not regular expressions. So its time depends only on the amount of text read, which is
capped by number of files and by bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from pydantic import ConfigDict, Field

from cdo.content.library import FIX, Library
from cdo.core.errors import ContentError
from cdo.core.formatting import pluralise
from cdo.core.schema import Schema
from cdo.core.steps import InvalidReply
from cdo.formats.blocks import Block, validate
from cdo.repository.visible_files import (
    IGNORED,
    MAX_BYTES,
    TOO_DEEP,
    VERSION_CONTROL,
    NotShowable,
    Skipped,
    Tree,
    VisibleFile,
    lines_of,
    numbered,
    printable,
    readable,
    unreadable,
    visible,
    walk,
)
from cdo.security.safe_open import DirectoryCache

CONTENT = "dispatch/tools"
MAX_ANSWER = 16_384  # bytes of one answer
MAX_ARGUMENTS = 10_000  # characters of the JSON a model sends
MAX_LINE = 1_000  # characters shown of a line by `read`
MAX_FOUND_LINE = 240  # characters shown of a line by `search`
MAX_FILES = 20_000  # entries visited by one use of `list` or `search`
MAX_SEARCHED = 100_000_000  # bytes read in one search

Depth = Annotated[int, Field(ge=1, le=8)]
Number = Annotated[int, Field(ge=1, le=10_000_000)]
Path_ = Annotated[str, Field(max_length=4096)]


class ToolSpec(Schema, frozen=True, kw_only=True):
    """The description of one tool for models: what it does, and what each parameter means."""

    description: str
    parameters: dict[str, str]


class ToolBox(Schema, frozen=True, kw_only=True):
    """`dispatch/tools.yaml`: the tool descriptions, and the limits on uses and rounds of use for one reply.

    A preset may override the limits (`looks`).
    """

    purpose: str
    load_when: str
    max_requests: Annotated[int, Meta(ge=0, le=100)]
    max_rounds: Annotated[int, Meta(ge=0, le=20)]
    tools: dict[str, ToolSpec]


class _List(Block):
    path: Path_ = ""
    depth: Depth = 2


class _Read(Block):
    path: Path_
    start: Number = 1
    end: Number | None = None


class _SearchTool(Block):
    # White space at either end of a pattern is part of it.
    model_config = ConfigDict(str_strip_whitespace=False)

    pattern: Annotated[str, Field(min_length=1, max_length=500)]
    path: Path_ = ""


_ARGUMENTS: Mapping[str, type[Block]] = {"list": _List, "read": _Read, "search": _SearchTool}


class Tools:
    """The tools for one repository. `looks` are their limits, [requests, rounds]: the caller enforces them.

    Raises `ContentError` if `dispatch/tools` does not describe exactly these tools and their parameters.
    """

    def __init__(self, root: Path, library: Library, looks: tuple[int, int] | None = None) -> None:
        self.box, _ = library.read(CONTENT, ToolBox)
        self._looks = looks or (self.box.max_requests, self.box.max_rounds)
        self._tree = Tree(root)
        told = {name: sorted(tool.parameters) for name, tool in self.box.tools.items()}
        have = {name: sorted(model.model_fields) for name, model in _ARGUMENTS.items()}
        if told != have:
            words = "; ".join(f"{name}({', '.join(model.model_fields)})" for name, model in _ARGUMENTS.items())
            raise ContentError(f"{library.find(CONTENT)[1]}: `tools` must describe exactly {words}.", FIX)

    @property
    def max_requests(self) -> int:
        """The most tool uses in one step, all tools together."""
        return self._looks[0]

    @property
    def max_rounds(self) -> int:
        """The most rounds of tool use in one step."""
        return self._looks[1]

    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """Return the tools as sent in requests: name, description, and the JSON schema of the parameters."""
        return tuple(_schema(name, self.box.tools[name], model) for name, model in _ARGUMENTS.items())

    def run(self, name: str, arguments: str) -> str:
        """Answer one use of a tool; `arguments` is JSON as the model wrote it. Never raises: errors are answers."""
        try:
            return _capped(self._answer(name, arguments))
        except NotShowable as unfit:
            return " ".join(filter(None, (f"Error: {unfit.why}.", unfit.hint)))
        except InvalidReply as invalid:
            return f"Error: {' '.join(invalid.problems)}"
        except OSError as error:
            return f"Error: it {unreadable(error)}."
        except Exception as error:  # a file system can fail in many ways, and none of them may end the run
            return f"Error: the tool failed ({type(error).__name__}). Try another path."

    def _answer(self, name: str, arguments: str) -> str:
        if name not in _ARGUMENTS:
            raise InvalidReply([f"There is no tool {printable(name[:80])!r}; the tools are {', '.join(_ARGUMENTS)}."])
        wish = validate(_ARGUMENTS[name], _parsed(arguments), "The arguments")
        match wish:
            case _List():
                return self._list(wish.path, wish.depth)
            case _Read():
                return self._read(wish.path, wish.start, wish.end)
            case _SearchTool():
                return self._search(wish.pattern, wish.path)
        raise AssertionError(wish)

    # -- list -------------------------------------------------------------------------------------

    def _list(self, path: str, depth: int) -> str:
        lines: list[str] = []
        size = 0
        for number, item in enumerate(walk(self._tree.folder(path), depth)):
            if size > MAX_ANSWER or number >= MAX_FILES:
                return _with_note(lines, "… and more. List a subfolder, or with less depth.")
            why = item.why if isinstance(item, Skipped) else ""
            if why not in (IGNORED, VERSION_CONTROL):
                lines.append(item.path if why in ("", TOO_DEEP) else f"{item.path} ({why})")
                size += len(lines[-1].encode()) + 1
        return "\n".join(lines) or "The folder has no files that can be shown."

    # -- read -------------------------------------------------------------------------------------

    def _read(self, path: str, start: int, end: int | None) -> str:
        lines = lines_of(self._tree.text(path))
        if not lines:
            return "The file is empty."
        if start > len(lines):
            raise NotShowable(f"the file has only {pluralise(len(lines), 'line')}", "Ask for lines that it has.")
        if end is not None and end < start:
            raise NotShowable(f"`end` ({end}) is before `start` ({start})", "Turn them round.")
        wanted = [_short(line, MAX_LINE) for line in lines[start - 1 : end]]
        kept, size = 0, 0
        for line in wanted:
            size += len(line.encode()) + len(str(len(lines))) + 3
            if kept and size > MAX_ANSWER - 200:
                break
            kept += 1
        last = start + kept - 1
        more = f" Read on with start={last + 1}." if kept < len(wanted) else ""
        head = f"Lines {start} to {last} of {len(lines)}.{more}"
        return f"{head}\n{numbered(wanted[:kept], start)}".rstrip("\n")

    # -- search -----------------------------------------------------------------------------------

    def _search(self, pattern: str, path: str) -> str:
        wanted = _SearchPattern(pattern)
        found: list[str] = []
        size, left = 0, MAX_SEARCHED
        with DirectoryCache() as descent:
            for number, file in enumerate(self._files(path)):
                left -= file.size
                if number >= MAX_FILES or left < 0:
                    return _with_note(found, "… Not all files were searched: there are too many. Search in a folder.")
                for line in wanted.lines_in(file, descent):
                    found.append(line)
                    size += len(line.encode()) + 1
                    if size > MAX_ANSWER:
                        return _with_note(found, "… and more. Search for something rarer, or in a folder.")
        if found:
            return "\n".join(found)
        literal = (
            " The pattern is taken literally, but for | and .*." if re.search(r"[\\^$*+?\[\](){}]", pattern) else ""
        )
        return f"Nothing found.{literal}"

    def _files(self, path: str) -> Iterator[VisibleFile]:
        """Yield the files to search: the named file, or all visible files below the named folder."""
        if file := self._tree.find(path):
            yield file
            return
        for item in walk(self._tree.folder(path)):
            if isinstance(item, VisibleFile):
                yield item


class _SearchPattern:
    """A parsed search pattern: alternatives, each a list of texts that a line must contain in that order."""

    def __init__(self, pattern: str) -> None:
        self._plain = pattern == pattern.lower()
        self._rows = _rows(pattern)
        if not self._rows:
            raise NotShowable("the pattern has no text to look for", "Give some words of the line.")

    def lines_in(self, file: VisibleFile, descent: DirectoryCache) -> Iterator[str]:
        """Yield the matching lines of a file as `path:line: text`; none if the file must not be shown."""
        try:
            data = descent.read(file.way, MAX_BYTES + 1)
            if not self._may_hold(data):
                return
            text = readable(data, MAX_BYTES)
        except (OSError, NotShowable):
            return
        for number, line in enumerate(lines_of(text), 1):
            if self._holds(line):
                yield f"{file.path}:{number}: {_short(line.strip(), MAX_FOUND_LINE)}"

    def _may_hold(self, data: bytes) -> bool:
        """False if the bytes cannot match. This quick test saves decoding most files."""
        data = data.lower() if self._plain else data
        return any(not part.isascii() or part.encode() in data for part, *_ in self._rows)

    def _holds(self, text: str) -> bool:
        text = text.lower() if self._plain else text
        return any(_in_order(row, text) for row in self._rows)


def _in_order(row: Sequence[str], text: str) -> bool:
    at = 0
    for part in row:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def _rows(pattern: str) -> list[list[str]]:
    """Split a pattern at `|` into alternatives and at `.*` into texts; a backslash escapes the next character."""
    rows, text = [[""]], iter(re.findall(r"\\[^\w\s]|\.\*|.", pattern, re.DOTALL))
    for sign in text:
        if sign == "|":
            rows.append([""])
        elif sign == ".*":
            rows[-1].append("")
        else:
            rows[-1][-1] += sign[1:] if len(sign) == 2 else sign
    return [parts for row in rows if (parts := [part for part in row if part])]


# -- answers --------------------------------------------------------------------------------------


def _schema(name: str, tool: ToolSpec, model: type[Block]) -> Mapping[str, Any]:
    properties = {}
    for key, told in model.model_json_schema()["properties"].items():
        kind = "integer" if "integer" in json.dumps(told) else "string"
        properties[key] = {"type": kind, "description": tool.parameters[key]}
    required = [key for key, value in model.model_fields.items() if value.is_required()]
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": tool.description, "parameters": parameters}


def _parsed(arguments: str) -> Any:
    """Parse the JSON that a model sent; an empty string means no arguments."""
    if len(arguments) > MAX_ARGUMENTS:
        raise InvalidReply([f"The arguments are longer than {MAX_ARGUMENTS} characters."])
    try:
        data = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        raise InvalidReply(["The arguments are not valid JSON. Send one JSON object."]) from None
    # Some models send null for an omitted argument.
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


def _short(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[:limit]}… ({pluralise(len(line) - limit, 'character')} more)"


def _with_note(lines: list[str], note: str) -> str:
    """Return as many lines as fit, then the note that lines are missing."""
    room = MAX_ANSWER - len(note.encode()) - 1
    kept = []
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([*kept, note])


def _capped(text: str) -> str:
    """Cap an answer's size, make control and hidden characters visible, and replace what UTF-8 cannot encode."""
    text = visible(text)
    data = text.encode("utf-8", "replace")
    return data[:MAX_ANSWER].decode("utf-8", "ignore")
