"""Makes a form of what a run asks a person, and reads the filled-in form. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from cdo.core.errors import UsageError
from cdo.core.formatting import visible
from cdo.formats.person_reply import ANSWER, FORM, WITHDRAWN, filled_in
from cdo.history.pending import PendingInput

_SHOWN = 6000  # characters of a plan in a form
_LONGEST = 4000  # characters of an answer
_TEXT = {"type": "string", "maxLength": _LONGEST}


class FilledForm(Struct, frozen=True):
    """What a person answered: `go`, `done` or the answer to a question, a note to the voices and the turn's focus."""

    text: str
    note: str = ""
    focus: str = ""


def elicitation(asks: PendingInput) -> dict[str, Any]:
    """Return the request that shows the form to a person."""
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": _message(asks), "requestedSchema": _schema(asks)},
    }


def read(asks: PendingInput, content: Any) -> FilledForm:
    """Read a filled-in form; raise `UsageError` if it says nothing that can be taken."""
    values = content if isinstance(content, dict) else {}
    texts = {key: value for key, value in values.items() if isinstance(value, str) and len(value) <= _LONGEST}
    if asks.person:
        found = FilledForm(filled_in(texts))
    elif asks.file:
        found = FilledForm(texts.get("decision", ""), texts.get("note", ""), texts.get("focus", ""))
    else:
        found = FilledForm(texts.get("answer", "").strip() or texts.get("choice", ""))
    if not found.text.strip():
        raise UsageError("The form has no answer.", "Fill it in, or decline.")
    return found


def _message(asks: PendingInput) -> str:
    if not asks.plan:
        return visible(asks.question)
    lines = [line for line in asks.plan.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return visible(f"{asks.question}\n\n" + "\n".join(lines)[:_SHOWN])


def _schema(asks: PendingInput) -> dict[str, Any]:
    if asks.person:
        fields: dict[str, Any] = {
            part.name: {"title": part.title, **_TEXT, **({"description": part.told} if part.told else {})}
            for part in FORM
            if part != WITHDRAWN or asks.turn > 1
        }
        return {"type": "object", "properties": fields, "required": [ANSWER.name]}
    if asks.file:
        decisions = ["go"] if asks.first_turn else ["go", "done"]
        fields = {
            "decision": {
                "type": "string",
                "title": "Decision",
                "enum": decisions,
                "description": "go: hold this turn; done: write the result from what there is",
            },
            "note": {"type": "string", "title": "Note to every voice", "maxLength": _LONGEST},
            "focus": {"type": "string", "title": "What the turn is to settle", "maxLength": 2000},
        }
        return {"type": "object", "properties": fields, "required": ["decision"]}
    answer = {"type": "string", "title": "Answer", "maxLength": _LONGEST}
    if not asks.options:
        return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    choice = {"type": "string", "title": "One of these", "enum": list(asks.options)}
    return {"type": "object", "properties": {"choice": choice, "answer": {**answer, "title": "Or in other words"}}}
