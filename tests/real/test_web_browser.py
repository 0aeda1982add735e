"""`cdo watch --web` in a real browser: windows that follow, many events, hostile pages, no script, no mouse.

These need Chromium (tests/support/browser/install.sh); without it they are skipped.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.conftest import A, Desk
from tests.support import screens
from tests.support.harness import QUESTION, kill_group, wait_for
from tests.support.provider import Provider
from tests.support.web import WebClient, served

RUN = ("think", "--width", "2", "--turns", "1", *A, QUESTION)
NAMES = "MAP evil.example 127.0.0.1,MAP * ~NOTFOUND,EXCLUDE 127.0.0.1,EXCLUDE localhost"
PATIENCE = 30_000  # milliseconds


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser that reaches this machine alone, by two names."""
    path = screens.browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", f"--host-resolver-rules={NAMES}"],
        )
        yield browser
        browser.close()


@dataclass
class Window:
    """A browser's window that was let in, and what it complained of."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))


@contextlib.contextmanager
def opened(browser: Browser, client: WebClient, **options: Any) -> Iterator[Window]:
    """Open the printed address in a browser of its own; fail where a page complained."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    window = Window(context.new_page())
    window.listen()
    try:
        window.page.goto(client.address)
        window.page.wait_for_url(re.compile(r"(/|/session/\w+)$"))
        yield window
        assert not window.complaints
    finally:
        context.close()


@contextlib.contextmanager
def held(cdo: Desk, provider: Provider) -> Iterator[None]:
    """A run that waits for its synthesis until the provider is released."""
    provider.hold("t1-synthesis")
    run = cdo.start(*RUN)
    try:
        wait_for(lambda: provider.named("t1-synthesis"))
        yield
    finally:
        provider.release()
        kill_group(run.pid)
        run.communicate()


def parts_of(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-part]')].map(e => [e.dataset.part, e.innerText]))"
    )
    return found


def test_two_windows_of_one_browser_follow_the_same_run(cdo: Desk, provider: Provider, chromium: Browser) -> None:
    with held(cdo, provider), served(cdo, "a") as client, opened(chromium, client) as window:
        first, second = window.page, window.page.context.new_page()
        second.goto(first.url)
        for page in (first, second):
            expect(page.get_by_role("status").first).to_contain_text("2 of 3 calls answered")
            page.evaluate("window.kept = true")
        provider.release()
        for page in (first, second):
            expect(page.get_by_role("heading", name="Decision")).to_be_visible(timeout=PATIENCE)
            expect(page.get_by_role("status").first).to_have_text("Finished after its 1 turn.")
            assert page.evaluate("window.kept"), "it was not loaded again"
        assert first.title().startswith("max turns: ")
        wait_for(lambda: parts_of(first) == parts_of(second))


def test_a_reload_loses_nothing_and_a_lost_server_is_told(cdo: Desk, provider: Provider, chromium: Browser) -> None:
    with held(cdo, provider), contextlib.ExitStack() as stack:
        client = stack.enter_context(served(cdo, "a"))
        window = stack.enter_context(opened(chromium, client))
        window.page.reload()
        expect(window.page.get_by_role("status").first).to_contain_text("2 of 3 calls answered")
        expect(window.page.get_by_text("not connected")).to_be_hidden()
        client.end()
        expect(window.page.get_by_text("not connected")).to_be_visible(timeout=PATIENCE)
        window.complaints.clear()  # that it finds no server


def test_many_events_a_second_leave_the_page_usable(cdo: Desk, provider: Provider, chromium: Browser) -> None:
    """200 events a second reach the window in few pieces, and what the person does in it stays."""
    with held(cdo, provider), served(cdo, "a") as client, opened(chromium, client) as window:
        page = window.page
        expect(page.get_by_role("heading", name="What happened")).to_be_visible()
        page.evaluate(
            """() => { window.pieces = 0;
              new MutationObserver(() => { window.pieces += 1; }).observe(
                document.querySelector('[data-part=log]'), {childList: true});
              const link = document.querySelector('[data-part=calls] a');
              link.focus(); window.link = link.textContent; }"""
        )
        began, number = time.monotonic(), 0
        with (cdo.session() / "journal.jsonl").open("a", encoding="utf-8") as journal:
            while number < 1000:
                row = {"at": "2026-11-22T05:04:22.671+00:00", "event": "note", "text": f"event {number}"}
                journal.write(json.dumps(row) + "\n")
                journal.flush()
                number += 1
                time.sleep(max(0.0, began + number / 200 - time.monotonic()))
        page.get_by_text("event 999").wait_for()
        seconds = time.monotonic() - began
        pieces = page.evaluate("window.pieces")
        assert 2 <= pieces <= 4 * seconds + 2, (pieces, seconds)
        assert page.locator(".events li").count() == 150, "a page has a bound"
        assert page.evaluate("document.activeElement.textContent === window.link"), "the focus stays where it was"
        page.keyboard.press("Enter")
        page.wait_for_url("**/file/t1-*.md")


