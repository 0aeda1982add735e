"""Makes the frozen plan of a run from the words of a command, the settings and the content. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypedDict

from msgspec import Struct, field
from msgspec.structs import replace

from cdo.content.library import Library
from cdo.content.schemas import Band, Complexity, Convergence, Preset
from cdo.content.skill_ranking import SkillCard, SkillInjection, rank, references, resolve
from cdo.core.errors import UsageError
from cdo.core.formatting import period
from cdo.planning import people
from cdo.planning.arguments import Invocation
from cdo.planning.complexity import TABLES, gauge
from cdo.planning.plan import CheckCommand, Plan
from cdo.planning.role_choice import DomainTeam, choose, known_roles, team_of
from cdo.planning.settings import Resolved, Settings, narrowed
from cdo.planning.turn_plan import Combo, Combos

CATALOGUE = 60  # skills that a session may choose from
TOPIC = 600  # characters of the problem by which skills are ranked


class PlanEnvironment(Struct, frozen=True):
    """What the shell found around a run.

    `skills` are the available skills; `asked`: the command line asks for skills. `untrusted` are the project's skills
    that are not trusted. `vendors` names the vendor of each model; `mixed`: cdo chose models of different makers. The
    repository is at `root` as seen from a session's folder. `looks` [requests, rounds] is how often voices may look
    into it unless their preset says otherwise; None if no model can. `today` is the date, as "2026-11-22".
    `has_folder` tells whether the project has a folder. `remarks` are what a person should read before the run.
    `check` is the person's command. `seats` are those of people, as they were given.
    """

    skills: tuple[SkillCard, ...] = ()
    asked: bool = False
    vendors: Mapping[str, str] = field(default_factory=dict)
    looks: tuple[int, int] | None = None
    root: str = ""
    today: str = ""
    untrusted: tuple[SkillCard, ...] = ()
    mixed: bool = False
    has_folder: Callable[[str], bool] = lambda folder: False
    remarks: tuple[str, ...] = ()
    check: CheckCommand | None = None
    seats: tuple[str, ...] = ()


def make(
    invocation: Invocation,
    problem: str,
    resolved: Resolved,
    library: Library,
    models: Sequence[str],
    around: PlanEnvironment = PlanEnvironment(),
) -> Plan:
    """Resolve the words, settings and content into a plan; raise `UsageError` or `ContentError`."""
    settings = resolved.values
    name, why, preset = preset_of(invocation, problem, library)
    mode, turns, least = _way(invocation, name, preset, resolved, library)
    known = known_roles(name, preset, library)
    if around.check:
        _require_phases(mode, name, library)
    cards, per_agent = _offered(invocation, problem, preset, library, around)
    team = DomainTeam()
    if invocation.domain:
        team = team_of(invocation.domain, library, cards, around.untrusted, known, preset)
    width, start = _size(preset, resolved, len(team.roles), len(models) if "lev-exec" in invocation.modifiers else 1)
    first, matches = team.roles, team.matches
    if not first and mode is None:
        chosen = choose(problem, known, preset.roles, start, library.read(TABLES, Complexity)[0])
        first, matches = chosen.roles, chosen.matches
    convergence, _ = library.read("engine/convergence", Convergence)
    looks = _looks(preset, around)
    made = Plan(
        preset=name,
        why=why,
        mode=mode,
        modifiers=invocation.modifiers,
        domain=invocation.domain,
        width=width,
        start=start,
        turns=turns,
        least=least,
        roles=(*first, *(role for role in preset.roles if role not in first)),
        known_roles=tuple(card.name for card in known),
        matches=dict(matches),
        models=tuple(models),
        mixed=around.mixed,
        vendors=dict(around.vendors),
        criteria=convergence.criteria,
        bounds=convergence.bounds,
        **_switches(invocation.modifiers, preset, library),
        tools=looks,
        skills=cards,
        per_agent=per_agent,
        skill_words=(*references(problem), *(word for word in team.words if resolve(word, cards))),
        topic=" ".join([*team.words, *problem.split()])[:TOPIC] if cards else "",
        charges=team.charges,
        wishes=team.wishes,
        domain_file=team.file,
        documents=team.documents,
        integration=tuple(place for place in team.integration if around.has_folder(place.partition(" ")[0])),
        root=around.root,
        context_tokens=preset.context_tokens if around.root else None,
        focus_tokens=_focus_tokens(preset, resolved) if around.root and looks else 0,
        review=mode is None and (preset.review if settings.review is None else settings.review),
        words=preset.words,
        effort=preset.effort,
        today=around.today,
        check=around.check,
    )
    made = _with_people(made, around.seats, library)
    remarks = (*around.remarks, *team.remarks, *_remarks(made, references(problem), settings), *_idle(made))
    return replace(made, remarks=remarks)


def _require_phases(mode: str | None, preset: str, library: Library) -> None:
    """Raise `UsageError` unless the mode has phases, in which a check command is run."""
    if mode is None or not library.load(f"modes/{mode}").meta.get("phases"):
        raise UsageError(
            f"--check is for `debug` alone: `{mode or preset}` neither reproduces a fault nor proposes a patch.",
            'Leave it out, or run `cdo debug --check "…" "What fails"`.',
        )


def _with_people(made: Plan, texts: Sequence[str], library: Library) -> Plan:
    """Return the plan with the seats of people, whose roles no model gets; raise `UsageError`."""
    if texts and made.mode and library.load(f"modes/{made.mode}").meta.get("people") is not True:
        raise UsageError(
            f"A person has no seat in `{made.mode}`: its program takes replies in a form that only models give.",
            f"Add `hitl` in place of --seat, which shows you the plan of each turn, or leave `{made.mode}` out.",
        )
    found = people.people(texts, made.width[0])
    taken = {seat.role for seat in found}
    return replace(
        made,
        people=found,
        roles=tuple(role for role in made.roles if role not in taken),
        known_roles=tuple(role for role in made.known_roles if role not in taken),
    )


def preset_of(invocation: Invocation, problem: str, library: Library) -> tuple[str, str, Preset]:
    """Return the preset of a run, why it was chosen, and its file's data; raise `ContentError`."""
    name, why = _preset(invocation, problem, library)
    return name, why, library.read(f"presets/{name}", Preset)[0]


