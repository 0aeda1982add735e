"""Chooses models of different makers for a run for which no model was named: one for each available maker.

Voices on one model tend to agree, so presets that ask for it (`mixed`) use several makers. The only request that is
sent asks whether Ollama runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdo.content.schemas import Price
from cdo.core.errors import CdoError
from cdo.core.formatting import pluralise
from cdo.providers import models
from cdo.providers.models import ModelSpec
from cdo.providers.vendors import Vendors

if TYPE_CHECKING:
    from cdo.content.library import Library

LEAST = 30.0  # fewest billions of parameters of an Ollama model that is combined with models of providers
_SIZE = re.compile(r":(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z])")


class Mix(Struct, frozen=True):
    """The models of a run, the default one first.

    `makers` has the maker of each model if cdo chose them. `unpriced` are the models that a budget excludes.
    """

    names: tuple[str, ...]
    makers: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """True if cdo chose models of different makers."""
        return len(self.makers) > 1

    def listed(self) -> str:
        """Return the models with their makers, as one text."""
        return ", ".join(f"{name} ({maker})" for name, maker in zip(self.names, self.makers, strict=True))

    def notes(self) -> tuple[str, ...]:
        """Return what a person should know before the first call: which models are used, why, how to change it."""
        left = f"With --budget {', '.join(self.unpriced)} cannot be used: the price is not known."
        if not self.several:
            return (left,) if self.unpriced else ()
        told = (
            f"Voices sit on models of {pluralise(len(self.names), 'maker')}, since voices on one model share its "
            f"errors: {self.listed()}. Syntheses and FINAL.md are written by {self.names[0]}. To use one model only: "
            f"-m {self.names[0]}"
        )
        return (told, left) if self.unpriced else (told,)


def mix(
    library: Library,
    env: Mapping[str, str],
    ollama: Any,
    prices: Mapping[str, Price],
    *,
    capped: bool = False,
) -> Mix:
    """Return the models of a run for which none was named: the default one, and one of each other available maker.

    Providers with a key come first, then a large model of a running Ollama. Command-line agents are used only if
    these models have fewer than two makers. The embedded model is never combined with others. Neither is a model of
    unknown maker, such as a gateway that picks the model itself. `capped` excludes models of unknown price, unless no
    other is left. Raises `CdoError` as `models.choose` does.
    """
    first = models.resolve(models.choose(library, env, ollama)[0], library, prices, env)
    known = _makers(library)
    offered = _offered(library, env, ollama, prices) if _fits(first, known) else []
    found = [first, *(spec for spec in offered if _fits(spec, known))]
    unpriced = [spec for spec in found if capped and spec.price is None]
    usable = [spec for spec in found if spec not in unpriced]
    if not usable:
        return Mix((first.name,), (first.vendor,))
    reached = {spec.vendor for spec in usable if spec.route != "command"}
    chosen: dict[str, ModelSpec] = {}
    for spec in usable:
        if spec.route != "command" or len(reached) < 2:
            chosen.setdefault(spec.vendor, spec)
    left = dict.fromkeys(spec.name for spec in unpriced if spec.vendor not in chosen)
    return Mix(tuple(spec.name for spec in chosen.values()), tuple(chosen), tuple(left))


def _offered(library: Library, env: Mapping[str, str], ollama: Any, prices: Mapping[str, Price]) -> list[ModelSpec]:
    """Return the models of this machine that can be reached: those of providers first, agents last."""
    found = []
    for name, _ in models.available(library, env, ollama):
        try:
            found.append(models.resolve(name, library, prices, env))
        except CdoError:  # skip it here; a run that names it reports the error
            continue
    return sorted(found, key=lambda spec: spec.route == "command")


def _makers(library: Library) -> frozenset[str]:
    """Return every maker in `dispatch/vendors.yaml`."""
    table = library.read("dispatch/vendors", Vendors)[0]
    return frozenset((*table.families.values(), *table.names.values()))


def _fits(spec: ModelSpec, known: frozenset[str]) -> bool:
    """True if a model may be combined with models of other makers."""
    if spec.route in ("local", "scripted"):
        return False
    if spec.route == "command":
        return bool(spec.vendor)
    return spec.vendor in known and (not spec.name.startswith("ollama/") or _size(spec.name) >= LEAST)


def _size(name: str) -> float:
    """Return the billions of parameters in a model's name, as in `llama3.3:70b`; 0 if the name has none."""
    found = _SIZE.search(name.lower())
    return int(found[1] or 1) * float(found[2]) if found else 0.0
