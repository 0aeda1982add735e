"""Loads and writes a strict subset of YAML, for blocks that models and people write.

No aliases, anchors, tags, directives, duplicate or complex keys; bounded size and depth. Plain scalars are null,
true and false, decimal integers, and decimals with a point; all else is text, so that `no`, `12:30` and the
commit `12e4` stay as written. Everything outside the subset is an error with its line and column. Values are
built from the parser's events, so that no hostile document is ever constructed in memory first.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from cdo.core.steps import Json

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LAYOUT: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]{1,3})?")
# Text that a reader of YAML may take for a number: it is quoted when written.
_LIKE_A_NUMBER = re.compile(r"[-+]?(0[ox][0-9a-fA-F]+|\.?[0-9][0-9_.]*([eE][-+]?[0-9]+)?)")
_ODD_BREAK = re.compile("[\r\x85\u2028\u2029]")  # line breaks that only quoted text distinguishes from \n
_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class YamlProblem(ValueError):
    """The text is not in the subset. `line` and `column` count from 1."""

    def __init__(self, why: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"line {line}, column {column}: {why}")
        self.why, self.line, self.column = why, line, column


def shown(text: str) -> str:
    """Return a text for an error message: shortened, with characters replaced that cannot be printed."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:40])


def load(text: str, *, max_bytes: int = 8192, max_depth: int = 6) -> Json:
    """Return the one document in `text`; raise `YamlProblem`.

    `max_bytes` counts UTF-8 bytes; `max_depth` counts nested lists and mappings.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise YamlProblem(f"{size} bytes of YAML, at most {max_bytes} are read")
    if bad := _NOT_TEXT.search(text):
        before = text[: bad.start()].split("\n")
        raise YamlProblem(f"the character U+{ord(bad[0]):04X} is not allowed", len(before), len(before[-1]) + 1)
    try:
        return _build(text, max_depth)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise YamlProblem(error.problem or "not YAML", line, column) from None
    except yaml.YAMLError as error:
        raise YamlProblem(f"not YAML: {error}".splitlines()[0]) from None


def _build(text: str, max_depth: int) -> Json:
    """Fold the parser's events into values, one frame for each open list or mapping."""
    root: list[Json] = []
    frames: list[tuple[Any, list[str]]] = [(root, [])]  # (container, [pending key])
    for event in yaml.parse(text, Loader=_Loader):
        mark: Any = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlProblem("aliases (*name) are not allowed", line, column)
        if isinstance(event, yaml.NodeEvent) and event.anchor:
            raise YamlProblem("anchors (&name) are not allowed", line, column)
        # libyaml does not report a lone `!` before a scalar: look for it in the text.
        bare = isinstance(event, yaml.ScalarEvent) and text[mark.index : mark.index + 1] == "!"
        if bare or getattr(event, "tag", None):
            raise YamlProblem("tags (!name) are not allowed", line, column)
        if isinstance(event, yaml.DocumentStartEvent):
            if root:
                raise YamlProblem("only one document is allowed", line, column)
            if event.version or event.tags:
                raise YamlProblem("directives (%NAME) are not allowed", line, column)
        if isinstance(event, yaml.ScalarEvent):
            _put(frames[-1], event.value if _is_key(frames[-1]) else _scalar(event), line, column)
        elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            if len(frames) > max_depth:
                raise YamlProblem(f"nested deeper than {max_depth}", line, column)
            if _is_key(frames[-1]):
                raise YamlProblem("a key must be plain text", line, column)
            container: Any = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            _put(frames[-1], container, line, column)
            frames.append((container, []))
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            frames.pop()
    return root[0] if root else None


def _is_key(frame: tuple[Any, list[str]]) -> bool:
    return isinstance(frame[0], dict) and not frame[1]


def _put(frame: tuple[Any, list[str]], value: Json, line: int, column: int) -> None:
    container, pending = frame
    if isinstance(container, list):
        container.append(value)
    elif pending:
        container[pending.pop()] = value
    else:
        key = str(value)
        if key in container:
            raise YamlProblem(f"the key `{shown(key)}` is there twice", line, column)
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


def dump(data: Any) -> str:
    """Write `data` as YAML the way cdo's files show it: keys in order, text unescaped, 100 columns."""
    if isinstance(data, dict):
        data = _TopLevel(data)
    text = str(yaml.dump(data, Dumper=_Dumper, **_LAYOUT))
    # libyaml escapes characters beyond U+FFFF, such as emoji; the slower dumper writes them.
    return str(yaml.dump(data, Dumper=_PythonDumper, **_LAYOUT)) if "\\U000" in text else text


class _TopLevel(dict[str, Any]):
    """The top level of a file: always one key per line."""


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


class _PythonDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _short(values: Any) -> bool:
    """True if a list or mapping of these values reads better on one line."""
    scalars = all(value is None or isinstance(value, (str, int, float, bool)) for value in values)
    return scalars and sum(len(str(value)) + 4 for value in values) <= 72 and not any("\n" in str(v) for v in values)


def _list(dumper: Any, value: Any) -> Any:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=_short(value))


def _dict(dumper: Any, value: Any) -> Any:
    inline = len(value) <= 4 and _short(value.values()) and not isinstance(value, _TopLevel)
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=inline)


def _text(dumper: Any, value: str) -> Any:
    value = value.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
    # Text that this or another reader (YAML 1.1) could take for a number, bool or null is quoted.
    style = "|" if "\n" in value.strip() and not value.startswith((" ", "\n")) else None
    if _ODD_BREAK.search(value) or (style is None and _LIKE_A_NUMBER.fullmatch(value)):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


for _dumper in (_Dumper, _PythonDumper):
    _dumper.add_representer(str, _text)
    _dumper.add_representer(list, _list)
    _dumper.add_representer(tuple, _list)
    _dumper.add_representer(dict, _dict)
    _dumper.add_representer(_TopLevel, _dict)
