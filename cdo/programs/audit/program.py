"""An audit of the chair as a pure program: the same replies summed up by other models and in other orders.

Who sums up a deliberation is a single point of failure. The voices' last replies are frozen; another chair writes
synthesis and final answer from them, and a reader who is not told which is which says, asked twice with the two
swapped, whether both decide the same. Code counts these words, and compares what needs no judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cdo.core.errors import SessionError
from cdo.core.formatting import one_line, pluralise
from cdo.core.steps import INPUT, Batch, Call, Collect, Program, Reply
from cdo.formats import gbnf
from cdo.formats.fields import Line, Strings, Tolerant
from cdo.formats.final_answer import FinalFormat
from cdo.formats.voice import Directive, SynthesisFormat, head
from cdo.planning.plan import Plan
from cdo.programs.deliberation.calls import ledger
from cdo.programs.deliberation.conclusion import Outcome
from cdo.programs.deliberation.convergence import Record, Tension, bounded
from cdo.session.artifact import confidence_word

BRIEF, FOLDER = "audit", "brief"  # the collection that holds the order, and where nobody leaves anything
DECISION = "00-final"  # the frozen result
ANEW = "Begin a new one: cdo audit SESSION."
PROTOCOL = "engine/audit-protocol"
CLOSED = "the record is closed"  # why the loop ended, for a chair who must not know what the first one thought
SURVIVES, CHANGED, UNCLEAR, LACKING = "survives", "changed", "unclear", "not audited"


# -- what is audited -------------------------------------------------------------------------------


class SourceCall(BaseModel):
    """One call of the source: the document that worded it, its variables, and what it read, all by frozen names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: str
    data: dict[str, Any]
    reads: tuple[Annotated[str, Field(pattern=r"^00-[A-Za-z0-9-]+$")], ...]


class AuditBrief(BaseModel):
    """What an audit begins with.

    `source` is the session; `models` those of its chair; `orders` in which the voices are read, by the names of
    their seats, and `first` the order in which its chair read them. `synthesis` and `final` are its last calls of
    these kinds; `confidence`, `exit_ready` and `tensions` (id, title, status) what came of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        """The ledger before the turn that is summed up."""
        return tuple(Tension(**item) for item in self.synthesis.data.get("tensions", ()))

    @property
    def findings(self) -> tuple[tuple[str, str], ...]:
        """(id, text) of the findings of the first rank, which every final answer must hold."""
        return tuple((item["id"], item["text"]) for item in self.final.data.get("findings", ()) if item["rank"] == 1)


@dataclass(frozen=True)
class BriefFormat:
    """The brief as it is recorded: JSON."""

    def parse(self, text: str) -> AuditBrief:
        """Parse the brief; raise `SessionError`, not `InvalidReply`: a program wrote it, and no person can fix it."""
        try:
            return AuditBrief.model_validate_json(text)
        except ValidationError as error:
            why = one_line(error.errors()[0]["msg"])
            raise SessionError(f"The brief of this audit cannot be read: {why}.", ANEW) from None


def orders(first: Sequence[str], wanted: int) -> tuple[tuple[str, ...], ...]:
    """At most `wanted` orders of the voices that differ from the `first` and from each other.

    The last one first, then where each in turn begins: whoever was read first or last no longer is.
    """
    turned = tuple(reversed(first))
    places = range(len(first))
    every = [turned, *(order for at in places for order in (_from(first, at), _from(turned, at)))]
    return tuple(order for order in dict.fromkeys(every) if order != tuple(first))[:wanted]


def _from(order: Sequence[str], at: int) -> tuple[str, ...]:
    return (*order[at:], *order[:at])


def frozen_name(name: str) -> str:
    """The name under which an audit keeps a file of its source that its chair reads."""
    return name if name.startswith("00-") else f"00-{name.replace('/', '-')}"


def freeze(call: Call) -> SourceCall:
    """A call with every file it names under its frozen name."""
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
    """What YAML or a model made of yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.strip().lower() if isinstance(value, str) else value


class DecisionComparison(Tolerant):
    """Whether two results decide the same, and where not."""

    same: Annotated[Literal["yes", "no", "partly"], BeforeValidator(_plain)]
    differences: Strings = ()
    why: Line


@dataclass(frozen=True)
class ComparisonFormat:
    """A comparison: front matter (`Comparison`), then prose."""

    name: str = "comparison"

    def parse(self, text: str) -> DecisionComparison:
        """Return the front matter; raise `InvalidReply`."""
        return head(DecisionComparison, text)

    def repair(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """Nothing: a comparison that cannot be read says nothing."""
        return None

    def grammar(self) -> str:
        """Front matter with at most one difference, then a little prose."""
        return gbnf.grammar(
            {
                "root": '"---\\nsame: " same "\\ndifferences: [" quoted? "]\\nwhy: " quoted "\\n---\\n\\n" prose',
                "same": gbnf.choice(["yes", "no", "partly"]),
                "quoted": gbnf.quoted(12, 160),
                "prose": gbnf.text(40, 300),
            }
        )


# -- the program -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """One chair of the audit: its number from 1, its `model`, the order it reads in, and what came of it."""

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
        """It survives or changed where both comparisons say so; else it is unclear; not audited without an answer."""
        if self.failed:
            return LACKING
        said = [comparison.same if comparison else "" for comparison in self.comparisons]
        return SURVIVES if set(said) == {"yes"} else CHANGED if set(said) == {"no"} else UNCLEAR


def program(plan: Plan) -> Program[Audited]:
    """Audit what the brief holds with the plan's models in turn; raise `SessionError` without a brief."""
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
    # The record shows voices of earlier turns, too: they keep their places behind those that are read in an order.
    return sorted(voices, key=lambda voice: order.index(voice["name"]) if voice["name"] in order else len(order))


def _summed(brief: AuditBrief, plan: Plan, chair: Order, reply: Reply) -> Order:
    """A chair with its synthesis, its ledger, and the confidence that the facts on record leave of its own."""
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
    """The final answer from this chair's own synthesis; of the first chair's nothing is told."""
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
    """The two comparisons of a chair's answer with the frozen one, each as A once."""
    results = (DECISION, f"t{chair.number}-final")
    return [
        Call(
            f"t{chair.number}-comparison-{number}", "comparison", PROTOCOL, ComparisonFormat(), (chair.judge,),
            {"a": a, "b": b}, (INPUT, a, b),
        )
        for number, (a, b) in enumerate((results, results[::-1]), 1)
    ]  # fmt: skip


# -- the outcome -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audited(Outcome):
    """How an audit ended: `brief` is what was audited, `chairs` what each order came to."""

    brief: AuditBrief | None = None
    chairs: tuple[Order, ...] = ()


def _outcome(brief: AuditBrief, chairs: Sequence[Order]) -> Audited:
    """One order that changes the decision changes the audit: then it depends on who sums up, or in which order."""
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
