"""Defines the content files of documents: the prompt for one, and the sections and blocks that it must have."""

# Annotations are evaluated here, not kept as texts: pydantic would evaluate each text again at every start.
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cdo.formats.fields import Block, Line, Strings
from cdo.formats.markdown import heading_key

DRAWN = "DIAGRAMS"  # the stem of the file with the diagrams of a C4 model
_TAKEN = ("FINAL", "DRAFT", "REVIEW", "FINDINGS", DRAWN)

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]


class Section(Block):
    """A section that a document must have, under `name` or an alias. A `vital` one is never filled in by code."""

    name: Line
    aliases: Strings = ()
    level: Annotated[int, Field(ge=2, le=3)] = 2
    vital: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The heading keys under which it is found."""
        return tuple(heading_key(name) for name in (self.name, *self.aliases))

    @property
    def heading(self) -> str:
        """Its heading line in the document."""
        return f"{'#' * self.level} {self.name}"


class FencedBlock(Block):
    """The one fenced block that a section must have: its language (or other names of it), and its parser."""

    section: Line
    languages: Annotated[tuple[Name, ...], Field(min_length=1, max_length=8)]
    checker: Literal["c4", "atam-tree", "wbs"]


class DocumentShape(Block):
    """The sections and blocks of a document.

    `front_matter` names the kind of front matter that it starts with. `minority` names the section that must refer to
    the minority reports.
    """

    sections: Annotated[
        tuple[
            Annotated[Section, BeforeValidator(lambda item: {"name": item} if isinstance(item, str) else item)], ...
        ],
        Field(min_length=1, max_length=32),
    ]
    blocks: Annotated[tuple[FencedBlock, ...], Field(max_length=8)] = ()
    front_matter: Literal["", "madr"] = ""
    minority: str = ""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = {section.name for section in self.sections}
        for name in (*(block.section for block in self.blocks), *([self.minority] if self.minority else [])):
            if name not in names:
                raise ValueError(f"`{name}` is not the name of one of its sections")
        return self


def _stem(value: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Z0-9]{1,15}", value) or value in _TAKEN:
        raise ValueError(f"must be of 2 to 16 capital letters and digits, and not {', '.join(_TAKEN)}")
    return value


def _pattern(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z0-9-]*N+-slug\.md", value):
        raise ValueError("must be a file name such as NNNN-slug.md")
    return value


class DocumentPrompt(Block):
    """`templates/documents/*.md`: a document that is written after the result, and the prompt for it.

    `file` is its stem in the session. `target` is the pattern of its file name when it is copied into a folder of
    numbered records ("" if it is not copied).
    """

    purpose: str
    load_when: str
    kind: Literal["document"]
    file: Annotated[str, AfterValidator(_stem)]
    target: Annotated[str, AfterValidator(_pattern)] = ""
    format: DocumentShape
