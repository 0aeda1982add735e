"""Chooses what holds the person's command (`--check`): bubblewrap, namespaces, Landlock, or nothing.

Each sandbox shows the command the same: the copy of the work tree, writable; an empty home and an empty /tmp; the
system's folders, the folders that hold the programs on PATH, known toolchains below the home, and the work tree's
installed dependencies, all of these read-only. Everything else (other folders of the home, /run with its sockets)
is not there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdo.security.secrets import secret_values

SECONDS = 20.0  # for the trial of a sandbox
LINKS = 3000  # entries of a folder on PATH whose links are followed
_CHILD = Path(__file__).with_name("sandbox_child.py")

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap")
# Below the home: what compilers, interpreters and package managers keep there. None of it holds a login.
_TOOLCHAINS = (
    ".cargo/bin .cargo/registry .cargo/git .rustup go/bin go/pkg .m2/repository .nvm .fnm .volta .pyenv .rbenv .rvm "
    ".gem .asdf .sdkman/candidates .deno .bun .ghcup .opam .elan .dotnet .nuget/packages .pub-cache .stack "
    ".cabal/bin .cabal/packages miniconda3 anaconda3 miniforge3 mambaforge .local/bin .local/lib .local/share/mise "
    ".local/share/uv .local/share/pnpm .local/share/pipx .local/share/virtualenvs .cache/ms-playwright"
)
DEPENDENCIES = (".venv", "venv", "node_modules")  # of the work tree: ignored by git, needed to run anything
_PROGRAMS = ("bin", "sbin", "shims")  # what a folder of programs is called; the one around it goes with it
_VARIABLES = (
    "PATH LANG LANGUAGE TZ TERM USER LOGNAME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONPATH PYENV_VERSION "
    "PYENV_ROOT GOPATH GOROOT GOFLAGS GOMODCACHE GOTOOLCHAIN CARGO_HOME RUSTUP_HOME RUSTUP_TOOLCHAIN JAVA_HOME "
    "NODE_PATH NODE_ENV NVM_DIR GEM_HOME GEM_PATH BUNDLE_PATH RBENV_ROOT RBENV_VERSION DOTNET_ROOT MAVEN_HOME"
)

Mounts = list[tuple[str, str, str]]
FILES, NETWORK, TCP, PROCESSES = "other files", "the network", "TCP connections", "other processes"


@dataclass(frozen=True)
class Place:
    """Where a command runs: the work tree at `root`, the copy that stands for it, and the `folder` below it.

    `home` and `temporary` are empty folders that become the home and /tmp; `base` is an empty folder for mounts.
    """

    root: Path
    copy: Path
    folder: str
    home: Path
    temporary: Path
    base: Path


@dataclass(frozen=True)
class Confinement:
    """One way to hold a command: its name ("" for nothing) and what it keeps the command from."""

    name: str
    held: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[str, ...]:
        """What the command is not kept from."""
        return tuple(what for what in (FILES, NETWORK, PROCESSES) if what not in self.held)


BUBBLEWRAP = Confinement("bubblewrap", (FILES, NETWORK, PROCESSES))
NAMESPACES = Confinement("namespaces", (FILES, NETWORK, PROCESSES))
LANDLOCK = Confinement("landlock", (FILES, TCP))
LANDLOCK_FILES = Confinement("landlock", (FILES,))
NOTHING = Confinement("")


@dataclass(frozen=True)
class Started:
    """A command, ready to be started: arguments, the folder to start it in, and its environment."""

    argv: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]


def choose(place: Place, mounts: Mounts, env: Mapping[str, str]) -> Confinement:
    """The first sandbox that works for a place on this machine, found out by running nothing in it."""
    for sandbox in (BUBBLEWRAP, NAMESPACES, LANDLOCK):
        if sandbox is BUBBLEWRAP and not shutil.which("bwrap", path=_path(env)):
            continue
        if sandbox is not BUBBLEWRAP and sys.platform != "linux":
            continue
        if _works(started(sandbox, place, mounts, ":", env)):
            return LANDLOCK_FILES if sandbox is LANDLOCK and _landlock() < 4 else sandbox
    return NOTHING


def started(sandbox: Confinement, place: Place, mounts: Mounts, command: str, env: Mapping[str, str]) -> Started:
    """How `command` is started by /bin/sh in a sandbox.

    `mounts` are those of `view`; `env` is the environment of which the command sees a part.
    """
    shell = ("/bin/sh", "-c", command)
    if sandbox in (BUBBLEWRAP, NAMESPACES):
        seen = environment(env, Path.home(), Path("/tmp"))
        folder = str(place.root / place.folder)
        if sandbox is BUBBLEWRAP:
            bwrap = shutil.which("bwrap", path=_path(env)) or "bwrap"
            return Started((bwrap, *_bubblewrap(mounts), "--chdir", folder, "--", *shell), place.base, seen)
        spec = {"kind": "namespaces", "base": str(place.base), "mounts": mounts, "folder": folder, "argv": shell}
        return Started(_confined(spec), place.base, seen)
    seen = environment(env, place.home, place.temporary)
    folder = str(place.copy / place.folder)
    if sandbox is NOTHING:
        return Started(shell, Path(folder), seen)
    read = [source or target for kind, target, source in mounts if kind in ("read", "proc")]
    read += [target for kind, target, _ in mounts if kind == "link"]
    write = [str(place.copy), str(place.home), str(place.temporary)]
    spec = {"kind": "landlock", "read": read, "write": write, "folder": folder, "argv": shell}
    return Started(_confined(spec), place.base, seen)


def environment(env: Mapping[str, str], home: Path, temporary: Path) -> dict[str, str]:
    """The variables that a command sees: named ones, without what looks like a secret."""
    names, secret = _VARIABLES.split(), secret_values(env)
    seen = {
        name: value for name, value in env.items() if (name in names or name.startswith("LC_")) and name not in secret
    }
    return {**seen, "PATH": _path(env), "HOME": str(home), "TMPDIR": str(temporary)}


# -- what a command sees ---------------------------------------------------------------------------


def view(place: Place, env: Mapping[str, str]) -> Mounts:
    """The file system of a command as (kind, where, what), outer folders first; made before anything is run.

    Kinds: "read" and "write" show a folder of this machine, "link" is a symlink, "tmpfs" is empty, "dev" and "proc"
    are what they are called.
    """
    home = Path.home()
    mounts = [*_system(), ("dev", "/dev", ""), ("proc", "/proc", ""), ("tmpfs", "/run", "")]
    mounts += [("write", where, str(place.temporary)) for where in ("/tmp", "/var/tmp")]
    mounts.append(("write", str(home), str(place.home)))
    tools = [home / name for name in _TOOLCHAINS.split()]
    mounts += [("read", str(path), str(path)) for path in tools if path.is_dir()]
    mounts += [("read", str(path), str(path)) for path in _programs(place, env, home)]
    mounts.append(("write", str(place.root), str(place.copy)))
    mounts += [("read", str(path), str(path)) for path in dependencies(place)]
    distinct = {where: (kind, where, what) for kind, where, what in mounts}  # the last one of a place wins
    return sorted(distinct.values(), key=lambda mount: len(Path(mount[1]).parts))


def _system() -> Iterator[tuple[str, str, str]]:
    for name in _SYSTEM:
        if Path(name).is_symlink():
            yield "link", name, str(Path(name).readlink())
        elif Path(name).is_dir():
            yield "read", name, name


def _programs(place: Place, env: Mapping[str, str], home: Path) -> list[Path]:
    """The folders that programs on PATH need: where they are, what is around it, and where their links lead."""
    found: dict[Path, None] = {}

    def take(folder: Path) -> None:
        if _covered(folder, [Path(name) for name in _SYSTEM]) or not folder.is_dir():
            return
        if _inside(folder, place.root) and _copied(place, folder):
            return  # it is part of the copy
        around = folder.parent if folder.name.lstrip(".") in _PROGRAMS else folder
        # Never the home, the work tree, or what either lies in; of ~/.cargo and ~/.local only the programs.
        hidden = around.parent == home and around.name.startswith(".")
        if hidden or around == Path("/") or _inside(home, around) or _inside(place.root, around):
            around = folder
        if not (_inside(home, around) or _inside(place.root, around)):
            found.setdefault(around)

    for name in _path(env).split(os.pathsep):
        folder = Path(name)
        take(folder)
        if not _covered(folder, [Path(system) for system in _SYSTEM]):
            for path in _led_to(folder):
                take(path.parent)
    return list(found)


def _led_to(folder: Path) -> Iterator[Path]:
    """What the symlinks in a folder lead to, step by step."""
    try:
        entries = [Path(entry.path) for entry in os.scandir(folder) if entry.is_symlink()][:LINKS]
    except OSError:
        return
    for path in entries:
        for _ in range(8):
            if not path.is_symlink():
                break
            path = Path(os.path.normpath(path.parent / path.readlink()))
            yield path


def dependencies(place: Place) -> list[Path]:
    """The folders of installed dependencies that the copy lacks, from the root down to where the command runs."""
    parts = Path(place.folder).parts
    folders = [place.root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    found = [folder / name for folder in folders for name in DEPENDENCIES]
    return [path for path in found if path.is_dir() and not path.is_symlink() and not _copied(place, path)]


def _copied(place: Place, path: Path) -> bool:
    """True if the copy has a folder of the work tree; an empty one is only where something is to be shown."""
    here = place.copy / path.relative_to(place.root)
    return here.is_dir() and any(here.iterdir())


def _covered(path: Path, folders: Sequence[Path]) -> bool:
    return any(_inside(path, folder) for folder in folders)


def _inside(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _path(env: Mapping[str, str]) -> str:
    """PATH without relative folders: those would be found in the copy."""
    kept = [place for place in env.get("PATH", "").split(os.pathsep) if place.startswith("/")]
    return os.pathsep.join(kept) or os.defpath


# -- the sandboxes ---------------------------------------------------------------------------------


def _bubblewrap(mounts: Sequence[tuple[str, str, str]]) -> list[str]:
    """The options of bubblewrap for a view."""
    words = ["--unshare-all", "--unshare-user", "--die-with-parent", "--cap-drop", "ALL"]
    options = {"read": "--ro-bind", "write": "--bind", "link": "--symlink"}
    for kind, where, what in mounts:
        words += [options[kind], what, where] if kind in options else [f"--{kind}", where]
    return words


def _confined(spec: Mapping[str, object]) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-B", str(_CHILD), json.dumps(spec))


def _landlock() -> int:
    """The version of Landlock that the kernel has, below 1 for none."""
    import ctypes

    return int(ctypes.CDLL(None).syscall(ctypes.c_long(444), None, ctypes.c_long(0), ctypes.c_long(1)))


def _works(what: Started) -> bool:
    try:
        done = subprocess.run(
            what.argv,
            cwd=what.folder,
            env=what.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            start_new_session=True,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
