"""What people change in a turn before its voices are asked: in the plan that they edit, or with a fork. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cdo.planning.plan import Change, Plan
from cdo.planning.role_choice import SPECIAL_ROLES
from cdo.planning.turn_plan import PlannedSeat, Proposal
from cdo.programs.deliberation.calls import Voice, seated


def voices_of_people(plan: Plan, change: Change | None) -> list[Voice]:
    """Return the voices of people: one for each of their seats, unless a fork leaves it out.

    Nothing else seats or drops them, and the band of voices does not count them.
    """
    out = set(change.without) if change else set()
    return [
        Voice(seat.role, seat.role, 1, plan.charges.get(seat.role, ""), model=seat.model)
        for seat in plan.people
        if seat.role not in out
    ]


def with_change(plan: Plan, change: Change, turn: int) -> Plan:
    """Return the plan with the changes of a fork other than seats, and with a cap of at least this turn."""
    (low, cap), models = change.turns or plan.turns, change.models or plan.models
    vendors = {**plan.vendors, **change.vendors}
    mixed = plan.mixed and not change.models  # a person who names models has chosen them
    return replace(plan, models=models, vendors=vendors, turns=(low, max(cap, turn)), mixed=mixed)


def with_seats(plan: Plan, voices: Sequence[Voice], change: Change) -> tuple[list[Voice], list[str]]:
    """Return the voices without the names that a fork leaves out, and with the roles that it asks for.

    A requested role that already sits keeps its seat; any other gets an additional seat. Only if an adaptive band
    is full does it take the seat of the last voice that was not requested. The second value are the names that had no
    seat to be left out of.
    """
    asked = dict(change.roles)
    chosen = [voice for voice in voices if not {voice.name, voice.role} & set(change.without)]
    sat = {name for voice in voices for name in (voice.name, voice.role)} | {seat.role for seat in plan.people}
    chosen = [replace(voice, charge=asked.get(voice.role) or voice.charge) for voice in chosen]
    for role, charge in change.roles:
        if role in {name for voice in chosen for name in (voice.name, voice.role)}:
            continue
        drop = [voice for voice in chosen if voice.role not in asked and voice.role not in SPECIAL_ROLES]
        if plan.adaptive and len(chosen) >= plan.width[1] and drop:
            chosen.remove(drop[-1])
        chosen.append(Voice(role, role, 1, charge or plan.charges.get(role, "")))
    rest = [role for role in (*plan.roles, *plan.known_roles) if role not in change.without]
    return chosen or seated(rest or plan.roles, (), 1, plan.charges), [
        name for name in change.without if name not in sat
    ]


def resized(plan: Plan, width: int) -> Plan:
    """Return the plan with a band that includes the number of voices that a person asked for, from now on."""
    low, high = plan.width
    return replace(plan, start=width, width=(min(low, width), max(high, width)))


def proposal(plan: Plan, turn: int, voices: Sequence[Voice], focus: str, note: str) -> Proposal:
    """Return the plan of a turn as a person can edit it."""
    planned = tuple(
        PlannedSeat(
            role=voice.role,
            charge=voice.charge,
            skills=tuple(card.name for card in voice.skills),
            model=voice.model,
            effort=voice.effort,
        )
        for voice in voices
    )
    return Proposal(turn=turn, voices=planned, focus=focus, turns=plan.turns, criteria=plan.criteria, note=note)


def edited_voices(plan: Plan, answer: Proposal) -> list[Voice]:
    """Return the voices of a turn's plan as a person left it."""
    known = {card.name: card for card in plan.skills}
    return [
        Voice(
            name,
            role,
            number,
            seat.charge,
            seat.skills,
            tuple(known[skill] for skill in seat.skills),
            seat.model,
            seat.effort,
        )
        for (name, role, number), seat in zip(answer.seats, answer.voices, strict=True)
    ]


def allowed_turns(plan: Plan, wanted: tuple[int, int]) -> tuple[int, int]:
    """Return the turns that a person asked for, adjusted to what the mode needs."""
    if plan.mode and plan.least == plan.turns[1]:
        return plan.turns
    low, cap = wanted
    return max(low, plan.least), max(cap, plan.least)
