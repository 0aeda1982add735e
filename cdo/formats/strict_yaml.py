"""Loads a strict subset of YAML, for blocks that models and people write.

No aliases, anchors, tags, directives, duplicate or complex keys; bounded size and depth. Plain scalars are null,
true and false, decimal integers, and decimals with a point; all else is text, so that `no`, `12:30` and the
commit `12e4` stay as written. Everything outside the subset is an error with its line and column. Values are
built from the parser's events, so that no hostile document is ever constructed in memory first. `dump` writes it.
"""

from __future__ import annotations

import marshal
import math
import re
from functools import lru_cache
from typing import Any

import yaml

from cdo.core.steps import Json
from cdo.formats.yaml_dump import dump as dump

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REMEMBERED = 16_384  # characters; a longer text is read anew each time
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]{1,3})?")
_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class YamlProblem(ValueError):
    """The text is not in the subset. `line` and `column` count from 1. `quotes`: quotation marks may be missing."""

    def __init__(self, why: str, line: int = 1, column: int = 1, *, quotes: bool = True) -> None:
        super().__init__(f"line {line}, column {column}: {why}")
        self.why, self.line, self.column, self.quotes = why, line, column, quotes


def shown(text: str) -> str:
    """Return a text for an error message: shortened, with characters replaced that cannot be printed."""
    start = text[:40]
    return start if start.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in start)


def load(text: str, *, max_bytes: int = 8192, max_depth: int = 6) -> Json:
    """Return the one document in `text`; raise `YamlProblem`.

    `max_bytes` counts UTF-8 bytes; `max_depth` counts nested lists and mappings.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise YamlProblem(f"{size:,} bytes of YAML, at most {max_bytes:,} are read", quotes=False)
    if bad := _NOT_TEXT.search(text):
        before = text[: bad.start()].split("\n")
        raise YamlProblem(f"the character U+{ord(bad[0]):04X} is not allowed", len(before), len(before[-1]) + 1)
    try:
        if len(text) > _REMEMBERED:
            return _build(text, max_depth)
        values: Json = marshal.loads(_packed(text, max_depth))
        return values
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if mark and text[mark.index : mark.index + 1] == "\t":
            raise YamlProblem("a tab cannot stand here: indent with spaces", line, column, quotes=False) from None
        raise YamlProblem(error.problem or "not YAML", line, column) from None
    except yaml.YAMLError as error:
        raise YamlProblem(f"not YAML: {error}".splitlines()[0]) from None


@lru_cache(maxsize=512)
def _packed(text: str, max_depth: int) -> bytes:
    """Return the values of a text, packed: a copy of them takes a thousandth of the time of reading the text again.

    A reply's block is read by its format, for its artifact, and by what looks back on the run.
    """
    return marshal.dumps(_build(text, max_depth))


def _build(text: str, max_depth: int) -> Json:
    """Fold the parser's events into values, one frame for each open list or mapping."""
    root: list[Json] = []
    frames: list[tuple[Any, list[str]]] = [(root, [])]  # (container, [pending key])
    loader, marked = _Loader(text), "!" in text
    try:
        while type(event := loader.get_event()) is not yaml.StreamEndEvent:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                _refuse(event, text, marked=marked)
                _put(frames[-1], event.value if _is_key(frames[-1]) else _scalar(event), event)
            elif kind is yaml.SequenceStartEvent or kind is yaml.MappingStartEvent:
                _refuse(event, text, marked=marked)
                if len(frames) > max_depth:
                    raise _problem(f"nested deeper than {max_depth}", event, quotes=False)
                if _is_key(frames[-1]):
                    raise _problem("a key must be plain text", event)
                container: Any = [] if kind is yaml.SequenceStartEvent else {}
                _put(frames[-1], container, event)
                frames.append((container, []))
            elif kind is yaml.SequenceEndEvent or kind is yaml.MappingEndEvent:
                frames.pop()
            elif kind is yaml.AliasEvent:
                raise _problem("aliases (*name) are not allowed", event)
            elif kind is yaml.DocumentStartEvent:
                if root:
                    raise _problem("only one document is allowed", event)
                if event.version or event.tags:
                    raise _problem("directives (%NAME) are not allowed", event)
    finally:
        loader.dispose()
    return root[0] if root else None


def _refuse(event: Any, text: str, *, marked: bool) -> None:
    """Raise `YamlProblem` for an anchor or a tag; `marked`: the whole text has a `!` somewhere."""
    if event.anchor:
        raise _problem("anchors (&name) are not allowed", event)
    # libyaml does not report a lone `!` before a scalar: look for it in the text.
    bare = marked and type(event) is yaml.ScalarEvent
    if event.tag or (bare and text.startswith("!", event.start_mark.index)):
        raise _problem("tags (!name) are not allowed", event)


def _problem(why: str, event: Any, *, quotes: bool = True) -> YamlProblem:
    return YamlProblem(why, event.start_mark.line + 1, event.start_mark.column + 1, quotes=quotes)


def _is_key(frame: tuple[Any, list[str]]) -> bool:
    return isinstance(frame[0], dict) and not frame[1]


def _put(frame: tuple[Any, list[str]], value: Json, event: Any) -> None:
    container, pending = frame
    if isinstance(container, list):
        container.append(value)
    elif pending:
        container[pending.pop()] = value
    else:
        key = str(value)
        if key in container:
            raise _problem(f"the key `{shown(key)}` is there twice", event, quotes=False)
        pending.append(key)


def _scalar(event: yaml.ScalarEvent) -> Json:
    text = event.value
    if not event.implicit[0]:  # quoted, or a block of text
        return str(text)
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return str(text)
