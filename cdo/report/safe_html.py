"""Converts untrusted Markdown to inert HTML: no link, no image, no raw HTML, no attribute from the text. Pure.

Links and images stay as written, including their addresses. Tags come from a short list and carry no text from the
input, so that a browser has nothing to follow, fetch or run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from cdo.core.formatting import visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_CHARS = 200_000  # longer text is shown as written
MAX_DEPTH = 18  # nested blocks or emphasis; below the parser's own limit, which would lose text
MAX_TOKENS = 50_000
MAX_LINE = 20_000  # most characters of a paragraph: parsing emphasis takes more than linear time
# A blank line, or one before an item of a list, which ends a paragraph wherever it stands. An item with a number, or
# with more than three blanks before it, does not always.
_PARAGRAPH_END = re.compile(r"\n\n|\n(?= {0,3}[-*+] +\S)")
_FORBIDDEN = ("html_block", "html_inline", "link", "image", "autolink", "reference")
# The tags of the output. `pre`, `code`, `br` and `hr` are written below; headings have their own branch.
_TAGS = frozenset(("p", "ul", "ol", "li", "blockquote", "em", "strong", "s", "thead", "tbody", "tr", "th", "td"))


def html(text: str, under: int = 2) -> str:
    """Convert `text` to HTML. Headings get levels below `under` (1 to 6) and skip no level.

    Text that is too long or too deeply nested is returned as written, in a `pre`.
    """
    text = visible(text)
    if len(text) > MAX_CHARS or _hard(text):
        return plain(text)
    tokens = _parser().parse(text)
    if len(tokens) > MAX_TOKENS or any(_depth(token) > MAX_DEPTH for token in tokens):
        return plain(text)
    return "".join(_blocks(tokens, under))


def plain(text: str) -> str:
    """Return `text` as written, line by line, in a `pre`."""
    return f'<pre tabindex="0">{escape(text)}</pre>\n'


def escape(text: str) -> str:
    """Escape `text` for HTML text or an attribute's value; control characters are made visible."""
    from html import escape

    return escape(visible(text), quote=True)


def _hard(text: str) -> bool:
    """True if text would take the parser too long: long paragraphs, much emphasis, wide tables, deep quotes."""
    return any(
        len(part) > MAX_LINE or sum(map(part.count, "*_~`")) > MAX_LINE // 10 for part in _PARAGRAPH_END.split(text)
    ) or any(line.count("|") > 200 or line[:400].count(">") > MAX_DEPTH * 4 for line in text.split("\n"))


def _depth(token: Token) -> int:
    return max([token.level, *(child.level for child in token.children or ())])


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_DEPTH + 6})
    return parser.enable(["table", "strikethrough"]).disable(list(_FORBIDDEN))


def _blocks(tokens: Sequence[Token], under: int) -> Iterator[str]:
    above = list[int]()  # the levels, as written, of the headings above the current position
    for token in tokens:
        if token.type == "inline":
            yield from _inline(token.children or ())
        elif token.type in ("fence", "code_block"):
            yield f'<pre tabindex="0"><code>{escape(token.content)}</code></pre>\n'
        elif token.type == "hr":
            yield "<hr>\n"
        elif token.type == "heading_open":
            written = int(token.tag[1])
            above = [*(level for level in above if level < written), written]
            yield f"<h{min(6, under + len(above))}>"
        elif token.type == "heading_close":
            yield f"</h{min(6, under + len(above))}>\n"
        elif token.type == "table_open":
            yield '<div class="scroll" tabindex="0"><table>\n'
        elif token.type == "table_close":
            yield "</table></div>\n"
        elif not token.hidden and token.tag in _TAGS:
            yield _tag(token)


def _inline(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "code_inline":
            yield f"<code>{escape(token.content)}</code>"
        elif token.type == "softbreak":
            yield "\n"
        elif token.type == "hardbreak":
            yield "<br>\n"
        elif token.nesting and token.tag in _TAGS:
            yield _tag(token)
        else:  # entities are decoded by now, so the text must be escaped again
            yield escape(token.content)


def _tag(token: Token) -> str:
    """Return a tag without attributes, except the start of a numbered list and the scope of a table heading."""
    if token.nesting < 0:
        return f"</{token.tag}>" + "\n" * token.block
    start = token.attrGet("start") if token.tag == "ol" else None
    number = f' start="{start}"' if isinstance(start, int) else ""
    scope = ' scope="col"' if token.tag == "th" else ""
    return f"<{token.tag}{number}{scope}>"
