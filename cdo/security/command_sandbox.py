"""Chooses the sandbox for the person's command (`--check`): bubblewrap, namespaces, Landlock, or none.

Each sandbox of a command shows it the same files. Writable: the copy of the work tree, an empty home and an empty
/tmp. Read-only: the system's folders, the folders of the programs on PATH, known toolchains below the home, and the
work tree's installed dependencies. Everything else (other folders of the home, /run with its sockets) is absent.

`limited` confines a program of cdo's own with Landlock, on macOS with sandbox-exec.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from cdo.security.secrets import secret_values

SECONDS = 20.0  # time limit for testing a sandbox
LINKS = 3000  # symlinks followed in one folder on PATH
_CHILD = Path(__file__).with_name("sandbox_child.py")

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap")
# Folders of compilers, interpreters and package managers below the home. None of them contains credentials.
_TOOLCHAINS = (
    ".cargo/bin .cargo/registry .cargo/git .rustup go/bin go/pkg .m2/repository .nvm .fnm .volta .pyenv .rbenv .rvm "
    ".gem .asdf .sdkman/candidates .deno .bun .ghcup .opam .elan .dotnet .nuget/packages .pub-cache .stack "
    ".cabal/bin .cabal/packages miniconda3 anaconda3 miniforge3 mambaforge .local/bin .local/lib .local/share/mise "
    ".local/share/uv .local/share/pnpm .local/share/pipx .local/share/virtualenvs .cache/ms-playwright"
)
DEPENDENCIES = (".venv", "venv", "node_modules")  # of the work tree: ignored by git, needed to run anything
_PROGRAMS = ("bin", "sbin", "shims")  # names of program folders; their parent folder is shown as well
_VARIABLES = (
    "PATH LANG LANGUAGE TZ TERM USER LOGNAME VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYTHONPATH PYENV_VERSION "
    "PYENV_ROOT GOPATH GOROOT GOFLAGS GOMODCACHE GOTOOLCHAIN CARGO_HOME RUSTUP_HOME RUSTUP_TOOLCHAIN JAVA_HOME "
    "NODE_PATH NODE_ENV NVM_DIR GEM_HOME GEM_PATH BUNDLE_PATH RBENV_ROOT RBENV_VERSION DOTNET_ROOT MAVEN_HOME"
)

_SANDBOX_EXEC = "/usr/bin/sandbox-exec"
_PEOPLE_ON_MACOS = ("/Users", "/Volumes", "/Network", "/private/var/root", "/private/var/folders", "/private/tmp")
_MACOS_DEVICES = ("/dev/null", "/dev/zero", "/dev/tty")

Mounts = list[tuple[str, str, str]]
FILES, NETWORK, TCP, PROCESSES = "other files", "the network", "TCP connections", "other processes"
SYSTEM = tuple(folder for folder in _SYSTEM if folder != "/etc")  # programs and libraries, no configuration


class Place(Struct, frozen=True):
    """The folders of one command run: the work tree at `root`, its `copy`, and the working `folder` below it.

    `home` and `temporary` are empty folders that become the home and /tmp; `base` is an empty folder for mounts.
    """

    root: Path
    copy: Path
    folder: str
    home: Path
    temporary: Path
    base: Path


class Confinement(Struct, frozen=True):
    """One kind of sandbox: its name ("" for none) and what it prevents (`held`)."""

    name: str
    held: tuple[str, ...] = ()

    @property
    def holds_models(self) -> bool:
        """True if a command that a model wrote may run in it: other files and the network are out of reach."""
        return FILES in self.held and (NETWORK in self.held or TCP in self.held)

    @property
    def open(self) -> tuple[str, ...]:
        """The accesses that it does not prevent."""
        return tuple(what for what in (FILES, NETWORK, PROCESSES) if what not in self.held)


BUBBLEWRAP = Confinement("bubblewrap", (FILES, NETWORK, PROCESSES))
NAMESPACES = Confinement("namespaces", (FILES, NETWORK, PROCESSES))
LANDLOCK = Confinement("landlock", (FILES, TCP))
LANDLOCK_FILES = Confinement("landlock", (FILES,))
SEATBELT = Confinement("sandbox-exec", (FILES, TCP))
INSTALL = "Install bubblewrap (`bwrap`), or use Linux 6.7 or newer with Landlock."
NOTHING = Confinement("")


class Bounds(Struct, frozen=True):
    """What each process of a command may use: bytes of memory and of one file, and processes in all."""

    memory: int = 4 * 2**30
    file: int = 2**30
    processes: int = 256


class Started(Struct, frozen=True):
    """A command ready to start: its arguments, working folder and environment."""

    argv: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]


def choose(place: Place, mounts: Mounts, env: Mapping[str, str]) -> Confinement:
    """Return the first sandbox that works for a place on this machine, tested with an empty command."""
    for sandbox in (BUBBLEWRAP, NAMESPACES, LANDLOCK, SEATBELT):
        if sandbox is BUBBLEWRAP and not shutil.which("bwrap", path=_path(env)):
            continue
        if sandbox in (NAMESPACES, LANDLOCK) and sys.platform != "linux":
            continue
        if sandbox is SEATBELT and not (sys.platform == "darwin" and Path(_SANDBOX_EXEC).exists()):
            continue
        if _works(started(sandbox, place, mounts, ":", env)):
            return LANDLOCK_FILES if sandbox is LANDLOCK and _landlock() < 4 else sandbox
    return NOTHING


def started(
    sandbox: Confinement,
    place: Place,
    mounts: Mounts,
    command: str,
    env: Mapping[str, str],
    bounds: Bounds | None = None,
) -> Started:
    """Build the process that runs `command` with /bin/sh in a sandbox.

    `mounts` are the result of `view`; `env` is filtered before the command sees it.
    """
    shell = ("/bin/sh", "-c", command)
    limits: dict[str, Any] = {"limits": asdict(bounds)} if bounds else {}
    spec: dict[str, Any]
    if sandbox in (BUBBLEWRAP, NAMESPACES):
        seen = environment(env, Path.home(), Path("/tmp"))
        folder = str(place.root / place.folder)
        if sandbox is BUBBLEWRAP:
            bwrap = shutil.which("bwrap", path=_path(env)) or "bwrap"
            argv = (bwrap, *_bubblewrap(mounts), "--chdir", folder, "--", *shell)
            bound = _confined({"kind": "limits", "folder": ".", "argv": argv, **limits}) if limits else argv
            return Started(bound, place.base, seen)
        spec = {"kind": "namespaces", "base": str(place.base), "mounts": mounts, "folder": folder, "argv": shell}
        spec = {**spec, **limits}
        return Started(_confined(spec), place.base, seen)
    seen = environment(env, place.home, place.temporary)
    folder = str(place.copy / place.folder)
    if sandbox is NOTHING:
        return Started(shell, Path(folder), seen)
    read = [source or target for kind, target, source in mounts if kind in ("read", "proc")]
    read += [target for kind, target, _ in mounts if kind == "link"]
    write = [str(place.copy), str(place.home), str(place.temporary)]
    if sandbox is SEATBELT:
        argv = (_SANDBOX_EXEC, *seatbelt(read, write), *shell)
        return Started(_confined({"kind": "limits", "folder": folder, "argv": argv, **limits}), place.base, seen)
    spec = {"kind": "landlock", "read": read, "write": write, "folder": folder, "argv": shell, **limits}
    return Started(_confined(spec), place.base, seen)


def limited(
    argv: Sequence[str], read: Sequence[str], write: Sequence[str], *, required: bool = False
) -> tuple[str, ...]:
    """Build the command that runs `argv` confined: other files are refused, and TCP connections it begins.

    It can accept TCP connections. Linux uses Landlock, macOS sandbox-exec. Where Landlock is missing the command runs
    unprotected, unless that is `required`.
    """
    if sys.platform == "darwin" and Path(_SANDBOX_EXEC).exists():
        return (_SANDBOX_EXEC, *seatbelt(read, write), "--", *argv)
    if sys.platform != "linux" and not required:
        return tuple(argv)
    spec = {"kind": "landlock", "read": read, "write": write, "folder": ".", "argv": argv}
    return _confined({**spec, "listen": True, "anyway": not required})


def limits_here(argv: Sequence[str], read: Sequence[str], write: Sequence[str]) -> Confinement:
    """Return what `limited` achieves on this machine, tested with the harmless command `argv`."""
    command = limited(argv, read, write, required=True)
    works = _works(Started(command, Path("/"), environment(os.environ, Path("/"), Path("/"))))
    if works and command[0] == _SANDBOX_EXEC:
        return SEATBELT
    if not works or sys.platform != "linux":
        return NOTHING
    return LANDLOCK if _landlock() >= 4 else LANDLOCK_FILES


def seatbelt(read: Sequence[str], write: Sequence[str]) -> list[str]:
    """Return the options of macOS's sandbox-exec for a program that reads `read` and writes `write`.

    The program reads no other file of a person, writes no other file and begins no connection. Paths are parameters,
    so that no character in one is taken for a rule. The last rule that fits counts; the system knows a file by its
    path without symlinks. Source: sandbox-exec(1), and the profiles below /System/Library/Sandbox/Profiles.
    """
    rules = ["(version 1)", "(allow default)", "(deny network-outbound)", "(deny file-write*)"]
    rules += [f"(deny file-read-data (subpath {json.dumps(folder)}))" for folder in _PEOPLE_ON_MACOS]
    options: list[str] = []
    for operation, paths in (("file-read-data", read), ("file-write*", (*write, *_MACOS_DEVICES))):
        for number, path in enumerate(dict.fromkeys(os.path.realpath(path) for path in paths)):
            name = f"{operation.strip('*').upper().replace('-', '_')}_{number}"
            rules.append(f'(allow {operation} (subpath (param "{name}")))')
            options += ["-D", f"{name}={path}"]
    return ["-p", "\n".join(rules), *options]


def environment(env: Mapping[str, str], home: Path, temporary: Path) -> dict[str, str]:
    """Return the variables that a command sees: a fixed list, without values that look like secrets."""
    names, secret = _VARIABLES.split(), secret_values(env)
    seen = {
        name: value for name, value in env.items() if (name in names or name.startswith("LC_")) and name not in secret
    }
    return {**seen, "PATH": _path(env), "HOME": str(home), "TMPDIR": str(temporary)}


# -- what a command sees ---------------------------------------------------------------------------


def view(place: Place, env: Mapping[str, str]) -> Mounts:
    """Return the file system that a command sees as (kind, target, source), outer folders first.

    Call it before anything is run in the copy. Kinds: "read" and "write" mount a folder of this machine, "link" is a
    symlink, "tmpfs" an empty folder, "dev" and "proc" are /dev and /proc.
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
    distinct = {where: (kind, where, what) for kind, where, what in mounts}  # the last mount of a target wins
    return sorted(distinct.values(), key=lambda mount: len(Path(mount[1]).parts))


