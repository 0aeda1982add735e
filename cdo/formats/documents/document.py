"""Checks the documents that a run may end with, such as a decision record.

Pure: text in, data out. A document's prompt (`templates/documents/*.md`) says which sections and which fenced blocks
it must have. The parser that the prompt names reads the content of a block.
"""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import Field

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf, strict_yaml
from cdo.formats.blocks import Strings, Tolerant, validate
from cdo.formats.documents.c4 import C4Model, c4, c4_shape, drawings
from cdo.formats.documents.prompt import DRAWN, DocumentPrompt, DocumentShape, FencedBlock, Section
from cdo.formats.documents.worksheets import FILLED, UtilityTree, WorkBreakdown, atam, atam_shape, wbs, wbs_shape
from cdo.formats.fields import load, too_long
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import (
    MAX_FRONT_MATTER,
    closed,
    fences,
    front_matter,
    headings,
    split_front_matter,
    unwrap,
)

LEFT_OUT = "Nothing was written here."
MINORITY = "minority report"


class _BlockChecker(Struct, frozen=True):
    """The parser of a fenced block (content, lines above it), and a grammar of a small one for small models."""

    read: Callable[[str, int], C4Model | UtilityTree | WorkBreakdown]
    shape: Callable[[], str]


CHECKERS = {
    "c4": _BlockChecker(c4, c4_shape),
    "atam-tree": _BlockChecker(atam, atam_shape),
    "wbs": _BlockChecker(wbs, wbs_shape),
}


class DecisionHead(Tolerant):
    """The front matter of a decision record (MADR). Only a person accepts a decision; code fills in the date."""

    status: Literal["proposed"] = "proposed"
    decision_makers: Annotated[Strings, FILLED, Field(alias="decision-makers")]
    consulted: Strings = ()
    informed: Strings = ()


# -- checking a document ---------------------------------------------------------------------------


class DocumentData(Struct, frozen=True, dict=True):
    """The data of a document: its title, its sections, and its blocks in the order of the prompt."""

    title: str
    sections: tuple[str, ...]
    blocks: tuple[C4Model | UtilityTree | WorkBreakdown, ...]

    @cached_property
    def drawn(self) -> dict[str, str]:
        """The files that code generates from the blocks, by name."""
        return {f"{DRAWN}.md": drawings(block) for block in self.blocks if isinstance(block, C4Model)}


class _Page:
    """The lines of a document, with its front matter blanked, and the positions of its sections."""

    def __init__(self, text: str) -> None:
        self.front, body = split_front_matter(text)
        above = text[: len(text) - len(body)].count("\n") if self.front is not None else 0
        self.lines = [""] * above + text.split("\n")[above:]
        self.marks = headings(self.lines)
        self.fences = fences(self.lines)

    def title(self, sections: Sequence[Section]) -> str:
        """Return the first heading with a single `#` that is no section; "" if there is none."""
        taken = {key for section in sections for key in section.keys}
        for number, _, key in self.marks:
            found = re.match(r" {0,3}#[ \t]+(.*?)[ \t#]*$", self.lines[number])
            if found and key not in taken and found[1]:
                return found[1]
        return ""

    def place(self, section: Section) -> tuple[int, int] | None:
        """Return the line of a section's heading and the line after its last; None if it is missing."""
        return next(((start, end) for start, end, key in self.marks if key in section.keys), None)

    def text(self, section: Section) -> str:
        """Return the text of a section without headings; "" if it is missing."""
        start, end = self.place(section) or (0, 0)
        heads = {number for number, *_ in self.marks}
        return "\n".join(self.lines[number] for number in range(start, end) if number not in heads).strip()

    def blocks(self, section: Section, languages: Sequence[str]) -> list[tuple[str, int]]:
        """Return the closed fenced blocks of a section in one of `languages`: (content, lines above it)."""
        start, end = self.place(section) or (0, 0)
        return [
            ("\n".join(self.lines[fence.start + 1 : fence.end - 1]), fence.start + 1)
            for fence in self.fences
            if start <= fence.start < end and fence.closed and fence.language in languages
        ]


