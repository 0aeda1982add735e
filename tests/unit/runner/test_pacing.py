"""Rate limits: what headers state, and how requests wait for it."""

from __future__ import annotations

import asyncio
import time

import pytest

from cdo.core.exchange import Quota, RateLimits
from cdo.providers.http.headers import rate_limits
from cdo.runner.pacing import REPLY, Pacing

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z


def stated(what: str, limit: str, left: str, reset: str = "") -> dict[str, str]:
    """Return headers as OpenAI sends them."""
    found = {f"x-ratelimit-limit-{what}": limit, f"X-RateLimit-Remaining-{what.title()}": left}
    return {**found, f"x-ratelimit-reset-{what}": reset} if reset else found


@pytest.mark.parametrize(
    ("headers", "requests", "tokens"),
    [
        ({}, None, None),
        ({"Content-Type": "x"}, None, None),
        (
            stated("requests", "60", "50", "10s"),
            Quota(60, 50, 1.0),
            None,
        ),
        (
            stated("tokens", "1000", "400", "1m30s"),
            None,
            Quota(1000, 400, 600 / 90),
        ),
        (
            stated("tokens", "100", "98", "20ms"),
            None,
            Quota(100, 98, 100.0),
        ),
        (stated("requests", "600", "600"), Quota(600, 600, 10), None),
        (
            {
                "anthropic-ratelimit-requests-limit": "50",
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:22Z",
                "anthropic-ratelimit-input-tokens-limit": "30000",
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:14:20+00:00",
            },
            Quota(50, 49, 0.5),
            Quota(30000, 0, 500),
        ),
        (stated("requests", "0", "0"), None, None),
        (stated("requests", "nan", "1"), None, None),
        (stated("requests", "10", "-1"), None, None),
        (
            stated("requests", "6", "1", "soon"),
            Quota(6, 1, 0.1),
            None,
        ),
    ],
)  # fmt: skip
def test_headers_state_what_may_still_be_sent(
    headers: dict[str, str], requests: Quota | None, tokens: Quota | None
) -> None:
    found = rate_limits(headers, NOW, 7.0)
    if requests is None and tokens is None:
        assert found is None
        return
    assert found and found.at == 7.0
    for one, other in ((found.requests, requests), (found.tokens, tokens)):
        assert (one is None) == (other is None)
        if one and other:
            assert (one.limit, one.left) == (other.limit, other.left)
            assert one.refill == pytest.approx(other.refill)


def took(pacing: Pacing, count: int, tokens: int = 0) -> list[float]:
    """Let so many requests in side by side; return when each got in, in seconds from the beginning."""
    began = time.monotonic()

    async def enter() -> float:
        await pacing.enter(tokens)
        return time.monotonic() - began

    async def all_of_them() -> list[float]:
        return list(await asyncio.gather(*(enter() for _ in range(count))))

    return asyncio.run(all_of_them())


def test_without_limits_nobody_waits() -> None:
    pacing = Pacing()
    pacing.learn(None)
    assert not pacing.known
    assert took(pacing, 50)[-1] < 0.2


def test_requests_wait_in_order_for_what_comes_back() -> None:
    pacing = Pacing()
    pacing.learn(RateLimits(time.monotonic(), Quota(100, 3, 20.0)))
    found = took(pacing, 9)
    assert found == sorted(found)
    assert found[2] < 0.04, "three are left"
    assert 0.25 <= found[8] < 3, "six more come back in 0.3 s"


def test_tokens_count_with_the_reply() -> None:
    pacing = Pacing()
    pacing.learn(RateLimits(time.monotonic(), None, Quota(10_000, REPLY + 100, 20_000.0)))
    found = took(pacing, 2, 100)
    assert found[0] < 0.04 and found[1] >= 0.05
    pacing.learn(RateLimits(time.monotonic(), None, Quota(2_000, 2_000, 1.0)))
    assert took(pacing, 1, 1_000_000)[0] < 0.2, "a request above the limit is for the provider to judge"


def test_an_older_response_says_nothing_new() -> None:
    pacing = Pacing()
    now = time.monotonic()
    pacing.learn(RateLimits(now, Quota(10, 10, 100.0)))
    pacing.learn(RateLimits(now - 5, Quota(10, 0, 0.001)))
    assert took(pacing, 5)[-1] < 0.2
