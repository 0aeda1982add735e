"""Adds directives that print the reference from the code and the content files, so that it is never out of date.

`{content} presets` lists the files of a content folder. `{schema} Preset` lists the keys of a content file, from
`cdo.content.schemas`. `{settings}` lists the settings of a run with their variables and defaults.
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from msgspec.structs import fields
from sphinx.application import Sphinx

from cdo.cli.main import cli
from cdo.content import schemas
from cdo.content.library import PACKAGED, Library
from cdo.core.schema import Schema, defaults
from cdo.planning.settings import Settings

# The columns of each content folder: heading, key of the file.
COLUMNS: Mapping[str, Sequence[tuple[str, str]]] = {
    "presets": (("voices", "width"), ("turns", "max_turns"), ("for", "about")),
    "templates/roles": (("method", "method"), ("evidence it owes", "evidence"), ("tags", "tags")),
    "domains": (("about", "about"), ("documents", "documents")),
    "modes": (("about", "about"),),
    "dispatch/agents": (("program", "program"), ("about", "purpose"), ("set up", "install")),
}
_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "nothing"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def content_table(folder: str) -> str:
    """The files of a content folder that ship with cdo. Raises KeyError for a folder without columns."""
    library = Library((("packaged", PACKAGED),))
    columns = COLUMNS[folder]
    rows = []
    for name in library.names(folder):
        meta = library.load(f"{folder}/{name}").meta
        rows.append([f"`{name}`", *(shown(meta.get(key)) for _, key in columns)])
    return table(["name", *(heading for heading, _ in columns)], rows)


def providers_table() -> str:
    """The providers of `dispatch/providers.yaml`: prefix, variables of their keys, default model."""
    meta = Library((("packaged", PACKAGED),)).load("dispatch/providers").meta
    rows = [
        [
            f"`{name}/`",
            ", ".join(f"`{key}`" for key in entry.get("key_env", ())) or "none",
            f"`{entry['model']}`" if entry.get("model") else "",
            "Chat Completions" if entry.get("url") else "litellm",
        ]
        for name, entry in meta["providers"].items()
    ]
    return table(["prefix", "variables of the key", "default model", "spoken through"], rows)


def schema_table(name: str) -> str:
    """What `cdo.content.schemas.<name>` says of itself, and its keys. Raises AttributeError for another name."""
    schema: type[Schema] = getattr(schemas, name)
    usual = defaults(schema)
    rows = [
        [
            f"`{field.name}`",
            kind(field.type),
            f"`{shown(usual[field.name]) or '–'}`" if field.name in usual else "required",
        ]
        for field in fields(schema)
    ]
    return f"{inspect.getdoc(schema)}\n\n{table(['key', 'value', 'default'], rows)}"


def settings_table() -> str:
    """Every setting of a run: its key, option, variable and default."""
    options = {
        parameter.name: parameter.opts[-1]
        for parameter in cli.commands["run"].params
        if parameter.param_type_name == "option"
    }
    usual = defaults(Settings)
    rows = [
        [
            f"`{key}`",
            f"`{options[key]}`" if key in options else "",
            f"`CDO_{key.upper()}`" if key != "prices" else "",
            kind(field.type),
            shown(usual[key]) or "not set",
        ]
        for field in fields(Settings)
        for key in [field.name]
    ]
    return table(["key", "option", "variable", "value", "default"], rows)


def shown(value: Any) -> str:
    """A value of a content file as text of a table cell."""
    if isinstance(value, (list, tuple)):
        numbers = all(isinstance(part, int) for part in value) and len(value) == 2
        return (
            (f"{value[0]}–{value[1]}" if value[0] != value[1] else str(value[0]))
            if numbers
            else ", ".join(map(str, value))
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None or value == {} else str(value)


def kind(annotation: Any) -> str:
    """A type in words."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind(parts[0])
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        parts = tuple(item.value for item in annotation)
    if origin is Literal or (parts and not origin):
        return " or ".join(f"`{part or '(empty)'}`" for part in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(part) for part in parts if part is not type(None))
    if origin in (tuple, list):
        if len(parts) == 2 and parts[1] is not Ellipsis:
            return f"[{kind(parts[0])}, {kind(parts[1])}]"
        return f"list of {kind(parts[0])}"
    if origin is dict:
        return f"table from {kind(parts[0])} to {kind(parts[1])}"
    return _NAMES.get(annotation) or f"table ({annotation.__name__})"


class _Generated(Directive):
    """Parses Markdown that code wrote."""

    optional_arguments: ClassVar[int] = 1
    final_argument_whitespace: ClassVar[bool] = True

    def text(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the text."""
        parent = nodes.Element()
        self.state.nested_parse(StringList(self.text().splitlines(), source="generated"), self.content_offset, parent)
        return list(parent.children)


class ContentDirective(_Generated):
    """`{content} FOLDER`."""

    def text(self) -> str:
        folder = self.arguments[0]
        return providers_table() if folder == "dispatch/providers" else content_table(folder)


class SchemaDirective(_Generated):
    """`{schema} NAME`."""

    def text(self) -> str:
        return schema_table(self.arguments[0])


class SettingsDirective(_Generated):
    """`{settings}`."""

    def text(self) -> str:
        return settings_table()


def _as_written(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Show the examples below a help text as code, and the exit codes as one paragraph."""
    text = "\n".join(line.removeprefix("|").removeprefix(" ").rstrip() for line in lines)
    lines.clear()
    for part in filter(None, (part.strip() for part in text.split("\n\n"))):
        head, *examples = part.split("\n")
        code = [".. code-block:: sh", "", *(f"   {line.strip()}" for line in examples)]
        lines += [head, "", *code, ""] if head == "Examples:" else [" ".join(part.split()), ""]


def _no_arguments(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Leave arguments out: the usage names them, and the help text says what they are."""
    lines.clear()


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives, and what changes the pages of commands."""
    app.add_directive("content", ContentDirective)
    app.add_directive("schema", SchemaDirective)
    app.add_directive("settings", SettingsDirective)
    app.connect("sphinx-click-process-epilog", _as_written)
    app.connect("sphinx-click-process-arguments", _no_arguments)
    return {"parallel_read_safe": True}
