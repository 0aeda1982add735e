"""Writes out the short forms in which a person may give the keys of a turn's plan. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cdo.formats.fields import as_list

_SPAN = re.compile(r"\s*([0-9]{1,9})\s*(?:[-–]\s*([0-9]{1,9})\s*)?")


def written_out(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a plan with their short forms written out.

    A role alone stands for a voice, names with commas for a list, one number or 3-5 for two numbers, nothing for "".
    """
    found = {key: _text(value) if key in ("focus", "note", "combo") else value for key, value in data.items()}
    if "voices" in found:
        found["voices"] = [_seat(item) for item in _listed(found["voices"])]
    if "messages" in found:
        found["messages"] = [_texts(item, ("to", "text")) for item in _listed(found["messages"])]
    if "turns" in found:
        found["turns"] = _span(found["turns"])
    if found.get("width") == "":
        found["width"] = None
    return found


def _listed(value: Any) -> Any:
    items = as_list(value)
    return items if isinstance(items, (list, tuple)) else [items]


def _text(value: Any) -> Any:
    """Return a text without the white space around it; a number counts as text, and nothing as ""."""
    if value is None:
        return ""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if number else value.strip() if isinstance(value, str) else value


def _texts(item: Any, keys: Sequence[str]) -> Any:
    return {**item, **{key: _text(item[key]) for key in keys if key in item}} if isinstance(item, dict) else item


def _seat(value: Any) -> Any:
    seat = _texts({"role": value} if isinstance(value, str) else value, ("role", "charge", "model"))
    if isinstance(seat, dict) and "skills" in seat:
        return {**seat, "skills": _names(seat["skills"])}
    return seat


def _names(value: Any) -> Any:
    """Return a list of names, also if they are written on one line."""
    if isinstance(value, str):
        return [name for part in value.split(",") if (name := part.strip())]
    names = as_list(value)
    return [_text(name) for name in names] if isinstance(names, (list, tuple)) else names


def _span(value: Any) -> Any:
    """Return two numbers, from [3, 5], 3-5, or one number that stands for both; other values unchanged."""
    if isinstance(value, str) and (match := _SPAN.fullmatch(value)):
        return [int(match[1]), int(match[2] or match[1])]
    return [value, value] if isinstance(value, int) and not isinstance(value, bool) else value
