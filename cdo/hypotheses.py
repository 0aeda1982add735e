"""The ledger of hypotheses of a root-cause analysis, and how its voices and synthesisers reply. Pure.

A hypothesis keeps its id and its text for good, and changes its status by evidence only: a place, a quote, or what
was observed. Leaving one out changes nothing. Whatever a voice puts forward enters the ledger, be it on its own or
taken up by another entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cdo import gbnf, strict_yaml
from cdo.blocks import Strings, Text, Tolerant, as_list, load, too_long, twice, validate
from cdo.diffs import diff_problem
from cdo.evidence import OWED, UNCHECKED, Checks, is_evidence
from cdo.markup import closed, fenced, front_matter, unwrap
from cdo.protocol import AgentData, AgentFormat, Directive, SynthesisFormat
from cdo.reports import folded, rules_of
from cdo.types import InvalidReply

Fate = Literal["open", "supported", "ruled-out"]
Duty = Literal["hypothesis", "test", "fix"]
MOST = 64  # hypotheses of one directive
SHORTER = "report only what is new or changed this turn, with its new evidence"
SHOWN = 200  # characters of a hypothesis that a problem repeats
MAX_DIRECTIVE = 8192  # bytes of a directive without its ledger
MAX_LEDGER = 32_768  # bytes of its ledger beside that


# -- the ledger ------------------------------------------------------------------------------------


def _plain_status(value: Any) -> Any:
    return re.sub(r"[\s_]+", "-", value.strip().lower()) if isinstance(value, str) else value


def _or_empty(value: Any) -> Any:
    return "" if value is None else value


_MaybeLine = Annotated[str, Field(max_length=600), BeforeValidator(_or_empty)]


class HypothesisWish(Tolerant):
    """A hypothesis as a reply reports it: `text` may be left out where the id is known.

    `merges` names what it takes up of the voices, as "role/id".
    """

    id: Annotated[str, Field(pattern=r"^H[1-9][0-9]{0,3}$")]
    text: _MaybeLine = ""
    prediction: _MaybeLine = ""
    status: Annotated[Fate, BeforeValidator(_plain_status)] = "open"
    evidence: Strings = ()
    merges: Strings = ()


@dataclass(frozen=True)
class Hypothesis:
    """One possible cause: what it predicts, its fate, all evidence on record, and the turn it came up in."""

    id: str
    text: str
    prediction: str
    status: Fate
    evidence: tuple[str, ...]
    since: int


@dataclass(frozen=True)
class Hypotheses:
    """Every hypothesis of a run, in the order in which they came up."""

    items: tuple[Hypothesis, ...] = ()

    def get(self, ident: str) -> Hypothesis | None:
        """The hypothesis with this id, or None."""
        return next((item for item in self.items if item.id == ident), None)

    def of(self, *fates: Fate) -> tuple[Hypothesis, ...]:
        """Those whose status is one of `fates`."""
        return tuple(item for item in self.items if item.status in fates)

    @property
    def following(self) -> str:
        """The first id that nobody has used."""
        return f"H{max((int(item.id[1:]) for item in self.items), default=0) + 1}"

    def problems(self, wishes: Sequence[HypothesisWish]) -> list[str]:
        """A sentence for each thing that speaks against taking `wishes` over; [] where nothing does."""
        found = twice([wish.id for wish in wishes], "hypotheses: the id")
        for wish in wishes:
            found += [problem for problem in (self._identity(wish), self._fate(wish)) if problem]
        return found

    def _identity(self, wish: HypothesisWish) -> str:
        """What is wrong with which hypothesis a wish means; "" when nothing is."""
        known = self.get(wish.id)
        if known:
            if wish.text and folded(wish.text) != folded(known.text):
                return (
                    f"{wish.id} stands as “{known.text[:SHOWN]}” and keeps its text: leave `text` out, "
                    f"or give another hypothesis an id of its own ({self.following} is free)."
                )
            return ""
        if not wish.text or not wish.prediction:
            return f"{wish.id} is new: it needs `text`, and `prediction` with what one would see only if it is true."
        same = next((item for item in self.items if folded(item.text) == folded(wish.text)), None)
        return f"{wish.id} says the same as {same.id} ({same.status}): use that id." if same else ""

    def _fate(self, wish: HypothesisWish) -> str:
        """What is missing for the status that a wish asks for; "" when nothing is."""
        known = self.get(wish.id)
        before: Fate = known.status if known else "open"
        if wish.status == before:
            return ""
        facts = [item for item in wish.evidence if is_evidence(item)]
        if not facts:
            return f"{wish.id}: `{wish.status}` needs evidence that is not opinion: {OWED}."
        if known and before != "open":
            on_record = {folded(item) for item in known.evidence}
            if all(folded(item) in on_record for item in facts):
                return f"{wish.id} is {before}: only evidence that is not on record yet can change that."
        return ""

    def after(
        self,
        turn: int,
        wishes: Sequence[HypothesisWish],
        proposed: Sequence[tuple[str, HypothesisWish]] = (),
        checks: Checks = UNCHECKED,
    ) -> Hypotheses:
        """The ledger after a turn: the synthesis's `wishes`, then what it left out of those (voice, wish) `proposed`.

        Evidence that `checks` refute does not count, and what rests on nothing else is open again. A change of status
        that evidence does not carry is not made; a wish whose identity is wrong is left out. What only a voice
        settles stays open, with the evidence that it brought.
        """
        ledger = Hypotheses(tuple(_held(item, checks) for item in self.items))
        for wish in wishes:
            ledger = ledger._taken(turn, wish.model_copy(update={"evidence": checks.sound(wish.evidence)}))
        merged = {folded(name) for wish in wishes for name in wish.merges}
        for voice, wish in proposed:
            if self.get(wish.id) and (now := ledger.get(wish.id)):
                # The evidence that a voice brings is kept; only a synthesis changes the status.
                kept = {"status": now.status, "evidence": checks.sound(wish.evidence)}
                ledger = ledger._taken(turn, wish.model_copy(update=kept))
                continue
            if folded(f"{voice}/{wish.id}") in merged:
                continue
            fresh = {"id": ledger.following, "status": "open", "evidence": checks.sound(wish.evidence)}
            ledger = ledger._taken(turn, wish.model_copy(update=fresh))
        return ledger

    def _taken(self, turn: int, wish: HypothesisWish) -> Hypotheses:
        if self._identity(wish):
            return self
        known = self.get(wish.id)
        old = known or Hypothesis(wish.id, wish.text, wish.prediction, "open", (), turn)
        seen = {folded(item) for item in old.evidence}
        new = replace(
            old,
            prediction=old.prediction or wish.prediction,
            status=old.status if self._fate(wish) else wish.status,
            evidence=(*old.evidence, *(item for item in wish.evidence if folded(item) not in seen)),
        )
        if not known:
            return Hypotheses((*self.items, new))
        return Hypotheses(tuple(new if item.id == wish.id else item for item in self.items))

    def data(self, checks: Checks = UNCHECKED) -> list[dict[str, Any]]:
        """The ledger as the data of a call; each piece of evidence with its kind by `checks`."""
        return [
            {
                "id": item.id,
                "text": item.text,
                "prediction": item.prediction,
                "status": item.status,
                "evidence": [{"text": text, "kind": checks.kind(text)} for text in item.evidence],
                "since": item.since,
            }
            for item in self.items
        ]


def _held(item: Hypothesis, checks: Checks) -> Hypothesis:
    """A hypothesis as it stands when none of its evidence is left: open."""
    return item if item.status == "open" or checks.best(item.evidence) else replace(item, status="open")


# -- the formats -----------------------------------------------------------------------------------


class CaseData(AgentData):
    """The front matter of an investigator's reply; `fix` is the diff in its body, `no_fix` why there is none."""

    hypotheses: Annotated[tuple[HypothesisWish, ...], BeforeValidator(as_list), Field(max_length=8)] = ()
    no_fix: Text | None = None
    fix: str = ""


