"""What a run is going to be: the frozen plan of `session.yaml`, made of words, settings and content. Pure.

Only the first turn is concrete. Later turns are shown as what they may vary between: nothing beyond the next
turn is ever planned (seed 004, section 8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Annotated, TypedDict

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cdo.blocks import RoleName, role_problem
from cdo.cabal.crew import Crew
from cdo.cabal.names import MODE
from cdo.content import Library
from cdo.documents import DocumentPrompt
from cdo.domains import Domain, team_from_skills
from cdo.errors import ContentError, UsageError
from cdo.gauge import gauge
from cdo.proposal import Combo, Combos
from cdo.schemas import Band, Bounds, Convergence, Count, Criteria, Preset, Schema
from cdo.settings import Resolved, Settings
from cdo.skills import SkillCard, SkillInjection, rank, references, resolve
from cdo.words import Invocation

AUDIT = "audit"  # the mode of an audit's plan, which no document brings
SPECIAL_ROLES = ("refuter", "referee")
GENERIC = "generic"  # the domain of a tag that has no file of its own
CATALOGUE = 60  # skills that a session may choose from
TOPIC = 600  # characters of the problem by which skills are ranked


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
    are those of a fork, at most one a turn; `crew` mans the mission of a cabal.
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
    crew: Crew | None = None

    @model_validator(mode="after")
    def _manned(self) -> Plan:
        if (self.mode == MODE) != (self.crew is not None):
            raise ValueError("a mission has the mode cabal and a crew, and nothing else has either")
        if self.crew and not set(self.crew.seats.values()) <= set(self.named):
            raise ValueError(f"those in the crew's seats must be among the models: {', '.join(self.named)}")
        return self

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
    mode, turns, least = _way(invocation, name, preset, settings, library)
    known = _known_roles(name, preset, library)
    cards, per_agent = _offered(invocation, problem, preset, library, around)
    team = _team(invocation.domain, library, cards, known, preset)
    width, start = _size(preset, settings, len(team.roles), len(models) if "lev-exec" in invocation.modifiers else 1)
    convergence, _ = library.read("engine/convergence", Convergence)
    return Plan(
        preset=name,
        why=why,
        mode=mode,
        modifiers=invocation.modifiers,
        domain=invocation.domain,
        width=width,
        start=start,
        turns=turns,
        least=least,
        roles=(*team.roles, *(role for role in preset.roles if role not in team.roles)),
        known_roles=known,
        models=tuple(models),
        vendors=dict(around.vendors),
        criteria=Criteria(**convergence.model_dump(include=set(Criteria.model_fields))),
        bounds=convergence.bounds,
        **_switches(invocation.modifiers, preset, library),
        tools=around.looks,
        skills=cards,
        per_agent=per_agent,
        skill_words=(*references(problem), *(word for word in team.words if resolve(word, cards))),
        topic=" ".join([*team.words, *problem.split()])[:TOPIC] if cards else "",
        charges=team.charges,
        wishes=team.wishes,
        domain_file=team.file,
        documents=team.documents,
        integration=team.integration,
        root=around.root,
        remarks=tuple(_remarks(references(problem), cards, models[start:], settings, team)),
    )


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


def _way(
    invocation: Invocation, name: str, preset: Preset, settings: Settings, library: Library
) -> tuple[str | None, Band, int]:
    """How the run goes on: its mode, [after which turn a further one must be earned, the cap], the fewest turns."""
    if invocation.mode and preset.mode:
        raise UsageError(f"`{invocation.mode}` and `{name}` each have a way of their own to go on.", "Give one.")
    mode = invocation.mode or preset.mode
    low, cap = (settings.turns, settings.turns) if settings.turns else preset.max_turns
    least = _least(mode, cap, library)
    return mode, (max(low, least), cap), least


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


def _known_roles(name: str, preset: Preset, library: Library) -> tuple[str, ...]:
    """The roles that there are for voices; raise `ContentError` where the preset called `name` has another."""
    names = library.names("templates/roles")
    known = tuple(role for role in names if role not in SPECIAL_ROLES and not role_problem(role))
    if unknown := [role for role in preset.roles if role not in known]:
        path = library.find(f"presets/{name}")[1]
        raise ContentError(f"{path}: `roles`: there is no role called {unknown[0]}.", f"Roles: {', '.join(known)}.")
    return known


def _offered(
    invocation: Invocation, problem: str, preset: Preset, library: Library, around: Surroundings
) -> tuple[tuple[SkillCard, ...], Band]:
    """The skills that a run may choose from, and [fewest, most] that each voice is given of them.

    With a human in the loop there are always some to choose from: voices are given those that the human names.
    """
    tag = invocation.domain if invocation.domain not in library.names("domains") else None
    given = preset.skills == "yes" or around.asked or bool(references(problem)) or tag is not None
    if not given and "hitl" not in invocation.modifiers:
        return (), (0, 0)
    injection, _ = library.read("dispatch/skill-injection", SkillInjection)
    return _catalogue(problem, tag, around), injection.per_agent if given else (0, 0)


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


def _size(preset: Preset, settings: Settings, wanted: int, least: int) -> tuple[Band, int]:
    """The band of voices a turn, and how many sit in the first: `wanted` (0: as the preset says) or `least`."""
    width = settings.width or preset.width
    start = max(wanted or preset.start, least)
    return width, min(max(start, width[0]), width[1])


class _Switches(TypedDict):
    """The fields of a plan that modifiers or its preset turn on."""

    adaptive: bool
    hitl: bool
    team: bool
    bd: bool
    dashboard: bool
    combos: dict[str, Combo]


def _switches(modifiers: Sequence[str], preset: Preset, library: Library) -> _Switches:
    """What is turned on; what a team's briefs include is read here, so that a broken one is told before the run."""
    hitl, team = "hitl" in modifiers, "team" in modifiers or preset.team_mode == "team"
    if team:
        library.load("dispatch/team-mode")
    return {
        "adaptive": preset.adaptive or "adaptive" in modifiers,
        "hitl": hitl,
        "team": team,
        "bd": preset.bd or "bd" in modifiers,
        "dashboard": preset.dashboard or hitl,
        "combos": library.read("templates/combos", Combos)[0].combos if hitl else {},
    }


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
