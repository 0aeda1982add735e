"""Which runs are those of the demo model alone."""

from __future__ import annotations

import pytest

from cdo.core.demo_model import DEMO_NOTICE, only_demo


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["local"], True),
        (["local", "local"], True),
        (["local", "openai/gpt-4.1"], False),
        (["local:qwen3-4b"], False),
        (["local:/models/x.gguf"], False),
        ([], False),
    ],
)
def test_a_run_of_the_demo_model_alone(models: list[str], expected: bool) -> None:
    assert only_demo(models) is expected
    assert only_demo(iter(models)) is expected and "demo model" in DEMO_NOTICE
