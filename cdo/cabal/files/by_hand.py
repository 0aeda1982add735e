"""Tells which recorded replies of a mission a person edited, and what came of them. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from cdo.cabal.model.state import MissionState

_CAME = ("mission", "version", "inspection", "accepted", "waived", "closed", "collab", "message")


class EditedCall(Struct, frozen=True):
    """A call whose recorded reply the person edited: the `text` of that event, and the facts that `came` of it."""

    call: str
    round: int
    text: str
    came: tuple[str, ...]

    @property
    def file(self) -> str:
        """The file of the reply."""
        return f"{self.call}.md"

    def entry(self) -> dict[str, Any]:
        """Return what the certificate says of it."""
        return {"file": self.file, "round": self.round, "what": self.text}


def edited_calls(state: MissionState) -> tuple[EditedCall, ...]:
    """Return the calls whose recorded reply the person edited, in order."""
    return tuple(
        EditedCall(
            event.ref,
            event.round,
            event.text,
            tuple(item.text for item in state.events if item.call == event.ref and item.kind in _CAME),
        )
        for event in state.events
        if event.kind == "edited"
    )


def resting_on(state: MissionState, product: str) -> tuple[str, ...]:
    """Return what of an acceptance rests on the person's edits: "its inspection", "its newest version"."""
    pinned = state.acceptances.get(product)
    if pinned is None:
        return ()
    found, version = state.inspections.get(pinned.inspection), state.versions.get(pinned.version)
    rests = (("its inspection", found and found.edited), ("its newest version", version and version.edited))
    return tuple(what for what, edited in rests if edited)
