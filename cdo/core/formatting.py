"""How texts, money and times are put to a person at a terminal. Pure."""

from __future__ import annotations

import re
import unicodedata

# Not "printable" for Python, yet harmless to a terminal: wide blanks, private use, signs newer than Python.
_HARMLESS = frozenset({"Zs", "Co", "Cn"})


def visible(text: str) -> str:
    """`text` with a sign in place of every control and format character but newline and tab.

    The one gateway from what others wrote to a terminal: no escape, no bidi override, nothing of zero width
    and no lone surrogate gets through.
    """
    return re.sub(r"[^\n\t -~]", _sign, text)


def _sign(match: re.Match[str]) -> str:
    char, code = match[0], ord(match[0])
    if char.isprintable() or unicodedata.category(char) in _HARMLESS:
        return char
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"


def one_line(text: object, limit: int = 600) -> str:
    """`text` as one visible line of at most `limit` characters."""
    line = " ".join(visible(str(text)[: 2 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shorten_middle(name: str, width: int) -> str:
    """A name cut in its middle: its end tells `critic-2` from `critic-3`."""
    return name if len(name) <= width else f"{name[: width - 4]}…{name[-3:]}"


def money(cost: float | None) -> str:
    """Dollars for a person; a price that is not known is never shown as zero."""
    if not cost:
        return "unknown" if cost is None else "$0"
    if cost < 0.00005:
        return "<$0.0001"
    return f"${cost:.4f}" if cost < 0.99995 else f"${cost:,.2f}"


def paid(cost: float | None, amounts: str) -> str:
    """What work took, such as "$0.05 (13 calls)", or "13 calls, price unknown"."""
    return f"{amounts}, price unknown" if cost is None else f"{money(cost)} ({amounts})"


def duration(seconds: float | None) -> str:
    """Seconds as "3.2 s" or "2m05s"; "" where there are none."""
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{int(seconds) // 60}m{int(seconds) % 60:02}s"


def pluralise(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it has to be."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def columns(*parts: str) -> str:
    """The parts that say anything, two blanks apart."""
    return "  ".join(part for part in parts if part).rstrip()
