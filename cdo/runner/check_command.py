"""Runs a command in a copy of the work tree, in a sandbox: the person's (`--check`), or a mission's (`--exec`).

The person's command runs only if they gave it for this repository with `--check`. A patch written by a model is only
applied to the copy. A command that a mission's team wrote runs only if the person gave `--exec` for this session and
a sandbox works; it sees the files that the team wrote, laid over a copy of the work tree if the mission delivers to a
repository. The copy and all other files of a run are always removed afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cdo.core.errors import ConfigError, NeedsHuman, UsageError
from cdo.core.formatting import one_line, visible
from cdo.core.steps import CheckRun, RunCheck
from cdo.files.atomic_files import explain, open_directory
from cdo.files.cache_folder import cache_folder
from cdo.planning.plan import MAX_COMMAND, CheckCommand
from cdo.repository import git, work_tree_copy
from cdo.repository.git_process import Refused
from cdo.repository.work_tree_copy import Copied
from cdo.security import command_sandbox
from cdo.security.child_processes import LOOK, Sink, private_folder, run, sweep
from cdo.security.command_sandbox import Bounds, Confinement, Place
from cdo.security.sandbox_child import UNUSABLE
from cdo.security.secrets import masked
from cdo.security.trust import Trust

KIND, EXEC = "check", "exec"  # the kinds of trust entries: for a command, for the commands of a mission's team
TAIL = 8192  # bytes of each of stdout and stderr that are kept: the last ones
ABANDONED = 60.0  # seconds after which the copies of killed runs are removed
NOT_STARTED = (126, 127)  # exit codes of a shell that could not start a command
SHOWN = 120  # characters of the command in a message
CUT = "[… earlier output left out …]\n"
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def allow(check: CheckCommand, root: Path) -> None:
    """Record that the person gave this command for the repository at `root`; raise `ConfigError`."""
    Trust.load().pin(KIND, [(root, _fingerprint(check))])


def _fingerprint(check: CheckCommand) -> str:
    return sha256(f"{check.folder}\0{check.command}".encode()).hexdigest()


def allow_team(session: Path, created: str) -> None:
    """Record that the person lets commands of a mission's team run, for a session created then."""
    Trust.load().pin(EXEC, [(session, sha256(created.encode()).hexdigest())])


def team_runner(
    session: Path, created: str, root: str, limit: float, say: Callable[[str], None]
) -> Callable[[RunCheck], Coroutine[Any, Any, CheckRun]]:
    """Return a function that runs the commands of a mission's team; `root` is the work tree as seen from the session.

    Without a root, a command sees nothing but the team's files.
    """

    place = Path(os.path.realpath(session / root)) if root else None
    explained: set[str] = set()

    async def run_command(step: RunCheck) -> CheckRun:
        if not Trust.load().holds(EXEC, session, sha256(created.encode()).hexdigest()):
            raise NeedsHuman(
                f"The team wants to run `{one_line(step.command, SHOWN)}` on its files, "
                "and you have not allowed that for this session.",
                f"To allow it: cdo resume {session.name.removeprefix('cdo-')} --exec. If somebody else made the "
                "session, look at its files first.",
            )
        with _home() as home:
            return await _run(_Running(place, home, session, "", step, limit, say), explained)

    return run_command


def require_sandbox() -> Confinement:
    """Return the sandbox in which a mission's commands would run here; raise `ConfigError` if none is good enough."""
    sandbox = sandbox_here()
    if not sandbox.holds_models:
        raise ConfigError(
            "--exec is refused: no sandbox works here that keeps a team's commands from your files and the network.",
            command_sandbox.INSTALL,
        )
    return sandbox


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """The folder of one run, which is removed afterwards; raise `SessionError` if there can be none."""
    folder = cache_folder() / "checks"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(folder, ABANDONED)
        with private_folder(folder) as home:
            yield home
    except OSError as error:
        raise explain(error, error.filename or folder) from None


def runner(
    check: CheckCommand, session: Path, limit: float, say: Callable[[str], None]
) -> Callable[[RunCheck], Coroutine[Any, Any, CheckRun]]:
    """Return a function that runs a session's command for at most `limit` seconds; `say` shows progress messages."""
    root = Path(os.path.realpath(session / check.root))
    explained: set[str] = set()

    async def run_check(step: RunCheck) -> CheckRun:
        asked = replace(check, command=step.command)
        if not Trust.load().holds(KIND, root, _fingerprint(asked)):
            name = session.name.removeprefix("cdo-")
            raise NeedsHuman(
                f"The check of this session is `{one_line(step.command, SHOWN)}`, "
                f"and you have not given it for {root}.",
                f"If it is yours: cdo resume {name} --check {shlex.quote(visible(step.command))}. If somebody else "
                "made the session, look at its session.yaml first.",
            )
        with _home() as home:
            return await _run(_Running(root, home, session, asked.folder, step, limit, say), explained)

    return run_check


