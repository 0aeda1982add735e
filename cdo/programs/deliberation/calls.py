"""Builds the calls of one turn: what its voices and its synthesiser are told and given to read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field
from msgspec.structs import asdict

from cdo.content.skill_ranking import SkillCard
from cdo.core.exchange import Effort, Fault
from cdo.core.people import person_of
from cdo.core.steps import CONTEXT, INPUT, Batch, Call, Missing, Reply, ReplyFormat
from cdo.formats.person_reply import PersonFormat
from cdo.formats.voice import AgentFormat, SynthesisFormat
from cdo.planning.plan import Plan, seats
from cdo.programs.deliberation.convergence import Record, Tension, dispute
from cdo.programs.deliberation.objections import Logged, Objections
from cdo.programs.deliberation.team import Team

if TYPE_CHECKING:
    from cdo.formats.voice_blocks import Note

GAPS = 24  # most earlier gaps that a synthesiser is reminded of
PLACES = 60  # most cited places that a synthesiser is shown with the lines around them
FRESH = frozenset({"refuter"})  # roles that do not see the synthesis of the turn before, and are on no team
ARGUING = frozenset({"refuter", "checker", "steelman"})  # roles that are told the leading answer
TESTING = frozenset({"refuter", "checker"})  # roles that are given the claims of the turn before


class Voice(Struct, frozen=True):
    """A seat of one turn. `name` is unique in the turn, `role` names the method, `charge` is a task beyond the role.

    `wishes` are the skills asked for, `skills` the skills given. `model` is set if a model was chosen for the seat.
    """

    name: str
    role: str
    seat: int = 1
    charge: str = ""
    wishes: tuple[str, ...] = ()
    skills: tuple[SkillCard, ...] = ()
    model: str = ""
    effort: Effort | None = None

    @property
    def person(self) -> str:
        """The name of the person who has this seat; "" for the seat of a model."""
        return person_of(self.model)


def seated(wanted: Sequence[str], spare: Sequence[str], count: int, charges: Mapping[str, str]) -> list[Voice]:
    """Return `count` voices: the wanted roles first, then spare ones."""
    return [Voice(name, role, seat, charges.get(role, "")) for name, role, seat in seats(wanted, spare, count)]


class TurnTemplate(Struct, frozen=True):
    """The prompts and formats of a program's turns; the defaults are those of a deliberation.

    `brief` and `own` are added to the data of each voice's brief (`own` by voice), `sums` to the synthesiser's. A
    role in `fresh` does not see the synthesis of the turn before: it sees the question, the material, the leading
    answer and the claims.
    """

    template: str = "templates/agent-brief"
    format: ReplyFormat = field(default_factory=AgentFormat)
    synthesis: str = "engine/synthesis-protocol"
    directive: Callable[[tuple[int, int], tuple[str, ...], tuple[str, ...]], ReplyFormat] = SynthesisFormat
    brief: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sums: Mapping[str, Any] = field(default_factory=dict)
    include: Mapping[str, str] = field(default_factory=dict)
    fresh: frozenset[str] = FRESH


class KnownSoFar(Protocol):
    """The part of a run's state from which calls are built."""

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
    @property
    def further(self) -> str: ...
    def band(self) -> tuple[int, int]: ...
    def said_to(self, name: str) -> list[Note]: ...


# -- voices ----------------------------------------------------------------------------------------


