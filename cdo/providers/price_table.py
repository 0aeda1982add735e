"""Reads litellm's table of models as a data file: prices, windows, longest replies. litellm is never imported."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from cdo.content.schemas import LongPromptPrices, Price
from cdo.core.schema import fitted

# Most tokens of a reply with its reasoning, of an ordinary and of a reasoning model, unless the own maximum is lower.
DEFAULT_WINDOW = 131_072  # tokens; a model with a smaller window refuses, and then gets a shorter prompt
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


_KEYS = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
_LONG = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


def price_of(entry: Mapping[str, Any], tier: str = "") -> Price | None:
    """Return the price in an entry of the table, in the tier whose keys end in `tier`; None if it is not there."""
    known = {name: cost * 1e6 for name, key in _KEYS.items() if (cost := entry.get(f"{key}{tier}")) is not None}
    if not {"input", "output"} <= known.keys():
        return None
    if known.get("cache_write", known["input"]) < known["input"]:  # zeros and halves stand for something else
        del known["cache_write"]
    lengths = sorted(int(found[1]) for key in entry if (found := _LONG.fullmatch(key)))
    return Price(**known, long_prompts=tuple(_long(entry, tier, length, known) for length in lengths))


def times(price: Price, factor: float) -> Price:
    """Return a price with all of its parts multiplied by `factor`."""

    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: amount if key == "above" else part(amount) for key, amount in value.items()}
        return [part(item) for item in value] if isinstance(value, (list, tuple)) else value and value * factor

    return fitted(Price, part(to_builtins(price)))


def _long(entry: Mapping[str, Any], tier: str, length: int, usual: Mapping[str, float]) -> LongPromptPrices:
    """Return the prices of prompts above `length` thousand tokens.

    Where the tier has none of its own, those of the usual tier hold, which are higher. Tokens of the cache whose
    price is not stated cost as much as others.
    """
    known = {"output": usual["output"]}
    for name, key in _KEYS.items():
        stated = f"{key}_above_{length}k_tokens"
        cost = entry.get(f"{stated}{tier}", entry.get(stated))
        if cost is not None and name in usual:
            known[name] = cost * 1e6
    return LongPromptPrices(above=length * 1000, **known)


def reply_tokens(known: Mapping[str, Any], window: int) -> tuple[int, int]:
    """Return the cap on one reply and the longest possible one, for a model with this entry and window."""
    usual = REASONING_REPLY_TOKENS if known.get("supports_reasoning") else REPLY_TOKENS
    longest = min(int(known.get("max_output_tokens") or 2 * usual), max(LEAST_REPLY_TOKENS, window // 2))
    return min(usual, longest, max(LEAST_REPLY_TOKENS, window // 4)), longest
