"""What the agents of a mission are told beside the products: rounds left. Real processes against a scripted team."""

from __future__ import annotations

from tests.conftest import Desk
from tests.runs.test_mission import TEAM, todo
from tests.support.cabal_team import REQUEST
from tests.support.provider import Provider

__all__ = ["todo"]  # the fixture


def test_everybody_is_told_how_many_rounds_are_left(todo: Desk, provider: Provider) -> None:
    todo(*TEAM, "-q", "--rounds", "2", REQUEST).failed(3)
    said = {
        0: "The mission has at most 2 rounds after this step.",
        1: "This is round 1 of at most 2.",
        2: "This is round 2, the last one: what is not delivered now is not delivered.",
    }
    for info in provider.calls:
        assert said[int(info.call[1])] in info.prompt, info.call
    provider.reset()
    todo("resume", "a", "-q", "--rounds", "3").ok()
    assert {info.call[:2] for info in provider.calls} == {"r3"}, "a raised cap makes nothing stale"
    assert all("This is round 3, the last one" in info.prompt for info in provider.calls)
