"""Reads the headers of a provider's response. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime


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
