"""The names of models as people give them with `-m`: what short names mean, and which names a shell completes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cdo.content.schemas import Aliases
from cdo.core.demo_model import DEMO_MODEL
from cdo.providers.models import AGENTS, table
from cdo.providers.price_table import price_text

if TYPE_CHECKING:
    from cdo.content.library import Library

_CHAT = ("chat", "responses")  # modes in litellm's table of models that answer


def meant(names: Iterable[str], library: Library) -> tuple[str, ...]:
    """Return full names: aliases replaced by what they stand for, `local` by the model that it means here and now."""
    known = aliases(library)
    found = tuple(known.get(name, name) for name in names)
    if not any(name.partition(":")[0] == DEMO_MODEL for name in found):
        return found
    from cdo.providers import local_models

    return local_models.expanded(found, library)


def aliases(library: Library) -> dict[str, str]:
    """Return the short names of models with what they stand for; raises `ContentError`."""
    return library.read("dispatch/aliases", Aliases)[0].aliases


def candidates(text: str, library: Library) -> list[str]:
    """Return the names among which those that begin with `text` are, each once.

    If `text` has no slash these are agents, aliases, local models and the default model of each provider. If it has
    one they are the models of that provider in litellm's price table. Raises `ConfigError` and `ContentError` as the
    tables do.
    """
    provider, slash, _ = text.partition("/")
    found = _of_provider(provider) if slash else _first(library)
    return sorted(set(found))


def _first(library: Library) -> Iterator[str]:
    from cdo.providers import local_models

    yield DEMO_MODEL
    yield from (f"{DEMO_MODEL}:{model.name}" for model in local_models.listed(library))
    yield from library.names(AGENTS)
    yield from aliases(library)
    yield from (f"{prefix}/{provider.model}" for prefix, provider in table(library).items() if provider.model)


def _of_provider(provider: str) -> Iterator[str]:
    try:
        entries = json.loads(price_text() or "{}")
    except ValueError:
        return
    for name, entry in entries.items():
        if entry.get("litellm_provider") == provider and entry.get("mode") in _CHAT:
            yield name if name.startswith(f"{provider}/") else f"{provider}/{name}"