def _focus_tokens(preset: Preset, resolved: Resolved) -> int:
    """Return the most tokens of further files for a turn's focus: a quarter of what the context may have."""
    most = min(preset.context_tokens, resolved.values.context_tokens or preset.context_tokens)
    return int(narrowed("context_tokens", most, resolved.ceilings)) // 4


def _looks(preset: Preset, around: PlanEnvironment) -> tuple[int, int] | None:
    """Return how often voices may look into the repository, as [requests, rounds]; None if they may not."""
    looks = (preset.looks or around.looks) if around.looks and all(around.looks) else None
    return looks if looks and all(looks) else None


def _preset(invocation: Invocation, problem: str, library: Library) -> tuple[str, str]:
    """Return the preset and why: the one asked for, else gauge's, raised to what the other words need."""
    if invocation.preset:
        return invocation.preset, f"you asked for {invocation.preset}"
    measured = gauge(problem, library.read(TABLES, Complexity)[0])
    if invocation.mode and measured.preset != "full":
        return "full", f"`{invocation.mode}` sits with the preset full"
    if invocation.domain and measured.preset in ("quick", "think"):
        return "deep", f"`exec {invocation.domain}` asks for a team"
    return measured.preset, measured.why


def _way(
    invocation: Invocation, name: str, preset: Preset, resolved: Resolved, library: Library
) -> tuple[str | None, Band, int]:
    """Return the mode, [n, cap] (after turn n, each further turn must be earned), and the fewest turns."""
    if invocation.mode and preset.mode:
        raise UsageError(f"`{invocation.mode}` and `{name}` each have a way of their own to go on.", "Give one.")
    mode = invocation.mode or preset.mode
    turns = resolved.values.turns
    low, cap = (turns, turns) if turns else preset.max_turns
    least = _least(mode, cap, library)
    cap = max(narrowed("turns", cap, resolved.ceilings), least)
    return mode, (max(min(low, cap), least), cap), least


