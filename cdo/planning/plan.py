"""What a run is going to be: the frozen plan of `session.yaml`, made of words, settings and content. Pure.

Only the first turn is concrete. Later turns are shown as what they may vary between: nothing beyond the next
turn is ever planned (seed 004, section 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cdo.content.schemas import Band, ConfidenceCaps, Count, Criteria
from cdo.content.skill_ranking import SkillCard
from cdo.core.errors import UsageError
from cdo.core.mission_names import MODE
from cdo.core.schema import Schema
from cdo.formats.documents.document import DocumentPrompt
from cdo.formats.fields import RoleName
from cdo.planning.mission_crew import Crew
from cdo.planning.turn_plan import Combo

AUDIT = "audit"  # the mode of an audit's plan, which no document brings


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


class CheckCommand(Schema):
    """The person's own command that reproduces a fault (`--check`).

    It runs in `folder` (below `root`, "" for itself) of a copy of the work tree at `root`, as seen from the session's
    folder.
    """

    command: Annotated[str, Field(min_length=1, max_length=4000)]
    root: Annotated[str, Field(min_length=1)]
    folder: str = ""


class Plan(BaseModel):
    """The frozen plan of a run; `session.yaml` holds it with the source of each setting.

    `width` is the band of voices a turn, `start` the first turn's; `turns` is [after which a further turn must be
    earned, the cap] and `least` the fewest that its mode can do with; `roles` are those of the first turn, then those
    that fill later ones, with `charges` and `wishes` for skills of their own; `matches` are the tags for which a role
    of the first turn was chosen. `vendors` names who is behind each model; with `mixed` the models were chosen to be
    of different makers, and the first one answers for another that fails; `skills` is the catalogue as it was when
    the run began, of which each voice gets `per_agent`; `skill_words` is what is asked of it for everybody and
    `topic` what all are about; `combos` are offered to the human; `domain_file` is the content document of the
    domain, `documents` what it wants beside FINAL.md; with `tools` [requests, rounds] the voices may look into the
    repository, which is at `root` as seen from the session's folder. `integration` is where a domain's results are
    meant to go; `remarks` what a person should know; `changes` are those of a fork, at most one a turn; `crew` mans
    the mission of a cabal. With `review` the findings are ranked and a fresh voice reviews the draft of FINAL.md;
    `words` is how long [a voice's reply, FINAL.md] may be; `today` is the day on which the run began, as models are
    told it; `check` reproduces the fault that a root-cause analysis is about.
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
    matches: dict[RoleName, tuple[str, ...]] = {}
    models: tuple[str, ...]
    mixed: bool = False
    vendors: dict[str, str] = {}
    criteria: Criteria
    bounds: ConfidenceCaps = ConfidenceCaps()
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
    review: bool = False
    words: tuple[int, int] = (500, 900)
    today: str = ""
    check: CheckCommand | None = None

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
