"""What a run is going to be: the frozen plan of `session.yaml`, and what it may cost. Pure.

Only the first turn is concrete. Later turns are shown as what they may vary between: nothing beyond the next
turn is ever planned (seed 004, section 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cdo.blocks import RoleName, role_problem
from cdo.content import Library
from cdo.documents import DocumentPrompt
from cdo.domains import Domain, team_from_skills
from cdo.errors import ContentError, UsageError
from cdo.gauge import gauge
from cdo.models import ModelSpec
from cdo.proposal import Combo, Combos
from cdo.schemas import Band, Bounds, Convergence, Count, Criteria, Preset, Schema
from cdo.settings import Resolved, Settings
from cdo.skills import SkillCard, SkillInjection, rank, references, resolve
from cdo.types import Usage
from cdo.words import Invocation

SPECIAL_ROLES = ("refuter", "referee")
GENERIC = "generic"  # the domain of a tag that has no file of its own
CATALOGUE = 60  # skills that a session may choose from
TOPIC = 600  # characters of the problem by which skills are ranked
# Typical sizes in tokens, for the range that --dry-run shows: rules, role and format of a brief; a reply.
BRIEF_TOKENS = 700
REPLY_TOKENS = 500
# Seconds that one step takes, from short answers to long ones: a provider's, and the embedded model's on a laptop.
PACE, LOCAL_PACE = (3.0, 40.0), (4.0, 30.0)


class Change(Schema):
    """What a person who forked a run wants otherwise, beginning with `turn`; what is empty stays as it was.

    That turn is held whatever the turn before came to. `focus`, `note` (to every voice), `roles` as (name, charge)
    and the voices or roles `without` which it sits are for that turn alone; `models`, `vendors` and `turns` hold from
    then on. Nothing that was asked before it depends on it.
    """

    turn: Count
    focus: Annotated[str, Field(max_length=2000)] = ""
    note: Annotated[str, Field(max_length=4000)] = ""
    roles: tuple[tuple[RoleName, Annotated[str, Field(max_length=2000)]], ...] = ()
    without: tuple[RoleName, ...] = ()
    models: tuple[str, ...] = ()
    vendors: dict[str, str] = Field(default_factory=dict)
    turns: Band | None = None


class Plan(BaseModel):
    """The frozen plan of a run; `session.yaml` holds it with the source of each setting.

    `width` is the band of voices a turn, `start` the first turn's; `turns` is [after which a further turn must be
    earned, the cap] and `least` the fewest that its mode can do with; `roles` are those of the first turn, then those
    that fill later ones, with `charges` and `wishes` for skills of their own. `vendors` names who is behind each
    model; `skills` is the catalogue as it was when the run began, of which each voice gets `per_agent`;
    `skill_words` is what is asked of it for everybody and `topic` what all are about; `combos` are offered to the
    human; `domain_file` is the content document of the domain, `documents` what it wants beside FINAL.md; with
    `tools` [requests, rounds] the voices may look into the repository, which is at `root` as seen from the session's
    folder. `integration` is where a domain's results are meant to go; `remarks` what a person should know; `changes`
    are those of a fork, at most one a turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    why: str
    mode: str | None = None
    modifiers: tuple[str, ...] = ()
    domain: str | None = None
    width: Band
    start: Count
    turns: Band
    least: Count = 1
    adaptive: bool
    roles: tuple[RoleName, ...]
    known_roles: tuple[RoleName, ...]
    models: tuple[str, ...]
    vendors: dict[str, str] = {}
    criteria: Criteria
    bounds: Bounds = Bounds()
    hitl: bool = False
    team: bool = False
    bd: bool = False
    dashboard: bool = False
    tools: tuple[int, int] | None = None
    skills: tuple[SkillCard, ...] = ()
    per_agent: tuple[int, int] = (2, 3)
    skill_words: tuple[str, ...] = ()
    topic: str = ""
    charges: dict[str, str] = {}
    wishes: dict[str, tuple[str, ...]] = {}
    combos: dict[str, Combo] = {}
    domain_file: str = ""
    documents: dict[str, DocumentPrompt] = {}
    integration: tuple[str, ...] = ()
    root: str = ""
    remarks: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    def change(self, turn: int) -> Change | None:
        """What changes with a turn."""
        return next((change for change in self.changes if change.turn == turn), None)

    @property
    def asked(self) -> tuple[str, ...]:
        """The models that are asked once every change holds."""
        return next((change.models for change in reversed(self.changes) if change.models), self.models)

    @property
    def named(self) -> tuple[str, ...]:
        """Every model that a call may name, each once."""
        return tuple(dict.fromkeys([*self.models, *(name for change in self.changes for name in change.models)]))

    def instead(self, names: Sequence[str]) -> dict[str, str]:
        """Who answers for each model when `names` stand in for `asked`, one for one; also for one asked before."""
        found = dict(zip(self.asked, names, strict=True))
        before = (name for name in self.named if name not in found)
        return {**found, **dict(zip(before, cycle(names), strict=False))}

    def with_models(self, names: Sequence[str], vendors: Mapping[str, str]) -> Plan:
        """The plan with other models from the beginning on: to show what is asked now, not to replay by."""
        changes = tuple(change.model_copy(update={"models": (), "vendors": {}}) for change in self.changes)
        return self.model_copy(update={"models": tuple(names), "vendors": dict(vendors), "changes": changes})


