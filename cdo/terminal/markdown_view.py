"""Shows a Markdown file at a terminal, with headings, lists and tables as rich draws them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from cdo.core.formatting import visible

if TYPE_CHECKING:
    from markdown_it.token import Token


def show_markdown(text: str, stream: TextIO, width: int) -> None:
    """Draw untrusted Markdown on a terminal of `width` columns. Links are shown as text, with their addresses."""
    from rich.console import Console
    from rich.markdown import Markdown

    page = Markdown(visible(text), hyperlinks=False)
    _harmless(page.parsed)
    Console(file=stream, width=width, force_terminal=True, no_color=bool(os.environ.get("NO_COLOR"))).print(page)


def _harmless(tokens: Iterable[Token]) -> None:
    """Replace control characters in parsed Markdown: a character reference such as `&#27;` stands for one."""
    for token in tokens:
        token.content, token.info = visible(token.content), visible(token.info)
        token.attrs = {key: visible(value) if isinstance(value, str) else value for key, value in token.attrs.items()}
        _harmless(token.children or ())
