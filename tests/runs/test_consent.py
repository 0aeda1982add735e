"""What is said before the first call, and when the person is asked for the money. Real processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import Desk
from tests.runs.test_terminal import ended, terminal
from tests.support.harness import QUESTION, Place
from tests.support.provider import Provider

M = ("-m", "openai/gpt-4.1")
ASKED = ("cdo asks above $0.01 (`ask_above`)", "Nothing was sent.", "--yes")


@pytest.fixture
def checkout(cdo: Desk) -> Desk:
    """A desk in a repository of twelve files about node types."""
    for number in range(12):
        cdo.write(f"src/node_{number:02}.py", f"def node_type_{number}():\n    return {number}\n")
    subprocess.run(["git", "init", "-q"], cwd=cdo.path, check=True)
    return cdo


def test_one_line_says_what_goes_where_and_lists_name_each_file(checkout: Desk) -> None:
    done = checkout("quick", *M, "-v", "--session", "a", QUESTION).ok()
    files = [file["path"] for file in checkout("quick", *M, "--dry-run", "--json", QUESTION).ok().json["files"]]
    line = next(line for line in done.err.splitlines() if line.startswith("Sending"))
    assert line.startswith(f"Sending {len(files)} files (about ") and "to openai/gpt-4.1 × 2 voices, $0.0" in line
    assert line.endswith("--no-context sends none")
    assert len(files) >= 9 and all(f"  {file} (about " in done.err for file in files)
    assert done.err.index("Sending") < done.err.index("session a: quick")
    plan = checkout("quick", *M, "--dry-run", QUESTION).ok().out
    assert f"and {len(files) - 8} more file" in plan and files[0] in plan and files[-1] not in plan
    assert files[-1] in checkout("quick", *M, "--dry-run", "-v", QUESTION).ok().out
    mine = checkout("quick", *M, "--dry-run", "--json", "-c", "src/node_03.py", QUESTION).ok().json["files"]
    assert mine[0]["path"] == "src/node_03.py" and mine[0]["tokens"] > 0
    alone = checkout("quick", *M, "--no-context", "--session", "b", QUESTION).ok()
    assert "Sending the question and no files to openai/gpt-4.1" in alone.err


def test_without_a_terminal_a_dear_run_ends_before_anything_is_sent_or_written(cdo: Desk, provider: Provider) -> None:
    limit = ("--ask-above", "0.01")
    cdo("think", *M, *limit, QUESTION).failed(6, *ASKED, "up to $0.")
    cdo("cabal", *M, *limit, "Build a shop").failed(6, *ASKED)
    cdo.having(CDO_ASK_ABOVE="0.01")("think", *M, QUESTION).failed(6, *ASKED)
    assert provider.requests == [] and not (cdo.path / "tmp").exists()
    cdo("quick", *M, *limit, "--yes", "--session", "a", QUESTION).ok()
    cdo("quick", *M, *limit, "--budget", "1", "--session", "b", QUESTION).ok()
    sent = len(provider.requests)
    cdo("fork", "a", *limit).failed(6, *ASKED)
    cdo("audit", "a", *M, *limit).failed(6, *ASKED)
    assert len(provider.requests) == sent and not cdo.session("a-2").exists()
    cdo("audit", "a", *M, *limit, "--yes")
    assert len(provider.requests) > sent


def test_resume_asks_only_if_nothing_was_paid_for_yet(cdo: Desk) -> None:
    limit = ("--ask-above", "0.01")
    cdo("quick", *M, "--session", "a", "--max-calls", "1", QUESTION).failed(5)
    cdo("resume", "a", "--max-calls", "20", *limit).ok()
    cdo("fork", "a", "--no-run", "--session", "b").ok()
    cdo("resume", "b", *limit).failed(6, *ASKED)
    cdo("resume", "b", *limit, "--yes", "--max-calls", "20").ok()


def test_an_untrusted_project_lowers_the_limit_and_never_raises_it(cdo: Desk) -> None:
    cdo.write(".cdo/config.yaml", "ask_above: 0.01\n")
    cdo("think", *M, QUESTION).failed(6, *ASKED)
    cdo.write(".cdo/config.yaml", "ask_above: 1000\n")
    found = cdo("config", "--json").ok().out
    assert "1000" not in found


@pytest.mark.parametrize(("answer", "code"), [("n", 6), ("y", 0)])
def test_at_a_terminal_the_plan_is_shown_and_then_a_question_asked(tmp_path: Path, answer: str, code: int) -> None:
    with Provider() as provider:
        desk = Place(tmp_path, provider.url)
        with terminal(desk, "quick", *M, "--ask-above", "0.01", "--session", "a", QUESTION) as child:
            child.expect("Plan of turn 1")
            child.expect("Sending")
            child.expect(r"\[y/N\]")
            assert provider.requests == []
            child.sendline(answer)
            assert ended(child) == code
        assert bool(provider.requests) == (code == 0)


def test_with_no_input_a_terminal_counts_as_none(tmp_path: Path) -> None:
    with Provider() as provider:
        desk = Place(tmp_path, provider.url)
        with terminal(desk, "quick", *M, "--session", "a", QUESTION) as child:
            assert ended(child) == 0
        sent = len(provider.requests)
        with terminal(desk, "audit", "a", *M, "--ask-above", "0.01", "--no-input") as child:
            child.expect("Nothing was sent")
            assert ended(child) == 6
        assert len(provider.requests) == sent


def test_a_question_with_one_known_answer_is_named_and_answered_all_the_same(cdo: Desk) -> None:
    said = "This needs no deliberation (a known fact)"
    done = cdo("quick", *M, "--session", "a", "What is the capital of France?").ok()
    assert said in done.err and "As asked, cdo makes 4 calls, $0.0" in done.err
    assert "(arithmetic)" in cdo(*M, "--dry-run", "What is 2+2?").ok().out
    for words in (["think", "What is the capital of France?"], ["quick", "What is the cost of a capital error?"]):
        assert "no deliberation" not in cdo(*words, *M, "--dry-run").ok().out
    assert cdo("quick", *M, "-q", "--session", "b", "What is 2+2?").ok().err == ""
