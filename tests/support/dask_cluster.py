"""A real Dask cluster for tests: a scheduler and workers, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import Desk
from tests.support.harness import wait_for

_WORKER = """
import sys
import cdo
cdo.__version__ = {version!r} or cdo.__version__
from distributed.cli.dask_worker import main
main(sys.argv[1:])
"""


class DaskCluster:
    """A scheduler with workers, which are started and killed one by one."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.address = ""
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder = desk.path.parent / "dask"
        self._folder.mkdir()

    def __enter__(self) -> DaskCluster:
        place = self._folder / "scheduler.json"
        words = ["-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1", "--port", "0"]
        self.scheduler = self._start([*words, "--no-show", "--scheduler-file", str(place)], "scheduler")
        try:
            wait_for(lambda: place.is_file() and place.read_text().rstrip().endswith("}"))
        except BaseException:
            self.__exit__()
            raise
        self.address = json.loads(place.read_text())["address"]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def worker(
        self,
        *,
        threads: int = 4,
        version: str = "",
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a worker and wait until the scheduler has it."""
        log = self._folder / f"{len(self.processes)}.log"
        words = [self.address, "--no-nanny", "--nthreads", str(threads), "--no-dashboard", "--host", "127.0.0.1"]
        code = ["-c", _WORKER.format(version=version), *words, "--local-directory", str(self._folder)]
        process = self._start(code, log.stem, env, prefix, cwd)
        wait_for(lambda: "Registered to" in log.read_text())
        return process

    def _start(
        self,
        words: Sequence[str],
        name: str,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*prefix, sys.executable, *words], cwd=cwd or self.desk.path, env=self.desk.environment(env),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.processes.append(process)
        return process
