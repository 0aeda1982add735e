"""Tests texts against patterns and JSON schemas that a model wrote, in bounded time. Pure.

Patterns use RE2, which runs in time linear in the text; the size of their programs is limited. A schema may use only
the keywords listed here (an unknown one, which would have no effect, is refused) and may refer only to its own
definitions. A test stops after `STEPS`. Nothing is ever fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NoReturn

from cdo.core.formatting import one_line
from cdo.core.steps import Json
from cdo.formats.strict_yaml import shown

PATTERN = 600  # characters of a pattern
PROGRAM = 5_000  # instructions of a pattern's program, and of all patterns of one schema together
SCHEMA = 8_000  # characters of a schema as JSON
NODES = 500  # subschemas, each counted as often as it is referred to
DEPTH = 24  # nesting levels of subschemas; this also stops a schema that refers to itself
STEPS = 200_000  # steps of one test; see `_cost` for the steps of a keyword
SEARCHED = 64  # characters that a pattern searches in one step
NESTED = 64  # nesting levels of lists and mappings in a tested document

_ONE = frozenset({"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"})
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAP = frozenset({"properties", "$defs", "definitions"})
_PLAIN = frozenset({
    "type", "enum", "const", "required", "dependentRequired", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minContains",
    "maxContains", "minProperties", "maxProperties", "pattern", "$ref",
})  # fmt: skip
_NOTES = frozenset({"title", "description", "default", "examples", "$comment"})
_KNOWN = _ONE | _LIST | _MAP | _PLAIN | _NOTES
# The closing quote is optional: an unterminated string matches to the end, without backtracking.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*"?', re.DOTALL)
_REF = re.compile(r"#/(\$defs|definitions)/([A-Za-z0-9_.-]{1,80})")


class UnusableCheck(Exception):
    """Raised if a pattern, schema or document cannot be used; the message says why, without a full stop."""


# -- patterns --------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def pattern(text: str) -> Any:
    """Compile an RE2 pattern; raise `UnusableCheck`. Texts to search must be passed through `encodable` first."""
    import re2  # lazily: only missions with such criteria need it

    if len(text) > PATTERN:
        raise UnusableCheck(f"a pattern has at most {PATTERN} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(encodable(text), options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise UnusableCheck(f"RE2 does not take the pattern: {one_line(why, 120)}") from None
    if compiled.programsize > PROGRAM:
        raise UnusableCheck("the pattern is too large: repeat less in it")
    return compiled


def encodable(text: str) -> str:
    """Replace lone surrogates by question marks: JSON can contain them, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


# -- schemas ---------------------------------------------------------------------------------------


def check_schema(schema: Json) -> None:
    """Raise `UnusableCheck` unless a value is a JSON schema (2020-12) that `misfit` can test documents against."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, dict):
        raise UnusableCheck("a JSON schema is a mapping")
    try:
        size = len(json.dumps(schema, allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        raise UnusableCheck("the schema is not plain JSON") from None
    if size > SCHEMA:
        raise UnusableCheck(f"a JSON schema has at most {SCHEMA} characters")
    program = sum(pattern(text).programsize for text in _patterns(_plain(schema)))
    if program > PROGRAM:
        raise UnusableCheck("the patterns of the schema are too large together")
    try:
        # Without the format checker, which would compile patterns with Python's own engine.
        Draft202012Validator.check_schema(_plain(schema), format_checker=None)
    except SchemaError as error:
        raise UnusableCheck(f"at {one_line(error.json_path, 80)}: {one_line(error.message, 160)}") from None


def _plain(schema: dict[str, Json]) -> dict[str, Json]:
    """Return a schema without `$schema`, by which the library would choose another validator than ours."""
    return {key: value for key, value in schema.items() if key != "$schema"}


def _patterns(schema: dict[str, Json]) -> Iterator[str]:
    """Yield a schema's patterns; raise `UnusableCheck` if it has unknown keywords or references, or is too large."""
    nodes = 0
    rest: list[tuple[Json, int]] = [(schema, 1)]
    while rest:
        node, depth = rest.pop()
        nodes += 1
        if nodes > NODES or depth > DEPTH:
            raise UnusableCheck(f"the schema refers to itself, or has over {NODES} parts or {DEPTH} levels")
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise UnusableCheck("a part of the schema is neither a mapping nor true or false")
        if strange := [key for key in node if key not in _KNOWN]:
            raise UnusableCheck(
                f"`{shown(strange[0])}` is not tested; the keywords are {', '.join(sorted(_KNOWN - _NOTES))}"
            )
        if isinstance(text := node.get("pattern"), str):
            yield text
        rest += [(item, depth + 1) for item in _within(node, schema)]


