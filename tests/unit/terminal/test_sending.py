"""What may be paid, in words, before anything is sent, and while a batch goes on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cdo.planning.estimate import Range
from cdo.providers.models import ModelSpec
from cdo.terminal.batch_progress import told
from cdo.terminal.sending import cost
from tests.unit.planning.test_spending import FREE, HERE, LOCAL, PRICED, UNKNOWN


@pytest.mark.parametrize(
    ("specs", "span", "words"),
    [
        ([FREE, LOCAL], (0.0, 0.0), "free"),
        ([PRICED, FREE], (0.1, 0.5), "$0.10–0.50"),
        ([HERE], None, "price unknown"),
        ([HERE, LOCAL], None, "price unknown"),
        ([PRICED, HERE, UNKNOWN], None, "$0.10–0.50 for the others, price unknown for ollama/b, x/new"),
    ],
)
def test_only_a_known_price_of_nothing_is_free(
    specs: list[ModelSpec], span: tuple[float, float] | None, words: str
) -> None:
    known = (0.1, 0.5) if PRICED in specs else (0.0, 0.0)
    assert cost(specs, Range((1, 2), (3, 4), span, known=known)) == words


def test_a_batch_names_what_is_unknown() -> None:
    state = SimpleNamespace(count=9, done=3, failed=1, live=2, calls=17, cost=None)
    assert told(state, None) == "4 of 9 items · 1 failed · 2 live · 17 calls answered · price unknown"
    state.cost = 0.5
    assert told(state, None).endswith(" · $0.50")
