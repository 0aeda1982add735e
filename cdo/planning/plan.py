"""Defines the frozen plan of a run, which `session.yaml` holds: made of words, settings and content. Pure.

Only the first turn is concrete. Later turns are shown as ranges: nothing beyond the next turn is ever planned (seed
004, section 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Annotated, Self

from msgspec import Meta, field
from msgspec.structs import replace

from cdo.content.schemas import Band, ConfidenceCaps, Count, Criteria, ascending
from cdo.content.skill_ranking import SkillCard
from cdo.core.errors import UsageError
from cdo.core.exchange import Effort
from cdo.core.mission_names import MODE
from cdo.core.schema import Schema
from cdo.formats.documents.prompt import DocumentPrompt
from cdo.formats.role_names import RoleName
from cdo.planning.mission_crew import Crew
from cdo.planning.people import PersonSeat
from cdo.planning.turn_plan import Combo, PlanFormat, Proposal

MATERIAL = "material"  # the folder of a session that holds the files its voices cite, if it brings them
MAX_COMMAND = 4000  # characters
AUDIT = "audit"  # the mode of an audit's plan; no content document defines it


class Change(Schema, frozen=True, kw_only=True):
    """What a person who forked a run changes, beginning with `turn`. Empty fields stay as they were.

    That turn is held whatever the result of the turn before. `focus`, `note` (to every voice), `roles` as (name,
    charge) and `without` (voices or roles that do not sit) apply to that turn alone. `models`, `vendors` and `turns`
    apply from then on. No call before that turn depends on a change.
    """

    turn: Count
    focus: Annotated[str, Meta(max_length=2000)] = ""
    note: Annotated[str, Meta(max_length=4000)] = ""
    roles: tuple[tuple[RoleName, Annotated[str, Meta(max_length=2000)]], ...] = ()
    without: tuple[RoleName, ...] = ()
    models: tuple[str, ...] = ()
    vendors: dict[str, str] = field(default_factory=dict)
    turns: Band | None = None

    def require_sound(self) -> None:
        ascending(turns=self.turns)


class CheckCommand(Schema, frozen=True, kw_only=True):
    """The person's own command that reproduces a fault (`--check`).

    It runs in a copy of the work tree. `root` is that work tree as seen from the session's folder. `folder` is the
    working directory below the root, "" for the root.
    """

    command: Annotated[str, Meta(min_length=1, max_length=MAX_COMMAND)]
    root: Annotated[str, Meta(min_length=1)]
    folder: str = ""


class Plan(Schema, frozen=True, kw_only=True):
    """The frozen plan of a run; `session.yaml` holds it with the source of each setting.

    Size: `width` is [fewest, most] voices a turn, and `start` is the number of voices in the first turn. `turns` is
    [n, cap]: after turn n, each further turn must be earned. `least` is the fewest turns that the mode needs.

    Roles: `roles` are those of the first turn, then those that fill later ones, with `charges` and `wishes` for
    skills of their own. `matches` are the tags for which a role of the first turn was chosen. `combos` are offered to
    the human.

    Models: `vendors` names the vendor of each model. With `mixed`, the models were chosen to be of different makers,
    and the first one answers for another one that fails.

    Skills: `skills` is the catalogue as it was when the run began, of which each voice gets `per_agent` ([fewest,
    most]). `skill_words` are wishes for all voices, and `topic` is the subject of the run.

    Content: `domain_file` is the content document of the domain, `documents` are those it requires beside FINAL.md,
    and `integration` is where its results are meant to go. With `tools` [requests, rounds] the voices may look into
    the repository, which is at `root` as seen from the session's folder; a session that brings its own material has
    it in its folder `MATERIAL`. At most `context_tokens` of a repository are shown to them beforehand, and at most
    `focus_tokens` more for the focus of a turn. With `review`,
    findings are ranked and a fresh voice reviews the draft of FINAL.md. `words` limits the length of [a voice's
    reply, FINAL.md].

    `remarks` are what a person should know. `changes` are those of a fork, at most one a turn. `crew` is the team of
    a cabal's mission. `effort` is how long models think, if the preset says so. `today` is the day on which the run
    began, as models are told it. `check` reproduces the fault of a root-cause analysis. `people` have a seat in every
    turn, beside the voices that `width` counts.
    """

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
    matches: dict[RoleName, tuple[str, ...]] = field(default_factory=dict)
    models: Annotated[tuple[str, ...], Meta(min_length=1)]
    mixed: bool = False
    vendors: dict[str, str] = field(default_factory=dict)
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
    charges: dict[str, str] = field(default_factory=dict)
    wishes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    combos: dict[str, Combo] = field(default_factory=dict)
    domain_file: str = ""
    documents: dict[str, DocumentPrompt] = field(default_factory=dict)
    integration: tuple[str, ...] = ()
    root: str = ""
    context_tokens: int | None = None
    focus_tokens: int = 0
    remarks: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    crew: Crew | None = None
    review: bool = False
    words: tuple[int, int] = (500, 900)
    effort: Effort | None = None
    today: str = ""
    check: CheckCommand | None = None
    people: tuple[PersonSeat, ...] = ()

    def require_sound(self) -> None:
        """Raise `ValueError` if crew and mode do not go together, or a seat of the crew names no model."""
        ascending(width=self.width, turns=self.turns)
        if (self.mode == MODE) != (self.crew is not None):
            raise ValueError("a mission has the mode cabal and a crew, and nothing else has either")
        if self.crew and not set(self.crew.seats.values()) <= set(self.named):
            raise ValueError(f"those in the crew's seats must be among the models: {', '.join(self.named)}")

    def change(self, turn: int) -> Change | None:
        """Return the change that begins with a turn, or None."""
        return next((change for change in self.changes if change.turn == turn), None)

    def turn_format(self, proposed: Proposal) -> PlanFormat:
        """Return the format of the plan of a turn for which `proposed` is put before the person."""
        return PlanFormat(
            proposed,
            known_roles=self.known_roles,
            skills=tuple(card.name for card in self.skills),
            combos=self.combos,
            models=self.models,
            order=self.roles,
        )

    @property
    def asked(self) -> tuple[str, ...]:
        """The models that are asked once every change applies."""
        return next((change.models for change in reversed(self.changes) if change.models), self.models)

    @property
    def named(self) -> tuple[str, ...]:
        """Every model that a call may name, each once."""
        return tuple(dict.fromkeys([*self.models, *(name for change in self.changes for name in change.models)]))

    def instead(self, names: Sequence[str]) -> dict[str, str]:
        """Return which model answers for each model when `names` replace `asked`, one for one.

        Models that were asked before a change are mapped too.
        """
        found = dict(zip(self.asked, names, strict=True))
        before = (name for name in self.named if name not in found)
        return {**found, **dict(zip(before, cycle(names), strict=False))}

    def with_models(self, names: Sequence[str], vendors: Mapping[str, str]) -> Self:
        """Return the plan with other models from the start: for showing the current models, not for a replay."""
        changes = tuple(replace(change, models=(), vendors={}) for change in self.changes)
        return replace(self, models=tuple(names), vendors=dict(vendors), changes=changes)


def seats(wanted: Sequence[str], spare: Sequence[str], count: int) -> list[tuple[str, str, int]]:
    """Fill `count` seats: (file name of the role, role, number among the seats of that role, from 1).

    Wanted roles come first, then unused spare ones. When all roles are seated, they are seated a second time
    ("critic-2"), as independent voices. Raises `UsageError` if there are no roles.
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
