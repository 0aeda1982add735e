"""Entry point of the `cdo` command and of `python -m cdo`."""

from __future__ import annotations

import gc
import os
import sys

# Before the garbage is looked for. A run makes fewer until its first request, for which a look takes some 10 ms.
ALLOCATIONS = 200_000


def main() -> None:
    """Run the command line; never returns."""
    gc.set_threshold(ALLOCATIONS)
    from cdo.core.signals import listen, stopped

    listen()
    try:
        from cdo.cli.main import run
    except BaseException:
        if stopped():
            os._exit(130)  # while modules are imported there is nobody yet to say so
        raise
    run()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory: a `queue.py` there is not to be taken for Python's own
    main()
