"""Makes the strict JSON Schema of a reply, for providers that hold a model's answer to one. Pure.

The schema describes the reply as one JSON object: its data, and its texts as Markdown. `lenient` turns such an object
into the form of the reply. Only keywords that every provider takes are used; the format judges the rest as ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from cdo.core.steps import ReplyFormat
from cdo.formats.lenient.layout import BODY, SECTIONS, TITLE, LenientFormat, ReplyLayout

_TEXT = {"type": "string"}


def reply_schema(form: ReplyFormat, *, alone: bool = False) -> dict[str, Any] | None:
    """Return the schema of a whole reply; None if documents stand beside its object, or if it can hold any keys.

    A document is not to be written as a string in JSON: it would be long, and each quote in it escaped. With `alone`,
    the schema is that of the object without its documents.
    """
    if not isinstance(form, LenientFormat) or (form.layout.documents and not alone):
        return None
    try:
        return _object(_properties(form.layout))
    except _NotStrict:
        return None


def recast(form: ReplyFormat) -> bool:
    """Return whether an answer by the schema of a reply is arranged otherwise than the reply."""
    return reply_schema(form) is not None and isinstance(form, LenientFormat) and form.layout.place != "json"


class _NotStrict(Exception):
    """A type that strict schemas cannot express."""


def _properties(layout: ReplyLayout) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if layout.models:
        model = layout.models[0].model_json_schema()
        found = _Strict(model.get("$defs", {}), layout.keys).schema(model)["properties"]
    if layout.documents:
        entries, text = layout.documents
        entry = found[entries]["items"]["properties"]
        found[entries]["items"] = _object({name: part for name, part in entry.items() if name != text})
    for name in layout.computed:
        del found[name]
    if layout.titled:
        found[TITLE] = {**_TEXT, "description": "the document's title"}
    if layout.place == "front matter":
        found[BODY] = {**_TEXT, "description": "the Markdown below the front matter"}
    elif titles := layout.titles[: -1 if layout.place == "block" else None]:  # the block stands under the last title
        found[SECTIONS] = _object({_key(title): {**_TEXT, "description": f"## {title}"} for title in titles})
    return found


def _key(title: str) -> str:
    return re.sub(r"[^a-z]+", "_", title.lower()).strip("_")


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with exactly these keys: strict schemas know no optional ones."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


class _Strict(Struct, frozen=True):
    """Makes a schema of pydantic strict. `known` are its definitions; `keys` are those of maps, by their field."""

    known: Mapping[str, Any]
    keys: Mapping[str, tuple[str, ...]]

    def schema(self, node: Mapping[str, Any], field: str = "") -> dict[str, Any]:
        """Return the schema of a node, with definitions in place, in the field of this name; raise `_NotStrict`."""
        if "$ref" in node:
            return self.schema(self.known[node["$ref"].rpartition("/")[2]], field)
        if "anyOf" in node:
            return {"anyOf": [self.schema(part, field) for part in node["anyOf"]]}
        if "const" in node or "enum" in node:
            return {"type": "string", "enum": [str(word) for word in node.get("enum", [node.get("const")])]}
        match node.get("type"):
            case "object" if "properties" in node:
                return _object({name: self.schema(part, name) for name, part in node["properties"].items()})
            case "object" if field in self.keys:  # strict schemas know no maps: each key may be null
                value = {"anyOf": [self.schema(node["additionalProperties"], field), {"type": "null"}]}
                return _object(dict.fromkeys(self.keys[field], value))
            case "array" if "items" in node:
                return {"type": "array", "items": self.schema(node["items"], field)}
            case "string" | "number" | "integer" | "boolean" | "null" as kind:
                return {"type": kind}
            case None if not node.keys() - {"title", "default", "description"}:  # any value
                return {"anyOf": [{"type": kind} for kind in ("string", "number", "null")]}
        raise _NotStrict
