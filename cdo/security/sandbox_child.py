"""Confines this process and runs a command: `python -I -S sandbox_child.py SPEC`, where SPEC is JSON.

With `"kind": "namespaces"` the command sees its own file system, made of `mounts`, no network and no other processes.
With `"kind": "landlock"` the kernel refuses access to all files except `read` (read and execute) and `write` (all
access), and refuses TCP if it can; with `"listen": true` it refuses only connections that the command begins. Neither
needs root. If the kernel does not allow the setup, the process ends with code 125 and a line on stderr, before the
command starts; with `"anyway": true` the command starts unprotected. With `"kind": "limits"` nothing is confined.
`"limits"` bound what each process uses, as `limited` tells.

This file imports nothing from cdo, so that it can be run by its path alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

UNUSABLE = 125

# From the kernel's headers.
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_BIND, _CONNECT = 1, 2
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_libc = ctypes.CDLL(None, use_errno=True)


def main(spec: dict[str, Any]) -> NoReturn:
    """Confine this process as `spec` says, and run its command."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if spec["kind"] == "landlock":
            with contextlib.suppress(*(OSError, AttributeError) if spec.get("anyway") else ()):
                landlock(spec["read"], spec["write"], listen=bool(spec.get("listen")))
            _execute(spec)
        if spec["kind"] == "limits":
            _execute(spec)
        namespaces(spec)
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"cdo: this machine does not allow it: {error}\n")
        sys.stderr.flush()
        os._exit(UNUSABLE)


def limited(limits: dict[str, int]) -> None:
    """Bound this process and its children: `memory` and `file` in bytes each, `processes` beside those there are."""
    for names, most in (("RLIMIT_DATA RLIMIT_AS", limits["memory"]), ("RLIMIT_FSIZE", limits["file"])):
        for name in names.split():
            room = most * 16 if name == "RLIMIT_AS" else most  # programs reserve addresses that they never use
            _lowered(getattr(resource, name), room)
    _lowered(resource.RLIMIT_NPROC, _processes() + limits["processes"])


def _lowered(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _processes() -> int:
    """Return the number of processes and threads of this user, as far as they can be seen."""
    found = 0
    for entry in os.scandir("/proc") if Path("/proc/self").exists() else ():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and entry.stat().st_uid == os.getuid():
                found += len(os.listdir(f"/proc/{entry.name}/task"))
    return found or 1024


def _execute(spec: dict[str, Any]) -> NoReturn:
    if "limits" in spec:
        limited(spec["limits"])
    os.chdir(spec["folder"])
    argv = spec["argv"]
    os.execvp(argv[0], argv)


def _call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; raise `OSError` if it fails."""
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


# -- namespaces ------------------------------------------------------------------------------------


def namespaces(spec: dict[str, Any]) -> NoReturn:
    """Run the command in its own namespaces; exit with its exit code."""
    ids = os.getuid(), os.getgid()
    _unshare(_NEWUSER | _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS, ids)
    child = os.fork()
    if child:
        os._exit(_code(os.waitpid(child, 0)[1]))
    try:
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _loopback()
        _mounted(spec["base"], spec["mounts"])
        # A second, inner namespace: in it the read-only mounts cannot be remounted writable.
        _unshare(_NEWUSER | _NEWNS, ids)
        _unprivileged()
        command = os.fork()
        if not command:
            _execute(spec)
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"cdo: this machine does not allow it: {error}\n")
        sys.stderr.flush()
        os._exit(UNUSABLE)
    while True:  # as the namespace's init, reap orphans; its end kills all other processes
        pid, status = os.wait()
        if pid == command:
            os._exit(_code(status))


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _unshare(flags: int, ids: tuple[int, int]) -> None:
    """Enter new namespaces. The user namespace maps only this process's own user and group."""
    _call("unshare", flags)
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in zip(("uid_map", "gid_map"), ids, strict=True):
        Path(f"/proc/self/{name}").write_text(f"{number} {number} 1")


def _loopback() -> None:
    """Bring up the loopback device, the only network device, for connections within the sandbox."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


def _unprivileged() -> None:
    """Drop every capability in the namespace, for this process and its children."""
    with contextlib.suppress(OSError):
        for capability in range(64):
            _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call that the C library has no function for; raise `OSError` if it fails."""
    whole = [ctypes.c_long(item) if isinstance(item, int) else item for item in (number, *arguments)]
    return _call("syscall", *whole)


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [word.encode() or None for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), data.encode() or None)


def _mounted(base: str, mounts: Sequence[Sequence[str]]) -> None:
    """Build a file system from `mounts` below the empty folder `base`, and make it the root."""
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    _mount("tmpfs", base, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
    for kind, target, source in mounts:
        place = f"{base}{target}"
        if kind == "link":
            Path(place).parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(place):
                Path(place).symlink_to(source)
            continue
        Path(place).mkdir(parents=True, exist_ok=True)
        if kind == "dev":
            _devices(place)
        elif kind == "proc":
            _mount("proc", place, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        elif kind == "tmpfs":
            _mount("tmpfs", place, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
        else:
            _bound(source, place, _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if kind == "read" else 0))
    os.chdir(base)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def _bound(source: str, place: str, attributes: int) -> None:
    _mount(source, place, flags=_MS_BIND | _MS_REC)
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    _syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, place.encode(), _AT_RECURSIVE, wanted, len(wanted))


def _devices(place: str) -> None:
    """Build a /dev folder with harmless devices only."""
    _mount("tmpfs", place, "tmpfs", _MS_NOSUID, "mode=755")
    for name in _DEVICES:
        Path(place, name).touch()
        _mount(f"/dev/{name}", f"{place}/{name}", flags=_MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        Path(place, name).symlink_to(target)
    Path(place, "shm").mkdir()
    _mount("tmpfs", f"{place}/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
    Path(place, "pts").mkdir()
    with contextlib.suppress(OSError):
        _mount("devpts", f"{place}/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        Path(place, "ptmx").symlink_to("pts/ptmx")


# -- Landlock --------------------------------------------------------------------------------------


def landlock(read: Sequence[str], write: Sequence[str], *, listen: bool = False) -> None:
    """Make the kernel refuse this process all files except these, and TCP connections if it supports that.

    With `listen` the process can still accept connections.
    """
    version = _syscall(_SYS_LANDLOCK_CREATE, None, 0, 1)
    files = (1 << 13) - 1 | (1 << 13) * (version >= 2) | _TRUNCATE * (version >= 3) | _IOCTL * (version >= 5)
    handled = struct.pack(
        "QQQ", files, (_CONNECT if listen else _BIND | _CONNECT) * (version >= 4), 3 * (version >= 6)
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _syscall(_SYS_LANDLOCK_CREATE, handled, size, 0)
    for paths, access in ((read, _EXECUTE | _READ_FILE | _READ_DIR), (write, files)):
        for path in paths:
            _allow(rules, path, access)
    for name in _DEVICES:
        _allow(rules, f"/dev/{name}", (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL) & files)
    _unprivileged()  # otherwise root could still access other processes
    _syscall(_SYS_LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not Path(path).is_dir():
        access &= _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL
    _syscall(_SYS_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", access, place), 0)
    os.close(place)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
