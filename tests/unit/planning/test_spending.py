"""When a run needs the person's agreement before it spends money."""

from __future__ import annotations

from typing import Any

import pytest

from cdo.content.schemas import Price
from cdo.core.schema import field_names
from cdo.planning.estimate import Range
from cdo.planning.settings import Settings
from cdo.planning.spending import doubt
from cdo.providers.models import ModelSpec

PRICED = ModelSpec("openai/a", "direct", "a", url="https://api.example/v1", price=Price(input=2, output=8))
FREE = ModelSpec("x/free", "direct", "free", url="https://api.example/v1", price=Price(input=0, output=0))
UNKNOWN = ModelSpec("x/new", "direct", "new", url="https://api.example/v1")
HERE = ModelSpec("ollama/b", "direct", "b", url="http://127.0.0.1:11434/v1")
AGENT = ModelSpec("codex", "command", "")
LOCAL = ModelSpec("local", "local", "", price=Price(input=0, output=0))


def asked(*specs: ModelSpec, most: float | None = 6.0, known: float = 0.0, **settings: Any) -> str:
    """The reason to ask; keys of `settings` that begin with an underscore come from the configuration."""
    values = {key.removeprefix("_"): value for key, value in settings.items()}
    sources = dict.fromkeys(field_names(Settings), "default")
    sources |= {key: f"--{key}" for key in settings if not key.startswith("_")}
    sources |= {key.removeprefix("_"): "config.yaml" for key in settings if key.startswith("_")}
    span = Range((1, 2), (3, 4), None if most is None else (0.1, most), known=(0.1, most or known))
    found = doubt(specs, span, Settings(**values), sources)
    return found.reason if found else ""


def test_only_an_upper_end_above_the_limit_asks() -> None:
    assert "up to $6; cdo asks above $5" in asked(PRICED)
    assert asked(PRICED, most=5.0) == ""
    assert asked(PRICED, ask_above=7) == ""
    assert "above $0.50" in asked(PRICED, most=0.6, _ask_above=0.5)
    assert asked(PRICED, most=0.001, ask_above=0)


@pytest.mark.parametrize("spec", [FREE, HERE, LOCAL])
def test_free_and_local_models_never_ask(spec: ModelSpec) -> None:
    assert asked(spec, most=None, ask_above=0) == ""


def test_a_cap_bounds_the_estimate_and_one_given_now_is_an_agreement() -> None:
    assert asked(PRICED, budget=50) == ""
    assert asked(PRICED, _budget=4) == ""
    assert "up to $6" in asked(PRICED, _budget=50)  # a file may be anybody's
    assert asked(PRICED, max_tokens=500_000) == ""  # at most $4, if all were output
    assert asked(PRICED, max_tokens=700_000)
    assert asked(PRICED, max_calls=1)


def test_an_unknown_price_asks_but_not_where_a_login_pays() -> None:
    assert "price of x/new is not known" in asked(UNKNOWN, PRICED, most=None)
    assert asked(UNKNOWN, most=None, max_tokens=1000) == ""
    assert asked(AGENT, most=None) == ""
    assert asked(AGENT, most=None, ask_above=0)
    assert "up to $6" in asked(AGENT, PRICED, most=None, known=6.0)  # the part that is known counts
