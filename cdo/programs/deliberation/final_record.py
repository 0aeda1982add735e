"""Writes the section that code adds to FINAL.md: how the run ended, and both ledgers. Pure.

The author of FINAL.md writes for a reader who was not there, and leaves things out. This section keeps the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdo.content.library import line
from cdo.core.people import ABSENT, UNCLEAR
from cdo.programs.deliberation.conclusion import Outcome
from cdo.programs.deliberation.objections import NOTED, Logged

TITLE = "Record"


def record(outcome: Outcome) -> str:
    """Return the section of FINAL.md, with its heading; "" if the outcome has nothing to list."""
    told = outcome.ledger or outcome.objections or outcome.dropped or outcome.needed or outcome.findings
    if not (told or _absent(outcome)):
        return ""
    parts = [f"## {TITLE}", _ended(outcome)]
    if outcome.ledger:
        parts += ["### Tensions", _tensions(outcome)]
    if outcome.objections:
        parts += [f"### Objections of severity {NOTED} or more", _objections(outcome.objections)]
    if outcome.dropped:
        rows = [
            f"- **{item.voice}** (turn {item.turn}, {_sure(item.confidence)}): {_sentence(item.text)}"
            for item in outcome.dropped
        ]
        parts += ["### Last positions of voices that did not sit in the last turn", "\n".join(rows)]
    if outcome.findings:
        rows = [f"- {_sentence(text)}" for text in outcome.findings]
        parts += ["### Other findings", "\n".join(rows)]
    return "\n\n".join(parts)


def _ended(outcome: Outcome) -> str:
    """Return which criterion ended the run, what another turn would have needed, and if one call was enough."""
    lines = [f"The run ended after turn {outcome.turns}: {outcome.why}."]
    if outcome.needed:
        lines.append(f"Another turn would have needed {outcome.needed}.")
    if outcome.enough:
        lines.append(
            "**One call would have given the same decision:** every voice of turn 1 gave this answer on its own, the "
            "best case for another answer was argued after that, and the answer did not change."
        )
    return " ".join([*lines, *map(_sentence, _absent(outcome))])


def _absent(outcome: Outcome) -> list[str]:
    """Return which people did not answer which turn, and which of their answers came too late."""
    return [*(reason.text for *_, reason in outcome.missing if reason.kind in (ABSENT, UNCLEAR)), *outcome.late]


def _sure(confidence: float | None) -> str:
    return "confidence not given" if confidence is None else f"{confidence:.2f}"


def _tensions(outcome: Outcome) -> str:
    rows = []
    for item in outcome.ledger:
        settled = f" {'Who can tell' if item.status == 'outside' else 'Settled by'}: {_sentence(item.settled_by)}"
        rows.append(
            f"- **{item.id}** ({_status(item.status)}): {_sentence(item.title)}{settled if item.settled_by else ''}"
        )
    return "\n".join(rows)


def _status(status: str) -> str:
    return "only a fact from outside can settle it" if status == "outside" else status


def _objections(items: Sequence[Logged]) -> str:
    """Return the open objections, the most severe first, then the closed ones with the answers that closed them."""
    still = sorted((item for item in items if item.status == "open"), key=lambda item: -item.severity)
    closed = [item for item in items if item.status != "open"]
    rows = [f"- **{item.id}, open**, {_by(item)}: {_sentence(item.text)}" for item in still]
    rows += [
        f"- {item.id}, {item.status} in turn {item.ended}, {_by(item)}: {_sentence(item.text)}"
        + (f" Answer: {_sentence(item.why)}" if item.why else "")
        for item in closed
    ]
    return "\n".join(rows)


def _by(item: Logged) -> str:
    aimed = f", against {_line(item.against, 120)}" if item.against else ""
    aside = "" if item.leading else ", not against the leading answer"
    return f"severity {item.severity}, {item.role} in turn {item.turn}{aimed}{aside}"


def _sentence(text: str) -> str:
    """Return recorded text on one line that ends like a sentence."""
    shown = _line(text)
    return shown if shown.endswith(("?", "!", "…")) else f"{shown}."


def _line(text: str, limit: int = 4000) -> str:
    return line(text, limit).rstrip(".")
