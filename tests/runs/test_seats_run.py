"""Command-line agents as seats of a run, as real processes; and one vendor counted once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import A, Desk
from tests.support.harness import exchanges, tree
from tests.support.provider import Provider

QUESTION = "Should we split the service?"
AGENT = """\
purpose: A program of this project, for tests.
load_when: a model is called `mine`
program: mine-agent
install: it comes with the tests
vendor: acme
argv: [--once]
resume: ["--resume={{ thread }}"]
env: {names: [PATH, HOME]}
output: json
read:
  text: {paths: [text]}
  done: {paths: [text]}
  thread: {paths: [id]}
  usage: {input: [used.in], output: [used.out]}
window: 100000
reply_tokens: 4096
"""
PROGRAM = f"""#!{sys.executable}
import json, os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from tests.support.answers import agent_text
sys.stdin.read()
with open(os.path.expanduser("~/calls.jsonl"), "a") as log:
    log.write(json.dumps([sys.argv[1:], sorted(os.environ)]) + "\\n")
number = len(open(os.path.expanduser("~/calls.jsonl")).read().splitlines())
said = {{"text": agent_text("Mine says: stage it."), "used": {{"in": 10, "out": 5}}}}
print(json.dumps({{**said, "id": f"thread-{{number}}"}}))
"""


@pytest.fixture
def mine(cdo: Desk, tmp_path: Path) -> Desk:
    """A desk whose project brings a command-line agent of its own."""
    cdo.write(".cdo/dispatch/agents/mine.yaml", AGENT)
    program = tmp_path / "bin" / "mine-agent"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return cdo.having(PATH=f"{program.parent}:{os.environ['PATH']}")


def started(cdo: Desk) -> list[list[list[str]]]:
    log = cdo.path.parent / "home" / "calls.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


MIXED = ("-m", "openai/gpt-4.1", "-m", "mine")


def test_a_projects_command_agent_is_started_only_with_trust(mine: Desk, provider: Provider) -> None:
    mine("quick", *MIXED, *A, QUESTION).failed(4, "dispatch/agents/mine is a file of this project", "--trust")
    assert started(mine) == [] and provider.calls == []
    mine("quick", *MIXED, "--trust", *A, QUESTION).ok()
    assert len(started(mine)) == 1
    mine("quick", *MIXED, "--session", "b", QUESTION).ok()
    mine.write(".cdo/dispatch/agents/mine.yaml", AGENT.replace("4096", "9999"))
    mine("quick", *MIXED, "--session", "c", QUESTION).failed(4, "which you do not trust as it is now")
    assert len(started(mine)) == 2


def test_an_agents_answer_is_an_artifact_like_any_other(mine: Desk, provider: Provider) -> None:
    mine("quick", *MIXED, "--trust", *A, QUESTION).ok()
    text = (mine.session() / "t1-critic.md").read_text()
    assert "Mine says: stage it." in text and "model: mine" in text
    (record,) = [record for record in exchanges(mine.session()) if record["model"] == "mine"]
    assert record["usage"]["input_tokens"] == 10 and record["cost"] is None, "unknown is never zero"
    ((_, environment),) = started(mine)
    assert "OPENAI_API_KEY" not in environment
    before = tree(mine.session())
    mine("resume", "a").ok()
    assert tree(mine.session()) == before and len(started(mine)) == 1


def test_a_teammates_conversation_is_gone_on_with(mine: Desk) -> None:
    mine("team,think", "--turns", "2", *MIXED, "--trust", *A, QUESTION).ok()
    argvs = [argv for argv, _ in started(mine)]
    assert argvs == [["--once"], ["--resume=thread-1"]]


def test_without_a_team_every_call_is_a_conversation_of_its_own(mine: Desk) -> None:
    mine("think", "--turns", "2", *MIXED, "--trust", *A, QUESTION).ok()
    assert not any("--resume" in str(argv) for argv, _ in started(mine))


def test_lev_exec_seats_what_the_machine_offers_and_counts_vendors_not_seats(mine: Desk, provider: Provider) -> None:
    mine("quick", "--trust", *MIXED, "--session", "pin", QUESTION).ok()
    done = mine("lev-exec,think", "--turns", "1", "--dry-run", "--json", QUESTION).ok()
    assert set(done.json["models"]) == {"mine", "openai/gpt-6.1-sol"}
    mine("lev-exec,think", "--turns", "1", *A, QUESTION).ok()
    synthesis = provider.named("t1-synthesis")[-1].prompt
    assert "These 3 voices come from 2 independent makers of models." in synthesis
    assert "mine" not in synthesis.lower().split() and "acme" not in synthesis
    provider.calls.clear()
    mine(
        "lev-exec,think", "--turns", "1", "-m", "openai/gpt-4.1", "-m", "openai/gpt-4o", "--session", "b", QUESTION
    ).ok()
    synthesis = provider.named("t1-synthesis")[-1].prompt
    assert "All 3 voices come from one maker of models" in synthesis


def test_lev_exec_gives_everybody_a_seat_or_says_who_has_none(mine: Desk) -> None:
    models = [word for number in range(5) for word in ("-m", f"openai/gpt-4.1-{number}")]
    done = mine("lev-exec,think", "--turns", "1", *models, "--dry-run", "--json", QUESTION).ok()
    assert len(done.json["roles"]) == 4, "as wide as the preset allows"
    told = mine("lev-exec,think", "--turns", "1", *models, *A, QUESTION).ok()
    assert "openai/gpt-4.1-4: no seat in the first turn" in told.err


def test_another_model_from_now_on_changes_no_question(mine: Desk, provider: Provider) -> None:
    words = ("lev-exec,think", "--turns", "2", "-m", "openai/gpt-4.1", "-m", "openai/gpt-4o")
    mine(*words, "--max-calls", "4", *A, QUESTION).failed(5)
    before = {info.call for info in provider.calls}
    mine("resume", "a", "-m", "openai/gpt-4.1-mini", "--max-calls", "99").ok()
    later = [info for info in provider.calls if info.call not in before]
    assert {info.body["model"] for info in later} == {"gpt-4.1-mini"}
    assert len(provider.calls) == len({info.call for info in provider.calls}), "nothing was asked twice"
    final = (mine.session() / "FINAL.yaml").read_text()
    assert "openai/gpt-4.1-mini" in final and "openai/gpt-4o" in final


def test_another_model_leaves_a_waiting_plan_as_it_was_edited(mine: Desk, provider: Provider) -> None:
    mine("hitl,think", "--turns", "1", "-m", "openai/gpt-4.1", *A, QUESTION).failed(6)
    (mine.session() / "t1-plan.yaml").write_text("voices: [lawyer]\n")
    mine("resume", "a", "-m", "openai/gpt-4o").ok()
    assert [info.call for info in provider.calls if info.kind == "agent"] == ["t1-lawyer"]
    assert {info.body["model"] for info in provider.calls} == {"gpt-4o"}
