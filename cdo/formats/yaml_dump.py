"""Writes data as YAML the way cdo's files show it. Pure.

libyaml decides how a file looks. Most entries of cdo's files are plain words, numbers and short lists, which are
written here by the same rules in a tenth of the time. libyaml writes every other entry; what it wrote is remembered,
since the sessions of a batch have most of their settings in common.
"""

from __future__ import annotations

import marshal
import re
from functools import lru_cache
from typing import Any, cast

import yaml

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_WIDTH = 100  # columns; a text goes on in the next line behind them
_LAYOUT: dict[str, Any] = {"allow_unicode": True, "width": _WIDTH}
_TAG = "tag:yaml.org,2002:"
_OTHERS = yaml.representer.SafeRepresenter()  # for numbers, booleans and null
# Text that a reader of YAML may take for a number: it is quoted when written.
_LIKE_A_NUMBER = re.compile(r"[-+]?(0[ox][0-9a-fA-F]+|\.?[0-9][0-9_.]*([eE][-+]?[0-9]+)?)")
_ODD_BREAK = re.compile("[\r\x85\u2028\u2029]")  # line breaks that only quoted text distinguishes from \n
# Text that needs no quotes for any reader, and does not in a list on one line either.
_PLAIN = re.compile(r"(?!(?i:yes|no|true|false|on|off|null|y|n)$)[A-Za-z][\w./()-]*(?: [\w./()-]+)*", re.ASCII)
# Text that needs none as the value of a key. A colon or # with a blank beside it would say something else there.
_SIGN = r"(?:[\w./(),;'\"?!%&$+=*~<>@^|-]|:(?=[\w./(]))"
_SENTENCE = re.compile(rf"(?!(?i:yes|no|true|false|on|off|null|y|n)$)[A-Za-z]{_SIGN}*(?: {_SIGN}+)*", re.ASCII)
_NAMED = re.compile(r"[A-Za-z][\w./()-]*:(?: [\w./()-]+)+", re.ASCII)  # text that is quoted for its colon
_GIVEN = re.compile(r"00-[a-z]+(?:-[a-z]+)*", re.ASCII)  # a file that a session begins with: no number for a reader
_HASH = re.compile(r"(?=[0-9]*[1-9a-f])[0-9a-f]{16}(?:[0-9a-f]{48})?", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+\.[0-9]+")
_KEPT_END = re.compile(r"[|>][0-9]?\+\n")
_SIMPLE_KEY = 60  # characters


def dump(data: Any) -> str:
    """Write `data` as YAML: keys in order, text unescaped, 100 columns."""
    if isinstance(data, dict) and data and (text := _block(data, 0)) is not None:
        return text
    return by_library(data)


# -- in short --------------------------------------------------------------------------------------


def _block(data: dict[str, Any], depth: int) -> str | None:
    """Return a mapping with a key on each line, `depth` mappings deep; None if libyaml has to write the whole."""
    parts = list[str]()
    for key, value in data.items():
        text = _entry(key, value, depth)
        if text is None:
            text = _remembered(marshal.dumps((key, value)), depth) if _packs(value) else _alone(key, value, depth)
            if text is None:
                return None
        parts.append(text)
    return "".join(parts)


def _entry(key: Any, value: Any, depth: int) -> str | None:
    """Return an entry of a mapping if it is as simple as most are, otherwise None."""
    if type(key) is not str or len(key) > _SIMPLE_KEY or not (_PLAIN.fullmatch(key) or _GIVEN.fullmatch(key)):
        return None
    start = f"{'  ' * depth}{key}:"
    kind = type(value)
    if kind is str:
        if not (_SENTENCE.fullmatch(value) or _is_hash(value)):
            return None
        return f"{start} {_folded(value, len(start) + 1, depth)}\n"
    if kind is dict and value and not _inline(value):
        inner = _block(value, depth + 1)
        return None if inner is None else f"{start}\n{inner}"
    if kind in (list, tuple) and value and not _short(value):
        items = [_item(item, depth) for item in value]
        return None if None in items else f"{start}\n{''.join(cast('list[str]', items))}"
    text = _in_line(value)
    return f"{start} {text}\n" if text is not None and len(start) + len(text) < _WIDTH - 4 else None


def _item(value: Any, depth: int) -> str | None:
    """Return an item of a list that has a line for each, `depth` mappings deep; None unless it is simple."""
    mark = f"{'  ' * depth}- "
    if type(value) is not dict or not value or _inline(value):
        text = _in_line(value)
        return f"{mark}{text}\n" if text is not None and len(mark) + len(text) < _WIDTH - 4 else None
    entries = [_entry(key, item, depth + 1) for key, item in value.items()]
    return None if None in entries else f"{mark}{''.join(cast('list[str]', entries))[len(mark) :]}"


def _in_line(value: Any) -> str | None:
    """Return a simple value, or a short list or mapping of such, as it stands on one line; None for any other."""
    kind = type(value)
    if kind is str:
        if _NAMED.fullmatch(value):
            return f"'{value}'"
        return value if _PLAIN.fullmatch(value) or _is_hash(value) else None
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return text if _NUMBER.fullmatch(text := repr(value)) else None
    if kind is dict and _inline(value):
        keys = [key if type(key) is str and _GIVEN.fullmatch(key) else _in_line(key) for key in value]
        items = [_in_line(item) for item in value.values()]
        if any(type(key) is not str or len(key) > _SIMPLE_KEY for key in value) or None in keys or None in items:
            return None
        return f"{{{', '.join(f'{key}: {item}' for key, item in zip(keys, items, strict=True))}}}"
    if kind in (list, tuple) and _short(value):
        texts = [shown for item in value if (shown := _in_line(item)) is not None]
        return f"[{', '.join(texts)}]" if len(texts) == len(value) else None
    return None


def _is_hash(value: str) -> bool:
    return len(value) in (16, 64) and bool(_HASH.fullmatch(value)) and not _LIKE_A_NUMBER.fullmatch(value)


def _folded(value: str, column: int, depth: int) -> str:
    """Return a plain text that begins at `column`, with line breaks where it goes beyond the width."""
    if column + len(value) <= _WIDTH:
        return value
    first, *words = value.split(" ")
    parts, column = [first], column + len(first)
    for word in words:
        if column > _WIDTH:
            parts.append(f"\n{'  ' * (depth + 1)}")
            column = 2 * (depth + 1)
        else:
            parts.append(" ")
            column += 1
        parts.append(word)
        column += len(word)
    return "".join(parts)


# -- by libyaml ------------------------------------------------------------------------------------


def _packs(value: Any) -> bool:
    """True if a value is of a kind whose packed form tells it from every other."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _packs(item) for key, item in value.items())
    if kind in (list, tuple):
        return all(map(_packs, value))
    return value is None or kind in (str, int, float, bool)


@lru_cache(maxsize=1024)
def _remembered(packed: bytes, depth: int) -> str | None:
    key, value = marshal.loads(packed)
    return _alone(key, value, depth)


def _alone(key: Any, value: Any, depth: int) -> str | None:
    """Return one entry as libyaml writes it at this depth; None if it decides about the rest of the document.

    A character beyond U+FFFF does, and a text that ends with blank lines: a mark may follow at the document's end.
    """
    data: dict[str, Any] = {key: value}
    for _ in range(depth):
        data = {"x": data}
    text = _serialized(_mapping(data, block=depth + 1), _Dumper)
    return None if "\\U000" in text or _KEPT_END.search(text) else text.split("\n", depth)[depth]


def by_library(data: Any) -> str:
    """Return what `dump` returns, all of it written by libyaml."""
    node = _mapping(data, block=1) if isinstance(data, dict) else _node(data)
    text = _serialized(node, _Dumper)
    # libyaml escapes characters beyond U+FFFF, such as emoji; the slower dumper writes them.
    return _serialized(node, yaml.SafeDumper) if "\\U000" in text else text


def _serialized(node: yaml.Node, dumper: Any) -> str:
    return str(yaml.serialize(node, Dumper=dumper, **_LAYOUT))


def _node(value: Any) -> yaml.Node:
    """Return the node of a value; raise `yaml.representer.RepresenterError` for one that is not JSON data."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return _mapping(value)
    if isinstance(value, (list, tuple)):
        return yaml.SequenceNode(f"{_TAG}seq", [_node(item) for item in value], flow_style=_short(value))
    return _OTHERS.represent_data(value)


def _mapping(value: dict[str, Any], *, block: int = 0) -> yaml.Node:
    """Return the node of a mapping; those on the first `block` levels have a key on each line."""
    items = [
        (_node(key), _mapping(item, block=block - 1) if block > 1 else _node(item)) for key, item in value.items()
    ]
    return yaml.MappingNode(f"{_TAG}map", items, flow_style=not block and _inline(value))


def _inline(value: dict[str, Any]) -> bool:
    return len(value) <= 4 and _short(value.values())


def _short(values: Any) -> bool:
    """True if a list or mapping of these values reads better on one line."""
    room = 72
    for value in values:
        if value is not None and not isinstance(value, (str, int, float, bool)):
            return False
        text = str(value)
        room -= len(text) + 4
        if room < 0 or "\n" in text:
            return False
    return True


def _text(value: str) -> yaml.Node:
    value = value.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
    # Text that this or another reader (YAML 1.1) could take for a number, bool or null is quoted.
    style = "|" if "\n" in value.strip() and not value.startswith((" ", "\n")) else None
    if _ODD_BREAK.search(value) or (style is None and _LIKE_A_NUMBER.fullmatch(value)):
        style = '"'
    return yaml.ScalarNode(f"{_TAG}str", value, style=style)
