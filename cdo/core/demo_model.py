"""Tells the demo model from models whose answers can be relied on, and has the text that says so.

The demo model is the embedded one with 135 million parameters, which is used where nothing better was named or found.
"""

from __future__ import annotations

from collections.abc import Iterable

DEMO_MODEL = "local"  # its name in plans and records; any other embedded model is called `local:…` there
DEMO_NOTICE = "135M demo model: shows the machinery, not judgement"
DEMO_MISSION = (
    "This model of 135 million parameters cannot do the work that was asked for. What follows shows how a mission "
    "runs; nothing in it is worth using."
)
DEMO_ADVICE = "For answers worth having: export OPENAI_API_KEY=…, or -m PROVIDER/MODEL, or cdo models pull qwen3-4b"


def only_demo(models: Iterable[str]) -> bool:
    """Return True if every model of a run, by its name in the plan or the record, is the demo model."""
    return set(models) == {DEMO_MODEL}
