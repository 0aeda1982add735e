"""Audits the chair of a run, the model that summed it up: other models sum up the same replies in other orders. Pure.

The chair is a single point of failure. The voices' last replies are frozen, and another chair writes a synthesis and
a final answer from them. A reader then says whether the old and the new answer decide the same. The reader is not
told which is which, and is asked twice with the two swapped. Code counts these verdicts, and compares what needs no
judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from pydantic import BeforeValidator

from cdo.core.errors import SessionError
from cdo.core.formatting import one_line, pluralise
from cdo.core.schema import Schema
from cdo.core.steps import INPUT, Batch, Call, Collect, Program, Reply
from cdo.formats import gbnf
from cdo.formats.blocks import Line, Strings, Tolerant
from cdo.formats.final_answer import FinalFormat
from cdo.formats.lenient.layout import ReplyLayout
from cdo.formats.voice import SynthesisFormat, head
from cdo.formats.voice_blocks import Directive
from cdo.planning.plan import Plan
from cdo.programs.deliberation.calls import ledger
from cdo.programs.deliberation.conclusion import Outcome
from cdo.programs.deliberation.convergence import Record, Tension, bounded
from cdo.session.artifact import confidence_word

BRIEF, FOLDER = "audit", "brief"  # the collection with the brief, and its folder, which no person uses
DECISION = "00-final"  # the frozen result
ANEW = "Begin a new one: cdo audit SESSION."
PROTOCOL = "engine/audit-protocol"
CLOSED = "the record is closed"  # why the loop ended; a chair must not learn the first chair's reason
SURVIVES, CHANGED, UNCLEAR, LACKING = "survives", "changed", "unclear", "not audited"


# -- what is audited -------------------------------------------------------------------------------


class SourceCall(Schema, frozen=True, kw_only=True):
    """One call of the audited session: its template, its variables and the artifacts it read, by frozen names."""

    template: str
    data: dict[str, Any]
    reads: tuple[Annotated[str, Meta(pattern=r"^00-[A-Za-z0-9-]+\Z")], ...]


class AuditBrief(Schema, frozen=True, kw_only=True):
    """The input of an audit.

    `source` is the audited session, `models` are the models of its chair. `first` is the order in which that chair
    read the voices, by the names of their seats; `orders` are the orders of the audit. `synthesis` and `final` are
    the session's last calls of these kinds; `confidence`, `exit_ready` and `tensions` (id, title, status) are the
    results.
    """

    source: str
    models: tuple[str, ...]
    first: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    synthesis: SourceCall
    final: SourceCall
    confidence: float | None
    exit_ready: bool
    tensions: tuple[tuple[str, str, str], ...]

    @property
    def before(self) -> tuple[Tension, ...]:
        """The ledger of tensions before the turn that is summed up."""
        return tuple(Tension(**item) for item in self.synthesis.data.get("tensions", ()))

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """(id, text) of the findings of the first rank, which every final answer must contain."""
        return tuple((item["id"], item["text"]) for item in self.final.data.get("findings", ()) if item["rank"] == 1)


class BriefFormat(Struct, frozen=True):
    """The brief as it is recorded: JSON."""

    def parse(self, text: str) -> AuditBrief:
        """Parse the brief; raise `SessionError`, not `InvalidReply`: a program wrote it, and no person can fix it."""
        try:
            return msgspec.json.decode(text, type=AuditBrief)
        except msgspec.DecodeError as error:
            why = one_line(str(error))
            raise SessionError(f"The brief of this audit cannot be read: {why}.", ANEW) from None


def orders(first: Sequence[str], wanted: int) -> tuple[tuple[str, ...], ...]:
    """Return at most `wanted` orders of the voices that differ from `first` and from each other.

    The reversed order comes first, then rotations of both, so that other voices are read first and last.
    """
    turned = tuple(reversed(first))
    places = range(len(first))
    every = [turned, *(order for at in places for order in (_from(first, at), _from(turned, at)))]
    return tuple(order for order in dict.fromkeys(every) if order != tuple(first))[:wanted]


def _from(order: Sequence[str], at: int) -> tuple[str, ...]:
    return (*order[at:], *order[:at])


def frozen_name(name: str) -> str:
    """Return the name under which an audit keeps a file of its source for its chair."""
    return name if name.startswith("00-") else f"00-{name.replace('/', '-')}"


def freeze(call: Call) -> SourceCall:
    """Return a call in which every file has its frozen name."""
    names = {name: frozen_name(name) for name in call.reads}
    return SourceCall(template=call.template, data=_renamed(dict(call.data), names), reads=tuple(names.values()))


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, Mapping):
        return {key: _renamed(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(item, names) for item in value]
    return value


# -- the comparison --------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return yes or no as plain text: YAML may read them as booleans, and a model may write them in capitals."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.strip().lower() if isinstance(value, str) else value


class DecisionComparison(Tolerant):
    """A reader's statement on whether two results decide the same, and where they differ."""

    same: Annotated[Literal["yes", "no", "partly"], BeforeValidator(_plain)]
    differences: Strings = ()
    why: Line


