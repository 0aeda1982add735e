"""Renders the templates of pages: what is filled in is escaped, and a broken template is named with its line."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cdo.content.library import FIX
from cdo.core.errors import ContentError
from cdo.core.formatting import visible

if TYPE_CHECKING:
    from cdo.content.library import Library

STYLE, PARTS = "templates/report-style", "templates/report-parts"


def rendered(library: Library, name: str, values: Mapping[str, Any]) -> str:
    """Render the template `name` with `values`, escaped; the template may call the macros of `PARTS`.

    `values` must contain `title` and `version`. Raises `ContentError` if a template is broken.
    """
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=True, finalize=_finished, trim_blocks=True, lstrip_blocks=True
    )
    parts, document = library.load(PARTS), library.load(name)
    style = Markup(library.load(STYLE).body.replace("<", ""))  # without "<", it cannot end its element
    above = f"{parts.body.rstrip()}\n"
    try:
        template = environment.from_string(above + document.body)
        return template.render({**values, "style": style}).strip() + "\n"
    except Exception as error:  # expressions in a template can raise anything
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"
        ]
        number = error.lineno if isinstance(error, TemplateSyntaxError) else next(reversed(lines), 1) or 1
        within, number = (document, number - above.count("\n")) if number > above.count("\n") else (parts, number)
        raise ContentError(f"{within.path}: line {number + within.first_line - 1}: {error}", FIX) from None


def _finished(value: Any) -> Any:
    """Prepare the value of a template expression for escaping: make control characters in text visible."""
    if value is None:
        raise TypeError("a value that is not there was to be shown")
    return value if hasattr(value, "__html__") else visible(str(value))