def sandbox_here() -> Confinement:
    """Return the sandbox this machine would use; raise `SessionError` if the cache folder cannot be used."""
    with _home() as home:
        place = Place(root=home / "root", folder="", **_folders(home))
        return command_sandbox.choose(place, command_sandbox.view(place, os.environ), os.environ)


def _folders(home: Path) -> dict[str, Path]:
    """Create the empty folders of a `Place` below the folder of one run."""
    folders = {name: home / name for name in ("copy", "home", "temporary", "base")}
    for path in folders.values():
        path.mkdir()
    return folders


class _Running:
    """One run of a command: its folders, command, patch or files, and time limit. Without a `root` there are only
    the files."""

    def __init__(
        self,
        root: Path | None,
        home: Path,
        session: Path,
        folder: str,
        step: RunCheck,
        limit: float,
        say: Callable[[str], None],
    ) -> None:
        self.command, self.patch, self.files, self.limit, self.say = step.command, step.patch, step.files, limit, say
        self.session, self.mounts, self.dependencies = session, command_sandbox.Mounts(), list[Path]()
        self.bare, self.bounds = root is None, Bounds() if step.files else None
        self.place = Place(root=root or home / "files", folder=folder, **_folders(home))

    def prepare(self) -> str:
        """Make the copy, lay the files out and apply the patch; return why that cannot be done, "" if it was."""
        copied = Copied() if self.bare else work_tree_copy.copy(self.place.root, self.place.copy, self.session)
        if copied.left_out:
            self.say(f"check: not copied: {one_line(', '.join(copied.left_out), SHOWN)}")
        for path, text in self.files.items():
            try:
                _lay_out(self.place.copy, path, text)
            except OSError as error:
                return f"{one_line(path, SHOWN)} cannot stand there ({error.strerror})"
        if not (self.place.copy / self.place.folder).is_dir():
            raise UsageError(
                f"The folder {self.place.folder} has no file that git knows, so the check cannot run there.",
                "Add a file to it, or begin the run from another folder.",
            )
        if self.patch:
            try:
                git.apply(self.place.copy, f"{self.patch.rstrip()}\n")
            except Refused as refused:
                return f"the patch does not apply ({one_line(str(refused), 300)})"
        self.mounts = command_sandbox.view(self.place, os.environ)
        self.dependencies = command_sandbox.dependencies(self.place)
        return ""


def _lay_out(folder: Path, path: str, text: str) -> None:
    """Write one file below a folder, through no symlink: a link there could lead out of the copy."""
    *folders, name = path.split("/")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=fd)
            inner = open_directory(part, fd)
            os.close(fd)
            fd = inner
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=fd)
        with os.fdopen(file, "wb") as open_file:
            open_file.write(text.encode("utf-8", "replace"))
    finally:
        os.close(fd)


