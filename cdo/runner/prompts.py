"""Builds the messages of a request from a call and the artifacts it reads. Pure, except for loading templates.

Text that a batch shares comes first (rules, question, context, last synthesis) and text that differs comes last, so
that a provider's prefix cache can serve the shared part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cdo.content.library import Library
from cdo.content.schemas import Prompt, Role
from cdo.core.exchange import Effort, Message
from cdo.core.steps import CONTEXT, DRAFT, FURTHER, Call
from cdo.formats.final_answer import unmarked
from cdo.formats.markdown import headings
from cdo.formats.reply_schema import recast

QUESTION = "00-input"
NO_LIMITS: Mapping[str, int] = {}
COMMON = frozenset(("agent", "synthesis", "findings", "draft", "review", "final"))  # kinds with the same beginning
RECORD = frozenset(("findings", "final"))  # kinds that see the record of the whole run
CUT = "\n[… {count} characters left out: the prompt did not fit …]\n"


def messages(
    call: Call,
    texts: Mapping[str, str],
    library: Library,
    *,
    limits: Mapping[str, int] = NO_LIMITS,
    tools: bool = False,
) -> tuple[Message, ...]:
    """Return the system and user messages for `call`. `texts` are the artifacts it reads, by name.

    `limits` bounds the characters of single artifacts, by name. `tools` says whether the model gets tools. Raises
    `ContentError` for a broken template.
    """
    several = False  # whether other calls of the batch share the beginning
    if call.kind != "document":  # documents have their own schema, which the plan has read
        several = library.read(call.template, Prompt)[0].kind in ("agent", "cabal")
    values = _values(call, texts, library, limits=limits, tools=tools)
    system, shared, own = library.render_all(call.template, values, ("system", "shared", "own"))
    shared += "\n\n"
    return (
        Message("system", system, shared=len(system)),
        Message("user", shared + own, shared=len(shared) if several else 0),
    )


def correction(
    call: Call,
    texts: Mapping[str, str],
    library: Library,
    draft: str,
    problems: Sequence[str],
    *,
    documents_kept: bool = False,
) -> tuple[Message, ...]:
    """Return the messages that ask for a correction of `draft` without the prompt of `call`.

    With `documents_kept`, the draft is an object whose documents are not sent again.

    Empty if the prompt's template, or the document of its phase, does not say in a block `format` of its own what
    form a reply has.
    """
    included = call.data.get("include", {})
    parts = {"": call.template, **{name: included[name] for name in ("kernel", "phase") if name in included}}
    if any("format" not in library.template(document).blocks for document in parts.values()):
        return ()
    values = _values(call, texts, library)
    forms = [library.render(document, _including(name, values), "format") for name, document in parts.items()]
    told = {
        "form": "\n\n".join(form.strip() for form in forms),
        "draft": draft,
        "problems": problems,
        "schema": recast(call.format),
        "documents_kept": documents_kept,
    }
    system, own = library.render_all("engine/repair-draft", told, ("system", "own"))
    return Message("system", system, shared=len(system)), Message("user", own)


def _values(
    call: Call,
    texts: Mapping[str, str],
    library: Library,
    *,
    limits: Mapping[str, int] = NO_LIMITS,
    tools: bool = False,
) -> dict[str, Any]:
    """Return the variables of the template of `call`."""
    limits = {**call.data.get("limits", {}), **limits}
    values: dict[str, Any] = {
        **call.data,
        **call.caps,
        "read": {name: fit(text, limits.get(name, 0)) for name, text in texts.items()},
    }
    if no_context(values["read"].get(CONTEXT, "")):
        values["read"][CONTEXT] = ""
    if call.kind == "agent":
        previous = str(call.data.get("previous") or "")
        if previous in values["read"]:
            values["read"][previous] = for_voices(values["read"][previous])
        values |= _role(str(call.data["role"]), library)
    elif call.kind == "synthesis":
        values["convergence"] = library.load("engine/convergence").body
        values["methods"] = _methods(values["known_roles"], library)
    elif call.kind == "review":
        material = "".join(text for name, text in texts.items() if name != DRAFT)
        values["loose"] = unfound_numbers(unmarked(texts.get(DRAFT, "")), material)
    elif call.kind == "document":
        values["read"] = {name: unmarked(text) if name == DRAFT else text for name, text in values["read"].items()}
    if "tools" in call.data:  # a voice, or an agent of a mission, that may look into the repository
        values |= {} if tools else {"tools": None}
        values["looking"] = library.render("engine/looking", values).strip()
    if own := str(call.data.get("common") or ""):  # a document of the program's own
        values["common"] = _blocks(own, values, library, tuple(library.template(own).blocks))
    elif call.kind in COMMON and QUESTION in texts:
        more = "\n\n".join(text for name, text in values["read"].items() if name.startswith(FURTHER))
        shown = {"today": "", "further": more, **values}
        blocks = ("system", "material", "record") if call.kind in RECORD else ("system", "material")
        values["common"] = _blocks("templates/common", shown, library, blocks)
    values["included"] = {
        name: library.render(document, _including(name, values))
        for name, document in call.data.get("include", {}).items()
    }
    return values


def _blocks(name: str, values: Mapping[str, Any], library: Library, blocks: Sequence[str]) -> dict[str, str]:
    """Return blocks of a document by name."""
    return dict(zip(blocks, library.render_all(name, values, blocks), strict=True))


def effort(call: Call, library: Library) -> Effort | None:
    """Return how long a model should think about a call: what its role's document says, else its prompt's."""
    role = str(call.data.get("role") or "") if call.kind == "agent" else ""
    own = (
        library.read(f"templates/roles/{role}", Role)[0].effort if role in library.names("templates/roles") else None
    )
    if own or call.kind == "document":
        return own
    return library.read(call.template, Prompt)[0].effort


_FOR_THE_LEAD = frozenset(("antigroupthink", "nextturndirective"))


def for_voices(synthesis: str) -> str:
    """Return a synthesis as shown to voices: without the sections on agreement and on the next turn.

    So no voice sees how many agree, how confident the lead is, or the lead's instructions to other voices.
    """
    lines = synthesis.split("\n")
    for start, end, key in reversed(headings(lines)):
        if key in _FOR_THE_LEAD:
            del lines[start:end]
    return "\n".join(lines).strip()


def no_context(text: str) -> bool:
    """True if the text of 00-context.md only says that there is no context."""
    return re.fullmatch(r"# Context\n\nNo context [^\n]*\n*", text) is not None


def unfound_numbers(text: str, material: str) -> list[str]:
    """Return the numbers in `text` that do not occur in `material`, in order, each once, at most 60.

    Single digits and the numbers of list items are left out.
    """
    known = {number.replace(",", "") for number in _NUMBER.findall(material)}
    body = re.sub(r"(?m)^[ \t]*\d{1,2}[.)][ \t]", "", text)
    found = dict.fromkeys(number for number in _NUMBER.findall(body) if len(number) > 1)
    return [number for number in found if number.replace(",", "") not in known][:60]


_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w]*\d)")


def _methods(names: Sequence[str], library: Library) -> list[tuple[str, str]]:
    """Return each role of `names` that has a template, with its method line."""
    there = set(library.names("templates/roles"))
    return [(name, library.read(f"templates/roles/{name}", Role)[0].method) for name in names if name in there]


def _including(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the variables of an included document: the call's, plus a domain's own or the bodies of skills."""
    if name == "domain":
        return {**values, **values["domain"]}
    if name != "skills":
        return values
    bodies = [{**skill, "body": values["read"].get(f"skills/{skill['name']}", "")} for skill in values["skills"]]
    return {**values, "skills": bodies}


def _role(name: str, library: Library) -> dict[str, Any]:
    """Return a role's template variables; a role without a template has only a title, made from its name."""
    if name not in library.names("templates/roles"):
        return {"title": name.replace("-", " ").capitalize(), "method": "", "evidence": "", "body": "", "length": 1.0}
    role, body = library.read(f"templates/roles/{name}", Role)
    return {
        "title": role.title,
        "method": role.method,
        "evidence": role.evidence,
        "body": body.strip(),
        "length": role.length,
    }


def fit(text: str, limit: int) -> str:
    """Return `text` with its middle left out if it is longer than `limit` characters (0: never)."""
    if not limit or len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    cut = text[:head] + CUT.format(count=len(text) - head - tail) + text[len(text) - tail :]
    return min(cut, text, key=len)  # with the mark, the cut text could be longer than the original
