"""Asks a command-line agent once, for tests that kill the process which asks.

    python -m tests.support.agents.driver NAME PROGRAM FOLDER MODEL [CONTENT]

The agent NAME (as a file in CONTENT says, else as it ships) is PROGRAM, works in FOLDER and sees this environment.
"""

import asyncio
import os
import sys
from pathlib import Path

from cdo.content.library import PACKAGED, Library
from tests.support.agents import agent, backend
from tests.support.backends import request


def main(name: str, program: str, folder: str, model: str, *content: str) -> None:
    """Ask, and say nothing of what comes back."""
    library = Library((*(("user", Path(root)) for root in content), ("packaged", PACKAGED)))
    made = backend(agent(name, library), program, os.environ, Path(folder))
    asyncio.run(made.complete(request(model=model), lambda _: None))


if __name__ == "__main__":
    main(*sys.argv[1:])
