"""A provider of language models whose replies are written by hand, or by whatever writes files.

It speaks Chat Completions on loopback. Each request becomes a file to read, and waits until its reply lies beside it:

    python benchmarks/by_hand.py --folder hand --port 8400
    export OPENAI_BASE_URL=http://127.0.0.1:8400/v1 OPENAI_API_KEY=none CDO_CALL_TIMEOUT=86400
    cdo think -m openai/hand "Should we reduce node types?"

    hand/0001.agent.20261121-101500.t1-critic.prompt.md   what the model is asked
    hand/0001.agent.20261121-101500.t1-critic.reply.md    what it answers: you write this one

The parts of a name are a number, the kind of call, the session and the call. Write the reply under another name and
rename it, or write it in place: it is taken when it ends with a line break and stays unchanged for a second (without
the line break: ten seconds). To change a reply that was taken, change its file before the same question comes again.

The same call with the same messages gets the same file, and so the same reply: a retry, a resumed run and a restarted
server ask nothing twice. Take another folder where every question shall be answered anew.

While a reply is awaited a streamed answer sends a comment every ten seconds, which cdo counts as a sign of life. Its
limit for a whole call still holds: 1,800 seconds, after which it asks again (the same file), four times in all. So
set CDO_CALL_TIMEOUT to a day. The limits CDO_FIRST_BYTE_TIMEOUT and CDO_IDLE_TIMEOUT can stay as they are.

Tools that a request offers are not shown and cannot be called. Tokens are estimated: four bytes are one.
`--list` and `GET /` show what is open.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from processes import ROOT

sys.path.insert(0, str(ROOT))

from cdo.core.usage import estimate_tokens

ALIVE = 10.0  # seconds from one comment of a waiting stream to the next
LOOK = 0.5  # seconds from one look at the folder to the next
QUIET, QUIET_UNENDED = (
    1.0,
    10.0,
)  # seconds for which a reply must stay unchanged; the second without a last line break
MAX_REQUEST = 64 * 2**20  # bytes
_PROMPT = re.compile(r"(\d{4,})\.([^.]+)\.([^.]+)\.([^.]+)\.prompt\.md")
_KEY = re.compile(r"<!-- request ([0-9a-f]{64})")


@dataclass(frozen=True)
class Asked:
    """One request as it lies in the folder; `key` tells it from every other."""

    number: int
    kind: str
    session: str
    call: str
    key: str

    @property
    def stem(self) -> str:
        """The name of its files without what follows `.prompt` or `.reply`."""
        return f"{self.number:04}.{self.kind}.{self.session}.{self.call}"

    @property
    def prompt(self) -> str:
        return f"{self.stem}.prompt.md"

    @property
    def reply(self) -> str:
        return f"{self.stem}.reply.md"


@dataclass
class Desk:
    """The folder: which requests lie there, and which replies are complete."""

    folder: Path
    known: dict[str, Asked] = field(default_factory=dict)
    seen: dict[str, tuple[tuple[int, int], float]] = field(default_factory=dict)  # by reply: (state, since)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self.folder.glob("*.prompt.md")):
            if (asked := _read(path)) is not None:
                self.known[asked.key] = asked

    def ask(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[Asked, bool]:
        """The request's place in the folder, and whether it is new; its file is there afterwards."""
        kind, session, call = (_part(headers.get(f"X-Cdo-{name}", "")) for name in ("Kind", "Session", "Call"))
        told = json.dumps([call, body.get("model"), body.get("messages")], sort_keys=True, ensure_ascii=True)
        key = hashlib.sha256(told.encode()).hexdigest()
        if old := self.known.get(key):
            return old, False
        number = 1 + max((asked.number for asked in self.known.values()), default=0)
        asked = Asked(number, kind, session, call, key)
        text = _prompt(asked, body)
        temporary = self.folder / f".{asked.prompt}.new"
        with temporary.open("w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.folder / asked.prompt)
        self.known[key] = asked
        return asked, True

    def answer(self, asked: Asked) -> str | None:
        """The complete reply, or None while there is none. Looks once; what grows is looked at again later."""
        path = self.folder / asked.reply
        try:
            status = path.stat()
            state, now = (status.st_size, status.st_mtime_ns), time.monotonic()
            before, since = self.seen.get(asked.reply, (None, now))
            if before != state:
                self.seen[asked.reply] = state, now
                return None
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            self.seen.pop(asked.reply, None)
            return None
        quiet = QUIET if text.endswith("\n") else QUIET_UNENDED
        return text.strip() if text.strip() and now - since >= quiet else None

    def open(self) -> list[Asked]:
        """The requests without a reply's file, in order."""
        asked = sorted(self.known.values(), key=lambda item: item.number)
        return [item for item in asked if not (self.folder / item.reply).exists()]

    def listing(self, waiting: Mapping[str, int] | None = None) -> str:
        """A line for each open request: its file, its kind, its size, and whether somebody waits for it now."""
        found = self.open()
        lines = [f"{len(found)} open, {len(self.known) - len(found)} answered in {self.folder}"]
        for asked in found:
            size = (self.folder / asked.prompt).stat().st_size
            idle = "  nobody waits for it now" if waiting is not None and not waiting.get(asked.key) else ""
            lines.append(f"{asked.prompt}  {asked.kind}  {size:,} bytes{idle}")
        return "\n".join(lines) + "\n"


def _part(text: str) -> str:
    """A header as one part of a file's name."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", text).strip("-")[:60] or "none"


def _read(path: Path) -> Asked | None:
    """The request that a file of the folder holds; None for a file of somebody else."""
    named = _PROMPT.fullmatch(path.name)
    with path.open(encoding="utf-8", errors="replace") as file:
        key = _KEY.match(file.readline())
    return Asked(int(named[1]), named[2], named[3], named[4], key[1]) if named and key else None


def _prompt(asked: Asked, body: Mapping[str, Any]) -> str:
    """The request as a file for whoever answers it."""
    messages = [item for item in body.get("messages") or () if isinstance(item, dict)]
    lines = [f"<!-- request {asked.key}; write the reply to {asked.reply} -->", ""]
    for place, message in enumerate(messages, 1):
        role = str(message.get("role", "")).upper()
        lines += [f"==================== {role} (message {place} of {len(messages)}) ====================", ""]
        lines += [_words(message.get("content")), ""]
    return "\n".join(lines)


def _words(content: Any) -> str:
    """The text of a message."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


# -- the protocol ------------------------------------------------------------------------------------


class Server:
    """Answers requests from a folder. `waiting` counts who waits, by the request's key."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.waiting: dict[str, int] = {}

    def application(self) -> web.Application:
        """What is served, with and without the prefix /v1."""
        app = web.Application(client_max_size=MAX_REQUEST)
        app.router.add_get("/", self.index)
        for prefix in ("", "/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self.complete)
            app.router.add_get(f"{prefix}/models", self.models)
        return app

    async def index(self, request: web.Request) -> web.Response:
        """What is open."""
        return web.Response(text=self.desk.listing(self.waiting))

    async def models(self, request: web.Request) -> web.Response:
        """One model, so that clients that ask have an answer."""
        return web.json_response({"object": "list", "data": [{"id": "hand", "object": "model", "owned_by": "hand"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Put the request into the folder, wait for its reply, and send that."""
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            error = {"message": "the body must be a JSON object with messages", "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=400)
        asked, new = self.desk.ask(request.headers, body)
        if new:
            size = sum(len(_words(item.get("content"))) for item in body["messages"] if isinstance(item, dict))
            print(f"open      {asked.prompt}  {size:,} characters", flush=True)
        self.waiting[asked.key] = self.waiting.get(asked.key, 0) + 1
        try:
            return (
                await self._streamed(request, asked, body) if body.get("stream") else await self._whole(asked, body)
            )
        finally:
            self.waiting[asked.key] -= 1

    async def _reply(self, asked: Asked, limit: float = float("inf")) -> str | None:
        """The reply, or None when `limit` seconds passed without one."""
        end = time.monotonic() + limit
        while (text := self.desk.answer(asked)) is None:
            if time.monotonic() >= end:
                return None
            await asyncio.sleep(LOOK)
        print(f"answered  {asked.reply}  {len(text):,} characters", flush=True)
        return text

    async def _whole(self, asked: Asked, body: Mapping[str, Any]) -> web.StreamResponse:
        text = await self._reply(asked) or ""
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = _head(asked, body, "chat.completion")
        return web.json_response({**head, "choices": [choice], "usage": _usage(body, text)})

    async def _streamed(self, request: web.Request, asked: Asked, body: Mapping[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        await response.write(b": waiting\n\n")
        while (text := await self._reply(asked, ALIVE)) is None:
            await response.write(b": waiting\n\n")
        head = _head(asked, body, "chat.completion.chunk")

        def event(choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
            return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"

        await response.write(event([{"index": 0, "delta": {"role": "assistant", "content": text}}]))
        await response.write(event([{"index": 0, "delta": {}, "finish_reason": "stop"}]))
        await response.write(event([], usage=_usage(body, text)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _head(asked: Asked, body: Mapping[str, Any], what: str) -> dict[str, Any]:
    return {"id": f"hand-{asked.number}", "object": what, "created": 0, "model": str(body.get("model", "hand"))}


def _usage(body: Mapping[str, Any], text: str) -> dict[str, int]:
    """The estimated tokens of an exchange."""
    sent = sum(estimate_tokens(_words(item.get("content"))) for item in body["messages"] if isinstance(item, dict))
    got = estimate_tokens(text)
    return {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}


async def serve(folder: Path, port: int) -> None:
    """Serve until the process is told to end; the address is the first line that is printed."""
    desk = Desk(folder)
    runner = web.AppRunner(Server(desk).application(), shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    print(desk.listing(), end="", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()


def main(argv: Sequence[str]) -> None:
    """Serve, or list what is open."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="by_hand.py", description=__doc__, formatter_class=shape)
    parser.add_argument("--folder", type=Path, required=True, help="where requests and replies lie")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--list", action="store_true", help="print what is open, and end")
    options = parser.parse_args(argv)
    if options.list:
        if not options.folder.is_dir():
            raise SystemExit(f"by_hand.py: There is no folder {options.folder}.")
        print(Desk(options.folder).listing(), end="")
        return
    asyncio.run(serve(options.folder, options.port))


if __name__ == "__main__":
    main(sys.argv[1:])
