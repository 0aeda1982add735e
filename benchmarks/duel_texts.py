"""What of both answers the judge is shown, and what the judge says.

From FINAL.md the judge gets what its author wrote for the reader. These parts are cut off:

- the title and the lines below it, or the front matter of earlier versions;
- every section after the last of the five (Decision, Confidence, Key Tensions, Minority Reports, Action Items), which
  is where code puts its records, and sections called `Worth of the run` or `... on record` wherever they stand;
- the lines that code puts into the five: `On record: ...`, and how many citations were found, with the list of those
  that were not. Of the line under Confidence that tells where its number comes from, the number stays.

From both answers: a fence around the whole, the marks right behind citations (a tick, or a cross with its reason) and
`*(added by cdo)*`. The headings of the five are spelled and levelled alike. Nothing else is taken out, and no word is
changed. What may still tell the two apart is counted as `tells`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from cdo.core.steps import InvalidReply
from cdo.formats import blocks, fields
from cdo.formats.blocks import Block
from cdo.formats.final_answer import FINAL_SECTIONS, final_section
from cdo.formats.markdown import fenced, fences, headings, line_breaks, split_front_matter, unwrap
from cdo.repository.citation_marks import SUMMARY
from cdo.repository.citation_syntax import find

CRITERIA = ("correctness", "insight", "clarity", "actionability", "overall")
_RECORD = re.compile(r"(?i)worth of the run|record of votes|.*\bon record")
_OF_CODE = re.compile(rf"On record: .*|{SUMMARY}")
_SURE = re.compile(r"\*\*([01]\.\d\d)(?: \(.*\)|[:,] .*)\*\*")
_OPENING = re.compile(r"\A# .*\n\n(?:> .*\n\n)?(?:- \*\*(?:Decision|Confidence|Status|Cost|Date):\*\* .*(?:\n|\Z))+")
_NOT_FOUND = re.compile(r"- ✗ `.*")
_MARK = re.compile(r" (?:[✓○](?: \(found as [^()\n]*\))?|✗(?: \([^()\n]*\))?)")
_TELLS = re.compile(
    r"(?i)\bcdo\b|\bvoices?\b|\bsynthes[ie]\w*|\brefuters?\b|\breferees?\b|\bsteelman\b|\bdeliberation\b|\bledgers?\b"
    r"|[✓○✗]|added by cdo|\bturns? \d+\b|\bblind\b|\bT\d{1,2}\b|\b[oc]\d{1,2}\b(?= ?[(:,;)])"
)
_ENOUGH = re.compile(
    r"(?i)\b(?:single|one)[ -](?:call|voice|answer)\b.*\b"
    r"(?:would have (?:done|been enough|sufficed|given the same decision)|would do|will do"
    r"|was enough|is enough|sufficed|as good|nothing was gained|gained nothing)\b"
)


@dataclass(frozen=True)
class Shown:
    """A report as the judge sees it; `cut` names the sections that were left out, `tells` counts telling words."""

    text: str
    cut: tuple[str, ...]

    @property
    def words(self) -> int:
        return len(self.text.split())

    @property
    def tells(self) -> dict[str, int]:
        return dict(Counter(found.lower() for found in _TELLS.findall(self.text)).most_common())


def of_reply(text: str) -> Shown:
    """The report of a single call; raise `InvalidReply` where one of the five sections is missing."""
    body = unwrap(text)
    if lost := [name for name in FINAL_SECTIONS if not final_section(body, name)]:
        raise InvalidReply([f"The section `## {name}` is missing or empty." for name in lost])
    return Shown(_alike(body), ())


def of_final(text: str) -> Shown:
    """The reader's part of a FINAL.md."""
    lines = _OPENING.sub("", split_front_matter(line_breaks(text))[1]).split("\n")
    found = [(start, lines[start].strip("# \t")) for start, _, _ in headings(lines) if _level(lines[start]) <= 2]
    last = max((at for at, (_, title) in enumerate(found) if _name(title)), default=len(found) - 1)
    kept, cut = lines[: found[0][0]] if found else lines, list[str]()
    for at, (start, title) in enumerate(found):
        end = found[at + 1][0] if at + 1 < len(found) else len(lines)
        if at > last or (_RECORD.fullmatch(title) and not _name(title)):
            cut.append(title)
        else:
            kept += lines[start:end]
    return Shown(_alike(_without_code(kept)), tuple(cut))


