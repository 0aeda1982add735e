"""Locks open files and folders against other processes.

The kernel frees a lock (`flock`) when its holder closes the file or ends, also when it is killed.
"""

from __future__ import annotations

import fcntl
import time

_PAUSE = 0.01  # seconds between two tries


def take(fd: int, patience: float = 0.0, *, shared: bool = False) -> bool:
    """Lock the open file or folder `fd` until it is closed; False if another process keeps it for `patience` seconds.

    A `shared` lock goes together with other shared ones. Raises `OSError` where the file system has no locks.
    """
    limit = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= limit:
                return False
            time.sleep(_PAUSE)
        else:
            return True
