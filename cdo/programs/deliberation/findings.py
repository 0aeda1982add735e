"""Reads the findings of a run, ranked by what they would change for the reader. Pure.

Code lists every claim and objection of every voice. A model ranks them and joins equal ones. Code puts what the model
leaves out in the second rank, so that no finding is lost on the way to FINAL.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.fields import load, too_long, twice
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import fenced, unwrap
from cdo.formats.voice import placeholders

if TYPE_CHECKING:
    from cdo.programs.deliberation.finding_blocks import FindingsData, RankedFinding

FIRST = 12  # most findings of the first rank: more cannot be explained in the length of a FINAL.md
MAX_LIST = 65_536  # most bytes of the list


class Source(Struct, frozen=True):
    """A claim or an objection as a voice put it, under an `id` that is unique in the run ("t1-critic/c2")."""

    id: str
    text: str


class FindingsFormat(Struct, frozen=True):
    """The ranked list: one fenced `yaml` block with the key `findings`. `sources` are all claims and objections."""

    sources: tuple[Source, ...] = ()
    name: str = "findings"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        from cdo.programs.deliberation.finding_blocks import FindingsData

        return ReplyLayout("block", (FindingsData,), numbered=("findings",), max_bytes=MAX_LIST)

    def parse(self, text: str) -> FindingsData:
        """Return the findings, renumbered F1, F2 … by rank; raise `InvalidReply`.

        Sources that no finding joins are added in the second rank.
        """
        from cdo.formats.blocks import validate
        from cdo.programs.deliberation.finding_blocks import FindingsData

        too_long(text)
        blocks = fenced(unwrap(text), ("yaml", "yml"))
        if len(blocks) != 1:
            raise InvalidReply([f"There must be exactly one fenced ```yaml block; {len(blocks)} were found."])
        data = validate(FindingsData, load(*blocks[0], "The list", MAX_LIST), "The list")
        problems = [*twice([item.id for item in data.findings], "findings: the id"), *placeholders(data)]
        if (many := len(data.first)) > FIRST:
            problems.append(f"{many} findings are of rank 1; at most {FIRST} can be. Keep those that change most.")
        if not many:
            problems.append("No finding is of rank 1: at least the one that decides the question is.")
        if problems:
            raise InvalidReply(problems)
        return FindingsData(findings=tuple(self._numbered(data.findings)))

    def _numbered(self, found: Sequence[RankedFinding]) -> list[RankedFinding]:
        from cdo.programs.deliberation.finding_blocks import RankedFinding

        known = {source.id for source in self.sources}
        named = {source for item in found for source in item.sources}
        left = [
            RankedFinding(id="F0", rank=2, text=source.text, sources=(source.id,))
            for source in self.sources
            if source.id not in named
        ]
        ranked = sorted([*found, *left], key=lambda item: item.rank)
        return [
            item.model_copy(
                update={"id": f"F{place}", "sources": tuple(name for name in item.sources if name in known)}
            )
            for place, item in enumerate(ranked, 1)
        ]

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: without a list the answer is written from the record alone."""
        return None

    def grammar(self) -> str:
        """Return a grammar of one or two findings in short lines."""
        item = '"  - id: F{0}\\n    rank: {1}\\n    text: " quoted "\\n    sources: []\\n"'
        return gbnf.grammar(
            {
                "root": f'"```yaml\\nfindings:\\n" {item.format(1, 1)} ({item.format(2, 2)})? "```\\n"',
                "quoted": gbnf.quoted(16, 140),
            }
        )
