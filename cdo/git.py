"""Questions to git, asked in a way in which nothing that a repository brings along is run."""

from __future__ import annotations

import os
import subprocess

SECONDS = 5.0  # for one question

# What a repository's own configuration could make git run, turned off; the rest of it is not asked for.
_HARMLESS = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false"),
    *("-c", "log.showSignature=false", "-c", "protocol.allow=never", "-c", "credential.helper="),
    *("-c", "core.sshCommand=false", "-c", "i18n.logOutputEncoding=UTF-8", "--no-pager", "--literal-pathspecs"),
)


class Git:
    """Questions to git about one work tree. After one that failed, no other is asked."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._program = _program(root)

    def ask(self, *args: str) -> list[str] | None:
        """What git prints, split at NUL bytes; None where it fails, is not there, or takes too long."""
        if not self._program:
            return None
        places = [place for place in os.environ.get("PATH", "").split(os.pathsep) if place.startswith("/")]
        env = {
            "PATH": os.pathsep.join(places),
            "LC_ALL": "C",
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",  # a repository may name a program to fetch with
            "GIT_ALLOW_PROTOCOL": "none",
            # Named outright: the configuration may claim that the work tree is somewhere else.
            "GIT_DIR": f"{self._root}/.git",
            "GIT_WORK_TREE": self._root,
        }
        try:
            done = subprocess.run(
                [self._program, *_HARMLESS, *args],
                cwd=self._root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                check=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            self._program = None
            return None
        return [os.fsdecode(item) for item in done.stdout.split(b"\0") if item]


def _program(root: str) -> str | None:
    """The git of this machine: never one that lies in the repository itself."""
    for place in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.realpath(f"{place}/git")
        if place.startswith("/") and not path.startswith(f"{root}/") and os.access(path, os.X_OK):
            return path
    return None
