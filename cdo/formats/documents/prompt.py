"""Defines the content files of documents: the prompt for one, and the sections and blocks that it must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from cdo.core.schema import Line, Schema
from cdo.formats.markdown import heading_key

DRAWN = "DIAGRAMS"  # the stem of the file with the diagrams of a C4 model
_TAKEN = ("FINAL", "DRAFT", "REVIEW", "FINDINGS", DRAWN)

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}\Z")]


class Section(Schema, frozen=True, kw_only=True):
    """A section that a document must have, under `name` or an alias. A `vital` one is never filled in by code."""

    name: Line
    aliases: tuple[Line, ...] = ()
    level: Annotated[int, Meta(ge=2, le=3)] = 2
    vital: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The heading keys under which it is found."""
        return tuple(heading_key(name) for name in (self.name, *self.aliases))

    @property
    def heading(self) -> str:
        """Its heading line in the document."""
        return f"{'#' * self.level} {self.name}"


class FencedBlock(Schema, frozen=True, kw_only=True):
    """The one fenced block that a section must have: its language (or other names of it), and its parser."""

    section: Line
    languages: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=8)]
    checker: Literal["c4", "atam-tree", "wbs"]


class DocumentShape(Schema, frozen=True, kw_only=True):
    """The sections and blocks of a document.

    `front_matter` names the kind of front matter that it starts with. `minority` names the section that must refer to
    the minority reports.
    """

    sections: Annotated[tuple[Section, ...], Meta(min_length=1, max_length=32)]
    blocks: Annotated[tuple[FencedBlock, ...], Meta(max_length=8)] = ()
    front_matter: Literal["", "madr"] = ""
    minority: str = ""

    def require_sound(self) -> None:
        """Raise `ValueError` if a block or the minority reports refer to a section that is not there."""
        names = {section.name for section in self.sections}
        for name in (*(block.section for block in self.blocks), *([self.minority] if self.minority else [])):
            if name not in names:
                raise ValueError(f"`{name}` is not the name of one of its sections")


_STEM = rf"^(?!(?:{'|'.join(_TAKEN)})\Z)[A-Z][A-Z0-9]{{1,15}}\Z"
_TARGET = r"^(?:[A-Za-z0-9-]*N+-slug\.md)?\Z"


def _stem_problem(_: object) -> str:
    return f"must be of 2 to 16 capital letters and digits, and not {', '.join(_TAKEN)}"


def _target_problem(_: object) -> str:
    return "must be a file name such as NNNN-slug.md"


class DocumentPrompt(Schema, frozen=True, kw_only=True):
    """`templates/documents/*.md`: a document that is written after the result, and the prompt for it.

    `file` is its stem in the session. `target` is the pattern of its file name when it is copied into a folder of
    numbered records ("" if it is not copied).
    """

    purpose: str
    load_when: str
    kind: Literal["document"]
    file: Annotated[str, Meta(pattern=_STEM, extra={"problem": _stem_problem})]
    target: Annotated[str, Meta(pattern=_TARGET, extra={"problem": _target_problem})] = ""
    format: DocumentShape

    @classmethod
    def written_out(cls, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keys of a file, with a section that is named alone as one without aliases."""
        shape = keys.get("format")
        sections = shape.get("sections") if isinstance(shape, dict) else None
        if not isinstance(shape, dict) or not isinstance(sections, list):
            return keys
        whole = [{"name": item} if isinstance(item, str) else item for item in sections]
        return {**keys, "format": {**shape, "sections": whole}}
