"""Sums the costs of a mission by seat, round, model and product. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cdo.cabal.model.entities import MissionStep
from cdo.cabal.model.state import MissionState
from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG
from cdo.core.usage import NOTHING, TotalUsage

_CALL = re.compile(
    rf"r([0-9]{{1,4}})-({'|'.join(MissionStep)})(?:-(operative-[1-9][0-9]?))?"
    "(?:-p[1-9][0-9]*)?(?:-again)?(?:-[1-9][0-9]?)?"  # a product, what is asked again, a number
)
TEAM, BESIDE = "team", "beside"
Key = tuple[int, MissionStep, str]  # round, step, agent


class Costs(Struct, frozen=True):
    """The usage of a mission, over all attempts: by seat and round, by seat and model, by round, and by product.

    A call is shared in equal parts among the products that it touched; a call that touched none is under "team".
    Calls of no step are under the seat "beside" and round -1.
    """

    total: TotalUsage
    seats: Mapping[str, Mapping[int, TotalUsage]]
    models: Mapping[str, Mapping[str, TotalUsage]]
    rounds: Mapping[int, TotalUsage]
    products: Mapping[str, TotalUsage]

    def of(self, seat: str) -> TotalUsage:
        """Return the total usage of a seat."""
        return sum(self.seats[seat].values(), NOTHING)


def summed(records: Iterable[Mapping[str, Any]], state: MissionState) -> Costs:
    """Return the recorded costs.

    A call touched the products of the events that name the call, or that its agent caused in the same step and round.
    """
    touched: dict[Key, dict[str, None]] = {}
    for event in state.events:
        if event.product in state.products:
            key = made(event.call) or (event.round, event.step, event.actor)
            touched.setdefault(key, {})[event.product] = None
    seats: dict[str, dict[int, TotalUsage]] = {agent: {} for agent in state.agents}
    models: dict[str, dict[str, TotalUsage]] = {}
    rounds: dict[int, TotalUsage] = {}
    products: dict[str, TotalUsage] = {}
    for record in records:
        if record["kind"] != "exchange":
            continue
        spent, of = TotalUsage.of(record), made(str(record["call"]))
        number, seat = (of[0], of[2]) if of else (-1, BESIDE)
        _add(seats.setdefault(seat, {}), number, spent)
        _add(models.setdefault(seat, {}), str(record["model"]), spent)
        _add(rounds, number, spent)
        about = tuple(touched.get(of, ())) if of else ()
        for product, part in zip(about or (TEAM,), parts(spent, max(1, len(about))), strict=True):
            _add(products, product, part)
    return Costs(sum(rounds.values(), NOTHING), seats, models, rounds, products)


def made(call: str) -> Key | None:
    """Return the round, step and agent of a call, or of the stem of its file; None if it belongs to no step."""
    match = _CALL.fullmatch(call)
    if not match:
        return None
    step = MissionStep(match[2])
    agent = match[3] or {MissionStep.INSPECT: WATCHDOG, MissionStep.PRESENT: ENVOY}.get(step, CHAIR)
    return int(match[1]), step, agent


def parts(spent: TotalUsage, count: int) -> list[TotalUsage]:
    """Split `spent` into equal parts, each counted as one call; their tokens and dollars add up to `spent`."""
    tokens, more = divmod(spent.tokens, count)
    one = replace(spent, output_tokens=0, cost=spent.cost / count, seconds=spent.seconds / count)
    return [replace(one, input_tokens=tokens + (place < more)) for place in range(count)]


def _add(sums: dict[Any, TotalUsage], key: object, spent: TotalUsage) -> None:
    sums[key] = sums.get(key, NOTHING) + spent
