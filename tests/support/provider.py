"""A provider of language models on loopback, for tests and benchmarks.

In a test, in a thread of its own:

    with Provider(faults=[Fault(status=429, headers={"Retry-After": "2"}, call="t1-*", attempt=1)]) as p:
        ...  # talk to p.url, then look at p.requests

As a process, which prints its URL as the first line: `python -m tests.support.provider --port 0 --latency 0.2`.

It speaks Chat Completions, Messages and Responses (streamed or not) and lists its models as OpenAI and Ollama do. The
prefix `/v1` may be left out of every path, so that `p.url` and `p.url + "/v1"` both serve as a base URL.
`GET /stats` and `POST /reset` are for benchmarks and are not logged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from cdo.core.exchange import ToolCall, Usage
from tests.support import wire_responses
from tests.support.answers import (
    Answer,
    RequestInfo,
    agent_text,
    default_answer,
    final_text,
    role_names,
    synthesis_text,
)
from tests.support.batches import LoopbackBatches
from tests.support.delivery import EVENTS, JSON, Delivery, Reply, sever
from tests.support.faults import (
    HTML_PAGE,
    OVERFLOW_BODIES,
    Fault,
    Match,
    Row,
    Rules,
    error_body,
    http_date,
)
from tests.support.prompt_cache import PromptCache
from tests.support.wire import encode, error_event, measure, ollama_models, openai_models

__all__ = [
    "HTML_PAGE",
    "OVERFLOW_BODIES",
    "Answer",
    "Fault",
    "Match",
    "Provider",
    "RequestInfo",
    "Row",
    "Script",
    "ToolCall",
    "Usage",
    "agent_text",
    "final_text",
    "http_date",
    "role_names",
    "synthesis_text",
]

Script = Callable[[RequestInfo], Answer | str | Fault | None]
_NO_FAULT = Fault()
_HELD_FOR = 120.0  # seconds after which a held answer is a mistake of the test


class Provider:
    """The server, its log, and what it is told to answer.

    `script` decides first: a function of the request, or rows of which the first that matches is taken;
    None, or no match, leaves the default answer. Then the first of `faults` that matches spoils it. A
    function may return a `Fault` too. Setting `faults` starts their counts anew.

    `latency` is the time from a call's arrival to its answer; `first_byte` comes between headers and body;
    `between` between two events of a stream, of `chunk` characters each. With no such delay and no fault a
    stream leaves in one write. `width` is what the default directive asks for. With `cache`, each protocol
    reports what the vendor's prompt cache would read and write, from that many tokens on.

    `hold` keeps answers back until `release`: what has to happen while a call is in flight then happens so at any
    speed of the machine, which no `latency` can promise.
    """

    def __init__(
        self,
        *,
        script: Script | Sequence[Row] | None = None,
        faults: Sequence[Fault] = (),
        latency: float = 0.0,
        first_byte: float = 0.0,
        between: float = 0.0,
        chunk: int = 64,
        width: int = 3,
        models: Sequence[str] = ("bench",),
        port: int = 0,
        cache: int = 0,
    ) -> None:
        self.cache = PromptCache(cache) if cache else None
        self.listing: dict[str, Any] = {}  # its list of models, in place of the usual one
        self.latency, self.chunk, self.width, self.models = latency, chunk, width, tuple(models)
        self.delivery = Delivery(first_byte, between)
        self.url = ""
        self.requests: list[RequestInfo] = []
        self.errors: list[Exception] = []  # raised by the script; the first is raised again at the end
        self.peak: Counter[str] = Counter()  # most calls at the same time, by kind; "all" for any kind
        self._in_flight: Counter[str] = Counter()
        self._nth: Counter[str] = Counter()
        self.batches = LoopbackBatches(self)
        self._held: tuple[str, str] | None = None  # patterns of calls and sessions
        self._port = port
        self._runner: web.ServerRunner | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self.script = script
        self.faults = faults

    # -- what it is told, and what it tells --

    @property
    def script(self) -> Script | Sequence[Row] | None:
        """What answers before the defaults do."""
        return self._script

    @script.setter
    def script(self, script: Script | Sequence[Row] | None) -> None:
        self._script = script
        self._rows = Rules(() if script is None or callable(script) else script)

    @property
    def faults(self) -> Sequence[Fault]:
        """What goes wrong, in order of precedence."""
        return self._faults.rules

    @faults.setter
    def faults(self, faults: Sequence[Fault]) -> None:
        self._faults = Rules(faults)

    @property
    def calls(self) -> list[RequestInfo]:
        """The requests that ask a model something, in order of arrival."""
        return [info for info in self.requests if info.is_call]

    def named(self, call: str) -> list[RequestInfo]:
        """The requests made for one call, in order of arrival."""
        return [info for info in self.requests if info.call == call]

    def hold(self, call: str = "*", session: str = "*") -> None:
        """Keep back the answers to calls of these names (patterns), and to no others, until told otherwise.

        They arrive and are logged as ever. One that is held for two minutes fails the test.
        """
        self._held = (call, session)

    def release(self) -> None:
        """Let go of every answer that is held, and hold no more."""
        self._held = None

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until no call is in flight, so that the log is complete."""
        limit = time.monotonic() + timeout
        while self._in_flight["all"]:
            if time.monotonic() > limit:
                raise TimeoutError(f"{self._in_flight['all']} calls are still in flight after {timeout} s")
            time.sleep(0.002)

    def reset(self) -> None:
        """Forget the log and the counts; calls in flight stay counted."""
        self.requests = []
        self._nth.clear()
        self.peak = Counter(self._in_flight)
        self.script, self.faults = self._script, self._faults.rules

    def stats(self) -> dict[str, Any]:
        """The log in figures. `span` runs from the first call's arrival to the last answer's end."""
        calls = self.calls
        ends = [info.ended for info in calls if info.ended is not None]
        return {
            "requests": len(self.requests),
            "calls": len(calls),
            "by_kind": dict(Counter(info.kind for info in calls)),
            "peak": self.peak["all"],
            "peak_by_kind": {kind: count for kind, count in self.peak.items() if kind != "all"},
            "in_flight": self._in_flight["all"],
            "connections": len({info.port for info in calls}),
            "span": max(ends) - calls[0].arrived if ends else 0.0,
            "faults": sum(info.fault is not None for info in calls),
            "left": sum(info.left for info in calls),
        }

    # -- running it --

    async def start(self) -> None:
        """Listen on loopback; `url` is known afterwards."""
        self._loop = asyncio.get_running_loop()
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=1024)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Let go of what hangs and stop listening."""
        self.delivery.closing.set()
        await asyncio.sleep(0)
        if self._runner:
            await self._runner.cleanup()

    def __enter__(self) -> Provider:
        started = threading.Event()
        failure: list[BaseException] = []

        async def serve() -> None:
            await self.start()
            started.set()
            await self._stop.wait()
            await self.close()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                failure.append(error)
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="provider", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            raise failure[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread and self._loop and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)
        if self.errors and error is None:
            raise self.errors[0]

    # -- one request --

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        arrived = time.monotonic()
        raw = await request.content.read()  # request.read() would refuse more than a megabyte
        if request.path == "/stats":
            return web.json_response(self.stats())
        if request.path == "/reset" and request.method == "POST":
            self.reset()
            return web.json_response({})
        info = self._log(request, raw, arrived)
        kinds = (info.kind, "all") if info.is_call else ()
        for kind in kinds:
            self._in_flight[kind] += 1
            self.peak[kind] = max(self.peak[kind], self._in_flight[kind])
        try:
            if self.batches.knows(info):
                reply = await self.batches.reply(info, request.query)
            else:
                reply = await self._reply(info) if info.is_call else self._listing(info)
            fault = info.fault or _NO_FAULT
            info.status = 0 if fault.drop else fault.status or reply.status
            return await self.delivery.send(request, reply, fault, info.anthropic)
        except asyncio.CancelledError:
            info.left = True
            raise
        except ConnectionError:
            info.left = not self.delivery.closing.is_set()
            sever(request, "fin")
            return web.Response()
        except Exception as error:  # a mistake or an assertion of the script: the test must hear of it
            self.errors.append(error)
            return web.json_response(error_body(500, info.anthropic), status=500)
        finally:
            info.ended = time.monotonic()
            for kind in kinds:
                self._in_flight[kind] -= 1

    def _log(self, request: web.BaseRequest, raw: bytes, arrived: float) -> RequestInfo:
        body: Any = None
        if raw:
            try:
                body = json.loads(raw)
            except ValueError:
                body = raw.decode("utf-8", "replace")
        peer = request.transport.get_extra_info("peername") if request.transport else None
        port = peer[1] if peer else 0
        info = RequestInfo(request.method, request.path, request.headers, body, arrived, port=port)
        self._nth[info.call] += 1
        info.nth = self._nth[info.call]
        self.requests.append(info)
        info.number = len(self.requests)
        return info

    def _listing(self, info: RequestInfo) -> Reply:
        """Everything that is not a call: the lists of models, and 404."""
        info.fault = self._faults.pick(info)
        match info.method, info.path.removeprefix("/v1"):
            case "GET", "/models":
                return Reply([json.dumps(self.listing or openai_models(self.models)).encode()])
            case "GET", "/api/tags":
                return Reply([json.dumps(ollama_models(self.models)).encode()])
        return Reply([json.dumps(error_body(404, anthropic=False)).encode()], status=404)

    async def _reply(self, info: RequestInfo) -> Reply:
        """Choose the answer and the fault of a call, wait for its time, and put it into words."""
        said = self._script(info) if callable(self._script) else None
        if said is None and (row := self._rows.pick(info)):
            said = row.answer
        if isinstance(said, Fault):
            info.fault, said = said, None
        else:
            info.fault = self._faults.pick(info)
        fault = info.fault or _NO_FAULT
        cached = self.cache.look(info.body) if self.cache and not fault.status else None
        answer = Answer(said) if isinstance(said, str) else said or default_answer(info, self.width)
        wait = info.arrived + (self.latency if answer.latency is None else answer.latency) - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        await self._released(info)

        if fault.shape == "html":
            return Reply([HTML_PAGE.encode()], "text/html")
        answer = fault.reshape(answer)
        counted = answer.usage or measure(info, answer)
        if self.cache and cached:  # what is cached can be read from the first byte of the answer on
            counted = replace(cached[0], output_tokens=counted.output_tokens)
            self.cache.known |= cached[1]
        usage = fault.recount(counted)
        pieces = (wire_responses.encode if info.responses else encode)(info, answer, usage, fault.shape, self.chunk)
        if fault.stream_error:
            if info.responses:
                error = wire_responses.error_event(fault.stream_error, info)
            else:
                error = error_event(fault.stream_error, info.anthropic)
            pieces = [*pieces[: fault.after], error] if info.streaming else [error.partition(b"data: ")[2]]
        return Reply(pieces, EVENTS if info.streaming else JSON)

    def answered_at_once(self, info: RequestInfo) -> bytes:
        """The answer to a call of a batch, which comes in one piece and to no fault of the connection."""
        said = self._script(info) if callable(self._script) else None
        if said is None and (row := self._rows.pick(info)):
            said = row.answer
        assert not isinstance(said, Fault)
        answer = Answer(said) if isinstance(said, str) else said or default_answer(info, self.width)
        usage = answer.usage or measure(info, answer)
        return b"".join((wire_responses.encode if info.responses else encode)(info, answer, usage, "", self.chunk))

    async def _released(self, info: RequestInfo) -> None:
        """Wait while the call is one of those that are held."""
        limit = time.monotonic() + _HELD_FOR
        while (held := self._held) and not self.delivery.closing.is_set():
            call, session = held
            if not (fnmatchcase(info.call, call) and fnmatchcase(info.headers.get("X-Cdo-Session", ""), session)):
                return
            if time.monotonic() > limit:
                raise TimeoutError(f"{info.call} was held for {_HELD_FOR:g} s, and nobody let it go")
            await asyncio.sleep(0.005)


async def _serve(provider: Provider) -> None:
    """Serve until the process is told to end."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await provider.start()
    print(provider.url, flush=True)
    await stop.wait()
    await provider.close()


def main(argv: Sequence[str]) -> None:
    """Run as a process; the URL is the first line on stdout."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.provider", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds from call to answer")
    parser.add_argument("--first-byte", type=float, default=0.0, help="seconds between headers and body")
    parser.add_argument("--between", type=float, default=0.0, help="seconds between two events of a stream")
    parser.add_argument("--chunk", type=int, default=64, help="characters in one event of a stream")
    parser.add_argument("--width", type=int, default=3, help="the width every directive asks for")
    parser.add_argument(
        "--cache", type=int, default=0, help="tokens from which on prompts are cached; 0 caches nothing"
    )
    options = parser.parse_args(argv)
    asyncio.run(_serve(Provider(**vars(options))))


if __name__ == "__main__":
    main(sys.argv[1:])