def _least(mode: str | None, cap: int, library: Library) -> int:
    """Return the fewest turns that a mode needs; raise `UsageError` if `cap` does not allow them."""
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


def _offered(
    invocation: Invocation, problem: str, preset: Preset, library: Library, around: PlanEnvironment
) -> tuple[tuple[SkillCard, ...], Band]:
    """Return the skills that a run may choose from, and [fewest, most] that each voice is given of them.

    With a human in the loop the list is filled in any case: voices are given the skills that the human names.
    """
    tag = invocation.domain if invocation.domain not in library.names("domains") else None
    given = preset.skills == "yes" or around.asked or bool(references(problem)) or tag is not None
    if not given and "hitl" not in invocation.modifiers:
        return (), (0, 0)
    injection, _ = library.read("dispatch/skill-injection", SkillInjection)
    return _catalogue(problem, tag, around), injection.per_agent if given else (0, 0)


def _catalogue(problem: str, tag: str | None, around: PlanEnvironment) -> tuple[SkillCard, ...]:
    """Return the skills that a run may choose from: named ones, then by tag and nearness to the problem."""
    named = [card for word in references(problem) if (card := resolve(word, around.skills))]
    near = [*named, *rank(around.skills, problem, (tag,) if tag else ())]
    order = list(dict.fromkeys([*near, *around.skills]))
    return tuple(order[:CATALOGUE])


def _size(preset: Preset, resolved: Resolved, wanted: int, least: int) -> tuple[Band, int]:
    """The band of voices a turn, and how many sit in the first: `wanted` (0: as the preset says) or `least`."""
    width = resolved.values.width or narrowed("width", preset.width, resolved.ceilings)
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
    """Return the switches. Load what a team's briefs include, so that a broken file is reported before the run."""
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


def _remarks(plan: Plan, named: Sequence[str], settings: Settings) -> Iterator[str]:
    """Yield remarks on what the plan does not do although it was asked; the problem names the skills `named`."""
    yield from people.told(plan.people, period(settings.seat_wait))
    if unknown := [name for name in named if not resolve(name, plan.skills)]:
        yield f"There is no skill called {', '.join(unknown)} here, or it is not trusted: it is left out."
    if unseated := plan.models[plan.start :]:
        yield f"{', '.join(unseated)}: no seat in the first turn; a wider preset or --width has more."
    if settings.adr_dir and not any(prompt.target for prompt in plan.documents.values()):
        yield "--adr-dir does nothing here: only a domain such as `exec arch` ends with a decision record."


def _idle(plan: Plan) -> Iterator[str]:
    """Yield which of the given words have no effect in this plan, and why."""
    if "adaptive" in plan.modifiers:
        if plan.mode:
            yield f"`adaptive` does nothing here: `{plan.mode}` decides how many voices each turn has."
        elif plan.turns[1] == 1:
            yield "`adaptive` does nothing here: there is one turn, and it has no earlier turn to adapt to."
        elif plan.width[0] == plan.width[1]:
            yield f"`adaptive` does nothing here: every turn has {plan.width[0]} voices."
    if "team" in plan.modifiers and plan.turns[1] == 1:
        yield "`team` does nothing here: there is one turn, and no voice lives on to another."
    if "lev-exec" in plan.modifiers and len(plan.models) == 1:
        yield f"`lev-exec` has one model to seat, {plan.models[0]}: no other is named, set up or running here."
