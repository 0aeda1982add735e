"""Runs cdo as a real process against the loopback provider, and compares what it leaves behind.

A `Place` is a folder of its own with a clean environment: nothing of the machine's settings, keys or caches
reaches a run. `tree` reads a session directory such that two of the same calls compare equal, times aside.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cdo.session.records import read_session
from tests.support.answers import Answer, RequestInfo, agent_text, synthesis_text, voices_in
from tests.support.provider import Provider

ROOT = Path(__file__).resolve().parents[2]
KEY = "x-test-key-123456"
QUESTION = "Should we split the service?"
TODAY = "2026-11-22"  # as every run is told: two runs of a test agree also where midnight is between them
TIMES = ("started", "seconds")


@dataclass(frozen=True)
class Done:
    """A process that ended: its exit code (negative: a signal), what it printed, how long it took."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.out)

    def ok(self) -> Done:
        """Itself, if it succeeded."""
        assert self.code == 0, (self.code, self.out, self.err)
        return self

    def failed(self, code: int, *words: str) -> Done:
        """Itself, if it ended with `code` and said all `words` on stderr, in sentences and without a traceback."""
        assert self.code == code, (self.code, self.out, self.err)
        assert "Traceback" not in self.err, self.err
        for word in words:
            assert word in self.err, self.err
        return self

    @property
    def complaint(self) -> list[str]:
        """The sentences with which cdo ended: what happened, then what to do."""
        lines = self.err.splitlines()
        start = max((i for i, line in enumerate(lines) if line.startswith("cdo: ")), default=len(lines))
        return lines[start:]


