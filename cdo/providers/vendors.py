"""Who made a model: voices of one maker share their errors, and are counted as one vendor. Pure."""

from __future__ import annotations

import re

from cdo.core.schema import Schema


class Vendors(Schema):
    """`dispatch/vendors.yaml`: makers by the families of their models, and by the names they publish under."""

    purpose: str
    load_when: str
    families: dict[str, str]
    names: dict[str, str]


def maker(name: str, table: Vendors) -> tuple[str, str]:
    """(vendor, family) of a model by its name (PROVIDER/PUBLISHER/MODEL, or less of it); "" for what is not known.

    The model's own name tells most; then who publishes it. A gateway names the vendor before the model.
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
