"""Chooses the roles of the first turn: those of the preset, with some replaced by roles that fit the question. Pure.

A role fits if the question contains one of its tags, or is about a field (see `complexity`) that is one of its tags.
The same question, roles and preset always give the same choice; a question that fits no role gives the preset's
roles. With `exec TAG` the domain decides: its own team, or roles and skills that carry the tag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct, field

from cdo.content.library import Library
from cdo.content.schemas import Complexity, Preset, Role
from cdo.content.skill_ranking import SkillCard, rank
from cdo.core.errors import ContentError, UsageError
from cdo.formats.documents.prompt import DocumentPrompt
from cdo.formats.role_names import role_problem
from cdo.planning.complexity import subject
from cdo.planning.domains import Domain, team_from_skills

SPECIAL_ROLES = ("refuter", "referee", "steelman", "checker")
GENERIC = "generic"  # the domain of a tag that has no file of its own
SHOWN = 20  # tags that an error lists
LONG = 150  # words; a question this long may hold one tag by chance, so that a role needs two


class RoleCard(Struct, frozen=True):
    """The data of a role that a choice needs: its method as `description`, its tags and `part` (`schemas.Role`)."""

    name: str
    description: str
    tags: tuple[str, ...]
    part: str = ""


class Choice(Struct, frozen=True):
    """The roles of a first turn, and for each one that fits the question the tags that match."""

    roles: tuple[str, ...]
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class _Tag(Struct, frozen=True):
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()


def known_roles(name: str, preset: Preset, library: Library) -> tuple[RoleCard, ...]:
    """Return the roles that voices can have; raise `ContentError` if the preset called `name` lists another."""
    names = [
        role for role in library.names("templates/roles") if role not in SPECIAL_ROLES and not role_problem(role)
    ]
    if unknown := [role for role in preset.roles if role not in names]:
        path = library.find(f"presets/{name}")[1]
        raise ContentError(f"{path}: `roles`: there is no role called {unknown[0]}.", f"Roles: {', '.join(names)}.")
    read = {role: library.read(f"templates/roles/{role}", Role)[0] for role in names}
    return tuple(RoleCard(name, f"{role.title}. {role.method}", role.tags, role.part) for name, role in read.items())


# -- by the question -------------------------------------------------------------------------------


def choose(
    question: str, cards: Sequence[RoleCard], default: Sequence[str], seats: int, tables: Complexity
) -> Choice:
    """Choose the roles of `seats` seats: those of `default` in its order, and up to half of them (rounded up) by fit.

    A role that fits and is not among the first of `default` replaces the last one of these that does not fit. It
    never replaces the only role that argues from evidence, or the only one that attacks.
    """
    words = _words(question, tables)
    matches = _matched(words, cards)
    fitting = [card for card in cards if card.name in matches]
    tags = {tag for found in matches.values() for tag in found}
    ranked = [card.name for card in rank(fitting, words, tags)]
    half = (seats + 1) // 2
    kept, new = list(dict.fromkeys(default))[:seats], list[str]()
    for role in [role for role in ranked if role not in kept]:
        if len(new) + sum(name in ranked[:half] for name in kept) >= half:
            break
        if len(kept) + len(new) < seats:
            new.append(role)
        elif leaving := _leaving(kept, [*new, role], ranked[:half], {card.name: card.part for card in cards}):
            kept.remove(leaving)
            new.append(role)
    chosen = (*kept, *new)
    return Choice(chosen, {role: matches[role] for role in chosen if role in matches})


def _leaving(kept: Sequence[str], new: Sequence[str], best: Sequence[str], parts: Mapping[str, str]) -> str:
    """Return the last of `kept` that the last of `new` may replace; "" if there is none."""
    for role in reversed(kept):
        others = [name for name in (*kept, *new) if name != role]
        only = parts.get(role) and all(parts.get(name) != parts[role] for name in others)
        if role not in best and not only:
            return role
    return ""


def matched(question: str, cards: Sequence[RoleCard], tables: Complexity) -> dict[str, tuple[str, ...]]:
    """Return the tags that the question matches, by role, for the roles that match enough of them."""
    return _matched(_words(question, tables), cards)


def _matched(words: str, cards: Sequence[RoleCard]) -> dict[str, tuple[str, ...]]:
    there = {tag.name for tag in rank(_tags(tuple(cards)), words)}
    least = 1 if len(words.split()) < LONG else 2
    found = {card.name: tuple(tag for tag in card.tags if tag in there) for card in cards}
    return {name: tags for name, tags in found.items() if len(tags) >= least}


@lru_cache(4)
def _tags(cards: tuple[RoleCard, ...]) -> tuple[_Tag, ...]:
    """Return the tags of roles, each once: the questions of a batch are all matched with the same ones."""
    return tuple(_Tag(tag) for tag in dict.fromkeys(tag for card in cards for tag in card.tags))


def _words(question: str, tables: Complexity) -> str:
    """Return the words by which roles are ranked: the fields that the question is about, then its own words."""
    prose, fields = subject(question, tables)
    return " ".join((*fields, prose))


# -- by the domain ---------------------------------------------------------------------------------


class DomainTeam(Struct, frozen=True):
    """What a domain decides about the first turn; empty without a domain."""

    roles: tuple[str, ...] = ()
    matches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    charges: dict[str, str] = field(default_factory=dict)
    wishes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    file: str = ""
    documents: dict[str, DocumentPrompt] = field(default_factory=dict)
    integration: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def team_of(
    tag: str,
    library: Library,
    cards: Sequence[SkillCard],
    untrusted: Sequence[SkillCard],
    known: Sequence[RoleCard],
    preset: Preset,
) -> DomainTeam:
    """Return the team of `exec TAG`: from the domain's file, or the roles and skills that carry the tag.

    Raises `UsageError` if the tag has no file, and no role and no skill that may be used carries it.
    """
    own = tag in library.names("domains") and tag != GENERIC
    file = f"domains/{tag if own else GENERIC}"
    domain = library.read(file, Domain)[0]
    documents = {name: library.read(f"templates/documents/{name}", DocumentPrompt)[0] for name in domain.documents}
    if own:
        words = (*domain.skills, *domain.tags)
        return DomainTeam(domain.team, words=words, file=file, documents=documents, integration=domain.integration)
    usable = [card for card in cards if card.name not in SPECIAL_ROLES]
    tagged = [card.name for card in rank([card for card in known if tag in card.tags], tag, (tag,))]
    closed = sorted({card.name for card in untrusted if tag in card.tags})
    if not tagged and not any(tag in card.tags for card in cards):
        raise _nobody(tag, library, [*known, *cards], closed)
    names = [card.name for card in known]
    weighted = (*domain.skills, *domain.tags)
    members = team_from_skills(tag, usable, names, preset.roles, preset.start, weighted, tagged)
    return DomainTeam(
        roles=tuple(seat.role for seat in members),
        matches={seat.role: (tag,) for seat in members if seat.role in tagged or seat.skills},
        charges={seat.role: seat.charge for seat in members if seat.charge},
        wishes={seat.role: seat.skills for seat in members if seat.skills},
        words=(tag, *domain.skills),
        file=file,
        documents=documents,
        integration=domain.integration,
        remarks=(_untrusted(tag, closed),) if closed else (),
    )


def _untrusted(tag: str, names: Sequence[str]) -> str:
    return (
        f"{', '.join(names)}: skills of this project with the tag {tag}, not used because you have not trusted them. "
        "Read them with `cdo skills show NAME`; `cdo skills trust NAME` or --trust allows them."
    )


def _nobody(tag: str, library: Library, cards: Sequence[RoleCard | SkillCard], closed: Sequence[str]) -> UsageError:
    """Return the error for a tag that no usable role or skill carries."""
    import difflib  # lazily: needed only to explain an error

    message = f"`exec {tag}`: there is no domain of this name, and no role and no skill carries the tag."
    if closed:
        return UsageError(f"`exec {tag}`: only skills that are not trusted carry the tag.", _untrusted(tag, closed))
    domains = ", ".join(name for name in library.names("domains") if name != GENERIC)
    tags = sorted({tag for card in cards for tag in card.tags})
    near = difflib.get_close_matches(tag, tags, n=3, cutoff=0.75)
    listed = f"Did you mean {', '.join(near)}?" if near else f"Tags: {', '.join(tags[:SHOWN])}, …"
    return UsageError(message, f"Domains: {domains}. {listed}")
