"""Documents as delimited blocks: any text survives, and what is cut off is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.formats.document_blocks import DocumentBlock, joined, split, unfenced
from tests.support.effort import assert_linear

LABELS = ("p5", "p6", "p5 app/index.html", "app/my file.txt", "src/a=b.py")
PIECES = st.sampled_from(
    ["\n", "\r\n", "\r", " ", "a", "```", "```json\n", "{", '"', "}", "=====", "\t", "\u2028", "# x", "</version>",
     "é", "=====BEGIN p5=====", "=====END p5=====", "======END p5======", "=====END p5 app/index.html=====",
     "===END app/my file.txt===", "===== END src/a=b.py ====="]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join)


def lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@given(st.lists(st.tuples(st.sampled_from(LABELS), TEXTS), max_size=5), st.sampled_from(["", '{"a": 1}', "{\n}\n"]))
def test_any_document_survives(items: list[tuple[str, str]], before: str) -> None:
    outside, blocks = split(f"{before}\n{joined(items)}\n")
    assert blocks == [DocumentBlock(label, lf(text)) for label, text in items]
    assert outside.strip() == before.strip()


@given(TEXTS)
def test_reading_any_text_ends_and_loses_nothing_outside_of_delimiters(text: str) -> None:
    outside, blocks = split(text)
    kept = sum(len(part) for part in (outside, *(block.text for block in blocks)))
    assert kept <= len(lf(text))
    assert [block.text for block in split(joined((block.label, block.text) for block in blocks))[1]] == [
        block.text for block in blocks
    ]


def test_a_block_that_is_cut_off_costs_no_other_block() -> None:
    text = "{}\n=====BEGIN p5=====\none\n\n=====BEGIN p6=====\ntwo\n=====END p6=====\n=====BEGIN p7=====\nthr"
    assert split(text)[1] == [
        DocumentBlock("p5", "one", closed=False),
        DocumentBlock("p6", "two"),
        DocumentBlock("p7", "thr", closed=False),
    ]


def test_delimiters_are_read_as_models_vary_them() -> None:
    text = "===== BEGIN  p5 =====\none\n====END p5====\n\n=====BEGIN p6 a/b.js=====\ntwo\n=====END p6====="
    assert split(text)[1] == [DocumentBlock("p5", "one"), DocumentBlock("p6 a/b.js", "two")]


def test_an_end_without_a_beginning_is_left_out() -> None:
    assert split("{}\n=====END p5=====\n") == ("{}\n", [])


def test_a_fence_around_all_of_a_text_is_found() -> None:
    assert unfenced("```js\nlet a = `x`;\n```") == "let a = `x`;"
    assert unfenced("~~~\na\n```\n~~~\n") == "a\n```"
    for text in ("a\n```\nb\n```", "```js\na\n```\nb", "```", "a", ""):
        assert unfenced(text) is None


@pytest.mark.wide
def test_reading_takes_linear_time() -> None:
    def work(times: int) -> None:
        split("=====BEGIN p5=====\nx\n=====END p6=====\n" * times + "=" * times + "BEGIN " + "=" * times)

    assert_linear(work, 20_000)
