"""Builds the seats of models by name: the spec, the backend that reaches it, and its provider's circuit breaker."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from cdo.content.library import Library
from cdo.core.errors import ConfigError, NeedsHuman
from cdo.core.exchange import Backend, Message
from cdo.planning.settings import Settings
from cdo.providers import models
from cdo.providers.models import ModelSpec
from cdo.runner.budget import price_unknown
from cdo.runner.model_seat import ModelSeat
from cdo.runner.retry import CircuitBreaker
from cdo.security.trust import Trust


def specs(names: Sequence[str], library: Library, settings: Settings, env: Mapping[str, str]) -> list[ModelSpec]:
    """Resolve all model names, and start loading slow libraries; raise `ConfigError`."""
    found = [models.resolve(name, library, settings.prices, env) for name in dict.fromkeys(names)]
    if settings.flex:
        found = [spec if settings.batch_api and spec.batch_api else spec.in_flex() for spec in found]
    if settings.batch_api:
        found = [spec.in_batch() for spec in found]
        _require_batch(found, library)
    if settings.budget and (unpriced := next((spec for spec in found if spec.price is None), None)):
        raise price_unknown(unpriced)
    for spec in found:
        if spec.route in ("local", "scripted") and spec.model and not Path(spec.model).expanduser().is_file():
            raise ConfigError(f"`{spec.name}`: there is no file {spec.model}.", "Check the path.")
    if any(spec.route == "litellm" for spec in found):
        from cdo.providers import litellm_backend

        litellm_backend.preload()
    if any(spec.route == "direct" for spec in found):
        from cdo.providers.http import transport

        transport.preload()
    return found


def _require_batch(found: Sequence[ModelSpec], library: Library) -> None:
    """Raise `ConfigError` if none of the models can be asked through a batch endpoint."""
    if found and not any(spec.batch for spec in found):
        able = ", ".join(name for name, provider in models.table(library).items() if provider.batch_api)
        raise ConfigError(
            f"cdo knows no batch endpoint of {', '.join(spec.name for spec in found)}.",
            f"Leave --batch-api out, or name a model of {able} with -m.",
        )


WEIGHTS = "weights"  # the kind of pin in `trusted.json`


def allow_weights(found: Sequence[ModelSpec]) -> None:
    """Record that the person named the files of these embedded models, as the files are now."""
    if pins := list(_weights(found)):
        with contextlib.suppress(ConfigError):  # without the record, `cdo resume` asks
            Trust.load().pin(WEIGHTS, pins)


def require_allowed_weights(found: Sequence[ModelSpec], session: str) -> None:
    """Raise `NeedsHuman` if a session names a model file that the person has not named, or that has changed since.

    llama.cpp parses such a file in native code. A session that somebody else made must not choose it.
    """
    for path, fingerprint in _weights(found):
        if not Trust.load().holds(WEIGHTS, path, fingerprint):
            raise NeedsHuman(
                f"The session {session} runs the model file {path}, which you have not named on this machine.",
                "If the file is yours, pass --trust. Otherwise inspect its session.yaml first, or name another model "
                "with -m.",
            )


def _weights(found: Sequence[ModelSpec]) -> Iterator[tuple[Path, str]]:
    """Yield the path and a fingerprint of each model file that is not the default one.

    A model can have many gigabytes, so its bytes are not hashed: any change of the file sets `st_ctime_ns` anew.
    """
    for spec in found:
        if spec.route == "local" and spec.model:
            path = Path(os.path.realpath(Path(spec.model).expanduser()))
            status = path.stat()
            told = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            yield path, sha256(repr(told).encode()).hexdigest()


def seats(
    found: Sequence[ModelSpec], settings: Settings, library: Library, say: Callable[[str], None]
) -> dict[str, ModelSeat]:
    """Return a seat for each model. Models at the same address share connections and circuit breaker."""
    if settings.flex and (full := [spec.name for spec in found if not spec.flex]):
        say(f"no flex tier is known for {', '.join(full)}: asked at the full price")
    if settings.batch_api:
        for factor in sorted({spec.batch_factor for spec in found if spec.batch}):
            names = ", ".join(spec.name for spec in found if spec.batch and spec.batch_factor == factor)
            say(f"{names}: asked through the batch endpoint, at {factor:.0%} of the price")
        if full := [spec.name for spec in found if not spec.batch]:
            say(f"no batch endpoint is known for {', '.join(full)}: asked at once, at the full price")
    backends: dict[tuple[str, ...], Backend] = {}
    gates: dict[str, CircuitBreaker] = {}
    made: dict[str, ModelSeat] = {}
    for spec in found:
        where = (
            spec.route,
            spec.url or spec.agent or spec.model,
            spec.key_env,
            spec.cap,
            spec.protocol,
            str(spec.flex),
            spec.extension,
        )
        backend = backends.get(where) or _backend(spec, settings, library, say)
        backends[where] = backend
        gate = gates.setdefault(
            spec.extension or spec.url or spec.agent or spec.model.partition("/")[0], CircuitBreaker()
        )
        made[spec.name] = ModelSeat(spec, backend, gate)
    return made


def _backend(spec: ModelSpec, settings: Settings, library: Library, say: Callable[[str], None]) -> Backend:
    if spec.route == "litellm":
        from cdo.providers.litellm_backend import LiteLLMBackend

        return LiteLLMBackend(settings.temperature, say)
    if spec.route == "scripted":
        from cdo.providers.scripted import ScriptedBackend

        return ScriptedBackend.from_file(Path(spec.model))
    if spec.route == "local":
        from cdo.providers.embedded import LocalBackend

        return LocalBackend(Path(spec.model) if spec.model else None, say, settings.temperature)
    if spec.route == "command":
        return _command(spec, library)
    if spec.route == "extension":
        return _added(spec)
    return _direct(spec, settings)


def _direct(spec: ModelSpec, settings: Settings) -> Backend:
    """Return the client of the protocol that the provider speaks."""
    key, extra = os.environ.get(spec.key_env, ""), {"service_tier": "flex"} if spec.flex else {}
    if spec.protocol == "responses":
        from cdo.providers.http.responses import ResponsesBackend

        return ResponsesBackend(spec.url, key, settings.connect_timeout, settings.temperature, extra)
    if spec.protocol == "messages":
        from cdo.providers.http.messages import MessagesBackend

        return MessagesBackend(spec.url, key, settings.connect_timeout, settings.temperature, extra)
    from cdo.providers.http.chat_completions import ChatBackend

    return ChatBackend(
        spec.url, key, settings.connect_timeout, settings.temperature, extra, cap=spec.cap, usage=spec.usage,
        marks=spec.cache_marks,
    )  # fmt: skip


def _added(spec: ModelSpec) -> Backend:
    """Return the backend of a model of a provider that another package adds."""
    from cdo.providers.extensions import GuardedBackend, extension

    if (provider := extension(spec.extension)) is None:
        raise ConfigError(f"No installed package adds the provider `{spec.extension}` any more.", "Install it again.")
    return GuardedBackend(provider.backend(spec.model), spec.extension)


def _command(spec: ModelSpec, library: Library) -> Backend:
    from cdo.providers.command_agent_process import CommandBackend

    def word(messages: Sequence[Message]) -> str:
        return library.render("dispatch/command-prompt", {"messages": messages})

    return CommandBackend(models.agent(spec.agent, library), spec.program, word, os.environ)


def first_of_ollama(url: str) -> str | None:
    """Return the first model that an Ollama server at `url` offers, or None; the timeout is 0.3 seconds."""
    import http.client
    from urllib.parse import urlsplit

    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port or 80, timeout=0.3)
    try:
        connection.request("GET", "/api/tags")
        found = json.loads(connection.getresponse().read(1 << 20))
        return str(found["models"][0]["name"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return None
    finally:
        connection.close()