class DocumentFormat(Struct, frozen=True):
    """A document as its prompt describes it. `dissenters` are roles whose minority reports it must refer to."""

    prompt: DocumentPrompt
    dissenters: tuple[str, ...] = ()
    name: str = "document"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        sections = self._shape.sections
        return ReplyLayout(
            "prose",
            models=(DecisionHead,) if self._shape.front_matter else (),
            titles=tuple(section.name for section in sections),
            levels=tuple(section.level for section in sections),
            titled=True,
        )

    @property
    def _shape(self) -> DocumentShape:
        return self.prompt.format

    def parse(self, text: str) -> DocumentData:
        """Return the data of the document; raise `InvalidReply` with everything that is wrong."""
        too_long(text)
        page = _Page(unwrap(text))
        problems = self._head(page)
        title = page.title(self._shape.sections)
        if not title:
            problems.append("The document needs a title: a line that begins with `# `, before its sections.")
        for section in self._shape.sections:
            if page.place(section) is None:
                problems.append(f"The section `{section.heading}` is missing.")
            elif not page.text(section):
                problems.append(f"The section `{section.heading}` is empty.")
        blocks: list[Any] = []
        for block in self._shape.blocks:
            try:
                blocks.append(self._block(page, block))
            except InvalidReply as invalid:
                problems += invalid.problems
        problems += self._minority(page)
        if problems:
            raise InvalidReply(problems)
        return DocumentData(title, tuple(section.name for section in self._shape.sections), tuple(blocks))

    def _head(self, page: _Page) -> list[str]:
        if self._shape.front_matter != "madr":
            return []
        what = "The front matter"
        try:
            head = load(page.front or "", 0, what, MAX_FRONT_MATTER)
            if not isinstance(head, dict):
                raise InvalidReply(
                    ["The document must start with YAML front matter: `---`, status and decision-makers, `---`."]
                )
            validate(DecisionHead, head, what)
        except InvalidReply as invalid:
            return list(invalid.problems)
        return []

    def _block(self, page: _Page, block: FencedBlock) -> Any:
        section = self._section(block.section)
        found = page.blocks(section, block.languages)
        if len(found) != 1:
            raise InvalidReply(
                [
                    f"The section `{section.heading}` must have exactly one fenced ```{block.languages[0]} block, "
                    f"closed by ```; {len(found)} were found."
                ]
            )
        return CHECKERS[block.checker].read(*found[0])

    def _section(self, name: str) -> Section:
        return next(section for section in self._shape.sections if section.name == name)

    def _minority(self, page: _Page) -> list[str]:
        """Return a sentence if the section on the minority reports does not refer to them."""
        if not self._shape.minority:
            return []
        section = self._section(self._shape.minority)
        said = _bare(page.text(section))
        lost = [
            role
            for role in self.dissenters
            if not any(f" {name} " in said for name in (role, role.replace("-", " ")))
        ]
        if not said.strip() or (MINORITY in said and not lost):
            return []  # an empty section has its own sentence
        whose = f" of {', '.join(lost)}" if lost else ""
        return [f"The section `{section.heading}` must refer to the {MINORITY}s{whose} in FINAL.md."]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add missing headings and the reference to the minority reports; invent nothing else.

        Return the text and what was added; None if that is not enough.
        """
        text = closed(unwrap(text))
        added: list[str] = []
        for section in self._shape.sections:
            page = _Page(text)
            if not page.text(section):
                if section.vital:
                    return None
                text = self._completed(text, page, section)
                added.append(f"section {section.name}")
        if self._minority(page := _Page(text)):
            section = self._section(self._shape.minority)
            _, end = page.place(section) or (0, len(page.lines))
            text = _inserted(text, end, f"{self._pointer()} *(added by cdo)*")
            added.append("the pointer to the minority reports")
        try:
            self.parse(text)
        except InvalidReply:
            return None
        return text, tuple(added)

    def _completed(self, text: str, page: _Page, section: Section) -> str:
        """Add a missing section at the end of its parent section, or a note in an empty section."""
        if place := page.place(section):
            return _inserted(text, place[1], LEFT_OUT)
        end = len(page.lines)
        if section.level > 2:
            order = self._shape.sections
            parents = [item for item in order[: order.index(section)] if item.level < section.level]
            _, end = (page.place(parents[-1]) if parents else None) or (0, end)
        return _inserted(text, end, f"{section.heading}\n\n{LEFT_OUT}")

    def _pointer(self) -> str:
        whose = f" ({', '.join(self.dissenters)})" if self.dissenters else ""
        return f"What spoke against this is in the {MINORITY}s of FINAL.md{whose}."

    def grammar(self) -> str:
        """Return a grammar: every section with one short line, and each block in its smallest form."""
        parts = []
        if self._shape.front_matter == "madr":
            parts.append('"---\\nstatus: proposed\\ndecision-makers: [" quoted "]\\n---\\n\\n"')
        # The title begins with the file's stem, so that it cannot equal the heading of a section.
        parts.append(f'{gbnf.literal(f"# {self.prompt.file}: ")} title "\\n\\n"')
        for section in self._shape.sections:
            parts.append(f'{gbnf.literal(section.heading)} "\\n\\n" said "\\n\\n"')
            if section.name == self._shape.minority:
                parts.append(gbnf.literal(f"{self._pointer()}\n\n"))
            for number, block in enumerate(self._shape.blocks):
                if block.section == section.name:
                    parts.append(f'{gbnf.literal(f"```{block.languages[0]}")} "\\n" block-{number} "```\\n\\n"')
        shapes = {
            f"block-{number}": CHECKERS[block.checker].shape() for number, block in enumerate(self._shape.blocks)
        }
        return gbnf.grammar(
            {
                "root": " ".join(parts),
                "title": gbnf.line(12, 60),
                "said": gbnf.line(20, 110),
                **({"quoted": gbnf.quoted(4, 40)} if self._shape.front_matter else {}),
                **shapes,
            }
        )


def _bare(text: str) -> str:
    """Return the lower-case words of a text between single blanks; `critic-2` is one word, signs are dropped."""
    return f" {' '.join(re.findall(r'[a-z0-9]+(?:-[a-z0-9]+)*', text.lower()))} "


def _inserted(text: str, end: int, added: str) -> str:
    """Return `text` with a paragraph inserted before line `end`."""
    lines = text.split("\n")
    before, after = "\n".join(lines[:end]).rstrip(), "\n".join(lines[end:]).strip("\n")
    return "\n\n".join([before, added, *([after] if after else [])])


# -- decision records in a repository --------------------------------------------------------------

_HEAD_KEYS = ("status", "decision-makers", "consulted", "informed")
_STATUS = re.compile(r"proposed|rejected|accepted|deprecated|superseded by [^\x00-\x1f]{1,200}")
_SLUG = 60  # characters of a file name's words


def adr_file_name(existing: Sequence[str], title: str, pattern: str = "NNNN-slug.md") -> str:
    """Return the name of the next decision record: one more than the highest number in `existing` file names.

    `pattern` is a document's `target`: its N stand for the number, `slug` for the words of the title.
    """
    lead, places = re.findall(r"^(.*?)(N+)-slug\.md$", pattern)[0]
    numbered = re.compile(rf"{re.escape(lead)}([0-9]{{1,9}})(?![0-9]).*\.md", re.DOTALL)
    numbers = [int(match[1]) for name in existing if (match := numbered.fullmatch(name))]
    return f"{lead}{max(numbers, default=0) + 1:0{len(places)}}-{_slug(title)}.md"


def _slug(title: str) -> str:
    """Return the words of a title as part of a file name: ASCII, cut between words if possible."""
    plain = unicodedata.normalize("NFKD", title.replace("ß", "ss")).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if len(slug) > _SLUG:
        cut = slug[: _SLUG + 1].rpartition("-")[0]
        slug = cut or slug[:_SLUG]
    return slug or "decision"


def stamped(text: str, date: str) -> str:
    """Return a decision record for filing: `date` (YYYY-MM-DD) in its front matter, beside MADR's keys only.

    `text` is the document, or the session's file of it; the keys that cdo adds to its files are left out. Raises
    ValueError if `date` is not such a day.
    """
    form = re.fullmatch(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", date)
    year, month, day = map(int, form.groups()) if form else (0, 0, 0)
    if not (1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]):
        raise ValueError(f"not a day: {date}")
    meta, body = front_matter(unwrap(text))
    if not _STATUS.fullmatch(str(meta.get("status"))):
        meta = {**meta, "status": "proposed"}
    status, *others = (strict_yaml.dump({key: meta[key]}) for key in _HEAD_KEYS if key in meta)
    return f"---\n{status}date: {date}\n{''.join(others)}---\n\n{body.strip()}\n"
