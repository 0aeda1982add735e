"""How a cabal is manned and bounded: the part of the frozen plan that only it has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cdo.core.mission_names import CHAIR, ENVOY, WATCHDOG, operatives
from cdo.core.schema import Schema

Round = Annotated[int, Field(ge=1, le=100)]


class MissionLimits(Schema):
    """What bounds a mission: how many operatives, rounds and deliberations there are at most.

    After `idle` rounds without progress the chair is nudged, after one more told to plan anew, after another the
    mission halts; `questions` may be asked in one step; `presets` are those a Decision may be deliberated by; a step
    shows at most `tokens` (estimated) beside its rules.
    """

    operatives: Annotated[int, Field(ge=1, le=16)]
    rounds: Round
    idle: Annotated[int, Field(ge=1, le=20)]
    deliberations: Annotated[int, Field(ge=0, le=20)]
    questions: Annotated[int, Field(ge=0, le=10)]
    presets: tuple[str, ...]
    tokens: Annotated[int, Field(ge=500)]


class Kernel(MissionLimits):
    """`engine/cabal-kernel.md`: the rules of every step, and the bounds of a mission that is not told otherwise."""

    purpose: str
    load_when: str
    kind: Literal["cabal"]


class Crew(MissionLimits):
    """Who works on a mission, and how long: `seats` are the models by agent.

    With `material` the person gave some beside the request, which everybody is shown.
    """

    seats: dict[str, str]
    material: bool = False

    @model_validator(mode="after")
    def _seated(self) -> Crew:
        if set(self.seats) != set(self.agents):
            raise ValueError(f"the seats must be those of the team: {', '.join(self.agents)}")
        return self

    @property
    def agents(self) -> tuple[str, ...]:
        """The whole team."""
        return (CHAIR, *operatives(self.operatives), WATCHDOG, ENVOY)
