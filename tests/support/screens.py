"""Pages as a real browser shows them, headless: screenshots read as pixels, PDFs, and what a page asks for.

The browser is Chromium; `browser()` finds it or skips the test. Nothing of it is kept: every call has a profile of
its own, and it may reach nothing but the file it is given.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.harness import lacking

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
Colour = tuple[int, int, int]


def browser() -> str:
    """The path of the browser (`CDO_TEST_BROWSER` names one); skips the test where there is none."""
    found = _browser()
    if not found:
        lacking(
            "chromium",
            "no Chromium was found: tests/support/browser/install.sh installs it, CDO_TEST_BROWSER names one",
        )
    return found


@functools.cache
def _browser() -> str:
    named = [os.environ.get("CDO_TEST_BROWSER", ""), *NAMES]
    return next((path for name in named if name and (path := shutil.which(name))), "")


@dataclass(frozen=True)
class Image:
    """A picture of `width` times `height` pixels, each three bytes in `rows`."""

    width: int
    height: int
    rows: Sequence[bytes]

    def count(self, colour: Colour, box: tuple[float, float, float, float] | None = None, near: int = 12) -> int:
        """How many pixels have a colour within `near` of `colour`, in a box of (left, top, right, bottom)."""
        left, top, right, bottom = map(int, box or (0, 0, self.width, self.height))
        found, (red, green, blue) = 0, colour
        for row in self.rows[max(0, top) : bottom]:
            part = row[3 * max(0, left) : 3 * right]
            pixels = zip(part[::3], part[1::3], part[2::3], strict=True)
            found += sum(
                abs(r - red) <= near and abs(g - green) <= near and abs(b - blue) <= near for r, g, b in pixels
            )
        return found


def png(data: bytes) -> Image:
    """Read a PNG of 8 bits in RGB or RGBA without interlacing, as Chromium writes them."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, head = 8, b"", b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        head, packed = (body, packed) if kind == b"IHDR" else (head, packed + body * (kind == b"IDAT"))
        at += size + 12
    width, height, depth, colour, *_, interlace = struct.unpack(">IIBBBBB", head)
    assert (depth, interlace) == (8, 0) and colour in (2, 6), "another kind of PNG"
    size = 3 if colour == 2 else 4
    raw, rows, above = zlib.decompress(packed), list[bytes](), bytes(width * size)
    for line in range(height):
        start = line * (width * size + 1)
        above = _unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + width * size]), above, size)
        rows.append(above if size == 3 else b"".join(above[i : i + 3] for i in range(0, len(above), 4)))
    return Image(width, height, rows)