async def _run(what: _Running, explained: set[str]) -> CheckRun:
    """Copy, patch, choose a sandbox, announce the run to the person, and run.

    `explained` holds how earlier commands ran. A command that runs in the same way is only named, as a mission runs
    its commands in every round.
    """
    if why := await asyncio.to_thread(what.prepare):
        what.say(f"check: not run: {why}")
        return CheckRun(what.command, limit=what.limit, refused=why)
    sandbox = await asyncio.to_thread(command_sandbox.choose, what.place, what.mounts, os.environ)
    if what.files and not sandbox.holds_models:
        raise ConfigError(
            f"No sandbox works here, so `{one_line(what.command, SHOWN)}` of the team is not run.",
            command_sandbox.INSTALL,
        )
    if sandbox.name == command_sandbox.LANDLOCK.name:  # Landlock cannot mount the dependencies: link to them
        for path in what.dependencies:
            link = what.place.copy / path.relative_to(what.place.root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    how = _way(sandbox, what.limit, patched=bool(what.patch), team=bool(what.files))
    what.say(_named(what.command) + ("" if how in explained else how))
    explained.add(how)
    found = await _held(what, sandbox)
    if not (what.patch or what.files) and found.code in NOT_STARTED:
        raise UsageError(
            f"The check `{one_line(what.command, SHOWN)}` cannot be started (exit code {found.code}): "
            f"{one_line(found.err or found.out, 200)}",
            "It runs in a copy of the work tree without what git ignores; of that it sees .venv, venv and "
            "node_modules only. Name a program that is on PATH, or by its absolute path.",
        )
    what.say(f"check: {found.outcome}")
    return found


async def _held(what: _Running, sandbox: Confinement) -> CheckRun:
    """Run the command in a sandbox until it ends or reaches its time limit."""
    start = command_sandbox.started(sandbox, what.place, what.mounts, what.command, os.environ, what.bounds)
    out, err = Sink(TAIL + 1, tail=True), Sink(TAIL + 1, tail=True)
    began, late = time.monotonic(), False

    async def watch(child: subprocess.Popen[bytes]) -> None:
        nonlocal late
        while child.poll() is None:
            if late := time.monotonic() - began > what.limit:
                return
            await asyncio.sleep(LOOK)

    with tempfile.TemporaryFile() as nothing:
        code = await run(start.argv, start.folder, start.env, nothing, out, err, watch)
    if code == UNUSABLE and err.text().startswith("cdo: "):
        raise ConfigError(
            f"The sandbox of the check failed: {one_line(err.text(), 200)}", "`cdo resume` tries again."
        )
    return CheckRun(
        what.command,
        None if late else code if code >= 0 else 128 - code,
        round(time.monotonic() - began, 1),
        what.limit,
        _tail(out.text(), what.place, bare=what.bare),
        _tail(err.text(), what.place, bare=what.bare),
        sandbox.name,
        sandbox.held,
    )


def _tail(text: str, place: Place, *, bare: bool) -> str:
    """Return the end of an output as plain text without secrets; paths in the copy become paths in the work tree.

    Where there is no work tree (`bare`), they become relative.
    """
    cut = len(text.encode("utf-8", "replace")) > TAIL
    lines = _ESCAPE.sub("", text.replace("\r\n", "\n")).split("\n")
    lines = [line.rpartition("\r")[2] for line in (lines[1:] if cut and len(lines) > 1 else lines)]
    plain = "\n".join(lines).replace(str(place.copy), str(place.root))
    plain = plain.replace(f"{place.root}/", "").replace(str(place.root), ".") if bare else plain
    return (CUT if cut else "") + masked(visible(plain)).strip("\n")


def announced(command: str, sandbox: Confinement, limit: float, *, patched: bool = False) -> str:
    """Return the message shown before the command runs: what the sandbox prevents, and what it does not."""
    return _named(command) + _way(sandbox, limit, patched=patched)


def _named(command: str) -> str:
    return f"check: `{one_line(command, SHOWN)}` runs"


def _way(sandbox: Confinement, limit: float, *, patched: bool, team: bool = False) -> str:
    """Return where a command runs, for how long, and what holds it, as the end of a sentence about the command."""
    copy = "in a copy of the work tree" + (" with a patch that a model wrote" if patched else "")
    copy = "as the team wrote it, on the team's files" if team else copy
    what = f" {copy}, for at most {limit:g} s"
    if not sandbox.name:
        return (
            f"{what}. No sandbox works on this machine: NOTHING keeps it from changing your other files, from using "
            "the network or from ending other processes of yours. It runs because you gave --check."
        )
    held = f"{what}; the sandbox ({sandbox.name}) keeps it from {_listed(sandbox.held)}"
    return f"{held}, but NOT from {_listed(sandbox.open)}" if sandbox.open else held


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def given(command: str, root: Path | None, folder: Path) -> CheckCommand:
    """Return the check command for a run started in `folder` of the repository at `root`; raise `UsageError`."""
    if not command.strip():
        raise UsageError("--check has no command.", 'Give one: --check "pytest -q tests/test_gateway.py".')
    if "\0" in command or any(0xD800 <= ord(char) < 0xE000 for char in command):
        raise UsageError("The command of --check is not text.", "Put it into a script, and give that.")
    if len(command.strip()) > MAX_COMMAND:
        raise UsageError(
            f"The command of --check has more than {MAX_COMMAND:,} characters.",
            "Put it into a script, and give that.",
        )
    if root is None:
        raise UsageError(
            f"--check needs a git repository, and {folder} is in none.",
            "It runs in a copy of the work tree, made of the files that git knows.",
        )
    if git.program("git", str(root)) is None:
        raise UsageError("--check needs git, and there is no git program on this machine.", "Install git.")
    below = os.path.relpath(os.path.realpath(folder), os.path.realpath(root))
    return CheckCommand(command=command.strip(), root=str(root), folder="" if below == "." else below)
