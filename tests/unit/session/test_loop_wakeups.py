"""Waiting in an event loop for what a thread does."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from cdo.session.loop_wakeups import done


def test_a_loop_is_woken_once_for_all_that_is_done_by_then_and_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[int]:
        loop, woken = asyncio.get_running_loop(), list[object]()
        real = loop.call_soon_threadsafe

        def wake(callback: object, *args: object) -> object:
            woken.append(callback)
            return real(callback, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", wake)
        counts = []
        for _ in range(2):
            futures = [Future[None]() for _ in range(50)]
            waiting = [asyncio.create_task(done(future)) for future in futures]
            await asyncio.sleep(0)
            for future in futures:
                future.set_result(None)
            await asyncio.gather(*waiting)
            counts.append(len(woken))
        return counts

    assert asyncio.run(main()) == [1, 2]


def test_the_error_of_a_future_is_raised_also_of_one_that_has_ended() -> None:
    future: Future[None] = Future()

    async def main() -> None:
        waiting = asyncio.create_task(done(future))
        await asyncio.sleep(0)
        future.set_exception(ValueError("the disk is gone"))
        with pytest.raises(ValueError, match="gone"):
            await waiting
        with pytest.raises(ValueError, match="gone"):
            await done(future)

    asyncio.run(main())


def test_who_stops_waiting_leaves_the_others_and_the_future_alone() -> None:
    first, second = Future[None](), Future[None]()

    async def main() -> None:
        gone, stays = asyncio.create_task(done(first)), asyncio.create_task(done(second))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not first.cancelled()
        first.set_result(None)
        second.set_result(None)
        await asyncio.wait_for(stays, 5)

    asyncio.run(main())
