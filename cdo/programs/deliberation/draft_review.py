"""Reads the review of a draft of FINAL.md: what is wrong, unsupported, unclear or missing. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf
from cdo.formats.blocks import Block, Strings, validate
from cdo.formats.fields import load, too_long
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import fenced, unwrap
from cdo.formats.voice import placeholders

KEYS = ("errors", "refuted", "missing", "numbers", "unclear", "cut")
_REFUTED = re.compile(r"(?s)\[?(F\d+)\]?[\s:,.–—-]+(.*\S)")


class DraftReview(Block):
    """The review of a draft by a reader who knows the material. Each entry is one thing to change, in a sentence.

    `errors` contradict the material. `refuted` are findings of the first rank that the material contradicts (each
    begins with its id). `missing` are findings of the first rank that the draft leaves out. `numbers` have no source.
    `unclear` sentences would be read twice. `cut` are parts that the reader would not miss.
    """

    errors: Strings = ()
    refuted: Strings = ()
    missing: Strings = ()
    numbers: Strings = ()
    unclear: Strings = ()
    cut: Strings = ()

    @property
    def reasons(self) -> dict[str, str]:
        """Why the material contradicts a refuted finding, by the finding's id."""
        found = (_REFUTED.match(text) for text in self.refuted)
        return {match[1]: match[2] for match in found if match}


class ReviewFormat(Struct, frozen=True):
    """A review: one fenced `yaml` block (`DraftReview`). `findings` are the ids that it may refute."""

    findings: tuple[str, ...] = ()
    name: str = "review"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return ReplyLayout("block", (DraftReview,))

    def parse(self, text: str) -> DraftReview:
        """Return the review; raise `InvalidReply`."""
        too_long(text)
        blocks = fenced(unwrap(text), ("yaml", "yml"))
        if len(blocks) != 1:
            raise InvalidReply([f"There must be exactly one fenced ```yaml block; {len(blocks)} were found."])
        loaded = load(*blocks[0], "The review", 65_536)
        data = validate(DraftReview, loaded, "The review")
        problems = [*placeholders(data), *self._unknown(data)]
        if not any(key in loaded for key in KEYS):
            problems.append(f"The review has none of the keys {', '.join(KEYS)}. An empty list is an answer.")
        if problems:
            raise InvalidReply(problems)
        return data

    def _unknown(self, data: DraftReview) -> Iterator[str]:
        for text in data.refuted:
            match = _REFUTED.match(text)
            if not match or match[1] not in self.findings:
                yield (
                    "`refuted`: an entry begins with the id of a finding of the list and a colon, as in `F3: …`; "
                    f"this one does not: {text[:80]}"
                )

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: FINAL.md is then written without a review, and says so."""
        return None

    def grammar(self) -> str:
        """Return a grammar with at most one entry under each key, and without `refuted`."""
        keys = " ".join(f'"{key}: [" quoted? "]\\n"' for key in KEYS if key != "refuted")
        return gbnf.grammar({"root": f'"```yaml\\n" {keys} "```\\n"', "quoted": gbnf.quoted(16, 140)})
