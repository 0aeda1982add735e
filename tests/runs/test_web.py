"""`cdo watch --web` from outside: a real server process, plain HTTP clients that do what a browser would not."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pexpect
import pytest

from cdo.web_view.stream import MOST_WINDOWS
from tests.conftest import A, Desk, explained
from tests.support.harness import QUESTION, finish, wait_for
from tests.support.provider import Provider
from tests.support.web import WebClient, served

AT = "2026-11-22T05:04:22.671+00:00"
EVIL = '<script>alert(1)</script> & "quoted" <img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def web(finished: Desk) -> Iterator[WebClient]:
    """A client that was let in, beside a desk with the finished session `a`."""
    with served(finished) as client:
        assert client.begin().status == 200
        yield client


def test_the_printed_address_lets_one_browser_in_once(finished: Desk) -> None:
    with served(finished, "a") as client:
        assert urlsplit(client.address).hostname == "127.0.0.1"
        assert client.ask("/").status == 403, "nobody was let in yet"
        came = client.begin({"Sec-Fetch-Site": "cross-site"})
        assert came.status == 200 and came.headers["refresh"] == f"0; url={client.home}/session/a"
        name, _, rest = came.headers["set-cookie"].partition("=")
        assert name == f"cdo-web-{urlsplit(client.address).port}"
        assert rest.split("; ")[1:] == ["HttpOnly", f"Path={client.home}/", "SameSite=Strict"]
        assert client.ask("/").status == 200
        again = client.begin()
        assert again.status == 200 and "set-cookie" not in again.headers, "it is in already"
        other = WebClient(client.address)
        refused = other.begin()
        assert refused.status == 403 and "set-cookie" not in refused.headers
        assert "Press Enter where" in refused.text
        assert other.ask("/begin?token=").status == other.ask("/begin?token=%C3%A9").status == 403
        assert WebClient(client.address, f"{name}=x").ask("/").status == 403


def test_pages_say_what_a_browser_may_do_with_them(web: WebClient) -> None:
    for got in (
        web.ask("/"),
        web.session("a"),
        web.session("a", "/report"),
        web.session("none"),
        WebClient(web.address).ask("/"),
    ):
        assert got.headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        assert got.headers["x-content-type-options"] == "nosniff" and got.headers["cache-control"] == "no-store"
        assert not [name for name in got.headers if name.startswith("access-control")]
        assert not re.search(r"<style|<script(?! src=\"/web\.js\" defer></script>)| on\w+=|\sstyle=", got.text)
        assert "unsafe-inline" not in got.text
    assert web.ask("//web.css").status == web.ask("//web.js").status == 200


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:PORT"},
    {"Host": "127.0.0.1"},
    {"Host": "127.0.0.1:1"},
    {"Host": "127.0.0.1.:PORT"},
    {"Host": "[::1]:PORT"},
    {"Host": "0.0.0.0:PORT"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost:PORT"},
    {"Origin": "https://127.0.0.1:PORT"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_who_comes_by_another_name_or_from_another_page_is_refused(web: WebClient, headers: dict[str, str]) -> None:
    port = str(urlsplit(web.address).port)
    heads = {key: value.replace("PORT", port) for key, value in headers.items()}
    for path in ("/", "/session/a", "/session/a/events", "//web.js"):
        got = web.ask(path, heads)
        assert got.status == 403 and "split" not in got.text, path
    if "Sec-Fetch-Site" not in headers:
        assert web.ask("/begin?token=x", heads).status == 403
    assert web.ask("/", {"Host": f"localhost:{port}"}).status == 200
    assert web.ask("/", {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{port}"}).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_nothing_is_changed_by_another_method(web: WebClient, method: str) -> None:
    own = {"Origin": f"http://{web.netloc}"}
    for path in ("/", "/session/a", "/begin?token=x", "/session/a/events"):
        assert web.ask(path, own, method=method).status in (403, 404, 405), path


NAMES = ["..", "../a", "../tmp/cdo-a", "a/../a", "cdo-cdo-a", ".", "", "a\0", "a.lock", "é", "x" * 65, "a%2f..", "\n"]


def test_names_reach_no_other_file(web: WebClient, finished: Desk) -> None:
    finished.write("tmp/secret.md", "not for the browser")
    (finished.session() / "away.md").symlink_to(finished.path / "tmp/secret.md")
    for name in NAMES:
        assert web.session(name).status == 404, name
    for path in (
        "../secret.md",
        "..%2fsecret.md",
        "%2e%2e/secret.md",
        "/etc/passwd",
        "away.md",
        "calls/../../secret.md",
    ):
        for got in (web.session("a", f"/file/{path}"), web.session("a", f"/file//{path}")):
            assert got.status in (403, 404) and "not for the browser" not in got.text, path
    assert "Decision" in web.session("a", "/file/FINAL.md").text
    assert "preset: think" in web.session("a", "/file/session.yaml").text


def test_a_finished_session_shows_its_decision_and_its_report(web: WebClient, finished: Desk) -> None:
    listed = web.ask("/")
    assert QUESTION in listed.text and f'href="{web.home}/session/a"' in listed.text
    page = web.session("a")
    decision = finished("final", "a").ok().out.split("## Decision")[1].strip().split(".")[0]
    assert decision[:40] in page.text and "refresh" not in page.text
    assert 'role="status"' in page.text and page.text.count("aria-live") == 1
    report = web.session("a", "/report")
    assert 'href="/web.css"' in report.text and "Content-Security-Policy" not in report.text
    links = re.findall(r'class="file" href="([^"]+)"', report.text)
    assert links and all(web.ask(f"/{link}").status == 200 for link in set(links)), "each file of the report is there"
    assert [file for file in web.session("a", "/files").text.split("<li>") if "FINAL.md" in file]


def test_what_others_wrote_is_text(cdo: Desk, provider: Provider) -> None:
    cdo("quick", *A, f"Should we {EVIL}?").ok()
    journal = cdo.session() / "journal.jsonl"
    with journal.open("a") as file:
        file.write(json.dumps({"at": AT, "event": "note", "text": "<script>alert(3)</script>"}) + "\n")
    with served(cdo) as client:
        client.begin()
        found = [client.ask("/"), client.session("a"), client.session("a", "/report"), client.ask(f"/?q={'<x>'}")]
        found += [client.session("a", "/file/00-input.md"), client.session("a", "/file/<b>")]
        for got in found:
            assert "<script>" not in got.text and "<img" not in got.text and "<x>" not in got.text, got.text
        assert "&lt;script&gt;alert(3)" in found[1].text and "&lt;img src=x" in found[1].text
        with client.stream("a") as stream:
            kind, _, parts = next(stream.events())
        assert kind == "parts" and "&lt;script&gt;alert(3)" in parts["log"] and "<script>" not in str(parts)


# -- live ------------------------------------------------------------------------------------------


def test_two_windows_follow_a_run_until_it_is_done(cdo: Desk, provider: Provider) -> None:
    provider.hold("t1-synthesis")
    run = cdo.start("think", "--width", "2", "--turns", "1", *A, QUESTION)
    wait_for(lambda: provider.named("t1-synthesis"))
    with served(cdo, "a") as client:
        client.begin()
        page = client.session("a")
        assert "Running, turn 1: 2 of 3 calls answered." in page.text and 'content="5"' in page.text
        assert "running" in client.ask("/").text
        seen: list[list[dict[str, str]]] = [[], []]

        def window(at: int) -> None:
            version = re.search(r'data-version="([^"]+)"', page.text)
            assert version
            with client.stream("a", version[1]) as stream:
                for kind, id, data in stream.events():
                    seen[at].append({"kind": kind, "id": id, **data})

        windows = [threading.Thread(target=window, args=(at,)) for at in (0, 1)]
        for thread in windows:
            thread.start()
        time.sleep(0.5)
        provider.release()
        assert finish(run).code == 0
        for thread in windows:
            thread.join(20)
        assert not any(thread.is_alive() for thread in windows), "a stream ends with its session"
        for pieces in seen:
            assert pieces[-1]["kind"] == "end" and pieces[-2]["kind"] == "parts"
            last: dict[str, str] = {}
            for item in pieces:
                last |= item
            assert "Decision" in last["answer"] and last["said"] == "Finished after its 1 turn."
        assert seen[0][-1]["id"] == seen[1][-1]["id"], "both windows saw the same run"


@contextlib.contextmanager
def held_run(cdo: Desk, provider: Provider) -> Iterator[WebClient]:
    """A browser that was let in, while a run waits for its synthesis; the run goes on at the end."""
    provider.hold("t1-synthesis")
    with contextlib.ExitStack() as stack:
        run = cdo.start("think", "--width", "2", "--turns", "1", *A, QUESTION)
        stack.callback(run.communicate)
        stack.callback(provider.release)
        wait_for(lambda: provider.named("t1-synthesis"))
        client = stack.enter_context(served(cdo))
        client.begin()
        yield client


def test_a_window_that_comes_back_gets_what_it_has_not_seen(cdo: Desk, provider: Provider) -> None:
    with held_run(cdo, provider) as client:
        with client.stream("a") as stream:
            _, id, data = next(stream.events())
        assert {"said", "status", "calls", "log"} <= data.keys(), "a new window gets all parts"
        provider.release()
        wait_for(lambda: (cdo.session() / "FINAL.md").is_file())
        with client.stream("a", headers={"Last-Event-ID": id}) as stream:
            _, _, fresh = next(stream.events())
        assert "log" in fresh and "products" not in fresh, "only what changed"
        with client.stream("a", headers={"Last-Event-ID": "other-1"}) as stream:
            _, _, whole = next(stream.events())
        assert whole.keys() == data.keys(), "the server was another one: everything"


# -- floods ----------------------------------------------------------------------------------------


def test_floods_are_held_off_and_the_person_is_served(web: WebClient) -> None:
    """Connections that say nothing, and streams without end, are counted; what is too large is refused."""
    assert web.ask("/", {"X": "x" * 70_000}).status == 400
    assert web.ask(f"/?q={'x' * 70_000}").status in (400, 414)
    with contextlib.ExitStack() as stack:
        port = urlsplit(web.address).port
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port or 0))) for _ in range(160)]
        for connection in silent:
            connection.settimeout(5)
            with contextlib.suppress(OSError):
                connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        wait_for(lambda: sum(_ended(connection) for connection in silent) >= 30, timeout=5)
        wait_for(lambda: _served(web), timeout=30, every=0.5)
    assert web.ask("/").status == 200


def test_windows_are_counted(cdo: Desk, provider: Provider) -> None:
    with held_run(cdo, provider) as client:
        with contextlib.ExitStack() as windows:
            for _ in range(MOST_WINDOWS):
                assert next(windows.enter_context(client.stream("a")).events())[0] == "parts"
            with client.stream("a") as refused:
                assert refused.answer.status == 503
            assert client.session("a").status == 200, "pages are still made"
        wait_for(lambda: _streams(client), timeout=30, every=0.5)


def _streams(client: WebClient) -> bool:
    with client.stream("a") as stream:
        return stream.answer.status == 200


def _ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _served(web: WebClient) -> bool:
    try:
        return web.ask("/").status == 200
    except OSError:
        return False


# -- the command -----------------------------------------------------------------------------------


def test_ctrl_c_ends_it(finished: Desk) -> None:
    process = finished.start("watch", "a", "--web", "--port", "0")
    assert process.stdout and process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    done = finish(process, timeout=20)
    assert done.code == 130 and "Traceback" not in done.err


def test_at_a_terminal_enter_prints_another_address(finished: Desk) -> None:
    terminal = pexpect.spawn(
        sys.executable, ["-m", "cdo", "watch", "--web"], cwd=finished.path, env=finished.environment(), timeout=30
    )
    try:
        found = []
        for _ in range(3):
            terminal.expect(rb"(http://127\.0\.0\.1:\S+)\s")
            found.append(terminal.match[1].decode())
            terminal.sendline("")
        first, second, third = map(WebClient, found)
        assert first.begin().status == second.begin().status == 200 and first.cookie != second.cookie
        assert first.ask("/").status == second.ask("/").status == 200
        assert third.ask("/begin?token=" + found[0].partition("=")[2]).status == 403, "each is good once"
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 130 and b"Fatal" not in terminal.before
    finally:
        terminal.close(force=True)


def test_the_port_is_the_one_that_one_says(finished: Desk) -> None:
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        explained(finished("watch", "--web", "--port", port), 4, f"Nothing can listen at port {port}")
    explained(finished("watch", "--port", "8000"), 2, "--port is the port of --web")
    with served(finished, "--port", port) as client:
        assert client.netloc == f"127.0.0.1:{port}"


def test_a_session_elsewhere_is_shown_by_its_path(finished: Desk, tmp_path: Path) -> None:
    shutil.copytree(finished.session(), tmp_path / "cdo-moved")
    with served(finished, str(tmp_path / "cdo-moved")) as client:
        assert client.begin().headers["refresh"].endswith("/session/moved")
        assert client.session("moved").status == 200


def test_many_sessions_stay_usable(bare: Desk) -> None:
    """The list shows fifty at a time, and finds by words."""
    bare("demo", "--fast", "-q").ok()
    for number in range(120):
        shutil.copytree(
            bare.session("demo"), bare.session(f"n{number}"), ignore=lambda _, names: {"material"} & {*names}
        )
    with served(bare) as client:
        client.begin()
        wait_for(lambda: "still being read" not in client.ask("/").text)
        first, last = client.ask("/"), client.ask("/?page=99")
        assert first.text.count("<tr>") == 51 and "1–50 of 121" in first.text and last.text.count("<tr>") == 22
        found = client.ask("/?q=N119+kafka")
        assert found.text.count("<tr>") == 2 and "/session/n119" in found.text
        assert "No session has these words" in client.ask("/?q=nothing+like+it").text
