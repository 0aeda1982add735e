"""Nothing leaves this machine: connections to other hosts, and looking up their names, raise.

conftest.py installs this in the process of the tests. A `cdo` that a test starts gets it too: Python imports a module
of this name by itself, and PYTHONPATH leads here. What was tried is also appended to the file that
TESTS_TRIED names, since a program may swallow the error.

More variables stage what is hard to come by: TESTS_HIDE names modules that seem not to be installed, TESTS_STAMP
is what the clock shows wherever a session gets its name, TESTS_MEET ("FOLDER N") lets N processes wait
there for each other, and TESTS_TODAY is the date that models are told.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

TRIED: list[str] = []
_connect, _connect_ex, _getaddrinfo = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo


class Beyond(RuntimeError):
    """Something wanted to leave this machine. Not an OSError: that would pass for a provider that is down."""


def near(host: object) -> bool:
    """Whether a host (a name or an address) is this machine."""
    import ipaddress

    text = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "localhost")
    if text.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


def refuse(what: str) -> None:
    """Remember what was tried, and raise."""
    TRIED.append(what)
    if log := os.environ.get("TESTS_TRIED"):
        with open(log, "a", encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes 10 ms to import
            file.write(f"{what}\n")
    raise Beyond(f"a test tried to leave this machine: {what}")


def _checked(sock: socket.socket, address: Any) -> None:
    if sock.family in (socket.AF_INET, socket.AF_INET6) and not near(address[0]):
        refuse(f"connect {address}")


def connect(sock: socket.socket, address: Any) -> None:
    """`socket.connect` to this machine only."""
    _checked(sock, address)
    _connect(sock, address)


def connect_ex(sock: socket.socket, address: Any) -> int:
    """`socket.connect_ex` to this machine only."""
    _checked(sock, address)
    return _connect_ex(sock, address)


def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
    """`socket.getaddrinfo` of this machine's names only."""
    if not near(host):
        refuse(f"look up {host!r}")
    return _getaddrinfo(host, *rest, **more)


def install() -> None:
    """Guard this process."""
    setattr(socket.socket, "connect", connect)  # noqa: B010 - mypy forbids the plain assignment
    setattr(socket.socket, "connect_ex", connect_ex)  # noqa: B010
    setattr(socket, "getaddrinfo", getaddrinfo)  # noqa: B010


def _stage() -> None:
    for name in os.environ.get("TESTS_HIDE", "").split():
        sys.modules[name] = None  # type: ignore[assignment]
    stamp, today = os.environ.get("TESTS_STAMP"), os.environ.get("TESTS_TODAY")
    if stamp or today:
        import time

        real = time.strftime

        def strftime(form: str, *rest: Any) -> str:
            if today and not rest and form == "%Y-%m-%d":  # datetime calls this with a date of its own
                return today
            if not stamp or form != "%Y%m%d-%H%M%S":
                return real(form, *rest)
            if meeting := os.environ.get("TESTS_MEET"):
                folder, number = meeting.rsplit(" ", 1)
                os.mkdir(f"{folder}/{os.getpid()}")  # noqa: PTH102
                while len(os.listdir(folder)) < int(number):
                    time.sleep(0.001)
            return stamp

        setattr(time, "strftime", strftime)  # noqa: B010


def is_pip() -> bool:
    """pip fetches the embedded model: it may leave."""
    return " -m pip " in " ".join(sys.orig_argv[:4]) + " "


if __name__ == "sitecustomize" and not is_pip():
    install()
    _stage()