@dataclass(frozen=True)
class Surroundings:
    """What the shell found around a run: the skills there are (`asked` for on the command line or not), who is behind
    each model, and how often voices may look into the repository ([requests, rounds]; None without one), which is at
    `root` as seen from a session's folder.
    """

    skills: tuple[SkillCard, ...] = ()
    asked: bool = False
    vendors: Mapping[str, str] = field(default_factory=dict)
    looks: tuple[int, int] | None = None
    root: str = ""


def make(
    invocation: Invocation,
    problem: str,
    resolved: Resolved,
    library: Library,
    models: Sequence[str],
    around: Surroundings = Surroundings(),
) -> Plan:
    """Resolve the words, settings and content into a plan; raise `UsageError` or `ContentError`."""
    settings = resolved.values
    name, why = _preset(invocation, problem)
    preset, _ = library.read(f"presets/{name}", Preset)
    mode = invocation.mode or preset.mode
    if invocation.mode and preset.mode:
        raise UsageError(f"`{invocation.mode}` and `{name}` each have a way of their own to go on.", "Give one.")
    turns = (settings.turns, settings.turns) if settings.turns else preset.max_turns
    least = _least(mode, turns[1], library)
    names = library.names("templates/roles")
    known = tuple(role for role in names if role not in SPECIAL_ROLES and not role_problem(role))
    if unknown := [role for role in preset.roles if role not in known]:
        path = library.find(f"presets/{name}")[1]
        raise ContentError(f"{path}: `roles`: there is no role called {unknown[0]}.", f"Roles: {', '.join(known)}.")
    modifiers = invocation.modifiers
    named = references(problem)
    tag = invocation.domain if invocation.domain not in library.names("domains") else None
    given = preset.skills == "yes" or around.asked or bool(named) or tag is not None
    offered = given or "hitl" in modifiers
    injection = library.read("dispatch/skill-injection", SkillInjection)[0] if offered else None
    cards = _catalogue(problem, tag, around) if injection else ()
    team = _team(invocation.domain, library, cards, known, preset)
    width = settings.width or preset.width
    start = max(len(team.roles) or preset.start, len(models) if "lev-exec" in modifiers else 1)
    start = min(max(start, width[0]), width[1])
    convergence = library.read("engine/convergence", Convergence)[0]
    has_team = "team" in modifiers or preset.team_mode == "team"
    if has_team:
        library.load("dispatch/team-mode")
    return Plan(
        preset=name,
        why=why,
        mode=mode,
        modifiers=modifiers,
        domain=invocation.domain,
        width=width,
        start=start,
        turns=(max(turns[0], least), turns[1]),
        least=least,
        adaptive=preset.adaptive or "adaptive" in modifiers,
        roles=(*team.roles, *(role for role in preset.roles if role not in team.roles)),
        known_roles=known,
        models=tuple(models),
        vendors=dict(around.vendors),
        criteria=Criteria(**convergence.model_dump(include=set(Criteria.model_fields))),
        bounds=convergence.bounds,
        hitl="hitl" in modifiers,
        team=has_team,
        bd=preset.bd or "bd" in modifiers,
        dashboard=preset.dashboard or "hitl" in modifiers,
        tools=around.looks,
        skills=cards,
        per_agent=injection.per_agent if injection and given else (0, 0),
        skill_words=(*named, *(word for word in team.words if resolve(word, cards))),
        topic=" ".join([*team.words, *problem.split()])[:TOPIC] if cards else "",
        charges=team.charges,
        wishes=team.wishes,
        combos=library.read("templates/combos", Combos)[0].combos if "hitl" in modifiers else {},
        domain_file=team.file,
        documents=team.documents,
        integration=team.integration,
        root=around.root,
        remarks=tuple(_remarks(named, cards, models[start:], settings, team)),
    )


