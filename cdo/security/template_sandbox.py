"""Renders the Jinja2 templates of content files in a sandbox with bounded work.

A project's templates are untrusted. Jinja2's sandbox keeps them away from Python internals. In addition, each
rendering has a work limit, counted in steps and characters rather than seconds, so that a template gives the same
result on every machine. Random functions are removed, so that a prompt can be reproduced.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

WORK = 50_000_000  # the work limit of one rendering
STEP = 100  # cost of a loop pass, a call or a filter, in addition to the characters it handles
MAX_TEXT = 20_000_000  # most characters or entries of one value
_LEFT_OUT = ("random", "urlize", "striptags", "pprint")
# Filters and string methods whose result can be as large as the product of their arguments.
_GROWING = frozenset(
    ("replace", "join", "center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice")
)
_WIDE = re.compile(r"%[-+ #0]*(\d{4}|\*)|:[^{}]*\d{4}|\{[^{}]*\{")


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja2 environment that limits each rendering to `WORK`; exceeding it raises `SecurityError`."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        del self.globals["lipsum"]
        every = {name: found for name, found in self.filters.items() if name not in _LEFT_OUT}
        self.filters = {name: self._metered(found, name) for name, found in {**every, **filters}.items()}
        self.tests = {name: self._metered(found) for name, found in self.tests.items()}
        self.filters |= {"_charged": self._charged, "_passes": self._passes}
        self._left = WORK

    def compiled(self, source: str) -> Template:
        """Compile a template body; raise `TemplateSyntaxError`."""
        self.refill()
        try:
            return self.from_string(_Meters().visit(self.parse(source)))
        except (ValueError, RecursionError, SyntaxError, MemoryError):  # absurdly long numbers or deep nesting
            raise TemplateSyntaxError("it cannot be compiled: too deep, or a number too long", 1) from None

    def refill(self) -> None:
        """Reset the work limit for another rendering."""
        self._left = WORK

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate a binary operation; raise `SecurityError` if its result could be too large."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"`{operator}` is not for templates")
        self._charged(left)
        self._charged(right)
        if operator == "*":
            if any(isinstance(value, int) and value.bit_length() > 1024 for value in (left, right)):
                raise SecurityError("the number would be too long")
            if any(isinstance(value, (str, list, tuple)) for value in (left, right)):
                _bounded(_size(left) * _size(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call of a template (a macro, a given function, a method of a value), and charge it."""
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            args = tuple(list(self._passes(item)) if isinstance(item, Iterator) else item for item in args)
            _foreseen(name, owner, (*args, *kwargs.values()))
            self._charged(owner)
        return self._charged(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Wrap `str.format` as Jinja2 does; raise `SecurityError` for patterns that pad too far."""
        if getattr(value, "__name__", "") in ("format", "format_map") and isinstance(value.__self__, str):
            _foreseen(value.__name__, value.__self__, ())
        return super().wrap_str_format(value)

    def _metered(self, function: Any, name: str = "") -> Callable[..., Any]:
        """Wrap a filter or test so that every use is charged against the work limit."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            if name == "join" and isinstance(args[first], Iterator):
                args = (*args[:first], list(self._passes(args[first])), *args[first + 1 :])
            _foreseen(name, args[first], (*args[first + 1 :], *kwargs.values()))
            for given in args[first:]:
                self._charged(given)
            return self._charged(function(*args, **kwargs))

        return metered

    def _charged(self, value: Any) -> Any:
        """Charge a value against the work limit and return it; raise `SecurityError` if the limit is exceeded."""
        size = len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 0
        self._left -= STEP + size
        if self._left < 0:
            raise SecurityError("the template does more work than a prompt can need")
        _bounded(size)
        return value

    def _passes(self, values: Any) -> Iterator[Any]:
        for value in values:
            self._charged(None)
            yield value


class _Meters(NodeTransformer):
    """An AST transformer that charges every value a template loops over, prints, joins, compares or slices."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise TemplateSyntaxError("a loop may not be recursive", node.lineno)
        node = self._inside(node)
        node.iter = _through("_passes", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        node = self._inside(node)
        node.nodes = [item if isinstance(item, nodes.TemplateData) else _meter(item) for item in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        node = self._inside(node)
        node.nodes = [_meter(item) for item in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        node = self._inside(node)
        node.expr = _meter(node.expr)
        for operand in node.ops:
            operand.expr = _meter(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        node = self._inside(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _meter(node.node)
        return node

    def _inside(self, node: Any) -> Any:
        return self.generic_visit(node)


def _meter(node: Any) -> nodes.Expr:
    return _through("_charged", node)


def _through(name: str, node: Any) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _foreseen(name: str, value: Any, given: tuple[Any, ...]) -> None:
    """Raise `SecurityError` if the result of a filter or method would be too large."""
    if name in ("format", "format_map") and _WIDE.search(str(value).replace("{{", "")):
        raise SecurityError("the pattern pads too far")
    if name in _GROWING:
        _bounded((_size(value) + 1) * max([1, *map(_size, given)]))
    if name == "sum" and any(isinstance(item, (list, tuple)) for item in given):
        raise SecurityError("lists are not for `sum`")
    if name == "round" and any(_size(item) > 100 for item in given if not isinstance(item, str)):
        raise SecurityError("nothing has so many places")


def _size(value: Any) -> int:
    """Return the factor by which a value can multiply the size of another."""
    if isinstance(value, (str, bytes, list, tuple, dict)):
        return len(value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return min(abs(int(value)), MAX_TEXT + 1)
    return 0


def _bounded(size: int) -> None:
    if size > MAX_TEXT:
        raise SecurityError(f"a value would be larger than {MAX_TEXT:,} characters")