def says_enough(text: str) -> str:
    """The line of a FINAL.md that says that a single call would have done; "" where none does."""
    return next((line.strip("-* ").strip() for line in text.split("\n") if _ENOUGH.search(line)), "")


def _level(heading: str) -> int:
    return len(heading.lstrip()) - len(heading.lstrip().lstrip("#"))


def _name(title: str) -> str:
    """Which of the five sections a heading opens; "" for any other."""
    return next((name for name in FINAL_SECTIONS if final_section(f"## {title}\n\n.", name) is not None), "")


def _without_code(lines: list[str]) -> str:
    """The lines without those that code put among them."""
    kept, listing = list[str](), False
    for line in lines:
        if _OF_CODE.fullmatch(line.strip()):
            listing = line.startswith("Citations:")
        elif not (listing and _NOT_FOUND.match(line)):
            listing = listing and not line.strip()
            sure = _SURE.fullmatch(line.strip())
            kept.append(sure[1] if sure else line)
    return "\n".join(kept)


def _unmarked(text: str) -> str:
    """A text without the marks that code put behind its citations; other ticks and crosses are the author's."""
    pieces, at = list[str](), 0
    for citation in find(text):
        if mark := _MARK.match(text, citation.end):
            pieces.append(text[at : citation.end])
            at = mark.end()
    return "".join([*pieces, text[at:]])


def _alike(body: str) -> str:
    """A report with its headings spelled alike and without marks."""
    lines = _unmarked(body).replace(" *(added by cdo)*", "").split("\n")
    code = {number for fence in fences(lines) for number in range(fence.start, fence.end)}
    for start, _, _ in headings(lines):
        if name := _name(lines[start].strip("# \t")):
            lines[start] = f"## {name}"
    spaced = [line if at in code else line.rstrip() for at, line in enumerate(lines)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(spaced)).strip() + "\n"


# -- the judge ---------------------------------------------------------------------------------------


class Preference(Block):
    """What the judge says by one criterion."""

    preferred: Literal["first", "second", "tie"]
    strength: Annotated[StrictInt, Field(ge=0, le=5)]
    reason: Annotated[str, Field(min_length=3, max_length=3000)]

    @field_validator("reason")
    @classmethod
    def _own(cls, reason: str) -> str:
        if reason.startswith("<") and reason.endswith(">"):
            raise ValueError("must be your own words, not the placeholder")
        return reason

    @model_validator(mode="after")
    def _fits(self) -> Preference:
        if (self.preferred == "tie") != (self.strength == 0):
            raise ValueError("strength must be 0 for `tie`, and 1 to 5 otherwise")
        return self


class Judgement(Block):
    """What the judge says of two reports in one order."""

    correctness: Preference
    insight: Preference
    clarity: Preference
    actionability: Preference
    overall: Preference

    def scores(self, ours: Literal["first", "second"]) -> dict[str, int]:
        """By criterion how much better the report in that place is: -5 to 5."""
        said: Mapping[str, Preference] = {name: getattr(self, name) for name in CRITERIA}
        return {name: item.strength * (1 if item.preferred == ours else -1) for name, item in said.items()}


def judgement(text: str) -> Judgement:
    """The judgement in a reply; raise `InvalidReply` with what is wrong with it."""
    fields.too_long(text)
    found = fenced(line_breaks(text), ("yaml", "yml", "json"))
    if len(found) != 1:
        raise InvalidReply([f"There must be exactly one fenced block of YAML or JSON; there are {len(found)}."])
    return blocks.validate(Judgement, fields.load(*found[0], "The block", 65_536), "The block")
