"""Reads litellm's table of models as a data file: prices, windows, longest replies. litellm is never imported."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cdo.content.schemas import Price

# Most tokens of a reply with its reasoning, of an ordinary and of a reasoning model, unless the own maximum is lower.
REPLY_TOKENS, REASONING_REPLY_TOKENS = 16_384, 32_768
LEAST_REPLY_TOKENS = 4096  # of a model with a small window, and under a cap on money that leaves no more


@cache
def _litellm_file(name: str) -> str:
    """Return the text of a data file in litellm's package; "" if there is none. litellm is not imported."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or not spec.submodule_search_locations:
        return ""
    try:
        return (Path(spec.submodule_search_locations[0]) / name).read_text(encoding="utf-8")
    except OSError:
        return ""


def price_text() -> str:
    """Return litellm's price table as JSON text; "" if there is none."""
    return _litellm_file("model_prices_and_context_window_backup.json")


def litellm_knows(provider: str) -> bool:
    """True if litellm lists a provider, or if this version of litellm has no list."""
    listed = _litellm_file("provider_endpoints_support_backup.json")
    key = json.dumps(provider)
    return not listed or f"{key}: {{" in listed or f'"litellm_provider": {key}' in price_text()


@cache
def entry(name: str, provider: str = "") -> dict[str, Any] | None:
    """Return one entry of the table (of `provider`, if given). Only its own lines are parsed, not three megabytes."""
    text = price_text()
    for match in re.finditer(rf"{re.escape(json.dumps(name))}:\s*(?={{)", text):
        indent = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if len(indent) > 4 or name == "sample_spec":  # a key inside an entry; the table's own explanation
            continue
        try:
            value = json.JSONDecoder().raw_decode(text, match.end())[0]
        except ValueError:
            return None
        return value if provider in ("", value.get("litellm_provider")) else None
    return None


def price_of(entry: Mapping[str, Any], tier: str = "") -> Price | None:
    """Return the price in an entry of the table, in the tier whose keys end in `tier`; None if it is not there."""
    cost_in, cost_out = entry.get(f"input_cost_per_token{tier}"), entry.get(f"output_cost_per_token{tier}")
    if cost_in is None or cost_out is None:
        return None
    more = {"cached": "cache_read_input_token_cost", "cache_write": "cache_creation_input_token_cost"}
    known = {name: entry[f"{key}{tier}"] * 1e6 for name, key in more.items() if entry.get(f"{key}{tier}") is not None}
    return Price(input=cost_in * 1e6, output=cost_out * 1e6, **known)


def reply_tokens(known: Mapping[str, Any], window: int) -> tuple[int, int]:
    """Return the cap on one reply and the longest possible one, for a model with this entry and window."""
    usual = REASONING_REPLY_TOKENS if known.get("supports_reasoning") else REPLY_TOKENS
    longest = min(int(known.get("max_output_tokens") or 2 * usual), max(LEAST_REPLY_TOKENS, window // 2))
    return min(usual, longest, max(LEAST_REPLY_TOKENS, window // 4)), longest
