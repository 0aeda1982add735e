"""Reads the replies of a root-cause analysis: voices with hypotheses, and syntheses that keep their ledger. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BeforeValidator, Field

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf, strict_yaml
from cdo.formats.blocks import Text, Tolerant, validate
from cdo.formats.fields import as_list, load, placeholders, too_long
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.markdown import closed, fenced, front_matter, unwrap
from cdo.formats.sections import rules_of
from cdo.formats.unified_diff import diff_problem
from cdo.formats.voice import MAX_DIRECTIVE, NUMBERED, AgentFormat, SynthesisFormat
from cdo.formats.voice_blocks import AgentData, Directive
from cdo.programs.debug.evidence import looked_up
from cdo.programs.debug.hypotheses import MOST, SHORTER, Duty, Hypotheses, HypothesisWish

MAX_LEDGER = 32_768  # most bytes of the key `hypotheses` of a directive


class CaseData(AgentData):
    """The front matter of an investigator's reply. `fix` is the diff in its body, `no_fix` the reason for none."""

    hypotheses: Annotated[tuple[HypothesisWish, ...], BeforeValidator(as_list), Field(max_length=8)] = ()
    no_fix: Text | None = None
    fix: str = ""

    @property
    def quotes(self) -> tuple[str, ...]:
        """The words that code has to look up."""
        return _quotes(self.hypotheses)


class CaseDirective(Directive):
    """The directive of a synthesis that also keeps the ledger."""

    hypotheses: Annotated[tuple[HypothesisWish, ...], BeforeValidator(as_list), Field(max_length=MOST)] = ()

    @property
    def quotes(self) -> tuple[str, ...]:
        """The words that code has to look up."""
        return _quotes(self.hypotheses)


def _quotes(wishes: Sequence[HypothesisWish]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words for wish in wishes for item in wish.evidence for words in looked_up(item)))


class _Reported(Tolerant):
    """The one key of the directive that `SynthesisFormat` does not know."""

    hypotheses: Annotated[tuple[HypothesisWish, ...], BeforeValidator(as_list), Field(max_length=MOST)] = ()