class ComparisonFormat(Struct, frozen=True):
    """A comparison: front matter (`DecisionComparison`), then prose."""

    name: str = "comparison"

    @property
    def layout(self) -> ReplyLayout:
        """The arrangement of the reply, for reading it leniently."""
        return ReplyLayout("front matter", (DecisionComparison,))

    def parse(self, text: str) -> DecisionComparison:
        """Return the front matter; raise `InvalidReply`."""
        return head(DecisionComparison, text)

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Return None: a comparison that cannot be read is a missing comparison."""
        return None

    def grammar(self) -> str:
        """Return a grammar of front matter with at most one difference, then a little prose."""
        return gbnf.grammar(
            {
                "root": '"---\\nsame: " same "\\ndifferences: [" quoted? "]\\nwhy: " quoted "\\n---\\n\\n" prose',
                "same": gbnf.choice(["yes", "no", "partly"]),
                "quoted": gbnf.quoted(12, 160),
                "prose": gbnf.text(40, 300),
            }
        )


# -- the program -----------------------------------------------------------------------------------


class Order(Struct, frozen=True):
    """One chair of the audit: its number from 1, its `model`, the order in which it reads, and its results.

    `judge` is the model that compares its answer. `failed` is the reason if a call failed, else "".
    """

    number: int
    model: str
    judge: str
    voices: tuple[str, ...]
    directive: Directive | None = None
    ledger: tuple[Tension, ...] = ()
    confidence: float | None = None
    failed: str = ""
    comparisons: tuple[DecisionComparison | None, ...] = ()

    @property
    def verdict(self) -> str:
        """`SURVIVES` or `CHANGED` if both comparisons say so, else `UNCLEAR`; `LACKING` if there is no answer."""
        if self.failed:
            return LACKING
        said = [comparison.same if comparison else "" for comparison in self.comparisons]
        return SURVIVES if set(said) == {"yes"} else CHANGED if set(said) == {"no"} else UNCLEAR


def program(plan: Plan) -> Program[Audited]:
    """Audit the brief's session with the plan's models in turn; raise `SessionError` if there is no brief."""
    briefs = cast("tuple[AuditBrief, ...]", (yield Collect(BRIEF, FOLDER, BriefFormat())))
    if not briefs:
        raise SessionError("This audit has no brief.", ANEW)
    brief, models = briefs[0], plan.models
    chairs = [
        Order(number, models[(number - 1) % len(models)], models[number % len(models)], voices)
        for number, voices in enumerate(brief.orders, 1)
    ]
    replies = yield Batch(tuple(_synthesis(brief, chair) for chair in chairs))
    chairs = [_summed(brief, plan, *pair) for pair in zip(chairs, replies, strict=True)]
    replies = yield Batch(tuple(_final(brief, chair) for chair in chairs if not chair.failed))
    answers = iter(cast("tuple[Reply, ...]", replies))
    chairs = [chair if chair.failed else _failing(chair, next(answers)) for chair in chairs]
    replies = yield Batch(tuple(call for chair in chairs if not chair.failed for call in _comparisons(chair)))
    answers = iter(cast("tuple[Reply, ...]", replies))
    chairs = [
        chair if chair.failed else replace(chair, comparisons=(next(answers).data, next(answers).data))
        for chair in chairs
    ]
    return _outcome(brief, chairs)


def _synthesis(brief: AuditBrief, chair: Order) -> Call:
    data = {**brief.synthesis.data, "voices": _ordered(brief.synthesis.data["voices"], chair.voices)}
    voices = tuple(voice["name"] for voice in data["voices"])
    form = SynthesisFormat(tuple(data["width"]), tuple(data["known_roles"]), voices)
    name = f"t{chair.number}-synthesis"
    return Call(name, "synthesis", brief.synthesis.template, form, (chair.model,), data, brief.synthesis.reads)


def _ordered(voices: Sequence[Mapping[str, Any]], order: Sequence[str]) -> list[Any]:
    # The record also shows voices of earlier turns: they keep their places behind the voices of `order`.
    return sorted(voices, key=lambda voice: order.index(voice["name"]) if voice["name"] in order else len(order))


def _summed(brief: AuditBrief, plan: Plan, chair: Order, reply: Reply) -> Order:
    """Return the chair with its synthesis, its ledger, and its confidence as bounded by facts on record."""
    if reply.missing:
        return replace(chair, failed=str(reply.reason))
    directive, data = cast(Directive, reply.data), brief.final.data
    turn, known = data["turn"], {item.id for item in brief.before}
    record = Record(ledger=brief.before).after(directive, ())
    found = tuple(item if item.id in known else replace(item, since=turn) for item in record.ledger)
    confidence, _ = bounded(
        directive.confidence,
        plan.bounds,
        open_tensions=len(record.open),
        missing=sum(item["turn"] == turn for item in data["missing"]),
        verified=data["verified"],
        unverified=len(data["unverified"]),
    )
    return replace(chair, directive=directive, ledger=found, confidence=confidence)


def _final(brief: AuditBrief, chair: Order) -> Call:
    """Return the call for the final answer from this chair's own synthesis; the first chair's is not shown."""
    old, last = brief.final, f"t{chair.number}-synthesis"
    reads = tuple(last if name == old.data["last"] else name for name in old.reads)
    outside = tuple(item for item in chair.ledger if item.status == "outside")
    data = {
        **_renamed(old.data, {old.data["last"]: last}),
        "why": CLOSED,
        "confidence": f"{chair.confidence or 0.0:.2f}",
        "word": confidence_word(chair.confidence or 0.0),
        "bounded_by": "",
        "enough": False,
        "voices": _ordered(old.data["voices"], chair.voices),
        "tensions": ledger(chair.ledger),
        "outside": ledger(outside),
    }
    form = FinalFormat(brief.findings, tuple((item.id, item.title) for item in outside))
    return Call(f"t{chair.number}-final", "final", old.template, form, (chair.model,), data, reads)


def _failing(chair: Order, reply: Reply) -> Order:
    return replace(chair, failed=str(reply.reason)) if reply.missing else chair


def _comparisons(chair: Order) -> list[Call]:
    """Return two calls that compare a chair's answer with the frozen one; each of the two answers is A once."""
    results = (DECISION, f"t{chair.number}-final")
    return [
        Call(
            f"t{chair.number}-comparison-{number}", "comparison", PROTOCOL, ComparisonFormat(), (chair.judge,),
            {"a": a, "b": b}, (INPUT, a, b),
        )
        for number, (a, b) in enumerate((results, results[::-1]), 1)
    ]  # fmt: skip


