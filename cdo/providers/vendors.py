"""Finds the vendor of a model: models of one vendor share their errors, so they count as one. Pure."""

from __future__ import annotations

import re

from cdo.core.schema import Schema


class Vendors(Schema, frozen=True, kw_only=True):
    """`dispatch/vendors.yaml`: makers by the families of their models, and by the names they publish under."""

    purpose: str
    load_when: str
    families: dict[str, str]
    names: dict[str, str]


def maker(name: str, table: Vendors) -> tuple[str, str]:
    """Return (vendor, family) of a model by its name (PROVIDER/PUBLISHER/MODEL, or its last parts); "" if unknown.

    The model's own name counts first, then its publisher. OpenRouter names the vendor before the model.
    """
    *places, model = name.lower().split("/")
    for family, vendor in table.families.items():
        if re.search(rf"(?<![a-z]){re.escape(family)}", model):
            return vendor, family
    if re.fullmatch(r"o[1-9]\b.*", model) and "openai" in places:
        return table.names.get("openai", "openai"), "o"
    for place in reversed(places):
        if place in table.names:
            return table.names[place], ""
    return (places[1] if len(places) == 2 and places[0] == "openrouter" else ""), ""
