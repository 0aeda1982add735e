"""Parses the files that a person writes for a mission: versions, and letters in inbox/. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct
from pydantic import BeforeValidator, Field

from cdo.cabal.files.page_text import storable
from cdo.cabal.replies.fields import CONTENT, CollabIds, CollabKind, Degree
from cdo.core.formatting import one_line, visible
from cdo.core.steps import InvalidReply
from cdo.formats import strict_yaml
from cdo.formats.blocks import Block, validate
from cdo.formats.markdown import MAX_FRONT_MATTER, line_breaks, split_front_matter

LETTER = 4000  # most characters of a file in inbox/


class EditedVersion(Struct, frozen=True):
    """A version as a person wrote it: `summary` comes from its front matter, "" if it has none."""

    title: str
    summary: str
    content: str
    outcome: str


class _VersionHead(Block):
    """The front matter of a version. A person writes the first three keys; the others are cdo's and are not read."""

    title: Annotated[str, Field(max_length=200)] = ""
    change_summary: Annotated[str, Field(max_length=4000)] = ""
    outcome: Annotated[str, Field(max_length=600)] = ""
    id: Any = None
    product: Any = None
    number: Any = None
    author: Any = None
    addresses: Any = None
    session: Any = None
    edited: Any = None
    round: Any = None
    sha256: Any = None


class VersionFormat:
    """A version that a person edited or added: a Document (`cdo.core.steps`). Front matter is optional.

    Front matter without any of cdo's keys belongs to the content, because documents may have their own front matter.
    """

    def parse(self, text: str) -> EditedVersion:
        """Return the version; raise `InvalidReply` with what is wrong."""
        keys, body = _head(text, CONTENT + MAX_FRONT_MATTER)
        if keys and not set(keys) & set(_VersionHead.model_fields):
            keys, body = {}, _clean(text)
        head = validate(_VersionHead, keys, "The front matter")
        content = body.strip("\n")
        if not content.strip():
            raise InvalidReply(["The version has no content: write it under the front matter."])
        if len(content) > CONTENT:
            raise InvalidReply([f"The version has {len(content)} characters; at most {CONTENT} are read."])
        title = head.title or next(
            (one_line(line.lstrip("# "), 200) for line in content.split("\n") if line.strip("# ")), ""
        )
        return EditedVersion(title or "Untitled", head.change_summary, content, one_line(head.outcome))


class Letter(Struct, frozen=True):
    """A file that a person put into inbox/: `product` is an id or a name as written, "" for the whole team.

    `withdraw` are collabs by the person that no longer hold; `text`, which may then be empty, is the reason.
    """

    product: str
    kind: str
    importance: int
    text: str
    withdraw: tuple[str, ...] = ()


def _product(value: Any) -> Any:
    """Return `p4` for `[[p:p4]]`, "" for None, and any other value unchanged."""
    match = re.fullmatch(r"\s*\[\[p:(.*)\]\]\s*", value) if isinstance(value, str) else None
    return match[1] if match else "" if value is None else value


class _LetterHead(Block):
    """The optional front matter of a letter."""

    product: Annotated[str, BeforeValidator(_product), Field(max_length=120)] = ""
    type: CollabKind = "feedback"
    importance: Degree = 7
    withdraw: CollabIds = ()


class LetterFormat:
    """A file in inbox/: a Document (`cdo.core.steps`).

    The front matter is optional: product, type and importance of a note, or `withdraw` with the ids of own notes.
    """

    def parse(self, text: str) -> Letter:
        """Return the letter; raise `InvalidReply` with what is wrong."""
        keys, body = _head(text, LETTER + MAX_FRONT_MATTER)
        head = validate(_LetterHead, keys, "The front matter")
        said = visible(body).strip()
        if not said and not head.withdraw:
            raise InvalidReply(["The letter is empty: write what you have to say under the front matter."])
        if len(said) > LETTER:
            raise InvalidReply([f"The letter has {len(said)} characters; at most {LETTER} are read."])
        return Letter(one_line(head.product), head.type, head.importance, said, head.withdraw)


def _clean(text: str) -> str:
    """Return `text` with one kind of line break, no byte order mark, and no lone surrogates."""
    return storable(line_breaks(text)).lstrip("\ufeff")


def _head(text: str, most: int) -> tuple[Mapping[str, Any], str]:
    """Return the front matter of a person's text, and the text below it; raise `InvalidReply`."""
    if len(text) > most:
        raise InvalidReply([f"The file has {len(text)} characters; at most {most} are read."])
    clean = _clean(text)
    block, body = split_front_matter(clean.lstrip("\n"))
    if block is None:
        return {}, clean
    try:
        keys = strict_yaml.load(block, max_bytes=MAX_FRONT_MATTER)
    except strict_yaml.YamlProblem as problem:
        above = len(clean) - len(clean.lstrip("\n"))
        where = f"line {problem.line + above}, column {problem.column}"
        raise InvalidReply([f"The front matter cannot be read: {where}: {problem.why}."]) from None
    if keys is not None and not isinstance(keys, dict):
        raise InvalidReply(["The front matter must be a mapping of keys, such as `title: …`."])
    return keys or {}, body
