"""A Hugging Face hub on loopback: the hub itself, and on another port the storage to which it redirects.

HEAD and GET of `/ORG/REPO/resolve/REVISION/FILE` answer as the hub does: a redirect that states hash, size and commit
of the file. The storage sends the bytes and knows `Range`.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """One request: which server got it, its method and path, and two of its headers."""

    server: str
    method: str
    path: str
    range: str
    token: str


@dataclass
class LoopbackHub:
    """What the hub holds, and how it misbehaves.

    `cut` is the number of bytes after which a connection breaks, `cuts` how often. `error` is (status, code) of the
    hub's answers. `lies` is the content that the storage has in place of the stated one. `deaf` makes the storage
    ignore Range; `expired` is how many signed addresses have run out. `renamed` redirects within the hub first.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    cut: int = 0
    cuts: int = 0
    error: tuple[int, str] | None = None
    lies: bytes | None = None
    deaf: bool = False
    expired: int = 0
    renamed: bool = False
    private: str = ""
    states: bool = True
    url: str = ""
    storage: str = ""

    def holds(self, name: str, data: bytes) -> str:
        """Publish `data` as ORG/REPO/FILE; return its hash."""
        self.files[name] = data
        return hashlib.sha256(data).hexdigest()

    def to_storage(self) -> list[Asked]:
        """The requests that the storage got."""
        return [asked for asked in self.asked if asked.server == "storage"]


def commit_of(data: bytes) -> str:
    """The commit that a version of a file has."""
    return hashlib.sha1(data).hexdigest()


def _handler(hub: LoopbackHub, server: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            heard = (self.headers.get(name, "") for name in ("Range", "Authorization"))
            hub.asked.append(Asked(server, self.command, self.path, *heard))
            self._store() if server == "storage" else self._resolve()

        def _resolve(self) -> None:
            found = re.fullmatch(r"/(?:new/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
            data = hub.files.get(f"{found[1]}/{found[3]}") if found else None
            if hub.error:
                return self._say(hub.error[0], {"X-Error-Code": hub.error[1]})
            if hub.private and self.headers.get("Authorization") != f"Bearer {hub.private}":
                return self._say(401, {"X-Error-Code": "RepoNotFound"})
            if found is None or data is None or found[2] not in ("main", commit_of(data)):
                return self._say(404, {"X-Error-Code": "EntryNotFound"})
            if hub.renamed and not self.path.startswith("/new/"):
                return self._say(307, {"Location": f"/new{self.path}"})
            stated = {
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
                "X-Repo-Commit": commit_of(data),
                "ETag": '"of-the-pointer"',
            }
            signed = {"Location": f"{hub.storage}/blob/{found[1]}/{found[3]}?X-Amz-Signature=a%2Fb%3D&x=1"}
            return self._say(302, {**(stated if hub.states else {}), **signed})

        def _store(self) -> None:
            if hub.expired:
                hub.expired -= 1
                return self._say(403, {})
            name = self.path.removeprefix("/blob/").partition("?")[0]
            assert self.path.endswith("?X-Amz-Signature=a%2Fb%3D&x=1"), "the signed address arrived changed"
            data = hub.files[name] if hub.lies is None else hub.lies
            begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(begin[1]) if begin and not hub.deaf else 0
            if start >= len(data):
                return self._say(416, {})
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if self.command == "GET" and hub.cuts:
                hub.cuts -= 1
                self.wfile.write(data[start : start + hub.cut])
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
            elif self.command == "GET":
                self.wfile.write(data[start:])
            return None

        def _say(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

    return Handler


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    """Serve an empty hub and its storage."""
    hub = LoopbackHub()
    servers = {name: ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, name)) for name in ("hub", "storage")}
    for server in servers.values():
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers.values())
    try:
        yield hub
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()
