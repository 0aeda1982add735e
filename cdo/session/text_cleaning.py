"""Makes texts and JSON data fit for the files of a session: without secrets, and such as UTF-8 can hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cdo.core.formatting import without_controls
from cdo.files.atomic_files import encodable

_BRIEF = 64  # characters of a text that is remembered


@functools.lru_cache(8)
def cleaners(redact: Callable[[str], str]) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return what makes a text fit for a record, and for a file that people read.

    Sessions of one process have most brief texts in common, such as keys, so what becomes of these is remembered.
    """

    def recorded(text: str) -> str:
        return encodable(redact(text))

    def shown(text: str) -> str:
        return without_controls(encodable(redact(text)))

    def remembering(change: Callable[[str], str]) -> Callable[[str], str]:
        brief = functools.lru_cache(4096, typed=True)(change)
        return lambda text: brief(text) if len(text) <= _BRIEF else change(text)

    return remembering(recorded), remembering(shown)


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return the same JSON data with every text, also of keys, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            change(key) if type(key) is str else changed(key, change): change(item)
            if type(item) is str
            else changed(item, change)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [changed(item, change) for item in value]
    return value
