from __future__ import annotations

import pytest

from cdo.core.demo_model import DEMO_NOTICE
from cdo.formats.final_opening import confidence_in_words, first_sentence, opening, status_in_words
from cdo.formats.markdown import sections


def page(question: str = "Should we move the queue?", models: tuple[str, ...] = ("openai/m",)) -> str:
    return opening(
        question=question, decision="**No: stay on PostgreSQL.** All agree.", status="converged after 2 turns",
        cost=0.0231, created="2026-11-26T20:00:00+00:00", models=models,
        confidence="0.70, lowered from 0.85: x (uncalibrated)",
    )  # fmt: skip


def test_the_question_is_the_title_above_five_lines() -> None:
    assert page() == (
        "# Should we move the queue?\n\n"
        "- **Decision:** No: stay on PostgreSQL.\n"
        "- **Confidence:** 0.70, lowered from 0.85: x (uncalibrated)\n"
        "- **Status:** converged after 2 turns\n"
        "- **Cost:** $0.02\n"
        "- **Date:** 2026-11-26"
    )


def test_only_runs_of_the_demo_model_alone_say_so() -> None:
    assert f"\n\n> **{DEMO_NOTICE}**\n\n- **Decision" in page(models=("local", "local"))
    assert DEMO_NOTICE not in page(models=("local", "openai/m"))


@pytest.mark.parametrize("question", ["Decision", "Action items", "# Confidence\n\n## Verdict"])
def test_no_question_is_taken_for_a_section(question: str) -> None:
    found = sections(f"{page(question)}\n\n## Decision\n\nYes.")
    assert found["decision"] == "Yes." and "confidence" not in found and "actionitems" not in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("**No: do not move; repair it.** All three agree.\n\nMore.", "No: do not move; repair it."),
        ("**No. Keep the queue.** All wait.", "No. Keep the queue."),
        ("No. Keep the queue as it is. All wait.", "No. Keep the queue as it is."),
        ("- Stage it by v1.2 e.g. now. Then wait.", "Stage it by v1.2 e.g. now."),
        ("### Why\n\nKeep **both** queues\nuntil May", "Keep both queues until May"),
        ("", ""),
    ],
)
def test_the_decision_in_one_sentence(text: str, said: str) -> None:
    assert first_sentence(text) == said


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (("max_turns", "the cap of 1 turn was reached", 1), "finished after its 1 turn"),
        (
            ("max_turns", "all seven phases ran; no root", 7),
            "finished after its 7 turns: all seven phases ran; no root",
        ),
        (("converged", "ready to exit at confidence 0.90", 2), "converged after 2 turns"),
        (("unresolved", "the cap", 3, "round"), "unresolved after 3 rounds: the cap"),
        (("budget", "The budget of $1.00 is reached.", 1), "budget: The budget of $1.00 is reached."),
    ],
)
def test_the_status_in_words(ended: tuple[str, str, int], said: str) -> None:
    assert status_in_words(*ended) == said


def test_a_confidence_comes_with_its_reason() -> None:
    lowered = confidence_in_words(0.7, 0.85, "3 of 10 citations were not found")
    assert lowered == "0.70, lowered from 0.85: 3 of 10 citations were not found"
    assert confidence_in_words(0.9, 0.9, "").startswith("0.90: stated by the last synthesis")
