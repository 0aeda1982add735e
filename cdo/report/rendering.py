"""Renders the templates of pages: what is filled in is escaped, and a broken template is named with its line."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from cdo.content.library import FIX
from cdo.core.errors import ContentError
from cdo.core.formatting import visible

if TYPE_CHECKING:
    from jinja2 import Template

    from cdo.content.library import Library

STYLE, PARTS = "templates/report-style", "templates/report-parts"


class ServedPage(Struct, frozen=True):
    """How a page that a server shows differs from a file: its style sheet has an address, and pages lead to others.

    `trail` is the way to the page, as pairs of words and addresses. `script` is the address of its script. Without
    scripts, a browser loads the page again after `refresh` seconds; 0 is for never.
    """

    style: str
    script: str = ""
    trail: Sequence[tuple[str, str]] = ()
    refresh: int = 0


class PageTemplates:
    """The templates of pages in a library, each compiled once. They may call the macros of `PARTS`."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._compiled: dict[str, Template] = {}

    def page(self, name: str, values: Mapping[str, Any], served: ServedPage | None = None) -> str:
        """Render the template `name` with `values`, escaped; `served` is None for a page that is a file.

        `values` must contain `title` and `version`. Raises `ContentError` if a template is broken.
        """
        from markupsafe import Markup

        style = Markup(self._library.load(STYLE).body.replace("<", ""))  # without "<", it cannot end its element
        try:
            return self._template(name).render({**values, "style": style, "served": served}).strip() + "\n"
        except Exception as error:  # expressions in a template can raise anything
            raise self._broken(name, error) from None

    def parts(self, name: str, values: Mapping[str, Any], macros: Sequence[str]) -> dict[str, str]:
        """Render macros without arguments of the template `name`, each by itself; raise `ContentError`."""
        try:
            module = self._template(name).make_module({**values, "style": "", "served": None})
            return {macro: str(getattr(module, macro)()).strip() for macro in macros}
        except Exception as error:
            raise self._broken(name, error) from None

    def _template(self, name: str) -> Template:
        if name not in self._compiled:
            from jinja2 import StrictUndefined
            from jinja2.sandbox import ImmutableSandboxedEnvironment

            environment = ImmutableSandboxedEnvironment(
                undefined=StrictUndefined, autoescape=True, finalize=_finished, trim_blocks=True, lstrip_blocks=True
            )
            self._compiled[name] = environment.from_string(self._above() + self._library.load(name).body)
        return self._compiled[name]

    def _above(self) -> str:
        return f"{self._library.load(PARTS).body.rstrip()}\n"

    def _broken(self, name: str, error: Exception) -> ContentError:
        from jinja2 import TemplateSyntaxError

        if isinstance(error, ContentError):
            return error
        parts, document, above = self._library.load(PARTS), self._library.load(name), self._above().count("\n")
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
        number = error.lineno if isinstance(error, TemplateSyntaxError) else next(reversed(lines), 1) or 1
        within, number = (document, number - above) if number > above else (parts, number)
        return ContentError(f"{within.path}: line {number + within.first_line - 1}: {error}", FIX)


def _finished(value: Any) -> Any:
    """Prepare the value of a template expression for escaping: make control characters in text visible."""
    if value is None:
        raise TypeError("a value that is not there was to be shown")
    return value if hasattr(value, "__html__") else visible(str(value))