def _remarks(
    named: Sequence[str], cards: Sequence[SkillCard], unseated: Sequence[str], settings: Settings, team: _Team
) -> Iterator[str]:
    """What a person should know of a plan that does not do all that was asked."""
    if unknown := [name for name in named if not resolve(name, cards)]:
        yield f"There is no skill called {', '.join(unknown)} here, or it is not trusted: it is left out."
    if unseated:
        yield f"{', '.join(unseated)}: no seat in the first turn; a wider preset or --width has more."
    if settings.adr_dir and not any(prompt.target for prompt in team.documents.values()):
        yield "--adr-dir does nothing here: only a domain such as `exec arch` ends with a decision record."


def _least(mode: str | None, cap: int, library: Library) -> int:
    """The fewest turns that a mode can do with; raise `UsageError` where `cap` does not allow them."""
    if mode is None:
        return 1
    meta = library.load(f"modes/{mode}").meta
    phases = len(meta.get("phases") or ())
    least = int(meta.get("least_turns") or phases or 1)
    if phases and cap != phases:
        raise UsageError(f"`{mode}` has {phases} phases of one turn each.", "Leave --turns out.")
    if cap < least:
        raise UsageError(
            f"`{mode}` needs {least} turns, and the plan has {cap}.", "Take a larger preset, or more with --turns."
        )
    return least


def _preset(invocation: Invocation, problem: str) -> tuple[str, str]:
    """The preset of a run and why: the one asked for, else what gauge says, raised to what the other words need."""
    if invocation.preset:
        return invocation.preset, f"you asked for {invocation.preset}"
    measured = gauge(problem)
    if invocation.mode and measured.preset != "full":
        return "full", f"`{invocation.mode}` sits with the preset full"
    if invocation.domain and measured.preset in ("quick", "think"):
        return "deep", f"`exec {invocation.domain}` asks for a team"
    return measured.preset, measured.why


def _catalogue(problem: str, tag: str | None, around: Surroundings) -> tuple[SkillCard, ...]:
    """The skills that a run may choose from: those named, those with the tag, then those nearest to the problem."""
    named = [card for word in references(problem) if (card := resolve(word, around.skills))]
    near = [*named, *rank(around.skills, problem, (tag,) if tag else ())]
    order = list(dict.fromkeys([*near, *around.skills]))
    return tuple(order[:CATALOGUE])


@dataclass(frozen=True)
class _Team:
    """What a domain makes of the first turn."""

    roles: tuple[str, ...] = ()
    charges: dict[str, str] = field(default_factory=dict)
    wishes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    file: str = ""
    documents: dict[str, DocumentPrompt] = field(default_factory=dict)
    integration: tuple[str, ...] = ()


def _team(
    tag: str | None, library: Library, cards: Sequence[SkillCard], known: Sequence[str], preset: Preset
) -> _Team:
    """The team shape of `exec TAG`: as its file says, or made of the skills that carry the tag."""
    if tag is None:
        return _Team()
    own = tag in library.names("domains") and tag != GENERIC
    file = f"domains/{tag if own else GENERIC}"
    domain = library.read(file, Domain)[0]
    documents = {name: library.read(f"templates/documents/{name}", DocumentPrompt)[0] for name in domain.documents}
    if own:
        return _Team(domain.team, {}, {}, (*domain.skills, *domain.tags), file, documents, domain.integration)
    usable = [card for card in cards if card.name not in SPECIAL_ROLES]
    members = team_from_skills(tag, usable, known, preset.roles, preset.start, (*domain.skills, *domain.tags))
    if not any(card for card in cards if tag in card.tags):
        domains = ", ".join(name for name in library.names("domains") if name != GENERIC)
        tags = ", ".join(sorted({tag for card in cards for tag in card.tags})[:20]) or "none of your skills has tags"
        raise UsageError(
            f"`exec {tag}`: there is no domain of this name, and no skill carries the tag.",
            f"Domains: {domains}. Tags: {tags}.",
        )
    return _Team(
        tuple(role for role, _, _ in members),
        {role: charge for role, charge, _ in members if charge},
        {role: tuple(wishes) for role, _, wishes in members if wishes},
        (tag, *domain.skills),
        file,
        documents,
        domain.integration,
    )