def _system() -> Iterator[tuple[str, str, str]]:
    for name in _SYSTEM:
        if Path(name).is_symlink():
            yield "link", name, str(Path(name).readlink())
        elif Path(name).is_dir():
            yield "read", name, name


def _programs(place: Place, env: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folders that programs on PATH need: their folders, the parents of these, and symlink targets."""
    found: dict[Path, None] = {}

    def take(folder: Path) -> None:
        if _covered(folder, [Path(name) for name in _SYSTEM]) or not folder.is_dir():
            return
        if _inside(folder, place.root) and _copied(place, folder):
            return  # it is part of the copy
        around = folder.parent if folder.name.lstrip(".") in _PROGRAMS else folder
        # Never show the home, the work tree, or a parent of either. Of ~/.cargo and ~/.local show only the programs.
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
    """Yield each step of the paths that the symlinks in a folder lead to."""
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
    """Return the installed dependency folders that the copy lacks, from the root down to the working folder."""
    parts = Path(place.folder).parts
    folders = [place.root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    found = [folder / name for folder in folders for name in DEPENDENCIES]
    return [path for path in found if path.is_dir() and not path.is_symlink() and not _copied(place, path)]


def _copied(place: Place, path: Path) -> bool:
    """True if the copy has this folder of the work tree and it is not empty: an empty one is only a mount point."""
    here = place.copy / path.relative_to(place.root)
    return here.is_dir() and any(here.iterdir())


def _covered(path: Path, folders: Sequence[Path]) -> bool:
    return any(_inside(path, folder) for folder in folders)


def _inside(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _path(env: Mapping[str, str]) -> str:
    """Return PATH without relative folders: those would lead into the copy."""
    kept = [place for place in env.get("PATH", "").split(os.pathsep) if place.startswith("/")]
    return os.pathsep.join(kept) or os.defpath


# -- the sandboxes ---------------------------------------------------------------------------------


def _bubblewrap(mounts: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the options of bubblewrap for these mounts."""
    words = ["--unshare-all", "--unshare-user", "--die-with-parent", "--cap-drop", "ALL"]
    options = {"read": "--ro-bind", "write": "--bind", "link": "--symlink"}
    for kind, where, what in mounts:
        words += [options[kind], what, where] if kind in options else [f"--{kind}", where]
    return words


def _confined(spec: Mapping[str, object]) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-B", str(_CHILD), json.dumps(spec))


def _landlock() -> int:
    """Return the kernel's Landlock version, below 1 for none."""
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
