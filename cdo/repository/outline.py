"""Outlines a repository: its folders, the description of each module, and its imports. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from cdo.core.formatting import pluralise
from cdo.core.usage import estimate_tokens
from cdo.repository.context import language
from cdo.repository.visible_files import printable

HEAD = 8_000  # bytes at the start of a file that are searched for its description
_DEFINED = 5  # definitions listed for a file without a description
_LENGTH = 96  # characters shown of a module's description
_NAMES = 12  # modules listed on one line

_LICENSE = re.compile(r"copyright|licen[sc]e|spdx|all rights reserved", re.IGNORECASE)
_NOISE = re.compile(
    r"coding[:=]|eslint|prettier|@ts-|type: ignore|noqa|mypy:|vim:|-\*-|pylint|use strict|@module|@file|@flow|"
    r"go:build|\+build|<\?php|pragma",
    re.IGNORECASE,
)
_DOCSTRING = re.compile(r"[rRuU]?(\"\"\"|'''|\"|')(.*?)(?:\1|$)", re.DOTALL)
_BLOCK = re.compile(r"/\*+!?(.*?)\*/", re.DOTALL)
_LINE = re.compile(r"(?://[/!]?|--|;+|%+)(.*)")
_HASH = re.compile(r"#(.*)")
_HASHED = ("py", "pyi", "rb", "sh", "bash", "zsh", "pl", "pm", "ex", "exs", "jl", "r", "nim", "php", "ps1")
_UNNAMED = ("c", "h", "cc", "cpp", "cxx", "hh", "hpp")  # definitions do not begin with a keyword
_CLASSES = ("java", "kt", "scala", "groovy")  # the description is the comment of the class
_DEFINES = re.compile(
    r"^(?:(?:export|default|pub(?:\([a-z]+\))?|public|static|async|abstract|final|sealed|data)[ \t]+)*"
    r"(?:def|class|func|fn|function|interface|struct|enum|trait|type|module|object|record|const)[ \t]+"
    r"(?:\([^)\n]*\)[ \t]*)?([A-Za-z]\w*)",
    re.MULTILINE,
)
_TEXT = re.compile(r"[^\W\d_]{3}")
_HEADING = re.compile(r"#{1,3} +(.+)")


def within(lines: Sequence[str], tokens: int) -> list[str]:
    """Return the first of `lines` that fit into `tokens`, and a line that counts the rest."""
    kept, used = list[str](), 8
    for line in lines:
        used += estimate_tokens(f"{line}\n")
        if used > tokens:
            return [*kept, f"… and {pluralise(len(lines) - len(kept), 'line')} more"] if kept else []
        kept.append(line)
    return kept


def folders(files: Sequence[str]) -> list[str]:
    """Describe the folders of the first two levels: the number of files below each, and their languages."""
    below: dict[str, Counter[str]] = {}
    for path in files:
        parts, name = path.split("/")[:-1], language(path) or "other"
        for depth in range(min(2, len(parts)) + 1):
            folder = "".join(f"{part}/" for part in parts[:depth]) or "./"
            below.setdefault(folder, Counter())[name] += 1
    lines = []
    for folder, kinds in sorted(below.items()):
        ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:4]
        mix = ", ".join(f"{name} {count:,}" for name, count in ranked)
        lines.append(f"{printable(folder)}  {pluralise(kinds.total(), 'file')}: {mix}")
    return lines


def says(path: str, head: str) -> str:
    """Return a file's description from its docstring or leading comment, else the names it defines, else ""."""
    suffix = path.rpartition(".")[2].lower()
    if suffix in ("md", "rst", "markdown"):
        found = _HEADING.search(head)
        return _short(found[1]) if found else ""
    said = _leading(head.lstrip("\ufeff"), suffix)
    names = [] if said or suffix in _UNNAMED else list(dict.fromkeys(_DEFINES.findall(head)))[:_DEFINED]
    return said or (_short(f"defines {', '.join(names)}") if names else "")


def _leading(text: str, suffix: str) -> str:
    """Return the first sentence of a file's leading docstring or comment that is not a license; "" if none."""
    line = _HASH if suffix in _HASHED else _LINE
    while text := re.sub(r"\A(?:\s+|#![^\n]*\n)+", "", text):
        if suffix in ("py", "pyi") and (quoted := _DOCSTRING.match(text)):
            return _first(quoted[2].split("\n"))
        lines = list[str]()
        if block := _BLOCK.match(text):
            lines, text = _bare(block[1]), text[block.end() :]
        while not block and (comment := line.match(text)):
            lines.append(comment[1].strip())
            text = text[comment.end() + 1 :]
        if not lines:
            break
        if not _LICENSE.search(" ".join(lines)) and (said := _first(lines)):
            return said
    later = next((found for found in _BLOCK.finditer(text) if found[0].startswith("/**")), None)
    return _first(_bare(later[1])) if later and suffix in _CLASSES else ""


def _bare(comment: str) -> list[str]:
    return [line.strip(" \t*") for line in comment.split("\n")]


def _first(lines: Sequence[str]) -> str:
    """Return the first line with real text, not tool directives, with the rest of its sentence."""
    useful = [line.strip() for line in lines]
    says_something = (at for at, line in enumerate(useful) if _TEXT.search(line) and not _NOISE.search(line))
    start = next(says_something, len(useful))
    end = start
    while end + 1 < len(useful) and useful[end + 1] and not useful[end].endswith((".", ":")):
        end += 1
    return _short(" ".join(useful[start : end + 1]))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1].rstrip()}…"


def line_of(path: str, importers: int, said: str) -> str:
    """Return the outline's line for one module."""
    known = f" (imported by {importers})" if importers else ""
    return f"{path}{known}{f': {said}' if said else ''}"


def links_of(path: str, imports: Sequence[str], importers: Sequence[str]) -> str:
    """Return a line about the modules a module imports and the modules that import it; "" if there are none."""
    parts = [
        f"imports {_listed(imports)}" if imports else "",
        f"imported by {_listed(importers)}" if importers else "",
    ]
    told = "; ".join(part for part in parts if part)
    return f"{path} {told}" if told else ""


def _listed(paths: Sequence[str]) -> str:
    names = [_module(path) for path in paths[:_NAMES]]
    more = len(paths) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _module(path: str) -> str:
    """Return the shortest clear name of a path: its stem, with its folder if the stem is generic (`__init__`)."""
    folder, _, name = path.rpartition("/")
    stem = name.partition(".")[0]
    return (
        f"{folder.rpartition('/')[2]}/{stem}"
        if folder and stem in ("__init__", "index", "mod", "main", "lib")
        else stem
    )
