"""Lets one call go ahead of others with the same beginning, so that these find it in the provider's cache.

A provider can serve a prompt from its cache once it has read it. Calls that leave together all pay the full price
for what they share. The first one with a prompt leads; the others follow when the provider begins to answer it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from msgspec import Struct, field

from cdo.core.exchange import Request
from cdo.core.usage import estimate_tokens
from cdo.providers.models import ModelSpec
from cdo.session.artifact import digest

WORTH_WAITING = 4_000  # estimated tokens in common; for fewer, waiting costs more than it saves
PATIENCE = 30.0  # seconds that the others wait at most


def _nothing() -> None:
    """Do nothing: this call leads no others."""


class CacheWarming(Struct):
    """The prompts that a first call leads with, by model and common beginning."""

    _begun: dict[tuple[str, str], asyncio.Event] = field(default_factory=dict)

    async def enter(self, spec: ModelSpec, request: Request, patience: float) -> Callable[[], None]:
        """Wait until this request may leave: at once if it leads, for `patience` seconds at most if it follows.

        Return what is to be called when the provider begins to answer, or the request has ended. Safe to call twice.
        """
        common = [message.text[: message.shared] for message in request.messages if message.shared]
        if not spec.caches or sum(map(estimate_tokens, common)) < WORTH_WAITING:
            return _nothing
        key = spec.name, digest(common)
        if key not in self._begun:
            self._begun[key] = asyncio.Event()
            return self._begun[key].set
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._begun[key].wait(), min(PATIENCE, max(0.0, patience)))
        return _nothing
