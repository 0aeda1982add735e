"""Tells addresses of this machine from others."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_here(url: str) -> bool:
    """Return True if an address is one of this machine: localhost, ::1, or an IPv4 address that begins with 127."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, such as 127.example.com
        return False
