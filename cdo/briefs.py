"""From a call and the artifacts it reads to the messages of a request. Pure but for loading templates.

What a batch shares comes first (rules, question, context, last synthesis), what differs comes last, so
that a provider's prefix cache pays for it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdo.content import Library
from cdo.schemas import Prompt, Role
from cdo.types import Call, Message

QUESTION = "00-input"  # never shortened: it is what everybody answers
CUT = "\n[… {count} characters left out: the prompt did not fit …]\n"


def messages(
    call: Call, texts: Mapping[str, str], library: Library, *, limit: int = 0, tools: bool = False
) -> tuple[Message, ...]:
    """Word `call` for a model: `texts` are the artifacts it reads, by name; `tools` whether it is given any.

    `limit` bounds the characters of each artifact (0: whole); raises `ContentError` for a broken template.
    """
    several = False  # whether others of the same batch share the beginning
    if call.kind != "document":  # these have a schema of their own, which the plan has read
        several = library.read(call.template, Prompt)[0].kind in ("agent", "cabal")
    values: dict[str, Any] = {
        **call.data,
        "read": {name: text if name == QUESTION else fit(text, limit) for name, text in texts.items()},
    }
    if call.kind == "agent":
        values |= {} if tools else {"tools": None}
        values |= _role(str(call.data["role"]), library)
    elif call.kind == "synthesis":
        values["convergence"] = library.load("engine/convergence").body
    values["included"] = {
        name: library.render(document, _including(name, values))
        for name, document in call.data.get("include", {}).items()
    }
    system = library.render(call.template, values, "system")
    shared = library.render(call.template, values, "shared") + "\n\n"
    own = library.render(call.template, values, "own")
    return (
        Message("system", system, shared=len(system)),
        Message("user", shared + own, shared=len(shared) if several else 0),
    )


def _including(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables of an included document: those of the call; for a domain its own, for skills their bodies."""
    if name == "domain":
        return {**values, **values["domain"]}
    if name != "skills":
        return values
    bodies = [{**skill, "body": values["read"].get(f"skills/{skill['name']}", "")} for skill in values["skills"]]
    return {**values, "skills": bodies}


def _role(name: str, library: Library) -> dict[str, Any]:
    """What the brief says about a role: its method where there is one, else only its name."""
    if name not in library.names("templates/roles"):
        return {"title": name.replace("-", " ").capitalize(), "method": "", "evidence": "", "body": ""}
    role, body = library.read(f"templates/roles/{name}", Role)
    return {"title": role.title, "method": role.method, "evidence": role.evidence, "body": body.strip()}


def fit(text: str, limit: int) -> str:
    """`text`, with its middle left out when it is longer than `limit` characters (0: never)."""
    if not limit or len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    cut = text[:head] + CUT.format(count=len(text) - head - tail) + text[len(text) - tail :]
    return min(cut, text, key=len)  # what says that something was left out must not be longer than that
