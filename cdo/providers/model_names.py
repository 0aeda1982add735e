"""Lists names of models that can be given with `-m`, for a shell's completion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdo.core.demo_model import DEMO_MODEL
from cdo.providers import local_models
from cdo.providers.models import AGENTS, price_text, table

if TYPE_CHECKING:
    from cdo.content.library import Library

_CHAT = ("chat", "responses")  # modes in litellm's table of models that answer


def candidates(text: str, library: Library) -> list[str]:
    """Return the names among which those that begin with `text` are, each once.

    If `text` has no slash these are agents, local models and the default model of each provider. If it has one they
    are the models of that provider in litellm's price table. Raises `ConfigError` and `ContentError` as the tables
    do.
    """
    provider, slash, _ = text.partition("/")
    found = _of_provider(provider) if slash else _first(library)
    return sorted(set(found))


def _first(library: Library) -> Iterator[str]:
    yield DEMO_MODEL
    yield from (f"{DEMO_MODEL}:{model.name}" for model in local_models.listed(library))
    yield from library.names(AGENTS)
    yield from (f"{prefix}/{provider.model}" for prefix, provider in table(library).items() if provider.model)


def _of_provider(provider: str) -> Iterator[str]:
    try:
        entries = json.loads(price_text() or "{}")
    except ValueError:
        return
    for name, entry in entries.items():
        if entry.get("litellm_provider") == provider and entry.get("mode") in _CHAT:
            yield name if name.startswith(f"{provider}/") else f"{provider}/{name}"
