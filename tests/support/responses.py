"""A provider on loopback that speaks the Responses protocol, as `codex` needs it (it takes nothing else).

    with Responses(answer="fine") as p:
        ...  # point a client at p.url, then look at p.requests

`answer` is the text of each reply, or a function of the request's JSON that returns a text, or a `Failure`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Failure:
    """What goes wrong instead of an answer: an HTTP status, or an event inside a stream that began well."""

    status: int = 0
    code: str = ""
    message: str = "boom"
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: float = 0.0

    @property
    def error(self) -> dict[str, Any]:
        """The error as the protocol words it."""
        return {"type": self.code, "code": self.code, "message": self.message}


Answer = Callable[[dict[str, Any]], str | Failure]


class Responses:
    """The server and its log. `usage` is (input, cached, output) tokens of each answer."""

    def __init__(self, answer: str | Failure | Answer = "fine", usage: tuple[int, int, int] = (100, 40, 7)) -> None:
        self.answer: Answer = answer if callable(answer) else lambda _: answer
        self.usage = usage
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The base address (…/v1)."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Responses:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def events(self, said: str | Failure) -> Iterator[dict[str, Any]]:
        """The events of one stream."""
        reply = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
        yield {"type": "response.created", "response": reply}
        if isinstance(said, Failure):
            yield {"type": "response.failed", "response": {**reply, "status": "failed", "error": said.error}}
            return
        part = {"type": "output_text", "text": said, "annotations": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        for start in range(0, len(said), 65_536):
            yield {"type": "response.output_text.delta", **place, "delta": said[start : start + 65_536]}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        sent, cached, made = self.usage
        usage = {
            "input_tokens": sent,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sent + made,
        }
        done = {**reply, "status": "completed", "output": [item], "usage": usage}
        yield {"type": "response.completed", "response": done}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

            def do_GET(self) -> None:
                self._send(404, b'{"error": {"message": "not here"}}')

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self.path.endswith("/responses"):
                    self._send(404, b'{"error": {"message": "not here"}}')
                    return
                owner.requests.append(body)
                owner.headers.append({key.lower(): value for key, value in self.headers.items()})
                said = owner.answer(body)
                if isinstance(said, Failure) and said.hang:
                    owner.closing.wait(said.hang)
                if isinstance(said, Failure) and said.status:
                    self._send(said.status, json.dumps({"error": said.error}).encode(), said.headers)
                    return
                lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in owner.events(said)]
                self._send(200, "".join(lines).encode(), {"Content-Type": "text/event-stream"})

            def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
                try:
                    self.send_response(status)
                    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except ConnectionError:  # the client was ended
                    self.close_connection = True

        return Handler


def settle(seen: Callable[[], bool], timeout: float = 5.0) -> None:
    """Wait until `seen` is true; fails when it never is."""
    limit = time.monotonic() + timeout
    while not seen():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.01)