class CaseFormat(Struct, frozen=True):
    """The format of a voice's reply with hypotheses; `must` lists what the phase requires of each voice."""

    ledger: Hypotheses = field(default_factory=Hypotheses)
    must: tuple[Duty, ...] = ()
    name: str = "agent"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return ReplyLayout("front matter", (CaseData,), numbered=NUMBERED, computed=("fix",))

    def parse(self, text: str) -> CaseData:
        """Return the front matter, with the diff of the body as `fix`; raise `InvalidReply`."""
        AgentFormat().parse(text)
        meta, body = front_matter(unwrap(text))
        own = {key: meta[key] for key in ("hypotheses", "no_fix") if key in meta}
        if unfilled := placeholders(own, "The front matter"):
            raise InvalidReply(unfilled[:8])
        data = validate(CaseData, meta, "The front matter")
        diffs = [block for block, _ in fenced(body, ("diff", "patch"))] if "fix" in self.must else []
        untested = self._untested(data)
        if problems := [*self.ledger.problems(data.hypotheses), *untested, *self._owed(data, diffs)]:
            raise InvalidReply(problems, needs_prompt=bool(untested))
        return data.model_copy(update={"fix": diffs[0] if diffs else ""})

    def _untested(self, data: CaseData) -> list[str]:
        """Return a problem if the phase requires a test and the reply tests no hypothesis."""
        live = [item.id for item in self.ledger.of("open", "supported")]
        tested = any(self.ledger.get(wish.id) and wish.evidence for wish in data.hypotheses)
        if "test" not in self.must or not live or tested:
            return []
        said = f"`hypotheses` must say of at least one of {', '.join(live[:12])} what testing its prediction"
        return [f"{said} showed, under `evidence`."]

    def _owed(self, data: CaseData, diffs: Sequence[str]) -> list[str]:
        """Return what else the phase requires and the reply lacks, and what is wrong with its diffs."""
        found = []
        if "hypothesis" in self.must and not data.hypotheses:
            found.append("`hypotheses` must hold at least one: id, text, prediction.")
        if "fix" in self.must and len(diffs) != 1 and (diffs or not data.no_fix):
            found.append(f"Give one fenced ```diff block ({len(diffs)} were found), or `no_fix` with the reason.")
        found += [f"The diff: {problem}." for diff in diffs if (problem := diff_problem(diff))]
        return found

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: a voice whose reply cannot be read is a missing voice."""
        return None

    def grammar(self) -> str:
        """Return a grammar of a short reply with what the phase requires.

        A model that is held to a grammar cannot look anything up: it may propose and comment, but settle nothing.
        """
        more = ""
        entries = []
        if "hypothesis" in self.must:
            entries.append(
                f'"  - id: {self.ledger.following}\\n    text: " quoted "\\n    prediction: " quoted '
                '"\\n    status: open\\n"'
            )
        if "test" in self.must and (items := self.ledger.of("open", "supported")):
            known = gbnf.choice(f"{item.id}\n    status: {item.status}\n" for item in items[:12])
            entries.append(f'"  - id: " {known} "    evidence: [" quoted "]\\n"')
        if entries:
            more += f'"hypotheses:\\n" {" ".join(entries)} '
        if "fix" in self.must:
            more += '"no_fix: " quoted "\\n" '
        rules = rules_of(AgentFormat().grammar())
        head, end, prose = rules["root"].rpartition('"---\\n\\n"')
        return gbnf.grammar({**rules, "root": f"{head}{more}{end}{prose}"})


class CaseSynthesis(Struct, frozen=True):
    """The format of a synthesis whose directive has the key `hypotheses`; `inner` checks everything else.

    Without that key, the directive has at most 16 KB (`MAX_DIRECTIVE`), as in any synthesis. The key has at most 32
    KB (`MAX_LEDGER`). Both are counted in UTF-8 as cdo writes YAML. A block larger than both together is not read.
    """

    inner: SynthesisFormat
    ledger: Hypotheses = field(default_factory=Hypotheses)
    name: str = "synthesis"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return replace(self.inner.layout, models=(CaseDirective,), max_bytes=MAX_DIRECTIVE + MAX_LEDGER)

    def parse(self, text: str) -> CaseDirective:
        """Return the directive with its hypotheses; raise `InvalidReply` with everything that is wrong."""
        too_long(text)
        rest, reported = _split(unwrap(text))
        if (size := _size(reported)) > MAX_LEDGER:
            raise InvalidReply([f"`hypotheses` has {size} bytes, at most {MAX_LEDGER} are read: {SHORTER}."])
        if unfilled := placeholders({"hypotheses": reported}, "The directive"):
            raise InvalidReply(unfilled[:8])
        wishes = validate(_Reported, {"hypotheses": reported}, "The directive").hypotheses
        problems = self.ledger.problems(wishes)
        try:
            directive = self.inner.parse(rest)
        except InvalidReply as invalid:
            raise InvalidReply([*invalid.problems, *problems]) from None
        if problems:
            raise InvalidReply(problems)
        return CaseDirective(**{**dict(directive), "hypotheses": wishes})

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Add missing headings, and drop hypotheses that the ledger cannot accept, so that they stay as they were."""
        try:
            rest, reported = _split(closed(unwrap(text)))
        except InvalidReply:
            return None
        kept: dict[str, HypothesisWish] = {}
        added = []
        for item in as_list(reported) if not isinstance(reported, dict) else [reported]:
            try:
                wish = validate(HypothesisWish, item, "A hypothesis")
            except InvalidReply:
                added.append("hypotheses as they stood")
                continue
            if placeholders(item, "A hypothesis"):
                added.append(f"hypothesis {wish.id} as it stood")
                continue
            if wish.id in kept or self.ledger.problems([wish]):
                added.append(f"hypothesis {wish.id} as it stood")
            else:
                kept[wish.id] = wish
        repaired = self.inner.repair(rest)
        if repaired is None:
            return None
        found = [wish.model_dump(mode="json", exclude_defaults=True) for wish in list(kept.values())[:MOST]]
        while _size(found) > MAX_LEDGER:
            added.append(f"hypothesis {found.pop()['id']} as it stood")
        whole = _edited(repaired[0], found)
        try:
            self.parse(whole)
        except InvalidReply:
            return None
        return whole, (*repaired[1], *dict.fromkeys(added))

    def grammar(self) -> str:
        """Return the grammar of a plain synthesis: code adds what the voices proposed to the ledger."""
        return self.inner.grammar()


def _directive_block(text: str) -> tuple[str, int] | None:
    """Return the one fenced YAML block and the number of lines above it; None unless there is exactly one."""
    blocks = fenced(text, ("yaml", "yml"))
    return blocks[0] if len(blocks) == 1 else None


def _split(text: str) -> tuple[str, Any]:
    """Return a synthesis without the key `hypotheses` of its directive, and its value; raise `InvalidReply`."""
    block = _directive_block(text)
    keys = load(*block, "The directive", MAX_DIRECTIVE + MAX_LEDGER) if block else None
    if not isinstance(keys, dict) or "hypotheses" not in keys:
        return text, None
    return _edited(text, None), keys["hypotheses"]


def _size(hypotheses: Any) -> int:
    """Return the bytes of the key `hypotheses` of a directive, as cdo writes it."""
    return len(strict_yaml.dump({"hypotheses": hypotheses}).encode()) if hypotheses else 0


def _edited(text: str, hypotheses: Any) -> str:
    """Return a synthesis with these hypotheses in its directive; None removes the key."""
    block = _directive_block(text)
    if not block:
        return text
    keys = load(*block, "The directive", MAX_DIRECTIVE + MAX_LEDGER)
    keys = {key: value for key, value in keys.items() if key != "hypotheses"}
    keys |= {"hypotheses": hypotheses} if hypotheses else {}
    lines, above = text.split("\n"), block[1]
    after = above + block[0].count("\n") + 1
    return "\n".join([*lines[:above], strict_yaml.dump(keys).rstrip("\n"), *lines[after:]])
