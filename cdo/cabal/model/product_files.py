"""Tells which files a version holds: the content of a product with a path, file by file. Pure.

The content of a product whose path is a folder is a series of delimited blocks, labelled with the files' paths.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256

from cdo.cabal.model.entities import Product
from cdo.cabal.model.state import MissionState
from cdo.core import file_paths
from cdo.formats import document_blocks

COMMANDS = 12  # most commands that run on one state of the files


def files_in(path: str, content: str) -> Mapping[str, str]:
    """Return the texts in the content of a product with this path, by their own path ("" for a document)."""
    return _in_folder(content) if file_paths.is_folder(path) else {path: content}


@lru_cache(maxsize=256)
def _in_folder(content: str) -> Mapping[str, str]:
    return {block.label: block.text for block in document_blocks.split(content)[1]}


def folder_content(files: Iterable[tuple[str, str]]) -> str:
    """Return the content of a version that holds these (path, text) pairs."""
    return document_blocks.joined(files)


def folder_problems(path: str, content: str) -> tuple[str, ...]:
    """Return why a text is not the content of a product whose path is this folder, as clauses; () if it is."""
    outside, blocks = document_blocks.split(content)
    names = [block.label for block in blocks]
    found = [f"{block.label} is cut off: its end is missing" for block in blocks if not block.closed]
    if not names:
        found.append(f"it is the folder {path}: give one block for each file")
    elif outside.strip():
        found.append("there is text outside of the blocks of its files")
    for place, name in enumerate(names):
        if why := file_paths.problem(name):
            found.append(f"`{name}` cannot be a file: {why}")
        elif not name.startswith(path):
            found.append(f"{name} is not in its folder {path}")
        elif other := file_paths.collision(name, names[:place]):
            found.append(f"{name} is given twice" if name == other else f"{name} collides with {other}")
    return tuple(found)


def staged(state: MissionState) -> dict[str, str]:
    """Return the files of the newest versions of all products with a path, by path. Each ends in a line break."""
    return {
        path: as_file(text)
        for item in state.live()
        if item.path and (latest := state.latest(item.id))
        for path, text in sorted(files_in(item.path, latest.content).items())
    }


def commands(state: MissionState) -> tuple[str, ...]:
    """Return the commands in the definitions of done of live products, each once: the first `COMMANDS`."""
    checks = (criterion.check for item in state.live() for criterion in item.dod)
    return tuple(dict.fromkeys(str(check.value) for check in checks if check.kind == "command"))[:COMMANDS]


def files_digest(files: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) of files, by path and content."""
    listed = json.dumps(sorted(files.items()), separators=(",", ":"))
    return sha256(listed.encode("ascii")).hexdigest()


def staged_digest(state: MissionState) -> str:
    """Return the SHA-256 (hex) of the files that commands run on: a run counts only while these are the same."""
    return files_digest(staged(state))


def as_file(text: str) -> str:
    """Return the content of the file that holds a text: it ends in a line break."""
    return f"{text}\n" if text else ""


def is_code(product: Product) -> bool:
    """True if a product is a file other than Markdown, or a folder of files."""
    return bool(product.path) and not file_paths.is_markdown(product.path)