class CaseDirective(Directive):
    """The directive of a synthesis that also keeps the ledger."""

    hypotheses: Annotated[tuple[HypothesisWish, ...], BeforeValidator(as_list), Field(max_length=MOST)] = ()


class _Reported(Tolerant):
    """The one key of a directive that its own format does not know."""

    hypotheses: Annotated[tuple[HypothesisWish, ...], BeforeValidator(as_list), Field(max_length=MOST)] = ()


@dataclass(frozen=True)
class CaseFormat:
    """A voice's reply with its view of the hypotheses; `must` is what the phase obliges each voice to bring."""

    ledger: Hypotheses = Hypotheses()
    must: tuple[Duty, ...] = ()
    name: str = "agent"

    def parse(self, text: str) -> CaseData:
        """Return the front matter, with the diff of the body as `fix`; raise `InvalidReply`."""
        AgentFormat().parse(text)
        meta, body = front_matter(unwrap(text))
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

    The directive without that key is at most 8 KB (`MAX_DIRECTIVE`), as in any synthesis; the key has 32 KB of its
    own (`MAX_LEDGER`), both counted in UTF-8 as cdo writes YAML; of a block beyond both together nothing is read.
    """

    inner: SynthesisFormat
    ledger: Hypotheses = Hypotheses()
    name: str = "synthesis"

    def parse(self, text: str) -> CaseDirective:
        """Return the directive with its hypotheses; raise `InvalidReply` with everything that is wrong."""
        too_long(text)
        rest, reported = _split(unwrap(text))
        if (size := _size(reported)) > MAX_LEDGER:
            raise InvalidReply([f"`hypotheses` has {size} bytes, at most {MAX_LEDGER} are read: {SHORTER}."])
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
            if wish.id in kept or self.ledger.problems([wish]):
                added.append(f"hypothesis {wish.id} as it stood")
            else:
                kept[wish.id] = wish
        mended = self.inner.repair(rest)
        if mended is None:
            return None
        found = [wish.model_dump(mode="json", exclude_defaults=True) for wish in list(kept.values())[:MOST]]
        while _size(found) > MAX_LEDGER:
            added.append(f"hypothesis {found.pop()['id']} as it stood")
        whole = _edited(mended[0], found)
        try:
            self.parse(whole)
        except InvalidReply:
            return None
        return whole, (*mended[1], *dict.fromkeys(added))

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
