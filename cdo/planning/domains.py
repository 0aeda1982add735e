"""Defines domains, which are fields of work with their own team, skills and documents, and builds their teams. Pure.

A domain is a content file, so that a new one needs no code. A domain without a team gets the roles and skills that
carry its tag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from cdo.content.skill_ranking import Card
from cdo.core.schema import Line, Schema
from cdo.formats.documents.prompt import Name
from cdo.formats.role_names import RoleName, role_problem

CHARGE = 1000  # most characters of a skill's description that become a charge


class Domain(Schema, frozen=True, kw_only=True):
    """`domains/*.md`: a field of work. The body is added to each voice's brief.

    `team` are the first turn's roles in order (if empty: the roles and skills that carry the tag). `skills` and
    `tags` are words that have weight in the choice of skills. `documents` names what is written at the end.
    `integration` tells the writers of these documents where their text may go: each entry is a folder of the project
    and its content. An entry is left out if there is no such folder.
    """

    purpose: str
    load_when: str
    about: Line
    team: Annotated[tuple[RoleName, ...], Meta(max_length=32)] = ()
    skills: tuple[Line, ...] = ()
    tags: tuple[Line, ...] = ()
    documents: Annotated[tuple[Name, ...], Meta(max_length=16)] = ()
    integration: tuple[Line, ...] = ()


class TeamSeat(NamedTuple):
    """A place on a team: its role, its charge ("" if the method of the role is enough), and its skills."""

    role: str
    charge: str = ""
    skills: tuple[str, ...] = ()


def team_from_skills(
    tag: str,
    cards: Sequence[Card],
    known_roles: Sequence[str],
    spare: Sequence[str],
    count: int,
    weighted: Sequence[str] = (),
    tagged: Sequence[str] = (),
) -> list[TeamSeat]:
    """Return a team of `count` for a field known by its `tag` alone: a role for each match, then spare roles.

    `tagged` are roles that carry the tag. They are seated first, in up to half of the seats (rounded up), and in
    seats that are left after the skills. Skills filed under the tag come first, then those with its words in their
    name, then those with its words in their description. Among equal skills, those come first that are also filed
    under one of the `weighted` words (a domain's `skills` and `tags`); skills that are still equal stay in the order
    of `cards`.

    A role is named after its skill. If that is no valid role name, or already taken, a spare role takes the skill on.
    `known_roles` follow when `spare` is used up. The team is smaller than `count` only when these are used up, too.
    """
    words = {_words(word) for word in weighted}
    found = [(rank, card) for card in cards if (rank := _rank(tag, card))]
    ranked = sorted(found, key=lambda pair: (pair[0], words.isdisjoint(map(_words, pair[1].tags))))
    waiting = [role for role in dict.fromkeys([*tagged, *spare, *known_roles]) if not role_problem(role)]
    team = {role: TeamSeat(role) for role in tagged[: (max(count, 0) + 1) // 2]}
    for _, card in ranked[: max(count - len(team), 0)]:
        role = _role_name(card.name)
        if not role or role in team:
            role = next((name for name in waiting if name not in team), "")
        if role:
            team[role] = TeamSeat(role, " ".join(card.description.split())[:CHARGE], (card.name,))
    for role in waiting:
        if len(team) < count:
            team.setdefault(role, TeamSeat(role))
    return list(team.values())


def _rank(tag: str, card: Card) -> int:
    """Return how near a skill is to the tag: 1 filed under it, 2 by its name, 3 by its description, 0 not at all."""
    wanted = _words(tag)
    if not wanted:
        return 0
    if any(_words(own) == wanted for own in card.tags):
        return 1
    return next((rank for rank, text in ((2, card.name), (3, card.description)) if wanted <= _words(text)), 0)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]+", text.casefold()))


def _role_name(skill: str) -> str:
    """Return the name of a skill as the name of a role; "" if it cannot be one."""
    name = re.sub(r"[^a-z0-9]+", "-", skill.lower()).strip("-")[:32].rstrip("-")
    return "" if role_problem(name) else name
