"""Providers that other packages add, under the entry point group `cdo.providers`.

The name of the entry point is the prefix of its models: with `acme = "acme_cdo:Acme"`, `-m acme/large` asks the model
`large` of it. A prefix of cdo's own table of providers, or of litellm's, is never taken from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from msgspec import Struct

from cdo.content import entry_points
from cdo.core.errors import ConfigError
from cdo.core.exchange import Backend, BackendError, Fault, OnText, Request, Response
from cdo.core.formatting import one_line
from cdo.providers.price_table import DEFAULT_WINDOW, REPLY_TOKENS


class ModelDescription(Struct, frozen=True):
    """What a provider knows of one of its models.

    `window` is the most tokens of prompt and reply together, `reply_tokens` the most of one reply. `input_price` and
    `output_price` are US dollars for a million tokens; None means that the price is not known, which is never zero.
    `tools` is true if the model can be offered tools. `vendor` is the maker of the model ("" if unknown).
    """

    window: int = DEFAULT_WINDOW
    reply_tokens: int = REPLY_TOKENS
    input_price: float | None = None
    output_price: float | None = None
    tools: bool = False
    vendor: str = ""


@runtime_checkable
class ProviderExtension(Protocol):
    """What the entry point of a provider names: an object, or a class that is called without arguments."""

    def describe(self, model: str) -> ModelDescription:
        """Return the description of a model; raise `ConfigError` if it cannot be asked. It sends nothing."""

    def backend(self, model: str) -> Backend:
        """Return what sends requests to a model. It is made within the event loop of a run, and closed at its end."""


def extension(prefix: str) -> ProviderExtension | None:
    """Return the provider that an installed package adds under a prefix, None if there is none.

    Raises `ConfigError` if it cannot be imported, or is not a provider.
    """
    found = entry_points.named(entry_points.PROVIDERS, prefix)
    if found is None:
        return None
    if isinstance(found, type):
        found = found()
    if not isinstance(found, ProviderExtension):
        raise ConfigError(
            f"The entry point `{prefix}` in `{entry_points.PROVIDERS}` is not a provider.",
            "It must have the methods `describe` and `backend`.",
        )
    return found


@dataclass
class GuardedBackend:
    """A backend of another package. An exception that it should not raise becomes a fault of its request."""

    backend: Backend
    prefix: str
    streams: bool = field(init=False)

    def __post_init__(self) -> None:
        self.streams = self.backend.streams

    async def complete(self, request: Request, on_text: OnText) -> Response:
        try:
            return await self.backend.complete(request, on_text)
        except (BackendError, TimeoutError):
            raise
        except Exception as error:
            told = one_line(f"{type(error).__name__}: {error}", 200)
            raise BackendError(Fault.CRASHED, f"the provider `{self.prefix}` raised {told}") from error

    async def close(self) -> None:
        await self.backend.close()
