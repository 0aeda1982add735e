"""The replies of a root-cause analysis: a voice with its hypotheses, the synthesis that keeps their ledger. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from cdo.core.steps import InvalidReply
from cdo.formats import gbnf, strict_yaml
from cdo.formats.fields import Text, Tolerant, as_list, load, placeholders, too_long, validate
from cdo.formats.markdown import closed, fenced, front_matter, unwrap
from cdo.formats.sections import rules_of
from cdo.formats.unified_diff import diff_problem
from cdo.formats.voice import MAX_DIRECTIVE, AgentData, AgentFormat, Directive, SynthesisFormat
from cdo.programs.debug.evidence import looked_up
from cdo.programs.debug.hypotheses import MOST, SHORTER, Duty, Hypotheses, HypothesisWish

MAX_LEDGER = 32_768  # bytes of the ledger beside a directive


class CaseData(AgentData):
    """The front matter of an investigator's reply; `fix` is the diff in its body, `no_fix` why there is none."""

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
    """The one key of a directive that its own format does not know."""

    hypotheses: Annotated[tuple[HypothesisWish, ...], BeforeValidator(as_list), Field(max_length=MOST)] = ()


@dataclass(frozen=True)
class CaseFormat:
    """A voice's reply with its view of the hypotheses; `must` is what the phase obliges each voice to bring."""

    ledger: Hypotheses = field(default_factory=Hypotheses)
    must: tuple[Duty, ...] = ()
    name: str = "agent"

    def parse(self, text: str) -> CaseData:
        """Return the front matter, with the diff of the body as `fix`; raise `InvalidReply`."""
        AgentFormat().parse(text)
        meta, body = front_matter(unwrap(text))
        own = {key: meta[key] for key in ("hypotheses", "no_fix") if key in meta}
        if unfilled := placeholders(own, "The front matter"):
            raise InvalidReply(unfilled[:8])
        data = validate(CaseData, meta, "The front matter")
        diffs = [block for block, _ in fenced(body, ("diff", "patch"))] if "fix" in self.must else []
        problems = [*self.ledger.problems(data.hypotheses), *self._owed(data, diffs)]
        if problems:
            raise InvalidReply(problems)
        return data.model_copy(update={"fix": diffs[0] if diffs else ""})

    def _owed(self, data: CaseData, diffs: Sequence[str]) -> list[str]:
        """What the phase obliges the voice to and the reply lacks."""
        found = []
        if "hypothesis" in self.must and not data.hypotheses:
            found.append("`hypotheses` must hold at least one: id, text, prediction.")
        live = [item.id for item in self.ledger.of("open", "supported")]
        tested = any(self.ledger.get(wish.id) and wish.evidence for wish in data.hypotheses)
        if "test" in self.must and live and not tested:
            found.append(
                f"`hypotheses` must say of at least one of {', '.join(live[:12])} what testing its prediction "
                "showed, under `evidence`."
            )
        if "fix" in self.must and len(diffs) != 1 and (diffs or not data.no_fix):
            found.append(f"Give one fenced ```diff block ({len(diffs)} were found), or `no_fix` with the reason.")
        found += [f"The diff: {problem}." for diff in diffs if (problem := diff_problem(diff))]
        return found

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Nothing: a voice whose reply cannot be read is a missing voice."""
        return None

    def grammar(self) -> str:
        """A short voice with what the phase obliges it to.

        A model that is held to a grammar can look nothing up: it may propose and comment, and settles nothing.
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


@dataclass(frozen=True)
class CaseSynthesis:
    """A synthesis whose directive also carries `hypotheses`; everything else is checked by `inner`.

    The directive without that key is at most 16 KB (`MAX_DIRECTIVE`), as in any synthesis; the key has 32 KB of its
    own (`MAX_LEDGER`), both counted in UTF-8 as cdo writes YAML; of a block beyond both together nothing is read.
    """

    inner: SynthesisFormat
    ledger: Hypotheses = field(default_factory=Hypotheses)
    name: str = "synthesis"

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
        """Put in missing headings, and leave out what the ledger cannot take over: it stays as it was."""
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
        """That of a plain synthesis: what the voices proposed enters the ledger by itself."""
        return self.inner.grammar()


def _directive_block(text: str) -> tuple[str, int] | None:
    """The one fenced YAML block and how many lines stand above it; None where there is not exactly one."""
    blocks = fenced(text, ("yaml", "yml"))
    return blocks[0] if len(blocks) == 1 else None


def _split(text: str) -> tuple[str, Any]:
    """A synthesis without the key `hypotheses` of its directive, and what that key held; raise `InvalidReply`."""
    block = _directive_block(text)
    keys = load(*block, "The directive", MAX_DIRECTIVE + MAX_LEDGER) if block else None
    if not isinstance(keys, dict) or "hypotheses" not in keys:
        return text, None
    return _edited(text, None), keys["hypotheses"]


def _size(hypotheses: Any) -> int:
    """Bytes of the ledger's part of a directive, as cdo writes it."""
    return len(strict_yaml.dump({"hypotheses": hypotheses}).encode()) if hypotheses else 0


def _edited(text: str, hypotheses: Any) -> str:
    """A synthesis whose directive holds these hypotheses; None takes the key out."""
    block = _directive_block(text)
    if not block:
        return text
    keys = load(*block, "The directive", MAX_DIRECTIVE + MAX_LEDGER)
    keys = {key: value for key, value in keys.items() if key != "hypotheses"}
    keys |= {"hypotheses": hypotheses} if hypotheses else {}
    lines, above = text.split("\n"), block[1]
    after = above + block[0].count("\n") + 1
    return "\n".join([*lines[:above], strict_yaml.dump(keys).rstrip("\n"), *lines[after:]])
