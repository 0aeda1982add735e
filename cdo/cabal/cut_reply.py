"""Closes the JSON of a reply that was cut off, behind its last complete entry. Pure."""

from __future__ import annotations

import re

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_ENTRY = ("{", "[")  # what is open inside a list of the reply


def closed(text: str) -> str:
    """Return the JSON object of a reply up to the last complete entry of its lists; "" if there is none."""
    start, end = text.find("{"), 0
    if start < 0:
        return ""
    open_: list[str] = []
    for token in _TOKEN.finditer(text, start):
        sign = token[0]
        if sign in ("{", "["):
            open_.append(sign)
        elif sign in ("}", "]"):
            if not open_:
                return ""
            open_.pop()
            if not open_:
                return ""  # the object is complete: something else was cut off
        if tuple(open_) == _ENTRY and sign == "}":
            end = token.end()
    return f"{text[start:end]}]}}" if end else ""
