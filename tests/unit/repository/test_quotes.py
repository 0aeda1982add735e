"""Words are found where they stand, word for word, and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdo.content.library import PACKAGED
from cdo.repository.quotes import CHECK, CONTEXT, QUESTION, Material, Text, standing
from cdo.runner.evidence_checks import RECALLED

LOG = """# Context

Given with `--context`.

## gateway.log

```
1| 12:30:01 **ERROR** upstream timed out after 30 s in 5 of 15 runs
2| 12:30:02 `pool.size` is 1.5 times the “limit” — see max_retries
3| - it doesn't come back
```
"""


@pytest.mark.parametrize(
    "words",
    [
        "upstream timed out after 30 s",
        "  Upstream   TIMED\n out after 30 s ",
        "ERROR upstream timed out",
        "**ERROR** upstream `timed` out",
        "30 s in 5 of 15 runs 12:30:02 pool.size",  # over the end of a line, without its number
        "1| 12:30:01 ERROR upstream",
        'is 1.5 times the "limit" - see max_retries',
        "size is 1.5 times",
        "it doesn’t come back",
        "> - it doesn't come back",
        "upstream timed out … in 5 of 15 runs",
        "ERROR upstream ... [...] max_retries",
    ],
)
def test_words_that_stand_there_are_found(words: str) -> None:
    assert Text(LOG).holds(words)


@pytest.mark.parametrize(
    "words",
    [
        "upstream times out after 30 s",
        "upstream timed out after 3",
        "pstream timed out after 30 s",
        "30 s in 5 of 1",
        "5 of 5 runs after 30 s",
        "5 times the limit - see",  # of 1.5
        "30:01 ERROR upstream",  # of 12:30:01
        "in 5 of 15 runs … upstream timed out",  # in another order
        "upstream timed out … 30 s",  # too little behind the dots
        "timeout",
        "limit",
        "- - - - - - - -",
        "",
        "…",
    ],
)
def test_others_are_not(words: str) -> None:
    assert not Text(LOG).holds(words)


def test_the_first_place_counts_and_the_repeated_question_shows_nothing() -> None:
    question = "Why does the gateway crash? It prints “connection reset by peer”."
    material = Material([(CHECK, "exit code 1\nconnection reset by peer"), (QUESTION, question), (CONTEXT, LOG)])
    assert material.place("connection reset by peer") == CHECK
    assert material.place("does the gateway crash") == QUESTION
    assert material.place(f"  {question.upper()}  ") == ""
    assert material.place("upstream timed out") == CONTEXT
    assert material.place("nobody ever said this") == ""


def test_a_repository_is_searched_for_several_words_at_once() -> None:
    files = ["def push(item):\n    heapq.heappush(HEAP, item)\n", "# A *queue* of jobs\n"]
    wanted = ["heapq.heappush(HEAP, item)", "A queue of jobs", "a queue of dogs", "def"]
    assert standing(wanted, files) == {"heapq.heappush(HEAP, item)", "A queue of jobs"}


def test_what_is_recalled_begins_as_the_runner_expects() -> None:
    assert f"\n{RECALLED}\n" in (PACKAGED / "templates/recall.md").read_text()


@given(st.text(max_size=60), st.text(max_size=30))
def test_no_text_does_harm(words: str, other: str) -> None:
    Text(other).holds(words)
    Material([(QUESTION, words)]).place(other)


@given(st.text("abz019 \n*_`\"'#>-|.,:;()", min_size=8, max_size=60), st.text(max_size=20), st.text(max_size=20))
def test_whatever_is_copied_out_of_a_text_is_found_there(words: str, before: str, after: str) -> None:
    if sum(map(str.isalnum, words)) >= 12 and "..." not in words and "|" not in words:
        assert Text(f"{before}\n{words}\n{after}").holds(words)