@dataclass(frozen=True)
class Place:
    """A folder in which cdo is run, and the provider it talks to."""

    path: Path
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def session(self, name: str = "a") -> Path:
        """The directory of a session."""
        return self.path / "tmp" / f"cdo-{name}"

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Everything a run can see of its surroundings."""
        clean = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "PYTHONPATH": f"{ROOT}/tests/support/guard:{ROOT}",  # nothing that a test starts leaves this machine
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENAI_BASE_URL": self.url and f"{self.url}/v1",
            "OPENAI_API_KEY": KEY,
            "CDO_REVIEW": "false",  # most tests are about something else, and count calls
            "TESTS_TODAY": TODAY,
        }
        return {key: value for key, value in {**clean, **self.env, **(extra or {})}.items() if value}

    def start(
        self, *args: str, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start `cdo args` behind the words of `prefix` (strace, unshare …) in a process group of its own."""
        return spawned([*prefix, sys.executable, "-m", "cdo", *args], self.path, self.environment(env))

    @contextlib.contextmanager
    def running(self, *args: str, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
        """Start `cdo args`; whatever becomes of the test, nothing of it is left at the end."""
        process = self.start(*args, prefix=prefix)
        try:
            yield process
        finally:
            kill_group(process.pid)
            if process.stdout and not process.stdout.closed:
                process.communicate()

    def cdo(
        self,
        *args: str,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 120.0,
    ) -> Done:
        """Run `cdo args` to its end."""
        began = time.monotonic()
        return finish(self.start(*args, prefix=prefix, env=env), began, timeout)

    def run(self, *args: str, name: str = "a", **more: Any) -> Done:
        """Begin the session `name` with the reference question."""
        return self.cdo("think", *args, "--session", name, QUESTION, **more)

    def resume(self, *args: str, name: str = "a", **more: Any) -> Done:
        """Go on with the session `name`."""
        return self.cdo("resume", name, *args, **more)

    def copy(self, target: Path) -> Place:
        """The same folder elsewhere, sessions and all."""
        shutil.copytree(self.path, target, symlinks=True)
        return Place(target, self.url, self.env)


def spawned(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, with nothing to read and its output to be read."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], began: float | None = None, timeout: float = 120.0) -> Done:
    """Wait for a process; one that hangs is killed with its group and fails the test."""
    began = time.monotonic() if began is None else began
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process.pid)
        out, err = process.communicate()
        pytest.fail(f"cdo hung for {timeout} s\n{out}\n{err}")
    return Done(process.returncode, out, err, time.monotonic() - began)


def kill_group(group: int) -> None:
    """SIGKILL to all processes of a group that are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if int(fields[2]) == group and fields[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def at_once(began: float) -> float:
    """How many seconds a process may take that ends at once: two, and twice what has passed since it began.

    Where starting takes long, on a slow machine or a loaded one, ending does too; what ends only when something else
    does (a held answer, a provider that hangs) takes longer than either.
    """
    return 2 + 2 * (time.monotonic() - began)


def wait_for(condition: Any, timeout: float = 60.0, every: float = 0.002) -> None:
    """Wait until `condition()` holds; a test that waits in vain fails, however slow the machine is."""
    limit = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"nothing came of it in {timeout} s")
        time.sleep(every)


# -- a session as data -----------------------------------------------------------------------------


def exchanges(session: Path) -> list[dict[str, Any]]:
    """All recorded exchanges, in the order in which they were recorded."""
    return [record for record in read_session(session) if record["kind"] == "exchange"]


def answered(session: Path) -> set[str]:
    """The calls whose reply is recorded."""
    return {record["call"] for record in exchanges(session) if "response" in record}


def attempts(session: Path) -> set[tuple[str, int]]:
    """(call, attempt) of everything that is recorded."""
    return {(record["call"], record["attempt"]) for record in exchanges(session)}


def asked(requests: Sequence[RequestInfo], session: str | None = None) -> list[tuple[str, int]]:
    """(call, attempt) of every request, in order of arrival; of one session where it is named."""
    calls = [info for info in requests if info.is_call]
    return [(i.call, i.attempt) for i in calls if session is None or i.headers["X-Cdo-Session"] == session]


def tree(session: Path) -> dict[str, str]:
    """Every file of a session by its path, as text without times.

    The group files of `calls/` become one list of records in an order of its own: which answers arrive together
    is chance. The journal is left out: it tells what happened, and a resume happens again.
    """
    found = {}
    for path in sorted(session.rglob("*")):
        name = str(path.relative_to(session))
        if path.is_symlink() or not path.is_file():
            continue
        if name == "journal.jsonl" or (name.startswith("calls/") and name.endswith(".jsonl")):
            continue
        text = path.read_bytes().decode()
        if name == "session.yaml":
            text = re.sub(r"(?m)^created: .*\n", "", text)
        found[name] = text
    found["calls"] = "\n".join(sorted(map(_timeless, read_session(session))))
    return found


def _timeless(record: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in record.items() if key not in TIMES}, sort_keys=True)


def same(one: Path, other: Path) -> None:
    """Two session directories hold the same, times aside."""
    left, right = tree(one), tree(other)
    assert sorted(left) == sorted(right)
    for name, text in left.items():
        assert text == right[name], f"{name} differs"


def journal_events(session: Path) -> list[dict[str, Any]]:
    """The journal, every line of which must be whole."""
    return [json.loads(line) for line in (session / "journal.jsonl").read_text("utf-8").splitlines()]


# -- providers -------------------------------------------------------------------------------------


def sensitive(info: RequestInfo) -> Answer | None:
    """A script whose answers depend on every character of the prompt, so that what is stale shows."""
    mark = f"{zlib.crc32(info.prompt.encode()):08x}"
    if info.kind == "agent":
        objections = [(f"{info.call} objects: the way back of turn 1 is untested", 6)]
        return Answer(agent_text(f"Stage it ({mark}).", objections=objections))
    if info.kind == "synthesis":
        voices = voices_in(info.prompt)
        return Answer(synthesis_text(focus=f"what {mark} left open", gaps=[f"gap {mark}"], voices=voices))
    return None


@contextlib.contextmanager
def place(path: Path, **provider: Any) -> Iterator[tuple[Place, Provider]]:
    """A place to run cdo in, and the provider it talks to."""
    with Provider(**provider) as p:
        yield Place(path, p.url), p


# -- what the machine can do -----------------------------------------------------------------------

# What a machine may lack. Only `needs`, `needs_module`, `needs_strace` and `needs_mounts` skip tests for it, and none
# does what CDO_TEST_REQUIRE names (.ci/run names all that is there): a test that is never run proves nothing.
OPTIONAL = (
    "bd", "bubblewrap", "chromium", "claude", "codex", "landlock", "lock", "mounts", "opencode", "otelcol", "proc",
    "pyarrow", "renderers", "root", "strace", "user", "xllamacpp",
)  # fmt: skip


def required(names: str | None = None) -> frozenset[str]:
    """The words of CDO_TEST_REQUIRE (or of `names`); ValueError for one that is not in `OPTIONAL`."""
    words = frozenset((os.environ.get("CDO_TEST_REQUIRE", "") if names is None else names).replace(",", " ").split())
    if unknown := words - set(OPTIONAL):
        raise ValueError(f"CDO_TEST_REQUIRE: {', '.join(sorted(unknown))} is none of {', '.join(OPTIONAL)}")
    return words


def lacking(what: str, why: str) -> NoReturn:
    """Skip the test for `why`: this machine lacks `what`; where that is required, fail."""
    if what in required():
        pytest.fail(f"{what} is required here: {why}")
    pytest.skip(why)


def needs(what: str, there: bool, why: str) -> pytest.MarkDecorator:
    """Marks tests that are skipped for `why` unless `what` is `there`; where it is required, they run (and fail)."""
    assert what in OPTIONAL
    return pytest.mark.skipif(not there and what not in required(), reason=why)


def needs_module(name: str) -> None:
    """Skips the test where an optional module is not installed."""
    if importlib.util.find_spec(name) is None:
        lacking(name, f"{name} is not installed")


def sampled(values: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """Parameters of a test, of which only the `fast` ones are in the fast part of the tests."""
    values = list(values)
    assert all(value in values for value in fast)
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


AGENTS = ("claude", "codex", "gemini", "opencode")
_mirrors: list[tempfile.TemporaryDirectory[str]] = []  # as long as the process


def without_agents(path: str) -> str:
    """`path` (as in PATH) such that no command-line agent is found: presets that mix models would ask it."""
    places = []
    for place in path.split(os.pathsep):
        folder = Path(place)
        if place and any((folder / program).exists() for program in AGENTS):
            mirror = tempfile.TemporaryDirectory(prefix="cdo-path-")
            _mirrors.append(mirror)
            for entry in [entry for entry in folder.iterdir() if entry.name not in AGENTS]:
                (Path(mirror.name) / entry.name).symlink_to(entry)
            place = mirror.name
        places.append(place)
    return os.pathsep.join(places)


@functools.cache
def _works(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}")


def needs_strace() -> str:
    """The path of strace; skips the test where it is missing or may not trace."""
    path = shutil.which("strace")
    if path is None:
        lacking("strace", "strace is not installed")
    if why := _works(path, "-f", "-o", "/dev/null", "-e", "inject=fsync:error=EIO:when=99", "true"):
        lacking("strace", f"strace cannot inject here: {why}")
    return path


def needs_mounts() -> list[str]:
    """The words that run a shell script in a mount namespace of its own; skips where the kernel forbids it."""
    words = ["unshare", "-Urm", "sh", "-c"]
    if why := _works(*words, "mount -t tmpfs -o size=64k tmpfs /mnt"):
        lacking("mounts", f"no mounts in a user namespace: {why}")
    return words


def inject(strace: str, operation: str, what: str, *paths: Path) -> list[str]:
    """The words that run a command under strace, which does `what` to some calls of `operation` (below `paths`)."""
    # The kernel's filter is quicker, but a signal that is injected through it never arrives (strace 6.1).
    quick = [] if "signal=" in what or paths else ["--seccomp-bpf"]
    below = [word for path in paths for word in ("-P", str(path))]
    rules = ["-e", f"trace={operation}", "-e", f"inject={operation}:{what}"]
    return [strace, "-f", "-qq", *quick, "-o", "/dev/null", *below, *rules]
