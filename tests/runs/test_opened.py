"""Progressive disclosure (seed 004 section 6): a run opens exactly the documents that its table names, no others."""

from __future__ import annotations

import pytest

from tests.conftest import Desk
from tests.runs.test_modes_run import house
from tests.support.harness import journal_events
from tests.support.provider import Provider

ALWAYS = {"engine/convergence", "engine/synthesis-protocol", "engine/final-protocol", "templates/agent-brief"}
TABLE = {
    "dispatch/skill-injection", "dispatch/team-mode", "dispatch/multi-model", "modes/debug", "modes/parliament",
    "domains/dev", "domains/arch", "domains/generic", "engine/convergence", "engine/synthesis-protocol",
    "engine/final-protocol", "templates/agent-brief", "templates/combos", "templates/turn-plan", "dispatch/tools",
    "templates/commits",
}  # fmt: skip
DEEP = ALWAYS | {"dispatch/skill-injection", "dispatch/team-mode"}
TAGGED = "---\nname: payments\ndescription: Money that moves.\nmetadata:\n  tags: money\n---\n\nCount it twice.\n"


def opened(cdo: Desk, name: str) -> set[str]:
    """What the run read of the table's documents, by its journal."""
    found: set[str] = set()
    for event in journal_events(cdo.session(name)):
        if event["event"] == "content":
            found |= set(event["opened"])
    return found & TABLE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["quick"], ALWAYS),
        (["think"], ALWAYS),
        (["deep"], DEEP),
        (["team,think"], ALWAYS | {"dispatch/team-mode"}),
        (["lev-exec,think"], ALWAYS | {"dispatch/multi-model"}),
        (["debug"], ALWAYS - {"engine/final-protocol"} | {"modes/debug"}),
        (["parliament,full"], DEEP - {"engine/final-protocol"} | {"modes/parliament"}),
        (["think", "exec", "dev"], ALWAYS | {"domains/dev"}),
        (["think", "exec", "arch"], ALWAYS | {"domains/arch"}),
        (["think", "exec", "money", "--skills", "s"], ALWAYS | {"domains/generic", "dispatch/skill-injection"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_run_opens_what_its_words_call_for(
    cdo: Desk, provider: Provider, words: list[str], expected: set[str]
) -> None:
    cdo.write("s/payments/SKILL.md", TAGGED)
    turns = [] if set(words) & {"debug", "parliament,full"} else ["--turns", "1"]
    provider.script = house if "parliament,full" in words else None
    cdo(*words, *turns, "--session", "a", "Should we split the service?")
    assert opened(cdo, "a") == expected


def test_a_human_in_the_loop_opens_the_plan_and_the_catalogue_of_skills(cdo: Desk) -> None:
    cdo("hitl,think", "--turns", "1", "--session", "a", "Should we split the service?").failed(6)
    cdo("resume", "a").ok()
    offered = {"templates/turn-plan", "templates/combos", "dispatch/skill-injection"}
    assert opened(cdo, "a") == ALWAYS | offered
