"""The page of a mission as a browser shows it: plots are drawn, nothing is fetched, narrow screens get all of it.

These need Chromium (tests/support/browser/install.sh); without it they are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cdo.cabal.model.entities import Collab
from cdo.cabal.model.state import MissionState
from cdo.report import mission_page
from tests.real.test_report_screens import Bait, bait, colour
from tests.support import screens
from tests.support.missions import ALEX
from tests.unit.report.test_mission_page import LIBRARY, Course, course, kept

__all__ = ["bait"]
HEIGHTS = {"progress": 220, "work": 160}  # of the plots, as wide as 340


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, bait: Bait) -> Iterator[Path]:
    """The folder of the TODO list's page; a version and a collab of it want to fetch, run and hide."""
    screens.browser()
    evil = screens.hostile(bait.url)

    def worse(state: MissionState) -> MissionState:
        versions = {
            id: replace(version, content=f"{version.content}\n\n{evil}", summary=evil, title=evil)
            for id, version in state.versions.items()
        }
        more = Collab("c9", "p4", "concern", 9, ALEX, evil, evil, state.round)
        return replace(state, versions=versions, collabs={**state.collabs, "c9": more})

    told = course(3)
    rounds = (*told.rounds[:1], *(worse(state) for state in told.rounds[1:]))
    changed: Course = replace(told, state=rounds[-1], rounds=rounds)
    folder = tmp_path_factory.mktemp("screens")
    html = mission_page.page(kept(changed), changed, LIBRARY)
    assert html.count(bait.url) >= 10
    (folder / "report.html").write_text(html, "utf-8")
    (folder / "open.html").write_text(screens.unfolded(html), "utf-8")
    yield folder


def plot(measured: dict[str, list[float]], name: str) -> tuple[float, float, float, float]:
    """The box of a plot without its caption."""
    left, top, right, _ = measured[f"plot-{name}"]
    return left, top, right, top + (right - left) * HEIGHTS[name] / 340


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (360, True),
        pytest.param(360, False, marks=pytest.mark.slow),
        pytest.param(1280, False, marks=pytest.mark.slow),
        pytest.param(1280, True, marks=pytest.mark.slow),
    ],
)
def test_the_plots_are_drawn_and_nothing_is_asked_for(page: Path, bait: Bait, width: int, dark: bool) -> None:
    figures = screens.measured(page / "report.html", width)["figures"]
    before = list(bait.got)
    shown = screens.shoot(page / "report.html", width, int(figures["plot-work"][3]) + 20, dark=dark)
    assert shown.asked == () and bait.got == before
    assert shown.image.count(colour("paper", dark), (0, 0, width, 30)) > width * 20, "the theme is the one asked for"
    for name, mark in (("progress", "accent"), ("work", "open")):
        box = plot(figures, name)
        assert box[2] - box[0] >= 300
        drawn = shown.image.count(colour(mark, dark), box, near=40)  # lines that lie between pixels are fainter
        assert drawn > 100, f"{name}: {drawn} pixels of a line"
        assert shown.image.count(colour("ink", dark), box, near=40) > 40, "values are written"
    assert shown.image.count(colour("faint", dark), plot(figures, "progress"), near=30) > 50, (
        "what there is to accept"
    )
    paper, faint = colour("paper", dark), colour("faint", dark)
    bar = tuple(round(0.55 * mark + 0.45 * ground) for mark, ground in zip(faint, paper, strict=True))
    assert shown.image.count((bar[0], bar[1], bar[2]), plot(figures, "work")) > 900, "new versions are bars"


@pytest.mark.slow
def test_a_plot_that_is_missing_is_missed(page: Path) -> None:
    html = (page / "report.html").read_text("utf-8")
    bare = page / "bare.html"
    bare.write_text(re.sub(r"<polyline[^>]*>|<circle[^>]*>|<rect[^>]*>", "", html), "utf-8")
    figures = screens.measured(bare, 1280)["figures"]
    shown = screens.shoot(bare, 1280, int(figures["plot-work"][3]))
    for name, mark in (("progress", "accent"), ("work", "open")):
        assert shown.image.count(colour(mark, False), plot(figures, name), near=40) < 20


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_nothing_scrolls_sideways_with_every_fold_open(page: Path, width: int) -> None:
    screens.nothing_scrolls_sideways(page / "open.html", width)


def test_tables_of_words_are_stacked_where_it_is_narrow(page: Path) -> None:
    """Each cell stands in the window, under its label: nothing of it has to be scrolled to."""
    html = (page / "report.html").read_text("utf-8")
    boxed = re.compile(r'<div class="scroll" tabindex="0">(<table class="wide-text stack)')
    assert len(boxed.findall(html)) == 7, "the objectives, the tree, four definitions of done, the seats"
    bare = page / "stacked.html"
    bare.write_text(boxed.sub(r"<div>\1", html), "utf-8")
    assert not screens.measured(bare, 360)["wide"]
    bare.write_text(boxed.sub(r"<div>\1", html).replace(" stack", ""), "utf-8")
    assert screens.measured(bare, 360)["wide"]


@pytest.mark.slow
def test_print_opens_what_is_folded(page: Path) -> None:
    opened, folded = screens.sheets(page / "report.html")
    assert opened > folded, (opened, folded)
