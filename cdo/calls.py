"""The calls of one turn: what its voices and its synthesiser are given to read and are told. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cdo.convergence import Record, Tension
from cdo.plan import Plan
from cdo.protocol import AgentFormat, Note, SynthesisFormat
from cdo.skills import SkillCard
from cdo.team import Team
from cdo.types import Batch, Call, Fault, Reply, ReplyFormat

INPUT, CONTEXT = "00-input", "00-context"
GAPS = 24  # named before, that a synthesiser is reminded of
FRESH = frozenset({"refuter"})  # roles that come without what was found before, and are on no team


@dataclass(frozen=True)
class Voice:
    """A seat of one turn: `name` is unique in the turn, `role` names the method, `charge` what it is to do beyond it.

    `wishes` are the skills asked for; `skills` those it was given. `model` is set where a person chose one.
    """

    name: str
    role: str
    seat: int = 1
    charge: str = ""
    wishes: tuple[str, ...] = ()
    skills: tuple[SkillCard, ...] = ()
    model: str = ""


@dataclass(frozen=True)
class Shape:
    """How the turns of a program are worded and checked; the defaults are those of a deliberation.

    `brief` and `own` add to the data of each voice's brief (`own` by voice), `sums` to the synthesiser's. A voice
    of `fresh` comes without what was found before: it sees the question and the claims alone.
    """

    template: str = "templates/agent-brief"
    format: ReplyFormat = field(default_factory=AgentFormat)
    synthesis: str = "engine/synthesis-protocol"
    directive: Callable[[tuple[int, int], tuple[str, ...]], ReplyFormat] = SynthesisFormat
    brief: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sums: Mapping[str, Any] = field(default_factory=dict)
    include: Mapping[str, str] = field(default_factory=dict)
    fresh: frozenset[str] = FRESH


class Known(Protocol):
    """What calls are made of: as much of a run's course as they tell."""

    @property
    def plan(self) -> Plan: ...
    @property
    def record(self) -> Record: ...
    @property
    def team(self) -> Team: ...
    @property
    def focus(self) -> str: ...
    @property
    def note(self) -> str: ...
    @property
    def turn(self) -> int: ...
    @property
    def previous(self) -> str: ...
    def band(self) -> tuple[int, int]: ...
    def said_to(self, name: str) -> list[Note]: ...


# -- voices ----------------------------------------------------------------------------------------


