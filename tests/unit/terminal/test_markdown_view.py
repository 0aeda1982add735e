from __future__ import annotations

import io
import re

from cdo.terminal.markdown_view import show_markdown

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def drawn(text: str, width: int = 60) -> str:
    stream = io.StringIO()
    show_markdown(text, stream, width)
    return stream.getvalue()


def test_markdown_is_drawn_and_wrapped() -> None:
    shown = drawn(
        "# Should we?\n\n- **Decision:** Yes, " + "in steps " * 20 + "\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    assert "**" not in shown and "|---|" not in shown and STYLE.search(shown)
    assert max(len(line) for line in STYLE.sub("", shown).splitlines()) <= 60


def test_nothing_in_a_file_acts_on_the_terminal() -> None:
    hostile = "a\x1b[2J `b\x1b]0;t\x07` &#27;[2J &#x9b;2J &#x202e; [&#27;x](http://e.example/&#27;) ![&#27;](x)"
    hostile += "\n\n```&#27;\nc\x1b\n```\n"
    shown = STYLE.sub("", drawn(hostile, 200))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)
    assert "␛[2J" in shown and "http://e.example/" in shown
