"""What a run of a plan may take, in calls, tokens, dollars and seconds, and how it is told before the run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdo.models import ModelSpec
from cdo.plan import Plan
from cdo.types import Usage

# Typical sizes in tokens, for the range that --dry-run shows: rules, role and format of a brief; a reply.
BRIEF_TOKENS = 700
REPLY_TOKENS = 500
# Seconds that one step takes, from short answers to long ones: a provider's, and the embedded model's on a laptop.
PACE, LOCAL_PACE = (3.0, 40.0), (4.0, 30.0)


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
