"""Finds out when a model will be shut down, from litellm's table and from the provider's own list of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from cdo.core.exchange import BackendError, Fault
from cdo.providers.models import ModelSpec
from cdo.providers.price_table import entry

PATIENCE = 3.0  # seconds to wait for a provider's list
_DATES = ("shutdown_date", "shutdown_at", "deprecation_date")


def listed(spec: ModelSpec) -> str:
    """Return the day on which litellm's table says that the model ends (YYYY-MM-DD); "" if it says nothing."""
    known = entry(spec.name) or entry(spec.model) or {}
    return str(known.get("deprecation_date") or "")


async def stated(spec: ModelSpec, key: str) -> tuple[str, str]:
    """Return the day on which the provider's list of models says that the model ends, and why it gave no list.

    Each is "" if there is nothing to say. Only direct providers are asked. A provider that refuses the key, cannot be
    reached or is slow is named as one; one that has no list says nothing.
    """
    if spec.route != "direct":
        return "", ""
    from cdo.providers.http.transport import HttpTransport

    key = key.strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    path = "/models"
    if spec.protocol == "messages":
        headers, path = {"x-api-key": key, "anthropic-version": "2023-06-01"}, "/v1/models?limit=1000"
    transport = HttpTransport(spec.url, PATIENCE)
    try:
        return _date_in(await transport.json("GET", path, headers, patience=PATIENCE), spec.model), ""
    except BackendError as error:
        if error.fault is Fault.DENIED:
            return "", f"the provider refuses the key in {spec.key_env or 'the environment'}"
        if error.fault not in (Fault.NETWORK, Fault.TIMEOUT):
            return "", ""
        return "", error.message.replace(spec.url, urlsplit(spec.url).hostname or "it")  # an address may hold a key
    finally:
        await transport.close()


def _date_in(data: Any, model: str) -> str:
    """Return the date in a provider's list of models, as it states it; "" if there is none."""
    models = data.get("data") if isinstance(data, Mapping) else None
    for item in models if isinstance(models, list) else ():
        if isinstance(item, Mapping) and str(item.get("id", "")).removeprefix("models/") == model:
            return next((str(item[key])[:10] for key in _DATES if isinstance(item.get(key), str)), "")
    return ""