def _unfiltered(kind: int, row: bytearray, above: bytes, size: int) -> bytes:
    """A line of a PNG as it was before the filter `kind` (0 to 4) predicted it from what stands before and above."""
    if kind == 0:
        return bytes(row)
    if kind == 2:
        return bytes([(value + up) & 255 for value, up in zip(row, above, strict=True)])
    for at in range(len(row)):
        left = row[at - size] if at >= size else 0
        up, corner = above[at], above[at - size] if at >= size else 0
        if kind == 1:
            row[at] = (row[at] + left) & 255
        elif kind == 3:
            row[at] = (row[at] + (left + up) // 2) & 255
        else:
            guess = left + up - corner
            best = min((abs(guess - value), order, value) for order, value in enumerate((left, up, corner)))
            row[at] = (row[at] + best[2]) & 255
    return bytes(row)


@dataclass(frozen=True)
class Shown:
    """What became of a page: its picture, and the addresses that were asked for, the page's own left out."""

    image: Image
    asked: tuple[str, ...]


def shoot(page: Path, width: int, height: int, *, dark: bool = False) -> Shown:
    """A screenshot of a page, and what the browser asked for to show it."""
    with tempfile.TemporaryDirectory(prefix="cdo-screen-") as place:
        picture, log = Path(place) / "page.png", Path(place) / "net.json"
        framed = _framed(page, width, height)
        _run(framed, place, max(width, 500), height, dark, f"--screenshot={picture}", f"--log-net-log={log}")
        return Shown(png(picture.read_bytes()), _asked(log))


def pdf(page: Path) -> bytes:
    """The page in print."""
    with tempfile.TemporaryDirectory(prefix="cdo-screen-") as place:
        target = Path(place) / "page.pdf"
        _run(page, place, 1280, 900, False, f"--print-to-pdf={target}", "--no-pdf-header-footer")
        return target.read_bytes()


def measured(page: Path, width: int) -> dict[str, Any]:
    """How a copy of the page lies in a window of `width`: `client` and `scroll` widths, `height`, boxes of `figures`.

    `wide` names what sticks out beyond the window and stands in no box that scrolls by itself. The copy alone has a
    script, and no policy that forbids it.
    """
    text = page.read_text("utf-8")
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', text)
    assert policy and "<script" not in text
    copy = page.with_name(f"{page.stem}-measured.html")
    copy.write_text(text.replace(policy[0], "").replace("</body>", f"<script>{_MEASURE}</script></body>"), "utf-8")
    with tempfile.TemporaryDirectory(prefix="cdo-screen-") as place:
        shown = _run(_framed(copy, width, 900), place, max(width, 500), 900, False, "--dump-dom")
    found = re.search(r'data-measured="([^"]*)"', shown)
    assert found, shown[:500]
    result: dict[str, Any] = json.loads(found[1].replace("&quot;", '"'))
    return result


_MEASURE = """addEventListener("load", () => {
  const root = document.documentElement;
  const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  const beyond = e => box(e)[2] > root.clientWidth + 1 && !e.closest(".scroll, pre, .skip, .unseen");
  const told = JSON.stringify({
    client: root.clientWidth, scroll: root.scrollWidth, height: root.scrollHeight,
    figures: Object.fromEntries([...document.querySelectorAll("figure")].map(e => [e.id, box(e)])),
    wide: [...document.querySelectorAll("body *")].filter(beyond).map(e => e.tagName + "." + e.className),
  });
  document.body.dataset.measured = told;
  parent.postMessage(told, "*");
});"""


def _framed(page: Path, width: int, height: int) -> Path:
    """The page itself; for a width that no window has, one that shows it in a frame of that width."""
    if width >= 500:
        return page
    frame = page.with_name(f"{page.stem}-frame.html")
    frame.write_text(
        '<!DOCTYPE html><meta name="color-scheme" content="light dark"><style>body{margin:0}</style>'
        '<script>addEventListener("message", e => { document.body.dataset.measured = e.data; });</script>'
        f'<body><iframe src="{page.name}" width="{width}" height="{height}" style="border:0"></iframe></body>',
        "utf-8",
    )
    return frame


def _run(page: Path, place: str, width: int, height: int, dark: bool, *words: str) -> str:
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
        "--disable-default-apps", "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--force-color-profile=srgb",
        "--disable-lcd-text",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        f"--user-data-dir={place}/profile", f"--window-size={width},{height}", "--virtual-time-budget=2000",
        *words, page.resolve().as_uri(),
    ]  # fmt: skip
    env = {"PATH": os.environ["PATH"], "HOME": place, "LANG": "C.UTF-8"}
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _asked(log: Path) -> tuple[str, ...]:
    """The addresses of requests in Chromium's log of the network, but for those that it makes on its own."""
    own = re.compile(r"(?:file|data|chrome[\w-]*):|https?://[\w.]+\.google(?:apis)?\.com/")
    found = dict.fromkeys(re.findall(r'"url":"([^"]+)"', log.read_text("utf-8", "replace")))
    return tuple(url for url in found if not own.match(url))


# -- what is asked of every page -------------------------------------------------------------------


def hostile(url: str) -> str:
    """A text that wants to fetch from `url`, to run, to hide the page and to be wider than it."""
    return (
        f"<img src={url}/img><script>fetch('{url}/script')</script>![p]({url}/markdown.png)\n\n"
        f"<link rel=stylesheet href={url}/css>\n\n"
        f"<style>*{{display:none;background:url({url}/style)}}</style>\n\n"
        f"<meta http-equiv=refresh content='0;url={url}/away'>\n\n{'wide ' * 3}{'x' * 400}\n\n"
        f"| {' | '.join('column' + str(n) for n in range(20))} |\n|{'---|' * 20}\n\n```\n{'code ' * 80}\n```\n"
    )


def unfolded(html: str) -> str:
    """A page with every fold open: nothing is hidden from the browser."""
    return re.sub(r"<details( open)?", "<details open", html)


def nothing_scrolls_sideways(page: Path, width: int) -> None:
    """Fail where a page, or anything on it that is not meant to, is wider than the window."""
    found = measured(page, width)
    assert found["client"] == width
    assert found["scroll"] <= width, found
    assert not found["wide"], found["wide"][:5]


def sheets(page: Path) -> tuple[int, int]:
    """How many sheets a page is printed on, and how many it would be if its folds were printed as they are."""
    html = page.read_text("utf-8")
    rule = re.search(r"details::details-content \{[^}]*\}", html)
    assert rule
    folded = page.with_name("folded.html")
    folded.write_text(html.replace(rule[0], ""), "utf-8")
    opened, closed = (pdf(path).count(b"/Type /Page\n") for path in (page, folded))
    return opened, closed
