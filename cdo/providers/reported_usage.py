"""Reads the usage that providers and agents report, and never takes a missing count for zero. Pure.

Seen in answers of providers: null, text, NaN, negative and fractional counts, zeros for all, and one count of two.
"""

from __future__ import annotations

from typing import Any

from cdo.core.exchange import Usage

MOST_TOKENS = 10**9  # more than the running total of any conversation
MOST_DOLLARS = 10**5


def reported(
    sent: Any, written: Any, cached: Any = None, cost: Any = None, cache_written: Any = None
) -> Usage | None:
    """Return the usage of one exchange from its counts as reported; None if neither count is known.

    `sent` are the tokens of the prompt, `written` those of the answer; `cached` and `cache_written` are the tokens of
    the prompt that were read from and written to the provider's cache. Where one of them is missing or impossible,
    `unreported` names it, and whoever knows the texts estimates it.
    """
    read, made = count(sent), count(written)
    if not read and not made:
        return None
    left_out = "input" if not read else "output" if made is None else ""
    return Usage(
        read or 0, made or 0, count(cached) or 0, amount(cost, MOST_DOLLARS), count(cache_written) or 0,
        unreported=left_out,
    )  # fmt: skip


def count(value: Any) -> int | None:
    """Return a whole number of tokens from 0 to `MOST_TOKENS`; None for anything else."""
    known = amount(value, MOST_TOKENS)
    return int(known) if known is not None and known.is_integer() else None


def amount(value: Any, most: float) -> float | None:
    """Return a number from 0 to `most` as a float; None for anything else."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
    return float(value) if known else None
