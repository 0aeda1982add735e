"""Listens at a port of this machine alone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from cdo.core.errors import ConfigError

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def listening_socket(port: int) -> Iterator[socket.socket]:
    """Yield a socket that is bound to `port`, to a free one if that is 0, and close it; raise `ConfigError`."""
    with contextlib.closing(socket.socket(socket.AF_INET)) as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((LOOPBACK, port))
        except OSError as error:
            raise ConfigError(
                f"Nothing can listen at port {port}: {error.strerror}.", "Give another one with --port."
            ) from None
        yield place
