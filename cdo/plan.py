"""What a run is going to be: the frozen plan of `session.yaml`, and what it may cost. Pure.

Only the first turn is concrete. Later turns are shown as what they may vary between: nothing beyond the next
turn is ever planned (seed 004, section 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from cdo.blocks import RoleName, role_problem
from cdo.content import Library
from cdo.errors import ContentError, UsageError
from cdo.gauge import gauge
from cdo.models import ModelSpec
from cdo.schemas import Band, Convergence, Count, Criteria, Preset
from cdo.settings import Resolved
from cdo.types import Usage
from cdo.words import Invocation

SPECIAL_ROLES = ("refuter", "referee")
# Typical sizes in tokens, for the range that --dry-run shows: rules, role and format of a brief; a reply.
BRIEF_TOKENS = 700
REPLY_TOKENS = 500


class Plan(BaseModel):
    """The frozen plan of a run; `session.yaml` holds it with the source of each setting.

    `width` is the band of voices a turn, `start` the first turn's; `turns` is [after which a further turn must be
    earned, the cap]; `roles` are those of the first turn, then those that fill later ones.
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
    adaptive: bool
    roles: tuple[RoleName, ...]
    known_roles: tuple[RoleName, ...]
    models: tuple[str, ...]
    criteria: Criteria
    not_available: tuple[str, ...] = ()


def make(invocation: Invocation, problem: str, resolved: Resolved, library: Library, models: Sequence[str]) -> Plan:
    """Resolve the words, settings and content into a plan; raise `UsageError` or `ContentError`."""
    settings = resolved.values
    measured = gauge(problem)
    name = invocation.preset or measured.preset
    preset, _ = library.read(f"presets/{name}", Preset)
    names = library.names("templates/roles")
    known = tuple(role for role in names if role not in SPECIAL_ROLES and not role_problem(role))
    if unknown := [role for role in preset.roles if role not in known]:
        path = library.find(f"presets/{name}")[1]
        raise ContentError(f"{path}: `roles`: there is no role called {unknown[0]}.", f"Roles: {', '.join(known)}.")
    width = settings.width or preset.width
    start = min(max(preset.start, width[0]), width[1])
    turns = (settings.turns, settings.turns) if settings.turns else preset.max_turns
    return Plan(
        preset=name,
        why=f"you asked for {name}" if invocation.preset else measured.why,
        mode=invocation.mode,
        modifiers=invocation.modifiers,
        domain=invocation.domain,
        width=width,
        start=start,
        turns=turns,
        adaptive=preset.adaptive or "adaptive" in invocation.modifiers,
        roles=preset.roles,
        known_roles=known,
        models=tuple(models),
        not_available=_not_available(preset),
        criteria=Criteria(
            **library.read("engine/convergence", Convergence)[0].model_dump(include=set(Criteria.model_fields))
        ),
    )


def _not_available(preset: Preset) -> tuple[str, ...]:
    """What the preset's row of the table asks for and this version does not do yet."""
    asked = {
        "bd": preset.bd,
        "skills": preset.skills == "yes",
        "team": preset.team_mode == "team",
        "dashboard": preset.dashboard,
    }
    return tuple(name for name, wanted in asked.items() if wanted)


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
    """Fewest and most: calls, tokens and dollars (None where a price is unknown) of a run without retries."""

    calls: tuple[int, int]
    tokens: tuple[int, int]
    cost: tuple[float, float] | None


def estimate(plan: Plan, specs: Sequence[ModelSpec], input_tokens: int) -> Range:
    """What a run of `plan` may take, where `input_tokens` is the size of question and context.

    Fewest: the first turn settles it, in short replies. Most: every turn at full width, in long ones.
    """
    by_name = {spec.name: spec for spec in specs}
    models = [by_name[name] for name in plan.models]
    high = plan.width[1] if plan.adaptive else plan.start
    fewest = _exchanges([plan.start], models, input_tokens, REPLY_TOKENS // 2)
    most = _exchanges([plan.start, *[high] * (plan.turns[1] - 1)], models, input_tokens, REPLY_TOKENS * 2)
    low, top = _cost(fewest), _cost(most)
    return Range(
        calls=(len(fewest), len(most)),
        tokens=(_tokens(fewest), _tokens(most)),
        cost=None if low is None or top is None else (low, top),
    )


_Exchange = tuple[ModelSpec, int, int]  # model, tokens of the prompt, tokens of the reply


def _exchanges(widths: Sequence[int], models: Sequence[ModelSpec], given: int, reply: int) -> list[_Exchange]:
    """The calls of a run with these widths of its turns: voices take the models in turn, the rest the first one."""
    found: list[_Exchange] = []
    brief = given + BRIEF_TOKENS
    for turn, width in enumerate(widths):
        if turn == 1:
            brief += reply  # from now on the last synthesis is part of it
        found += [(models[index % len(models)], brief, reply) for index in range(width)]
        found.append((models[0], brief + width * reply, reply))
    return [*found, (models[0], given + BRIEF_TOKENS + (widths[-1] + 1) * reply, reply)]


def _tokens(exchanges: Sequence[_Exchange]) -> int:
    return sum(prompt + reply for _, prompt, reply in exchanges)


def _cost(exchanges: Sequence[_Exchange]) -> float | None:
    costs = [model.cost(Usage(prompt, reply)) for model, prompt, reply in exchanges]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def summary(plan: Plan, problem: str, span: Range) -> Mapping[str, Any]:
    """The plan as `--dry-run --json` prints it."""
    first = [name for name, _, _ in seats(plan.roles, plan.known_roles, plan.start)]
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
        "roles": first,
        "models": list(plan.models),
        "calls": list(span.calls),
        "tokens": list(span.tokens),
        "cost": None if span.cost is None else [round(value, 6) for value in span.cost],
        "not_available": list(plan.not_available),
    }
