"""A server of `cdo watch --web` in a process of its own, and a plain HTTP client for it that is no browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from tests.conftest import Desk
from tests.support.harness import kill_group


@dataclass(frozen=True)
class Got:
    """An answer: its status, headers (in lower case) and text."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class WebClient:
    """Speaks to the server whose printed address is `address`; `cookie` is what a browser would send."""

    address: str
    cookie: str = ""
    process: subprocess.Popen[str] | None = None

    @property
    def netloc(self) -> str:
        return urlsplit(self.address).netloc

    @property
    def home(self) -> str:
        """The path under which all pages lie."""
        return urlsplit(self.address).path.removesuffix("/begin")

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.netloc, timeout=30)

    def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: str | bytes | None = None,
    ) -> Got:
        """Send one request; `path` is below `home` unless it begins with two slashes."""
        whole = path[1:] if path.startswith("//") else self.home + path
        heads = {"Cookie": self.cookie, **(headers or {})}
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, whole, body, {key: value for key, value in heads.items() if value})
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            return Got(answer.status, {key.lower(): value for key, value in answer.getheaders()}, text)

    def begin(self, headers: Mapping[str, str] | None = None) -> Got:
        """Open the printed address, and keep the cookie that comes."""
        asked = urlsplit(self.address)
        got = self.ask(f"/begin?{asked.query}", headers)
        if found := re.match(r"[^;]+", got.headers.get("set-cookie", "")):
            self.cookie = found[0]
        return got

    def end(self) -> None:
        """Kill the server."""
        assert self.process
        kill_group(self.process.pid)
        self.process.wait(10)

    def session(self, name: str, more: str = "") -> Got:
        return self.ask(f"/session/{quote(name, safe='')}{more}")

    @contextlib.contextmanager
    def stream(self, name: str, after: str = "", headers: Mapping[str, str] | None = None) -> Iterator[Stream]:
        """Open a session's stream of events."""
        with contextlib.closing(self.connection()) as connection:
            heads = {"Cookie": self.cookie, **(headers or {})}
            connection.request("GET", f"{self.home}/session/{name}/events?after={quote(after)}", headers=heads)
            with contextlib.closing(connection.getresponse()) as answer:
                yield Stream(answer)


@dataclass
class Stream:
    """Server-sent events as they come."""

    answer: http.client.HTTPResponse

    def events(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield (kind, id, data) until the stream ends."""
        found: dict[str, str] = {}
        for raw in self.answer:
            line = raw.decode().rstrip("\n")
            key, _, value = line.partition(": ")
            if line:
                found[key] = value
                continue
            if "event" in found:
                yield found["event"], found["id"], json.loads(found["data"])
            found = {}


@contextlib.contextmanager
def served(desk: Desk, *args: str) -> Iterator[WebClient]:
    """Start the server, and end it; the client has not opened the address yet."""
    process = desk.start("watch", *args, "--web")
    try:
        assert process.stdout
        line = process.stdout.readline().strip()
        assert line, process.communicate(timeout=10)
        yield WebClient(line, process=process)
    finally:
        kill_group(process.pid)
        process.communicate()
