"""Holds the result of a run, as `--json` prints it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict


class Result(Struct, frozen=True):
    """The result of a run. `cost` is None if a price is unknown; `confidence` is None if none is stated.

    `verified` counts the citations whose quoted words were found, `exists` those of existing lines without a quote.
    `turns` counts turns, or the rounds of a mission, as `unit` says. `deliverables` are a mission's accepted files;
    `unaccepted` is what each of its other products lacks. `question` is what its team asks, with the `options` that
    it offers. `handed_over` tells where its files were delivered to. `confidence_reason` is the confidence with what
    lowered it, in words.
    """

    session: str
    path: str
    status: str
    why: str
    decision: str
    confidence: float | None
    turns: int
    calls: int
    tokens: int
    cost: float | None
    missing_voices: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    verified: int = 0
    exists: int = 0
    unverified: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    unit: str = "turn"
    deliverables: tuple[str, ...] = ()
    unaccepted: tuple[str, ...] = ()
    question: str = ""
    options: tuple[str, ...] = ()
    confidence_reason: str = ""
    handed_over: str = ""

    @property
    def degraded(self) -> bool:
        return bool(self.missing_voices or self.added)

    def json(self) -> dict[str, Any]:
        """Return the data that `--json` prints. Only a mission has the keys that are specific to missions."""
        found = asdict(self)
        others = (
            "unit",
            "deliverables",
            "unaccepted",
            "question",
            "options",
            "handed_over",
        )  # a deliberation delivers nothing
        for key in others if self.unit == "turn" else ("confidence_reason",):
            del found[key]
        return found
