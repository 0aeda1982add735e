"""The embedded model: the child process that runs it, and the backend over that.

The child (`embedded_server`) speaks the Chat Completions protocol on loopback, so that requests take the same
path as any provider's. A child that dies (out of memory, a crash in native code) or falls silent costs one call:
the next one starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from cdo.core.errors import ConfigError
from cdo.core.exchange import Backend, BackendError, Fault, OnText, Request, Response
from cdo.providers import demo_model_file, embedded_sandbox, local_models
from cdo.security.child_processes import end_of, kill_group

CTX = 8192  # tokens of prompt and reply together
START_SECONDS = 180.0
SILENT = 15.0  # seconds without a sign of life, of which there is one every 5: a child given up then is not kept
# How the default model is sampled, chosen from 20 settings by 10 to 15 replies each. Cooler or with a weaker
# penalty it repeats one sentence to the end; hotter, or with a stronger or longer one, it leaves English or the
# subject; DRY makes it misspell words in order to avoid a repetition.
SAMPLING = {"temperature": 0.3, "top_p": 0.9, "repeat_penalty": 1.1, "repeat_last_n": 128}

_INSTALL = "Install it with `pip install 'cdo-deliberate[local]'`."


# -- the child process ----------------------------------------------------------------------------


class LocalServer:
    """One child process that serves one model file on loopback, from `start` to `close`."""

    def __init__(self, model: Path, ctx: int = CTX) -> None:
        self.model = model
        self.ctx = ctx
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """The child's process id; 0 when there is none."""
        return self._child.pid if self._child else 0

    async def start(self) -> str:
        """Start the child and wait until the model is loaded; returns the base address (…/v1).

        Raises `ConfigError` when xllamacpp is missing or the file is no model, and `BackendError` when the
        child dies or needs longer than three minutes.
        """
        child = self._spawn()
        assert child.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await asyncio.to_thread(child.stdout.readline)
            if not line:
                how = await self.ended(within=5.0) or "the embedded model gave no address"
                raise BackendError(Fault.CRASHED, how + self._last_words())
            return self._address(line)
        except TimeoutError:
            await self.close()
            raise BackendError(Fault.TIMEOUT, f"{self.model.name} was not loaded in {START_SECONDS:g} s") from None
        except BaseException:
            await self.close()
            raise

    def _spawn(self) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("embedded_server.py")
        command = [sys.executable, "-P", str(script), "--model", str(self.model), "--ctx", str(self.ctx)]
        limited, env = embedded_sandbox.command(command, self.model), embedded_sandbox.environment(os.environ)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._child = subprocess.Popen(
            limited, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
            process_group=0,
        )  # fmt: skip
        return self._child

    def _address(self, line: bytes) -> str:
        """The address in the child's line; raises what `start` does."""
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or not {"url", "error"} & told.keys():
            raise BackendError(Fault.CRASHED, f"the embedded model gave no address{self._last_words()}")
        if told.get("error") == "missing":
            raise ConfigError(f"The embedded model needs xllamacpp ({told.get('detail')}).", _INSTALL)
        if "error" in told:
            raise ConfigError(
                f"The model {self.model} cannot be loaded ({told.get('detail')}){self._last_words()}.",
                "Check that it is a GGUF file that llama.cpp can run; `cdo models pull` fetches the default one.",
            )
        return str(told["url"])

    def _last_words(self) -> str:
        said = end_of(self._log).splitlines() if self._log else []
        return f": {said[-1][-200:]}" if said else ""

    async def ended(self, within: float = 0.0) -> str:
        """How the child ended, waiting up to `within` seconds for it; "" while it runs."""
        for _ in range(int(within * 100)):
            if not self._child or self._child.poll() is not None:
                break
            await asyncio.sleep(0.01)
        code = self._child.poll() if self._child else 0
        if code is None:
            return ""
        if code >= 0:
            return f"the embedded model's process ended with code {code}"
        guess = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"the embedded model's process was ended by {signal.Signals(-code).name}{guess}"

    async def close(self) -> None:
        """End the child: politely for a third of a second, then at once. Safe to call twice."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin and child.stdout and self._log
        try:
            child.stdin.close()
            for _ in range(30):
                if child.poll() is not None:
                    break
                await asyncio.sleep(0.01)
        finally:
            kill_group(child)
            child.stdout.close()
            self._log.close()


# -- the backend ----------------------------------------------------------------------------------


class LocalBackend:
    """The embedded model behind one slot: calls wait for each other, the first one starts the child.

    `model` is a GGUF file (None: the default model, fetched when missing, which `say` is told); `temperature`
    wins over cdo's own; `chat` makes the Chat Completions client for a base address.
    """

    streams = True
    tells_progress = True

    def __init__(
        self,
        model: Path | None,
        say: Callable[[str], None],
        temperature: float | None = None,
        chat: Callable[[str], Backend] | None = None,
        ctx: int = CTX,
    ) -> None:
        self._model = model.expanduser().absolute() if model else None
        self._say = say
        self._temperature = temperature
        self._make_chat = chat or self._default_chat
        self._ctx = ctx
        self._slot = asyncio.Semaphore(1)
        self._server: LocalServer | None = None
        self._chat: Backend | None = None

    async def complete(self, request: Request, on_text: OnText) -> Response:
        """Answer one request; raises `BackendError`, or `ConfigError` when the model cannot be started."""
        async with self._slot:
            if self._server and await self._server.ended():
                await self.close()
            if not self._server or not self._chat:
                await _alive(self._start(), on_text)
            assert self._server and self._chat
            heard = time.monotonic()

            def hear(piece: str) -> None:
                nonlocal heard
                heard = time.monotonic()
                on_text(piece)

            try:
                return await self._chat.complete(_adapted(request), hear)
            except asyncio.CancelledError:
                if time.monotonic() - heard > SILENT:  # it would keep all later calls waiting just as long
                    await self.close()
                raise
            except BackendError as error:
                # A broken connection reaches us a moment before the kernel reports the child's end.
                broken = error.fault in (Fault.NETWORK, Fault.TRUNCATED, Fault.MALFORMED, Fault.EMPTY)
                how = await self._server.ended(within=1.0 if broken else 0.0)
                if not how:
                    raise
                raise BackendError(Fault.CRASHED, how, usage=error.usage, text=error.text) from None

    async def close(self) -> None:
        """End the child. The backend can be used again: the next call starts another."""
        chat, self._chat = self._chat, None
        server, self._server = self._server, None
        try:
            if server:
                await server.close()
        finally:
            if chat:
                await chat.close()

    async def _start(self) -> None:
        if importlib.util.find_spec("xllamacpp") is None:  # before 93 MB are fetched for nothing
            raise ConfigError("The embedded model needs xllamacpp, which is not installed.", _INSTALL)
        if self._model and not self._model.is_file():
            raise ConfigError(f"There is no model file {self._model}.", "Write it as local:/path/to/model.gguf.")
        if self._model:
            await asyncio.to_thread(local_models.require_pinned, self._model)
        server = LocalServer(self._model or await self._pulled(), self._ctx)
        url = await server.start()
        self._server, self._chat = server, self._make_chat(url)

    async def _pulled(self) -> Path:
        loop, stop = asyncio.get_running_loop(), threading.Event()

        def say(text: str) -> None:  # `pull` runs in a thread, whoever listens does not
            loop.call_soon_threadsafe(self._say, text)

        try:
            return await asyncio.to_thread(demo_model_file.pull, say, stop)
        finally:
            stop.set()

    def _default_chat(self, url: str) -> Backend:
        from cdo.providers.http.chat_completions import ChatBackend

        # Progress while a long prompt is read (250 tokens/s) counts as a sign of life.
        extra: dict[str, Any] = {"return_progress": True}
        if self._model is None:
            extra |= SAMPLING
        if self._temperature is not None:
            extra["temperature"] = self._temperature
        return ChatBackend(url, extra=extra)


def _adapted(request: Request) -> Request:
    """The request as llama.cpp's server takes it.

    It closes the connection after each streamed answer without announcing it, so none may be kept; and it
    rejects a grammar next to tools, so the grammar wins.
    """
    headers = {**request.headers, "Connection": "close"}
    return replace(request, headers=headers, tools=() if request.grammar else request.tools)


async def _alive(work: Coroutine[Any, Any, None], on_text: OnText) -> None:
    """Await `work`, telling every second that something is still going on."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            on_text("")
            await asyncio.wait({task}, timeout=1.0)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    task.result()
