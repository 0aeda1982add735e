"""The deliberation loop as a pure program (seed 004 section 4, SPEC 5).

compose → voices → synthesis → directive → adapt, until the record converges; then FINAL.md. The program sees
only validated data blocks: every text reaches the models through the artifacts that a call `reads`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, cast

from cdo import convergence
from cdo.convergence import Record, Tension, Verdict
from cdo.final import Dissent, FinalFormat
from cdo.plan import Plan, seats
from cdo.protocol import AgentData, AgentFormat, Directive, SynthesisFormat
from cdo.types import Batch, Call, Fault, Pause, Program, Reply

INPUT, CONTEXT = "00-input", "00-context"
GO_ON, FINISH = "go on with a referee", "finish now"
CLAIMS = 24  # of a turn that a refuter is given
GAPS = 24  # named before, that a synthesiser is reminded of


@dataclass(frozen=True)
class Outcome:
    """How a run ended; everything FINAL.md's head needs and the models did not write.

    `missing` are (turn, role, reason); `added` what cdo had to complete; `flags` what a reader should know.
    """

    status: str
    why: str
    confidence: float
    turns: int
    missing: tuple[tuple[int, str, str], ...]
    open_tensions: tuple[str, ...]
    dissents: tuple[str, ...]
    added: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def degraded(self) -> bool:
        """Whether a voice is missing or cdo had to complete what a model left out."""
        return bool(self.missing or self.added)


@dataclass(frozen=True)
class Voice:
    """A seat of one turn: `name` is unique in the turn, `role` names the method, `wish` may carry a charge."""

    name: str
    role: str
    seat: int
    charge: str = ""


@dataclass(frozen=True)
class Needs:
    """What the turn before calls for beside the directive's roles."""

    refuter: bool = False
    referee: str = ""


def deliberate(plan: Plan) -> Program[Outcome]:
    """Run a plan to its outcome: yields batches of calls and pauses, receives validated replies."""
    record, needs, heard = Record(), Needs(), False
    missing: list[tuple[int, str, str]] = []
    added: list[str] = []
    flags: list[str] = []
    claims: tuple[str, ...] = ()
    while True:
        turn = len(record.turns) + 1
        voices = compose(plan, record, needs)
        replies = _replies((yield _voices(plan, turn, voices, record, needs, claims)))
        present = [(voice, reply) for voice, reply in zip(voices, replies, strict=True) if not reply.missing]
        absent = [(voice, reply) for voice, reply in zip(voices, replies, strict=True) if reply.missing]
        missing += [(turn, voice.name, reply.reason) for voice, reply in absent]
        (synthesis,) = _replies((yield _synthesis(plan, turn, record, present, absent)))
        added += [f"turn {turn}: {item}" for item in synthesis.added]
        directive = cast(Directive, synthesis.data)
        record = record.after(directive, _dissents(present))
        claims = _claims(present)

        conflict = convergence.conflict(record, plan.criteria)
        suspicious = convergence.suspicious(record, plan.criteria)
        if suspicious:
            flags.append(f"turn {turn}: agreement {directive.agreement:.0%} was flagged")
        if conflict:
            flags.append(f"turn {turn}: conflict: {conflict}")
        ending = convergence.verdict(record, plan.turns, plan.criteria, unheard=bool(conflict) and not heard)
        heard = bool(conflict)
        if conflict and not ending:
            question = f"Turn {turn} ended in a conflict: {conflict}."
            answer = yield Pause(f"t{turn}-conflict", question, (GO_ON, FINISH), GO_ON)
            if answer == FINISH:
                ending = Verdict("stopped", "you asked for the result")
        if ending:
            break
        needs = Needs(refuter=suspicious, referee=conflict)

    (final,) = _replies((yield _final(plan, record, ending, present, missing)))
    return Outcome(
        status=ending.status,
        why=ending.why,
        confidence=directive.confidence,
        turns=turn,
        missing=tuple(missing),
        open_tensions=tuple(f"{item.id}: {item.title}" for item in record.open),
        dissents=tuple(f"{item.role}/{item.id}: {item.text}" for item in record.turns[-1].objections),
        added=(*added, *final.added),
        flags=tuple(flags),
    )


def _replies(answer: Any) -> tuple[Reply, ...]:
    return cast("tuple[Reply, ...]", answer)


def compose(plan: Plan, record: Record, needs: Needs) -> list[Voice]:
    """Seat the next turn: the plan's roles for the first, then what the last directive asks for.

    Not adaptive: the first turn's width stays. Adaptive: the directive's width, kept within the band. Where it
    names fewer roles, the plan's fill the seats; where it names more, the first ones sit. A refuter and a referee
    take seats of their own where the band allows it, else the last ones.
    """
    if not record.turns:
        return [Voice(*seat) for seat in seats(plan.roles, plan.known_roles, plan.start)]
    directive = record.turns[-1].directive
    low, high = plan.width if plan.adaptive else (plan.start, plan.start)
    extra = [
        *(["referee"] if needs.referee else []),
        *(["refuter"] if needs.refuter else []),
    ][: max(1, high - 1)]
    width = min(max(directive.width, low), high)
    width = min(high, width + len(extra)) if plan.adaptive else width
    extra = extra[:width]
    charges = {wish.name: wish.charge for wish in directive.roles}
    wanted = [role for role in charges if role not in extra]
    if "referee" in extra:
        charges["referee"] = needs.referee
    regular = seats(wanted, [*plan.roles, *plan.known_roles], width - len(extra))
    return [Voice(*seat, charges.get(seat[1], "")) for seat in [*regular, *((role, role, 1) for role in extra)]]


