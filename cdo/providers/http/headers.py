"""Reads the headers of a provider's response. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from cdo.core.exchange import Quota, RateLimits

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# The names of (limit, left, time until all of it is there again), of what is counted.
_REQUESTS = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    (
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
)
_TOKENS = (
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    (
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
    ),
)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that a provider's headers (any case) ask to wait; None if there is no valid value.

    `now` is the wall clock, for the date form. Sources: RFC 9110 §10.2.3; `retry-after-ms` of OpenAI.
    """
    folded = {key.lower(): value.strip() for key, value in headers.items()}
    for key, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        if not (value := folded.get(key)):
            continue
        try:
            seconds = float(value) / scale
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - now
            except (ValueError, TypeError, OverflowError):
                continue
        if seconds != seconds or seconds in (float("inf"), float("-inf")):
            continue
        return max(0.0, seconds)
    return None


def rate_limits(headers: Mapping[str, str], now: float, at: float) -> RateLimits | None:
    """Return the rate limits that a response's headers (any case) state; None if they state none.

    `now` is the wall clock and `at` the monotonic one. Sources: "Rate limits" of OpenAI and of Anthropic.
    """
    folded = {key.lower(): value.strip() for key, value in headers.items() if "ratelimit" in key.lower()}
    if not folded:
        return None
    requests, tokens = (
        next((found for names in many if (found := _quota(folded, names, now))), None)
        for many in (_REQUESTS, _TOKENS)
    )
    return RateLimits(at, requests, tokens) if requests or tokens else None


def _quota(headers: Mapping[str, str], names: tuple[str, str, str], now: float) -> Quota | None:
    """Return a quota; what is used of it comes back evenly until the time that is stated, else within a minute."""
    try:
        limit, left = (float(headers[name]) for name in names[:2])
    except (KeyError, ValueError):
        return None
    if not (0 < limit < float("inf") and 0 <= left < float("inf")):
        return None
    used, wait = max(0.0, limit - left), _seconds(headers.get(names[2], ""), now)
    return Quota(limit, left, used / wait if used and wait else limit / 60)


def _seconds(text: str, now: float) -> float | None:
    """Return the seconds until a time: "6m0s", "20ms", a number of seconds, or a date; None for anything else."""
    if re.fullmatch(r"([0-9]+(\.[0-9]+)?(ms|h|m|s))+", text):
        return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)(ms|h|m|s)", text))
    try:
        return float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) else _until(text, now)
    except (ValueError, OverflowError):
        return None


def _until(text: str, now: float) -> float | None:
    found = datetime.fromisoformat(text).timestamp() - now
    return found if found > 0 else None
