"""How voices and synthesisers reply, and how that is checked (SPEC "Reply formats"). Pure: text in, data out.

Each format parses the text of one kind of reply into a frozen data block, or raises `InvalidReply` with
sentences that are sent back to the model as they are. Programs see these blocks and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field

from cdo import gbnf
from cdo.blocks import (
    Block,
    Id,
    Line,
    RoleName,
    Share,
    Strings,
    Text,
    Tolerant,
    as_list,
    load,
    number,
    too_long,
    twice,
    validate,
)
from cdo.markup import MAX_FRONT_MATTER, closed, fenced, heading_key, sections, split_front_matter, unwrap
from cdo.types import InvalidReply

BLOCK = TypeVar("BLOCK", bound=Block)


class Claim(Tolerant):
    """One checkable statement of a voice, with what it rests on."""

    id: Id
    text: Text
    evidence: Strings = ()


class Objection(Tolerant):
    """What a voice holds against the leading answer; `severity` 1 (quibble) to 10 (must not be done)."""

    id: Id
    text: Text
    severity: Annotated[int, BeforeValidator(number), Field(ge=1, le=10)]


class AgentData(Tolerant):
    """The front matter of a voice's reply. Keys it does not know are left out, not refused."""

    position: Line
    confidence: Share
    claims: Annotated[tuple[Claim, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    objections: Annotated[tuple[Objection, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    changed_because: Text | None = None
    acknowledged: Strings = ()


class Note(Block):
    """A message between turns as the lead or the human writes it: `to` names a teammate."""

    to: RoleName
    text: Annotated[str, Field(min_length=1, max_length=2000)]


class RoleWish(Block):
    """A role that the directive asks for: by name, or with a charge and skills of its own."""

    name: RoleName
    charge: Annotated[str, Field(max_length=1000)] = ""
    skills: Strings = ()


def _role_wish(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class TensionWish(Block):
    """A disagreement as the synthesiser reports it this turn."""

    id: Id
    title: Line
    status: Literal["open", "resolved", "accepted"]


class Camp(Block):
    """Voices of a turn that give the same answer, as the synthesiser groups them."""

    position: Line
    voices: Annotated[tuple[RoleName, ...], BeforeValidator(as_list), Field(max_length=256)]


class Directive(Block):
    """The fenced YAML block of a synthesis: what the next turn should be, and how sure it is."""

    width: Annotated[int, BeforeValidator(number), Field(ge=1, le=256)]
    roles: Annotated[
        tuple[Annotated[RoleWish, BeforeValidator(_role_wish)], ...], BeforeValidator(as_list), Field(max_length=256)
    ]
    skills: Strings = ()
    focus: Annotated[str, BeforeValidator(lambda value: "" if value is None else value), Field(max_length=2000)]
    confidence: Share
    exit_ready: bool
    agreement: Share | None = None
    tensions: Annotated[tuple[TensionWish, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    gaps: Strings = ()
    camps: Annotated[tuple[Camp, ...], BeforeValidator(as_list), Field(max_length=64)] = ()
    messages: Annotated[tuple[Note, ...], BeforeValidator(as_list), Field(max_length=16)] = ()


# -- formats ---------------------------------------------------------------------------------------


def head(model: type[BLOCK], text: str) -> BLOCK:
    """The front matter that a reply must begin with, as a block of kind `model`; raise `InvalidReply`."""
    too_long(text)
    block, _ = split_front_matter(unwrap(text))
    if block is None:
        raise InvalidReply(["The reply must start with YAML front matter: a line `---`, the keys, a line `---`."])
    return validate(model, load(block, 0, "The front matter", MAX_FRONT_MATTER), "The front matter")


@dataclass(frozen=True)
class AgentFormat:
    """A voice's reply: YAML front matter (`AgentData`), then Markdown."""

    name: str = "agent"

    def parse(self, text: str) -> AgentData:
        """Return the front matter; raise `InvalidReply`."""
        data = head(AgentData, text)
        problems = [
            *twice([claim.id for claim in data.claims], "claims: the id"),
            *twice([objection.id for objection in data.objections], "objections: the id"),
        ]
        if problems:
            raise InvalidReply(problems)
        return data

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Nothing: a voice whose reply cannot be read is a missing voice."""
        return None

    def grammar(self) -> str:
        """Front matter with one position, two claims and at most one objection, then short prose."""
        claim = '"  - id: c{0}\\n    text: " quoted "\\n    evidence: [" quoted "]\\n"'
        return gbnf.grammar(
            {
                "root": '"---\\nposition: " quoted "\\nconfidence: " number "\\nclaims:\\n" '
                f'{claim.format(1)} ({claim.format(2)})? objection? "---\\n\\n" prose',
                "objection": '"objections:\\n  - id: o1\\n    text: " quoted "\\n    severity: " [1-9] "\\n"',
                "quoted": gbnf.quoted(16, 120),
                "number": gbnf.number01(),
                "prose": gbnf.text(80, 500),
            }
        )


SYNTHESIS_SECTIONS = (
    "Common ground",
    "Tensions",
    "Gaps",
    "Surprises",
    "Anti-groupthink",
    "Next turn directive",
)


@dataclass(frozen=True)
class SynthesisFormat:
    """The synthesis: six sections, the last with exactly one fenced `yaml` block (`Directive`).

    `width` is the band the grammar holds a small model to; `roles` are names it may pick from.
    """

    width: tuple[int, int] = (1, 9)
    roles: tuple[str, ...] = ("architect", "critic")
    name: str = "synthesis"

    def parse(self, text: str) -> Directive:
        """Return the directive; raise `InvalidReply` with everything that is wrong."""
        too_long(text)
        text = unwrap(text)
        problems: list[str] = []
        try:
            directive = self._directive(text)
        except InvalidReply as invalid:
            problems += invalid.problems
        problems += [f"The section `## {name}` is missing." for name in self._absent(text)]
        if problems:
            raise InvalidReply(problems)
        return directive

    def _directive(self, text: str) -> Directive:
        blocks = fenced(text, ("yaml", "yml"))
        if len(blocks) != 1:
            raise InvalidReply(
                [f"There must be exactly one fenced ```yaml block, closed by ```; {len(blocks)} were found."]
            )
        directive = validate(Directive, load(*blocks[0], "The directive", 8192), "The directive")
        problems = [
            *twice([tension.id for tension in directive.tensions], "tensions: the id"),
            *twice([role.name for role in directive.roles], "roles: the name"),
        ]
        if problems:
            raise InvalidReply(problems)
        return directive

    def _absent(self, text: str) -> list[str]:
        have = sections(text)
        return [name for name in SYNTHESIS_SECTIONS if heading_key(name) not in have]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Put in the headings that are missing, where the directive itself is sound."""
        text = closed(unwrap(text))
        absent = self._absent(text)
        mended = "\n\n".join([text, *(f"## {name}\n\n(Left out by the synthesiser.)" for name in absent)])
        try:
            self.parse(mended)
        except InvalidReply:
            return None
        return mended, tuple(f"section {name}" for name in absent)

    def grammar(self) -> str:
        """Every section with one or two short lines, and a directive within the band."""
        low, high = self.width
        heads = " ".join(f'"## {name}\\n\\n" points' for name in SYNTHESIS_SECTIONS[:-1])
        # Each place picks from names of its own, so that no role comes twice.
        places = min(max(low, 1), high, 3, len(self.roles))
        picks = ' ", " '.join(f"role-{number}" for number in range(places))
        return gbnf.grammar(
            {
                "root": f'{heads} "## Next turn directive\\n\\n```yaml\\n" directive "```\\n"',
                "points": 'point point? "\\n"',
                "point": f'"- " {gbnf.line(20, 140)} "\\n"',
                "directive": '"width: " width "\\nroles: [" roles "]\\nskills: []\\nfocus: " quoted '
                '"\\nconfidence: " number "\\nexit_ready: " bool "\\nagreement: " number '
                '"\\ntensions: [" tension? "]\\ngaps: [" quoted? "]\\n"',
                "width": gbnf.choice([str(n) for n in range(low, min(high, low + 8) + 1)]),
                "roles": picks,
                **{f"role-{number}": gbnf.choice(self.roles[number::places]) for number in range(places)},
                "bool": gbnf.choice(["true", "false"]),
                "tension": '"{id: T1, title: " quoted ", status: " status "}"',
                "status": gbnf.choice(["open", "resolved", "accepted"]),
                "quoted": gbnf.quoted(12, 100),
                "number": gbnf.number01(),
            }
        )