def seats(wanted: Sequence[str], spare: Sequence[str], count: int) -> list[tuple[str, str, int]]:
    """Fill `count` seats: (file name of the role, role, which seat of that role it is, from 1).

    Wanted roles come first, then spare ones that are not there yet; when all methods are in use they are
    seated a second time ("critic-2"), as independent voices.
    """
    order = list(dict.fromkeys([*wanted, *spare]))
    if not order:
        raise UsageError("The plan has no roles.", "Give the preset at least one role.")
    chosen: dict[str, tuple[str, str, int]] = {}
    index = 0
    while len(chosen) < count:
        role, seat = order[index % len(order)], index // len(order) + 1
        name = role if seat == 1 else f"{role[: 31 - len(str(seat))]}-{seat}"
        chosen.setdefault(name, (name, role, seat))  # a wish may already be called "critic-2"
        index += 1
    return list(chosen.values())


@dataclass(frozen=True)
class Range:
    """Fewest and most calls, tokens, dollars (None where a price is unknown) and seconds of a run without retries."""

    calls: tuple[int, int]
    tokens: tuple[int, int]
    cost: tuple[float, float] | None
    seconds: tuple[float, float] = (0.0, 0.0)


def estimate(plan: Plan, specs: Sequence[ModelSpec], input_tokens: int) -> Range:
    """What a run of `plan` may take, where `input_tokens` is the size of question and context.

    Fewest: the first turn settles it, in short replies. Most: every turn at full width, in long ones.
    """
    by_name = {spec.name: spec for spec in specs}
    models = [by_name[name] for name in plan.models]
    high = plan.width[1] if plan.adaptive or plan.least > 1 else plan.start
    more = len(plan.documents)
    fewest = _exchanges([plan.start] * plan.least, models, input_tokens, REPLY_TOKENS // 2, more)
    most = _exchanges([plan.start, *[high] * (plan.turns[1] - 1)], models, input_tokens, REPLY_TOKENS * 2, more)
    low, top = _cost(fewest), _cost(most)
    return Range(
        calls=(len(fewest), len(most)),
        tokens=(_tokens(fewest), _tokens(most)),
        cost=None if low is None or top is None else (low, top),
        seconds=(_seconds(fewest, [plan.start] * plan.least)[0], _seconds(most, [high] * plan.turns[1])[1]),
    )


def _seconds(exchanges: Sequence[_Exchange], widths: Sequence[int]) -> tuple[float, float]:
    """Fewest and most seconds: voices of a turn answer side by side, but an embedded model one at a time."""
    if any(model.route == "local" for model, *_ in exchanges):
        steps, pace = len(exchanges), LOCAL_PACE
    else:
        steps, pace = 2 * len(widths) + 1, PACE
    return steps * pace[0], steps * pace[1]


_Exchange = tuple[ModelSpec, int, int]  # model, tokens of the prompt, tokens of the reply


def _exchanges(
    widths: Sequence[int], models: Sequence[ModelSpec], given: int, reply: int, documents: int
) -> list[_Exchange]:
    """The calls of a run with these widths of its turns: voices take the models in turn, the rest the first one."""
    found: list[_Exchange] = []
    brief = given + BRIEF_TOKENS
    for turn, width in enumerate(widths):
        if turn == 1:
            brief += reply  # from now on the last synthesis is part of it
        found += [(models[index % len(models)], brief, reply) for index in range(width)]
        found.append((models[0], brief + width * reply, reply))
    final = (models[0], given + BRIEF_TOKENS + (widths[-1] + 1) * reply, reply)
    return [*found, final, *[(models[0], given + BRIEF_TOKENS + 2 * reply, 2 * reply)] * documents]


def _tokens(exchanges: Sequence[_Exchange]) -> int:
    return sum(prompt + reply for _, prompt, reply in exchanges)


def _cost(exchanges: Sequence[_Exchange]) -> float | None:
    costs = [model.cost(Usage(prompt, reply)) for model, prompt, reply in exchanges]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def summary(plan: Plan, problem: str, span: Range, first: Sequence[str]) -> Mapping[str, Any]:
    """The plan as `--dry-run --json` prints it; `first` are the names of the first turn's voices."""
    return {
        "preset": plan.preset,
        "why": plan.why,
        "mode": plan.mode,
        "modifiers": list(plan.modifiers),
        "domain": plan.domain,
        "problem": problem,
        "width": list(plan.width),
        "max_turns": plan.turns[1],
        "turns": list(plan.turns),
        "adaptive": plan.adaptive,
        "roles": list(first),
        "models": list(plan.models),
        "hitl": plan.hitl,
        "team": plan.team,
        "bd": plan.bd,
        "skills": [card.name for card in plan.skills],
        "documents": [prompt.file for prompt in plan.documents.values()],
        "repository": plan.tools is not None,
        "calls": list(span.calls),
        "tokens": list(span.tokens),
        "cost": None if span.cost is None else [round(value, 6) for value in span.cost],
        "seconds": [round(value) for value in span.seconds],
    }