def _models(plan: Plan, index: int) -> tuple[str, ...]:
    """Seats take the models in turn."""
    return (plan.models[index % len(plan.models)],)


def _ledger(tensions: Sequence[Tension]) -> list[dict[str, Any]]:
    return [{"id": item.id, "title": item.title, "status": item.status, "since": item.since} for item in tensions]


def _missing(reason: str) -> str:
    """Why a voice is missing, without the words of a provider: they would tell which one it was."""
    fault = reason.partition(":")[0]
    return fault if fault in tuple(Fault) else "no answer"


def _voices(
    plan: Plan, turn: int, voices: Sequence[Voice], record: Record, needs: Needs, claims: tuple[str, ...]
) -> Batch:
    """One call a voice. A refuter comes fresh: it sees the question and the claims, not the synthesis.

    Of the ledger a voice is shown what is open, so that briefs do not grow with the turns.
    """
    previous = f"t{turn - 1}-synthesis" if turn > 1 else ""
    calls = []
    for index, voice in enumerate(voices):
        fresh = voice.role == "refuter"
        data = {
            "turn": turn,
            "focus": record.turns[-1].directive.focus if record.turns else "",
            "tensions": [] if fresh else _ledger(record.open),
            "settled": [] if fresh else [item.id for item in record.ledger if item.status != "open"],
            "previous": "" if fresh else previous,
            "role": voice.role,
            "seat": voice.seat,
            "charge": voice.charge,
            "claims": list(claims) if fresh else [],
        }
        reads = (INPUT, CONTEXT, *([previous] if previous and not fresh else []))
        calls.append(
            Call(
                f"t{turn}-{voice.name}",
                "agent",
                "templates/agent-brief",
                AgentFormat(),
                _models(plan, index),
                data,
                reads,
            )
        )
    return Batch(tuple(calls), quorum=max(1, -(-len(calls) // 2)))


def _synthesis(
    plan: Plan,
    turn: int,
    record: Record,
    present: Sequence[tuple[Voice, Reply]],
    absent: Sequence[tuple[Voice, Reply]],
) -> Batch:
    """The synthesis reads every voice under its role and charge, in an order that changes by turn."""
    previous = f"t{turn - 1}-synthesis" if turn > 1 else ""
    shown = rotated(sorted(present, key=lambda pair: pair[0].name), turn)
    width = plan.width if plan.adaptive else (plan.start, plan.start)
    data = {
        "turn": turn,
        "max_turns": plan.turns[1],
        "previous": previous,
        "voices": [{"name": voice.name, "charge": voice.charge, "artifact": reply.call} for voice, reply in shown],
        "missing": [{"role": voice.name, "reason": _missing(reply.reason)} for voice, reply in absent],
        "tensions": _ledger(record.ledger),
        "gaps": [gap for earlier in record.turns for gap in earlier.new_gaps][-GAPS:],
        "width": list(width),
        "roles": [voice.role for voice, _ in present][:4],
        "known_roles": list(plan.known_roles),
        "criteria": plan.criteria.model_dump(include={"exit_confidence", "agreement_flag"}),
    }
    reads = (INPUT, *([previous] if previous else []), *(reply.call for _, reply in shown))
    shape = SynthesisFormat(width=width, roles=plan.known_roles)
    call = Call(f"t{turn}-synthesis", "synthesis", "engine/synthesis-protocol", shape, plan.models, data, reads)
    return Batch((call,))


def _final(
    plan: Plan,
    record: Record,
    ending: Verdict,
    present: Sequence[tuple[Voice, Reply]],
    missing: Sequence[tuple[int, str, str]],
) -> Batch:
    """FINAL.md, held to the whole ledger and to every objection of the last turn."""
    turn = len(record.turns)
    dissents = record.turns[-1].objections
    shown = rotated(sorted(present, key=lambda pair: pair[0].name), turn + 1)
    data = {
        "turn": turn,
        "why": ending.why,
        "last": f"t{turn}-synthesis",
        "confidence": record.turns[-1].directive.confidence,
        "voices": [{"name": voice.name, "artifact": reply.call} for voice, reply in shown],
        "tensions": _ledger(record.ledger),
        "dissents": [{"id": d.id, "role": d.role, "text": d.text, "severity": d.severity} for d in dissents],
        "missing": [{"turn": number, "role": role, "reason": _missing(reason)} for number, role, reason in missing],
    }
    reads = (INPUT, f"t{turn}-synthesis", *(reply.call for _, reply in shown))
    shape = FinalFormat(tuple((item.id, item.title, item.status) for item in record.ledger), dissents)
    call = Call(
        "final", "final", "engine/final-protocol", shape, plan.models, data, reads, file="FINAL", deferred=True
    )
    return Batch((call,))


def _dissents(present: Sequence[tuple[Voice, Reply]]) -> tuple[Dissent, ...]:
    return tuple(
        Dissent(item.id, voice.name, item.text, item.severity)
        for voice, reply in present
        for item in cast(AgentData, reply.data).objections
    )


def _claims(present: Sequence[tuple[Voice, Reply]]) -> tuple[str, ...]:
    """The claims of a turn for its refuter: each voice's first one, then each one's second, …"""
    ranks = zip_longest(*(cast(AgentData, reply.data).claims for _, reply in present))
    return tuple(claim.text for claim in chain.from_iterable(ranks) if claim)[:CLAIMS]


def rotated(items: Sequence[Any], turn: int) -> list[Any]:
    """The same items, starting elsewhere each turn, so that no voice is always read first."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]
