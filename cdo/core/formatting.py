"""Formats texts, money and times for a person at a terminal. Pure."""

from __future__ import annotations

import json
import math
import re
import unicodedata

import msgspec

# Not "printable" for Python, yet harmless to a terminal: wide blanks, private use, characters newer than Python.
_HARMLESS = frozenset({"Zs", "Co", "Cn"})


def visible(text: str) -> str:
    """Return `text` with a sign in place of every control and format character but newline and tab.

    Every untrusted text passes through here on its way to a terminal. No escape sequence, no bidi override, no
    character of zero width and no lone surrogate gets through.
    """
    if text.isprintable():  # as most are
        return text
    return re.sub(r"[^\n\t -~]", _sign, text)


def _sign(match: re.Match[str]) -> str:
    char, code = match[0], ord(match[0])
    if char.isprintable() or unicodedata.category(char) in _HARMLESS:
        return char
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"<U+{code:04X}>"


# What acts on a terminal that shows a file: control characters but newline, return and tab, and changes of direction.
CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(f"[{CONTROLS}]")


def without_controls(text: str) -> str:
    """Return `text` with a sign in place of every control character and every change of direction.

    Every Markdown file that a session writes passes through here, so that `cat` shows a file as it is. Other
    characters that `visible` replaces stay: languages and emoji need some that have no width.
    """
    return _CONTROL.sub(_mark, text)


# Scripts without blanks: Thai and Lao, Burmese, Khmer, kana, Han. (As one pattern: 3 ms at every start.)
_UNSPACED = (
    ("\u0e00", "\u0eff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
    ("\u3040", "\u30ff"),
    ("\u3400", "\u9fff"),
)


def unspaced(text: str) -> set[str]:
    """Return the different characters of `text` that belong to scripts which put no blanks between words."""
    return {sign for sign in set(text) if any(low <= sign <= high for low, high in _UNSPACED)}


_packed = msgspec.json.Encoder(enc_hook=str).encode
_by_python = json.JSONEncoder(ensure_ascii=False, default=str).encode


def json_text(value: object) -> str:
    """Return `value` as JSON on one line, as `json.dumps` lays it out, in a fifth of the time."""
    try:
        packed = _packed(value)
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot hold
        return _by_python(value)
    if b"null" in packed and _infinite(value):  # a reader is to refuse such a number, not to find none
        return _by_python(value)
    return msgspec.json.format(packed, indent=0).decode()


def json_bytes(value: object) -> bytes:
    """Return `value` as JSON in UTF-8, as short as it can be; what UTF-8 cannot hold is replaced."""
    try:
        packed = _packed(value)
    except UnicodeEncodeError:
        return _by_python(value).encode("utf-8", "replace")
    return _by_python(value).encode() if b"null" in packed and _infinite(value) else packed


def _infinite(value: object) -> bool:
    """True if there is a number in JSON data that is not finite."""
    if isinstance(value, dict):
        return any(map(_infinite, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_infinite, value))
    return isinstance(value, float) and not math.isfinite(value)


def json_line(value: object) -> str:
    """Return `value` as JSON on one line, with escapes for control characters and changes of direction.

    Records and the journal are written with it: a reader gets each text as it was, and `cat` of the file is safe.
    """
    text = json_text(value)
    if text.isascii() and "\x7f" not in text:  # JSON has escapes for all others
        return text
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"


def one_line(text: object, limit: int = 600) -> str:
    """Return `text` as one visible line of at most `limit` characters."""
    line = " ".join(visible(str(text)[: 2 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shorten_middle(name: str, width: int) -> str:
    """Shorten a name in its middle: its end tells `critic-2` from `critic-3`."""
    return name if len(name) <= width else f"{name[: width - 4]}…{name[-3:]}"


def money(cost: float | None) -> str:
    """Return dollars as text, below a cent with two digits that count; an unknown price is never shown as zero."""
    if not cost:
        return "unknown" if cost is None else "$0"
    if cost < 0.00005:
        return "<$0.0001"
    places = 2 if cost >= 0.0995 else 3 if cost >= 0.00995 else 4
    text = f"{cost:,.{places}f}"
    return f"${text[:-1] if places == 3 and text.endswith('0') else text}"


def money_range(cost: tuple[float, float] | None) -> str:
    """Return a range of dollars as text, one amount if both ends read alike, "unknown" if there is none."""
    low, high = (None, None) if cost is None else cost
    return money(low) if money(low) == money(high) else f"{money(low)} to {money(high)}"


def rounded(number: int) -> str:
    """Return a large count with three digits that count: 126,525 as "127,000". Machine output stays exact."""
    step = 10 ** max(0, len(str(abs(number))) - 3)
    return f"{(number + step // 2) // step * step:,}"


def rounded_money(cost: float | None) -> str:
    """Return dollars in whole cents, for a result; an unknown price is never shown as zero."""
    if not cost or cost >= 0.005:
        return f"${cost:,.2f}" if cost else money(cost)
    return "less than $0.01"


def about(number: float) -> str:
    """Return a number rounded to two significant digits, since an estimate is no more exact."""
    whole = max(0, round(number))
    return f"{round(whole, 2 - len(str(whole))):,}"


def about_money(low: float, high: float | None = None) -> str:
    """Return dollars, or a range of dollars, rounded to cents, or to two significant digits below ten cents."""
    first, last = (_dollars(value) for value in (low, low if high is None else high))
    return f"${first}" if first == last else f"${first}–{last}"


def _dollars(value: float) -> str:
    if value >= 99.5:
        return f"{about(value)}"
    if value >= 0.095 or value <= 0:
        return f"{value:.2f}".removesuffix(".00")
    return f"{value:.4f}".rstrip("0") if value < 0.00095 else f"{value:.3f}" if value < 0.0095 else f"{value:.2f}"


def paid(cost: float | None, amounts: str) -> str:
    """Return a cost with what was used, such as "$0.05 (13 calls)", or "13 calls, price unknown"."""
    return f"{amounts}, price unknown" if cost is None else f"{money(cost)} ({amounts})"


def duration(seconds: float | None) -> str:
    """Return seconds as "3.2 s" or "2m05s"; "" for None."""
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{int(seconds) // 60}m{int(seconds) % 60:02}s"


def period(seconds: float) -> str:
    """Return a period of time in its largest unit, as in "2 h" or "1.5 d"."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and round(seconds / size, 1) == round(seconds / size, 6):
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def pluralise(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed. A number of tokens is rounded."""
    shown = rounded(number) if noun == "token" else f"{number:,}"
    return f"{shown} {noun}" + ("" if number == 1 else "s")


def columns(*parts: str) -> str:
    """Join the non-empty parts, two blanks apart."""
    return "  ".join(part for part in parts if part).rstrip()
