"""One call goes ahead of others with the same beginning, where waiting for it pays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cdo.content.schemas import Price
from cdo.core.exchange import Message, Request
from cdo.providers.models import ModelSpec
from cdo.runner.cache_warming import PATIENCE, CacheWarming
from tests.support import clock

CACHING = ModelSpec("m", "direct", "m", price=Price(input=2, output=8, cached=0.2))
FULL_PRICE = ModelSpec("m", "direct", "m", price=Price(input=2, output=8))


def request(shared: str, own: str = "own") -> Request:
    return Request("m", (Message("system", "s", shared=1), Message("user", shared + own, shared=len(shared))), 99)


LONG = "word " * 4000


@pytest.mark.parametrize(
    ("spec", "shared", "times"),
    [
        (CACHING, [LONG] * 3, [0.0, 5.0, 5.0]),
        (CACHING, [LONG, "other " + LONG, LONG], [0.0, 0.0, 5.0]),
        (CACHING, ["short"] * 3, [0.0, 0.0, 0.0]),
        (FULL_PRICE, [LONG] * 3, [0.0, 0.0, 0.0]),
    ],
)
def test_who_waits_for_whom(
    spec: ModelSpec, shared: list[str], times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's answer begins after five seconds."""

    async def call(warming: CacheWarming, text: str, own: str) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        done = await warming.enter(spec, request(text, own), 99.0)
        left = loop.time() - began
        await asyncio.sleep(5.0)
        done()
        return round(left, 3)

    async def main() -> list[float]:
        warming = CacheWarming()
        return await asyncio.gather(*(call(warming, text, str(own)) for own, text in enumerate(shared)))

    assert clock.run(main(), monkeypatch) == times


@pytest.mark.parametrize(("patience", "waited"), [(99.0, PATIENCE), (3.0, 3.0), (-1.0, 0.0)])
def test_nobody_waits_longer_than_it_may(patience: float, waited: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Any:
        warming, loop = CacheWarming(), asyncio.get_running_loop()
        await warming.enter(CACHING, request(LONG), 99.0)  # hangs for ever
        began = loop.time()
        await warming.enter(CACHING, request(LONG, "other"), patience)
        return loop.time() - began

    assert clock.run(main(), monkeypatch) == pytest.approx(waited, abs=0.01)
