"""Reads who of the people sits in a run, from `--seat human:NAME`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from cdo.core.errors import UsageError
from cdo.core.formatting import pluralise
from cdo.core.people import HUMAN
from cdo.core.schema import Schema
from cdo.formats.role_names import RoleName, role_problem
from cdo.planning.role_choice import SPECIAL_ROLES

ROLE = "practitioner"  # the role of a person who names none: it has no document, so the person's own method counts
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class PersonSeat(Schema, frozen=True, kw_only=True):
    """A seat of a person: `name` is theirs, `role` the name under which the other voices read them."""

    name: Annotated[str, Meta(pattern=rf"^{_NAME.pattern}\Z")]
    role: RoleName

    @property
    def model(self) -> str:
        """What stands in place of a model's name."""
        return f"{HUMAN}{self.name}"


def people(texts: Sequence[str], least: int) -> tuple[PersonSeat, ...]:
    """Return the seats of `--seat human:NAME` and `--seat human:NAME=ROLE`; raise `UsageError`.

    `least` is the fewest models' voices of a turn: people never outnumber them.
    """
    found = list(_seats(texts))
    for what, values in (("NAME", [seat.name.casefold() for seat in found]), ("ROLE", [seat.role for seat in found])):
        if twice := next((value for value in values if values.count(value) > 1), ""):
            raise UsageError(f"`{twice}` has two seats.", f"Give each --seat another {what}: --seat human:NAME=ROLE.")
    if len(found) > least:
        raise UsageError(
            f"{pluralise(len(found), 'person')} would outnumber the models, of which a turn may have {least}.",
            "Take a larger preset, or more voices with --width.",
        )
    return tuple(found)


def _seats(texts: Sequence[str]) -> Iterator[PersonSeat]:
    """Yield each seat; who names no role gets one of the default ones."""
    unnamed = 0
    for text in texts:
        who, _, role = text.partition("=")
        name = who.strip().removeprefix(HUMAN)
        if not who.strip().startswith(HUMAN) or not _NAME.fullmatch(name):
            raise UsageError(
                f"`{text[:60]}` is not a seat of a person.",
                "Give it as human:NAME or human:NAME=ROLE, with letters, digits, - and _ in the name. Models are "
                "named with -m.",
            )
        if not (role := role.strip().lower()):
            unnamed += 1
            role = ROLE if unnamed == 1 else f"{ROLE}-{unnamed}"
        if problem := role_problem(role):
            raise UsageError(f"{problem}.", "Give the seat as human:NAME or human:NAME=ROLE.")
        if role in SPECIAL_ROLES:
            raise UsageError(
                f"A person cannot sit as {role}: cdo seats it to argue or to weigh what other voices said.",
                "Take another role, or none.",
            )
        yield PersonSeat(name=name, role=role)


def told(seats: Sequence[PersonSeat], wait: str) -> Iterator[str]:
    """Yield a remark for each seat; `wait` is how long a turn waits, in words."""
    for seat in seats:
        yield (
            f"{seat.name} has a seat as {seat.role} in every turn. A turn waits at most {wait} for the answer. "
            f"Until then {seat.name} does not see what the other voices of the turn say."
        )
