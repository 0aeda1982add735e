"""A stand-in for xllamacpp: a real child of cdo runs it as it would run the real one, and nothing is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

# It answers each request with `text`, or misbehaves as `plan` says for "CALL/ATTEMPT"; with `url` it only gives the
# address of a provider that answers in its place.
MODULE = """
import json, os, signal, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

TOLD = json.loads(Path(__file__).with_name("told.json").read_text())
llama_flash_attn_type = SimpleNamespace(LLAMA_FLASH_ATTN_TYPE_DISABLED=0)


def get_device_info():
    return []


class CommonParams:
    def __init__(self):
        self.model, self.sampling = SimpleNamespace(), SimpleNamespace()
        self.cpuparams, self.cpuparams_batch = SimpleNamespace(), SimpleNamespace()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        plan = TOLD["plan"].get(self.headers["X-Cdo-Call"] + "/" + self.headers["X-Cdo-Attempt"], "")
        if plan == "hang":
            time.sleep(600)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        half = len(TOLD["text"]) // 2
        self.say({"delta": {"content": TOLD["text"][:half]}})
        if plan == "stall":
            time.sleep(600)
        if plan.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, plan))
            time.sleep(600)  # another thread may get it, a moment later
        if plan == "exit":
            os._exit(0)
        self.say({"delta": {"content": TOLD["text"][half:]}, "finish_reason": "stop"})
        self.wfile.write(b"data: [DONE]\\n\\n")

    def say(self, choice):
        self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\\n\\n")
        self.wfile.flush()


class Server:
    def __init__(self, params):
        self.listening_address = TOLD["url"]
        if not TOLD["url"]:
            self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            Thread(target=self.server.serve_forever, daemon=True).start()
            self.listening_address = "http://127.0.0.1:%d" % self.server.server_port
"""


def stand_in(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    text: str = "",
    plan: Mapping[str, str] | None = None,
    url: str = "",
) -> Path:
    """Let children of this process import the stand-in as xllamacpp; returns a model file to name to them."""
    place.mkdir(exist_ok=True)
    (place / "xllamacpp.py").write_text(MODULE, encoding="utf-8")
    (place / "told.json").write_text(json.dumps({"text": text, "plan": plan or {}, "url": url}), encoding="utf-8")
    (place / "any.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.syspath_prepend(str(place))
    return place / "any.gguf"