def _within(node: dict[str, Json], schema: dict[str, Json]) -> Iterator[Json]:
    """Yield the direct subschemas of a schema node, and the definition it refers to."""
    for key, value in node.items():
        if key in _ONE:
            yield value
        elif key in _LIST and isinstance(value, list):
            yield from value
        elif key in _MAP and isinstance(value, dict):
            yield from value.values()
    if "$ref" in node:
        named = _REF.fullmatch(str(node["$ref"]))
        there = schema.get(named[1]) if named else None
        if not named or not isinstance(there, dict) or named[2] not in there:
            raise UnusableCheck(f"`{shown(str(node['$ref']))}` is no definition of this schema, as in #/$defs/name")
        yield there[named[2]]


# -- documents -------------------------------------------------------------------------------------


def document(content: str) -> Json:
    """Parse a content, or its first block fenced as ```json, as JSON; raise `UnusableCheck`."""
    text = _fenced(content) or content
    if _depth(text) > NESTED:
        raise UnusableCheck(f"its JSON nests deeper than {NESTED} levels")
    try:
        found: Json = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise UnusableCheck(f"its JSON nests deeper than {NESTED} levels") from None
    except ValueError as error:
        raise UnusableCheck(
            f"it is no JSON, nor has it a block fenced as json that is: {one_line(error, 100)}"
        ) from None
    return found


def _fenced(content: str) -> str:
    """Return the first block fenced as ```json; "" if there is none or it is not closed."""
    lines = content.splitlines()
    starts = [place for place, line in enumerate(lines) if line.strip().lower() == "```json"]
    if not starts:
        return ""
    block = lines[starts[0] + 1 :]
    end = next((place for place, line in enumerate(block) if line.strip() == "```"), None)
    return "" if end is None else "\n".join(block[:end])


def _depth(text: str) -> int:
    """Return how deep brackets nest in a JSON text, ignoring its strings."""
    deepest = depth = 0
    for sign in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Build a mapping; raise `ValueError` for a duplicate key, because parsers differ in which value they keep."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


# -- testing ---------------------------------------------------------------------------------------


def misfit(schema: dict[str, Json], found: Json) -> str:
    """Return a message about the first mismatch of a document with a schema; "" if it matches.

    The schema must have passed `check_schema`. Raise `UnusableCheck` if the document cannot be tested.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend
    from referencing import Registry

    own = {"pattern": _matches, "uniqueItems": _unique}
    left = [STEPS]
    rules = {**Draft202012Validator.VALIDATORS, **own}
    validator = extend(Draft202012Validator, {name: _counted(rule, left) for name, rule in rules.items()})
    try:
        error = next(validator(_plain(schema), registry=Registry()).iter_errors(found), None)
    except (ArithmeticError, RecursionError, ValueError):
        raise UnusableCheck("its JSON cannot be held against the schema") from None
    return f"at {one_line(error.json_path, 80)}: {one_line(error.message, 160)}" if error else ""


def _counted(rule: Callable[..., Any], left: list[int]) -> Callable[..., Iterator[Any]]:
    """Wrap a rule so that it deducts its cost from `left`, and ends the test when nothing is left."""

    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        left[0] -= _cost(value, instance) if rule is _matches else _cost(value)
        if left[0] < 0:
            raise UnusableCheck("its JSON takes too long to hold against the schema")
        yield from rule(validator, value, instance, schema) or ()

    return run


def _cost(value: Any, searched: Any = "") -> int:
    """Return the steps a keyword costs: the length of its list, plus one per `SEARCHED` characters to search."""
    length = len(value) if isinstance(value, list | dict) else 1
    return max(length, 1) + (len(searched) // SEARCHED if isinstance(searched, str) else 0)


def _matches(validator: Any, value: str, instance: Any, schema: Any) -> Iterator[Any]:
    """Implement the keyword `pattern` with RE2."""
    from jsonschema import ValidationError

    if isinstance(instance, str) and not pattern(value).search(encodable(instance)):
        yield ValidationError(f"{instance[:80]!r} does not match {value!r}")


def _unique(validator: Any, value: bool, instance: Any, schema: Any) -> Iterator[Any]:
    """Implement the keyword `uniqueItems` in one pass; the library's version compares all pairs of items."""
    from jsonschema import ValidationError

    if value and isinstance(instance, list):
        items = {json.dumps(_counts(item), sort_keys=True) for item in instance}
        if len(items) < len(instance):
            yield ValidationError("has items that are the same")


def _counts(value: Json) -> Json:
    """Normalise a value for comparison: 1.0 becomes 1."""
    if isinstance(value, list):
        return [_counts(item) for item in value]
    if isinstance(value, dict):
        return {key: _counts(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
