"""Sets up a worker on this machine, before it has anything to do: Dask imports this module in each."""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(_worker: Any) -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes: the coordinator tells its workers to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
