"""What viewers of Markdown do with a file: which of its tokens load something, lead elsewhere or are HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

_LIVE = ("image", "link_open", "html_inline", "html_block")
_BESIDE = re.compile(r"[\w-][\w./#-]*")


@cache
def _readers() -> tuple[MarkdownIt, ...]:
    """As the standard says, and with the tables of GitHub and most editors."""
    plain = MarkdownIt("commonmark", {"html": True})
    return plain, MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def acts(text: str) -> list[str]:
    """What any of the viewers would act on in a text, as `kind: content`."""
    return [
        f"{token.type}: {token.content or token.attrs}" for reader in _readers() for token in _all(reader.parse(text))
    ]


def _all(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        place = str(token.attrs.get("href") or token.attrs.get("src") or "")
        beside = _BESIDE.fullmatch(place) and ".." not in place  # a file of the same folder, or below it
        if token.type in _LIVE and not beside:
            yield token
        yield from _all(token.children or [])
