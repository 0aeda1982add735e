"""The page as a browser shows it: plots are drawn, nothing is fetched, narrow screens and print get all of it.

These need Chromium (tests/support/browser/install.sh); without it they are skipped.
"""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cdo.content.library import PACKAGED, Library
from cdo.report.rendering import STYLE
from tests.conftest import Desk, _desk
from tests.support import screens, stories
from tests.support.answers import Answer, RequestInfo
from tests.support.faults import Fault
from tests.support.provider import Provider

WIDTHS = (360, 1280)


def colour(name: str, dark: bool) -> screens.Colour:
    """A colour of the page's style sheet."""
    style = Library((("packaged", PACKAGED),)).load(STYLE).body
    found = re.findall(rf"--{name}: #([0-9a-f]{{6}});", style)[int(dark)]
    return int(found[:2], 16), int(found[2:4], 16), int(found[4:], 16)


@dataclass
class Bait:
    """A server on loopback that hostile text points to; `got` lists who came."""

    url: str = ""
    got: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def bait() -> Iterator[Bait]:
    found = Bait()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.got.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, bait: Bait) -> Iterator[Path]:
    """The story's page; its first voice wants to fetch, run and hide."""
    screens.browser()
    evil = screens.hostile(bait.url)

    def script(info: RequestInfo) -> Answer | Fault | None:
        answer = stories.told(info)
        return (
            Answer(f"{answer.text}\n{evil}") if info.call == "t1-architect" and isinstance(answer, Answer) else answer
        )

    with Provider() as running:
        desk: Desk = _desk(tmp_path_factory.mktemp("screens"), running.url)
        stories.tell(desk, running, script=script)
        desk("report", "a").ok()
        session = desk.session()
        html = (session / "report.html").read_text("utf-8")
        assert html.count(bait.url) >= 5
        (session / "open.html").write_text(screens.unfolded(html), "utf-8")
        yield session


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        pytest.param(360, True, marks=pytest.mark.slow),
        pytest.param(360, False, marks=pytest.mark.slow),
        pytest.param(1280, True, marks=pytest.mark.slow),
    ],
)
def test_the_plots_are_drawn_and_nothing_is_asked_for(page: Path, bait: Bait, width: int, dark: bool) -> None:
    measured = screens.measured(page / "report.html", width)
    before = list(bait.got)
    below = int(measured["figures"]["plot-agreement"][3]) + 900  # as far as the lines of life
    shown = screens.shoot(page / "report.html", width, below, dark=dark)
    assert shown.asked == () and bait.got == before
    assert shown.image.count(colour("paper", dark), (0, 0, width, 30)) > width * 20, "the theme is the one asked for"
    for name, line in (("confidence", 250), ("agreement", 200)):
        box = measured["figures"][f"plot-{name}"]
        assert box[2] - box[0] >= 300 and box[3] < below
        plot = (box[0], box[1], box[2], box[1] + (box[2] - box[0]) * (220 if name == "confidence" else 160) / 340)
        drawn = shown.image.count(colour("accent", dark), plot)
        assert drawn > line, f"{name}: {drawn} pixels of a line"
        assert shown.image.count(colour("ink", dark), plot, near=40) > 60, "values are written"
    assert shown.image.count(colour("faint", dark), tuple(measured["figures"]["plot-confidence"]), near=30) > 30
    assert shown.image.count(colour("open", dark)) > 200, "tensions have a line of life"


@pytest.mark.slow
def test_a_plot_that_is_missing_is_missed(page: Path) -> None:
    html = (page / "report.html").read_text("utf-8")
    bare = page / "bare.html"
    bare.write_text(re.sub(r"<polyline[^>]*>|<circle[^>]*>", "", html), "utf-8")
    measured = screens.measured(bare, 1280)
    left, top, right, bottom = measured["figures"]["plot-agreement"]
    shown = screens.shoot(bare, 1280, int(bottom))
    assert shown.image.count(colour("accent", False), (left, top, right, top + (right - left) * 160 / 340)) < 20


@pytest.mark.slow
def test_a_page_that_fetches_is_noticed(page: Path, bait: Bait) -> None:
    html = (page / "report.html").read_text("utf-8")
    bad = page / "bad.html"
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', html)
    assert policy
    image = f'<img src="{bait.url}/control">'
    bad.write_text(html.replace(policy[0], "").replace('<main id="main">', f'<main id="main">{image}'), "utf-8")
    assert f"{bait.url}/control" in screens.shoot(bad, 1280, 900).asked and "/control" in bait.got
    bait.got.clear()
    bad.write_text(html.replace('<main id="main">', f'<main id="main">{image}'), "utf-8")
    screens.shoot(bad, 1280, 900)
    assert not bait.got, "the policy holds even where something got in"


@pytest.mark.parametrize("width", [320, *WIDTHS])
def test_nothing_scrolls_sideways_with_every_fold_open(page: Path, width: int) -> None:
    screens.nothing_scrolls_sideways(page / "open.html", width)


def test_tables_of_words_are_stacked_where_it_is_narrow(page: Path) -> None:
    """Each cell stands in the window, under its label: nothing of it has to be scrolled to."""
    html = (page / "report.html").read_text("utf-8")
    box, table = '<div class="scroll" tabindex="0">', '<table class="wide-text stack">'
    assert html.count(box + table) == 2, "worth and citations"
    bare = page / "stacked.html"
    bare.write_text(html.replace(box + table, f"<div>{table}"), "utf-8")
    assert not screens.measured(bare, 360)["wide"]
    bare.write_text(html.replace(box + table, f"<div>{table.replace(' stack', '')}"), "utf-8")
    assert screens.measured(bare, 360)["wide"]


@pytest.mark.slow
def test_print_opens_what_is_folded(page: Path) -> None:
    opened, folded = screens.sheets(page / "report.html")
    assert opened > folded + 2, (opened, folded)