def of_voices(known: Known, voices: Sequence[Voice], shape: Shape, claims: Sequence[str]) -> Batch:
    """One call a voice, of which half must be answered; seats take the models in turn. `claims` are for refuters."""
    plan = known.plan
    calls = tuple(
        Call(
            f"t{known.turn}-{voice.name}",
            "agent",
            shape.template,
            shape.format,
            (voice.model or plan.models[index % len(plan.models)],),
            _brief(known, voice, shape, claims),
            _reads(known, voice, shape),
            tools=plan.tools is not None,
            thread=voice.name if plan.team and voice.role not in shape.fresh else "",
        )
        for index, voice in enumerate(voices)
    )
    return Batch(calls, quorum=max(1, -(-len(calls) // 2)))


def _brief(known: Known, voice: Voice, shape: Shape, claims: Sequence[str]) -> dict[str, Any]:
    """What a voice is told. Of the ledger it is shown what is open, so that briefs do not grow with turns."""
    plan, fresh = known.plan, voice.role in shape.fresh
    data = {
        "turn": known.turn,
        "focus": known.focus,
        "note": known.note,
        "tensions": [] if fresh else ledger(known.record.open),
        "settled": [] if fresh else [item.id for item in known.record.ledger if item.status != "open"],
        "previous": "" if fresh else known.previous,
        "role": voice.role,
        "seat": voice.seat,
        "charge": voice.charge,
        "claims": list(claims) if fresh else [],
        "messages": [],
        "skills": [{"name": card.name, "description": card.description} for card in voice.skills],
        "tools": {"requests": plan.tools[0], "rounds": plan.tools[1]} if plan.tools else None,
        **shape.brief,
        **shape.own.get(voice.name, {}),
    }
    if plan.team and not fresh:
        data |= {**known.team.brief(voice.name, known.turn), "mine": known.team.last(voice.name)}
    elif notes := known.said_to(voice.name):
        data["messages"] = [{"id": "", "from": "human", "text": note.text} for note in notes]
    if include := {**_included(plan, voice, fresh), **shape.include}:
        data["include"] = include
    if domain := _domain(plan):
        data["domain"] = domain
    return data


def _reads(known: Known, voice: Voice, shape: Shape) -> tuple[str, ...]:
    """The artifacts that a voice is given whole."""
    fresh = voice.role in shape.fresh
    reads = [INPUT, CONTEXT, *([known.previous] if known.previous and not fresh else [])]
    reads += [f"skills/{card.name}" for card in voice.skills]
    if known.plan.team and not fresh and (mine := known.team.last(voice.name)):
        reads.append(mine)
    return tuple(reads)


def _included(plan: Plan, voice: Voice, fresh: bool) -> dict[str, str]:
    """The documents that this voice's brief needs beside its own."""
    return {
        **({"domain": plan.domain_file} if plan.domain_file else {}),
        **({"skills": "dispatch/skill-injection"} if voice.skills else {}),
        **({"team": "dispatch/team-mode"} if plan.team and not fresh else {}),
    }


def _domain(plan: Plan) -> dict[str, Any]:
    """What the document of the domain is worded with; {} without a domain."""
    if not plan.domain_file:
        return {}
    tag = plan.domain or ""
    tagged = [card for card in plan.skills if tag in card.tags]
    listed = [{"name": card.name, "description": card.description} for card in tagged]
    return {"tag": tag, "skills": listed, "integration": list(plan.integration)}


# -- synthesis -------------------------------------------------------------------------------------


def of_synthesis(
    known: Known,
    present: Sequence[tuple[Voice, Reply]],
    absent: Sequence[tuple[Voice, Reply]],
    shape: Shape,
    makers: int,
) -> Batch:
    """The synthesis reads every voice under its role and charge, in an order that changes by turn.

    `makers` is how many vendors stand behind the voices; one that nobody knows may be any of the others.
    """
    plan, turn = known.plan, known.turn
    shown = rotated(sorted(present, key=lambda pair: pair[0].name), turn)
    data = {
        "turn": turn,
        "max_turns": plan.turns[1],
        "previous": known.previous,
        "voices": [{"name": voice.name, "charge": voice.charge, "artifact": reply.call} for voice, reply in shown],
        "missing": [{"role": voice.name, "reason": why_missing(reply.reason)} for voice, reply in absent],
        "tensions": ledger(known.record.ledger),
        "gaps": [gap for earlier in known.record.turns for gap in earlier.new_gaps][-GAPS:],
        "width": list(known.band()),
        "roles": [voice.role for voice, _ in present][:4],
        "known_roles": list(plan.known_roles),
        "criteria": plan.criteria.model_dump(include={"exit_confidence", "agreement_flag"}),
        "note": known.note,
        "skills": [card.name for card in plan.skills][:40],
        "team": [name for name, mate in known.team.mates.items() if mate.state != "stopped"],
        "checked": any(reply.findings for _, reply in present),
        **shape.sums,
    }
    if "lev-exec" in plan.modifiers:
        include = {"vendors": "dispatch/multi-model", **data.get("include", {})}
        data |= {"include": include, "vendors": makers}
    reads = (INPUT, *([known.previous] if known.previous else []), *(reply.call for _, reply in shown))
    form = shape.directive(known.band(), plan.known_roles)
    return Batch((Call(f"t{turn}-synthesis", "synthesis", shape.synthesis, form, plan.models, data, reads),))


# -- parts -----------------------------------------------------------------------------------------


def ledger(tensions: Sequence[Tension]) -> list[dict[str, Any]]:
    """Tensions as the data of a call."""
    return [{"id": item.id, "title": item.title, "status": item.status, "since": item.since} for item in tensions]


def why_missing(reason: str) -> str:
    """Why a voice is missing, without the words of a provider: they would tell which one it was."""
    fault = reason.partition(":")[0]
    return fault if fault in tuple(Fault) else "no answer"


def rotated(items: Sequence[Any], turn: int) -> list[Any]:
    """The same items, starting elsewhere each turn, so that no voice is always read first."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]