def of_voices(known: KnownSoFar, voices: Sequence[Voice], shape: TurnTemplate, claims: Sequence[str]) -> Batch:
    """Return one call for each voice; seats take the models in turn. At least half of the models must answer.

    Whether people answer does not matter for that. `claims` are the claims of the turn before, for the voices that
    test them.
    """
    briefs = [_brief(known, voice, shape, claims) for voice in voices]
    plan = known.plan
    calls = tuple(
        Call(
            f"t{known.turn}-{voice.name}",
            "agent",
            shape.template,
            PersonFormat() if voice.person else shape.format,
            _asked(plan, voice, index),
            brief,
            _reads(known, voice, shape, brief["sides"]),
            tools=plan.tools is not None and not voice.person,
            thread=voice.name if _on_team(plan, voice, shape) else "",
            effort=voice.effort,
        )
        for index, (voice, brief) in enumerate(zip(voices, briefs, strict=True))
    )
    models = sum(not voice.person for voice in voices)
    return Batch(calls, quorum=max(1, -(-models // 2)))


def _on_team(plan: Plan, voice: Voice, shape: TurnTemplate) -> bool:
    """True if a voice is a teammate, who remembers its turns. A person remembers without that."""
    return plan.team and voice.role not in shape.fresh and not voice.person


def _asked(plan: Plan, voice: Voice, index: int) -> tuple[str, ...]:
    """Return the models of a voice's call: its own, then the plan's first one if the plan is `mixed`."""
    own = voice.model or plan.models[index % len(plan.models)]
    return tuple(dict.fromkeys((own, plan.models[0]))) if plan.mixed and not voice.person else (own,)


def _brief(known: KnownSoFar, voice: Voice, shape: TurnTemplate, claims: Sequence[str]) -> dict[str, Any]:
    """Return the data of a voice's brief. It shows what is open on the ledgers, so that briefs stay short."""
    plan, fresh, record = known.plan, voice.role in shape.fresh, known.record
    mate = _on_team(plan, voice, shape)
    last = record.turns[-1] if record.turns else None
    focused = last.directive if last and known.focus == last.directive.focus else None
    tested = last if voice.role in ARGUING else None
    disputed = dispute(record, plan.criteria) if voice.role == "referee" else ""
    data = {
        "turn": known.turn,
        "today": plan.today,
        "words": plan.words[0],
        "mate": mate,
        "focus": known.focus,
        "decides": focused.decides if focused else "",
        "settle_with": focused.settle_with if focused else "",
        "leading": (tested.leading or tested.camps[0].position) if tested else "",
        "alternative": tested.directive.alternative if tested else "",
        "dispute": disputed,
        "sides": list(_sides(record, plan.criteria.severe)) if disputed else [],
        "standing": [{"id": item.id, "text": item.text} for item in record.objections.of(voice.name)],
        "note": known.note,
        "tensions": [] if fresh else ledger(record.open),
        "outside": [] if fresh else ledger(record.outside),
        "settled": [] if fresh else [item.id for item in record.ledger if item.status in ("resolved", "accepted")],
        "previous": "" if fresh else known.previous,
        "role": voice.role,
        "seat": voice.seat,
        "charge": voice.charge,
        "claims": list(claims) if fresh or voice.role in TESTING else [],
        "messages": [],
        "skills": [{"name": card.name, "description": card.description} for card in voice.skills],
        "tools": {"requests": plan.tools[0], "rounds": plan.tools[1]} if plan.tools else None,
        **shape.brief,
        **shape.own.get(voice.name, {}),
    }
    if voice.person:
        data |= {"person": voice.person, "tools": None}
    if mate:
        data |= {**known.team.brief(voice.name, known.turn), "mine": known.team.last(voice.name)}
    elif notes := known.said_to(voice.name):
        data["messages"] = [{"id": "", "from": "human", "text": note.text} for note in notes]
    if include := {**_included(plan, voice, mate=mate), **shape.include}:
        data["include"] = include
    if domain := _domain(plan):
        data["domain"] = domain
    return data


def _sides(record: Record, least: int) -> tuple[str, ...]:
    """Return the artifacts of a conflict: up to two with open objections of severity `least`, and another voice's.

    The other voice is from the largest camp that has one. If confidence fell without such an objection, the artifacts
    are one from each of the two largest camps.
    """
    if not record.turns:
        return ()
    last, turn = record.turns[-1], len(record.turns)
    severe = record.objections.severe(least)
    found = list(dict.fromkeys(f"t{item.turn}-{item.role}" for item in severe))[:2]
    if not found:
        return tuple(f"t{turn}-{camp.voices[0]}" for camp in last.camps[:2])
    objectors = {item.role for item in severe}
    others = [name for camp in last.camps for name in camp.voices if name not in objectors]
    return (*found, *(f"t{turn}-{name}" for name in others[:1]))


def _reads(known: KnownSoFar, voice: Voice, shape: TurnTemplate, sides: Sequence[str]) -> tuple[str, ...]:
    """Return the artifacts that a voice gets in full; `sides` are the artifacts of the conflict that it rules on."""
    fresh = voice.role in shape.fresh
    reads = [INPUT, CONTEXT, *([known.further] if known.further else [])]
    reads += [*([known.previous] if known.previous and not fresh else [])]
    reads += sides
    reads += [f"skills/{card.name}" for card in voice.skills]
    if _on_team(known.plan, voice, shape) and (mine := known.team.last(voice.name)):
        reads.append(mine)
    return tuple(dict.fromkeys(reads))


def _included(plan: Plan, voice: Voice, *, mate: bool) -> dict[str, str]:
    """Return the documents that this voice's brief includes."""
    return {
        **({"domain": plan.domain_file} if plan.domain_file else {}),
        **({"skills": "dispatch/skill-injection"} if voice.skills else {}),
        **({"team": "dispatch/team-mode"} if mate else {}),
    }


def _domain(plan: Plan) -> dict[str, Any]:
    """Return the data for the document of the domain; {} without a domain."""
    if not plan.domain_file:
        return {}
    tag = plan.domain or ""
    tagged = [card for card in plan.skills if tag in card.tags]
    listed = [{"name": card.name, "description": card.description} for card in tagged]
    return {"tag": tag, "skills": listed, "integration": list(plan.integration)}


# -- synthesis -------------------------------------------------------------------------------------


def of_synthesis(
    known: KnownSoFar,
    present: Sequence[tuple[Voice, Reply]],
    absent: Sequence[tuple[Voice, Reply]],
    shape: TurnTemplate,
    makers: int,
    noted: Objections,
) -> Batch:
    """Return the call of the synthesis, which reads every voice with its charge, in an order that varies by turn.

    `makers` is the number of known vendors of the voices' models, at least 1: an unknown vendor may be one of them.
    `noted` is the ledger with the objections of this turn.
    """
    plan, turn = known.plan, known.turn
    shown = rotated(sorted(present, key=lambda pair: pair[0].name), turn)
    data = {
        "turn": turn,
        "max_turns": plan.turns[1],
        "previous": known.previous,
        "voices": [{"name": voice.name, "charge": voice.charge, "artifact": reply.call} for voice, reply in shown],
        "missing": [{"role": voice.name, "reason": why_missing(reply.reason)} for voice, reply in absent],
        "today": plan.today,
        "tensions": ledger(known.record.ledger),
        "objections": [objection(item) for item in noted.open],
        "cited": cited(present),
        "looks": plan.tools is not None,
        "gaps": [gap for earlier in known.record.turns for gap in earlier.new_gaps][-GAPS:],
        "width": list(known.band()),
        "roles": [voice.role for voice, _ in present if not voice.person][:4],
        "known_roles": list(plan.known_roles),
        "criteria": {key: getattr(plan.criteria, key) for key in ("exit_confidence", "agreement_flag")},
        "note": known.note,
        "skills": [card.name for card in plan.skills][:40],
        "team": [name for name, mate in known.team.mates.items() if mate.state != "stopped"],
        "checked": any(reply.findings for _, reply in present),
        **shape.sums,
    }
    if len(plan.vendors) > 1 or "lev-exec" in plan.modifiers:
        include = {"vendors": "dispatch/multi-model", **data.get("include", {})}
        data |= {"include": include, "vendors": makers}
    before = (name for name in (known.further, known.previous) if name)
    reads = (INPUT, CONTEXT, *before, *(reply.call for _, reply in shown))
    form = shape.directive(known.band(), plan.known_roles, tuple(voice.name for voice, _ in present))
    return Batch((Call(f"t{turn}-synthesis", "synthesis", shape.synthesis, form, plan.models, data, reads),))


# -- parts -----------------------------------------------------------------------------------------


def ledger(tensions: Sequence[Tension]) -> list[dict[str, Any]]:
    """Return tensions as the data of a call."""
    return [asdict(item) for item in tensions]


def objection(item: Logged) -> dict[str, Any]:
    """Return an objection of the ledger as the data of a call."""
    return {
        "id": item.id,
        "role": item.role,
        "turn": item.turn,
        "severity": item.severity,
        "against": item.against,
        "text": item.text,
        "weighed": item.weighed,
    }


def cited(present: Sequence[tuple[Voice, Reply]]) -> list[dict[str, Any]]:
    """Return the cited places that code found, with the lines around each and the voices that cite it.

    Places that several voices cite come first: their agreement rests on one piece of evidence.
    """
    places: dict[tuple[str, int], dict[str, Any]] = {}
    for voice, reply in present:
        for finding in reply.findings:
            if not finding.lines:
                continue
            path = finding.path or finding.citation.partition(":")[0]
            new = {"path": path, "line": finding.line, "lines": finding.lines, "voices": []}
            place = places.setdefault((path, finding.line), new)
            if voice.name not in place["voices"]:
                place["voices"].append(voice.name)
    ranked = sorted(places.values(), key=lambda place: (-len(place["voices"]), place["path"], place["line"]))
    return ranked[:PLACES]


def why_missing(reason: Missing) -> str:
    """Return why a voice is missing, without the words of the provider, which would reveal it."""
    return reason.kind if reason.kind in tuple(Fault) else "no answer"


def rotated(items: Sequence[Any], turn: int) -> list[Any]:
    """Return the same items, starting at another one each turn, so that no voice is always read first."""
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]
