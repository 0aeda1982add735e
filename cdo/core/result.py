"""How a run ended, as `--json` prints it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a run ended with. `cost` is None when a price is unknown; `confidence` where nothing states one.

    `verified` counts the citations whose words stand there, `exists` those of lines that are there without a quote;
    `turns` counts turns, or the rounds of a mission, as `unit` says; `deliverables` are a mission's accepted files,
    `unaccepted` is what each of its other products lacks, and `question` what its team waits to be told, with the
    `options` that it offers.
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

    @property
    def degraded(self) -> bool:
        return bool(self.missing_voices or self.added)

    def json(self) -> dict[str, Any]:
        """As `--json` prints it: what only a mission has is there for a mission alone."""
        found = asdict(self)
        if self.unit == "turn":  # a deliberation delivers nothing
            for key in ("unit", "deliverables", "unaccepted", "question", "options"):
                del found[key]
        return found
