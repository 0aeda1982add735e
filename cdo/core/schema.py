"""Defines the base class for what files hold, and fits data to it: known keys only, and values that do not change.

msgspec does the fitting. It stops at the first problem and words it for programmers: here it is worded for people,
with its place. Pure.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import FieldInfo

T = TypeVar("T")
_SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0"), False),
}  # fmt: skip
_NUMBER = re.compile(r"[-+]?[0-9]{1,300}(\.[0-9]{1,300})?")
Place = tuple[str | int, ...]
Line = Annotated[str, Meta(min_length=1, max_length=600)]  # a text of one line, such as a heading
_FITTING = ContextVar("fitting", default=False)  # True while data is fitted to a class


class Schema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of classes for files and their parts. Unknown keys are errors; instances are immutable.

    Values are checked when data is fitted to the class (`fitted`), and not when code makes or copies an instance.
    """

    def __post_init__(self) -> None:
        if _FITTING.get():
            self.require_sound()

    def require_sound(self) -> None:
        """Raise `ValueError` if values do not agree with each other, each of which is right alone."""

    @classmethod
    def written_out(cls, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keys of a file with their short forms written out; a class without short forms has none."""
        return keys


class SchemaError(ValueError):
    """Data that does not fit a class: `place` are the keys and indexes to the value, `why` is what it must be.

    `kind` is "missing" or "unknown" for a key, "value" for anything else.
    """

    def __init__(self, place: Place, why: str, kind: Literal["missing", "unknown", "value"] = "value") -> None:
        super().__init__(f"`{'.'.join(map(str, place))}` {why}" if place else why)
        self.place, self.why, self.kind = place, why, kind


def fitted(kind: type[T], data: object) -> T:
    """Return `data` (mappings, lists and scalars) as an instance of `kind`; raise `SchemaError`.

    A text stands for a number or a switch where the class wants one, as "8", "yes" and "off" do.
    """
    try:
        return _converted(kind, data)
    except msgspec.ValidationError as error:
        message = str(error)
    if (meant := _as_meant(kind, data)) is not data:
        return fitted(kind, meant)
    try:
        found = _explained(kind, data, message)
    except (LookupError, TypeError):  # an unknown key that reads like the end of a message
        found = _worded(kind, (), message, data)
    raise found


def _converted(kind: type[T], data: object) -> T:
    token = _FITTING.set(True)
    try:
        return msgspec.convert(data, kind, str_keys=True)
    finally:
        _FITTING.reset(token)


def _as_meant(kind: Any, data: object) -> object:
    """Return data in which texts that stand for numbers and switches are these, wherever `kind` wants them.

    Data without such texts is returned itself.
    """
    plain = plain_type(kind)
    if isinstance(data, str):
        if plain is bool:
            return _SWITCH.get(data.strip().lower(), data)
        if plain in (int, float) and (match := _NUMBER.fullmatch(data.strip())):
            return data if plain is int and match[1] else plain(data)
    elif isinstance(data, Mapping):
        meant = {key: _as_meant(part_type(plain, key), value) for key, value in data.items()}
        return meant if any(meant[key] is not value for key, value in data.items()) else data
    elif isinstance(data, (list, tuple)) and get_origin(plain) in (list, tuple):
        items = [_as_meant(part_type(plain, index), value) for index, value in enumerate(data)]
        return items if any(item is not value for item, value in zip(items, data, strict=True)) else data
    return data


def misfits(kind: Any, data: object) -> Iterator[SchemaError]:
    """Yield every problem of `data` as an instance of `kind`, found one by one: nothing if it fits."""
    try:
        fitted(kind, data)
    except SchemaError as error:
        whole = error
    else:
        return
    found = False
    for part, inner in _inner(kind, data):
        found = True
        yield SchemaError((part, *inner.place), inner.why, inner.kind)
    if not found:
        yield whole


def _inner(kind: Any, data: object) -> Iterator[tuple[str | int, SchemaError]]:
    """Yield (key or index, problem) for the parts of `data`."""
    plain = plain_type(kind)
    if isinstance(plain, type) and issubclass(plain, Struct):
        if isinstance(data, Mapping):
            known = _fields(plain)
            for key, value in data.items():
                if key not in known:
                    yield key, SchemaError((), "is not an allowed key", "unknown")
                else:
                    yield from ((key, error) for error in misfits(known[key].type, value))
            for key in (key for key, item in known.items() if item.required and key not in data):
                yield key, SchemaError((), "is missing", "missing")
    elif isinstance(data, Mapping) and get_origin(plain) is dict:
        keys, values = get_args(plain)
        for key, value in data.items():
            yield from ((key, error) for error in (*_of_key(keys, key), *misfits(values, value)))
    elif isinstance(data, (list, tuple)) and get_origin(plain) in (list, tuple):
        for index, value in enumerate(data):
            yield from ((index, error) for error in misfits(part_type(plain, index), value))


def field_names(kind: type[Struct]) -> tuple[str, ...]:
    """Return the keys of a class in order."""
    return kind.__struct_fields__


def defaults(kind: type[Struct]) -> dict[str, Any]:
    """Return the defaults of a class by key; keys that have to be given are left out."""
    return {
        item.name: item.default if item.default_factory is NODEFAULT else cast("Any", item.default_factory)()
        for item in _fields(kind).values()
        if not item.required
    }


def differing(values: Struct) -> dict[str, Any]:
    """Return the fields of an instance that have no default or differ from it, by name."""
    usual = defaults(type(values))
    found = {name: getattr(values, name) for name in field_names(type(values))}
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def keys_at(kind: Any, place: Iterable[object]) -> list[str]:
    """Return the keys of the innermost mapping on the way to `place` (a path such as roles, 0) in `kind`."""
    keys: list[str] = []
    for part in (None, *place):
        kind = plain_type(kind if part is None else part_type(kind, part))
        if isinstance(kind, type) and issubclass(kind, Struct):
            keys = list(field_names(kind))
    return keys


# -- errors in words -------------------------------------------------------------------------------

_WHERE = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")
_NAMES = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list",
    "object": "a mapping",
}  # fmt: skip
_BOUNDS = {
    ">=": "greater than or equal to", "<=": "less than or equal to", ">": "greater than", "<": "less than",
}  # fmt: skip


def _explained(kind: Any, data: Any, message: str) -> SchemaError:
    """Return the error that msgspec's `message` is about, with the key of a mapping where msgspec writes `[...]`."""
    match = _WHERE.search(message)
    if not match:
        return _worded(kind, (), message, data)
    place: Place = ()
    for step in _STEP.finditer(match[2]):
        if step[3]:
            key, error = _first_wrong(kind, data)
            return SchemaError((*place, key, *error.place), error.why, error.kind)
        part: str | int = step[1] or int(step[2])
        kind, data, place = part_type(kind, part), data[part], (*place, part)
    if match[1]:
        key, error = _first_wrong(kind, data)
        return SchemaError((*place, key), error.why, error.kind)
    return _worded(kind, place, message[: match.start()], data)


def _first_wrong(kind: Any, data: Mapping[Any, Any]) -> tuple[str, SchemaError]:
    """Return the first key of a mapping that is wrong, or whose value is, with the error."""
    keys, values = get_args(plain_type(kind))
    for key, value in data.items():
        if found := next(iter((*_of_key(keys, key), *misfits(values, value))), None):
            return str(key), found
    raise AssertionError("each key and value of the mapping fits")  # msgspec found one that does not


def _of_key(kind: Any, key: object) -> Iterator[SchemaError]:
    """Yield the problem of the key of a mapping whose keys are of a type; nothing if there is none."""
    try:
        msgspec.convert({key: None}, dict[kind, Any], str_keys=True)
    except msgspec.ValidationError as error:
        yield _worded(kind, (), str(error).partition(" - at ")[0], key)


def _worded(kind: Any, place: Place, message: str, value: object) -> SchemaError:
    if problem := _own_problem(kind, value):
        return SchemaError(place, problem)
    if match := re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", message, re.DOTALL):
        missing = match[1].startswith("missing")
        why = "is missing" if missing else "is not an allowed key"
        return SchemaError((*place, match[2]), why, "missing" if missing else "unknown")
    if message.startswith("Invalid enum value"):
        return SchemaError(place, f"must be {_choices(kind)}")
    if not (match := re.fullmatch(r"Expected `([^`]*)`(.*)", message, re.DOTALL)):
        if found := re.match(r"`([a-z_.0-9]+)`: ", message):  # a check of the class names the place itself
            return SchemaError((*place, *found[1].split(".")), message[found.end() :])
        return SchemaError(place, message)
    names = [name for name in match[1].split(" | ") if name != "null"]
    return SchemaError(place, f"must {_expected(names, match[2], kind)}")


def _own_problem(kind: Any, value: object) -> str:
    """Return what a type itself says of a wrong value (`Meta(extra={"problem": FUNCTION})`); "" for nothing."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next((part for part in get_args(kind) if get_origin(part) is Annotated), kind)
    metas = (meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, msgspec.Meta))
    return next((str(meta.extra["problem"](value)) for meta in metas if meta.extra), "")


def _expected(names: Sequence[str], rest: str, kind: Any) -> str:
    """Return what a value must be or have: one of the types `names`, and what follows them in msgspec's words."""
    if bound := re.match(r" (>=|<=|>|<) (\S+)$", rest):
        return f"be {_BOUNDS[bound[1]]} {bound[2].removesuffix('.0')}"
    if length := re.match(r" of length (>=|<=|>|<)? ?(\d+)", rest):
        what = "character" if names[0] == "str" else "item"
        if length[1] == ">=" and length[2] == "1" and what == "character":
            return "not be empty"
        count = f"{length[2]} {what}{'s' * (length[2] != '1')}"
        return f"have {({'>=': 'at least ', '<=': 'at most '}).get(length[1] or '', '')}{count}"
    if pattern := re.match(r" matching regex (.*)$", rest, re.DOTALL):
        return f"match pattern {pattern[1]}".replace(r"\\Z", "$")
    if choices := _choices(kind):
        return f"be {choices}"
    if names == ["object"] and (keys := keys_at(kind, ())):
        return f"be a mapping with the keys {', '.join(keys)}"
    if names == ["array"] and (items := _pair(kind)):
        return f"be a list of {items}"
    return f"be {' or '.join(_NAMES.get(name, name) for name in names)}"


def _pair(kind: Any) -> str:
    """Return what a list of a fixed length holds, as "2 whole numbers"; "" for other types."""
    plain = plain_type(kind)
    parts = get_args(plain) if get_origin(plain) is tuple else ()
    kinds = {plain_type(part) for part in parts}
    what = {int: "whole numbers", float: "numbers", str: "texts"}.get(kinds.pop()) if len(kinds) == 1 else None
    return f"{len(parts)} {what}" if what and Ellipsis not in parts else ""


def _choices(kind: Any) -> str:
    """Return the values that a field can have, in words; "" if they are not listed."""
    plain = plain_type(kind)
    if isinstance(plain, type) and issubclass(plain, enum.Enum):
        values: Sequence[Any] = [item.value for item in plain]
    else:
        values = get_args(plain) if get_origin(plain) is Literal else ()
    *most, last = [repr(value) for value in values] or [""]
    return f"{', '.join(most)} or {last}" if most else last


def plain_type(kind: Any) -> Any:
    """Return a type without its limits, and without None where that is one of two."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            kind = get_args(kind)[0]
        elif (
            origin in (Union, types.UnionType)
            and len(kept := [p for p in get_args(kind) if p is not type(None)]) == 1
        ):
            kind = kept[0]
        else:
            return kind


@cache
def _fields(kind: type[Struct]) -> Mapping[str, FieldInfo]:
    return {item.encode_name: item for item in msgspec.structs.fields(kind)}


def part_type(kind: Any, part: object) -> Any:
    """Return the type of what is under a key or index of `kind`; Any if it has no such part."""
    kind = plain_type(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return found.type if isinstance(part, str) and (found := _fields(kind).get(part)) else Any
    parts = get_args(kind)
    if isinstance(part, str):
        return parts[1] if len(parts) == 2 else Any
    if (len(parts) == 2 and parts[1] is Ellipsis) or len(parts) == 1:
        return parts[0]
    return parts[part] if isinstance(part, int) and part < len(parts) else Any
