"""Parses and checks the replies of voices and synthesisers. Pure: text in, data out.

Each format parses the text of one kind of reply into a frozen data block, or raises `InvalidReply` with
sentences that are sent back to the model as they are. Programs see these blocks and nothing else. The blocks are
imported where a reply is read (see `blocks`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.fields import load, texts, too_long, twice
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import MAX_FRONT_MATTER, closed, fenced, heading_key, sections, split_front_matter, unwrap

if TYPE_CHECKING:
    from cdo.formats.blocks import Block
    from cdo.formats.voice_blocks import AgentData, Camp, Directive

BLOCK = TypeVar("BLOCK", bound="Block")


REQUIRED = ("camps", "tensions", "gaps")  # an empty list is an answer, a missing key is not


def grouped(camps: Sequence[Camp], answers: Mapping[str, str]) -> tuple[Camp, ...]:
    """Return the camps of the voices in `answers`, the largest first. Each voice counts once.

    A voice that no camp names becomes a camp of its own, with its answer.
    """
    from cdo.formats.voice_blocks import Camp

    left, found = dict(answers), list[Camp]()
    for camp in camps:
        if names := tuple(name for name in dict.fromkeys(camp.voices) if left.pop(name, None)):
            found.append(Camp(position=camp.position, voices=names))
    found += [Camp(position=answer, voices=(name,)) for name, answer in left.items()]
    return tuple(sorted(found, key=lambda camp: -len(camp.voices)))


def leading(camps: Sequence[Camp]) -> str:
    """Return the answer of the largest camp, where `camps` has it first; "" for a tie or no camps."""
    sizes = [len(camp.voices) for camp in camps]
    return camps[0].position if sizes and (len(sizes) == 1 or sizes[0] > sizes[1]) else ""


def agreement(camps: Sequence[Camp], voices: Sequence[str]) -> float | None:
    """Return the share of `voices` in the largest camp; None for fewer than two voices."""
    if len(voices) < 2:
        return None
    return len(grouped(camps, {name: name for name in voices})[0].voices) / len(voices)


# -- formats ---------------------------------------------------------------------------------------


NUMBERED = ("claims", "objections")  # lists of a voice whose ids mean nothing outside its reply
_PLACEHOLDER = re.compile(r"<[a-z][^<>]{3,200}>|\[(?:your|insert)\b[^\[\]]{0,200}\]", re.IGNORECASE)
_PERHAPS_ONE = re.compile(r"<|\[(?:your|insert)\b|\.\.\.|…", re.IGNORECASE)
_DOTS = re.compile(r"[.…\s]+")


def placeholders(data: Block) -> list[str]:
    """Return a sentence for each value that is a placeholder of the prompt, as in `<your answer, one line>`.

    A position of dots alone is one too.
    """
    if not _PERHAPS_ONE.search(data.model_dump_json()):
        return []
    found = dict.fromkeys(text for _, text in texts(data.model_dump()) if _PLACEHOLDER.fullmatch(text.strip()))
    if _DOTS.fullmatch(position := str(getattr(data, "position", "x"))):
        found[position] = None
    return [f"`{text[:80]}` is a placeholder of the format: put your own value there." for text in found]


def head(model: type[BLOCK], text: str) -> BLOCK:
    """Parse the front matter that a reply must begin with as a `model`; raise `InvalidReply`."""
    from cdo.formats.blocks import validate

    too_long(text)
    block, _ = split_front_matter(unwrap(text))
    if block is None:
        raise InvalidReply(["The reply must start with YAML front matter: a line `---`, the keys, a line `---`."])
    return validate(model, load(block, 0, "The front matter", MAX_FRONT_MATTER), "The front matter")


class AgentFormat(Struct, frozen=True):
    """A voice's reply: YAML front matter (`AgentData`), then Markdown."""

    name: str = "agent"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        from cdo.formats.voice_blocks import AgentData

        return ReplyLayout("front matter", (AgentData,), numbered=NUMBERED)

    def parse(self, text: str) -> AgentData:
        """Return the front matter; raise `InvalidReply`."""
        from cdo.formats.voice_blocks import AgentData

        data = head(AgentData, text)
        problems = [
            *placeholders(data),
            *twice([claim.id for claim in data.claims], "claims: the id"),
            *twice([objection.id for objection in data.objections], "objections: the id"),
        ]
        if problems:
            raise InvalidReply(problems)
        return data

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: a voice whose reply cannot be read is a missing voice."""
        return None

    def grammar(self) -> str:
        """Return a grammar of front matter with one position, up to two claims and one objection, then prose."""
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


MAX_DIRECTIVE = 16_384  # bytes
SYNTHESIS_SECTIONS = (
    "Common ground",
    "Tensions",
    "Gaps",
    "Surprises",
    "Anti-groupthink",
    "Next turn directive",
)


class SynthesisFormat(Struct, frozen=True):
    """The synthesis: six sections, the last with exactly one fenced `yaml` block (`Directive`).

    `width` is the range of voices that the grammar allows a small model; `roles` are the names that it allows.
    `voices` are the voices of the turn; the agreement is computed over them.
    """

    width: tuple[int, int] = (1, 9)
    roles: tuple[str, ...] = ("architect", "critic")
    voices: tuple[str, ...] = ()
    name: str = "synthesis"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        from cdo.formats.voice_blocks import Directive

        return ReplyLayout(
            "block", (Directive,), SYNTHESIS_SECTIONS, max_bytes=MAX_DIRECTIVE, computed=("agreement",)
        )

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
        from cdo.formats.blocks import validate
        from cdo.formats.voice_blocks import Directive

        blocks = fenced(text, ("yaml", "yml"))
        if len(blocks) != 1:
            raise InvalidReply(
                [f"There must be exactly one fenced ```yaml block, closed by ```; {len(blocks)} were found."]
            )
        keys = load(*blocks[0], "The directive", MAX_DIRECTIVE)
        if isinstance(keys, dict):
            keys = {key: value for key, value in keys.items() if key != "agreement"}  # code computes it
        directive = validate(Directive, keys, "The directive")
        voices = self.voices or tuple(name for camp in directive.camps for name in camp.voices)
        directive = directive.model_copy(update={"agreement": agreement(directive.camps, voices)})
        problems = [
            *(
                f"The directive: `{key}` is missing: an empty list is an answer."
                for key in REQUIRED
                if key not in keys
            ),
            *placeholders(directive),
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
        """Add the missing headings if that makes the synthesis valid, else return None."""
        text = closed(unwrap(text))
        absent = self._absent(text)
        repaired = "\n\n".join([text, *(f"## {name}\n\n(Left out by the synthesiser.)" for name in absent)])
        try:
            self.parse(repaired)
        except InvalidReply:
            return None
        return repaired, tuple(f"section {name}" for name in absent)

    def grammar(self) -> str:
        """Return a grammar: every section with one or two short lines, and a directive within `width`."""
        low, high = self.width
        heads = " ".join(f'"## {name}\\n\\n" points' for name in SYNTHESIS_SECTIONS[:-1])
        # Each place picks from its own names, so that no role appears twice.
        places = min(max(low, 1), high, 3, len(self.roles))
        picks = ' ", " '.join(f"role-{number}" for number in range(places))
        return gbnf.grammar(
            {
                "root": f'{heads} "## Next turn directive\\n\\n```yaml\\n" directive "```\\n"',
                "points": 'point point? "\\n"',
                "point": f'"- " {gbnf.line(20, 140)} "\\n"',
                "directive": '"width: " width "\\nroles: [" roles "]\\nskills: []\\nfocus: " quoted '
                '"\\nconfidence: " number "\\nexit_ready: " bool '
                '"\\ntensions: [" tension? "]\\ngaps: [" quoted? "]\\ncamps: [" camps "]\\n"',
                "width": gbnf.choice([str(n) for n in range(low, min(high, low + 8) + 1)]),
                "roles": picks,
                **{f"role-{number}": gbnf.choice(self.roles[number::places]) for number in range(places)},
                "bool": gbnf.choice(["true", "false"]),
                "camps": self._camps(),
                "tension": '"{id: T1, title: " quoted ", status: " status "}"',
                "status": gbnf.choice(["open", "resolved", "accepted"]),
                "quoted": gbnf.quoted(12, 100),
                "number": gbnf.number01(),
            }
        )

    def _camps(self) -> str:
        """Return the rule for camps: one of all voices, or one for each. A grammar cannot express a partition."""
        if not self.voices:
            return '""'

        def camp(names: Sequence[str]) -> str:
            told = f", voices: [{', '.join(names)}]" + "}"
            return f"{gbnf.literal('{position: ')} quoted {gbnf.literal(told)}"

        each = ' ", " '.join(camp([name]) for name in self.voices)
        return f"({camp(self.voices)}) | ({each})" if len(self.voices) > 1 else each
