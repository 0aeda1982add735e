"""Tells terminals that can be drawn on from pipes and from terminals that only print."""

from __future__ import annotations

import os
from typing import TextIO


def can_draw(stream: TextIO) -> bool:
    """Return True if a stream is a terminal that knows how to move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
