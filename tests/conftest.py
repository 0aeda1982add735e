"""What all tests share: nothing leaves this machine, and a folder of one's own to run cdo in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.guard import sitecustomize as guard
from tests.support.harness import KEY, ROOT, TODAY, Done, finish, without_agents
from tests.support.provider import Provider

A = ("--session", "a")  # the session that `Desk.session` means

guard.install()
os.environ["PATH"] = without_agents(os.environ["PATH"])
# No deadline: how long an example takes says nothing on a busy machine. All machines try the same examples, so that a
# failure is due to the change under test. `pytest --hypothesis-profile=explore` tries new ones.
settings.register_profile("cdo", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("cdo")
# A shell's background job and nohup ignore signals, and every process that a test starts would inherit that.
_USUAL: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
}
for number, usual in _USUAL.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: tests wait for processes about as much as they compute."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests outside of tests/unit and tests/project are wide, unless they are marked as quick or slow."""
    quick_folders = tuple(f"{ROOT}/tests/{folder}/" for folder in ("unit", "project"))
    for item in items:
        marked = item.get_closest_marker("quick") or item.get_closest_marker("slow")
        if not marked and not str(item.path).startswith(quick_folders):
            item.add_marker("wide")


@pytest.fixture(autouse=True)
def nothing_leaves() -> Iterator[None]:
    """Fail a test whose own process tried to leave this machine, even where the error was swallowed."""
    guard.TRIED.clear()
    yield
    assert not guard.TRIED, guard.TRIED


@dataclass(frozen=True)
class Desk:
    """A person at a shell: runs real `cdo` processes in a folder with a clean environment, as `env -i` makes it."""

    path: Path
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """All that a process can see; variables set to "" are left out."""
        home = self.path.parent / "home"
        home.mkdir(exist_ok=True)
        clean = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{ROOT}/tests/support/guard:{ROOT}",
            "PYTHONPYCACHEPREFIX": str(self.path.parents[1] / "pycache"),
            "TESTS_TRIED": str(home / "tried"),
            "OPENAI_BASE_URL": self.url and f"{self.url}/v1",
            "OPENAI_API_KEY": self.url and KEY,
            "CDO_REVIEW": "false",  # most tests are about something else, and count calls
            "TESTS_TODAY": TODAY,
        }
        return {key: value for key, value in {**clean, **self.env, **(extra or {})}.items() if value}

    def start(
        self, *args: str, env: Mapping[str, str] | None = None, cwd: str | Path = ".", stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start `cdo args` in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "cdo", *args],
            cwd=self.path / cwd,
            env=self.environment(env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
            start_new_session=True,
        )

    def __call__(
        self,
        *args: str,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = ".",
        timeout: float = 60.0,
    ) -> Done:
        """Run `cdo args` to its end; without `stdin` nobody is there to read from."""
        began = time.monotonic()
        if stdin is None:
            return finish(self.start(*args, env=env, cwd=cwd), began, timeout)
        process = self.start(*args, env=env, cwd=cwd, stdin=subprocess.PIPE)
        text = stdin.decode("utf-8", "surrogateescape") if isinstance(stdin, bytes) else stdin
        out, err = process.communicate(text, timeout=timeout)
        return Done(process.returncode, out, err, time.monotonic() - began)

    def several(
        self,
        *runs: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdins: Sequence[str | bytes | None] = (),
    ) -> list[Done]:
        """Run several commands side by side, each with its own of `stdins`: most of their time is spent starting."""
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            ins = stdins or [None] * len(runs)
            return list(pool.map(lambda args, stdin: self(*args, env=env, stdin=stdin), runs, ins))

    def having(self, **env: str) -> Desk:
        """The same desk with more variables set."""
        return replace(self, env={**self.env, **env})

    def write(self, name: str, text: str) -> Path:
        """Write a file below the folder."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def session(self, name: str = "a") -> Path:
        """The directory of a session."""
        return self.path / "tmp" / f"cdo-{name}"

    def sessions(self) -> list[Path]:
        """The directories of all sessions."""
        return sorted(self.path.glob("tmp/cdo-*"))

    def tried(self) -> str:
        """What processes tried to reach beyond this machine."""
        log = self.path.parent / "home" / "tried"
        return log.read_text() if log.exists() else ""


def explained(done: Done, code: int, *words: str) -> Done:
    """The process ended with `code`, one sentence on what happened and one on what to do, holding all `words`."""
    done.failed(code, *words)
    assert len(done.complaint) == 2, done.err
    what, do = done.complaint
    assert re.fullmatch(r"cdo: \S.*[.?!…]", what), done.err
    assert re.fullmatch(r"     \S.*[.?!…]", do), done.err
    return done


def _desk(base: Path, url: str) -> Desk:
    (base / "work").mkdir()
    return Desk(base / "work", url)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Desk]:
    """A desk with no provider and no key."""
    desk = _desk(tmp_path, "")
    yield desk
    assert not desk.tried()


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider on loopback, which answers at once."""
    with Provider() as running:
        yield running


@pytest.fixture
def cdo(tmp_path: Path, provider: Provider) -> Iterator[Desk]:
    """A desk whose provider is on loopback."""
    desk = _desk(tmp_path, provider.url)
    yield desk
    assert not desk.tried()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk where one run, called `a`, is finished; only to be looked at."""
    with Provider() as running:
        desk = _desk(tmp_path_factory.mktemp("finished"), running.url)
        desk("think", "--session", "a", "Should we split the service?").ok()
        yield desk
        assert not desk.tried()
