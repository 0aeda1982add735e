"""Estimates the calls, tokens, dollars and seconds of a run before it starts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from cdo.core.exchange import Usage
from cdo.planning.plan import Plan
from cdo.providers.models import ModelSpec

# Typical sizes in tokens, for the range that --dry-run shows: rules, role and format of a brief; a reply.
BRIEF_TOKENS = 700
REPLY_TOKENS = 500
SKILL_TOKENS = 700  # of one skill in a brief
# Seconds for one step, with short and with long answers: of a provider, and of the embedded model on a laptop.
PACE, LOCAL_PACE = (3.0, 40.0), (4.0, 30.0)


class Range(Struct, frozen=True):
    """Fewest and most calls, tokens, dollars (None if a price is unknown) and seconds of a run without retries."""

    calls: tuple[int, int]
    tokens: tuple[int, int]
    cost: tuple[float, float] | None
    seconds: tuple[float, float] = (0.0, 0.0)
    known: tuple[float, float] = (0.0, 0.0)  # dollars for the models whose price is known


def estimate(plan: Plan, specs: Sequence[ModelSpec], input_tokens: int) -> Range:
    """Estimate a run of `plan`; `input_tokens` is the size of question and context.

    Fewest: the voices agree and the other side is argued, in short replies. Most: every turn at full width, in long
    replies.
    """
    by_name = {spec.name: spec for spec in specs}
    models = [by_name[name] for name in plan.models]
    few, many = (SKILL_TOKENS * number if plan.skills else 0 for number in plan.per_agent)
    narrow, wide = _widths(plan)
    fewest = _exchanges(plan, narrow, models, input_tokens, REPLY_TOKENS // 2, few)
    most = _exchanges(plan, wide, models, input_tokens, REPLY_TOKENS * 2, many)
    low, top = _cost(fewest), _cost(most)
    return Range(
        calls=(len(fewest), len(most)),
        tokens=(_tokens(fewest), _tokens(most)),
        cost=None if low is None or top is None else (low, top),
        seconds=(_seconds(plan, fewest, narrow)[0], _seconds(plan, most, wide)[1]),
        known=(_known(fewest), _known(most)),
    )


def together(ranges: Iterable[tuple[Range, int]]) -> Range:
    """Return the range of several runs: of each range so many as its number says. It has no seconds."""
    many = list(ranges)

    def total(pick: Callable[[Range], tuple[float, float]]) -> tuple[float, float]:
        return sum(pick(one)[0] * count for one, count in many), sum(pick(one)[1] * count for one, count in many)

    calls, tokens = total(lambda one: one.calls), total(lambda one: one.tokens)
    return Range(
        calls=(int(calls[0]), int(calls[1])),
        tokens=(int(tokens[0]), int(tokens[1])),
        cost=None if any(one.cost is None for one, _ in many) else total(lambda one: one.cost or (0.0, 0.0)),
        known=total(lambda one: one.known),
    )


def _widths(plan: Plan) -> tuple[list[int], list[int]]:
    """Return how many voices sit in each turn of the shortest and of the longest run."""
    cap, high = plan.turns[1], plan.width[1]
    if plan.mode or plan.least > 1:
        return [plan.start] * plan.least, [plan.start, *[high if plan.least > 1 else plan.start] * (cap - 1)]
    if cap == 1:
        return [plan.start], [plan.start]
    # If voices agree, two others answer them. Later turns may seat these and a referee, at most one above `high`.
    seated = high + 1 if plan.adaptive else min(plan.start + 3, high + 1)
    later = high + 1 if plan.adaptive else min(plan.start + 1, high + 1)
    return [plan.start, 2 if plan.start > 1 else 1], [plan.start, seated, *[later] * (cap - 2)]


def _seconds(plan: Plan, exchanges: Sequence[_Exchange], widths: Sequence[int]) -> tuple[float, float]:
    """Return fewest and most seconds. Voices of a turn answer in parallel, but an embedded model one at a time."""
    if any(model.route == "local" for model, *_ in exchanges):
        steps, pace = len(exchanges), LOCAL_PACE
    else:
        steps, pace = 2 * len(widths) + (3 if plan.review else 1), PACE
    return steps * pace[0], steps * pace[1]


_Exchange = tuple[ModelSpec, int, int]  # model, tokens of the prompt, tokens of the reply


def _exchanges(
    plan: Plan, widths: Sequence[int], models: Sequence[ModelSpec], given: int, reply: int, skills: int
) -> list[_Exchange]:
    """Return the calls of a run whose turns have these widths.

    Voices take the models in turn. Other calls use the first model, but the review of a draft uses the second.
    `skills` are the tokens that skills add to a voice's brief.
    """
    found: list[_Exchange] = []
    brief = given + BRIEF_TOKENS
    for turn, width in enumerate(widths):
        if turn == 1:
            brief += reply + plan.focus_tokens  # from here on, the last synthesis and files for its focus are shown
        found += [(models[index % len(models)], brief + skills, reply) for index in range(width)]
        found.append((models[0], brief + width * reply, reply))
    # The author reads the first and the last answer of each voice, and every synthesis.
    record = given + BRIEF_TOKENS + (widths[0] + max(widths) * (len(widths) > 1) + len(widths)) * reply
    written = [(models[0], record, reply)]
    if plan.review:  # findings, a blind draft, its review, the final text
        written = [
            (models[0], record, 3 * reply),
            (models[0], given + BRIEF_TOKENS, 2 * reply),
            (models[1 % len(models)], given + BRIEF_TOKENS + 3 * reply, reply),
            (models[0], record + 5 * reply, 2 * reply),
        ]
    found += written
    return [*found, *[(models[0], given + BRIEF_TOKENS + 2 * reply, 2 * reply)] * len(plan.documents)]


def _tokens(exchanges: Sequence[_Exchange]) -> int:
    return sum(prompt + reply for _, prompt, reply in exchanges)


def _cost(exchanges: Sequence[_Exchange]) -> float | None:
    costs = [model.cost(Usage(prompt, reply)) for model, prompt, reply in exchanges]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _known(exchanges: Sequence[_Exchange]) -> float:
    return sum(model.cost(Usage(prompt, reply)) or 0.0 for model, prompt, reply in exchanges)


def summary(plan: Plan, problem: str, span: Range, first: Sequence[str]) -> Mapping[str, Any]:
    """Return the plan as `--dry-run --json` prints it; `first` are the names of the first turn's voices."""
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
        "matches": {role: list(tags) for role, tags in plan.matches.items()},
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
        "remarks": list(plan.remarks),
    }