# -- hostile pages ---------------------------------------------------------------------------------


@dataclass
class Site:
    """A web site of somebody else at another port of this machine; `got` has what it was sent."""

    port: int
    page: list[str]
    got: list[tuple[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def site() -> Iterator[Site]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.got.append((self.path, self.headers.get("Cookie", "")))
            data = found.page[0].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Site(server.server_address[1], [""])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


HOSTILE = """<!DOCTYPE html><iframe name="frame" src="HOME/session/a"></iframe>
<form method="post" target="frame" action="HOME/session/a/edit/letter"><input name="text" value="evil"></form>
<script>
const found = {};
const tried = (name, work) => work.then(
  value => { found[name] = String(value); }, () => { found[name] = "refused"; });
const streamed = new Promise((yes, no) => {
  const source = new EventSource("HOME/session/a/events", {withCredentials: true});
  source.addEventListener("parts", event => yes(event.data)); source.onerror = () => { source.close(); no(); };
});
Promise.all([
  tried("read", fetch("HOME/session/a", {credentials: "include"}).then(answer => answer.text())),
  tried("post", fetch("HOME/session/a/edit/letter", {method: "POST", credentials: "include", body: "text=evil",
    headers: {"Content-Type": "application/x-www-form-urlencoded"}}).then(answer => answer.text())),
  tried("stream", streamed),
  tried("script", new Promise((yes, no) => { const one = document.createElement("script");
    one.src = "http://127.0.0.1:PORT/web.js"; one.onload = yes; one.onerror = no; document.head.append(one); })),
]).then(() => { document.forms[0].submit(); document.title = JSON.stringify(found); });
</script>"""


def test_a_page_of_another_origin_can_neither_read_nor_post(finished: Desk, chromium: Browser) -> None:
    with served(finished) as client, site() as other, opened(chromium, client) as window:
        port = str(urlsplit(client.address).port)
        other.page[0] = HOSTILE.replace("HOME", f"http://127.0.0.1:{port}{client.home}").replace("PORT", port)
        answers: list[tuple[str, int]] = []
        page = window.page.context.new_page()
        page.on("response", lambda answer: answers.append((answer.url, answer.status)))
        page.goto(f"http://127.0.0.1:{other.port}/")
        page.wait_for_function("document.title.startsWith('{')")
        assert json.loads(page.title()) == dict.fromkeys(("read", "post", "stream", "script"), "refused")
        page.wait_for_timeout(500)
        own = [(url, status) for url, status in answers if f":{port}/" in url]
        assert own and {status for _, status in own} == {403}, own
        for frame in page.frames[1:]:
            assert QUESTION not in frame.content()
        assert all(f"cdo-web-{port}" not in cookie for _, cookie in other.got), (
            "a cookie goes to its own server alone"
        )
        assert not list((finished.session()).glob("inbox/*"))


def test_a_name_that_leads_here_is_refused(finished: Desk, chromium: Browser) -> None:
    """DNS rebinding: a page of evil.example whose name now leads to this machine."""
    with served(finished) as client, opened(chromium, client) as window:
        port, page = urlsplit(client.address).port, window.page.context.new_page()
        for path in ("/", f"{client.home}/", f"{client.home}/session/a", f"{client.home}/begin?token=x"):
            answer = page.goto(f"http://evil.example:{port}{path}")
            assert answer and answer.status == 403 and QUESTION not in page.content()


def test_a_link_from_elsewhere_lets_in(finished: Desk, chromium: Browser) -> None:
    """A terminal in a browser is a page of another origin; the address that it shows still works."""
    with served(finished) as client, site() as other:
        other.page[0] = f'<a href="{client.address}">go</a>'
        context: BrowserContext = chromium.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{other.port}/")
        page.get_by_text("go").click()
        expect(page.get_by_role("link", name=QUESTION)).to_be_visible(timeout=PATIENCE)
        context.close()


# -- without this and that -------------------------------------------------------------------------


def test_without_scripts_the_page_renews_itself(cdo: Desk, provider: Provider, chromium: Browser) -> None:
    with (
        held(cdo, provider),
        served(cdo, "a") as client,
        opened(chromium, client, java_script_enabled=False) as window,
    ):
        expect(window.page.get_by_role("status").first).to_contain_text("2 of 3 calls answered")
        provider.release()
        expect(window.page.get_by_role("heading", name="Decision")).to_be_visible(timeout=PATIENCE)
        window.page.get_by_role("link", name="Sessions").click()
        expect(window.page.get_by_role("row")).to_have_count(2)


def test_a_keyboard_is_enough(finished: Desk, chromium: Browser) -> None:
    with served(finished) as client, opened(chromium, client) as window:
        page = window.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the sessions"
        page.keyboard.press("Enter")
        for _ in range(3):  # the box that scrolls, then the session
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.tagName") == "A":
                break
        page.keyboard.press("Enter")
        page.wait_for_url("**/session/a")
        seen: list[str] = []
        while "All of FINAL.md" not in seen and len(seen) < 40:
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.textContent.trim()"))
        page.keyboard.press("Enter")
        assert page.locator("details#final").get_attribute("open") is not None
        outlined = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outlined == "solid", "one sees where one is"


def test_a_screen_reader_finds_its_way(finished: Desk, chromium: Browser) -> None:
    with served(finished, "a") as client, opened(chromium, client) as window:
        page = window.page
        expect(page.get_by_role("main")).to_have_count(1)
        expect(page.get_by_role("navigation", name="Where you are")).to_have_count(1)
        expect(page.get_by_role("heading", level=1)).to_have_text(QUESTION)
        assert page.locator("[aria-live]").count() == 1
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(e => Number(e.tagName[1]))")
        assert levels[0] == 1 and all(later - before <= 1 for before, later in pairwise(levels))
        unnamed = page.evaluate(
            "[...document.querySelectorAll('main section, [role=region], input, textarea, select')].filter(e => "
            "!e.getAttribute('aria-labelledby') && !e.getAttribute('aria-label') && !(e.labels && e.labels.length))"
            ".map(e => e.outerHTML.slice(0, 80))"
        )
        assert unnamed == []


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_scrolls_sideways(finished: Desk, chromium: Browser, width: int) -> None:
    with served(finished) as client, opened(chromium, client, viewport={"width": width, "height": 800}) as window:
        for path in ("/", "/session/a", "/session/a/report", "/session/a/files", "/session/a/file/session.yaml"):
            window.page.goto(f"http://{client.netloc}{client.home}{path}")
            window.page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
            assert window.page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_what_one_selects_stays_until_one_lets_go(cdo: Desk, provider: Provider, chromium: Browser) -> None:
    with held(cdo, provider), served(cdo, "a") as client, opened(chromium, client) as window:
        page = window.page
        page.evaluate("getSelection().selectAllChildren(document.querySelector('[data-part=calls] tbody tr'))")
        chosen = page.evaluate("getSelection().toString()")
        assert "openai/" in chosen
        provider.release()
        expect(page.get_by_role("heading", name="Decision")).to_be_visible(timeout=PATIENCE)
        assert page.evaluate("getSelection().toString()") == chosen
        page.evaluate("getSelection().removeAllRanges()")
        expect(page.locator("[data-part=calls]")).not_to_contain_text("thinking")


def test_a_window_that_is_not_seen_still_says_in_its_title_when_it_is_done(
    cdo: Desk, provider: Provider, chromium: Browser
) -> None:
    with held(cdo, provider), served(cdo, "a") as client, opened(chromium, client) as window:
        page = window.page.context.new_page()
        page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => true})")
        page.goto(window.page.url)
        assert QUESTION in page.title() and "max turns" not in page.title()
        provider.release()
        expect(page).to_have_title(re.compile("^max turns: "), timeout=PATIENCE)
