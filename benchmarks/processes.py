"""Processes that benchmarks run: cdo in a folder of its own, where nothing of this machine reaches it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Ended:
    """A process that ended well: its seconds by the clock and of the processor, the most megabytes that it held, and
    what it printed.
    """

    seconds: float
    processor: float
    megabytes: float
    out: str


def environment(home: Path, url: str = "") -> dict[str, str]:
    """All that a process can see; `url` is the provider's, without one there is none."""
    keys = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "x"} if url else {}
    return {"PATH": os.defpath, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), **keys}


def python(
    folder: Path, *words: str, url: str = "", env: Mapping[str, str] | None = None, with_python: str = sys.executable
) -> Ended:
    """Run Python with `words` and `env` in a folder that is its home too; raise `SystemExit` where it fails."""
    out, err = folder / "out.txt", folder / "err.txt"
    began = time.perf_counter()
    with out.open("wb") as told, err.open("wb") as complained:
        process = subprocess.Popen(
            [with_python, *words],
            cwd=folder,
            env={**environment(folder, url), **(env or {})},
            stdout=told,
            stderr=complained,
        )
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"`{' '.join(words)}` ended with {code}: {err.read_text()[-1000:].strip()}")
    return Ended(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read_text())


def cdo(folder: Path, *words: str, url: str = "", env: Mapping[str, str] | None = None) -> Ended:
    """Run `cdo words` in a folder."""
    return python(folder, "-m", "cdo", *words, url=url, env=env)
