"""What is remarked on the seats of a mission before it begins."""

from __future__ import annotations

import pytest

from cdo.core.mission_names import WATCHDOG
from cdo.planning.mission_plan import remark


@pytest.mark.parametrize(
    ("watchdog", "vendors", "warned"),
    [
        ("x/one", {"x/one": "x", "y/one": "y"}, False),
        ("y/two", {"y/two": "y", "y/one": "y"}, True),
        ("z/one", {"y/one": "y"}, True),  # its maker is not known, and may be the same
        ("scripted:replies.yaml", {"y/one": "y"}, False),
    ],
)
def test_a_watchdog_of_the_operatives_vendor_is_remarked_on(
    watchdog: str, vendors: dict[str, str], warned: bool
) -> None:
    seats = {"chair": "y/one", WATCHDOG: watchdog, "operative-1": "y/one"}
    assert bool(remark(seats, vendors)) is warned
