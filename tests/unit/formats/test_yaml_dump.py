"""Writing YAML in short gives the same bytes as libyaml gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdo.formats.yaml_dump import by_library, dump

HASH = "abcdef0123456789"
# Words that stand plain, and those that a reader could take for something else.
WORDS = [
    "word", "t1-critic", "openai/gpt-5.5", "it's", "(ok)", "no", "Yes", "y", "null", "off", "a:b", "c: d", "#h",
    "12", "0.5", "1e5", "0b101", "12345678e1234567", HASH, HASH * 4, "2026-11-28", "12:30", "?", "a,b", "[x]", "{y}",
    "&a", "*b", "!t", "%d", "@e", "`f", '"q"', "~", "=", "<<", "...", "---", "é", "😀", "\u2028", "\\U0001",
    "- x", "a\tb", "turn 1: idle", "a: b c", "say: 'no'", "x - y; z? (w), v!", "a:", ":b", "a #b", "a# b", "b'",
    "a::b", "00-input", "00-a-b", "00-", "_x", "line\nbreak", "tail\n\n", " lead", "trail ", "long" * 9,
    "verylongword" * 10, "",
]  # fmt: skip
PLAIN = st.lists(st.sampled_from(WORDS[:5]), min_size=1, max_size=60).map(" ".join)
SENTENCES = st.text("ab1 .,:;'\"?!%&$+=*~<>@^|/()-#`[]{}\\", min_size=1, max_size=130)
TEXTS = PLAIN | SENTENCES | st.sampled_from(WORDS) | st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join)
NUMBERS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from([0.7, 1e-7, 1e22])
VALUES = st.recursive(
    TEXTS | NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(st.dictionaries(PLAIN, inner, min_size=1, max_size=6), max_size=4)
        | st.dictionaries(TEXTS, inner, max_size=6)
    ),
    max_leaves=30,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=8))
def test_what_is_written_in_short_is_what_libyaml_writes(data: dict[str, Any]) -> None:
    assert dump(data) == by_library(data)


@pytest.mark.parametrize("length", range(80, 125))
def test_a_long_text_goes_on_in_the_next_line_where_libyaml_breaks_it(length: int) -> None:
    texts = ["ab " * 60 + "c" * length, "a" * length + " b" * 60, " ".join(["abcde"] * length)]
    data = {f"key{number}": text for number, text in enumerate(texts)}
    assert dump({**data, "inner": {"x": {**data, "y": {}, "z": [{}]}}}) == by_library(
        {**data, "inner": {"x": {**data, "y": {}, "z": [{}]}}}
    )
