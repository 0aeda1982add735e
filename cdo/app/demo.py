"""Plays a recording as an ordinary run: today's program and runner, with a backend that answers from the recording.

The session that comes of it is like any other. It brings its own copy of the material that the replies cite, so that
it can be forked and resumed wherever it lies.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from cdo.app.recording import Recording, load
from cdo.content.library import PACKAGED, Library
from cdo.content.schemas import Price
from cdo.core.formatting import pluralise
from cdo.core.schema import field_names
from cdo.planning.plan import Plan
from cdo.planning.settings import Resolved, Settings
from cdo.providers.models import ModelSpec
from cdo.providers.recorded import RecordedBackend
from cdo.runner.model_seat import ModelSeat
from cdo.runner.retry import CircuitBreaker
from cdo.session import session_file

if TYPE_CHECKING:
    from cdo.session.store import Session

FOLDER = PACKAGED / "demo"
NAME = "demo"
DURATION = 38.0  # seconds of waiting for replies; cdo itself takes a few more


class Playback(Struct, frozen=True):
    """A run that is ready to be played: its new session, the plan and settings of it, and the seats that answer."""

    session: Session
    plan: Plan
    settings: Settings
    library: Library
    seats: dict[str, ModelSeat]

    @property
    def specs(self) -> list[ModelSpec]:
        """The models of the seats."""
        return [seat.spec for seat in self.seats.values()]


def begin(recording: Recording, resolved: Resolved, seconds: float) -> Playback:
    """Create the session of a playback in which replies are awaited for `seconds` in all.

    Of the person's settings only the folder of the sessions counts, and of the content only what ships with cdo:
    what a person set for real runs must not end this one. No commits are made. Raises `SessionError`.
    """
    settings = Settings(out=resolved.values.out, no_git=True)
    sources = {key: resolved.sources["out"] if key == "out" else "default" for key in field_names(Settings)}
    sources["no_git"] = "cdo demo"
    plan = replace(recording.head.plan, remarks=(about(recording),))
    session = session_file.create_session(
        session_file.new_session_file(plan, settings, sources),
        recording.files,
        Path(settings.out),
        None,
        [NAME, *(f"{NAME}-{number}" for number in range(2, 1000))],
    )
    backend, gate = RecordedBackend(recording.replies(seconds)), CircuitBreaker()
    specs = (_spec(name, plan) for name in plan.named)
    seats = {spec.name: ModelSeat(spec, backend, gate) for spec in specs}
    return Playback(session, plan, settings, Library((("packaged", PACKAGED),)), seats)


def _spec(name: str, plan: Plan) -> ModelSpec:
    """Return what the runner needs to know of a recorded model. What it costs to ask it now is nothing."""
    free = Price(input=0, output=0)
    vendor = plan.vendors.get(name, "")
    return ModelSpec(name, "scripted", name, price=free, tools=plan.tools is not None, vendor=vendor)


def shipped() -> Recording:
    """Return the recording that ships with cdo; raise `ContentError` if it is damaged."""
    return load(FOLDER)


def about(recording: Recording) -> str:
    """Say that this is a recording, and of what."""
    head = recording.head
    answers = pluralise(len(head.exchanges), "answer")
    return (
        f"This is a recording: no model is asked, nothing is sent, nothing costs anything. {head.model} gave the "
        f"{answers} in {date.fromisoformat(head.date):%B %Y}."
    )
