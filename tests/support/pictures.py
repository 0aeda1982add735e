"""Makes the pictures of the README: `cdo demo` as a terminal shows it, and its report as a browser shows it.

    python -m tests.support.pictures

writes docs/pictures/run.png and report.png. Chromium must be there. Run it after the recording, the live view or the
report has changed.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from tests.support.screens import browser

TARGET = Path(__file__).resolve().parents[2] / "docs" / "pictures"
COLUMNS, ROWS = 100, 20
UNTIL = 21.0  # seconds after which the picture of the run is taken: the first synthesis is there, turn 2 is asked
PAGE = """<!DOCTYPE html><meta charset="utf-8"><style>
body {{ margin: 0; padding: 14px 18px; background: {background}; color: {foreground}; width: max-content; }}
pre {{ margin: 0; font: 15px/1.35 "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
{stylesheet}</style><pre>{code}</pre>"""


def main() -> None:
    """Make both pictures."""
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        screen = _played(Path(folder))
        page = Path(folder) / "run.html"
        page.write_text(_page(screen), encoding="utf-8")
        _shot(page, TARGET / "run.png", 960, 26 + 20 * ROWS)
        shutil.rmtree(Path(folder) / "tmp")
        subprocess.run(
            [sys.executable, "-m", "cdo", "demo", "--fast"],
            cwd=folder,
            env=_environment(folder),
            check=True,
            capture_output=True,
        )
        subprocess.run([sys.executable, "-m", "cdo", "report"], cwd=folder, env=_environment(folder), check=True)
        report = Path(folder) / "tmp/cdo-demo/report.html"
        _shot(report, TARGET / "report.png", 1100, 900)


def _environment(folder: str) -> dict[str, str]:
    root = str(TARGET.parents[1])
    return {
        "HOME": folder,
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PYTHONPATH": root,
    }


def _played(folder: Path) -> pyte.Screen:
    """Play the demo at a terminal, and return its screen after `UNTIL` seconds."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    child = pexpect.spawn(
        sys.executable,
        ["-m", "cdo", "demo"],
        cwd=str(folder),
        env=_environment(str(folder)),
        dimensions=(ROWS, COLUMNS),
        encoding="utf-8",
    )
    end = time.monotonic() + UNTIL
    while time.monotonic() < end:
        try:
            stream.feed(child.read_nonblocking(4096, timeout=0.2))
        except pexpect.TIMEOUT:
            continue
    child.close(force=True)
    return screen


def _page(screen: pyte.Screen) -> str:
    """Return an HTML page that looks like the screen."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for row in range(ROWS):
        cells = (screen.buffer[row][column] for column in range(COLUMNS))
        line = [
            Segment(cell.data, Style(color=_colour(cell.fg), bold=cell.bold, italic=cell.italics)) for cell in cells
        ]
        console.print(Segments([*line, Segment.line()]), end="")
    return console.export_html(code_format=PAGE)


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    return (
        f"#{name}"
        if len(name) == 6 and all(char in "0123456789abcdef" for char in name)
        else {"brown": "yellow"}.get(name, name)
    )


def _shot(page: Path, target: Path, width: int, height: int) -> None:
    subprocess.run(
        [
            browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--window-size={width},{height}", f"--screenshot={target}", page.as_uri(),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


if __name__ == "__main__":
    main()