# -- the outcome -----------------------------------------------------------------------------------


class Audited(Outcome, frozen=True):
    """The outcome of an audit: `brief` is its input, `chairs` are the results of the orders."""

    brief: AuditBrief | None = None
    chairs: tuple[Order, ...] = ()


def _outcome(brief: AuditBrief, chairs: Sequence[Order]) -> Audited:
    """Return the outcome: `CHANGED` if any order changes the decision, which then depends on model or order."""
    verdicts = [chair.verdict for chair in chairs]
    status = CHANGED if CHANGED in verdicts else SURVIVES if set(verdicts) == {SURVIVES} else UNCLEAR
    counts = [f"{verdicts.count(name)} {name}" for name in (CHANGED, UNCLEAR, LACKING) if name in verdicts]
    why = f"it survives {verdicts.count(SURVIVES)} of {pluralise(len(verdicts), 'order')}"
    confidences = [chair.confidence for chair in chairs if chair.confidence is not None and not chair.failed]
    return Audited(
        status=status,
        why=", ".join([why, *counts]),
        confidence=min(confidences, default=0.0),
        turns=len(chairs),
        flags=tuple(
            f"order {chair.number} was not audited: {one_line(chair.failed)}" for chair in chairs if chair.failed
        ),
        brief=brief,
        chairs=tuple(chairs),
    )
