"""Names people who have a seat in a run, and what of a session belongs to their seats. Pure and light."""

from __future__ import annotations

HUMAN = "human:"  # begins the name that stands in place of a model's: `human:anna`
ABSENT = "absent"  # the kind of a missing reply whose person did not answer in time
UNCLEAR = "unclear"  # the kind of a missing reply whose person wrote nothing that could be read
SEATS = "seats"  # the folder of a session for the forms that people fill in
BRIEFS = f"{SEATS}/briefs"  # what they are shown of a turn


def person_of(model: str) -> str:
    """Return the name of the person whom the name of a model means; "" for a model."""
    return model.removeprefix(HUMAN) if model.startswith(HUMAN) else ""
