"""Finds out when a model will be shut down, from litellm's table and from the provider's own list of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdo.providers.models import ModelSpec
from cdo.providers.price_table import entry

PATIENCE = 3.0  # seconds to wait for a provider's list
_DATES = ("shutdown_date", "shutdown_at", "deprecation_date")


def listed(spec: ModelSpec) -> str:
    """Return the day on which litellm's table says that the model ends (YYYY-MM-DD); "" if it says nothing."""
    known = entry(spec.name) or entry(spec.model) or {}
    return str(known.get("deprecation_date") or "")


async def stated(spec: ModelSpec, key: str) -> str:
    """Return the day on which the provider's list of models says that the model ends; "" if it says nothing.

    Only direct providers are asked. A provider that gives no list in time says nothing.
    """
    if spec.route != "direct":
        return ""
    import aiohttp

    from cdo.providers.addresses import is_here

    headers = {"Authorization": f"Bearer {key.strip()}"} if key.strip() else {}
    path = "/models"
    if spec.protocol == "messages":
        headers, path = {"x-api-key": key.strip(), "anthropic-version": "2023-06-01"}, "/v1/models?limit=1000"
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=not is_here(spec.url)) as client,
            client.get(f"{spec.url}{path}", headers=headers, allow_redirects=False) as http,
        ):
            return _date_in(await http.json(content_type=None), spec.model) if http.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
        return ""


def _date_in(data: Any, model: str) -> str:
    """Return the date in a provider's list of models, as it states it; "" if there is none."""
    models = data.get("data") if isinstance(data, Mapping) else None
    for item in models if isinstance(models, list) else ():
        if isinstance(item, Mapping) and str(item.get("id", "")).removeprefix("models/") == model:
            return next((str(item[key])[:10] for key in _DATES if isinstance(item.get(key), str)), "")
    return ""
